//! Computes how several devices can share one operator so that their parts end together.
//!
//! Each device gets some rows of a product, or some images of a batch's convolution, and the
//! results lie one after the other. If there is a single row, the split cuts the output channels
//! and with them the weights. Operators that follow row by row (an activation, a bias, another
//! product) stay with their rows, so that the run joins the parts once. The shares end at the same
//! time, including transfers and the join, and fit each device's memory. A split must save a fifth
//! of the best single device's time.

mod part_model;
mod segment;
mod shares;

use super::offer::{Link, Offer, cost_seconds};
use crate::graph::cost::Cost;
use crate::graph::{Graph, Node};

pub use part_model::{SplitError, channels_model, rows_model};
pub use segment::{Cut, Segment, find_segments};
pub use shares::{Part, Shares, soonest_shares};

/// Minimum gain of a split, as a part of the best single device's time.
pub const GAIN_MIN: f64 = 0.2;

/// The devices for a segment, and the links to and from each.
#[derive(Clone, Debug)]
pub struct Devices<'a> {
    /// The offers of the devices.
    pub offers: &'a [Offer],
    /// The link to each device from the input's location; none if the input is there.
    pub sent: Vec<Option<Link>>,
    /// The link from each device to the output's destination; none if the device is there.
    pub back: Vec<Option<Link>>,
}

/// The costs of sharing that a single device does not have.
#[derive(Clone, Debug, Default)]
pub struct SharingOverhead {
    /// Seconds before the parts begin: to cut their input, or to bring it to the place of the cut.
    pub before: f64,
    /// Seconds from the last part to the whole output, unless host memory is the place of the join.
    pub after: Option<f64>,
    /// Seconds of the output's transfer from the host to its reader, if any.
    pub from_host: f64,
    /// Links of the parts from the input, if they differ from those of the whole.
    pub sent: Option<Vec<Option<Link>>>,
    /// Links of the parts to the output, if they differ from those of the whole.
    pub back: Option<Vec<Option<Link>>>,
}

/// A segment with the costs of its parts on each device.
pub struct PricedSegment<'a> {
    devices: Devices<'a>,
    overhead: SharingOverhead,
    segment: &'a Segment,
    /// Cost of each node, and the bytes that every part must read whole.
    costs: Vec<(Cost, u64)>,
    /// Whether each device can run the whole segment.
    runs: Vec<bool>,
    weight_bytes: u64,
    moved_bytes: (u64, u64),
}

impl<'a> PricedSegment<'a> {
    /// Computes the costs of a segment.
    #[must_use]
    pub fn new(devices: Devices<'a>, graph: &Graph, segment: &'a Segment) -> Self {
        let nodes = || segment.nodes.iter().map(|&id| graph.node(id));
        let cost = |(place, node): (usize, &Node)| {
            let weights = node.cost.weight_bytes;
            // Rows share the weights; channels share the input of the first node.
            let whole = match segment.cut {
                Cut::Rows { .. } => weights,
                Cut::Channels if place == 0 => node.cost.bytes_read.saturating_sub(weights),
                Cut::Channels => 0,
            };
            (node.cost, whole)
        };
        let runs = |offer: &Offer| nodes().all(|node| offer.operators.contains(node));
        let bytes = |id| graph.value(id).fact.byte_length().unwrap_or(0);
        Self {
            runs: devices.offers.iter().map(runs).collect(),
            devices,
            overhead: SharingOverhead::default(),
            segment,
            costs: nodes().enumerate().map(cost).collect(),
            weight_bytes: nodes().map(|node| node.cost.weight_bytes).sum(),
            moved_bytes: (bytes(segment.input), bytes(segment.output)),
        }
    }

    /// Adds the costs of sharing.
    #[must_use]
    pub fn with(self, overhead: SharingOverhead) -> Self {
        Self { overhead, ..self }
    }

    /// Returns the seconds of the whole segment on one device, including transfers of its input and
    /// output; infinite if the device cannot run it or has no room.
    #[must_use]
    pub fn alone_seconds(&self, device: usize) -> f64 {
        let ways = [&self.devices.sent, &self.devices.back];
        self.seconds(device, self.segment.units, ways)
    }

    /// Returns the seconds of a part with `units` units on a device, including its transfers.
    #[must_use]
    pub fn part_seconds(&self, device: usize, units: usize) -> f64 {
        let (overhead, devices) = (&self.overhead, &self.devices);
        let sent = overhead.sent.as_ref().unwrap_or(&devices.sent);
        let back = overhead.back.as_ref().unwrap_or(&devices.back);
        self.seconds(device, units, [sent, back])
    }

    fn seconds(&self, device: usize, units: usize, [there, back]: [&Vec<Option<Link>>; 2]) -> f64 {
        if units == 0 {
            return 0.0;
        }
        let compute = self.compute_seconds(device, units);
        let (sent, made) = self.moved_bytes(units);
        let way =
            |link: &Option<Link>, bytes| link.map_or(0.0, |link| link.transfer_seconds(bytes));
        compute + way(&there[device], sent) + way(&back[device], made)
    }

    /// Returns the seconds of `units` units on a device, without transfers.
    #[must_use]
    pub fn compute_seconds(&self, device: usize, units: usize) -> f64 {
        let offer = &self.devices.offers[device];
        let part = units as f64 / self.segment.units as f64;
        let scaled = |amount: u64| (amount as f64 * part).ceil() as u64;
        let (sent, back) = self.moved_bytes(units);
        let weights = match self.segment.cut {
            Cut::Rows { .. } => self.weight_bytes,
            Cut::Channels => scaled(self.weight_bytes),
        };
        if !self.runs[device] || weights + sent + back > offer.memory_bytes {
            return f64::INFINITY;
        }
        let node = |(cost, whole): &(Cost, u64)| {
            let part = Cost {
                flops: scaled(cost.flops),
                bytes_read: whole + scaled(cost.bytes_read.saturating_sub(*whole)),
                bytes_written: scaled(cost.bytes_written),
                ..*cost
            };
            cost_seconds(&part, offer)
        };
        self.costs.iter().map(node).sum()
    }

    /// Returns the bytes of input and of output of `units` units.
    #[must_use]
    pub fn moved_bytes(&self, units: usize) -> (u64, u64) {
        let part = units as f64 / self.segment.units as f64;
        let scaled = |amount: u64| (amount as f64 * part).ceil() as u64;
        let input = match self.segment.cut {
            Cut::Rows { .. } => scaled(self.moved_bytes.0),
            Cut::Channels => self.moved_bytes.0,
        };
        (input, scaled(self.moved_bytes.1))
    }

    /// Returns the seconds before the parts begin.
    #[must_use]
    pub fn seconds_before(&self) -> f64 {
        self.overhead.before
    }

    /// Returns the seconds from the last part to the whole output.
    #[must_use]
    pub fn seconds_after(&self) -> f64 {
        let on_host = || self.join_seconds() + self.overhead.from_host;
        self.overhead.after.unwrap_or_else(on_host)
    }

    /// Returns the seconds to join the parts in host memory, which reads and writes each byte of
    /// the output once.
    #[must_use]
    pub fn join_seconds(&self) -> f64 {
        let rates = self
            .devices
            .offers
            .iter()
            .map(|offer| offer.bytes_per_second);
        2.0 * self.moved_bytes.1 as f64 / rates.fold(f64::INFINITY, f64::min)
    }

    /// Returns the best shares, whether or not they pay.
    #[must_use]
    pub fn best_shares(&self) -> Option<Shares> {
        let time = |device: usize, units: usize| self.part_seconds(device, units);
        let found = soonest_shares(self.segment.units, self.devices.offers.len(), &time)?;
        Some(self.judge_shares(found))
    }

    /// Returns the shares with this number of units for each device.
    #[must_use]
    pub fn shares_for_counts(&self, counts: &[usize]) -> Shares {
        let time = |device: usize, units: usize| self.part_seconds(device, units);
        self.judge_shares(Shares::from_counts(counts, &time))
    }

    /// Returns the seconds of existing shares by the present figures.
    #[must_use]
    pub fn seconds_of(&self, shares: &Shares) -> f64 {
        let parts = shares.parts.iter();
        let longest = parts.map(|part| self.part_seconds(part.device, part.units));
        longest.fold(0.0, f64::max) + self.seconds_before() + self.seconds_after()
    }

    fn judge_shares(&self, found: Shares) -> Shares {
        let seconds = match found.parts[..] {
            [part] => self.alone_seconds(part.device),
            _ => found.seconds + self.seconds_before() + self.seconds_after(),
        };
        let devices = 0..self.devices.offers.len();
        let single = devices.map(|device| self.alone_seconds(device));
        Shares {
            seconds,
            single_seconds: single.fold(f64::INFINITY, f64::min),
            ..found
        }
    }
}

impl Shares {
    /// Returns whether several devices save enough of the best single device's time.
    #[must_use]
    pub fn is_worthwhile(&self) -> bool {
        self.parts.len() > 1 && self.seconds <= self.single_seconds * (1.0 - GAIN_MIN)
    }
}
