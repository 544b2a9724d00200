//! What the members of a team offer for a graph, as their profiles say and as was measured.

use std::collections::BTreeSet;
use std::time::Duration;

use souk_devices::profile::Profile;
use souk_devices::taxonomy::Kind;
use souk_memory::DType;
use souk_memory::paths::{Path, PathKind, Paths, Route};
use souk_memory::place::Place;

use super::Member;
use super::cores::Standing;
use super::memories::place;
use crate::cost::OperatorClass;
use crate::executor::Crew;
use crate::graph::Graph;
use crate::plan::{Link, Links, Offer, Operators, Slowness, Throughput};

/// Handing a tensor to another emulated device: what waking a thread mostly takes. Their time is
/// theirs, so it does not hang on what this machine is at.
pub(super) const HAND_OVER: Duration = Duration::from_micros(20);
/// The most a measured hand-over counts: a machine that was busy when it was measured will not
/// always be.
const HAND_OVER_MAX: Duration = Duration::from_micros(200);
/// The length for which the way between two devices is chosen in plans: an activation of a batch of
/// a small transformer. The run chooses by what each tensor has.
const WAY_BYTES: u64 = 1 << 20;
/// Element types whose speed an offer states.
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::Bf16,
    DType::I8,
    DType::I4,
];

/// Operations a second in a type of float that an emulated device refuses to compute in: they take
/// for ever.
const REFUSED: f64 = 0.0;

/// Kinds of work whose estimates err alike on a device: products, convolutions, all else.
pub(super) const KINDS: usize = 3;

/// The kind of work of an operator.
pub(super) fn kind(class: OperatorClass) -> u16 {
    match class {
        OperatorClass::Matmul => 1,
        OperatorClass::Convolution => 2,
        _ => 0,
    }
}

/// What each member offers by its profile alone.
pub(super) fn offers(members: &[Member], graph: &Graph) -> Vec<Offer> {
    members.iter().map(|member| offer(member, graph)).collect()
}

fn offer(member: &Member, graph: &Graph) -> Offer {
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
        .filter(|node| member.processor.supports(&node.proto).is_ok());
    let operators: BTreeSet<String> = runs.map(crate::graph::Node::operator).collect();
    Offer {
        label: member.label.clone(),
        throughput: DTYPES.iter().filter_map(rate).collect(),
        bytes_per_second: profile.memory.bytes_per_second,
        memory_bytes: member.processor.memory_free_bytes(),
        launch_seconds: profile.launch.as_secs_f64(),
        slowness: Slowness::default(),
        cost_per_second: 0.0,
        operators: Operators::Only(operators),
    }
}

/// An offer of a member that takes part so.
pub(super) fn taking(offer: &Offer, standing: Standing) -> Offer {
    let mut offer = offer.clone();
    if standing == Standing::Out {
        offer.operators = Operators::Only(BTreeSet::new());
    }
    offer
}

/// An offer of which everything takes so many times as long.
fn slower(offer: &Offer, factor: f64) -> Offer {
    let mut slower = offer.clone();
    for speed in &mut slower.throughput {
        speed.flops_per_second /= factor;
    }
    slower.bytes_per_second /= factor;
    slower.launch_seconds *= factor;
    slower
}

/// The offers, each so many times slower.
pub(super) fn slowed(offers: &[Offer], factor: impl Fn(usize) -> f64) -> Vec<Offer> {
    let numbered = offers.iter().enumerate();
    numbered
        .map(|(device, offer)| slower(offer, factor(device)))
        .collect()
}

/// Whether runs are told in the members' own time, whatever this machine takes meanwhile.
pub(super) fn all_emulated(members: &[Member]) -> bool {
    let mut profiles = members.iter().map(|member| member.processor.profile());
    profiles.all(|profile| profile.emulated)
}

/// What handing a tensor to another member's thread takes: measured, unless all are emulated.
pub(super) fn hand_over(members: &[Member], crew: &Crew) -> Duration {
    if all_emulated(members) {
        return HAND_OVER;
    }
    let measured = crew.hand_over().ok().flatten();
    measured.map_or(HAND_OVER, |measured| measured.min(HAND_OVER_MAX))
}

/// What lies between members as the paths have it now: see [`link`]. The buyer's place is taken by
/// the host, where a job's inputs come from and its outputs go.
pub(super) fn links(members: &[Member], hand_over: Duration, paths: &Paths) -> Links {
    let devices = 0..members.len();
    let row = |from: usize| -> Vec<Link> {
        let to = 0..members.len();
        to.map(|to| link(members, hand_over, paths, [from, to]))
            .collect()
    };
    let host = |device: usize| {
        let way = paths.route(Place::Host, place(device), WAY_BYTES);
        let way = way.and_then(|route| sum(paths, &route));
        way.unwrap_or(Link {
            latency_seconds: 0.0,
            bytes_per_second: f64::INFINITY,
        })
    };
    Links {
        buyer: devices.clone().map(host).collect(),
        between: devices.map(row).collect(),
    }
}

/// Between devices that take tensors in host memory nothing moves but the word that they are there,
/// and the slower of the two reads or writes them once. Where one has a memory of its own, so does
/// what the way there takes.
fn link(members: &[Member], hand_over: Duration, paths: &Paths, [from, to]: [usize; 2]) -> Link {
    let rate = |device: usize| members[device].processor.profile().memory.bytes_per_second;
    let word = Link {
        latency_seconds: hand_over.as_secs_f64(),
        bytes_per_second: rate(from).min(rate(to)),
    };
    if from == to {
        return word;
    }
    let way = paths.route(place(from), place(to), WAY_BYTES);
    let way = way.and_then(|route| sum(paths, &route));
    way.map_or(word, |way| Link {
        latency_seconds: word.latency_seconds + way.latency_seconds,
        bytes_per_second: way.bytes_per_second,
    })
}

/// A route as one link; none where nothing moves.
fn sum(paths: &Paths, route: &Route) -> Option<Link> {
    let (mut latency, mut seconds_per_byte) = (0.0, 0.0);
    for hop in &route.hops {
        let path = paths.direct(hop.from, hop.to, WAY_BYTES)?;
        if !matches!(path.kind, PathKind::Unified | PathKind::Shared) {
            latency += path.latency.as_secs_f64();
            seconds_per_byte += 1.0 / path.bytes_per_second;
        }
    }
    (seconds_per_byte > 0.0).then(|| Link {
        latency_seconds: latency,
        bytes_per_second: 1.0 / seconds_per_byte,
    })
}

/// Whether plans made with some links still hold with others.
pub(super) fn alike(one: &Links, other: &Links, factor: f64) -> bool {
    let all = |links: &Links| {
        let between = links.between.iter().flatten();
        let each = links.buyer.iter().chain(between);
        each.map(|link| link.seconds(WAY_BYTES))
            .collect::<Vec<f64>>()
    };
    let mut pairs = all(one).into_iter().zip(all(other));
    pairs.all(|(one, other)| one == other || (1.0 / factor..=factor).contains(&(one / other)))
}

/// What a device may hold: of its own memory what is free, of the host's what it could address.
pub(super) fn limit_of(member: &Member, host_bytes_max: u64) -> u64 {
    match member.processor.memory() {
        Some(_) => member.processor.memory_free_bytes(),
        None => host_bytes_max.min(member.processor.profile().memory.bytes),
    }
}

/// A processor that takes and gives tensors in this process's memory: a CPU by its addresses,
/// another one as part of the same chip.
pub(super) fn shared(member: &Member) -> Path {
    let kind = match member.processor.profile().kind {
        Kind::Cpu { .. } | Kind::Wasm => PathKind::Shared,
        _ => PathKind::Unified,
    };
    Path {
        kind,
        latency: Duration::ZERO,
        bytes_per_second: member.processor.profile().memory.bytes_per_second.max(1.0),
    }
}
