//! Writes the messages that a user sees about a text, which is an answer that a language model
//! generates in sessions that souk buys.
//!
//! The core in `souk_roles::session` says what happened, as a [`Notice`] or a [`SessionFailure`].
//! This file adds what only the session shell knows (providers' names, the failed quote, the job
//! that ended early), and makes a sentence or a [`TextError`] of both.

use std::collections::BTreeMap;

use souk_node::buyer::{End, JournalError, QuoteError, UnfinishedJob};
use souk_roles::session::{Notice, SessionFailure};

use crate::text_error::{TextError, UsedBudget};

/// The cause of a text that the user stopped before it had a session.
const INTERRUPTED: &str = "interrupted while the text waited for a session";

/// The facts about a session that the messages to the user need.
#[derive(Default)]
pub struct SessionReport {
    /// The names of its providers.
    pub names: String,
    /// Why the last quote failed.
    pub quote_error: Option<QuoteError>,
    /// Why the journal of its last job could not begin.
    pub journal_error: Option<JournalError>,
    /// Its last job, if that ended early.
    pub unfinished: Option<Box<UnfinishedJob>>,
}

/// The facts about all sessions of a text.
#[derive(Default)]
pub struct SessionReports(BTreeMap<u32, SessionReport>);

impl SessionReports {
    /// Returns the facts about a session, to change them.
    pub fn report_mut(&mut self, session: u32) -> &mut SessionReport {
        self.0.entry(session).or_default()
    }

    /// Returns the names of a session's providers.
    pub fn session_names(&self, session: u32) -> &str {
        self.0.get(&session).map_or("", |it| &it.names)
    }

    /// Describes an event for the user.
    pub fn describe_notice(&self, notice: &Notice) -> String {
        match notice {
            Notice::Replaced { session, end } => {
                let reason = self.describe_end(*session, end);
                format!("the session is over: {reason}; buying another")
            }
            Notice::UsedUp { .. } => {
                "the session has made the tokens it was bought for; buying another".to_owned()
            }
            Notice::FalseToken { session } => format!(
                "{} drew a token that the model does not have, and leaves; buying another",
                self.session_names(*session)
            ),
            Notice::Differ { sessions, position } => {
                let differ = self.describe_difference(*sessions, *position);
                format!("{differ}: a third decides")
            }
            Notice::Outvoted { session, position } => format!(
                "{} is outvoted at position {position}, and leaves",
                self.session_names(*session)
            ),
        }
    }

    fn describe_difference(&self, sessions: [u32; 2], position: usize) -> String {
        let [first, second] = sessions.map(|session| self.session_names(session));
        format!("{first} and {second} differ at position {position}")
    }

    fn describe_end(&self, session: u32, end: &End) -> String {
        let unfinished = self.0.get(&session);
        let unfinished = unfinished.and_then(|it| it.unfinished.as_ref());
        match (unfinished, end) {
            (Some(unfinished), _) => unfinished.reason_text(),
            (None, End::Failed(reason)) => reason.to_string(),
            (None, End::Done | End::Cancelled) => "it was stopped".to_owned(),
        }
    }

    /// Describes the reason why a step has no output.
    pub fn describe_failure(&self, failure: &SessionFailure) -> String {
        match failure {
            SessionFailure::NotQuoted { session, .. } => {
                let error = self.0.get(session);
                let error = error.and_then(|it| it.quote_error.as_ref());
                error.map_or_else(String::new, ToString::to_string)
            }
            SessionFailure::NotOpened { session } => {
                let error = self.0.get(session);
                let error = error.and_then(|it| it.journal_error.as_ref());
                error.map_or_else(String::new, ToString::to_string)
            }
            SessionFailure::Ended { session, end } => self.describe_end(*session, end),
            SessionFailure::EndsBeforeToken { .. } => {
                "sessions end before a token is made".to_owned()
            }
            SessionFailure::Interrupted => INTERRUPTED.to_owned(),
            SessionFailure::Finished => "the sessions were ended".to_owned(),
            SessionFailure::Busy => "the sequence has another step in progress".to_owned(),
            SessionFailure::UnknownTokens => "the tokens before the step are not known".to_owned(),
            SessionFailure::Undecided { sessions, position } => {
                let differ = self.describe_difference(*sessions, *position);
                format!("{differ}, and no third decides")
            }
            SessionFailure::ThirdDiffers { sessions, position } => {
                let differ = self.describe_difference(*sessions, *position);
                format!("{differ}, and a third from both")
            }
        }
    }

    /// Returns the error of a failed text, with the facts about the session that failed.
    pub fn take_error(&mut self, failure: &SessionFailure) -> TextError {
        let cause = self.describe_failure(failure);
        match failure {
            SessionFailure::NotQuoted {
                session,
                budget,
                left,
            } => {
                let error = self.0.get_mut(session);
                let error = error.and_then(|it| it.quote_error.take());
                let Some(error) = error else {
                    return TextError::unexpected(cause);
                };
                let used = budget.zip(*left).filter(|(given, left)| left < given);
                let is_budget =
                    matches!(error, QuoteError::Budget { .. } | QuoteError::Escrow { .. });
                let used = used.filter(|_| is_budget);
                TextError::Quote {
                    error: Box::new(error),
                    budget: used.map(|(given, left)| UsedBudget { given, left }),
                }
            }
            SessionFailure::NotOpened { session } => {
                let error = self.0.get_mut(session);
                let error = error.and_then(|it| it.journal_error.take());
                error.map_or_else(|| TextError::unexpected(cause), TextError::Journal)
            }
            SessionFailure::Ended { session, .. } => {
                let unfinished = self.0.get_mut(session);
                let unfinished = unfinished.and_then(|it| it.unfinished.take());
                unfinished.map_or_else(|| TextError::unexpected(cause), TextError::Ended)
            }
            SessionFailure::EndsBeforeToken { .. } => TextError::Unexpected {
                cause,
                hint: "buy them for more tokens at a time".to_owned(),
            },
            SessionFailure::Interrupted => TextError::Interrupted(INTERRUPTED),
            SessionFailure::Undecided { .. } | SessionFailure::ThirdDiffers { .. } => {
                TextError::Disagreement(cause)
            }
            SessionFailure::Finished | SessionFailure::Busy | SessionFailure::UnknownTokens => {
                TextError::unexpected(cause)
            }
        }
    }
}
