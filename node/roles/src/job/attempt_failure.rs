//! Decides how a job continues after a failed attempt: it excludes the provider at fault from later
//! purchases, or ends the job if no provider is at fault. If a provider reports that the job's own
//! inputs are at fault, the core lets another provider try first.

use std::collections::BTreeMap;

use souk_market::{AccountKey, OrderId};

use super::action::JobEvent;
use super::facts::{End, Fact};
use super::plan::Exclusion;
use super::reason::Reason;
use super::state::{AttemptPurpose, Wait};
use super::{JobCore, LOSSES_MAX};

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
