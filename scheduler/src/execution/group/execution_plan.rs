//! A subgraph planned out over devices: its fragments, where each should run, and their programs.

mod promise;
mod readers;
mod transfers;

use std::sync::Arc;
use std::time::Duration;

use super::core_contention::CoreContention;
use super::fragment::Fragment;
use super::refusals::Lack;
use super::shared_operators::SharedGraph;
use crate::learning::Speeds;
use crate::learning::estimates::{OperatorEstimates, OperatorShare};
use crate::planning::offer::Links;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

pub(super) use readers::{Reader, Readers, readers};
pub(super) use transfers::Join;

/// Fragments ahead whose inputs are brought back from disk: what one fragment's time is enough for.
const PREFETCH_AHEAD: usize = 2;

/// A plan with its fragments.
pub(in crate::execution) struct ExecutionPlan {
    /// What the run was called that it was made for; its fragments' names begin with it.
    pub name: String,
    pub fragments: Vec<Fragment>,
    /// Values that are put together from parts that several fragments make.
    pub joins: Vec<Join>,
    /// Who reads each value: fragments, joins and the job.
    pub readers: Arc<Readers>,
    pub problem: Arc<Problem>,
    pub schedule: Schedule,
    /// What kind of work each fragment is.
    pub kinds: Arc<[u16]>,
    /// The operators of each fragment, as history tells them apart.
    pub works: Vec<Vec<OperatorShare>>,
    /// What was known of the graph's operators when it was made; a shared graph keeps it itself.
    pub known: Option<OperatorEstimates>,
    /// The same of the ways to take part that it was preferred to.
    pub alternatives: Vec<OperatorEstimates>,
    /// How many fragments had told what they took, if it is to tell what its device takes alone.
    pub trial: Option<u64>,
    /// Where its fragments slow each other.
    pub contention: Option<CoreContention>,
    pub links: Arc<Links>,
    /// What was known of the devices when it was made.
    pub believed: Speeds,
    /// Values the job wants, by name.
    pub outputs: Vec<String>,
    /// When the plan expects the end.
    pub expected: Duration,
    /// What it expects to draw.
    pub energy: Energy,
    /// The device that would end it soonest alone, and when; none can if its memory is too small.
    pub single: Option<(usize, Duration)>,
    pub shared_graph: Option<SharedGraph>,
    /// What devices do not take of its graph.
    pub lacks: Vec<Lack>,
    /// Whether nodes are barred from devices that they do not ask for.
    pub wished: bool,
    /// Devices that were lost when it was made, one bit each.
    pub without: u64,
}

impl ExecutionPlan {
    /// Bytes of the fragments that are planned on each device.
    pub fn loaded(&self) -> Vec<u64> {
        let mut loaded = vec![0; self.problem.devices()];
        for (fragment, &device) in self.fragments.iter().zip(&self.schedule.device) {
            loaded[device] += fragment.bytes();
        }
        loaded
    }

    /// The fragments planned behind one on its device, as far as it pays to look.
    pub fn next(&self, fragment: usize, device: usize) -> Vec<usize> {
        let own = |&next: &usize| {
            let later = self.schedule.start[next] >= self.schedule.start[fragment];
            self.schedule.device[next] == device && later && next != fragment
        };
        let mut next: Vec<usize> = (0..self.fragments.len()).filter(own).collect();
        next.sort_by_key(|&next| self.schedule.start[next]);
        next.truncate(PREFETCH_AHEAD);
        next
    }
}

/// What a plan expects to draw; nothing is known of what single operators draw that are shared.
#[derive(Clone, Debug, Default)]
pub(in crate::execution) struct Energy {
    /// Joules; none where those of a device are not known.
    pub joules: Option<f64>,
    /// What that goes by: watts of each device.
    pub watts: Vec<Option<f64>>,
    /// How it was made, if joules were to be few.
    pub mode: Option<EnergyMode>,
}

/// How a plan was made where joules are to be few.
#[derive(Clone, Copy, Debug)]
pub(in crate::execution) enum EnergyMode {
    /// It draws the least.
    Least,
    /// It draws the least of those that end in time: the least of all would end then.
    Hurried(Duration),
    /// Nothing ends in time: it ends soonest.
    Soonest,
}

/// A problem's time as a duration.
pub(super) fn duration(time: Time) -> Duration {
    Duration::from_nanos(time / 1000)
}
