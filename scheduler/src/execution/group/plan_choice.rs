//! Chooses among the plans of different sets of devices.
//!
//! If devices share processor cores, the group compares several plans: for one of these devices
//! alone, and for all of them, each slower. A plan of several devices must beat the best single
//! device. Devices that share cores run together only if past runs measured the best of them alone,
//! because its time next to others says too little about its time alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use souk_onnx::subgraph::CompileError;

use super::execution_plan::{Energy, EnergyMode, ExecutionPlan, collect_readers, to_duration};
use super::fragments::{build_execution_plan, pinned_problem};
use super::group_problem::{self, GAIN_MIN, GroupProblem, GroupSetting};
use super::refusals::{UnsupportedNode, is_full, is_the_devices};
use super::shared_operators::{SharedGraph, SharingProposal};
use super::{GroupDevice, device_requirements, sharing_choice, sharing_plan};
use crate::execution::error::{GroupPlanError, TaskError};
use crate::execution::lock::lock;
use crate::execution::task::Task;
use crate::graph::NodeId;
use crate::learning::Speeds;
use crate::planning::objective::Objective;
use crate::planning::plan::{PlanError, PlanOptions, TimedDivision};
use crate::planning::time::{NEVER, Time, time_of};

/// Maximum number of plans for one task, each without the nodes that devices refused before.
const REFUSALS_MAX: usize = 8;

/// The part of a device's time that past runs must have measured on the device alone.
const SEEN: f64 = 0.9;

/// A planned set of devices.
struct PlanCandidate {
    group: GroupProblem,
    placed: Result<TimedDivision, GroupPlanError>,
}

/// The device that finishes first alone.
#[derive(Clone, Copy)]
struct BestSingle {
    device: usize,
    time: Time,
}

impl PlanCandidate {
    fn makespan(&self) -> Time {
        let placed = self.placed.as_ref();
        placed.map_or(NEVER, |placed| time_of(placed.makespan_seconds))
    }

    fn best_single(&self) -> Option<BestSingle> {
        let single = self.placed.as_ref().ok()?.single?;
        Some(BestSingle {
            device: single.offer,
            time: time_of(single.makespan_seconds),
        })
    }

    /// Returns the makespan without shared operators, or [`NEVER`] if its devices slow each other
    /// and gain too little.
    fn promised_makespan(&self, best_single: Option<BestSingle>) -> Time {
        let loses =
            |best_single: BestSingle| !is_gain_sufficient(self.makespan(), best_single.time);
        match self.group.known.is_contended() && best_single.is_some_and(loses) {
            true => NEVER,
            false => self.makespan(),
        }
    }
}

/// Plans a task's model over the devices and compiles each fragment on its planned device. A device
/// sees its work only then: if it refuses, this plans those nodes on other devices.
pub(super) fn plan_task(
    setting: &GroupSetting<'_>,
    task: &Task,
    speeds: Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let mut barred = BTreeSet::new();
    let mut before = setting.before.as_ref();
    let (mut why, mut lacks) = (None, Vec::new());
    for _ in 0..REFUSALS_MAX {
        let mut plan = match (plan_without(setting, task, speeds.clone(), &barred), why) {
            (Ok(plan), _) => plan,
            // The last refusal says more than the fact that no device remains.
            (Err(_), Some(why)) => return Err(TaskError::Compile(why)),
            (Err(error), None) => return Err(error),
        };
        let Some(refusal) = compile_fragments(setting.members, &plan)? else {
            plan.lacks.append(&mut lacks);
            return Ok(plan);
        };
        if let Some(before) = before.take_if(|_| is_full(&refusal.why)) {
            // The device has no room for both plans at once.
            drop(plan);
            (before.drop)();
            why = Some(refusal.why);
            continue;
        }
        why = Some(refusal.why);
        lacks.extend(refusal.lacks);
        let known = barred.len();
        barred.extend(refusal.nodes);
        if barred.len() == known {
            break;
        }
    }
    // The run moves any nodes that a device still refuses.
    plan_without(setting, task, speeds, &barred)
}

/// Fragments that their planned devices refused.
pub(super) struct Refusal {
    /// Device and node of each refused node.
    nodes: Vec<(usize, NodeId)>,
    /// Features that the devices lack for them.
    lacks: Vec<UnsupportedNode>,
    /// Cause of the first refusal.
    pub why: CompileError,
}

/// Compiles each fragment on its planned device. Returns the refusals, if there are any.
pub(super) fn compile_fragments(
    members: &[GroupDevice],
    plan: &ExecutionPlan,
) -> Result<Option<Refusal>, CompileError> {
    let (mut refused, mut lacks) = (Vec::new(), Vec::new());
    let mut why = None;
    for (fragment, &device) in plan.fragments.iter().zip(&plan.schedule.device) {
        match fragment.get_or_compile(device, &*members[device].processor) {
            // The run detects the lost device as well and moves its work to the others.
            Err(CompileError::DeviceLost { .. }) if members.len() > 1 => {}
            Err(error) if members.len() > 1 && is_the_devices(&error) => {
                refused.extend(fragment.nodes.iter().map(|&node| (device, node)));
                lacks.extend(UnsupportedNode::from_refusal(
                    &members[device].label,
                    fragment,
                    &error,
                ));
                why.get_or_insert(error);
            }
            compiled => drop(compiled?),
        }
    }
    Ok(why.map(|why| Refusal {
        nodes: refused,
        lacks,
        why,
    }))
}

/// Plans a task without the barred nodes on the devices that they are barred from.
pub(super) fn plan_without(
    setting: &GroupSetting<'_>,
    task: &Task,
    speeds: Speeds,
    barred: &BTreeSet<(usize, NodeId)>,
) -> Result<ExecutionPlan, TaskError> {
    let offers = group_problem::load_offers(setting, task.model, &task.inputs, &speeds)?;
    let draft = |mut group: GroupProblem| {
        for &(device, node) in barred {
            group.known.bar_node(device, node);
        }
        let unmet = device_requirements::restrict_devices(
            &mut group,
            setting.members,
            barred,
            setting.lost,
        );
        group.lacks = group.lacks.iter().cloned().chain(unmet).collect();
        let placed = group.divide_graph(&group.plan_options(Objective::Fastest));
        PlanCandidate {
            placed: placed.map_err(GroupPlanError::from),
            group,
        }
    };
    let mut drafts: Vec<PlanCandidate> = offers.into_iter().map(draft).collect();
    // Among devices that share cores, only plans of a single one compete for the best single
    // device.
    let own = drafts.iter().enumerate();
    let own = own.filter(|(_, draft)| drafts.len() == 1 || !draft.group.known.is_contended());
    let singles = own.filter_map(|(index, draft)| Some((index, draft.best_single()?)));
    let best_single = singles.min_by_key(|(_, best_single)| best_single.time);
    let is_seen = best_single.is_none_or(|(index, BestSingle { device, .. })| {
        let known = &drafts[index].group.known;
        !setting.cores.is_shared(device) || known.seen_alone[device] >= SEEN
    });
    let wants_least = saves_joules(setting, &drafts);
    if let Some(plan) = least_joules_plan(task, &mut drafts, setting, &speeds)? {
        return Ok(complete_plan(plan, drafts, best_single, None));
    }
    let mut chosen = choose_draft(&drafts, setting, best_single)?;
    let contention = drafts.len() - 1;
    let is_trial = !is_seen && contention > 0 && chosen.0 == contention;
    if is_trial {
        drafts.truncate(contention);
        chosen = choose_draft(&drafts, setting, best_single)?;
    }
    let plan = match chosen {
        (index, Some(led)) => {
            let shared_graph = SharedGraph::new(drafts.remove(index).group, led);
            sharing_plan::plan_shared(&task.name, shared_graph, setting, speeds)?
        }
        (index, None) => whole_nodes(task, &mut drafts, index, best_single, setting, speeds)?,
    };
    let told = || lock(setting.costs).report_count();
    let mut plan = plan;
    plan.energy.mode = wants_least.then_some(EnergyMode::Soonest);
    Ok(complete_plan(
        plan,
        drafts,
        best_single,
        is_trial.then(told),
    ))
}

/// Completes a plan with the estimates of the alternatives that it won against.
fn complete_plan(
    plan: ExecutionPlan,
    drafts: Vec<PlanCandidate>,
    best_single: Option<(usize, BestSingle)>,
    trial: Option<u64>,
) -> ExecutionPlan {
    ExecutionPlan {
        readers: Arc::new(collect_readers(&plan)),
        single: best_single
            .map(|(_, best_single)| (best_single.device, to_duration(best_single.time))),
        alternatives: drafts.into_iter().map(|draft| draft.group.known).collect(),
        trial,
        ..plan
    }
}

/// Returns the division with the fewest joules of those that end in time. Returns none if no device
/// states its power, or no division ends in time. Errors appear with the plan that ends soonest.
fn greenest_division(group: &GroupProblem, within: Option<Duration>) -> Option<TimedDivision> {
    let mut known = group.stated.iter().filter_map(|offer| offer.busy_watts);
    let options = PlanOptions {
        deadline_seconds: within.map(|left| left.as_secs_f64()),
        ..group.plan_options(Objective::Greenest)
    };
    known
        .any(|watts| watts > 0.0)
        .then(|| group.divide_graph(&options).ok())?
}

/// Returns whether a makespan is far enough below that of the best single device.
pub(super) fn is_gain_sufficient(makespan: Time, single: Time) -> bool {
    (makespan as f64) < single as f64 * (1.0 - GAIN_MIN)
}

/// Returns whether the plan should save joules and any device states its power. Such a plan cannot
/// move work, so after the loss of a device the soonest plan wins.
fn saves_joules(setting: &GroupSetting<'_>, drafts: &[PlanCandidate]) -> bool {
    let mut offers = drafts.iter().flat_map(|draft| &draft.group.stated);
    let states_power = offers.any(|offer| offer.busy_watts.is_some());
    setting.objective == Objective::Greenest && setting.lost == 0 && states_power
}

/// Returns the plan with the fewest joules of those that end in time, if the objective asks for it.
fn least_joules_plan(
    task: &Task,
    drafts: &mut Vec<PlanCandidate>,
    setting: &GroupSetting<'_>,
    speeds: &Speeds,
) -> Result<Option<ExecutionPlan>, TaskError> {
    if !saves_joules(setting, drafts) {
        return Ok(None);
    }
    let least = |within: Option<Duration>| {
        let each = drafts.iter().enumerate().filter_map(|(index, draft)| {
            // Errors appear with the plan that ends soonest.
            Some((index, greenest_division(&draft.group, within)?))
        });
        each.min_by(|(_, one), (_, other)| one.joules.total_cmp(&other.joules))
    };
    let build =
        |(index, least): (usize, TimedDivision)| -> Result<(usize, ExecutionPlan), TaskError> {
            let group = &drafts[index].group;
            let plan = build_execution_plan(&task.name, group, &least, setting, speeds.clone())?;
            let problem = Arc::new(pinned_problem(&plan)?);
            Ok((index, ExecutionPlan { problem, ..plan }))
        };
    let Some(unhurried) = least(None) else {
        return Ok(None);
    };
    let (index, plan) = build(unhurried)?;
    let late = setting.left.filter(|left| plan.expected > *left);
    let (index, plan, mode) = match late.map(|left| least(Some(left))) {
        None => (index, plan, EnergyMode::Least),
        Some(None) => return Ok(None),
        Some(Some(hurried)) => {
            let mode = EnergyMode::Hurried(plan.expected);
            let (index, plan) = build(hurried)?;
            if setting.left.is_some_and(|left| plan.expected > left) {
                return Ok(None);
            }
            (index, plan, mode)
        }
    };
    Ok(Some(ExecutionPlan {
        known: Some(drafts.remove(index).group.known),
        energy: Energy {
            mode: Some(mode),
            ..plan.energy
        },
        ..plan
    }))
}

/// Returns the draft that ends soonest, and its proposal to share operators, if there is one.
fn choose_draft(
    drafts: &[PlanCandidate],
    setting: &GroupSetting<'_>,
    best_single: Option<(usize, BestSingle)>,
) -> Result<(usize, Option<SharingProposal>), GroupPlanError> {
    let best_single = best_single.map(|(_, best_single)| best_single);
    let numbered = || drafts.iter().enumerate();
    let promises = numbered().map(|(index, draft)| (index, draft.promised_makespan(best_single)));
    let (soonest, promise) = promises
        .min_by_key(|(_, promise)| *promise)
        .expect("there is a draft");
    let led = numbered().map(|(index, draft)| {
        let led = sharing_choice::propose_sharing(&draft.group, setting, promise)?;
        Ok(led.map(|led| (index, led)))
    });
    let led: Vec<Option<(usize, SharingProposal)>> = led.collect::<Result<_, GroupPlanError>>()?;
    let each = led.into_iter().flatten();
    let led = each.min_by(|one, other| one.1.seconds.total_cmp(&other.1.seconds));
    Ok(led.map_or((soonest, None), |(index, led)| (index, Some(led))))
}

/// Returns the plan that runs each node on one device. Fragments hand over only complete values, so
/// if several devices gain too little by that, the best single device runs all nodes.
fn whole_nodes(
    task: &Task,
    drafts: &mut Vec<PlanCandidate>,
    index: usize,
    best_single: Option<(usize, BestSingle)>,
    setting: &GroupSetting<'_>,
    speeds: Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let PlanCandidate { group, placed } = &mut drafts[index];
    let failed = || GroupPlanError::Division(PlanError::NoOffers);
    let placed = std::mem::replace(placed, Err(failed()))?;
    let build = |group: &GroupProblem, placed: &TimedDivision| {
        build_execution_plan(&task.name, group, placed, setting, speeds.clone())
    };
    let plan = build(group, &placed)?;
    let several = plan.fragments.len() > 1;
    let loses = |best_single: &BestSingle| {
        several && !is_gain_sufficient(plan.schedule.makespan, best_single.time)
    };
    let (plan, index) = match best_single.filter(|(_, best_single)| loses(best_single)) {
        Some((index, BestSingle { device, time })) => {
            let group = &drafts[index].group;
            let alone = TimedDivision::for_single_offer(group.graph.nodes().len(), (device, time));
            (build(group, &alone)?, index)
        }
        None => (plan, index),
    };
    Ok(ExecutionPlan {
        known: Some(drafts.remove(index).group.known),
        ..plan
    })
}
