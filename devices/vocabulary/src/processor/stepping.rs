//! A thread that steps a session for whoever asks: all sequences that wait at once.
//!
//! Who is answered comes back a moment later with the next step. If the thread went on without
//! waiting for that moment, sequences would fall into groups that each read all the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use souk_memory::Tensor;
use thiserror::Error;

use super::session::{SequenceStep, Session, State};
use super::{Outcome, Program, RunError};

/// The part of a step's time that those who had it may take to come back: more would be lost where
/// they do not, less would part them where they do.
const RETURN_PART: u32 = 8;

/// The longest time they may: who is further away is in a group of its own.
const RETURN_MAX: Duration = Duration::from_millis(20);

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
    answer: Sender<Result<Outcome, RunError>>,
}

/// The sequences that were stepped last, and until when they are waited for.
#[derive(Default)]
struct LastStep {
    sequences: BTreeSet<u32>,
    until: Option<Instant>,
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
        let given = self.0.send(WaitingStep { step, answer });
        given.map_err(|_| StepError::Gone)?;
        Ok(told.recv().map_err(|_| StepError::Gone)??)
    }
}

/// Steps until nobody can ask any more.
fn serve(mut session: Box<dyn Session + '_>, asked: &Receiver<WaitingStep>) {
    let (mut waiting, mut last) = (Vec::new(), LastStep::default());
    loop {
        if waiting.is_empty() {
            match asked.recv() {
                Ok(first) => waiting.push(first),
                Err(_) => return,
            }
        }
        gather(asked, &mut waiting, &last);
        let (steps, answers) = batch(&mut waiting);
        let begun = Instant::now();
        let outcomes = session.step_all(&steps);
        let took = begun.elapsed();
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Who gave up waiting wants no answer.
            let _ = answer.send(outcome);
        }
        last = LastStep {
            sequences: steps.iter().map(|step| step.sequence).collect(),
            until: Some(Instant::now() + (took / RETURN_PART).min(RETURN_MAX)),
        };
    }
}

/// Takes what waits, and for a moment what those bring that were just answered.
fn gather(asked: &Receiver<WaitingStep>, waiting: &mut Vec<WaitingStep>, last: &LastStep) {
    loop {
        waiting.extend(asked.try_iter());
        let are_back = last.sequences.iter();
        let are_back = are_back.map(|it| waiting.iter().any(|asked| asked.step.sequence == *it));
        if are_back.fold(true, |all, it| all & it) {
            return;
        }
        let left = last
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        match left.map(|left| asked.recv_timeout(left)) {
            Some(Ok(next)) => waiting.push(next),
            Some(Err(_)) | None => return,
        }
    }
}

/// Takes the first step of each sequence, and leaves the others.
fn batch(
    waiting: &mut Vec<WaitingStep>,
) -> (Vec<SequenceStep>, Vec<Sender<Result<Outcome, RunError>>>) {
    let mut taken = BTreeSet::new();
    let (first, later): (Vec<WaitingStep>, Vec<WaitingStep>) = std::mem::take(waiting)
        .into_iter()
        .partition(|asked| taken.insert(asked.step.sequence));
    *waiting = later;
    let first = first.into_iter();
    first.map(|asked| (asked.step, asked.answer)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sequence: u32, inputs: &[&str]) -> WaitingStep {
        let tensor = |name: &&str| ((*name).to_owned(), Tensor::scalar(0i64));
        let inputs = inputs.iter().map(tensor).collect();
        let (answer, _) = channel();
        let step = SequenceStep { sequence, inputs };
        WaitingStep { step, answer }
    }

    #[test]
    fn a_batch_has_the_first_step_of_each_sequence() {
        let mut waiting = vec![asked(2, &["a"]), asked(0, &["b"]), asked(2, &["c"])];
        let (steps, answers) = batch(&mut waiting);
        let sequences: Vec<u32> = steps.iter().map(|step| step.sequence).collect();
        assert_eq!((sequences, answers.len()), (vec![2, 0], 2));
        assert!(steps[0].inputs.contains_key("a"));
        assert!(waiting.len() == 1 && waiting[0].step.inputs.contains_key("c"));
    }

    #[test]
    fn who_was_just_answered_is_waited_for_no_longer_than_for_a_moment() {
        let (give, steps) = channel();
        let until = Some(Instant::now() + Duration::from_secs(600));
        let both = LastStep {
            sequences: BTreeSet::from([0, 1]),
            until,
        };
        give.send(asked(1, &[])).unwrap();
        let mut waiting = vec![asked(0, &[])];
        gather(&steps, &mut waiting, &both);
        assert_eq!(waiting.len(), 2, "all are back: nobody is waited for");
        let over = LastStep {
            until: Some(Instant::now()),
            ..both
        };
        let mut waiting = vec![asked(0, &[])];
        gather(&steps, &mut waiting, &over);
        assert_eq!(waiting.len(), 1, "the moment is over");
    }
}
