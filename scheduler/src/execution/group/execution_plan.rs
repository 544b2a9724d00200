//! Describes a subgraph planned over the devices of a group: its fragments (the parts that one
//! device runs as a whole), their planned devices and their programs, and the knowledge on which
//! the plan depends. A group keeps the plan for later runs of the subgraph with the same input
//! shapes.

mod promise;
mod readers;
mod transfers;

use std::sync::Arc;
use std::time::Duration;

use super::core_contention::CoreContention;
use super::fragment::Fragment;
use super::refusals::UnsupportedNode;
use super::shared_operators::SharedGraph;
use crate::learning::Speeds;
use crate::learning::estimates::{OperatorEstimates, OperatorShare};
use crate::planning::offer::Links;
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::time::Time;

pub(super) use readers::{Reader, Readers, collect_readers};
pub(super) use transfers::Join;

/// Number of following fragments whose inputs the group prefetches from disk while one fragment
/// runs.
const PREFETCH_AHEAD: usize = 2;

/// A plan with its fragments.
pub(in crate::execution) struct ExecutionPlan {
    /// Name of the run that led to this plan; fragments' names begin with it.
    pub name: String,
    pub fragments: Vec<Fragment>,
    /// Values that the run joins from the parts of several fragments.
    pub joins: Vec<Join>,
    /// The readers of each value: fragments, joins and the job.
    pub readers: Arc<Readers>,
    pub problem: Arc<Problem>,
    pub schedule: Schedule,
    /// The kind of work of each fragment, as the learned speeds of devices distinguish it.
    pub kinds: Arc<[u16]>,
    /// The operators of each fragment with their shares of its time, by their keys in the history.
    pub works: Vec<Vec<OperatorShare>>,
    /// Estimates of the graph's operators at planning time. A [`SharedGraph`], whose operators
    /// several devices compute together, has its own.
    pub known: Option<OperatorEstimates>,
    /// Estimates of the alternatives that the plan won against.
    pub alternatives: Vec<OperatorEstimates>,
    /// If the plan is a trial of one device alone: the number of fragment times that had been
    /// reported when it was made.
    pub trial: Option<u64>,
    /// The places where its fragments slow each other.
    pub contention: Option<CoreContention>,
    pub links: Arc<Links>,
    /// Corrections of the devices' estimates at planning time.
    pub planned_speeds: Speeds,
    /// Names of the values that the job wants.
    pub outputs: Vec<String>,
    /// Expected end.
    pub expected: Duration,
    /// Expected energy.
    pub energy: Energy,
    /// The device that would finish first alone, and its time; none if the model fits no device's
    /// memory.
    pub single: Option<(usize, Duration)>,
    pub shared_graph: Option<SharedGraph>,
    /// Features of the graph that devices lack.
    pub lacks: Vec<UnsupportedNode>,
    /// Whether some node can run only on devices that it names.
    pub has_requirements: bool,
    /// Devices that were lost at planning time, one bit each.
    pub without: u64,
}

impl ExecutionPlan {
    /// Returns the bytes of the fragments that are planned on each device.
    pub fn loaded_bytes(&self) -> Vec<u64> {
        let mut loaded = vec![0; self.problem.device_count()];
        for (fragment, &device) in self.fragments.iter().zip(&self.schedule.device) {
            loaded[device] += fragment.byte_size();
        }
        loaded
    }

    /// Returns the next fragments on a device after a given one, at most [`PREFETCH_AHEAD`].
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

/// The expected energy of a plan. For a single operator that several devices share, it is unknown.
#[derive(Clone, Debug, Default)]
pub(in crate::execution) struct Energy {
    /// Joules, or none if those of a device are unknown.
    pub joules: Option<f64>,
    /// Watts of each device that the joules are based on.
    pub watts: Vec<Option<f64>>,
    /// The way in which the plan saves joules, if the objective asks for it.
    pub mode: Option<EnergyMode>,
}

/// The way in which a plan saves joules.
#[derive(Clone, Copy, Debug)]
pub(in crate::execution) enum EnergyMode {
    /// The plan draws the fewest joules of all.
    Least,
    /// The plan draws the fewest joules of those that end in time. The plan with the fewest of all
    /// would end after this time.
    Hurried(Duration),
    /// No plan will end in time, so this one ends soonest.
    Soonest,
}

/// Converts a problem's time, in picoseconds, to a duration.
pub(super) fn to_duration(time: Time) -> Duration {
    Duration::from_nanos(time / 1000)
}
