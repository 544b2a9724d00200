//! Networks over sequences on kernels of our own: products with weights of the model, attention,
//! normalisation, and what lies between them.
//!
//! Weights are packed once, biases, activations and sums are part of the product before them,
//! attention never writes its scores out or turns its heads, and threads go from stage to stage
//! without meeting a scheduler. What this engine has no word for runs elsewhere.

mod attend;
mod heads;
mod laid;
mod packed;
mod plan;
mod rows;
mod run;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_memory::Tensor;
use souk_onnx::graph::Graph;
use souk_reference::Scope;

use super::crew::{self, Memory};
use super::lines::Lines;
use laid::Laid;
use packed::Packed;
use plan::{Action, Plan, Product, Weights};
use run::Run;
use words::{Reader, Word};

/// Sets of buffers kept between runs, for as many runs at once.
const SPARES_MAX: usize = 2;

/// A graph of which every node runs here.
pub(super) struct SequenceModel {
    isa: Isa,
    plan: Plan,
    /// Weights of the products, by step.
    held: Vec<Option<Arc<Packed>>>,
    threads: Arc<ThreadPool>,
    /// How the last run was laid out: the next is mostly of the same size.
    last: Mutex<Option<Arc<Laid>>>,
    spares: Mutex<Vec<Vec<Lines>>>,
}

/// Runs of nodes that all have a word here, with a product among them to make it worth it; `taken`
/// are another engine's.
pub(super) fn runs(graph: &Graph, taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let reader = Reader::new(graph);
    let mut runs: Option<Vec<Range<usize>>> = None;
    // What several nodes say is lost where something between them has no word; then the others of
    // them have none either, and runs are cut anew.
    loop {
        let within = |nodes: &[usize]| match &runs {
            None => true,
            Some(runs) => runs
                .iter()
                .any(|run| nodes.iter().all(|node| run.contains(node))),
        };
        let said = reader.said(within);
        let mut has = vec![None; graph.nodes().len()];
        for said in &said {
            let is_product = matches!(said.word, Word::Product { .. });
            said.nodes.iter().for_each(|&at| has[at] = Some(is_product));
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
    /// Plans a graph; `None` if some node has no word after all. [`Self::pack`] comes before the
    /// first run.
    pub fn new(graph: &Graph, threads: &Arc<ThreadPool>) -> Option<Self> {
        let plan = Plan::new(graph)?;
        let fits = |product: &Product| match &product.weights {
            Weights::Held { tensor, .. } => tensor.elements::<f32>().is_ok(),
            Weights::Packed { .. } => true,
        };
        let all = plan.products().all(fits);
        all.then(|| Self {
            isa: Isa::found(),
            held: plan.steps.iter().map(|_| None).collect(),
            plan,
            threads: threads.clone(),
            last: Mutex::new(None),
            spares: Mutex::new(Vec::new()),
        })
    }

    /// Names of the weights that [`Self::pack`] takes over.
    pub fn packable(&self) -> BTreeSet<String> {
        let names = self.plan.products().filter_map(|it| match &it.weights {
            Weights::Held { name, .. } => Some(name.clone()),
            Weights::Packed { .. } => None,
        });
        names.collect()
    }

    /// Packs the weights, letting go of each as soon as it is packed.
    pub fn pack(&mut self) {
        for (step, held) in self.plan.steps.iter_mut().zip(&mut self.held) {
            if let Action::Product(product) = &mut step.action {
                *held = packed(self.isa, product).map(Arc::new);
            }
        }
    }

    /// A weight that was in the model, as it was there; `None` if it was not packed here.
    pub fn unpacked(&self, wanted: &str) -> Option<Tensor> {
        let steps = self.plan.steps.iter().zip(&self.held);
        let mut found = steps.filter_map(|(step, held)| match (&step.action, held) {
            (Action::Product(product), Some(held)) => match &product.weights {
                Weights::Packed { name } if name == wanted => Some((product.transposed, held)),
                _ => None,
            },
            _ => None,
        });
        let (transposed, held) = found.next()?;
        let sizes = match transposed {
            true => [held.columns, held.depth],
            false => [held.depth, held.columns],
        };
        Tensor::from_vec(sizes, held.unpacked(self.isa, transposed)).ok()
    }

    /// Runs once; `None` if these sizes are for another engine to judge.
    pub fn run(&self, scope: &Scope) -> Option<BTreeMap<String, Tensor>> {
        let tensors = self.plan.inputs.iter().map(|(name, _)| scope.get(name));
        let tensors: Vec<&Tensor> = tensors.collect::<Option<_>>()?;
        let sizes = tensors.iter().map(|tensor| tensor.dims().to_vec());
        let laid = self.laid(sizes.collect())?;
        let values = tensors.iter().map(|tensor| tensor.elements::<f32>().ok());
        let values: Vec<_> = values.collect::<Option<_>>()?;
        let given: Vec<Memory> = values.iter().map(|values| Memory::read(values)).collect();
        let mut buffers = self.buffers(&laid);
        let outputs = self.plan.outputs.iter();
        let floats = outputs.map(|(_, value)| laid.dims[*value].iter().product());
        let mut results: Vec<Vec<f32>> = floats.map(|count| vec![0.0; count]).collect();
        let run = Run {
            isa: self.isa,
            plan: &self.plan,
            laid: &laid,
            packed: &self.held,
            given: &given,
            buffers: &crew::memories(&mut buffers),
            results: &crew::memories(&mut results),
        };
        crew::run(&self.threads, &laid.tasks(), |stage, task| {
            run.task(stage, task)
        });
        self.keep(buffers);
        let named = self.plan.outputs.iter().zip(results);
        named
            .map(|((name, value), floats)| {
                let dims = &laid.dims[*value][..];
                Some((name.clone(), Tensor::from_vec(dims, floats).ok()?))
            })
            .collect()
    }

    fn laid(&self, sizes: Vec<Vec<usize>>) -> Option<Arc<Laid>> {
        let mut last = self.last.lock().unwrap_or_else(|held| held.into_inner());
        if let Some(laid) = &*last
            && laid.inputs == sizes
        {
            return Some(laid.clone());
        }
        let threads = self.threads.run(rayon::current_num_threads);
        let laid = Laid::new(self.isa, &self.plan, sizes, &self.held, threads)?;
        let laid = Arc::new(laid);
        *last = Some(laid.clone());
        Some(laid)
    }

    /// Buffers of an earlier run, as long as these sizes need, or new ones.
    fn buffers(&self, laid: &Laid) -> Vec<Lines> {
        let spare = self
            .spares
            .lock()
            .unwrap_or_else(|held| held.into_inner())
            .pop();
        let fits = |spare: &Vec<Lines>| {
            let lengths = spare.iter().map(|floats| floats.len());
            lengths.eq(laid.buffers.iter().copied())
        };
        let fresh = || {
            let floats = laid.buffers.iter();
            floats.map(|&floats| Lines::zeros(floats)).collect()
        };
        spare.filter(fits).unwrap_or_else(fresh)
    }

    fn keep(&self, buffers: Vec<Lines>) {
        let mut spares = self.spares.lock().unwrap_or_else(|held| held.into_inner());
        if spares.len() < SPARES_MAX {
            spares.push(buffers);
        }
    }
}

/// Packs the weights of a product that has them; the product then only names them.
fn packed(isa: Isa, product: &mut Product) -> Option<Packed> {
    let Weights::Held { name, tensor } = &product.weights else {
        return None;
    };
    let &[rows, columns] = tensor.dims() else {
        return None;
    };
    let sizes = match product.transposed {
        true => [columns, rows],
        false => [rows, columns],
    };
    let values = tensor.elements::<f32>().ok()?;
    let packed = Packed::new(isa, sizes, &values, product.transposed, &product.bias);
    drop(values);
    let name = name.clone();
    product.weights = Weights::Packed { name };
    Some(packed)
}

#[cfg(test)]
mod tests;
