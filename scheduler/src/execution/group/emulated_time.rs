//! Time as emulated devices have it.
//!
//! Their results come from this machine's CPU, sooner or later than they would themselves. A run
//! that none but emulated devices take part in is told in their time: a fragment begins when its
//! device is free and what it reads has come, and takes what its device says.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_vocabulary::processor::Outcome;
use souk_vocabulary::residency::TensorHandle;

use super::GroupDevice;
use super::execution_plan::{ExecutionPlan, Join};
use super::held_tensor::bytes_of;
use super::offers::all_emulated;
use crate::execution::metering::micros;
use crate::execution::timeline::UnixMicros;
use crate::execution::worker_pool::Call;

/// The time of one run.
pub(super) struct EmulatedTime {
    began: UnixMicros,
    /// When each device is free, from the run's start.
    free: Vec<Duration>,
    /// When a value was made, the device it is at or none for the host, and its bytes. The job's
    /// inputs are with the host: fragments say what they take of them.
    made: BTreeMap<String, (Duration, Option<usize>, u64)>,
    /// When the last parts were joined, and the last outputs with the host.
    joined: Duration,
}

impl EmulatedTime {
    /// Of a run that begins now, if each of its devices is emulated.
    pub fn new(members: &[GroupDevice], now: UnixMicros) -> Option<Self> {
        all_emulated(members).then(|| Self {
            began: now,
            free: vec![Duration::ZERO; members.len()],
            made: BTreeMap::new(),
            joined: Duration::ZERO,
        })
    }

    /// A fragment ran on a device that was at work until then: when that was free, when what it
    /// reads was made, when that had come and it began, and when it ended.
    pub fn ran(
        &mut self,
        plan: &ExecutionPlan,
        (call, until): (Call, UnixMicros),
        outcome: &Outcome<TensorHandle>,
    ) -> [UnixMicros; 4] {
        let fragment = &plan.fragments[call.task];
        let until = Duration::from_micros(until.since(self.began));
        let free = self.free[call.device].max(until);
        let (mut ready, mut arrived) = (free, free);
        for read in &fragment.reads {
            let Some(&(made, at, bytes)) = self.made.get(&read.value) else {
                continue;
            };
            ready = ready.max(made);
            arrived = arrived.max(made + plan.comes(read, at, call.device, bytes));
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
            let bytes = given.map_or(0, bytes_of);
            let held = (end, Some(call.device), bytes);
            self.made.insert(made.held.clone(), held);
        }
        [free, ready, arrived, end].map(|time| self.began.later(micros(time)))
    }

    /// Parts were joined where they are read.
    pub fn joined(&mut self, plan: &ExecutionPlan, join: &Join) {
        let (mut ready, mut sum) = (Duration::ZERO, 0);
        for part in &join.parts {
            let Some(&(made, Some(by), bytes)) = self.made.get(part) else {
                continue;
            };
            sum += bytes;
            ready = ready.max(made + plan.to_join(join, by, bytes));
        }
        let ready = ready + join.time;
        let held = (ready, join.at, sum);
        self.made.insert(join.value.clone(), held);
        self.joined = self.joined.max(ready);
    }

    /// From the run's start to its end.
    pub fn makespan(&self) -> Duration {
        self.free.iter().copied().fold(self.joined, Duration::max)
    }
}
