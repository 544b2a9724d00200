//! Improves divisions part by part: joins parts, moves parts to another device, and moves single
//! nodes from one part to its neighbour. It is the last step of the search for a plan.

use std::collections::{BTreeSet, BinaryHeap};

use super::PlanOptions;
use super::partition::{Division, Model};
use super::score::{DivisionGrade, grade_division};

/// A change of a division.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Joins two parts of one device.
    Join(usize, usize),
    /// Moves a part to another offer.
    Offer(usize, usize),
    /// Moves a node to another part.
    Node(usize, usize),
}

/// Makes the first improvement that it finds, until a round finds none or the steps are used up.
pub(super) fn improve_division(
    model: &Model<'_>,
    options: &PlanOptions,
    start: Division,
    steps: usize,
) -> (Division, DivisionGrade) {
    let mut best_grade = grade_division(model, options, &start);
    let mut best = start;
    let mut left = steps;
    loop {
        let before = left;
        let mut moved = false;
        for change in possible_moves(model, &best) {
            if left == 0 {
                return (best, best_grade);
            }
            let Some(next) = apply_change(model, &best, change) else {
                continue;
            };
            left -= 1;
            let grade = grade_division(model, options, &next);
            if grade.is_better_than(&best_grade) {
                (best, best_grade) = (next, grade);
                moved = true;
                break;
            }
        }
        if !moved || left == before {
            return (best, best_grade);
        }
    }
}

fn possible_moves(model: &Model<'_>, division: &Division) -> Vec<Move> {
    let parts = division.offers.len();
    let mut moves = Vec::new();
    for first in 0..parts {
        let same = |second: &usize| division.offers[*second] == division.offers[first];
        moves.extend(
            (first + 1..parts)
                .filter(same)
                .map(|second| Move::Join(first, second)),
        );
    }
    for part in 0..parts {
        let others = (0..model.offers.len()).filter(|&offer| offer != division.offers[part]);
        moves.extend(others.map(|offer| Move::Offer(part, offer)));
    }
    let mut seen = BTreeSet::new();
    for movable in model.movable_values() {
        let Some(made) = movable.made else { continue };
        let from = division.assignment[made];
        for &reader in &movable.readers {
            let to = division.assignment[reader];
            if to != from {
                seen.extend([(made, to), (reader, from)]);
            }
        }
    }
    moves.extend(seen.into_iter().map(|(node, part)| Move::Node(node, part)));
    moves
}

/// Returns the division after a change, if its parts can still run one after the other.
fn apply_change(model: &Model<'_>, division: &Division, change: Move) -> Option<Division> {
    let mut next = division.clone();
    match change {
        Move::Join(first, second) => {
            let members = next.assignment.iter_mut().filter(|part| **part == second);
            members.for_each(|part| *part = first);
        }
        Move::Offer(part, offer) => next.offers[part] = offer,
        Move::Node(node, part) => next.assignment[node] = part,
    }
    renumber_parts(model, next)
}

/// Returns the division with its parts numbered in running order, as close to the present order as
/// possible and without empty parts. Returns `None` if parts wait for each other in a circle, or a
/// value between parts cannot be sent.
pub(super) fn renumber_parts(model: &Model<'_>, division: Division) -> Option<Division> {
    let parts = division.offers.len();
    let mut after = vec![BTreeSet::new(); parts];
    for movable in model.movable_values() {
        let Some(made) = movable.made else { continue };
        let from = division.assignment[made];
        for to in division
            .parts_holding(&movable.readers)
            .into_iter()
            .filter(|&to| to != from)
        {
            if !movable.portable {
                return None;
            }
            after[from].insert(to);
        }
    }
    let mut waiting = vec![0usize; parts];
    after.iter().flatten().for_each(|&to| waiting[to] += 1);
    let mut used = vec![false; parts];
    division
        .assignment
        .iter()
        .for_each(|&part| used[part] = true);
    let free = (0..parts).filter(|&part| waiting[part] == 0);
    let mut ready: BinaryHeap<std::cmp::Reverse<usize>> = free.map(std::cmp::Reverse).collect();
    let mut number = vec![usize::MAX; parts];
    let (mut offers, mut seen) = (Vec::with_capacity(parts), 0);
    while let Some(std::cmp::Reverse(part)) = ready.pop() {
        seen += 1;
        if used[part] {
            number[part] = offers.len();
            offers.push(division.offers[part]);
        }
        for &to in &after[part] {
            waiting[to] -= 1;
            if waiting[to] == 0 {
                ready.push(std::cmp::Reverse(to));
            }
        }
    }
    let assignment = division.assignment.iter();
    let assignment = assignment.map(|&part| number[part]).collect();
    (seen == parts).then_some(Division { assignment, offers })
}
