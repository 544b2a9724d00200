//! Tests the reader of GGUF files, with valid files, files beyond its limits, and models in several
//! parts.

use proptest::prelude::*;

use super::*;

#[path = "../../tests/models/gguf_writer.rs"]
mod writer;

use writer::Writer;

/// Numbers of the types that are put into 8 bits.
const PACKED: [u32; 10] = [3, 6, 7, 10, 11, 12, 13, 14, 20, 23];

fn small() -> Bytes {
    let mut writer = Writer::default();
    writer.text("general.architecture", "llama");
    writer.number("llama.block_count", 2);
    writer.float("llama.rope.freq_base", 1e4);
    writer.texts("tokenizer.ggml.tokens", &["a".to_owned(), "b".to_owned()]);
    writer.numbers("tokenizer.ggml.token_type", &[1, 3]);
    let ones: Vec<u8> = [1.0f32, 2.0]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    writer.tensor("norm", 0, &[2], &ones);
    let mut eights = 0x3c00u16.to_le_bytes().to_vec();
    eights.extend((0..32).map(|it: i8| (it - 16).cast_unsigned()));
    writer.tensor("eights", 8, &[1, 32], &eights);
    let mut fours = 0x4000u16.to_le_bytes().to_vec();
    fours.extend((0..16).map(|it: u8| it | ((15 - it) << 4)));
    writer.tensor("fours", 2, &[1, 32], &fours);
    for kind in PACKED {
        let (numbers, size) = BlockKind::from_number(kind).unwrap().block_layout();
        let dims = [2, numbers];
        writer.tensor(
            &format!("packed.{kind}"),
            kind,
            &dims,
            &vec![kind as u8; 2 * size],
        );
    }
    writer.finish()
}

#[test]
fn a_file_gives_back_what_was_written() {
    let file = Gguf::read(&small()).unwrap();
    assert_eq!(file.metadata_text("general.architecture"), Some("llama"));
    assert_eq!(file.metadata_integer("llama.block_count"), Some(2));
    assert_eq!(file.metadata_float("llama.rope.freq_base"), Some(1e4));
    assert_eq!(
        file.metadata_array("tokenizer.ggml.tokens").unwrap().len(),
        2
    );
    let Some(Weight::Floats(norm)) = file.read_weight("norm") else {
        panic!("floats stay floats");
    };
    assert_eq!(norm.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    let Some(Weight::Blocks { integers, scales }) = file.read_weight("eights") else {
        panic!("blocks stay blocks");
    };
    assert_eq!(integers.to_vec::<i8>().unwrap()[..3], [-16, -15, -14]);
    assert_eq!(scales.to_f64s().unwrap(), [1.0]);
    assert!(file.read_weight("none").is_none());
}

#[test]
fn blocks_of_four_bits_become_neighbours_with_signs() {
    let file = Gguf::read(&small()).unwrap();
    let Some(Weight::Blocks { integers, .. }) = file.read_weight("fours") else {
        panic!("blocks stay blocks");
    };
    let half = |at: usize| {
        let nibble = (integers.bytes()[at / 2] >> (4 * (at % 2))) & 15;
        (i32::from(nibble) ^ 8) - 8
    };
    let values: Vec<i32> = (0..32).map(half).collect();
    let expected: Vec<i32> = (0..16)
        .map(|it| it - 8)
        .chain((0..16).map(|it| 7 - it))
        .collect();
    assert_eq!(values, expected);
}

#[test]
fn what_is_put_into_eight_bits_has_the_sizes_it_had() {
    let file = Gguf::read(&small()).unwrap();
    for kind in PACKED {
        let Some(Weight::Blocks { integers, scales }) = file.read_weight(&format!("packed.{kind}"))
        else {
            panic!("blocks become blocks");
        };
        let (numbers, _) = BlockKind::from_number(kind).unwrap().block_layout();
        assert_eq!(integers.dtype(), DType::I8);
        assert_eq!(integers.dims(), [2, numbers]);
        assert_eq!(scales.dims(), [2, numbers / BLOCK]);
    }
}

#[test]
fn a_row_of_a_part_of_a_super_block_is_refused() {
    let mut writer = Writer::default();
    writer.tensor("w", 12, &[2, 128], &[0; 144]);
    let refused = Gguf::read(&writer.finish()).unwrap_err();
    assert_eq!(
        refused,
        GgufError::Sizes {
            name: "w".to_owned()
        }
    );
}

#[test]
fn types_that_are_not_read_are_refused_by_name() {
    let refused = |kind: u32| {
        let mut writer = Writer::default();
        writer.tensor("w", kind, &[1, 256], &[0; 256]);
        Gguf::read(&writer.finish()).unwrap_err().to_string()
    };
    assert!(refused(16).contains("has type iq2_xxs"), "{}", refused(16));
    assert!(refused(39).contains("has type mxfp4"));
    assert!(refused(4000).contains("4000"));
    let version = Gguf::read(&Bytes::from_static(b"GGUF\x01\0\0\0")).unwrap_err();
    assert_eq!(version, GgufError::Version(1));
    assert_eq!(
        Gguf::read(&Bytes::from_static(b"ONNX")).unwrap_err(),
        GgufError::Magic
    );
}

proptest! {
    #[test]
    fn a_file_cut_anywhere_is_refused(cut in 0usize..100_000) {
        let file = small();
        let cut = cut % file.len();
        prop_assert!(Gguf::read(&file.slice(..cut)).is_err());
    }

    #[test]
    fn no_byte_makes_it_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8)) {
        let mut file = small().to_vec();
        for (at, byte) in changes {
            let at = at % file.len();
            file[at] = byte;
        }
        if let Ok(read) = Gguf::read(&file.into()) {
            for name in read.tensor_names().map(str::to_owned).collect::<Vec<_>>() {
                let weight = read.read_weight(&name);
                prop_assert!(weight.is_some());
            }
        }
    }
}

/// A text that is longer than the file is refused as too long, or as cut short.
#[test]
fn a_file_beyond_bounds_is_refused_by_name() {
    let header = |tensors: u64, entries: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        bytes
    };
    let refused = |bytes: Vec<u8>| Gguf::read(&bytes.into()).unwrap_err().to_string();
    let many = "the GGUF file has more than 65536";
    assert_eq!(refused(header(u64::MAX, 0)), format!("{many} tensors"));
    assert_eq!(refused(header(0, 1 << 40)), format!("{many} entries"));
    let mut array = header(0, 1);
    array.extend(1u64.to_le_bytes());
    array.extend(b"k");
    array.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    array.extend(u64::MAX.to_le_bytes());
    array.extend(vec![0; 2_000_000]);
    assert_eq!(refused(array), "the GGUF file has more than 1572864 values");
    let mut text = header(0, 1);
    text.extend(u64::MAX.to_le_bytes());
    assert!(refused(text).ends_with("bytes of texts"));
}

/// A part with one tensor of these.
fn part(name: &str, count: u32, tensors: u32) -> Gguf {
    let mut writer = Writer::default();
    writer.number("split.count", count);
    writer.number("split.tensors.count", tensors);
    writer.tensor(name, 0, &[1], &1.0f32.to_le_bytes());
    Gguf::read(&writer.finish()).unwrap()
}

#[test]
fn the_parts_of_a_file_are_one() {
    let whole = part("a", 2, 2).join_parts(vec![part("b", 2, 2)]).unwrap();
    assert_eq!((whole.part_count(), whole.tensor_names().count()), (2, 2));
    assert!(
        ["a", "b"]
            .iter()
            .all(|name| whole.read_weight(name).is_some())
    );
    let refused = part("a", 2, 2).join_parts(Vec::new()).unwrap_err();
    assert_eq!(
        refused,
        GgufError::Parts {
            stated: 2,
            found: 1
        }
    );
    let refused = part("a", 2, 2)
        .join_parts(vec![part("a", 2, 2)])
        .unwrap_err();
    assert_eq!(refused, GgufError::Twice("a".to_owned()));
}
