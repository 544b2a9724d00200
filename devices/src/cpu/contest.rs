//! Two engines that both have a subgraph: each is timed on runs that are wanted anyway, and the
//! faster one stays.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_memory::Tensor;

use crate::processor::{Outcome, Port, Program, RunError};

/// Runs of each engine before one is chosen: the first warms up, the best of the others counts.
const RUNS_EACH: usize = 4;

/// Programs of one subgraph on different engines.
pub(super) struct Contest {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// The own engine's first: it is right by its own tests, so it stays if another one fails.
    left: Mutex<Vec<Contestant>>,
}

struct Contestant {
    program: Arc<dyn Program>,
    runs: usize,
    best: Duration,
}

impl Contest {
    /// A contest of our own program with another engine's.
    pub fn new(own: Box<dyn Program>, other: Box<dyn Program>) -> Self {
        let contestant = |program: Box<dyn Program>| Contestant {
            program: program.into(),
            runs: 0,
            best: Duration::MAX,
        };
        Self {
            inputs: own.inputs().to_vec(),
            outputs: own.outputs().to_vec(),
            left: Mutex::new(vec![contestant(own), contestant(other)]),
        }
    }

    fn left(&self) -> MutexGuard<'_, Vec<Contestant>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose turn it is: the one with the fewest runs. Also whether it is the own engine.
    fn next(&self) -> (Arc<dyn Program>, bool) {
        let mut left = self.left();
        let turn = left.iter().enumerate().min_by_key(|(_, it)| it.runs);
        let (index, _) = turn.expect("one stays");
        let is_last = left.len() == 1;
        let contestant = &mut left[index];
        // Counted when it begins, so that runs at once take turns too.
        contestant.runs += usize::from(!is_last);
        (contestant.program.clone(), index == 0)
    }

    fn note(&self, program: &Arc<dyn Program>, time: Duration) {
        let mut left = self.left();
        if left.len() == 1 {
            return;
        }
        let same = |it: &&mut Contestant| Arc::ptr_eq(&it.program, program);
        if let Some(contestant) = left.iter_mut().find(same)
            && contestant.runs > 1
        {
            contestant.best = contestant.best.min(time);
        }
        if left.iter().all(|it| it.runs >= RUNS_EACH) {
            let best = left.iter().map(|it| it.best).min();
            let faster = left.iter().position(|it| Some(it.best) == best);
            let winner = left.swap_remove(faster.expect("one is the fastest"));
            *left = vec![winner];
        }
    }

    fn drop_other(&self) {
        self.left().truncate(1);
    }
}

impl Program for Contest {
    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        let (program, is_own) = self.next();
        match program.run(inputs) {
            Ok(outcome) => {
                self.note(&program, outcome.busy);
                Ok(outcome)
            }
            Err(error) if is_own => Err(error),
            Err(_) => {
                self.drop_other();
                self.next().0.run(inputs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Takes the time it is told to, by its own account.
    struct Paced {
        time: Option<Duration>,
        runs: Arc<AtomicUsize>,
    }

    impl Program for Paced {
        fn inputs(&self) -> &[Port] {
            &[]
        }

        fn outputs(&self) -> &[Port] {
            &[]
        }

        fn run(&self, _: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
            self.runs.fetch_add(1, Ordering::Relaxed);
            let failed = || RunError::Engine {
                engine: "test",
                reason: "told to".to_owned(),
            };
            Ok(Outcome {
                outputs: BTreeMap::new(),
                busy: self.time.ok_or_else(failed)?,
                energy: None,
                operators: 0,
            })
        }
    }

    /// Runs of each after twenty in all.
    fn runs(own: Option<u64>, other: Option<u64>) -> (usize, usize) {
        let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let paced = |time: Option<u64>, runs: &Arc<AtomicUsize>| {
            Box::new(Paced {
                time: time.map(Duration::from_millis),
                runs: runs.clone(),
            })
        };
        let contest = Contest::new(paced(own, &counts[0]), paced(other, &counts[1]));
        for _ in 0..20 {
            contest.run(&BTreeMap::new()).unwrap();
        }
        let [own, other] = counts.map(|count| count.load(Ordering::Relaxed));
        (own, other)
    }

    #[test]
    fn the_faster_engine_stays() {
        assert_eq!(runs(Some(9), Some(5)), (4, 16));
        assert_eq!(runs(Some(5), Some(9)), (16, 4));
    }

    #[test]
    fn an_engine_that_fails_is_left_out() {
        assert_eq!(runs(Some(9), None), (20, 1));
    }
}
