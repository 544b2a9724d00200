//! One operator shared by two unlike devices: the shares that were chosen beside the best ones of
//! an exhaustive search.

use std::time::Duration;

use serde::Serialize;

use super::models::{MeasureError, Trial, Workload, compare, workload};
use crate::run::{Member, Sharing};

/// Runs in which a team learns how fast its devices are.
const LEARNING_RUNS: usize = 12;
/// Shares that the search tries: every 64th part.
const SHARES: usize = 64;
/// Runs of each share, the shortest of which counts; the ones that matter are run again in turn.
const ROUNDS: usize = 3;
const FINAL_ROUNDS: usize = 9;

/// Two devices that share.
pub struct Pair {
    /// What they are called together.
    pub name: String,
    /// The two.
    pub members: Vec<Member>,
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
    /// The chosen time over the best.
    pub to_best: f64,
    /// The part of the best single device's time that was saved.
    pub gain: f64,
    /// Bytes copied to put the output together.
    pub joined_bytes: u64,
    /// How far the output lies from that of one device, beside its largest value.
    pub apart: f64,
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

/// Shares every operator between the devices of every pair.
///
/// # Errors
/// [`MeasureError`]: what failed, or results that differ.
pub fn sharing(pairs: &[Pair]) -> Result<Vec<SharingRow>, MeasureError> {
    let mut rows = Vec::new();
    for pair in pairs {
        for operator in operators() {
            rows.push(share(pair, &operator)?);
        }
    }
    Ok(rows)
}

fn share(pair: &Pair, operator: &Workload) -> Result<SharingRow, MeasureError> {
    let alone =
        |member: &Member| Trial::new(std::slice::from_ref(member), operator, Sharing::Never);
    let singles = [alone(&pair.members[0])?, alone(&pair.members[1])?];
    let expected = singles[0].run()?;
    let times = [singles[0].best_of(ROUNDS)?, singles[1].best_of(ROUNDS)?];
    let single = usize::from(times[1] < times[0]);
    let chosen = Trial::new(&pair.members, operator, Sharing::WhereItPays)?;
    let mut ran = chosen.run()?;
    for _ in 1..LEARNING_RUNS {
        ran = chosen.run()?;
    }
    let apart = compare(operator, &ran, &expected)?;
    let shared = ran.report.joined_bytes > 0;
    let given = |part: f64| {
        let parts = Sharing::Given(vec![part, 1.0 - part]);
        Trial::new(&pair.members, operator, parts)
    };
    let mut devices = pair.members.iter().map(|member| &member.processor);
    let emulated = devices.all(|device| device.profile().emulated);
    // Emulated times hang on nothing but the share.
    let rounds = if emulated { 1 } else { ROUNDS };
    let mut searched = Vec::new();
    for step in 1..SHARES {
        let part = step as f64 / SHARES as f64;
        let trial = given(part)?;
        searched.push((trial.best_of(rounds)?, part, trial));
    }
    searched.sort_by_key(|(time, ..)| *time);
    let (_, best_part, best) = &searched[0];
    let chosen_part = if shared {
        part_of_first(pair, &ran)
    } else {
        (1 - single) as f64
    };
    // Judged by the same number of runs, in turn: what others do to the machine hits them all.
    let fixed = if shared {
        Some(given(chosen_part)?)
    } else {
        None
    };
    let mut finals = [Duration::MAX; 3];
    for _ in 0..FINAL_ROUNDS {
        finals[0] = finals[0].min(fixed.as_ref().unwrap_or(&singles[single]).best_of(1)?);
        finals[1] = finals[1].min(best.best_of(1)?);
        finals[2] = finals[2].min(singles[single].best_of(1)?);
    }
    let [chosen_time, best_time, single_time] = finals.map(|time| time.as_secs_f64() * 1e3);
    // Where nothing is shared the best single device is a share as well.
    let best_time = best_time.min(single_time);
    Ok(SharingRow {
        pair: pair.name.clone(),
        emulated,
        operator: operator.name.clone(),
        single_ms: single_time,
        single: pair.members[single].label.clone(),
        shared,
        chosen_part,
        chosen_ms: chosen_time,
        best_part: *best_part,
        best_ms: best_time,
        to_best: chosen_time / best_time,
        gain: 1.0 - chosen_time / single_time,
        joined_bytes: ran.report.joined_bytes,
        apart,
    })
}

/// The part of the output that the first device made.
fn part_of_first(pair: &Pair, ran: &crate::run::Ran) -> f64 {
    let out = |place: usize| {
        let name = &pair.members[place].label;
        let named = |(device, _): &(&String, _)| device.starts_with(name.as_str());
        let found = ran.report.devices.iter().find(named);
        found.map_or(0.0, |(_, device)| device.bytes_out as f64)
    };
    out(0) / (out(0) + out(1))
}
