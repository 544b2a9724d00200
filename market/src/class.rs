//! The figures that describe a device, and the class that follows from them. A class groups similar
//! devices, such as GPUs with 16 to 64 GiB of memory and similar speed; each class has an order
//! book of its own.
//!
//! The market has no list of devices: the node that measures a device chooses the code and the name
//! of its kind. A class is coarse on purpose (each band spans a factor of four), so that a book has
//! depth; a bid must state its exact needs in its predicate.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::number;
use crate::operators::Operators;
use crate::refused_nodes::RefusedGraphNodes;
use crate::text::Name;
use crate::tokens::TokenTerms;

number! {
    /// The kind of device, as the devices' own taxonomy numbers it.
    KindCode(u16)
}
number! {
    /// A region, 0 to 31: one bit in [`crate::Regions`].
    Region(u8)
}
number! {
    /// Feature flags, as the devices' own taxonomy numbers the bits.
    Features(u32)
}
impl Features {
    /// The feature that the market knows itself: the provider promises that its results are the
    /// same bits on every machine, so its buyers can dispute one.
    pub const EXACT_1: Self = Self(1 << 8);

    /// Returns whether all of the other features are among these.
    pub fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

number! {
    /// A band of a figure: 0 below one unit, then one band for each factor of four.
    Band(u8)
}

/// The number of [`Dtype`]s.
pub const DTYPES: usize = 6;

/// An element type for which a device states its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit integer.
    Int8,
    /// 4-bit integer.
    Int4,
}

impl Dtype {
    /// Every element type, in the order of [`Throughput`].
    pub const ALL: [Self; DTYPES] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
    ];
}

/// Mega-operations per second for each [`Dtype`], in the order of [`Dtype::ALL`]; 0 means "not
/// supported".
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Throughput(pub [u64; DTYPES]);

impl Throughput {
    /// Returns the throughput for one element type, in mega-operations per second.
    pub fn for_dtype(&self, dtype: Dtype) -> u64 {
        self.0[dtype as usize]
    }

    /// Returns these figures with `dtype` set to `mega_ops`.
    pub fn with(mut self, dtype: Dtype, mega_ops: u64) -> Self {
        self.0[dtype as usize] = mega_ops;
        self
    }

    fn max_rate(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// A kind of work that a device can run slower than its other figures predict, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Matrix products.
    Product,
    /// Convolutions.
    Convolution,
    /// All other work.
    Other,
}

impl WorkKind {
    /// Every kind, in the order of [`Slowness`].
    pub const ALL: [Self; 3] = [Self::Product, Self::Convolution, Self::Other];
}

/// How much longer than predicted each [`WorkKind`] takes, in hundredths: 0 means as long as
/// predicted, 200 means three times as long.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Slowness(pub [u16; 3]);

impl Slowness {
    /// Returns the slowness of one kind, in hundredths.
    pub fn for_work(&self, work: WorkKind) -> u16 {
        self.0[work as usize]
    }

    /// Returns these figures with `work` set to `hundredths`.
    pub fn with(mut self, work: WorkKind, hundredths: u16) -> Self {
        self.0[work as usize] = hundredths;
        self
    }
}

/// The exact resources that an ask offers. The provider measures and states them; receipts show
/// whether they hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Resources {
    /// The code of the device's kind.
    pub kind: KindCode,
    /// The device's kind, as people call it.
    pub kind_name: Name,
    /// The name of the device model.
    pub model: Name,
    /// Memory that a job can use, in bytes.
    pub memory_bytes: u64,
    /// Memory bandwidth, in bytes per second.
    pub memory_bandwidth: u64,
    /// Throughput by element type, in mega-operations per second.
    pub throughput: Throughput,
    /// Time to start one operation, in nanoseconds.
    pub launch_overhead_ns: u64,
    /// Work that takes longer than these figures predict.
    #[serde(default)]
    pub slowness: Slowness,
    /// Round trip to the provider's peers, in microseconds.
    pub link_latency_us: u64,
    /// Bandwidth of the provider's link, in bytes per second.
    pub link_bandwidth: u64,
    /// Power under load, in milliwatts; 0 if unknown.
    pub power_mw: u64,
    /// The region of the device.
    pub region: Region,
    /// Further features of the device.
    pub features: Features,
    /// Operators that the device runs.
    #[serde(default)]
    pub operators: Operators,
    /// Nodes that the device refused although it runs their operators.
    #[serde(default)]
    pub refused: RefusedGraphNodes,
    /// Whether time and energy come from a model of the device and not from measurements.
    pub emulated: bool,
    /// The terms of tokens, if the ask sells the answers of the model and no device.
    #[serde(default)]
    pub tokens: Option<TokenTerms>,
}

/// The key of a book: an ask and a bid can trade only within one class.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Class {
    /// The code of the device's kind.
    pub kind: KindCode,
    /// Memory, in GiB.
    pub memory: Band,
    /// Throughput of the fastest element type, in giga-operations per second.
    pub throughput: Band,
    /// Memory bandwidth, in GiB/s.
    pub bandwidth: Band,
    /// Whether the device is emulated: emulated and real devices have separate books.
    pub emulated: bool,
}

impl Band {
    /// Returns the band of `figure`, counted in `unit`s.
    pub fn from_figure(figure: u64, unit: u64) -> Self {
        let units = figure / unit.max(1);
        let band = units.checked_ilog2().map_or(0, |log| log / 2 + 1);
        debug_assert_eq!(band == 0, units == 0, "only nothing is in band 0");
        Self(u8::try_from(band).expect("a 64-bit figure has at most 33 bands"))
    }
}

impl Resources {
    /// Returns the class in which these resources are traded.
    pub fn class(&self) -> Class {
        Class {
            kind: self.kind,
            memory: Band::from_figure(self.memory_bytes, 1 << 30),
            throughput: Band::from_figure(self.throughput.max_rate(), 1_000),
            bandwidth: Band::from_figure(self.memory_bandwidth, 1 << 30),
            emulated: self.emulated,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            memory,
            throughput,
            bandwidth,
            emulated,
        } = self;
        write!(f, "k{kind}/m{memory}/t{throughput}/b{bandwidth}")?;
        if *emulated {
            f.write_str("/emulated")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_work_are_told_apart() {
        let slow = Slowness::default().with(WorkKind::Convolution, 200);
        assert_eq!(WorkKind::ALL.map(|work| slow.for_work(work)), [0, 200, 0]);
    }

    #[test]
    fn bands_span_a_factor_of_four() {
        let bands: Vec<u8> = [0, 1, 3, 4, 15, 16, u64::MAX]
            .map(|units| Band::from_figure(units, 1).0)
            .to_vec();
        assert_eq!(bands, [0, 1, 1, 2, 2, 3, 32]);
    }
}
