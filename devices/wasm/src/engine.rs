//! The engines that run modules: one for code of this processor, one for an interpreter.

#![expect(
    unsafe_code,
    reason = "whether memory may be executed is found by mapping some"
)]

use std::sync::OnceLock;

use wasmtime::{Config, Engine, OptLevel};

/// Stack of a module in bytes: wasmtime's default, stated because it bounds recursion.
const STACK_BYTES: usize = 512 << 10;
/// Growth in bytes for which a module's memory reserves room; beyond it, the memory moves.
const GROWTH_BYTES: u64 = 1 << 20;

/// How modules are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Compiled for this processor.
    Native,
    /// Compiled for an interpreter: slower, but without executable memory.
    Interpreted,
}

impl Code {
    /// Returns how this process may run modules. A process in the sandbox of a lease must execute
    /// no memory that was not executable at its start.
    #[must_use]
    pub fn of_this_process() -> Self {
        static CODE: OnceLock<Code> = OnceLock::new();
        *CODE.get_or_init(|| match memory_may_be_executed() {
            true => Code::Native,
            false => Code::Interpreted,
        })
    }
}

/// Returns the engine for one way of running; creates it once.
pub(super) fn shared_engine(code: Code) -> Result<&'static Engine, String> {
    static ENGINES: [OnceLock<Result<Engine, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    let made =
        ENGINES[code as usize].get_or_init(|| create_engine(code).map_err(|it| it.to_string()));
    made.as_ref().map_err(Clone::clone)
}

fn create_engine(code: Code) -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    if code == Code::Interpreted {
        config.target("pulley64")?;
    }
    config
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        // Same results on every machine: one form of NaN, and no choice for the processor.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        // Bounds are checked in the code: no handler of signals in a process that has others, no
        // gibibytes of addresses where those are limited too.
        .signals_based_traps(false)
        .memory_reservation(0)
        .memory_reservation_for_growth(GROWTH_BYTES)
        .memory_guard_size(0)
        .memory_init_cow(false);
    Engine::new(&config)
}

#[cfg(target_os = "linux")]
fn memory_may_be_executed() -> bool {
    use std::ptr;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    const PAGE_BYTES: usize = 4096;
    let write = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so fresh memory overlaps no other.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, write, MapFlags::PRIVATE) };
    let Ok(page) = page else {
        return false;
    };
    // SAFETY: this function owns the page and neither reads nor runs its contents.
    unsafe {
        let allowed = mprotect(page, PAGE_BYTES, MprotectFlags::READ | MprotectFlags::EXEC);
        // Whether or not the call succeeds, no code uses the page again.
        let _ = munmap(page, PAGE_BYTES);
        allowed.is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
fn memory_may_be_executed() -> bool {
    true
}
