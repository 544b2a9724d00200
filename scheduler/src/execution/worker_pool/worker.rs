//! Runs the loop of a device's thread in the worker pool: it takes a batch of a job's tasks, runs
//! them in order, and reports the result.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::MutexGuard;
use std::time::Duration;

use super::job::{BatchRun, Call, Fault, JobEnd, TaskFunction, TaskTime};
use super::{Moment, PoolShared, PoolState};

/// Runs batches until the worker pool stops.
pub(super) fn run_worker(shared: &PoolShared, device: usize) {
    let mut batch = Vec::new();
    let mut state = shared.lock_state();
    while !state.stopping {
        // A bit mask of the devices that must wake up.
        let mut devices_to_wake = 0;
        let taken = state.take_batch(device, &mut batch, &mut devices_to_wake);
        if devices_to_wake & !(1 << device) != 0 {
            shared.wake_devices(&mut state, devices_to_wake & !(1 << device));
        }
        let Some((job, work, start)) = taken else {
            state = shared.wait_for_work(state, device);
            continue;
        };
        drop(state);
        let (succeeded, stated, fault) = run(&work, device, &batch);
        let end = Moment::now();
        let ran = BatchRun { start, end, stated };
        drop(work);
        state = shared.lock_state();
        let devices_to_wake = state.complete_batch(job, device, &batch[..succeeded], &ran);
        if let Some(fault) = fault {
            on_fault(shared, &mut state, job, device, &batch[succeeded..], fault);
        }
        // This device continues without a wake-up.
        shared.wake_devices(&mut state, devices_to_wake & !(1 << device));
        if state.find_job(job).is_some_and(|job| job.has_ended()) {
            shared.ended.notify_all();
        }
    }
}

/// Runs tasks in order up to the first failure. Returns the number of successful tasks, their time
/// as the device reports it, if it does, and the failure.
fn run(
    work: &TaskFunction,
    device: usize,
    batch: &[u32],
) -> (usize, Option<Duration>, Option<Fault>) {
    let mut stated = None;
    for (index, &task) in batch.iter().enumerate() {
        let call = Call {
            task: task as usize,
            device,
        };
        let ran = catch_unwind(AssertUnwindSafe(|| work(call)));
        let ran = ran.unwrap_or_else(|panic| Err(Fault::Task(panic_text(&*panic))));
        match ran {
            Ok(TaskTime::Measured) => {}
            Ok(TaskTime::Stated(time)) => *stated.get_or_insert(Duration::ZERO) += time,
            Err(fault) => return (index, stated, Some(fault)),
        }
    }
    (batch.len(), stated, None)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "it panicked: {}",
        text.unwrap_or_else(|| "without a message".to_owned())
    )
}

/// Handles a fault of the first of the `unfinished` tasks of a batch, which must not be empty; the
/// others have not begun. After a fault of a task the caller wakes those who wait for the job.
fn on_fault(
    shared: &PoolShared,
    state: &mut MutexGuard<'_, PoolState>,
    job: u64,
    device: usize,
    unfinished: &[u32],
    fault: Fault,
) {
    let lost = match fault {
        Fault::Task(cause) => {
            if let Some(job) = state.find_job(job) {
                let task = unfinished[0] as usize;
                job.end_job(JobEnd::Failed { task, cause });
            }
            return;
        }
        Fault::Refused(cause) => {
            if let Some(job) = state.find_job(job) {
                job.refuse_task(device, unfinished, cause);
            }
            shared.ended.notify_all();
            shared.wake_devices(state, u64::MAX);
            return;
        }
        // This device is lost.
        Fault::Device(cause) => Some((device, cause)),
        // Another device is lost, for example the one that holds an input.
        Fault::Other { device, cause } => Some((device, cause)),
        // A device was lost before, so an input is gone.
        Fault::Gone => None,
    };
    // `remove_lost_device` puts back the tasks of a device that is lost now.
    let blamed = lost.as_ref().map(|(device, _)| *device);
    if blamed != Some(device)
        && let Some(job) = state.find_job(job)
    {
        job.put_back(device, unfinished);
    }
    if let Some((lost, cause)) = lost {
        state.lost |= 1 << lost;
        state.causes.entry(lost).or_insert_with(|| cause.clone());
        if let Some(job) = state.find_job(job) {
            job.record_failure(lost, cause);
        }
        state
            .jobs
            .iter_mut()
            .for_each(|job| job.remove_lost_device(lost));
    }
    shared.ended.notify_all();
    shared.wake_devices(state, u64::MAX);
}
