//! The CPU's engine for networks over sequences, with our own kernels for products with weights of
//! the model, attention, normalisation, and the operators between them. [`find_runs`] finds the
//! nodes of a graph that it should run, and a [`SequenceModel`] runs them. Another engine must run
//! any other node.
//!
//! Weights are packed once. Biases, activations and sums are part of the product before them.
//! Attention never writes its scores out or transposes its heads, and threads go from stage to
//! stage without a scheduler.

mod execution_plan;
mod patterns;
mod plan;
mod rows;
mod run;
mod scratch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_memory::Tensor;
use souk_onnx::graph::Graph;
use souk_reference::Scope;

use crate::tiled::buffer_pool::SpareBuffers;
use crate::tiled::packed_weights::PackedWeights;
use crate::tiled::worker_pool::{self, Memory};
use execution_plan::SequenceExecutionPlan;
use patterns::{SequenceMatcher, SequencePattern};
use plan::{PackedProduct, Product, ProductWeights, SequenceAction, SequencePlan};
use run::SequenceRun;

/// A graph of which every node runs here.
pub(super) struct SequenceModel {
    isa: Isa,
    plan: SequencePlan,
    /// Weights of the products, by step.
    held: Vec<Option<Arc<PackedProduct>>>,
    threads: Arc<ThreadPool>,
    /// How the last run was laid out: the next is mostly of the same size.
    last: Mutex<Option<Arc<SequenceExecutionPlan>>>,
    /// Shared by all parts of a program, because they run one after another.
    spares: Arc<SpareBuffers>,
}

/// Finds runs of nodes that all belong to patterns, with a product among them to be worthwhile;
/// `taken` are another engine's.
pub(super) fn find_runs(graph: &Graph, taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let reader = SequenceMatcher::new(graph);
    let mut runs: Option<Vec<Range<usize>>> = None;
    // A pattern of several nodes is lost where something between them is part of none; then the
    // others of them are part of none either, and runs are cut anew.
    loop {
        let within = |nodes: &[usize]| match &runs {
            None => true,
            Some(runs) => runs
                .iter()
                .any(|run| nodes.iter().all(|node| run.contains(node))),
        };
        let matches = reader.find_matches(within);
        let mut has = vec![None; graph.nodes().len()];
        for found in &matches {
            let is_product = matches!(found.pattern, SequencePattern::Product { .. });
            found
                .nodes
                .iter()
                .for_each(|&at| has[at] = Some(is_product));
        }
        taken.iter().for_each(|range| has[range.clone()].fill(None));
        let (mut found, mut start) = (Vec::new(), 0);
        for run in has.chunk_by(|left, right| left.is_some() == right.is_some()) {
            let range = start..start + run.len();
            start = range.end;
            if run.contains(&Some(true)) {
                found.push(range);
            }
        }
        if runs.as_ref() == Some(&found) {
            return found;
        }
        runs = Some(found);
    }
}

impl SequenceModel {
    /// Plans a graph; `None` if some node is part of no pattern after all. The caller must call
    /// [`Self::pack_weights`] before the first run.
    pub fn new(
        graph: &Graph,
        threads: &Arc<ThreadPool>,
        spares: &Arc<SpareBuffers>,
    ) -> Option<Self> {
        let plan = SequencePlan::new(graph)?;
        let fits = |product: &Product| match &product.weights {
            ProductWeights::Held { tensor, .. } => tensor.elements::<f32>().is_ok(),
            ProductWeights::Packed { .. } => true,
        };
        let all = plan.products().all(fits);
        all.then(|| Self {
            isa: Isa::detect_widest(),
            held: plan.steps.iter().map(|_| None).collect(),
            plan,
            threads: threads.clone(),
            last: Mutex::new(None),
            spares: spares.clone(),
        })
    }

    /// Computes with the instructions of `isa`, which this processor must have. The weights must
    /// not be packed yet.
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// Names of the weights that [`Self::pack`] takes over.
    pub fn packable_weights(&self) -> BTreeSet<String> {
        let names = self.plan.products().filter_map(|it| match &it.weights {
            ProductWeights::Held { name, .. } => Some(name.clone()),
            ProductWeights::Packed { .. } => None,
        });
        names.collect()
    }

    /// Packs the weights that `packs` lacks, and frees each immediately afterwards.
    pub fn pack_weights(&mut self, packs: &mut PackedWeights) {
        for (step, held) in self.plan.steps.iter_mut().zip(&mut self.held) {
            if let SequenceAction::Product(product) = &mut step.action {
                *held = pack_product(self.isa, product, packs).map(Arc::new);
            }
        }
    }

    /// Returns a weight in the layout of the model; `None` if it was not packed here.
    pub fn unpack_weight(&self, wanted: &str) -> Option<Tensor> {
        let steps = self.plan.steps.iter().zip(&self.held);
        let mut found = steps.filter_map(|(step, held)| match (&step.action, held) {
            (SequenceAction::Product(product), Some(held)) => match &product.weights {
                ProductWeights::Packed { name } if name == wanted => {
                    Some((product.transposed, held))
                }
                _ => None,
            },
            _ => None,
        });
        let (transposed, held) = found.next()?;
        let sizes = match transposed {
            true => [held.columns, held.matrix.depth],
            false => [held.matrix.depth, held.columns],
        };
        Tensor::from_vec(sizes, held.unpack_matrix(self.isa, transposed)).ok()
    }

    /// Runs once; returns `None` if another engine must judge these sizes.
    pub fn run(&self, scope: &Scope) -> Option<BTreeMap<String, Tensor>> {
        let tensors = self.plan.inputs.iter().map(|(name, _)| scope.get(name));
        let tensors: Vec<&Tensor> = tensors.collect::<Option<_>>()?;
        let sizes = tensors.iter().map(|tensor| tensor.dims().to_vec());
        let execution = self.execution_plan(sizes.collect())?;
        let values = tensors.iter().map(|tensor| tensor.elements::<f32>().ok());
        let values: Vec<_> = values.collect::<Option<_>>()?;
        let given: Vec<Memory> = values.iter().map(|values| Memory::read(values)).collect();
        let mut buffers = self.spares.take_buffers(&execution.buffers);
        let outputs = self.plan.outputs.iter();
        let floats = outputs.map(|(_, value)| execution.dims[*value].iter().product());
        let mut results: Vec<Vec<f32>> = floats.map(|count| vec![0.0; count]).collect();
        let run = SequenceRun {
            isa: self.isa,
            plan: &self.plan,
            execution: &execution,
            packed: &self.held,
            given: &given,
            buffers: &worker_pool::to_memories(&mut buffers),
            results: &worker_pool::to_memories(&mut results),
        };
        worker_pool::run(
            &self.threads,
            &execution.tasks_per_stage(),
            |stage, task| run.run_task(stage, task),
        );
        drop(buffers);
        let named = self.plan.outputs.iter().zip(results);
        named
            .map(|((name, value), floats)| {
                let dims = &execution.dims[*value][..];
                Some((name.clone(), Tensor::from_vec(dims, floats).ok()?))
            })
            .collect()
    }

    /// Returns the plan for inputs of these sizes; `None` if another engine must run them.
    fn execution_plan(&self, sizes: Vec<Vec<usize>>) -> Option<Arc<SequenceExecutionPlan>> {
        let mut last = self.last.lock().unwrap_or_else(|held| held.into_inner());
        if let Some(execution) = &*last
            && execution.inputs == sizes
        {
            return Some(execution.clone());
        }
        let threads = self.threads.run(rayon::current_num_threads);
        let made = SequenceExecutionPlan::new(self.isa, &self.plan, sizes, &self.held, threads)?;
        let made = Arc::new(made);
        *last = Some(made.clone());
        Some(made)
    }
}

/// Packs the weights of a product that has them; the product then only names them.
fn pack_product(
    isa: Isa,
    product: &mut Product,
    packs: &mut PackedWeights,
) -> Option<PackedProduct> {
    let packed = PackedProduct::new(isa, product, packs)?;
    if let ProductWeights::Held { name, .. } = &product.weights {
        let name = name.clone();
        product.weights = ProductWeights::Packed { name };
    }
    Some(packed)
}

#[cfg(test)]
mod tests;
