//! Measures groups of unlike devices: the time of a run on all of them against the best single
//! device and against the plan's expectation.

use std::time::Duration;

use serde::Serialize;
use souk_memory::{DType, Tensor};

use super::models::{
    MeasureError, Trial, Workload, build_node, build_workload, max_relative_difference, workload_of,
};
use souk_scheduler::execution::{GroupDevice, RunResult, Sharing};

/// Runs in which a device group learns the speed of its devices.
const LEARNING_RUNS: usize = 10;
/// Measured runs after that, in turn with the single device; the shortest counts.
const ROUNDS: usize = 7;

/// A group of devices that run a workload together.
pub struct Mix {
    /// Name of the mix.
    pub name: String,
    /// The devices of the mix, which should be unlike.
    pub members: Vec<GroupDevice>,
}

/// The result of one workload on one mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixRow {
    /// Name of the mix.
    pub mix: String,
    /// Whether all devices are emulated: then times are theirs, not this machine's.
    pub emulated: bool,
    /// Name of the workload.
    pub workload: String,
    /// Measured milliseconds of the best single device.
    pub single_ms: f64,
    /// Label of the best single device.
    pub single: String,
    /// Measured milliseconds of the mix.
    pub makespan_ms: f64,
    /// Milliseconds that the plan expected of the shortest run, after learning.
    pub expected_ms: f64,
    /// Time of the best single device divided by the mix's: the gain of mixing.
    pub speedup: f64,
    /// Median over the rounds of measured time divided by expected time; each expectation uses the
    /// knowledge before its round.
    pub to_expected: f64,
    /// Number of devices that took part.
    pub devices: usize,
    /// Measured or modelled joules of the devices that can report them.
    pub joules: f64,
}

/// Returns the workloads: a mixture of experts, a chain of products, and experts in 8-bit integers.
#[must_use]
pub fn mix_workloads() -> Vec<Workload> {
    let experts: &[(&str, &[&str], &str)] = &[
        ("MatMul", &["x", "a"], "a1"),
        ("Relu", &["a1"], "a2"),
        ("MatMul", &["a2", "b"], "a3"),
        ("MatMul", &["x", "c"], "b1"),
        ("Relu", &["b1"], "b2"),
        ("MatMul", &["b2", "d"], "b3"),
        ("MatMul", &["x", "e"], "c1"),
        ("Relu", &["c1"], "c2"),
        ("MatMul", &["c2", "f"], "c3"),
        ("Add", &["a3", "b3"], "s"),
        ("Add", &["s", "c3"], "y"),
    ];
    let side: &[usize] = &[1024, 1024];
    let weights: Vec<(&str, &[usize])> = ["a", "b", "c", "d", "e", "f"]
        .map(|name| (name, side))
        .to_vec();
    let chain: &[(&str, &[&str], &str)] = &[
        ("MatMul", &["x", "a"], "h"),
        ("Softmax", &["h"], "p"),
        ("MatMul", &["p", "b"], "y"),
    ];
    vec![
        build_workload("three experts", experts, &[512, 1024], &weights),
        build_workload("two products", chain, &[1024, 1024], &weights[..2]),
        experts_of_bytes(),
    ]
}

/// Returns experts in 8-bit integers, which every kind of processor supports, for a single row, as
/// in a model that generates text. Their time is the time to read their weights, and the weights
/// exceed the smallest memory of the mixes.
fn experts_of_bytes() -> Workload {
    let sides = [BYTE_EXPERT_SIDE; 2];
    let mut weights = Vec::with_capacity(BYTE_EXPERTS);
    let (mut nodes, mut sum) = (Vec::new(), None::<String>);
    for expert in 1..=BYTE_EXPERTS {
        let (weight, made) = (format!("weight{expert}"), format!("made{expert}"));
        nodes.push(build_node("MatMulInteger", &["x", &weight], &made));
        weights.push((weight, bytes(sides, expert)));
        sum = Some(match sum {
            None => made,
            Some(sum) => {
                let total = format!("sum{expert}");
                nodes.push(build_node("Add", &[&sum, &made], &total));
                total
            }
        });
    }
    let x = bytes([1, BYTE_EXPERT_SIDE], 1);
    workload_of("experts of bytes", nodes, DType::I32, x, weights)
}

/// Number of experts in [`experts_of_bytes`], and the sides of their weights, 16 MiB each.
const BYTE_EXPERTS: usize = 18;
const BYTE_EXPERT_SIDE: usize = 4096;

/// Returns values from -9 to 9 that differ for each step below 19.
fn bytes(dims: [usize; 2], step: usize) -> Tensor {
    let value = |at: usize| (at * step % 19) as i8 - 9;
    let pattern: Vec<i8> = (0..19).map(value).collect();
    let count = dims[0] * dims[1];
    let mut values = pattern.repeat(count.div_ceil(pattern.len()));
    values.truncate(count);
    Tensor::from_vec(dims, values).expect("there is a value for each place")
}

/// Runs every workload on every mix.
///
/// # Errors
/// [`MeasureError`] if a run fails or results differ.
pub fn measure_mixes(mixes: &[Mix], workloads: &[Workload]) -> Result<Vec<MixRow>, MeasureError> {
    let mut rows = Vec::new();
    for mix in mixes {
        for workload in workloads {
            rows.extend(run(mix, workload)?);
        }
    }
    Ok(rows)
}

/// Runs a workload on a mix. Returns none if no single device can run it, because there is nothing
/// to compare with.
fn run(mix: &Mix, workload: &Workload) -> Result<Option<MixRow>, MeasureError> {
    let mut singles = Vec::new();
    for member in &mix.members {
        let trial = Trial::new(std::slice::from_ref(member), workload, Sharing::Never)?;
        // A device without the operators or the room does not compete.
        if let Ok(ran) = trial.run() {
            singles.push((ran.makespan, member.label.clone(), trial, ran));
        }
    }
    singles.sort_by_key(|(time, ..)| *time);
    let Some((_, single, alone, expected)) = singles.first() else {
        return Ok(None);
    };
    let device_group = Trial::new(&mix.members, workload, Sharing::WhereItPays)?;
    for _ in 0..LEARNING_RUNS {
        device_group.run()?;
    }
    let (mut single_time, mut best) = (Duration::MAX, None);
    let mut to_expected = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        single_time = single_time.min(alone.run()?.makespan);
        let ran = device_group.run()?;
        to_expected.push(ran.makespan.as_secs_f64() * 1e3 / expected_ms(&ran));
        let shorter = |held: &RunResult| ran.makespan < held.makespan;
        if best.as_ref().is_none_or(shorter) {
            best = Some(ran);
        }
    }
    let ran = best.expect("there are rounds");
    max_relative_difference(workload, &ran, expected)?;
    to_expected.sort_by(f64::total_cmp);
    let makespan_ms = ran.makespan.as_secs_f64() * 1e3;
    let single_ms = single_time.as_secs_f64() * 1e3;
    Ok(Some(MixRow {
        mix: mix.name.clone(),
        emulated: mix
            .members
            .iter()
            .all(|member| member.processor.profile().emulated),
        workload: workload.name.clone(),
        single_ms,
        single: single.clone(),
        makespan_ms,
        expected_ms: expected_ms(&ran),
        speedup: single_ms / makespan_ms,
        to_expected: to_expected[ROUNDS / 2],
        devices: ran.report.devices.len(),
        joules: ran.report.total_joules(),
    }))
}

/// Returns the milliseconds that the plan of a run expected.
fn expected_ms(ran: &RunResult) -> f64 {
    let against = ran.report.against.as_ref();
    against.map_or(f64::NAN, |against| against.expected_micros as f64 / 1e3)
}
