//! Tests the decoder's products: the same bits for any order of rows, and for the matrices of
//! experts alone or together.

use proptest::prelude::*;
use souk_host::isa::Isa;
use souk_memory::{Bf16, DType, F16, Shape, Tensor};

use super::super::matrix::MatrixSource;
use super::super::rows::quantise_row;
use super::*;
use crate::tiled::tile::tests::{assert_same_bits, odd_floats};

/// Numbers that differ, between minus one and one.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |at: u32| {
        let word = (at.wrapping_add(seed)).wrapping_mul(2_654_435_761);
        (word >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count as u32).map(number).collect()
}

/// The scales of a matrix of blocks, row by row.
fn block_scales(rows: usize, depth: usize) -> Vec<F16> {
    let scales = numbers(rows * (depth / BLOCK), 3).into_iter();
    scales.map(|it| F16::from_f32(it.abs())).collect()
}

/// A matrix of a kind, and the numbers it stands for.
fn matrix(kind: MatrixFormat, rows: usize, depth: usize) -> (Matrix, Vec<f32>) {
    let floats = numbers(rows * depth, 7);
    let halves = |of: fn(f32) -> u16| -> Vec<u16> { floats.iter().map(|it| of(*it)).collect() };
    let tensor = |dtype: DType, bytes: Vec<u8>| {
        Tensor::new(dtype, Shape::new([rows, depth]).unwrap(), bytes.into()).unwrap()
    };
    let scales = block_scales(rows, depth);
    let scale = |at: usize| scales[at / depth * (depth / BLOCK) + at % depth / BLOCK].to_f32();
    let blocks = |integers: Tensor| {
        let scales = Tensor::from_vec([rows, depth / BLOCK], scales.clone()).unwrap();
        MatrixSource::Blocks(integers, scales)
    };
    let given = match kind {
        MatrixFormat::Floats => {
            let matrix = Tensor::from_vec([rows, depth], floats.clone()).unwrap();
            return (
                Matrix::pack_source(&MatrixSource::Floats(matrix)).unwrap(),
                floats,
            );
        }
        MatrixFormat::Halves => {
            let halves = halves(|it| F16::from_f32(it).0);
            let floats = halves.iter().map(|it| F16(*it).to_f32()).collect();
            let matrix = tensor(DType::F16, bytemuck::cast_slice(&halves).to_vec());
            return (
                Matrix::pack_source(&MatrixSource::Floats(matrix)).unwrap(),
                floats,
            );
        }
        MatrixFormat::Brains => {
            let halves = halves(|it| (it.to_bits() >> 16) as u16);
            let floats = halves.iter().map(|it| Bf16(*it).to_f32()).collect();
            let matrix = tensor(DType::Bf16, bytemuck::cast_slice(&halves).to_vec());
            return (
                Matrix::pack_source(&MatrixSource::Floats(matrix)).unwrap(),
                floats,
            );
        }
        MatrixFormat::Eights => {
            let bytes = floats.iter().map(|it| ((it * 127.0) as i8).cast_unsigned());
            blocks(tensor(DType::I8, bytes.collect()))
        }
        MatrixFormat::Fours => {
            let four = |it: f32| ((it * 8.0).floor() as i8).cast_unsigned() & 15;
            let bytes = floats
                .chunks(2)
                .map(|pair| four(pair[0]) | (four(pair[1]) << 4));
            blocks(tensor(DType::I4, bytes.collect()))
        }
    };
    let whole = |at: usize| match kind {
        MatrixFormat::Eights => (floats[at] * 127.0).trunc(),
        _ => (floats[at] * 8.0).floor(),
    };
    let floats = (0..rows * depth).map(|at| whole(at) * scale(at)).collect();
    (Matrix::pack_source(&given).unwrap(), floats)
}

const KINDS: [MatrixFormat; 5] = [
    MatrixFormat::Floats,
    MatrixFormat::Halves,
    MatrixFormat::Brains,
    MatrixFormat::Eights,
    MatrixFormat::Fours,
];

#[expect(unsafe_code, reason = "the kernels take pointers")]
fn multiplied(
    isa: LaneIsa,
    matrix: &Matrix,
    rows: &[f32],
    stride: usize,
    bias: &[f32],
) -> Vec<f32> {
    let count = rows.len() / stride;
    let mut made = vec![0.0; count * matrix.rows];
    for tile in 0..matrix.tile_count() {
        let from = Rows {
            data: rows.as_ptr(),
            stride,
            count,
            places: None,
        };
        let to = Results {
            data: made.as_mut_ptr(),
            stride: matrix.rows,
            add: None,
            places: None,
        };
        // SAFETY: rows and results are as long as the matrix says.
        unsafe { multiply_tile(isa, matrix, tile, from, to, bias) };
    }
    made
}

/// Rows as a kind's products take them, and their stride.
fn given(kind: MatrixFormat, floats: &[f32], depth: usize) -> (Vec<f32>, usize) {
    if !kind.is_blocks() {
        return (floats.to_vec(), depth);
    }
    let width = bytes_width(depth);
    let mut rows = vec![0.0; floats.len() / depth * width];
    for (to, from) in rows.chunks_mut(width).zip(floats.chunks(depth)) {
        quantise_row(Isa::detect_widest(), to, from);
    }
    (rows, width)
}

/// What rows of bytes stand for.
fn meant(kind: MatrixFormat, floats: &[f32], depth: usize) -> Vec<f32> {
    let (rows, width) = given(kind, floats, depth);
    if !kind.is_blocks() {
        return rows;
    }
    let row = |row: &[f32]| {
        let bytes: &[i8] = bytemuck::cast_slice(&row[..depth / 4]);
        let scaled = bytes.iter().enumerate();
        let scaled = scaled.map(|(at, byte)| f32::from(*byte) * row[depth / 4 + at / BLOCK]);
        scaled.collect::<Vec<f32>>()
    };
    rows.chunks(width).flat_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_kind_on_every_isa_is_the_product_of_what_it_stands_for(
        rows in 1usize..40, blocks in 1usize..6, count in 1usize..10, kind in 0usize..5,
    ) {
        let (kind, depth) = (KINDS[kind], blocks * BLOCK);
        let (matrix, weights) = matrix(kind, rows, depth);
        let floats = numbers(count * depth, 11);
        let bias = numbers(rows, 5);
        let meant = meant(kind, &floats, depth);
        let (given, stride) = given(kind, &floats, depth);
        for isa in LaneIsa::all_supported() {
            let made = multiplied(isa, &matrix, &given, stride, &bias);
            for (at, made) in made.iter().enumerate() {
                let (row, column) = (at / rows, at % rows);
                let left = &meant[row * depth..][..depth];
                let right = &weights[column * depth..][..depth];
                let terms = left.iter().zip(right).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let exact = terms.clone().sum::<f64>() + f64::from(bias[column]);
                let size = terms.map(f64::abs).sum::<f64>() + 1.0;
                prop_assert!((f64::from(*made) - exact).abs() <= 1e-5 * size, "{isa:?} {kind:?}");
            }
            for row in 0..count {
                let alone = multiplied(isa, &matrix, &given[row * stride..][..stride], stride, &bias);
                prop_assert_eq!(&alone[..], &made[row * rows..][..rows], "rows are apart");
            }
        }
        let mut row = vec![0.0; depth];
        for (at, expected) in weights.chunks(depth).enumerate() {
            matrix.unpack_row(at, &mut row);
            prop_assert_eq!(&row[..], expected);
        }
    }
}

/// The ids of the products of [`numbers`] in each kind, with fused multiply-adds.
const FUSED: [&str; 5] = [
    "202e65c80dc3c0e34214a736fe7d49830fb2ef791d44b7abfc84e977c5394249",
    "3453adcaecf4ba16ec2eb33b28c50b1d8d624cfc710c4a242fdd28e6a950b873",
    "88a51e1adfdcbabc4e80faa4f1396c49a12f55ba2ffa0333aaf7c25bdce4207e",
    "d0205c9f591560692bdea104a8687b66234e08b164215201116cf6d1964524b0",
    "955d3493c2be2815dc50610c32b09b6d0577aa28666dfbe330137e3ba09a7a7a",
];

/// Returns the instructions that round a product and its sum once.
fn fused_isas() -> impl Iterator<Item = LaneIsa> {
    let all = LaneIsa::all_supported().into_iter();
    all.filter(|isa| *isa != LaneIsa::Plain)
}

/// A product as one lane computes it: over even and odd places.
fn fused_product(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0f32; 2];
    for (at, (left, right)) in left.iter().zip(right).enumerate() {
        sums[at % 2] = right.mul_add(*left, sums[at % 2]);
    }
    sums[0] + sums[1]
}

/// A product of a row of bytes with integers times their scales, block by block.
fn fused_blocks(row: &[f32], weights: &[f32], scales: &[F16]) -> f32 {
    let depth = weights.len();
    let bytes: &[i8] = bytemuck::cast_slice(&row[..depth / 4]);
    let blocks = bytes.chunks(BLOCK).zip(weights.chunks(BLOCK)).zip(scales);
    let mut total = 0.0f32;
    for (block, ((bytes, weights), scale)) in blocks.enumerate() {
        let scale = scale.to_f32();
        let terms = bytes.iter().zip(weights);
        let sum: i32 = terms
            .map(|(byte, it)| i32::from(*byte) * (it / scale) as i32)
            .sum();
        total = (sum as f32).mul_add(scale * row[depth / 4 + block], total);
    }
    total
}

#[test]
fn fused_products_have_the_bits_of_the_table_on_every_processor() {
    let (rows, depth, count) = (37, 96, 7);
    let (bias, scales) = (numbers(rows, 5), block_scales(rows, depth));
    let scales: Vec<&[F16]> = scales.chunks(depth / BLOCK).collect();
    let found = KINDS.map(|kind| {
        let (matrix, weights) = matrix(kind, rows, depth);
        let (given, stride) = given(kind, &numbers(count * depth, 11), depth);
        let of = |at: usize| {
            let (row, column) = (&given[at / rows * stride..][..stride], at % rows);
            let weights = &weights[column * depth..][..depth];
            let product = match kind.is_blocks() {
                true => fused_blocks(row, weights, scales[column]),
                false => fused_product(row, weights),
            };
            product + bias[column]
        };
        let expected: Vec<f32> = (0..count * rows).map(of).collect();
        for isa in fused_isas() {
            let made = multiplied(isa, &matrix, &given, stride, &bias);
            assert_same_bits(&made, &expected, &format!("{isa:?} {kind:?}"));
        }
        let made = Tensor::from_vec([count, rows], expected).unwrap();
        made.id().to_string()
    });
    assert_eq!(found, FUSED);
}

#[test]
fn products_of_odd_numbers_of_any_depth_are_those_of_one_lane() {
    let (rows, count) = (17, 5);
    for depth in 1..71 {
        let weights = odd_floats(rows * depth, 1);
        let matrix = Tensor::from_vec([rows, depth], weights.clone()).unwrap();
        let matrix = Matrix::pack_source(&MatrixSource::Floats(matrix)).unwrap();
        // Unaligned, one float behind the beginning.
        let given = odd_floats(1 + count * depth, 2);
        let of = |at: usize| {
            let (row, column) = (&given[1 + at / rows * depth..][..depth], at % rows);
            fused_product(row, &weights[column * depth..][..depth])
        };
        let expected: Vec<f32> = (0..count * rows).map(of).collect();
        for isa in fused_isas() {
            let made = multiplied(isa, &matrix, &given[1..], depth, &[]);
            assert_same_bits(&made, &expected, &format!("{isa:?} {depth}"));
        }
    }
}

#[test]
fn all_floats_of_16_bits_are_read_as_what_they_are() {
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    for dtype in [DType::F16, DType::Bf16] {
        let read = |bits: u16| match dtype {
            DType::F16 => F16(bits).to_f32(),
            _ => Bf16(bits).to_f32(),
        };
        let bytes = bytemuck::cast_slice(&patterns).to_vec();
        let shape = Shape::new([patterns.len(), 1]).unwrap();
        let matrix = Tensor::new(dtype, shape, bytes.into()).unwrap();
        let matrix = Matrix::pack_source(&MatrixSource::Floats(matrix)).unwrap();
        let expected: Vec<f32> = patterns.iter().map(|bits| read(*bits) + 0.0).collect();
        for isa in LaneIsa::all_supported() {
            let made = multiplied(isa, &matrix, &[1.0], 1, &[]);
            assert_same_bits(&made, &expected, &format!("{isa:?} {dtype:?}"));
        }
    }
}

/// Rows of which each is taken from where it lies, as often as it is named, and goes to a place of
/// its own.
#[test]
#[expect(unsafe_code, reason = "the kernels take pointers")]
fn rows_of_any_places_are_the_bits_that_they_are_in_order() {
    let (rows, depth, count) = (37, 64, 7);
    let from_places = [6, 0, 0, 3, 5, 5, 2, 1, 4];
    let to_places = [1, 8, 3, 0, 7, 2, 6, 4, 5];
    for kind in KINDS {
        let (matrix, _) = matrix(kind, rows, depth);
        let (given, stride) = given(kind, &numbers(count * depth, 11), depth);
        for isa in LaneIsa::all_supported() {
            let in_order = multiplied(isa, &matrix, &given, stride, &[]);
            let mut made = vec![0.0; to_places.len() * rows];
            for tile in 0..matrix.tile_count() {
                let from = Rows {
                    data: given.as_ptr(),
                    stride,
                    count: from_places.len(),
                    places: Some(&from_places),
                };
                let to = Results {
                    data: made.as_mut_ptr(),
                    stride: rows,
                    add: None,
                    places: Some(&to_places),
                };
                // SAFETY: all places are of rows that there are.
                unsafe { multiply_tile(isa, &matrix, tile, from, to, &[]) };
            }
            for (from, to) in from_places.iter().zip(to_places) {
                let expected = &in_order[from * rows..][..rows];
                assert_eq!(&made[to * rows..][..rows], expected, "{isa:?} {kind:?}");
            }
        }
    }
}

#[test]
fn matrices_of_experts_are_each_by_itself_what_they_are_together() {
    let floats = Tensor::from_vec([3, 2, 4], numbers(24, 1)).unwrap();
    let apart = MatrixSource::Floats(floats).split_experts().unwrap();
    let mut row = [0.0; 4];
    for (expert, own) in apart.iter().enumerate() {
        let own = Matrix::pack_source(own).unwrap();
        assert_eq!([own.rows, own.depth], [2, 4]);
        own.unpack_row(1, &mut row);
        assert_eq!(row, numbers(24, 1)[expert * 8 + 4..][..4]);
    }
    let fours: Vec<u8> = (0..3 * 2 * 16).map(|at| (at * 37 % 251) as u8).collect();
    let shape = Shape::new([3, 2, 32]).unwrap();
    let integers = Tensor::new(DType::I4, shape, fours.clone().into()).unwrap();
    let scales: Vec<F16> = (1..7).map(|it| F16::from_f32(it as f32)).collect();
    let scales = Tensor::from_vec([3, 2, 1], scales).unwrap();
    let apart = MatrixSource::Blocks(integers.clone(), scales).split_experts();
    let mut row = [0.0; 32];
    let last = Matrix::pack_source(&apart.unwrap()[2]).unwrap();
    last.unpack_row(1, &mut row);
    let low = ((fours[5 * 16] << 4).cast_signed() >> 4) as f32;
    assert_eq!(row[0], low * 6.0);
    // Scales of fewer experts than there are integers of.
    let few = Tensor::from_vec([2, 2, 1], vec![F16::from_f32(1.0); 4]).unwrap();
    assert!(
        MatrixSource::Blocks(integers, few)
            .split_experts()
            .is_none()
    );
}

#[test]
fn the_lowest_integer_and_scales_of_32_bits_are_left_to_others() {
    let tensor = |dtype, bytes: Vec<u8>| {
        Tensor::new(dtype, Shape::new([1, 32]).unwrap(), bytes.into()).unwrap()
    };
    let scale = || Tensor::from_vec([1, 1], vec![F16::from_f32(1.0)]).unwrap();
    let lowest = MatrixSource::Blocks(tensor(DType::I8, vec![128; 32]), scale());
    assert!(lowest.valid_dims().is_none());
    let next = MatrixSource::Blocks(tensor(DType::I8, vec![129; 32]), scale());
    assert!(next.valid_dims().is_some());
    let wide = Tensor::from_vec([1, 1], vec![1.0f32]).unwrap();
    assert!(
        MatrixSource::Blocks(tensor(DType::I8, vec![1; 32]), wide)
            .valid_dims()
            .is_none()
    );
}
