//! Measures the scheduler's overhead for a model on one device: it runs the bare program and a
//! device group of one device in turn. Other load distorts wall times, so on a busy machine you
//! should compare the processor times.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use souk_host::clock;
use souk_onnx::subgraph::Subgraph;
use souk_scheduler::execution::{Cancel, GroupDevice, GroupRunError, Moment, Sharing, TaskError};
use souk_vocabulary::processor::Processor;

use super::models::{MeasureError, Trial, Workload};

/// The times of one model on one device, with and without the scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct OverheadRow {
    /// Name of the model.
    pub workload: String,
    /// Number of runs of each, in turn.
    pub rounds: usize,
    /// Milliseconds of the bare program: the shortest run and the median.
    pub bare_ms: [f64; 2],
    /// Milliseconds through plan, threads, memory and report: the shortest run and the median.
    pub scheduled_ms: [f64; 2],
    /// Overhead as a part of the bare time: by the shortest runs and by the medians.
    pub overhead: [f64; 2],
    /// Median overhead of a scheduled run over the bare run of the same round, as a part of the
    /// bare time.
    pub paired_overhead: f64,
    /// Median milliseconds of processor time of all threads: bare and scheduled.
    pub cpu_ms: [f64; 2],
    /// The same median as `paired_overhead` for processor time, which other load on the machine
    /// hardly affects.
    pub paired_cpu_overhead: f64,
    /// Times of runs that the benchmark cancels in the middle.
    pub cancelling: CancelTimes,
}

/// The time until a caller gets its answer after a cancellation.
#[derive(Clone, Debug, Serialize)]
pub struct CancelTimes {
    /// Number of cancelled runs. Their cancellations are spread evenly over a run; runs that ended
    /// earlier do not count.
    pub runs: usize,
    /// Milliseconds from the cancellation to the answer: the median, the 99th percentile and the
    /// longest.
    pub answered_ms: [f64; 3],
}

/// Runs a workload bare and through the scheduler.
///
/// # Errors
/// [`MeasureError`] if a run fails.
pub fn measure_overhead(
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
    // Both run once in advance, so that plans, programs and memory exist.
    program.run(&workload.inputs)?;
    trial.run()?;
    let (mut bare, mut scheduled) = (Vec::new(), Vec::new());
    let (mut bare_cpu, mut scheduled_cpu) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The order alternates, so that cache contents of the other run affect both alike.
        for turn in 0..2 {
            let (began, used) = (Moment::now(), clock::of_process());
            let is_bare = (round + turn) % 2 == 0;
            if is_bare {
                program.run(&workload.inputs)?;
            } else {
                trial.run()?;
            }
            let took = Moment::now().duration_since(began);
            let used = clock::of_process().saturating_sub(used);
            let (times, processor) = match is_bare {
                true => (&mut bare, &mut bare_cpu),
                false => (&mut scheduled, &mut scheduled_cpu),
            };
            times.push(took);
            processor.push(used);
        }
    }
    let paired_overhead = median_overhead(&bare, &scheduled);
    let paired_cpu_overhead = median_overhead(&bare_cpu, &scheduled_cpu);
    let cpu_ms = [
        min_and_median_ms(&mut bare_cpu)[1],
        min_and_median_ms(&mut scheduled_cpu)[1],
    ];
    let (bare_ms, scheduled_ms) = (
        min_and_median_ms(&mut bare),
        min_and_median_ms(&mut scheduled),
    );
    let typical = Duration::from_secs_f64(scheduled_ms[1] / 1e3);
    let cancelling = measure_cancellation(&trial, rounds, typical)?;
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

/// Cancels `rounds` runs, each a little later in its course than the one before.
fn measure_cancellation(
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
            // The run ended before the cancellation.
            Ok(_) => {}
            Err(MeasureError::Task(TaskError::Group(GroupRunError::Cancelled))) => {
                waits.push(answered.duration_since(told));
            }
            Err(error) => return Err(error),
        }
        // Waits for the end of the device's current work before the next round.
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

/// Returns the median over the rounds of the scheduled run's extra time, as a part of the bare
/// run's.
fn median_overhead(bare: &[Duration], scheduled: &[Duration]) -> f64 {
    let pairs = bare.iter().zip(scheduled);
    let more = |(bare, scheduled): (&Duration, &Duration)| {
        scheduled.as_secs_f64() / bare.as_secs_f64() - 1.0
    };
    let mut more: Vec<f64> = pairs.map(more).collect();
    more.sort_by(f64::total_cmp);
    more.get(more.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the milliseconds of the shortest run and of the median.
fn min_and_median_ms(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let at = |place: usize| {
        times
            .get(place)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    [at(0), at(times.len() / 2)]
}
