//! Times a model on the CPU, or on the first GPU if `SOUK_BACKEND` is `wgpu`:
//! `time MODEL THREADS [SIZE...]`, one size for each dimension the model leaves open, input by
//! input. Prints the best of seven runs and the first outputs; on a GPU also how far any output is
//! from the CPU's, relative to its largest.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Instant;

use souk_devices::cpu::Cpu;
use souk_devices::processor::{Port, Processor, Subgraph};
use souk_devices::{bench, discover, measure};
use souk_memory::{DType, Tensor};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = std::fs::read(&arguments[0]).expect("a model").into();
    let threads: NonZeroUsize = arguments[1].parse().expect("a number of threads");
    let mut sizes = arguments[2..]
        .iter()
        .map(|size| size.parse().expect("a size"));
    let description = discover::cpu();
    let measured = measure::cpu(&description, threads);
    println!("{measured:?}");
    let cpu = Cpu::new(measure::profile(&description, &measured), threads);
    let subgraph = Subgraph {
        model,
        weights: BTreeMap::new(),
    };
    let gpu = gpu();
    let device: &dyn Processor = gpu.as_deref().unwrap_or(&cpu);
    println!("{}: {}", device.profile().model, device.profile().source);
    let start = Instant::now();
    let program = device.compile(&subgraph).expect("it compiles");
    println!("compiled in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let inputs: BTreeMap<String, Tensor> = program
        .inputs()
        .iter()
        .map(|port| (port.name.clone(), input(port, &mut sizes)))
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let outcome = program.run(&inputs).expect("it runs");
        best = best.min(outcome.busy.as_secs_f64());
    }
    println!("peak memory: {}", peak_memory());
    println!("best of seven: {:.2} ms", best * 1e3);
    if gpu.is_some() {
        let expected = cpu.compile(&subgraph).expect("it compiles").run(&inputs);
        let expected = expected.expect("it runs").outputs;
        let found = program.run(&inputs).expect("it runs").outputs;
        println!("furthest from the CPU: {:.1e}", furthest(&expected, &found));
        return;
    }
    let accuracy = bench::accuracy(&cpu, &subgraph, &inputs, 30).expect("its operators run alone");
    println!("{accuracy:?}");
    for (name, tensor) in program.run(&inputs).expect("it runs").outputs {
        let values = tensor
            .to_f64s()
            .map(|values| values.into_iter().take(3).collect::<Vec<_>>());
        println!("{name} {} {values:?}", tensor.shape());
    }
}

/// The first GPU, if it is asked for.
fn gpu() -> Option<Box<dyn Processor>> {
    if std::env::var("SOUK_BACKEND").ok()? != "wgpu" {
        return None;
    }
    #[cfg(feature = "wgpu")]
    {
        let adapters = souk_devices::gpu::adapters();
        let adapter = adapters.first().expect("an adapter");
        let gpu = souk_devices::gpu::Gpu::open(adapter, Default::default());
        Some(Box::new(gpu.expect("it opens")))
    }
    #[cfg(not(feature = "wgpu"))]
    panic!("this build has no wgpu backend")
}

/// The largest difference of two runs' outputs, relative to the largest element of each.
fn furthest(expected: &BTreeMap<String, Tensor>, found: &BTreeMap<String, Tensor>) -> f64 {
    let mut furthest = 0.0f64;
    for (name, expected) in expected {
        let expected = expected.to_f64s().expect("floats");
        let found = found[name].to_f64s().expect("floats");
        let largest = expected
            .iter()
            .fold(1e-30, |it: f64, value| it.max(value.abs()));
        for (expected, found) in expected.iter().zip(&found) {
            furthest = furthest.max((expected - found).abs() / largest);
        }
    }
    furthest
}

/// The most memory this process had, as Linux counts it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".to_owned(), |line| line.trim().to_owned())
}

/// Made-up values: ones for a mask, else a sequence that stays in a vocabulary, or waves.
fn input(port: &Port, sizes: &mut impl Iterator<Item = usize>) -> Tensor {
    let open = port.dims.clone().unwrap_or_default();
    let dims: Vec<usize> = open
        .into_iter()
        .map(|size| size.unwrap_or_else(|| sizes.next().unwrap_or(1)))
        .collect();
    let count: usize = dims.iter().product();
    let whole = |index: usize| match port.name.contains("mask") {
        true => 1,
        false => (index * 37 % 30_000) as i64,
    };
    let made = match port.dtype {
        DType::I64 => Tensor::from_vec(dims, (0..count).map(whole).collect()),
        DType::F32 => Tensor::from_vec(dims, (0..count).map(|it| (it as f32).sin()).collect()),
        dtype => panic!("no values are made up for {dtype}"),
    };
    made.expect("as many values as the shape has")
}
