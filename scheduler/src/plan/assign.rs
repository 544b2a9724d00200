//! Divisions made by the planners: the graph's tasks planned over the devices and the buyer, then
//! gathered into parts.

use super::evaluate::{Division, Model};
use super::refine::tidy;
use super::search::Goal;
use super::{Links, Objective};
use crate::goal;
use crate::planner::{planner, steps};
use crate::problem::{Problem, Time};
use crate::schedule::Schedule;
use crate::tasks::{GraphTasks, Layout, time_of};

/// Steps of the planner for each step of the options: the planner's are so much cheaper.
const PLANNER_STEPS: usize = 4;

/// How many times dearer than they are links are made out to be, in turn: a part hands its results
/// over only when all of it is done, so plans that change devices less often may be better.
const LINK_FACTORS: [u64; 3] = [1, 8, 64];

/// Most parts a plan is gathered into; one that is more scattered is not worth its messages.
const PARTS_MAX: usize = 64;

/// Divisions worth improving; none where the planners find none.
pub(super) fn candidates(model: &Model<'_>, goal: &Goal<'_>) -> Vec<Division> {
    let picks = picks(model, goal.options.max_devices);
    let tries = picks
        .iter()
        .flat_map(|pick| LINK_FACTORS.map(|factor| (pick, factor)));
    let mut found: Vec<Division> = Vec::new();
    for (pick, factor) in tries {
        let planned = candidate(model, goal, pick, factor);
        found.extend(planned.filter(|division| !found.contains(division)));
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

fn candidate(model: &Model<'_>, goal: &Goal<'_>, pick: &[usize], factor: u64) -> Option<Division> {
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
        nodes: None,
        seconds: pick
            .iter()
            .map(|&offer| model.times()[offer].as_slice())
            .collect(),
        memory: pick
            .iter()
            .map(|&offer| model.offers[offer].memory_bytes)
            .collect(),
        links: &links,
        buyer: true,
    };
    let tasks = layout.tasks().ok()?;
    let problem = with_goal(model, goal, pick, &tasks.problem, factor)?;
    let auto = planner("auto")?;
    let limit = (goal.options.steps * PLANNER_STEPS) as u64;
    // Late is better than nothing: the division is graded, and improved, like any other.
    let schedule = auto(&problem, &mut steps(limit))
        .or_else(|_| auto(&tasks.problem, &mut steps(limit)))
        .ok()?;
    let division = gather(model, &tasks, &schedule, pick);
    (division.offers.len() <= PARTS_MAX).then(|| tidy(model, division))?
}

/// The problem with prices and the goal that the buyer's objective is, and links so many times
/// dearer.
fn with_goal(
    model: &Model<'_>,
    goal: &Goal<'_>,
    pick: &[usize],
    problem: &Problem,
    factor: u64,
) -> Option<Problem> {
    /// Prices are shares of the highest one, this being all of it; the same for weights.
    const WHOLE: f64 = 1e6;
    let costs = pick
        .iter()
        .map(|&offer| model.offers[offer].cost_per_second);
    let highest = costs.clone().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut parts = problem.parts().clone();
    parts.price = costs.map(|cost| (cost / highest * WHOLE) as u64).collect();
    for time in parts.latency.iter_mut().chain(&mut parts.time_per_byte) {
        *time = time.saturating_mul(factor);
    }
    // The buyer's own device costs nothing.
    parts.price.push(0);
    let deadline = goal.deadline.map_or(Time::MAX, time_of);
    parts.goal = match goal.objective {
        Objective::Makespan => goal::Goal::Makespan,
        Objective::Cost => goal::Goal::Price { deadline },
        Objective::Weighted { seconds, cost } => {
            let money = cost * highest / WHOLE;
            let largest = seconds.max(money).max(f64::MIN_POSITIVE);
            let weight = |weight: f64| (weight / largest * WHOLE * WHOLE) as u64;
            goal::Goal::Weighted {
                time: weight(seconds),
                price: weight(money),
                energy: 0,
            }
        }
    };
    Problem::new(parts).ok()
}

/// Parts of a schedule: on each device, the nodes that data reach after equally many changes of
/// device. Data flow only to parts of more changes, so parts never wait in a circle.
fn gather(model: &Model<'_>, tasks: &GraphTasks, schedule: &Schedule, pick: &[usize]) -> Division {
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
    let mut starts = std::collections::BTreeMap::new();
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
