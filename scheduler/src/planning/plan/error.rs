//! Why there is no plan, with the figures a buyer needs to change something.

use thiserror::Error;

use super::PlanOptions;
use crate::graph::Graph;
use crate::planning::offer::{Link, Links, Offer};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// Nothing is on offer.
    #[error("no device is on offer")]
    NoOffers,
    /// More devices asked for than are on offer.
    #[error("at least {min_devices} devices are asked for, {offers} are on offer")]
    TooFewOffers {
        /// Devices asked for.
        min_devices: usize,
        /// Devices on offer.
        offers: usize,
    },
    /// The most devices allowed are fewer than the fewest.
    #[error("at least {min_devices} but at most {max_devices} devices are asked for")]
    Limits {
        /// Fewest.
        min_devices: usize,
        /// Most.
        max_devices: usize,
    },
    /// An operator that no device runs.
    #[error("operator {operator} (node {node:?}) is supported by none of the {offers} devices")]
    Unsupported {
        /// The operator.
        operator: String,
        /// First node that uses it.
        node: String,
        /// Devices on offer.
        offers: usize,
    },
    /// Not enough memory on any device or allowed number of devices.
    #[error("the job needs {needed} bytes of memory; the largest device on offer has {largest}")]
    Memory {
        /// Bytes the whole job needs.
        needed: u64,
        /// Most bytes one device has.
        largest: u64,
    },
    /// The graph cannot be spread over so many devices with real work on each.
    #[error("the graph has real work for {possible} devices, {min_devices} are asked for")]
    NotDivisible {
        /// Devices asked for.
        min_devices: usize,
        /// Most parts with real work.
        possible: usize,
    },
    /// No plan found within the limit on devices.
    #[error("no plan with at most {max_devices} devices runs every operator within memory")]
    TooFewDevices {
        /// Most devices allowed.
        max_devices: usize,
    },
    /// The cheapest plan costs more than the budget.
    #[error("the cheapest plan costs {cheapest}, the budget is {budget}")]
    Budget {
        /// The budget.
        budget: f64,
        /// Cost of the cheapest plan.
        cheapest: f64,
    },
    /// The fastest plan within the budget takes longer than the deadline.
    #[error(
        "the fastest plan takes {fastest_seconds:.6} s, the deadline is {deadline_seconds:.6} s"
    )]
    Deadline {
        /// The deadline.
        deadline_seconds: f64,
        /// Makespan of the fastest plan within the budget.
        fastest_seconds: f64,
    },
    /// An offer with a figure that is no number, negative, or zero where it divides.
    #[error("offer {label:?}: {figure} is {value}")]
    Figure {
        /// What the caller calls the offer.
        label: String,
        /// Which figure.
        figure: &'static str,
        /// Its value.
        value: f64,
    },
    /// Links that are not one for each offer and each pair.
    #[error("links are given for {found} of {offers} offers")]
    Links {
        /// Offers.
        offers: usize,
        /// Length of the shortest list of links.
        found: usize,
    },
}

/// What can be known to fail before any search.
pub(super) fn check(
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
            operator: node.operator(),
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
    // An infinite bandwidth is a link that costs only its latency, as within one machine.
    if link.bytes_per_second.is_nan() || link.bytes_per_second <= 0.0 {
        return wrong("link bandwidth", link.bytes_per_second);
    }
    if !link.latency_seconds.is_finite() || link.latency_seconds < 0.0 {
        return wrong("link latency", link.latency_seconds);
    }
    Ok(())
}
