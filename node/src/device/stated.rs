//! What an ask states of its device, as the planner reads it, and the time that work takes by it.
//!
//! Both sides of a lease compute that time, each from the graph: the buyer for its plan, the
//! provider for what its receipt says it promised. So neither has to believe the other.

use std::time::Duration;

use souk_market::{Dtype, Price, Resources, Work};
use souk_memory::DType;
use souk_roles::market::operators;
use souk_scheduler::graph::Node;
use souk_scheduler::planning::{Offer, Operators, Slowness, Throughput, cost_seconds};

use super::graph_work::GraphWork;

/// Element types that asks state a speed for, as graphs call them.
const DTYPES: [(DType, Dtype); 5] = [
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::Bf16),
    (DType::I8, Dtype::Int8),
];

/// No run takes decades: what a graph says beyond that, it says wrongly.
const SECONDS_MAX: f64 = 1e9;

/// What a device is called: its model, marked where it is emulated.
#[must_use]
pub fn label(stated: &Resources) -> String {
    let emulated = if stated.emulated { " (emulated)" } else { "" };
    format!("{}{emulated}", stated.model.as_str())
}

/// A device as the planner sees it.
#[must_use]
pub fn offer(stated: &Resources, price: Price) -> Offer {
    let rate = |(dtype, market): (DType, Dtype)| {
        let mega_ops = stated.throughput.of(market);
        let flops_per_second = mega_ops as f64 * 1e6;
        (mega_ops > 0).then_some(Throughput {
            class: None,
            dtype: Some(dtype),
            flops_per_second,
        })
    };
    Offer {
        label: label(stated),
        throughput: DTYPES.into_iter().filter_map(rate).collect(),
        bytes_per_second: stated.memory_bandwidth as f64,
        memory_bytes: stated.memory_bytes,
        launch_seconds: stated.launch_overhead_ns as f64 / 1e9,
        slowness: slowness(&stated.slowness),
        cost_per_second: price.0 as f64,
        busy_watts: (stated.power_mw > 0).then(|| stated.power_mw as f64 / 1e3),
        operators: runs(&stated.operators),
    }
}

/// What it runs; whoever states no operators at all is taken to run them all.
fn runs(stated: &souk_market::Operators) -> Operators {
    if stated.is_empty() {
        return Operators::All;
    }
    let names = operators::NAMES.iter().enumerate();
    let lacking = names.filter(|(number, _)| !stated.has(*number));
    Operators::Without(lacking.map(|(_, name)| (*name).to_owned()).collect())
}

/// What takes longer than the other figures say, as the planner reads it.
fn slowness(stated: &souk_market::Slowness) -> Slowness {
    let times = |work: Work| 1.0 + f64::from(stated.of(work)) / 100.0;
    Slowness {
        product: times(Work::Product),
        convolution: times(Work::Convolution),
        other: times(Work::Other),
    }
}

/// Whether it is known before they are run what these nodes do.
pub fn is_known<'g>(mut nodes: impl Iterator<Item = &'g Node>) -> bool {
    nodes.all(|node| node.cost.certain)
}

/// Device time of one run that takes so much, by what an ask states; none where that is beyond all
/// sense.
#[must_use]
pub(crate) fn expected(stated: &Resources, work: &GraphWork) -> Option<Duration> {
    let offer = offer(stated, Price(0));
    let seconds = work
        .costs()
        .map(|(cost, count)| cost_seconds(&cost, &offer) * f64::from(count));
    let seconds: f64 = seconds.sum();
    (seconds < SECONDS_MAX).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::npy;
    use souk_scheduler::graph::{Bindings, Graph, cut};
    use souk_scheduler::planning::node_seconds;

    use super::super::graph_work::Shape;
    use super::*;
    use crate::provider::tests::resources;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");

    #[test]
    fn a_part_is_worth_what_its_nodes_are_worth_in_the_whole() {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let bindings = Bindings::new().input("images", images.dtype(), images.dims());
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        let stated = resources();
        let offer = offer(&stated, Price(1));
        let half = graph.nodes().len() / 2;
        let assignment: Vec<usize> = (0..graph.nodes().len())
            .map(|node| usize::from(node >= half))
            .collect();
        for part in cut::cut(&graph, &assignment).unwrap() {
            let nodes = (0..assignment.len()).filter(|node| assignment[*node] == part.part);
            let seconds: f64 = nodes
                .map(|node| node_seconds(&graph.nodes()[node], &offer))
                .sum();
            let shape = |boundary: &cut::Boundary| {
                let dims = boundary.dims.as_ref().unwrap().iter();
                let dims = dims.map(|extent| extent.unwrap() as usize);
                (boundary.name.clone(), boundary.dtype, dims.collect())
            };
            let shapes: Vec<Shape> = part.inputs.iter().map(shape).collect();
            let work = GraphWork::of(part.model.clone(), &shapes).unwrap();
            let own = expected(&stated, &work).unwrap();
            assert!(
                (own.as_secs_f64() / seconds - 1.0).abs() < 0.01,
                "{own:?} {seconds}"
            );
        }
        assert_eq!(GraphWork::of(Bytes::from_static(b"no model"), &[]), None);
    }
}
