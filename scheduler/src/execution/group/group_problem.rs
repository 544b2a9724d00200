//! The question a group's plan answers: a model read for the inputs of a task, and what the devices
//! offer for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_memory::{ContentId, Store, Tensor};

use super::program_cache::ProgramCache;
use super::refusals::{self, Lack};
use super::{GroupDevice, Sharing, offers as device_offers};
use crate::execution::error::{GroupPlanError, TaskError};
use crate::execution::lock::lock;
use crate::graph::{Bindings, Graph, NodeId};
use crate::learning::Speeds;
use crate::learning::core_sharing::{Cores, Standing};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::estimates::OperatorEstimates;
use crate::planning::objective::Objective;
use crate::planning::offer::{Links, Offer, node_seconds};
use crate::planning::plan::{Activations, Model, PlanError, PlanOptions, TimedDivision, divide};

/// Effort of planning a subgraph, once for each model and shapes: some milliseconds.
const STEPS: usize = 500;
/// Several devices must win at least this part of what the best single one takes: less is lost to
/// what no plan counts.
pub(super) const GAIN_MIN: f64 = 0.05;

/// What a group lays out over, and how.
#[derive(Clone)]
pub(super) struct GroupSetting<'a> {
    pub members: &'a [GroupDevice],
    pub store: &'a Store,
    pub loaded: &'a Arc<ProgramCache>,
    /// What lies between the devices.
    pub links: Arc<Links>,
    pub sharing: &'a Sharing,
    /// Which devices compute on the same cores.
    pub cores: &'a Cores,
    /// Devices that were given up, one bit each.
    pub lost: u64,
    pub costs: &'a Mutex<DeviceHistories>,
    pub objective: Objective,
    /// How long the run has, if it has a deadline.
    pub left: Option<Duration>,
    /// The plan that this one takes the place of.
    pub before: Option<ReplacedPlan<'a>>,
}

/// A plan that goes when another one is made.
#[derive(Clone)]
pub(super) struct ReplacedPlan<'a> {
    /// Bytes that each device has loaded for it.
    pub loaded: Vec<u64>,
    /// Lets go of it at once.
    pub drop: &'a dyn Fn(),
}

/// A model read for the inputs of a task, and what the devices offer for it.
pub(super) struct GroupProblem {
    pub graph: Arc<Graph>,
    /// By their profiles alone, with what each draws for it.
    pub stated: Vec<Offer>,
    /// As measured.
    pub known: OperatorEstimates,
    pub links: Arc<Links>,
    pub cores: Cores,
    /// What devices do not take of it.
    pub lacks: Arc<[Lack]>,
    /// Whether nodes have the device that they ask for.
    pub wished: bool,
}

impl GroupProblem {
    /// What each device draws for it, where it says so or was seen to.
    pub fn watts(&self) -> Vec<Option<f64>> {
        self.stated.iter().map(|offer| offer.busy_watts).collect()
    }

    /// What the group's plans are made with, where they make that small.
    pub fn options(&self, objective: Objective) -> PlanOptions {
        PlanOptions {
            max_devices: self.stated.len(),
            objective,
            activations: Activations::Spilled,
            gain_min: GAIN_MIN,
            steps: STEPS,
            ..PlanOptions::default()
        }
    }

    /// The graph on the devices, in the seconds its nodes are known to take.
    pub fn model<'a>(&'a self, options: &'a PlanOptions) -> Model<'a> {
        self.model_of(self.known.seconds.clone(), options)
    }

    /// The graph divided over the devices. A node whose operands a device has no room for does not
    /// run there.
    pub fn divide(&self, options: &PlanOptions) -> Result<TimedDivision, PlanError> {
        let mut rows = self.known.seconds.clone();
        for (offer, row) in self.stated.iter().zip(&mut rows) {
            for (node, seconds) in self.graph.nodes().iter().zip(row) {
                if node.cost.bytes() > offer.memory_bytes {
                    *seconds = f64::INFINITY;
                }
            }
        }
        divide(&self.model_of(rows, options))
    }

    fn model_of<'a>(&'a self, seconds: Vec<Vec<f64>>, options: &'a PlanOptions) -> Model<'a> {
        Model::with_times(&self.graph, &self.stated, seconds, &self.links, options)
    }
}

/// Reads a task's model, and tells what the devices offer for it, corrected by what was measured:
/// once for each way in which those who share cores can take part.
pub(super) fn offers(
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
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    let graph = Arc::new(Graph::import(bytes, &bindings).map_err(GroupPlanError::from)?);
    let lacks: Arc<[Lack]> = refusals::lacks(members, &graph).into();
    let mut stated = device_offers::offers(members, &graph);
    let loaded = setting.before.iter().flat_map(|before| &before.loaded);
    for (offer, loaded) in stated.iter_mut().zip(loaded) {
        offer.memory_bytes = offer.memory_bytes.saturating_add(*loaded);
    }
    let mut arrangements = setting.cores.arrangements();
    if matches!(setting.sharing, Sharing::Given(_)) {
        // Parts are given to all.
        arrangements.drain(..arrangements.len() - 1);
    }
    let gone = gone(&graph, &stated, setting.lost);
    let histories = lock(setting.costs);
    let group = |standing: Vec<Standing>| {
        let taking = stated.iter().zip(&standing);
        let stated: Vec<Offer> = taking
            .map(|(offer, it)| device_offers::taking(offer, *it))
            .collect();
        let mut known = OperatorEstimates::new(&graph, (&stated, standing), &histories, speeds);
        for &(device, node) in &gone {
            known.bar(device, node);
        }
        let watts = watts(members, &known, &histories);
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
            wished: false,
        }
    };
    Ok(arrangements.into_iter().map(group).collect())
}

/// What lost devices do not run: each node that another one runs.
fn gone(graph: &Graph, stated: &[Offer], lost: u64) -> Vec<(usize, NodeId)> {
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

/// What each device draws for a graph.
pub(crate) fn watts(
    members: &[GroupDevice],
    known: &OperatorEstimates,
    histories: &DeviceHistories,
) -> Vec<Option<f64>> {
    let numbered = members.iter().enumerate();
    let each = numbered.map(|(device, member)| {
        let power = member.processor.profile().power;
        known.watts(device, histories, power.map(|power| power.busy_watts))
    });
    each.collect()
}

/// The joules of so many seconds of devices; none where the power of one is not known.
pub(crate) fn joules(
    work: impl Iterator<Item = (usize, f64)>,
    watts: &[Option<f64>],
) -> Option<f64> {
    let each = work.map(|(device, seconds)| Some(watts[device]? * seconds));
    each.sum()
}
