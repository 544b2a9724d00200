//! Tests the conversion of block types to 8 bits against reference values.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

const KINDS: [BlockKind; 10] = [
    BlockKind::Q4_1,
    BlockKind::Q5_0,
    BlockKind::Q5_1,
    BlockKind::Q2K,
    BlockKind::Q3K,
    BlockKind::Q4K,
    BlockKind::Q5K,
    BlockKind::Q6K,
    BlockKind::Iq4Nl,
    BlockKind::Iq4Xs,
];

/// What `tests/reference/k_quants.py` found, as hexadecimal bytes.
#[derive(Deserialize)]
struct Reference {
    number: u32,
    blocks: String,
    numbers: String,
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let pairs = (0..hexadecimal.len()).step_by(2);
    let byte = |at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
    pairs.map(byte).collect()
}

/// Kinds, two blocks of each, and what they stand for.
fn references() -> Vec<(BlockKind, Vec<u8>, Vec<f32>)> {
    let text = include_str!("../../../tests/reference/k_quants.json");
    let cases: BTreeMap<String, Reference> = serde_json::from_str(text).unwrap();
    let case = |case: &Reference| {
        let numbers = bytes(&case.numbers);
        let numbers = numbers.chunks_exact(4);
        let numbers = numbers.map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        let kind = BlockKind::from_number(case.number).unwrap();
        (kind, bytes(&case.blocks), numbers.collect())
    };
    cases.values().map(case).collect()
}

/// What integers and their scales stand for, and half a step of each.
fn meant(integers: &[u8], scales: &[u8]) -> Vec<(f32, f32)> {
    let step = |at: usize| read_f16(&scales[at / BLOCK * 2..]);
    let integers = integers.iter().enumerate();
    let number = |(at, it): (usize, &u8)| {
        let number = f32::from(it.cast_signed()) * step(at);
        (number, step(at) / 2.0)
    };
    integers.map(number).collect()
}

#[test]
fn blocks_stand_for_what_their_reference_says() {
    let references = references();
    assert_eq!(references.len(), KINDS.len());
    for (kind, blocks, expected) in references {
        let (numbers, size) = kind.block_layout();
        let mut floats = vec![0.0; numbers];
        for (block, expected) in blocks.chunks(size).zip(expected.chunks(numbers)) {
            kind.decode_block(block, &mut floats);
            for (found, expected) in floats.iter().zip(expected) {
                let apart = (found - expected).abs();
                assert!(
                    apart <= 1e-6 * expected.abs(),
                    "{kind:?}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn eight_bits_are_half_a_step_from_what_they_are_made_of() {
    for (kind, blocks, expected) in references() {
        let (integers, scales) = kind.to_q8_blocks(&blocks);
        assert_eq!(integers.len(), expected.len(), "{kind:?}");
        for ((number, half), expected) in meant(&integers, &scales).iter().zip(&expected) {
            let apart = (number - expected).abs();
            assert!(apart <= half * 1.0001, "{kind:?}: {number} {expected}");
        }
        for (floats, scale) in expected.chunks(BLOCK).zip(scales.chunks(2)) {
            let largest = floats.iter().fold(0.0f32, |most, it| most.max(it.abs()));
            let ratio = read_f16(scale) * LARGEST / largest;
            assert!((ratio - 1.0).abs() < 1e-3, "{kind:?}: {ratio}");
        }
    }
}

#[test]
fn a_tensor_of_many_threads_is_one_of_one() {
    let (kind, blocks, _) = references().swap_remove(0);
    let times = 3 * THREAD_BYTES / blocks.len() + 1;
    let (integers, scales) = kind.to_q8_blocks(&blocks);
    let many = kind.to_q8_blocks(&blocks.repeat(times));
    assert!(many == (integers.repeat(times), scales.repeat(times)));
}

#[test]
fn zeros_have_no_scale_and_what_is_no_number_spoils_its_block_alone() {
    let mut integers = [7; BLOCK];
    assert_eq!(round_to_integers(&[0.0; BLOCK], &mut integers), F16(0));
    assert_eq!(integers, [0; BLOCK]);
    for wrong in [f32::NAN, f32::INFINITY, -1e9] {
        let mut floats = [1.0; BLOCK];
        floats[5] = wrong;
        assert!(round_to_integers(&floats, &mut integers).to_f32().is_nan());
        assert_eq!(integers, [0; BLOCK]);
    }
    let blocks = [&[0xff; 20][..], &[0; 20][..]].concat();
    let (_, scales) = BlockKind::Q4_1.to_q8_blocks(&blocks);
    assert!(read_f16(&scales).is_nan());
    assert_eq!(scales[2..], [0, 0]);
}

proptest! {
    #[test]
    fn no_integer_passes_127_however_small_its_scale(
        floats in prop::collection::vec(-1.0f32..1.0, BLOCK),
        power in -40i32..22,
    ) {
        let floats: Vec<f32> = floats.iter().map(|it| it * 2f32.powi(power)).collect();
        let mut integers = [0; BLOCK];
        let scale = round_to_integers(&floats, &mut integers).to_f32();
        let half = scale / 2.0 * 1.0001;
        for (integer, float) in integers.iter().zip(&floats) {
            let integer = integer.cast_signed();
            prop_assert!(integer != i8::MIN);
            prop_assert!((f32::from(integer) * scale - float).abs() <= half, "{integer} {float}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic(seed in prop::collection::vec(any::<u8>(), 420)) {
        for kind in KINDS {
            let (integers, scales) = kind.to_q8_blocks(&seed);
            prop_assert!(!integers.contains(&0x80));
            prop_assert!(scales.chunks(2).all(|it| read_f16(it).is_nan() || read_f16(it) >= 0.0));
        }
    }
}
