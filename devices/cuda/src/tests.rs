//! Tests the CUDA crate without a card: the errors if libraries are missing, the translation of
//! kernels and its refusals, and the layouts of operands.

use super::*;

#[test]
fn what_is_absent_is_named() {
    // A machine with a card says so instead, by listing it.
    match list_devices() {
        Ok(devices) => assert!(!devices.is_empty(), "a driver that lists nothing says why"),
        Err(error @ CudaError::Absent(_)) => {
            let said = error.to_string();
            assert!(
                said.contains("absent") && said.contains("not found"),
                "{said}"
            );
        }
        Err(CudaError::Driver { reason }) => assert!(!reason.is_empty()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_is_not_translated_is_refused_by_name() {
    let kernel = |lines: &str| format!("{lines}\n@compute @workgroup_size(1) fn main() {{}}");
    let refused = |lines: &str| {
        emit::translate_kernel(&kernel(lines))
            .unwrap_err()
            .to_string()
    };
    let counted = "@group(0) @binding(0) var<storage, read_write> a: array<atomic<u32>>;";
    assert!(refused(counted).contains("arrays but of numbers"));
    let shaped = "struct S { a: u32 } @group(0) @binding(0) var<storage> s: S;";
    assert!(refused(shaped).contains("no arrays"), "{}", refused(shaped));
    assert!(refused("fn f() { not wgsl }").contains("not"));
    let entry = emit::translate_kernel("fn f() {}").unwrap_err();
    assert_eq!(entry, emit::EmitError::Entry);
}

#[test]
fn arrays_are_taken_by_their_bindings() {
    let kernel = "@group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @compute @workgroup_size(8, 4) fn main(@builtin(global_invocation_id) i: vec3<u32>) {
          y[i.x] = x[i.x];
        }";
    let translated = emit::translate_kernel(kernel).unwrap();
    let bound = |binding, is_written| emit::BoundArray {
        binding,
        is_written,
    };
    assert_eq!(translated.arrays, [bound(0, false), bound(1, true)]);
    assert_eq!(translated.threads, [8, 4, 1]);
}

#[test]
fn batches_that_lie_evenly_have_one_stride() {
    assert_eq!(even_stride(&[], &[]), Some(0));
    assert_eq!(even_stride(&[4], &[6]), Some(6));
    assert_eq!(even_stride(&[4, 3], &[18, 6]), Some(6));
    assert_eq!(even_stride(&[4, 1, 3], &[18, 0, 6]), Some(6));
    assert_eq!(even_stride(&[4, 3], &[0, 0]), Some(0), "one matrix for all");
    assert_eq!(
        even_stride(&[4, 3], &[0, 6]),
        None,
        "repeated over the outer"
    );
    assert_eq!(
        even_stride(&[4, 3], &[6, 0]),
        None,
        "repeated over the inner"
    );
}

#[test]
fn operands_are_read_by_the_way_they_lie() {
    let of = ((), souk_memory::DType::F32);
    let side = |steps| Side::read(of, steps, 0).map(|side| (side.is_transposed, side.pitch));
    assert_eq!(side((7, 1)), Some((false, 7)));
    assert_eq!(side((1, 7)), Some((true, 7)));
    assert_eq!(side((2, 3)), None);
}
