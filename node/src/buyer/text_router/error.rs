//! Lists the reasons why a request for text got no answer or its answer broke off, with the texts
//! that users see.

use std::collections::BTreeMap;
use std::sync::Arc;

use souk_market::Name;
use souk_memory::StoreError;
use souk_roles::tokens::router::{Misfit, Route, RouteFailure};
use souk_roles::tokens::seam::SeamFault;
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{AnswerText, Finish, TextAnswer};

use crate::buyer::text_keys::CoverError;
use crate::client::broker::BrokerError;

/// The most names of providers in a message.
const NAMES_MAX: usize = 8;

/// Why a text was not bought, or broke off.
#[derive(Debug, thiserror::Error)]
pub enum TextRouterError {
    /// No validator answered.
    #[error(transparent)]
    Broker(Arc<BrokerError>),
    /// Nobody sells the model now.
    #[error("no provider sells {model} now{}", describe_others(others))]
    NoOffer {
        /// The requested model.
        model: String,
        /// The models that are on sale.
        others: Vec<String>,
    },
    /// All slots of the model are taken.
    #[error(
        "no slot of {model} is free: all are taken, or its providers have stopped; send the \
         request again in a moment"
    )]
    SoldOut {
        /// The requested model.
        model: String,
    },
    /// Offers of the model have free slots, and none suits the request.
    #[error(
        "no offer of {model} suits: {}; its providers are {}",
        describe_misfits(misfits),
        describe_names(names)
    )]
    Unsuitable {
        /// The requested model.
        model: String,
        /// The number of offers that do not suit, by cause.
        misfits: BTreeMap<Misfit, u32>,
        /// The providers of all offers.
        names: Vec<Name>,
    },
    /// The budget allows no further tab.
    #[error(
        "the budget of {budget} micro-credits allows no further tab: {spent} are spent, {held} \
         are held by open tabs, and a tab needs {needed}"
    )]
    Budget {
        /// The whole budget.
        budget: u64,
        /// What ended tabs cost.
        spent: u64,
        /// What open tabs hold.
        held: u64,
        /// The escrow of the shortest tab.
        needed: u64,
    },
    /// The budget of the server allows no further tab for a request with a key, whose owner does
    /// not see the budget.
    #[error("the server's budget allows no further tab{}", describe_moment(*is_momentary))]
    ServerBudget {
        /// Whether it does again when open tabs are settled.
        is_momentary: bool,
    },
    /// The key of the request does not pay for it.
    #[error(transparent)]
    Key(#[from] CoverError),
    /// This buyer has no memory for the request.
    #[error("the memory of this buyer is full: {0}")]
    Memory(#[from] StoreError),
    /// Each provider that was tried failed before its first text.
    #[error("no provider answered: {last}")]
    Failed {
        /// The last failure.
        last: AnswerFault,
    },
    /// The answer broke off, and no provider could go on with it.
    #[error("the answer broke off: {cause}; {}", describe_rest(rest.as_deref()))]
    Broken {
        /// Why the last provider did not end it.
        cause: AnswerFault,
        /// Why no other one goes on; none if the tries are used up.
        rest: Option<Box<TextRouterError>>,
    },
}

/// Why a provider did not answer, or did not end its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The tab failed.
    #[error(transparent)]
    Tab(#[from] TabFailure),
    /// The engine has no room now.
    #[error("{0}")]
    Busy(String),
    /// The engine refused the request.
    #[error("the engine refused the request: {0}")]
    RequestRefused(String),
    /// The engine ended its answer without any text.
    #[error("the engine gave an empty answer")]
    Empty,
    /// The engine broke off.
    #[error("{0}")]
    Engine(String),
    /// The time of the tab was over.
    #[error("the time of the tab was over")]
    TabTime,
    /// The engine refused to continue the text of another provider.
    #[error("the engine does not continue answers: {0}")]
    Refused(String),
    /// The engine did not continue the text of another provider.
    #[error(transparent)]
    Seam(#[from] SeamFault),
    /// The answer is too long to be sent to another provider.
    #[error("the conversation and the answer are too long to continue")]
    Long,
}

impl TextRouterError {
    /// Returns whether the budget allows a further tab once open tabs are settled for nothing.
    #[must_use]
    pub fn is_budget_held(&self) -> bool {
        match self {
            TextRouterError::Budget {
                budget,
                spent,
                needed,
                ..
            } => spent.saturating_add(*needed) <= *budget,
            TextRouterError::ServerBudget { is_momentary } => *is_momentary,
            _ => false,
        }
    }

    /// Returns whether the buyer cannot ask anybody, whatever is on offer.
    pub(super) fn is_of_buyer(&self) -> bool {
        matches!(
            self,
            TextRouterError::Budget { .. }
                | TextRouterError::ServerBudget { .. }
                | TextRouterError::Key(_)
                | TextRouterError::Memory(_)
                | TextRouterError::Broker(_)
        )
    }

    /// Returns the error without the figures of the server's budget.
    pub(super) fn hide_budget(self) -> TextRouterError {
        match self {
            TextRouterError::Budget { .. } => TextRouterError::ServerBudget {
                is_momentary: self.is_budget_held(),
            },
            error => error,
        }
    }
}

impl From<BrokerError> for TextRouterError {
    fn from(error: BrokerError) -> TextRouterError {
        TextRouterError::Broker(Arc::new(error))
    }
}

impl AnswerFault {
    /// Returns why a provider's answer, with the text `own`, does not end the answer to a request
    /// whose reader has got `shown`; none if it does.
    pub(super) fn of_end(
        route: &Route,
        answer: &TextAnswer,
        own: &AnswerText,
        shown: &AnswerText,
    ) -> Option<AnswerFault> {
        let message = answer.message.clone();
        Some(match answer.finish {
            Finish::Busy => AnswerFault::Busy(message),
            Finish::Interrupted => AnswerFault::Engine(message),
            Finish::Expired if own.is_empty() => {
                let why = "the engine gave no text until the tab was over".to_owned();
                AnswerFault::Engine(why)
            }
            Finish::Expired => AnswerFault::TabTime,
            Finish::Refused if route.is_rest() => AnswerFault::Refused(message),
            Finish::Refused => AnswerFault::RequestRefused(message),
            Finish::Stop | Finish::Length if shown.is_empty() && own.is_empty() => {
                AnswerFault::Empty
            }
            _ => return None,
        })
    }

    /// Returns whether only room was missing, so that the same request can succeed a moment later.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        let is_over = matches!(
            self.to_failure(),
            Some(RouteFailure::TabOver | RouteFailure::OtherProvider)
        );
        is_over || matches!(self, AnswerFault::Busy(_))
    }

    /// Returns what the fault says about the provider; none if it says that the market is out of
    /// reach, or this buyer's memory full.
    pub(super) fn to_failure(&self) -> Option<RouteFailure> {
        Some(match self {
            AnswerFault::Tab(TabFailure::Unreachable(_) | TabFailure::Memory(_)) => return None,
            AnswerFault::Tab(TabFailure::OtherProvider) => RouteFailure::OtherProvider,
            AnswerFault::Tab(TabFailure::Closing | TabFailure::NotSold(_))
            | AnswerFault::TabTime => RouteFailure::TabOver,
            AnswerFault::Busy(_) => RouteFailure::Busy,
            AnswerFault::RequestRefused(_) | AnswerFault::Empty => RouteFailure::Refused,
            AnswerFault::Tab(_) | AnswerFault::Engine(_) | AnswerFault::Long => {
                RouteFailure::Failed
            }
            AnswerFault::Refused(_) | AnswerFault::Seam(_) => RouteFailure::NotContinued,
        })
    }
}

fn describe_moment(is_momentary: bool) -> &'static str {
    match is_momentary {
        true => " until open tabs are settled",
        false => "",
    }
}

fn describe_others(others: &[String]) -> String {
    match others {
        [] => "; no model is on sale".to_owned(),
        others => format!("; on sale are {}", others.join(", ")),
    }
}

fn describe_misfits(misfits: &BTreeMap<Misfit, u32>) -> String {
    let words = misfits.iter();
    let words = words.map(|(misfit, count)| format!("{count} {}", misfit.describe()));
    words.collect::<Vec<_>>().join(", ")
}

fn describe_names(names: &[Name]) -> String {
    let named: Vec<&str> = names.iter().take(NAMES_MAX).map(Name::as_str).collect();
    match names.len().saturating_sub(NAMES_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn describe_rest(rest: Option<&TextRouterError>) -> String {
    match rest {
        Some(rest) => format!("no other provider could go on: {rest}"),
        None => "no other provider could go on".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_sees_no_figure_of_the_servers_budget() {
        let budget = |spent, held| TextRouterError::Budget {
            budget: 7_654_321,
            spent,
            held,
            needed: 1_234_567,
        };
        for (error, is_held) in [(budget(0, 7_000_000), true), (budget(6_543_210, 0), false)] {
            assert_eq!(error.is_budget_held(), is_held);
            let hidden = error.hide_budget();
            assert_eq!(hidden.is_budget_held(), is_held);
            let message = hidden.to_string();
            let has_digit = message.bytes().any(|byte| byte.is_ascii_digit());
            assert!(!has_digit, "{message}");
            assert_eq!(message.contains("until"), is_held);
        }
    }
}
