//! Describes a device on offer to a planner: its speeds, memory, operators and price, and the links
//! over which data reach it.

use std::collections::BTreeSet;

use souk_memory::DType;

use crate::graph::Node;
use crate::graph::cost::{Cost, OperatorClass};

/// A device on offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The caller's label, which the planner does not interpret. It should mark emulated devices.
    pub label: String,
    /// Measured speeds. The first speed that fits a node's class and element type counts, so you
    /// must put specific classes before general ones.
    pub throughput: Vec<Throughput>,
    /// Memory bandwidth in bytes per second.
    pub bytes_per_second: f64,
    /// Bytes of memory that a job can use.
    pub memory_bytes: u64,
    /// Seconds of fixed time for each node.
    pub launch_seconds: f64,
    /// Kinds of work that take longer than the other figures say.
    pub slowness: Slowness,
    /// Price of a second, in the caller's unit.
    pub cost_per_second: f64,
    /// Watts that it draws while it computes; none if unknown.
    pub busy_watts: Option<f64>,
    /// Operators that it can run.
    pub operators: Operators,
}

/// A measured speed of a device for a class of operators and an element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Kind of work of the measurement; `None` for all kinds.
    pub class: Option<OperatorClass>,
    /// Element type of the measurement; `None` for all types.
    pub dtype: Option<DType>,
    /// Operations per second.
    pub flops_per_second: f64,
}

/// Factors by which kinds of work take longer than a device's speeds say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// Factor for matrix products.
    pub product: f64,
    /// Factor for convolutions.
    pub convolution: f64,
    /// Factor for all other work.
    pub other: f64,
}

/// The operators that a device can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operators {
    /// All operators.
    All,
    /// Only these, by the names that [`Node::operator_name`] returns.
    Only(BTreeSet<String>),
    /// All except these.
    Without(BTreeSet<String>),
}

/// A connection between two places, with its latency and bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds until the first byte arrives.
    pub latency_seconds: f64,
    /// Bytes per second from then on.
    pub bytes_per_second: f64,
}

/// Links between the buyer and the devices, and among the devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Links to and from the buyer, one for each offer.
    pub buyer: Vec<Link>,
    /// Links from offer to offer: `between[from][to]`.
    pub between: Vec<Vec<Link>>,
}

impl Default for Slowness {
    fn default() -> Self {
        Self {
            product: 1.0,
            convolution: 1.0,
            other: 1.0,
        }
    }
}

impl Slowness {
    /// Returns the factor for a class of work.
    #[must_use]
    pub fn factor_for(&self, class: OperatorClass) -> f64 {
        match class {
            OperatorClass::Matmul => self.product,
            OperatorClass::Convolution => self.convolution,
            _ => self.other,
        }
    }

    /// Returns the factors for one of `parts` equal parts of a device. A part gets more than its
    /// share while other parts are idle. No factor falls below one.
    #[must_use]
    pub fn per_part(self, parts: u32) -> Self {
        let each = |times: f64| (times / f64::from(parts.max(1))).max(1.0);
        Self {
            product: each(self.product),
            convolution: each(self.convolution),
            other: each(self.other),
        }
    }

    /// Returns the same factors with another one for the kind of a class.
    #[must_use]
    pub fn with(mut self, class: OperatorClass, times: f64) -> Self {
        match class {
            OperatorClass::Matmul => self.product = times,
            OperatorClass::Convolution => self.convolution = times,
            _ => self.other = times,
        }
        self
    }
}

impl Operators {
    /// Returns whether `node` is among them.
    #[must_use]
    pub fn contains(&self, node: &Node) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => is_among(names, node),
            Self::Without(names) => !is_among(names, node),
        }
    }
}

fn is_among(names: &BTreeSet<String>, node: &Node) -> bool {
    match node.proto.operator_domain() {
        "" => names.contains(node.proto.op_type()),
        _ => names.contains(&node.operator_name()),
    }
}

impl Link {
    /// Returns the seconds for `bytes`.
    #[must_use]
    pub fn transfer_seconds(&self, bytes: u64) -> f64 {
        self.latency_seconds + bytes as f64 / self.bytes_per_second
    }
}

impl Links {
    /// Creates the same link everywhere among `offers` devices and the buyer.
    #[must_use]
    pub fn uniform(offers: usize, link: Link) -> Self {
        Self {
            buyer: vec![link; offers],
            between: vec![vec![link; offers]; offers],
        }
    }
}

impl Offer {
    /// Returns the operations per second for this kind of work.
    #[must_use]
    pub fn flops_per_second(&self, cost: &Cost) -> Option<f64> {
        let fits = |speed: &&Throughput| {
            speed.class.is_none_or(|class| class == cost.class)
                && (speed.dtype.is_none() || speed.dtype == cost.dtype)
        };
        let found = self.throughput.iter().find(fits).or_else(|| {
            // An element type without a measurement runs like single precision, the common
            // denominator.
            let single = |speed: &&Throughput| speed.dtype == Some(DType::F32);
            self.throughput.iter().find(single)
        });
        found.map(|speed| speed.flops_per_second)
    }
}

/// Returns the expected seconds of a node on a device: launch, then the longer of arithmetic and
/// memory traffic, multiplied by the factor of its kind of work. Infinite if the device cannot run
/// the operator.
#[must_use]
pub fn node_seconds(node: &Node, offer: &Offer) -> f64 {
    if !offer.operators.contains(node) {
        return f64::INFINITY;
    }
    cost_seconds(&node.cost, offer)
}

/// Returns the expected seconds of this work on a device that can run its operator.
#[must_use]
pub fn cost_seconds(cost: &Cost, offer: &Offer) -> f64 {
    let arithmetic = match offer.flops_per_second(cost) {
        Some(speed) => cost.flops as f64 / speed,
        None => 0.0,
    };
    let memory = cost.traffic_bytes() as f64 / offer.bytes_per_second;
    let launches = offer.launch_seconds * cost.launch_count() as f64;
    (launches + arithmetic.max(memory)) * offer.slowness.factor_for(cost.class)
}
