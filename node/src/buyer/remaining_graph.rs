//! Cuts the rest of a job out of its graph once some values are computed, so that no finished work
//! runs again. The planner calls it when a job plans again.
//!
//! The rest is a job of its own: the nodes that lead to a missing output, with the job's inputs and
//! the computed values as its inputs. So the same code can plan, buy and run it.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_scheduler::graph::cut::{self, Boundary, CutError};
use souk_scheduler::graph::{Bindings, Graph, ImportError, NodeId, ValueId};

/// Why the rest of a job does not form a graph.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// The rest cannot be separated from the finished part.
    #[error("the rest of the job cannot be separated: {0}")]
    Cut(#[from] CutError),
    /// The rest is not a valid graph, which is a fault of souk.
    #[error("the rest of the job is not a valid graph: {0}")]
    Import(#[from] ImportError),
    /// The part belongs to a plan that was not bought.
    #[error("no such part was planned")]
    Unknown,
    /// A value that the rest reads is no longer in memory.
    #[error("{name}, which the rest of the job reads, is no longer in memory")]
    Gone {
        /// The name of the value.
        name: String,
    },
}

/// Returns the rest of `graph`, given its inputs and the values computed so far.
///
/// If the rest and the finished part need each other's values, it returns the whole graph.
pub(super) fn remaining_graph(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    values: &BTreeMap<String, Tensor>,
) -> Result<Graph, RestError> {
    let needed = needed_nodes(graph, values);
    if needed.len() == graph.nodes().len() {
        return Ok(graph.clone());
    }
    let part = |node: usize| usize::from(needed.contains(&NodeId(node)));
    let assignment: Vec<usize> = (0..graph.nodes().len()).map(part).collect();
    let parts = match cut::cut_graph(graph, &assignment) {
        Ok(parts) => parts,
        Err(CutError::Cyclic { .. }) => return Ok(graph.clone()),
        Err(error) => return Err(error.into()),
    };
    let left = parts.into_iter().find(|part| part.part == 1);
    let left = left.expect("some node is needed, or the job would be done");
    let mut bindings = Bindings::new();
    for Boundary { name, .. } in &left.inputs {
        if let Some(tensor) = values.get(name).or_else(|| inputs.get(name)) {
            bindings = bindings.with_input(name, tensor.dtype(), tensor.dims());
        }
    }
    Ok(Graph::import(left.model, &bindings)?)
}

/// Returns the nodes that lead from the computed values to the missing outputs.
fn needed_nodes(graph: &Graph, values: &BTreeMap<String, Tensor>) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut open: Vec<ValueId> = graph.outputs().to_vec();
    while let Some(id) = open.pop() {
        let value = graph.value(id);
        let Some(maker) = value
            .producer()
            .filter(|_| !values.contains_key(&value.name))
        else {
            continue;
        };
        if found.insert(maker) {
            open.extend(graph.node(maker).input_values());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::npy;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");

    fn digits() -> (Graph, BTreeMap<String, Tensor>) {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let bindings = Bindings::new().with_input("images", images.dtype(), images.dims());
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        (graph, [("images".to_owned(), images)].into())
    }

    /// Zeros of the shape of the value that the first node makes.
    fn early(graph: &Graph) -> (String, Tensor) {
        let node = &graph.nodes()[0];
        let value = graph.value(node.output_values().next().unwrap());
        let dims: Vec<usize> = value.dims().unwrap().iter().map(|d| *d as usize).collect();
        let count = dims.iter().product();
        let zeros = Tensor::from_vec(dims, vec![0.0_f32; count]).unwrap();
        (value.name.clone(), zeros)
    }

    #[test]
    fn nothing_done_leaves_all_of_it() {
        let (graph, inputs) = digits();
        let left = remaining_graph(&graph, &inputs, &BTreeMap::new()).unwrap();
        assert_eq!(left.nodes().len(), graph.nodes().len());
    }

    #[test]
    fn a_value_that_is_there_leaves_what_comes_after_it() {
        let (graph, inputs) = digits();
        let values: BTreeMap<_, _> = [early(&graph)].into();
        let left = remaining_graph(&graph, &inputs, &values).unwrap();
        assert!(left.nodes().len() < graph.nodes().len());
        let name = |id: &ValueId, of: &Graph| of.value(*id).name.clone();
        let read: Vec<String> = left.inputs().iter().map(|id| name(id, &left)).collect();
        assert_eq!(
            read.iter().collect::<Vec<_>>(),
            values.keys().collect::<Vec<_>>()
        );
        let made =
            |of: &Graph| -> Vec<String> { of.outputs().iter().map(|id| name(id, of)).collect() };
        assert_eq!(made(&left), made(&graph));
    }
}
