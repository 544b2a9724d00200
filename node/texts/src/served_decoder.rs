//! Answers the requests of many buyers with one decoder on this machine: the engine of a provider
//! that serves a model.
//!
//! Each request uses one sequence of a session that steps all active sequences together
//! ([`SteppedSession`]). So a request joins the batch at its first step and leaves it at its last
//! one, and equal requests get equal answers, whichever other requests run with them. A slow reader
//! delays nobody, because each answer's channel has room for the whole answer.
//!
//! [`SteppedSession`]: souk_vocabulary::processor::stepped_session::SteppedSession

pub(crate) mod prompt;
mod speed;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_llm::generation::Sequence;
use souk_node::endpoint::AnswerPiece;
use souk_node::endpoint::own_engine::{OwnAnswer, OwnEngine, OwnFault};
use souk_node::market::LeaseId;
use souk_roles::tokens::text::{AnswerText, Finish, TextRequest};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::slot_pool::{Slot, SlotPool};
use crate::text_writing::{self, TextEnding};
use crate::{SessionSize, TextEngine, TextError, TextModel, open_model};
use prompt::PreparedRequest;

pub use speed::DecoderSpeed;

/// How long a request waits for a sequence. There are as many as slots on sale, so it only waits
/// for the last step of an answer that its buyer ended.
const SEQUENCE_PATIENCE: Duration = Duration::from_secs(10);

/// The most events of an answer in addition to one for each token: text that was held back, and the
/// end.
const EVENTS_MORE: usize = 8;

type Events = mpsc::Sender<Result<AnswerPiece, OwnFault>>;

/// A decoder that serves a model.
#[derive(Clone)]
pub struct ServedDecoder(Arc<Inner>);

/// The size of a served decoder: how many requests it answers at once, and with how many positions
/// and threads.
#[derive(Clone, Copy, Debug)]
pub struct ServingSize {
    /// The requests that are answered at once.
    pub slots: u32,
    /// The positions of each sequence; none for the model's own, at most 4,096.
    pub context: Option<usize>,
    /// The threads that compute; none for one on each core.
    pub threads: Option<u32>,
}

struct Inner {
    text_model: TextModel,
    engine: TextEngine,
    slots: u32,
    pool: Mutex<SlotPool<Sequence<'static>>>,
    /// A permit for each sequence.
    permits: Arc<Semaphore>,
    handle: Handle,
}

impl ServedDecoder {
    /// Opens a model as `souk generate` takes it. Requests run on threads of the runtime of
    /// `handle`.
    ///
    /// # Errors
    /// [`TextError::Input`] if the model cannot be used or has no chat template, or if the caches
    /// of so many sequences do not fit half of the machine's free memory;
    /// [`TextError::NotRunnable`] if the processor does not run it.
    pub fn open(path: &Path, size: ServingSize, handle: Handle) -> Result<Self, TextError> {
        let (model, text_model) = open_model(path, size.context)?;
        text_model.chat_template()?;
        let room = text_model.context_length;
        let session = SessionSize {
            tokens: room,
            sequences: size.slots,
            is_embedding: false,
        };
        let engine = TextEngine::open_local(model, room, session, size.threads)?;
        let fitting = engine.sequences();
        if fitting < size.slots {
            let cause = format!(
                "the caches of {} slots do not fit half of the free memory: each takes {} MiB for \
                 {room} positions",
                size.slots,
                engine.cache_bytes() >> 20
            );
            let hint = format!("sell fewer slots ({fitting} fit), or give a smaller --context");
            return Err(TextError::input(cause, hint));
        }
        let sequences = engine.open_sequences(&handle)?;
        Ok(ServedDecoder(Arc::new(Inner {
            text_model,
            engine,
            slots: size.slots,
            pool: Mutex::new(SlotPool::new(sequences)),
            permits: Arc::new(Semaphore::new(size.slots as usize)),
            handle,
        })))
    }

    /// Returns the model's own name.
    #[must_use]
    pub fn model_name(&self) -> &str {
        &self.0.text_model.card.name
    }

    /// Returns the positions of each sequence.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.0.text_model.context_length
    }

    /// Returns the bytes of the weights and of the caches of all sequences.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let caches = self.0.engine.cache_bytes();
        let caches = caches.saturating_mul(u64::from(self.0.slots));
        self.0.engine.weight_bytes().saturating_add(caches)
    }

    /// Measures the speed of generation, for about two seconds for each figure. It blocks, and
    /// nothing else should use the processor at the same time.
    ///
    /// # Errors
    /// [`TextError`] if the model does not generate.
    pub fn measure_speed(&self) -> Result<DecoderSpeed, TextError> {
        speed::measure_speed(
            &self.0.engine,
            &self.0.handle,
            self.0.text_model.card.vocabulary,
        )
    }
}

impl fmt::Debug for ServedDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedDecoder")
            .field("model", &self.model_name())
            .field("slots", &self.0.slots)
            .finish_non_exhaustive()
    }
}

impl OwnEngine for ServedDecoder {
    fn begin_answer(&self, tab: LeaseId, request: TextRequest) -> OwnAnswer {
        let tokens = (request.tokens_max as usize).min(self.context_length());
        let (events, answer) = mpsc::channel(tokens + EVENTS_MORE);
        let inner = self.0.clone();
        self.0.handle.spawn(async move {
            let waiting = inner.permits.clone().acquire_owned();
            let permit = tokio::select! {
                permit = tokio::time::timeout(SEQUENCE_PATIENCE, waiting) => permit,
                () = events.closed() => return,
            };
            let Ok(Ok(permit)) = permit else {
                let _ = events.try_send(Err(OwnFault::Busy));
                return;
            };
            tokio::task::spawn_blocking(move || {
                inner.answer_request(tab, &request, &events);
                drop(permit);
            });
        });
        answer
    }
}

impl Inner {
    /// Answers a request in a sequence. The last event says how it ended.
    fn answer_request(&self, tab: LeaseId, request: &TextRequest, events: &Events) {
        let answered = PreparedRequest::new(&self.text_model, request).and_then(|prepared| {
            let mut slot = self.lend_sequence(tab)?;
            let written = write_answer(&self.text_model, &mut slot.sequence, prepared, events);
            let has_failed = matches!(written, Err(OwnFault::Failed(_)));
            if has_failed && !can_step(&mut slot.sequence) {
                self.replace_session_of(&slot);
            }
            self.lock_pool().take_back(slot);
            written
        });
        let last = answered.map(|finish| AnswerPiece {
            text: AnswerText::default(),
            finish: Some(finish),
        });
        // Nobody waits for an answer that its buyer ended.
        let _ = events.try_send(last);
    }

    /// Lends a sequence to a tab. It is empty, or holds only tokens of this tab.
    fn lend_sequence(&self, tab: LeaseId) -> Result<Slot<Sequence<'static>>, OwnFault> {
        let mut pool = self.lock_pool();
        // Each permit has a sequence, unless a thread died with it.
        let mut slot = match pool.lend(tab) {
            Some(slot) => slot,
            None => {
                pool.replace_session(self.open_sequences()?);
                pool.lend(tab).ok_or(OwnFault::Busy)?
            }
        };
        drop(pool);
        if slot.tab.replace(tab) != Some(tab) {
            slot.sequence.truncate(0);
        }
        Ok(slot)
    }

    /// Opens another session after a failure, unless another request already did. The pool is
    /// locked meanwhile, so that requests that fail together open one.
    fn replace_session_of(&self, slot: &Slot<Sequence<'static>>) {
        let mut pool = self.lock_pool();
        // If it does not open, the next request fails too, and tries it again.
        let _ = pool.replace_session_of(slot, || self.open_sequences());
    }

    fn open_sequences(&self) -> Result<Vec<Sequence<'static>>, OwnFault> {
        let opened = self.engine.open_sequences(&self.handle);
        opened.map_err(|error| OwnFault::Failed(error.to_string()))
    }

    fn lock_pool(&self) -> MutexGuard<'_, SlotPool<Sequence<'static>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties a sequence after a failed step, and returns whether its session still works. A failed
/// step leaves the other sequences unchanged, so their answers can continue.
fn can_step(sequence: &mut Sequence<'_>) -> bool {
    sequence.truncate(0);
    let stepped = sequence.push(&[0]);
    sequence.truncate(0);
    stepped.is_ok()
}

/// Writes an answer and sends its pieces; it ends early if the receiver is gone.
fn write_answer(
    text_model: &TextModel,
    sequence: &mut Sequence<'_>,
    prepared: PreparedRequest,
    events: &Events,
) -> Result<Finish, OwnFault> {
    let mut reader = prepared.reader;
    let send = |read: souk_llm::answer::AnswerPiece| {
        if !read.is_empty() {
            let text = AnswerText {
                reasoning: read.thought,
                content: read.text,
            };
            // The channel has room for all pieces, unless the receiver is gone.
            let _ = events.try_send(Ok(AnswerPiece { text, finish: None }));
        }
    };
    let is_wanted = || !events.is_closed();
    let request = text_writing::TextRequest {
        stops: &prepared.stops,
        tokens_max: prepared.tokens_max,
        marks: prepared.marks,
        is_wanted: &is_wanted,
        ..text_writing::TextRequest::new(&prepared.tokens, &prepared.sampling)
    };
    let written = text_writing::write(text_model, sequence, &request, |piece| {
        send(reader.push(piece.text));
    });
    let written = written.map_err(|error| match error.is_input() {
        true => OwnFault::Refused(error.to_string()),
        false => OwnFault::Failed(error.to_string()),
    })?;
    let (rest, _) = reader.finish(|_| String::new());
    send(rest);
    Ok(match written.ending {
        TextEnding::Stop | TextEnding::Token | TextEnding::Grammar => Finish::Stop,
        TextEnding::Length | TextEnding::Room => Finish::Length,
        TextEnding::Unwanted => Finish::Cancelled,
    })
}

#[cfg(test)]
mod tests;
