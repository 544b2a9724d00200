//! Runs ONNX subgraphs on GPUs through Vulkan, Metal or Direct3D 12, by wgpu and kernels of our own
//! in WGSL, and through CUDA where that is built in. [`list_adapters`] finds the GPUs of a machine,
//! and [`Gpu`] compiles subgraphs and runs them.
//!
//! Tensors stay on the device from the first node to the last. While it records a run, the host
//! computes only sizes, indices and masks of integers, or draws tokens; it then submits the run as
//! one command buffer, unless it must read a value in between. The device computes with 32-bit
//! floats, truths and integers, and with 64-bit and 16-bit numbers where the adapter has them;
//! narrower ones stay packed. The compiler refuses any other operator or type with its name and the
//! reason, so that another device can run it.

mod adapter;
#[cfg(feature = "cuda")]
pub mod card;
mod context;
mod driver;
mod error;
mod memory;
mod numbers;
mod operators;
mod probe;
mod program;
mod recording;
mod shaders;
mod sysfs_card;
mod traffic;

use std::sync::Arc;

use souk_host::system;
use souk_memory::DType;
use souk_memory::paths::Path;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::sampling;
use souk_onnx::subgraph::{CompileError, Subgraph, Unsupported, UnsupportedReason};
use souk_onnx::work::Work;
use souk_vocabulary::links::Link;
use souk_vocabulary::processor::{Estimate, Processor, Program};
use souk_vocabulary::profile::Profile;
use souk_vocabulary::residency::DeviceMemory;
use souk_vocabulary::taxonomy::ProcessorKind;

pub use adapter::{Adapter, GpuConfig, OpenError, list_adapters};
use context::Context;
use memory::GpuMemory;
use program::{GpuProgram, custom, table};
pub use traffic::TrafficTotals;

/// Whether GPUs run an operator of this name, in any types; the host can do part of it for them.
#[must_use]
pub fn has_operator(node: &NodeProto) -> bool {
    match node.operator_domain().is_empty() {
        true => table::is_known(node.op_type()),
        false => sampling::is_sample(node),
    }
}

/// A GPU that runs subgraphs.
pub struct Gpu {
    profile: Profile,
    context: Arc<Context>,
    memory: GpuMemory,
    /// Bytes of its memory that can be used, if not all.
    memory_bytes_max: Option<u64>,
}

impl Gpu {
    /// Creates a GPU over a newly opened device, with the link between its memory and the host's.
    fn from_context(profile: Profile, context: Context, host_link: Path) -> Self {
        let context = Arc::new(context);
        Self {
            profile,
            memory: GpuMemory::new(context.clone(), host_link),
            context,
            memory_bytes_max: None,
        }
    }

    /// Limits the memory of the GPU to this many bytes, and states that in its profile.
    fn with_memory_max(mut self, memory_bytes_max: Option<u64>) -> Self {
        self.memory_bytes_max = memory_bytes_max;
        if let Some(bytes_max) = memory_bytes_max {
            self.profile.memory.bytes = self.profile.memory.bytes.min(bytes_max);
        }
        self
    }

    /// Bytes that tensors and the sizes of kernels moved between its memory and others.
    #[must_use]
    pub fn traffic_totals(&self) -> TrafficTotals {
        self.context.traffic().traffic_totals()
    }

    /// Replaces the profile by one that was measured when the device was opened before.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        let memory_bytes_max = self.memory_bytes_max;
        self.with_memory_max(memory_bytes_max)
    }

    /// Adds measurements of the link to the host, taken from copies.
    #[must_use]
    pub fn with_link_timings(mut self, timed: &[Link]) -> Self {
        self.memory.record_timings(timed);
        self
    }

    /// Opens an adapter without measuring its throughput.
    ///
    /// # Errors
    /// Returns an [`OpenError`] if the driver refuses.
    pub fn open_unmeasured(adapter: &Adapter, config: GpuConfig) -> Result<Self, OpenError> {
        let context = adapter.open_context(config)?;
        let profile = adapter.profile();
        let gpu = Self::from_context(profile, context, adapter.host_link());
        Ok(gpu.with_memory_max(config.memory_bytes_max))
    }
}

impl Processor for Gpu {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        if node.operator_domain().is_empty() && table::is_declared(node.op_type()) {
            return Ok(());
        }
        if custom::is_kernel(node) || sampling::is_sample(node) {
            return Ok(());
        }
        Err(Unsupported::new(node, UnsupportedReason::Operator))
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::for_work(work, &self.profile)
    }

    /// A software adapter, whose profile states no kind, uses all cores.
    fn host_cores(&self) -> usize {
        match self.profile.kind {
            ProcessorKind::Custom => system::available_cores(),
            _ => 0,
        }
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let graph = Graph::from_subgraph(subgraph)?;
        if graph.dtypes.values().any(|dtype| *dtype == DType::F16) {
            self.context.try_halves(probe::probe_halves);
        }
        let program = GpuProgram::compile_graph(self.context.clone(), graph)?;
        Ok(Box::new(program))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.context.free_bytes(self.profile.memory.bytes)
    }

    fn utilisation(&self) -> f64 {
        self.context.utilisation()
    }

    fn meter_joules(&self) -> Option<f64> {
        self.context.joules()
    }

    fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        Some(&self.memory)
    }
}

#[cfg(test)]
mod tests;
