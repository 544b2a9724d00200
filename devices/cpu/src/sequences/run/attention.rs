//! Computes attention for the sequence engine, one head at a time. It packs the keys and values of
//! a head as weights are packed, so that the tiles of products also compute scores and weighted
//! sums.

use std::ops::Range;

use souk_host::isa::Isa;

use super::super::execution_plan::feature_count;
use super::super::patterns::heads::Attention;
use super::super::plan::SequenceAction;
use super::super::scratch::{QUERIES, ScratchLayout};
use super::SequenceRun;
use crate::tiled::panels::Panel;
use crate::tiled::plan::Step;
use crate::tiled::row_math;
use crate::tiled::span::Span;
use crate::tiled::tile::{TILE_ROWS_MAX, Tile, compute_tile};

/// The scratch of a task.
struct Scratch<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    scores: &'a mut [f32],
    mask: &'a mut [f32],
    scales: &'a mut [f32],
    ones: &'a mut [f32],
    zeros: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// Divides floats, which must all be zero.
    fn new(parts: &ScratchLayout, scale: f32, floats: &'a mut [f32]) -> Self {
        let (keys, rest) = floats.split_at_mut(parts.wide * parts.each[0]);
        let (values, rest) = rest.split_at_mut(parts.value_wide * parts.seen);
        let (scores, rest) = rest.split_at_mut(parts.wide * QUERIES);
        let (mask, rest) = rest.split_at_mut(parts.max_width());
        let (scales, rest) = rest.split_at_mut(parts.max_width());
        let (ones, zeros) = rest.split_at_mut(parts.max_width());
        scales.fill(scale);
        ones.fill(1.0);
        Self {
            keys,
            values,
            scores,
            mask,
            scales,
            ones,
            zeros,
        }
    }
}

/// The terms to add to the scores of one head of one sample.
struct Mask {
    data: *const f32,
    /// Floats from one query to the next, and from one key to the next.
    steps: [usize; 2],
}

impl Mask {
    fn new(
        run: &SequenceRun<'_>,
        step: &Step<SequenceAction>,
        sample: usize,
        head: usize,
    ) -> Option<Self> {
        let &value = step.inputs.get(3)?;
        let &[samples, heads, queries, keys] = &run.execution.dims[value][..] else {
            return None;
        };
        let (sample, head) = (sample.min(samples - 1), head.min(heads - 1));
        let first = (sample * heads + head) * queries * keys;
        let along = |size: usize, step: usize| if size == 1 { 0 } else { step };
        Some(Self {
            data: run
                .value_span(value)
                .ptr_at(0, 0)
                .wrapping_add(first)
                .cast_const(),
            steps: [along(queries, keys), along(keys, 1)],
        })
    }

    /// Whether it is one row, the same for every query, rather than a row for each.
    fn is_row(&self) -> bool {
        self.steps[0] == 0 || self.steps[1] == 0
    }
}

/// A panel of a product whose rows and weights are found at run time.
struct PanelProduct<'a> {
    panel: &'a Panel,
    depth: usize,
    weights: *const f32,
    scale: *const f32,
    bias: *const f32,
}

impl PanelProduct<'_> {
    /// Computes `count` rows; `place` returns for each where it reads, where it writes, and the
    /// terms to add.
    ///
    /// # Safety
    /// As for a tile: the pointers of `place` must reach over as many floats as depth and columns
    /// say.
    #[expect(unsafe_code, reason = "the caller vouches for the pointers")]
    unsafe fn run(
        &self,
        isa: Isa,
        count: usize,
        place: impl Fn(usize) -> (*const f32, *mut f32, Option<*const f32>),
    ) {
        let tall = isa.tile_rows(self.panel.vectors);
        for start in (0..count).step_by(tall) {
            let held = tall.min(count - start);
            let mut reads = [std::ptr::null(); TILE_ROWS_MAX];
            let mut writes = [std::ptr::null_mut(); TILE_ROWS_MAX];
            let mut adds = [std::ptr::null(); TILE_ROWS_MAX];
            let mut added = false;
            for at in 0..held {
                let (read, write, add) = place(start + at);
                (reads[at], writes[at]) = (read, write);
                added = add.is_some();
                adds[at] = add.unwrap_or(std::ptr::null());
            }
            let job = Tile {
                reads: &reads[..held],
                channel: 0,
                depth: self.depth,
                weights: self.weights,
                scale: self.scale,
                bias: self.bias,
                writes: &writes[..held],
                adds: added.then_some(&adds[..held]),
                ahead: &[],
                columns: self.panel.columns,
                low: f32::NEG_INFINITY,
                high: f32::INFINITY,
            };
            // SAFETY: the caller's contract, handed on.
            unsafe { compute_tile(isa, self.panel.vectors, &job) };
        }
    }
}

/// Computes attention for a range of heads, counted over all samples.
pub(super) fn attend_heads(
    run: &SequenceRun<'_>,
    step: &Step<SequenceAction>,
    attention: Attention,
    range: Range<usize>,
) {
    let sizes = |input: usize| &run.execution.dims[step.inputs[input]];
    let each = [feature_count(sizes(1)), feature_count(sizes(2))].map(|it| it / attention.heads);
    let parts = ScratchLayout::new(run.isa, sizes(1)[1], each);
    let mut floats = vec![0.0; run.execution.scratch];
    let mut scratch = Scratch::new(&parts, attention.scale, &mut floats);
    for at in range {
        let (sample, head) = (at / attention.heads, at % attention.heads);
        let work = AttentionHead {
            parts: &parts,
            length: sizes(0)[1],
            queries: run.value_span(step.inputs[0]),
            to: run.value_span(step.output),
            sample,
            head,
            mask: Mask::new(run, step, sample, head),
        };
        let [keys, values] = [1, 2].map(|input| run.value_span(step.inputs[input]));
        work.pack_head(keys, values, &mut scratch);
        for start in (0..work.length).step_by(QUERIES) {
            work.attend_queries(start, QUERIES.min(work.length - start), &mut scratch);
        }
    }
}

/// One head of one sample.
struct AttentionHead<'a> {
    parts: &'a ScratchLayout,
    length: usize,
    queries: Span,
    to: Span,
    sample: usize,
    head: usize,
    mask: Option<Mask>,
}

impl AttentionHead<'_> {
    /// Brings keys and values, and a mask that is one row, into the order that tiles read.
    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    fn pack_head(&self, keys: Span, values: Span, scratch: &mut Scratch<'_>) {
        let ScratchLayout {
            isa, each, seen, ..
        } = *self.parts;
        let row = |span: Span, row: usize, each: usize| {
            let place = span.ptr_at(self.sample * seen + row, self.head * each);
            // SAFETY: this sample's rows are done, and have as many features for each head.
            unsafe { std::slice::from_raw_parts(place.cast_const(), each) }
        };
        for panel in &self.parts.keys {
            let width = panel.vectors * isa.vector_width();
            let packed = &mut scratch.keys[panel.place * each[0]..][..width * each[0]];
            for column in 0..panel.columns {
                let key = row(keys, panel.start + column, each[0]);
                for (packed, key) in packed[column..].iter_mut().step_by(width).zip(key) {
                    *packed = *key;
                }
            }
        }
        for panel in &self.parts.values {
            let width = panel.vectors * isa.vector_width();
            let packed = &mut scratch.values[panel.place * seen..][..width * seen];
            for (at, packed) in packed.chunks_exact_mut(width).enumerate() {
                let value = &row(values, at, each[1])[panel.start..][..panel.columns];
                packed[..panel.columns].copy_from_slice(value);
            }
        }
        if let Some(mask) = self.mask.as_ref().filter(|it| it.steps[0] == 0) {
            for (at, held) in scratch.mask[..seen].iter_mut().enumerate() {
                // SAFETY: the mask is done, and has a float for each key, or one for all.
                *held = unsafe { *mask.data.add(at * mask.steps[1]) };
            }
        }
    }

    /// Computes the results of some queries.
    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    fn attend_queries(&self, start: usize, held: usize, scratch: &mut Scratch<'_>) {
        let parts = self.parts;
        let row = |at: usize| self.sample * self.length + start + at;
        let scored = scratch.scores.as_mut_ptr();
        for panel in &parts.keys {
            let product = PanelProduct {
                panel,
                depth: parts.each[0],
                weights: scratch.keys[panel.place * parts.each[0]..].as_ptr(),
                scale: scratch.scales.as_ptr(),
                bias: scratch.mask[panel.start..].as_ptr(),
            };
            let by_query = self.mask.as_ref().filter(|it| !it.is_row());
            let place = |at: usize| {
                let read = self.queries.ptr_at(row(at), self.head * parts.each[0]);
                let write = scored.wrapping_add(at * parts.wide + panel.start);
                let far = |mask: &Mask| (start + at) * mask.steps[0] + panel.start;
                let added = by_query.map(|mask| mask.data.wrapping_add(far(mask)));
                (read.cast_const(), write, added)
            };
            // SAFETY: queries are done; keys, scales and the mask were filled for this panel; the
            // scores are this task's own, as wide as all panels.
            unsafe { product.run(parts.isa, held, place) };
        }
        let mut totals = [0.0; QUERIES];
        for (at, total) in totals.iter_mut().enumerate().take(held) {
            let scores = &mut scratch.scores[at * parts.wide..][..parts.seen];
            if let Some(mask) = self
                .mask
                .as_ref()
                .filter(|it| it.is_row() && it.steps[0] > 0)
            {
                // SAFETY: the mask is done, and has one float for each query.
                let add = unsafe { *mask.data.add((start + at) * mask.steps[0]) };
                scores.iter_mut().for_each(|score| *score += add);
            }
            row_math::exponentiate_row(parts.isa, scores, total);
        }
        let (weighed, made) = (scratch.scores.as_ptr(), self.head * parts.each[1]);
        for panel in &parts.values {
            let product = PanelProduct {
                panel,
                depth: parts.seen,
                weights: scratch.values[panel.place * parts.seen..].as_ptr(),
                scale: scratch.ones.as_ptr(),
                bias: scratch.zeros.as_ptr(),
            };
            let place = |at: usize| {
                let write = self.to.ptr_at(row(at), made + panel.start);
                (weighed.wrapping_add(at * parts.wide), write, None)
            };
            // SAFETY: the scores are this task's own; values, ones and zeros are there for this
            // panel; these columns of the rows written are this task's alone.
            unsafe { product.run(parts.isa, held, place) };
        }
        for (at, total) in totals.iter().enumerate().take(held) {
            let place = self.to.ptr_at(row(at), made);
            // SAFETY: these columns were just written, by this task.
            let found = unsafe { std::slice::from_raw_parts_mut(place, parts.each[1]) };
            row_math::multiply_row(parts.isa, found, total.recip());
        }
    }
}
