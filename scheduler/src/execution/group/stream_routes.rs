//! Plans the routes by which a stream's requests pass through the devices.
//!
//! For a single request the plan minimises its end; for many requests the time between two answers
//! counts. One way is a pipeline: the graph is cut into one stage for each device, and while one
//! request is on the last device, the next is on the first. The other way runs each request whole
//! on one device and different requests on different devices. It keeps all devices busy even if the
//! graph cannot be cut evenly, but each device must hold all weights. If neither way is faster,
//! requests run one by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::execution_plan::{ExecutionPlan, collect_readers};
use super::fragment::Fragment;
use super::group_problem::{self, GAIN_MIN, GroupProblem, GroupSetting, ReplacedPlan};
use super::plan_choice::{compile_fragments, is_gain_sufficient, plan_without};
use super::refusals::is_full;
use super::{device_requirements, fragments};
use crate::execution::error::TaskError;
use crate::execution::task::Task;
use crate::learning::Speeds;
use crate::planning::objective::Objective;
use crate::planning::plan::{Model, Pipeline, TimedDivision};
use crate::planning::time::time_of;

/// The routes of requests with the same model and shapes.
pub(super) struct StreamRoutes {
    /// Empty if requests run one by one.
    routes: Vec<Route>,
    /// The plan behind that decision, if there is no route.
    alone: Option<ExecutionPlan>,
}

/// A route that requests take next to other requests.
struct Route {
    plan: Arc<ExecutionPlan>,
    pipeline: Pipeline,
    under_way: AtomicUsize,
}

/// A request on its route; dropping it makes room for another request.
pub(super) struct RouteUse {
    routes: Arc<StreamRoutes>,
    route: usize,
}

/// A set of routes that requests could take.
struct RouteCandidate {
    group: usize,
    pipelines: Vec<Pipeline>,
    /// The time between two answers, weighted for the comparison. The present routes stay unless
    /// another set gains enough, and a set that loads weights several times must gain as much too.
    rank: f64,
}

impl StreamRoutes {
    /// Creates the routes of requests that run one by one on this plan.
    fn one_by_one(alone: ExecutionPlan) -> Self {
        Self {
            routes: Vec::new(),
            alone: Some(alone),
        }
    }

    /// Returns the plan whose assumptions the routes depend on.
    pub fn basis_plan(&self) -> &ExecutionPlan {
        let own = self.routes.first().map(|route| &*route.plan);
        own.or(self.alone.as_ref())
            .expect("a routes without routes was planned by itself")
    }

    /// Enters the route on which one more request ends first.
    pub fn enter_route(self: &Arc<Self>) -> Option<RouteUse> {
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

    /// Returns the bytes that each device has loaded for the routes.
    pub fn loaded_bytes(&self, devices: usize) -> Vec<u64> {
        let mut loaded = vec![0; devices];
        for route in &self.routes {
            let own = route.plan.loaded_bytes();
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

/// Returns the seconds between two answers of requests that share several routes. Answers come in
/// order: while the slowest route works on one request, the others can complete only as many as may
/// be in progress.
fn answer_period(pipelines: &[Pipeline], ahead: usize) -> f64 {
    let seconds = || pipelines.iter().map(|pipeline| pipeline.longest_seconds);
    let together = 1.0 / seconds().map(|seconds| 1.0 / seconds).sum::<f64>();
    let slowest = seconds().fold(0.0, f64::max);
    together.max(slowest / ahead as f64)
}

/// Plans the routes of requests like this one, of which at most `ahead` are in progress. The
/// present pipelines `kept` stay unless others gain enough.
pub(super) fn plan_routes(
    setting: &GroupSetting<'_>,
    task: &Task,
    speeds: &Speeds,
    kept: &[Pipeline],
    ahead: usize,
) -> Result<StreamRoutes, TaskError> {
    let nothing = BTreeSet::new();
    // A request that fits no plan can still run, fragment by fragment.
    let alone = plan_without(setting, task, speeds.clone(), &nothing);
    if setting.objective == Objective::Greenest {
        // Routes would keep every device busy, whatever power it draws.
        return Ok(StreamRoutes::one_by_one(alone?));
    }
    let mut offers = group_problem::load_offers(setting, task.model, &task.inputs, speeds)?;
    for group in &mut offers {
        device_requirements::restrict_devices(group, setting.members, &nothing, setting.lost);
    }
    let mut candidates = route_candidates(&offers, kept, ahead);
    candidates.sort_by(|one, other| one.rank.total_cmp(&other.rank));
    // Requests one by one leave devices idle between them, so several routes can be slightly worse
    // on paper.
    let soonest = alone.as_ref().map_or(Duration::MAX, |alone| alone.expected);
    let soonest = time_of(soonest.as_secs_f64());
    let single = alone.as_ref().ok().and_then(|alone| alone.single);
    let gains = |pipelines: &[Pipeline]| {
        let devices: usize = pipelines.iter().map(|it| it.devices.len()).sum();
        devices > 1 && !is_gain_sufficient(soonest, time_of(answer_period(pipelines, ahead)))
    };
    let mut before = setting.before.as_ref();
    for candidate in candidates.into_iter().filter(|it| gains(&it.pipelines)) {
        let group = &offers[candidate.group];
        let is_kept = |own: &Pipeline| kept.iter().any(|kept| kept.devices == own.devices);
        let (mut pipelines, mut plans) = (Vec::new(), Vec::new());
        for pipeline in candidate.pipelines {
            let make = || plan_pipeline(&pipeline, group, task, setting, speeds);
            let has_room = |plan: &ExecutionPlan| {
                pipeline.devices.len() > 1 || is_kept(&pipeline) || is_within_memory(plan, group)
            };
            // If a device refuses its part, the other pipelines run all requests, or another
            // candidate follows.
            if let Some(plan) = prepare_plan(setting, make, has_room, &mut before)? {
                pipelines.push(pipeline);
                plans.push(plan);
            }
        }
        if !gains(&pipelines) {
            continue;
        }
        // The first plan holds the estimates, because all plans use the same ones.
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

/// Returns the candidates: for each set of devices the best pipeline, the devices that run the
/// whole model, and the present routes.
fn route_candidates(
    offers: &[GroupProblem],
    kept: &[Pipeline],
    ahead: usize,
) -> Vec<RouteCandidate> {
    let mut candidates = Vec::new();
    for (index, group) in offers.iter().enumerate() {
        let options = group.plan_options(Objective::Fastest);
        let model = group.build_model(&options);
        let devices: Vec<usize> = (0..group.stated.len()).collect();
        let mut candidate = |pipelines: Vec<Pipeline>, weight: f64| {
            let period = answer_period(&pipelines, ahead);
            if period.is_finite() && period > 0.0 {
                let rank = period * weight;
                candidates.push(RouteCandidate {
                    group: index,
                    pipelines,
                    rank,
                });
            }
        };
        candidate(
            Pipeline::best_for_devices(&model, &devices)
                .into_iter()
                .collect(),
            1.0,
        );
        candidate(each_whole(&model, &devices, ahead), 1.0 / (1.0 - GAIN_MIN));
        let again = |pipeline: &Pipeline| pipeline.with_model_times(&model);
        candidate(kept.iter().map(again).collect(), 1.0 - GAIN_MIN);
    }
    candidates
}

/// Returns the devices that run the whole model: as many of the fastest as minimise the time
/// between two answers.
fn each_whole(model: &Model<'_>, devices: &[usize], ahead: usize) -> Vec<Pipeline> {
    let whole = |&device: &usize| Pipeline::for_single_device(model, device);
    let pipelines = devices.iter().map(whole);
    let mut pipelines: Vec<Pipeline> = pipelines
        .filter(|pipeline| pipeline.longest_seconds.is_finite())
        .collect();
    pipelines.sort_by(|one, other| one.longest_seconds.total_cmp(&other.longest_seconds));
    let of_first = |count: &usize| answer_period(&pipelines[..*count], ahead);
    let best = (1..=pipelines.len()).min_by(|one, other| of_first(one).total_cmp(&of_first(other)));
    pipelines.truncate(best.unwrap_or(0));
    pipelines
}

/// Returns whether a device has room for all weights and for the activations of a request.
fn is_within_memory(plan: &ExecutionPlan, group: &GroupProblem) -> bool {
    let held = group.graph.activation_bytes().into_iter().max();
    let weights: u64 = plan.fragments.iter().map(Fragment::byte_size).sum();
    let mut rooms = plan.schedule.device.iter();
    let room = |&device: &usize| group.stated[device].memory_bytes;
    rooms.all(|device| weights.saturating_add(held.unwrap_or(0)) <= room(device))
}

/// Returns a plan with compiled fragments, if it has room and its devices accept them. If a device
/// has no room, drops the plan before it and tries again.
fn prepare_plan(
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
        let Some(refusal) = compile_fragments(setting.members, &plan)? else {
            return Ok(Some(plan));
        };
        let Some(before) = before.take_if(|_| is_full(&refusal.why)) else {
            return Ok(None);
        };
        drop(plan);
        (before.drop)();
    }
}

/// Returns the plan of a pipeline.
fn plan_pipeline(
    pipeline: &Pipeline,
    group: &GroupProblem,
    task: &Task,
    setting: &GroupSetting<'_>,
    speeds: &Speeds,
) -> Result<ExecutionPlan, TaskError> {
    let stages = pipeline.devices.iter().enumerate();
    let placed = TimedDivision {
        assignment: pipeline.stage_of_node.clone(),
        // In the order of the pipeline, because start times are unknown before the first request.
        parts: stages
            .map(|(stage, &device)| (device, stage as f64))
            .collect(),
        makespan_seconds: pipeline.longest_seconds,
        joules: 0.0,
        single: None,
    };
    let plan =
        fragments::build_execution_plan(&task.name, group, &placed, setting, speeds.clone())?;
    Ok(ExecutionPlan {
        readers: Arc::new(collect_readers(&plan)),
        problem: Arc::new(fragments::pinned_problem(&plan)?),
        ..plan
    })
}
