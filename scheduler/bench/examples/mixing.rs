//! Computes in which cases a group of unlike devices, such as a GPU and a CPU, is faster than its
//! best device. It plans with the published speeds of devices, and does not measure them.
//! docs/performance.md has the results.
//!
//! `mixing [model.onnx name=extent ...]` prints, for each case, the time of the best single device,
//! the time of the plan over all devices, and the ratio.

use souk_memory::DType;
use souk_scheduler::graph::{Bindings, Graph};
use souk_scheduler::planning::planner::{find_planner, step_pace};
use souk_scheduler::planning::problem::{Edge, Problem, ProblemParts};
use souk_scheduler::planning::tasks::GraphTasks;
use souk_scheduler::planning::{
    Link, Links, NEVER, Offer, Operators, PlanOptions, Slowness, Throughput, Time, plan_graph,
    time_of,
};
use souk_scheduler_bench::Stopwatch;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Name, dense bf16 operations per second, memory bytes per second, and bytes of memory.
const DEVICES: [(&str, f64, f64, u64); 4] = [
    ("H100 SXM", 989e12, 3350e9, 80_000_000_000),
    ("TPU v5p", 459e12, 2765e9, 95_000_000_000),
    ("EPYC 9654", 10.8e12, 460e9, 768_000_000_000),
    ("Groq LPU", 188e12, 80e12, 230_000_000),
];

const LAYERS: usize = 80;
const PARAMETERS: f64 = 70.6e9;
const WIDTH: f64 = 8192.0;
const PROMPT: f64 = 512.0;
const TOKENS: f64 = 256.0;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [path, symbols @ ..] = arguments.as_slice() {
        return model(path, symbols);
    }
    println!("case | best single ms | plan ms | ratio | devices used");
    llama("Llama-70B int4, prefill 512", 0.5, PROMPT, 1.0)?;
    llama("Llama-70B int4, decode 256", 0.5, 1.0, TOKENS)?;
    split_by_bandwidth();
    prefill_elsewhere()?;
    for requests in [1, 4, 16, 64] {
        pipeline(requests)?;
    }
    experts()
}

/// Plans a chain of layers that runs `rounds` times and reads its weights once in each round.
fn llama(name: &str, bytes_each: f64, tokens: f64, rounds: f64) -> Result<()> {
    let weights = PARAMETERS * bytes_each / LAYERS as f64;
    let flops = 2.0 * PARAMETERS / LAYERS as f64 * tokens;
    let time = |device: &(&str, f64, f64, u64)| {
        time_of(rounds * (flops / device.1).max(weights / device.2))
    };
    let exec = (0..LAYERS).flat_map(|_| DEVICES.iter().map(time)).collect();
    let link = rounds * 10e-6;
    report(
        name,
        parts(
            exec,
            chain(LAYERS, tokens * WIDTH * 2.0 * rounds),
            link,
            50e9,
            |parts| {
                parts.memory = vec![weights as u64; LAYERS];
                parts.capacity = DEVICES.iter().map(|device| device.3).collect();
            },
        )?,
    )
}

/// Prints the limit that no plan can beat: each layer split over devices by bandwidth, with two
/// all-reduces for each layer.
fn split_by_bandwidth() {
    let weights = PARAMETERS * 0.5;
    let alone = TOKENS * weights / DEVICES[0].2;
    let together: f64 = DEVICES[..3].iter().map(|device| device.2).sum();
    for (name, reduce) in [
        ("free", 0.0),
        ("5 us", 5e-6),
        ("10 us", 10e-6),
        ("50 us", 50e-6),
    ] {
        let split = TOKENS * (weights / together + 2.0 * LAYERS as f64 * reduce);
        println!(
            "decode split over H100 + TPU + EPYC, all-reduce {name} | {:.0} | {:.0} | {:.2} | 3",
            alone * 1e3,
            split * 1e3,
            alone / split
        );
    }
    let each = DEVICES[3].3 as f64;
    println!(
        "LPUs that hold the weights: int4 {:.0}, int8 {:.0}; one holds {:.2} %",
        (weights / each).ceil(),
        (2.0 * weights / each).ceil(),
        100.0 * each / weights
    );
}

/// Plans Llama-8B in fp16, 8,192 tokens in and 32 out, on a machine strong in arithmetic (100
/// Tflop/s, 273 GB/s) and one strong in bandwidth (26 Tflop/s, 819 GB/s), with 10 Gbit/s between
/// them.
fn prefill_elsewhere() -> Result<()> {
    let machines = [(100e12, 273e9), (26e12, 819e9)];
    let (parameters, prompt, tokens) = (8.0e9, 8192.0, 32.0);
    let prefill = machines.map(|(flops, _)| time_of(2.0 * parameters * prompt / flops));
    let decode = machines.map(|(_, bytes)| time_of(tokens * 2.0 * parameters / bytes));
    // Keys and values of 32 layers with 8 heads of 128 in 2 bytes, sent layer by layer: all but
    // the last layer's overlaps the prefill.
    let cache = prompt * 2.0 * 8.0 * 128.0 * 2.0;
    let exec = prefill.into_iter().chain(decode).collect();
    report(
        "Llama-8B 8192 in, 32 out, two machines",
        parts(exec, chain(2, cache), 1e-4, 1.25e9, |_| {})?,
    )
}

/// Plans `requests` requests through a model of 8 equal stages over four nodes of speed 1, 1.5, 2,
/// 3.
fn pipeline(requests: usize) -> Result<()> {
    let speeds = [1.0, 1.5, 2.0, 3.0];
    let stages = 8;
    let exec = (0..requests * stages).flat_map(|_| speeds.map(|speed| time_of(0.012 / speed)));
    let mut edges = Vec::new();
    for request in 0..requests {
        for stage in 1..stages {
            let to = request * stages + stage;
            edges.push(Edge {
                from: to - 1,
                to,
                bytes: 1_000_000,
            });
        }
    }
    let name = format!("{requests} requests, 8 stages, nodes of speed 1, 1.5, 2, 3");
    report(&name, parts(exec.collect(), edges, 1e-4, 1.25e9, |_| {})?)
}

/// Plans a mixture of experts: a router, eight experts at once, a sum; six layers, two equal
/// devices.
fn experts() -> Result<()> {
    let mut exec: Vec<Time> = Vec::new();
    let mut edges = Vec::new();
    for layer in 0..6 {
        let first = layer * 10;
        exec.extend([0.4e-3, 0.4e-3].map(time_of));
        for expert in 1..=8 {
            exec.extend([0.25e-3, 0.25e-3].map(time_of));
            edges.push(Edge {
                from: first,
                to: first + expert,
                bytes: 1 << 20,
            });
            edges.push(Edge {
                from: first + expert,
                to: first + 9,
                bytes: 1 << 20,
            });
        }
        exec.extend([0.1e-3, 0.1e-3].map(time_of));
        if layer > 0 {
            edges.push(Edge {
                from: first - 1,
                to: first,
                bytes: 1 << 20,
            });
        }
    }
    report(
        "mixture of experts, 6 layers, two equal devices",
        parts(exec, edges, 5e-6, 50e9, |_| {})?,
    )
}

fn chain(tasks: usize, bytes: f64) -> Vec<Edge> {
    let edge = |to: usize| Edge {
        from: to - 1,
        to,
        bytes: bytes as u64,
    };
    (1..tasks).map(edge).collect()
}

/// Returns a problem with one link between all pairs.
fn parts(
    exec: Vec<Time>,
    edges: Vec<Edge>,
    latency_seconds: f64,
    bytes_per_second: f64,
    more: impl FnOnce(&mut ProblemParts),
) -> Result<Problem> {
    let tasks = edges.iter().map(|edge| edge.to + 1).max().unwrap_or(1);
    let devices = exec.len() / tasks;
    let mut parts = ProblemParts {
        devices,
        exec,
        edges,
        latency: vec![time_of(latency_seconds); devices * devices],
        time_per_byte: vec![time_of(1.0 / bytes_per_second); devices * devices],
        ..ProblemParts::default()
    };
    more(&mut parts);
    Ok(Problem::new(parts)?)
}

fn report(name: &str, problem: Problem) -> Result<()> {
    let auto = find_planner("auto").ok_or("there is auto")?;
    let plan = auto(&problem, &mut step_pace(300_000))?;
    let fits = |device: usize| {
        let memory: u64 = (0..problem.task_count())
            .map(|task| problem.task_memory(task))
            .sum();
        memory <= problem.device_capacity(device)
            && (0..problem.task_count()).all(|task| problem.exec_time(task, device) != NEVER)
    };
    let alone = |device: usize| {
        (0..problem.task_count())
            .map(|task| problem.exec_time(task, device))
            .sum::<Time>()
    };
    let single = (0..problem.device_count())
        .filter(|&device| fits(device))
        .map(alone)
        .min();
    let mut used = plan.device.clone();
    used.sort_unstable();
    used.dedup();
    let ms = |time: Time| time as f64 / 1e9;
    match single {
        Some(single) => println!(
            "{name} | {:.1} | {:.1} | {:.2} | {}",
            ms(single),
            ms(plan.makespan),
            single as f64 / plan.makespan as f64,
            used.len()
        ),
        None => println!(
            "{name} | none fits | {:.1} | - | {}",
            ms(plan.makespan),
            used.len()
        ),
    }
    Ok(())
}

/// Plans a real graph over H100, TPU and EPYC.
fn model(path: &str, symbols: &[String]) -> Result<()> {
    let mut bindings = Bindings::with_assumed_extent(1);
    for symbol in symbols {
        let (name, extent) = symbol.split_once('=').ok_or("symbols look like batch=8")?;
        bindings = bindings.with_symbol(name, extent.parse()?);
    }
    let graph = Graph::import(std::fs::read(path)?.into(), &bindings)?;
    let offers: Vec<Offer> = DEVICES[..3].iter().map(offer).collect();
    let link = Link {
        latency_seconds: 5e-6,
        bytes_per_second: 50e9,
    };
    let tasks = GraphTasks::new(&graph, &offers, &Links::uniform(offers.len(), link))?;
    let name = std::path::Path::new(path)
        .file_stem()
        .and_then(|stem| stem.to_str());
    let name = format!(
        "{} ({} nodes, {} tasks)",
        name.unwrap_or(path),
        graph.nodes().len(),
        tasks.members.len()
    );
    report(&name, tasks.problem)?;
    as_a_buyer(&name, &graph, &offers, &Links::uniform(offers.len(), link))
}

/// Plans the same graph as a buyer: cut into parts that each hand over their results at their end.
fn as_a_buyer(name: &str, graph: &Graph, offers: &[Offer], links: &Links) -> Result<()> {
    let begin = Stopwatch::start();
    let plan = plan_graph(graph, offers, links, &PlanOptions::default())?;
    let took = begin.elapsed();
    let single = plan.best_single.ok_or("one of the devices holds it all")?;
    println!(
        "{name}, in {} parts, planned in {:.1} ms | {:.3} | {:.3} | {:.2} | {}",
        plan.parts.len(),
        took.as_secs_f64() * 1e3,
        single.makespan_seconds * 1e3,
        plan.makespan_seconds * 1e3,
        plan.speedup.unwrap_or(1.0),
        plan.used_offers().len()
    );
    Ok(())
}

fn offer(device: &(&str, f64, f64, u64)) -> Offer {
    Offer {
        label: format!("{} (emulated)", device.0),
        throughput: vec![Throughput {
            class: None,
            dtype: Some(DType::F32),
            flops_per_second: device.1,
        }],
        bytes_per_second: device.2,
        memory_bytes: device.3,
        launch_seconds: 2e-6,
        slowness: Slowness::default(),
        cost_per_second: 1.0,
        busy_watts: None,
        operators: Operators::All,
    }
}
