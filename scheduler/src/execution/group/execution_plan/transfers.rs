//! What tensors of a plan take on their ways: between devices, and from the host and to it.

use std::sync::Arc;
use std::time::Duration;

use super::ExecutionPlan;
use crate::execution::group::fragment::{Fragment, FragmentInput};
use crate::planning::time::{Time, time_of};

/// A value that is put together from parts.
pub(in crate::execution::group) struct Join {
    pub value: String,
    pub parts: Vec<String>,
    /// What each part has.
    pub bytes: Vec<u64>,
    pub dims: Vec<usize>,
    /// Stretches of the value that every part gives one fragment of.
    pub stretches: usize,
    /// The device that reads it in the host's memory, as its own; none where the host itself does.
    pub at: Option<usize>,
    /// What putting it together should take.
    pub time: Duration,
}

/// A join by its fragments.
pub(super) struct JoinTimes {
    /// Fragments that make parts, and when those come after their ends.
    pub makers: Vec<(usize, Time)>,
    /// What putting them together takes.
    pub time: Time,
    /// Fragments that read the value, and when it comes to them.
    pub readers: Vec<(usize, Time)>,
}

impl ExecutionPlan {
    /// What a value takes from a device, or from the host, to a device.
    pub fn transfer(&self, from: Option<usize>, to: usize, bytes: u64) -> Duration {
        match from {
            None => self.host_transfer(to, bytes),
            Some(from) if from == to => Duration::ZERO,
            Some(from) => Duration::from_secs_f64(self.links.between[from][to].seconds(bytes)),
        }
    }

    /// What a value of so many bytes takes from where it lies to a fragment that reads it or some
    /// of its rows: those are read on the host.
    pub fn comes(
        &self,
        read: &FragmentInput,
        from: Option<usize>,
        to: usize,
        bytes: u64,
    ) -> Duration {
        let Some(rows) = &read.rows else {
            return self.transfer(from, to, bytes);
        };
        let part = bytes * rows.units as u64 / rows.of as u64;
        let to_host = from.map_or(Duration::ZERO, |from| self.host_transfer(from, bytes));
        match to_host.is_zero() {
            true => self.transfer(from, to, part),
            false => to_host + self.host_transfer(to, part),
        }
    }

    /// What a part takes from the device that made it to where it is put together.
    pub fn to_join(&self, join: &Join, from: usize, bytes: u64) -> Duration {
        match join.at {
            Some(at) => self.transfer(Some(from), at, bytes),
            None => self.host_transfer(from, bytes),
        }
    }

    /// What so many bytes take between the host and a device.
    pub fn host_transfer(&self, device: usize, bytes: u64) -> Duration {
        match bytes {
            0 => Duration::ZERO,
            _ => Duration::from_secs_f64(self.links.buyer[device].seconds(bytes)),
        }
    }

    /// What crosses between the host and each device for each fragment, one fragment after the
    /// other.
    pub fn host_transfers(&self) -> Arc<[Time]> {
        let devices = 0..self.problem.devices();
        let of_piece = |fragment: &Fragment| -> Vec<Time> {
            let transfer = |device| {
                fragment
                    .at_host
                    .map(|bytes| self.host_transfer(device, bytes))
            };
            let sum = |device| transfer(device).iter().sum::<Duration>();
            devices
                .clone()
                .map(|device| time_of(sum(device).as_secs_f64()))
                .collect()
        };
        self.fragments.iter().flat_map(of_piece).collect()
    }

    /// The joins by their fragments, each where it is planned.
    pub(super) fn joined(&self) -> Vec<JoinTimes> {
        let time = |duration: Duration| time_of(duration.as_secs_f64());
        let makes = |part: &String| {
            let mut fragments = self.fragments.iter();
            fragments.position(|fragment| fragment.makes.iter().any(|made| made.held == *part))
        };
        let joined = |join: &Join| {
            let parts = join.parts.iter().zip(&join.bytes);
            let maker = |(part, &bytes): (&String, &u64)| {
                let fragment = makes(part)?;
                let transfer = self.to_join(join, self.schedule.device[fragment], bytes);
                Some((fragment, time(transfer)))
            };
            let reads = |(index, fragment): (usize, &Fragment)| {
                let read = fragment
                    .reads
                    .iter()
                    .find(|read| read.value == join.value)?;
                let bytes = join.bytes.iter().sum();
                let comes = self.comes(read, join.at, self.schedule.device[index], bytes);
                Some((index, time(comes)))
            };
            JoinTimes {
                makers: parts.filter_map(maker).collect(),
                time: time(join.time),
                readers: self
                    .fragments
                    .iter()
                    .enumerate()
                    .filter_map(reads)
                    .collect(),
            }
        };
        self.joins.iter().map(joined).collect()
    }
}
