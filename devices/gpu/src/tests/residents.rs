//! Tests tensors that stay in the GPU's memory between runs.

use std::collections::BTreeSet;

use souk_memory::Shape;
use souk_testing::noise_tensor;
use souk_vocabulary::processor::Outcome;
use souk_vocabulary::residency::{Resident, TensorHandle};

use super::*;

/// A device of a test's own, with so much memory.
fn own_gpu(memory_bytes_max: Option<u64>) -> Option<Gpu> {
    open(GpuConfig {
        memory_bytes_max,
        ..GpuConfig::default()
    })
}

fn program(
    gpu: &Gpu,
    nodes: &[NodeProto],
    inputs: &[(&str, DType)],
    outputs: &[(&str, DType)],
    weights: &[(&str, Tensor)],
) -> Box<dyn Program> {
    let graph = subgraph(&model(nodes.to_vec(), inputs, outputs, weights));
    gpu.compile(&graph).unwrap()
}

fn kept(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

fn held(inputs: &[(&str, &TensorHandle)]) -> BTreeMap<String, TensorHandle> {
    let own = |(name, held): &(&str, &TensorHandle)| ((*name).to_owned(), (*held).clone());
    inputs.iter().map(own).collect()
}

fn on_device(held: &TensorHandle) -> &dyn Resident {
    match held {
        TensorHandle::Device(resident) => &**resident,
        TensorHandle::Host(tensor) => panic!("{tensor:?} is on the host"),
    }
}

fn one(mut outcome: Outcome<TensorHandle>, name: &str) -> TensorHandle {
    outcome.outputs.remove(name).unwrap()
}

fn truths(values: &'static [u8]) -> Tensor {
    let shape = Shape::new([values.len()]).unwrap();
    Tensor::new(DType::Bool, shape, bytes::Bytes::from_static(values)).unwrap()
}

const F32: DType = DType::F32;

/// `x` times a weight, and a function of what `a` is.
fn two_halves(gpu: &Gpu) -> [Box<dyn Program>; 2] {
    let weight = ("w", noise_tensor(&[64, 64], 5));
    let product = [node("MatMul", &["x", "w"], &["a"])];
    let function = [node("Sigmoid", &["a"], &["y"])];
    [
        program(gpu, &product, &[("x", F32)], &[("a", F32)], &[weight]),
        program(gpu, &function, &[("a", F32)], &[("y", F32)], &[]),
    ]
}

#[test]
fn what_stays_is_not_sent_and_gives_the_same() {
    let Some(gpu) = own_gpu(None) else { return };
    let [first, second] = two_halves(&gpu);
    let x = noise_tensor(&[32, 64], 1);
    let whole = first.run(&BTreeMap::from([("x".to_owned(), x.clone())]));
    let between = whole.unwrap().outputs["a"].clone();
    let apart = second.run(&BTreeMap::from([("a".to_owned(), between.clone())]));
    let apart = apart.unwrap().outputs["y"].clone();

    let before = gpu.traffic_totals();
    let x = TensorHandle::Host(x);
    let made = first.run_held(&held(&[("x", &x)]), &kept(&["a"])).unwrap();
    let stays = one(made, "a");
    assert_eq!(
        gpu.traffic_totals().to_host,
        before.to_host,
        "nothing comes back"
    );
    let resident = on_device(&stays);
    assert_eq!(
        (resident.dtype(), resident.shape().dims()),
        (F32, &[32, 64][..])
    );
    let sent = gpu.traffic_totals().from_host;
    let made = second
        .run_held(&held(&[("a", &stays)]), &kept(&[]))
        .unwrap();
    let y = one(made, "y").to_host().unwrap();
    let after = gpu.traffic_totals();
    assert!(after.from_host - sent < 1024, "the sizes of a kernel alone");
    assert_eq!(
        after.to_host - before.to_host,
        4 * 32 * 64,
        "the result alone"
    );
    assert_eq!(y.bytes(), apart.bytes());
    assert_eq!(stays.to_host().unwrap().bytes(), between.bytes());
}

#[test]
fn tensors_that_go_together_are_one_copy_there_and_one_back() {
    let Some(gpu) = own_gpu(None) else { return };
    let memory = gpu.device_memory().expect("it has one of its own");
    let mut tensors: Vec<Tensor> = (1..9u64)
        .map(|it| noise_tensor(&[3, it as usize], it))
        .collect();
    let truths = bytes::Bytes::from_static(&[1, 0, 1, 1, 0]);
    tensors.push(Tensor::new(DType::Bool, Shape::new(vec![5]).unwrap(), truths).unwrap());
    tensors.push(Tensor::from_vec([3], vec![1u8, 2, 255]).unwrap());
    tensors.push(Tensor::from_vec([2], vec![1i64 << 40, -1]).unwrap());
    let before = gpu.traffic_totals();
    let there = memory.put_all(&tensors).unwrap();
    let sent = gpu.traffic_totals();
    assert_eq!(sent.copies - before.copies, 1);
    assert!(sent.from_host - before.from_host >= 4 * 3 * 36);
    assert_eq!(memory.read_all(&there).unwrap(), tensors);
    assert_eq!(gpu.traffic_totals().copies - sent.copies, 1);
    let each = there.iter().map(|resident| resident.to_host().unwrap());
    assert_eq!(each.collect::<Vec<_>>(), tensors, "each by itself as well");
}

#[test]
fn what_stays_takes_memory_until_it_is_dropped() {
    let Some(gpu) = own_gpu(Some(1 << 20)) else {
        return;
    };
    let memory = gpu.device_memory().unwrap();
    let relu = program(
        &gpu,
        &[node("Relu", &["x"], &["y"])],
        &[("x", F32)],
        &[("y", F32)],
        &[],
    );
    let x = TensorHandle::Host(noise_tensor(&[50_000], 2));
    let all = gpu.memory_free_bytes();
    let run = || relu.run_held(&held(&[("x", &x)]), &kept(&["y"]));
    let first = one(run().unwrap(), "y");
    let taken = on_device(&first).bytes();
    assert!(taken >= 200_000);
    assert_eq!(gpu.memory_free_bytes(), all - taken);
    let put = memory.copy_from_host(&noise_tensor(&[1000], 3)).unwrap();
    assert_eq!(gpu.memory_free_bytes(), all - taken - put.bytes());
    drop(put);
    let mut stay = vec![first];
    let error = loop {
        match run() {
            Ok(made) => stay.push(one(made, "y")),
            Err(error) => break error,
        }
        assert!(stay.len() < 10, "there is no room for so many");
    };
    assert!(matches!(error, RunError::OutOfMemory { .. }), "{error}");
    assert!(stay.len() >= 2);
    let refused = memory
        .copy_from_host(&noise_tensor(&[200_000], 3))
        .unwrap_err();
    assert!(matches!(refused, RunError::OutOfMemory { .. }), "{refused}");
    stay.clear();
    assert_eq!(gpu.memory_free_bytes(), all);
    assert!(run().is_ok(), "there is room again");
}

#[test]
fn what_stays_may_be_an_input_a_weight_or_the_hosts() {
    let Some(gpu) = own_gpu(None) else { return };
    let nodes = [
        node("Shape", &["x"], &["s"]),
        node("Identity", &["x"], &["same"]),
        node("Add", &["x", "w"], &["y"]),
    ];
    let weight = noise_tensor(&[8], 7);
    let outputs = [
        ("x", F32),
        ("w", F32),
        ("s", DType::I64),
        ("same", F32),
        ("y", F32),
    ];
    let names: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
    let all = program(
        &gpu,
        &nodes,
        &[("x", F32)],
        &outputs,
        &[("w", weight.clone())],
    );
    let x = noise_tensor(&[3, 8], 8);
    let apart = all.run(&BTreeMap::from([("x".to_owned(), x.clone())]));
    let apart = apart.unwrap().outputs;
    let memory = gpu.device_memory().unwrap();
    for x in [
        TensorHandle::Host(x.clone()),
        TensorHandle::Device(memory.copy_from_host(&x).unwrap()),
    ] {
        let made = all.run_held(&held(&[("x", &x)]), &kept(&names)).unwrap();
        drop(x);
        for name in &names {
            let found = made.outputs[*name].to_host().unwrap();
            assert_eq!(found.bytes(), apart[*name].bytes(), "{name}");
            assert_eq!(found.dims(), apart[*name].dims(), "{name}");
        }
    }
    assert!(matches!(
        all.run_held(&held(&[("x", &TensorHandle::Host(x))]), &kept(&names))
            .unwrap()
            .outputs["s"],
        TensorHandle::Host(_)
    ));
}

#[test]
fn halves_truths_and_places_stay_and_the_host_knows_what_it_must() {
    let Some(gpu) = own_gpu(None) else { return };
    let nodes = [
        node("Cast", &["h"], &["f"]),
        node("Neg", &["h"], &["n"]),
        node("Less", &["f", "t"], &["truth"]),
        with_int(node("ArgMax", &["f"], &["place"]), "axis", 0),
    ];
    let nodes = nodes.map(|node| match node.op_type() {
        "Cast" => with_int(node, "to", 1),
        _ => node,
    });
    let outputs = [
        ("n", DType::F16),
        ("truth", DType::Bool),
        ("place", DType::I64),
    ];
    let threshold = Tensor::from_vec([], vec![0.25f32]).unwrap();
    let first = program(
        &gpu,
        &nodes,
        &[("h", DType::F16)],
        &outputs,
        &[("t", threshold)],
    );
    // The places are looked up by the host while it records.
    let inputs = [
        ("n", DType::F16),
        ("truth", DType::Bool),
        ("place", DType::I64),
    ];
    let nodes = [
        node("Gather", &["n", "place"], &["g"]),
        node("Where", &["truth", "n", "m"], &["y"]),
        node("Neg", &["n"], &["m"]),
    ];
    let nodes = [nodes[2].clone(), nodes[0].clone(), nodes[1].clone()];
    let outputs = [("g", DType::F16), ("y", DType::F16)];
    let second = program(&gpu, &nodes, &inputs, &outputs, &[]);
    let h = tensor(DType::F16, &[7, 5], &[0.5, -1.0, 0.25, 2.0, 0.0, -3.5, 1.5]);

    let apart = first.run(&BTreeMap::from([("h".to_owned(), h.clone())]));
    let apart = apart.unwrap().outputs;
    let expected = second.run(&apart).unwrap().outputs;
    let names = ["n", "truth", "place"];
    let made = first.run_held(&held(&[("h", &TensorHandle::Host(h))]), &kept(&names));
    let made = made.unwrap().outputs;
    for name in names {
        let resident = on_device(&made[name]);
        assert_eq!(resident.dtype(), apart[name].dtype());
        assert_eq!(
            made[name].to_host().unwrap().bytes(),
            apart[name].bytes(),
            "{name}"
        );
    }
    let before = gpu.traffic_totals().to_host;
    let found = second.run_held(&made, &kept(&["g", "y"])).unwrap().outputs;
    assert_eq!(
        gpu.traffic_totals().to_host - before,
        4 * 5,
        "the places alone"
    );
    for name in ["g", "y"] {
        assert_eq!(
            found[name].to_host().unwrap().bytes(),
            expected[name].bytes(),
            "{name}"
        );
    }
}

#[test]
fn a_divisor_that_stays_is_seen_by_the_host() {
    let Some(gpu) = own_gpu(None) else { return };
    let memory = gpu.device_memory().unwrap();
    let (a, b) = (("a", DType::I32), ("b", DType::I32));
    let nodes = [node("Div", &["a", "b"], &["y"])];
    let quotient = program(&gpu, &nodes, &[a, b], &[("y", DType::I32)], &[]);
    let put = |values: Vec<i32>| {
        let tensor = Tensor::from_vec([values.len()], values).unwrap();
        TensorHandle::Device(memory.copy_from_host(&tensor).unwrap())
    };
    let run = |b: &TensorHandle| {
        quotient.run_held(&held(&[("a", &put(vec![7, -9])), ("b", b)]), &kept(&["y"]))
    };
    let made = one(run(&put(vec![2, 4])).unwrap(), "y");
    assert_eq!(made.to_host().unwrap().to_vec::<i32>().unwrap(), [3, -2]);
    let again = one(run(&made).unwrap(), "y");
    assert_eq!(again.to_host().unwrap().to_vec::<i32>().unwrap(), [2, 4]);
    assert!(run(&put(vec![0, 1])).is_err());
}

#[test]
fn any_tensor_is_put_and_comes_back() {
    let Some(gpu) = own_gpu(None) else { return };
    let memory = gpu.device_memory().unwrap();
    let wide = vec![i64::MAX, -3, 1 << 40];
    let tensors = [
        noise_tensor(&[2, 3], 4),
        tensor(DType::Bf16, &[3], &[1.5, -2.0, 0.0]),
        Tensor::from_vec([3], wide).unwrap(),
        Tensor::from_vec([5], vec![1u8, 2, 3, 4, 255]).unwrap(),
        truths(&[1, 0, 1]),
        Tensor::from_vec([0, 4], Vec::<f32>::new()).unwrap(),
        Tensor::from_vec([2], vec![1.0f64, 1e300]).unwrap(),
    ];
    for tensor in tensors {
        let resident = memory.copy_from_host(&tensor).unwrap();
        assert_eq!(resident.dtype(), tensor.dtype());
        assert_eq!(resident.shape(), tensor.shape());
        assert_eq!(resident.to_host().unwrap().bytes(), tensor.bytes());
    }
}

#[test]
fn what_lies_on_another_device_comes_through_the_host() {
    let (Some(gpu), Some(other)) = (own_gpu(None), own_gpu(None)) else {
        return;
    };
    let [first, _] = two_halves(&gpu);
    let [_, second] = two_halves(&other);
    let x = TensorHandle::Host(noise_tensor(&[4, 64], 1));
    let made = first.run_held(&held(&[("x", &x)]), &kept(&["a"])).unwrap();
    let a = one(made, "a");
    let (own, others) = (gpu.device_memory().unwrap(), other.device_memory().unwrap());
    assert!(others.peer_link(own).is_none());
    let refused = others
        .copy_from_peer(on_device(&a))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("nothing links"), "{refused}");
    let before = gpu.traffic_totals().to_host;
    let made = second.run_held(&held(&[("a", &a)]), &kept(&[])).unwrap();
    assert_eq!(gpu.traffic_totals().to_host - before, 4 * 4 * 64);
    let on_host = TensorHandle::Host(a.to_host().unwrap());
    let apart = second
        .run_held(&held(&[("a", &on_host)]), &kept(&[]))
        .unwrap();
    let (y, expected) = (one(made, "y"), one(apart, "y"));
    assert_eq!(
        y.to_host().unwrap().bytes(),
        expected.to_host().unwrap().bytes()
    );
    let same = own.copy_from_peer(on_device(&a)).unwrap();
    assert_eq!(
        same.to_host().unwrap().bytes(),
        a.to_host().unwrap().bytes()
    );
}

#[test]
fn what_stayed_on_a_lost_device_is_lost() {
    let Some(gpu) = own_gpu(None) else { return };
    let memory = gpu.device_memory().unwrap();
    let x = noise_tensor(&[16], 1);
    let resident = memory.copy_from_host(&x).unwrap();
    let _ = gpu.context.give_up();
    let lost = |error: RunError| matches!(error, RunError::DeviceLost { .. });
    assert!(lost(resident.to_host().unwrap_err()));
    assert!(lost(memory.copy_from_host(&x).unwrap_err()));
    drop(resident);
    assert_eq!(gpu.context.used_bytes(), 0);
}

#[test]
fn an_input_that_does_not_fit_is_named_wherever_it_lies() {
    let Some(gpu) = own_gpu(None) else { return };
    let [first, _] = two_halves(&gpu);
    let truths = gpu
        .device_memory()
        .unwrap()
        .copy_from_host(&truths(&[1, 0]))
        .unwrap();
    let truths = TensorHandle::Device(truths);
    let error = first.run_held(&held(&[("x", &truths)]), &kept(&[]));
    let error = error.unwrap_err();
    assert!(matches!(error, RunError::InputDType { .. }), "{error}");
}
