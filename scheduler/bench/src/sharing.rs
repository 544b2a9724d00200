//! Measures one operator shared by two unlike devices: the scheduler's share against the best one
//! of an exhaustive search.
//!
//! On real devices the search compiles and runs each share separately, which takes seconds if
//! software emulates the GPU. So it skips shares that cannot be best: if a device's expected time
//! for its share is far longer than the best time so far, a run would show nothing new.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::models::{MeasureError, Trial, Workload, build_workload, max_relative_difference};
use souk_scheduler::execution::{GroupDevice, Sharing};

/// Runs in which a device group learns the speed of its devices.
const LEARNING_RUNS: usize = 12;
/// Steps of the search: it tries every 64th part.
const SHARES: usize = 64;
/// Runs of each share, of which the shortest counts; the final shares run again in turn.
const ROUNDS: usize = 3;
const FINAL_ROUNDS: usize = 9;
/// A device must need only this part of the expected time for its share, because a smaller operator
/// can fit a cache.
const QUICKER_MAX: f64 = 0.75;

/// Two devices that share an operator.
pub struct Pair {
    /// Name of the pair.
    pub name: String,
    /// The devices of the pair, of which there must be two.
    pub members: Vec<GroupDevice>,
}

/// The result of sharing one operator between two devices.
#[derive(Clone, Debug, Serialize)]
pub struct SharingRow {
    /// Name of the pair.
    pub pair: String,
    /// Whether both devices are emulated: then times are theirs, not this machine's.
    pub emulated: bool,
    /// Name of the operator.
    pub operator: String,
    /// Milliseconds of the best single device.
    pub single_ms: f64,
    /// Label of the best single device.
    pub single: String,
    /// Whether the plan shares the operator, as it does if that saves a fifth of the time.
    pub shared: bool,
    /// Part of the first device in the plan after learning.
    pub chosen_part: f64,
    /// Milliseconds with that part, or of the best single device if the plan does not share.
    pub chosen_ms: f64,
    /// Part of the first device in the best share that the search found.
    pub best_part: f64,
    /// Milliseconds with that best part.
    pub best_ms: f64,
    /// Number of shares that the search ran, of 63; it skipped the others.
    pub tried: usize,
    /// The chosen time divided by the best.
    pub to_best: f64,
    /// The part of the best single device's time that sharing saves.
    pub gain: f64,
    /// Bytes that the run copied to join the output.
    pub joined_bytes: u64,
    /// Largest difference to the output of one device, relative to that output's largest value.
    pub apart: f64,
}

/// The progress of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct SharingStep<'a> {
    /// Name of the pair.
    pub pair: &'a str,
    /// Name of the operator.
    pub operator: &'a str,
    /// The stage that begins now.
    pub stage: SharingStage,
}

/// A stage of the measurement of one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingStage {
    /// Each device runs the operator alone.
    Alone,
    /// The device group learns the speed of its devices.
    Learning,
    /// The search runs a share.
    Searching {
        /// Number of shares that ran before.
        tried: usize,
    },
    /// The chosen share, the best one and the best single device run in turn.
    Judging,
}

/// Returns the operators to share: a product of many rows, one of a single row and many channels, a
/// convolution of a batch and one of a single image.
fn sharing_workloads() -> Vec<Workload> {
    let product: &[(&str, &[&str], &str)] = &[("MatMul", &["x", "w"], "y")];
    let convolution: &[(&str, &[&str], &str)] = &[("Conv", &["x", "w"], "y")];
    let taps: &[(&str, &[usize])] = &[("w", &[64, 64, 3, 3])];
    vec![
        build_workload(
            "product 1024 x 1024 x 1024",
            product,
            &[1024, 1024],
            &[("w", &[1024, 1024])],
        ),
        build_workload(
            "product of one row, 1 x 4096 x 4096",
            product,
            &[1, 4096],
            &[("w", &[4096, 4096])],
        ),
        build_workload(
            "convolution of 16 images",
            convolution,
            &[16, 64, 56, 56],
            taps,
        ),
        build_workload(
            "convolution of one image",
            convolution,
            &[1, 64, 112, 112],
            taps,
        ),
    ]
}

/// Measures every operator on every pair of devices. It calls `told` at the start of each stage, so
/// that you can show the progress.
///
/// # Errors
/// [`MeasureError`] if a run fails or results differ.
pub fn measure_sharing(
    pairs: &[Pair],
    told: &mut dyn FnMut(SharingStep<'_>),
) -> Result<Vec<SharingRow>, MeasureError> {
    let mut rows = Vec::new();
    for pair in pairs {
        for operator in &sharing_workloads() {
            let mut told = |stage| {
                told(SharingStep {
                    pair: &pair.name,
                    operator: &operator.name,
                    stage,
                });
            };
            rows.push(measure_pair(pair, operator, &mut told)?);
        }
    }
    Ok(rows)
}

/// The best share that the search found.
struct BestShares {
    time: Duration,
    part: f64,
    trial: Trial,
    tried: usize,
}

fn measure_pair(
    pair: &Pair,
    operator: &Workload,
    told: &mut dyn FnMut(SharingStage),
) -> Result<SharingRow, MeasureError> {
    told(SharingStage::Alone);
    let alone =
        |member: &GroupDevice| Trial::new(std::slice::from_ref(member), operator, Sharing::Never);
    let singles = [alone(&pair.members[0])?, alone(&pair.members[1])?];
    let expected = singles[0].run()?;
    let times = [singles[0].best_of(ROUNDS)?, singles[1].best_of(ROUNDS)?];
    let single = usize::from(times[1] < times[0]);
    told(SharingStage::Learning);
    let chosen = Trial::new(&pair.members, operator, Sharing::WhereItPays)?;
    let mut ran = chosen.run()?;
    for _ in 1..LEARNING_RUNS {
        ran = chosen.run()?;
    }
    let apart = max_relative_difference(operator, &ran, &expected)?;
    let shared = ran.report.joined_bytes > 0;
    let best = search(pair, operator, times, told)?;
    let chosen_part = if shared {
        part_of_first(pair, &ran)
    } else {
        (1 - single) as f64
    };
    told(SharingStage::Judging);
    // All three run equally often and in turn, so that other load on the machine affects each of
    // them.
    let fixed = if shared {
        Some(trial_with_share(pair, operator, chosen_part)?)
    } else {
        None
    };
    let mut finals = [Duration::MAX; 3];
    for _ in 0..FINAL_ROUNDS {
        finals[0] = finals[0].min(fixed.as_ref().unwrap_or(&singles[single]).best_of(1)?);
        finals[1] = finals[1].min(best.trial.best_of(1)?);
        finals[2] = finals[2].min(singles[single].best_of(1)?);
    }
    let [chosen_time, best_time, single_time] = finals.map(|time| time.as_secs_f64() * 1e3);
    // The best single device counts as a share as well.
    let best_time = best_time.min(single_time);
    Ok(SharingRow {
        pair: pair.name.clone(),
        emulated: is_emulated(pair),
        operator: operator.name.clone(),
        single_ms: single_time,
        single: pair.members[single].label.clone(),
        shared,
        chosen_part,
        chosen_ms: chosen_time,
        best_part: best.part,
        best_ms: best_time,
        tried: best.tried,
        to_best: chosen_time / best_time,
        gain: 1.0 - chosen_time / single_time,
        joined_bytes: ran.report.joined_bytes,
        apart,
    })
}

/// Runs the shares, the likeliest first, until a device's expected part takes too long.
fn search(
    pair: &Pair,
    operator: &Workload,
    alone: [Duration; 2],
    told: &mut dyn FnMut(SharingStage),
) -> Result<BestShares, MeasureError> {
    let emulated = is_emulated(pair);
    // Emulated times depend on nothing but the share.
    let rounds = if emulated { 1 } else { ROUNDS };
    let mut shares: Vec<(Duration, f64)> = (1..SHARES)
        .map(|step| step as f64 / SHARES as f64)
        .map(|part| (least_time(part, alone), part))
        .collect();
    shares.sort_by_key(|(least, _)| *least);
    let mut best: Option<BestShares> = None;
    let mut tried = 0;
    for (least, part) in shares {
        let seen = best.as_ref().map_or(Duration::MAX, |best| best.time);
        let seen = seen.min(alone[0]).min(alone[1]);
        if !emulated && best.is_some() && least.mul_f64(QUICKER_MAX) > seen {
            break;
        }
        told(SharingStage::Searching { tried });
        let trial = trial_with_share(pair, operator, part)?;
        let time = trial.best_of(rounds)?;
        tried += 1;
        if best.as_ref().is_none_or(|best| time < best.time) {
            best = Some(BestShares {
                time,
                part,
                trial,
                tried,
            });
        }
    }
    let mut best = best.expect("the likeliest share is always run");
    best.tried = tried;
    Ok(best)
}

/// Returns the least time of both devices, if each needs its part of its time alone.
fn least_time(part: f64, alone: [Duration; 2]) -> Duration {
    alone[0].mul_f64(part).max(alone[1].mul_f64(1.0 - part))
}

fn trial_with_share(pair: &Pair, operator: &Workload, part: f64) -> Result<Trial, MeasureError> {
    let parts = Sharing::Given(vec![part, 1.0 - part]);
    Trial::new(&pair.members, operator, parts)
}

fn is_emulated(pair: &Pair) -> bool {
    let mut devices = pair.members.iter().map(|member| &member.processor);
    devices.all(|device| device.profile().emulated)
}

/// Returns the part of the output that the first device computed.
fn part_of_first(pair: &Pair, ran: &souk_scheduler::execution::RunResult) -> f64 {
    let out = |place: usize| {
        let name = &pair.members[place].label;
        let named = |(device, _): &(&String, _)| device.starts_with(name.as_str());
        let found = ran.report.devices.iter().find(named);
        found.map_or(0.0, |(_, device)| device.bytes_out as f64)
    };
    out(0) / (out(0) + out(1))
}

impl fmt::Display for SharingStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: ", self.pair, self.operator)?;
        match self.stage {
            SharingStage::Alone => f.write_str("each device alone"),
            SharingStage::Learning => f.write_str("the device_group learns"),
            SharingStage::Searching { tried } => write!(f, "share {} is tried", tried + 1),
            SharingStage::Judging => f.write_str("chosen, best and alone in turn"),
        }
    }
}
