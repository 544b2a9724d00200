//! Builds the start message for each provider of an attempt: its parts, where each input comes
//! from, and who reads each output.

use std::collections::BTreeSet;

use souk_market::{AccountKey, JobId, LeaseId};

use super::facts::Terms;
use super::plan::{Plan, PlanFeedback, PlanInput, PlanOutput, PlanPart};
use crate::lease::{Contact, Feedback, Input, Output, Part, Request, Source, Start};

/// The facts that all starts of an attempt share.
pub(super) struct StartFacts<'a> {
    pub plan: &'a Plan,
    pub terms: Vec<&'a Terms>,
    pub contacts: &'a [Contact],
    pub job: JobId,
    pub priority: u8,
    pub last: bool,
    /// The number of sequences of a session; 0 if it is none.
    pub sequences: u32,
}

impl StartFacts<'_> {
    /// Returns the start for the provider at `place`.
    pub(super) fn build_start(&self, place: u32, first: &Request) -> Start {
        let terms = self.terms[place as usize];
        let fed: Vec<(u32, &PlanFeedback)> = self.plan.feedback_inputs().collect();
        let parts = self.plan.parts_at(place);
        let parts = parts.map(|(number, part)| self.build_part(place, number, part, &fed));
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

    fn build_part(
        &self,
        place: u32,
        number: u32,
        part: &PlanPart,
        fed: &[(u32, &PlanFeedback)],
    ) -> Part {
        let fed_by = |output: &PlanOutput| {
            let of_it = fed
                .iter()
                .filter(|(_, it)| (it.part, &it.name) == (number, &output.name));
            of_it.map(|(reader, _)| *reader).collect::<Vec<u32>>()
        };
        let is_twin = usize::from(self.plan.first_of(place) != place);
        let is_as_planned = {
            let listing = &self.plan.legs[place as usize].listing;
            listing.order == self.terms[place as usize].ask
        };
        Part {
            name: format!("part {} of {}", number + 1, self.plan.parts.len()),
            graph: part.graph,
            weights: part.weights.clone(),
            inputs: part
                .inputs
                .iter()
                .map(|it| self.build_input(place, it))
                .collect(),
            outputs: part
                .outputs
                .iter()
                .map(|it| self.build_output(place, it, &fed_by(it)))
                .collect(),
            // If the ask is not the planned one, the speed is not judged.
            flops: if is_as_planned {
                part.flops[is_twin]
            } else {
                0
            },
            expected: part.expected[is_twin],
        }
    }

    /// Returns an input with its source. A second run reads the first runs' outputs, so that both
    /// compared runs have the same inputs.
    fn build_input(&self, place: u32, input: &PlanInput) -> Input {
        let source = match input.maker.map(|maker| self.remote_maker(place, maker)) {
            None => Source::Buyer,
            Some(None) => Source::Own,
            Some(Some((lease, provider))) => Source::Lease { lease, provider },
        };
        let fed = input.fed.as_ref().map(|fed| Feedback {
            name: fed.name.clone(),
            maker: self.remote_maker(place, fed.part),
        });
        Input {
            name: input.name.clone(),
            source,
            fed,
        }
    }

    /// Returns the lease and the provider that make a part for this place; none if the place makes
    /// it itself.
    fn remote_maker(&self, place: u32, part: u32) -> Option<(LeaseId, AccountKey)> {
        let maker = self.plan.parts[part as usize].leg;
        (maker != place).then(|| self.lease_and_provider(maker))
    }

    fn build_output(&self, place: u32, output: &PlanOutput, fed: &[u32]) -> Output {
        let mut others = BTreeSet::new();
        if self.plan.first_of(place) == place {
            // A part at the same place is no consumer, but its second run is.
            for reader in output.readers.iter().chain(fed) {
                let first = self.plan.parts[*reader as usize].leg;
                others.extend(
                    [Some(first), self.plan.second_of(first)]
                        .into_iter()
                        .flatten(),
                );
            }
            others.remove(&place);
        }
        let consumers = others
            .into_iter()
            .map(|reader| self.lease_and_provider(reader));
        Output {
            name: output.name.clone(),
            consumers: consumers.collect(),
            is_wanted: output.is_wanted,
        }
    }

    fn lease_and_provider(&self, place: u32) -> (LeaseId, AccountKey) {
        let terms = self.terms[place as usize];
        (terms.lease, terms.provider)
    }
}

/// Returns the request with only the inputs that the parts at a place read from the buyer.
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
        keep: request.keep,
    }
}
