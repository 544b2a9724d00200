//! Collects the input of a group's plan: a model with the shapes of a task's inputs, and the
//! devices' offers for it. An offer states how fast a device can run which operators.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_memory::{ContentId, Store, Tensor};

use super::program_cache::ProgramCache;
use super::refusals::{self, UnsupportedNode};
use super::{GroupDevice, Sharing, offers as device_offers};
use crate::execution::error::{GroupPlanError, TaskError};
use crate::execution::lock::lock;
use crate::graph::{Bindings, Graph, NodeId};
use crate::learning::Speeds;
use crate::learning::core_sharing::{CoreSharing, CoreUse};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::estimates::OperatorEstimates;
use crate::planning::objective::Objective;
use crate::planning::offer::{Links, Offer, node_seconds};
use crate::planning::plan::{
    Activations, Model, PlanError, PlanOptions, TimedDivision, divide_graph,
};

/// Steps of a plan's search, once for each model and shapes: some milliseconds.
const STEPS: usize = 500;
/// Minimum gain of several devices, as a part of the best single device's time. Smaller gains
/// vanish in costs that no plan counts.
pub(super) const GAIN_MIN: f64 = 0.05;

/// The devices and policies of a group, with which it plans.
#[derive(Clone)]
pub(super) struct GroupSetting<'a> {
    pub members: &'a [GroupDevice],
    pub store: &'a Store,
    pub program_cache: &'a Arc<ProgramCache>,
    /// The links between the devices.
    pub links: Arc<Links>,
    pub sharing: &'a Sharing,
    /// The devices that compute on the same cores.
    pub cores: &'a CoreSharing,
    /// Lost devices, one bit each.
    pub lost: u64,
    pub costs: &'a Mutex<DeviceHistories>,
    pub objective: Objective,
    /// Remaining time of the run, if it has a deadline.
    pub left: Option<Duration>,
    /// The plan that this one replaces.
    pub before: Option<ReplacedPlan<'a>>,
}

/// A plan that a new one replaces, which can be dropped early to free memory.
#[derive(Clone)]
pub(super) struct ReplacedPlan<'a> {
    /// Bytes that each device has loaded for it.
    pub loaded: Vec<u64>,
    /// Drops the plan at once.
    pub drop: &'a dyn Fn(),
}

/// A model with the shapes of a task's inputs, and the devices' offers for it.
pub(super) struct GroupProblem {
    pub graph: Arc<Graph>,
    /// Offers by the devices' profiles alone, with each device's power for the model.
    pub stated: Vec<Offer>,
    /// Estimates by measurements.
    pub known: OperatorEstimates,
    pub links: Arc<Links>,
    pub cores: CoreSharing,
    /// Features of the model that devices lack.
    pub lacks: Arc<[UnsupportedNode]>,
    /// Whether nodes run on the devices that they ask for.
    pub has_requirements: bool,
}

impl GroupProblem {
    /// Returns the watts of each device for the model, where stated or measured.
    pub fn device_watts(&self) -> Vec<Option<f64>> {
        self.stated.iter().map(|offer| offer.busy_watts).collect()
    }

    /// Returns the options of the group's plans for an objective.
    pub fn plan_options(&self, objective: Objective) -> PlanOptions {
        PlanOptions {
            max_devices: self.stated.len(),
            objective,
            activations: Activations::Spilled,
            gain_min: GAIN_MIN,
            steps: STEPS,
            ..PlanOptions::default()
        }
    }

    /// Returns the graph on the devices with the expected seconds of its nodes.
    pub fn build_model<'a>(&'a self, options: &'a PlanOptions) -> Model<'a> {
        self.model_of(self.known.seconds.clone(), options)
    }

    /// Divides the graph over the devices. A device without room for a node's operands will not run
    /// it.
    pub fn divide_graph(&self, options: &PlanOptions) -> Result<TimedDivision, PlanError> {
        let mut rows = self.known.seconds.clone();
        for (offer, row) in self.stated.iter().zip(&mut rows) {
            for (node, seconds) in self.graph.nodes().iter().zip(row) {
                if node.cost.traffic_bytes() > offer.memory_bytes {
                    *seconds = f64::INFINITY;
                }
            }
        }
        divide_graph(&self.model_of(rows, options))
    }

    fn model_of<'a>(&'a self, seconds: Vec<Vec<f64>>, options: &'a PlanOptions) -> Model<'a> {
        Model::with_times(&self.graph, &self.stated, seconds, &self.links, options)
    }
}

/// Reads a task's model and returns the devices' offers for it, corrected by measurements: one for
/// each arrangement of the devices that share cores.
pub(super) fn load_offers(
    setting: &GroupSetting<'_>,
    model: ContentId,
    inputs: &BTreeMap<String, Tensor>,
    speeds: &Speeds,
) -> Result<Vec<GroupProblem>, TaskError> {
    let (members, store) = (setting.members, setting.store);
    let bytes = store.get(&model)?;
    let bytes = bytes.ok_or(TaskError::ModelMissing { id: model })?;
    let mut bindings = Bindings::new();
    for (name, tensor) in inputs {
        bindings = bindings.with_input(name, tensor.dtype(), tensor.dims());
    }
    let graph = Arc::new(Graph::import(bytes, &bindings).map_err(GroupPlanError::from)?);
    let lacks: Arc<[UnsupportedNode]> = refusals::find_lacks(members, &graph).into();
    let mut stated = device_offers::profile_offers(members, &graph);
    let loaded = setting.before.iter().flat_map(|before| &before.loaded);
    for (offer, loaded) in stated.iter_mut().zip(loaded) {
        offer.memory_bytes = offer.memory_bytes.saturating_add(*loaded);
    }
    let mut arrangements = setting.cores.arrangements();
    if matches!(setting.sharing, Sharing::Given(_)) {
        // Explicit parts need all devices.
        arrangements.drain(..arrangements.len() - 1);
    }
    let gone = lost_device_nodes(&graph, &stated, setting.lost);
    let histories = lock(setting.costs);
    let group = |core_use: Vec<CoreUse>| {
        let taking = stated.iter().zip(&core_use);
        let stated: Vec<Offer> = taking
            .map(|(offer, it)| device_offers::offer_for_core_use(offer, *it))
            .collect();
        let mut known = OperatorEstimates::new(&graph, (&stated, core_use), &histories, speeds);
        for &(device, node) in &gone {
            known.bar_node(device, node);
        }
        let watts = graph_watts(members, &known, &histories);
        let powered = stated.into_iter().zip(&watts);
        let powered = powered.map(|(offer, &busy_watts)| Offer {
            busy_watts,
            ..offer
        });
        GroupProblem {
            graph: graph.clone(),
            stated: powered.collect(),
            known,
            links: setting.links.clone(),
            cores: setting.cores.clone(),
            lacks: lacks.clone(),
            has_requirements: false,
        }
    };
    Ok(arrangements.into_iter().map(group).collect())
}

/// Returns the nodes that lost devices must not run: each node that another device can run.
fn lost_device_nodes(graph: &Graph, stated: &[Offer], lost: u64) -> Vec<(usize, NodeId)> {
    let (gone, left): (Vec<usize>, Vec<usize>) =
        (0..stated.len()).partition(|device| lost >> device & 1 == 1);
    let takes = |node: &&NodeId| {
        let node = graph.node(**node);
        let seconds = |&device: &usize| node_seconds(node, &stated[device]);
        left.iter().any(|device| seconds(device).is_finite())
    };
    let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
    let taken = nodes.iter().filter(takes);
    taken
        .flat_map(|&node| gone.iter().map(move |&device| (device, node)))
        .collect()
}

/// Returns the watts of each device for a graph.
pub(crate) fn graph_watts(
    members: &[GroupDevice],
    known: &OperatorEstimates,
    histories: &DeviceHistories,
) -> Vec<Option<f64>> {
    let numbered = members.iter().enumerate();
    let each = numbered.map(|(device, member)| {
        let power = member.processor.profile().power;
        known.expected_watts(device, histories, power.map(|power| power.busy_watts))
    });
    each.collect()
}

/// Returns the joules of these seconds of device time, or none if the power of a device is unknown.
pub(crate) fn sum_joules(
    work: impl Iterator<Item = (usize, f64)>,
    watts: &[Option<f64>],
) -> Option<f64> {
    let each = work.map(|(device, seconds)| Some(watts[device]? * seconds));
    each.sum()
}
