//! Records the times of operators on a single device that runs whole subgraphs, and forecasts the
//! time of a task from them. It records times like the history of a group's device, so it too can
//! tell a depthwise convolution from a dense one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_memory::{ContentId, Store};
use souk_onnx::work::Work;
use souk_vocabulary::history::Key;
use souk_vocabulary::processor::{Outcome, Processor};

use super::group::{self, GroupDevice, group_problem, offers};
use super::lock::lock;
use super::task::{PLANS_MAX, PlanKey, Task, plan_key};
use crate::graph::{Bindings, Graph, NodeId};
use crate::learning::core_sharing::{CoreSharing, CoreUse};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::estimates::{OperatorEstimates, OperatorShare, joint_measurement};
use crate::learning::{CostHistory, KINDS, Measurement, Speeds};

/// The history of a device that no group shares.
pub(in crate::execution) struct SingleHistory {
    members: [GroupDevice; 1],
    costs: Mutex<DeviceHistories>,
    /// The latest models, including those without a forecast.
    recent: Mutex<VecDeque<(PlanKey, Option<Arc<Forecast>>)>>,
}

/// A model with the shapes of its inputs, and its expected time.
pub(in crate::execution) struct Forecast {
    graph: Arc<Graph>,
    known: OperatorEstimates,
    works: Vec<OperatorShare>,
    /// Whether the work of its operators is known in advance; otherwise the model counts as a
    /// single work.
    is_certain: bool,
    /// Expected time, or none if the device gives no estimate.
    pub expected: Option<Duration>,
    /// Expected joules, or none if neither the device's history nor its profile states its power.
    pub joules: Option<f64>,
}

impl SingleHistory {
    pub fn new(label: &str, processor: Arc<dyn Processor>) -> Self {
        let label = label.to_owned();
        let members = [GroupDevice { label, processor }];
        let cores = CoreSharing::for_this_machine(&[members[0].processor.host_cores()]);
        Self {
            costs: Mutex::new(group::new_histories(&members, cores)),
            members,
            recent: Mutex::default(),
        }
    }

    pub fn load_history(&self, costs: &CostHistory) {
        lock(&self.costs).load_history(costs);
    }

    pub fn cost_history(&self) -> CostHistory {
        lock(&self.costs).cost_history()
    }

    /// Returns the expected time of a task by present knowledge: from its operators, or from runs
    /// of the same model if the work of its operators is unknown in advance.
    pub fn forecast_task(&self, store: &Store, task: &Task) -> Option<Arc<Forecast>> {
        let key = plan_key(task);
        let held = lock(&self.recent);
        let before = held.iter().find(|(held, _)| *held == key);
        let before = before.map(|(_, forecast)| forecast.clone());
        drop(held);
        let graph = match before {
            Some(None) => return None,
            Some(Some(before)) if before.is_fresh(&lock(&self.costs)) => return Some(before),
            Some(Some(before)) => Some(before.graph.clone()),
            None => read(store, task).map(Arc::new),
        };
        let forecast = graph.map(|graph| Arc::new(self.of_graph(graph, task.model)));
        let mut recent = lock(&self.recent);
        recent.retain(|(held, _)| *held != key);
        if recent.len() == PLANS_MAX {
            recent.pop_front();
        }
        recent.push_back((key, forecast.clone()));
        assert!(recent.len() <= PLANS_MAX, "what is forecast is bounded");
        forecast
    }

    fn of_graph(&self, graph: Arc<Graph>, model: ContentId) -> Forecast {
        let offers = offers::profile_offers(&self.members, &graph);
        let speeds = Speeds::new(KINDS, 1);
        let core_use = vec![CoreUse::Alone];
        let histories = lock(&self.costs);
        let known = OperatorEstimates::new(&graph, (&offers, core_use), &histories, &speeds);
        let watts = group_problem::graph_watts(&self.members, &known, &histories);
        let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
        let is_certain = known.is_certain(&nodes);
        let works = match is_certain {
            true => known.operator_shares(&nodes),
            false => {
                vec![known.to_single_share(Key::of_model(&model.to_string(), &work_of(&graph)))]
            }
        };
        let seen = works.first().filter(|_| !is_certain);
        let seen = seen.and_then(|whole| whole.forecast_seconds(0, &histories));
        drop(histories);
        let seconds = seen.unwrap_or_else(|| known.sum(0, &nodes));
        Forecast {
            joules: group_problem::sum_joules([(0, seconds)].into_iter(), &watts),
            expected: Duration::try_from_secs_f64(seconds).ok(),
            works,
            is_certain,
            known,
            graph,
        }
    }

    /// Records the operators' times of a run. Later forecasts will use them.
    pub fn record_outcome<T>(
        &self,
        forecast: &Forecast,
        outcome: &Outcome<T>,
    ) -> Option<Measurement> {
        let measured = joint_measurement(&forecast.works, 0, outcome.busy, outcome.energy)?;
        Some(lock(&self.costs).record_measurement(0, measured, 0.0))
    }
}

impl Forecast {
    /// Returns whether present knowledge would still lead to this forecast.
    fn is_fresh(&self, histories: &DeviceHistories) -> bool {
        self.is_certain && self.known.is_fresh(histories)
    }
}

/// Returns the total work of a graph's nodes.
fn work_of(graph: &Graph) -> Work {
    let each = graph.nodes().iter().map(|node| Work {
        operations: node.cost.flops,
        bytes_read: node.cost.bytes_read,
        bytes_written: node.cost.bytes_written,
        launches: 1,
        dtype: None,
    });
    each.sum()
}

/// Returns the graph of a task's model for its inputs, or none if the import fails.
fn read(store: &Store, task: &Task) -> Option<Graph> {
    let bytes = store.get(&task.model).ok()??;
    let mut bindings = Bindings::new();
    for (name, tensor) in &task.inputs {
        bindings = bindings.with_input(name, tensor.dtype(), tensor.dims());
    }
    Graph::import(bytes, &bindings).ok()
}
