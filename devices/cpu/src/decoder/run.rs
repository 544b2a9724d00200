//! Runs one step of a session through a decoder's plan: divides each stage into tasks, and computes
//! them. Threads call [`Run::run_task`] at the same time. Each task writes only rows that no other
//! task of its stage writes.

mod routing;

use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use super::DecoderModel;
use super::attention::{self, CacheAttention, RowBlock};
use super::cache::RowPlace;
use super::matrix::Matrix;
use super::plan::{Action, Curve, DecoderStep, RowCount, RowsId};
use super::products::{Results, Rows, multiply_tile};
use super::rows;
use crate::tiled::worker_pool::Memory;

/// Upper bound on the tiles of a product in one task: so many that the start of a task costs little
/// in comparison.
const TILES_MAX: usize = 4;
/// Lower bound on the tasks of a product with enough tiles, so that threads end together.
const TASKS: usize = 32;

/// Returns the number of tiles of a product that one task computes.
fn tiles_per_task(matrix: &Matrix) -> usize {
    (matrix.tile_count() / TASKS).clamp(1, TILES_MAX)
}

/// The inputs of some sequences' steps, checked to be in range: the rows of each sequence follow
/// those of the one before it.
#[derive(Default)]
pub(super) struct StepInputs {
    pub tokens: Vec<usize>,
    pub positions: Vec<usize>,
    /// For each row its place in the caches, and the positions it sees.
    pub places: Vec<RowPlace>,
    /// The rows that are selected.
    pub rows: Vec<usize>,
    /// Rows that another part computed, one after the other.
    pub entered: Vec<f32>,
}

impl StepInputs {
    pub fn row_count(&self, rows: RowCount) -> usize {
        match rows {
            RowCount::Tokens => self.places.len(),
            RowCount::Selected => self.rows.len(),
        }
    }

    /// Puts the rows of one more sequence behind these.
    pub fn add(&mut self, mut one: Self, sequence: usize) {
        let before = self.places.len();
        self.tokens.append(&mut one.tokens);
        self.positions.append(&mut one.positions);
        self.entered.append(&mut one.entered);
        self.rows.extend(one.rows.iter().map(|row| row + before));
        let places = one.places.into_iter();
        self.places
            .extend(places.map(|place| RowPlace { sequence, ..place }));
    }
}

/// One step of a session, over the rows of one sequence or more.
pub(super) struct Run<'a> {
    pub model: &'a DecoderModel,
    pub given: &'a StepInputs,
    pub room: usize,
    pub buffers: &'a [Memory],
    /// The caches of each sequence, by state.
    pub caches: &'a [Vec<Memory>],
    /// Rows that attention takes together.
    pub blocks: &'a [RowBlock],
    pub shared: (Memory, &'a [AtomicUsize]),
}

impl Run<'_> {
    /// Returns the number of tasks of each stage.
    pub fn tasks_per_stage(&self) -> Vec<usize> {
        let plan = &self.model.plan;
        let stage = |range: &Range<usize>| {
            let steps = plan.steps[range.clone()].iter();
            steps.map(|step| self.count_tasks(step)).sum()
        };
        plan.stages.iter().map(stage).collect()
    }

    fn count_tasks(&self, step: &DecoderStep) -> usize {
        let rows = self.given.row_count(step.rows);
        match step.action {
            Action::Product { matrix, .. } if rows > 0 => {
                let matrix = &self.model.matrices[matrix];
                matrix.tile_count().div_ceil(tiles_per_task(matrix))
            }
            Action::Route { experts, .. } if rows > 0 => {
                let matrix = &self.model.matrices[experts.matrix];
                matrix.tile_count().div_ceil(tiles_per_task(matrix))
            }
            Action::Attend { keys, .. } => {
                attention::task_count(self.blocks, self.model.plan.states[keys].heads)
            }
            Action::Product { .. } | Action::Route { .. } => 0,
            _ => rows,
        }
    }

    /// Does a task of a stage. All tasks of earlier stages must have ended.
    pub fn run_task(&self, stage: usize, mut task: usize) {
        for step in &self.model.plan.steps[self.model.plan.stages[stage].clone()] {
            let tasks = self.count_tasks(step);
            if task < tasks {
                return self.run_step(step, task);
            }
            task -= tasks;
        }
    }

    /// Returns a row of a value that an earlier stage wrote.
    #[expect(unsafe_code, reason = "buffers are shared by threads")]
    fn row(&self, value: RowsId, row: usize) -> &[f32] {
        let place = self.model.plan.places[value];
        let start = self.buffers[place.slot]
            .as_mut_ptr()
            .wrapping_add(row * place.width);
        // SAFETY: a buffer has room for all rows. An earlier stage writes the value, and no step of
        // this stage writes its slot.
        unsafe { std::slice::from_raw_parts(start, place.width) }
    }

    /// Returns the row of a value that this task writes.
    #[expect(unsafe_code, reason = "buffers are shared by threads")]
    #[expect(clippy::mut_from_ref, reason = "each task makes rows of its own")]
    fn row_mut(&self, value: RowsId, row: usize) -> &mut [f32] {
        let place = self.model.plan.places[value];
        let start = self.buffers[place.slot]
            .as_mut_ptr()
            .wrapping_add(row * place.width);
        // SAFETY: a buffer has room for all rows. A task writes only its own row, and no other step
        // of its stage touches the slot.
        unsafe { std::slice::from_raw_parts_mut(start, place.width) }
    }

    fn run_step(&self, step: &DecoderStep, task: usize) {
        let isa = self.model.isa;
        let read = |at: usize| self.row(step.reads[at], task);
        match (&step.action, step.makes) {
            (Action::Product { matrix, bias }, Some(to)) => {
                self.run_product(step, *matrix, bias, to, task);
            }
            (Action::Keep { state }, _) => self.write_cache(*state, read(0), task),
            (Action::Attend { .. }, Some(to)) => self.run_attention(step, to, task),
            (Action::Embed { matrix }, Some(to)) => {
                self.model.matrices[*matrix]
                    .unpack_row(self.given.tokens[task], self.row_mut(to, task));
            }
            (Action::Enter, Some(to)) => {
                let to = self.row_mut(to, task);
                to.copy_from_slice(&self.given.entered[task * to.len()..][..to.len()]);
            }
            (Action::Select, Some(to)) => {
                let from = self.row(step.reads[0], self.given.rows[task]);
                self.row_mut(to, task).copy_from_slice(from);
            }
            (Action::Normalise { scale, epsilon }, Some(to)) => {
                let parts = self.row_mut(to, task).chunks_exact_mut(scale.len());
                for (to, from) in parts.zip(read(0).chunks_exact(scale.len())) {
                    rows::normalise_row(isa, to, from, scale, *epsilon);
                }
            }
            (Action::Quantise { parts }, Some(to)) => {
                self.quantise_parts(self.row_mut(to, task), read(0), *parts);
            }
            (Action::Rotate { .. }, Some(to)) => {
                self.rotate_heads(step, self.row_mut(to, task), read(0), task);
            }
            (Action::Gate { curve }, Some(to)) => match curve {
                Curve::Logistic => {
                    rows::gate_logistic(isa, self.row_mut(to, task), read(0), read(1))
                }
                Curve::Gauss => rows::gate_gauss(isa, self.row_mut(to, task), read(0), read(1)),
            },
            (Action::Scale { factor }, Some(to)) => {
                rows::scale_row(isa, self.row_mut(to, task), read(0), *factor);
            }
            (Action::Bend { inner, outer }, Some(to)) => {
                rows::scale_tanh(isa, self.row_mut(to, task), read(0), *inner, *outer);
            }
            (Action::Add, Some(to)) => rows::add(isa, self.row_mut(to, task), read(0), read(1)),
            (Action::Softmax, Some(to)) => rows::softmax(isa, self.row_mut(to, task), read(0)),
            (Action::Choose { is_normalised }, Some(to)) => {
                routing::choose_experts(self.row_mut(to, task), read(0), *is_normalised);
            }
            (Action::Route { experts, has_parts }, Some(to)) => {
                self.run_routed_product(step, *experts, *has_parts, to, task);
            }
            (Action::Mix, Some(to)) => {
                let (shares, _) = read(1).split_at(read(1).len() / 2);
                rows::mix_rows(isa, self.row_mut(to, task), read(0), shares);
            }
            (Action::Portion, Some(to)) => {
                let share = rows::logistic(read(1)[0]);
                rows::scale_row(isa, self.row_mut(to, task), read(0), share);
            }
            (_, None) => unreachable!("only keeping makes no value"),
        }
    }

    #[expect(unsafe_code, reason = "tiles write columns of rows that threads share")]
    fn run_product(
        &self,
        step: &DecoderStep,
        matrix: usize,
        bias: &[f32],
        to: RowsId,
        task: usize,
    ) {
        let plan = &self.model.plan;
        let matrix = &self.model.matrices[matrix];
        let start = |value: RowsId| {
            let place = plan.places[value];
            (self.buffers[place.slot].as_mut_ptr(), place.width)
        };
        let ((data, stride), (made, width)) = (start(step.reads[0]), start(to));
        let rows = Rows {
            data,
            stride,
            count: self.given.row_count(step.rows),
            places: None,
        };
        let add = step.reads.get(1).map(|value| start(*value).0.cast_const());
        let results = Results {
            data: made,
            stride: width,
            add,
            places: None,
        };
        let each = tiles_per_task(matrix);
        for tile in task * each..((task + 1) * each).min(matrix.tile_count()) {
            // SAFETY: the plan holds widths to those of the matrix, and the added rows are as wide
            // as the result. Buffers have room for all rows, and only this task writes these
            // columns.
            unsafe { multiply_tile(self.model.lane_isa, matrix, tile, rows, results, bias) };
        }
    }

    /// Parts of a row as bytes, each with its scales behind it.
    fn quantise_parts(&self, to: &mut [f32], from: &[f32], parts: usize) {
        let from = from.chunks_exact(from.len() / parts);
        for (to, from) in to.chunks_exact_mut(to.len() / parts).zip(from) {
            rows::quantise_row(self.model.isa, to, from);
        }
    }

    fn rotate_heads(&self, step: &DecoderStep, to: &mut [f32], from: &[f32], task: usize) {
        let Action::Rotate {
            table,
            interleaved,
            head_width,
        } = step.action
        else {
            unreachable!("it is called for this action");
        };
        let table = &self.model.plan.tables[table];
        let start = self.given.positions[task] * table.width;
        let cosines = &table.cosines[start..start + table.width];
        let sines = &table.sines[start..start + table.width];
        let heads = from.chunks_exact(head_width);
        for (to, from) in to.chunks_exact_mut(head_width).zip(heads) {
            let (to, to_rest) = to.split_at_mut(table.width * 2);
            let (from, rest) = from.split_at(table.width * 2);
            match interleaved {
                true => rows::rotate_neighbours(self.model.isa, to, from, cosines, sines),
                false => rows::rotate_halves(self.model.isa, to, from, cosines, sines),
            }
            to_rest.copy_from_slice(rest);
        }
    }

    #[expect(unsafe_code, reason = "caches are shared by threads")]
    fn write_cache(&self, state: usize, from: &[f32], task: usize) {
        let shape = self.model.plan.states[state].cache_shape(self.room);
        let row = self.given.places[task];
        let cache = self.caches[row.sequence][state];
        for (head, from) in from.chunks_exact(shape.width).enumerate() {
            let start = shape.position_start(head, row.write);
            for (number, from) in from.iter().enumerate() {
                let place = start + number * shape.stride();
                // SAFETY: the rows fit the room, which was checked before, and each belongs to one
                // task. No task reads the state in this stage.
                unsafe { *cache.as_mut_ptr().add(place) = *from };
            }
        }
    }

    fn run_attention(&self, step: &DecoderStep, to: RowsId, task: usize) {
        let Action::Attend {
            keys,
            values,
            heads,
            scale,
            limit,
            window,
        } = step.action
        else {
            unreachable!("it is called for this action");
        };
        let plan = &self.model.plan;
        let start = |value: RowsId| self.buffers[plan.places[value].slot].as_mut_ptr();
        let attention = CacheAttention {
            isa: self.model.isa,
            lane_isa: self.model.lane_isa,
            blocks: self.blocks,
            caches: self.caches,
            keys: (keys, plan.states[keys].cache_shape(self.room)),
            values: (values, plan.states[values].cache_shape(self.room)),
            queries: start(step.reads[0]).cast_const(),
            made: start(to),
            stride: plan.places[to].width,
            group: heads / plan.states[keys].heads,
            scale,
            limit,
            window,
            shared: self.shared,
        };
        attention.run_task(task);
    }
}
