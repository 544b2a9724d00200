//! Runs the steps of a mixture of experts: chooses the experts of each row, and multiplies rows
//! with the matrices of the experts chosen for them.
//!
//! Rows are taken expert by expert, so that all rows of an expert share one read of a tile. Each
//! sum runs along a row as in any product, so the rows computed with it change no bit.

use super::super::matrix::Matrix;
use super::super::plan::{DecoderStep, ExpertStack, RowsId};
use super::super::products::{Results, Rows, multiply_tile};
use super::super::rows;
use super::{Run, tiles_per_task};

/// Writes the largest shares of a row and their places; scales the shares to a sum of one if
/// `is_normalised`.
pub(super) fn choose_experts(to: &mut [f32], from: &[f32], is_normalised: bool) {
    rows::choose_largest(to, from);
    if is_normalised {
        let (shares, _) = to.split_at_mut(to.len() / 2);
        let sum: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
    }
}

/// Choices in the order of experts: those of an expert lie between its start and the next one's.
struct Grouping {
    starts: Vec<usize>,
    places: Vec<usize>,
}

impl Grouping {
    /// Builds it from choices among this many experts.
    fn from_choices(choices: &[usize], experts: usize) -> Self {
        let mut starts = vec![0; experts + 1];
        for expert in choices {
            starts[expert + 1] += 1;
        }
        for expert in 0..experts {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        let mut places = vec![0; choices.len()];
        for (place, expert) in choices.iter().enumerate() {
            places[next[*expert]] = place;
            next[*expert] += 1;
        }
        Self { starts, places }
    }

    /// The places of the choices of an expert.
    fn expert_places(&self, expert: usize) -> &[usize] {
        &self.places[self.starts[expert]..self.starts[expert + 1]]
    }
}

impl Run<'_> {
    /// Returns the experts that each row chose, row after row.
    fn row_choices(&self, value: RowsId, rows: usize) -> Vec<usize> {
        let row = |row: usize| {
            let both = self.row(value, row);
            let experts = both[both.len() / 2..].iter();
            experts.map(|bits| bits.to_bits() as usize)
        };
        (0..rows).flat_map(row).collect()
    }

    /// Some tiles of the products of all rows with their experts.
    pub(super) fn run_routed_product(
        &self,
        step: &DecoderStep,
        experts: ExpertStack,
        has_parts: bool,
        to: RowsId,
        task: usize,
    ) {
        let matrices = &self.model.matrices[experts.matrix..][..experts.count];
        let count = self.given.row_count(step.rows);
        let choices = self.row_choices(step.reads[1], count);
        let each = choices.len() / count.max(1);
        let grouping = Grouping::from_choices(&choices, experts.count);
        let tiles = tiles_per_task(&matrices[0]);
        let tiles = task * tiles..((task + 1) * tiles).min(matrices[0].tile_count());
        for (expert, matrix) in matrices.iter().enumerate() {
            let to_places = grouping.expert_places(expert);
            let from_places: Vec<usize> = match has_parts {
                true => to_places.to_vec(),
                false => to_places.iter().map(|place| place / each).collect(),
            };
            let parts = if has_parts { each } else { 1 };
            let rows = self.parts_at(step.reads[0], parts, &from_places);
            for tile in tiles.clone() {
                self.expert_tile(matrix, tile, rows, to, to_places);
            }
        }
    }

    /// The parts of rows that lie at some places.
    fn parts_at<'a>(&self, value: RowsId, parts: usize, places: &'a [usize]) -> Rows<'a> {
        let place = self.model.plan.places[value];
        Rows {
            data: self.buffers[place.slot].as_mut_ptr(),
            stride: place.width / parts,
            count: places.len(),
            places: Some(places),
        }
    }

    #[expect(unsafe_code, reason = "tiles write columns of rows that threads share")]
    fn expert_tile(
        &self,
        matrix: &Matrix,
        tile: usize,
        rows: Rows<'_>,
        to: RowsId,
        places: &[usize],
    ) {
        let results = Results {
            data: self.buffers[self.model.plan.places[to].slot].as_mut_ptr(),
            stride: matrix.rows,
            add: None,
            places: Some(places),
        };
        // SAFETY: the plan holds the widths of rows and results to those of the matrices times the
        // number of choices, and all matrices of a stack have one size. Places are those of choices
        // of existing rows, for which buffers have room. Only this task writes these columns.
        unsafe { multiply_tile(self.model.lane_isa, matrix, tile, rows, results, &[]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_taken_expert_by_expert_and_none_is_lost() {
        let grouping = Grouping::from_choices(&[2, 0, 2, 3, 0, 2], 5);
        let places: Vec<&[usize]> = (0..5)
            .map(|expert| grouping.expert_places(expert))
            .collect();
        assert_eq!(places, [&[1, 4][..], &[], &[0, 2, 5], &[3], &[]]);
    }

    #[test]
    fn shares_come_to_one_where_that_is_asked_for() {
        let mut to = [0.0; 4];
        choose_experts(&mut to, &[0.125, 0.5, 0.25, 0.125], false);
        assert_eq!(to[..2], [0.5, 0.25]);
        choose_experts(&mut to, &[0.125, 0.5, 0.25, 0.125], true);
        assert_eq!(to[..2], [0.5 / 0.75, 0.25 / 0.75]);
    }
}
