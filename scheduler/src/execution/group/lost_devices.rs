//! Tries devices again that a run has lost, until they work or their trials are used up.
//!
//! After a reset, a driver can work again, and a card can return. So the group tries a lost device
//! with the test that it also runs when it opens a device ([`Trial`]): soon at first, and after
//! each failure with twice the delay. If a device passes, it gets work in the next run. If it fails
//! again before it has done any work, the delay continues to grow, so that a device cannot be lost
//! and return for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use souk_vocabulary::processor::Processor;

use super::{DeviceGroup, GroupDevice};
use crate::execution::lock::lock;
use crate::execution::worker_pool::{Execution, Moment};

/// Tests a device. Returns an error that describes the fault if the device does not compute
/// correctly. The group will treat a panic as a fault, too.
pub type Trial = fn(&dyn Processor) -> Result<(), String>;

/// How and when the group tries lost devices again.
#[derive(Clone, Copy, Debug)]
pub struct Retrials {
    /// The test of a device.
    pub trial: Trial,
    /// Time from the loss to the first trial; each failed trial doubles it.
    pub first: Duration,
    /// Longest time between two trials.
    pub longest: Duration,
    /// Number of trials after which the device stays out.
    pub most: u32,
}

/// A device that a run has lost and that gets no work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostDevice {
    /// Name of the device in reports.
    pub device: String,
    /// Cause of the loss, or of the last trial's failure.
    pub cause: String,
    /// Number of trials since.
    pub trials: u32,
    /// Whether the group no longer tries the device.
    pub is_out: bool,
}

/// The lost devices of a group. A thread tries them while any are lost.
pub(super) struct LostDevices(Arc<TrialShared>);

struct TrialShared {
    members: Vec<GroupDevice>,
    state: Mutex<TrialState>,
    /// Signals the end of the group.
    over: Condvar,
}

struct TrialState {
    retrials: Retrials,
    devices: Vec<TrialRecord>,
    /// Whether a thread tries devices now.
    is_trying: bool,
    is_over: bool,
}

/// The state of one device.
#[derive(Clone, Default)]
struct TrialRecord {
    standing: DeviceStanding,
    /// Number of trials since the device last completed a task.
    trials: u32,
    cause: String,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum DeviceStanding {
    #[default]
    Works,
    /// The group tries the device at this moment.
    Lost(Moment),
    /// The device has passed a trial and can get work.
    Passed,
    Out,
}

impl Retrials {
    /// Tries a device after a second, then at growing intervals of up to five minutes, for about an
    /// hour.
    #[must_use]
    pub fn new(trial: Trial) -> Self {
        Self {
            trial,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            most: 20,
        }
    }

    /// Returns the time until the next trial after this number of trials.
    fn retry_delay(&self, trials: u32) -> Duration {
        let doubled = 1_u32.checked_shl(trials).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

impl DeviceGroup {
    /// Returns the devices that are lost and get no work.
    pub fn lost_devices(&self) -> Vec<LostDevice> {
        self.lost_devices.lost_devices()
    }

    /// Lets devices work again that have passed a trial. Forgets their loaded programs, which are
    /// gone.
    pub(super) fn take_back(&self) {
        let any = self.lost_devices.take_passed(|device| {
            self.program_cache.forget_device(device);
            self.pool.restore_device(device);
        });
        if any {
            self.lock_plans().clear();
        }
    }

    /// Records the devices that completed tasks in a run, and those that the run lost.
    pub(super) fn on_ran(&self, execution: &Execution) {
        let worked = execution.devices.iter().enumerate();
        let worked = worked.filter(|(_, used)| used.tasks > 0 && used.failed.is_none());
        let worked = worked.map(|(device, _)| device);
        self.lost_devices.on_ran(worked, || self.pool.loss_causes());
    }
}

impl LostDevices {
    pub fn new(members: Vec<GroupDevice>, retrials: Retrials) -> Self {
        Self(Arc::new(TrialShared {
            state: Mutex::new(TrialState {
                retrials,
                devices: vec![TrialRecord::default(); members.len()],
                is_trying: false,
                is_over: false,
            }),
            members,
            over: Condvar::new(),
        }))
    }

    /// Records that devices worked in a run. `losses` returns the devices that are lost now, each
    /// with the cause.
    pub fn on_ran(
        &self,
        worked: impl Iterator<Item = usize>,
        losses: impl FnOnce() -> Vec<(usize, String)>,
    ) {
        let mut state = lock(&self.0.state);
        worked.for_each(|device| state.devices[device].trials = 0);
        // Reads the losses under the lock, because a device that returns meanwhile would seem lost
        // again.
        for (device, cause) in losses() {
            state.on_lost(device, cause, Moment::now());
        }
        if state.next().is_some() && !state.is_trying {
            let inner = self.0.clone();
            let named = std::thread::Builder::new().name("lost devices".to_owned());
            // Without a thread, the devices stay lost until the next run tries to start one.
            state.is_trying = named.spawn(move || inner.try_all()).is_ok();
        }
    }

    /// Lets devices work again that have passed a trial. Returns whether there were any.
    pub fn take_passed(&self, mut restore: impl FnMut(usize)) -> bool {
        let mut state = lock(&self.0.state);
        let mut any = false;
        for (device, record) in state.devices.iter_mut().enumerate() {
            if record.standing == DeviceStanding::Passed {
                record.standing = DeviceStanding::Works;
                restore(device);
                any = true;
            }
        }
        any
    }

    /// Returns the lost devices.
    pub fn lost_devices(&self) -> Vec<LostDevice> {
        let state = lock(&self.0.state);
        let named = self.0.members.iter().zip(&state.devices);
        let lost = named.filter(|(_, record)| record.is_lost());
        lost.map(|(member, record)| LostDevice {
            device: member.label.clone(),
            cause: record.cause.clone(),
            trials: record.trials,
            is_out: record.standing == DeviceStanding::Out,
        })
        .collect()
    }
}

impl Drop for LostDevices {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.over.notify_all();
    }
}

impl TrialShared {
    /// Tries each device at its time, until no device remains to try.
    fn try_all(&self) {
        let mut state = lock(&self.state);
        while let Some((device, due)) = state.next().filter(|_| !state.is_over) {
            let left = due.duration_since(Moment::now());
            if left > Duration::ZERO {
                let waited = self.over.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let trial = state.retrials.trial;
            drop(state);
            let tried = run_trial(trial, &*self.members[device].processor);
            state = lock(&self.state);
            state.on_tried(device, tried, Moment::now());
        }
        state.is_trying = false;
    }
}

/// Runs a device's trial and turns a panic into an error.
fn run_trial(trial: Trial, processor: &dyn Processor) -> Result<(), String> {
    let tried = catch_unwind(AssertUnwindSafe(|| trial(processor)));
    tried.unwrap_or_else(|_| Err("it panicked when it was tried".to_owned()))
}

impl TrialState {
    /// Returns the device with the next trial, and its time.
    fn next(&self) -> Option<(usize, Moment)> {
        let devices = self.devices.iter().enumerate();
        let due = devices.filter_map(|(device, record)| match record.standing {
            DeviceStanding::Lost(due) => Some((device, due)),
            DeviceStanding::Works | DeviceStanding::Passed | DeviceStanding::Out => None,
        });
        due.min_by_key(|(_, due)| *due)
    }

    fn on_lost(&mut self, device: usize, cause: String, now: Moment) {
        let record = &mut self.devices[device];
        if record.standing == DeviceStanding::Works {
            record.cause = cause;
            self.put_off(device, now);
        }
    }

    fn on_tried(&mut self, device: usize, tried: Result<(), String>, now: Moment) {
        let record = &mut self.devices[device];
        record.trials += 1;
        match tried {
            Ok(()) => record.standing = DeviceStanding::Passed,
            Err(cause) => {
                record.cause = cause;
                self.put_off(device, now);
            }
        }
    }

    /// Schedules the next trial of a device, or stops trying it.
    fn put_off(&mut self, device: usize, now: Moment) {
        let retrials = self.retrials;
        let record = &mut self.devices[device];
        record.standing = match record.trials < retrials.most {
            true => DeviceStanding::Lost(now.saturating_add(retrials.retry_delay(record.trials))),
            false => DeviceStanding::Out,
        };
    }
}

impl TrialRecord {
    fn is_lost(&self) -> bool {
        matches!(self.standing, DeviceStanding::Lost(_) | DeviceStanding::Out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(most: u32) -> TrialState {
        let retrials = Retrials {
            trial: |_| Ok(()),
            first: Duration::from_secs(1),
            longest: Duration::from_secs(5),
            most,
        };
        TrialState {
            retrials,
            devices: vec![TrialRecord::default(); 2],
            is_trying: false,
            is_over: false,
        }
    }

    fn failed() -> Result<(), String> {
        Err("it is gone still".to_owned())
    }

    #[test]
    fn a_lost_device_is_tried_ever_later_and_then_no_more() {
        let mut state = state(5);
        let mut now = Moment::now();
        state.on_lost(1, "it is gone".to_owned(), now);
        let mut waits = Vec::new();
        while let Some((device, due)) = state.next() {
            waits.push(due.duration_since(now).as_secs());
            now = due;
            state.on_tried(device, failed(), now);
        }
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        let record = &state.devices[1];
        assert!(record.standing == DeviceStanding::Out && record.trials == 5);
        assert_eq!(record.cause, "it is gone still");
        state.on_lost(1, "it is gone".to_owned(), now);
        assert_eq!(
            state.next(),
            None,
            "a run that does without it changes nothing"
        );
    }

    #[test]
    fn one_that_passes_and_fails_again_is_not_tried_for_ever() {
        let mut state = state(3);
        let now = Moment::now();
        for trial in 0..3 {
            state.on_lost(0, "it is gone".to_owned(), now);
            let (device, due) = state.next().unwrap();
            assert_eq!(due.duration_since(now).as_secs(), 1 << trial);
            state.on_tried(device, Ok(()), now);
            assert_eq!(state.next(), None);
            state.on_lost(0, "an older run says so".to_owned(), now);
            assert!(!state.devices[0].is_lost(), "it has passed since");
            state.devices[0].standing = DeviceStanding::Works;
        }
        state.on_lost(0, "it is gone".to_owned(), now);
        assert!(state.devices[0].standing == DeviceStanding::Out);
    }

    #[test]
    fn of_several_the_one_that_is_due_first_is_tried_first() {
        let mut state = state(9);
        let now = Moment::now();
        state.on_lost(0, "it is gone".to_owned(), now);
        state.on_tried(0, failed(), now);
        state.on_lost(1, "it is gone".to_owned(), now);
        assert_eq!(state.next().map(|(device, _)| device), Some(1));
    }
}
