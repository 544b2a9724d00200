//! Divisions made by the planners: the graph's tasks planned over the devices and the buyer, then
//! gathered into parts.

use std::collections::BTreeMap;

use super::PlanOptions;
use super::division::{Division, Model};
use super::refine::tidy;
use crate::planning::objective::Objective;
use crate::planning::offer::Links;
use crate::planning::planner::{planner, steps};
use crate::planning::problem::Problem;
use crate::planning::schedule::Schedule;
use crate::planning::tasks::{GraphTasks, Layout};
use crate::planning::time::{NEVER, Time, time_of};

/// Steps of the planner for each step of the options: the planner's are so much cheaper.
const PLANNER_STEPS: usize = 4;

/// How many times dearer than they are links are made out to be, in turn: a part hands its results
/// over only when all of it is done, so plans that change devices less often may be better.
const LINK_FACTORS: [u64; 3] = [1, 8, 64];

/// Most parts a plan is gathered into; one that is more scattered is not worth its messages.
const PARTS_MAX: usize = 64;

/// Divisions worth improving; none where the planners find none.
pub(super) fn candidates(model: &Model<'_>, options: &PlanOptions) -> Vec<Division> {
    let picks = picks(model, options.max_devices);
    let tries = picks
        .iter()
        .flat_map(|pick| LINK_FACTORS.map(|factor| (pick, factor)));
    let mut found: Vec<Division> = Vec::new();
    for (pick, factor) in tries {
        for division in planned(model, options, pick, factor) {
            if !found.contains(&division) {
                found.push(division);
            }
        }
    }
    found
}

/// Sets of offers no larger than allowed: the fastest, and the cheapest if they are others.
fn picks(model: &Model<'_>, most: usize) -> Vec<Vec<usize>> {
    let pick = |mut rank: Vec<usize>| {
        rank.truncate(most);
        rank.sort_unstable();
        rank
    };
    let mut picks = vec![pick(super::stretches::speed_rank(model))];
    let cheapest = pick(super::stretches::cost_rank(model));
    if !picks.contains(&cheapest) {
        picks.push(cheapest);
    }
    picks
}

/// What the planner makes of the tasks on these offers, gathered either way.
fn planned(model: &Model<'_>, options: &PlanOptions, pick: &[usize], factor: u64) -> Vec<Division> {
    let Some((tasks, problem, schedule)) = scheduled(model, options, pick, factor) else {
        return Vec::new();
    };
    let gathered = [
        by_changes(model, &tasks, &schedule, pick),
        by_time(model, (&tasks, &problem), &schedule, pick),
    ];
    let few = gathered
        .into_iter()
        .filter(|division| division.offers.len() <= PARTS_MAX);
    few.filter_map(|division| tidy(model, division)).collect()
}

/// The graph's tasks on these offers, the problem they are there, and its schedule.
fn scheduled(
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
        // The buyer takes part where anything takes time to come from it.
        buyer: links.buyer.iter().any(|link| link.seconds(1) > 0.0),
    };
    let tasks = layout.tasks().ok()?;
    let problem = with_objective(model, options, pick, &tasks.problem, factor)?;
    let auto = planner("auto")?;
    let limit = (options.steps * PLANNER_STEPS) as u64;
    // Late is better than nothing: the division is graded, and improved, like any other.
    let schedule = auto(&problem, &mut steps(limit))
        .or_else(|_| auto(&tasks.problem, &mut steps(limit)))
        .ok()?;
    Some((tasks, problem, schedule))
}

/// The problem with prices, power and the objective, and links so many times dearer.
fn with_objective(
    model: &Model<'_>,
    options: &PlanOptions,
    pick: &[usize],
    problem: &Problem,
    factor: u64,
) -> Option<Problem> {
    /// Prices and powers are shares of the highest one, this being all of it.
    const WHOLE: f64 = 1e6;
    let shares = |rate: &dyn Fn(usize) -> f64| -> (Vec<u64>, f64) {
        let rates = pick.iter().map(|&offer| rate(offer));
        let highest = rates.clone().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let shares = rates.map(|rate| (rate / highest * WHOLE) as u64);
        // The buyer's own device costs and draws nothing.
        let devices = problem.devices();
        (shares.chain([0]).take(devices).collect(), highest)
    };
    let (price, highest) = shares(&|offer| model.offers[offer].cost_per_second);
    let (power, _) = shares(&|offer| model.watts()[offer]);
    let mut parts = problem.parts().clone();
    for time in parts.latency.iter_mut().chain(&mut parts.time_per_byte) {
        *time = time.saturating_mul(factor);
    }
    parts.objective = match options.objective {
        // A price is in shares, and time in the problem's own unit.
        Objective::Weighted { time, cost } => weighted(time, cost * highest / WHOLE),
        named => named,
    };
    let deadline = options.deadline_seconds.map(time_of);
    parts.deadline = deadline.filter(|_| options.objective != Objective::Fastest);
    (parts.price, parts.power) = (price, power);
    Problem::new(parts).ok()
}

/// Weights of which the larger is so large that whole numbers tell sums apart.
fn weighted(time: f64, cost: f64) -> Objective {
    const LARGEST: f64 = 1e12;
    let largest = time.max(cost).max(f64::MIN_POSITIVE);
    let weight = |weight: f64| (weight / largest * LARGEST).trunc();
    Objective::Weighted {
        time: weight(time),
        cost: weight(cost),
    }
}

/// Parts of a schedule: on each device, the nodes that data reach after equally many changes of
/// device. Data flow only to parts of more changes, so parts never wait in a circle.
fn by_changes(
    model: &Model<'_>,
    tasks: &GraphTasks,
    schedule: &Schedule,
    pick: &[usize],
) -> Division {
    let mut task_of = vec![0; model.nodes()];
    for (task, members) in tasks.members.iter().enumerate() {
        members.iter().for_each(|node| task_of[node.0] = task);
    }
    let device = |node: usize| schedule.device[task_of[node]];
    let mut changes = vec![0usize; model.nodes()];
    for (index, node) in model.graph.nodes().iter().enumerate() {
        let sources = node
            .reads()
            .filter_map(|id| model.graph.value(id).producer());
        let least = sources
            .map(|source| changes[source.0] + usize::from(device(source.0) != device(index)));
        changes[index] = least.max().unwrap_or(0);
    }
    let mut starts = BTreeMap::new();
    for node in 0..model.nodes() {
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
        part: (0..model.nodes())
            .map(|node| number(node).unwrap_or(0))
            .collect(),
        offers: keys.iter().map(|(_, (_, device))| pick[*device]).collect(),
    }
}

/// A part while tasks are added to it.
#[derive(Clone, Copy)]
struct OpenPart {
    device: usize,
    start: Time,
    end: Time,
    /// When another device wants something of it.
    wanted: Time,
    open: bool,
}

/// Parts of a schedule: tasks that follow each other on a device, as long as nothing is held up by
/// it. A part ends before another device wants something of it, since it hands over when it is
/// whole, and takes no task that would have it begin later. So parts need each other only forward.
fn by_time(
    model: &Model<'_>,
    (tasks, problem): (&GraphTasks, &Problem),
    schedule: &Schedule,
    pick: &[usize],
) -> Division {
    let needs = needs(model, tasks);
    let wanted = wanted(tasks, problem, schedule, &needs);
    // What is the buyer's to send and take is no part.
    let own = |task: &usize| !tasks.members[*task].is_empty();
    let mut order: Vec<usize> = (0..problem.tasks()).filter(own).collect();
    // Of those that begin together the first of the graph is first.
    order.sort_by_key(|&task| (schedule.start[task], tasks.members[task][0]));
    let mut parts: Vec<OpenPart> = Vec::new();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut of_task = vec![0; problem.tasks()];
    for task in order {
        let (device, start) = (schedule.device[task], schedule.start[task]);
        let mut arrived = 0;
        for &(before, bytes) in &needs[task] {
            let from = of_task[before];
            if parts[from].device != device {
                parts[from].open = false;
                let transfer = problem.transfer(parts[from].device, device, bytes);
                arrived = arrived.max(parts[from].end.saturating_add(transfer));
            }
        }
        let joined = last.get(&device).copied();
        let end = schedule.finish(problem, task);
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
    let mut part = vec![0; model.nodes()];
    for (members, own) in tasks.members.iter().zip(of_task) {
        members.iter().for_each(|node| part[node.0] = own);
    }
    Division {
        part,
        offers: parts.iter().map(|part| pick[part.device]).collect(),
    }
}

/// When what each task makes has to leave, for other devices to begin as planned. What handing over
/// takes they may wait longer: another part costs as much. Nobody waits for the job's outputs but
/// at the end.
fn wanted(
    tasks: &GraphTasks,
    problem: &Problem,
    schedule: &Schedule,
    needs: &[Vec<(usize, u64)>],
) -> Vec<Time> {
    let mut wanted = vec![NEVER; problem.tasks()];
    for (task, needs) in needs.iter().enumerate() {
        let to = schedule.device[task];
        for &(before, bytes) in needs {
            let from = schedule.device[before];
            let way = problem.transfer(from, to, bytes) - problem.transfer(from, to, 0);
            if from != to {
                wanted[before] = wanted[before].min(schedule.start[task].saturating_sub(way));
            }
        }
    }
    let is_buyers = |task: &usize| tasks.members[*task].is_empty();
    for buyers in (0..problem.tasks()).filter(is_buyers) {
        for (before, bytes) in problem.before(buyers) {
            let way = problem.transfer(schedule.device[before], schedule.device[buyers], bytes);
            wanted[before] = wanted[before].min(schedule.makespan.saturating_sub(way));
        }
    }
    wanted
}

/// What each task reads of others, but for what is made of constants: each part makes its own.
fn needs(model: &Model<'_>, tasks: &GraphTasks) -> Vec<Vec<(usize, u64)>> {
    let graph = model.graph;
    let mut task_of = vec![0; model.nodes()];
    for (task, members) in tasks.members.iter().enumerate() {
        members.iter().for_each(|node| task_of[node.0] = task);
    }
    let mut needs = vec![Vec::new(); tasks.members.len()];
    let fixed = graph.fixed();
    for (index, node) in graph.nodes().iter().enumerate() {
        for value in node.reads().map(|id| graph.value(id)) {
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
