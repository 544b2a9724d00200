//! What one device that runs whole subgraphs by itself is seen to take: by the same history as the
//! members of a team, so that it too knows a depthwise convolution from a dense one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_devices::processor::{Outcome, Processor};
use souk_devices::system;
use souk_memory::Store;

use super::cores::{Cores, Standing};
use super::costs::{self, Costs, Known, Learned, Ledger, Share};
use super::flow::lock;
use super::offers::{self, KINDS};
use super::{Key, Member, PLANS_MAX, frugal, key, laid};
use crate::executor::Speeds;
use crate::graph::{Bindings, Graph, NodeId};
use crate::run::Task;

/// What is known of a device that nobody shares.
pub(in crate::run) struct Lone {
    members: [Member; 1],
    costs: Mutex<Ledger>,
    /// The models that ran last, and those of which nothing is foretold.
    recent: Mutex<VecDeque<(Key, Option<Arc<Foretold>>)>>,
}

/// A model for inputs of some shapes, and what it should take.
pub(in crate::run) struct Foretold {
    graph: Arc<Graph>,
    known: Known,
    works: Vec<Share>,
    /// None where the device does not say.
    pub expected: Option<Duration>,
    /// Joules; none where neither its history nor its profile says.
    pub joules: Option<f64>,
}

impl Lone {
    pub fn new(label: &str, processor: Arc<dyn Processor>) -> Self {
        let label = label.to_owned();
        let members = [Member { label, processor }];
        let cores = Cores::new(&members, system::cores());
        Self {
            costs: Mutex::new(Ledger::new(&members, cores)),
            members,
            recent: Mutex::default(),
        }
    }

    pub fn recall(&self, costs: &Costs) {
        lock(&self.costs).recall(costs);
    }

    pub fn costs(&self) -> Costs {
        lock(&self.costs).costs()
    }

    /// What a task should take by what is known now; nothing of a model that does not say what it
    /// does before it is run.
    pub fn foretell(&self, store: &Store, task: &Task) -> Option<Arc<Foretold>> {
        let key = key(task);
        let held = lock(&self.recent);
        let before = held.iter().find(|(held, _)| *held == key);
        let before = before.map(|(_, foretold)| foretold.clone());
        drop(held);
        let graph = match before {
            Some(None) => return None,
            Some(Some(before)) if before.known.is_fresh(&lock(&self.costs)) => return Some(before),
            Some(Some(before)) => Some(before.graph.clone()),
            None => read(store, task).map(Arc::new),
        };
        let foretold = graph.map(|graph| Arc::new(self.foretold(graph)));
        let mut recent = lock(&self.recent);
        recent.retain(|(held, _)| *held != key);
        if recent.len() == PLANS_MAX {
            recent.pop_front();
        }
        recent.push_back((key, foretold.clone()));
        assert!(recent.len() <= PLANS_MAX, "what is foretold is bounded");
        foretold
    }

    fn foretold(&self, graph: Arc<Graph>) -> Foretold {
        let offers = offers::offers(&self.members, &graph);
        let speeds = Speeds::new(KINDS, 1);
        let standing = vec![Standing::Alone];
        let ledger = lock(&self.costs);
        let known = Known::new(&graph, (&offers, standing), &ledger, &speeds);
        let watts = laid::watts(&self.members, &known, &ledger);
        drop(ledger);
        let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
        Foretold {
            joules: frugal::joules([(0, known.sum(0, &nodes))].into_iter(), &watts),
            expected: Duration::try_from_secs_f64(known.sum(0, &nodes)).ok(),
            works: known.shares(&nodes),
            known,
            graph,
        }
    }

    /// What a run says of the operators of its model, which is foretold by it from now on.
    pub fn learn<T>(&self, foretold: &Foretold, outcome: &Outcome<T>) -> Option<Learned> {
        let measured = costs::measured(&foretold.works, 0, outcome.busy, outcome.energy)?;
        Some(lock(&self.costs).learn(0, measured, 0.0))
    }
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
