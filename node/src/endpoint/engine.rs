//! Asks the inference engine of an endpoint, which is an engine behind HTTP or souk's own decoder.
//! Both give an answer in pieces, and both can refuse, be busy, or fail in the middle.

use std::sync::Arc;

use hyper::StatusCode;
use souk_market::LeaseId;
use souk_roles::tokens::text::TextRequest;

use super::is_refusal;
use super::own_engine::{OwnAnswer, OwnEngine, OwnFault};
use super::sse::AnswerPiece;
use super::upstream::{Chat, Upstream, UpstreamError};

/// An engine that answers requests: behind HTTP, or souk's own decoder.
#[derive(Debug)]
pub(super) enum TextSource {
    /// An inference engine with OpenAI's HTTP API.
    Http(Box<Upstream>),
    /// The decoder of this process.
    Own(Arc<dyn OwnEngine>),
}

/// Why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineFault {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Own(#[from] OwnFault),
}

impl EngineFault {
    /// Returns whether the request was at fault, which any buyer can cause.
    pub(super) fn is_of_request(&self) -> bool {
        match self {
            EngineFault::Upstream(UpstreamError::Refused { status, .. }) => is_refusal(*status),
            EngineFault::Own(OwnFault::Refused(_)) => true,
            _ => false,
        }
    }

    /// Returns whether the engine refused its provider's key.
    pub(super) fn is_of_key(&self) -> bool {
        let EngineFault::Upstream(UpstreamError::Refused { status, .. }) = self else {
            return false;
        };
        *status == StatusCode::UNAUTHORIZED
    }
}

/// An answer in progress.
pub(super) enum AnswerStream {
    Http(Box<Chat>),
    Own(OwnAnswer),
}

impl TextSource {
    /// Returns whether the engine is a service on another machine.
    pub(super) fn is_elsewhere(&self) -> bool {
        match self {
            TextSource::Http(upstream) => upstream.is_elsewhere(),
            TextSource::Own(_) => false,
        }
    }

    /// Begins the answer to a request of a tab.
    pub(super) async fn begin_answer(
        &self,
        model: &str,
        tab: LeaseId,
        request: &TextRequest,
    ) -> Result<AnswerStream, EngineFault> {
        match self {
            TextSource::Http(upstream) => {
                let chat = upstream.begin_chat(model, tab, request).await?;
                Ok(AnswerStream::Http(Box::new(chat)))
            }
            TextSource::Own(engine) => {
                let pieces = engine.begin_answer(tab, request.clone());
                Ok(AnswerStream::Own(pieces))
            }
        }
    }
}

impl AnswerStream {
    /// Waits for the next piece. An answer that ends without a reason is broken.
    pub(super) async fn next_piece(&mut self) -> Result<AnswerPiece, EngineFault> {
        match self {
            AnswerStream::Http(chat) => Ok(chat.next_piece().await?),
            AnswerStream::Own(pieces) => {
                let ended = || OwnFault::Failed("it ended in the middle of an answer".to_owned());
                Ok(pieces.recv().await.ok_or_else(ended)??)
            }
        }
    }

    /// Reads the rest of a stream whose answer has ended.
    pub(super) async fn drain(self) {
        match self {
            AnswerStream::Http(chat) => chat.drain().await,
            AnswerStream::Own(_) => {}
        }
    }
}
