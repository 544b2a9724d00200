//! Defines the interface between an endpoint and souk's own decoder. The decoder is in a crate that
//! depends on this one (`souk-texts`), because a node contains no code for language models.

use std::fmt;

use souk_market::LeaseId;
use souk_roles::tokens::text::TextRequest;
use tokio::sync::mpsc;

use super::sse::AnswerPiece;

/// A decoder in this process that answers the requests of tabs, several at once.
pub trait OwnEngine: fmt::Debug + Send + Sync {
    /// Begins to answer a request of a tab, and returns at once. If you drop the receiver, the
    /// answer ends after the current step. What one tab sent must not speed up another tab's
    /// answer.
    fn begin_answer(&self, tab: LeaseId, request: TextRequest) -> OwnAnswer;
}

/// The pieces of an answer. The last one states why the answer ended, or is a fault.
pub type OwnAnswer = mpsc::Receiver<Result<AnswerPiece, OwnFault>>;

/// Why a decoder does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnFault {
    /// The request is at fault; the buyer sees the cause.
    #[error("the model cannot answer this request: {0}")]
    Refused(String),
    /// All sequences are in use.
    #[error("all sequences of the decoder are at work")]
    Busy,
    /// The decoder failed.
    #[error("the decoder failed: {0}")]
    Failed(String),
}
