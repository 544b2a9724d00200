//! Compares two contents that should be the same: the core first requests that both are fetched,
//! then that they are compared.
//!
//! A comparison decides whether two runs of a part agree, which of them a third run confirms, or
//! whether an answer confirms an output of a leg (a lease with its provider) whose result is in
//! doubt.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use souk_market::AccountKey;
use souk_memory::ContentId;

use super::JobCore;
use super::action::Action;
use super::event::{Answer, Leg};
use super::state::{Attempt, Wait};

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub purpose: Purpose,
    pub name: String,
    pub left: Side,
    pub right: Side,
    pub tolerance_ppm: u32,
    /// The number of the two contents that have not arrived yet.
    pub missing: u8,
}

/// One of the two contents of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Side {
    pub id: ContentId,
    /// The leg that made it; none if the content is here already.
    pub maker: Option<Leg>,
}

/// The purpose of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// Two runs of a part of a request.
    Twins {
        attempt: u32,
        request: u32,
        part: u32,
    },
    /// A run and the third run, for the first question of the attempt.
    Third { attempt: u32, place: u32 },
    /// An output of a leg in doubt, and an answer.
    Doubt { leg: Leg, id: ContentId },
}

impl Pair {
    /// Returns whether one side is an answer that the caller receives or has.
    pub(super) fn reads_answer(&self) -> bool {
        matches!(self.purpose, Purpose::Doubt { .. })
    }
}

impl Purpose {
    pub(super) fn attempt_number(self) -> Option<u32> {
        match self {
            Purpose::Twins { attempt, .. } | Purpose::Third { attempt, .. } => Some(attempt),
            Purpose::Doubt { .. } => None,
        }
    }
}

impl JobCore {
    /// Compares two contents with different ids.
    pub(super) fn compare_contents(
        &mut self,
        purpose: Purpose,
        name: String,
        left: Side,
        right: Side,
        tolerance_ppm: u32,
    ) {
        let number = self.next_pair;
        self.next_pair += 1;
        let missing = u8::from(left.maker.is_some()) + u8::from(right.maker.is_some());
        let pair = Pair {
            purpose,
            name: name.clone(),
            left,
            right,
            tolerance_ppm,
            missing,
        };
        self.pairs.insert(number, pair);
        for (side, is_left) in [(left, true), (right, false)] {
            let Some(maker) = side.maker else {
                continue;
            };
            let holders = vec![self.leg_provider(maker)];
            let wait = Wait::FetchPair {
                pair: number,
                is_left,
            };
            self.fetch_content(maker.attempt, name.clone(), side.id, holders, wait);
        }
        self.compare_if_here(number);
    }

    fn compare_if_here(&mut self, number: u32) {
        let Some(pair) = self.pairs.get(&number).filter(|pair| pair.missing == 0) else {
            return;
        };
        let (left, right, tolerance_ppm) = (pair.left.id, pair.right.id, pair.tolerance_ppm);
        let wait = Wait::Compare { pair: number };
        self.request_effect(
            Action::Compare {
                left,
                right,
                tolerance_ppm,
            },
            wait,
        );
    }

    pub(super) fn on_pair_fetched(&mut self, number: u32, is_left: bool, answer: Answer) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        match answer {
            Answer::Fetched => {
                pair.missing -= 1;
                self.compare_if_here(number);
            }
            Answer::NotFetched(fault) => {
                let (name, purpose) = (pair.name.clone(), pair.purpose);
                let side = if is_left { pair.left } else { pair.right };
                self.forget_pair(number);
                let maker = side.maker.expect("the core fetches only from a maker");
                self.on_not_fetched(maker, name, fault);
                self.on_pair_over(purpose, false);
            }
            other => self.end_job(super::End::Failed(super::bidding::unreachable_reason(
                other,
            ))),
        }
    }

    fn forget_pair(&mut self, number: u32) {
        self.pairs.remove(&number);
        self.stop_effects(|wait| match wait {
            Wait::FetchPair { pair, .. } | Wait::Compare { pair } => *pair == number,
            _ => false,
        });
    }

    pub(super) fn on_compared(&mut self, number: u32, answer: Answer) {
        let Some(pair) = self.pairs.remove(&number) else {
            return;
        };
        match answer {
            Answer::Compared(is_alike) => self.on_pair_over(pair.purpose, is_alike),
            other => self.end_job(super::End::Failed(super::bidding::unreachable_reason(
                other,
            ))),
        }
    }

    fn on_pair_over(&mut self, purpose: Purpose, is_alike: bool) {
        match purpose {
            Purpose::Twins {
                attempt,
                request,
                part,
            } => {
                let alike = &mut self.attempt_mut(attempt).alike;
                let alike = alike.entry((request, part)).or_insert(true);
                *alike &= is_alike;
                self.on_request_compared(attempt, request);
            }
            Purpose::Third { attempt, place } => {
                let question = self.attempt_mut(attempt).questions.first_mut();
                let question = question.expect("a third run is of a question");
                if let Some(agrees) = question.runs.get_mut(&place) {
                    *agrees &= is_alike;
                }
            }
            Purpose::Doubt { leg, id } => self.on_evidence_compared(leg, id, is_alike),
        }
    }

    /// Returns whether a comparison of attempt `n` has no result yet.
    pub(super) fn is_comparing(&self, n: u32) -> bool {
        self.pairs
            .values()
            .any(|pair| pair.purpose.attempt_number() == Some(n))
    }

    /// Stops the comparisons whose purpose `is_over` selects.
    pub(super) fn stop_pairs(&mut self, mut is_over: impl FnMut(&Pair) -> bool) {
        let over = self.pairs.iter().filter(|(_, pair)| is_over(pair));
        let over: Vec<u32> = over.map(|(number, _)| *number).collect();
        for number in over {
            self.forget_pair(number);
        }
    }
}

/// Returns the providers that have a value that the leg at place `maker` made: those that made the
/// same value, and those that read it.
pub(super) fn value_holders(
    attempt: &Attempt,
    maker: u32,
    request: u32,
    name: &str,
    id: ContentId,
) -> Vec<AccountKey> {
    let mut holders = vec![attempt.leg(maker).terms.provider];
    for (number, part) in (0..).zip(&attempt.plan.parts) {
        let reads = part.inputs.iter().any(|input| input.name == name);
        for place in [Some(part.leg), attempt.plan.second_of(part.leg)]
            .into_iter()
            .flatten()
        {
            // A provider that completed a part had the inputs of that part, from the first runs.
            let has_read = reads && attempt.part_outputs(place, request, number).is_some();
            let took = has_read && attempt.plan.first_of(maker) == maker;
            let made_it = attempt.value(place, request, number, name) == Some(id);
            if took || made_it {
                holders.push(attempt.leg(place).terms.provider);
            }
        }
    }
    let mut known = BTreeSet::new();
    holders.retain(|holder| known.insert(*holder));
    holders
}
