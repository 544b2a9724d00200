//! Answers the requests of tabs through an inference engine that the provider runs: vLLM, SGLang,
//! llama-server, Ollama or any other with OpenAI's HTTP API.
//!
//! The engine sees a body that [`upstream`] builds from a fixed list of fields, on one path, at one
//! address of this machine. Its text goes to the buyer piece by piece (`pieces`), and souk counts
//! it; souk never bills what the engine says of its usage.

pub(crate) mod pieces;
mod sse;
pub mod upstream;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderValue;

use souk_market::NameFault;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::text::{AnswerText, Finish, TextAnswer, TextRequest};
use tokio::time::Instant;

use pieces::PieceSink;
use souk_folder::config::EndpointChoice;
use upstream::{Upstream, UpstreamError, UrlFault};

/// An answer ends this long before its lease does, so that the buyer can still receive it.
const HANDOVER: Duration = Duration::from_secs(2);

/// How long the rest of an engine's stream can take after the answer's end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// An engine on sale.
#[derive(Debug)]
pub struct Endpoint {
    card: TextCard,
    upstream: Upstream,
}

/// Why an endpoint cannot be sold.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The model's name does not fit into an ask.
    #[error("the model's name cannot be sold: {0}")]
    Model(NameFault),
    /// The URL is not one that souk calls.
    #[error(transparent)]
    Url(#[from] UrlFault),
    /// The file with the engine's key cannot be read, or holds no key.
    #[error("the key of the engine in {path}: {why}")]
    Key {
        /// The key's file.
        path: PathBuf,
        /// Why it cannot be used.
        why: String,
    },
    /// The engine does not answer.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The engine has no such model.
    #[error("the engine at {url} has no model \"{model}\"; it has {}", known.join(", "))]
    Unknown {
        /// The engine's URL.
        url: String,
        /// The requested model.
        model: String,
        /// The models that the engine lists.
        known: Vec<String>,
    },
}

impl Endpoint {
    /// Creates an endpoint, without a call of its engine.
    ///
    /// # Errors
    /// When the model's name, the URL or the file of the key cannot be used.
    pub fn new(choice: &EndpointChoice) -> Result<Endpoint, EndpointError> {
        let key = choice.key_file.as_deref().map(read_key).transpose()?;
        Ok(Endpoint {
            card: TextCard::new(&choice.model).map_err(EndpointError::Model)?,
            upstream: Upstream::new(&choice.url, key)?,
        })
    }

    /// Returns the card that its ask sells.
    #[must_use]
    pub fn card(&self) -> &TextCard {
        &self.card
    }

    /// Returns a name for people, such as `qwen/qwen3-8b at http://127.0.0.1:8000/v1`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} at {}", self.card.model, self.upstream.url())
    }

    /// Asks the engine for its models, to see that it answers and has the one on sale.
    ///
    /// # Errors
    /// When it does not answer, or lists other models only.
    pub async fn check_engine(&self) -> Result<(), EndpointError> {
        let known = self.upstream.fetch_models().await?;
        let model = self.card.model.as_str();
        match known.iter().any(|it| it == model) {
            true => Ok(()),
            false => Err(EndpointError::Unknown {
                url: self.upstream.url().to_owned(),
                model: model.to_owned(),
                known,
            }),
        }
    }

    /// Answers a request, and sends the text to the buyer as it comes. An engine that fails after
    /// its first text gives an [interrupted](Finish::Interrupted) answer, which the buyer pays for;
    /// one that fails before it gives an answer without text, which costs nothing.
    pub(crate) async fn answer_request(
        &self,
        request: &TextRequest,
        left: Duration,
        sink: &PieceSink,
    ) -> TextAnswer {
        let until = Instant::now() + left.saturating_sub(HANDOVER);
        let model = self.card.model.as_str();
        let chat = self.upstream.begin_chat(model, request);
        let begun = tokio::select! {
            begun = tokio::time::timeout_at(until, chat) => begun,
            () = sink.wait_for_stop() => {
                return TextAnswer::without_text(Finish::Cancelled, String::new());
            }
        };
        let mut chat = match begun {
            Ok(Ok(chat)) => chat,
            Ok(Err(error)) => return to_answer(&error),
            Err(_) => return TextAnswer::without_text(Finish::Expired, String::new()),
        };
        let mut message = String::new();
        let mut text = AnswerText::default();
        let finish = loop {
            let next = tokio::select! {
                next = tokio::time::timeout_at(until, chat.next_piece()) => next,
                () = sink.wait_for_stop() => break Finish::Cancelled,
            };
            let piece = match next {
                Err(_) => break Finish::Expired,
                Ok(Err(error)) => {
                    let failed = to_answer(&error);
                    message = failed.message;
                    break failed.finish;
                }
                Ok(Ok(piece)) => piece,
            };
            if !piece.text.is_empty() {
                if text.byte_length() + piece.text.byte_length() > request.answer_bytes_max() {
                    break Finish::Length;
                }
                text.push(&piece.text);
                sink.send_piece(piece.text);
            }
            if let Some(finish) = piece.finish {
                break finish;
            }
        };
        if message.is_empty() && finish != Finish::Cancelled {
            // The end of the stream follows; an engine would take an earlier close for a lost
            // client.
            tokio::spawn(tokio::time::timeout(DRAIN_MAX, chat.drain()));
        }
        TextAnswer {
            text,
            finish,
            message,
        }
    }
}

/// Reads the key of an engine, one line of visible characters.
fn read_key(path: &Path) -> Result<HeaderValue, EndpointError> {
    let fault = |why: String| EndpointError::Key {
        path: path.to_owned(),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let key = text.trim();
    if key.is_empty() {
        return Err(fault("the file is empty".to_owned()));
    }
    let header = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut header = header.map_err(|_| fault("it is not one line of text".to_owned()))?;
    // So that no log shows it.
    header.set_sensitive(true);
    Ok(header)
}

/// Returns an answer without text that says what went wrong. It names no address.
fn to_answer(error: &UpstreamError) -> TextAnswer {
    tracing::warn!(%error, "the engine did not answer a request");
    let (finish, message) = match error {
        UpstreamError::Busy { .. } => (Finish::Busy, "the engine is busy".to_owned()),
        // Only these say that the request is at fault, and not the engine.
        UpstreamError::Refused { status, message }
            if matches!(status.as_u16(), 400 | 413 | 422) =>
        {
            (
                Finish::Refused,
                format!("the engine answered {status}: {message}"),
            )
        }
        UpstreamError::Refused { status, .. } => {
            (Finish::Interrupted, format!("the engine answered {status}"))
        }
        UpstreamError::Silent(_) => (
            Finish::Interrupted,
            "the engine gave no text in time".to_owned(),
        ),
        UpstreamError::Connect { .. } | UpstreamError::Broken(_) => (
            Finish::Interrupted,
            "the engine is not reachable".to_owned(),
        ),
        UpstreamError::Damaged(_) => (
            Finish::Interrupted,
            "the engine's answer is damaged".to_owned(),
        ),
    };
    TextAnswer::without_text(finish, message)
}
