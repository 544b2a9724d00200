//! Tests the operators of language models on the GPU: caches that are written in place, attention
//! over them, weights in stored form, and tokens drawn from the device's results.

use souk_onnx::OperatorSetIdProto;
use souk_onnx::custom::DOMAIN;
use souk_onnx::sampling::Sampling;
use souk_onnx::states::StatePort;
use souk_testing::noise_tensor;
use souk_vocabulary::processor::session::State;

use super::quantised::devices;
use super::scatters::with_text;
use super::*;

fn places(values: &[i64]) -> Tensor {
    Tensor::from_vec([values.len()], values.to_vec()).unwrap()
}

fn named<const N: usize>(given: [(&str, &Tensor); N]) -> BTreeMap<String, Tensor> {
    let given = given.into_iter();
    given
        .map(|(name, tensor)| (name.to_owned(), tensor.clone()))
        .collect()
}

const CACHE: [(&str, DType); 3] = [
    ("past", DType::F32),
    ("new", DType::F32),
    ("at", DType::I64),
];

#[test]
fn rows_are_written_into_caches_from_where_each_sample_says() {
    let sizes = (1usize..3, 1usize..3, 1usize..5, 1usize..5, 1usize..4);
    check(
        (sizes, 0usize..6, values(), values()),
        |((n, heads, rows, free, width), from, x, u)| {
            let room = rows + free;
            for (mode, axis) in [("linear", -2), ("circular", -2), ("linear", 1)] {
                let scatter = with_text(
                    node("TensorScatter", &["x", "u", "at"], &["y"]),
                    "mode",
                    mode,
                );
                let scatter = with_int(scatter, "axis", axis);
                let most = if mode == "linear" { free + 1 } else { 9 };
                let starts: Vec<i64> = (0..n).map(|at| ((from + at) % most) as i64).collect();
                let dims = |length| match axis {
                    1 => vec![n, length, width, heads],
                    _ => vec![n, heads, length, width],
                };
                let inputs = [(dims(room), x.clone()), (dims(rows), u.clone())];
                agrees(&scatter, &inputs, &[("at", places(&starts))], 0.0)?;
            }
            Ok(())
        },
    );
}

#[test]
fn what_does_not_fit_a_cache_is_refused() {
    let scatter = node("TensorScatter", &["past", "new", "at"], &["y"]);
    let graph = subgraph(&model(vec![scatter], &CACHE, &[("y", DType::F32)], &[]));
    let (past, new) = (
        noise_tensor(&[1, 2, 4, 3], 1),
        noise_tensor(&[1, 2, 2, 3], 2),
    );
    let (wide, many) = (
        noise_tensor(&[1, 2, 2, 5], 2),
        noise_tensor(&[1, 2, 5, 3], 2),
    );
    for device in devices() {
        let program = device.compile(&graph).unwrap();
        let refused = |new: &Tensor, at: &[i64]| {
            let given = named([("past", &past), ("new", new), ("at", &places(at))]);
            program.run(&given).is_err()
        };
        assert!(refused(&new, &[3]) && refused(&new, &[-1]) && refused(&new, &[0, 0]));
        assert!(refused(&wide, &[0]) && refused(&many, &[0]));
        assert!(!refused(&new, &[2]));
    }
}

/// As decoders have it: queries in groups, at the end of what counts of the caches, in windows.
#[test]
fn queries_look_at_what_counts_of_a_cache() {
    let sizes = (1usize..3, 1usize..3, 1usize..4, 1usize..5, 1usize..90);
    check((sizes, values()), |((n, heads, group, rows, more), x)| {
        let (room, width) = (rows + more + 3, 6);
        let counts: Vec<i64> = (0..n)
            .map(|at| (rows + more - at.min(more)) as i64)
            .collect();
        let plain = node("Attention", &["q", "k", "v", "", "", "", "length"], &["y"]);
        let causal = with_int(plain, "is_causal", 1);
        let window = with_int(causal.clone(), "left_window_size", 5);
        let capped = with(window.clone(), "softcap", |attribute| {
            attribute.f = Some(3.0)
        });
        for attention in [causal, window, capped] {
            let inputs = [
                (vec![n, heads * group, rows, width], x.clone()),
                (
                    vec![n, heads, room, width],
                    x.iter().rev().copied().collect(),
                ),
                (
                    vec![n, heads, room, width],
                    x.iter().skip(1).copied().chain([0.5]).collect(),
                ),
            ];
            let given = [("length", places(&counts))];
            agrees(&attention, &inputs, &given, TOLERANCE_LOOSE)?;
        }
        Ok(())
    });
}

/// A product, and the tokens that are drawn from its rows.
fn drawing() -> Subgraph {
    let mut sample = node("Sample", &["logits", "how"], &["drawn"]);
    sample.domain = Some(DOMAIN.to_owned());
    let more = node("Mul", &["drawn", "two"], &["twice"]);
    let logits = node("MatMul", &["x", "w"], &["logits"]);
    let inputs = [("x", DType::F32), ("how", DType::F64)];
    let outputs = [
        ("drawn", DType::I64),
        ("twice", DType::I64),
        ("logits", DType::F32),
    ];
    let weights = [
        ("w", noise_tensor(&[16, 50], 3)),
        ("two", Tensor::scalar(2i64)),
    ];
    let mut model = model(vec![logits, sample, more], &inputs, &outputs, &weights);
    model.opset_import.push(OperatorSetIdProto {
        domain: Some(DOMAIN.to_owned()),
        version: Some(1),
    });
    subgraph(&model)
}

#[test]
fn tokens_are_drawn_as_everywhere_from_what_the_device_made() {
    let graph = drawing();
    let x = noise_tensor(&[1, 4, 16], 7);
    for device in devices() {
        let program = device.compile(&graph).unwrap();
        for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (1.5, 0, 1.0), (0.8, 7, 0.9)] {
            let sampling = Sampling {
                temperature,
                top_k,
                top_p,
                seed: 0xfeed_0000_0007,
                ..Sampling::default()
            };
            let how = sampling.to_numbers(41);
            let how = Tensor::from_vec([how.len()], how).unwrap();
            let made = program.run(&named([("x", &x), ("how", &how)])).unwrap();
            let logits = made.outputs["logits"].to_vec::<f32>().unwrap();
            let rows = logits.chunks_exact(50).zip(41..);
            let drawn = rows.map(|(row, at)| i64::from(sampling.draw_at(row, at).unwrap()));
            let drawn: Vec<i64> = drawn.collect();
            assert_eq!(made.outputs["drawn"].dims(), [1, 4]);
            assert_eq!(made.outputs["drawn"].to_vec::<i64>().unwrap(), drawn);
            let twice: Vec<i64> = drawn.iter().map(|token| 2 * token).collect();
            assert_eq!(made.outputs["twice"].to_vec::<i64>().unwrap(), twice);
        }
        let short = Tensor::from_vec([1], vec![1.0]).unwrap();
        assert!(program.run(&named([("x", &x), ("how", &short)])).is_err());
    }
}

#[test]
fn a_step_of_a_session_moves_its_rows_and_writes_its_cache_in_place() {
    let Some(gpu) = open(GpuConfig::default()) else {
        return;
    };
    let scatter = node("TensorScatter", &["past", "new", "at"], &["present"]);
    let sum = node("ReduceSum", &["present"], &["y"]);
    let outputs = [("present", DType::F32), ("y", DType::F32)];
    let graph = subgraph(&model(vec![scatter, sum], &CACHE, &outputs, &[]));
    let program = gpu.compile(&graph).unwrap();
    let empty = Tensor::from_vec([1, 2, 1024, 8], vec![0.0f32; 16_384]).unwrap();
    let port = StatePort {
        input: "past".to_owned(),
        output: "present".to_owned(),
    };
    let state = State { port, value: empty };
    let mut session = program.open_session(vec![state]).unwrap();
    let row = |seed| noise_tensor(&[1, 2, 1, 8], seed);
    let step = |seed: u64, at: i64| named([("new", &row(seed)), ("at", &places(&[at]))]);
    session.step(&step(0, 0)).unwrap();
    let (used, moved) = (gpu.context.used_bytes(), gpu.traffic_totals());
    let mut total = row(0).to_f64s().unwrap().iter().sum::<f64>();
    for at in 1..4 {
        let made = session.step(&step(at, at as i64)).unwrap();
        total += row(at).to_f64s().unwrap().iter().sum::<f64>();
        assert!((made.outputs["y"].to_f64s().unwrap()[0] - total).abs() < 1e-4);
    }
    let now = gpu.traffic_totals();
    let sent = now.from_host + now.to_host - moved.from_host - moved.to_host;
    assert!(sent < 8_192, "{sent} bytes for three rows of 64");
    assert_eq!(gpu.context.used_bytes(), used, "a cache was copied");
    assert!(session.step(&step(9, 1024)).is_err());
    let cache = session.export_states(0).unwrap()["past"]
        .to_vec::<f32>()
        .unwrap();
    let written: Vec<f32> = (0..4)
        .flat_map(|seed| row(seed).to_vec::<f32>().unwrap()[..8].to_vec())
        .collect();
    assert_eq!(cache[..32], written);
    assert!(cache[32..8_192].iter().all(|&it| it == 0.0));
}

/// A table of rows of 64, as it lies, and the node that makes floats of it.
fn table(dtype: DType) -> (Vec<(&'static str, Tensor)>, Option<NodeProto>) {
    let values = noise_tensor(&[40, 64], 11).to_f64s().unwrap();
    let to = i64::from(DType::F32.onnx_code());
    if dtype.is_float() {
        let held = tensor(dtype, &[40, 64], &values);
        let cast = with_int(node("Cast", &["held"], &["table"]), "to", to);
        return match dtype {
            DType::F32 => (vec![("table", held)], None),
            _ => (vec![("held", held)], Some(cast)),
        };
    }
    let bytes: Vec<u8> = values.iter().map(|it| (it * 120.0) as i8 as u8).collect();
    let bytes = bytes[..dtype.bit_width() * 40 * 64 / 8].to_vec();
    let held = Tensor::new(dtype, Shape::new([40, 64]).unwrap(), bytes.into()).unwrap();
    let scales = tensor(DType::F16, &[40, 2], &[0.01, 0.02, 0.015]);
    let wide = node("DequantizeLinear", &["held", "scales"], &["table"]);
    let wide = with_int(with_int(wide, "axis", 1), "block_size", 32);
    let wide = with_int(wide, "output_dtype", to);
    (vec![("held", held), ("scales", scales)], Some(wide))
}

#[test]
fn rows_and_products_of_a_table_are_those_of_the_floats_it_stands_for() {
    let inputs = [("x", DType::F32), ("at", DType::I64)];
    let outputs = [("y", DType::F32), ("rows", DType::F32)];
    for dtype in [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::I8,
        DType::I4,
        DType::U4,
    ] {
        let (weights, wide) = table(dtype);
        let mut nodes: Vec<NodeProto> = wide.into_iter().collect();
        nodes.push(with_ints(
            node("Transpose", &["table"], &["turned"]),
            "perm",
            &[1, 0],
        ));
        nodes.push(node("MatMul", &["x", "turned"], &["product"]));
        nodes.push(node("Sigmoid", &["product"], &["y"]));
        nodes.push(node("Gather", &["table", "at"], &["rows"]));
        let graph = subgraph(&model(nodes, &inputs, &outputs, &weights));
        for rows in [1, 3, 20] {
            let x = noise_tensor(&[2, rows, 64], 5);
            let at = Tensor::from_vec([2, 1], vec![7i64, -1]).unwrap();
            let given = named([("x", &x), ("at", &at)]);
            let expected = cpu().compile(&graph).unwrap().run(&given).unwrap();
            for device in devices() {
                let found = device.compile(&graph).unwrap().run(&given).unwrap();
                for (name, expected) in &expected.outputs {
                    let found = &found.outputs[name];
                    assert_eq!(found.dims(), expected.dims());
                    let pairs = found.to_f64s().unwrap().into_iter();
                    for (found, expected) in pairs.zip(expected.to_f64s().unwrap()) {
                        let near = (found - expected).abs() <= TOLERANCE * 2.0;
                        assert!(near, "{name} of {rows} rows, {dtype}: {found} {expected}");
                    }
                }
            }
        }
    }
}

/// What others read too is made for them.
#[test]
fn a_table_that_leaves_the_graph_is_made() {
    let (weights, wide) = table(DType::I8);
    let turned = node("Transpose", &["table"], &["turned"]);
    let product = node("MatMul", &["x", "turned"], &["y"]);
    let nodes = vec![wide.unwrap(), turned, product];
    let outputs = [("y", DType::F32), ("table", DType::F32)];
    let graph = subgraph(&model(nodes, &[("x", DType::F32)], &outputs, &weights));
    let given = named([("x", &noise_tensor(&[1, 64], 5))]);
    let expected = cpu().compile(&graph).unwrap().run(&given).unwrap();
    for device in devices() {
        let found = device.compile(&graph).unwrap().run(&given).unwrap();
        assert_eq!(found.outputs["table"], expected.outputs["table"]);
    }
}

#[test]
fn blocks_stay_as_small_as_they_came() {
    let Some(gpu) = open(GpuConfig::default()) else {
        return;
    };
    let held = Tensor::new(
        DType::I4,
        Shape::new([512, 1024]).unwrap(),
        vec![7; 262_144].into(),
    );
    let scales = tensor(DType::F16, &[512, 32], &[0.01, 0.02]);
    let wide = node("DequantizeLinear", &["held", "scales"], &["table"]);
    let wide = with_int(with_int(wide, "axis", 1), "block_size", 32);
    let wide = with_int(wide, "output_dtype", DType::F32.onnx_code().into());
    let turned = node("Transpose", &["table"], &["turned"]);
    let product = node("MatMul", &["x", "turned"], &["y"]);
    let weights = [("held", held.unwrap()), ("scales", scales)];
    let ports = [("x", DType::F32)];
    let graph = model(
        vec![wide, turned, product],
        &ports,
        &[("y", DType::F32)],
        &weights,
    );
    let program = gpu.compile(&subgraph(&graph)).unwrap();
    program
        .run(&named([("x", &noise_tensor(&[1, 1024], 5))]))
        .unwrap();
    let all = gpu.context.used_bytes() + gpu.context.resting_bytes();
    assert!(all < 4 * 512 * 1024, "{all} bytes, as many as the floats");
}
