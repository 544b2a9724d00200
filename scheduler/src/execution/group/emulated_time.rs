//! Computes the times of a run on emulated devices, as the real devices would take them.
//!
//! The results of emulated devices come from this machine's CPU, earlier or later than the real
//! devices would deliver them. If all devices of a run are emulated, its report uses their time: a
//! fragment begins when its device is free and its inputs have arrived, and takes the time that its
//! device states.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_vocabulary::processor::Outcome;
use souk_vocabulary::residency::TensorHandle;

use super::GroupDevice;
use super::execution_plan::{ExecutionPlan, Join};
use super::held_tensor::tensor_bytes;
use super::offers::all_emulated;
use crate::execution::run_figures::to_micros;
use crate::execution::timeline::UnixMicros;
use crate::execution::worker_pool::Call;

/// Computes the time of one run on emulated devices.
pub(super) struct EmulatedTime {
    began: UnixMicros,
    /// The time at which each device becomes free, from the start of the run.
    free: Vec<Duration>,
    /// For each value the time of its production, its device (none for the host) and its bytes. The
    /// job's inputs are on the host: fragments state the bytes that they read of them.
    production: BTreeMap<String, (Duration, Option<usize>, u64)>,
    /// The end of the last join, and the arrival of the last output on the host.
    joined: Duration,
}

impl EmulatedTime {
    /// Creates the time of a run that begins now, if each of its devices is emulated.
    pub fn new(members: &[GroupDevice], now: UnixMicros) -> Option<Self> {
        all_emulated(members).then(|| Self {
            began: now,
            free: vec![Duration::ZERO; members.len()],
            production: BTreeMap::new(),
            joined: Duration::ZERO,
        })
    }

    /// Records a fragment on a device that was busy until `until`. The fragments and joins whose
    /// values it reads must be recorded first. Returns when the device was free, when the
    /// fragment's inputs were ready, when they had arrived and it began, and when it ended.
    pub fn record_fragment(
        &mut self,
        plan: &ExecutionPlan,
        call: Call,
        until: UnixMicros,
        outcome: &Outcome<TensorHandle>,
    ) -> [UnixMicros; 4] {
        let fragment = &plan.fragments[call.task];
        let until = Duration::from_micros(until.micros_since(self.began));
        let free = self.free[call.device].max(until);
        let (mut ready, mut arrived) = (free, free);
        for read in &fragment.reads {
            let Some(&(made, at, bytes)) = self.production.get(&read.value) else {
                continue;
            };
            ready = ready.max(made);
            arrived = arrived.max(made + plan.input_transfer_time(read, at, call.device, bytes));
        }
        let [from_host, to_host] = fragment.at_host;
        arrived = arrived.max(plan.host_transfer(call.device, from_host));
        let end = arrived + outcome.busy;
        self.joined = self
            .joined
            .max(end + plan.host_transfer(call.device, to_host));
        self.free[call.device] = end;
        for made in &fragment.makes {
            let given = outcome.outputs.get(&made.name);
            let bytes = given.map_or(0, tensor_bytes);
            let held = (end, Some(call.device), bytes);
            self.production.insert(made.held.clone(), held);
        }
        [free, ready, arrived, end].map(|time| self.began.saturating_add(to_micros(time)))
    }

    /// Records a join of parts at the place of its readers.
    pub fn record_join(&mut self, plan: &ExecutionPlan, join: &Join) {
        let (mut ready, mut sum) = (Duration::ZERO, 0);
        for part in &join.parts {
            let Some(&(made, Some(by), bytes)) = self.production.get(part) else {
                continue;
            };
            sum += bytes;
            ready = ready.max(made + plan.join_transfer_time(join, by, bytes));
        }
        let ready = ready + join.time;
        let held = (ready, join.at, sum);
        self.production.insert(join.value.clone(), held);
        self.joined = self.joined.max(ready);
    }

    /// Returns the time from the start of the run to its end.
    pub fn makespan(&self) -> Duration {
        self.free.iter().copied().fold(self.joined, Duration::max)
    }
}
