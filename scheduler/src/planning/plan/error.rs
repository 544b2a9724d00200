//! Defines the errors of planning, with the figures that a buyer needs to change the request.

use thiserror::Error;

use super::PlanOptions;
use crate::graph::Graph;
use crate::planning::offer::{Link, Links, Offer};

/// The reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// The market offers no device.
    #[error("no device is on offer")]
    NoOffers,
    /// The buyer requires more devices than are on offer.
    #[error("at least {min_devices} devices are asked for, {offers} are on offer")]
    TooFewOffers {
        /// Minimum number of devices.
        min_devices: usize,
        /// Number of devices on offer.
        offers: usize,
    },
    /// The maximum number of devices is below the minimum.
    #[error("at least {min_devices} but at most {max_devices} devices are asked for")]
    Limits {
        /// Minimum number of devices.
        min_devices: usize,
        /// Maximum number of devices.
        max_devices: usize,
    },
    /// No device supports an operator.
    #[error("operator {operator} (node {node:?}) is supported by none of the {offers} devices")]
    Unsupported {
        /// Name of the operator.
        operator: String,
        /// First node that uses it.
        node: String,
        /// Number of devices on offer.
        offers: usize,
    },
    /// Neither a single device nor the permitted number of devices has enough memory.
    #[error("the job needs {needed} bytes of memory; the largest device on offer has {largest}")]
    Memory {
        /// Bytes that the whole job needs.
        needed: u64,
        /// Bytes of the device with the most memory.
        largest: u64,
    },
    /// The graph does not have real work for that many devices.
    #[error("the graph has real work for {possible} devices, {min_devices} are asked for")]
    NotDivisible {
        /// Minimum number of devices.
        min_devices: usize,
        /// Maximum number of parts with real work.
        possible: usize,
    },
    /// The search found no plan within the maximum number of devices.
    #[error("no plan with at most {max_devices} devices runs every operator within memory")]
    TooFewDevices {
        /// Maximum number of devices.
        max_devices: usize,
    },
    /// The cheapest plan costs more than the budget.
    #[error("the cheapest plan costs {cheapest}, the budget is {budget}")]
    Budget {
        /// Maximum cost of the plan.
        budget: f64,
        /// Cost of the cheapest plan.
        cheapest: f64,
    },
    /// The fastest plan within the budget takes longer than the deadline.
    #[error(
        "the fastest plan takes {fastest_seconds:.6} s, the deadline is {deadline_seconds:.6} s"
    )]
    Deadline {
        /// The deadline in seconds.
        deadline_seconds: f64,
        /// Makespan in seconds of the fastest plan within the budget.
        fastest_seconds: f64,
    },
    /// A figure of an offer is infinite, not a number, negative, or zero although the planner must
    /// divide by it.
    #[error("offer {label:?}: {figure} is {value}")]
    Figure {
        /// The caller's label of the offer.
        label: String,
        /// Name of the figure.
        figure: &'static str,
        /// Value of the figure.
        value: f64,
    },
    /// The links do not cover each offer and each pair of offers.
    #[error("links are given for {found} of {offers} offers")]
    Links {
        /// Number of offers.
        offers: usize,
        /// Length of the shortest list of links.
        found: usize,
    },
}

/// Checks the conditions that must hold before any search.
pub(super) fn check_inputs(
    graph: &Graph,
    offers: &[Offer],
    links: &Links,
    options: &PlanOptions,
) -> Result<(), PlanError> {
    if offers.is_empty() {
        return Err(PlanError::NoOffers);
    }
    let (min_devices, max_devices) = (options.min_devices, options.max_devices);
    if max_devices == 0 || min_devices > max_devices {
        return Err(PlanError::Limits {
            min_devices,
            max_devices,
        });
    }
    if min_devices > offers.len() {
        let offers = offers.len();
        return Err(PlanError::TooFewOffers {
            min_devices,
            offers,
        });
    }
    offers.iter().try_for_each(check_offer)?;
    check_links(offers, links)?;
    let unsupported = graph
        .nodes()
        .iter()
        .find(|node| offers.iter().all(|offer| !offer.operators.contains(node)));
    match unsupported {
        None => Ok(()),
        Some(node) => Err(PlanError::Unsupported {
            operator: node.operator_name(),
            node: node.name().to_owned(),
            offers: offers.len(),
        }),
    }
}

pub(super) fn check_offer(offer: &Offer) -> Result<(), PlanError> {
    let speeds = offer
        .throughput
        .iter()
        .map(|speed| ("throughput", speed.flops_per_second));
    let divisors = speeds.chain([("memory bandwidth", offer.bytes_per_second)]);
    let divisors = divisors.map(|(name, value)| (name, value, value > 0.0));
    let others = [
        ("launch time", offer.launch_seconds),
        ("price", offer.cost_per_second),
    ];
    let others = others
        .into_iter()
        .map(|(name, value)| (name, value, value >= 0.0));
    let wrong = divisors
        .chain(others)
        .find(|(_, value, good)| !good || !value.is_finite());
    match wrong {
        None => Ok(()),
        Some((figure, value, _)) => Err(PlanError::Figure {
            label: offer.label.clone(),
            figure,
            value,
        }),
    }
}

pub(super) fn check_links(offers: &[Offer], links: &Links) -> Result<(), PlanError> {
    let rows = links.between.iter().map(Vec::len);
    let lengths = rows.chain([links.buyer.len(), links.between.len()]);
    let found = lengths.min().unwrap_or(0);
    if found < offers.len() {
        let offers = offers.len();
        return Err(PlanError::Links { offers, found });
    }
    for (index, offer) in offers.iter().enumerate() {
        let between = links.between[index].iter();
        for link in between.chain([&links.buyer[index]]) {
            check_link(&offer.label, link)?;
        }
    }
    Ok(())
}

fn check_link(label: &str, link: &Link) -> Result<(), PlanError> {
    let wrong = |figure, value| {
        let label = label.to_owned();
        Err(PlanError::Figure {
            label,
            figure,
            value,
        })
    };
    // An infinite bandwidth is valid: such a link costs only its latency, as within one machine.
    if link.bytes_per_second.is_nan() || link.bytes_per_second <= 0.0 {
        return wrong("link bandwidth", link.bytes_per_second);
    }
    if !link.latency_seconds.is_finite() || link.latency_seconds < 0.0 {
        return wrong("link latency", link.latency_seconds);
    }
    Ok(())
}
