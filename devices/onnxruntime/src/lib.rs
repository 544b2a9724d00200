//! ONNX Runtime, where its library is found: the way to processors whose makers wrote a provider
//! for it, and a second engine for the CPU.
//!
//! Nothing of it is built in. The library is the one that `SOUK_ONNXRUNTIME` names, else one of
//! the usual name where the system looks for libraries; what providers it has it says itself. A
//! process holds one such library, the first it opened.

mod elements;
mod library;
mod loaded;
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
use loaded::LoadedModel;
use program::{RuntimeProgram, Watch};
pub use provider::Provider;

/// What errors call this engine.
const ENGINE: &str = "onnxruntime";

/// Copies of a model that there are at once while the library reads it: its own, what it makes of
/// that pass by pass, and the one it computes with. Libraries before 1.22 copy what lies beside.
const ROOM_TIMES: usize = 4;
/// Room beside that for what is between a model's nodes.
const ROOM_BYTES: usize = 64 << 20;

/// A processor that a provider of ONNX Runtime reaches.
pub struct OnnxRuntime {
    library: Arc<Library>,
    provider: Provider,
    profile: Profile,
    threads: NonZeroUsize,
    host: Option<HostLoad>,
    busy: Arc<Busy>,
}

/// What is known of a processor that is the host's CPU: its load and its meter.
struct HostLoad {
    load: system::Load,
    meter: Option<Arc<Meter>>,
}

impl OnnxRuntime {
    /// The processor of a provider, described by `profile`; what runs on the CPU uses `threads`.
    #[must_use]
    pub fn new(
        library: Arc<Library>,
        provider: Provider,
        profile: Profile,
        threads: NonZeroUsize,
    ) -> Self {
        let host = provider.is_cpu().then(|| HostLoad {
            load: system::Load::default(),
            meter: Meter::find().map(Arc::new),
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

    /// Whether there is memory to make a subgraph ready and run it, be it the machine's or what
    /// this process may have. It is asked for at once, untouched, and given back.
    #[must_use]
    pub fn has_room(&self, subgraph: &Subgraph) -> bool {
        let weights = subgraph.weights.values().map(Bytes::len);
        let bytes = weights.fold(subgraph.model.len(), usize::saturating_add);
        let bytes = bytes.saturating_mul(ROOM_TIMES).saturating_add(ROOM_BYTES);
        let free = system::memory_free_bytes().unwrap_or(u64::MAX);
        bytes as u64 <= free && Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
    }

    /// The provider it goes through.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        &self.provider
    }
}

impl Processor for OnnxRuntime {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn supports(&self, node: &NodeProto) -> Result<(), Unsupported> {
        rules::known(node)
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::of(work, &self.profile)
    }

    fn cores(&self) -> usize {
        match self.provider.is_cpu() {
            true => self.threads.get(),
            false => 0,
        }
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let graph = Graph::bind(subgraph)?;
        rules::check(&graph, &self.provider)?;
        let mut ports = graph.inputs.iter().chain(&graph.outputs);
        if let Some(port) = ports.find(|port| !elements::carries(port.dtype)) {
            let name = port.name.clone();
            return Err(CompileError::Port { name });
        }
        let loaded = match self.provider.is_cpu() {
            true => LoadedModel::beside(subgraph)?,
            false => LoadedModel::whole(subgraph)?,
        };
        let opened = self
            .library
            .open_model(loaded, &self.provider, self.threads);
        let opened = opened.map_err(|refusal| refusal.of(&graph, &self.provider.title()))?;
        Ok(Box::new(RuntimeProgram::new(
            opened,
            graph,
            self.profile.power,
            Watch {
                busy: self.busy.clone(),
                meter: self.host.as_ref().and_then(|host| host.meter.clone()),
            },
        )))
    }

    /// No provider tells what its processor has free. All that goes there comes from the host's
    /// memory, so what is free of that is the most that fits.
    fn memory_free_bytes(&self) -> u64 {
        system::memory_free_bytes().unwrap_or(0)
    }

    /// Of the host's CPU by everybody; of others by runs of this process alone.
    fn utilisation(&self) -> f64 {
        match &self.host {
            Some(host) => host.load.utilisation(),
            None => self.busy.utilisation(),
        }
    }

    fn meter_joules(&self) -> Option<f64> {
        let meter = self.host.as_ref()?.meter.as_ref()?;
        meter.joules()
    }
}

#[cfg(test)]
pub(crate) mod tests;
