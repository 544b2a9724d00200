//! The CPU's engine for networks over images, with our own kernels for convolutions, pools, and the
//! operators between them. [`node_worths`] states which nodes of a graph it can run; an
//! [`ImageModel`] runs them.
//!
//! rten multiplies large matrices as fast as any library, but takes two to four times as long as
//! the best over convolutions. Here images lie channels last, a convolution reads them in place,
//! normalisation and activations are part of the convolution before them, and threads go from step
//! to step without a scheduler. If this engine has no operator for a node, another engine must run
//! it.

mod filters;
mod layout;
mod patterns;
mod plan;
mod rows;
mod run;
mod stages;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_memory::Tensor;
use souk_onnx::graph::Graph;
use souk_reference::Scope;

use crate::tiled::aligned_floats::AlignedFloats;
use crate::tiled::buffer_pool::SpareBuffers;
use crate::tiled::packed_weights::PackedWeights;
use crate::tiled::plan::Step;
use crate::tiled::worker_pool;
use filters::{FilterDims, PackedFilters};
use layout::{Image, Layout};
use patterns::{ImageMatcher, ImagePattern, RANK};
use plan::{Convolution, FilterWeights, ImageAction, ImagePlan};
use run::ImageRun;
use stages::{Split, Stage, divide_stages};

/// A graph of which every node runs here.
pub(super) struct ImageModel {
    isa: Isa,
    plan: ImagePlan,
    /// Weights of the convolutions that have them in the model, by step.
    held: Vec<Option<(FilterDims, Arc<PackedFilters>)>>,
    threads: Arc<ThreadPool>,
    /// How the last run was laid out: the next is mostly of the same size.
    last: Mutex<Option<Arc<ImageExecutionPlan>>>,
    /// Shared by all parts of a program, because they run one after another.
    spares: Arc<SpareBuffers>,
}

/// A plan laid out for inputs of one size.
struct ImageExecutionPlan {
    inputs: Vec<Image>,
    filters: Vec<Option<FilterDims>>,
    layout: Layout,
    stages: Vec<(Stage, Split)>,
    zeros: Vec<f32>,
}

/// Returns for each node how much this engine is worth for it, and `None` if it cannot run it.
pub(super) fn node_worths(graph: &Graph) -> Vec<Option<NodeCost>> {
    let reader = ImageMatcher::new(graph);
    let worth = |node| {
        let (pattern, _) = reader.match_pattern(node)?;
        let heavy = matches!(
            pattern,
            ImagePattern::Convolve { .. } | ImagePattern::Neighbours { .. }
        );
        Some(if heavy {
            NodeCost::Heavy
        } else {
            NodeCost::Light
        })
    };
    let mut worths: Vec<Option<NodeCost>> = graph.nodes().iter().map(worth).collect();
    for first in reader.find_shuffles().into_keys() {
        worths[first..first + 3].fill(Some(NodeCost::Light));
    }
    worths
}

/// Whether a node alone is reason enough to run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeCost {
    Heavy,
    Light,
}

impl ImageModel {
    /// Plans a graph; `None` if some node has no operator here after all. The caller must call
    /// [`Self::pack_weights`] before the first run.
    pub fn new(
        graph: &Graph,
        threads: &Arc<ThreadPool>,
        spares: &Arc<SpareBuffers>,
    ) -> Option<Self> {
        let plan = ImagePlan::new(graph)?;
        let fit = |step: &Step<ImageAction>| match &step.action {
            ImageAction::Convolve(convolution) => convolution.is_packable(),
            _ => true,
        };
        plan.steps.iter().all(fit).then(|| Self {
            held: plan.steps.iter().map(|_| None).collect(),
            isa: Isa::detect_widest(),
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

    /// Names of the weights that [`Self::pack_weights`] takes over.
    pub fn packable_weights(&self) -> BTreeSet<String> {
        let names = self.plan.convolutions().filter_map(|it| match &it.weights {
            FilterWeights::Held { name, .. } => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Packs the model's weights that `packs` lacks, and frees each immediately afterwards.
    pub fn pack_weights(&mut self, packs: &mut PackedWeights) {
        for (step, held) in self.plan.steps.iter_mut().zip(&mut self.held) {
            if let ImageAction::Convolve(convolution) = &mut step.action {
                *held = pack_filters(self.isa, convolution, packs);
            }
        }
    }

    /// Returns a weight in the layout of the model; `None` if it was not packed here.
    pub fn unpack_weight(&self, wanted: &str) -> Option<Tensor> {
        let is_wanted = |convolution: &Convolution| match &convolution.weights {
            FilterWeights::Packed { name } => name == wanted,
            _ => false,
        };
        let step = self.plan.steps.iter().position(|step| match &step.action {
            ImageAction::Convolve(convolution) => is_wanted(convolution),
            _ => false,
        })?;
        let (dims, packed) = self.held[step].as_ref()?;
        let sizes = [dims.filters, dims.depth, dims.height, dims.width];
        Tensor::from_vec(sizes, packed.unpack_filters(self.isa, *dims)).ok()
    }

    /// Runs once; returns `None` if another engine must judge these sizes.
    pub fn run(&self, scope: &Scope) -> Option<BTreeMap<String, Tensor>> {
        let (filters, packed) = self.pack_run_weights(scope)?;
        let tensors = self.plan.inputs.iter().map(|(name, _)| scope.get(name));
        let tensors: Vec<&Tensor> = tensors.collect::<Option<_>>()?;
        let images = tensors.iter().map(|tensor| image_from_tensor(tensor));
        let execution = self.execution_plan(images.collect::<Option<_>>()?, filters, &packed)?;
        let values = tensors.iter().map(|tensor| tensor.elements::<f32>().ok());
        let values: Vec<_> = values.collect::<Option<_>>()?;
        let given: Vec<&[f32]> = values.iter().map(|values| &values[..]).collect();
        let mut buffers = self.spares.take_buffers(&execution.layout.buffers);
        self.clear_frames(&execution, &mut buffers);
        let mut results = self.allocate_results(&execution);
        let run = ImageRun {
            isa: self.isa,
            plan: &self.plan,
            layout: &execution.layout,
            stages: &execution.stages,
            packed: &packed,
            given: &given,
            buffers: &worker_pool::to_memories(&mut buffers),
            zeros: &execution.zeros,
            results: &worker_pool::to_memories(&mut results),
        };
        let tasks: Vec<usize> = execution
            .stages
            .iter()
            .map(|(_, split)| split.tasks)
            .collect();
        worker_pool::run(&self.threads, &tasks, |stage, task| {
            run.run_task(stage, task)
        });
        drop(buffers);
        let named = self.plan.outputs.iter().zip(results);
        named
            .map(|((name, value), floats)| {
                let image = execution.layout.images[*value];
                let dims = [image.samples, image.channels, image.height, image.width];
                Some((name.clone(), Tensor::from_vec(dims, floats).ok()?))
            })
            .collect()
    }

    /// Returns the packed weights of every convolution; packs those that are inputs of this run.
    fn pack_run_weights(&self, scope: &Scope) -> Option<PackedConvolutions> {
        let steps = self.plan.steps.iter().zip(&self.held);
        let both = steps.map(|(step, held)| match (&step.action, held) {
            (ImageAction::Convolve(_), Some((dims, packed))) => {
                Some((Some(*dims), Some(packed.clone())))
            }
            (ImageAction::Convolve(convolution), None) => {
                let (dims, packed) = pack_run_filters(self.isa, convolution, scope)?;
                Some((Some(dims), Some(Arc::new(packed))))
            }
            _ => Some((None, None)),
        });
        let both: Vec<_> = both.collect::<Option<_>>()?;
        Some(both.into_iter().unzip())
    }

    fn execution_plan(
        &self,
        inputs: Vec<Image>,
        filters: Vec<Option<FilterDims>>,
        packed: &[Option<Arc<PackedFilters>>],
    ) -> Option<Arc<ImageExecutionPlan>> {
        let mut last = self.last.lock().unwrap_or_else(|held| held.into_inner());
        if let Some(execution) = &*last
            && execution.inputs == inputs
            && execution.filters == filters
        {
            return Some(execution.clone());
        }
        let layout = Layout::new(&self.plan, &inputs, &filters)?;
        let threads = self.threads.run(rayon::current_num_threads);
        let execution = Arc::new(ImageExecutionPlan {
            stages: divide_stages(self.isa, &self.plan, &layout, packed, threads),
            zeros: vec![0.0; layout.pixel_max],
            inputs,
            filters,
            layout,
        });
        *last = Some(execution.clone());
        Some(execution)
    }

    /// Zeros the frames of input images, whose buffers held other values in the last run.
    fn clear_frames(&self, execution: &ImageExecutionPlan, buffers: &mut [AlignedFloats]) {
        for (_, value) in &self.plan.inputs {
            let place = &execution.layout.places[*value];
            if let Some(frame) = place.frame {
                let samples = execution.layout.images[*value].samples;
                let floats = samples * frame.height * frame.width * place.stride;
                buffers[place.buffer][..floats].fill(0.0);
            }
        }
    }

    fn allocate_results(&self, execution: &ImageExecutionPlan) -> Vec<Vec<f32>> {
        let outputs = self.plan.outputs.iter();
        let images = outputs.map(|(_, value)| execution.layout.images[*value]);
        images
            .map(|image| vec![0.0; image.pixel_count() * image.channels])
            .collect()
    }
}

fn image_from_tensor(tensor: &Tensor) -> Option<Image> {
    let &[samples, channels, height, width] = tensor.dims() else {
        return None;
    };
    Some(Image {
        samples,
        height,
        width,
        channels,
    })
}

/// Sizes of a convolution's weights that go together.
fn filter_dims(tensor: &Tensor, groups: usize) -> Option<FilterDims> {
    let dims: [usize; RANK] = tensor.dims().try_into().ok()?;
    let [filters, depth, height, width] = dims;
    let whole = dims.iter().all(|&size| size > 0) && filters.is_multiple_of(groups);
    whole.then_some(FilterDims {
        filters,
        depth,
        height,
        width,
        groups,
    })
}

type HeldFilters = Option<(FilterDims, Arc<PackedFilters>)>;

/// Sizes and weights of the convolutions among the steps.
type PackedConvolutions = (Vec<Option<FilterDims>>, Vec<Option<Arc<PackedFilters>>>);

impl Convolution {
    /// Whether the weights have valid sizes, if the model contains them.
    fn is_packable(&self) -> bool {
        match &self.weights {
            FilterWeights::Held { tensor, .. } => {
                filter_dims(tensor, self.groups).is_some() && tensor.elements::<f32>().is_ok()
            }
            _ => true,
        }
    }
}

/// Packs the weights of a convolution if the model has them; the convolution then only names them.
fn pack_filters(isa: Isa, convolution: &mut Convolution, packs: &mut PackedWeights) -> HeldFilters {
    let FilterWeights::Held {
        name,
        tensor,
        factor,
        shift,
    } = &convolution.weights
    else {
        return None;
    };
    let dims = filter_dims(tensor, convolution.groups)?;
    let values = tensor.elements::<f32>().ok()?;
    let (factor, shift) = (|at: usize| factor[at], |at: usize| shift[at]);
    let packed = PackedFilters::new(isa, dims, &values, factor, shift, packs.for_weight(name));
    drop(values);
    let name = name.clone();
    convolution.weights = FilterWeights::Packed { name };
    Some((dims, Arc::new(packed)))
}

/// Packs the weights of a convolution that are inputs of the run.
fn pack_run_filters(
    isa: Isa,
    convolution: &Convolution,
    scope: &Scope,
) -> Option<(FilterDims, PackedFilters)> {
    let FilterWeights::Given {
        weights,
        bias,
        bias_held,
    } = &convolution.weights
    else {
        return None;
    };
    let tensor = scope.get(weights)?;
    let dims = filter_dims(tensor, convolution.groups)?;
    let bias = match (bias, bias_held) {
        (_, Some(held)) => held.to_f64s().ok()?,
        (Some(name), None) => scope.get(name)?.to_f64s().ok()?,
        (None, None) => vec![0.0; dims.filters],
    };
    if bias.len() != dims.filters {
        return None;
    }
    let values = tensor.elements::<f32>().ok()?;
    let mut packs = PackedWeights::default();
    let packs = packs.for_weight(weights);
    let packed = PackedFilters::new(isa, dims, &values, |_| 1.0, |at| bias[at], packs);
    Some((dims, packed))
}

#[cfg(test)]
mod tests;
