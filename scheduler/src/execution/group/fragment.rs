//! A part of a subgraph that one device runs as a whole.

use std::sync::Arc;

use souk_onnx::subgraph::{CompileError, Subgraph};
use souk_vocabulary::processor::{Processor, Program};

use super::program_cache::ProgramSlots;
use crate::graph::NodeId;

/// A value that a fragment reads, or the rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::execution) struct FragmentInput {
    /// As its model calls it.
    pub name: String,
    /// As the run calls it.
    pub value: String,
    pub rows: Option<Rows>,
}

/// Some rows of a value, and the extents they are given to a program with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::execution) struct Rows {
    pub first: usize,
    pub units: usize,
    pub of: usize,
    pub dims: Vec<usize>,
}

/// A value that a fragment makes.
pub(in crate::execution) struct FragmentOutput {
    /// As its model calls it.
    pub name: String,
    /// As the run calls it.
    pub held: String,
}

/// A part of the subgraph that one device runs.
pub(in crate::execution) struct Fragment {
    pub name: String,
    pub reads: Vec<FragmentInput>,
    pub makes: Vec<FragmentOutput>,
    /// Bytes of the job's inputs that it reads, and of the job's outputs that it makes.
    pub at_host: [u64; 2],
    pub subgraph: Subgraph,
    /// Its nodes in the graph; none of it is what is shared.
    pub nodes: Vec<NodeId>,
    /// Their operators.
    pub operators: Vec<String>,
    pub role: Role,
    pub programs: ProgramSlots,
}

/// What a fragment does for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::execution) enum Role {
    /// What the graph says.
    Computes,
    /// It puts parts together that several devices made.
    Joins,
}

impl Fragment {
    /// The program of the fragment on a device, compiled when it is first wanted there.
    pub fn program(
        &self,
        device: usize,
        processor: &dyn Processor,
    ) -> Result<Arc<dyn Program>, CompileError> {
        self.programs.program(device, &self.subgraph, processor)
    }

    /// Bytes of its weights and its model.
    pub fn bytes(&self) -> u64 {
        let weights = self
            .subgraph
            .weights
            .values()
            .map(|values| values.len() as u64);
        self.subgraph.model.len() as u64 + weights.sum::<u64>()
    }
}
