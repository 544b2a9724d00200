//! Emulates a device of which only a profile (figures of its speed, memory and power) is known, so
//! that markets can run without its hardware: the CPU computes right results, and the profile gives
//! their time and energy.
//!
//! No emulated device passes for hardware: its profile, and everything made from it, says
//! `emulated`. The modelled time is that of the exact work of each operator on the inputs. The
//! device computes it once for every set of input shapes: from the shapes alone where its opener
//! can infer them, otherwise by a run that looks at every value. A paced device answers only when
//! that time has passed, so a market of emulated devices behaves like one of real ones; a virtual
//! device answers at once. Copies to and from the device's memory take additional time. In a run
//! whose tensors may stay in that memory, the copies of its other tensors do not count in the
//! stated time, but a paced device waits for them. A run from the host and back takes no longer
//! than its work.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::num::NonZeroUsize;
//! use std::sync::Arc;
//!
//! use souk_cpu::Cpu;
//! use souk_emulated::{EmulatedConfig, EmulatedDevice, Pace};
//! use souk_memory::Tensor;
//! use souk_onnx::subgraph::Subgraph;
//! use souk_vocabulary::catalogue;
//! use souk_vocabulary::processor::Processor;
//!
//! let card = catalogue::find_processor("nvidia-t4").ok_or("it is catalogued")?.clone();
//! let cpu = Arc::new(Cpu::new(card.clone(), NonZeroUsize::MIN));
//! let config = EmulatedConfig { pace: Pace::Virtual, ..EmulatedConfig::default() };
//! let device = EmulatedDevice::new(card, cpu, config)?;
//!
//! let model = std::fs::read("../../testnet/models/digits/digits.onnx")?.into();
//! let program = device.compile(&Subgraph { model, ..Subgraph::default() })?;
//! let image = Tensor::from_vec([1, 1, 8, 8], vec![0f32; 64])?;
//! let inputs = BTreeMap::from([("images".to_owned(), image)]);
//! // However long this machine took, the time is that of the profile, and every time the same.
//! let busy = program.run(&inputs)?.busy;
//! assert_eq!(program.run(&inputs)?.busy, busy);
//! assert!(device.profile().emulated && !busy.is_zero());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod memory;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use souk_cpu::{Cpu, Extents};
use souk_host::busy::Busy;
use souk_memory::Tensor;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::sampling::is_sample;
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported, UnsupportedReason};
use souk_onnx::work::{Work, is_computation};
use souk_vocabulary::processor::session::{Session, State as SessionState};
use souk_vocabulary::processor::{
    Energy, Estimate, Outcome, Processor, Program, RunError, WorkError,
};
use souk_vocabulary::profile::Profile;
use souk_vocabulary::residency::{DeviceMemory, TensorHandle};

pub use memory::CopyTotals;
use memory::{CopyCounters, EmulatedMemory};
use session::EmulatedSession;

/// Sets of input shapes whose work is remembered for each program.
const SHAPES_MAX: usize = 64;

/// How an emulated device behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmulatedConfig {
    /// Whether it answers when its modelled time has passed, or at once.
    pub pace: Pace,
    /// Real speed as a factor of the profile's: 0.5 takes twice the time. It must be positive and
    /// finite.
    pub speed: f64,
    /// Largest part by which a run takes longer or shorter. It must be from 0 to below 1.
    pub jitter: f64,
    /// The part of runs that fail. It must be from 0 to 1.
    pub failures: f64,
    /// Decides jitter and failures: an equal seed gives equal runs.
    pub seed: u64,
}

/// When an emulated device answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// When the modelled time has passed.
    Paced,
    /// At once; the modelled time is only stated.
    Virtual,
}

impl Default for EmulatedConfig {
    fn default() -> Self {
        Self {
            pace: Pace::Paced,
            speed: 1.0,
            jitter: 0.0,
            failures: 0.0,
            seed: 0,
        }
    }
}

/// Why a configuration of an emulated device is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum EmulatedConfigError {
    /// The speed is no positive number.
    #[error("the speed of an emulated device is a positive number, not {0}")]
    Speed(f64),
    /// The jitter is out of range.
    #[error("the jitter of an emulated device is at least 0 and below 1, not {0}")]
    Jitter(f64),
    /// The share of failures is out of range.
    #[error("the failures of an emulated device are a part between 0 and 1, not {0}")]
    Failures(f64),
}

impl EmulatedConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`EmulatedConfigError`], with the value out of range.
    pub fn validate(&self) -> Result<(), EmulatedConfigError> {
        if !(self.speed.is_finite() && self.speed > 0.0) {
            return Err(EmulatedConfigError::Speed(self.speed));
        }
        if !(0.0..1.0).contains(&self.jitter) {
            return Err(EmulatedConfigError::Jitter(self.jitter));
        }
        if !(0.0..=1.0).contains(&self.failures) {
            return Err(EmulatedConfigError::Failures(self.failures));
        }
        Ok(())
    }
}

/// Infers the types and sizes of a subgraph's values for inputs, if they follow without a run. They
/// must be exact, because the modelled time follows from them.
pub type InferExtents =
    dyn Fn(&Subgraph, &BTreeMap<String, Tensor>) -> Option<Extents> + Send + Sync;

/// An emulated device: a profile, and a CPU that computes its results.
pub struct EmulatedDevice {
    profile: Profile,
    cpu: Arc<Cpu>,
    config: EmulatedConfig,
    infer: Option<Arc<InferExtents>>,
    state: Arc<State>,
    memory: Option<EmulatedMemory>,
}

/// State that all programs of a device share.
#[derive(Debug, Default)]
struct State {
    runs: AtomicU64,
    /// Modelled work done.
    busy: Busy,
    /// Bytes of weights of the programs that are loaded, and of tensors that stay.
    loaded_bytes: AtomicU64,
    copies: CopyCounters,
}

impl EmulatedDevice {
    /// Creates a device as `profile` describes it, whatever that says of being emulated.
    ///
    /// # Errors
    /// [`EmulatedConfigError`].
    pub fn new(
        profile: Profile,
        cpu: Arc<Cpu>,
        config: EmulatedConfig,
    ) -> Result<Self, EmulatedConfigError> {
        config.validate()?;
        let profile = Profile {
            emulated: true,
            ..profile
        };
        let state = Arc::<State>::default();
        Ok(Self {
            memory: EmulatedMemory::for_profile(&profile, config.pace, state.clone()),
            profile,
            cpu,
            config,
            infer: None,
            state,
        })
    }

    /// Returns the bytes copied to and from its memory, and the time of the copies by its profile.
    #[must_use]
    pub fn copy_totals(&self) -> CopyTotals {
        self.state.copies.copy_totals()
    }

    /// Returns the same device, which calls `infer` before it resorts to a run to find sizes.
    #[must_use]
    pub fn with_infer(mut self, infer: Arc<InferExtents>) -> Self {
        self.infer = Some(infer);
        self
    }

    /// Refuses arithmetic in a type that the described device does not compute in. Tokens are drawn
    /// by the host, in whatever it has.
    fn refuse_unknown_types(&self, subgraph: &Subgraph) -> Result<(), CompileError> {
        let graph = Graph::from_subgraph(subgraph)?;
        let computing = |node: &&NodeProto| is_computation(node.op_type()) && !is_sample(node);
        for node in graph.nodes().iter().filter(computing) {
            let typed = node.input.iter().filter_map(|name| graph.dtypes.get(name));
            for &dtype in typed.filter(|dtype| dtype.is_float()) {
                if self.profile.operations_per_second(dtype).is_none() {
                    return Err(Unsupported::new(node, UnsupportedReason::DType(dtype)).into());
                }
            }
        }
        Ok(())
    }
}

impl Processor for EmulatedDevice {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        self.cpu.check_support(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::for_work(work, &self.profile)
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let program = self.cpu.compile(subgraph)?;
        self.refuse_unknown_types(subgraph)?;
        let weights = subgraph.weights.values().map(|values| values.len());
        let bytes = (subgraph.model.len() + weights.sum::<usize>()) as u64;
        self.state.loaded_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(EmulatedProgram {
            program,
            subgraph: subgraph.clone(),
            cpu: self.cpu.clone(),
            profile: self.profile.clone(),
            config: self.config,
            infer: self.infer.clone(),
            state: self.state.clone(),
            memory: self.memory.clone(),
            bytes,
            known: Mutex::default(),
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        let loaded = self.state.loaded_bytes.load(Ordering::Relaxed);
        self.profile.memory.bytes.saturating_sub(loaded)
    }

    fn utilisation(&self) -> f64 {
        self.state.busy.utilisation()
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }

    fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        self.memory
            .as_ref()
            .map(|memory| memory as &dyn DeviceMemory)
    }
}

/// A subgraph ready to run on an emulated device.
struct EmulatedProgram {
    program: Box<dyn Program>,
    subgraph: Subgraph,
    cpu: Arc<Cpu>,
    profile: Profile,
    config: EmulatedConfig,
    infer: Option<Arc<InferExtents>>,
    state: Arc<State>,
    memory: Option<EmulatedMemory>,
    bytes: u64,
    /// Estimates for sets of input shapes seen before.
    known: Mutex<BTreeMap<Vec<Vec<usize>>, Estimate>>,
}

impl Drop for EmulatedProgram {
    fn drop(&mut self) {
        self.state
            .loaded_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl EmulatedProgram {
    /// Returns the modelled time and energy of a run on these inputs.
    fn estimate_run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Estimate, RunError> {
        let shapes: Vec<Vec<usize>> = inputs.values().map(|input| input.dims().to_vec()).collect();
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(estimate) = known().get(&shapes) {
            return Ok(*estimate);
        }
        let works = self.node_works(inputs).map_err(|error| match error {
            WorkError::Run(error) => error,
            WorkError::Compile(error) => RunError::Engine {
                engine: "emulated",
                reason: error.to_string(),
            },
        })?;
        let estimates = works
            .iter()
            .map(|work| Estimate::for_work(work, &self.profile));
        let none = Estimate {
            time: Duration::ZERO,
            joules: Some(0.0),
        };
        let total = estimates.fold(none, |total, estimate| Estimate {
            time: total.time.saturating_add(estimate.time),
            joules: total
                .joules
                .zip(estimate.joules)
                .map(|(total, joules)| total + joules),
        });
        let mut known = known();
        if known.len() >= SHAPES_MAX {
            known.pop_first();
        }
        known.insert(shapes, total);
        Ok(total)
    }

    fn node_works(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<Work>, WorkError> {
        let infer = self.infer.as_ref();
        if let Some(extents) = infer.and_then(|infer| infer(&self.subgraph, inputs))
            && let Some(works) = Cpu::work_from(&self.subgraph, &extents)?
        {
            return Ok(works);
        }
        self.cpu.work_of(&self.subgraph, inputs)
    }

    /// Runs `run_it` with the time and energy that the model gives a run on these inputs.
    fn as_modelled(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        run_it: impl FnOnce() -> Result<Outcome, RunError>,
    ) -> Result<Outcome, RunError> {
        let start = Instant::now();
        let run = self.state.runs.fetch_add(1, Ordering::Relaxed);
        if random_fraction(self.config.seed, run, 0) < self.config.failures {
            return Err(RunError::Injected {
                device: self.profile.name.clone(),
                run,
            });
        }
        let outcome = run_it()?;
        let estimate = self.estimate_run(inputs)?;
        let seconds = estimate.time.as_secs_f64() * self.duration_factor(run);
        let busy = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let watts = self.profile.power.map(|power| power.busy_watts);
        let energy = watts.map(|watts| Energy {
            joules: watts * seconds,
            measured: false,
        });
        if self.config.pace == Pace::Paced {
            std::thread::sleep(busy.saturating_sub(start.elapsed()));
        }
        self.state.busy.record_busy(busy);
        Ok(Outcome {
            busy,
            energy,
            ..outcome
        })
    }

    /// Returns the duration of a run, including jitter, as a factor of the model.
    fn duration_factor(&self, run: u64) -> f64 {
        let spread = 2.0 * random_fraction(self.config.seed, run, 1) - 1.0;
        (1.0 + self.config.jitter * spread) / self.config.speed
    }
}

impl Program for EmulatedProgram {
    fn inputs(&self) -> &[Port] {
        self.program.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.program.outputs()
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        self.as_modelled(inputs, || self.program.run(inputs))
    }

    fn open_session(&self, states: Vec<SessionState>) -> Result<Box<dyn Session + '_>, RunError> {
        Ok(Box::new(EmulatedSession::new(self, states)?))
    }

    fn run_held(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let memory = self.memory.as_ref();
        let input = |(name, held): (&String, &TensorHandle)| {
            let tensor = memory.map_or_else(|| held.to_host(), |memory| memory.run_input(held));
            Ok((name.clone(), tensor?))
        };
        if let Some(memory) = memory {
            memory.pace_crossing(inputs.values());
        }
        let inputs = inputs.iter().map(input).collect::<Result<_, RunError>>()?;
        let mut outcome = self
            .run(&inputs)?
            .try_map(|tensor| Ok::<_, RunError>(TensorHandle::Host(tensor)))?;
        let Some(memory) = memory else {
            return Ok(outcome);
        };
        for (name, output) in &mut outcome.outputs {
            if let TensorHandle::Host(tensor) = output
                && kept.contains(name)
            {
                *output = TensorHandle::Device(memory.hold_tensor(tensor.clone())?);
            }
        }
        memory.pace_crossing(outcome.outputs.values());
        Ok(outcome)
    }
}

/// Returns a number from 0 to below 1 that depends only on the arguments (splitmix64).
fn random_fraction(seed: u64, run: u64, purpose: u64) -> f64 {
    let mut word = seed
        .wrapping_add(run.wrapping_mul(2).wrapping_add(purpose).wrapping_add(1))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ (word >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::OperatorSetIdProto;
    use souk_onnx::custom::DOMAIN;
    use souk_onnx::sampling::{OPERATOR, Sampling};
    use souk_onnx::states::StatePort;
    use souk_testing::{matmul_subgraph, model, named_tensors, node, product_inputs, subgraph};
    use souk_vocabulary::profile::Throughput;

    use super::*;

    /// The CPU that results are held against.
    fn cpu() -> Cpu {
        Cpu::new(souk_testing::cpu_profile(), std::num::NonZeroUsize::MIN)
    }

    fn device(config: EmulatedConfig) -> EmulatedDevice {
        let cpu = Arc::new(cpu());
        let mut profile = cpu.profile().clone();
        let rate = Throughput {
            operations_per_second: 8.0,
            sparse: false,
            measured: false,
        };
        profile.throughput.insert(DType::F32, rate);
        profile.power = Some(souk_vocabulary::profile::Power {
            idle_watts: None,
            busy_watts: 10.0,
        });
        EmulatedDevice::new(profile, cpu, config).unwrap()
    }

    fn at_once() -> EmulatedConfig {
        EmulatedConfig {
            pace: Pace::Virtual,
            ..EmulatedConfig::default()
        }
    }

    #[test]
    fn results_are_the_cpus_and_time_and_energy_the_profiles() {
        let device = device(at_once());
        assert!(device.profile().emulated);
        let program = device.compile(&matmul_subgraph()).unwrap();
        let outcome = program.run(&product_inputs()).unwrap();
        assert_eq!(outcome.outputs["y"].to_vec::<f32>().unwrap(), [13.0, 24.0]);
        // 8 operations at 8 a second, 10 watts.
        assert_eq!(outcome.busy, Duration::from_secs(1));
        assert_eq!(
            outcome.energy,
            Some(Energy {
                joules: 10.0,
                measured: false
            })
        );
    }

    #[test]
    fn a_slower_device_takes_longer_and_a_paced_one_makes_wait() {
        let slow = EmulatedConfig {
            speed: 0.5,
            ..at_once()
        };
        let program = device(slow).compile(&matmul_subgraph()).unwrap();
        assert_eq!(
            program.run(&product_inputs()).unwrap().busy,
            Duration::from_secs(2)
        );
        let quick = EmulatedConfig {
            speed: 50.0,
            ..EmulatedConfig::default()
        };
        let program = device(quick).compile(&matmul_subgraph()).unwrap();
        let start = Instant::now();
        program.run(&product_inputs()).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn failures_are_those_of_the_seed() {
        let failing = EmulatedConfig {
            failures: 0.5,
            seed: 7,
            ..at_once()
        };
        let outcomes = || {
            let program = device(failing).compile(&matmul_subgraph()).unwrap();
            let failed = |_| program.run(&product_inputs()).is_err();
            (0..32).map(failed).collect::<Vec<bool>>()
        };
        let first = outcomes();
        assert_eq!(first, outcomes());
        assert!(first.contains(&true) && first.contains(&false));
    }

    #[test]
    fn jitter_stays_in_its_range_around_the_model_and_is_that_of_the_seed() {
        const RUNS: usize = 2000;
        let uneven = |seed| EmulatedConfig {
            jitter: 0.2,
            seed,
            ..at_once()
        };
        let times = |seed| {
            let program = device(uneven(seed)).compile(&matmul_subgraph()).unwrap();
            let run = |_| program.run(&product_inputs()).unwrap().busy.as_secs_f64();
            (0..RUNS).map(run).collect::<Vec<f64>>()
        };
        let first = times(7);
        assert!(first.iter().all(|time| (0.8..=1.2).contains(time)));
        let (least, most) = (first.iter().copied()).fold((f64::MAX, 0.0), |(least, most), time| {
            (f64::min(least, time), f64::max(most, time))
        });
        assert!(least < 0.81 && most > 1.19, "{least} to {most}");
        // An even spread of 0.4 has a deviation of 0.4 / sqrt 12: the mean's is a 45th of that.
        let mean = first.iter().sum::<f64>() / RUNS as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert_eq!(first, times(7));
        assert_ne!(first, times(8));
    }

    #[test]
    fn as_many_runs_fail_as_is_said() {
        const RUNS: usize = 2000;
        let failing = EmulatedConfig {
            failures: 0.3,
            seed: 7,
            ..at_once()
        };
        let program = device(failing).compile(&matmul_subgraph()).unwrap();
        let failed = (0..RUNS).filter(|_| program.run(&product_inputs()).is_err());
        let part = failed.count() as f64 / RUNS as f64;
        assert!((part - 0.3).abs() < 0.04, "{part}");
    }

    #[test]
    fn memory_is_taken_by_programs_and_given_back() {
        let device = device(at_once());
        let free = device.memory_free_bytes();
        let program = device.compile(&matmul_subgraph()).unwrap();
        assert!(device.memory_free_bytes() < free);
        drop(program);
        assert_eq!(device.memory_free_bytes(), free);
    }

    #[test]
    fn a_session_takes_the_profiles_time_and_memory_and_gives_the_memory_back() {
        let device = device(at_once());
        let program = device.compile(&matmul_subgraph()).unwrap();
        let given = product_inputs();
        let (name, first) = given.first_key_value().unwrap();
        let port = StatePort {
            input: name.clone(),
            output: "y".to_owned(),
        };
        let state = SessionState {
            port,
            value: first.clone(),
        };
        let free = device.memory_free_bytes();
        let held = first.bytes().len() as u64;
        let mut session = program.open_session(vec![state]).unwrap();
        let step = session.step(&BTreeMap::new()).unwrap();
        assert_eq!(device.memory_free_bytes(), free - held);
        assert!(step.outputs.is_empty(), "states stay where they are");
        // 8 operations at 8 a second, 10 watts: a run's.
        assert_eq!(step.busy, Duration::from_secs(1));
        assert_eq!(step.energy.map(|it| it.joules), Some(10.0));
        let kept = session.export_states(0).unwrap();
        assert_eq!(kept[name].to_vec::<f32>().unwrap(), [13.0, 24.0]);
        drop(session);
        assert_eq!(device.memory_free_bytes(), free);
    }

    #[test]
    fn a_device_without_the_type_refuses_it_by_name() {
        let device = device(at_once());
        let mut profile = device.profile().clone();
        profile.throughput.clear();
        let rate = Throughput {
            operations_per_second: 1e12,
            sparse: false,
            measured: false,
        };
        profile.throughput.insert(DType::I8, rate);
        let device = EmulatedDevice::new(profile, Arc::new(cpu()), at_once()).unwrap();
        let refused = device.compile(&matmul_subgraph()).err().unwrap();
        assert!(
            refused
                .to_string()
                .ends_with("is not supported: not in f32"),
            "{refused}"
        );
    }

    #[test]
    fn a_device_of_no_doubles_draws_tokens_by_numbers_that_are() {
        let device = device(at_once());
        assert!(device.profile().operations_per_second(DType::F64).is_none());
        let mut sample = node(OPERATOR, &["logits", "sampling"], &["drawn"]);
        sample.domain = Some(DOMAIN.to_owned());
        let inputs = [("logits", DType::F32), ("sampling", DType::F64)];
        let mut drawing = model(vec![sample], &inputs, &[("drawn", DType::I64)], &[]);
        drawing.opset_import.push(OperatorSetIdProto {
            domain: Some(DOMAIN.to_owned()),
            version: Some(1),
        });
        let numbers = Sampling::default().to_numbers(0);
        let given = named_tensors(&[
            (
                "logits",
                Tensor::from_vec([1, 3], vec![0f32, 2.0, 1.0]).unwrap(),
            ),
            (
                "sampling",
                Tensor::from_vec([numbers.len()], numbers).unwrap(),
            ),
        ]);
        let program = device.compile(&subgraph(&drawing)).unwrap();
        let drawn = program.run(&given).unwrap();
        assert_eq!(drawn.outputs["drawn"].to_vec::<i64>().unwrap(), [1]);
    }

    #[test]
    fn a_speed_of_nothing_is_refused() {
        let config = EmulatedConfig {
            speed: 0.0,
            ..at_once()
        };
        assert_eq!(config.validate(), Err(EmulatedConfigError::Speed(0.0)));
    }
}
