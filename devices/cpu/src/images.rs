//! Runs networks over images on the CPU, with souk's own kernels for convolutions, pools and the
//! operators between them. [`classify_nodes`] returns which nodes of a graph this engine supports;
//! an [`ImageModel`] runs a graph of such nodes.
//!
//! rten multiplies large matrices as fast as any library, but its convolutions take two to four
//! times as long as those of the fastest library. This engine stores images with the channels last,
//! so a convolution reads them in place. It computes normalisation and activations as part of the
//! preceding convolution, and its threads go from step to step without a scheduler. Another engine
//! must run the nodes that this engine does not support.

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

/// A graph, or a part of one, that this engine runs as a whole.
pub(super) struct ImageModel {
    isa: Isa,
    plan: ImagePlan,
    /// By step, the packed weights of a convolution whose weights are in the model; `None` for any
    /// other step, and before [`Self::pack_weights`].
    held: Vec<Option<(FilterDims, Arc<PackedFilters>)>>,
    threads: Arc<ThreadPool>,
    /// The execution plan of the last run, for reuse: the next run usually has inputs of the same
    /// sizes.
    last: Mutex<Option<Arc<ImageExecutionPlan>>>,
    /// Free buffers. All parts of a program share them, because the parts run one after another.
    spares: Arc<SpareBuffers>,
}

/// A plan with the memory layout and the division into tasks for inputs of one size.
struct ImageExecutionPlan {
    inputs: Vec<Image>,
    filters: Vec<Option<FilterDims>>,
    layout: Layout,
    stages: Vec<(Stage, Split)>,
    zeros: Vec<f32>,
}

/// Returns for each node whether it alone justifies this engine; `None` if this engine does not
/// support the node.
pub(super) fn classify_nodes(graph: &Graph) -> Vec<Option<NodeWeight>> {
    let reader = ImageMatcher::new(graph);
    let worth = |node| {
        let (pattern, _) = reader.match_pattern(node)?;
        let heavy = matches!(
            pattern,
            ImagePattern::Convolve { .. } | ImagePattern::Neighbours { .. }
        );
        Some(if heavy {
            NodeWeight::Heavy
        } else {
            NodeWeight::Light
        })
    };
    let mut worths: Vec<Option<NodeWeight>> = graph.nodes().iter().map(worth).collect();
    for first in reader.find_shuffles().into_keys() {
        worths[first..first + 3].fill(Some(NodeWeight::Light));
    }
    worths
}

/// Whether a node alone justifies the conversion of images to this engine's layout. `Heavy` nodes
/// do; `Light` nodes run here only next to a `Heavy` one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeWeight {
    Heavy,
    Light,
}

impl ImageModel {
    /// Plans a graph; returns `None` if this engine does not support some node or the sizes of its
    /// weights. The caller must call [`Self::pack_weights`] before the first run.
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

    /// Replaces the instruction set by `isa`, which this processor must support. You must call this
    /// before [`Self::pack_weights`], because the packing depends on it.
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// Returns the names of the weights that [`Self::pack_weights`] packs.
    pub fn packable_weights(&self) -> BTreeSet<String> {
        let names = self.plan.convolutions().filter_map(|it| match &it.weights {
            FilterWeights::Held { name, .. } => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Packs the model's weights, or reuses them from `packs` where they are packed already, and
    /// frees each unpacked tensor immediately.
    pub fn pack_weights(&mut self, packs: &mut PackedWeights) {
        for (step, held) in self.plan.steps.iter_mut().zip(&mut self.held) {
            if let ImageAction::Convolve(convolution) = &mut step.action {
                *held = pack_filters(self.isa, convolution, packs);
            }
        }
    }

    /// Returns a packed weight in the model's layout; `None` if [`Self::pack_weights`] did not pack
    /// it.
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

    /// Runs the model once and returns its outputs by name; returns `None` if this engine cannot
    /// run inputs of these sizes or types, so that another engine must run them or report the
    /// error.
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

    /// Returns the packed weights of every convolution. Packs the weights that are inputs of this
    /// run.
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

    /// Zeros the buffers of input images that have a frame (a border of zeros), because another
    /// value may have used the buffer since.
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

/// Returns the sizes of a convolution's weights; `None` if the tensor does not have [`RANK`] sizes,
/// one of them is zero, or the filters cannot be divided among the groups.
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

/// Sizes and packed weights by step; `None` for a step that is not a convolution.
type PackedConvolutions = (Vec<Option<FilterDims>>, Vec<Option<Arc<PackedFilters>>>);

impl Convolution {
    /// Returns whether the weights have valid sizes and are f32; always true for weights that are
    /// inputs of a run.
    fn is_packable(&self) -> bool {
        match &self.weights {
            FilterWeights::Held { tensor, .. } => {
                filter_dims(tensor, self.groups).is_some() && tensor.elements::<f32>().is_ok()
            }
            _ => true,
        }
    }
}

/// Packs the weights of a convolution if the model contains them. Afterwards the convolution holds
/// only their name.
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
