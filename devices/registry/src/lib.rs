//! Devices of this machine made ready to be sold: opened, measured, checked against the CPU,
//! warmed, and two engines of one device held against each other.
//!
//! A device is tried before it is sold:
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use souk_cpu::Cpu;
//! use souk_registry::{check, warm};
//! use souk_vocabulary::catalogue;
//!
//! let profile = catalogue::find("amd-epyc-9654").ok_or("it is catalogued")?;
//! let cpu = Cpu::new(profile.clone(), NonZeroUsize::MIN);
//! check::check(&cpu)?;
//! warm::warm(&cpu)?;
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
