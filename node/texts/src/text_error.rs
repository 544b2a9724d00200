//! Defines the reasons why a text could not be written, with the messages and advice that users
//! see.

use souk_llm::generation::GenerationError;
use souk_llm::model::ModelError;
use souk_node::buyer::{JournalError, QuoteError, UnfinishedJob};
use souk_node::market::Credits;
use souk_vocabulary::processor::RunError;

/// Why a text could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A model, a prompt, a schema or an option is not usable.
    #[error("{cause}")]
    Input {
        /// The cause, in one line.
        cause: String,
        /// What the user can do about it; empty if there is no advice.
        hint: String,
    },
    /// This machine cannot run the model.
    #[error("{0}")]
    NotRunnable(String),
    /// The market offers no session within the limits.
    #[error("{}", explain_quote(error, budget.as_ref()))]
    Quote {
        /// Why there is no quote.
        error: Box<QuoteError>,
        /// The budget, if earlier sessions of the text used a part of it.
        budget: Option<UsedBudget>,
    },
    /// A session ended, and souk buys no other one.
    #[error("{}", .0.reason_text())]
    Ended(Box<UnfinishedJob>),
    /// The journal of a session could not be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Sessions that are compared differ, and no majority decides.
    #[error("{0}")]
    Disagreement(String),
    /// The user stopped the text.
    #[error("{0}")]
    Interrupted(&'static str),
    /// A fault that souk does not expect.
    #[error("{cause}")]
    Unexpected {
        /// The cause, in one line.
        cause: String,
        /// What the user can do about it; empty if there is no advice.
        hint: String,
    },
}

/// A budget, a part of which earlier sessions have spent or hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedBudget {
    /// The whole budget.
    pub given: Credits,
    /// The part that can still buy sessions.
    pub left: Credits,
}

impl TextError {
    /// Creates the error of an unusable input.
    pub fn input(cause: impl ToString, hint: impl Into<String>) -> TextError {
        TextError::Input {
            cause: cause.to_string(),
            hint: hint.into(),
        }
    }

    /// Creates the error of a fault that souk does not expect.
    pub fn unexpected(cause: impl ToString) -> TextError {
        TextError::Unexpected {
            cause: cause.to_string(),
            hint: String::new(),
        }
    }

    /// Returns whether the request is at fault, and not the session.
    #[must_use]
    pub fn is_input(&self) -> bool {
        matches!(self, TextError::Input { .. })
    }
}

impl From<ModelError> for TextError {
    fn from(error: ModelError) -> TextError {
        let hint =
            "a folder with config.json, tokenizer.json and .safetensors; a GGUF file; `bundled`";
        TextError::input(error, hint)
    }
}

impl From<GenerationError> for TextError {
    fn from(error: GenerationError) -> TextError {
        match error {
            GenerationError::Empty => TextError::input(error, "write a prompt"),
            GenerationError::Room { .. } => {
                TextError::input(error, "give --context more positions")
            }
            GenerationError::Match(_) => {
                TextError::input(error, "give another schema, or another model")
            }
            GenerationError::Run(_)
            | GenerationError::Logits(_)
            | GenerationError::SampledCount(..)
            | GenerationError::NoNumber(_) => TextError::unexpected(error),
        }
    }
}

/// Returns the error of a step that failed in the market.
pub(crate) fn failed_step(reason: String) -> RunError {
    let engine = "market";
    RunError::Engine { engine, reason }
}

fn explain_quote(error: &QuoteError, budget: Option<&UsedBudget>) -> String {
    match budget {
        None => error.to_string(),
        Some(UsedBudget { given, left }) => format!(
            "of {} credits {} are left, the rest is paid, or held for leases whose providers were \
             lost: {error}",
            in_credits(*given),
            in_credits(*left)
        ),
    }
}

fn in_credits(amount: Credits) -> String {
    let (whole, rest) = (amount.0 / 1_000_000, amount.0 % 1_000_000);
    format!("{whole}.{rest:06}")
}
