//! Describes a fragment: the part of a subgraph that one device must run as a whole, with its
//! inputs, outputs and programs.

use std::sync::Arc;

use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_vocabulary::processor::{Processor, Program};

use super::program_cache::ProgramSlots;
use crate::graph::NodeId;

/// A value, or some rows of it, that a fragment reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::execution) struct FragmentInput {
    /// Its name in the fragment's model.
    pub name: String,
    /// Its name in the run.
    pub value: String,
    pub rows: Option<Rows>,
}

/// Some rows of a value, and the extents that the program receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::execution) struct Rows {
    pub first: usize,
    pub units: usize,
    pub of: usize,
    pub dims: Vec<usize>,
}

/// A value that a fragment produces.
pub(in crate::execution) struct FragmentOutput {
    /// Its name in the fragment's model.
    pub name: String,
    /// Its name in the run.
    pub held: String,
}

/// A part of the subgraph that one device runs.
pub(in crate::execution) struct Fragment {
    pub name: String,
    pub reads: Vec<FragmentInput>,
    pub makes: Vec<FragmentOutput>,
    /// Bytes of the job's inputs that it reads, and of the job's outputs that it produces.
    pub at_host: [u64; 2],
    pub subgraph: Subgraph,
    /// Its nodes in the graph; empty for parts of shared operators.
    pub nodes: Vec<NodeId>,
    /// Operators of these nodes.
    pub operators: Vec<String>,
    pub role: Role,
    pub programs: ProgramSlots,
}

/// The role of a fragment in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::execution) enum Role {
    /// It computes nodes of the graph.
    Computes,
    /// It joins parts of several devices.
    Joins,
}

impl Fragment {
    /// Returns the program of the fragment on a device, and compiles it at the first request.
    pub fn get_or_compile(
        &self,
        device: usize,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        self.programs
            .get_or_compile(device, &self.subgraph, processor)
    }

    /// Returns the bytes of its weights and its model.
    pub fn byte_size(&self) -> u64 {
        let weights = self
            .subgraph
            .weights
            .values()
            .map(|values| values.len() as u64);
        self.subgraph.model.len() as u64 + weights.sum::<u64>()
    }
}
