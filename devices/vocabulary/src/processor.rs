//! Defines the interface that every backend implements: a [`Processor`] describes its capabilities
//! and compiles a subgraph to a [`Program`], which runs it.
//!
//! A processor must refuse everything that it cannot do in [`Processor::compile`], before the buyer
//! pays. A compiled program must return correct results or an error, never a wrong number.

pub mod session;
pub mod stepped_session;

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
    /// Returns the processor's description and speed.
    fn profile(&self) -> &Profile;

    /// Checks that the processor has this operator. A node that passes can still fail in
    /// [`Processor::compile`], which also checks types and shapes.
    ///
    /// # Errors
    /// [`Unsupported`], with the reason.
    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported>;

    /// Returns the time and energy that some work should take.
    fn estimate(&self, work: &Work) -> Estimate;

    /// Compiles a subgraph, which you can then run any number of times.
    ///
    /// # Errors
    /// [`CompileError`] names the malformed, missing or unsupported part.
    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError>;

    /// Compiles a subgraph that you do not need any more: a device can drop each weight once it has
    /// converted it, so that memory holds each weight once.
    ///
    /// # Errors
    /// See [`Self::compile`].
    fn compile_owned(&self, subgraph: Subgraph) -> Result<Box<dyn Program>, CompileError> {
        self.compile(&subgraph)
    }

    /// Returns the free bytes of its memory. Other users of the memory can take them at any time,
    /// so [`Processor::compile`] can still run out of memory.
    fn memory_free_bytes(&self) -> u64;

    /// Returns the busy part of the processor, 0 to 1, since the last call.
    fn utilisation(&self) -> f64;

    /// Returns the joules that its meter has counted; `None` if it has no meter.
    fn meter_joules(&self) -> Option<f64>;

    /// Returns how many of this machine's cores it computes on, which other devices may compete
    /// for; 0 if it computes by itself, or its time is modelled.
    fn host_cores(&self) -> usize {
        0
    }

    /// Returns the device's own memory, where tensors can stay between runs; `None` if it works in
    /// the host's memory.
    fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        None
    }
}

/// A compiled subgraph.
pub trait Program: Send + Sync {
    /// Returns the inputs that the program takes.
    fn inputs(&self) -> &[Port];

    /// Returns the outputs that the program computes.
    fn outputs(&self) -> &[Port];

    /// Runs the program once.
    ///
    /// # Errors
    /// [`RunError`] if an input does not fit or the run failed.
    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError>;

    /// Runs once with inputs that can be in the device's memory, and leaves the outputs named in
    /// `kept` there. A device that works in the host's memory returns all outputs there.
    ///
    /// # Errors
    /// See [`Self::run`].
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

    /// Runs as [`Self::run_held`] with `states`, inputs that have no other reader: a device may
    /// overwrite them with their next values. A run that fails may leave data in positions that the
    /// caches do not count yet.
    ///
    /// # Errors
    /// See [`Self::run`].
    fn run_in_place(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
        states: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        let _ = states;
        self.run_held(inputs, kept)
    }

    /// Opens a session whose sequences begin with these states. States that one session exports, on
    /// this device or another, can begin the next.
    ///
    /// # Errors
    /// [`RunError`] if a state does not fit or the device has no room.
    fn open_session(&self, states: Vec<State>) -> Result<Box<dyn Session + '_>, RunError> {
        Ok(Box::new(HeldSession::new(self, states)))
    }
}

/// The results and costs of a run.
#[derive(Clone, Debug)]
pub struct Outcome<T = Tensor> {
    /// Outputs by name.
    pub outputs: BTreeMap<String, T>,
    /// Time that the device worked, by its own account; modelled if it is emulated.
    pub busy: Duration,
    /// Energy that the run used, if known.
    pub energy: Option<Energy>,
    /// Number of operators run.
    pub operators: u64,
    /// The engine that computed the outputs.
    pub engine: Engine,
}

impl<T> Outcome<T> {
    /// Converts each output with `make`.
    ///
    /// # Errors
    /// The first error of `make`.
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

/// The engines of a device; a device can have several, each of which can run a subgraph.
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

/// An amount of energy, and whether a meter counted it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Joules.
    pub joules: f64,
    /// Whether a meter counted them; otherwise they are modelled from power and time.
    pub measured: bool,
}

/// Reasons why the work of a subgraph could not be computed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkError {
    /// The subgraph does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The subgraph does not run.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<Unsupported> for WorkError {
    fn from(unsupported: Unsupported) -> Self {
        Self::Compile(unsupported.into())
    }
}

impl Estimate {
    /// Estimates time and energy of some work on a device: launches, and the slower of arithmetic
    /// and memory. Arithmetic in a type that the device cannot compute in will take
    /// [`Duration::MAX`].
    #[must_use]
    pub fn for_work(work: &Work, profile: &Profile) -> Self {
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
    /// Returns the energy of a run: the difference of two meter readings, or, without a meter, the
    /// device's power times `busy`.
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

/// The estimated cost of some work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Time from start to end.
    pub time: Duration,
    /// Joules, if the device's power is known.
    pub joules: Option<f64>,
}

/// Checks inputs against a program's ports: each port must have an input of its type and shape, and
/// there must be no others.
///
/// # Errors
/// The `Input…` cases of [`RunError`].
pub fn check_inputs(ports: &[Port], inputs: &BTreeMap<String, Tensor>) -> Result<(), RunError> {
    check_each(ports, inputs, |tensor| (tensor.dtype(), tensor.shape()))
}

/// Checks inputs as [`check_inputs`], in any memory.
///
/// # Errors
/// See [`check_inputs`].
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
    if !port.accepts_dims(shape.dims()) {
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
