//! Computes the tasks of one run of the image engine, from a plan that is laid out (every value has
//! its place in memory). Threads call [`ImageRun::run_task`] at the same time, and tasks of one
//! stage write disjoint places.

use std::ops::Range;
use std::sync::Arc;

use souk_host::isa::Isa;

use super::filters::PackedFilters;
use super::layout::{Image, ImagePlace, Layout, WindowGeometry, source};
use super::patterns::{Bounds, Pooling};
use super::plan::{ImageAction, ImagePlan};
use super::rows;
use super::stages::{Split, Stage, task_pixels};
use super::window::{Window, WindowReduction};
use crate::tiled::panels::{PackedMatrix, Panel};
use crate::tiled::span::Span;
use crate::tiled::tile::{
    Depthwise, TILE_ROWS_MAX, Tile, compute_depthwise, compute_tile, prefetch_parts,
};
use crate::tiled::values::Value;
use crate::tiled::worker_pool::Memory;

/// The state of one run.
pub(super) struct ImageRun<'a> {
    pub isa: Isa,
    pub plan: &'a ImagePlan,
    pub layout: &'a Layout,
    pub stages: &'a [(Stage, Split)],
    pub packed: &'a [Option<Arc<PackedFilters>>],
    /// Values of the inputs, channels first.
    pub given: &'a [&'a [f32]],
    /// The buffers of the layout, and a pixel of zeros.
    pub buffers: &'a [Memory],
    pub zeros: &'a [f32],
    /// Where the outputs go, channels first.
    pub results: &'a [Memory],
}

/// Filters that a task computes with.
#[derive(Clone, Copy)]
struct Filters<'a> {
    panels: &'a [Panel],
    matrix: &'a PackedMatrix,
    scale: &'a [f32],
    bias: &'a [f32],
    groups: usize,
    /// Filters of a group.
    group_filters: usize,
    /// Weights that are read after these.
    after: &'a [f32],
}

/// A tile's pixels and where their taps are read: places in a list, and how many taps are one run.
struct TileReads {
    pixels: Range<usize>,
    reads: Range<usize>,
    run: usize,
}

impl ImageRun<'_> {
    /// Does one task of a stage.
    pub fn run_task(&self, stage: usize, task: usize) {
        let (stage, split) = self.stages[stage];
        match stage {
            Stage::Bring(index) => {
                self.load_input(index, task_pixels(split, task, self.input_image(index)))
            }
            Stage::Step(index) => self.run_step(index, split, task),
            Stage::Hand(index) => {
                let image = self.layout.images[self.plan.outputs[index].1];
                self.store_output(index, task_pixels(split, task, image));
            }
        }
    }

    fn input_image(&self, index: usize) -> Image {
        self.layout.images[self.plan.inputs[index].1]
    }

    fn value_image(&self, value: Value) -> Image {
        self.layout.images[value]
    }

    /// A row of channels for each pixel.
    fn value_span(&self, value: Value) -> Span {
        let ImagePlace {
            buffer,
            channel,
            stride,
            ..
        } = self.layout.places[value];
        let channels = self.value_image(value).channels;
        Span::new(self.buffers[buffer], channel, stride, channels)
    }

    /// Brings in pixels of an input, channels last, and into its frame if it has one. The caller
    /// must zero the rows of the frame before the first task.
    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn load_input(&self, index: usize, pixels: Range<usize>) {
        let value = self.plan.inputs[index].1;
        let (span, frame) = (self.value_span(value), self.layout.places[value].frame);
        let image = self.value_image(value);
        let plane = image.height * image.width;
        let given = self.given[index];
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            // The rest of a row at a time, one channel after another.
            let (sample, place) = (pixel / plane, pixel % plane);
            let (row, column) = (place / image.width, place % image.width);
            let count = (image.width - column).min(pixels.end - pixel);
            let target = frame.map_or(pixel, |frame| {
                (sample * frame.height + row + frame.top) * frame.width + column + frame.left
            });
            for channel in 0..image.channels {
                let first = (sample * image.channels + channel) * plane + place;
                for (at, &value) in given[first..first + count].iter().enumerate() {
                    // SAFETY: each pixel is one task's, and no step runs before all are brought in;
                    // the layout made room for the image within its frame.
                    unsafe { *span.ptr_at(target + at, channel) = value };
                }
            }
            pixel += count;
        }
    }

    /// Pixels of an output, channels first.
    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn store_output(&self, index: usize, pixels: Range<usize>) {
        let value = self.plan.outputs[index].1;
        let (span, image) = (self.value_span(value), self.value_image(value));
        let plane = image.height * image.width;
        for pixel in pixels {
            // SAFETY: every step is done, so no task writes.
            let from = unsafe { span.row(pixel) };
            let (sample, place) = (pixel / plane, pixel % plane);
            let first = sample * image.channels * plane + place;
            for (channel, from) in from.iter().enumerate() {
                // SAFETY: the result has as many floats as the image; the pixel is this task's.
                unsafe {
                    *self.results[index]
                        .as_mut_ptr()
                        .add(first + channel * plane) = *from
                };
            }
        }
    }

    fn run_step(&self, index: usize, split: Split, task: usize) {
        let step = &self.plan.steps[index];
        let out = self.layout.images[step.output];
        match &step.action {
            ImageAction::Convolve(convolution) => match self.packed[index].as_deref() {
                Some(PackedFilters::Panels {
                    matrix,
                    scale,
                    bias,
                    groups,
                    group_filters,
                }) => {
                    let panels = &matrix.panels;
                    let part = task % split.panel_parts * split.panels;
                    let end = (part + split.panels).min(panels.len());
                    let pixels = task_pixels(split, task / split.panel_parts, out);
                    let filters = Filters {
                        panels: &panels[part..end],
                        matrix,
                        scale,
                        bias,
                        groups: *groups,
                        group_filters: *group_filters,
                        after: self.weights_after(index, task),
                    };
                    self.convolve_pixels(index, pixels, filters, convolution.bounds);
                }
                Some(PackedFilters::Depthwise {
                    weights,
                    scale,
                    bias,
                }) => {
                    let pixels = task_pixels(split, task, out);
                    self.depthwise(index, pixels, [weights, scale, bias], convolution.bounds);
                }
                None => unreachable!("weights are packed before a run"),
            },
            ImageAction::Pool(pooling, _) => {
                self.pool_pixels(index, task_pixels(split, task, out), *pooling)
            }
            ImageAction::PoolAll(pooling) => {
                let end = ((task + 1) * split.pixels).min(out.samples);
                (task * split.pixels..end).for_each(|it| self.pool_all(index, it, *pooling));
            }
            action => self.run_pass(index, action, task_pixels(split, task, out)),
        }
    }

    /// Weights of the convolution after a step, from where a task of the same number begins.
    fn weights_after(&self, index: usize, task: usize) -> &[f32] {
        let first = self.plan.inputs.len();
        for next in index + 1..self.plan.steps.len() {
            if let Some(PackedFilters::Panels { matrix, .. }) = self.packed[next].as_deref() {
                let (_, split) = self.stages[first + next];
                let panel = task % split.panel_parts * split.panels;
                let panel = matrix.panels.get(panel);
                return panel.map_or(&[], |it| matrix.weights_from(it));
            }
        }
        &[]
    }

    /// Computes an action that reads one pixel at a time.
    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn run_pass(&self, index: usize, action: &ImageAction, pixels: Range<usize>) {
        let step = &self.plan.steps[index];
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let isa = self.isa;
        for pixel in pixels {
            // SAFETY: only this task writes the pixel of the result. Its input is complete and lies
            // elsewhere, because a result never shares a buffer with an input of its step.
            let (row, made) = unsafe { (from.row(pixel), to.row_mut(pixel)) };
            match action {
                ImageAction::Scale {
                    factor,
                    shift,
                    bounds,
                } => rows::scale_channels(isa, made, row, (factor, shift), bounds.low, bounds.high),
                ImageAction::Bound(bounds) => {
                    rows::clamp_channels(isa, made, row, bounds.low, bounds.high)
                }
                ImageAction::Sum(bounds) => self.sum(&step.inputs, pixel, made, *bounds),
                ImageAction::Shuffle(shuffle) => {
                    rows::shuffle_channels(isa, made, row, shuffle.groups)
                }
                ImageAction::Neighbours {
                    size,
                    alpha,
                    beta,
                    bias,
                } => {
                    let parameters = (alpha / *size as f32, *beta, *bias);
                    rows::normalise_window(isa, made, row, *size, parameters);
                }
                _ => self.concat_inputs(&step.inputs, step.output, pixel),
            }
        }
    }

    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn sum(&self, inputs: &[Value], pixel: usize, made: &mut [f32], bounds: Bounds) {
        // SAFETY: inputs are done and lie elsewhere.
        let row = |value| unsafe { self.value_span(value).row(pixel) };
        let last = inputs.len() - 1;
        for (at, &value) in inputs.iter().enumerate().skip(1) {
            let kept = if at == last { bounds } else { Bounds::NONE };
            match at {
                1 => rows::add(
                    self.isa,
                    made,
                    row(inputs[0]),
                    row(value),
                    kept.low,
                    kept.high,
                ),
                _ => rows::add_to(self.isa, made, row(value), kept.low, kept.high),
            }
        }
    }

    /// Copies the inputs that were not written directly into the output.
    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn concat_inputs(&self, inputs: &[Value], output: Value, pixel: usize) {
        let (to, mut channel) = (self.value_span(output), 0);
        for &value in inputs {
            let from = self.value_span(value);
            let channels = from.width();
            // SAFETY: the channels lie within the result's pixel, which is this task's; an input
            // that lies there already is not copied, and another lies in another buffer.
            unsafe {
                let place = to.ptr_at(pixel, channel);
                let row = from.ptr_at(pixel, 0);
                if place != row {
                    std::ptr::copy_nonoverlapping(row, place, channels);
                }
            }
            channel += channels;
        }
    }

    /// Adds where the taps of a window read for each of a tile's pixels, tap by tap, and gives how
    /// many of a row's taps are one run of floats: all of them where no tap falls on padding and
    /// each reads all of a pixel, which has `depth` channels then.
    fn add_tap_reads(
        &self,
        index: usize,
        depth: usize,
        pixels: Range<usize>,
        reads: &mut Vec<*const f32>,
    ) -> usize {
        let step = &self.plan.steps[index];
        let value = step.inputs[0];
        let (span, image) = (self.value_span(value), self.value_image(value));
        let moves = &self.layout.moves[index];
        let frame = self.layout.places[value].frame;
        let (height, width) = match frame {
            Some(frame) => (frame.height, frame.width),
            None => (image.height, image.width),
        };
        let mut places = [[0; 3]; TILE_ROWS_MAX];
        let count = pixels.len();
        for (place, walked) in places.iter_mut().zip(pixel_positions(moves, pixels)) {
            *place = walked;
        }
        let start = |[_, y, x]: [usize; 3]| {
            let along = |axis: usize, at: usize, size: usize| {
                let first = (at * moves.strides[axis]).checked_sub(moves.before[axis])?;
                (first + (moves.kernel[axis] - 1) * moves.dilations[axis] < size).then_some(first)
            };
            Some((along(0, y, height)?, along(1, x, width)?))
        };
        let starts: [Option<(usize, usize)>; TILE_ROWS_MAX] = places.map(start);
        if starts[..count].iter().all(Option::is_some) {
            // Each row reads at the same distances from its first tap.
            let first = |row: usize| {
                let ([sample, ..], (y, x)) = (places[row], starts[row].unwrap_or_default());
                span.ptr_at((sample * height + y) * width + x, 0)
                    .cast_const()
            };
            let firsts: [*const f32; TILE_ROWS_MAX] = std::array::from_fn(first);
            let run = match span.stride() == depth && moves.dilations[1] == 1 {
                true => moves.kernel[1],
                false => 1,
            };
            for row in 0..moves.kernel[0] {
                for column in 0..moves.kernel[1] / run {
                    let pixel = row * moves.dilations[0] * width + column * moves.dilations[1];
                    let far = pixel * span.stride();
                    reads.extend(firsts[..count].iter().map(|first| first.wrapping_add(far)));
                }
            }
            return run;
        }
        for row in 0..moves.kernel[0] {
            for column in 0..moves.kernel[1] {
                reads.extend(places[..count].iter().map(|&[sample, y, x]| {
                    let y = source(moves, 0, y, row, height);
                    let x = source(moves, 1, x, column, width);
                    match (y, x) {
                        (Some(y), Some(x)) => span.ptr_at((sample * height + y) * width + x, 0),
                        _ => self.zeros.as_ptr().cast_mut(),
                    }
                    .cast_const()
                }));
            }
        }
        1
    }

    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn convolve_pixels(
        &self,
        index: usize,
        pixels: Range<usize>,
        filters: Filters<'_>,
        bounds: Bounds,
    ) {
        let step = &self.plan.steps[index];
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let adds = step.inputs.get(1).map(|&value| self.value_span(value));
        let depth = from.width() / filters.groups;
        let [height, width] = self.layout.moves[index].kernel;
        let mut reads: Vec<*const f32> = Vec::with_capacity(height * width * pixels.len());
        let mut tiles: Vec<TileReads> = Vec::new();
        let mut rows_held = 0;
        let Filters { panels, matrix, .. } = filters;
        for (number, panel) in panels.iter().enumerate() {
            let next = panels.get(number + 1);
            let next = next.map_or(filters.after, |next| matrix.weights_from(next));
            let rows = self.isa.tile_rows(panel.vectors);
            if rows_held != rows {
                reads.clear();
                tiles.clear();
                for first in pixels.clone().step_by(rows) {
                    let pixels = first..(first + rows).min(pixels.end);
                    let start = reads.len();
                    let run = self.add_tap_reads(index, depth, pixels.clone(), &mut reads);
                    let reads = start..reads.len();
                    tiles.push(TileReads { pixels, reads, run });
                }
                rows_held = rows;
            }
            let group = panel.start / filters.group_filters;
            let mut ahead = prefetch_parts(next, tiles.len());
            for held in &tiles {
                let place = |span: Span, pixel: usize| span.ptr_at(pixel, panel.start);
                let mut writes = [std::ptr::null_mut(); TILE_ROWS_MAX];
                let mut added = [std::ptr::null(); TILE_ROWS_MAX];
                for (row, pixel) in held.pixels.clone().enumerate() {
                    writes[row] = place(to, pixel);
                    added[row] = adds.map_or(std::ptr::null(), |it| place(it, pixel).cast_const());
                }
                let count = held.pixels.len();
                let job = Tile {
                    reads: &reads[held.reads.clone()],
                    channel: group * depth,
                    depth: depth * held.run,
                    weights: matrix.weights_from(panel).as_ptr(),
                    scale: filters.scale[panel.place..].as_ptr(),
                    bias: filters.bias[panel.place..].as_ptr(),
                    writes: &writes[..count],
                    adds: adds.is_some().then_some(&added[..count]),
                    ahead: ahead.next().unwrap_or_default(),
                    columns: panel.columns,
                    low: bounds.low,
                    high: bounds.high,
                };
                // SAFETY: reads point to pixels of the input (or to runs of them within it or its
                // frame) or to zeros as long as a pixel. Weights, scales and biases were packed for
                // this panel. Only this task writes these pixels and filters. The terms to add are
                // complete and lie elsewhere.
                unsafe { compute_tile(self.isa, panel.vectors, &job) };
            }
        }
    }

    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn depthwise(
        &self,
        index: usize,
        pixels: Range<usize>,
        [weights, scale, bias]: [&[f32]; 3],
        bounds: Bounds,
    ) {
        let step = &self.plan.steps[index];
        let to = self.value_span(step.output);
        let adds = step.inputs.get(1).map(|&value| self.value_span(value));
        let mut reads = Vec::new();
        for pixel in pixels {
            reads.clear();
            self.add_tap_reads(index, 1, pixel..pixel + 1, &mut reads);
            // SAFETY: every read has a pixel's channels behind it, as many as there are filters;
            // the pixel written is this task's alone.
            unsafe {
                let place = Depthwise {
                    reads: &reads,
                    weights,
                    scale,
                    bias,
                    write: to.row_mut(pixel).as_mut_ptr(),
                    add: adds.map(|span| span.row(pixel).as_ptr()),
                    low: bounds.low,
                    high: bounds.high,
                };
                compute_depthwise(self.isa, &place);
            }
        }
    }

    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn pool_pixels(&self, index: usize, pixels: Range<usize>, pooling: Pooling) {
        let step = &self.plan.steps[index];
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let moves = &self.layout.moves[index];
        let Image { height, width, .. } = self.value_image(step.inputs[0]);
        let area = moves.kernel[0] * moves.kernel[1];
        let mut reads: Vec<*const f32> = Vec::with_capacity(area);
        for (pixel, [sample, y, x]) in pixels.clone().zip(pixel_positions(moves, pixels)) {
            reads.clear();
            for row in 0..moves.kernel[0] {
                let Some(y) = source(moves, 0, y, row, height) else {
                    continue;
                };
                let columns = 0..moves.kernel[1];
                let columns = columns.filter_map(|column| source(moves, 1, x, column, width));
                let first = (sample * height + y) * width;
                reads.extend(columns.map(|x| from.ptr_at(first + x, 0).cast_const()));
            }
            let of = match pooling {
                Pooling::Largest => WindowReduction::Largest,
                Pooling::Mean => WindowReduction::Sum(1.0 / reads.len().max(1) as f32),
                Pooling::MeanPadded => WindowReduction::Sum(1.0 / area as f32),
            };
            let window = Window {
                reads: &reads,
                write: to.ptr_at(pixel, 0),
                channels: to.width(),
            };
            // SAFETY: the inputs are complete, lie elsewhere than the result, and have a pixel's
            // channels behind each read; only this task writes the pixel.
            unsafe { window.compute_place(self.isa, of) };
        }
    }

    #[expect(unsafe_code, reason = "images are places in buffers shared by threads")]
    fn pool_all(&self, index: usize, sample: usize, pooling: Pooling) {
        let step = &self.plan.steps[index];
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let image = self.value_image(step.inputs[0]);
        let plane = image.height * image.width;
        if pooling == Pooling::Largest {
            let pixels = sample * plane..(sample + 1) * plane;
            let reads: Vec<*const f32> = pixels.map(|at| from.ptr_at(at, 0).cast_const()).collect();
            let window = Window {
                reads: &reads,
                write: to.ptr_at(sample, 0),
                channels: to.width(),
            };
            // SAFETY: only this task writes the sample; the inputs are complete and lie elsewhere.
            return unsafe { window.compute_place(self.isa, WindowReduction::Largest) };
        }
        // SAFETY: as above.
        let made = unsafe { to.row_mut(sample) };
        // SAFETY: as above.
        let row = |at: usize| unsafe { from.row(sample * plane + at) };
        let mut sums = vec![0f64; made.len()];
        (0..plane).for_each(|at| rows::sum_up(self.isa, &mut sums, row(at)));
        for (made, sum) in made.iter_mut().zip(sums) {
            *made = (sum / plane as f64) as f32;
        }
    }
}

/// Sample, row and column of each pixel of a window's result: divided once, then counted.
fn pixel_positions(
    moves: &WindowGeometry,
    pixels: Range<usize>,
) -> impl Iterator<Item = [usize; 3]> {
    let [height, width] = moves.output;
    let first = pixels.start;
    let mut next = [
        first / (height * width),
        first / width % height,
        first % width,
    ];
    pixels.map(move |_| {
        let place = next;
        next[2] += 1;
        if next[2] == width {
            next = [next[0], next[1] + 1, 0];
        }
        if next[1] == height {
            next = [next[0] + 1, 0, next[2]];
        }
        place
    })
}
