//! Facts about the machine: its processor and memory, their load, the devices on its buses and its
//! power; and system calls that Rust's standard library lacks.
//!
//! ```
//! use souk_host::discover;
//!
//! let cpu = discover::describe_cpu();
//! println!("{} with {} threads", cpu.model, cpu.threads);
//! assert!(cpu.caches.iter().all(|cache| cache.level >= 1));
//! ```

pub mod bus;
pub mod busy;
pub mod clock;
pub mod discover;
pub mod isa;
pub mod power;
#[cfg(target_os = "linux")]
pub mod sealed_memory;
pub mod streaming;
pub mod system;
