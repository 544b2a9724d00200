//! Names the kinds of processors, their instruction sets and memories, and the workloads they suit.
//! A device's profile describes it in these words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of processor, with the properties that decide whether a program fits it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ProcessorKind {
    /// A general-purpose processor.
    Cpu {
        /// Instruction set.
        isa: CpuIsa,
    },
    /// A graphics processor.
    Gpu {
        /// Programming interface and generation.
        api: GpuApi,
    },
    /// A Google tensor processor.
    Tpu {
        /// Generation of the processor.
        generation: TpuGeneration,
    },
    /// A neural processor, usually part of a system on a chip.
    Npu {
        /// The maker's product family.
        family: NpuFamily,
    },
    /// A language processor: weights in on-chip memory, a fixed schedule (Groq).
    Lpu,
    /// A field-programmable gate array.
    Fpga {
        /// The maker's product family.
        family: FpgaFamily,
    },
    /// A signal processor.
    Dsp {
        /// The maker's product family.
        family: DspFamily,
    },
    /// A WebAssembly runtime: a sandbox for a buyer's own kernels.
    Wasm,
    /// Any other kind; its profile must name the maker and model.
    Custom,
}

/// Instruction sets of CPUs, with their vector level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "isa", rename_all = "kebab-case")]
pub enum CpuIsa {
    /// 64-bit x86.
    X86_64 {
        /// The widest vector extension.
        level: X86Level,
    },
    /// 64-bit Arm.
    Arm64 {
        /// Whether it has scalable vectors.
        sve: bool,
    },
    /// 64-bit RISC-V.
    RiscV64 {
        /// Whether it has the vector extension.
        vector: bool,
    },
    /// Any other instruction set.
    Other,
}

/// Vector extensions of x86, narrowest first, so that you can compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum X86Level {
    /// 128-bit vectors.
    Sse2,
    /// 256-bit floating-point vectors.
    Avx,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// Matrix tiles.
    Amx,
}

/// The programming interface of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "api", rename_all = "kebab-case")]
pub enum GpuApi {
    /// NVIDIA CUDA.
    Cuda {
        /// Compute capability: major, minor.
        capability: (u8, u8),
    },
    /// AMD ROCm.
    Rocm {
        /// Architecture, such as `gfx942`.
        gfx: String,
    },
    /// Intel oneAPI.
    OneApi,
    /// Apple Metal.
    Metal,
    /// Qualcomm Adreno.
    Adreno,
    /// Arm Mali.
    Mali,
    /// Any GPU that WebGPU reaches.
    WebGpu,
}

/// Generations of Google's tensor processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are the generations")]
pub enum TpuGeneration {
    V2,
    V3,
    V4,
    V4i,
    V5e,
    V5p,
    V6e,
    V7,
    Edge,
}

/// Families of neural processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NpuFamily {
    /// Apple Neural Engine.
    AppleNeuralEngine,
    /// Qualcomm Hexagon.
    QualcommHexagon,
    /// Intel VPU and NPU.
    IntelVpu,
    /// AMD XDNA.
    AmdXdna,
    /// Huawei Ascend.
    HuaweiAscend,
    /// Google's phone processors.
    GoogleEdge,
    /// Any other family.
    Other,
}

/// Makers of gate arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FpgaFamily {
    /// Xilinx, now AMD.
    AmdXilinx,
    /// Intel, once Altera.
    IntelAltera,
}

/// Families of signal processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DspFamily {
    /// Texas Instruments.
    TexasInstruments,
    /// Analog Devices.
    AnalogDevices,
    /// Qualcomm Hexagon without its tensor unit.
    QualcommHexagon,
}

/// Kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are the standards")]
pub enum MemoryKind {
    Hbm2,
    Hbm2e,
    Hbm3,
    Hbm3e,
    Gddr6,
    Gddr6x,
    Gddr7,
    Ddr3,
    Ddr4,
    Ddr5,
    Lpddr4,
    Lpddr5,
    /// On-chip memory.
    Sram,
    /// Memory shared with the host's processor.
    Unified,
    /// Memory of an unknown kind.
    Unknown,
}

/// Workloads a processor suits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trait {
    /// Many independent operations at once.
    HighlyParallel,
    /// One step after another.
    Sequential,
    /// Limited by memory bandwidth.
    MemoryBound,
    /// Limited by arithmetic.
    ComputeBound,
    /// Requests that need an immediate answer.
    LowLatency,
    /// Low power use.
    LowPower,
    /// Many samples at once.
    LargeBatch,
    /// Few samples at once.
    SmallBatch,
    /// Lengths differ from input to input.
    VariableLength,
    /// Every input has the same shape.
    FixedShape,
}

impl ProcessorKind {
    /// Returns the kind in one short word: `cpu`, `gpu`, `tpu`, ...
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            Self::Gpu { .. } => "gpu",
            Self::Tpu { .. } => "tpu",
            Self::Npu { .. } => "npu",
            Self::Lpu => "lpu",
            Self::Fpga { .. } => "fpga",
            Self::Dsp { .. } => "dsp",
            Self::Wasm => "wasm",
            Self::Custom => "custom",
        }
    }
}

impl fmt::Display for ProcessorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
