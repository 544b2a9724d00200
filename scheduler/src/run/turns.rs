//! One device that several owners want: each run is a task of a crew of one.
//!
//! So its time goes to owners by their weights, as the time of several devices does, rather than to
//! whoever has the most threads.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Cancel, One, Precedence, Ran, Task, TaskError, TeamRunError};
use crate::executor::{Crew, Ended, Fault, Job, Results, Speeds, Took};
use crate::problem::{Problem, ProblemParts};
use crate::schedule::Schedule;

/// Whose turn the device is.
#[derive(Default)]
pub(super) struct Turns {
    /// Started by the first run that shares it.
    crew: OnceLock<Crew>,
}

impl Turns {
    /// Runs a task in its owner's turn.
    ///
    /// # Errors
    /// As a run by itself, and [`TeamRunError::Deadline`] or [`TeamRunError::Cancelled`].
    pub(super) fn run(
        &self,
        one: &Arc<One>,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<Ran, TaskError> {
        let crew = self.crew()?;
        let given = Arc::new(Mutex::new(None));
        let (slot, one, asked) = (given.clone(), one.clone(), task.clone());
        let work = move |_| {
            let ran = one.run(&asked);
            let is_emulated = one.processor.profile().emulated;
            let took = match &ran {
                Ok(ran) if is_emulated => Ok(Took::Stated(ran.busy)),
                Ok(_) => Ok(Took::Measured),
                Err(error) => Err(Fault::Task(error.to_string())),
            };
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran);
            took
        };
        let running = crew.submit(Job {
            problem: Arc::new(Problem::new(of_one()).expect("a task by itself has no circle")),
            plan: Some(Schedule {
                device: vec![0],
                start: vec![0],
                ..Schedule::default()
            }),
            keeps_plan: false,
            kinds: Arc::default(),
            speeds: Speeds::new(1, 1),
            ways: Arc::default(),
            work: Arc::new(work),
            results: Results::Survive,
            priority: precedence.priority,
            weight: precedence.weight,
            owner: precedence.owner,
            deadline: precedence.deadline,
        });
        let running = running.map_err(TeamRunError::from)?;
        let watched = cancel.map(|cancel| cancel.watch(running.canceller()));
        let ended = running.wait().ended;
        drop(watched);
        let cause = match ended {
            Ended::Cancelled => return Err(TeamRunError::Cancelled.into()),
            Ended::Deadline => return Err(TeamRunError::Deadline.into()),
            Ended::Failed { cause, .. } => cause,
            Ended::Done | Ended::Stranded(_) => String::new(),
        };
        let ran = given.lock().unwrap_or_else(PoisonError::into_inner).take();
        ran.unwrap_or_else(|| {
            // What gave nothing, not even an error, panicked.
            let piece = task.name.clone();
            Err(TeamRunError::Piece { piece, cause }.into())
        })
    }

    fn crew(&self) -> Result<&Crew, TeamRunError> {
        if let Some(crew) = self.crew.get() {
            return Ok(crew);
        }
        let crew = Crew::start(1).map_err(TeamRunError::Thread)?;
        // Where two are first at once, one of the crews has nothing to do and ends here.
        Ok(self.crew.get_or_init(|| crew))
    }
}

/// A task that one device does.
fn of_one() -> ProblemParts {
    ProblemParts {
        devices: 1,
        exec: vec![1],
        latency: vec![0],
        time_per_byte: vec![0],
        ..ProblemParts::default()
    }
}
