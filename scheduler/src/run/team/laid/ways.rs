//! What tensors of a layout take on their ways: between devices, and from the host and to it.

use std::sync::Arc;
use std::time::Duration;

use super::{Laid, Piece, Read};
use crate::problem::Time;
use crate::tasks::time_of;

/// A value that is put together from parts.
pub(in crate::run) struct Join {
    pub value: String,
    pub parts: Vec<String>,
    /// What each part has.
    pub bytes: Vec<u64>,
    pub dims: Vec<usize>,
    /// Stretches of the value that every part gives one piece of.
    pub stretches: usize,
    /// The device that reads it in the host's memory, as its own; none where the host itself does.
    pub at: Option<usize>,
    /// What putting it together should take.
    pub time: Duration,
}

/// A join by its pieces.
pub(super) struct Joined {
    /// Pieces that make parts, and when those come after their ends.
    pub makers: Vec<(usize, Time)>,
    /// What putting them together takes.
    pub time: Time,
    /// Pieces that read the value, and when it comes to them.
    pub readers: Vec<(usize, Time)>,
}

impl Laid {
    /// What a value takes from a device, or from the host, to a device.
    pub fn transfer(&self, from: Option<usize>, to: usize, bytes: u64) -> Duration {
        match from {
            None => self.way(to, bytes),
            Some(from) if from == to => Duration::ZERO,
            Some(from) => Duration::from_secs_f64(self.links.between[from][to].seconds(bytes)),
        }
    }

    /// What a value of so many bytes takes from where it lies to a piece that reads it or some of
    /// its rows: those are read on the host.
    pub fn comes(&self, read: &Read, from: Option<usize>, to: usize, bytes: u64) -> Duration {
        let Some(rows) = &read.rows else {
            return self.transfer(from, to, bytes);
        };
        let part = bytes * rows.units as u64 / rows.of as u64;
        let to_host = from.map_or(Duration::ZERO, |from| self.way(from, bytes));
        match to_host.is_zero() {
            true => self.transfer(from, to, part),
            false => to_host + self.way(to, part),
        }
    }

    /// What a part takes from the device that made it to where it is put together.
    pub fn to_join(&self, join: &Join, from: usize, bytes: u64) -> Duration {
        match join.at {
            Some(at) => self.transfer(Some(from), at, bytes),
            None => self.way(from, bytes),
        }
    }

    /// What so many bytes take between the host and a device.
    pub fn way(&self, device: usize, bytes: u64) -> Duration {
        match bytes {
            0 => Duration::ZERO,
            _ => Duration::from_secs_f64(self.links.buyer[device].seconds(bytes)),
        }
    }

    /// What crosses between the host and each device for each piece, one piece after the other.
    pub fn ways(&self) -> Arc<[Time]> {
        let devices = 0..self.problem.devices();
        let of_piece = |piece: &Piece| -> Vec<Time> {
            let way = |device| piece.at_host.map(|bytes| self.way(device, bytes));
            let sum = |device| way(device).iter().sum::<Duration>();
            devices
                .clone()
                .map(|device| time_of(sum(device).as_secs_f64()))
                .collect()
        };
        self.pieces.iter().flat_map(of_piece).collect()
    }

    /// The joins by their pieces, each where it is planned.
    pub(super) fn joined(&self) -> Vec<Joined> {
        let time = |duration: Duration| time_of(duration.as_secs_f64());
        let makes = |part: &String| {
            let mut pieces = self.pieces.iter();
            pieces.position(|piece| piece.makes.iter().any(|made| made.held == *part))
        };
        let joined = |join: &Join| {
            let parts = join.parts.iter().zip(&join.bytes);
            let maker = |(part, &bytes): (&String, &u64)| {
                let piece = makes(part)?;
                let way = self.to_join(join, self.schedule.device[piece], bytes);
                Some((piece, time(way)))
            };
            let reads = |(index, piece): (usize, &Piece)| {
                let read = piece.reads.iter().find(|read| read.value == join.value)?;
                let bytes = join.bytes.iter().sum();
                let comes = self.comes(read, join.at, self.schedule.device[index], bytes);
                Some((index, time(comes)))
            };
            Joined {
                makers: parts.filter_map(maker).collect(),
                time: time(join.time),
                readers: self.pieces.iter().enumerate().filter_map(reads).collect(),
            }
        };
        self.joins.iter().map(joined).collect()
    }
}
