//! What the scheduler adds to a model on one device: the bare program beside a device_group of one,
//! in turn, in one run.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use souk_host::clock;
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::execution::{Cancel, GroupDevice, GroupRunError, Moment, Sharing, TaskError};
use souk_vocabulary::processor::Processor;

use super::models::{MeasureError, Trial, Workload};

/// One device with and without the scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct OverheadRow {
    /// The model.
    pub workload: String,
    /// Runs of each, in turn.
    pub rounds: usize,
    /// Milliseconds of the bare program: the shortest run, and the median.
    pub bare_ms: [f64; 2],
    /// Milliseconds through plan, threads, memory and report.
    pub scheduled_ms: [f64; 2],
    /// What the scheduler adds, as a part of the bare time: by the shortest runs, by the medians.
    pub overhead: [f64; 2],
    /// The median of what it adds from one run to the next one, as a part of the bare time.
    pub paired_overhead: f64,
    /// Milliseconds of processor time of all threads, in the medians: bare, scheduled.
    pub cpu_ms: [f64; 2],
    /// The same median as `paired_overhead`, of processor time: what others do to the machine is
    /// hardly in it.
    pub paired_cpu_overhead: f64,
    /// Runs that were cancelled in the middle.
    pub cancelling: CancelTimes,
}

/// How soon a caller is answered whose run somebody cancels.
#[derive(Clone, Debug, Serialize)]
pub struct CancelTimes {
    /// Runs that were cancelled at moments spread evenly over a run; those that ended before are
    /// not among them.
    pub runs: usize,
    /// Milliseconds from the word to the answer: half of the runs, 99 of 100, the longest.
    pub answered_ms: [f64; 3],
}

/// Runs a workload bare and through the scheduler.
///
/// # Errors
/// [`MeasureError`].
pub fn overhead(
    processor: &Arc<dyn Processor>,
    workload: &Workload,
    rounds: usize,
) -> Result<OverheadRow, MeasureError> {
    let program = processor.compile(&Subgraph {
        model: workload.model.clone(),
        ..Subgraph::default()
    })?;
    let member = GroupDevice {
        label: "device".to_owned(),
        processor: processor.clone(),
    };
    let trial = Trial::new(&[member], workload, Sharing::Never)?;
    // Both once beforehand: plans, programs and memory are made.
    program.run(&workload.inputs)?;
    trial.run()?;
    let (mut bare, mut scheduled) = (Vec::new(), Vec::new());
    let (mut bare_cpu, mut scheduled_cpu) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // Who goes first changes, so that what the other left in caches hits both alike.
        for turn in 0..2 {
            let (began, used) = (Moment::now(), clock::of_process());
            let is_bare = (round + turn) % 2 == 0;
            if is_bare {
                program.run(&workload.inputs)?;
            } else {
                trial.run()?;
            }
            let took = Moment::now().since(began);
            let used = clock::of_process().saturating_sub(used);
            let (times, processor) = match is_bare {
                true => (&mut bare, &mut bare_cpu),
                false => (&mut scheduled, &mut scheduled_cpu),
            };
            times.push(took);
            processor.push(used);
        }
    }
    let paired_overhead = paired(&bare, &scheduled);
    let paired_cpu_overhead = paired(&bare_cpu, &scheduled_cpu);
    let cpu_ms = [figures(&mut bare_cpu)[1], figures(&mut scheduled_cpu)[1]];
    let (bare_ms, scheduled_ms) = (figures(&mut bare), figures(&mut scheduled));
    let typical = Duration::from_secs_f64(scheduled_ms[1] / 1e3);
    let cancelling = cancelling(&trial, rounds, typical)?;
    Ok(OverheadRow {
        workload: workload.name.clone(),
        rounds,
        bare_ms,
        scheduled_ms,
        overhead: [0, 1].map(|place| scheduled_ms[place] / bare_ms[place] - 1.0),
        paired_overhead,
        cpu_ms,
        paired_cpu_overhead,
        cancelling,
    })
}

/// Cancels as many runs, each a little later in its course than the one before.
fn cancelling(
    trial: &Trial,
    rounds: usize,
    typical: Duration,
) -> Result<CancelTimes, MeasureError> {
    let mut waits = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let cancel = Cancel::default();
        let cancel_at = typical.mul_f64((round as f64 + 0.5) / rounds as f64);
        let (told, ended, answered) = thread::scope(|scope| {
            let word = cancel.clone();
            let telling = scope.spawn(move || {
                thread::sleep(cancel_at);
                let told = Moment::now();
                word.cancel();
                told
            });
            let ended = trial.run_until(&cancel);
            let answered = Moment::now();
            let told = telling.join().expect("a word is said without panic");
            (told, ended, answered)
        });
        match ended {
            // It was done before the word.
            Ok(_) => {}
            Err(MeasureError::Task(TaskError::Group(GroupRunError::Cancelled))) => {
                waits.push(answered.since(told));
            }
            Err(error) => return Err(error),
        }
        // What the device was at is over before the next one begins.
        trial.run()?;
    }
    waits.sort_unstable();
    let at = |part: f64| {
        let place = (waits.len() as f64 * part) as usize;
        let wait = waits.get(place.min(waits.len().saturating_sub(1)));
        wait.map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
    };
    Ok(CancelTimes {
        runs: waits.len(),
        answered_ms: [at(0.5), at(0.99), at(1.0)],
    })
}

/// The median of what the scheduled run of a round took more than the bare one, as a part of it.
fn paired(bare: &[Duration], scheduled: &[Duration]) -> f64 {
    let pairs = bare.iter().zip(scheduled);
    let more = |(bare, scheduled): (&Duration, &Duration)| {
        scheduled.as_secs_f64() / bare.as_secs_f64() - 1.0
    };
    let mut more: Vec<f64> = pairs.map(more).collect();
    more.sort_by(f64::total_cmp);
    more.get(more.len() / 2).copied().unwrap_or(0.0)
}

/// Milliseconds of the shortest and of the median.
fn figures(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let at = |place: usize| {
        times
            .get(place)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    [at(0), at(times.len() / 2)]
}
