//! The arguments of `souk device …`, and the backends that a user can name. A backend is the code
//! that runs a model's operators on one kind of processor.

use clap::{Subcommand, ValueEnum};

/// Commands on processors.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// List this machine's processors and those of the catalogue.
    List,
    /// Show a processor: its properties, its measurements and its state.
    Show {
        /// `cpu`, `gpu:NAME`, `cuda:N`, `onnxruntime:PROVIDER`, or a name from the catalogue.
        name: String,
    },
    /// Show each power domain, its draw and its limit; or change a limit.
    Power {
        /// The name of a power domain.
        domain: Option<String>,
        /// The new limit, in watts; the command prints the old one.
        #[arg(long, requires = "domain")]
        watts: Option<f64>,
    },
    /// Query a driver in a process of its own, which the driver can crash.
    #[command(hide = true, subcommand)]
    Probe(Probe),
    /// Measure a processor of this machine. souk signs the result, and keeps it until the processor
    /// or its driver changes.
    Bench {
        /// The backend to use.
        #[arg(long, value_enum, default_value_t = Backend::Cpu)]
        backend: Backend,
        /// A part of the name of the GPU or the provider, if there are several.
        #[arg(long, default_value = "")]
        device: String,
        /// The number of CPU threads; 0 uses all.
        #[arg(long, default_value_t = 0)]
        threads: u32,
        /// Measure only the smaller sizes, within ten seconds.
        #[arg(long)]
        quick: bool,
    },
}

/// A backend that runs operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// This machine's CPU.
    Cpu,
    /// A GPU through Vulkan, Metal or Direct3D 12.
    Wgpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// A device of an ONNX Runtime library; `--device` takes a part of its provider's name.
    Onnxruntime,
}

/// Probes that run in a process of their own and print JSON.
#[derive(Clone, Debug, Subcommand)]
pub enum Probe {
    /// List the GPUs that Vulkan, Metal or Direct3D have.
    Gpus,
    /// List the GPUs that the CUDA driver has.
    Cuda,
    /// List the providers of ONNX Runtime.
    Onnxruntime,
    /// Show a device and its state.
    Show {
        /// The device, as JSON.
        choice: String,
    },
    /// Check whether a device opens.
    Open {
        /// The device, as JSON.
        choice: String,
    },
}
