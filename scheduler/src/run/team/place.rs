//! Where each node of a subgraph runs, and which neighbours run as one piece.
//!
//! The nodes are planned one by one, so that branches can run side by side. Tasks that follow each
//! other on a device become one piece as long as nothing is held up by it: a piece ends before
//! another device wants something of it, since it hands over when it is whole, and takes no task
//! that would have it begin later. So pieces need each other only forward.

use std::collections::BTreeMap;

use crate::graph::Graph;
use crate::plan::{Links, Offer};
use crate::planner::{planner, steps};
use crate::problem::{NEVER, Problem, ProblemError, Time};
use crate::schedule::Schedule;
use crate::tasks::{GraphTasks, Layout};

/// Effort of planning a subgraph, in a planner's steps: a few milliseconds, once for each model
/// and shapes.
const STEPS: u64 = 2_000;
/// Several devices must win at least this part of the best single one's time: less is lost to
/// what no plan counts.
pub(super) const GAIN_MIN: f64 = 0.05;

/// Pieces of a subgraph.
pub(super) struct Placed {
    /// Device and planned start of each piece.
    pub pieces: Vec<(usize, Time)>,
    /// The piece of each node.
    pub of_node: Vec<usize>,
    /// When the plan expects the end.
    pub makespan: Time,
    /// The device that would end soonest alone, and when.
    pub single: Option<(usize, Time)>,
}

/// Whether a makespan is enough below that of the best single device.
pub(super) fn wins(makespan: Time, single: Time) -> bool {
    (makespan as f64) < single as f64 * (1.0 - GAIN_MIN)
}

impl Placed {
    /// Everything on one device.
    pub fn on(device: usize, time: Time, nodes: usize) -> Self {
        Self {
            pieces: vec![(device, 0)],
            of_node: vec![0; nodes],
            makespan: time,
            single: Some((device, time)),
        }
    }
}

#[derive(Clone, Copy)]
struct Piece {
    device: usize,
    start: Time,
    end: Time,
    /// When another device wants something of it.
    wanted: Time,
    open: bool,
}

/// Plans a graph over devices, on each of which its nodes take so many seconds.
pub(super) fn place(
    graph: &Graph,
    offers: &[Offer],
    seconds: &[Vec<f64>],
    links: &Links,
) -> Result<Placed, ProblemError> {
    let tasks = tasks(graph, offers, seconds, links)?;
    let held = graph.activation_bytes().into_iter().max().unwrap_or(0);
    let singles = singles(&tasks.problem, held, offers.len());
    let single = singles.into_iter().min_by_key(|(_, time)| *time);
    let plan = planner("auto").expect("the planner is among those there are");
    let schedule = plan(&tasks.problem, &mut steps(STEPS))?;
    match single {
        Some((device, time)) if !wins(schedule.makespan, time) => {
            Ok(Placed::on(device, time, graph.nodes().len()))
        }
        _ => Ok(Placed {
            single,
            ..gather(graph, &tasks, &schedule)
        }),
    }
}

/// The graph as tasks; a node whose operands a device has no room for does not run there.
pub(super) fn tasks(
    graph: &Graph,
    offers: &[Offer],
    seconds: &[Vec<f64>],
    links: &Links,
) -> Result<GraphTasks, ProblemError> {
    let row = |(offer, seconds): (&Offer, &Vec<f64>)| -> Vec<f64> {
        let nodes = graph.nodes().iter().zip(seconds);
        let each = nodes.map(
            |(node, &seconds)| match node.cost.bytes() <= offer.memory_bytes {
                true => seconds,
                false => f64::INFINITY,
            },
        );
        each.collect()
    };
    let rows: Vec<Vec<f64>> = offers.iter().zip(seconds).map(row).collect();
    let layout = Layout {
        graph,
        nodes: None,
        seconds: rows.iter().map(Vec::as_slice).collect(),
        memory: offers.iter().map(|offer| offer.memory_bytes).collect(),
        links,
        // The host takes part where tensors have a way to go from it and back.
        buyer: links.buyer.iter().any(|link| link.seconds(1) > 0.0),
    };
    layout.tasks()
}

/// The devices that can run everything, and in what time: with the weights it holds, at most, so
/// many bytes of other tensors.
pub(super) fn singles(problem: &Problem, held: u64, devices: usize) -> Vec<(usize, Time)> {
    let host = devices;
    let at_host = |task: usize| {
        devices < problem.devices() && problem.parts().pinned.get(task) == Some(&Some(host))
    };
    let time = |device: usize| {
        // What is the host's to do takes no time, and no device can do it.
        let own = (0..problem.tasks()).filter(|task| !at_host(*task));
        let mut each = own.map(|task| problem.exec(task, device));
        let sum = each.try_fold(0, |sum, time| (time != NEVER).then(|| sum + time))?;
        // What comes from the host comes once, whoever reads it; what goes there has one maker.
        let ways = (0..problem.tasks())
            .filter(|task| at_host(*task))
            .map(|task| {
                let sent = problem.after(task).map(|(_, bytes)| (host, device, bytes));
                let given = problem.before(task).map(|(_, bytes)| (device, host, bytes));
                let way = sent.chain(given).next();
                way.map_or(0, |(from, to, bytes)| problem.transfer(from, to, bytes))
            });
        let sum = ways.fold(sum, |sum, way| sum.saturating_add(way));
        let memory: u64 = (0..problem.tasks()).map(|task| problem.memory(task)).sum();
        (memory.saturating_add(held) <= problem.capacity(device)).then_some((device, sum))
    };
    (0..devices).filter_map(time).collect()
}

/// The tasks of a plan as pieces.
pub(super) fn gather(graph: &Graph, tasks: &GraphTasks, schedule: &Schedule) -> Placed {
    let problem = &tasks.problem;
    let needs = needs(graph, tasks);
    let wanted = wanted(tasks, schedule, &needs);
    // What is the host's to send and take is no piece.
    let own = |task: &usize| !tasks.members[*task].is_empty();
    let mut order: Vec<usize> = (0..problem.tasks()).filter(own).collect();
    // Of those that begin together the first of the graph is first.
    order.sort_by_key(|&task| (schedule.start[task], tasks.members[task][0]));
    let mut pieces: Vec<Piece> = Vec::new();
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut of_task = vec![0; problem.tasks()];
    for task in order {
        let (device, start) = (schedule.device[task], schedule.start[task]);
        let mut arrived = 0;
        for &(before, bytes) in &needs[task] {
            let from = of_task[before];
            if pieces[from].device != device {
                pieces[from].open = false;
                let transfer = problem.transfer(pieces[from].device, device, bytes);
                arrived = arrived.max(pieces[from].end.saturating_add(transfer));
            }
        }
        let joined = last.get(&device).copied();
        let end = schedule.finish(problem, task);
        let joined = joined.filter(|&piece| {
            let piece = &pieces[piece];
            piece.open && arrived <= piece.start && end <= piece.wanted
        });
        let piece = joined.unwrap_or_else(|| {
            pieces.push(Piece {
                device,
                start,
                end: start,
                wanted: NEVER,
                open: true,
            });
            pieces.len() - 1
        });
        pieces[piece].end = pieces[piece].end.max(end);
        pieces[piece].wanted = pieces[piece].wanted.min(wanted[task]);
        last.insert(device, piece);
        of_task[task] = piece;
    }
    let of_task = &of_task;
    let mut of_node = vec![0; graph.nodes().len()];
    for (task, members) in tasks.members.iter().enumerate() {
        members
            .iter()
            .for_each(|node| of_node[node.0] = of_task[task]);
    }
    Placed {
        pieces: pieces
            .iter()
            .map(|piece| (piece.device, piece.start))
            .collect(),
        of_node,
        makespan: schedule.makespan,
        single: None,
    }
}

/// When what each task makes has to leave, for other devices to begin as planned. What handing over
/// takes they may wait longer: another piece costs as much. Nobody waits for the job's outputs but
/// at the end.
fn wanted(tasks: &GraphTasks, schedule: &Schedule, needs: &[Vec<(usize, u64)>]) -> Vec<Time> {
    let problem = &tasks.problem;
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
    let at_host = |task: &usize| tasks.members[*task].is_empty();
    for host in (0..problem.tasks()).filter(at_host) {
        for (before, bytes) in problem.before(host) {
            let way = problem.transfer(schedule.device[before], schedule.device[host], bytes);
            wanted[before] = wanted[before].min(schedule.makespan.saturating_sub(way));
        }
    }
    wanted
}

/// What each task reads of others, constants that nodes compute included: those take no time in
/// the plan, but a piece that has one needs the piece that makes it.
fn needs(graph: &Graph, tasks: &GraphTasks) -> Vec<Vec<(usize, u64)>> {
    let mut task_of = vec![0; graph.nodes().len()];
    for (task, members) in tasks.members.iter().enumerate() {
        members.iter().for_each(|node| task_of[node.0] = task);
    }
    let mut needs = vec![Vec::new(); tasks.members.len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for value in node.reads().map(|id| graph.value(id)) {
            let Some(from) = value.producer().map(|node| task_of[node.0]) else {
                continue;
            };
            if from != task_of[index] {
                needs[task_of[index]].push((from, value.fact.byte_length().unwrap_or(0)));
            }
        }
    }
    needs
}
