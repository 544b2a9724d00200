//! Prepares this machine's devices for sale: opens and measures them, compares their results with
//! the CPU's, warms them up, and finds the faster of two engines of one device.
//!
//! You should check and warm a device before you sell it:
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use souk_cpu::Cpu;
//! use souk_registry::{check, warm};
//! use souk_vocabulary::catalogue;
//!
//! let profile = catalogue::find_processor("amd-epyc-9654").ok_or("it is catalogued")?;
//! let cpu = Cpu::new(profile.clone(), NonZeroUsize::MIN);
//! check::check_device(&cpu)?;
//! warm::warm_up_device(&cpu)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod check;
#[cfg(feature = "onnxruntime")]
pub mod contest;
pub mod copies;
#[cfg(feature = "wgpu")]
pub mod gpus;
pub mod measure;
#[cfg(feature = "onnxruntime")]
pub mod runtimes;
pub mod sheet;
pub mod warm;
