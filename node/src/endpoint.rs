//! Sells the answers of a language model: an [`Endpoint`] answers the requests that buyers send in
//! tabs (leases of one place at the engine) through an inference engine that the provider runs:
//! vLLM, SGLang, llama-server, Ollama or any other with OpenAI's HTTP API; or souk's own decoder
//! ([`own_engine`]).
//!
//! For an engine behind HTTP, [`upstream`] builds each body from a fixed list of fields, and sends
//! it to one path at one origin. The text of an engine goes to the buyer piece by piece (`pieces`),
//! and souk counts its tokens itself; it never bills the usage that the engine reports.

mod engine;
pub mod engine_key;
mod figures;
pub mod own_engine;
pub(crate) mod pieces;
mod sse;
pub mod transport;
pub mod upstream;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;

use souk_market::{AccountKey, LeaseId, NameFault, Resources, TokenTerms};
use souk_roles::clock::Micros;
use souk_roles::lease::truncate_text;
use souk_roles::tokens::capacity::EngineCapacity;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::text::{AnswerText, Finish, TextAnswer, TextRequest};
use tokio::time::Instant;

use engine::{EngineFault, TextSource};
use engine_key::EngineKey;
use figures::RequestCounter;
use own_engine::{OwnEngine, OwnFault};
use pieces::{PieceSink, PieceStreams};
use souk_folder::config::{EndpointChoice, ServedModelChoice};
use transport::UrlFault;
use upstream::{FieldFault, Upstream, UpstreamError};

pub use figures::TokenFigures;
pub use sse::AnswerPiece;

/// An answer ends this long before its lease does, so that the buyer can still receive it.
const HANDOVER: Duration = Duration::from_secs(2);

/// The time for a request outside of any market.
const UNSOLD_TIME: Duration = Duration::from_secs(300);

/// How long the rest of an engine's stream can take after the answer's end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// An inference engine whose answers a provider sells.
#[derive(Debug)]
pub struct Endpoint {
    card: TextCard,
    engine: TextSource,
    is_resold: bool,
    terms: TokenTerms,
    capacity: Mutex<EngineCapacity>,
    counter: RequestCounter,
    /// Why the engine failed last, for its owner; none since it last answered.
    trouble: Mutex<Option<String>>,
    /// Held while the figures are written.
    writing: Mutex<()>,
    opened: Instant,
}

/// Why the answers of an engine cannot be sold.
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
    /// A field of the owner cannot be sent.
    #[error(transparent)]
    Field(#[from] FieldFault),
    /// The engine does not answer.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The provider serves a model of its own, and this souk has no decoder.
    #[error("this souk was built without language models, so it cannot serve {0}")]
    NoDecoder(String),
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
    /// Creates an endpoint that answers this many requests at once. It does not call the engine.
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
        let upstream = Upstream::new(&choice.url, key, choice.ca_file.as_deref())?;
        let upstream = upstream.with_fields(&choice.fields)?;
        let endpoint =
            Endpoint::with_engine(&choice.model, TextSource::Http(Box::new(upstream)), slots)?;
        Ok(Endpoint {
            is_resold: choice.resold,
            ..endpoint
        })
    }

    /// Creates an endpoint whose requests souk's own decoder answers, this many at once.
    ///
    /// # Errors
    /// When the model's name cannot be used, or when there is no decoder.
    pub fn of_own_engine(
        choice: &ServedModelChoice,
        slots: u32,
        engine: Option<Arc<dyn OwnEngine>>,
    ) -> Result<Endpoint, EndpointError> {
        let none = || EndpointError::NoDecoder(choice.model.clone());
        Endpoint::with_engine(
            &choice.model,
            TextSource::Own(engine.ok_or_else(none)?),
            slots,
        )
    }

    /// Checks that an ask can have this name of a model, before anything is opened.
    ///
    /// # Errors
    /// [`EndpointError::Model`] with the cause.
    pub fn check_model_name(model: &str) -> Result<(), EndpointError> {
        TextCard::new(model).map_err(EndpointError::Model)?;
        Ok(())
    }

    fn with_engine(model: &str, engine: TextSource, slots: u32) -> Result<Endpoint, EndpointError> {
        Ok(Endpoint {
            card: TextCard::new(model).map_err(EndpointError::Model)?,
            engine,
            is_resold: false,
            terms: TokenTerms::USUAL,
            capacity: Mutex::new(EngineCapacity::new(slots)),
            counter: RequestCounter::load_or_new(None),
            trouble: Mutex::new(None),
            writing: Mutex::new(()),
            opened: Instant::now(),
        })
    }

    /// Sells tokens on these terms.
    #[must_use]
    pub fn with_terms(self, terms: TokenTerms) -> Endpoint {
        Endpoint { terms, ..self }
    }

    /// Waits for an engine's text for no longer than so, at first and in pauses.
    #[cfg(test)]
    pub(crate) fn with_patience(self, first: Duration, pause: Duration) -> Endpoint {
        let engine = match self.engine {
            TextSource::Http(upstream) => {
                TextSource::Http(Box::new(upstream.with_patience(first, pause)))
            }
            own @ TextSource::Own(_) => own,
        };
        Endpoint { engine, ..self }
    }

    /// Continues the counts of requests that a provider's folder holds.
    #[must_use]
    pub(crate) fn with_counts_of(self, home: &Path) -> Endpoint {
        Endpoint {
            counter: RequestCounter::load_or_new(Some(home)),
            ..self
        }
    }

    /// Returns the counts of requests and tokens.
    pub fn token_figures(&self) -> TokenFigures {
        TokenFigures {
            trouble: self.lock_trouble().clone(),
            ..self.counter.figures(self.slots_now())
        }
    }

    /// Writes the counts into a provider's folder.
    pub(crate) fn store_figures(&self, home: &Path) {
        // Several leases can end at once, and all write through one file beside.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = figures::store_figures(home, &self.token_figures()) {
            tracing::debug!(%error, "`souk provider status` cannot show the requests");
        }
    }

    /// Returns the card that its ask sells.
    #[must_use]
    pub fn card(&self) -> &TextCard {
        &self.card
    }

    /// Returns the resources that the provider's ask states for this endpoint.
    #[must_use]
    pub fn resources(&self) -> Resources {
        match self.is_resold {
            true => self.card.to_resold_resources(self.terms),
            false => self.card.to_resources(self.terms),
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

    fn lock_trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what a failure shows about the state of the engine, and logs for the owner how to
    /// solve it.
    fn note_failure(&self, error: &EngineFault) {
        if let EngineFault::Upstream(UpstreamError::Discontinuous) = error {
            // The engine was not asked.
            return;
        }
        let was_offered = self.slots_now() > 0;
        self.note_cause(error);
        let is_offered = self.slots_now() > 0;
        if is_offered && error.is_of_request() {
            return;
        }
        let next = match is_offered {
            true => "",
            false if error.is_of_key() => {
                "; put a valid key into the file of key_file, and start the provider again"
            }
            false => "; souk tries the engine again by itself",
        };
        *self.lock_trouble() = Some(format!("{error}{next}"));
        if was_offered && !is_offered {
            tracing::warn!("souk withdraws the ask{next}");
        }
    }

    /// Notes that the engine has begun an answer.
    fn note_answer(&self) {
        self.lock_capacity().on_answered(self.now());
        // A pause lasts to its end: the answer may have begun before it.
        if self.slots_now() > 0 && self.lock_trouble().take().is_some() {
            tracing::warn!("the engine answers again");
        }
    }

    fn note_cause(&self, error: &EngineFault) {
        match error {
            EngineFault::Upstream(error) => self.note_upstream_failure(error),
            EngineFault::Own(error) => {
                match error {
                    OwnFault::Refused(_) => {}
                    OwnFault::Busy => self.lock_capacity().on_busy(self.now()),
                    OwnFault::Failed(_) => self.lock_capacity().on_unreachable(self.now()),
                }
                tracing::warn!(%error, "the decoder did not answer a request");
            }
        }
    }

    fn note_upstream_failure(&self, error: &UpstreamError) {
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
                // Either the request is at fault, or the engine wants other fields than souk sends.
                status if is_refusal(status) => self.lock_capacity().on_refused(now),
                _ => {}
            },
            // It was not asked.
            UpstreamError::Discontinuous => return,
            UpstreamError::Broken(_) | UpstreamError::Silent(_) | UpstreamError::Damaged(_) => {}
        }
        tracing::warn!(%error, "the engine did not answer a request");
    }

    /// Returns a name for people, which buyers see too: the model, without the engine's address.
    #[must_use]
    pub fn label(&self) -> String {
        self.card.model.to_string()
    }

    /// Returns whether the engine was seen to ignore that it should continue an answer that another
    /// provider began. Then no request asks it to.
    #[must_use]
    pub fn ignores_continuation(&self) -> bool {
        match &self.engine {
            TextSource::Http(upstream) => upstream.ignores_continuation(),
            TextSource::Own(_) => false,
        }
    }

    /// Asks the engine for its models, to see that it answers and has the one on sale, and notes
    /// whether it continues answers and keeps the prompts of tabs apart.
    ///
    /// # Errors
    /// When it does not answer, or lists other models only.
    pub async fn check_engine(&self) -> Result<(), EndpointError> {
        let TextSource::Http(upstream) = &self.engine else {
            // The decoder is in this process, and has read its model.
            return Ok(());
        };
        let known = upstream.fetch_models().await?;
        let model = self.card.model.as_str();
        if !known.iter().any(|it| it == model) {
            return Err(EndpointError::Unknown {
                url: upstream.url().to_owned(),
                model: model.to_owned(),
                known,
            });
        }
        upstream.probe_continuation(model).await;
        upstream.probe_cache_salt(model).await;
        Ok(())
    }

    /// Answers a request outside of any market, as that of a tab of this number. Tests and trials
    /// use it: nobody is billed, and nobody gets pieces.
    pub async fn answer_unsold(&self, tab: LeaseId, request: &TextRequest) -> TextAnswer {
        let streams = Arc::<PieceStreams>::default();
        streams.open_tab(tab, AccountKey::default());
        let sink = streams.open_sink(tab, 0);
        let prompt = PromptHistory::default().count_prompt(request);
        self.answer_request(request, prompt, UNSOLD_TIME, &sink)
            .await
    }

    /// Answers a request, and sends the text to the buyer while the engine generates it. If an
    /// engine fails after its first text, the answer is [interrupted](Finish::Interrupted), and the
    /// buyer pays for its text; if it fails before, the answer has no text and costs nothing.
    /// `prompt` is the count of the messages' tokens, for the figures.
    pub(crate) async fn answer_request(
        &self,
        request: &TextRequest,
        prompt: TokenCount,
        left: Duration,
        sink: &PieceSink,
    ) -> TextAnswer {
        let counted = self.counter.begin_request();
        let answer = self.run_request(request, left, sink).await;
        counted.end(answer.finish, answer.count_for(request, prompt));
        answer
    }

    async fn run_request(
        &self,
        request: &TextRequest,
        left: Duration,
        sink: &PieceSink,
    ) -> TextAnswer {
        let until = Instant::now() + left.saturating_sub(HANDOVER);
        let model = self.card.model.as_str();
        let chat = self.engine.begin_answer(model, sink.lease(), request);
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
                    self.note_answer();
                }
                if text.byte_length() + piece.text.byte_length() > request.answer_bytes_max() {
                    break Finish::Length;
                }
                text.push(&piece.text);
                sink.send_piece(&piece.text);
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

    /// Returns an answer without text that states the failure. It contains no address of the engine
    /// and no detail of the provider's account there.
    fn to_answer(&self, error: &EngineFault) -> TextAnswer {
        match error {
            EngineFault::Upstream(error) => self.to_upstream_answer(error),
            EngineFault::Own(error) => own_answer(error),
        }
    }

    fn to_upstream_answer(&self, error: &UpstreamError) -> TextAnswer {
        let (finish, message) = match error {
            UpstreamError::Busy { .. } => (Finish::Busy, "the engine is busy".to_owned()),
            UpstreamError::Refused { status, message } if is_refusal(*status) => {
                // The owner's log has the message. One of a service can name its account.
                let message = match self.engine.is_elsewhere() {
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
            UpstreamError::Discontinuous => (Finish::Refused, error.to_string()),
            UpstreamError::Damaged(_) => (
                Finish::Interrupted,
                "the engine's answer is damaged".to_owned(),
            ),
        };
        TextAnswer::without_text(finish, message)
    }
}

/// Returns whether an HTTP status means that the request is at fault, and not the engine.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 413 | 422)
}

/// Returns the answer to a request that the own decoder refused or failed.
fn own_answer(error: &OwnFault) -> TextAnswer {
    let (finish, message) = match error {
        OwnFault::Refused(_) => (Finish::Refused, truncate_text(error.to_string())),
        OwnFault::Busy => (Finish::Busy, "the engine is busy".to_owned()),
        // The owner's log has the cause.
        OwnFault::Failed(_) => (Finish::Interrupted, "the engine failed".to_owned()),
    };
    TextAnswer::without_text(finish, message)
}

#[cfg(test)]
pub(crate) mod tests;
