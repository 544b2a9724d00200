//! WebAssembly kernels: modules of a buyer's own, which run without imports and within limits.
//!
//! A module takes tensors and returns tensors. It has no clock, no randomness, no file and no
//! access to anything outside. NaN has one form, threads and relaxed instructions are off, and the
//! engine counts fuel in the module's own instructions, so every machine gives the same result or
//! the same end. Where a process may execute memory, the engine compiles a module for this
//! processor; elsewhere, as in the process of a lease, for an interpreter.
//!
//! A module exports `memory`, `souk_alloc(bytes) -> address` and `souk_run(table, count) -> table`.
//! A table has 16 bytes a tensor: element type by its number in ONNX, number of dimensions, address
//! of the sizes (64 bits each), address of the values (little-endian in C order). A module returns
//! a table at address 0 to refuse the inputs.

#![cfg(feature = "engine")]

mod engine;
mod table;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use souk_memory::{DType, ShapeError, Tensor, TensorError};
use thiserror::Error;
use wasmtime::{
    ExternType, Instance, Memory, Module, ResourceLimiter, Store, Trap, TypedFunc, UpdateDeadline,
};

pub use engine::Code;

/// Period at which a kernel that is out of time is interrupted again.
const REMINDER_PERIOD: Duration = Duration::from_millis(10);

/// Limits of one run of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasmLimits {
    /// Instructions, about one unit of fuel each.
    pub fuel: u64,
    /// Bytes of the module's memory.
    pub memory_bytes: u64,
    /// Upper bound on the time of a run.
    pub time: Duration,
    /// Upper bound on the bytes of all outputs of a run.
    pub output_bytes: u64,
    /// Bytes of the module itself.
    pub module_bytes: u64,
}

impl Default for WasmLimits {
    /// Allows some minutes of compiled code, memory for any tensor that a 32-bit module can work
    /// on, and modules ten times as large as large ones are.
    fn default() -> Self {
        Self {
            fuel: 400_000_000_000,
            memory_bytes: 2 << 30,
            time: Duration::from_secs(120),
            output_bytes: 1 << 30,
            module_bytes: 16 << 20,
        }
    }
}

/// Why a kernel was refused, or did not end well.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WasmError {
    /// The module is too long.
    #[error("the module has {bytes} bytes, {limit} are allowed")]
    Long {
        /// Size of the module in bytes.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The bytes are not a module, or they use a feature that is off.
    #[error("the module is malformed: {reason}")]
    Malformed {
        /// The engine's message.
        reason: String,
    },
    /// The module wants something from outside.
    #[error("the module imports {module}.{name}; a kernel gets its tensors and nothing else")]
    Import {
        /// From where.
        module: String,
        /// Name of the import.
        name: String,
    },
    /// The module lacks an export that a kernel must have.
    #[error("the module does not export {name} as a kernel does: {wanted}")]
    Export {
        /// The name of the export.
        name: &'static str,
        /// The type that the export must have.
        wanted: &'static str,
    },
    /// It used up its fuel.
    #[error("the kernel did not finish within {limit} units of fuel")]
    Fuel {
        /// The fuel it had.
        limit: u64,
    },
    /// It wanted more memory.
    #[error("the kernel wants {bytes} bytes of memory, {limit} are allowed")]
    Memory {
        /// Bytes it wanted.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// It took too long.
    #[error("the kernel did not finish within {limit:?}")]
    Time {
        /// The time it had.
        limit: Duration,
    },
    /// It gave too much.
    #[error("the kernel returns {bytes} bytes, {limit} are allowed")]
    Output {
        /// Bytes of the outputs, as far as the host counted them.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// It said that it does not take these inputs.
    #[error("the kernel does not accept these inputs")]
    Refused,
    /// The kernel did something that ends a module.
    #[error("the kernel trapped: {reason}")]
    Trap {
        /// The engine's message.
        reason: String,
    },
    /// The kernel pointed outside its memory.
    #[error("the kernel points outside of its memory: {address:#x}, {bytes} bytes")]
    Outside {
        /// Address of the first byte.
        address: u32,
        /// How much.
        bytes: u64,
    },
    /// An output has another type than the node declares.
    #[error("output {index} of the kernel has the element type {found}, not {expected}")]
    Type {
        /// Which output.
        index: usize,
        /// Type that the node states.
        expected: DType,
        /// Number of the type it has.
        found: u32,
    },
    /// An output has an impossible shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An output has values that its type does not have.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// This machine has no engine for modules.
    #[error("modules cannot be run here: {reason}")]
    Engine {
        /// The system's message.
        reason: String,
    },
}

/// A module that is a kernel, ready to run any number of times. No state survives a run.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    limits: WasmLimits,
}

/// Enforces the limits of a run, and remembers the one that the run met.
struct Guard {
    memory_bytes: u64,
    /// Bytes that were wanted beyond.
    wanted: Option<u64>,
    timed_out: bool,
}

/// A module at work.
struct Session {
    store: Store<Guard>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    run: TypedFunc<(u32, u32), u32>,
}

impl Kernel {
    /// Compiles a module in the way that this process may run it.
    ///
    /// # Errors
    /// Returns a [`WasmError`] if the module is malformed, lacks an export, or imports something
    /// that no kernel may use.
    pub fn compile(bytes: &[u8], limits: WasmLimits) -> Result<Self, WasmError> {
        Self::compile_as(Code::of_this_process(), bytes, limits)
    }

    /// Makes a module ready to run in one way.
    ///
    /// # Errors
    /// As [`Kernel::compile`].
    pub fn compile_as(code: Code, bytes: &[u8], limits: WasmLimits) -> Result<Self, WasmError> {
        let (length, limit) = (bytes.len() as u64, limits.module_bytes);
        if length > limit {
            let bytes = length;
            return Err(WasmError::Long { bytes, limit });
        }
        let engine = engine::shared_engine(code).map_err(|reason| WasmError::Engine { reason })?;
        let module = Module::from_binary(engine, bytes).map_err(|error| WasmError::Malformed {
            reason: format!("{error:#}"),
        })?;
        if let Some(import) = module.imports().next() {
            let (module, name) = (import.module().to_owned(), import.name().to_owned());
            return Err(WasmError::Import { module, name });
        }
        let is_memory = matches!(module.get_export("memory"), Some(ExternType::Memory(_)));
        if !is_memory {
            let (name, wanted) = ("memory", "its memory");
            return Err(WasmError::Export { name, wanted });
        }
        Ok(Self { module, limits })
    }

    /// Runs once on these tensors, and returns outputs of these types.
    ///
    /// # Errors
    /// Returns a [`WasmError`] that names the limit or the fault of the kernel.
    pub fn run(&self, inputs: &[Tensor], outputs: &[DType]) -> Result<Vec<Tensor>, WasmError> {
        let (end, ended) = channel::<()>();
        let (engine, time) = (self.module.engine().clone(), self.limits.time);
        // This thread closes the channel when the run ends, whether or not it ran out of time. The
        // watching thread then stops.
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut wait = time;
                // Told again and again: the first word may come before the module listens.
                while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                    engine.increment_epoch();
                    wait = REMINDER_PERIOD;
                }
            });
            let made = self.run_watched(inputs, outputs);
            drop(end);
            made
        })
    }

    fn run_watched(&self, inputs: &[Tensor], outputs: &[DType]) -> Result<Vec<Tensor>, WasmError> {
        let mut session = self.start_session()?;
        let table = table::write(&mut session, &self.limits, inputs)?;
        let count = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let made = session.run.call(&mut session.store, (table, count));
        let made = made.map_err(|error| session.failure_reason(&self.limits, &error))?;
        if made == 0 && !outputs.is_empty() {
            return Err(WasmError::Refused);
        }
        table::read(&session, made, outputs, self.limits.output_bytes)
    }

    /// Creates a fresh instance and runs the module's start function.
    fn start_session(&self) -> Result<Session, WasmError> {
        let guard = Guard {
            memory_bytes: self.limits.memory_bytes,
            wanted: None,
            timed_out: false,
        };
        let mut store = Store::new(self.module.engine(), guard);
        store.limiter(|guard| guard);
        let fuel = store.set_fuel(self.limits.fuel);
        fuel.map_err(|error| WasmError::Engine {
            reason: error.to_string(),
        })?;
        // The clock of an engine is everybody's: another run's end of time is not this one's.
        let (began, time) = (Instant::now(), self.limits.time);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |mut context| {
            if began.elapsed() < time {
                return Ok(UpdateDeadline::Continue(1));
            }
            context.data_mut().timed_out = true;
            Err(Trap::Interrupt.into())
        });
        let instance = Instance::new(&mut store, &self.module, &[]);
        let instance =
            instance.map_err(|error| failure_reason(store.data(), &self.limits, &error))?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or(WasmError::Export {
            name: "memory",
            wanted: "its memory",
        })?;
        let alloc = instance.get_typed_func(&mut store, "souk_alloc");
        let alloc = alloc.map_err(|_| WasmError::Export {
            name: "souk_alloc",
            wanted: "a function of bytes to an address, (i32) -> i32",
        })?;
        let run = instance.get_typed_func(&mut store, "souk_run");
        let run = run.map_err(|_| WasmError::Export {
            name: "souk_run",
            wanted: "a function of a table and a count to a table, (i32, i32) -> i32",
        })?;
        Ok(Session {
            store,
            memory,
            alloc,
            run,
        })
    }
}

impl Session {
    fn failure_reason(&self, limits: &WasmLimits, error: &wasmtime::Error) -> WasmError {
        failure_reason(self.store.data(), limits, error)
    }
}

/// Returns the reason why a module ended.
fn failure_reason(guard: &Guard, limits: &WasmLimits, error: &wasmtime::Error) -> WasmError {
    if let Some(bytes) = guard.wanted {
        let limit = limits.memory_bytes;
        return WasmError::Memory { bytes, limit };
    }
    if guard.timed_out {
        let limit = limits.time;
        return WasmError::Time { limit };
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => WasmError::Fuel { limit: limits.fuel },
        Some(trap) => WasmError::Trap {
            reason: trap.to_string(),
        },
        None => WasmError::Trap {
            reason: format!("{error:#}"),
        },
    }
}

impl ResourceLimiter for Guard {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired as u64 <= self.memory_bytes {
            return Ok(true);
        }
        self.wanted = Some(desired as u64);
        // End the run here instead of reporting a failed growth, so that the error names the limit
        // and not a consequence of it.
        Err(Trap::AllocationTooLarge.into())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = (desired as u64).saturating_mul(size_of::<usize>() as u64);
        if bytes <= self.memory_bytes {
            return Ok(true);
        }
        self.wanted = Some(bytes);
        Err(Trap::AllocationTooLarge.into())
    }
}

#[cfg(test)]
pub(crate) mod tests;
