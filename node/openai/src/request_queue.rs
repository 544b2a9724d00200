//! Queues the requests to one language model and answers several at once over one session.
//!
//! Each sequence of the session is a slot, which keeps the tokens of its last request. The next
//! request goes to the free slot that already has most of its prompt.

use std::sync::Arc;
use std::time::Duration;

use souk_llm::generation::Sequence;
use souk_llm::grammar::Grammar;
use souk_llm::sampling::Sampling;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::refusal::Refusal;
use souk_texts::{
    PromptLogprobs, TextEnding, TextEngine, TextError, TextModel, TextRequest, TokenLogprobs,
    WrittenText,
};

use crate::ServerObserver;

/// Largest number of requests, queued or being answered: more would wait for minutes.
pub const REQUESTS_MAX: usize = 32;

/// A text to write.
pub struct CompletionRequest {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    pub grammar: Option<Grammar>,
    pub tokens_max: usize,
    /// Number of the most likely tokens to report with each token's probability; `None` reports
    /// none.
    pub top_logprobs: Option<usize>,
    /// Whether to report the probabilities of the prompt's tokens too.
    pub prompt_logprobs: PromptLogprobs,
    /// Marks that belong to the text although the tokeniser leaves them out.
    pub marks: &'static [&'static str],
}

/// Texts to embed.
pub struct EmbeddingRequest {
    /// Tokens of each text.
    pub texts: Vec<Vec<u32>>,
}

/// A request in the queue.
pub enum QueuedRequest {
    Text(Box<CompletionRequest>),
    Vectors(EmbeddingRequest),
}

impl QueuedRequest {
    /// Returns the tokens that the model reads first.
    fn first_tokens(&self) -> &[u32] {
        match self {
            Self::Text(request) => &request.prompt,
            Self::Vectors(request) => request.texts.first().map_or(&[], Vec::as_slice),
        }
    }
}

/// Progress of a request.
pub enum Event {
    /// The vector of each text.
    Vectors(Vec<Vec<f32>>),
    /// A further piece of text, with its tokens if their probabilities are wanted.
    Piece(String, Vec<TokenLogprobs>),
    /// The complete text.
    Done(WrittenText),
    /// The request failed.
    Failed(Refusal),
}

/// Accepts requests.
pub struct RequestQueue {
    context_length: usize,
    queue: mpsc::Sender<Task>,
    entries: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

/// Entries of the queue that are reserved for requests.
pub struct ReservedEntries(OwnedSemaphorePermit);

/// A queued request.
struct Task {
    request: QueuedRequest,
    events: mpsc::Sender<Event>,
    _entry: OwnedSemaphorePermit,
}

impl RequestQueue {
    /// Opens a queue; returns it and the worker behind it.
    pub fn open(
        text_model: &TextModel,
        keep: Duration,
        drafts_max: usize,
        observer: Arc<dyn ServerObserver>,
    ) -> (RequestQueue, Worker) {
        let (queue, tasks) = mpsc::channel(REQUESTS_MAX);
        let closing = watch::Sender::new(false);
        let worker = Worker {
            text_model: text_model.clone(),
            keep,
            drafts_max,
            observer,
            tasks,
            closing: closing.subscribe(),
        };
        let queue = RequestQueue {
            context_length: text_model.context_length,
            queue,
            entries: Arc::new(Semaphore::new(REQUESTS_MAX)),
            closing,
        };
        (queue, worker)
    }

    /// Reserves entries for this many requests. The server should do so before it reads anything
    /// for them.
    pub fn reserve_entries(&self, requests: usize) -> Result<ReservedEntries, Refusal> {
        let full = |_| Refusal::queue_full(REQUESTS_MAX);
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        let reserved = self.entries.clone().try_acquire_many_owned(requests);
        reserved.map_err(full).map(ReservedEntries)
    }

    /// Accepts a request. If you drop the receiver, the worker will drop the request.
    pub fn accept_request(
        &self,
        entries: &mut ReservedEntries,
        request: QueuedRequest,
    ) -> Result<mpsc::Receiver<Event>, Refusal> {
        let entry = entries
            .0
            .split(1)
            .ok_or_else(|| Refusal::queue_full(REQUESTS_MAX))?;
        // One event for each token and two more fit, so that a slow reader delays no one else.
        let most = match &request {
            QueuedRequest::Text(request) => request.tokens_max.min(self.context_length),
            QueuedRequest::Vectors(_) => 0,
        };
        let (events, receiver) = mpsc::channel(most + 3);
        let task = Task {
            request,
            events,
            _entry: entry,
        };
        let sent = self.queue.try_send(task);
        sent.map_err(|_| Refusal::server_stopping())?;
        Ok(receiver)
    }

    /// Ends the worker.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}

/// The worker that answers requests.
pub struct Worker {
    text_model: TextModel,
    /// Time for which an idle session stays open.
    keep: Duration,
    drafts_max: usize,
    observer: Arc<dyn ServerObserver>,
    tasks: mpsc::Receiver<Task>,
    closing: watch::Receiver<bool>,
}

impl Worker {
    /// Runs until the queue closes. It blocks, so you must call it on a thread that may.
    pub fn run(mut self, engine: TextEngine) {
        let handle = Handle::current();
        while let Some(first) = self.next(&handle, Duration::MAX) {
            let failed = self.run_session(&handle, &engine, first);
            let (receipts, cause) = handle.block_on(engine.end_leases());
            self.observer.on_session_ended(&receipts);
            // The market's message is closer to the cause.
            let cause = cause.map(Refusal::from);
            for (events, failure) in failed {
                self.observer.on_request_failed(&failure.to_string());
                let refusal = cause.clone().unwrap_or_else(|| failure.into());
                let _ = events.try_send(Event::Failed(refusal));
            }
        }
    }

    /// Returns the next task, or `None` after the patience or once the queue closes.
    fn next(&mut self, handle: &Handle, patience: Duration) -> Option<Task> {
        handle.block_on(async {
            tokio::select! {
                biased;
                _ = self.closing.wait_for(|is_closing| *is_closing) => None,
                task = tokio::time::timeout(patience, self.tasks.recv()) => task.ok().flatten(),
            }
        })
    }

    /// Returns the next event while requests are being answered; takes a task only if it
    /// `has_room`.
    fn next_of(
        tasks: &mut mpsc::Receiver<Task>,
        done: &mut mpsc::Receiver<FreedSlot>,
        handle: &Handle,
        has_room: bool,
    ) -> QueueEvent {
        handle.block_on(async {
            tokio::select! {
                biased;
                Some(done) = done.recv() => QueueEvent::Done(done),
                Some(task) = tasks.recv(), if has_room => QueueEvent::Task(task),
            }
        })
    }

    /// Answers requests over one session until none arrives for a while; returns those that failed.
    fn run_session(
        &mut self,
        handle: &Handle,
        engine: &TextEngine,
        first: Task,
    ) -> Vec<(mpsc::Sender<Event>, TextError)> {
        let mut free = match engine.open_sequences(handle) {
            Ok(sequences) => sequences,
            Err(failure) => return vec![(first.events, failure)],
        };
        let all = free.len();
        let (tell, mut done) = mpsc::channel(all);
        let (mut failed, mut next) = (Vec::new(), Some(first));
        std::thread::scope(|scope| {
            loop {
                if let Some(task) = next.take() {
                    let slot = nearest_slot(&free, task.request.first_tokens());
                    let sequence = free.swap_remove(slot);
                    let (answering, tell) = (self.new_answering(), tell.clone());
                    scope.spawn(move || answering.answer_in(sequence, task, &tell));
                } else if free.len() == all {
                    match self.next(handle, self.keep) {
                        Some(task) => next = Some(task),
                        None => return,
                    }
                    continue;
                }
                let has_room = !free.is_empty() && failed.is_empty() && !*self.closing.borrow();
                match Self::next_of(&mut self.tasks, &mut done, handle, has_room) {
                    QueueEvent::Task(task) => next = Some(task),
                    QueueEvent::Done((sequence, failure)) => {
                        free.push(sequence);
                        failed.extend(failure);
                    }
                }
                if !failed.is_empty() && free.len() == all {
                    return;
                }
            }
        });
        failed
    }

    fn new_answering(&self) -> AnswerContext {
        AnswerContext {
            text_model: self.text_model.clone(),
            drafts_max: self.drafts_max,
            observer: self.observer.clone(),
            closing: self.closing.clone(),
        }
    }
}

/// Returns the free slot that already has most of a prompt.
fn nearest_slot(free: &[Sequence<'_>], prompt: &[u32]) -> usize {
    let slots = 0..free.len();
    let nearest = slots.max_by_key(|slot| free[*slot].common_prefix_length(prompt));
    nearest.expect("a task is taken where a slot is free")
}

/// A free slot again, and the failed request, if any, with its failure.
type FreedSlot = (Sequence<'static>, Option<(mpsc::Sender<Event>, TextError)>);

/// An event while requests are being answered.
enum QueueEvent {
    Task(Task),
    Done(FreedSlot),
}

/// The data of a thread that answers requests.
struct AnswerContext {
    text_model: TextModel,
    drafts_max: usize,
    observer: Arc<dyn ServerObserver>,
    closing: watch::Receiver<bool>,
}

impl AnswerContext {
    /// Answers a request in a slot, then releases the slot.
    fn answer_in(
        &self,
        mut sequence: Sequence<'static>,
        task: Task,
        done: &mpsc::Sender<FreedSlot>,
    ) {
        let answered = self.answer_task(&mut sequence, &task);
        let failed = answered.err().map(|failure| (task.events, failure));
        // The channel has room for all slots.
        let _ = done.try_send((sequence, failed));
    }

    fn answer_task(&self, sequence: &mut Sequence<'_>, task: &Task) -> Result<(), TextError> {
        let events = &task.events;
        let is_wanted = || !events.is_closed() && !*self.closing.borrow();
        if !is_wanted() {
            return Ok(());
        }
        let answered = match &task.request {
            QueuedRequest::Text(request) => {
                self.write(sequence, (request.as_ref(), events), &is_wanted)
            }
            QueuedRequest::Vectors(request) => self.embed_texts(sequence, request, &is_wanted),
        };
        let event = match answered {
            // A request with invalid input is no fault of the session.
            Err(failure) if failure.is_input() => Event::Failed(failure.into()),
            answered => answered?,
        };
        let _ = events.try_send(event);
        Ok(())
    }

    /// Embeds each text and returns the result of the request.
    fn embed_texts(
        &self,
        sequence: &mut Sequence<'_>,
        request: &EmbeddingRequest,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Event, TextError> {
        let mut vectors = Vec::with_capacity(request.texts.len());
        for text in &request.texts {
            if !is_wanted() {
                return Ok(Event::Failed(Refusal::server_stopping()));
            }
            vectors.push(souk_texts::embed_tokens(&self.text_model, sequence, text)?);
        }
        let tokens: usize = request.texts.iter().map(Vec::len).sum();
        let texts = vectors.len();
        let summary = format!("{tokens} tokens of {texts} texts were embedded");
        self.observer.on_answered(&summary);
        Ok(Event::Vectors(vectors))
    }

    /// Continues a text and returns the result of the request.
    fn write(
        &self,
        sequence: &mut Sequence<'_>,
        (request, events): (&CompletionRequest, &mpsc::Sender<Event>),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Event, TextError> {
        let text_request = TextRequest {
            prompt: &request.prompt,
            sampling: &request.sampling,
            stops: &request.stops,
            grammar: request.grammar.as_ref(),
            tokens_max: request.tokens_max,
            drafts_max: self.drafts_max,
            top_logprobs: request.top_logprobs,
            prompt_logprobs: request.prompt_logprobs,
            marks: request.marks,
            is_wanted,
        };
        let written = souk_texts::write(&self.text_model, sequence, &text_request, |piece| {
            let piece = Event::Piece(piece.text.to_owned(), piece.tokens.to_vec());
            let _ = events.try_send(piece);
        });
        let written = written?;
        self.observer.on_answered(&written.summary_line());
        Ok(match written.ending {
            TextEnding::Unwanted => Event::Failed(Refusal::server_stopping()),
            _ => Event::Done(written),
        })
    }
}
