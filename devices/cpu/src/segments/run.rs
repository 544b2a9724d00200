//! Runs the segments of a compiled graph (each a run of nodes for one engine) one after another,
//! and frees each value when its last reader has run. The memory of a run therefore depends on the
//! width of its graph, not on its depth.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::Tensor;
use souk_onnx::graph::values_read;
use souk_onnx::liveness::{Liveness, StepValues};
use souk_onnx::subgraph::Port;
use souk_reference as reference;
use souk_reference::Scope;
use souk_vocabulary::processor::RunError;

use super::{Segment, SegmentEngine, Segments};
use crate::rten_engine::catch_panic;

impl Segments {
    /// Notes which values are freed after each segment, and within it after each node.
    pub(super) fn free_values(&mut self, inputs: &[Port]) {
        let given = || inputs.iter().map(|port| port.name.as_str());
        let wanted = || self.outputs.iter().map(String::as_str);
        let steps = self.segments.iter();
        let steps = steps.map(|segment| StepValues::of_nodes(&segment.nodes));
        let freed = Liveness::new(given(), steps, wanted()).freed_after_steps();
        let within = |(segment, freed): (&Segment, &Vec<&str>)| {
            let values = StepValues::of_nodes(&segment.nodes);
            let freed: BTreeSet<&str> = freed.iter().copied().collect();
            let all = values.reads.iter().chain(&values.makes).copied();
            let kept = all.filter(|name| !freed.contains(name));
            let steps = segment.nodes.chunks(1).map(StepValues::of_nodes);
            let given = values.reads.iter().copied();
            to_owned_names(Liveness::new(given, steps, kept).freed_after_steps())
        };
        let freed_within: Vec<_> = self.segments.iter().zip(&freed).map(within).collect();
        self.freed = to_owned_names(freed);
        for (segment, freed) in self.segments.iter_mut().zip(freed_within) {
            segment.freed = freed;
        }
        debug_assert!(self.frees_after_last_read(), "a value is freed too early");
    }

    /// Whether no segment and no output of the run reads a value that was freed before.
    fn frees_after_last_read(&self) -> bool {
        let mut freed: BTreeSet<&str> = BTreeSet::new();
        for (segment, ended) in self.segments.iter().zip(&self.freed) {
            let mut read = segment.nodes.iter().flat_map(values_read);
            if read.any(|name| freed.contains(name)) {
                return false;
            }
            freed.extend(ended.iter().map(String::as_str));
        }
        !self.outputs.iter().any(|name| freed.contains(&name[..]))
    }

    /// Runs once; `inputs` must have been checked against the ports.
    pub fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let mut scope = self.run_all(inputs)?;
        let output = |name: &String| {
            let held = scope
                .remove(name)
                .or_else(|| self.weights.get(name).cloned());
            held.map(|tensor| (name.clone(), tensor))
                .ok_or_else(|| RunError::Engine {
                    engine: "reference",
                    reason: format!("output {name:?} was not made"),
                })
        };
        self.outputs.iter().map(output).collect()
    }

    /// Runs once and returns every value that was not freed. If the graph was compiled to keep
    /// everything, these are all values and the inputs.
    pub fn run_all(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Scope, RunError> {
        let mut scope: Scope = inputs.clone();
        for (segment, freed) in self.segments.iter().zip(&self.freed) {
            segment.run(&mut scope, freed, &self.weights, self.opset)?;
            for name in freed {
                scope.remove(name);
            }
        }
        Ok(scope)
    }
}

/// Names for as long as a program lives.
fn to_owned_names(names: Vec<Vec<&str>>) -> Vec<Vec<String>> {
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    names.into_iter().map(owned).collect()
}

impl Segment {
    /// Runs over the values in scope, of which those in `freed` are not needed afterwards.
    fn run(
        &self,
        scope: &mut Scope,
        freed: &[String],
        weights: &Scope,
        opset: i64,
    ) -> Result<(), RunError> {
        match &self.fast {
            SegmentEngine::Images(images) => {
                if run_own_kernels(scope, "images", |scope| images.run(scope))? {
                    return Ok(());
                }
            }
            SegmentEngine::Sequences(sequences) => {
                if run_own_kernels(scope, "sequences", |scope| sequences.run(scope))? {
                    return Ok(());
                }
            }
            SegmentEngine::Rten(rten) => match rten.run(&self.nodes, scope, weights) {
                Ok(made) if !self.has_reference || !made.is_doubtful => {
                    scope.extend(made.outputs);
                    return Ok(());
                }
                Err(error) if !self.has_reference || is_final(&error) => return Err(error),
                Ok(_) | Err(_) => {}
            },
            SegmentEngine::Trees(trees) => {
                if run_own_kernels(scope, "trees", |scope| trees.run(scope, weights))? {
                    return Ok(());
                }
            }
            SegmentEngine::Wasm(kernels) => return kernels.run(scope, weights),
            SegmentEngine::None => {}
        }
        self.run_reference(scope, freed, weights, opset)
    }

    /// Runs on the reference kernels, which see the values that the nodes read and no others, so
    /// that each is freed after its last reader.
    fn run_reference(
        &self,
        scope: &mut Scope,
        freed: &[String],
        weights: &Scope,
        opset: i64,
    ) -> Result<(), RunError> {
        let mut read = Scope::new();
        for name in self.nodes.iter().flat_map(values_read) {
            let held = self.find_weight(name, weights);
            if let Some(tensor) = held.or_else(|| scope.get(name).cloned()) {
                read.insert(name.to_owned(), tensor);
            }
        }
        for name in freed {
            scope.remove(name);
        }
        let run = || reference::run_freeing(&self.nodes, &self.freed, &mut read, opset);
        catch_panic(run).unwrap_or_else(|reason| {
            Err(RunError::Crashed {
                engine: "reference",
                reason,
            })
        })?;
        let made = self.output_names();
        let made = made.filter_map(|name| read.remove_entry(name));
        scope.extend(made);
        Ok(())
    }

    /// A weight of the model, wherever it is.
    fn find_weight(&self, name: &str, weights: &Scope) -> Option<Tensor> {
        let held = weights.get(name).cloned();
        match &self.fast {
            SegmentEngine::Images(images) => held.or_else(|| images.unpack_weight(name)),
            SegmentEngine::Sequences(sequences) => held.or_else(|| sequences.unpack_weight(name)),
            _ => held,
        }
    }

    /// Returns the names of the values that its nodes make.
    fn output_names(&self) -> impl Iterator<Item = &str> {
        let named = self.nodes.iter().flat_map(|node| &node.output);
        named.map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// Whether an operator itself failed, so that every other engine would fail too.
fn is_final(error: &RunError) -> bool {
    matches!(error, RunError::Operator { .. })
}

/// Runs kernels of our own; returns whether they took these sizes.
fn run_own_kernels(
    scope: &mut Scope,
    engine: &'static str,
    run: impl FnOnce(&Scope) -> Option<Scope>,
) -> Result<bool, RunError> {
    let crashed = |reason| RunError::Crashed { engine, reason };
    let outputs = catch_panic(|| run(scope)).map_err(crashed)?;
    let took = outputs.is_some();
    scope.extend(outputs.into_iter().flatten());
    Ok(took)
}
