//! The reasons why a step of a job failed: one variant per cause, each with a code that scripts can
//! rely on.

use std::fmt;

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, ContentId, Credits, DeviceMicros, ReceiptFault, Refusal};

use super::plan::{NoPlan, NoPlanKind};
use crate::clock::Micros;
use crate::lease::Failure;

/// The code for a budget that is too small.
const BUDGET: &str = "budget";

/// Why a job, or one attempt of it, failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Reason {
    /// The market was unreachable.
    #[error("{0}")]
    Unreachable(String),
    /// The book changed and no longer has matching asks.
    #[error("the leases could not be bought: {0}")]
    Unsold(Refusal),
    /// The budget is too small for the leases.
    #[error(
        "the leases hold {} credits in escrow, {} of the budget are left",
        InCredits(*needed), InCredits(*budget)
    )]
    Escrow {
        /// The escrow of the shortest leases.
        needed: Credits,
        /// The rest of the budget.
        budget: Credits,
    },
    /// The planner found no plan.
    #[error(transparent)]
    NoPlan(#[from] NoPlan),
    /// No validator knows the address of a provider.
    #[error("no validator knows where provider {0} is")]
    Unknown(AccountKey),
    /// A provider is unreachable, or takes too long.
    #[error("provider {provider}: {loss}")]
    Lost {
        /// The provider that the job lost.
        provider: AccountKey,
        /// The cause of the loss.
        loss: Loss,
    },
    /// A provider reports that it failed.
    #[error("provider {provider} failed: {failure}")]
    Failed {
        /// The provider that failed.
        provider: AccountKey,
        /// The failure that it reports.
        failure: Failure,
    },
    /// A provider reclaimed its device, as a spot lease allows, or lost it to a higher bid.
    #[error("provider {provider} took its device back after {done} of {all} {what}")]
    Reclaimed {
        /// The provider that reclaimed it.
        provider: AccountKey,
        /// The completed units of its work.
        done: u32,
        /// All units of its work.
        all: u32,
        /// The unit of `done` and `all`.
        what: WorkUnit,
    },
    /// An output did not arrive.
    #[error("an output of provider {provider} did not arrive: {why}")]
    Output {
        /// The provider that made it.
        provider: AccountKey,
        /// The cause, for people.
        why: String,
    },
    /// A receipt does not match the purchase.
    #[error("provider {provider}'s receipt is not signed: {objection}")]
    Receipt {
        /// The provider that signed it.
        provider: AccountKey,
        /// The fault in the receipt.
        objection: Objection,
    },
    /// A provider's result differs from that of two others.
    #[error("provider {provider} returned another {value} than two others: it is not paid")]
    Outvoted {
        /// The provider with the other result.
        provider: AccountKey,
        /// The value that differs.
        value: String,
    },
    /// Three providers gave three results.
    #[error("three providers returned three different {value}: none of them is paid")]
    Disagreement {
        /// The value that differs.
        value: String,
    },
    /// Providers cannot do the work with these inputs, and no other provider could.
    #[error("the job's inputs do not fit its model: {0}")]
    BadInput(String),
    /// The job's own deadline has passed.
    #[error("the job's deadline of {}.{:03} s has passed", .0.0 / 1_000_000, .0.0 / 1_000 % 1_000)]
    Late(Micros),
    /// The core could not write the job's journal.
    #[error("{0}")]
    Journal(String),
    /// This node has no room for the job's tensors.
    #[error("{0}")]
    Memory(String),
}

/// The unit of completed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkUnit {
    /// Parts of a request.
    Parts,
    /// Requests of a stream.
    Requests,
}

impl fmt::Display for WorkUnit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            WorkUnit::Parts => "parts",
            WorkUnit::Requests => "requests",
        })
    }
}

/// Why a conversation with a provider ended before its work did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Loss {
    /// It was unreachable, disconnected or sent invalid messages.
    #[error("{0}")]
    Gone(String),
    /// Its connection is open and silent: it is frozen, or cut off.
    #[error("it has sent nothing for {} s", patience.0 / 1_000_000)]
    Silent {
        /// How long the buyer waited.
        patience: Micros,
    },
    /// The lease ended first.
    #[error("its lease ended before its work was done")]
    Deadline,
    /// A part takes far longer than its device promised.
    #[error("a part that it runs was not done within {} s", patience.0 / 1_000_000)]
    Slow {
        /// How long the buyer waited.
        patience: Micros,
    },
    /// It accepts a tensor neither from its maker nor from the buyer.
    #[error("it accepts {name} neither from {maker}, its maker ({why}), nor from the buyer")]
    Untaken {
        /// The tensor's name.
        name: String,
        /// The provider that made it.
        maker: AccountKey,
        /// The reason that the maker received.
        why: String,
    },
    /// Its readers fail, one after the other, because an input does not arrive.
    #[error("{0} and {1} read what it makes, and an input arrived at neither")]
    Starving(AccountKey, AccountKey),
    /// It claims payment for more than it can have done.
    #[error(
        "it notes {} s of device time, of which the buyer saw at most {} s",
        noted.0 / 1_000_000, seen.0 / 1_000_000
    )]
    Overnoted {
        /// The device time that it noted.
        noted: Micros,
        /// The device time that the buyer saw.
        seen: Micros,
    },
    /// It sent messages in the wrong order.
    #[error("it sent an unexpected message: is it an older or newer souk?")]
    Confused,
}

/// Why the buyer does not sign a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Objection {
    /// It is not valid by itself.
    #[error(transparent)]
    Fault(#[from] ReceiptFault),
    /// The market does not settle it.
    #[error("the market refuses it: {0}")]
    Market(Refusal),
    /// One of its terms differs from the purchase.
    #[error("its {0} differs from the purchase")]
    Terms(Term),
    /// It bills more device time than the buyer saw it have work for.
    #[error("it bills {billed} device-us, of which at most {possible} can have been used")]
    Usage {
        /// The device time billed.
        billed: DeviceMicros,
        /// The most device time possible.
        possible: DeviceMicros,
    },
    /// It bills device time, and its provider gave no output.
    #[error("it bills {billed} device-us and names no output")]
    Nothing {
        /// The device time billed.
        billed: DeviceMicros,
    },
    /// It states a wrong speed.
    #[error(
        "it states a {what} speed of {said} Mop/s, but {true_one} Mop/s follows from its usage"
    )]
    Speed {
        /// The speed that is wrong.
        what: Speed,
        /// The figure that it states, in Mop/s.
        said: u64,
        /// The figure that follows from its usage and the plan, in Mop/s.
        true_one: u64,
    },
    /// It names an input that no party gave.
    #[error("it names the input {0}, which it did not receive")]
    Input(ContentId),
    /// It names no input of an exact lease, so that no validator could judge its outputs.
    #[error("it names no input, although its work had some")]
    NoInput,
    /// Its outputs are not those it serves.
    #[error("its outputs differ from those it serves")]
    Outputs,
    /// An output is no tensor.
    #[error("its output {name} is not a tensor: {cause}")]
    NoTensor {
        /// The output's name.
        name: String,
        /// The cause, for people.
        cause: String,
    },
    /// The other run that could confirm it did not arrive in time.
    #[error("no other run confirmed it before its claim would have been accepted unanswered")]
    Late,
    /// No other run or answer confirms some of its results.
    #[error(
        "{count} of its results ({names}) were confirmed neither by another run nor by a later \
         answer"
    )]
    Alone {
        /// The number of unconfirmed results.
        count: u32,
        /// Their names.
        names: String,
    },
}

/// The terms of a receipt that must match the purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields of a receipt of the same names")]
pub enum Term {
    Market,
    Lease,
    Job,
    Buyer,
    Provider,
    Price,
    Class,
    Model,
    IdlePart,
    Graph,
    Tokens,
}

impl fmt::Display for Term {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Term::Market => "market",
            Term::Lease => "lease",
            Term::Job => "job",
            Term::Buyer => "buyer",
            Term::Provider => "provider",
            Term::Price => "price",
            Term::Class => "class",
            Term::Model => "device model",
            Term::IdlePart => "price of idle time",
            Term::Graph => "graph",
            Term::Tokens => "count of tokens",
        })
    }
}

/// A speed that a receipt states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// The advertised speed.
    Declared,
    /// The delivered speed.
    Delivered,
}

impl fmt::Display for Speed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Speed::Declared => "declared",
            Speed::Delivered => "delivered",
        })
    }
}

/// An amount as people read it.
struct InCredits(Credits);

impl fmt::Display for InCredits {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credits(micro) = self.0;
        write!(to, "{}.{:06}", micro / 1_000_000, micro % 1_000_000)
    }
}

impl Reason {
    /// Returns the provider to exclude, if another could do better.
    #[must_use]
    pub fn culprit(&self) -> Option<AccountKey> {
        match self {
            Reason::Unknown(provider)
            | Reason::Lost { provider, .. }
            | Reason::Failed { provider, .. }
            | Reason::Reclaimed { provider, .. }
            | Reason::Output { provider, .. }
            | Reason::Outvoted { provider, .. }
            | Reason::Receipt { provider, .. } => Some(*provider),
            _ => None,
        }
    }

    /// Returns the provider's objection to the job's inputs, if they are at fault.
    #[must_use]
    pub fn bad_input(&self) -> Option<&str> {
        match self {
            Reason::BadInput(description)
            | Reason::Failed {
                failure: Failure::BadInput(description),
                ..
            } => Some(description),
            _ => None,
        }
    }

    /// Returns whether its provider can be as good as any once it returns with a new ask.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Reason::Unknown(_) | Reason::Reclaimed { .. } | Reason::Output { .. } => true,
            Reason::Lost { loss, .. } => matches!(loss, Loss::Gone(_) | Loss::Silent { .. }),
            Reason::Failed { failure, .. } => matches!(
                failure,
                Failure::Full
                    | Failure::Forgotten
                    | Failure::Expired
                    | Failure::Stopping
                    | Failure::Journal(_)
                    | Failure::Disk(_)
            ),
            _ => false,
        }
    }

    /// Returns whether a larger budget would help.
    #[must_use]
    pub fn is_budget(&self) -> bool {
        self.code() == BUDGET
    }

    /// Returns the reason as a code that must never change its meaning; docs/cli.md lists them.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Reason::Unreachable(_) => "market_unreachable",
            Reason::Unsold(_) => "unsold",
            Reason::Escrow { .. } => BUDGET,
            Reason::NoPlan(no_plan) => match no_plan.kind {
                NoPlanKind::Budget => BUDGET,
                NoPlanKind::NoneEligible => "none_eligible",
                NoPlanKind::Unreachable => "market_unreachable",
                NoPlanKind::Rest => "rest",
                NoPlanKind::Other => "no_plan",
            },
            Reason::Unknown(_) => "provider_unknown",
            Reason::Lost { loss, .. } => match loss {
                Loss::Deadline | Loss::Slow { .. } => "provider_slow",
                Loss::Untaken { .. } => "untaken",
                Loss::Overnoted { .. } => "overnoted",
                Loss::Starving(..) => "output_lost",
                Loss::Gone(_) | Loss::Silent { .. } | Loss::Confused => "provider_vanished",
            },
            Reason::BadInput(_)
            | Reason::Failed {
                failure: Failure::BadInput(_),
                ..
            } => "bad_input",
            Reason::Failed { .. } => "provider_failed",
            Reason::Reclaimed { .. } => "reclaimed",
            Reason::Output { .. } => "output_lost",
            Reason::Receipt { .. } => "receipt_refused",
            Reason::Outvoted { .. } => "outvoted",
            Reason::Disagreement { .. } => "disagreement",
            Reason::Late(_) => "deadline",
            Reason::Journal(_) => "journal",
            Reason::Memory(_) => "memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: AccountKey = AccountKey([0x0a; 32]);

    /// What the page of the command line says of each.
    const PAGE: &str = include_str!("../../../../docs/cli.md");

    fn lost(loss: Loss) -> Reason {
        let provider = WHO;
        Reason::Lost { provider, loss }
    }

    fn no_plan(kind: NoPlanKind) -> Reason {
        let text = "2 asks seen: 2 of H100 is excluded".to_owned();
        Reason::NoPlan(NoPlan { kind, text })
    }

    /// Ends of a job that is not survived: the message, and the message.
    fn ends() -> Vec<(Reason, &'static str, &'static str)> {
        let provider = WHO;
        let value = "logits".to_owned();
        let patience = Micros::from_seconds(7);
        let (needed, budget) = (Credits(500_000), Credits(250_000));
        let failure = Failure::Crashed("signal 11 (SIGSEGV)".to_owned());
        let away = "no validator answers".to_owned();
        vec![
            (
                Reason::Escrow { needed, budget },
                "budget",
                "0.250000 of the budget are left",
            ),
            (
                no_plan(NoPlanKind::NoneEligible),
                "none_eligible",
                "2 asks seen",
            ),
            (no_plan(NoPlanKind::Rest), "rest", "2 asks"),
            (no_plan(NoPlanKind::Other), "no_plan", "2 asks"),
            (
                Reason::Unreachable(away.clone()),
                "market_unreachable",
                "no validator",
            ),
            (
                Reason::Unknown(provider),
                "provider_unknown",
                "no validator knows where",
            ),
            (
                lost(Loss::Slow { patience }),
                "provider_slow",
                "not done within 7 s",
            ),
            (
                lost(Loss::Deadline),
                "provider_slow",
                "its lease ended before",
            ),
            (
                lost(Loss::Gone(away.clone())),
                "provider_vanished",
                "no validator",
            ),
            (
                lost(Loss::Confused),
                "provider_vanished",
                "unexpected message",
            ),
            (
                lost(Loss::Silent { patience }),
                "provider_vanished",
                "sent nothing for 7 s",
            ),
            (
                Reason::BadInput("3 is not below 2".to_owned()),
                "bad_input",
                "do not fit its model: 3 is not below 2",
            ),
            (
                lost(Loss::Overnoted {
                    noted: Micros::from_seconds(90),
                    seen: patience,
                }),
                "overnoted",
                "the buyer saw at most 7 s",
            ),
            (
                lost(Loss::Starving(AccountKey([0x0b; 32]), provider)),
                "output_lost",
                "arrived at neither",
            ),
            (
                lost(Loss::Untaken {
                    name: value.clone(),
                    maker: AccountKey([0x0b; 32]),
                    why: "no answer within 10 s".to_owned(),
                }),
                "untaken",
                "neither from 0b0b",
            ),
            (
                Reason::Failed { provider, failure },
                "provider_failed",
                "signal 11 (SIGSEGV)",
            ),
            (
                Reason::Reclaimed {
                    provider,
                    done: 1,
                    all: 3,
                    what: WorkUnit::Parts,
                },
                "reclaimed",
                "took its device back after 1 of 3 parts",
            ),
            (
                Reason::Output {
                    provider,
                    why: away.clone(),
                },
                "output_lost",
                "did not arrive",
            ),
            (
                Reason::Receipt {
                    provider,
                    objection: Objection::Outputs,
                },
                "receipt_refused",
                "differ from those it serves",
            ),
            (
                Reason::Outvoted {
                    provider,
                    value: value.clone(),
                },
                "outvoted",
                "returned another logits than two others: it is not paid",
            ),
            (
                Reason::Disagreement { value },
                "disagreement",
                "three different logits",
            ),
            (
                Reason::Late(patience),
                "deadline",
                "deadline of 7.000 s has passed",
            ),
            (Reason::Journal(away.clone()), "journal", "no validator"),
            (Reason::Memory(away), "memory", "no validator"),
        ]
    }

    #[test]
    fn each_end_has_its_word_and_says_what_happened() {
        for (end, code, message) in ends() {
            assert_eq!(end.code(), code, "{end}");
            assert!(end.to_string().contains(message), "{end}");
            assert!(PAGE.contains(&format!("`{code}`")), "{code} is on no page");
        }
    }

    #[test]
    fn another_provider_may_do_better_where_one_is_to_blame() {
        for (end, code, _) in ends() {
            let of_all = [
                "budget",
                "none_eligible",
                "rest",
                "no_plan",
                "market_unreachable",
                "disagreement",
                "bad_input",
                "deadline",
                "journal",
                "memory",
            ];
            let is_of_one = !of_all.contains(&code);
            assert_eq!(end.culprit(), is_of_one.then_some(WHO), "{end}");
        }
    }
}
