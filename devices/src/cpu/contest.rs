//! Two engines that both have a subgraph: each is timed on runs that are wanted anyway, and the
//! faster one stays.
//!
//! A model that runs once or twice is not worth making ready twice. So the other engine gets it
//! only once the own one has run it for as long as that may take, and if there is memory for it.
//! Its first run is judged by the own engine's results on the same inputs: a library that gives
//! others is not asked again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use souk_memory::{DType, Tensor};

use crate::processor::{Outcome, Port, Program, RunError};

/// Runs of each engine before one is chosen: the first warms up, the best of the others counts.
const RUNS_EACH: usize = 4;

/// Time the own engine has run before the other one is made ready, which takes about that long for
/// models of a hundred megabytes, and less for small ones.
const OWN_TIME: Duration = Duration::from_millis(100);

/// How far two engines' floats may differ, of the largest of a tensor: what is summed in another
/// order differs by less, and what is computed wrongly by more.
const APART_MAX: f64 = 1e-3;
/// The same for floats of 16 bits.
const APART_MAX_HALVES: f64 = 2e-2;

/// Makes the other engine's program; `None` if it does not take the model, or has no room for it.
pub(super) type Candidate = Box<dyn FnOnce() -> Option<Box<dyn Program>> + Send>;

/// Programs of one subgraph on different engines.
pub(super) struct Contest {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    stage: Mutex<Stage>,
}

/// How far a contest is.
enum Stage {
    /// The own engine runs alone; the other one waits.
    Before {
        own: Contestant,
        candidate: Candidate,
    },
    /// Both run in turn.
    Between { own: Contestant, other: Contestant },
    /// One runs.
    Over(Arc<dyn Program>),
}

struct Contestant {
    program: Arc<dyn Program>,
    runs: usize,
    best: Duration,
    time: Duration,
}

/// Whose turn a run is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Own,
    /// The first of the other engine.
    Trial,
    Other,
    Last,
}

impl Contestant {
    fn new(program: Arc<dyn Program>) -> Self {
        Self {
            program,
            runs: 0,
            best: Duration::MAX,
            time: Duration::ZERO,
        }
    }

    /// Its next run, counted when it begins, so that runs at once take turns too.
    fn begin(&mut self) -> Arc<dyn Program> {
        self.runs += 1;
        self.program.clone()
    }

    fn note(&mut self, time: Duration) {
        self.time += time;
        if self.runs > 1 {
            self.best = self.best.min(time);
        }
    }

    fn is_ready(&self) -> bool {
        self.runs >= RUNS_EACH
    }
}

impl Contest {
    /// A contest of our own program with another engine's.
    pub fn new(own: Box<dyn Program>, candidate: Candidate) -> Self {
        Self {
            inputs: own.inputs().to_vec(),
            outputs: own.outputs().to_vec(),
            stage: Mutex::new(Stage::Before {
                own: Contestant::new(own.into()),
                candidate,
            }),
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the other engine's program if it is time to. Other runs go on meanwhile.
    fn bring_in(&self) {
        let mut stage = self.stage();
        let Stage::Before { own, .. } = &*stage else {
            return;
        };
        if !own.is_ready() || own.time < OWN_TIME {
            return;
        }
        let program = own.program.clone();
        let over = Stage::Over(program.clone());
        let Stage::Before { candidate, .. } = std::mem::replace(&mut *stage, over) else {
            unreachable!("it was looked at under the same lock");
        };
        drop(stage);
        if let Some(other) = candidate() {
            *self.stage() = Stage::Between {
                own: Contestant::new(program),
                other: Contestant::new(other.into()),
            };
        }
    }

    /// The program of the next run: of two, that with the fewest runs.
    fn next(&self) -> (Arc<dyn Program>, Turn) {
        match &mut *self.stage() {
            Stage::Before { own, .. } => (own.begin(), Turn::Own),
            Stage::Between { own, other } if other.runs < own.runs => {
                let turn = match other.runs {
                    0 => Turn::Trial,
                    _ => Turn::Other,
                };
                (other.begin(), turn)
            }
            Stage::Between { own, .. } => (own.begin(), Turn::Own),
            Stage::Over(program) => (program.clone(), Turn::Last),
        }
    }

    /// Takes note of what a run took. The faster engine stays once both have run often enough.
    fn note(&self, turn: Turn, time: Duration) {
        let mut stage = self.stage();
        let winner = match (&mut *stage, turn) {
            (Stage::Before { own, .. }, Turn::Own) => {
                own.note(time);
                return;
            }
            (Stage::Between { own, other }, Turn::Own | Turn::Other) => {
                let contestant = if turn == Turn::Own {
                    &mut *own
                } else {
                    &mut *other
                };
                contestant.note(time);
                if !own.is_ready() || !other.is_ready() {
                    return;
                }
                let faster = if other.best < own.best { other } else { own };
                faster.program.clone()
            }
            _ => return,
        };
        *stage = Stage::Over(winner);
    }

    /// Compares the other engine's first results with the own one's, which are the run's.
    fn judge(
        &self,
        first: &Outcome,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Outcome, RunError> {
        let own = match &*self.stage() {
            Stage::Between { own, .. } => own.program.clone(),
            Stage::Before { .. } => unreachable!("the other engine has run"),
            // A run beside this one has found the other engine to fail.
            Stage::Over(program) => program.clone(),
        };
        let outcome = own.run(inputs)?;
        if !are_alike(&outcome.outputs, &first.outputs) {
            self.drop_other();
        }
        Ok(outcome)
    }

    /// The own engine stays: it is right by its own tests.
    fn drop_other(&self) -> Option<Arc<dyn Program>> {
        let mut stage = self.stage();
        let own = match &*stage {
            Stage::Between { own, .. } => own.program.clone(),
            Stage::Before { .. } | Stage::Over(_) => return None,
        };
        *stage = Stage::Over(own.clone());
        Some(own)
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
        self.bring_in();
        let (program, turn) = self.next();
        match program.run(inputs) {
            Ok(outcome) if turn == Turn::Trial => self.judge(&outcome, inputs),
            Ok(outcome) => {
                self.note(turn, outcome.busy);
                Ok(outcome)
            }
            Err(error) if matches!(turn, Turn::Own | Turn::Last) => Err(error),
            Err(error) => match self.drop_other() {
                Some(own) => own.run(inputs),
                None => Err(error),
            },
        }
    }
}

/// Whether two engines' outputs are the same but for rounding.
fn are_alike(own: &BTreeMap<String, Tensor>, other: &BTreeMap<String, Tensor>) -> bool {
    own.len() == other.len()
        && own
            .iter()
            .all(|(name, tensor)| other.get(name).is_some_and(|it| is_alike(tensor, it)))
}

fn is_alike(own: &Tensor, other: &Tensor) -> bool {
    if (own.dtype(), own.dims()) != (other.dtype(), other.dims()) {
        return false;
    }
    let apart = match own.dtype() {
        DType::F32 | DType::F64 => APART_MAX,
        DType::F16 | DType::Bf16 => APART_MAX_HALVES,
        _ => return own.bytes() == other.bytes(),
    };
    let (Ok(own), Ok(other)) = (own.to_f64s(), other.to_f64s()) else {
        return false;
    };
    let finite = own.iter().filter(|value| value.is_finite());
    let largest = finite.fold(0.0, |most: f64, value| most.max(value.abs()));
    let pairs = own.iter().zip(&other);
    let mut pairs = pairs.filter(|(own, other)| own != other && !(own.is_nan() && other.is_nan()));
    pairs.all(|(own, other)| (own - other).abs() <= apart * largest)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::processor::Engine;

    /// Takes the time it is told to, by its own account, and gives a number.
    struct Paced {
        time: Option<Duration>,
        gives: f32,
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
                outputs: BTreeMap::from([("y".to_owned(), Tensor::scalar(self.gives))]),
                busy: self.time.ok_or_else(failed)?,
                energy: None,
                operators: 0,
                engine: Engine::Own,
            })
        }
    }

    /// An engine that takes so many milliseconds, or fails, and gives this.
    type Plays = (Option<u64>, f32);

    /// Runs of each after a hundred in all; without another engine none is to be had.
    fn runs(own: Plays, other: Option<Plays>) -> (usize, usize) {
        let counts = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let paced = |(time, gives): Plays, runs: &Arc<AtomicUsize>| {
            Box::new(Paced {
                time: time.map(Duration::from_millis),
                gives,
                runs: runs.clone(),
            })
        };
        let other = other.map(|plays| paced(plays, &counts[1]) as Box<dyn Program>);
        let contest = Contest::new(paced(own, &counts[0]), Box::new(|| other));
        for _ in 0..100 {
            let outcome = contest.run(&BTreeMap::new()).unwrap();
            let found = outcome.outputs["y"].to_vec::<f32>().unwrap();
            assert!((found[0] - own.1).abs() < 1e-3, "{found:?}");
        }
        let [own, other] = counts.map(|count| count.load(Ordering::Relaxed));
        (own, other)
    }

    #[test]
    fn the_faster_engine_stays() {
        // Four alone, four each in turn, and one beside the other's first to judge it.
        assert_eq!(runs((Some(30), 1.0), Some((Some(9), 1.0))), (9, 92));
        assert_eq!(runs((Some(30), 1.0), Some((Some(31), 1.0))), (97, 4));
    }

    #[test]
    fn what_takes_no_time_is_not_made_ready_twice() {
        assert_eq!(runs((Some(0), 1.0), Some((Some(0), 1.0))), (100, 0));
        // A hundred milliseconds are run after fifty runs of two.
        assert_eq!(runs((Some(2), 1.0), Some((Some(1), 1.0))), (55, 46));
    }

    #[test]
    fn an_engine_that_fails_is_left_out() {
        assert_eq!(runs((Some(30), 1.0), Some((None, 1.0))), (100, 1));
        assert_eq!(runs((Some(30), 1.0), None), (100, 0));
    }

    #[test]
    fn an_engine_that_gives_other_results_is_left_out() {
        assert_eq!(runs((Some(30), 1.0), Some((Some(1), 1.01))), (100, 1));
        assert_eq!(runs((Some(30), 1.0), Some((Some(1), f32::NAN))), (100, 1));
    }

    #[test]
    fn rounding_is_no_difference_and_integers_have_none() {
        let floats = |values: &[f32]| Tensor::from_vec([values.len()], values.to_vec()).unwrap();
        let nan = f32::NAN;
        assert!(is_alike(&floats(&[1000.0, nan]), &floats(&[1000.5, nan])));
        assert!(!is_alike(&floats(&[1.0, 2.0]), &floats(&[1.0, nan])));
        assert!(!is_alike(&floats(&[1.0]), &floats(&[1.0, 2.0])));
        let endless = f32::INFINITY;
        assert!(is_alike(&floats(&[endless, 1.0]), &floats(&[endless, 1.0])));
        assert!(!is_alike(
            &floats(&[endless, 1.0]),
            &floats(&[-endless, 1.0])
        ));
        let whole = |value: i64| Tensor::scalar(value);
        assert!(is_alike(&whole(1 << 60), &whole(1 << 60)));
        assert!(!is_alike(&whole(1 << 60), &whole((1 << 60) + 1)));
    }
}
