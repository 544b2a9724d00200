//! Computes the attention of rows of tokens over the caches of keys and values, in tasks that the
//! threads of a step share. A task is one head of a block of consecutive rows, or some of its spans
//! (groups of a fixed number of positions).
//!
//! For each span, a query gets its largest score, the sum of its shares, and the sum of its values.
//! Spans are then joined from the first to the last. The result of a row therefore depends only on
//! the positions it sees, and neither on the rows computed together with it nor on how many tasks
//! share a cache.

mod span;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use souk_host::isa::Isa;

use super::DecoderModel;
use super::cache::{CacheShape, RowPlace};
use super::lanes::{LANES, LaneIsa};
use super::plan::Action;
use crate::tiled::aligned_floats::AlignedFloats;
use crate::tiled::row_math::exponential;
use crate::tiled::vectors::pass;
use crate::tiled::worker_pool::Memory;
use span::HeadAttention;

/// Positions of a span: their values are in the nearest cache while every query weighs them.
const SPAN: usize = 64;
/// Rows that read keys and values together at most.
const ROWS: usize = 8;
/// Tasks that a stage should have for its threads to end together; where blocks are fewer, the
/// spans of each are shared out.
const TASKS: usize = 64;

/// Consecutive rows of one sequence, which are computed together.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowBlock {
    pub first: usize,
    pub count: usize,
    /// Positions that the first row sees; each later row sees one more.
    pub seen: usize,
    /// Their sequence, as the step counts them.
    pub sequence: usize,
}

impl RowBlock {
    /// The blocks of some rows.
    pub fn from_places(places: &[RowPlace]) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        for (row, place) in places.iter().enumerate() {
            match blocks.last_mut() {
                Some(block) if block.goes_on(place) => block.count += 1,
                _ => blocks.push(Self {
                    first: row,
                    count: 1,
                    seen: place.seen,
                    sequence: place.sequence,
                }),
            }
        }
        blocks
    }

    /// Whether there is room for a row, and it is the next of the same sequence.
    fn goes_on(&self, place: &RowPlace) -> bool {
        self.count < ROWS && self.sequence == place.sequence && self.seen + self.count == place.seen
    }

    /// Spans that its last row sees.
    fn span_count(&self) -> usize {
        (self.seen + self.count - 1).div_ceil(SPAN)
    }

    /// The spans that any of its rows sees within a window.
    fn spans_within(&self, window: Option<usize>) -> Range<usize> {
        hidden_positions(self.seen, window) / SPAN..self.span_count()
    }
}

/// Returns the number of first positions that a window hides from a row; `seen` counts the row
/// itself.
fn hidden_positions(seen: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| seen.saturating_sub(window))
}

/// The results of each span, which tasks that share a block exchange here.
pub(super) struct SpanResults {
    floats: AlignedFloats,
    /// Tasks done of each head of each block.
    done: Vec<AtomicUsize>,
}

impl SpanResults {
    pub fn new() -> Self {
        Self {
            floats: AlignedFloats::zeros(0),
            done: Vec::new(),
        }
    }

    /// Makes room for the tasks of a step.
    pub fn reserve_tasks(&mut self, model: &DecoderModel, blocks: &[RowBlock]) {
        let (mut floats, mut done) = (0, 0);
        for step in &model.plan.steps {
            let Action::Attend { keys, heads, .. } = step.action else {
                continue;
            };
            let state = &model.plan.states[keys];
            let all = blocks.len() * state.heads;
            if parts_per_head(blocks, state.heads) > 1 {
                let queries = ROWS * (heads / state.heads);
                floats =
                    floats.max(all * max_span_count(blocks) * found_floats(queries, state.width));
                done = done.max(all);
            }
        }
        if self.floats.len() < floats {
            self.floats = AlignedFloats::zeros(floats);
        }
        self.done = (0..done).map(|_| AtomicUsize::new(0)).collect();
    }

    pub fn shared_memory(&mut self) -> (Memory, &[AtomicUsize]) {
        (Memory::from_floats(&mut self.floats), &self.done)
    }
}

/// Spans of the block that has most.
fn max_span_count(blocks: &[RowBlock]) -> usize {
    blocks.iter().map(RowBlock::span_count).max().unwrap_or(0)
}

/// Tasks that share a head of a block.
fn parts_per_head(blocks: &[RowBlock], heads: usize) -> usize {
    TASKS
        .div_ceil((blocks.len() * heads).max(1))
        .clamp(1, max_span_count(blocks).max(1))
}

/// Returns the number of tasks for this many heads of caches.
pub(super) fn task_count(blocks: &[RowBlock], heads: usize) -> usize {
    blocks.len() * heads * parts_per_head(blocks, heads)
}

/// Floats that queries' sums, largest scores and totals take.
fn found_floats(queries: usize, width: usize) -> usize {
    queries * (width.next_multiple_of(LANES) + 2)
}

pass! {
    /// Joins the results of the next span to those of earlier ones: sums of values, largest scores
    /// and sums of shares. A query that sees no position of the span does not change.
    fn join_spans(held: &mut [f32], next: &[f32], queries: usize) {
        let width = held.len() / queries - 2;
        let (sums, behind) = held.split_at_mut(queries * width);
        let (largest, totals) = behind.split_at_mut(queries);
        let (next_sums, behind) = next.split_at(queries * width);
        let (next_largest, next_totals) = behind.split_at(queries);
        for query in 0..queries {
            if next_totals[query] == 0.0 {
                continue;
            }
            let (own, other) = (largest[query], next_largest[query]);
            let most = if other > own { other } else { own };
            let (keep, take) = (exponential(own - most), exponential(other - most));
            largest[query] = most;
            totals[query] = totals[query] * keep + next_totals[query] * take;
            let sums = sums[query * width..][..width].iter_mut();
            for (sum, next) in sums.zip(&next_sums[query * width..][..width]) {
                *sum = *sum * keep + next * take;
            }
        }
    }
}

pass! {
    /// Divides sums of values by the sum of their shares.
    fn divide_sums(to: &mut [f32], sums: &[f32], total: f32) {
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = sum / total;
        }
    }
}

/// Attention of a step over the caches of one layer.
pub(super) struct CacheAttention<'a> {
    pub isa: Isa,
    pub lane_isa: LaneIsa,
    pub blocks: &'a [RowBlock],
    /// The caches of each sequence, by state.
    pub caches: &'a [Vec<Memory>],
    /// The states of keys and of values, and how they lie.
    pub keys: (usize, CacheShape),
    pub values: (usize, CacheShape),
    /// Pointers to the first row of the queries and of the results, which have the same width.
    pub queries: *const f32,
    pub made: *mut f32,
    /// Floats from one row to the next.
    pub stride: usize,
    /// Queries of a row that look at one head.
    pub group: usize,
    pub scale: f32,
    /// Bound on the scores.
    pub limit: Option<f32>,
    /// Positions a row sees, its own among them, if not all.
    pub window: Option<usize>,
    pub shared: (Memory, &'a [AtomicUsize]),
}

impl CacheAttention<'_> {
    /// Does one of the [`task_count`] tasks, each of which must run exactly once.
    pub fn run_task(&self, task: usize) {
        let heads = self.keys.1.heads;
        let parts = parts_per_head(self.blocks, heads);
        let (place, part) = (task / parts, task % parts);
        let (block, head) = (&self.blocks[place / heads], place % heads);
        let queries = self.head_queries(block, head);
        let mut found = vec![0.0; found_floats(queries.len(), self.keys.1.width)];
        let look = self.head_inputs(block, head, queries);
        let all = block.spans_within(self.window);
        let (first, count) = (all.start, all.len());
        if parts == 1 {
            let mut next = found.clone();
            for span in all {
                span::attend_span(self.lane_isa, &look, span, &mut next);
                self.merge_span(span == first, &mut found, &next, look.queries.len());
            }
        } else {
            for span in first + count * part / parts..first + count * (part + 1) / parts {
                let to = self.result_slot(place, span, found.len());
                span::attend_span(self.lane_isa, &look, span, to);
            }
            // The last task sees the results of the others, and resets the counter for the next
            // layer.
            let done = &self.shared.1[place];
            if done.fetch_add(1, Ordering::AcqRel) + 1 < parts {
                return;
            }
            done.store(0, Ordering::Relaxed);
            for span in all {
                let next = self.result_slot(place, span, found.len());
                self.merge_span(span == first, &mut found, next, look.queries.len());
            }
        }
        self.write_results(block, head, &found);
    }

    fn merge_span(&self, is_first: bool, found: &mut [f32], next: &[f32], queries: usize) {
        match is_first {
            true => found.copy_from_slice(next),
            false => join_spans(self.isa, found, next, queries),
        }
    }

    /// Each query of a block that looks at a head, and the positions it sees.
    fn head_queries(&self, block: &RowBlock, head: usize) -> Vec<(*const f32, Range<usize>)> {
        let row = |row: usize| {
            let place = (block.first + row) * self.stride + head * self.group * self.keys.1.width;
            let query = move |query: usize| {
                let start = place + query * self.keys.1.width;
                let seen = block.seen + row;
                let seen = hidden_positions(seen, self.window)..seen;
                (self.queries.wrapping_add(start), seen)
            };
            (0..self.group).map(query)
        };
        (0..block.count).flat_map(row).collect()
    }

    fn head_inputs(
        &self,
        block: &RowBlock,
        head: usize,
        queries: Vec<(*const f32, Range<usize>)>,
    ) -> HeadAttention {
        let own = &self.caches[block.sequence];
        let start = |(state, shape): (usize, CacheShape)| {
            let start = own[state].as_mut_ptr().cast_const();
            start.wrapping_add(head * shape.head_floats())
        };
        HeadAttention {
            keys: start(self.keys),
            values: start(self.values),
            width: self.keys.1.width,
            scale: self.scale,
            limit: self.limit,
            queries,
        }
    }

    /// Returns the place for the results of a span.
    #[expect(unsafe_code, reason = "tasks leave what they found for one another")]
    #[expect(clippy::mut_from_ref, reason = "each task leaves spans of its own")]
    fn result_slot(&self, place: usize, span: usize, floats: usize) -> &mut [f32] {
        let each = found_floats(ROWS * self.group, self.keys.1.width);
        let at = (place * max_span_count(self.blocks) + span) * each;
        let start = self.shared.0.as_mut_ptr().wrapping_add(at);
        // SAFETY: there is room for all spans of all places, of a whole block each. One task owns a
        // span until all spans of its place are done; then the last task owns them.
        unsafe { std::slice::from_raw_parts_mut(start, floats) }
    }

    #[expect(unsafe_code, reason = "results are shared by threads")]
    fn write_results(&self, block: &RowBlock, head: usize, found: &[f32]) {
        let (queries, width) = (block.count * self.group, self.keys.1.width);
        let padded = found.len() / queries - 2;
        let totals = &found[found.len() - queries..];
        for (query, sums) in found.chunks_exact(padded).take(queries).enumerate() {
            let row = (block.first + query / self.group) * self.stride;
            let place = row + (head * self.group + query % self.group) * width;
            // SAFETY: rows of the result are as wide as those of queries; of these rows this
            // head's are this task's.
            let to =
                unsafe { std::slice::from_raw_parts_mut(self.made.wrapping_add(place), width) };
            divide_sums(self.isa, to, sums, totals[query]);
        }
    }
}

#[cfg(test)]
mod tests;
