//! What a device on offer can do, and what reaching it costs.

use std::collections::BTreeSet;

use souk_memory::DType;

use crate::graph::Node;
use crate::graph::cost::{Cost, OperatorClass};

/// A device on offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// What the caller calls it; opaque here. A caller marks emulated devices in it.
    pub label: String,
    /// Measured speeds. The first that fits a node's class and element type counts, so put those
    /// for a class before those for all.
    pub throughput: Vec<Throughput>,
    /// Memory bandwidth in bytes per second.
    pub bytes_per_second: f64,
    /// Memory a job may use, in bytes.
    pub memory_bytes: u64,
    /// Fixed time of each node, in seconds.
    pub launch_seconds: f64,
    /// What kinds of work take longer than all that says.
    pub slowness: Slowness,
    /// Price of a second, in the caller's unit.
    pub cost_per_second: f64,
    /// What it draws while it computes; none where nobody says.
    pub busy_watts: Option<f64>,
    /// Operators it runs.
    pub operators: Operators,
}

/// A measured speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Kind of work it was measured on; `None` for all kinds.
    pub class: Option<OperatorClass>,
    /// Element type it was measured with; `None` for all types.
    pub dtype: Option<DType>,
    /// Operations per second.
    pub flops_per_second: f64,
}

/// How many times as long kinds of work take as a device's speeds say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowness {
    /// Matrix products.
    pub product: f64,
    /// Convolutions.
    pub convolution: f64,
    /// All else.
    pub other: f64,
}

/// Operators a device runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operators {
    /// All of them.
    All,
    /// Those named, as [`Node::operator`] names them.
    Only(BTreeSet<String>),
    /// All but those named.
    Without(BTreeSet<String>),
}

/// A way between two places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time until the first byte arrives, in seconds.
    pub latency_seconds: f64,
    /// Bytes per second from then on.
    pub bytes_per_second: f64,
}

/// Ways between the buyer and the devices, and among the devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// To and from the buyer, one for each offer.
    pub buyer: Vec<Link>,
    /// From offer to offer: `between[from][to]`.
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
    /// Of work of a class.
    #[must_use]
    pub fn of(&self, class: OperatorClass) -> f64 {
        match class {
            OperatorClass::Matmul => self.product,
            OperatorClass::Convolution => self.convolution,
            _ => self.other,
        }
    }

    /// The same of one of so many equal parts of a device, which has more than that where the
    /// others are idle: never less than once.
    #[must_use]
    pub fn each(self, parts: u32) -> Self {
        let each = |times: f64| (times / f64::from(parts.max(1))).max(1.0);
        Self {
            product: each(self.product),
            convolution: each(self.convolution),
            other: each(self.other),
        }
    }

    /// The same with so many times for the kind of a class.
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
    /// Whether `node` is among them.
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
        _ => names.contains(&node.operator()),
    }
}

impl Link {
    /// Time for `bytes`, in seconds.
    #[must_use]
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.latency_seconds + bytes as f64 / self.bytes_per_second
    }
}

impl Links {
    /// The same link everywhere among `offers` devices and the buyer.
    #[must_use]
    pub fn uniform(offers: usize, link: Link) -> Self {
        Self {
            buyer: vec![link; offers],
            between: vec![vec![link; offers]; offers],
        }
    }
}

impl Offer {
    /// Operations per second on work of that kind.
    #[must_use]
    pub fn flops_per_second(&self, cost: &Cost) -> Option<f64> {
        let fits = |speed: &&Throughput| {
            speed.class.is_none_or(|class| class == cost.class)
                && (speed.dtype.is_none() || speed.dtype == cost.dtype)
        };
        let found = self.throughput.iter().find(fits).or_else(|| {
            // An element type nobody measured runs like single precision, the common denominator.
            let single = |speed: &&Throughput| speed.dtype == Some(DType::F32);
            self.throughput.iter().find(single)
        });
        found.map(|speed| speed.flops_per_second)
    }
}

/// Expected time of a node on a device, in seconds: launch, then arithmetic or memory, whichever
/// takes longer, and as many times that as its kind of work takes. Infinite if the device does not
/// run the operator.
#[must_use]
pub fn node_seconds(node: &Node, offer: &Offer) -> f64 {
    if !offer.operators.contains(node) {
        return f64::INFINITY;
    }
    cost_seconds(&node.cost, offer)
}

/// Expected time of so much work on a device that runs its operator, in seconds.
#[must_use]
pub fn cost_seconds(cost: &Cost, offer: &Offer) -> f64 {
    let arithmetic = match offer.flops_per_second(cost) {
        Some(speed) => cost.flops as f64 / speed,
        None => 0.0,
    };
    let memory = cost.bytes() as f64 / offer.bytes_per_second;
    let launches = offer.launch_seconds * cost.launches() as f64;
    (launches + arithmetic.max(memory)) * offer.slowness.of(cost.class)
}
