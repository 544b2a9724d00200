//! Improves a placement by annealing: moves groups of nodes between the devices of a pipeline to
//! reduce the largest load. The partitioner uses it after its first division.

use super::{Loads, PartitionProblem};
use souk_scheduler::planning::planner::{Pace, Random};

/// Temperatures as parts of the largest load.
const HOTTEST: f64 = 0.02;
const COLDEST: f64 = 0.0001;

/// Proposals between two checks of the effort.
const PROPOSALS_BETWEEN: u64 = 64;
/// Number of cooling cycles.
const CYCLES: f64 = 6.0;
/// Each cycle begins at this part of the previous cycle's temperature.
const CYCLE_SHARE: f64 = 0.6;

/// Seed of the random numbers; any number will do.
const SEED: u64 = 1;

/// Parts of the moves: along an edge between devices, and exchanges of two groups.
const EDGE_SHARE: f64 = 0.6;
const SWAP_SHARE: f64 = 0.25;

/// Part of the moves that include neighbours, and maximum number of groups in such a move.
const CLUSTER_SHARE: f64 = 0.4;
const CLUSTER_MAX: usize = 24;

/// Returns the best placement that the search finds from `first`. Its largest load will not exceed
/// that of `first`.
pub(super) fn improve_placement(
    problem: &PartitionProblem,
    first: Vec<usize>,
    pace: &mut Pace<'_>,
) -> Vec<usize> {
    let mut best = first.clone();
    let mut loads = Loads::new(problem, first);
    if problem.device_count() < 2 || loads.groups.is_empty() {
        return best;
    }
    let mut least = loads.max_load();
    let mut random = Random::new(SEED);
    let mut energy = loads.energy();
    let (mut moves, mut back) = (Vec::new(), Vec::new());
    let (mut temperature, mut cycle) = (0.0, 0.0);
    let mut steps = 0;
    for proposal in 0u64.. {
        if proposal.is_multiple_of(PROPOSALS_BETWEEN) {
            let used = pace(steps);
            if used >= 1.0 {
                break;
            }
            let share = used * CYCLES;
            if share.floor() > cycle {
                cycle = share.floor();
                loads = Loads::new(problem, best.clone());
                energy = loads.energy();
            }
            let hottest = HOTTEST * CYCLE_SHARE.powf(cycle);
            temperature = least * hottest * (COLDEST / hottest).powf(share.fract());
        }
        propose_moves(problem, &loads, &mut random, &mut moves);
        let moved = moves.iter().map(|&(group, _)| loads.groups[group].len());
        steps += 1 + moved.sum::<usize>() as u64;
        if !moves
            .iter()
            .all(|&(group, device)| loads.can_run(group, device))
        {
            continue;
        }
        back.clear();
        for &(group, device) in &moves {
            back.push((group, loads.device[loads.groups[group][0]]));
            loads.move_group(group, device);
        }
        let now = loads.energy();
        // Checks all moves together: two that fit alone may not fit together, and an exchange can
        // fit although neither does alone.
        if loads.has_room() && now <= energy + temperature * random.next_exponential() {
            energy = now;
            if loads.max_load() < least - f64::EPSILON * least {
                least = loads.max_load();
                best.clone_from(&loads.device);
            }
        } else {
            back.iter()
                .for_each(|&(group, device)| loads.move_group(group, device));
        }
    }
    best
}

/// Fills `moves` with groups and their new devices.
fn propose_moves(
    problem: &PartitionProblem,
    loads: &Loads<'_>,
    random: &mut Random,
    moves: &mut Vec<(usize, usize)>,
) {
    moves.clear();
    let device_of = |group: usize| loads.device[loads.groups[group][0]];
    let mut group = random.next_below(loads.groups.len());
    let mut device = random.next_below(problem.device_count());
    let kind = random.next_unit();
    if kind < EDGE_SHARE && !problem.edges.is_empty() {
        let (from, to) = problem.edges[random.next_below(problem.edges.len())];
        let (node, other) = if random.next_unit() < 0.5 {
            (from, to)
        } else {
            (to, from)
        };
        group = loads.group[node];
        device = loads.device[other];
    }
    if device == device_of(group) {
        return;
    }
    moves.push((group, device));
    if random.next_unit() < CLUSTER_SHARE {
        add_neighbours(loads, random, moves);
    } else if kind > 1.0 - SWAP_SHARE {
        let other = random.next_below(loads.groups.len());
        if device_of(other) == device {
            moves.push((other, device_of(group)));
        }
    }
}

/// Adds neighbours on the same device, because with expensive transfers no group gains by moving
/// alone.
fn add_neighbours(loads: &Loads<'_>, random: &mut Random, moves: &mut Vec<(usize, usize)>) {
    let device_of = |group: usize| loads.device[loads.groups[group][0]];
    let (first, device) = moves[0];
    let home = device_of(first);
    let mut size = 2;
    while size < CLUSTER_MAX && random.next_unit() < 0.75 {
        size += 1;
    }
    let mut next = 0;
    while next < moves.len() && moves.len() < size {
        let group = moves[next].0;
        next += 1;
        for &other in &loads.neighbours[group] {
            let known = moves.iter().any(|&(known, _)| known == other);
            if moves.len() < size && !known && device_of(other) == home && random.next_unit() < 0.8
            {
                moves.push((other, device));
            }
        }
    }
}
