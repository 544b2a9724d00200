//! Tests WebAssembly kernels: the example computes the right result, each exceeded limit has an
//! error of its own, and the host refuses false statements of a module.

use proptest::prelude::*;
use souk_testing::median_kernel;

use super::*;

/// A kernel that runs `body`, after which its table of outputs is one tensor at 16: a float in one
/// dimension, its size at 64, its values at 128.
fn kernel(body: &str) -> Vec<u8> {
    module(&format!(
        r#"(func (export "souk_run") (param i32 i32) (result i32) {body} (i32.const 16))
        (data (i32.const 16) "\01\00\00\00" "\01\00\00\00" "\40\00\00\00" "\80\00\00\00")
        (data (i32.const 64) "\02\00\00\00\00\00\00\00")"#
    ))
}

fn module(rest: &str) -> Vec<u8> {
    let alloc = r#"(func (export "souk_alloc") (param i32) (result i32) (i32.const 4096))"#;
    wat::parse_str(format!(
        "(module (memory (export \"memory\") 1) {alloc} {rest})"
    ))
    .unwrap()
}

fn run(bytes: &[u8], limits: WasmLimits) -> Result<Vec<Tensor>, WasmError> {
    let input = Tensor::from_vec([2], vec![1.0f32, 2.0]).unwrap();
    Kernel::compile(bytes, limits)?.run(&[input], &[DType::F32])
}

/// What goes wrong with a kernel.
fn fault(bytes: &[u8], limits: WasmLimits) -> WasmError {
    run(bytes, limits).unwrap_err()
}

fn median_of(values: &[f32], row: usize) -> Vec<f32> {
    let mut made = values.to_vec();
    for (from, to) in values.chunks(row).zip(made.chunks_mut(row)) {
        for at in 1..row.saturating_sub(1) {
            let mut three = [from[at - 1], from[at], from[at + 1]];
            three.sort_by(f32::total_cmp);
            to[at] = three[1];
        }
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_example_takes_the_median_of_three(
        rows in 0usize..4,
        row in 1usize..70,
        seed in prop::collection::vec(-1e9f32..1e9, 300),
    ) {
        let values = seed[..rows * row].to_vec();
        let wanted = median_of(&values, row);
        let given = Tensor::from_vec([rows, row], values).unwrap();
        let kernel = Kernel::compile(&median_kernel(), WasmLimits::default()).unwrap();
        let made = kernel.run(std::slice::from_ref(&given), &[DType::F32]).unwrap();
        prop_assert_eq!(made[0].dims(), &[rows, row]);
        prop_assert_eq!(made[0].to_vec::<f32>().unwrap(), wanted);
    }

    #[test]
    fn damaged_modules_end_in_errors(
        places in prop::collection::vec((0usize..600, any::<u8>()), 1..4),
    ) {
        let mut bytes = median_kernel();
        for (place, byte) in places {
            let length = bytes.len();
            bytes[place % length] = byte;
        }
        let limits = WasmLimits {
            fuel: 100_000,
            memory_bytes: 4 << 20,
            output_bytes: 1 << 20,
            ..WasmLimits::default()
        };
        // Whatever the damage does, it does it again.
        prop_assert_eq!(run(&bytes, limits), run(&bytes, limits));
    }
}

#[test]
fn a_kernel_says_that_it_does_not_take_its_inputs() {
    let kernel = Kernel::compile(&median_kernel(), WasmLimits::default()).unwrap();
    let whole = Tensor::from_vec([2], vec![1i64, 2]).unwrap();
    let float = Tensor::from_vec([2], vec![1f32, 2.0]).unwrap();
    for inputs in [vec![], vec![whole], vec![float.clone(), float]] {
        assert_eq!(kernel.run(&inputs, &[DType::F32]), Err(WasmError::Refused));
    }
}

#[test]
fn what_is_no_number_has_one_form() {
    // Infinity less infinity, and a quiet one with a payload through an addition.
    let body = "(f32.store (i32.const 128) (f32.sub (f32.const inf) (f32.const inf)))
        (f32.store (i32.const 132) (f32.add (f32.const nan:0x412345) (f32.const 1)))";
    let made = run(&kernel(body), WasmLimits::default()).unwrap();
    let bits = made[0].to_vec::<f32>().unwrap();
    let bits: Vec<u32> = bits.iter().map(|it| it.to_bits()).collect();
    assert_eq!(bits, [0x7fc0_0000; 2]);
}

#[test]
fn nothing_is_left_of_a_run() {
    let body = "(f32.store (i32.const 128)
        (f32.add (f32.load (i32.const 128)) (f32.const 1)))";
    let kernel = Kernel::compile(&kernel(body), WasmLimits::default()).unwrap();
    for _ in 0..2 {
        let made = kernel.run(&[], &[DType::F32]).unwrap();
        assert_eq!(made[0].to_vec::<f32>().unwrap(), [1.0, 0.0]);
    }
}

#[test]
fn fuel_runs_out_by_name() {
    let limits = WasmLimits {
        fuel: 10_000,
        ..WasmLimits::default()
    };
    let limit = limits.fuel;
    assert_eq!(
        fault(&kernel("(loop (br 0))"), limits),
        WasmError::Fuel { limit }
    );
}

#[test]
fn time_runs_out_by_name() {
    let limits = WasmLimits {
        time: Duration::ZERO,
        fuel: u64::MAX,
        ..WasmLimits::default()
    };
    let limit = limits.time;
    assert_eq!(
        fault(&kernel("(loop (br 0))"), limits),
        WasmError::Time { limit }
    );
}

#[test]
fn memory_runs_out_by_name() {
    let limits = WasmLimits {
        memory_bytes: 1 << 20,
        ..WasmLimits::default()
    };
    let grows = kernel("(drop (memory.grow (i32.const 16)))");
    let (bytes, limit) = (17 << 16, limits.memory_bytes);
    assert_eq!(fault(&grows, limits), WasmError::Memory { bytes, limit });
    let enough = kernel("(drop (memory.grow (i32.const 15)))");
    assert!(run(&enough, limits).is_ok());
    let none = WasmLimits {
        memory_bytes: 100,
        ..limits
    };
    assert!(matches!(
        fault(&kernel(""), none),
        WasmError::Memory { limit: 100, .. }
    ));
    let table = module(
        "(table 200000 funcref) (func (export \"souk_run\") (param i32 i32) (result i32) (i32.const 0))",
    );
    assert!(matches!(fault(&table, limits), WasmError::Memory { .. }));
}

#[test]
fn too_much_output_is_refused_by_name() {
    let limits = WasmLimits {
        output_bytes: 4096,
        ..WasmLimits::default()
    };
    let large = kernel("(i64.store (i32.const 64) (i64.const 1025))");
    let (bytes, limit) = (4100, 4096);
    assert_eq!(fault(&large, limits), WasmError::Output { bytes, limit });
    let absurd = kernel("(i64.store (i32.const 64) (i64.const -1))");
    assert!(matches!(fault(&absurd, limits), WasmError::Shape(_)));
}

#[test]
fn a_recursion_without_end_traps() {
    let deep = module(
        "(func $deep (param i32 i32) (result i32) (i32.add (call $deep (local.get 0) (local.get 1))
            (i32.const 1))) (export \"souk_run\" (func $deep))",
    );
    let ended = fault(&deep, WasmLimits::default());
    assert!(matches!(ended, WasmError::Trap { .. }), "{ended}");
}

#[test]
fn a_kernel_that_points_elsewhere_is_refused() {
    let limits = WasmLimits::default();
    let body = "(i32.store (i32.const 28) (i32.const 0xfffffffc))";
    let (address, bytes) = (0xffff_fffc, 8);
    assert_eq!(
        fault(&kernel(body), limits),
        WasmError::Outside { address, bytes }
    );
    let table =
        module("(func (export \"souk_run\") (param i32 i32) (result i32) (i32.const 65530))");
    let (address, bytes) = (65_530, 16);
    assert_eq!(fault(&table, limits), WasmError::Outside { address, bytes });
    let rank = kernel("(i32.store (i32.const 20) (i32.const -1))");
    assert!(matches!(fault(&rank, limits), WasmError::Shape(_)));
}

#[test]
fn another_type_than_the_node_says_is_refused() {
    let body = "(i32.store (i32.const 16) (i32.const 7))";
    let (index, expected, found) = (0, DType::F32, 7);
    assert_eq!(
        fault(&kernel(body), WasmLimits::default()),
        WasmError::Type {
            index,
            expected,
            found
        }
    );
}

#[test]
fn what_is_no_kernel_is_refused_before_it_runs() {
    let refused = |bytes: &[u8]| fault(bytes, WasmLimits::default()).to_string();
    for bytes in [
        &b""[..],
        b"\0asm",
        b"MZ and more of the kind",
        &median_kernel()[..300],
    ] {
        assert!(refused(bytes).contains("malformed"), "{}", refused(bytes));
    }
    let clock = r#"(module (import "wasi_snapshot_preview1" "clock_time_get" (func))
        (memory (export "memory") 1))"#;
    let said = refused(&wat::parse_str(clock).unwrap());
    assert!(
        said.contains("wasi_snapshot_preview1.clock_time_get"),
        "{said}"
    );
    let bare = wat::parse_str("(module)").unwrap();
    assert!(refused(&bare).contains("memory"), "{}", refused(&bare));
    assert!(refused(&module("")).contains("souk_run"));
    let relaxed = module(
        "(func (result v128) (f32x4.relaxed_madd (v128.const i64x2 0 0) (v128.const i64x2 0 0)
            (v128.const i64x2 0 0)))",
    );
    assert!(
        refused(&relaxed).contains("relaxed"),
        "{}",
        refused(&relaxed)
    );
    let limits = WasmLimits {
        module_bytes: 100,
        ..WasmLimits::default()
    };
    assert!(matches!(
        fault(&median_kernel(), limits),
        WasmError::Long { limit: 100, .. }
    ));
}
