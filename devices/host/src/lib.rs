//! What the machine tells of itself: its processor and memory, their load, what lies on its buses,
//! and the power that is drawn; and what it is asked for that no library of Rust's has.
//!
//! ```
//! use souk_host::discover;
//!
//! let cpu = discover::cpu();
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
pub mod sealed;
pub mod streaming;
pub mod system;
