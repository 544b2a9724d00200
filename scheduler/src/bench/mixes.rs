//! Unlike devices together: how long a run takes beside the best single device and beside what the
//! plan expected.

use std::time::Duration;

use serde::Serialize;

use super::models::{MeasureError, Trial, Workload, compare, workload};
use crate::run::{Member, Ran, Sharing};

/// Runs in which a team learns how fast its devices are.
const LEARNING_RUNS: usize = 10;
/// Runs of each that are then measured, in turn; the shortest counts.
const ROUNDS: usize = 7;

/// Devices that run together.
pub struct Mix {
    /// What they are called together.
    pub name: String,
    /// The devices.
    pub members: Vec<Member>,
}

/// One workload on one mix.
#[derive(Clone, Debug, Serialize)]
pub struct MixRow {
    /// The devices.
    pub mix: String,
    /// Whether all are emulated: then times are theirs, not this machine's.
    pub emulated: bool,
    /// The workload.
    pub workload: String,
    /// Milliseconds of the best single device, measured.
    pub single_ms: f64,
    /// Its name.
    pub single: String,
    /// Milliseconds of the mix, measured.
    pub makespan_ms: f64,
    /// Milliseconds the plan expected of the shortest run, after learning.
    pub expected_ms: f64,
    /// Best single device over mix: what mixing gains.
    pub speedup: f64,
    /// Measured over expected: the median of the rounds, each by what was known before it.
    pub to_expected: f64,
    /// Devices that took part.
    pub devices: usize,
    /// Joules, measured or modelled, of the devices that state them.
    pub joules: f64,
}

/// A mixture of experts, a wide product, and a chain of products.
#[must_use]
pub fn workloads() -> Vec<Workload> {
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
        workload("three experts", experts, &[512, 1024], &weights),
        workload("two products", chain, &[1024, 1024], &weights[..2]),
    ]
}

/// Runs every workload on every mix.
///
/// # Errors
/// [`MeasureError`]: what failed, or results that differ.
pub fn mixes(mixes: &[Mix], workloads: &[Workload]) -> Result<Vec<MixRow>, MeasureError> {
    let mut rows = Vec::new();
    for mix in mixes {
        for workload in workloads {
            rows.extend(run(mix, workload)?);
        }
    }
    Ok(rows)
}

/// None if no single device runs the workload: there is nothing to compare with.
fn run(mix: &Mix, workload: &Workload) -> Result<Option<MixRow>, MeasureError> {
    let mut singles = Vec::new();
    for member in &mix.members {
        let trial = Trial::new(std::slice::from_ref(member), workload, Sharing::Never)?;
        // A device that has not the operators or the room is no rival.
        if let Ok(ran) = trial.run() {
            singles.push((ran.makespan, member.label.clone(), trial, ran));
        }
    }
    singles.sort_by_key(|(time, ..)| *time);
    let Some((_, single, alone, expected)) = singles.first() else {
        return Ok(None);
    };
    let team = Trial::new(&mix.members, workload, Sharing::WhereItPays)?;
    for _ in 0..LEARNING_RUNS {
        team.run()?;
    }
    let (mut single_time, mut best) = (Duration::MAX, None);
    let mut to_expected = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        single_time = single_time.min(alone.run()?.makespan);
        let ran = team.run()?;
        to_expected.push(ran.makespan.as_secs_f64() * 1e3 / expected_ms(&ran));
        let shorter = |held: &Ran| ran.makespan < held.makespan;
        if best.as_ref().is_none_or(shorter) {
            best = Some(ran);
        }
    }
    let ran = best.expect("there are rounds");
    compare(workload, &ran, expected)?;
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
        joules: ran.report.joules(),
    }))
}

/// Milliseconds that the plan of a run expected.
fn expected_ms(ran: &Ran) -> f64 {
    let against = ran.report.against.as_ref();
    against.map_or(f64::NAN, |against| against.expected_micros as f64 / 1e3)
}
