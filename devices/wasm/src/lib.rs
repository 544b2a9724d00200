//! Runs WebAssembly kernels: operators that a buyer supplies as WebAssembly modules, and that a
//! provider runs without imports and within limits.
//!
//! A module takes tensors and returns tensors. It has no clock, no randomness, no file and no
//! access to anything outside. NaN has one form, threads and relaxed instructions are off, and the
//! interpreter counts fuel in the module's own instructions, so every machine gives the same result
//! or the same end.
//!
//! A module exports `memory`, `souk_alloc(bytes) -> address` and `souk_run(table, count) -> table`.
//! A table has 16 bytes a tensor: element type by its number in ONNX, number of dimensions, address
//! of the sizes (64 bits each), address of the values (little-endian in C order). A module returns
//! a table at address 0 to refuse the inputs.

mod tensor_table;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use souk_memory::{DType, ShapeError, Tensor, TensorError};
use thiserror::Error;
use wasmi::errors::ErrorKind;
use wasmi::{
    CompilationMode, Config, Engine, ExternType, Instance, Memory, Module, ResourceLimiter, Store,
    TrapCode, TypedFunc, TypedResumableCall, WasmParams, WasmResults,
};
use wasmi_core::LimiterError;

/// Fuel that a run gets at a time. It looks at the clock in between, so a run can end this much
/// fuel after its time.
const SLICE_FUEL: u64 = 20_000_000;

/// Most frames of calls, which bounds recursion.
const CALLS_MAX: usize = 1_000;

/// The interpreter, with one form of NaN by its feature `deterministic`.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .compilation_mode(CompilationMode::Eager)
        .set_max_recursion_depth(CALLS_MAX)
        // A start function would run before there is fuel to count.
        .allow_start_fn(false)
        .wasm_relaxed_simd(false)
        .wasm_multi_memory(false);
    Engine::new(&config)
});

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

/// Reasons why a kernel was refused or failed.
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
        /// The number of bytes.
        bytes: u64,
    },
    /// An output has another type than the node declares.
    #[error("output {index} of the kernel has the element type {found}, not {expected}")]
    Type {
        /// The number of the output, from 0.
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
}

/// A module that is a kernel, ready to run any number of times. No state survives a run.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    limits: WasmLimits,
}

/// Enforces the memory limit of a run, and remembers that the run met it.
struct Guard {
    memory_bytes: u64,
    /// Bytes that were wanted beyond.
    wanted: Option<u64>,
}

/// A module at work.
struct Session {
    store: Store<Guard>,
    limits: WasmLimits,
    began: Instant,
    /// Fuel that the store did not get yet.
    fuel_left: u64,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    run: TypedFunc<(u32, u32), u32>,
}

impl Kernel {
    /// Reads and checks a module.
    ///
    /// # Errors
    /// Returns a [`WasmError`] if the module is malformed, lacks an export, or imports something
    /// that no kernel must use.
    pub fn compile(bytes: &[u8], limits: WasmLimits) -> Result<Self, WasmError> {
        let (length, limit) = (bytes.len() as u64, limits.module_bytes);
        if length > limit {
            let bytes = length;
            return Err(WasmError::Long { bytes, limit });
        }
        let module = Module::new(&ENGINE, bytes).map_err(|error| WasmError::Malformed {
            reason: error.to_string(),
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
        let mut session = self.start_session()?;
        let table = tensor_table::write(&mut session, inputs)?;
        let count = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let made = session.call(session.run, (table, count))?;
        if made == 0 && !outputs.is_empty() {
            return Err(WasmError::Refused);
        }
        tensor_table::read(&session, made, outputs, self.limits.output_bytes)
    }

    /// Creates a fresh instance.
    fn start_session(&self) -> Result<Session, WasmError> {
        let guard = Guard {
            memory_bytes: self.limits.memory_bytes,
            wanted: None,
        };
        let mut store = Store::new(&ENGINE, guard);
        store.limiter(|guard| guard);
        let fuel = self.limits.fuel.min(SLICE_FUEL);
        set_fuel(&mut store, fuel);
        let instance = Instance::new(&mut store, &self.module, &[]);
        let instance =
            instance.map_err(|error| failure_reason(store.data(), &self.limits, &error))?;
        let memory = instance.get_memory(&store, "memory");
        let memory = memory.ok_or(WasmError::Export {
            name: "memory",
            wanted: "its memory",
        })?;
        let alloc = instance.get_typed_func(&store, "souk_alloc");
        let alloc = alloc.map_err(|_| WasmError::Export {
            name: "souk_alloc",
            wanted: "a function of bytes to an address, (i32) -> i32",
        })?;
        let run = instance.get_typed_func(&store, "souk_run");
        let run = run.map_err(|_| WasmError::Export {
            name: "souk_run",
            wanted: "a function of a table and a count to a table, (i32, i32) -> i32",
        })?;
        Ok(Session {
            store,
            limits: self.limits,
            began: Instant::now(),
            fuel_left: self.limits.fuel - fuel,
            memory,
            alloc,
            run,
        })
    }
}

impl Session {
    /// Calls a function of the module, and looks at the clock each time its fuel is used up.
    fn call<P, R>(&mut self, function: TypedFunc<P, R>, arguments: P) -> Result<R, WasmError>
    where
        P: WasmParams,
        R: WasmResults,
    {
        let mut call = function.call_resumable(&mut self.store, arguments);
        loop {
            let paused = match call {
                Ok(TypedResumableCall::Finished(results)) => return Ok(results),
                Ok(TypedResumableCall::OutOfFuel(paused)) => paused,
                Ok(TypedResumableCall::HostTrap(_)) => unreachable!("a kernel imports nothing"),
                Err(error) => return Err(failure_reason(self.store.data(), &self.limits, &error)),
            };
            self.refuel(paused.required_fuel())?;
            call = paused.resume(&mut self.store);
        }
    }

    /// Gives the module its next slice of fuel, at least `required`, unless its fuel or its time is
    /// used up.
    fn refuel(&mut self, required: u64) -> Result<(), WasmError> {
        if self.began.elapsed() >= self.limits.time {
            let limit = self.limits.time;
            return Err(WasmError::Time { limit });
        }
        let held = self.store.get_fuel().unwrap_or(0);
        let given = SLICE_FUEL.max(required).min(self.fuel_left);
        let fuel = held.saturating_add(given);
        if fuel < required || given == 0 {
            let limit = self.limits.fuel;
            return Err(WasmError::Fuel { limit });
        }
        self.fuel_left -= given;
        set_fuel(&mut self.store, fuel);
        Ok(())
    }
}

fn set_fuel(store: &mut Store<Guard>, fuel: u64) {
    let done = store.set_fuel(fuel);
    done.expect("the engine counts fuel");
}

/// Returns the reason why a module ended.
fn failure_reason(guard: &Guard, limits: &WasmLimits, error: &wasmi::Error) -> WasmError {
    if let Some(bytes) = guard.wanted {
        let limit = limits.memory_bytes;
        return WasmError::Memory { bytes, limit };
    }
    match error.kind() {
        ErrorKind::TrapCode(TrapCode::OutOfFuel) => WasmError::Fuel { limit: limits.fuel },
        _ => WasmError::Trap {
            reason: error.to_string(),
        },
    }
}

impl ResourceLimiter for Guard {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool, LimiterError> {
        if desired as u64 <= self.memory_bytes {
            return Ok(true);
        }
        self.wanted = Some(desired as u64);
        // End the run here instead of reporting a failed growth, so that the error names the limit
        // and not a consequence of it.
        Err(LimiterError::ResourceLimiterDeniedAllocation)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool, LimiterError> {
        let bytes = (desired as u64).saturating_mul(size_of::<usize>() as u64);
        if bytes <= self.memory_bytes {
            return Ok(true);
        }
        self.wanted = Some(bytes);
        Err(LimiterError::ResourceLimiterDeniedAllocation)
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        usize::MAX
    }

    fn memories(&self) -> usize {
        1
    }
}

#[cfg(test)]
pub(crate) mod tests;
