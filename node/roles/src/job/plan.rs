//! A plan as a core knows it: which leg runs which parts at what price, and where each value goes.
//!
//! A planner outside the core makes plans from a graph and the book. The core knows only the ids
//! and numbers of both.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, Listing, OrderId, Price};
use souk_memory::ContentId;

use crate::clock::Micros;
use crate::lease::THINGS_MAX;

/// The most legs of one attempt, including those that repeat the parts of others.
pub const LEGS_MAX: usize = 16;

/// The most parts of one plan.
pub const PARTS_MAX: usize = 4_096;

/// A request for a plan, with its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// The work to plan.
    pub work: PlanScope,
    /// The rest of the budget; none if the account's balance is the only limit.
    pub budget: Option<Credits>,
    /// The rest of the time; none for any time.
    pub deadline: Option<Micros>,
    /// The fewest providers, each with real work.
    pub providers_min: u32,
    /// The most providers.
    pub providers_max: u32,
    /// The providers not to buy from, with the latest failures last.
    pub excluded: Vec<Exclusion>,
    /// The number of providers that run each part, 1 or 2.
    pub copies: u32,
    /// The number of requests that go through the plan, one behind the other.
    pub requests: u32,
}

/// A provider that a job does not buy from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// The excluded provider.
    pub provider: AccountKey,
    /// The last ask that the exclusion covers: a provider that comes back has a new one. None for
    /// the rest of the job.
    pub ask: Option<OrderId>,
}

impl Exclusion {
    /// Returns whether it rules an ask out.
    #[must_use]
    pub fn rules_out(&self, listing: &Listing) -> bool {
        let is_old = self.ask.is_none_or(|ask| listing.order <= ask);
        self.provider == listing.provider && is_old
    }
}

/// A piece of work that can be planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PlanScope {
    /// The rest of the job, given these values by name; all of it if there are none.
    Rest(Vec<(String, ContentId)>),
    /// One part of an earlier plan by itself, with its inputs.
    Part {
        /// The id of the plan.
        plan: ContentId,
        /// The index of the part, from 0.
        part: u32,
        /// The inputs of the part, by name.
        inputs: Vec<(String, ContentId)>,
    },
}

/// A plan: which leg runs which parts. The first legs run the job; the legs after them repeat it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The id by which the planner knows it.
    pub id: ContentId,
    /// The legs, one lease each.
    pub legs: Vec<PlanLeg>,
    /// The parts, in an order in which they can run.
    pub parts: Vec<PlanPart>,
    /// The time from the first byte to the last output of all requests, including weights and
    /// second runs.
    pub makespan: Micros,
}

/// A lease to buy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanLeg {
    /// The ask that the planner used.
    pub listing: Box<Listing>,
    /// The leg whose parts it repeats, if any.
    pub twin_of: Option<u32>,
}

/// A part, run by one leg and its twin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPart {
    /// The leg that runs it; its twin runs it too.
    pub leg: u32,
    /// The id of the subgraph.
    pub graph: ContentId,
    /// The weights that the subgraph names.
    pub weights: Vec<ContentId>,
    /// The values that it reads.
    pub inputs: Vec<PlanInput>,
    /// The values that it gives.
    pub outputs: Vec<PlanOutput>,
    /// The floating-point operations of one run on the leg and on its twin; 0 if unknown before the
    /// run.
    pub flops: [u64; 2],
    /// Whether only the run can show its length: it has a loop whose count the run computes.
    pub is_open_ended: bool,
    /// The device time of one run on the leg and on its twin.
    pub expected: [Micros; 2],
    /// The greatest difference between two results, in parts per million of the elements' scale.
    pub tolerance_ppm: u32,
}

/// A value that a part reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanInput {
    /// The value's name.
    pub name: String,
    /// The part that makes it; none if the buyer has it.
    pub maker: Option<u32>,
    /// In a session, the value that replaces this input in a request that omits it. Only the
    /// buyer's inputs can have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fed: Option<PlanFeedback>,
}

/// A value that a request leaves to the next one of its sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFeedback {
    /// The part that makes it; any part can.
    pub part: u32,
    /// Its name in that part.
    pub name: String,
}

/// A value that a part gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOutput {
    /// The value's name.
    pub name: String,
    /// The parts that read it.
    pub readers: Vec<u32>,
    /// Whether the buyer wants it.
    pub is_wanted: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct NoPlan {
    /// The kind of the cause.
    pub kind: NoPlanKind,
    /// The cause, for people.
    pub text: String,
}

/// The kind of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoPlanKind {
    /// A larger budget would help.
    Budget,
    /// No ask is suitable.
    NoneEligible,
    /// The market was unreachable.
    Unreachable,
    /// The rest of the work cannot become a job of its own.
    Rest,
    /// No plan fits for another reason.
    Other,
}

/// A contradiction in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFault {
    /// It has no legs or parts, or too many.
    #[error("a plan cannot have {legs} legs, {parts} parts and {things} inputs and outputs")]
    Size {
        /// The number of legs.
        legs: usize,
        /// The number of parts.
        parts: usize,
        /// The number of values.
        things: usize,
    },
    /// A leg has no part, is a provider's second, or repeats a leg that is no first run.
    #[error("leg {0} of the plan has no part, or repeats another leg")]
    Leg(u32),
    /// A part's leg, makers or readers do not exist, or are in the wrong order.
    #[error("part {0} of the plan is out of order")]
    Part(u32),
    /// Two parts make the same value.
    #[error("part {0} of the plan makes a value that another part makes")]
    Maker(u32),
    /// A part is fed a value that no part makes, an input that the buyer does not have or that
    /// another part is fed otherwise, or in a plan that repeats parts, where the values would need
    /// confirmation first.
    #[error("part {0} of the plan is fed an invalid value")]
    Feedback(u32),
}

impl Plan {
    /// Checks the properties that a plan must have before a core can rely on it.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn check_plan(&self) -> Result<(), PlanFault> {
        let (legs, parts) = (self.legs.len(), self.parts.len());
        let of = |part: &PlanPart| part.inputs.len() + part.outputs.len();
        let things: usize = self.parts.iter().map(of).sum();
        let is_large = legs > LEGS_MAX || parts > PARTS_MAX || things > THINGS_MAX;
        if legs == 0 || parts == 0 || is_large {
            return Err(PlanFault::Size {
                legs,
                parts,
                things,
            });
        }
        self.check_legs()?;
        let mut made = BTreeSet::new();
        for (number, part) in self.parts.iter().enumerate() {
            let part_number = u32::try_from(number).unwrap_or(u32::MAX);
            self.check_part(part_number, part)?;
            if !part.outputs.iter().all(|output| made.insert(&output.name)) {
                return Err(PlanFault::Maker(part_number));
            }
        }
        self.check_feedback()
    }

    fn check_feedback(&self) -> Result<(), PlanFault> {
        let is_once = self.first_leg_count() as usize == self.legs.len();
        let mut values = BTreeMap::new();
        for (number, part) in (0..).zip(&self.parts) {
            for input in &part.inputs {
                let is_given = input.maker.is_none();
                let is_one =
                    !is_given || *values.entry(&input.name).or_insert(&input.fed) == &input.fed;
                let is_made = input
                    .fed
                    .as_ref()
                    .is_none_or(|fed| is_given && is_once && self.has_output(fed.part, &fed.name));
                if !(is_one && is_made) {
                    return Err(PlanFault::Feedback(number));
                }
            }
        }
        Ok(())
    }

    /// Returns whether a part gives a value of that name.
    fn has_output(&self, part: u32, name: &str) -> bool {
        let outputs = self.parts.get(part as usize).map(|part| &part.outputs);
        outputs.is_some_and(|outputs| outputs.iter().any(|output| output.name == name))
    }

    /// Returns the values that parts are fed, each with the number of its part.
    pub fn feedback_inputs(&self) -> impl Iterator<Item = (u32, &PlanFeedback)> {
        let parts = (0..).zip(&self.parts);
        parts.flat_map(|(number, part)| {
            let fed = part.inputs.iter().filter_map(|input| input.fed.as_ref());
            fed.map(move |fed| (number, fed))
        })
    }

    /// Returns whether an output of a part feeds the next request of a sequence.
    #[must_use]
    pub fn is_feedback(&self, part: u32, output: &str) -> bool {
        let mut fed = self.feedback_inputs();
        fed.any(|(_, fed)| fed.part == part && fed.name == output)
    }

    fn check_legs(&self) -> Result<(), PlanFault> {
        let firsts = self.first_leg_count();
        let mut providers = BTreeSet::new();
        for (place, leg) in self.legs_by_place() {
            let twin_is_right = match leg.twin_of {
                None => place < firsts && self.parts.iter().any(|part| part.leg == place),
                // Each first run must have a second one in the same order, unless none has.
                Some(first) => place.checked_sub(firsts) == Some(first) && first < firsts,
            };
            if !twin_is_right || !providers.insert(leg.listing.provider) {
                return Err(PlanFault::Leg(place));
            }
        }
        match self.legs.len() {
            legs if legs == firsts as usize || legs == 2 * firsts as usize => Ok(()),
            _ => Err(PlanFault::Leg(firsts)),
        }
    }

    fn check_part(&self, number: u32, part: &PlanPart) -> Result<(), PlanFault> {
        let fault = PlanFault::Part(number);
        let reads = |reader: u32, name: &str| -> bool {
            let inputs = self.parts.get(reader as usize).map(|part| &part.inputs);
            inputs.is_some_and(|inputs| {
                let mut inputs = inputs.iter();
                inputs.any(|input| input.name == name && input.maker == Some(number))
            })
        };
        let from_before = |input: &PlanInput| match input.maker {
            None => true,
            Some(maker) => maker < number && self.has_output(maker, &input.name),
        };
        let to_after = |output: &PlanOutput| {
            let mut readers = output.readers.iter();
            readers.all(|reader| *reader > number && reads(*reader, &output.name))
        };
        let mut names = BTreeSet::new();
        let once = part.inputs.iter().all(|input| names.insert(&input.name));
        let holds = part.leg < self.first_leg_count()
            && once
            && !part.outputs.is_empty()
            && part.inputs.iter().all(from_before)
            && part.outputs.iter().all(to_after);
        if holds { Ok(()) } else { Err(fault) }
    }

    /// Returns the number of legs that run the job; the others repeat it.
    #[must_use]
    pub fn first_leg_count(&self) -> u32 {
        let firsts = self.legs.iter().take_while(|leg| leg.twin_of.is_none());
        u32::try_from(firsts.count()).unwrap_or(u32::MAX)
    }

    /// Returns the legs with their places.
    pub fn legs_by_place(&self) -> impl Iterator<Item = (u32, &PlanLeg)> {
        (0..).zip(&self.legs)
    }

    /// Returns the leg whose parts `place` runs: itself, or the one that it repeats.
    #[must_use]
    pub fn first_of(&self, place: u32) -> u32 {
        let leg = self.legs.get(place as usize);
        leg.and_then(|leg| leg.twin_of).unwrap_or(place)
    }

    /// Returns the leg that repeats the parts of `place`, if any.
    #[must_use]
    pub fn second_of(&self, place: u32) -> Option<u32> {
        let mut places = self.legs_by_place();
        let second = places.find(|(_, leg)| leg.twin_of == Some(place));
        second.map(|(second, _)| second)
    }

    /// Returns the parts that `place` runs, in order, with their numbers.
    pub fn parts_at(&self, place: u32) -> impl Iterator<Item = (u32, &PlanPart)> {
        let first = self.first_of(place);
        let parts = (0..).zip(&self.parts);
        parts.filter(move |(_, part)| part.leg == first)
    }

    /// Returns the sum of the legs' prices per device-second.
    #[must_use]
    pub fn total_price(&self) -> Price {
        let prices = self.legs.iter().map(|leg| leg.listing.price.0);
        Price(prices.fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use souk_market::{BuyerFilter, DeviceId, Millis, Name, OrderId, Permille, Resources, Units};

    use super::*;

    fn leg(provider: u8, twin_of: Option<u32>) -> PlanLeg {
        let resources = Resources::default();
        let listing = Listing {
            order: OrderId(u64::from(provider)),
            provider: AccountKey([provider; 32]),
            name: Name::default(),
            reputation: Permille(500),
            stake: Credits(0),
            device: DeviceId(1),
            class: resources.class(),
            resources,
            price: Price(7),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(1_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: BuyerFilter::default(),
            resale: None,
        };
        PlanLeg {
            listing: Box::new(listing),
            twin_of,
        }
    }

    fn part(leg: u32, reads: (&str, Option<u32>), makes: (&str, &[u32])) -> PlanPart {
        PlanPart {
            leg,
            graph: ContentId::for_content(makes.0.as_bytes()),
            weights: Vec::new(),
            inputs: vec![PlanInput {
                name: reads.0.to_owned(),
                maker: reads.1,
                fed: None,
            }],
            outputs: vec![PlanOutput {
                name: makes.0.to_owned(),
                readers: makes.1.to_vec(),
                is_wanted: makes.1.is_empty(),
            }],
            flops: [0; 2],
            is_open_ended: false,
            expected: [Micros(1); 2],
            tolerance_ppm: 0,
        }
    }

    /// Two parts on two legs, each run twice.
    fn plan() -> Plan {
        Plan {
            id: ContentId::for_content(b"plan"),
            legs: vec![leg(1, None), leg(2, None), leg(3, Some(0)), leg(4, Some(1))],
            parts: vec![
                part(0, ("x", None), ("v", &[1])),
                part(1, ("v", Some(0)), ("y", &[])),
            ],
            makespan: Micros(2),
        }
    }

    #[test]
    fn a_sound_plan_says_who_runs_what_again() {
        let plan = plan();
        assert_eq!(plan.check_plan(), Ok(()));
        assert_eq!(plan.first_leg_count(), 2);
        assert_eq!([0, 1, 2, 3].map(|place| plan.first_of(place)), [0, 1, 0, 1]);
        assert_eq!(plan.second_of(1), Some(3));
        assert_eq!(plan.second_of(2), None);
        assert_eq!(plan.total_price(), Price(28));
        let parts: Vec<u32> = plan.parts_at(3).map(|(number, _)| number).collect();
        assert_eq!(parts, [1]);
    }

    #[test]
    fn a_plan_that_contradicts_itself_is_refused() {
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            plan.check_plan().unwrap_err()
        };
        let none = refused(&|plan| plan.legs.clear());
        assert!(matches!(none, PlanFault::Size { legs: 0, .. }));
        let many = refused(&|plan| {
            plan.parts[0].inputs = vec![plan.parts[0].inputs[0].clone(); THINGS_MAX]
        });
        assert!(matches!(many, PlanFault::Size { .. }));
        assert_eq!(
            refused(&|plan| plan.parts[1].leg = 0),
            PlanFault::Leg(1),
            "it has no part"
        );
        let twice = refused(&|plan| plan.legs[3] = leg(1, Some(1)));
        assert_eq!(
            twice,
            PlanFault::Leg(3),
            "a provider runs nothing again that it ran"
        );
        let crossed = refused(&|plan| plan.legs[2].twin_of = Some(1));
        assert_eq!(crossed, PlanFault::Leg(2));
        let few = refused(&|plan| drop(plan.legs.pop()));
        assert_eq!(few, PlanFault::Leg(2), "all are run twice or none is");
        let later = refused(&|plan| plan.parts.swap(0, 1));
        assert_eq!(later, PlanFault::Part(0), "it is read before it is made");
        let same = refused(&|plan| plan.parts[1].outputs[0].name = "v".to_owned());
        assert_eq!(same, PlanFault::Maker(1));
        let unread = refused(&|plan| plan.parts[0].outputs[0].readers = vec![7]);
        assert_eq!(unread, PlanFault::Part(0));
        let nothing = refused(&|plan| plan.parts[1].outputs.clear());
        assert_eq!(nothing, PlanFault::Part(1), "a part gives something");
    }

    #[test]
    fn what_the_buyer_has_may_be_fed_by_a_part_of_a_plan_that_is_run_once() {
        let fed = |part: u32, name: &str| {
            let name = name.to_owned();
            Some(PlanFeedback { part, name })
        };
        let once = || {
            let mut plan = plan();
            plan.legs.truncate(2);
            plan
        };
        let checked = |change: &dyn Fn(&mut Plan)| {
            let mut plan = once();
            change(&mut plan);
            plan.check_plan()
        };
        for (part, name) in [(0, "v"), (1, "y")] {
            let sound = checked(&|plan| plan.parts[0].inputs[0].fed = fed(part, name));
            assert_eq!(sound, Ok(()));
        }
        let other = checked(&|plan| plan.parts[0].inputs[0].fed = fed(0, "y"));
        assert_eq!(other, Err(PlanFault::Feedback(0)), "another part makes it");
        let made = checked(&|plan| plan.parts[1].inputs[0].fed = fed(1, "y"));
        assert_eq!(made, Err(PlanFault::Feedback(1)), "a part makes it anyway");
        let unlike = checked(&|plan| {
            plan.parts[0].inputs[0].fed = fed(1, "y");
            let input = plan.parts[0].inputs[0].clone();
            plan.parts[1].inputs.push(PlanInput { fed: None, ..input });
        });
        assert_eq!(unlike, Err(PlanFault::Feedback(1)), "one input is two");
        let mut twice = plan();
        twice.parts[0].inputs[0].fed = fed(1, "y");
        assert_eq!(twice.check_plan(), Err(PlanFault::Feedback(0)));
    }
}
