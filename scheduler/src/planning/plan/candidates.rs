//! Finds divisions of a graph by the planners: they schedule the graph's tasks over the devices and
//! the buyer, and this module gathers the tasks into parts that one device runs as a whole.

use std::collections::BTreeMap;

use super::PlanOptions;
use super::partition::{Division, Model};
use super::refine::renumber_parts;
use crate::planning::objective::Objective;
use crate::planning::offer::Links;
use crate::planning::planner::{find_planner, step_pace};
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::tasks::{GraphTasks, Layout};
use crate::planning::time::{NEVER, Time, time_of};

/// Steps of the planner for each step of the options, because its steps are so much cheaper.
const PLANNER_STEPS: usize = 4;

/// Factors by which the planners overestimate the links, in turn. A part hands over its results
/// only at its end, so plans with fewer changes of device can be better.
const LINK_FACTORS: [u64; 3] = [1, 8, 64];

/// Maximum number of parts in a plan; a more scattered plan is not worth its messages.
const PARTS_MAX: usize = 64;

/// Returns the divisions worth improving; none if the planners find none.
pub(super) fn division_candidates(model: &Model<'_>, options: &PlanOptions) -> Vec<Division> {
    let picks = offer_picks(model, options.max_devices);
    let tries = picks
        .iter()
        .flat_map(|pick| LINK_FACTORS.map(|factor| (pick, factor)));
    let mut found: Vec<Division> = Vec::new();
    for (pick, factor) in tries {
        for division in planner_divisions(model, options, pick, factor) {
            if !found.contains(&division) {
                found.push(division);
            }
        }
    }
    found
}

/// Returns sets of at most `most` offers: the fastest, and the cheapest if they differ.
fn offer_picks(model: &Model<'_>, most: usize) -> Vec<Vec<usize>> {
    let pick = |mut rank: Vec<usize>| {
        rank.truncate(most);
        rank.sort_unstable();
        rank
    };
    let mut picks = vec![pick(super::contiguous_parts::speed_rank(model))];
    let cheapest = pick(super::contiguous_parts::cost_rank(model));
    if !picks.contains(&cheapest) {
        picks.push(cheapest);
    }
    picks
}

/// Returns the planner's schedule of the tasks on these offers, gathered into parts in two ways.
fn planner_divisions(
    model: &Model<'_>,
    options: &PlanOptions,
    pick: &[usize],
    factor: u64,
) -> Vec<Division> {
    let Some((tasks, problem, schedule)) = schedule_tasks(model, options, pick, factor) else {
        return Vec::new();
    };
    let gathered = [
        by_changes(model, &tasks, &schedule, pick),
        by_time(model, &tasks, &problem, &schedule, pick),
    ];
    let few = gathered
        .into_iter()
        .filter(|division| division.offers.len() <= PARTS_MAX);
    few.filter_map(|division| renumber_parts(model, division))
        .collect()
}

/// Returns the graph's tasks on these offers, their problem and its schedule.
fn schedule_tasks(
    model: &Model<'_>,
    options: &PlanOptions,
    pick: &[usize],
    factor: u64,
) -> Option<(GraphTasks, Problem, Schedule)> {
    let links = Links {
        buyer: pick.iter().map(|&offer| model.links.buyer[offer]).collect(),
        between: pick
            .iter()
            .map(|&from| {
                pick.iter()
                    .map(|&to| model.links.between[from][to])
                    .collect()
            })
            .collect(),
    };
    let layout = Layout {
        graph: model.graph,
        seconds: pick
            .iter()
            .map(|&offer| model.times()[offer].as_slice())
            .collect(),
        memory: pick
            .iter()
            .map(|&offer| model.offers[offer].memory_bytes)
            .collect(),
        links: &links,
        // The buyer takes part if transfers from it take any time.
        buyer: links
            .buyer
            .iter()
            .any(|link| link.transfer_seconds(1) > 0.0),
    };
    let tasks = layout.create_tasks().ok()?;
    let problem = with_objective(model, options, pick, &tasks.problem, factor)?;
    let auto = find_planner("auto")?;
    let limit = (options.steps * PLANNER_STEPS) as u64;
    // A late schedule is better than none: the search grades and improves its division like any
    // other.
    let schedule = auto(&problem, &mut step_pace(limit))
        .or_else(|_| auto(&tasks.problem, &mut step_pace(limit)))
        .ok()?;
    Some((tasks, problem, schedule))
}

/// Returns the problem with prices, power, the objective and links that are `factor` times as
/// expensive.
fn with_objective(
    model: &Model<'_>,
    options: &PlanOptions,
    pick: &[usize],
    problem: &Problem,
    factor: u64,
) -> Option<Problem> {
    /// Prices and powers are parts of the highest one, which counts as this number.
    const WHOLE: f64 = 1e6;
    let shares = |rate: &dyn Fn(usize) -> f64| -> (Vec<u64>, f64) {
        let rates = pick.iter().map(|&offer| rate(offer));
        let highest = rates.clone().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let shares = rates.map(|rate| (rate / highest * WHOLE) as u64);
        // The buyer's own device costs and draws nothing.
        let devices = problem.device_count();
        (shares.chain([0]).take(devices).collect(), highest)
    };
    let (price, highest) = shares(&|offer| model.offers[offer].cost_per_second);
    let (power, _) = shares(&|offer| model.watts()[offer]);
    let mut parts = problem.parts().clone();
    for time in parts.latency.iter_mut().chain(&mut parts.time_per_byte) {
        *time = time.saturating_mul(factor);
    }
    parts.objective = match options.objective {
        // A price is a part of the highest, and time is in the problem's own unit.
        Objective::Weighted { time, cost } => weighted_objective(time, cost * highest / WHOLE),
        named => named,
    };
    let deadline = options.deadline_seconds.map(time_of);
    parts.deadline = deadline.filter(|_| options.objective != Objective::Fastest);
    (parts.price, parts.power) = (price, power);
    Problem::new(parts).ok()
}

/// Scales weights so that whole numbers can distinguish their sums.
fn weighted_objective(time: f64, cost: f64) -> Objective {
    const LARGEST: f64 = 1e12;
    let largest = time.max(cost).max(f64::MIN_POSITIVE);
    let weight = |weight: f64| (weight / largest * LARGEST).trunc();
    Objective::Weighted {
        time: weight(time),
        cost: weight(cost),
    }
}

/// Gathers a schedule into parts: on each device, the nodes that data reach after the same number
/// of device changes. Data flow only to parts with more changes, so parts never wait in a circle.
fn by_changes(
    model: &Model<'_>,
    tasks: &GraphTasks,
    schedule: &Schedule,
    pick: &[usize],
) -> Division {
    let mut task_of = vec![0; model.node_count()];
    for (task, members) in tasks.members.iter().enumerate() {
        members.iter().for_each(|node| task_of[node.0] = task);
    }
    let device = |node: usize| schedule.device[task_of[node]];
    let mut changes = vec![0usize; model.node_count()];
    for (index, node) in model.graph.nodes().iter().enumerate() {
        let sources = node
            .input_values()
            .filter_map(|id| model.graph.value(id).producer());
        let least = sources
            .map(|source| changes[source.0] + usize::from(device(source.0) != device(index)));
        changes[index] = least.max().unwrap_or(0);
    }
    let mut starts = BTreeMap::new();
    for node in 0..model.node_count() {
        let start = schedule.start[task_of[node]];
        let first = starts.entry((changes[node], device(node))).or_insert(start);
        *first = start.min(*first);
    }
    let mut keys: Vec<(Time, (usize, usize))> = starts
        .into_iter()
        .map(|(key, start)| (start, key))
        .collect();
    keys.sort_unstable();
    let number = |node: usize| {
        let key = (changes[node], device(node));
        keys.iter().position(|(_, other)| *other == key)
    };
    Division {
        assignment: (0..model.node_count())
            .map(|node| number(node).unwrap_or(0))
            .collect(),
        offers: keys.iter().map(|(_, (_, device))| pick[*device]).collect(),
    }
}

/// A part that can still grow.
#[derive(Clone, Copy)]
struct OpenPart {
    device: usize,
    start: Time,
    end: Time,
    /// The time when another device needs a result of it.
    wanted: Time,
    open: bool,
}

/// Gathers a schedule into parts: tasks that follow each other on a device, as long as no other
/// device has to wait. A part hands over its results at its end, so it must end before another
/// device needs them, and it takes no task that would delay its start. So parts depend on earlier
/// parts only.
fn by_time(
    model: &Model<'_>,
    tasks: &GraphTasks,
    problem: &Problem,
    schedule: &Schedule,
    pick: &[usize],
) -> Division {
    let needs = task_needs(model, tasks);
    let wanted = departure_times(tasks, problem, schedule, &needs);
    // The buyer's tasks, which send inputs and receive outputs, belong to no part.
    let own = |task: &usize| !tasks.members[*task].is_empty();
    let mut order: Vec<usize> = (0..problem.task_count()).filter(own).collect();
    // Among tasks that start together, the first of the graph comes first.
    order.sort_by_key(|&task| (schedule.start[task], tasks.members[task][0]));
    let mut parts: Vec<OpenPart> = Vec::new();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut of_task = vec![0; problem.task_count()];
    for task in order {
        let (device, start) = (schedule.device[task], schedule.start[task]);
        let mut arrived = 0;
        for &(before, bytes) in &needs[task] {
            let from = of_task[before];
            if parts[from].device != device {
                parts[from].open = false;
                let transfer = problem.transfer_time(parts[from].device, device, bytes);
                arrived = arrived.max(parts[from].end.saturating_add(transfer));
            }
        }
        let joined = last.get(&device).copied();
        let end = schedule.finish_time(problem, task);
        let joined = joined.filter(|&part| {
            let part = &parts[part];
            part.open && arrived <= part.start && end <= part.wanted
        });
        let part = joined.unwrap_or_else(|| {
            parts.push(OpenPart {
                device,
                start,
                end: start,
                wanted: NEVER,
                open: true,
            });
            parts.len() - 1
        });
        parts[part].end = parts[part].end.max(end);
        parts[part].wanted = parts[part].wanted.min(wanted[task]);
        last.insert(device, part);
        of_task[task] = part;
    }
    let mut assignment = vec![0; model.node_count()];
    for (members, part) in tasks.members.iter().zip(of_task) {
        members.iter().for_each(|node| assignment[node.0] = part);
    }
    Division {
        assignment,
        offers: parts.iter().map(|part| pick[part.device]).collect(),
    }
}

/// Returns the time when each task's results must leave, so that other devices can start as
/// planned. They can wait the time of a handover longer, because another part costs as much. The
/// job's outputs are needed at the end only.
fn departure_times(
    tasks: &GraphTasks,
    problem: &Problem,
    schedule: &Schedule,
    needs: &[Vec<(usize, u64)>],
) -> Vec<Time> {
    let mut wanted = vec![NEVER; problem.task_count()];
    for (task, needs) in needs.iter().enumerate() {
        let to = schedule.device[task];
        for &(before, bytes) in needs {
            let from = schedule.device[before];
            let way = problem.transfer_time(from, to, bytes) - problem.transfer_time(from, to, 0);
            if from != to {
                wanted[before] = wanted[before].min(schedule.start[task].saturating_sub(way));
            }
        }
    }
    let is_buyers = |task: &usize| tasks.members[*task].is_empty();
    for buyers in (0..problem.task_count()).filter(is_buyers) {
        for (before, bytes) in problem.inputs_of(buyers) {
            let way =
                problem.transfer_time(schedule.device[before], schedule.device[buyers], bytes);
            wanted[before] = wanted[before].min(schedule.makespan.saturating_sub(way));
        }
    }
    wanted
}

/// Returns the tasks whose results each task reads. Values from constants alone do not count,
/// because each part computes its own.
fn task_needs(model: &Model<'_>, tasks: &GraphTasks) -> Vec<Vec<(usize, u64)>> {
    let graph = model.graph;
    let mut task_of = vec![0; model.node_count()];
    for (task, members) in tasks.members.iter().enumerate() {
        members.iter().for_each(|node| task_of[node.0] = task);
    }
    let mut needs = vec![Vec::new(); tasks.members.len()];
    let fixed = graph.constant_only_nodes();
    for (index, node) in graph.nodes().iter().enumerate() {
        for value in node.input_values().map(|id| graph.value(id)) {
            let producer = value.producer().filter(|node| !fixed[node.0]);
            let Some(from) = producer.map(|node| task_of[node.0]) else {
                continue;
            };
            if from != task_of[index] {
                needs[task_of[index]].push((from, value.fact.byte_length().unwrap_or(0)));
            }
        }
    }
    needs
}
