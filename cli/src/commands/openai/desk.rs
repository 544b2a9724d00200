//! Where questions wait, and who answers them: one after the other, over one session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use souk_llm::generation::Sequence;
use souk_llm::sampling::Sampling;
use souk_node::market::Receipt;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::refusal::Refusal;
use crate::args::Output;
use crate::commands::job;
use crate::commands::texts::{self, Place, TextEnding, Voice, WeighedToken, Wish, WrittenText};
use crate::failure::Failure;
use crate::show;

/// Questions at a time, the one that is answered among them: more would wait for minutes.
pub const QUESTIONS_MAX: usize = 32;

/// What is to be written.
pub struct TextOrder {
    pub prompt: Vec<u32>,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    pub tokens_max: usize,
    /// Where the probability of each token is wanted too: with so many of the likeliest.
    pub likeliest: Option<usize>,
}

/// What becomes of an order.
pub enum Event {
    /// The text goes on, by these tokens where their probabilities are wanted.
    Piece(String, Vec<WeighedToken>),
    /// It is written.
    Done(WrittenText),
    /// It goes no further.
    Failed(Refusal),
}

/// Takes orders.
pub struct Desk {
    room: usize,
    queue: mpsc::Sender<Task>,
    places: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

/// An order that waits.
struct Task {
    order: TextOrder,
    events: mpsc::Sender<Event>,
    _place: OwnedSemaphorePermit,
}

impl Desk {
    /// A desk, and the work behind it.
    pub fn open(
        output: Output,
        voice: &Voice,
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

    /// Takes an order, which is given up once nobody hears of it any more.
    pub fn take(&self, order: TextOrder) -> Result<mpsc::Receiver<Event>, Refusal> {
        let full = |_| Refusal::full(QUESTIONS_MAX);
        let place = self.places.clone().try_acquire_owned().map_err(full)?;
        // A piece a token and two events more: whoever reads slowly holds nobody up.
        let most = order.tokens_max.min(self.room) + 2;
        let (events, told) = mpsc::channel(most);
        let task = Task {
            order,
            events,
            _place: place,
        };
        let sent = self.queue.try_send(task);
        sent.map_err(|_| Refusal::stopping())?;
        Ok(told)
    }

    /// Ends the work.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}

/// What answers.
pub struct Work {
    output: Output,
    voice: Voice,
    out: Option<PathBuf>,
    /// How long a session is kept without a question.
    keep: Duration,
    drafts_max: usize,
    tasks: mpsc::Receiver<Task>,
    closing: watch::Receiver<bool>,
}

impl Work {
    /// Works until it is told to stop, on a thread that may wait.
    pub fn run(mut self, mut place: Place) {
        let handle = Handle::current();
        while let Some(first) = self.next(&handle, Duration::MAX) {
            let failed = self.session(&handle, &mut place, first);
            let (receipts, cause) = handle.block_on(place.close());
            self.tell(&receipts);
            if let Some((events, failure)) = failed {
                // What the market says is nearer to the cause.
                let failure = cause.unwrap_or(failure);
                show::tell(&format!("a question failed: {}", failure.cause));
                let _ = events.try_send(Event::Failed(failure.into()));
            }
        }
    }

    /// The next task, unless none comes in time, or all is over.
    fn next(&mut self, handle: &Handle, patience: Duration) -> Option<Task> {
        handle.block_on(async {
            tokio::select! {
                biased;
                _ = self.closing.wait_for(|is_closing| *is_closing) => None,
                task = tokio::time::timeout(patience, self.tasks.recv()) => task.ok().flatten(),
            }
        })
    }

    /// Answers over one session until no question comes for a while; whose answer failed, and why.
    fn session(
        &mut self,
        handle: &Handle,
        place: &mut Place,
        first: Task,
    ) -> Option<(mpsc::Sender<Event>, Failure)> {
        let mut sequence = match place.sequence(handle) {
            Ok(sequence) => sequence,
            Err(failure) => return Some((first.events, failure)),
        };
        let mut next = Some(first);
        while let Some(task) = next {
            if let Err(failure) = self.answer(&mut sequence, &task) {
                return Some((task.events, failure));
            }
            drop(task);
            next = self.next(handle, self.keep);
        }
        None
    }

    fn answer(&self, sequence: &mut Sequence<'_>, task: &Task) -> Result<(), Failure> {
        let Task { order, events, .. } = task;
        let is_wanted = || !events.is_closed() && !*self.closing.borrow();
        if !is_wanted() {
            return Ok(());
        }
        let wish = Wish {
            prompt: &order.prompt,
            sampling: &order.sampling,
            stops: &order.stops,
            tokens_max: order.tokens_max,
            drafts_max: self.drafts_max,
            likeliest: order.likeliest,
            is_wanted: &is_wanted,
        };
        let written = texts::write(&self.voice, sequence, &wish, |piece| {
            let piece = Event::Piece(piece.text.to_owned(), piece.tokens.to_vec());
            let _ = events.try_send(piece);
        })?;
        if self.output == Output::Text {
            show::tell(&format!("  {}", written.line()));
        }
        let event = match written.ending {
            TextEnding::Unwanted => Event::Failed(Refusal::stopping()),
            _ => Event::Done(written),
        };
        let _ = events.try_send(event);
        Ok(())
    }

    /// Tells what a session cost, and keeps its receipts.
    fn tell(&self, receipts: &[Receipt]) {
        if self.output == Output::Text && !receipts.is_empty() {
            show::tell("the session is given up:");
            texts::tell_paid(receipts);
        }
        let Some(out) = &self.out else { return };
        if let Err(failure) = job::write_each(out, receipts) {
            show::tell(&format!("receipts are not written: {}", failure.cause));
        }
    }
}
