//! What one device that runs whole subgraphs by itself is seen to take: by the same history as the
//! devices of a group, so that it too knows a depthwise convolution from a dense one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_memory::{ContentId, Store};
use souk_onnx::work::Work;
use souk_vocabulary::history::Key;
use souk_vocabulary::processor::{Outcome, Processor};

use super::group::{self, GroupDevice, group_problem, offers};
use super::lock::lock;
use super::task::{PLANS_MAX, PlanKey, Task, key};
use crate::graph::{Bindings, Graph, NodeId};
use crate::learning::core_sharing::{Cores, Standing};
use crate::learning::device_histories::DeviceHistories;
use crate::learning::estimates::{OperatorEstimates, OperatorShare, measured};
use crate::learning::{CostHistory, KINDS, Measurement, Speeds};

/// What is known of a device that nobody shares.
pub(in crate::execution) struct SingleHistory {
    members: [GroupDevice; 1],
    costs: Mutex<DeviceHistories>,
    /// The models that ran last, and those of which nothing is foretold.
    recent: Mutex<VecDeque<(PlanKey, Option<Arc<Forecast>>)>>,
}

/// A model for inputs of some shapes, and what it should take.
pub(in crate::execution) struct Forecast {
    graph: Arc<Graph>,
    known: OperatorEstimates,
    works: Vec<OperatorShare>,
    /// Whether its operators say beforehand what they do; else it is a work of its own.
    is_certain: bool,
    /// None where the device does not say.
    pub expected: Option<Duration>,
    /// Joules; none where neither its history nor its profile says.
    pub joules: Option<f64>,
}

impl SingleHistory {
    pub fn new(label: &str, processor: Arc<dyn Processor>) -> Self {
        let label = label.to_owned();
        let members = [GroupDevice { label, processor }];
        let cores = Cores::here(&[members[0].processor.cores()]);
        Self {
            costs: Mutex::new(group::histories(&members, cores)),
            members,
            recent: Mutex::default(),
        }
    }

    pub fn recall(&self, costs: &CostHistory) {
        lock(&self.costs).recall(costs);
    }

    pub fn costs(&self) -> CostHistory {
        lock(&self.costs).costs()
    }

    /// What a task should take by what is known now: by its operators, or by runs of the very model
    /// where these do not say beforehand what they do.
    pub fn forecast(&self, store: &Store, task: &Task) -> Option<Arc<Forecast>> {
        let key = key(task);
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
        let offers = offers::offers(&self.members, &graph);
        let speeds = Speeds::new(KINDS, 1);
        let standing = vec![Standing::Alone];
        let histories = lock(&self.costs);
        let known = OperatorEstimates::new(&graph, (&offers, standing), &histories, &speeds);
        let watts = group_problem::watts(&self.members, &known, &histories);
        let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
        let is_certain = known.is_certain(&nodes);
        let works = match is_certain {
            true => known.shares(&nodes),
            false => vec![known.whole(Key::of_model(&model.to_string(), &work_of(&graph)))],
        };
        let seen = works.first().filter(|_| !is_certain);
        let seen = seen.and_then(|whole| whole.foretold(0, &histories));
        drop(histories);
        let seconds = seen.unwrap_or_else(|| known.sum(0, &nodes));
        Forecast {
            joules: group_problem::joules([(0, seconds)].into_iter(), &watts),
            expected: Duration::try_from_secs_f64(seconds).ok(),
            works,
            is_certain,
            known,
            graph,
        }
    }

    /// What a run says of the operators of its model, which is foretold by it from now on.
    pub fn learn<T>(&self, forecast: &Forecast, outcome: &Outcome<T>) -> Option<Measurement> {
        let measured = measured(&forecast.works, 0, outcome.busy, outcome.energy)?;
        Some(lock(&self.costs).learn(0, measured, 0.0))
    }
}

impl Forecast {
    /// Whether what is known now would still foretell it.
    fn is_fresh(&self, histories: &DeviceHistories) -> bool {
        self.is_certain && self.known.is_fresh(histories)
    }
}

/// What the nodes of a graph say that they do.
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

/// The graph of a task's model for its inputs; none if it cannot be told before it runs.
fn read(store: &Store, task: &Task) -> Option<Graph> {
    let bytes = store.get(&task.model).ok()??;
    let mut bindings = Bindings::new();
    for (name, tensor) in &task.inputs {
        bindings = bindings.input(name, tensor.dtype(), tensor.dims());
    }
    Graph::import(bytes, &bindings).ok()
}
