//! Finds out which of two engines runs a subgraph faster: an [`EngineContest`] times each on the
//! user's own runs, and the faster one gets each set of input shapes.
//!
//! A model that runs once or twice is not worth two compilations. So the other engine gets the
//! model only after souk's own engine has run it for about the time that a compilation takes, and
//! only if there is memory for it. On each new set of shapes, the contest compares the first
//! results of both engines for the same inputs; if they differ, it drops the other engine. While it
//! keeps both engines, the weights are in memory twice. Once no new shapes appear, it drops an
//! engine that has won nowhere.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use souk_cpu::Cpu;
use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported};
use souk_onnx::work::Work;
use souk_onnxruntime::{Library, OnnxRuntime};
use souk_vocabulary::processor::session::{Session, State};
use souk_vocabulary::processor::{Estimate, Outcome, Processor, Program, RunError};
use souk_vocabulary::profile::Profile;

/// Runs of each engine before the contest chooses one: the first warms up, the best of the others
/// counts.
const RUNS_EACH: usize = 4;
/// At most this many sets of input shapes can have a winner of their own; further ones get the
/// winner of the nearest in size.
const ROUNDS_MAX: usize = 16;
/// Runs without new shapes after which the contest drops an engine that has won nowhere.
const QUIET_RUNS: usize = 32;

/// Time that the own engine runs before the contest compiles the model for the other. Compilation
/// takes about that long for models of a hundred megabytes, and less for small ones.
const OWN_TIME: Duration = Duration::from_millis(100);

/// Two engines' floats must not differ by more than this part of a tensor's largest. A different
/// order of summation causes smaller differences, and wrong results are further apart.
const APART_MAX: f64 = 1e-3;
/// The same limit for floats of 16 bits.
const APART_MAX_HALVES: f64 = 2e-2;

/// The CPU with two engines, souk's own and ONNX Runtime. It runs a subgraph that both support and
/// that runs often on the faster one, after it has timed both.
pub struct EngineContest {
    own: Cpu,
    other: Arc<OnnxRuntime>,
}

impl EngineContest {
    /// Creates the processor from a CPU and a library, which uses `threads` on the CPU.
    #[must_use]
    pub fn new(own: Cpu, library: Arc<Library>, threads: NonZeroUsize) -> Self {
        let provider = library.host_provider().clone();
        let profile = own.profile().clone();
        let other = Arc::new(OnnxRuntime::new(library, provider, profile, threads));
        Self { own, other }
    }
}

impl Processor for EngineContest {
    fn profile(&self) -> &Profile {
        self.own.profile()
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        self.own.check_support(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        self.own.estimate(work)
    }

    fn host_cores(&self) -> usize {
        self.own.host_cores()
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let own = self.own.compile(subgraph)?;
        let (other, subgraph) = (self.other.clone(), subgraph.clone());
        let candidate = move || match other.has_room(&subgraph) {
            true => other.compile(&subgraph).ok(),
            false => None,
        };
        Ok(Box::new(Contest::new(own, Box::new(candidate))))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.own.memory_free_bytes()
    }

    fn utilisation(&self) -> f64 {
        self.own.utilisation()
    }

    fn meter_joules(&self) -> Option<f64> {
        self.own.meter_joules()
    }
}

/// Compiles the program for the other engine; returns `None` if that engine refuses the model or
/// has no room for it.
type Candidate = Box<dyn FnOnce() -> Option<Box<dyn Program>> + Send>;

/// The programs of one subgraph on different engines.
struct Contest {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    stage: Mutex<Stage>,
    /// The program that runs all sessions, chosen at the first.
    stepped: OnceLock<Arc<dyn Program>>,
}

/// The stage of a contest.
enum Stage {
    /// Only the own engine runs; the model is not yet compiled for the other.
    Before {
        own: Arc<dyn Program>,
        times: EngineTimes,
        candidate: Candidate,
    },
    /// Both engines have the model, and take turns on shapes without a winner.
    Between(Contestants),
    /// A single engine remains.
    Over(Arc<dyn Program>),
}

/// Both engines, with their rounds.
struct Contestants {
    own: Arc<dyn Program>,
    other: Arc<dyn Program>,
    rounds: VecDeque<(Shapes, Round)>,
    /// Number of runs since the last new shapes.
    quiet: usize,
}

/// The shapes of all inputs.
type Shapes = Vec<Vec<usize>>;

/// The standing of the engines on inputs of some shapes.
#[derive(Default)]
struct Round {
    own: EngineTimes,
    other: EngineTimes,
    winner: Option<Side>,
}

/// The times of one engine's runs.
struct EngineTimes {
    runs: usize,
    best: Duration,
    sum: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Own,
    Other,
}

/// The engine of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunEngine {
    Own,
    /// The other engine's first run on these shapes.
    Trial,
    Other,
    Last,
}

impl Default for EngineTimes {
    fn default() -> Self {
        Self {
            runs: 0,
            best: Duration::MAX,
            sum: Duration::ZERO,
        }
    }
}

impl EngineTimes {
    fn record_run(&mut self, time: Duration) {
        self.sum += time;
        if self.runs > 1 {
            self.best = self.best.min(time);
        }
    }

    fn is_ready(&self) -> bool {
        self.runs >= RUNS_EACH
    }
}

impl Round {
    /// Returns the engine of the next run: the winner, or without one the engine with fewer runs.
    /// Counts the run when it begins, so that concurrent runs take turns too.
    fn begin_run(&mut self) -> RunEngine {
        let side = match self.winner {
            Some(winner) => winner,
            None if self.other.runs < self.own.runs => Side::Other,
            None => Side::Own,
        };
        match side {
            Side::Own => {
                self.own.runs += 1;
                RunEngine::Own
            }
            Side::Other => {
                self.other.runs += 1;
                if self.other.runs == 1 {
                    RunEngine::Trial
                } else {
                    RunEngine::Other
                }
            }
        }
    }

    fn record_run(&mut self, turn: RunEngine, time: Duration) {
        if self.winner.is_some() {
            return;
        }
        match turn {
            RunEngine::Own => self.own.record_run(time),
            RunEngine::Other => self.other.record_run(time),
            RunEngine::Trial | RunEngine::Last => return,
        }
        if self.own.is_ready() && self.other.is_ready() {
            let faster = self.other.best < self.own.best;
            self.winner = Some(if faster { Side::Other } else { Side::Own });
        }
    }
}

impl Contestants {
    fn find_round(&mut self, shapes: &Shapes) -> Option<&mut Round> {
        let mut rounds = self.rounds.iter_mut();
        rounds
            .find(|(held, _)| held == shapes)
            .map(|(_, round)| round)
    }

    /// Returns the program for the next run on these shapes.
    fn next(&mut self, shapes: &Shapes) -> (Arc<dyn Program>, RunEngine) {
        self.quiet += 1;
        if self.find_round(shapes).is_none() && self.rounds.len() < ROUNDS_MAX {
            self.quiet = 0;
            self.rounds.push_back((shapes.clone(), Round::default()));
        }
        assert!(self.rounds.len() <= ROUNDS_MAX, "rounds are bounded");
        let turn = match self.find_round(shapes) {
            Some(round) => round.begin_run(),
            None => match self.nearest_winner(shapes) {
                Side::Own => RunEngine::Own,
                Side::Other => RunEngine::Other,
            },
        };
        let program = match turn {
            RunEngine::Trial | RunEngine::Other => &self.other,
            RunEngine::Own | RunEngine::Last => &self.own,
        };
        (program.clone(), turn)
    }

    /// Returns the winner on the shapes that are nearest in size.
    fn nearest_winner(&self, shapes: &Shapes) -> Side {
        let size = |shapes: &Shapes| -> f64 {
            let each = shapes.iter().map(|dims| dims.iter().product::<usize>());
            (each.sum::<usize>() as f64).max(1.0).ln()
        };
        let wanted = size(shapes);
        let decided = self.rounds.iter();
        let decided =
            decided.filter_map(|(held, round)| Some(((size(held) - wanted).abs(), round.winner?)));
        let nearest = decided.min_by(|one, other| one.0.total_cmp(&other.0));
        nearest.map_or(Side::Own, |(_, winner)| winner)
    }

    /// Returns the only winner, once there were no new shapes for long enough to drop the other
    /// engine.
    fn final_winner(&self) -> Option<Arc<dyn Program>> {
        let mut winners = self.rounds.iter().filter_map(|(_, round)| round.winner);
        let first = winners.next()?;
        let alone = self.quiet >= QUIET_RUNS && winners.all(|winner| winner == first);
        alone.then(|| match first {
            Side::Own => self.own.clone(),
            Side::Other => self.other.clone(),
        })
    }
}

impl Contest {
    /// Creates a contest between souk's own program and another engine's.
    pub fn new(own: Box<dyn Program>, candidate: Candidate) -> Self {
        Self {
            inputs: own.inputs().to_vec(),
            outputs: own.outputs().to_vec(),
            stage: Mutex::new(Stage::Before {
                own: own.into(),
                times: EngineTimes::default(),
                candidate,
            }),
            stepped: OnceLock::new(),
        }
    }

    /// Returns the own engine's program, unless the other engine has replaced it.
    fn own_program(&self) -> Arc<dyn Program> {
        match &*self.lock_stage() {
            Stage::Before { own, .. } => own.clone(),
            Stage::Between(held) => held.own.clone(),
            Stage::Over(program) => program.clone(),
        }
    }

    fn lock_stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles the model for the other engine when it is time to. Meanwhile other runs continue.
    fn bring_in(&self) {
        let mut stage = self.lock_stage();
        let Stage::Before { own, times, .. } = &*stage else {
            return;
        };
        if !times.is_ready() || times.sum < OWN_TIME {
            return;
        }
        let own = own.clone();
        let over = Stage::Over(own.clone());
        let Stage::Before { candidate, .. } = std::mem::replace(&mut *stage, over) else {
            unreachable!("it was looked at under the same lock");
        };
        drop(stage);
        if let Some(other) = candidate() {
            *self.lock_stage() = Stage::Between(Contestants {
                own,
                other: other.into(),
                rounds: VecDeque::new(),
                quiet: 0,
            });
        }
    }

    /// Returns the program for the next run.
    fn next(&self, shapes: &Shapes) -> (Arc<dyn Program>, RunEngine) {
        let mut stage = self.lock_stage();
        match &mut *stage {
            Stage::Before { own, times, .. } => {
                times.runs += 1;
                (own.clone(), RunEngine::Own)
            }
            Stage::Between(held) => {
                let next = held.next(shapes);
                if let Some(winner) = held.final_winner() {
                    *stage = Stage::Over(winner);
                }
                next
            }
            Stage::Over(program) => (program.clone(), RunEngine::Last),
        }
    }

    /// Notes the time of a run. The faster engine wins these shapes once both have run often
    /// enough.
    fn record_run(&self, turn: RunEngine, shapes: &Shapes, time: Duration) {
        match (&mut *self.lock_stage(), turn) {
            (Stage::Before { times, .. }, RunEngine::Own) => times.record_run(time),
            (Stage::Between(held), _) => {
                if let Some(round) = held.find_round(shapes) {
                    round.record_run(turn, time);
                }
            }
            _ => {}
        }
    }

    /// Compares the other engine's first results with those of the own engine, which it returns.
    fn compare_results(
        &self,
        first: &Outcome,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Outcome, RunError> {
        // A concurrent run can have dropped the other engine, but an own one always remains.
        let outcome = self.own_program().run(inputs)?;
        if !are_alike(&outcome.outputs, &first.outputs) {
            self.drop_other();
        }
        Ok(outcome)
    }

    /// Drops the other engine, because souk's tests cover its own.
    fn drop_other(&self) -> Option<Arc<dyn Program>> {
        let mut stage = self.lock_stage();
        let own = match &*stage {
            Stage::Between(held) => held.own.clone(),
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
        let shapes = inputs.values().map(|input| input.dims().to_vec());
        let shapes: Shapes = shapes.collect();
        let (program, turn) = self.next(&shapes);
        match program.run(inputs) {
            Ok(outcome) if turn == RunEngine::Trial => self.compare_results(&outcome, inputs),
            Ok(outcome) => {
                self.record_run(turn, &shapes, outcome.busy);
                Ok(outcome)
            }
            Err(error) if matches!(turn, RunEngine::Own | RunEngine::Last) => Err(error),
            Err(error) => match self.drop_other() {
                Some(own) => own.run(inputs),
                None => Err(error),
            },
        }
    }

    /// Keeps states with the own engine, which can write them in place.
    fn open_session(&self, states: Vec<State>) -> Result<Box<dyn Session + '_>, RunError> {
        self.stepped
            .get_or_init(|| self.own_program())
            .open_session(states)
    }
}

/// Returns whether two engines' outputs are equal apart from rounding.
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

    use souk_testing::{model, node, subgraph};
    use souk_vocabulary::processor::Engine;

    use super::*;

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

    /// Takes as many milliseconds for each element of its input as it is told to, and some beside.
    struct Sized {
        fixed: u64,
        each: u64,
        gives: f32,
    }

    impl Program for Sized {
        fn inputs(&self) -> &[Port] {
            &[]
        }

        fn outputs(&self) -> &[Port] {
            &[]
        }

        fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
            let elements = inputs["x"].dims()[0] as u64;
            Ok(Outcome {
                outputs: BTreeMap::from([("y".to_owned(), Tensor::scalar(self.gives))]),
                busy: Duration::from_millis(self.fixed + self.each * elements),
                energy: None,
                operators: 0,
                engine: Engine::Own,
            })
        }
    }

    /// A contest that the own engine wins below ten elements and the other one above, told apart
    /// by what they give, and references to both programs.
    fn by_size() -> (Contest, [std::sync::Weak<dyn Program>; 2]) {
        let own: Arc<dyn Program> = Arc::new(Sized {
            fixed: 10,
            each: 11,
            gives: 1.0,
        });
        let other: Arc<dyn Program> = Arc::new(Sized {
            fixed: 20,
            each: 10,
            gives: 1.0001,
        });
        let held = [Arc::downgrade(&own), Arc::downgrade(&other)];
        let contest = Contest {
            inputs: Vec::new(),
            outputs: Vec::new(),
            stage: Mutex::new(Stage::Between(Contestants {
                own,
                other,
                rounds: VecDeque::new(),
                quiet: 0,
            })),
            stepped: OnceLock::new(),
        };
        (contest, held)
    }

    /// Whether the own engine gives the last of so many runs on so many elements.
    fn own_runs(contest: &Contest, elements: usize, runs: usize) -> bool {
        let x = Tensor::from_vec([elements], vec![0f32; elements]).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), x)]);
        let each = (0..runs).map(|_| contest.run(&inputs).unwrap());
        let last = each.last().unwrap().outputs["y"].to_vec::<f32>().unwrap();
        last[0] == 1.0
    }

    #[test]
    fn each_size_has_the_engine_that_is_faster_at_it() {
        let (contest, held) = by_size();
        assert!(own_runs(&contest, 2, 10));
        assert!(!own_runs(&contest, 30, 10));
        // In turn, for as long as would let one of them go that had won nowhere.
        for _ in 0..2 * QUIET_RUNS {
            assert!(own_runs(&contest, 2, 1));
            assert!(!own_runs(&contest, 30, 1));
        }
        assert!(held.iter().all(|program| program.strong_count() > 0));
    }

    #[test]
    fn a_session_stays_with_the_own_engine_whoever_wins() {
        let (contest, held) = by_size();
        let given = BTreeMap::from([("x".to_owned(), Tensor::from_vec([30], vec![0f32; 30]))]);
        let given = given.into_iter().map(|(name, x)| (name, x.unwrap()));
        let given: BTreeMap<_, _> = given.collect();
        let mut session = contest.open_session(Vec::new()).unwrap();
        for _ in 0..2 * QUIET_RUNS {
            let step = session.step(&given).unwrap();
            assert_eq!(step.outputs["y"].to_vec::<f32>().unwrap(), [1.0]);
            // Meanwhile the other engine wins all that is run, and the own one is let go of.
            contest.run(&given).unwrap();
        }
        assert!(!own_runs(&contest, 30, 1));
        assert!(held[0].strong_count() > 0, "the session has it");
    }

    #[test]
    fn an_engine_that_won_nowhere_is_let_go_of() {
        let (contest, held) = by_size();
        assert!(!own_runs(&contest, 30, 10));
        assert!(!own_runs(&contest, 40, 10));
        assert!(held[0].strong_count() > 0, "new sizes may come");
        assert!(!own_runs(&contest, 30, QUIET_RUNS));
        assert_eq!(held[0].strong_count(), 0, "its weights are freed");
        assert!(!own_runs(&contest, 2, 1), "the one that is left has all");
    }

    #[test]
    fn sizes_beyond_those_kept_go_by_the_nearest() {
        let (contest, _) = by_size();
        for elements in (1..=4).chain(100..112) {
            let is_small = elements < 10;
            assert_eq!(own_runs(&contest, elements, 10), is_small, "{elements}");
        }
        assert!(own_runs(&contest, 5, 1));
        assert!(!own_runs(&contest, 90, 1));
        let Stage::Between(held) = &*contest.lock_stage() else {
            panic!("both have won somewhere");
        };
        assert_eq!(held.rounds.len(), ROUNDS_MAX);
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

    /// The library that is found; `None` where there is none.
    fn library() -> Option<Arc<Library>> {
        let named = std::env::var_os("SOUK_TEST_ONNXRUNTIME").map(Into::into);
        let Some(path) = named.or_else(souk_onnxruntime::library_path) else {
            eprintln!("SKIPPED: no ONNX Runtime library; SOUK_TEST_ONNXRUNTIME can name one");
            return None;
        };
        Some(Library::open(&path).expect("the library that was found opens"))
    }

    #[test]
    fn a_subgraph_is_timed_on_both_engines_and_gives_the_same() {
        // A product of a millisecond or more, so that it soon is worth a second engine.
        const SIZES: [usize; 2] = [256, 512];
        const RUNS_MAX: usize = 1000;
        let Some(library) = library() else { return };
        let cpu = Cpu::new(souk_testing::cpu_profile(), NonZeroUsize::MIN);
        let beside = EngineContest::new(cpu, library, NonZeroUsize::MIN);
        let values = |count: usize| {
            (0..count)
                .map(|it| (it % 89) as f32 * 0.01)
                .collect::<Vec<f32>>()
        };
        let weight = Tensor::from_vec([SIZES[1]; 2], values(SIZES[1] * SIZES[1])).unwrap();
        let proto = model(
            vec![node("MatMul", &["x", "w"], &["y"])],
            &[("x", DType::F32)],
            &[("y", DType::F32)],
            &[("w", weight)],
        );
        let program = beside.compile(&subgraph(&proto)).unwrap();
        let x = Tensor::from_vec(SIZES, values(SIZES[0] * SIZES[1])).unwrap();
        let inputs = BTreeMap::from([("x".to_owned(), x)]);
        let first = program.run(&inputs).unwrap();
        assert_eq!(
            first.engine,
            Engine::Own,
            "one run is not worth two engines"
        );
        let expected = first.outputs["y"].to_vec::<f32>().unwrap();
        let mut others = 0;
        for _ in 0..RUNS_MAX {
            let outcome = program.run(&inputs).unwrap();
            let found = outcome.outputs["y"].to_vec::<f32>().unwrap();
            let alike = |(one, other): (&f32, &f32)| (one - other).abs() <= 1e-4 * one.abs();
            assert!(expected.iter().zip(&found).all(alike));
            others += usize::from(outcome.engine == Engine::OnnxRuntime);
            if others >= 3 {
                return;
            }
        }
        panic!("the library had {others} turns in {RUNS_MAX} runs");
    }
}
