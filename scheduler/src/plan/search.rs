//! The best division of the graph: stretches, and what the planners make of its tasks, compared by
//! one grade.

use super::evaluate::{Division, Model, Work};
use super::{Objective, PlanError, PlanOptions, Single, assign, refine, stretches};

/// A part must hold at least this share of an even division of the work to count as real work.
pub(super) const REAL_WORK_SHARE: f64 = 0.5;

/// How good a division is: smaller is better, the first difference decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grade {
    /// Parts that cannot run, devices short of memory, devices too few or too many, parts without
    /// real work.
    broken: usize,
    /// How far beyond budget and deadline, relative to them.
    beyond: f64,
    score: (f64, f64),
}

impl Grade {
    pub(super) fn betters(&self, other: &Self) -> bool {
        let order = self.broken.cmp(&other.broken);
        let order = order.then(self.beyond.total_cmp(&other.beyond));
        let order = order.then(self.score.0.total_cmp(&other.score.0));
        order.then(self.score.1.total_cmp(&other.score.1)).is_lt()
    }
}

/// What is searched for, under which limits.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    pub(super) options: &'a PlanOptions,
    pub(super) objective: Objective,
    pub(super) budget: Option<f64>,
    pub(super) deadline: Option<f64>,
}

/// The best single device by the options' objective, limits aside.
pub(super) fn best_single(model: &Model<'_>) -> Option<Single> {
    let singles = (0..model.offers.len()).map(|offer| Division::whole(model.nodes(), offer));
    let timed = singles.filter_map(|division| {
        let works = model.works(&division);
        let offer = division.offers[0];
        let timing = works
            .iter()
            .all(|work| model.fits(work, offer))
            .then(|| model.time(&division, &works))?;
        Some(Single {
            offer,
            makespan_seconds: timing.makespan,
            cost: timing.cost,
        })
    });
    let score = |single: &Single| {
        model
            .options
            .objective
            .score(single.makespan_seconds, single.cost)
    };
    timed.min_by(|a, b| {
        let (a, b) = (score(a), score(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
}

/// The best division by the options, or why there is none.
pub(super) fn best(model: &Model<'_>, options: &PlanOptions) -> Result<Division, PlanError> {
    let goal = Goal {
        options,
        objective: options.objective,
        budget: options.budget,
        deadline: options.deadline_seconds,
    };
    let (found, grade) = search(model, &goal);
    if grade.broken > 0 {
        return Err(why_broken(model, options));
    }
    if grade.beyond <= 0.0 {
        return Ok(found);
    }
    let cheap = Goal {
        objective: Objective::Cost,
        budget: None,
        deadline: None,
        ..goal
    };
    let (cheapest, _) = search(model, &cheap);
    let cheapest_cost = model.time(&cheapest, &model.works(&cheapest)).cost;
    if let Some(budget) = options.budget.filter(|budget| cheapest_cost > *budget) {
        let cheapest = cheapest_cost;
        return Err(PlanError::Budget { budget, cheapest });
    }
    let fast = Goal {
        objective: Objective::Makespan,
        deadline: None,
        ..goal
    };
    let (fastest, _) = search(model, &fast);
    let fastest_seconds = model.time(&fastest, &model.works(&fastest)).makespan;
    match options.deadline_seconds {
        Some(deadline_seconds) if fastest_seconds > deadline_seconds => Err(PlanError::Deadline {
            deadline_seconds,
            fastest_seconds,
        }),
        // The first search missed what the second found.
        Some(_) => Ok(fastest),
        None => Ok(cheapest),
    }
}

fn why_broken(model: &Model<'_>, options: &PlanOptions) -> PlanError {
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

/// Most parts, up to `most`, that can each hold real work.
fn possible_parts(model: &Model<'_>, most: usize) -> usize {
    let places = stretches::places(model);
    let holds = |parts: usize| {
        let floor = REAL_WORK_SHARE / parts as f64;
        let (mut begin, mut count) = (0, 0);
        for &end in places.iter().chain([&model.nodes()]) {
            if model.share(begin, end) >= floor {
                count += 1;
                begin = end;
            }
        }
        count >= parts
    };
    (1..=most).rev().find(|&parts| holds(parts)).unwrap_or(1)
}

/// Nodes looked at by all candidates together, so that large graphs take no longer than small ones:
/// about 10 ms of one core.
const LOOKS_MAX: usize = 400_000;

/// The best of all divisions, each kind improved; half of the steps for either.
fn search(model: &Model<'_>, goal: &Goal<'_>) -> (Division, Grade) {
    let steps = goal.options.steps.min(LOOKS_MAX / model.nodes().max(1)) / 2;
    let stretches = stretches::search(model, goal, steps);
    let mut starts = vec![stretches];
    if model.offers.len() > 1 && goal.options.max_devices > 1 {
        starts.extend(assign::candidates(model, goal));
    }
    let each = steps / starts.len();
    let improved = starts
        .into_iter()
        .map(|start| refine::improve(model, goal, start, each));
    let best = improved.reduce(|best, next| if next.1.betters(&best.1) { next } else { best });
    best.expect("there is a division into stretches")
}

pub(super) fn grade(model: &Model<'_>, goal: &Goal<'_>, division: &Division) -> Grade {
    let works = model.works(division);
    let timing = model.time(division, &works);
    let devices = division.devices();
    let parts = works.len();
    let idle = (goal.options.min_devices > 1).then(|| {
        let floor = REAL_WORK_SHARE / parts as f64;
        works.iter().filter(|work| work.share < floor).count()
    });
    let unable = works.iter().filter(|work| !work.seconds.is_finite());
    let lacking = goal.options.min_devices.saturating_sub(devices);
    let excess = devices.saturating_sub(goal.options.max_devices);
    let over = |value: f64, limit: Option<f64>| match limit {
        Some(limit) if value > limit => (value - limit) / limit.abs().max(f64::MIN_POSITIVE),
        _ => 0.0,
    };
    Grade {
        broken: unable.count()
            + short_of_memory(model, division, &works)
            + lacking
            + excess
            + idle.unwrap_or(0),
        beyond: over(timing.cost, goal.budget) + over(timing.makespan, goal.deadline),
        score: goal.objective.score(timing.makespan, timing.cost),
    }
}

/// Number of devices that cannot hold the weights of all their parts and the activations of one.
fn short_of_memory(model: &Model<'_>, division: &Division, works: &[Work]) -> usize {
    let mut held = vec![(0u64, 0u64); model.offers.len()];
    for (work, &offer) in works.iter().zip(&division.offers) {
        let (weights, peak) = &mut held[offer];
        *weights = weights.saturating_add(work.weight_bytes);
        *peak = (*peak).max(work.memory_bytes - work.weight_bytes);
    }
    let short = held
        .iter()
        .zip(model.offers)
        .filter(|((weights, peak), offer)| weights.saturating_add(*peak) > offer.memory_bytes);
    short.count()
}
