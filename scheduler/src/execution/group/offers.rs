//! Describes each device of a group as an offer for a graph: the speeds, the memory and the
//! operators of the device, by its profile. Plans choose among such offers. Functions here also
//! slow an offer by a factor.

use std::collections::BTreeSet;

use souk_memory::DType;
use souk_vocabulary::profile::Profile;

use super::GroupDevice;
use crate::graph::Graph;
use crate::learning::core_sharing::CoreUse;
use crate::planning::offer::{Offer, Operators, Slowness, Throughput};

/// Element types with a speed in an offer.
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::Bf16,
    DType::I8,
    DType::I4,
];

/// Operations per second of an emulated device in a float type that it refuses: such work would
/// take for ever.
const REFUSED: f64 = 0.0;

/// Returns each device's offer by its profile alone.
pub(crate) fn profile_offers(members: &[GroupDevice], graph: &Graph) -> Vec<Offer> {
    members
        .iter()
        .map(|member| profile_offer(member, graph))
        .collect()
}

fn profile_offer(member: &GroupDevice, graph: &Graph) -> Offer {
    let profile: &Profile = member.processor.profile();
    let rate = |&dtype: &DType| {
        let refused = profile.emulated && dtype.is_float();
        let stated = profile.operations_per_second(dtype);
        Some(Throughput {
            class: None,
            dtype: Some(dtype),
            flops_per_second: stated.or(refused.then_some(REFUSED))?,
        })
    };
    let runs = graph
        .nodes()
        .iter()
        .filter(|node| member.processor.check_support(&node.proto).is_ok());
    let operators: BTreeSet<String> = runs.map(crate::graph::Node::operator_name).collect();
    Offer {
        label: member.label.clone(),
        throughput: DTYPES.iter().filter_map(rate).collect(),
        bytes_per_second: profile.memory.bytes_per_second,
        memory_bytes: member.processor.memory_free_bytes(),
        launch_seconds: profile.launch.as_secs_f64(),
        slowness: Slowness::default(),
        cost_per_second: 0.0,
        busy_watts: None,
        operators: Operators::Only(operators),
    }
}

/// Returns the offer of a device with a standing.
pub(super) fn offer_for_core_use(offer: &Offer, core_use: CoreUse) -> Offer {
    let mut offer = offer.clone();
    if core_use == CoreUse::Out {
        offer.operators = Operators::Only(BTreeSet::new());
    }
    offer
}

/// Returns an offer on which everything takes `factor` times as long.
fn slow_offer(offer: &Offer, factor: f64) -> Offer {
    let mut slower = offer.clone();
    for speed in &mut slower.throughput {
        speed.flops_per_second /= factor;
    }
    slower.bytes_per_second /= factor;
    slower.launch_seconds *= factor;
    slower
}

/// Returns the offers, each slowed by its factor.
pub(super) fn slow_offers(offers: &[Offer], factor: impl Fn(usize) -> f64) -> Vec<Offer> {
    let numbered = offers.iter().enumerate();
    numbered
        .map(|(device, offer)| slow_offer(offer, factor(device)))
        .collect()
}

/// Returns whether runs use the devices' own time, independent of this machine's time.
pub(super) fn all_emulated(members: &[GroupDevice]) -> bool {
    let mut profiles = members.iter().map(|member| member.processor.profile());
    profiles.all(|profile| profile.emulated)
}
