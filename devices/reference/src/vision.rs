//! Computes the operators of image models that sample at computed positions (`GridSample`,
//! `RoiAlign`, `AffineGrid`), and `NonMaxSuppression`, which selects boxes.

use super::call::{Call, KernelError, Results};
use super::functions::max_or_nan;
use super::layout::to_sizes;
use super::resize::cubic_weight;
use super::shape::{element_count, index_of, strides};
use super::value::{from_floats, from_indices, to_floats};

/// The settings of a grid that samples an image.
struct Sampler<'a> {
    mode: &'a str,
    padding: &'a str,
    align: bool,
}

impl Sampler<'_> {
    /// Returns the position along an axis of a coordinate from -1 to 1.
    fn source_position(&self, coordinate: f64, size: usize) -> f64 {
        let size = size as f64;
        if self.align {
            (coordinate + 1.0) / 2.0 * (size - 1.0)
        } else {
            ((coordinate + 1.0) * size - 1.0) / 2.0
        }
    }

    /// Returns the element at an integer position along an axis; `None` is padding of zeros.
    fn element_index(&self, at: i64, size: usize) -> Option<usize> {
        let last = size as i64 - 1;
        match self.padding {
            "border" => Some(at.clamp(0, last) as usize),
            "reflection" => {
                let (low, high) = if self.align {
                    (0.0, last as f64)
                } else {
                    (-0.5, last as f64 + 0.5)
                };
                Some(reflect_position(at as f64, low, high).clamp(0.0, last as f64) as usize)
            }
            _ => (0..=last).contains(&at).then_some(at as usize),
        }
    }

    /// Returns elements (without padding) and weights along an axis.
    fn weighted_taps(&self, place: f64, size: usize) -> Vec<(usize, f64)> {
        let floor = place.floor();
        let near: Vec<(i64, f64)> = match self.mode {
            "nearest" => vec![(place.round_ties_even() as i64, 1.0)],
            "cubic" | "bicubic" => (-1..=2)
                .map(|step| {
                    let at = floor + f64::from(step);
                    (at as i64, cubic_weight((place - at).abs(), -0.75))
                })
                .collect(),
            _ => vec![
                (floor as i64, 1.0 - (place - floor)),
                (floor as i64 + 1, place - floor),
            ],
        };
        let inside = |(at, by): (i64, f64)| Some((self.element_index(at, size)?, by));
        near.into_iter().filter_map(inside).collect()
    }
}

/// Folds a position back into `low..=high` at either end.
fn reflect_position(place: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let folded = (place - low).rem_euclid(2.0 * range);
    low + if folded > range {
        2.0 * range - folded
    } else {
        folded
    }
}

pub(super) fn grid_sample(call: &Call<'_>) -> Results {
    let (input, grid) = (call.input(0)?, call.input(1)?);
    let &[samples, channels, ref spatial @ ..] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let rank = spatial.len();
    if grid.dims().len() != rank + 2 || grid.dims().last() != Some(&rank) {
        return Err(KernelError::Shapes(
            input.dims().to_vec(),
            grid.dims().to_vec(),
        ));
    }
    let sampler = Sampler {
        mode: call.text_attribute("mode", "linear"),
        padding: call.text_attribute("padding_mode", "zeros"),
        align: call.is_flag_set("align_corners"),
    };
    let wanted = &grid.dims()[1..rank + 1];
    let (points, plane) = (element_count(wanted)?, element_count(spatial)?);
    let (values, coordinates) = (to_floats(input)?, to_floats(grid)?);
    let steps = strides(spatial);
    let mut results = vec![0.0; samples * channels * points];
    for sample in 0..samples {
        for point in 0..points {
            let mut taps = vec![(0usize, 1.0)];
            for axis in 0..rank {
                // The grid states the last axis first.
                let at = (sample * points + point) * rank + rank - 1 - axis;
                let place = sampler.source_position(coordinates[at], spatial[axis]);
                let own = sampler.weighted_taps(f64::from(place as f32), spatial[axis]);
                let step = steps[axis];
                let next = taps.iter().flat_map(|&(from, weight)| {
                    own.iter()
                        .map(move |&(at, by)| (from + at * step, weight * by))
                });
                taps = next.collect();
            }
            for channel in 0..channels {
                let lane = sample * channels + channel;
                let sum = taps
                    .iter()
                    .map(|(at, by)| values[lane * plane + at] * by)
                    .sum();
                results[lane * points + point] = sum;
            }
        }
    }
    let dims = [&[samples, channels], wanted].concat();
    Ok(vec![from_floats(input.dtype(), &dims, results)?])
}

pub(super) fn affine_grid(call: &Call<'_>) -> Results {
    let theta = call.input(0)?;
    let size = to_sizes(&call.input_ints(1)?, 1)?;
    let &[samples, _, ref spatial @ ..] = &size[..] else {
        return Err(KernelError::Range(1));
    };
    let rank = spatial.len();
    if theta.dims() != [samples, rank, rank + 1] {
        return Err(KernelError::Shapes(theta.dims().to_vec(), size));
    }
    let align = call.is_flag_set("align_corners");
    let coordinate = |at: usize, size: usize| {
        let (at, size) = (at as f64, size as f64);
        if align {
            if size > 1.0 {
                2.0 * at / (size - 1.0) - 1.0
            } else {
                0.0
            }
        } else {
            (2.0 * at + 1.0) / size - 1.0
        }
    };
    let matrices = to_floats(theta)?;
    let points = element_count(spatial)?;
    let mut results = Vec::with_capacity(samples * points * rank);
    for sample in 0..samples {
        for point in 0..points {
            let at = index_of(point, spatial);
            // The last axis comes first, then a one for the shift.
            let place = (0..rank)
                .rev()
                .map(|axis| coordinate(at[axis], spatial[axis]));
            let place: Vec<f64> = place.chain([1.0]).collect();
            for row in 0..rank {
                let from = (sample * rank + row) * (rank + 1);
                let line = &matrices[from..from + rank + 1];
                results.push(line.iter().zip(&place).map(|(a, b)| a * b).sum());
            }
        }
    }
    let dims = [&[samples], spatial, &[rank]].concat();
    Ok(vec![from_floats(theta.dtype(), &dims, results)?])
}

/// A box by its corners: y and x of one, y and x of the other.
type BoxCorners = [f64; 4];

fn box_corners(box_: &[f64], centred: bool) -> BoxCorners {
    let [a, b, c, d] = [box_[0], box_[1], box_[2], box_[3]];
    if centred {
        // Centre x, centre y, width, height.
        return [b - d / 2.0, a - c / 2.0, b + d / 2.0, a + c / 2.0];
    }
    [a.min(c), b.min(d), a.max(c), b.max(d)]
}

/// Returns the shared area divided by the joint area.
fn intersection_over_union(left: &BoxCorners, right: &BoxCorners) -> f64 {
    let area = |it: &BoxCorners| (it[2] - it[0]) * (it[3] - it[1]);
    let height = left[2].min(right[2]) - left[0].max(right[0]);
    let width = left[3].min(right[3]) - left[1].max(right[1]);
    let shared = height.max(0.0) * width.max(0.0);
    let joint = area(left) + area(right) - shared;
    if area(left) <= 0.0 || area(right) <= 0.0 || joint <= 0.0 {
        0.0
    } else {
        shared / joint
    }
}

pub(super) fn non_max_suppression(call: &Call<'_>) -> Results {
    let (boxes, scores) = (call.input(0)?, call.input(1)?);
    let (&[batch, count, 4], &[_, classes, _]) = (boxes.dims(), scores.dims()) else {
        return Err(KernelError::Shapes(
            boxes.dims().to_vec(),
            scores.dims().to_vec(),
        ));
    };
    let limit = call.optional_scalar_int(2)?.unwrap_or(0).max(0) as usize;
    let overlap_max = call.optional_scalar_float(3)?.unwrap_or(0.0);
    let score_min = call.optional_scalar_float(4)?;
    let centred = call.is_flag_set("center_point_box");
    let (boxes, scores) = (to_floats(boxes)?, to_floats(scores)?);
    let boxes: Vec<BoxCorners> = boxes
        .chunks_exact(4)
        .map(|box_| box_corners(box_, centred))
        .collect();
    let mut chosen = Vec::new();
    for lane in 0..batch * classes {
        let own = &boxes[lane / classes * count..][..count];
        let scores = &scores[lane * count..][..count];
        let good = |index: &usize| score_min.is_none_or(|low| scores[*index] > low);
        let mut order: Vec<usize> = (0..count).filter(good).collect();
        order.sort_by(|&left, &right| scores[right].total_cmp(&scores[left]));
        let mut kept: Vec<usize> = Vec::new();
        for index in order {
            let hidden = kept
                .iter()
                .any(|&it| intersection_over_union(&own[it], &own[index]) > overlap_max);
            if kept.len() < limit && !hidden {
                kept.push(index);
            }
        }
        let row = |index: usize| [lane / classes, lane % classes, index].map(|it| it as i64);
        chosen.extend(kept.into_iter().flat_map(row));
    }
    Ok(vec![from_indices(&[chosen.len() / 3, 3], chosen)?])
}

/// Averages regions of an image, or takes their maxima, on a grid of samples.
pub(super) fn roi_align(call: &Call<'_>) -> Results {
    let (input, regions) = (call.input(0)?, call.input(1)?);
    let &[_, channels, height, width] = input.dims() else {
        return Err(KernelError::Range(0));
    };
    let &[count, 4] = regions.dims() else {
        return Err(KernelError::Range(1));
    };
    let samples = call.input_ints(2)?;
    let rows = call.int_attribute("output_height", 1).max(1) as usize;
    let columns = call.int_attribute("output_width", 1).max(1) as usize;
    let grid = Grid {
        scale: call.float_attribute("spatial_scale", 1.0),
        ratio: call.int_attribute("sampling_ratio", 0).max(0) as usize,
        half: call.text_attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel",
        maximum: call.text_attribute("mode", "avg") == "max",
        rows,
        columns,
        image: (height, width),
    };
    let (values, regions) = (to_floats(input)?, to_floats(regions)?);
    let mut results = Vec::with_capacity(count * channels * rows * columns);
    for region in 0..count {
        let sample = usize::try_from(samples[region]).map_err(|_| KernelError::Range(2))?;
        let cells = grid.sample_cells(&regions[region * 4..region * 4 + 4]);
        for channel in 0..channels {
            let from = (sample * channels + channel) * height * width;
            let plane = values
                .get(from..from + height * width)
                .ok_or(KernelError::Range(2))?;
            results.extend(cells.iter().map(|cell| grid.combine_samples(cell, plane)));
        }
    }
    Ok(vec![from_floats(
        input.dtype(),
        &[count, channels, rows, columns],
        results,
    )?])
}

/// The four corners around one sample, with their weights; none outside the image.
type Point = Vec<(usize, f64)>;

/// The division of a region into cells and samples.
struct Grid {
    scale: f64,
    ratio: usize,
    half: bool,
    maximum: bool,
    rows: usize,
    columns: usize,
    image: (usize, usize),
}

impl Grid {
    /// Returns the sample points of every cell of a region.
    fn sample_cells(&self, region: &[f64]) -> Vec<Vec<Point>> {
        let offset = if self.half { 0.5 } else { 0.0 };
        let edge = |index: usize| region[index] * self.scale - offset;
        let least = if self.half { f64::NEG_INFINITY } else { 1.0 };
        let (x, y) = (edge(0), edge(1));
        let (wide, high) = ((edge(2) - x).max(least), (edge(3) - y).max(least));
        let (cell_high, cell_wide) = (high / self.rows as f64, wide / self.columns as f64);
        let samples = |size: f64| {
            if self.ratio > 0 {
                self.ratio
            } else {
                size.ceil().max(0.0) as usize
            }
        };
        let (down, across) = (samples(cell_high), samples(cell_wide));
        let at = |start: f64, cell: usize, size: f64, sample: usize, samples: usize| {
            start + cell as f64 * size + (sample as f64 + 0.5) * size / samples as f64
        };
        let mut cells = Vec::with_capacity(self.rows * self.columns);
        for cell in 0..self.rows * self.columns {
            let (row, column) = (cell / self.columns, cell % self.columns);
            let points = (0..down * across).map(|sample| {
                let y = at(y, row, cell_high, sample / across, down);
                let x = at(x, column, cell_wide, sample % across, across);
                self.sample_point(y, x)
            });
            cells.push(points.collect());
        }
        cells
    }

    fn sample_point(&self, y: f64, x: f64) -> Point {
        let (height, width) = self.image;
        if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
            return Vec::new();
        }
        let axis = |place: f64, size: usize| {
            let place = place.max(0.0);
            let low = place as usize;
            if low + 1 >= size {
                (size - 1, size - 1, 0.0)
            } else {
                (low, low + 1, place - low as f64)
            }
        };
        let ((top, bottom, down), (left, right, across)) = (axis(y, height), axis(x, width));
        vec![
            (top * width + left, (1.0 - down) * (1.0 - across)),
            (top * width + right, (1.0 - down) * across),
            (bottom * width + left, down * (1.0 - across)),
            (bottom * width + right, down * across),
        ]
    }

    fn combine_samples(&self, cell: &[Point], plane: &[f64]) -> f64 {
        let parts =
            |point: &Point| -> Vec<f64> { point.iter().map(|(at, by)| plane[*at] * by).collect() };
        if self.maximum {
            // The largest of the four weighted corners counts, as the operator defines it.
            let largest =
                |point: &Point| parts(point).into_iter().fold(f64::NEG_INFINITY, max_or_nan);
            let best = cell.iter().map(largest).fold(f64::NEG_INFINITY, max_or_nan);
            return if best == f64::NEG_INFINITY { 0.0 } else { best };
        }
        let sum: f64 = cell.iter().flat_map(parts).sum();
        sum / cell.len().max(1) as f64
    }
}
