//! A thread that steps a session for whoever asks: all sequences that wait at once.
//!
//! Who is answered comes back a moment later with the next step. If the thread went on without
//! waiting for that moment, sequences would fall into groups that each read all the weights. Where
//! they are away for longer, as with another part of the decoder, such groups are what is wanted:
//! while one of them is away the other is stepped.

mod pace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use souk_memory::Tensor;
use thiserror::Error;

use super::session::{SequenceStep, Session, State};
use super::{Outcome, Program, RunError};
use pace::Pace;

/// Why a step was not done.
#[derive(Debug, Error)]
pub enum StepError {
    /// The device refuses it, or failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system gives no thread.
    #[error("a session's thread does not start: {0}")]
    Thread(std::io::Error),
    /// The session came to grief.
    #[error("the session is gone")]
    Gone,
}

/// A session that several may step.
pub struct SteppedSession(Sender<WaitingStep>);

/// A step, and who waits for what it gives.
struct WaitingStep {
    step: SequenceStep,
    /// When it was asked for.
    since: Instant,
    answer: Sender<Result<Outcome, RunError>>,
}

impl SteppedSession {
    /// Opens a session whose sequences begin with these states.
    ///
    /// # Errors
    /// [`StepError`]: why there is none.
    pub fn open(program: Arc<dyn Program>, states: Vec<State>) -> Result<Self, StepError> {
        let (give, asked) = channel();
        let (opened, told) = channel();
        let stepping = move || match program.session(states) {
            Ok(session) => {
                // Who opened it waits for this.
                let _ = opened.send(Ok(()));
                serve(session, &asked);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("session".to_owned());
        thread.spawn(stepping).map_err(StepError::Thread)?;
        told.recv().map_err(|_| StepError::Gone)??;
        Ok(Self(give))
    }

    /// Steps a sequence, together with those that others step meanwhile. Steps of one sequence are
    /// done in the order in which they came.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn step(
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

/// Steps until nobody can ask any more.
fn serve(mut session: Box<dyn Session + '_>, asked: &Receiver<WaitingStep>) {
    let (mut waiting, mut pace) = (Vec::new(), Pace::default());
    loop {
        if waiting.is_empty() {
            match asked.recv() {
                Ok(first) => waiting.push(first),
                Err(_) => return,
            }
        }
        gather(asked, &mut waiting, &pace);
        let most = pace.most_at_once(&waiting);
        let (steps, answers) = batch(&mut waiting, most);
        let begun = Instant::now();
        let outcomes = session.step_all(&steps);
        let took = begun.elapsed();
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Who gave up waiting wants no answer.
            let _ = answer.send(outcome);
        }
        pace.on_stepped(&steps, took);
    }
}

/// Takes what waits, and for a moment what those bring that were just answered.
fn gather(asked: &Receiver<WaitingStep>, waiting: &mut Vec<WaitingStep>, pace: &Pace) {
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

/// Takes the first step of each sequence, of so many at most, and leaves the others.
fn batch(
    waiting: &mut Vec<WaitingStep>,
    most: usize,
) -> (Vec<SequenceStep>, Vec<Sender<Result<Outcome, RunError>>>) {
    let mut taken = BTreeSet::new();
    let (first, later): (Vec<WaitingStep>, Vec<WaitingStep>) = std::mem::take(waiting)
        .into_iter()
        .partition(|asked| taken.len() < most && taken.insert(asked.step.sequence));
    *waiting = later;
    let first = first.into_iter();
    first.map(|asked| (asked.step, asked.answer)).unzip()
}

#[cfg(test)]
mod tests;
