//! The routes that requests of a stream take through the devices.
//!
//! A request by itself is planned to end soon; of many it is the time between two answers that
//! counts. Either the graph is cut as for a pipeline, one stage a device, and while one request is
//! on the last device the next is on the first. Or each request is whole on one device, and
//! different ones are on different devices: what cannot be cut evenly, or at all, keeps all of them
//! at work so, at the price of its weights on each. Where neither comes sooner than requests one by
//! one, they are run one by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::execution_plan::{ExecutionPlan, readers};
use super::fragment::Fragment;
use super::group_problem::{self, GAIN_MIN, GroupProblem, GroupSetting, ReplacedPlan};
use super::plan_choice::{compile, plan_without, wins};
use super::refusals::is_full;
use super::{device_wishes, fragments};
use crate::execution::error::TaskError;
use crate::execution::task::Task;
use crate::learning::Speeds;
use crate::planning::objective::Objective;
use crate::planning::plan::{Model, Pipeline, TimedDivision};
use crate::planning::time::time_of;

/// How requests like one go.
pub(super) struct StreamRoutes {
    /// None where they go one by one.
    routes: Vec<Route>,
    /// The plan by which that was decided, where there is no route.
    alone: Option<ExecutionPlan>,
}

/// A route that requests take beside others.
struct Route {
    plan: Arc<ExecutionPlan>,
    pipeline: Pipeline,
    under_way: AtomicUsize,
}

/// A request on its route; dropping it makes room for another one.
pub(super) struct RouteUse {
    routes: Arc<StreamRoutes>,
    route: usize,
}

/// Ways that requests might take.
struct RouteCandidate {
    group: usize,
    pipelines: Vec<Pipeline>,
    /// The time between two answers, by which it is compared: what is there already is kept
    /// unless another one gains enough, and loading weights several times has to gain so much too.
    rank: f64,
}

impl StreamRoutes {
    /// Requests that go one by one, by this plan.
    fn one_by_one(alone: ExecutionPlan) -> Self {
        Self {
            routes: Vec::new(),
            alone: Some(alone),
        }
    }

    /// The plan whose assumptions it stands on.
    pub fn basis(&self) -> &ExecutionPlan {
        let own = self.routes.first().map(|route| &*route.plan);
        own.or(self.alone.as_ref())
            .expect("a routes without routes was planned by itself")
    }

    /// The route on which one more request ends soonest.
    pub fn enter(self: &Arc<Self>) -> Option<RouteUse> {
        let ends = |route: &Route| {
            let under_way = route.under_way.load(Ordering::SeqCst);
            (under_way + 1) as f64 * route.pipeline.longest_seconds
        };
        let routes = self.routes.iter().enumerate();
        let (route, taken) =
            routes.min_by(|(_, one), (_, other)| ends(one).total_cmp(&ends(other)))?;
        taken.under_way.fetch_add(1, Ordering::SeqCst);
        let routes = self.clone();
        Some(RouteUse { routes, route })
    }

    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.routes
            .iter()
            .map(|route| route.pipeline.clone())
            .collect()
    }

    /// Bytes that each of so many devices has loaded for its routes.
    pub fn loaded(&self, devices: usize) -> Vec<u64> {
        let mut loaded = vec![0; devices];
        for route in &self.routes {
            let own = route.plan.loaded();
            loaded
                .iter_mut()
                .zip(own)
                .for_each(|(sum, own)| *sum += own);
        }
        loaded
    }
}

impl RouteUse {
    pub fn plan(&self) -> &Arc<ExecutionPlan> {
        &self.routes.routes[self.route].plan
    }
}

impl Drop for RouteUse {
    fn drop(&mut self) {
        let route = &self.routes.routes[self.route];
        route.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Seconds between two answers of requests that take several routes at once. Answers come in order:
/// while the slowest route is at one, no more than all others that may be under way are done.
fn period(pipelines: &[Pipeline], ahead: usize) -> f64 {
    let seconds = || pipelines.iter().map(|pipeline| pipeline.longest_seconds);
    let together = 1.0 / seconds().map(|seconds| 1.0 / seconds).sum::<f64>();
    let slowest = seconds().fold(0.0, f64::max);
    together.max(slowest / ahead as f64)
}

/// Plans the routes of requests like this one, `ahead` of which are under way at most. The
/// pipelines that those before it took are kept unless others gain enough.
pub(super) fn plan_routes(
    setting: &GroupSetting<'_>,
    task: &Task,
    speeds: &Speeds,
    (kept, ahead): (&[Pipeline], usize),
) -> Result<StreamRoutes, TaskError> {
    let nothing = BTreeSet::new();
    // What no plan has room for may go through all the same, fragment by fragment.
    let alone = plan_without(setting, task, speeds.clone(), &nothing);
    if setting.objective == Objective::Greenest {
        // Routes keep every device at work, whatever it draws.
        return Ok(StreamRoutes::one_by_one(alone?));
    }
    let mut offers = group_problem::offers(setting, task.model, &task.inputs, speeds)?;
    for group in &mut offers {
        device_wishes::heed(group, setting.members, &nothing, setting.lost);
    }
    let mut candidates = candidates(&offers, kept, ahead);
    candidates.sort_by(|one, other| one.rank.total_cmp(&other.rank));
    // One by one devices wait between requests, so that several routes may lose a little.
    let soonest = alone.as_ref().map_or(Duration::MAX, |alone| alone.expected);
    let soonest = time_of(soonest.as_secs_f64());
    let single = alone.as_ref().ok().and_then(|alone| alone.single);
    let gains = |pipelines: &[Pipeline]| {
        let devices: usize = pipelines.iter().map(|it| it.devices.len()).sum();
        devices > 1 && !wins(soonest, time_of(period(pipelines, ahead)))
    };
    let mut before = setting.before.as_ref();
    for candidate in candidates.into_iter().filter(|it| gains(&it.pipelines)) {
        let group = &offers[candidate.group];
        let is_kept = |own: &Pipeline| kept.iter().any(|kept| kept.devices == own.devices);
        let (mut pipelines, mut plans) = (Vec::new(), Vec::new());
        for pipeline in candidate.pipelines {
            let make = || along(&pipeline, group, (task, setting), speeds);
            let has_room = |plan: &ExecutionPlan| {
                pipeline.devices.len() > 1 || is_kept(&pipeline) || fits(plan, group)
            };
            // What a device does not take goes to others, or another candidate gives it to them.
            if let Some(plan) = ready(setting, make, has_room, &mut before)? {
                pipelines.push(pipeline);
                plans.push(plan);
            }
        }
        if !gains(&pipelines) {
            continue;
        }
        // Told by one of them, for all were made by it.
        let knowns = offers.into_iter().map(|group| group.known);
        let mut knowns: Vec<_> = knowns.collect();
        plans[0].known = Some(knowns.remove(candidate.group));
        plans[0].alternatives = knowns;
        let route = |(pipeline, plan)| Route {
            plan: Arc::new(ExecutionPlan { single, ..plan }),
            pipeline,
            under_way: AtomicUsize::new(0),
        };
        return Ok(StreamRoutes {
            routes: pipelines.into_iter().zip(plans).map(route).collect(),
            alone: None,
        });
    }
    Ok(StreamRoutes::one_by_one(alone?))
}

/// What there is to choose from: for each route to take part the best pipeline, all devices that
/// run the whole, and what is kept.
fn candidates(offers: &[GroupProblem], kept: &[Pipeline], ahead: usize) -> Vec<RouteCandidate> {
    let mut candidates = Vec::new();
    for (index, group) in offers.iter().enumerate() {
        let options = group.options(Objective::Fastest);
        let model = group.model(&options);
        let devices: Vec<usize> = (0..group.stated.len()).collect();
        let mut candidate = |pipelines: Vec<Pipeline>, weight: f64| {
            let period = period(&pipelines, ahead);
            if period.is_finite() && period > 0.0 {
                let rank = period * weight;
                candidates.push(RouteCandidate {
                    group: index,
                    pipelines,
                    rank,
                });
            }
        };
        candidate(Pipeline::best(&model, &devices).into_iter().collect(), 1.0);
        candidate(each_whole(&model, &devices, ahead), 1.0 / (1.0 - GAIN_MIN));
        let again = |pipeline: &Pipeline| pipeline.again(&model);
        candidate(kept.iter().map(again).collect(), 1.0 - GAIN_MIN);
    }
    candidates
}

/// The devices that run the whole: as many of the fastest as together have the least time between
/// two answers.
fn each_whole(model: &Model<'_>, devices: &[usize], ahead: usize) -> Vec<Pipeline> {
    let whole = |&device: &usize| Pipeline::whole(model, device);
    let pipelines = devices.iter().map(whole);
    let mut pipelines: Vec<Pipeline> = pipelines
        .filter(|pipeline| pipeline.longest_seconds.is_finite())
        .collect();
    pipelines.sort_by(|one, other| one.longest_seconds.total_cmp(&other.longest_seconds));
    let of_first = |count: &usize| period(&pipelines[..*count], ahead);
    let best = (1..=pipelines.len()).min_by(|one, other| of_first(one).total_cmp(&of_first(other)));
    pipelines.truncate(best.unwrap_or(0));
    pipelines
}

/// Whether a device has room for all weights and what a request holds beside them.
fn fits(plan: &ExecutionPlan, group: &GroupProblem) -> bool {
    let held = group.graph.activation_bytes().into_iter().max();
    let weights: u64 = plan.fragments.iter().map(Fragment::bytes).sum();
    let mut rooms = plan.schedule.device.iter();
    let room = |&device: &usize| group.stated[device].memory_bytes;
    rooms.all(|device| weights.saturating_add(held.unwrap_or(0)) <= room(device))
}

/// A plan whose fragments are compiled, if it has room and its devices take them. Where a device
/// has no room, what was there before is let go of.
fn ready(
    setting: &GroupSetting<'_>,
    make: impl Fn() -> Result<ExecutionPlan, TaskError>,
    has_room: impl Fn(&ExecutionPlan) -> bool,
    before: &mut Option<&ReplacedPlan<'_>>,
) -> Result<Option<ExecutionPlan>, TaskError> {
    loop {
        let plan = make()?;
        if !has_room(&plan) {
            return Ok(None);
        }
        let Some(refusal) = compile(setting.members, &plan)? else {
            return Ok(Some(plan));
        };
        let Some(before) = before.take_if(|_| is_full(&refusal.why)) else {
            return Ok(None);
        };
        drop(plan);
        (before.drop)();
    }
}

/// The plan of a pipeline.
fn along(
    pipeline: &Pipeline,
    group: &GroupProblem,
    (task, setting): (&Task, &GroupSetting<'_>),
    speeds: &Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let stages = pipeline.devices.iter().enumerate();
    let placed = TimedDivision {
        part: pipeline.of_node.clone(),
        // In the order of the pipeline: when each begins is not known before there are requests.
        parts: stages
            .map(|(stage, &device)| (device, stage as f64))
            .collect(),
        makespan_seconds: pipeline.longest_seconds,
        joules: 0.0,
        single: None,
    };
    let plan = fragments::fragmented(&task.name, group, &placed, setting, speeds.clone())?;
    Ok(ExecutionPlan {
        readers: Arc::new(readers(&plan)),
        problem: Arc::new(fragments::pinned(&plan)?),
        ..plan
    })
}
