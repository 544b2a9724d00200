//! Queues requests and answers several at once over one session.
//!
//! Each sequence of the session is a slot, which keeps the tokens of its last request. The next
//! request goes to the free slot that already has most of its prompt.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use souk_llm::generation::Sequence;
use souk_llm::grammar::Grammar;
use souk_llm::sampling::Sampling;
use souk_node::market::Receipt;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::refusal::Refusal;
use crate::args::Output;
use crate::commands::submit;
use crate::commands::texts::{
    self, Place, PromptWeights, TextEnding, TextModel, WeighedToken, Wish, WrittenText,
};
use crate::failure::{Failure, Kind};
use crate::show;

/// Largest number of requests, queued or being answered: more would wait for minutes.
pub const QUESTIONS_MAX: usize = 32;

/// A text to write.
pub struct CompletionRequest {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    pub grammar: Option<Grammar>,
    pub tokens_max: usize,
    /// Number of the most likely tokens to report with each token's probability; `None` reports
    /// none.
    pub likeliest: Option<usize>,
    /// Whether to report the probabilities of the prompt's tokens too.
    pub prompt_weights: PromptWeights,
    /// Marks that belong to the text although the tokeniser leaves them out.
    pub marks: &'static [&'static str],
}

/// Texts to embed.
pub struct VectorOrder {
    /// Tokens of each text.
    pub texts: Vec<Vec<u32>>,
}

/// An order to the desk.
pub enum DeskOrder {
    Text(Box<CompletionRequest>),
    Vectors(VectorOrder),
}

impl DeskOrder {
    /// Returns the tokens that the model reads first.
    fn first_tokens(&self) -> &[u32] {
        match self {
            Self::Text(order) => &order.prompt,
            Self::Vectors(order) => order.texts.first().map_or(&[], Vec::as_slice),
        }
    }
}

/// Progress of an order.
pub enum Event {
    /// The vector of each text.
    Vectors(Vec<Vec<f32>>),
    /// A further piece of text, with its tokens if their probabilities are wanted.
    Piece(String, Vec<WeighedToken>),
    /// The complete text.
    Done(WrittenText),
    /// The order failed.
    Failed(Refusal),
}

/// Accepts orders.
pub struct Desk {
    room: usize,
    queue: mpsc::Sender<Task>,
    places: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

/// Places that are reserved for orders.
pub struct ReservedPlaces(OwnedSemaphorePermit);

/// A queued order.
struct Task {
    order: DeskOrder,
    events: mpsc::Sender<Event>,
    _place: OwnedSemaphorePermit,
}

impl Desk {
    /// Opens a desk; returns it and the worker behind it.
    pub fn open(
        output: Output,
        voice: &TextModel,
        out: Option<PathBuf>,
        (keep, drafts_max): (Duration, usize),
    ) -> (Desk, Work) {
        let (queue, tasks) = mpsc::channel(QUESTIONS_MAX);
        let closing = watch::Sender::new(false);
        let work = Work {
            output,
            voice: voice.clone(),
            out,
            keep,
            drafts_max,
            tasks,
            closing: closing.subscribe(),
        };
        let desk = Desk {
            room: voice.room,
            queue,
            places: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            closing,
        };
        (desk, work)
    }

    /// Reserves places for this many orders. The server should do so before it reads anything for
    /// them.
    pub fn reserve_places(&self, orders: usize) -> Result<ReservedPlaces, Refusal> {
        let full = |_| Refusal::queue_full(QUESTIONS_MAX);
        let orders = u32::try_from(orders).unwrap_or(u32::MAX);
        let places = self.places.clone().try_acquire_many_owned(orders);
        places.map_err(full).map(ReservedPlaces)
    }

    /// Accepts an order. If you drop the receiver, the worker will drop the order.
    pub fn accept_order(
        &self,
        places: &mut ReservedPlaces,
        order: DeskOrder,
    ) -> Result<mpsc::Receiver<Event>, Refusal> {
        let place = places
            .0
            .split(1)
            .ok_or_else(|| Refusal::queue_full(QUESTIONS_MAX))?;
        // One event for each token and two more fit, so that a slow reader delays no one else.
        let most = match &order {
            DeskOrder::Text(order) => order.tokens_max.min(self.room),
            DeskOrder::Vectors(_) => 0,
        };
        let (events, told) = mpsc::channel(most + 3);
        let task = Task {
            order,
            events,
            _place: place,
        };
        let sent = self.queue.try_send(task);
        sent.map_err(|_| Refusal::server_stopping())?;
        Ok(told)
    }

    /// Ends the worker.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}

/// The worker that answers orders.
pub struct Work {
    output: Output,
    voice: TextModel,
    out: Option<PathBuf>,
    /// Time for which an idle session stays open.
    keep: Duration,
    drafts_max: usize,
    tasks: mpsc::Receiver<Task>,
    closing: watch::Receiver<bool>,
}

impl Work {
    /// Runs until the desk closes. It blocks, so you must call it on a thread that may.
    pub fn run(mut self, place: Place) {
        let handle = Handle::current();
        while let Some(first) = self.next(&handle, Duration::MAX) {
            let failed = self.run_session(&handle, &place, first);
            let (receipts, cause) = handle.block_on(place.end_leases());
            self.report_session(&receipts);
            // The market's message is closer to the cause.
            let cause = cause.map(Refusal::from);
            for (events, failure) in failed {
                show::print_notice(&format!("a question failed: {}", failure.cause));
                let refusal = cause.clone().unwrap_or_else(|| failure.into());
                let _ = events.try_send(Event::Failed(refusal));
            }
        }
    }

    /// Returns the next task, or `None` after the patience or once the desk closes.
    fn next(&mut self, handle: &Handle, patience: Duration) -> Option<Task> {
        handle.block_on(async {
            tokio::select! {
                biased;
                _ = self.closing.wait_for(|is_closing| *is_closing) => None,
                task = tokio::time::timeout(patience, self.tasks.recv()) => task.ok().flatten(),
            }
        })
    }

    /// Returns the next event while orders are being answered; takes a task only if it `has_room`.
    fn next_of(
        tasks: &mut mpsc::Receiver<Task>,
        done: &mut mpsc::Receiver<FreedSlot>,
        handle: &Handle,
        has_room: bool,
    ) -> Next {
        handle.block_on(async {
            tokio::select! {
                biased;
                Some(done) = done.recv() => Next::Done(done),
                Some(task) = tasks.recv(), if has_room => Next::Task(task),
            }
        })
    }

    /// Answers orders over one session until none arrives for a while; returns those that failed.
    fn run_session(
        &mut self,
        handle: &Handle,
        place: &Place,
        first: Task,
    ) -> Vec<(mpsc::Sender<Event>, Failure)> {
        let mut free = match place.open_sequences(handle) {
            Ok(sequences) => sequences,
            Err(failure) => return vec![(first.events, failure)],
        };
        let all = free.len();
        let (tell, mut done) = mpsc::channel(all);
        let (mut failed, mut next) = (Vec::new(), Some(first));
        std::thread::scope(|scope| {
            loop {
                if let Some(task) = next.take() {
                    let slot = nearest_slot(&free, task.order.first_tokens());
                    let sequence = free.swap_remove(slot);
                    let (desk, tell) = (self.new_answering(), tell.clone());
                    scope.spawn(move || desk.answer_in(sequence, task, &tell));
                } else if free.len() == all {
                    match self.next(handle, self.keep) {
                        Some(task) => next = Some(task),
                        None => return,
                    }
                    continue;
                }
                let has_room = !free.is_empty() && failed.is_empty() && !*self.closing.borrow();
                match Self::next_of(&mut self.tasks, &mut done, handle, has_room) {
                    Next::Task(task) => next = Some(task),
                    Next::Done((sequence, failure)) => {
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

    fn new_answering(&self) -> Answering {
        Answering {
            output: self.output,
            voice: self.voice.clone(),
            drafts_max: self.drafts_max,
            closing: self.closing.clone(),
        }
    }

    /// Reports the cost of a session and stores its receipts.
    fn report_session(&self, receipts: &[Receipt]) {
        if self.output == Output::Text && !receipts.is_empty() {
            show::print_notice("the session is given up:");
            texts::tell_paid(receipts);
        }
        let Some(out) = &self.out else { return };
        if let Err(failure) = submit::write_each(out, receipts) {
            show::print_notice(&format!("receipts are not written: {}", failure.cause));
        }
    }
}

/// Returns the free slot that already has most of a prompt.
fn nearest_slot(free: &[Sequence<'_>], prompt: &[u32]) -> usize {
    let slots = 0..free.len();
    let nearest = slots.max_by_key(|slot| free[*slot].common_prefix_length(prompt));
    nearest.expect("a task is taken where a slot is free")
}

/// A free slot again, and the failed order, if any, with its failure.
type FreedSlot = (Sequence<'static>, Option<(mpsc::Sender<Event>, Failure)>);

/// An event while orders are being answered.
enum Next {
    Task(Task),
    Done(FreedSlot),
}

/// The data of a thread that answers orders.
struct Answering {
    output: Output,
    voice: TextModel,
    drafts_max: usize,
    closing: watch::Receiver<bool>,
}

impl Answering {
    /// Answers an order in a slot, then releases the slot.
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

    fn answer_task(&self, sequence: &mut Sequence<'_>, task: &Task) -> Result<(), Failure> {
        let events = &task.events;
        let is_wanted = || !events.is_closed() && !*self.closing.borrow();
        if !is_wanted() {
            return Ok(());
        }
        let answered = match &task.order {
            DeskOrder::Text(order) => self.write(sequence, (order.as_ref(), events), &is_wanted),
            DeskOrder::Vectors(order) => self.embed_texts(sequence, order, &is_wanted),
        };
        let event = match answered {
            // An order with invalid input is no fault of the session.
            Err(failure) if failure.kind == Kind::Input => Event::Failed(failure.into()),
            answered => answered?,
        };
        let _ = events.try_send(event);
        Ok(())
    }

    /// Embeds each text and returns the result of the order.
    fn embed_texts(
        &self,
        sequence: &mut Sequence<'_>,
        order: &VectorOrder,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Event, Failure> {
        let mut vectors = Vec::with_capacity(order.texts.len());
        for text in &order.texts {
            if !is_wanted() {
                return Ok(Event::Failed(Refusal::server_stopping()));
            }
            vectors.push(texts::embed_tokens(&self.voice, sequence, text)?);
        }
        if self.output == Output::Text {
            let tokens: usize = order.texts.iter().map(Vec::len).sum();
            let texts = vectors.len();
            show::print_notice(&format!("  {tokens} tokens of {texts} texts were embedded"));
        }
        Ok(Event::Vectors(vectors))
    }

    /// Continues a text and returns the result of the order.
    fn write(
        &self,
        sequence: &mut Sequence<'_>,
        (order, events): (&CompletionRequest, &mpsc::Sender<Event>),
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Event, Failure> {
        let wish = Wish {
            prompt: &order.prompt,
            sampling: &order.sampling,
            stops: &order.stops,
            grammar: order.grammar.as_ref(),
            tokens_max: order.tokens_max,
            drafts_max: self.drafts_max,
            likeliest: order.likeliest,
            prompt_weights: order.prompt_weights,
            marks: order.marks,
            is_wanted,
        };
        let written = texts::write(&self.voice, sequence, &wish, |piece| {
            let piece = Event::Piece(piece.text.to_owned(), piece.tokens.to_vec());
            let _ = events.try_send(piece);
        });
        let written = written?;
        if self.output == Output::Text {
            show::print_notice(&format!("  {}", written.summary_line()));
        }
        Ok(match written.ending {
            TextEnding::Unwanted => Event::Failed(Refusal::server_stopping()),
            _ => Event::Done(written),
        })
    }
}
