//! Computes the tasks of one run of the sequence engine (the CPU's kernels for transformers and
//! other networks over sequences), from a plan that is laid out: every value has its place in
//! memory. Threads call [`SequenceRun::run_task`] at the same time, and tasks of one stage write
//! disjoint places.

mod attention;

use std::ops::Range;
use std::sync::Arc;

use souk_host::isa::Isa;

use super::execution_plan::{
    Job, SequenceExecutionPlan, ValuePlace, feature_count, row_count as rows_of,
};
use super::patterns::Activation;
use super::plan::{PackedProduct, Product, SequenceAction, SequencePlan};
use super::rows;
use crate::tiled::panels::Panel;
use crate::tiled::plan::Step;
use crate::tiled::span::Span;
use crate::tiled::tile::{TILE_ROWS_MAX, Tile, compute_tile, prefetch_parts};
use crate::tiled::values::Value;
use crate::tiled::worker_pool::Memory;

/// The state of one run.
pub(super) struct SequenceRun<'a> {
    pub isa: Isa,
    pub plan: &'a SequencePlan,
    pub execution: &'a SequenceExecutionPlan,
    pub packed: &'a [Option<Arc<PackedProduct>>],
    pub given: &'a [Memory],
    pub buffers: &'a [Memory],
    pub results: &'a [Memory],
}

impl SequenceRun<'_> {
    /// Does one task of a stage.
    pub fn run_task(&self, stage: usize, task: usize) {
        let jobs = &self.execution.stages[stage];
        let at = jobs.partition_point(|job| job.first <= task) - 1;
        let (job, task) = (jobs[at], task - jobs[at].first);
        let step = &self.plan.steps[job.step];
        match (&step.action, self.packed[job.step].as_deref()) {
            (SequenceAction::Product(product), Some(packed)) => {
                let mut parts = packed.matrix.panels.chunks(job.panels);
                let panels = parts.nth(task % job.panel_parts);
                let rows = self.task_rows(job, task / job.panel_parts, step.output);
                self.run_product(step, product, packed, panels.unwrap_or_default(), rows);
            }
            (SequenceAction::Attend(attention), _) => {
                let all = self.execution.dims[step.output][0] * attention.heads;
                let start = task * job.rows;
                attention::attend_heads(self, step, *attention, start..(start + job.rows).min(all));
            }
            (action, _) => self.run_pass(step, action, self.task_rows(job, task, step.output)),
        }
    }

    /// Rows of a task.
    fn task_rows(&self, job: Job, task: usize, value: Value) -> Range<usize> {
        let all = rows_of(&self.execution.dims[value]);
        let start = (task * job.rows).min(all);
        start..(start + job.rows).min(all)
    }

    pub fn value_span(&self, value: Value) -> Span {
        let memory = match self.execution.places[value] {
            ValuePlace::Given(index) => self.given[index],
            ValuePlace::Buffer(index) => self.buffers[index],
            ValuePlace::Result(index) => self.results[index],
        };
        let features = feature_count(&self.execution.dims[value]);
        Span::new(memory, 0, features, features)
    }

    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    fn run_product(
        &self,
        step: &Step<SequenceAction>,
        product: &Product,
        packed: &PackedProduct,
        panels: &[Panel],
        rows: Range<usize>,
    ) {
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let added = step.inputs.get(1).map(|&value| self.value_span(value));
        let low = match product.activation {
            Activation::Relu => 0.0,
            _ => f32::NEG_INFINITY,
        };
        for (at, panel) in panels.iter().enumerate() {
            let weights = packed.matrix.weights_from(panel);
            let next = panels.get(at + 1);
            let next = next.map_or(&[][..], |next| packed.matrix.weights_from(next));
            let tall = self.isa.tile_rows(panel.vectors);
            let mut ahead = prefetch_parts(next, rows.len().div_ceil(tall));
            for start in rows.clone().step_by(tall) {
                let held = tall.min(rows.end - start);
                let row = |row: usize| start + row.min(held - 1);
                let reads: [*const f32; TILE_ROWS_MAX] =
                    std::array::from_fn(|at| from.ptr_at(row(at), 0).cast_const());
                let writes: [*mut f32; TILE_ROWS_MAX] =
                    std::array::from_fn(|at| to.ptr_at(row(at), panel.start));
                let adds = added.map(|span| -> [*const f32; TILE_ROWS_MAX] {
                    std::array::from_fn(|at| span.ptr_at(row(at), panel.start).cast_const())
                });
                let job = Tile {
                    reads: &reads[..held],
                    channel: 0,
                    depth: packed.matrix.depth,
                    weights: weights.as_ptr(),
                    scale: packed.ones.as_ptr(),
                    bias: packed.bias[panel.place..].as_ptr(),
                    writes: &writes[..held],
                    adds: adds.as_ref().map(|adds| &adds[..held]),
                    ahead: ahead.next().unwrap_or_default(),
                    columns: panel.columns,
                    low,
                    high: f32::INFINITY,
                };
                // SAFETY: rows of the input are as long as the weights are deep. Weights, ones and
                // bias were packed for this panel. Only this task writes these columns of the rows,
                // and the inputs are complete and lie elsewhere.
                unsafe { compute_tile(self.isa, panel.vectors, &job) };
                if product.activation == Activation::Gelu {
                    for write in &writes[..held] {
                        // SAFETY: these columns were just written, by this task.
                        let made = unsafe { std::slice::from_raw_parts_mut(*write, panel.columns) };
                        rows::gelu(self.isa, made);
                    }
                }
            }
        }
    }

    /// Computes an action that reads one row at a time.
    #[expect(unsafe_code, reason = "values are places in buffers shared by threads")]
    fn run_pass(&self, step: &Step<SequenceAction>, action: &SequenceAction, range: Range<usize>) {
        let (from, to) = (
            self.value_span(step.inputs[0]),
            self.value_span(step.output),
        );
        let other = step.inputs.get(1).map(|&value| self.value_span(value));
        for row in range {
            // SAFETY: only this task writes the row of the result. The inputs are complete and lie
            // elsewhere, because a result never takes the place of an input of its step.
            let (read, made) = unsafe { (from.row(row), to.row_mut(row)) };
            match action {
                SequenceAction::Normalise {
                    scale,
                    shift,
                    epsilon,
                } => rows::normalise_row(self.isa, made, read, (scale, shift), *epsilon),
                SequenceAction::Shift(shift) => rows::add(self.isa, made, read, shift),
                SequenceAction::Activate(activation) => {
                    made.copy_from_slice(read);
                    match activation {
                        Activation::None => {}
                        Activation::Relu => rows::relu(self.isa, made),
                        Activation::Gelu => rows::gelu(self.isa, made),
                    }
                }
                _ => {
                    let other = other.expect("a sum has two inputs");
                    // SAFETY: as above.
                    let right = unsafe { other.row(row) };
                    rows::add(self.isa, made, read, right);
                }
            }
        }
    }
}
