//! Searches for the best division of a graph into parts: compares stretches of the graph's order
//! and the planners' schedules of its tasks by one grade, and improves the best of them.

use super::partition::{Division, Model, Timing};
use super::score::{DivisionGrade, REAL_WORK_SHARE, grade_division};
use super::{PlanError, PlanOptions, SingleDevicePlan, candidates, contiguous_parts, refine};
use crate::planning::objective::Objective;

/// Returns the best single device by an objective, without regard to limits.
pub(super) fn best_single(model: &Model<'_>, objective: Objective) -> Option<SingleDevicePlan> {
    let singles =
        (0..model.offers.len()).map(|offer| Division::for_single_offer(model.node_count(), offer));
    let timed = singles.filter_map(|division| {
        let works = model.part_works(&division);
        let offer = division.offers[0];
        let fits = works.iter().all(|work| model.can_run_part(work, offer));
        fits.then(|| (offer, model.simulate_division(&division, &works)))
    });
    let score = |timing: &Timing| timing.score(objective);
    let best = timed.min_by(|(_, a), (_, b)| {
        let (a, b) = (score(a), score(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    best.map(|(offer, timing)| SingleDevicePlan {
        offer,
        makespan_seconds: timing.makespan,
        cost: timing.cost,
    })
}

/// Returns the best division by the model's options, or the reason why there is none.
pub(super) fn best_division(model: &Model<'_>) -> Result<Division, PlanError> {
    let options = model.options;
    let (found, grade) = search_divisions(model, options);
    if grade.broken > 0 {
        return Err(why_broken(model, options));
    }
    if grade.beyond <= 0.0 {
        return Ok(require_gain(model, found, grade));
    }
    let cheap = PlanOptions {
        objective: Objective::Cheapest,
        budget: None,
        deadline_seconds: None,
        ..options.clone()
    };
    let (cheapest, _) = search_divisions(model, &cheap);
    let cheapest_cost = model
        .simulate_division(&cheapest, &model.part_works(&cheapest))
        .cost;
    if let Some(budget) = options.budget.filter(|budget| cheapest_cost > *budget) {
        let cheapest = cheapest_cost;
        return Err(PlanError::Budget { budget, cheapest });
    }
    let fast = PlanOptions {
        objective: Objective::Fastest,
        deadline_seconds: None,
        ..options.clone()
    };
    let (fastest, _) = search_divisions(model, &fast);
    let fastest_seconds = model
        .simulate_division(&fastest, &model.part_works(&fastest))
        .makespan;
    match options.deadline_seconds {
        Some(deadline_seconds) if fastest_seconds > deadline_seconds => Err(PlanError::Deadline {
            deadline_seconds,
            fastest_seconds,
        }),
        // The first search missed a plan that the second found.
        Some(_) => Ok(fastest),
        None => Ok(cheapest),
    }
}

/// Returns `found`, unless it uses several devices and saves too little against a single one; then
/// returns the single one.
fn require_gain(model: &Model<'_>, found: Division, grade: DivisionGrade) -> Division {
    if model.options.gain_min <= 0.0 || found.offers.len() < 2 {
        return found;
    }
    let singles =
        (0..model.offers.len()).map(|offer| Division::for_single_offer(model.node_count(), offer));
    let graded = singles.map(|division| {
        let grade = grade_division(model, model.options, &division);
        (division, grade)
    });
    let best = graded.reduce(|best, next| {
        if next.1.is_better_than(&best.1) {
            next
        } else {
            best
        }
    });
    let enough = |single: &DivisionGrade| {
        let fits = single.broken == 0 && single.beyond <= 0.0;
        !fits || grade.score.0 < single.score.0 * (1.0 - model.options.gain_min)
    };
    match best {
        Some((single, of_single)) if !enough(&of_single) => single,
        _ => found,
    }
}

fn why_broken(model: &Model<'_>, options: &PlanOptions) -> PlanError {
    if let Some(unsupported) = unsupported_node_error(model) {
        return unsupported;
    }
    let possible = possible_parts(model, options.max_devices.min(model.offers.len()));
    if possible < options.min_devices {
        let min_devices = options.min_devices;
        return PlanError::NotDivisible {
            min_devices,
            possible,
        };
    }
    let needed = model.memory_bytes();
    let largest = model
        .offers
        .iter()
        .map(|offer| offer.memory_bytes)
        .max()
        .unwrap_or(0);
    if needed > largest {
        return PlanError::Memory { needed, largest };
    }
    let max_devices = options.max_devices;
    PlanError::TooFewDevices { max_devices }
}

/// Returns an error for the first node that no device can run, if there is one.
fn unsupported_node_error(model: &Model<'_>) -> Option<PlanError> {
    let mut nodes = model.graph.nodes().iter().enumerate();
    let runs = |index: usize| model.times().iter().any(|row| row[index].is_finite());
    let (_, node) = nodes.find(|(index, _)| !runs(*index))?;
    Some(PlanError::Unsupported {
        operator: node.operator_name(),
        node: node.name().to_owned(),
        offers: model.offers.len(),
    })
}

/// Returns the maximum number of parts, up to `most`, that can each have real work.
fn possible_parts(model: &Model<'_>, most: usize) -> usize {
    let places = model.cut_places();
    let holds = |parts: usize| {
        let floor = REAL_WORK_SHARE / parts as f64;
        let (mut begin, mut count) = (0, 0);
        for &end in places.iter().chain([&model.node_count()]) {
            if model.work_share(begin, end) >= floor {
                count += 1;
                begin = end;
            }
        }
        count >= parts
    };
    (1..=most).rev().find(|&parts| holds(parts)).unwrap_or(1)
}

/// Maximum number of nodes that all candidates together examine, so that large graphs take no
/// longer than small ones: about 10 ms of one core.
const LOOKS_MAX: usize = 400_000;

/// Number of divisions that the search improves: the best of its first ones.
const STARTS_MAX: usize = 7;

/// Returns the best of all divisions after improving each kind, with half of the steps for either.
fn search_divisions(model: &Model<'_>, options: &PlanOptions) -> (Division, DivisionGrade) {
    let steps = options.steps.min(LOOKS_MAX / model.node_count().max(1)) / 2;
    let stretches = contiguous_parts::search_stretches(model, options, steps);
    let mut starts = vec![stretches];
    if model.offers.len() > 1 && options.max_devices > 1 {
        starts.extend(candidates::division_candidates(model, options));
    }
    let mut graded: Vec<(DivisionGrade, Division)> = starts
        .into_iter()
        .map(|start| (grade_division(model, options, &start), start))
        .collect();
    graded.sort_by(|(one, _), (other, _)| one.compare_to(other));
    graded.truncate(STARTS_MAX);
    let each = steps / graded.len();
    let improved = graded
        .into_iter()
        .map(|(_, start)| refine::improve_division(model, options, start, each));
    let best = improved.reduce(|best, next| {
        if next.1.is_better_than(&best.1) {
            next
        } else {
            best
        }
    });
    best.expect("there is a division into stretches")
}
