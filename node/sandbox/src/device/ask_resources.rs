//! Converts the figures that an ask states about its device into the planner's form, and computes
//! the time of work from them.
//!
//! Both parties of a lease can compute that time from the graph: the buyer for its plan, the
//! provider for the promise in its receipt. So neither has to trust the other.

use std::time::Duration;

use souk_market::{Dtype, Price, Resources, WorkKind};
use souk_memory::DType;
use souk_roles::market::operators;
use souk_scheduler::graph::Node;
use souk_scheduler::planning::{Offer, Operators, Slowness, Throughput, cost_seconds};

use super::graph_work::GraphWork;

/// The element types for which asks state a speed, in the graph's form and the market's.
const DTYPES: [(DType, Dtype); 5] = [
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::Bf16),
    (DType::I8, Dtype::Int8),
];

/// The longest time that is plausible: a graph that claims decades is wrong.
const SECONDS_MAX: f64 = 1e9;

/// Returns the name of a device: its model, marked if it is emulated.
#[must_use]
pub fn device_label(stated: &Resources) -> String {
    let emulated = if stated.emulated { " (emulated)" } else { "" };
    format!("{}{emulated}", stated.model.as_str())
}

/// Returns a device as an offer for the planner.
#[must_use]
pub fn to_offer(stated: &Resources, price: Price) -> Offer {
    let rate = |(dtype, market): (DType, Dtype)| {
        let mega_ops = stated.throughput.for_dtype(market);
        let flops_per_second = mega_ops as f64 * 1e6;
        (mega_ops > 0).then_some(Throughput {
            class: None,
            dtype: Some(dtype),
            flops_per_second,
        })
    };
    Offer {
        label: device_label(stated),
        throughput: DTYPES.into_iter().filter_map(rate).collect(),
        bytes_per_second: stated.memory_bandwidth as f64,
        memory_bytes: stated.memory_bytes,
        launch_seconds: stated.launch_overhead_ns as f64 / 1e9,
        slowness: to_slowness(&stated.slowness),
        cost_per_second: price.0 as f64,
        busy_watts: (stated.power_mw > 0).then(|| stated.power_mw as f64 / 1e3),
        operators: runnable_operators(&stated.operators),
    }
}

/// Returns the operators of a device. A device that states none counts as running all.
fn runnable_operators(stated: &souk_market::Operators) -> Operators {
    if stated.is_empty() {
        return Operators::All;
    }
    let names = operators::NAMES.iter().enumerate();
    let lacking = names.filter(|(number, _)| !stated.has_operator(*number));
    Operators::Without(lacking.map(|(_, name)| (*name).to_owned()).collect())
}

/// Converts the stated slowness of kinds of work into the planner's form.
fn to_slowness(stated: &souk_market::Slowness) -> Slowness {
    let times = |work: WorkKind| 1.0 + f64::from(stated.for_work(work)) / 100.0;
    Slowness {
        product: times(WorkKind::Product),
        convolution: times(WorkKind::Convolution),
        other: times(WorkKind::Other),
    }
}

/// Returns whether the work of all these nodes is known before they run.
pub fn is_known<'g>(mut nodes: impl Iterator<Item = &'g Node>) -> bool {
    nodes.all(|node| node.cost.certain)
}

/// Returns the device time of one run of this work, by the figures of an ask; none if it is not
/// plausible.
#[must_use]
pub fn expected_time(stated: &Resources, work: &GraphWork) -> Option<Duration> {
    let offer = to_offer(stated, Price(0));
    let seconds = work
        .node_costs()
        .map(|(cost, count)| cost_seconds(&cost, &offer) * f64::from(count));
    let seconds: f64 = seconds.sum();
    (seconds < SECONDS_MAX).then(|| Duration::try_from_secs_f64(seconds).ok())?
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_folder::config::DeviceChoice;
    use souk_folder::limits::ProviderLimits;
    use souk_memory::npy;
    use souk_scheduler::graph::{Bindings, Graph, cut};
    use souk_scheduler::planning::node_seconds;

    use super::super::graph_work::Shape;
    use super::*;
    use crate::device::{combine_profiles, device_profiles, open_devices, stated_resources};

    const MODEL: &[u8] = include_bytes!("../../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../../testnet/models/digits/images.npy");

    #[test]
    fn a_part_is_worth_what_its_nodes_are_worth_in_the_whole() {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let bindings = Bindings::new().with_input("images", images.dtype(), images.dims());
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        let choice = DeviceChoice::new_emulated("nvidia-h100-sxm");
        let devices = open_devices(&choice, None).unwrap();
        let whole = combine_profiles(&device_profiles(&devices));
        let stated = stated_resources(&choice, &whole, &ProviderLimits::default());
        let offer = to_offer(&stated, Price(1));
        let half = graph.nodes().len() / 2;
        let assignment: Vec<usize> = (0..graph.nodes().len())
            .map(|node| usize::from(node >= half))
            .collect();
        for part in cut::cut_graph(&graph, &assignment).unwrap() {
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
            let work = GraphWork::from_model(part.model.clone(), &shapes).unwrap();
            let own = expected_time(&stated, &work).unwrap();
            assert!(
                (own.as_secs_f64() / seconds - 1.0).abs() < 0.01,
                "{own:?} {seconds}"
            );
        }
        assert_eq!(
            GraphWork::from_model(Bytes::from_static(b"no model"), &[]),
            None
        );
    }
}
