//! Measures the CPU and devices with their own memory: arithmetic, memory bandwidth, and the time
//! to launch (start) an operator.
//!
//! The measurement is quick (below two seconds), because a provider measures when it starts. It
//! runs souk's own kernels, so the figures are the speed that a buyer gets, not the limit of the
//! hardware. The best of several runs counts, without the time that a run waits for a core, because
//! other work shares the machine.

mod undisturbed;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use souk_cpu::Cpu;
use souk_host::discover::CpuDescription;
use souk_memory::{DType, F16, Tensor};
use souk_onnx::subgraph::Subgraph;
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto, encode_model,
};
use souk_vocabulary::processor::{Estimate, Processor, Program, WorkError};
use souk_vocabulary::profile::{self, Memory, Profile, Throughput};
use souk_vocabulary::taxonomy::{MemoryKind, ProcessorKind, Trait};

use undisturbed::CpuTimeScope;

/// Side of the square matrices, which must be large enough for arithmetic to limit the product.
const MATRIX_SIDE: usize = 512;
/// Time to spend on products of matrices.
const ARITHMETIC_TIME: Duration = Duration::from_millis(400);
/// Side of the matrices of 64-bit floats, which take longer.
const EXACT_SIDE: usize = 128;
/// Time to spend on products of 64-bit floats.
const EXACT_TIME: Duration = Duration::from_millis(100);
/// Time to spend on copies of memory.
const BANDWIDTH_TIME: Duration = Duration::from_millis(250);
/// Total bytes of all copy buffers, over all threads: larger than caches, and small compared with
/// the memory of any machine that sells compute.
const COPY_BYTES: usize = 256 << 20;
/// Operators in the chain that measures the time of one.
const CHAIN: usize = 64;

/// Side of the squares of mixed work, as large as a small model's activations.
const MIXED_SIDE: usize = 192;
/// Layers of mixed work, and operators in each.
const MIXED_LAYERS: usize = 4;
const MIXED_STEPS: usize = 5;
/// Time to spend on mixed work.
const MIXED_TIME: Duration = Duration::from_millis(150);

/// The measured figures of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuMeasurement {
    /// Number of threads in the measurement.
    pub threads: NonZeroUsize,
    /// 32-bit floating-point operations per second of a matrix product.
    pub f32_operations_per_second: f64,
    /// 64-bit floating-point operations per second. The reference kernels compute every float type
    /// except 32 bits in this type.
    pub f64_operations_per_second: f64,
    /// Bytes read and written per second by copies.
    pub bytes_per_second: f64,
    /// Seconds of an operator with almost no work.
    pub launch_seconds: f64,
}

/// Measures this machine's CPU with `threads` threads, in less than two seconds.
#[must_use]
pub fn measure_cpu(description: &CpuDescription, threads: NonZeroUsize) -> CpuMeasurement {
    let blank = CpuMeasurement {
        threads,
        f32_operations_per_second: 0.0,
        f64_operations_per_second: 0.0,
        bytes_per_second: f64::INFINITY,
        launch_seconds: 0.0,
    };
    let cpu = Cpu::new(cpu_profile(description, &blank), threads);
    CpuMeasurement {
        threads,
        f32_operations_per_second: arithmetic_rate(&cpu, threads),
        f64_operations_per_second: exact_arithmetic(&cpu),
        bytes_per_second: copy_bandwidth(threads),
        launch_seconds: measure_launch(&cpu, threads),
    }
}

/// Measures the share of its figures that a CPU reaches on mixed work: products of medium size,
/// with reductions and elementwise functions between, as in models. Uses wall time, because a job
/// also waits for the machine's other work. Returns at most 1.
///
/// # Errors
/// [`WorkError`] if the backend fails on an operator that it has.
pub fn measure_mixed_share(cpu: &Cpu) -> Result<f64, WorkError> {
    let mut nodes = Vec::new();
    for layer in 0..MIXED_LAYERS {
        let names = |step: usize| value(layer * MIXED_STEPS + step);
        let last = names(0);
        nodes.push(NodeProto::for_operator("MatMul", &[&last, "x"], &names(1)));
        nodes.push(NodeProto::for_operator("Softmax", &[&names(1)], &names(2)));
        nodes.push(NodeProto::for_operator("Erf", &[&names(2)], &names(3)));
        nodes.push(NodeProto::for_operator("Mul", &[&names(3), "x"], &names(4)));
        nodes.push(NodeProto::for_operator("Add", &[&names(4), "x"], &names(5)));
    }
    let output = value(MIXED_LAYERS * MIXED_STEPS);
    let subgraph = square_subgraph(nodes, &output, MIXED_SIDE, DType::F32);
    let values = vec![0.5_f32; MIXED_SIDE * MIXED_SIDE];
    let input = Tensor::from_vec([MIXED_SIDE, MIXED_SIDE], values).expect("a square is full");
    let inputs = BTreeMap::from([("x".to_owned(), input.clone())]);
    let works = cpu.work_of(&subgraph, &inputs)?;
    let each = works
        .iter()
        .map(|work| Estimate::for_work(work, cpu.profile()).time);
    let expected: Duration = each.sum();
    let program = cpu.compile(&subgraph)?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || begin.elapsed() < MIXED_TIME {
        let start = Instant::now();
        run(&*program, &input);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let middle = times[times.len() / 2].as_secs_f64().max(1e-9);
    Ok((expected.as_secs_f64() / middle).min(1.0))
}

/// Returns the profile of a measured CPU.
#[must_use]
pub fn cpu_profile(description: &CpuDescription, measured: &CpuMeasurement) -> Profile {
    let rate = |operations_per_second| Throughput {
        operations_per_second,
        sparse: false,
        measured: true,
    };
    let exact = measured.f64_operations_per_second;
    let others = [DType::F64, DType::F16, DType::Bf16].map(|dtype| (dtype, rate(exact)));
    let mut throughput = BTreeMap::from(others);
    throughput.insert(DType::F32, rate(measured.f32_operations_per_second));
    Profile {
        name: profile::CPU.to_owned(),
        vendor: description.vendor.clone(),
        model: description.model.clone(),
        kind: ProcessorKind::Cpu {
            isa: description.isa,
        },
        emulated: false,
        memory: Memory {
            kind: MemoryKind::Unknown,
            bytes: description.memory_bytes.unwrap_or(0),
            bytes_per_second: measured.bytes_per_second,
        },
        throughput,
        launch: Duration::try_from_secs_f64(measured.launch_seconds).unwrap_or_default(),
        power: None,
        traits: vec![Trait::Sequential, Trait::LowLatency, Trait::VariableLength],
        source: format!(
            "measured: {MATRIX_SIDE}-square f32 product, copy within {} MiB, chain of \
             {CHAIN} operators; {} threads; best run",
            COPY_BYTES >> 20,
            measured.threads
        ),
    }
}

/// The measured figures of a device with its own memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// 32-bit floating-point operations per second of a matrix product.
    pub f32_operations_per_second: f64,
    /// Bytes read and written per second by an elementwise operator.
    pub bytes_per_second: f64,
    /// Seconds of an operator with almost no work.
    pub launch_seconds: f64,
    /// Bytes per second to the device and back.
    pub link_bytes_per_second: f64,
    /// Description of the measurement.
    pub method: String,
}

impl Measurement {
    /// Writes the figures into a profile; `also` are types that run as fast as 32-bit floats.
    pub fn write_to_profile(&self, profile: &mut Profile, also: &[DType]) {
        let rate = Throughput {
            operations_per_second: self.f32_operations_per_second,
            sparse: false,
            measured: true,
        };
        let types = also.iter().chain([&DType::F32]);
        profile.throughput.extend(types.map(|&dtype| (dtype, rate)));
        profile.memory.bytes_per_second = self.bytes_per_second;
        profile.launch = Duration::try_from_secs_f64(self.launch_seconds).unwrap_or_default();
        profile.source = format!("measured: {}; {}", self.method, profile.source);
    }
}

/// Operators in the longer of the two chains that are compared.
const LONG_CHAIN: usize = 9;
/// Side of the square for elementwise operators: 16 MiB, larger than the caches of most devices.
const PASS_SIDE: usize = 2048;
/// Threads of this process that serve a device with its own processors.
const LAUNCHING: NonZeroUsize = NonZeroUsize::MIN;
/// Time to spend on each chain.
const CHAIN_TIME: Duration = Duration::from_millis(150);

/// Measures a device, which must support 32-bit floats, in about a second. Compares a long chain of
/// operators with a short one, to subtract the time of the link to the device and back.
#[must_use]
pub fn measure_processor(device: &dyn Processor) -> Measurement {
    let (pass_seconds, once) = link_of_chain(device, PASS_SIDE, DType::F32, &alternating_node);
    let launching = (device, LAUNCHING, DType::F32);
    let launch_seconds = time_chain(
        launching.0,
        launching.1,
        launching.2,
        1,
        CHAIN,
        &alternating_node,
    ) / CHAIN as f64;
    let bytes = 8.0 * (PASS_SIDE as f64).powi(2);
    Measurement {
        f32_operations_per_second: product_rate(device, DType::F32),
        bytes_per_second: bytes / pass_seconds.max(1e-9),
        launch_seconds,
        link_bytes_per_second: bytes / (once - pass_seconds).max(1e-9),
        method: format!(
            "{MATRIX_SIDE}-square f32 product, pass over {} MiB, chain of {CHAIN} operators; best \
             run",
            (4 * PASS_SIDE * PASS_SIDE) >> 20
        ),
    }
}

/// Returns the operations per second of a product of matrices of a type, by the same comparison.
/// The device must support the type.
#[must_use]
pub fn product_rate(device: &dyn Processor, dtype: DType) -> f64 {
    let product =
        |index: usize| NodeProto::for_operator("MatMul", &["x", &value(index)], &value(index + 1));
    let (seconds, _) = link_of_chain(device, MATRIX_SIDE, dtype, &product);
    2.0 * (MATRIX_SIDE as f64).powi(3) / seconds.max(1e-9)
}

/// Returns the seconds of one operator in a long chain, and of one alone including the link.
fn link_of_chain(
    device: &dyn Processor,
    side: usize,
    dtype: DType,
    node: &dyn Fn(usize) -> NodeProto,
) -> (f64, f64) {
    let long = time_chain(device, LAUNCHING, dtype, side, LONG_CHAIN, node);
    let short = time_chain(device, LAUNCHING, dtype, side, 1, node);
    ((long - short) / (LONG_CHAIN - 1) as f64, short)
}

fn value(index: usize) -> String {
    if index == 0 {
        "x".to_owned()
    } else {
        format!("v{index}")
    }
}

/// Returns one of two functions in turn, so that no optimiser pass merges a chain of them.
fn alternating_node(index: usize) -> NodeProto {
    let operator = if index.is_multiple_of(2) {
        "Sin"
    } else {
        "Abs"
    };
    NodeProto::for_operator(operator, &[&value(index)], &value(index + 1))
}

/// Returns the seconds of a chain of operators on a square.
fn time_chain(
    device: &dyn Processor,
    threads: NonZeroUsize,
    dtype: DType,
    side: usize,
    length: usize,
    node: &dyn Fn(usize) -> NodeProto,
) -> f64 {
    let nodes = (0..length).map(node).collect();
    let program = compile_square(device, nodes, &value(length), side, dtype);
    let values = (0..side * side).map(|it| (it % 17) as f32 / 1e3);
    let square = match dtype {
        DType::F16 => Tensor::from_vec([side, side], values.map(F16::from_f32).collect()),
        _ => Tensor::from_vec([side, side], values.collect()),
    };
    let square = square.expect("a square of its elements");
    best_of(CHAIN_TIME, CpuTimeScope::Process(threads), || {
        run(&*program, &square)
    })
}

/// Returns the operations per second of a matrix product.
fn arithmetic_rate(cpu: &dyn Processor, threads: NonZeroUsize) -> f64 {
    let nodes = vec![NodeProto::for_operator("MatMul", &["x", "x"], "y")];
    let side = MATRIX_SIDE;
    let program = compile_square(cpu, nodes, "y", side, DType::F32);
    let values = (0..side * side)
        .map(|index| (index % 17) as f32 / 17.0)
        .collect();
    let matrix = Tensor::from_vec([side, side], values).expect("a square of its elements");
    let seconds = best_of(ARITHMETIC_TIME, CpuTimeScope::Process(threads), || {
        run(&*program, &matrix)
    });
    2.0 * (side as f64).powi(3) / seconds
}

/// Returns the operations per second of a product of 64-bit floats, which the reference kernels
/// compute on the caller's thread.
fn exact_arithmetic(cpu: &dyn Processor) -> f64 {
    let nodes = vec![NodeProto::for_operator("MatMul", &["x", "x"], "y")];
    let program = compile_square(cpu, nodes, "y", EXACT_SIDE, DType::F64);
    let values = (0..EXACT_SIDE * EXACT_SIDE)
        .map(|index| (index % 17) as f64 / 17.0)
        .collect();
    let matrix = Tensor::from_vec([EXACT_SIDE; 2], values).expect("a square of its elements");
    let seconds = best_of(EXACT_TIME, CpuTimeScope::Thread, || run(&*program, &matrix));
    2.0 * (EXACT_SIDE as f64).powi(3) / seconds
}

/// Returns the bytes read and written per second when all threads copy at once.
fn copy_bandwidth(threads: NonZeroUsize) -> f64 {
    let bytes = COPY_BYTES / 2 / threads.get();
    let copy = || {
        let from = vec![1u8; bytes];
        let mut to = vec![2u8; bytes];
        best_of(BANDWIDTH_TIME, CpuTimeScope::Thread, || {
            to.copy_from_slice(black_box(&from));
            black_box(&to);
        })
    };
    let seconds: Vec<f64> = std::thread::scope(|scope| {
        let copies: Vec<_> = (0..threads.get()).map(|_| scope.spawn(copy)).collect();
        copies
            .into_iter()
            .filter_map(|copy| copy.join().ok())
            .collect()
    });
    seconds
        .iter()
        .map(|seconds| 2.0 * bytes as f64 / seconds)
        .sum()
}

/// Returns the seconds of one operator in a chain of operators on one element each.
fn measure_launch(cpu: &dyn Processor, threads: NonZeroUsize) -> f64 {
    time_chain(cpu, threads, DType::F32, 1, CHAIN, &alternating_node) / CHAIN as f64
}

/// Compiles a program from a square `x` to `output`, both of one type.
fn compile_square(
    device: &dyn Processor,
    nodes: Vec<NodeProto>,
    output: &str,
    side: usize,
    dtype: DType,
) -> Box<dyn Program> {
    device
        .compile(&square_subgraph(nodes, output, side, dtype))
        .expect("the backend has its own operators")
}

/// Returns nodes from a square `x` to `output` as a subgraph.
fn square_subgraph(nodes: Vec<NodeProto>, output: &str, side: usize, dtype: DType) -> Subgraph {
    let port = |name: &str| {
        let dims = vec![Dimension::new_fixed(side as i64); 2];
        ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims))
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto {
            domain: None,
            version: Some(17),
        }],
        graph: Some(GraphProto {
            node: nodes,
            name: Some("measure".to_owned()),
            input: vec![port("x")],
            output: vec![port(output)],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    };
    Subgraph {
        model: encode_model(&model),
        weights: BTreeMap::new(),
    }
}

fn run(program: &dyn Program, input: &Tensor) {
    let inputs = BTreeMap::from([("x".to_owned(), input.clone())]);
    black_box(
        program
            .run(&inputs)
            .expect("the model above takes this input"),
    );
}

/// Returns the seconds of the fastest run among as many as fit into `time`, at least two.
fn best_of(time: Duration, whose: CpuTimeScope, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 2 || start.elapsed() < time {
        best = best.min(whose.time_work(&mut work).as_secs_f64());
        runs += 1;
    }
    best.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_cpu_computes_copies_and_launches() {
        let description = souk_host::discover::describe_cpu();
        let measured = measure_cpu(&description, NonZeroUsize::MIN);
        assert!(measured.f32_operations_per_second > 1e6, "{measured:?}");
        let exact = measured.f64_operations_per_second;
        assert!(
            exact > 1e6 && exact < measured.f32_operations_per_second,
            "{measured:?}"
        );
        assert!(measured.bytes_per_second > 1e6, "{measured:?}");
        assert!(measured.launch_seconds < 1e-2, "{measured:?}");
        let profile = cpu_profile(&description, &measured);
        assert!(!profile.emulated);
        assert!(profile.throughput[&DType::F32].measured);
        let share = measure_mixed_share(&Cpu::new(profile, NonZeroUsize::MIN)).unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
    }
}
