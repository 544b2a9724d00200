//! The contract of a backend: a processor says what it is and can run, compiles a subgraph, and
//! runs it.
//!
//! Everything a processor cannot do it refuses in [`Processor::compile`], before anything is
//! bought; a program that compiled gives right results or an error, never a wrong number.

pub mod session;
pub mod stepping;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_memory::{DType, Shape, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported};
use souk_onnx::work::Work;
use thiserror::Error;

use crate::profile::{Power, Profile};
use crate::residency::{DeviceMemory, TensorHandle};
pub use crate::run_error::RunError;
use session::{HeldSession, Session, State};

/// A device that runs subgraphs.
pub trait Processor: Send + Sync {
    /// What it is, and how fast.
    fn profile(&self) -> &Profile;

    /// Whether it has an operator at all; types and shapes are judged by [`Processor::compile`].
    ///
    /// # Errors
    /// [`Unsupported`], with the reason.
    fn supports(&self, node: &NodeProto) -> Result<(), Unsupported>;

    /// The time and energy some work should take.
    fn estimate(&self, work: &Work) -> Estimate;

    /// Makes a subgraph ready to run, as often as wanted.
    ///
    /// # Errors
    /// [`CompileError`]: what is malformed, missing or unsupported, by name.
    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError>;

    /// The same for a subgraph that nobody else needs: a device may let go of each weight as soon
    /// as it has it in a form of its own, so that weights are in memory once.
    ///
    /// # Errors
    /// As [`Self::compile`].
    fn compile_owned(&self, subgraph: Subgraph) -> Result<Box<dyn Program>, CompileError> {
        self.compile(&subgraph)
    }

    /// Bytes of its memory that are free.
    fn memory_free_bytes(&self) -> u64;

    /// The part of it at work, 0 to 1, since this was last asked.
    fn utilisation(&self) -> f64;

    /// Joules its meter has counted; `None` where there is no meter.
    fn meter_joules(&self) -> Option<f64>;

    /// How many of this machine's cores it computes on, which others may want as well; none where
    /// it computes by itself, or its time is modelled.
    fn cores(&self) -> usize {
        0
    }

    /// Memory of its own, in which tensors may stay from one run to another; `None` where it works
    /// in the host's.
    fn memory(&self) -> Option<&dyn DeviceMemory> {
        None
    }
}

/// A compiled subgraph.
pub trait Program: Send + Sync {
    /// The inputs it takes.
    fn inputs(&self) -> &[Port];

    /// The outputs it gives.
    fn outputs(&self) -> &[Port];

    /// Runs once.
    ///
    /// # Errors
    /// [`RunError`]: an input that does not fit, or why the run failed.
    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError>;

    /// Runs once with inputs that may lie in the device's memory, and leaves those outputs there
    /// that are named in `kept`. A device that works in the host's memory gives all of them there.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_held(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let _ = kept;
        let on_host = inputs
            .iter()
            .map(|(name, held)| Ok((name.clone(), held.to_host()?)))
            .collect::<Result<_, RunError>>()?;
        self.run(&on_host)?
            .try_map(|tensor| Ok(TensorHandle::Host(tensor)))
    }

    /// The same with states, inputs that nobody else reads: a device may write their next values
    /// over them, where a run that fails leaves what its caches do not count yet.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_over(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
        states: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let _ = states;
        self.run_held(inputs, kept)
    }

    /// A session whose sequences begin with these states. What is exported from one, of this device
    /// or of another, begins the next.
    ///
    /// # Errors
    /// [`RunError`]: a state that does not fit, or why there is no room.
    fn session(&self, states: Vec<State>) -> Result<Box<dyn Session + '_>, RunError> {
        Ok(Box::new(HeldSession::new(self, states)))
    }
}

/// What a run gave and took.
#[derive(Clone, Debug)]
pub struct Outcome<T = Tensor> {
    /// Outputs by name.
    pub outputs: BTreeMap<String, T>,
    /// Time the device worked, by its own account: modelled if it is emulated.
    pub busy: Duration,
    /// Energy it used, if known.
    pub energy: Option<Energy>,
    /// Operators run.
    pub operators: u64,
    /// What computed them.
    pub engine: Engine,
}

impl<T> Outcome<T> {
    /// The same with something else made of each output.
    ///
    /// # Errors
    /// The first that making one gives.
    pub fn try_map<U, E>(self, make: impl Fn(T) -> Result<U, E>) -> Result<Outcome<U>, E> {
        let outputs = self.outputs.into_iter();
        let outputs = outputs.map(|(name, output)| Ok((name, make(output)?)));
        Ok(Outcome {
            outputs: outputs.collect::<Result<_, E>>()?,
            busy: self.busy,
            energy: self.energy,
            operators: self.operators,
            engine: self.engine,
        })
    }
}

/// What computes on a device: a subgraph may be run by one or another.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Kernels and engines that are part of this program.
    #[default]
    Own,
    /// A library of ONNX Runtime.
    OnnxRuntime,
}

/// An amount of energy, and whether a meter said so.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Joules.
    pub joules: f64,
    /// Whether a meter counted them; else they are modelled from power and time.
    pub measured: bool,
}

/// Why the work of a subgraph could not be told.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkError {
    /// It does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It does not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<Unsupported> for WorkError {
    fn from(unsupported: Unsupported) -> Self {
        Self::Compile(unsupported.into())
    }
}

impl Estimate {
    /// Time and energy of some work on a device: launches, and the slower of arithmetic and
    /// memory. Arithmetic in a type the device does not compute in takes for ever.
    #[must_use]
    pub fn of(work: &Work, profile: &Profile) -> Self {
        let rate = work
            .dtype
            .and_then(|dtype| profile.operations_per_second(dtype));
        let arithmetic = match (work.operations, rate) {
            (0, _) => 0.0,
            (operations, Some(rate)) => operations as f64 / rate,
            (_, None) => f64::INFINITY,
        };
        let bytes = work.bytes_read.saturating_add(work.bytes_written);
        let memory = bytes as f64 / profile.memory.bytes_per_second;
        let launch = profile.launch.as_secs_f64() * work.launches as f64;
        let seconds = launch + arithmetic.max(memory);
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let joules = profile
            .power
            .map(|power| power.busy_watts * time.as_secs_f64());
        Self { time, joules }
    }
}

impl Energy {
    /// That of a run: by what a meter showed before and after it, else by the device's power.
    #[must_use]
    pub fn of_run(shown: Option<(f64, f64)>, power: Option<Power>, busy: Duration) -> Option<Self> {
        let measured = shown.map(|(before, after)| Self {
            joules: after - before,
            measured: true,
        });
        let modelled = power.map(|power| Self {
            joules: power.busy_watts * busy.as_secs_f64(),
            measured: false,
        });
        measured.or(modelled)
    }
}

/// What some work should take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Time from start to end.
    pub time: Duration,
    /// Joules, if the device's power is known.
    pub joules: Option<f64>,
}

/// Checks inputs against a program's ports: all there, none unknown, types and shapes right.
///
/// # Errors
/// The `Input…` cases of [`RunError`].
pub fn check_inputs(ports: &[Port], inputs: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
    check_each(ports, inputs, |tensor| (tensor.dtype(), tensor.shape()))
}

/// The same for inputs wherever they lie.
///
/// # Errors
/// As [`check_inputs`].
pub fn check_held(ports: &[Port], inputs: &BTreeMap<String, TensorHandle>) -> Result<(), RunError> {
    check_each(ports, inputs, |held| (held.dtype(), held.shape()))
}

fn check_each<T>(
    ports: &[Port],
    inputs: &BTreeMap<String, T>,
    of: impl Fn(&T) -> (DType, &Shape),
) -> Result<(), RunError> {
    if let Some(name) = inputs
        .keys()
        .find(|name| !ports.iter().any(|port| port.name == **name))
    {
        let known = ports.iter().map(|port| port.name.clone()).collect();
        return Err(RunError::InputUnknown {
            name: name.clone(),
            known,
        });
    }
    ports
        .iter()
        .try_for_each(|port| check_input(port, inputs.get(&port.name).map(&of)))
}

fn check_input(port: &Port, input: Option<(DType, &Shape)>) -> Result<(), RunError> {
    let name = || port.name.clone();
    let Some((dtype, shape)) = input else {
        return Err(RunError::InputMissing {
            name: name(),
            dtype: port.dtype,
        });
    };
    if dtype != port.dtype {
        let (expected, found) = (port.dtype, dtype);
        return Err(RunError::InputDType {
            name: name(),
            expected,
            found,
        });
    }
    if !port.accepts(shape.dims()) {
        let (expected, found) = (port.shape_text(), shape.clone());
        return Err(RunError::InputShape {
            name: name(),
            expected,
            found,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_goes_before_what_a_device_is_said_to_draw() {
        let power = Some(Power {
            idle_watts: None,
            busy_watts: 10.0,
        });
        let of = |shown, power| Energy::of_run(shown, power, Duration::from_secs(2));
        let energy = |joules, measured| Some(Energy { joules, measured });
        assert_eq!(of(Some((5.0, 8.0)), power), energy(3.0, true));
        assert_eq!(of(None, power), energy(20.0, false));
        assert_eq!(of(None, None), None);
    }
}
