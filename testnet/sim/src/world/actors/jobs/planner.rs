//! Creates the work of a simulated job, a small graph of parts, and plans it over the offers that a
//! validator selected. It also computes the expected values, with which the simulator compares the
//! answers.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{JobId, Listing, Millis};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::job::plan::{
    NoPlan, NoPlanKind, Plan, PlanFeedback, PlanInput, PlanLeg, PlanOutput, PlanPart, PlanRequest,
    PlanScope,
};
use souk_roles::job::{Answer, Limits};

use super::contents::{hash_to_number, output_value};
use crate::random::Random;
use crate::world::World;
use crate::world::actors::Role;

/// The name of the buyer's input.
pub const GIVEN: &str = "x";

/// The name of the state of a session's part: how many steps of the sequence it has done.
pub const STATE: &str = "state";

/// The parts of a job. Each computes one value from the values of other parts, or from the buyer's
/// input.
#[derive(Clone)]
pub struct JobShape {
    parts: Vec<ShapePart>,
    /// In some sessions, the part whose value of the previous request replaces the buyer's input in
    /// a request that omits it.
    feeds: Option<usize>,
    /// Total thinking time of the user.
    thinking: Millis,
}

#[derive(Clone)]
struct ShapePart {
    graph: ContentId,
    weights: Vec<ContentId>,
    /// Indices of the parts that it reads; empty if it reads the buyer's input.
    reads: Vec<usize>,
    expected: Micros,
    /// Whether it is a loop whose count only the run shows.
    loops: bool,
}

/// Loops per thousand parts.
const LOOPS: u64 = 60;

/// Sessions with a slowly thinking user, per thousand.
const THINKERS: u64 = 60;

impl JobShape {
    /// Creates a chain, fork or join of one to six parts.
    pub fn new(job: JobId, random: &mut Random) -> Self {
        let count = random.draw_between(1, 6) as usize;
        let part = |n: usize, random: &mut Random| {
            let word = |what: &str| {
                let mut bytes = job.0.to_vec();
                bytes.extend(what.bytes());
                bytes.extend((n as u64).to_le_bytes());
                ContentId::for_content(&bytes)
            };
            let mut reads = BTreeSet::new();
            if n > 0 && random.chance(850) {
                for _ in 0..random.draw_between(1, 2) {
                    reads.insert(random.draw_index(n));
                }
            }
            ShapePart {
                graph: word("graph"),
                weights: vec![word("weights")],
                reads: reads.into_iter().collect(),
                expected: Micros::from_millis(random.draw_between(5, 120)),
                loops: random.chance(LOOPS),
            }
        };
        let parts = (0..count).map(|n| part(n, random)).collect();
        Self {
            parts,
            feeds: None,
            thinking: Millis(0),
        }
    }

    /// Makes the user of a few sessions think between requests, and removes the session's limits.
    /// Returns the milliseconds after each answer.
    pub fn add_thinking(&mut self, requests: u64, limits: &mut Limits, random: &mut Random) -> u64 {
        if requests < 2 || !random.chance(THINKERS) {
            return 0;
        }
        self.thinking = Millis(random.draw_between(60_000, 235_000));
        (limits.budget, limits.deadline, limits.spot) = (None, None, false);
        self.thinking.0 / (requests - 1)
    }

    /// Makes it a session's: usually a part feeds the first one, most often the last part.
    pub fn choose_feed(&mut self, random: &mut Random) {
        let count = self.parts.len();
        let part = match random.chance(700) {
            true => count - 1,
            false => random.draw_index(count),
        };
        self.feeds = random.chance(800).then_some(part);
    }

    /// Returns whether a request can omit the buyer's input.
    pub fn is_fed(&self) -> bool {
        self.feeds.is_some()
    }

    /// Returns the replacement of an omitted input, from the results of the previous request.
    pub fn feed_value(&self, before: &BTreeMap<String, u64>) -> Option<u64> {
        before.get(&name(self.feeds?)).copied()
    }

    /// Returns the graphs that are loops.
    pub fn loop_graphs(&self) -> impl Iterator<Item = ContentId> {
        let loops = self.parts.iter().filter(|part| part.loops);
        loops.map(|part| part.graph)
    }

    fn is_read(&self, n: usize) -> bool {
        self.parts.iter().any(|part| part.reads.contains(&n))
    }

    /// Returns the names of the buyer's outputs: the values that no part reads.
    pub fn output_names(&self) -> Vec<String> {
        let parts = 0..self.parts.len();
        parts.filter(|n| !self.is_read(*n)).map(name).collect()
    }

    /// Returns the model's values for an input, by name; in a session, after this many steps.
    pub fn model_values(&self, given: u64, steps: Option<u64>) -> BTreeMap<String, u64> {
        let mut values = BTreeMap::new();
        for (n, part) in self.parts.iter().enumerate() {
            let mut inputs: BTreeMap<String, u64> = part
                .reads
                .iter()
                .map(|read| (name(*read), values[&name(*read)]))
                .collect();
            if part.reads.is_empty() {
                inputs.insert(GIVEN.to_owned(), given);
            }
            inputs.extend(steps.map(|steps| (STATE.to_owned(), steps)));
            let value = output_value(part.graph, &inputs, &name(n));
            values.insert(name(n), value);
        }
        values
    }

    /// Returns the parts to run if these values exist.
    fn needed_parts(&self, there: &BTreeSet<&str>) -> BTreeSet<usize> {
        let mut needed = BTreeSet::new();
        for n in (0..self.parts.len()).rev() {
            let is_read = self.parts.iter().enumerate();
            let is_read = is_read
                .filter(|(reader, _)| needed.contains(reader))
                .any(|(_, part)| part.reads.contains(&n));
            if (is_read || !self.is_read(n)) && !there.contains(name(n).as_str()) {
                needed.insert(n);
            }
        }
        needed
    }

    /// Plans over listings, with a different provider for each leg.
    pub fn plan_listings(
        &self,
        wanted: &PlanRequest,
        plans: &mut BTreeMap<ContentId, Vec<usize>>,
        listings: &[Listing],
        random: &mut Random,
    ) -> Result<Plan, NoPlan> {
        let (parts, is_check) = match &wanted.work {
            PlanScope::Rest(there) => {
                let there = there.iter().map(|(name, _)| name.as_str()).collect();
                (self.needed_parts(&there), false)
            }
            PlanScope::Part { plan, part, .. } => {
                let of = plans.get(plan).and_then(|parts| parts.get(*part as usize));
                (of.copied().into_iter().collect(), true)
            }
        };
        if parts.is_empty() {
            return Err(no_plan(NoPlanKind::Rest));
        }
        let parts: Vec<usize> = parts.into_iter().collect();
        let mut sellers = BTreeSet::new();
        let others = listings.iter().filter(|it| sellers.insert(it.provider));
        let mut listings: Vec<&Listing> = others.collect();
        let copies = if is_check {
            1
        } else {
            wanted.copies.max(1) as usize
        };
        let most = (listings.len() / copies).min(parts.len());
        let most = most.min(wanted.providers_max.max(1) as usize);
        if most == 0 {
            return Err(no_plan(NoPlanKind::NoneEligible));
        }
        let legs = random.draw_between(1, most as u64) as usize;
        random.shuffle(&mut listings);
        let leg = |place: usize| PlanLeg {
            listing: Box::new(listings[place].clone()),
            twin_of: (place >= legs).then(|| (place - legs) as u32),
        };
        let planned = (0..parts.len()).map(|at| self.plan_part(&parts, at, legs, is_check));
        let planned: Vec<PlanPart> = planned.collect();
        let each: u64 = planned.iter().map(|part| part.expected[0].0).sum();
        let mut id = hash_to_number(&random.next_u64().to_le_bytes())
            .to_le_bytes()
            .to_vec();
        id.extend((plans.len() as u64).to_le_bytes());
        let id = ContentId::for_content(&id);
        plans.insert(id, parts);
        Ok(Plan {
            id,
            legs: (0..legs * copies).map(leg).collect(),
            parts: planned,
            // Leases last four times the makespan, and accept requests for two thirds of that time.
            makespan: Micros(
                each * u64::from(wanted.requests.max(1)) + 200_000 + self.thinking.0 * 400,
            ),
        })
    }
}

impl JobShape {
    /// Returns the part of a plan that runs these parts at this index.
    fn plan_part(&self, parts: &[usize], at: usize, legs: usize, is_check: bool) -> PlanPart {
        let n = parts[at];
        let part = &self.parts[n];
        let place = |part: usize| parts.binary_search(&part).ok().map(|place| place as u32);
        let input = |read: &usize| PlanInput {
            name: name(*read),
            maker: place(*read),
            fed: None,
        };
        let mut inputs: Vec<PlanInput> = part.reads.iter().map(input).collect();
        if part.reads.is_empty() {
            let feedback = |of: usize| {
                let (part, name) = (place(of)?, name(of));
                Some(PlanFeedback { part, name })
            };
            let fed = self.feeds.and_then(feedback);
            let (name, maker) = (GIVEN.to_owned(), None);
            inputs.push(PlanInput { name, maker, fed });
        }
        let readers = parts
            .iter()
            .filter(|it| self.parts[**it].reads.contains(&n));
        PlanPart {
            leg: (if at < legs { at } else { random_leg(n, legs) }) as u32,
            graph: part.graph,
            weights: part.weights.clone(),
            inputs,
            outputs: vec![PlanOutput {
                name: name(n),
                readers: readers.filter_map(|it| place(*it)).collect(),
                is_wanted: is_check || !self.is_read(n),
            }],
            flops: [0; 2],
            is_open_ended: part.loops,
            expected: [part.expected; 2],
            tolerance_ppm: 10,
        }
    }
}

/// Returns the iterations of a loop for its input value: few for most values, many for some.
fn loop_iterations(value: u64) -> u64 {
    let (kind, count) = (value % 64, value / 64);
    match kind {
        0 => 200 + count % 100,
        1..8 => 20 + count % 180,
        _ => 1 + count % 20,
    }
}

impl World {
    /// Returns a run's duration as a multiple of the planned time; only the run shows a loop's.
    pub(super) fn turns_of(&self, graph: ContentId, inputs: &[(String, ContentId)]) -> u64 {
        if !self.jobs.loops.contains(&graph) {
            return 1;
        }
        let value = |id| self.jobs.contents.value(id).unwrap_or_default();
        let inputs = inputs.iter().map(|(name, id)| (name.clone(), value(*id)));
        loop_iterations(output_value(graph, &inputs.collect(), "turns"))
    }

    /// Plans over the offers that a validator selected.
    pub(super) fn plan_for_buyer(
        &mut self,
        actor: usize,
        wanted: &PlanRequest,
        listings: &[Listing],
    ) -> Answer {
        let random = &mut self.jobs.random;
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            unreachable!("buyers plan");
        };
        let Some(job) = &buyer.job else {
            let kind = NoPlanKind::Other;
            let text = String::new();
            let (why, passes) = (NoPlan { kind, text }, false);
            return Answer::NotPlanned { why, passes };
        };
        match job
            .shape
            .plan_listings(wanted, &mut buyer.plans, listings, random)
        {
            Ok(plan) => {
                plan.check_plan().expect("the planner's plans are sound");
                Answer::Planned(Box::new(plan))
            }
            Err(why) => {
                let passes = why.kind == NoPlanKind::NoneEligible;
                Answer::NotPlanned { why, passes }
            }
        }
    }
}

/// Assigns a part to a leg, always the same one.
fn random_leg(part: usize, legs: usize) -> usize {
    part * 7 % legs
}

fn name(part: usize) -> String {
    format!("v{part}")
}

fn no_plan(kind: NoPlanKind) -> NoPlan {
    NoPlan {
        kind,
        text: format!("{kind:?}"),
    }
}
