//! Lists the stages of a run over images (inputs brought in, the steps of the plan, outputs handed
//! out), and divides the work of each among threads. The image engine does it again when the size
//! of its inputs changes.

use std::ops::Range;
use std::sync::Arc;

use souk_host::isa::Isa;

use super::filters::PackedFilters;
use super::layout::{Image, Layout};
use super::plan::{ImageAction, ImagePlan};
use crate::tiled::panels::PackedMatrix;
use crate::tiled::values::Value;

/// Floats that a task should at least pass over.
const TASK_FLOATS_MIN: usize = 1 << 14;
/// Multiplications that a task of a convolution should at least do.
const TASK_PRODUCTS_MIN: usize = 1 << 18;
/// Bytes of an image that a task reads again for each panel, so that they stay in its core's cache.
const TASK_BYTES_MAX: usize = 1 << 18;
/// Tasks for each thread, so that threads end together even if one is delayed.
const TASKS_A_THREAD: usize = 4;

/// One stage of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Brings an input in, channels last.
    Bring(usize),
    /// A step of the plan.
    Step(usize),
    /// Hands an output out, channels first.
    Hand(usize),
}

/// How the work of a stage is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Pixels of the result in a task.
    pub pixels: usize,
    /// Panels of filters in a task.
    pub panels: usize,
    /// Parts that the panels are divided into.
    pub panel_parts: usize,
    pub tasks: usize,
}

/// Returns the stages of a plan, each with the division of its work among threads.
pub(super) fn divide_stages(
    isa: Isa,
    plan: &ImagePlan,
    layout: &Layout,
    packed: &[Option<Arc<PackedFilters>>],
    threads: usize,
) -> Vec<(Stage, Split)> {
    let image = |value: Value| layout.images[value];
    let inputs = plan.inputs.iter().enumerate();
    let brought = inputs.map(|(index, (_, value))| {
        let passed = by_pixels(image(*value).pixel_count(), image(*value).channels, threads);
        (Stage::Bring(index), passed)
    });
    let steps = plan.steps.iter().enumerate().map(|(index, step)| {
        let out = image(step.output);
        let moves = &layout.moves[index];
        let window = moves.kernel[0].max(1) * moves.kernel[1].max(1);
        let split = match (&step.action, packed[index].as_deref()) {
            (ImageAction::Convolve(_), Some(PackedFilters::Panels { matrix, .. })) => {
                by_panels(isa, image(step.inputs[0]), out, matrix, threads)
            }
            (ImageAction::PoolAll(_), _) => {
                by_pixels(out.samples, out.channels * TASK_FLOATS_MIN, threads)
            }
            (ImageAction::Concat, _) if layout.is_together(step) => {
                by_pixels(0, out.channels, threads)
            }
            (ImageAction::Neighbours { size, .. }, _) => {
                by_pixels(out.pixel_count(), out.channels * (size + 4), threads)
            }
            _ => by_pixels(out.pixel_count(), out.channels * window, threads),
        };
        (Stage::Step(index), split)
    });
    let outputs = plan.outputs.iter().enumerate();
    let handed = outputs.map(|(index, (_, value))| {
        let passed = by_pixels(image(*value).pixel_count(), image(*value).channels, threads);
        (Stage::Hand(index), passed)
    });
    brought.chain(steps).chain(handed).collect()
}

/// Divides `pixels`, each of which costs as much as passing over `floats`.
fn by_pixels(pixels: usize, floats: usize, threads: usize) -> Split {
    let least = TASK_FLOATS_MIN.div_ceil(floats.max(1));
    let fair = pixels.div_ceil(threads * TASKS_A_THREAD);
    let each = if threads == 1 {
        pixels
    } else {
        fair.max(least)
    }
    .max(1);
    Split {
        pixels: each,
        panels: 0,
        panel_parts: 1,
        tasks: pixels.div_ceil(each),
    }
}

/// Divides a convolution: by filters where the weights are larger than the image, else by pixels.
fn by_panels(isa: Isa, from: Image, to: Image, matrix: &PackedMatrix, threads: usize) -> Split {
    let (panels, weights) = (&matrix.panels, matrix.weights.len());
    let pixels = to.pixel_count();
    let products = weights.saturating_mul(pixels);
    let wanted = (products / TASK_PRODUCTS_MIN).clamp(1, threads * TASKS_A_THREAD);
    let wanted = if threads == 1 { 1 } else { wanted };
    let read = from.pixel_count() * from.channels;
    let (pixel_parts, panel_parts) = if weights > read {
        let panel_parts = wanted.min(panels.len());
        (wanted.div_ceil(panel_parts), panel_parts)
    } else {
        (wanted.max(read * size_of::<f32>() / TASK_BYTES_MAX), 1)
    };
    let rows = panels.first().map_or(1, |it| isa.tile_rows(it.vectors));
    let each = pixels.div_ceil(pixel_parts).next_multiple_of(rows);
    let panels_each = panels.len().div_ceil(panel_parts).max(1);
    let panel_parts = panels.len().div_ceil(panels_each);
    Split {
        pixels: each,
        panels: panels_each,
        panel_parts,
        tasks: pixels.div_ceil(each) * panel_parts,
    }
}

/// Returns the pixels that a task computes.
pub(super) fn task_pixels(split: Split, task: usize, image: Image) -> Range<usize> {
    let pixels = image.pixel_count();
    let start = (task * split.pixels).min(pixels);
    start..(start + split.pixels).min(pixels)
}
