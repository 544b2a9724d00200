//! Which operators devices share, and which of them leads.

use super::Sharing;
use super::group_problem::{GroupProblem, GroupSetting};
use super::shared_operators::pricing::of_segment;
use super::shared_operators::{SharedOperator, SharingProposal};
use crate::execution::error::GroupPlanError;
use crate::graph::NodeId;
use crate::planning::split::{self, Cut, PricedSegment, Segment, Shares};
use crate::planning::time::Time;

/// What sharing operators must save of the time of a run that shares none.
const GAIN_MIN: f64 = 0.05;

/// What a cut along the rows is worth beside one that saves more by this part: other shares of it
/// load no weights anew.
const ROWS_WORTH: f64 = 0.02;

/// What operators to share: those of which that saves enough, if the run then ends before
/// `makespan`.
pub(super) fn divide(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    makespan: Time,
) -> Result<Option<SharingProposal>, GroupPlanError> {
    let sharing = setting.sharing;
    // What asks for a device is not another one's in part.
    if *sharing == Sharing::Never || group.stated.len() < 2 || group.wished {
        return Ok(None);
    }
    let segments = split::segments(&group.graph);
    let leaders = 0..group.stated.len();
    let led = leaders.map(|leader| led(group, setting, &segments, leader));
    let led: Vec<Option<SharingProposal>> = led.collect::<Result<_, _>>()?;
    let each = led.into_iter().flatten();
    let best = each.min_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let limit = (1.0 - GAIN_MIN) * makespan as f64 / crate::planning::time::SECOND;
    let forced = matches!(sharing, Sharing::Given(_));
    Ok(best.filter(|led| forced || led.seconds <= limit))
}

/// The shares of a segment that are worth it if a device leads, and what that saves of the leader's
/// time for all of it: for ever if it cannot.
fn shared(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    segment: &Segment,
    leader: usize,
) -> Result<Option<(SharedOperator, f64)>, GroupPlanError> {
    let offers = of_segment(group, segment, |_| 1.0);
    let shares = |priced: &PricedSegment<'_>| {
        let shares = match setting.sharing {
            Sharing::Given(parts) => Some(priced.given(&counts(parts, segment.units))),
            _ => priced.best().filter(Shares::pays),
        };
        shares.filter(|shares| shares.parts.len() > 1)
    };
    let priced = group.priced(&offers, leader, segment);
    // What does not pay without does not with what it takes besides.
    let Some(without) = shares(&priced) else {
        return Ok(None);
    };
    let around = group.around(setting.members, leader, segment, &without.parts)?;
    let priced = priced.with(around.clone());
    let own = shares(&priced).map(|shares| {
        let saved = priced.alone(leader) - shares.seconds;
        let segment = segment.clone();
        let shared = SharedOperator {
            segment,
            shares,
            around,
        };
        (shared, saved)
    });
    Ok(own)
}

/// What to share if a device leads, and when the run would end.
fn led(
    group: &GroupProblem,
    setting: &GroupSetting<'_>,
    segments: &[Segment],
    leader: usize,
) -> Result<Option<SharingProposal>, GroupPlanError> {
    let graph = &group.graph;
    let mut all: Vec<(SharedOperator, f64)> = Vec::new();
    for segment in segments {
        all.extend(shared(group, setting, segment, leader)?);
    }
    // Of two ways to cut the same operator the one that saves more.
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
        // The leader runs it while the others wait.
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

/// Units by parts, as near as whole units come.
fn counts(parts: &[f64], units: usize) -> Vec<usize> {
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
