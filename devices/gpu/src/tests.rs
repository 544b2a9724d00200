//! Tests the GPU backend on any adapter of this machine (in CI Mesa's lavapipe): results must agree
//! with those of the same graphs in 64-bit floats on the CPU, for random shapes and values.

#[cfg(all(feature = "cuda", target_os = "linux"))]
mod card;
mod chains;
mod doubles;
mod every;
mod halves;
mod hangs;
#[cfg(feature = "cuda")]
pub(crate) mod paper;
mod quantised;
mod residents;
mod scatters;
mod texts;
mod wholes;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use souk_cpu::Cpu;
use souk_memory::{Bf16, DType, F16, Shape, Tensor};
use souk_onnx::AttributeProto;
use souk_testing::literals::{odd_activations, odd_pools};
use souk_testing::{model, node, subgraph};
use souk_vocabulary::processor::RunError;

use super::*;

/// Relative to the largest element of inputs and result: 32-bit sums of a few hundred terms, and
/// the few bits that WGSL lets `exp`, `log`, `sin` and division be off.
const TOLERANCE: f64 = 2e-5;
/// The same for inverse trigonometric functions and tangents, which WGSL bounds loosely.
const TOLERANCE_LOOSE: f64 = 5e-4;

/// The CPU that results are held against.
fn cpu() -> Cpu {
    Cpu::new(souk_testing::cpu_profile(), NonZeroUsize::MIN)
}

/// The device of [`open`] that most tests share.
fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    said(GPU.get_or_init(|| opened(GpuConfig::default())).as_ref())
}

/// Each test that has no adapter says so.
fn said<G>(gpu: Option<G>) -> Option<G> {
    if gpu.is_none() {
        eprintln!("SKIPPED: no GPU adapter (install mesa-vulkan-drivers)");
    }
    gpu
}

/// A device of a test's own: through CUDA the card whose number `SOUK_TEST_CUDA` is, else the first
/// adapter. Without one these tests pass, saying so, unless `SOUK_TEST_GPU` is set.
fn open(config: GpuConfig) -> Option<Gpu> {
    said(opened(config))
}

fn opened(config: GpuConfig) -> Option<Gpu> {
    #[cfg(feature = "cuda")]
    if let Ok(card) = std::env::var("SOUK_TEST_CUDA") {
        let ordinal = card.parse().expect("SOUK_TEST_CUDA is a card's number");
        return Some(crate::card::open_card(ordinal, config).unwrap());
    }
    let adapters = list_adapters();
    let Some(adapter) = adapters.first() else {
        assert!(
            std::env::var_os("SOUK_TEST_GPU").is_none(),
            "SOUK_TEST_GPU is set and there is no adapter"
        );
        return None;
    };
    Some(Gpu::open_unmeasured(adapter, config).unwrap())
}

/// A GPU whose kernels are translated for CUDA, compiled for it, and run on the CPU.
#[cfg(feature = "cuda")]
fn on_paper() -> Option<&'static Gpu> {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    if !souk_testing::host::has_compiler() {
        eprintln!("SKIPPED: no C++ compiler for kernels translated for CUDA");
        return None;
    }
    let open = || {
        let profile = cpu().profile().clone();
        let (name, driver) = ("paper".to_owned(), driver::Driver::Paper);
        let time_max = std::time::Duration::MAX;
        let context = Context::new(name, driver, u64::MAX, time_max, Arc::default());
        Gpu::from_context(profile, context, souk_vocabulary::links::host_copy_path())
    };
    Some(GPU.get_or_init(open))
}

fn tensor(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    let count = dims.iter().product::<usize>();
    let values = values.iter().cycle().take(count);
    match dtype {
        DType::F32 => Tensor::from_vec(dims, values.map(|&it| it as f32).collect::<Vec<_>>()),
        DType::F16 => {
            let halves = values.map(|&it| F16::from_f32(it as f32));
            Tensor::from_vec(dims, halves.collect::<Vec<_>>())
        }
        DType::Bf16 => {
            let halves = values.map(|&it| Bf16::from_f32(it as f32));
            Tensor::from_vec(dims, halves.collect::<Vec<_>>())
        }
        _ => Tensor::from_vec(
            dims,
            values.map(|&it| f64::from(it as f32)).collect::<Vec<_>>(),
        ),
    }
    .unwrap()
}

/// Runs a node whose first inputs are floats and whose others are weights.
fn run(
    device: &dyn Processor,
    node: &NodeProto,
    dtype: DType,
    inputs: &[(Vec<usize>, Vec<f64>)],
    weights: &[(&str, Tensor)],
) -> Result<Tensor, RunError> {
    let given: BTreeMap<String, Tensor> = node
        .input
        .iter()
        .zip(inputs)
        .map(|(name, (dims, values))| (name.clone(), tensor(dtype, dims, values)))
        .collect();
    let ports: Vec<(&str, DType)> = node
        .input
        .iter()
        .take(inputs.len())
        .map(|name| (name.as_str(), dtype))
        .collect();
    let proto = model(vec![node.clone()], &ports, &[("y", dtype)], weights);
    let program = device.compile(&subgraph(&proto)).unwrap();
    let mut outcome = program.run(&given)?;
    Ok(outcome.outputs.remove("y").unwrap())
}

/// The nearest values that a type has.
fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    let round = |&value: &f64| match dtype {
        DType::F16 => f64::from(F16::from_f32(value as f32).to_f32()),
        DType::Bf16 => f64::from(Bf16::from_f32(value as f32).to_f32()),
        _ => f64::from(value as f32),
    };
    values.iter().map(round).collect()
}

/// The GPU in 32 and 16 bits agrees with the CPU in 64, element by element.
fn agrees(
    node: &NodeProto,
    inputs: &[(Vec<usize>, Vec<f64>)],
    weights: &[(&str, Tensor)],
    tolerance: f64,
) -> Result<(), TestCaseError> {
    #[cfg(feature = "cuda")]
    if let Some(paper) = on_paper() {
        agrees_in_all_types(paper, node, inputs, weights, tolerance)?;
    }
    match gpu() {
        Some(gpu) => agrees_in_all_types(gpu, node, inputs, weights, tolerance),
        None => Ok(()),
    }
}

/// Whether the device is a card reached through CUDA.
fn on_card() -> bool {
    std::env::var_os("SOUK_TEST_CUDA").is_some()
}

fn agrees_in_all_types(
    gpu: &Gpu,
    node: &NodeProto,
    inputs: &[(Vec<usize>, Vec<f64>)],
    weights: &[(&str, Tensor)],
    tolerance: f64,
) -> Result<(), TestCaseError> {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let inputs: Vec<(Vec<usize>, Vec<f64>)> = inputs
            .iter()
            .map(|(dims, values)| (dims.clone(), rounded(dtype, values)))
            .collect();
        // What is moved keeps its bits; what is computed is rounded once, and a maker's library
        // rounds a product before what is added to it.
        let is_twice = on_card() && node.op_type() == "Gemm";
        let times = if is_twice { 2.0 } else { 1.0 };
        let rounding = match dtype {
            _ if tolerance == 0.0 => 0.0,
            DType::F16 => 1.0 / 2048.0,
            DType::Bf16 => 1.0 / 256.0,
            _ => 0.0,
        };
        let tolerance = tolerance + times * rounding;
        agrees_on(gpu, node, &inputs, weights, tolerance, dtype)?;
    }
    Ok(())
}

fn agrees_on(
    gpu: &Gpu,
    node: &NodeProto,
    inputs: &[(Vec<usize>, Vec<f64>)],
    weights: &[(&str, Tensor)],
    tolerance: f64,
    dtype: DType,
) -> Result<(), TestCaseError> {
    let found = run(gpu, node, dtype, inputs, weights).unwrap();
    let expected = run(&cpu(), node, DType::F64, inputs, weights).unwrap();
    prop_assert_eq!(found.dims(), expected.dims());
    let (found, expected) = (found.to_f64s().unwrap(), expected.to_f64s().unwrap());
    let operands = inputs.iter().flat_map(|(_, values)| values);
    let finite = expected.iter().chain(operands).copied();
    let finite = finite.filter(|value| value.is_finite());
    let largest = finite.fold(1e-30, |largest: f64, value| largest.max(value.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        let near = (found - expected).abs() <= tolerance * largest;
        let operator = node.op_type();
        prop_assert!(
            same || near,
            "{operator} in {dtype} {inputs:?}: {found} {expected}"
        );
    }
    Ok(())
}

fn with(mut node: NodeProto, name: &str, fill: impl FnOnce(&mut AttributeProto)) -> NodeProto {
    let mut attribute = AttributeProto {
        name: Some(name.to_owned()),
        ..AttributeProto::default()
    };
    fill(&mut attribute);
    node.attribute.push(attribute);
    node
}

fn with_int(node: NodeProto, name: &str, value: i64) -> NodeProto {
    with(node, name, |attribute| attribute.i = Some(value))
}

fn with_ints(node: NodeProto, name: &str, values: &[i64]) -> NodeProto {
    with(node, name, |attribute| attribute.ints = values.to_vec())
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-4.0..4.0, 1..40)
}

fn check<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config {
        cases: 24,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config).run(&strategy, test).unwrap();
}

#[test]
fn functions_of_one_element_are_those_of_onnx() {
    let names = [
        "Abs",
        "Ceil",
        "Cos",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Mish",
        "Neg",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Tanh",
        "Celu",
        "ThresholdedRelu",
    ];
    for name in names {
        let node = node(name, &["x"], &["y"]);
        check(values(), |it| {
            agrees(&node, &[(vec![it.len()], it)], &[], TOLERANCE)
        });
    }
    for name in ["Sinh", "Cosh", "Asinh", "Atan"] {
        let node = node(name, &["x"], &["y"]);
        check(values(), |it| {
            agrees(&node, &[(vec![it.len()], it)], &[], TOLERANCE_LOOSE)
        });
    }
}

#[test]
fn functions_of_two_elements_broadcast() {
    let shapes = (1usize..5, 1usize..5, 1usize..5);
    for name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"] {
        let node = node(name, &["a", "b"], &["y"]);
        check((shapes.clone(), values(), values()), |((n, c, w), a, b)| {
            // Divisors stay away from 0, where the tolerance has no meaning.
            let b: Vec<f64> = b.iter().map(|it| it + 0.5 * it.signum()).collect();
            let wide = (vec![n, c, w], a.clone());
            agrees(
                &node,
                &[wide.clone(), (vec![c, 1], b.clone())],
                &[],
                TOLERANCE,
            )?;
            agrees(&node, &[wide, (vec![], b)], &[], TOLERANCE)
        });
    }
}

#[test]
fn products_of_any_shape_are_right() {
    let sides = (1usize..3, 1usize..80, 1usize..40, 1usize..80);
    check((sides, values(), values()), |((z, m, k, n), a, b)| {
        let product = node("MatMul", &["a", "b"], &["y"]);
        let left = (vec![z, m, k], a);
        agrees(
            &product,
            &[left.clone(), (vec![k, n], b.clone())],
            &[],
            TOLERANCE,
        )?;
        let added = node("Gemm", &["a", "b", "c"], &["y"]);
        let added = with_int(added, "transB", 1);
        let matrices = [(vec![m, k], left.1), (vec![n, k], b.clone()), (vec![n], b)];
        agrees(&added, &matrices, &[], TOLERANCE)
    });
}

#[test]
fn convolutions_of_any_window_are_right() {
    let sizes = (1usize..3, 1usize..4, 1usize..12, 5usize..9, 1usize..4);
    check(
        (sizes, 1i64..3, values(), values()),
        |((n, c, m, side, k), stride, x, w)| {
            let window = |node| {
                let pads = [(k / 2) as i64; 4];
                with_ints(with_ints(node, "strides", &[stride; 2]), "pads", &pads)
            };
            let conv = window(node("Conv", &["x", "w", "b"], &["y"]));
            let image = (vec![n, c, side, side + 1], x);
            let weights = (vec![m, c, k, k], w.clone());
            let bias = (vec![m], w.clone());
            agrees(&conv, &[image.clone(), weights, bias], &[], TOLERANCE)?;
            let depthwise = window(node("Conv", &["x", "w"], &["y"]));
            let depthwise = with_int(depthwise, "group", c as i64);
            let weights = (vec![c, 1, k, k], w.clone());
            agrees(&depthwise, &[image.clone(), weights], &[], TOLERANCE)?;
            let spread = window(node("ConvTranspose", &["x", "w"], &["y"]));
            let weights = (vec![c, m, k, k], w);
            agrees(&spread, &[image.clone(), weights], &[], TOLERANCE)?;
            for pool in ["MaxPool", "AveragePool"] {
                let pool = with_ints(
                    window(node(pool, &["x"], &["y"])),
                    "kernel_shape",
                    &[k as i64; 2],
                );
                agrees(&pool, std::slice::from_ref(&image), &[], TOLERANCE)?;
            }
            Ok(())
        },
    );
}

#[test]
fn reductions_and_normalisations_go_over_any_axis() {
    let sizes = (1usize..4, 1usize..200, 1usize..4);
    let names = [
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    ];
    check((sizes, -3i64..3, values()), |((n, c, w), axis, x)| {
        let input = [(vec![n, c, w], x.clone())];
        for name in names {
            let axes = Tensor::from_vec([1], vec![axis]).unwrap();
            let node = node(name, &["x", "axes"], &["y"]);
            agrees(&node, &input, &[("axes", axes)], TOLERANCE)?;
        }
        for name in ["Softmax", "LogSoftmax"] {
            let node = with_int(node(name, &["x"], &["y"]), "axis", axis);
            agrees(&node, &input, &[], TOLERANCE)?;
        }
        let node = node("InstanceNormalization", &["x", "s", "b"], &["y"]);
        let scales = (vec![c], x);
        let inputs = [input[0].clone(), scales.clone(), scales];
        // A variance near 0 makes any rounding large.
        if w > 1 && input[0].1.len() > 3 {
            agrees(&node, &inputs, &[], TOLERANCE_LOOSE)?;
        }
        Ok(())
    });
}

#[test]
fn moves_change_no_element() {
    let sizes = (1usize..4, 1usize..5, 1usize..6);
    check((sizes, -2i64..3, values()), |((n, c, w), pad, x)| {
        let input = [(vec![n, c, w], x)];
        let exact =
            |node: &NodeProto, weights: &[(&str, Tensor)]| agrees(node, &input, weights, 0.0);
        let list = |values: &[i64]| Tensor::from_vec([values.len()], values.to_vec()).unwrap();
        let turned = node("Transpose", &["x"], &["y"]);
        exact(&with_ints(turned, "perm", &[2, 0, 1]), &[])?;
        let back = node("Slice", &["x", "s", "e", "a", "t"], &["y"]);
        let bounds = [
            ("s", list(&[-1])),
            ("e", list(&[i64::MIN])),
            ("a", list(&[-1])),
            ("t", list(&[-2])),
        ];
        exact(&back, &bounds)?;
        exact(
            &node("Tile", &["x", "r"], &["y"]),
            &[("r", list(&[2, 1, 3]))],
        )?;
        let shape = [("s", list(&[2, n as i64, 1, w as i64]))];
        if c == 1 {
            exact(&node("Expand", &["x", "s"], &["y"]), &shape)?;
        }
        let pads = [("p", list(&[0, 1, pad.max(-(w as i64)), 2, 0, 1]))];
        exact(&node("Pad", &["x", "p"], &["y"]), &pads)?;
        let indices = [("i", list(&[0, -1, 0]))];
        let gather = with_int(node("Gather", &["x", "i"], &["y"]), "axis", 1);
        exact(&gather, &indices)
    });
}

#[test]
fn attention_sees_what_it_may() {
    let sizes = (
        1usize..3,
        1usize..3,
        1usize..3,
        1usize..20,
        1usize..150,
        1usize..20,
    );
    check(
        (sizes, 0i64..2, values()),
        |((n, heads, group, q, k, d), causal, x)| {
            let attention = node("Attention", &["q", "k", "v"], &["y"]);
            let attention = with_int(attention, "is_causal", causal);
            let inputs = [
                (vec![n, heads * group, q, d], x.clone()),
                (vec![n, heads, k, d], x.iter().rev().copied().collect()),
                (vec![n, heads, k, d + 1], x),
            ];
            agrees(&attention, &inputs, &[], TOLERANCE_LOOSE)
        },
    );
}

#[test]
fn no_number_and_infinities_pass_through() {
    let odd = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0];
    let names = [
        "Abs", "Exp", "Gelu", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh", "Floor", "Log",
    ];
    for name in names {
        let input = [(vec![odd.len()], odd.clone())];
        agrees(&node(name, &["x"], &["y"]), &input, &[], TOLERANCE).unwrap();
    }
    let pairs = [(vec![6, 1], odd.clone()), (vec![6], odd)];
    for name in ["Add", "Mul", "Max", "Min"] {
        agrees(&node(name, &["a", "b"], &["y"]), &pairs, &[], TOLERANCE).unwrap();
    }
}

#[test]
fn no_number_goes_through_pools_and_activations() {
    let devices = [
        gpu(),
        #[cfg(feature = "cuda")]
        on_paper(),
    ];
    for literal in odd_pools().iter().chain(&odd_activations()) {
        for device in devices.into_iter().flatten() {
            literal.holds_on(device, &literal.build_subgraph());
        }
    }
}

#[test]
fn every_half_is_widened_and_every_float_rounded_as_the_cpu_does() {
    let cast = |from: DType, to: DType, bytes: Vec<u8>| {
        let node = with_int(node("Cast", &["x"], &["y"]), "to", to.onnx_code().into());
        let proto = model(vec![node], &[("x", from)], &[("y", to)], &[]);
        let shape = Shape::new(vec![bytes.len() * 8 / from.bit_width()]).unwrap();
        let x = Tensor::new(from, shape, bytes.into()).unwrap();
        let given = BTreeMap::from([("x".to_owned(), x)]);
        let graph = subgraph(&proto);
        let made = |device: &dyn Processor| {
            let mut outcome = device.compile(&graph).unwrap().run(&given).unwrap();
            outcome.outputs.remove("y").unwrap().to_f64s().unwrap()
        };
        let expected = made(&cpu());
        let devices = [
            gpu(),
            #[cfg(feature = "cuda")]
            on_paper(),
        ];
        for device in devices.into_iter().flatten() {
            let found = made(device);
            assert_eq!(found.len(), expected.len());
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let same = found.to_bits() == expected.to_bits();
                let same = same || (found.is_nan() && expected.is_nan());
                assert!(same, "{from} to {to}, element {at}: {found:e} {expected:e}");
            }
        }
    };
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    // Floats about every half: below, between, at and above the middle to the next one.
    let near = |widen: fn(u16) -> f32, step: u32| -> Vec<u8> {
        let around = |half: u16| {
            let bits = widen(half).to_bits();
            [0, step / 2 - 1, step / 2, step / 2 + 1, step - 1].map(|more| bits.wrapping_add(more))
        };
        (0..=u16::MAX)
            .flat_map(around)
            .flat_map(u32::to_le_bytes)
            .collect()
    };
    cast(DType::F16, DType::F32, all.clone());
    cast(DType::Bf16, DType::F32, all.clone());
    cast(DType::F16, DType::Bf16, all);
    cast(DType::F32, DType::F16, near(|it| F16(it).to_f32(), 1 << 13));
    cast(
        DType::F32,
        DType::Bf16,
        near(|it| Bf16(it).to_f32(), 1 << 16),
    );
}

#[test]
fn nothing_is_made_of_nothing() {
    for dims in [vec![0, 3], vec![2, 0], vec![1]] {
        let input = [(dims, vec![1.0])];
        agrees(&node("Exp", &["x"], &["y"]), &input, &[], TOLERANCE).unwrap();
    }
    let matrices = [(vec![2, 0], vec![1.0]), (vec![0, 3], vec![1.0])];
    agrees(&node("MatMul", &["a", "b"], &["y"]), &matrices, &[], 0.0).unwrap();
}

#[test]
fn what_is_not_declared_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let refused = |operator: &str, dtype| {
        let proto = model(
            vec![node(operator, &["x"], &["y"])],
            &[("x", dtype)],
            &[("y", dtype)],
            &[],
        );
        gpu.compile(&subgraph(&proto)).err().unwrap().to_string()
    };
    let unknown = refused("Det", DType::F32);
    assert!(
        unknown.contains("Det") && unknown.contains("no such operator"),
        "{unknown}"
    );
    let wide = refused("MatMul", DType::F64);
    assert!(wide.contains("MatMul") && wide.contains("f64"), "{wide}");
}

#[test]
fn a_value_beyond_the_memory_is_named() {
    let config = GpuConfig {
        memory_bytes_max: Some(1 << 20),
        ..GpuConfig::default()
    };
    let Some(small) = open(config) else { return };
    let node = node("Relu", &["x"], &["y"]);
    let input = [(vec![1 << 20], vec![1.0])];
    let error = run(&small, &node, DType::F32, &input, &[]).unwrap_err();
    assert!(matches!(error, RunError::OutOfMemory { .. }), "{error}");
    // What fits still runs.
    assert!(run(&small, &node, DType::F32, &[(vec![4], vec![1.0])], &[]).is_ok());
}

#[test]
fn weights_beyond_the_memory_are_refused_before_anything_runs() {
    let config = GpuConfig {
        memory_bytes_max: Some(1 << 20),
        ..GpuConfig::default()
    };
    let Some(small) = open(config) else { return };
    assert_eq!(
        small.profile().memory.bytes,
        1 << 20,
        "what is stated of it"
    );
    assert_eq!(small.memory_free_bytes(), 1 << 20);
    let weight = tensor(DType::F32, &[1024, 1024], &[1.0]);
    let product = model(
        vec![node("MatMul", &["x", "w"], &["y"])],
        &[("x", DType::F32)],
        &[("y", DType::F32)],
        &[("w", weight)],
    );
    let refused = small.compile(&subgraph(&product)).err().unwrap();
    let said = refused.to_string();
    let CompileError::OutOfMemory {
        device,
        bytes,
        free,
    } = refused
    else {
        panic!("{said}");
    };
    assert_eq!((device, bytes), (small.profile().model.clone(), 4 << 20));
    assert!(free <= 1 << 20 && said.contains("4194304"), "{said}");
    assert_eq!(small.context.used_bytes(), 0, "nothing stays there");
}

#[test]
fn a_device_that_hung_takes_nothing_more() {
    let Some(gpu) = open(GpuConfig::default()) else {
        return;
    };
    let hung = gpu.context.give_up().into_run_error("the device", None);
    assert!(matches!(hung, RunError::Hung { .. }), "{hung}");
    let relu = node("Relu", &["x"], &["y"]);
    let error = run(&gpu, &relu, DType::F32, &[(vec![4], vec![1.0])], &[]).unwrap_err();
    assert!(matches!(error, RunError::DeviceLost { .. }), "{error}");
}

#[test]
fn memory_is_given_back_and_used_again() {
    let Some(gpu) = open(GpuConfig::default()) else {
        return;
    };
    let node = node("Relu", &["x"], &["y"]);
    for _ in 0..3 {
        run(&gpu, &node, DType::F32, &[(vec![1000], vec![1.0])], &[]).unwrap();
        assert_eq!(gpu.context.used_bytes(), 0);
    }
}

#[test]
fn what_a_kernel_takes_to_be_compiled_is_no_work() {
    let Some(gpu) = open(GpuConfig::default()) else {
        return;
    };
    let (from, to) = (("x", DType::F32), ("y", DType::F32));
    let nodes = vec![node("Relu", &["x"], &["y"])];
    let program = gpu.compile(&subgraph(&model(nodes, &[from], &[to], &[])));
    let (program, before) = (program.unwrap(), gpu.context.compiled_for());
    let inputs = BTreeMap::from([("x".to_owned(), tensor(DType::F32, &[1000], &[1.0]))]);
    let started = std::time::Instant::now();
    let first = program.run(&inputs).unwrap().busy;
    let (took, compiled) = (started.elapsed(), gpu.context.compiled_for() - before);
    assert!(!compiled.is_zero() && first + compiled <= took);
    program.run(&inputs).unwrap();
    assert_eq!(gpu.context.compiled_for(), before + compiled, "it is kept");
}

/// A kernel that doubles what it is given.
const DOUBLE: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) at: vec3<u32>) { y[at.x] = x[at.x] + x[at.x]; }";

/// A graph whose middle node is a buyer's kernel over `x` of any shape in one dimension.
fn kernel_graph(source: &str, shapes: &'static str) -> Subgraph {
    let source = source.replace("size(4)", "size(64)").into_bytes();
    let kernel = Tensor::from_vec([source.len()], source).unwrap();
    let custom = souk_testing::custom_node("Wgsl", &["kernel", "a"], &["b"], &[1]);
    let custom = with(custom, "output_shapes", |attribute| {
        attribute.strings = vec![bytes::Bytes::from_static(shapes.as_bytes())];
    });
    let nodes = vec![
        node("Neg", &["x"], &["a"]),
        custom,
        node("Neg", &["b"], &["y"]),
    ];
    let (x, y) = (("x", DType::F32), ("y", DType::F32));
    subgraph(&model(nodes, &[x], &[y], &[("kernel", kernel)]))
}

#[test]
fn a_buyers_kernel_runs_among_other_nodes() {
    let Some(gpu) = gpu() else { return };
    let program = gpu.compile(&kernel_graph(DOUBLE, "i0.0")).unwrap();
    for count in [1, 6, 200] {
        let given: Vec<f32> = (0..count).map(|at| at as f32 - 2.5).collect();
        let x = Tensor::from_vec([given.len()], given.clone()).unwrap();
        let made = program.run(&BTreeMap::from([("x".to_owned(), x)])).unwrap();
        let wanted: Vec<f32> = given.iter().map(|value| value * 2.0).collect();
        assert_eq!(made.outputs["y"].to_vec::<f32>().unwrap(), wanted);
    }
    let idle = DOUBLE.replace(
        "y[at.x] =",
        "let unused = y[at.x]; if (x[0] < -9.0) { y[0] = 1.0; } let z =",
    );
    let program = gpu.compile(&kernel_graph(&idle, "i0.0")).unwrap();
    let x = tensor(DType::F32, &[6], &[1.0]);
    let made = program.run(&BTreeMap::from([("x".to_owned(), x)])).unwrap();
    let blank = made.outputs["y"].to_vec::<f32>().unwrap();
    assert_eq!(
        blank, [0.0; 6],
        "nothing of another run is left in an output"
    );
}

#[test]
fn a_kernel_among_nodes_is_refused_when_it_is_compiled() {
    let Some(gpu) = gpu() else { return };
    let refused = |source: &str, shapes| {
        let refused = gpu.compile(&kernel_graph(source, shapes)).err();
        refused.unwrap().to_string()
    };
    let broken = refused(&DOUBLE.replace("x[at.x]", "q[at.x]"), "i0.0");
    assert!(
        broken.contains("Wgsl_node") && broken.contains('q'),
        "{broken}"
    );
    let writes = "
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) at: vec3<u32>) { x[at.x] = 0.0; y[at.x] = x[at.x]; }";
    let written = refused(writes, "i0.0");
    assert!(written.contains("binding 0 is an input"), "{written}");
    let unshaped = refused(DOUBLE, "i0,0");
    assert!(unshaped.contains("output_shapes"), "{unshaped}");
    let huge = gpu
        .compile(&kernel_graph(DOUBLE, "i0.0,4000000000,4000000000"))
        .unwrap();
    let x = Tensor::from_vec([1], vec![1f32]).unwrap();
    let ended = huge
        .run(&BTreeMap::from([("x".to_owned(), x)]))
        .unwrap_err();
    assert!(ended.to_string().contains("Wgsl_node"), "{ended}");
}
