//! Multiplies batches of matrices, for the operators that are products (`MatMul`, `Gemm` and their
//! quantised kinds). Each element is one sum in ascending depth at every width of vectors, so its
//! bits are the same on every machine.

use std::borrow::Cow;

use souk_host::isa::Isa;

use super::call::KernelError;
use super::shape::{broadcast_places, broadcast_shape, element_count};

/// The columns of a panel: a part of the right matrix that is laid out for vectors.
const PANEL_COLUMNS: usize = 16;

/// The rows of a panel, so that it stays in a core's own cache.
const PANEL_DEPTH: usize = 1_024;

/// The rows of a product whose sums are added up at once.
const BLOCK_ROWS: usize = 4;

/// Numbers with multiplication and addition.
pub(super) trait Number:
    Copy + Default + std::ops::Mul<Output = Self> + std::ops::AddAssign
{
}

impl<T: Copy + Default + std::ops::Mul<Output = T> + std::ops::AddAssign> Number for T {}

/// An element of a matrix, and the type that its products are computed and added up in.
pub(super) trait Factor: Copy {
    type Sum: Number;

    fn widen(self) -> Self::Sum;
}

impl Factor for f32 {
    type Sum = f64;

    fn widen(self) -> f64 {
        f64::from(self)
    }
}

impl Factor for f64 {
    type Sum = f64;

    fn widen(self) -> f64 {
        self
    }
}

impl Factor for i128 {
    type Sum = i128;

    fn widen(self) -> i128 {
        self
    }
}

/// A batch of matrices: `batch` is the shape of the batch, each matrix is `rows` by `columns`.
#[derive(Clone)]
pub(super) struct Matrices<'a, T: Clone> {
    pub values: Cow<'a, [T]>,
    pub batch: Vec<usize>,
    pub rows: usize,
    pub columns: usize,
    /// Whether the values are column after column, and not row after row.
    pub is_by_column: bool,
}

impl<'a, T: Copy> Matrices<'a, T> {
    /// Returns matrices whose values are row after row.
    pub fn by_row(values: Cow<'a, [T]>, batch: &[usize], rows: usize, columns: usize) -> Self {
        Matrices {
            values,
            batch: batch.to_vec(),
            rows,
            columns,
            is_by_column: false,
        }
    }

    /// Returns one matrix, or its transpose without moving a value.
    pub fn of_one(values: Cow<'a, [T]>, dims: [usize; 2], is_transposed: bool) -> Self {
        let [rows, columns] = match is_transposed {
            true => [dims[1], dims[0]],
            false => dims,
        };
        Matrices {
            is_by_column: is_transposed,
            ..Matrices::by_row(values, &[], rows, columns)
        }
    }

    fn element_at(&self, matrix: usize, row: usize, column: usize) -> T {
        let place = match self.is_by_column {
            true => column * self.rows + row,
            false => row * self.columns + column,
        };
        self.values[matrix * self.rows * self.columns + place]
    }

    /// Returns the values of one matrix, row after row.
    fn rows_of(&self, matrix: usize) -> Cow<'_, [T]> {
        if self.is_by_column {
            let rows = (0..self.rows).flat_map(|row| {
                (0..self.columns).map(move |column| self.element_at(matrix, row, column))
            });
            return Cow::Owned(rows.collect());
        }
        let size = self.rows * self.columns;
        Cow::Borrowed(&self.values[matrix * size..][..size])
    }
}

/// Returns the products of two batches of matrices, with the smaller batch broadcast. The left
/// matrices must have as many columns as the right ones have rows.
pub(super) fn multiply_batches<T: Factor>(
    left: &Matrices<'_, T>,
    right: &Matrices<'_, T>,
) -> Result<Matrices<'static, T::Sum>, KernelError> {
    if left.columns != right.rows {
        let shape = |it: &Matrices<'_, T>| vec![it.rows, it.columns];
        return Err(KernelError::Shapes(shape(left), shape(right)));
    }
    let batch = broadcast_shape(&left.batch, &right.batch)?;
    let (rows, columns) = (left.rows, right.columns);
    let size = [&batch[..], &[rows, columns]].concat();
    let mut values = vec![T::Sum::default(); element_count(&size)?];
    let left_places = broadcast_places(&left.batch, &batch);
    let right_places = broadcast_places(&right.batch, &batch);
    let mut panel = Panel::default();
    for (index, (from, with)) in left_places.into_iter().zip(right_places).enumerate() {
        let target = &mut values[index * rows * columns..][..rows * columns];
        multiply_into(target, &left.rows_of(from), right, with, &mut panel);
    }
    Ok(Matrices::by_row(Cow::Owned(values), &batch, rows, columns))
}

/// Some rows of some columns of a right matrix, in the order in which a product reads them.
type Panel<T> = Vec<[T; PANEL_COLUMNS]>;

/// Multiplies with the widest vectors available; each width adds up a sum in the same order.
fn multiply_into<T: Factor>(
    target: &mut [T::Sum],
    left: &[T],
    right: &Matrices<'_, T>,
    matrix: usize,
    panel: &mut Panel<T::Sum>,
) {
    match Isa::detect_widest() {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "built for wider vectors")]
        // SAFETY: `detect_widest` returns this variant only if the processor has the instructions.
        Isa::Avx512 => unsafe { multiply_512(target, left, right, matrix, panel) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "built for wider vectors")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { multiply_256(target, left, right, matrix, panel) },
        _ => multiply_panels(target, left, right, matrix, panel),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
fn multiply_512<T: Factor>(
    target: &mut [T::Sum],
    left: &[T],
    right: &Matrices<'_, T>,
    matrix: usize,
    panel: &mut Panel<T::Sum>,
) {
    multiply_panels(target, left, right, matrix, panel);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_256<T: Factor>(
    target: &mut [T::Sum],
    left: &[T],
    right: &Matrices<'_, T>,
    matrix: usize,
    panel: &mut Panel<T::Sum>,
) {
    multiply_panels(target, left, right, matrix, panel);
}

/// Adds up the products panel after panel. The sums stay in `target` between the panels of a
/// column.
#[inline(always)]
fn multiply_panels<T: Factor>(
    target: &mut [T::Sum],
    left: &[T],
    right: &Matrices<'_, T>,
    matrix: usize,
    panel: &mut Panel<T::Sum>,
) {
    let (depth, columns) = (right.rows, right.columns);
    let rows = target.len() / columns.max(1);
    for column in (0..columns).step_by(PANEL_COLUMNS) {
        let width = PANEL_COLUMNS.min(columns - column);
        for start in (0..depth).step_by(PANEL_DEPTH) {
            let end = depth.min(start + PANEL_DEPTH);
            fill_panel(panel, right, matrix, start..end, column..column + width);
            let mut row = 0;
            while row < rows {
                let part = |at: usize| &left[(row + at) * depth..][start..end];
                let sums = &mut target[row * columns + column..];
                if rows - row < BLOCK_ROWS {
                    add_rows::<T, 1>(sums, columns, width, std::array::from_fn(part), panel);
                    row += 1;
                } else {
                    add_rows::<T, BLOCK_ROWS>(
                        sums,
                        columns,
                        width,
                        std::array::from_fn(part),
                        panel,
                    );
                    row += BLOCK_ROWS;
                }
            }
        }
    }
}

/// Copies some rows of some columns into a panel, and zeros into the columns that are missing.
#[inline(always)]
fn fill_panel<T: Factor>(
    panel: &mut Panel<T::Sum>,
    right: &Matrices<'_, T>,
    matrix: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) {
    panel.clear();
    panel.resize(rows.len(), [T::Sum::default(); PANEL_COLUMNS]);
    let values = &right.values[matrix * right.rows * right.columns..];
    if right.is_by_column {
        for (at, column) in columns.enumerate() {
            let values = &values[column * right.rows..][rows.clone()];
            for (line, value) in panel.iter_mut().zip(values) {
                line[at] = value.widen();
            }
        }
        return;
    }
    for (line, row) in panel.iter_mut().zip(rows) {
        let values = &values[row * right.columns..][columns.clone()];
        for (place, value) in line.iter_mut().zip(values) {
            *place = value.widen();
        }
    }
}

/// Adds the products of some rows with a panel to their sums, which lie `stride` apart in `target`.
#[inline(always)]
fn add_rows<T: Factor, const ROWS: usize>(
    target: &mut [T::Sum],
    stride: usize,
    width: usize,
    rows: [&[T]; ROWS],
    panel: &Panel<T::Sum>,
) {
    let mut sums = [[T::Sum::default(); PANEL_COLUMNS]; ROWS];
    for (at, sums) in sums.iter_mut().enumerate() {
        sums[..width].copy_from_slice(&target[at * stride..][..width]);
    }
    for (step, line) in panel.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let factor = row[step].widen();
            for (sum, &value) in sums.iter_mut().zip(line) {
                *sum += factor * value;
            }
        }
    }
    for (at, sums) in sums.iter().enumerate() {
        target[at * stride..][..width].copy_from_slice(&sums[..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the product as its definition has it.
    fn multiply_plainly(left: &Matrices<'_, f32>, right: &Matrices<'_, f32>) -> Vec<u64> {
        let mut bits = Vec::new();
        for row in 0..left.rows {
            for column in 0..right.columns {
                let mut sum = 0.0_f64;
                for step in 0..left.columns {
                    let factor = f64::from(left.element_at(0, row, step));
                    sum += factor * f64::from(right.element_at(0, step, column));
                }
                bits.push(sum.to_bits());
            }
        }
        bits
    }

    fn values(count: usize, seed: u32) -> Cow<'static, [f32]> {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 1e6 - 8.0
        };
        Cow::Owned((0..count).map(|_| draw()).collect())
    }

    #[test]
    fn each_element_is_one_sum_in_ascending_depth_at_every_size() {
        let sizes = [
            (1, 1, 1),
            (1, 2_049, 33),
            (4, 7, 16),
            (5, 1_025, 17),
            (9, 3, 1),
            (3, 0, 5),
        ];
        for (rows, depth, columns) in sizes {
            for turns in 0..4 {
                let (turn_left, turn_right) = (turns & 1 == 1, turns & 2 == 2);
                let dims = |rows, columns, turn| match turn {
                    true => [columns, rows],
                    false => [rows, columns],
                };
                let left = values(rows * depth, 1);
                let left = Matrices::of_one(left, dims(rows, depth, turn_left), turn_left);
                let right = values(depth * columns, 2);
                let right = Matrices::of_one(right, dims(depth, columns, turn_right), turn_right);
                let product = multiply_batches(&left, &right).unwrap();
                let bits: Vec<u64> = product.values.iter().map(|it| it.to_bits()).collect();
                assert_eq!(
                    bits,
                    multiply_plainly(&left, &right),
                    "{rows} {depth} {columns}"
                );
            }
        }
    }
}
