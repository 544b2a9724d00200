//! The arguments of `souk device …`, and the names of the backends.

use clap::{Subcommand, ValueEnum};

/// Commands on processors.
#[derive(Debug, Subcommand)]
pub enum Device {
    /// List this machine's processors and those of the catalogue.
    List,
    /// Show one processor: what it is, what it was measured to do, and how it stands.
    Show {
        /// `cpu`, `gpu:NAME`, `cuda:N`, `onnxruntime:PROVIDER`, or a name of the catalogue.
        name: String,
    },
    /// Show what draws power, how much, and how it is limited; or change a limit.
    Power {
        /// One domain, by its name.
        domain: Option<String>,
        /// Limit it to so much; what the limit was is printed.
        #[arg(long, requires = "domain")]
        watts: Option<f64>,
    },
    /// Ask a driver what it has, in a process that it may crash.
    #[command(hide = true, subcommand)]
    Probe(Probe),
    /// Measure a processor of this machine; kept, signed, until it or its driver changes.
    Bench {
        /// What runs on it.
        #[arg(long, value_enum, default_value_t = Backend::Cpu)]
        backend: Backend,
        /// A part of the GPU's or the provider's name, where there are several.
        #[arg(long, default_value = "")]
        device: String,
        /// Threads of the CPU to measure with; 0 for all.
        #[arg(long, default_value_t = 0)]
        threads: u32,
        /// Only the smaller sizes: within ten seconds.
        #[arg(long)]
        quick: bool,
    },
}

/// What runs operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// This machine's CPU.
    Cpu,
    /// A GPU through Vulkan, Metal or Direct3D 12.
    Wgpu,
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// What a library of ONNX Runtime reaches; `--device` takes a part of its provider's name.
    Onnxruntime,
}

/// What a process of its own finds out; it prints JSON.
#[derive(Clone, Debug, Subcommand)]
pub enum Probe {
    /// The GPUs that Vulkan, Metal or Direct3D have.
    Gpus,
    /// The GPUs that the CUDA driver has.
    Cuda,
    /// The providers of ONNX Runtime.
    Onnxruntime,
    /// What a device is and how it stands.
    Show {
        /// The device, as JSON.
        choice: String,
    },
    /// Whether a device opens.
    Open {
        /// The device, as JSON.
        choice: String,
    },
}
