//! Answers the requests of tabs through an inference engine that the provider runs: vLLM, SGLang,
//! llama-server, Ollama or any other with OpenAI's HTTP API.
//!
//! The engine sees a body that [`upstream`] builds from a fixed list of fields, on one path, at one
//! origin. Its text goes to the buyer piece by piece (`pieces`), and souk counts
//! it; souk never bills what the engine says of its usage.

pub mod engine_key;
pub(crate) mod pieces;
mod sse;
pub mod transport;
pub mod upstream;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;

use souk_market::{NameFault, Resources};
use souk_roles::clock::Micros;
use souk_roles::tokens::capacity::EngineCapacity;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::text::{AnswerText, Finish, TextAnswer, TextRequest};
use tokio::time::Instant;

use engine_key::EngineKey;
use pieces::PieceSink;
use souk_folder::config::EndpointChoice;
use transport::UrlFault;
use upstream::{Upstream, UpstreamError};

/// An answer ends this long before its lease does, so that the buyer can still receive it.
const HANDOVER: Duration = Duration::from_secs(2);

/// How long the rest of an engine's stream can take after the answer's end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// An engine on sale.
#[derive(Debug)]
pub struct Endpoint {
    card: TextCard,
    upstream: Upstream,
    is_resold: bool,
    capacity: Mutex<EngineCapacity>,
    opened: Instant,
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
    /// Creates an endpoint that answers so many requests at once, without a call of its engine.
    ///
    /// # Errors
    /// When the model's name, the URL or the file of the key cannot be used.
    pub fn new(choice: &EndpointChoice, slots: u32) -> Result<Endpoint, EndpointError> {
        let load = |path: &PathBuf| {
            EngineKey::load(path).map_err(|why| EndpointError::Key {
                path: path.clone(),
                why,
            })
        };
        let key = choice.key_file.as_ref().map(load).transpose()?;
        Ok(Endpoint {
            card: TextCard::new(&choice.model).map_err(EndpointError::Model)?,
            upstream: Upstream::new(&choice.url, key, choice.ca_file.as_deref())?,
            is_resold: choice.resold,
            capacity: Mutex::new(EngineCapacity::new(slots)),
            opened: Instant::now(),
        })
    }

    /// Returns the card that its ask sells.
    #[must_use]
    pub fn card(&self) -> &TextCard {
        &self.card
    }

    /// Returns what its ask states.
    #[must_use]
    pub fn resources(&self) -> Resources {
        match self.is_resold {
            true => self.card.to_resold_resources(),
            false => self.card.to_resources(),
        }
    }

    /// Returns how many requests the engine should get at once now.
    pub(crate) fn slots_now(&self) -> u32 {
        self.lock_capacity().slots(self.now())
    }

    fn now(&self) -> Micros {
        let age = self.opened.elapsed().as_micros();
        Micros(u64::try_from(age).unwrap_or(u64::MAX))
    }

    fn lock_capacity(&self) -> MutexGuard<'_, EngineCapacity> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a failure says of the engine, and tells the owner how to mend it.
    fn note_failure(&self, error: &UpstreamError) {
        let now = self.now();
        match error {
            UpstreamError::Busy { .. } => self.lock_capacity().on_busy(now),
            UpstreamError::Connect { .. } => self.lock_capacity().on_unreachable(now),
            UpstreamError::Refused { status, .. } => match *status {
                StatusCode::UNAUTHORIZED => {
                    self.lock_capacity().on_unreachable(now);
                    tracing::error!(
                        %error,
                        "the engine refuses this provider's key: put a valid one into the file of \
                         key_file, and start the provider again"
                    );
                    return;
                }
                // A buyer can bring these about by a prompt that the engine forbids, or by asking
                // for more tokens than the credit allows.
                StatusCode::PAYMENT_REQUIRED | StatusCode::FORBIDDEN => {
                    self.lock_capacity().on_busy(now);
                    tracing::error!(
                        %error,
                        "the engine refused a request: see that its account has credit, and that \
                         the key may use the model"
                    );
                    return;
                }
                // The model is not there any more, or the URL is another's.
                status
                    if status.is_redirection()
                        || matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) =>
                {
                    self.lock_capacity().on_unreachable(now);
                }
                _ => {}
            },
            UpstreamError::Broken(_) | UpstreamError::Silent(_) | UpstreamError::Damaged(_) => {}
        }
        tracing::warn!(%error, "the engine did not answer a request");
    }

    /// Returns a name for people, which buyers see too: the model, without the engine's address.
    #[must_use]
    pub fn label(&self) -> String {
        self.card.model.to_string()
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
            Ok(Err(error)) => {
                self.note_failure(&error);
                return self.to_answer(&error);
            }
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
                    self.note_failure(&error);
                    let failed = self.to_answer(&error);
                    message = failed.message;
                    break failed.finish;
                }
                Ok(Ok(piece)) => piece,
            };
            if !piece.text.is_empty() {
                if text.byte_length() == 0 {
                    self.lock_capacity().on_answered(self.now());
                }
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

    /// Returns an answer without text that says what went wrong. It names no address, and nothing
    /// of the provider's account at the engine.
    fn to_answer(&self, error: &UpstreamError) -> TextAnswer {
        let (finish, message) = match error {
            UpstreamError::Busy { .. } => (Finish::Busy, "the engine is busy".to_owned()),
            // Only these say that the request is at fault, and not the engine.
            UpstreamError::Refused { status, message }
                if matches!(status.as_u16(), 400 | 413 | 422) =>
            {
                // The owner's log has the message. One of a service can name its account.
                let message = match self.upstream.is_elsewhere() {
                    true => format!("the engine answered {status}"),
                    false => format!("the engine answered {status}: {message}"),
                };
                (Finish::Refused, message)
            }
            UpstreamError::Refused { status, .. } if status.is_server_error() => {
                (Finish::Interrupted, format!("the engine answered {status}"))
            }
            UpstreamError::Refused { .. } => (
                Finish::Interrupted,
                "the engine does not answer this provider".to_owned(),
            ),
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
}
