//! Lets several callers share one session: a thread steps the session and takes the waiting steps
//! of all callers together, one step of each sequence at a time. A step of a language model reads
//! all its weights, so it costs little more for many sequences than for one.
//!
//! After an answer, a caller returns a moment later with its next step. If the thread did not wait
//! for that moment, sequences would fall into groups that each read all the weights. If callers are
//! away for longer, for example at another part of the decoder, such groups are useful: while one
//! group is away, the thread steps the other.

mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use souk_memory::{DType, Tensor};
use thiserror::Error;

use super::session::{SequenceStep, Session, State};
use super::{Outcome, Program, RunError};
use pace::Pace;

/// The most rows of prompts that one step reads, over all sequences. All of them wait for a step,
/// so without a limit, the prompts of several callers would delay everyone. One sequence reads as
/// many rows of its prompt at once.
const PROMPT_ROWS_MAX: usize = 256;

/// Reasons why a step did not run.
#[derive(Debug, Error)]
pub enum StepError {
    /// The device refused the step or failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system could not start a thread.
    #[error("cannot start a session's thread: {0}")]
    Thread(std::io::Error),
    /// The session's thread ended; you must open another session.
    #[error("the session is gone")]
    Gone,
}

/// A session that several callers can step.
pub struct SteppedSession(Sender<WaitingStep>);

/// A step with the channel for its answer.
struct WaitingStep {
    step: SequenceStep,
    /// Time of the request.
    since: Instant,
    answer: Sender<Result<Outcome, RunError>>,
}

impl SteppedSession {
    /// Opens a session whose sequences begin with these states.
    ///
    /// # Errors
    /// [`StepError`] if the session did not open.
    pub fn open(program: Arc<dyn Program>, states: Vec<State>) -> Result<Self, StepError> {
        let (give, asked) = channel();
        let (opened, told) = channel();
        let stepping = move || match program.open_session(states) {
            Ok(session) => {
                // The caller of `open` waits for this message.
                let _ = opened.send(Ok(()));
                serve_steps(session, &asked);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("session".to_owned());
        thread.spawn(stepping).map_err(StepError::Thread)?;
        told.recv().map_err(|_| StepError::Gone)??;
        Ok(Self(give))
    }

    /// Steps a sequence together with the waiting steps of other callers. Steps of one sequence run
    /// in the order of their arrival. Any number of threads can call this; each call will block
    /// until its step has run.
    ///
    /// # Errors
    /// [`StepError`] if the step did not run.
    pub fn step_sequence(
        &self,
        sequence: u32,
        inputs: BTreeMap<String, Tensor>,
    ) -> Result<Outcome, StepError> {
        let (answer, told) = channel();
        let step = SequenceStep { sequence, inputs };
        let given = self.0.send(WaitingStep {
            step,
            since: Instant::now(),
            answer,
        });
        given.map_err(|_| StepError::Gone)?;
        Ok(told.recv().map_err(|_| StepError::Gone)??)
    }
}

/// Steps until all senders are gone.
fn serve_steps(mut session: Box<dyn Session + '_>, asked: &Receiver<WaitingStep>) {
    let (mut waiting, mut pace) = (Vec::new(), Pace::default());
    loop {
        if waiting.is_empty() {
            match asked.recv() {
                Ok(first) => waiting.push(first),
                Err(_) => return,
            }
        }
        gather_steps(asked, &mut waiting, &pace);
        let most = pace.most_at_once(&waiting);
        let (steps, answers) = take_batch(&mut waiting, most);
        let begun = Instant::now();
        let outcomes = session.step_all(&steps);
        let took = begun.elapsed();
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // A caller that gave up needs no answer.
            let _ = answer.send(outcome);
        }
        pace.on_stepped(&steps, took);
    }
}

/// Collects the waiting steps, and waits a moment for those of the sequences that were just
/// answered.
fn gather_steps(asked: &Receiver<WaitingStep>, waiting: &mut Vec<WaitingStep>, pace: &Pace) {
    loop {
        waiting.extend(asked.try_iter());
        let are_back = pace.last.iter();
        let are_back = are_back.map(|it| waiting.iter().any(|asked| asked.step.sequence == *it));
        if are_back.fold(true, |all, it| all & it) {
            return;
        }
        let left = pace
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        match left.map(|left| asked.recv_timeout(left)) {
            Some(Ok(next)) => waiting.push(next),
            Some(Err(_)) | None => return,
        }
    }
}

/// Takes the first step of each sequence, at most `most` of them, and leaves the others. It takes
/// all steps of one row, and further rows up to [`PROMPT_ROWS_MAX`]; the step of several rows that
/// has waited longest always goes.
fn take_batch(
    waiting: &mut Vec<WaitingStep>,
    most: usize,
) -> (Vec<SequenceStep>, Vec<Sender<Result<Outcome, RunError>>>) {
    let mut seen = BTreeSet::new();
    let (mut count, mut prompt_rows) = (0, 0);
    let (first, later): (Vec<WaitingStep>, Vec<WaitingStep>) =
        std::mem::take(waiting).into_iter().partition(|asked| {
            // A sequence whose step must wait keeps the order of its steps.
            if count == most || !seen.insert(asked.step.sequence) {
                return false;
            }
            let rows = count_rows(&asked.step);
            let is_prompt = rows > 1;
            if is_prompt && prompt_rows > 0 && prompt_rows + rows > PROMPT_ROWS_MAX {
                return false;
            }
            count += 1;
            prompt_rows += if is_prompt { rows } else { 0 };
            true
        });
    *waiting = later;
    let first = first.into_iter();
    first.map(|asked| (asked.step, asked.answer)).unzip()
}

/// Returns how many rows a step computes. Each has a position, so they are as many as the integers
/// of the input that has most.
fn count_rows(step: &SequenceStep) -> usize {
    let integers = step.inputs.values();
    let integers = integers.filter(|input| input.dtype() == DType::I64);
    let counts = integers.map(|input| input.shape().element_count());
    counts.max().unwrap_or(1)
}

#[cfg(test)]
mod tests;
