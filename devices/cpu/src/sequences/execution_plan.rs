//! Lays a plan out for inputs of one size: computes the sizes of all values, decides where each
//! lies, and divides the work into stages of tasks. The sequence engine does so again when a run
//! has inputs of another size.
//!
//! Steps that do not need each other's results are one stage, so that threads meet seldom.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use souk_host::isa::Isa;
use souk_reference::shape::element_count;

use super::plan::{PackedProduct, SequenceAction, SequencePlan};
use super::scratch::ScratchLayout;
use crate::tiled::plan::Step;
use crate::tiled::values::Value;

/// Smallest work of a task, in multiplications; a pass over a value counts as `PASS_PRODUCTS`.
const TASK_PRODUCTS_MIN: usize = 1 << 17;
/// Cost of a pass over a value, in multiplications of a product.
const PASS_PRODUCTS: usize = 8;
/// Bytes of rows that a task reads again for each panel, so that they stay in its core's cache.
const TASK_BYTES_MAX: usize = 384 << 10;
/// Tasks for each thread, so that threads end together even if one is delayed.
const TASKS_A_THREAD: usize = 4;

/// A plan laid out.
pub(super) struct SequenceExecutionPlan {
    /// Sizes of the inputs it was laid out for.
    pub inputs: Vec<Vec<usize>>,
    /// Sizes of every value.
    pub dims: Vec<Vec<usize>>,
    pub places: Vec<ValuePlace>,
    /// Floats in each buffer.
    pub buffers: Vec<usize>,
    pub stages: Vec<Vec<Job>>,
    /// Floats of scratch that a task of attention needs.
    pub scratch: usize,
}

/// The place of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePlace {
    /// An input by its index, which steps read in place.
    Given(usize),
    Buffer(usize),
    /// An output by its index, written in the tensor that the run returns.
    Result(usize),
}

/// A step of a stage and how it is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub step: usize,
    /// The number of its first task in the stage.
    pub first: usize,
    /// Rows in a task, or heads.
    pub rows: usize,
    /// Panels in a task.
    pub panels: usize,
    /// Parts that the panels are divided into.
    pub panel_parts: usize,
    pub tasks: usize,
}

/// Returns the number of features in each row of a value.
pub(super) fn feature_count(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1)
}

/// Returns the number of rows of a value.
pub(super) fn row_count(dims: &[usize]) -> usize {
    dims.iter().rev().skip(1).product()
}

impl SequenceExecutionPlan {
    /// Lays a plan out; returns `None` if another engine must judge these sizes.
    pub fn new(
        isa: Isa,
        plan: &SequencePlan,
        inputs: Vec<Vec<usize>>,
        packed: &[Option<Arc<PackedProduct>>],
        threads: usize,
    ) -> Option<Self> {
        let mut dims: Vec<Vec<usize>> = vec![Vec::new(); plan.values];
        for ((_, value), sizes) in plan.inputs.iter().zip(&inputs) {
            dims[*value].clone_from(sizes);
        }
        for (step, packed) in plan.steps.iter().zip(packed) {
            dims[step.output] = step_result(step, &dims, packed.as_deref())?;
        }
        // Refuse sizes that no device could hold, and empty values.
        let whole = |dims: &Vec<usize>| element_count(dims).is_ok_and(|it| it > 0);
        if !dims.iter().all(whole) {
            return None;
        }
        let staged = divide_stages(plan);
        let (places, buffers) = place_values(plan, &dims, &staged);
        let mut made = Self {
            inputs,
            places,
            buffers,
            stages: Vec::new(),
            scratch: scratch_floats(isa, plan, &dims),
            dims,
        };
        let stage = |steps: &Range<usize>| {
            let mut first = 0;
            let job = |step| {
                let job = made.build_job(isa, plan, step, packed[step].as_deref(), threads, first);
                first += job.tasks;
                job
            };
            steps.clone().map(job).collect()
        };
        made.stages = staged.iter().map(stage).collect();
        Some(made)
    }

    /// How many tasks each stage has.
    pub fn tasks_per_stage(&self) -> Vec<usize> {
        let tasks = |stage: &Vec<Job>| stage.iter().map(|job| job.tasks).sum();
        self.stages.iter().map(tasks).collect()
    }

    fn build_job(
        &self,
        isa: Isa,
        plan: &SequencePlan,
        step: usize,
        packed: Option<&PackedProduct>,
        threads: usize,
        first: usize,
    ) -> Job {
        let Step { action, output, .. } = &plan.steps[step];
        let dims = &self.dims[*output];
        let by_rows = |all: usize, products: usize| {
            let least = TASK_PRODUCTS_MIN.div_ceil(products.max(1));
            let fair = all.div_ceil(threads * TASKS_A_THREAD);
            let rows = if threads == 1 { all } else { fair.max(least) }.clamp(1, all);
            Job {
                step,
                first,
                rows,
                panels: 0,
                panel_parts: 1,
                tasks: all.div_ceil(rows),
            }
        };
        match (action, packed) {
            (SequenceAction::Product(_), Some(packed)) => {
                let (rows, panels, panel_parts) =
                    divide_product(isa, row_count(dims), packed, threads);
                let tasks = row_count(dims).div_ceil(rows) * panel_parts;
                Job {
                    step,
                    first,
                    rows,
                    panels,
                    panel_parts,
                    tasks,
                }
            }
            (SequenceAction::Attend(attention), _) => {
                let keys = &self.dims[plan.steps[step].inputs[1]];
                let each = 2 * dims[1] * keys[1] * (feature_count(dims) / attention.heads);
                by_rows(dims[0] * attention.heads, each)
            }
            _ => by_rows(row_count(dims), feature_count(dims) * PASS_PRODUCTS),
        }
    }
}

/// Rows and panels of a task of a product, and the parts that the panels are divided into.
fn divide_product(
    isa: Isa,
    rows: usize,
    packed: &PackedProduct,
    threads: usize,
) -> (usize, usize, usize) {
    let tall = packed
        .matrix
        .panels
        .first()
        .map_or(1, |it| isa.tile_rows(it.vectors));
    let held = TASK_BYTES_MAX / (packed.matrix.depth * size_of::<f32>()).max(1);
    let held = (held / tall * tall).max(4 * tall);
    let products = rows * packed.matrix.depth * packed.columns;
    let wanted = match threads {
        1 => 1,
        _ => (products / TASK_PRODUCTS_MIN).clamp(1, threads * TASKS_A_THREAD),
    };
    let row_parts = rows.div_ceil(held);
    let each = rows.div_ceil(row_parts).next_multiple_of(tall);
    let row_parts = rows.div_ceil(each);
    let panel_parts = wanted.div_ceil(row_parts).min(packed.matrix.panels.len());
    let panels = packed.matrix.panels.len().div_ceil(panel_parts);
    (each, panels, packed.matrix.panels.len().div_ceil(panels))
}

/// Divides the steps into stages; a step must not read a result of its own stage.
fn divide_stages(plan: &SequencePlan) -> Vec<Range<usize>> {
    let mut stages: Vec<Range<usize>> = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        match stages.last_mut() {
            Some(stage)
                if !plan.steps[stage.clone()]
                    .iter()
                    .any(|before| step.inputs.contains(&before.output)) =>
            {
                stage.end = index + 1;
            }
            _ => stages.push(index..index + 1),
        }
    }
    stages
}

/// Where each value lies, and how large the buffers are. A buffer can be reused once the last stage
/// that reads its value has ended.
fn place_values(
    plan: &SequencePlan,
    dims: &[Vec<usize>],
    stages: &[Range<usize>],
) -> (Vec<ValuePlace>, Vec<usize>) {
    let mut places: Vec<Option<ValuePlace>> = vec![None; plan.values];
    for (index, (_, value)) in plan.inputs.iter().enumerate() {
        places[*value] = Some(ValuePlace::Given(index));
    }
    for (index, (_, value)) in plan.outputs.iter().enumerate() {
        places[*value] = Some(ValuePlace::Result(index));
    }
    let mut last: BTreeMap<Value, usize> = BTreeMap::new();
    for (stage, steps) in stages.iter().enumerate() {
        for step in &plan.steps[steps.clone()] {
            last.extend(step.inputs.iter().map(|value| (*value, stage)));
        }
    }
    let mut buffers: Vec<usize> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    for (stage, steps) in stages.iter().enumerate() {
        for step in &plan.steps[steps.clone()] {
            if places[step.output].is_none() {
                let floats: usize = dims[step.output].iter().product();
                let growth = |buffer: &usize| floats.saturating_sub(buffers[*buffer]);
                let best = (0..free.len()).min_by_key(|&at| growth(&free[at]));
                let buffer = best.map_or(buffers.len(), |at| free.swap_remove(at));
                if buffer == buffers.len() {
                    buffers.push(0);
                }
                buffers[buffer] = buffers[buffer].max(floats);
                places[step.output] = Some(ValuePlace::Buffer(buffer));
            }
        }
        let ended = last.iter().filter(|(_, end)| **end == stage);
        free.extend(ended.filter_map(|(&value, _)| match places[value] {
            Some(ValuePlace::Buffer(buffer)) => Some(buffer),
            _ => None,
        }));
    }
    let placed = places.into_iter();
    let placed = placed.map(|place| place.expect("a value is given or made by a step"));
    (placed.collect(), buffers)
}

/// Returns the sizes of a step's result, if those of its inputs fit.
fn step_result(
    step: &Step<SequenceAction>,
    dims: &[Vec<usize>],
    packed: Option<&PackedProduct>,
) -> Option<Vec<usize>> {
    let first = &dims[*step.inputs.first()?];
    let same = |fits: bool| fits.then(|| first.clone());
    match &step.action {
        SequenceAction::Product(_) => {
            let packed = packed?;
            let mut made = first.clone();
            let depth = std::mem::replace(made.last_mut()?, packed.columns);
            let added = step.inputs.get(1);
            let fits = depth == packed.matrix.depth && added.is_none_or(|&it| dims[it] == made);
            fits.then_some(made)
        }
        SequenceAction::Shift(shift) => same(shift.len() == feature_count(first)),
        SequenceAction::Sum => same(dims[step.inputs[1]] == *first),
        SequenceAction::Normalise { scale, .. } => same(scale.len() == feature_count(first)),
        SequenceAction::Activate(_) => same(true),
        SequenceAction::Attend(attention) => {
            let sizes = |input: usize| <[usize; 3]>::try_from(&dims[step.inputs[input]][..]).ok();
            let [batch, length, wide] = sizes(0)?;
            let [key_batch, seen, key_wide] = sizes(1)?;
            let [value_batch, count, made] = sizes(2)?;
            let divides = |size: usize| size.is_multiple_of(attention.heads);
            let fits = [key_batch, value_batch] == [batch; 2]
                && count == seen
                && key_wide == wide
                && divides(wide)
                && divides(made);
            let sizes = [batch, attention.heads, length, seen];
            let mask = step.inputs.get(3).map(|&value| &dims[value]);
            let repeats = |mask: &Vec<usize>| {
                let pairs = mask.iter().zip(sizes);
                mask.len() == sizes.len() && pairs.clone().all(|(&it, size)| it == 1 || it == size)
            };
            (fits && mask.is_none_or(repeats)).then(|| vec![batch, length, made])
        }
    }
}

/// Floats of scratch for any task of attention.
fn scratch_floats(isa: Isa, plan: &SequencePlan, dims: &[Vec<usize>]) -> usize {
    let steps = plan.steps.iter();
    let floats = steps.filter_map(|step| match &step.action {
        SequenceAction::Attend(attention) => {
            let (keys, values) = (&dims[step.inputs[1]], &dims[step.inputs[2]]);
            let each = [feature_count(keys), feature_count(values)].map(|it| it / attention.heads);
            Some(ScratchLayout::new(isa, keys[1], each).float_count())
        }
        _ => None,
    });
    floats.max().unwrap_or(0)
}
