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

    /// Returns the reason for a failure of a provider that read these values of others. A reader
    /// cannot show that an input did not arrive, nor can its maker show that it served it: the core
    /// takes the first reader to be at fault, and the maker once a second one fails. A failure
    /// counts only against the maker of the value that it names: a reader can have several makers.
    pub(super) fn find_fault(&mut self, reason: Reason, values: &[ValueRead]) -> Reason {
        let Reason::Failed {
            provider: reader,
            failure: Failure::Input(text),
        } = &reason
        else {
            return reason;
        };
        let Some(maker) = find_maker(text, values) else {
            return reason;
        };
        let readers = self.starved.entry(maker).or_default();
        readers.insert(*reader);
        match readers.iter().find(|other| *other != reader) {
            Some(other) => Reason::Lost {
                provider: maker,
                loss: Loss::Starving(*other, *reader),
            },
            None => reason,
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

impl Attempt {
    /// Returns the values that a provider reads and other providers make.
    pub(super) fn values_read_by(&self, reader: AccountKey) -> Vec<ValueRead> {
        let legs = self.legs.iter().filter(|leg| leg.terms.provider == reader);
        let starts = legs.filter_map(|leg| leg.start.as_ref());
        let inputs = starts
            .flat_map(|start| &start.parts)
            .flat_map(|part| &part.inputs);
        let values = inputs.filter_map(|input| {
            let maker = match (input.source, &input.fed) {
                (Source::Lease { provider, .. }, _) => provider,
                (_, Some(fed)) => fed.maker?.1,
                _ => return None,
            };
            let name = input.name.clone();
            (maker != reader).then_some(ValueRead { name, maker })
        });
        values.collect()
    }
}

/// A value that a provider reads and another one makes.
pub(super) struct ValueRead {
    /// The value's name in the reader's graph.
    name: String,
    /// The provider that makes it.
    maker: AccountKey,
}

/// Returns the maker of the value that a failure for want of an input names, as providers do: its
/// text is `NAME: why`. A graph or an input of the buyer can be missing too, which is no maker's
/// fault.
fn find_maker(text: &str, values: &[ValueRead]) -> Option<AccountKey> {
    let is_named = |value: &&ValueRead| {
        let rest = text.strip_prefix(value.name.as_str());
        rest.is_some_and(|rest| rest.starts_with(": "))
    };
    let named = values.iter().filter(is_named);
    // A name can be the beginning of another one.
    let longest = named.max_by_key(|value| value.name.len());
    longest.map(|value| value.maker)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AccountKey = AccountKey([1; 32]);
    const TWO: AccountKey = AccountKey([2; 32]);

    fn values(of: &[(&str, AccountKey)]) -> Vec<ValueRead> {
        let value = |(name, maker): &(&str, AccountKey)| ValueRead {
            name: (*name).to_owned(),
            maker: *maker,
        };
        of.iter().map(value).collect()
    }

    #[test]
    fn of_several_makers_the_one_of_the_named_value_is_meant() {
        let both = values(&[("v1", ONE), ("v12", TWO)]);
        assert_eq!(find_maker("v1: it is missing", &both), Some(ONE));
        assert_eq!(find_maker("v12: it is missing", &both), Some(TWO));
        let nested = values(&[("v1", ONE), ("v1: a", TWO)]);
        assert_eq!(find_maker("v1: a: it is missing", &nested), Some(TWO));
        let one = values(&[("v1", ONE)]);
        for unclear in ["graph: it is missing", "v1", "v: v1: x", "v2: x", ""] {
            assert_eq!(find_maker(unclear, &both), None, "{unclear}");
            assert_eq!(find_maker(unclear, &one), None, "{unclear}");
        }
    }
}
