//! Why a job was not run: one variant a cause, each with a code that scripts can rely on.

use std::time::Duration;

use souk_market::{AccountKey, Credits, Refusal};
use souk_memory::StoreError;

use super::journal::JournalError;
use super::{Objection, QuoteError, RestError, SessionError};
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;
use crate::content::transfers::FetchError;
use crate::network::OpenError;
use crate::protocols::lease::Failure;

/// The word for a budget that is too small.
const BUDGET: &str = "budget";

/// Why a job was not run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Buying, ending or settling failed.
    #[error(transparent)]
    Trade(#[from] TradeError),
    /// The book moved and nothing fits any more.
    #[error("the leases could not be bought: {0}")]
    Unsold(Refusal),
    /// The budget is too small for the leases.
    #[error("the leases hold {needed:.6} credits in escrow, {budget:.6} of the budget are left")]
    Escrow {
        /// What the shortest leases hold, in credits.
        needed: f64,
        /// What is left of the budget, in credits.
        budget: f64,
    },
    /// A second quote, after the book moved or a provider failed.
    #[error(transparent)]
    Quote(Box<QuoteError>),
    /// What is left of the job after a failure cannot be made a job.
    #[error(transparent)]
    Rest(Box<RestError>),
    /// A provider cannot be found.
    #[error("no validator knows where provider {0} is")]
    Lost(AccountKey),
    /// A provider cannot be talked to.
    #[error("provider {provider}: {cause}")]
    Session {
        /// Who.
        provider: AccountKey,
        /// What happened.
        cause: Box<SessionError>,
    },
    /// A provider says that it failed.
    #[error("provider {provider} failed: {failure}")]
    Provider {
        /// Who.
        provider: AccountKey,
        /// What it says.
        failure: Failure,
    },
    /// A provider took its device back, as it may under a spot lease, or lost it to a higher bid.
    #[error("provider {provider} took its device back after {done} of {all} {what}")]
    Reclaimed {
        /// Who.
        provider: AccountKey,
        /// What of its lease is done.
        done: usize,
        /// What it was to run.
        all: usize,
        /// Of what: parts of a job, or requests of a stream.
        what: &'static str,
    },
    /// An output did not arrive.
    #[error("an output of provider {provider} did not arrive: {cause}")]
    Output {
        /// Who made it.
        provider: AccountKey,
        /// What happened.
        cause: Box<FetchError>,
    },
    /// A receipt is not what was bought.
    #[error("provider {provider}'s receipt is not signed: {objection}")]
    Receipt {
        /// Who.
        provider: AccountKey,
        /// What is wrong with it.
        objection: Objection,
    },
    /// A provider's result is not what two others have.
    #[error("provider {provider} gave another {value} than two others: it is not paid")]
    Outvoted {
        /// Who.
        provider: AccountKey,
        /// The value that differs.
        value: String,
    },
    /// Three providers gave three results.
    #[error("three providers gave three different {value}: none of them is paid")]
    Disagreement {
        /// The value that differs.
        value: String,
    },
    /// The job's own deadline has passed.
    #[error("the job's deadline of {:.3} s has passed", .0.as_secs_f64())]
    Late(Duration),
    /// The job's journal was not written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// This node's store is full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This node's network failed.
    #[error(transparent)]
    Network(#[from] OpenError),
}

/// What a job has cost, by the market's own books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spending {
    /// Paid for what was settled.
    pub spent: Credits,
    /// Still in escrow, to be paid or to come back when its lease closes.
    pub held: Credits,
}

/// How a job ended that was not done.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Ended {
    /// Why.
    #[source]
    pub error: JobError,
    /// What had failed before and was done without, in order.
    pub before: Vec<String>,
    /// What it has cost, if the market could be asked.
    pub spending: Option<Spending>,
}

impl From<QuoteError> for JobError {
    fn from(error: QuoteError) -> JobError {
        JobError::Quote(Box::new(error))
    }
}

impl From<RestError> for JobError {
    fn from(error: RestError) -> JobError {
        JobError::Rest(Box::new(error))
    }
}

impl Ended {
    /// A job that ended before anything was bought.
    pub(super) fn at_once(error: JobError) -> Box<Ended> {
        Box::new(Ended {
            error,
            before: Vec::new(),
            spending: None,
        })
    }
}

impl JobError {
    /// The provider to do without, where another may do better.
    pub fn culprit(&self) -> Option<AccountKey> {
        match self {
            JobError::Lost(provider)
            | JobError::Session { provider, .. }
            | JobError::Provider { provider, .. }
            | JobError::Reclaimed { provider, .. }
            | JobError::Output { provider, .. }
            | JobError::Outvoted { provider, .. }
            | JobError::Receipt { provider, .. } => Some(*provider),
            _ => None,
        }
    }

    /// Whether more money would do.
    pub(super) fn is_budget(&self) -> bool {
        self.code() == BUDGET
    }

    /// The reason as a word that never changes its meaning; docs/cli.md lists them.
    pub fn code(&self) -> &'static str {
        match self {
            JobError::Broker(_) | JobError::Network(_) => "market_unreachable",
            JobError::Trade(_) => "market_refused",
            JobError::Unsold(_) => "unsold",
            JobError::Escrow { .. } => BUDGET,
            JobError::Quote(error) => quote_code(error),
            JobError::Rest(_) => "rest",
            JobError::Lost(_) => "provider_unknown",
            JobError::Session { cause, .. } => session_code(cause),
            JobError::Provider { .. } => "provider_failed",
            JobError::Reclaimed { .. } => "reclaimed",
            JobError::Output { .. } => "output_lost",
            JobError::Receipt { .. } => "receipt_refused",
            JobError::Outvoted { .. } => "outvoted",
            JobError::Disagreement { .. } => "disagreement",
            JobError::Late(_) => "deadline",
            JobError::Journal(_) => "journal",
            JobError::Store(_) => "memory",
        }
    }
}

fn quote_code(error: &QuoteError) -> &'static str {
    match error {
        QuoteError::Budget { .. } | QuoteError::Escrow { .. } => BUDGET,
        QuoteError::Broker(_) => "market_unreachable",
        QuoteError::NoneEligible { .. } => "none_eligible",
        _ => "no_plan",
    }
}

fn session_code(cause: &SessionError) -> &'static str {
    match cause {
        SessionError::Deadline | SessionError::Slow { .. } => "provider_slow",
        SessionError::Untaken { .. } => "untaken",
        _ => "provider_vanished",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::wire::WireError;

    const WHO: AccountKey = AccountKey([0x0a; 32]);

    /// What the page of the command line says of each.
    const PAGE: &str = include_str!("../../../docs/cli.md");

    fn session(cause: SessionError) -> JobError {
        let cause = Box::new(cause);
        JobError::Session {
            provider: WHO,
            cause,
        }
    }

    fn none_eligible() -> QuoteError {
        QuoteError::NoneEligible {
            seen: 2,
            lacks: vec![("H100".to_owned(), "is excluded".to_owned(), 2)],
        }
    }

    /// Ends of a job that is not survived: the word, the message, and whether others may do better.
    #[test]
    fn each_end_has_its_word_and_says_what_happened() {
        let provider = WHO;
        let value = "logits".to_owned();
        let patience = Duration::from_secs(7);
        let (needed, budget) = (0.5, 0.25);
        let failure = Failure::Crashed("signal 11 (SIGSEGV)".to_owned());
        let ends = [
            (
                JobError::Escrow { needed, budget },
                "budget",
                "0.250000 of the budget are left",
            ),
            (
                none_eligible().into(),
                "none_eligible",
                "2 asks seen: 2 of H100 is excluded",
            ),
            (
                JobError::Lost(provider),
                "provider_unknown",
                "no validator knows where provider",
            ),
            (
                session(SessionError::Slow { patience }),
                "provider_slow",
                "not done within 7 s",
            ),
            (
                session(SessionError::Deadline),
                "provider_slow",
                "its lease ended before",
            ),
            (
                session(WireError::Closed.into()),
                "provider_vanished",
                "closed the stream",
            ),
            (
                session(SessionError::Untaken {
                    name: value.clone(),
                    maker: AccountKey([0x0b; 32]),
                    why: "no answer within 10 s".to_owned(),
                }),
                "untaken",
                "neither from 0b0b",
            ),
            (
                session(SessionError::Confused),
                "provider_vanished",
                "out of turn",
            ),
            (
                JobError::Provider { provider, failure },
                "provider_failed",
                "signal 11 (SIGSEGV)",
            ),
            (
                JobError::Reclaimed {
                    provider,
                    done: 1,
                    all: 3,
                    what: "parts",
                },
                "reclaimed",
                "took its device back after 1 of 3 parts",
            ),
            (
                JobError::Outvoted {
                    provider,
                    value: value.clone(),
                },
                "outvoted",
                "gave another logits than two others: it is not paid",
            ),
            (
                JobError::Disagreement { value },
                "disagreement",
                "three different logits",
            ),
            (
                JobError::Late(patience),
                "deadline",
                "deadline of 7.000 s has passed",
            ),
        ];
        for (end, code, message) in ends {
            assert_eq!(end.code(), code, "{end}");
            assert!(end.to_string().contains(message), "{end}");
            let others = matches!(
                end,
                JobError::Lost(_)
                    | JobError::Session { .. }
                    | JobError::Provider { .. }
                    | JobError::Reclaimed { .. }
                    | JobError::Outvoted { .. }
            );
            assert_eq!(end.culprit(), others.then_some(provider), "{end}");
            assert!(PAGE.contains(&format!("`{code}`")), "{code} is on no page");
        }
    }
}
