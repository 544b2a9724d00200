//! Runs models through ONNX Runtime, if its library is installed. With it souk can sell processors
//! that have no backend of their own: their makers wrote a provider (a plug-in of ONNX Runtime for
//! one kind of processor). It is also a second engine for the CPU.
//!
//! souk does not include ONNX Runtime. You can name the library in `SOUK_ONNXRUNTIME`; otherwise
//! souk looks for one with the usual name in the system's library folders. The library reports its
//! own providers. A process can use only one library, the first that it opens.

mod elements;
mod library;
mod loaded_model;
mod program;
mod provider;
mod refusal;
mod rules;

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use souk_host::busy::Busy;
use souk_host::power::Meter;
use souk_host::system;
use souk_onnx::NodeProto;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Subgraph, Unsupported};
use souk_onnx::work::Work;
use souk_vocabulary::processor::{Estimate, Processor, Program};
use souk_vocabulary::profile::Profile;

pub use library::{LIBRARY_VARIABLE, Library, LoadError, library_path};
use loaded_model::LoadedModel;
use program::{RunMeters, RuntimeProgram};
pub use provider::Provider;

/// Name of this engine in errors.
const ENGINE: &str = "onnxruntime";

/// Maximum number of copies of a model in memory while the library reads it: the original, the one
/// that each pass transforms, and the one that it runs. Libraries before 1.22 also copy external
/// weights.
const MODEL_COPIES_MAX: usize = 4;
/// Additional bytes, for values between a model's nodes.
const VALUE_BYTES: usize = 64 << 20;

/// A processor that a provider of ONNX Runtime reaches.
pub struct OnnxRuntime {
    library: Arc<Library>,
    provider: Provider,
    profile: Profile,
    threads: NonZeroUsize,
    host: Option<HostLoad>,
    busy: Arc<Busy>,
}

/// Load and meter of the host's CPU, for a provider that computes on it.
struct HostLoad {
    load: system::Load,
    meter: Option<Arc<Meter>>,
}

impl OnnxRuntime {
    /// Creates the processor that `provider`, one of the library's, reaches. `profile` describes
    /// it. `threads` applies to work on the CPU.
    #[must_use]
    pub fn new(
        library: Arc<Library>,
        provider: Provider,
        profile: Profile,
        threads: NonZeroUsize,
    ) -> Self {
        let host = provider.is_cpu().then(|| HostLoad {
            load: system::Load::default(),
            meter: Meter::for_machine().map(Arc::new),
        });
        Self {
            library,
            provider,
            profile,
            threads,
            host,
            busy: Arc::default(),
        }
    }

    /// Returns whether there is enough memory to compile and run a subgraph, both on the machine
    /// and within this process's limit. It allocates the memory without touching it, and frees it
    /// again, so other work can take it afterwards.
    #[must_use]
    pub fn has_room(&self, subgraph: &Subgraph) -> bool {
        let weights = subgraph.weights.values().map(Bytes::len);
        let bytes = weights.fold(subgraph.model.len(), usize::saturating_add);
        let bytes = bytes
            .saturating_mul(MODEL_COPIES_MAX)
            .saturating_add(VALUE_BYTES);
        let free = system::memory_free_bytes().unwrap_or(u64::MAX);
        bytes as u64 <= free && Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
    }

    /// Returns the provider that it uses.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        &self.provider
    }
}

impl Processor for OnnxRuntime {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        rules::check_operator(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::for_work(work, &self.profile)
    }

    fn host_cores(&self) -> usize {
        match self.provider.is_cpu() {
            true => self.threads.get(),
            false => 0,
        }
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let graph = Graph::from_subgraph(subgraph)?;
        rules::check_graph(&graph, &self.provider)?;
        let mut ports = graph.inputs.iter().chain(&graph.outputs);
        if let Some(port) = ports.find(|port| !elements::has_element_type(port.dtype)) {
            let name = port.name.clone();
            return Err(CompileError::Port { name });
        }
        let loaded = match self.provider.is_cpu() {
            true => LoadedModel::with_external_weights(subgraph)?,
            false => LoadedModel::with_embedded_weights(subgraph)?,
        };
        let session = self
            .library
            .open_model(loaded, &self.provider, self.threads);
        let session =
            session.map_err(|refusal| refusal.into_error(&graph, &self.provider.title()))?;
        Ok(Box::new(RuntimeProgram::new(
            session,
            graph,
            self.profile.power,
            RunMeters {
                busy: self.busy.clone(),
                meter: self.host.as_ref().and_then(|host| host.meter.clone()),
            },
        )))
    }

    /// Returns the free memory of the host, as an upper limit: no provider reports the free memory
    /// of its processor, and all data passes through the host's memory.
    fn memory_free_bytes(&self) -> u64 {
        system::memory_free_bytes().unwrap_or(0)
    }

    /// Returns the load of the host's CPU by all processes. For other processors, counts only the
    /// runs of this process.
    fn utilisation(&self) -> f64 {
        match &self.host {
            Some(host) => host.load.utilisation(),
            None => self.busy.utilisation(),
        }
    }

    fn meter_joules(&self) -> Option<f64> {
        let meter = self.host.as_ref()?.meter.as_ref()?;
        meter.energy_joules()
    }
}

#[cfg(test)]
pub(crate) mod tests;
