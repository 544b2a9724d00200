//! Simulates a device with its own memory for tests. It counts the transfers of tensors; tests can
//! delay or break its paths, and limit its memory.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Condvar, Mutex};

use souk_memory::Shape;
use souk_onnx::subgraph::{Port, Subgraph, UnsupportedReason};
use souk_onnx::work::Work;
use souk_vocabulary::processor::{Estimate, Outcome, Program, RunError};
use souk_vocabulary::residency::{DeviceMemory, Resident, TensorHandle};

use super::*;

/// A path over PCI Express, and one over a direct link that is worth using for tensors of more than
/// some 100 kB.
pub const PCIE: Path = Path {
    kind: PathKind::Pcie {
        generation: 5,
        lanes: 16,
    },
    latency: Duration::from_micros(5),
    bytes_per_second: 64e9,
};
pub const LINK: Path = Path {
    kind: PathKind::NvLink,
    latency: Duration::from_micros(2),
    bytes_per_second: 450e9,
};

/// The properties of a card.
#[derive(Clone, Debug)]
pub struct Traits {
    /// Operators that it can run; empty if it can run all.
    pub operators: Vec<&'static str>,
    /// An operator that it refuses in a subgraph without other operators.
    pub never_alone: Option<&'static str>,
    /// Whether tensors stay in a memory of its own.
    pub own: bool,
    /// Cards of the same group are linked.
    pub group: Option<u8>,
    /// Bytes that its memory holds.
    pub room: u64,
    /// The run in which it is lost, from 0.
    pub fails_at: Option<u64>,
    /// The run in which it finds no room, and the next one.
    pub full_at: Option<u64>,
    /// Bytes of a weight that it has room for, and of all its programs.
    pub weight_room: u64,
    pub program_room: u64,
    /// Whether times are its own.
    pub emulated: bool,
    /// The stated operations per second, and the factor by which it is really faster.
    pub speed: f64,
    pub really: f64,
    /// Cores of this machine that it says to compute on.
    pub cores: usize,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            operators: Vec::new(),
            never_alone: None,
            own: true,
            group: None,
            room: 1 << 30,
            fails_at: None,
            full_at: None,
            weight_room: u64::MAX,
            program_room: u64::MAX,
            emulated: true,
            speed: slow().operations_per_second,
            really: 1.0,
            cores: 0,
        }
    }
}

/// The transfers that a card has seen, in bytes, and its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By [`DeviceMemory::put`].
    pub put: u64,
    /// By [`DeviceMemory::take`].
    pub taken: u64,
    /// By [`Resident::to_host`].
    pub read: u64,
    /// With a run, from the host and to it.
    pub with_runs: (u64, u64),
    /// Times that tensors were put, taken or read, one or several together.
    pub operations: u64,
    /// Programs that were made ready.
    pub compiled: u64,
}

/// Lets the first callers pass, and makes later ones wait until the test lets more pass.
pub struct Gate {
    /// How many callers have come, and how many can pass.
    state: Mutex<(u64, u64)>,
    rung: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            state: Mutex::new((0, u64::MAX)),
            rung: Condvar::new(),
        }
    }
}

impl Gate {
    /// Lets `count` callers pass, counted from the beginning.
    pub fn let_pass(&self, count: u64) {
        lock(&self.state).1 = count;
        self.rung.notify_all();
    }

    /// Waits until `count` callers have come since the beginning, including those that wait.
    pub fn until_came(&self, count: u64) {
        let state = lock(&self.state);
        let waited = self.rung.wait_while(state, |state| state.0 < count);
        drop(waited.unwrap());
    }

    /// Returns how many callers have come.
    pub fn came(&self) -> u64 {
        lock(&self.state).0
    }

    fn pass(&self) {
        let mut state = lock(&self.state);
        state.0 += 1;
        let own = state.0;
        self.rung.notify_all();
        drop(self.rung.wait_while(state, |state| state.1 < own).unwrap());
    }
}

#[derive(Default)]
struct Inner {
    label: String,
    group: Option<u8>,
    room: AtomicU64,
    used: AtomicU64,
    /// Bytes of its programs.
    loaded: AtomicU64,
    seen: Mutex<Seen>,
    runs: AtomicU64,
    broken: AtomicBool,
    /// The factor by which its runs take longer than at first; 0 means 1.
    slower: AtomicU32,
    /// The gate of tensors that come by put or take.
    into: Gate,
    /// The gate of runs.
    running: Gate,
}

/// A simulated device with its own memory.
#[derive(Clone)]
pub struct Card {
    inner: Arc<Inner>,
    device: Arc<EmulatedDevice>,
    profile: Profile,
    traits: Traits,
}

/// Its memory.
struct CardMemory(Arc<Inner>);

#[derive(Debug)]
struct CardTensor {
    tensor: Tensor,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.label)
    }
}

impl Card {
    pub fn new(label: &str, traits: Traits) -> Self {
        let mut profile = profile();
        profile.emulated = traits.emulated;
        label.clone_into(&mut profile.model);
        let speed = Throughput {
            operations_per_second: traits.speed,
            ..slow()
        };
        profile.throughput.insert(DType::F32, speed);
        profile.memory.bytes = traits.room;
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            speed: traits.really,
            ..EmulatedConfig::default()
        };
        let inner = Inner {
            label: label.to_owned(),
            group: traits.group,
            room: AtomicU64::new(traits.room),
            ..Inner::default()
        };
        Self {
            inner: Arc::new(inner),
            device: Arc::new(EmulatedDevice::new(profile.clone(), cpu, config).unwrap()),
            profile,
            traits,
        }
    }

    pub fn member(&self) -> GroupDevice {
        GroupDevice {
            label: self.inner.label.clone(),
            processor: Arc::new(WithMemory {
                memory: CardMemory(self.inner.clone()),
                card: self.clone(),
            }),
        }
    }

    pub fn seen(&self) -> Seen {
        *lock(&self.inner.seen)
    }

    pub fn used(&self) -> u64 {
        self.inner.used.load(Ordering::SeqCst)
    }

    pub fn entry(&self) -> &Gate {
        &self.inner.into
    }

    pub fn running(&self) -> &Gate {
        &self.inner.running
    }

    /// Makes all later runs take `times` as long as at first.
    pub fn slow_down(&self, times: u32) {
        self.inner.slower.store(times, Ordering::SeqCst);
    }

    /// Repairs the card after a loss.
    pub fn mend(&self) {
        self.inner.broken.store(false, Ordering::SeqCst);
    }

    /// From now on it has less room than it says.
    pub fn shrink(&self, room: u64) {
        self.inner.room.store(room, Ordering::SeqCst);
    }
}

impl Inner {
    fn note(&self, moved: impl FnOnce(&mut Seen)) {
        let mut seen = lock(&self.seen);
        moved(&mut seen);
        seen.operations += 1;
    }

    fn check(&self) -> Result<(), RunError> {
        match self.broken.load(Ordering::SeqCst) {
            true => Err(RunError::DeviceLost {
                device: self.label.clone(),
            }),
            false => Ok(()),
        }
    }

    fn hold(self: &Arc<Self>, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError> {
        self.check()?;
        let bytes = tensor.bytes().len() as u64;
        let room = self.room.load(Ordering::SeqCst);
        let used = self.used.fetch_add(bytes, Ordering::SeqCst);
        if used + bytes > room {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            return Err(RunError::OutOfMemory {
                device: self.label.clone(),
                bytes,
                free: room.saturating_sub(used),
            });
        }
        Ok(Arc::new(CardTensor {
            tensor: tensor.clone(),
            inner: self.clone(),
        }))
    }
}

impl Drop for CardTensor {
    fn drop(&mut self) {
        let bytes = self.tensor.bytes().len() as u64;
        self.inner.used.fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Resident for CardTensor {
    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn shape(&self) -> &Shape {
        self.tensor.shape()
    }

    fn bytes(&self) -> u64 {
        self.tensor.bytes().len() as u64
    }

    fn to_host(&self) -> Result<Tensor, RunError> {
        self.inner.check()?;
        self.inner.note(|seen| seen.read += self.bytes());
        Ok(self.tensor.clone())
    }
}

fn of_card(resident: &dyn Resident) -> &CardTensor {
    let any: &dyn Any = resident;
    any.downcast_ref().expect("only cards are linked")
}

fn bytes_of(residents: &[Arc<dyn Resident>]) -> u64 {
    residents.iter().map(|resident| resident.bytes()).sum()
}

impl DeviceMemory for CardMemory {
    fn host_link(&self) -> Path {
        PCIE
    }

    fn peer_link(&self, other: &dyn DeviceMemory) -> Option<Path> {
        let any: &dyn Any = other;
        let other = any.downcast_ref::<Self>()?;
        (self.0.group.is_some() && self.0.group == other.0.group).then_some(LINK)
    }

    fn copy_from_host(&self, tensor: &Tensor) -> Result<Arc<dyn Resident>, RunError> {
        self.0.into.pass();
        let held = self.0.hold(tensor)?;
        self.0.note(|seen| seen.put += held.bytes());
        Ok(held)
    }

    fn put_all(&self, tensors: &[Tensor]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        self.0.into.pass();
        let held = tensors.iter().map(|tensor| self.0.hold(tensor));
        let held: Vec<Arc<dyn Resident>> = held.collect::<Result<_, _>>()?;
        self.0.note(|seen| seen.put += bytes_of(&held));
        Ok(held)
    }

    fn read_all(&self, residents: &[Arc<dyn Resident>]) -> Result<Vec<Tensor>, RunError> {
        self.0.check()?;
        self.0.note(|seen| seen.read += bytes_of(residents));
        let own = residents.iter().map(|resident| of_card(&**resident));
        Ok(own.map(|own| own.tensor.clone()).collect())
    }

    fn take_all(&self, from: &[Arc<dyn Resident>]) -> Result<Vec<Arc<dyn Resident>>, RunError> {
        self.0.into.pass();
        let mut held = Vec::new();
        for from in from.iter().map(|resident| of_card(&**resident)) {
            from.inner.check()?;
            held.push(self.0.hold(&from.tensor)?);
        }
        self.0.note(|seen| seen.taken += bytes_of(&held));
        Ok(held)
    }

    fn copy_from_peer(&self, from: &dyn Resident) -> Result<Arc<dyn Resident>, RunError> {
        self.0.into.pass();
        let from = of_card(from);
        from.inner.check()?;
        let held = self.0.hold(&from.tensor)?;
        self.0.note(|seen| seen.taken += from.bytes());
        Ok(held)
    }
}

struct WithMemory {
    memory: CardMemory,
    card: Card,
}

impl Processor for WithMemory {
    fn profile(&self) -> &Profile {
        &self.card.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        let operators = &self.card.traits.operators;
        match operators.is_empty() || operators.contains(&node.op_type()) {
            true => self.card.device.check_support(node),
            false => Err(Unsupported::new(node, UnsupportedReason::Operator)),
        }
    }

    fn estimate(&self, work: &Work) -> Estimate {
        self.card.device.estimate(work)
    }

    fn host_cores(&self) -> usize {
        self.card.traits.cores
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let graph = onnx::decode_model(subgraph.model.clone())?
            .graph
            .unwrap_or_default();
        let never = self.card.traits.never_alone;
        if graph.node.iter().all(|node| Some(node.op_type()) == never) {
            let reason = UnsupportedReason::Engine("it has no work here".to_owned());
            return Err(Unsupported::new(&graph.node[0], reason).into());
        }
        let sizes = subgraph.weights.values().map(|weight| weight.len() as u64);
        let all = subgraph.model.len() as u64 + sizes.clone().sum::<u64>();
        let loaded = self.card.inner.loaded.load(Ordering::SeqCst);
        let left = self.card.traits.program_room.saturating_sub(loaded);
        let largest = (sizes.max().unwrap_or(0), self.card.traits.weight_room);
        for (bytes, free) in [largest, (all, left)] {
            if bytes > free {
                return Err(CompileError::OutOfMemory {
                    device: self.profile().name.clone(),
                    bytes,
                    free,
                });
            }
        }
        let program = self.card.device.compile(subgraph)?;
        lock(&self.card.inner.seen).compiled += 1;
        self.card.inner.loaded.fetch_add(all, Ordering::SeqCst);
        Ok(Box::new(CardProgram {
            program,
            card: self.card.clone(),
            bytes: all,
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        let inner = &self.card.inner;
        let traits = &self.card.traits;
        let free = |of: u64, used: &AtomicU64| of.saturating_sub(used.load(Ordering::SeqCst));
        free(traits.room, &inner.used).min(free(traits.program_room, &inner.loaded))
    }

    fn utilisation(&self) -> f64 {
        0.0
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }

    fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        self.card.traits.own.then_some(&self.memory)
    }
}

struct CardProgram {
    program: Box<dyn Program>,
    card: Card,
    bytes: u64,
}

impl Drop for CardProgram {
    fn drop(&mut self) {
        let loaded = &self.card.inner.loaded;
        loaded.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl CardProgram {
    /// Returns the present duration of a run that took `time` at first.
    fn took(&self, time: Duration) -> Duration {
        time * self.card.inner.slower.load(Ordering::SeqCst).max(1)
    }

    /// Counts a run; in its last one the card is lost.
    fn begin(&self) -> Result<(), RunError> {
        let inner = &self.card.inner;
        inner.running.pass();
        let run = inner.runs.fetch_add(1, Ordering::SeqCst);
        if Some(run) == self.card.traits.fails_at {
            inner.broken.store(true, Ordering::SeqCst);
        }
        let full_at = self.card.traits.full_at;
        if full_at.is_some_and(|first| (first..=first + 1).contains(&run)) {
            return Err(RunError::OutOfMemory {
                device: inner.label.clone(),
                bytes: own_memory::TENSOR,
                free: 0,
            });
        }
        inner.check()
    }
}

impl Program for CardProgram {
    fn inputs(&self) -> &[Port] {
        self.program.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.program.outputs()
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        self.begin()?;
        let mut outcome = self.program.run(inputs)?;
        outcome.busy = self.took(outcome.busy);
        if self.card.traits.own {
            let mut seen = lock(&self.card.inner.seen);
            seen.with_runs.0 += bytes_of_all(inputs);
            seen.with_runs.1 += bytes_of_all(&outcome.outputs);
        }
        Ok(outcome)
    }

    fn run_held(
        &self,
        inputs: &BTreeMap<String, TensorHandle>,
        kept: &BTreeSet<String>,
    ) -> Result<Outcome<TensorHandle>, RunError> {
        self.begin()?;
        let inner = &self.card.inner;
        let mut with_run = (0, 0);
        let input = |(name, held): (&String, &TensorHandle)| {
            let tensor = match held {
                TensorHandle::Host(tensor) => {
                    with_run.0 += tensor.bytes().len() as u64;
                    tensor.clone()
                }
                TensorHandle::Device(resident) => {
                    let resident = of_card(&**resident);
                    assert!(Arc::ptr_eq(&resident.inner, inner), "it lies here");
                    resident.tensor.clone()
                }
            };
            (name.clone(), tensor)
        };
        let inputs: BTreeMap<String, Tensor> = inputs.iter().map(input).collect();
        let outcome = self.program.run(&inputs)?;
        let mut outputs = BTreeMap::new();
        for (name, tensor) in outcome.outputs {
            let held = match kept.contains(&name) {
                true => TensorHandle::Device(inner.hold(&tensor)?),
                false => {
                    with_run.1 += tensor.bytes().len() as u64;
                    TensorHandle::Host(tensor)
                }
            };
            outputs.insert(name, held);
        }
        let mut seen = lock(&inner.seen);
        seen.with_runs.0 += with_run.0;
        seen.with_runs.1 += with_run.1;
        Ok(Outcome {
            outputs,
            busy: self.took(outcome.busy),
            energy: outcome.energy,
            operators: outcome.operators,
            engine: outcome.engine,
        })
    }
}
