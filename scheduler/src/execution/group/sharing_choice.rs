//! Chooses the operators that devices share, and the device that leads: it runs the rest of the
//! graph. It proposes nothing if sharing saves too little.

use super::Sharing;
use super::group_problem::{GroupProblem, GroupSetting};
use super::shared_operators::pricing::of_segment;
use super::shared_operators::{SharedOperator, SharingProposal};
use crate::execution::error::GroupPlanError;
use crate::graph::NodeId;
use crate::planning::split::{self, Cut, PricedSegment, Segment, Shares};
use crate::planning::time::Time;

/// Minimum gain of shared operators, as a part of the time of a run without them.
const GAIN_MIN: f64 = 0.05;

/// Advantage of a cut along the rows: it wins unless another cut saves more by this part, because a
/// row cut needs no new weights when shares change.
const ROWS_WORTH: f64 = 0.02;

/// Proposes the operators to share: those whose sharing saves enough, if the run then ends enough
/// before `makespan`.
pub(super) fn propose_sharing(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    makespan: Time,
) -> Result<Option<SharingProposal>, GroupPlanError> {
    let sharing = setting.sharing;
    // A node with a requested device must not run in part on another.
    if *sharing == Sharing::Never || group.stated.len() < 2 || group.has_requirements {
        return Ok(None);
    }
    let segments = split::find_segments(&group.graph);
    let leaders = 0..group.stated.len();
    let led = leaders.map(|leader| propose_under_leader(group, setting, &segments, leader));
    let led: Vec<Option<SharingProposal>> = led.collect::<Result<_, _>>()?;
    let each = led.into_iter().flatten();
    let best = each.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let limit = (1.0 - GAIN_MIN) * makespan as f64 / crate::planning::time::SECOND;
    let forced = matches!(sharing, Sharing::Given(_));
    Ok(best.filter(|led| forced || led.seconds <= limit))
}

/// Returns the shares of a segment under a leader if they pay, and the leader's time that they
/// save; infinite if the leader cannot run the whole segment.
fn share_segment(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    segment: &Segment,
    leader: usize,
) -> Result<Option<(SharedOperator, f64)>, GroupPlanError> {
    let offers = of_segment(group, segment, |_| 1.0);
    let shares = |priced: &PricedSegment<'_>| {
        let shares = match setting.sharing {
            Sharing::Given(parts) => {
                Some(priced.shares_for_counts(&divide_units(parts, segment.units)))
            }
            _ => priced.best_shares().filter(Shares::is_worthwhile),
        };
        shares.filter(|shares| shares.parts.len() > 1)
    };
    let priced = group.price_segment(&offers, leader, segment);
    // Shares that do not pay without the costs around them cannot pay with them.
    let Some(without) = shares(&priced) else {
        return Ok(None);
    };
    let overhead = group.cut_join_costs(setting.members, leader, segment, &without.parts)?;
    let priced = priced.with(overhead.clone());
    let own = shares(&priced).map(|shares| {
        let saved = priced.alone_seconds(leader) - shares.seconds;
        let segment = segment.clone();
        let shared = SharedOperator {
            segment,
            shares,
            overhead,
        };
        (shared, saved)
    });
    Ok(own)
}

/// Returns the operators to share under a leader, and the end of the run.
fn propose_under_leader(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    segments: &[Segment],
    leader: usize,
) -> Result<Option<SharingProposal>, GroupPlanError> {
    let graph = &group.graph;
    let mut all: Vec<(SharedOperator, f64)> = Vec::new();
    for segment in segments {
        all.extend(share_segment(group, setting, segment, leader)?);
    }
    // Of two ways to cut the same operator, the better one wins.
    let worth = |(shared, saved): &(SharedOperator, f64)| match shared.segment.cut {
        Cut::Rows { .. } => *saved,
        Cut::Channels => saved * (1.0 - ROWS_WORTH),
    };
    all.sort_by(|one, other| worth(other).total_cmp(&worth(one)));
    let mut taken = vec![false; graph.nodes().len()];
    all.retain(|(SharedOperator { segment, .. }, _)| {
        let free = segment.nodes.iter().all(|node| !taken[node.0]);
        if free {
            segment.nodes.iter().for_each(|node| taken[node.0] = true);
        }
        free
    });
    let offer = &group.stated[leader];
    let rest = || (0..taken.len()).filter(|&node| !taken[node]).map(NodeId);
    let weights: u64 = rest().map(|id| graph.node(id).cost.weight_bytes).sum();
    let seconds: f64 = rest()
        // The leader runs the rest while the other devices wait.
        .map(|id| group.known.alone[leader][id.0])
        .chain(all.iter().map(|(shared, _)| shared.shares.seconds))
        .sum::<f64>()
        + group.host_seconds(leader, rest());
    let mut segments: Vec<SharedOperator> = all.into_iter().map(|(shared, _)| shared).collect();
    segments.sort_by_key(|shared| shared.segment.nodes.last().copied());
    let runs = seconds.is_finite() && weights <= offer.memory_bytes && !segments.is_empty();
    Ok(runs.then_some(SharingProposal {
        leader,
        segments,
        seconds,
    }))
}

/// Divides units by parts, as exactly as whole units permit.
fn divide_units(parts: &[f64], units: usize) -> Vec<usize> {
    let sum: f64 = parts.iter().sum();
    let (mut before, mut part) = (0, 0.0);
    let each = parts.iter().map(|share| {
        part += share / sum;
        let end = (part * units as f64).round() as usize;
        let own = end.min(units) - before;
        before += own;
        own
    });
    each.collect()
}
