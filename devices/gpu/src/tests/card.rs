//! Tests souk's CUDA backend without a card: a process finds the fake CUDA libraries of
//! `devices/testing/src/fake.cpp` before any other, and the test checks which functions souk calls,
//! in which order and with which memory.

use std::collections::BTreeMap;

use souk_cuda as cuda;
use souk_memory::paths::PathKind;
use souk_memory::{DType, F16, Shape, Tensor};
use souk_onnx::{NodeProto, StringStringEntryProto};
use souk_testing::card::{LOG, run_with_log};
use souk_testing::{model, node, subgraph, with_int};
use souk_vocabulary::processor::{Processor, Program};
use souk_vocabulary::residency::{DeviceMemory, Resident, TensorHandle};

use super::cpu;
use crate::{Gpu, GpuConfig};

fn some(dims: &[usize], seed: f32) -> Tensor {
    let count: usize = dims.iter().product();
    let value = |at: usize| (at as f32 * 0.37 + seed).sin();
    Tensor::from_vec(dims, (0..count).map(value).collect::<Vec<f32>>()).unwrap()
}

fn halves(tensor: &Tensor) -> Tensor {
    let values = tensor.to_vec::<f32>().unwrap().into_iter();
    let values: Vec<F16> = values.map(F16::from_f32).collect();
    Tensor::from_vec(tensor.dims().to_vec(), values).unwrap()
}

/// Runs a graph from `x` to `y` so many times and compares it with the CPU.
fn agrees(
    card: &dyn Processor,
    nodes: &[NodeProto],
    x: &Tensor,
    weights: &[(&str, Tensor)],
    runs: usize,
) {
    let (dtype, tolerance) = match x.dtype() {
        DType::F16 => (DType::F16, 2e-3),
        dtype => (dtype, 2e-5),
    };
    let (from, to) = (("x", dtype), ("y", dtype));
    let graph = subgraph(&model(nodes.to_vec(), &[from], &[to], weights));
    let given = BTreeMap::from([("x".to_owned(), x.clone())]);
    let expected = cpu().compile(&graph).unwrap().run(&given).unwrap();
    let expected = expected.outputs["y"].to_f64s().unwrap();
    let largest = expected
        .iter()
        .fold(1.0, |most: f64, it| most.max(it.abs()));
    let program = card.compile(&graph).unwrap();
    for _ in 0..runs {
        let made = program.run(&given).unwrap();
        let found = made.outputs["y"].to_f64s().unwrap();
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let near = (found - expected).abs() <= tolerance * largest;
            assert!(near, "element {at}: {found} {expected}");
        }
    }
}

/// A product of `x` with weights, a bias and a function after it.
fn layer(last: &str) -> [NodeProto; 3] {
    [
        node("MatMul", &["x", "w"], &["p"]),
        node("Add", &["p", "b"], &["q"]),
        node(last, &["q"], &["y"]),
    ]
}

/// A product of 8-bit floats as exporters write it: what is quantised is given back at once.
fn quarters() -> [NodeProto; 5] {
    [
        node("QuantizeLinear", &["x", "s", "z"], &["a"]),
        node("DequantizeLinear", &["a", "s"], &["c"]),
        node("DequantizeLinear", &["v", "t"], &["d"]),
        node("MatMul", &["c", "d"], &["p"]),
        node("Relu", &["p"], &["y"]),
    ]
}

fn quarter_weights(depth: usize, columns: usize) -> [(&'static str, Tensor); 4] {
    let bytes = |dims: &[usize], step: usize| {
        let count: usize = dims.iter().product();
        // Neither pattern of E4M3 that is no number is among them.
        let byte = |at: usize| (at * step % 0x70) as u8 | ((at % 2) as u8) << 7;
        let values: Vec<u8> = (0..count).map(byte).collect();
        let shape = Shape::new(dims.to_vec()).unwrap();
        Tensor::new(DType::F8E4M3Fn, shape, values.into()).unwrap()
    };
    let scale = |value: f32| Tensor::from_vec([], vec![value]).unwrap();
    [
        ("s", scale(0.03)),
        ("t", scale(0.5)),
        ("v", bytes(&[depth, columns], 37)),
        ("z", bytes(&[], 0)),
    ]
}

/// A product of bytes, with zero points for each row and each column or without, is the CPU's.
fn bytes_agree(card: &dyn Processor, sides: [usize; 3], types: [DType; 2], has_zeros: bool) {
    let [rows, depth, columns] = sides;
    let bytes = |dtype: DType, dims: &[usize], step: usize| {
        let count: usize = dims.iter().product();
        let values: Vec<u8> = (0..count).map(|at| (at * step + 3) as u8).collect();
        Tensor::new(dtype, Shape::new(dims.to_vec()).unwrap(), values.into()).unwrap()
    };
    let [left, right] = types;
    let x = bytes(left, &[2, rows, depth], 37);
    let mut weights = vec![("w", bytes(right, &[depth, columns], 91))];
    let mut names = vec!["x", "w"];
    if has_zeros {
        names.extend(["zx", "zw"]);
        weights.push(("zx", bytes(left, &[rows], 5)));
        weights.push(("zw", bytes(right, &[columns], 11)));
    }
    let product = node("MatMulInteger", &names, &["y"]);
    let (from, to) = (("x", left), ("y", DType::I32));
    let graph = subgraph(&model(vec![product], &[from], &[to], &weights));
    let given = BTreeMap::from([("x".to_owned(), x)]);
    let made = |device: &dyn Processor| device.compile(&graph).unwrap().run(&given).unwrap();
    let (found, expected) = (made(card).outputs, made(&cpu()).outputs);
    assert_eq!(found, expected, "{sides:?} {types:?}");
}

/// Bytes go to the library where their sides are fours and it has a way, whatever their signs.
fn bytes_are_multiplied(card: &dyn Processor) {
    let (signed, unsigned) = (DType::I8, DType::U8);
    bytes_agree(card, [5, 24, 12], [signed, signed], false);
    bytes_agree(card, [5, 24, 12], [signed, signed], true);
    bytes_agree(card, [3, 20, 8], [unsigned, signed], true);
    bytes_agree(card, [1, 4, 4], [unsigned, unsigned], false);
    bytes_agree(card, [7, 16, 20], [signed, unsigned], true);
    // Our own kernel: a depth and columns that are no fours.
    bytes_agree(card, [5, 22, 12], [unsigned, signed], true);
    bytes_agree(card, [5, 24, 10], [unsigned, signed], true);
}

/// Does nothing unless it is the process that [`noted`] began.
#[test]
fn in_its_own_process() {
    if std::env::var_os(LOG).is_none() {
        return;
    }
    let found = cuda::list_devices().unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(
        (&*found[0].name, found[0].capability),
        ("Fake H100", (9, 0))
    );
    let card = crate::card::open_card(0, GpuConfig::default()).unwrap();
    assert_eq!(card.memory_free_bytes(), 700 << 20, "others use the rest");
    let weights = [("w", some(&[24, 40], 1.0)), ("b", some(&[40], 2.0))];
    let x = some(&[3, 7, 24], 0.0);
    agrees(&card, &layer("Relu"), &x, &weights, 4);
    agrees(&card, &layer("Sigmoid"), &x, &weights, 1);
    let mut rounded = layer("Relu");
    rounded[0].metadata_props = vec![StringStringEntryProto::new("ai.souk.sums", "tf32")];
    agrees(&card, &rounded, &x, &weights, 1);
    let turned = with_int(node("Gemm", &["x", "t", "b"], &["y"]), "transB", 1);
    let turned_weights = [("t", some(&[40, 24], 1.0)), ("b", some(&[40], 2.0))];
    agrees(&card, &[turned], &some(&[5, 24], 0.0), &turned_weights, 1);
    let both = with_int(node("Gemm", &["x", "w"], &["y"]), "transA", 1);
    agrees(&card, &[both], &some(&[24, 5], 0.0), &weights, 1);
    let half = weights
        .each_ref()
        .map(|(name, weight)| (*name, halves(weight)));
    agrees(&card, &layer("Relu"), &halves(&x), &half, 1);
    agrees(
        &card,
        &quarters(),
        &some(&[5, 32], 0.0),
        &quarter_weights(32, 48),
        1,
    );
    // Sides that are no sixteens: given back from 8 bits, and multiplied as any others.
    agrees(
        &card,
        &quarters(),
        &some(&[5, 24], 0.0),
        &quarter_weights(24, 40),
        1,
    );
    bytes_are_multiplied(&card);
    // Thirteen rows, for which the library has no way.
    agrees(&card, &layer("Relu"), &some(&[13, 24], 0.0), &weights, 1);
    // More than the parts that what goes there and comes back passes through, and not a multiple.
    let large = some(&[3_500_001], 0.5);
    agrees(&card, &[node("Neg", &["x"], &["y"])], &large, &[], 2);
    tensors_move_between_cards();
    println!("the card has run");
}

fn run_held(program: &dyn Program, x: &TensorHandle, kept: &[&str]) -> TensorHandle {
    let inputs = BTreeMap::from([("x".to_owned(), x.clone())]);
    let kept = kept.iter().map(ToString::to_string).collect();
    let mut made = program.run_held(&inputs, &kept).unwrap();
    made.outputs.remove("y").unwrap()
}

fn negated(card: &Gpu) -> Box<dyn Program> {
    let (from, to) = (("x", DType::F32), ("y", DType::F32));
    let nodes = vec![node("Neg", &["x"], &["y"])];
    card.compile(&subgraph(&model(nodes, &[from], &[to], &[])))
        .unwrap()
}

/// What lies on one card is copied to another when it is written, and not written over before.
fn tensors_move_between_cards() {
    let cards = [0, 1, 2].map(|card| crate::card::open_card(card, GpuConfig::default()).unwrap());
    let [first, second, third] = cards.each_ref().map(|card| card.device_memory().unwrap());
    let kind = |to: &dyn DeviceMemory, from| to.peer_link(from).map(|link| link.kind);
    let (generation, lanes) = (3, 16);
    let pcie = PathKind::Pcie { generation, lanes };
    assert_eq!(kind(second, first), Some(PathKind::NvLink));
    assert_eq!(kind(first, second), Some(PathKind::NvLink));
    assert_eq!(kind(third, first), Some(pcie));
    assert_eq!(kind(third, second), None);
    assert_eq!(kind(first, first), None);
    assert_eq!(first.host_link().kind, pcie);

    // Nobody waits for what is sent there before it is copied on.
    let x = some(&[5000], 1.0);
    let there = first.copy_from_host(&x).unwrap();
    let copy = second.copy_from_peer(&*there).unwrap();
    assert!(
        copy.to_host().unwrap().bytes() == x.bytes(),
        "read too soon"
    );
    let copy = second.copy_from_peer(&*there).unwrap();
    // Its memory is used again while the copy was not made yet.
    drop(there);
    let other = first.copy_from_host(&some(&[5000], 2.0)).unwrap();
    let read_first = other.to_host().unwrap();
    assert!(copy.to_host().unwrap().bytes() == x.bytes(), "written over");
    assert!(read_first.bytes() == some(&[5000], 2.0).bytes());

    // A run that has an input on another card, and leaves its output where it is for a third.
    let negated = cards.each_ref().map(negated);
    let made = run_held(&*negated[1], &TensorHandle::Device(other), &["y"]);
    let twice = run_held(&*negated[0], &made, &["y"]);
    let thrice = run_held(&*negated[2], &twice, &[]);
    let expected = some(&[5000], 2.0).to_vec::<f32>().unwrap();
    let expected: Vec<f32> = expected.into_iter().map(|value| -value).collect();
    assert!(thrice.to_host().unwrap().to_vec::<f32>().unwrap() == expected);
    let refused = third
        .copy_from_peer(resident(&made))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("nothing links"), "{refused}");
    let bytes = 4 * 5000;
    assert_eq!(cards[1].traffic_totals().from_peers, 3 * bytes);
    assert_eq!(cards[0].traffic_totals().from_peers, bytes);
    assert_eq!(cards[2].traffic_totals().from_peers, bytes);
    assert_eq!(
        cards[1].traffic_totals().to_host,
        2 * bytes,
        "what was asked for alone"
    );
    // Memory is given back by a thread that never saw the card.
    let free = cards[1].memory_free_bytes();
    std::thread::spawn(move || drop((made, copy)))
        .join()
        .unwrap();
    assert!(cards[1].memory_free_bytes() >= free);
}

fn resident(held: &TensorHandle) -> &dyn Resident {
    match held {
        TensorHandle::Device(resident) => &**resident,
        TensorHandle::Host(_) => panic!("it is on the host"),
    }
}

#[test]
fn a_card_is_asked_for_what_a_run_needs() {
    let test = "tests::card::in_its_own_process";
    let Some(noted) = run_with_log(test) else {
        return;
    };
    let count = |line: &str| noted.iter().filter(|it| *it == line).count();
    let rounded = "product compute 77 epilogue 4 type 0";
    assert!(
        count("graph") >= 1,
        "what is seen again is captured: {noted:?}"
    );
    assert_eq!(
        count(rounded),
        1,
        "only what asks for it is rounded: {noted:?}"
    );
    assert_eq!(
        count("product compute 68 epilogue 4 type 2"),
        1,
        "{noted:?}"
    );
    let with_bias = count("product compute 68 epilogue 4 type 0");
    assert!(
        with_bias >= 4,
        "its ReLU, which loses NaN, is not asked for: {noted:?}"
    );
    assert_eq!(
        count("product compute 68 epilogue 1 type 0"),
        2,
        "a Gemm without a bias, and 8 bits whose sides are no sixteens: {noted:?}"
    );
    assert_eq!(
        count("product compute 68 epilogue 1 type 28"),
        1,
        "{noted:?}"
    );
    assert_eq!(
        count("product compute 72 epilogue 1 type 3"),
        5,
        "bytes in fours, and no others: {noted:?}"
    );
    assert_eq!(count("from card 0 to 1 20000"), 3, "{noted:?}");
    assert_eq!(count("freed without a context"), 0, "{noted:?}");
    let read = noted.iter().filter(|it| it.ends_with("cached")).count();
    assert_eq!(
        read, 8,
        "what is read here is not combined memory: {noted:?}"
    );
}
