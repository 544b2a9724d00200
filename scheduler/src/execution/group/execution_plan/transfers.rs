//! Computes the transfer times of a plan's tensors: between devices, and from and to the host.

use std::sync::Arc;
use std::time::Duration;

use super::ExecutionPlan;
use crate::execution::group::fragment::{Fragment, FragmentInput};
use crate::planning::time::{Time, time_of};

/// A value that the run joins from parts.
pub(in crate::execution::group) struct Join {
    pub value: String,
    pub parts: Vec<String>,
    /// Bytes of each part.
    pub bytes: Vec<u64>,
    pub dims: Vec<usize>,
    /// Number of pieces that each part contributes to the value.
    pub pieces: usize,
    /// The device that reads it from host memory as its own; none if the host itself does.
    pub at: Option<usize>,
    /// Expected time of the join.
    pub time: Duration,
}

/// The fragments and the times of a join.
pub(super) struct JoinTimes {
    /// Fragments that produce parts, and the transfer times of the parts.
    pub makers: Vec<(usize, Time)>,
    /// Time of the join itself.
    pub time: Time,
    /// Fragments that read the value, and the transfer times to them.
    pub readers: Vec<(usize, Time)>,
}

impl ExecutionPlan {
    /// Returns the transfer time of a value from a device, or from the host, to a device.
    pub fn transfer_time(&self, from: Option<usize>, to: usize, bytes: u64) -> Duration {
        match from {
            None => self.host_transfer(to, bytes),
            Some(from) if from == to => Duration::ZERO,
            Some(from) => {
                Duration::from_secs_f64(self.links.between[from][to].transfer_seconds(bytes))
            }
        }
    }

    /// Returns the transfer time of a value to a fragment that reads it or some of its rows. A
    /// fragment reads rows on the host.
    pub fn input_transfer_time(
        &self,
        read: &FragmentInput,
        from: Option<usize>,
        to: usize,
        bytes: u64,
    ) -> Duration {
        let Some(rows) = &read.rows else {
            return self.transfer_time(from, to, bytes);
        };
        let part = bytes * rows.units as u64 / rows.of as u64;
        let to_host = from.map_or(Duration::ZERO, |from| self.host_transfer(from, bytes));
        match to_host.is_zero() {
            true => self.transfer_time(from, to, part),
            false => to_host + self.host_transfer(to, part),
        }
    }

    /// Returns the transfer time of a part from its device to the place of the join.
    pub fn join_transfer_time(&self, join: &Join, from: usize, bytes: u64) -> Duration {
        match join.at {
            Some(at) => self.transfer_time(Some(from), at, bytes),
            None => self.host_transfer(from, bytes),
        }
    }

    /// Returns the transfer time of `bytes` between the host and a device.
    pub fn host_transfer(&self, device: usize, bytes: u64) -> Duration {
        match bytes {
            0 => Duration::ZERO,
            _ => Duration::from_secs_f64(self.links.buyer[device].transfer_seconds(bytes)),
        }
    }

    /// Returns the transfer time between the host and each device, one fragment after the other.
    pub fn host_transfers(&self) -> Arc<[Time]> {
        let devices = 0..self.problem.device_count();
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

    /// Returns the joins with their fragments on their planned devices.
    pub(super) fn join_times(&self) -> Vec<JoinTimes> {
        let time = |duration: Duration| time_of(duration.as_secs_f64());
        let makes = |part: &String| {
            let mut fragments = self.fragments.iter();
            fragments.position(|fragment| fragment.makes.iter().any(|made| made.held == *part))
        };
        let joined = |join: &Join| {
            let parts = join.parts.iter().zip(&join.bytes);
            let maker = |(part, &bytes): (&String, &u64)| {
                let fragment = makes(part)?;
                let transfer = self.join_transfer_time(join, self.schedule.device[fragment], bytes);
                Some((fragment, time(transfer)))
            };
            let reads = |(index, fragment): (usize, &Fragment)| {
                let read = fragment
                    .reads
                    .iter()
                    .find(|read| read.value == join.value)?;
                let bytes = join.bytes.iter().sum();
                let comes =
                    self.input_transfer_time(read, join.at, self.schedule.device[index], bytes);
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
