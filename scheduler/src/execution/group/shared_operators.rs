//! Describes a graph in which several devices share some operators: each computes a part of the
//! operator's output. One device, the leader, runs all other operators.
//!
//! A [`SharingProposal`] is one such plan with its expected time; a [`SharedGraph`] is the plan
//! that the group chose.

pub(super) mod assembly;
pub(super) mod pricing;

use super::group_problem::GroupProblem;
use super::shared_operators::pricing::kind_of_segment;
use crate::learning::Speeds;
use crate::learning::estimates::OperatorEstimates;
use crate::planning::split::{Segment, Shares, SharingOverhead};
use pricing::of_segment;

/// A graph with shared operators.
pub(in crate::execution) struct SharedGraph {
    pub group: GroupProblem,
    pub leader: usize,
    /// Shared operators, in the order of their last nodes.
    pub segments: Vec<SharedOperator>,
}

/// A part of the graph that several devices compute together, each its share.
#[derive(Clone)]
pub(super) struct SharedOperator {
    pub segment: Segment,
    pub shares: Shares,
    /// The costs of sharing, besides computing the shares.
    pub overhead: SharingOverhead,
}

/// A proposal of shared operators under one leading device.
pub(super) struct SharingProposal {
    pub leader: usize,
    pub segments: Vec<SharedOperator>,
    /// Expected end in seconds.
    pub seconds: f64,
}

impl SharedGraph {
    /// Creates the shared graph of a proposal.
    pub fn new(group: GroupProblem, proposal: SharingProposal) -> Self {
        Self {
            group,
            leader: proposal.leader,
            segments: proposal.segments,
        }
    }

    /// Returns the estimates of the graph's operators at the time of planning.
    pub fn planned_estimates(&self) -> &OperatorEstimates {
        &self.group.known
    }

    /// Returns how many times longer the planned shares take at the current `speeds` than the best
    /// shares would. `planned` holds the speeds that the plan assumed.
    pub fn delay_factor(&self, speeds: &Speeds, planned: &Speeds) -> f64 {
        let delays = self.segments.iter().map(|shared| {
            let (segment, shares) = (&shared.segment, &shared.shares);
            let kind = kind_of_segment(&self.group.graph, segment);
            let speed_change = |device| speeds.factor(kind, device) / planned.factor(kind, device);
            let offers = of_segment(&self.group, segment, speed_change);
            let priced = self.group.price_segment(&offers, self.leader, segment);
            let priced = priced.with(shared.overhead.clone());
            let best = priced
                .best_shares()
                .map_or(f64::INFINITY, |best| best.seconds);
            priced.seconds_of(shares) / best
        });
        delays.fold(1.0, f64::max)
    }
}
