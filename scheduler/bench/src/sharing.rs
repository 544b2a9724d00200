//! One operator shared by two unlike devices: the shares that were chosen beside the best ones of
//! an exhaustive search.
//!
//! Each share of a real pair is compiled and run anew, for seconds where a GPU is made of software.
//! So what cannot be best is ruled out: a device needs its part of the time it takes alone, and
//! where that is far over the best that was seen, nothing is learnt by waiting for it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::models::{MeasureError, Trial, Workload, compare, workload};
use souk_scheduler::execution::{GroupDevice, Sharing};

/// Runs in which a device_group learns how fast its devices are.
const LEARNING_RUNS: usize = 12;
/// Shares that the search tries: every 64th part.
const SHARES: usize = 64;
/// Runs of each share, the shortest of which counts; the ones that matter are run again in turn.
const ROUNDS: usize = 3;
const FINAL_ROUNDS: usize = 9;
/// A device may make a part of an operator in so much of what its time alone promises: what fits a
/// cache is quicker.
const QUICKER_MAX: f64 = 0.75;

/// Two devices that share.
pub struct Pair {
    /// What they are called together.
    pub name: String,
    /// The two.
    pub members: Vec<GroupDevice>,
}

/// What sharing one operator between two devices gave.
#[derive(Clone, Debug, Serialize)]
pub struct SharingRow {
    /// The devices.
    pub pair: String,
    /// Whether both are emulated: then times are theirs, not this machine's.
    pub emulated: bool,
    /// The operator.
    pub operator: String,
    /// Milliseconds of the best single device.
    pub single_ms: f64,
    /// Its name.
    pub single: String,
    /// Whether the plan shared it, as it does where that saves a fifth.
    pub shared: bool,
    /// The first device's part, as planned after learning.
    pub chosen_part: f64,
    /// Milliseconds with it, or of the best single device if it was not shared.
    pub chosen_ms: f64,
    /// The first device's part that an exhaustive search found best.
    pub best_part: f64,
    /// Milliseconds with it.
    pub best_ms: f64,
    /// Shares the search ran, of the 63 there are; the others were ruled out.
    pub tried: usize,
    /// The chosen time over the best.
    pub to_best: f64,
    /// The part of the best single device's time that was saved.
    pub gain: f64,
    /// Bytes copied to put the output together.
    pub joined_bytes: u64,
    /// How far the output lies from that of one device, beside its largest value.
    pub apart: f64,
}

/// How far a measurement is.
#[derive(Clone, Copy, Debug)]
pub struct SharingStep<'a> {
    /// The devices.
    pub pair: &'a str,
    /// The operator.
    pub operator: &'a str,
    /// What comes now.
    pub stage: SharingStage,
}

/// What is done with an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingStage {
    /// Each device runs it alone.
    Alone,
    /// The device_group learns how fast its devices are.
    Learning,
    /// A share is run; so many were before it.
    Searching {
        /// How many.
        tried: usize,
    },
    /// What was chosen and what is best are run in turn.
    Judging,
}

/// The operators that are shared: a product of rows, one row and many channels, a convolution of a
/// batch and of one image.
fn operators() -> Vec<Workload> {
    let product: &[(&str, &[&str], &str)] = &[("MatMul", &["x", "w"], "y")];
    let convolution: &[(&str, &[&str], &str)] = &[("Conv", &["x", "w"], "y")];
    let taps: &[(&str, &[usize])] = &[("w", &[64, 64, 3, 3])];
    vec![
        workload(
            "product 1024 x 1024 x 1024",
            product,
            &[1024, 1024],
            &[("w", &[1024, 1024])],
        ),
        workload(
            "product of one row, 1 x 4096 x 4096",
            product,
            &[1, 4096],
            &[("w", &[4096, 4096])],
        ),
        workload(
            "convolution of 16 images",
            convolution,
            &[16, 64, 56, 56],
            taps,
        ),
        workload(
            "convolution of one image",
            convolution,
            &[1, 64, 112, 112],
            taps,
        ),
    ]
}

/// Shares every operator between the devices of every pair; `told` hears what comes next.
///
/// # Errors
/// [`MeasureError`]: what failed, or results that differ.
pub fn sharing(
    pairs: &[Pair],
    told: &mut dyn FnMut(SharingStep<'_>),
) -> Result<Vec<SharingRow>, MeasureError> {
    let mut rows = Vec::new();
    for pair in pairs {
        for operator in &operators() {
            let mut told = |stage| {
                told(SharingStep {
                    pair: &pair.name,
                    operator: &operator.name,
                    stage,
                });
            };
            rows.push(share(pair, operator, &mut told)?);
        }
    }
    Ok(rows)
}

/// The best share that was found.
struct BestShares {
    time: Duration,
    part: f64,
    trial: Trial,
    tried: usize,
}

fn share(
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
    let apart = compare(operator, &ran, &expected)?;
    let shared = ran.report.joined_bytes > 0;
    let best = search(pair, operator, times, told)?;
    let chosen_part = if shared {
        part_of_first(pair, &ran)
    } else {
        (1 - single) as f64
    };
    told(SharingStage::Judging);
    // Judged by the same number of runs, in turn: what others do to the machine hits them all.
    let fixed = if shared {
        Some(given(pair, operator, chosen_part)?)
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
    // Where nothing is shared the best single device is a share as well.
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

/// Runs the shares, the likeliest first, to where each device's part alone takes too long.
fn search(
    pair: &Pair,
    operator: &Workload,
    alone: [Duration; 2],
    told: &mut dyn FnMut(SharingStage),
) -> Result<BestShares, MeasureError> {
    let emulated = is_emulated(pair);
    // Emulated times hang on nothing but the share.
    let rounds = if emulated { 1 } else { ROUNDS };
    let mut shares: Vec<(Duration, f64)> = (1..SHARES)
        .map(|step| step as f64 / SHARES as f64)
        .map(|part| (least(part, alone), part))
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
        let trial = given(pair, operator, part)?;
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

/// What both devices need at least, if each takes its part of its time alone.
fn least(part: f64, alone: [Duration; 2]) -> Duration {
    alone[0].mul_f64(part).max(alone[1].mul_f64(1.0 - part))
}

fn given(pair: &Pair, operator: &Workload, part: f64) -> Result<Trial, MeasureError> {
    let parts = Sharing::Given(vec![part, 1.0 - part]);
    Trial::new(&pair.members, operator, parts)
}

fn is_emulated(pair: &Pair) -> bool {
    let mut devices = pair.members.iter().map(|member| &member.processor);
    devices.all(|device| device.profile().emulated)
}

/// The part of the output that the first device made.
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
