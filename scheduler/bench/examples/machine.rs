//! Runs three benchmarks of `souk bench` on this machine without the rest of souk, and prints JSON:
//! `machine split|mixes [GPU]` or `machine overhead MODEL THREADS [SIZE...]`. The first two measure
//! operators and models shared by several devices, the third the scheduler's overhead for a model
//! on the CPU.

use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_cpu::Cpu;
use souk_host::discover;
use souk_registry::measure;
use souk_scheduler::execution::GroupDevice;
use souk_scheduler_bench::{self as bench, Mix, Pair, Workload};
use souk_vocabulary::processor::Processor;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let text = match words[..] {
        ["split", ref gpu @ ..] => {
            let name = "this machine".to_owned();
            let pair = |members| Pair { name, members };
            let mut pairs: Vec<Pair> = real(gpu).map(pair).into_iter().collect();
            if pairs.is_empty() {
                pairs = bench::emulated_pairs();
            }
            let rows = bench::measure_sharing(&pairs, &mut |step| eprintln!("{step}"));
            serde_json::to_string_pretty(&rows.expect("every run ends"))
        }
        ["mixes", ref gpu @ ..] => {
            let name = "this machine".to_owned();
            let mix = |members| Mix { name, members };
            let mut mixes: Vec<Mix> = real(gpu).map(mix).into_iter().collect();
            if mixes.is_empty() {
                mixes = bench::emulated_mixes();
            }
            let rows = bench::measure_mixes(&mixes, &bench::mix_workloads());
            serde_json::to_string_pretty(&rows.expect("every run ends"))
        }
        ["overhead", path, threads, ref sizes @ ..] => {
            let cpu = cpu(threads.parse().expect("a number of threads"));
            let sizes: Vec<usize> = sizes
                .iter()
                .map(|size| size.parse().expect("a size"))
                .collect();
            let model = std::fs::read(path).expect("a model").into();
            let workload = Workload::of_model(path.to_owned(), model, &*cpu, &sizes);
            let row = bench::measure_overhead(&cpu, &workload.expect("it compiles"), 60);
            serde_json::to_string_pretty(&row.expect("every run ends"))
        }
        _ => panic!("split [GPU], mixes [GPU] or overhead MODEL THREADS [SIZE...]"),
    };
    println!("{}", text.expect("figures are JSON"));
}

fn cpu(threads: NonZeroUsize) -> Arc<dyn Processor> {
    let description = discover::describe_cpu();
    let measured = measure::measure_cpu(&description, threads);
    Arc::new(Cpu::new(
        measure::cpu_profile(&description, &measured),
        threads,
    ))
}

/// Returns the CPU with one thread, and a GPU.
fn real(gpu: &[&str]) -> Option<Vec<GroupDevice>> {
    let name = gpu.first()?;
    let member = |label: &str, processor| GroupDevice {
        label: label.to_owned(),
        processor,
    };
    Some(vec![
        member("cpu", cpu(NonZeroUsize::MIN)),
        member("gpu", open(name)),
    ])
}

#[cfg(feature = "wgpu")]
fn open(name: &str) -> Arc<dyn Processor> {
    use souk_gpu::{Gpu, GpuConfig, adapters};
    let adapters = adapters();
    let named = |adapter: &&souk_gpu::Adapter| adapter.name().contains(name);
    let adapter = adapters.iter().find(named).expect("there is such a GPU");
    Arc::new(Gpu::open(adapter, GpuConfig::default()).expect("the driver opens it"))
}

#[cfg(not(feature = "wgpu"))]
fn open(name: &str) -> Arc<dyn Processor> {
    panic!("built without GPUs: {name} cannot be opened; add --features wgpu")
}
