//! What each provider of an attempt is told: its parts, where their inputs come from, and who waits
//! for their outputs.

use std::collections::BTreeSet;

use souk_market::{AccountKey, JobId, LeaseId};

use super::facts::Terms;
use super::plan::{Plan, PlanInput, PlanOutput, PlanPart};
use crate::lease::{Contact, Input, Output, Part, Request, Source, Start};

/// What all are told by.
pub(super) struct Briefing<'a> {
    pub plan: &'a Plan,
    pub terms: Vec<&'a Terms>,
    pub contacts: &'a [Contact],
    pub job: JobId,
    pub priority: u8,
    pub last: bool,
    /// How many sequences it has, if it is a session.
    pub sequences: u32,
}

impl Briefing<'_> {
    /// What the provider at `place` is told.
    pub(super) fn start(&self, place: u32, first: &Request) -> Start {
        let terms = self.terms[place as usize];
        let parts = self.plan.parts_at(place);
        let parts = parts.map(|(number, part)| self.part(place, number, part));
        let others = self.contacts.iter();
        let others = others.filter(|contact| contact.account != terms.provider);
        Start {
            lease: terms.lease,
            job: self.job,
            parts: parts.collect(),
            peers: others.cloned().collect(),
            priority: self.priority,
            sequences: self.sequences,
            first: for_place(self.plan, place, first),
            last: self.last,
        }
    }

    fn part(&self, place: u32, number: u32, part: &PlanPart) -> Part {
        let is_twin = usize::from(self.plan.first_of(place) != place);
        let is_as_planned = {
            let listing = &self.plan.legs[place as usize].listing;
            listing.order == self.terms[place as usize].ask
        };
        Part {
            name: format!("part {} of {}", number + 1, self.plan.parts.len()),
            graph: part.graph,
            weights: part.weights.clone(),
            inputs: part.inputs.iter().map(|it| self.input(place, it)).collect(),
            outputs: part
                .outputs
                .iter()
                .map(|it| self.output(place, it))
                .collect(),
            // Of another ask than was planned with the speed is not judged.
            flops: if is_as_planned {
                part.flops[is_twin]
            } else {
                0
            },
            expected: part.expected[is_twin],
        }
    }

    /// Where an input comes from. A second run reads what the first runs made, so that what is
    /// compared was made from the same.
    fn input(&self, place: u32, input: &PlanInput) -> Input {
        let maker = input.maker.map(|maker| self.plan.parts[maker as usize].leg);
        let source = match maker {
            None => Source::Buyer,
            Some(maker) if maker == place => Source::Own,
            Some(maker) => {
                let (lease, provider) = self.party(maker);
                Source::Lease { lease, provider }
            }
        };
        Input {
            name: input.name.clone(),
            source,
        }
    }

    fn output(&self, place: u32, output: &PlanOutput) -> Output {
        let mut others = BTreeSet::new();
        if self.plan.first_of(place) == place {
            // A part of one's own is no reader, but its second run is.
            for reader in &output.readers {
                let first = self.plan.parts[*reader as usize].leg;
                others.extend(
                    [Some(first), self.plan.second_of(first)]
                        .into_iter()
                        .flatten(),
                );
            }
            others.remove(&place);
        }
        let consumers = others.into_iter().map(|reader| self.party(reader));
        Output {
            name: output.name.clone(),
            consumers: consumers.collect(),
        }
    }

    fn party(&self, place: u32) -> (LeaseId, AccountKey) {
        let terms = self.terms[place as usize];
        (terms.lease, terms.provider)
    }
}

/// What of a request the parts at a place read of the buyer.
pub(super) fn for_place(plan: &Plan, place: u32, request: &Request) -> Request {
    let inputs = plan.parts_at(place).flat_map(|(_, part)| &part.inputs);
    let own = inputs.filter(|input| input.maker.is_none());
    let names: BTreeSet<&str> = own.map(|input| input.name.as_str()).collect();
    let given = request.inputs.iter();
    let given = given.filter(|(name, _)| names.contains(name.as_str()));
    Request {
        number: request.number,
        sequence: request.sequence,
        inputs: given.cloned().collect(),
    }
}
