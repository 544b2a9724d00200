//! Computes the costs of sharing an operator: the time of its parts on each device, with their
//! transfers, their cut and their join.

use bytes::Bytes;

use super::assembly::Assembly;
use crate::execution::error::GroupPlanError;
use crate::execution::group::GroupDevice;
use crate::execution::group::group_problem::GroupProblem;
use crate::execution::group::offers::{self, slow_offers};
use crate::graph::{Graph, NodeId, ValueId};
use crate::learning::kind_of_class;
use crate::planning::offer::{Link, Offer, node_seconds};
use crate::planning::split::{Cut, Devices, Part, PricedSegment, Segment, SharingOverhead};

impl GroupProblem {
    /// Returns the costs of a segment's parts under a leader.
    pub(in crate::execution::group) fn price_segment<'a>(
        &'a self,
        offers: &'a [Offer],
        leader: usize,
        segment: &'a Segment,
    ) -> PricedSegment<'a> {
        let devices = 0..offers.len();
        let way = |device: usize, at_host: bool, from: usize, to: usize| -> Option<Link> {
            match at_host {
                true => Some(self.links.buyer[device]),
                false => (device != leader).then(|| self.links.between[from][to]),
            }
        };
        let (given, wanted) = (
            is_given(&self.graph, segment),
            is_wanted(&self.graph, segment),
        );
        let sent = |device: usize| way(device, given, leader, device);
        let back = |device: usize| way(device, wanted, device, leader);
        let devices = Devices {
            offers,
            sent: devices.clone().map(sent).collect(),
            back: devices.map(back).collect(),
        };
        PricedSegment::new(devices, &self.graph, segment)
    }

    /// Returns the costs of a segment's cut and join under a leader: by fragments in the leader's
    /// own memory if it has one and can run them, else on the host.
    pub(in crate::execution::group) fn cut_join_costs(
        &self,
        members: &[GroupDevice],
        leader: usize,
        segment: &Segment,
        parts: &[Part],
    ) -> Result<SharingOverhead, GroupPlanError> {
        let graph = &self.graph;
        let mut around = SharingOverhead::default();
        if members[leader].processor.device_memory().is_none() {
            return Ok(around);
        }
        let seconds = |assembly: &Assembly| -> Result<Option<f64>, GroupPlanError> {
            let seconds = assembly_seconds(members, assembly, &assembly.encode_model())?[leader];
            Ok(Some(seconds).filter(|seconds| seconds.is_finite()))
        };
        let by_host = || Some(self.links.buyer.iter().copied().map(Some).collect());
        let to_host = |value: ValueId| {
            let bytes = graph.value(value).fact.byte_length();
            self.links.buyer[leader].transfer_seconds(bytes.unwrap_or(0))
        };
        let name = |part: &Part| part.device.to_string();
        if !is_given(graph, segment) && matches!(segment.cut, Cut::Rows { .. }) {
            let cut = seconds(&Assembly::for_cutting(graph, segment, parts, name))?;
            around.before = cut.unwrap_or_else(|| to_host(segment.input));
            if cut.is_none() {
                around.sent = by_host();
            }
        }
        if !is_wanted(graph, segment) {
            let is_output = graph.outputs().contains(&segment.output);
            let wanted = if is_output {
                to_host(segment.output)
            } else {
                0.0
            };
            around.after = seconds(&Assembly::for_joining(graph, segment, parts, name))?;
            around.after = around.after.map(|seconds| seconds + wanted);
            if around.after.is_none() {
                around.back = by_host();
                around.from_host = to_host(segment.output);
            }
        }
        Ok(around)
    }

    /// Returns the seconds to transfer those inputs and outputs of the job that nodes on a device
    /// read or produce, each once.
    pub(in crate::execution::group) fn host_seconds(
        &self,
        device: usize,
        nodes: impl Iterator<Item = NodeId>,
    ) -> f64 {
        let graph = &self.graph;
        let crosses = |id: &ValueId| {
            let value = graph.value(*id);
            let given = value.producer().is_none() && !value.is_constant();
            given || graph.outputs().contains(id)
        };
        let of_node = |id: NodeId| {
            let node = graph.node(id);
            let reads = node
                .input_values()
                .filter(|&id| graph.value(id).producer().is_none());
            reads.chain(node.output_values()).collect::<Vec<ValueId>>()
        };
        let mut values: Vec<ValueId> = nodes.flat_map(of_node).filter(crosses).collect();
        values.sort_unstable();
        values.dedup();
        let link = &self.links.buyer[device];
        let way =
            |id: ValueId| link.transfer_seconds(graph.value(id).fact.byte_length().unwrap_or(0));
        values.into_iter().map(way).sum()
    }
}

/// Returns the seconds of an assembly on each device.
pub(in crate::execution::group) fn assembly_seconds(
    members: &[GroupDevice],
    assembly: &Assembly,
    model: &Bytes,
) -> Result<Vec<f64>, GroupPlanError> {
    let graph = Graph::import(model.clone(), &assembly.input_bindings())?;
    let sum = |offer: &Offer| -> f64 {
        let nodes = graph.nodes().iter();
        nodes.map(|node| node_seconds(node, offer)).sum()
    };
    Ok(offers::profile_offers(members, &graph)
        .iter()
        .map(sum)
        .collect())
}

/// Returns whether a segment's input comes from the job, and so from the host.
fn is_given(graph: &Graph, segment: &Segment) -> bool {
    graph.value(segment.input).producer().is_none()
}

/// Returns whether the job is the only reader of a segment's output, on the host.
fn is_wanted(graph: &Graph, segment: &Segment) -> bool {
    graph.value(segment.output).readers.is_empty()
}

/// Returns the bytes of a part that come from the host, and those that go there.
pub(in crate::execution::group) fn at_host(
    graph: &Graph,
    segment: &Segment,
    (sent, back): (u64, u64),
) -> [u64; 2] {
    let given = if is_given(graph, segment) { sent } else { 0 };
    let wanted = if is_wanted(graph, segment) { back } else { 0 };
    [given, wanted]
}

/// Returns the offers by measurements of a segment's operators, slowed by the factors `since`.
pub(in crate::execution::group) fn of_segment(
    group: &GroupProblem,
    segment: &Segment,
    since: impl Fn(usize) -> f64,
) -> Vec<Offer> {
    let nodes = &segment.nodes;
    slow_offers(&group.stated, |device| {
        group.known.time_factor(device, nodes) * since(device)
    })
}

/// Returns the kind of work of a segment.
pub(in crate::execution::group) fn kind_of_segment(graph: &Graph, segment: &Segment) -> u16 {
    kind_of_class(graph.node(segment.nodes[0]).cost.class)
}
