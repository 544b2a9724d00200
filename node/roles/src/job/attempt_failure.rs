//! Decides how a job continues after a failed attempt: it excludes the provider at fault from later
//! purchases, or ends the job if no provider is at fault. If a provider reports that the job's own
//! inputs are at fault, the core lets another provider try first. If two providers that read from
//! one maker fail because an input did not arrive, the maker is at fault.

use std::collections::BTreeMap;

use souk_market::{AccountKey, OrderId};

use super::action::JobEvent;
use super::facts::{End, Fact};
use super::plan::Exclusion;
use super::reason::{Loss, Reason};
use super::state::{Attempt, AttemptPurpose, Wait};
use super::{JobCore, LOSSES_MAX};
use crate::lease::{Failure, Source};

impl JobCore {
    /// Excludes the provider that failed, or ends the job if the failure names none.
    pub(super) fn on_failure(
        &mut self,
        purpose: AttemptPurpose,
        reason: Reason,
        asks: BTreeMap<AccountKey, OrderId>,
        kept: u32,
    ) {
        let is_left = match purpose {
            AttemptPurpose::Main => !(self.requests.is_empty() && self.no_more),
            AttemptPurpose::Check => self.question_mut().is_some_and(|it| it.third.is_none()),
        };
        if is_left && reason.bad_input().is_some() && self.blamers.len() > 1 {
            let description = reason.bad_input().unwrap_or_default().to_owned();
            return self.end_job(End::Failed(Reason::BadInput(description)));
        }
        let Some(provider) = reason.culprit().filter(|_| self.losses.len() < LOSSES_MAX) else {
            if is_left {
                self.end_job(End::Failed(reason));
            }
            return;
        };
        let excluded = Exclusion {
            provider,
            ask: asks.get(&provider).copied().filter(|_| reason.may_pass()),
        };
        match reason.bad_input() {
            // Another provider is asked whether it says the same: that is no fault of this one.
            Some(_) => self.excluded.push(excluded),
            None => self.exclude_provider(excluded, reason.code()),
        }
        self.losses.push(reason.clone());
        if is_left {
            self.report_event(JobEvent::Retrying {
                provider,
                why: reason,
                kept,
            });
        }
    }

    /// Returns the reason for a failure of a provider that read from these makers. A reader cannot
    /// show that an input did not arrive, nor can its maker show that it served it: the core takes
    /// the first reader to be at fault, and the maker once a second one fails.
    pub(super) fn find_fault(&mut self, reason: Reason, makers: Vec<AccountKey>) -> Reason {
        let Reason::Failed {
            provider: reader,
            failure: Failure::Input(_),
        } = reason
        else {
            return reason;
        };
        for maker in makers {
            let readers = self.starved.entry(maker).or_default();
            readers.insert(reader);
            let other = readers.iter().find(|other| **other != reader);
            if let Some(other) = other {
                let (provider, loss) = (maker, Loss::Starving(*other, reader));
                return Reason::Lost { provider, loss };
            }
        }
        reason
    }

    /// Returns why the job cannot be done, if the last provider that tried says that its inputs are
    /// at fault.
    pub(super) fn bad_input(&self) -> Option<Reason> {
        let description = self.losses.last()?.bad_input()?;
        Some(Reason::BadInput(description.to_owned()))
    }

    pub(super) fn exclude_provider(&mut self, excluded: Exclusion, why: &str) {
        self.excluded.push(excluded);
        let Exclusion { provider, ask } = excluded;
        let excluded = Fact::Excluded {
            provider,
            ask,
            why: why.to_owned(),
        };
        self.record_facts(vec![excluded], Wait::Record);
    }
}

impl Attempt {
    /// Returns the other providers that make what a provider reads.
    pub(super) fn makers_for(&self, reader: AccountKey) -> Vec<AccountKey> {
        let legs = self.legs.iter().filter(|leg| leg.terms.provider == reader);
        let starts = legs.filter_map(|leg| leg.start.as_ref());
        let inputs = starts
            .flat_map(|start| &start.parts)
            .flat_map(|part| &part.inputs);
        let makers = inputs.filter_map(|input| match (input.source, &input.fed) {
            (Source::Lease { provider, .. }, _) => Some(provider),
            (_, Some(fed)) => fed.maker.map(|(_, provider)| provider),
            _ => None,
        });
        makers.filter(|maker| *maker != reader).collect()
    }
}
