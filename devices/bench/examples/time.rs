//! Prints how long a model runs on the CPU, or on the first GPU if `SOUK_BACKEND` is `wgpu`: `time
//! MODEL THREADS [SIZE...]`, with one size for each dimension that an input leaves open. It prints
//! the best of thirty runs and the first outputs; on a GPU also the largest difference of an output
//! from the CPU's, relative to the largest output.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Instant;

use souk_cpu::Cpu;
use souk_devices_bench::{accuracy, models};
use souk_host::discover;
use souk_memory::Tensor;
use souk_registry::measure;
use souk_vocabulary::processor::Processor;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads: NonZeroUsize = arguments[1].parse().expect("a number of threads");
    let path = std::path::Path::new(&arguments[0]);
    let sizes = arguments[2..]
        .iter()
        .map(|size| size.parse().expect("a size"));
    let sizes: Vec<usize> = sizes.collect();
    let description = discover::describe_cpu();
    let measured = measure::measure_cpu(&description, threads);
    println!("{measured:?}");
    let cpu = Cpu::new(measure::cpu_profile(&description, &measured), threads);
    let subgraph = models::open_model(path).expect("a model");
    let gpu = gpu();
    let device: &dyn Processor = gpu.as_deref().unwrap_or(&cpu);
    println!("{}: {}", device.profile().model, device.profile().source);
    let start = Instant::now();
    let program = device.compile(&subgraph).expect("it compiles");
    println!("compiled in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let inputs =
        models::generate_inputs(path, program.inputs(), &sizes).expect("inputs of known types");
    let mut best = f64::INFINITY;
    for _ in 0..30 {
        let outcome = program.run(&inputs).expect("it runs");
        best = best.min(outcome.busy.as_secs_f64());
    }
    println!("peak memory: {:?}", souk_host::system::memory_peak_bytes());
    println!("best of thirty: {:.2} ms", best * 1e3);
    if gpu.is_some() {
        let expected = cpu.compile(&subgraph).expect("it compiles").run(&inputs);
        let expected = expected.expect("it runs").outputs;
        let found = program.run(&inputs).expect("it runs").outputs;
        println!(
            "furthest from the CPU: {:.1e}",
            largest_difference(&expected, &found)
        );
        return;
    }
    if std::env::var("SOUK_ACCURACY").is_ok() {
        let begin = Instant::now();
        let accuracy =
            accuracy::measure_accuracy(&cpu, &subgraph, &inputs, 30, &|| begin.elapsed());
        let mut accuracy = accuracy.expect("its operators run alone");
        accuracy.each.clear();
        println!("{accuracy:?}");
    }
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
        let adapters = souk_gpu::list_adapters();
        let adapter = adapters.first().expect("an adapter");
        let gpu = souk_registry::gpus::open_gpu(adapter, Default::default());
        Some(Box::new(gpu.expect("it opens")))
    }
    #[cfg(not(feature = "wgpu"))]
    panic!("this build has no wgpu backend")
}

/// The largest difference of two runs' outputs, relative to the largest element of each.
fn largest_difference(
    expected: &BTreeMap<String, Tensor>,
    found: &BTreeMap<String, Tensor>,
) -> f64 {
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
