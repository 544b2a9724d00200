//! Grades a division: one way to cut a model into parts and to assign them to devices. All searches
//! of the planner compare divisions by their grades.
//!
//! A grade first counts what makes a division invalid, then how far it exceeds budget and deadline,
//! and then scores it by the objective of the plan.

use std::cmp::Ordering;

use super::partition::{Division, Model, PartWork};
use super::{Activations, PlanOptions};

/// A part with less than this fraction of an even share of the work counts as idle.
pub(super) const REAL_WORK_SHARE: f64 = 0.5;

/// The grade of a division: smaller is better, and the first difference decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DivisionGrade {
    /// Number of parts that cannot run, devices short of memory, devices too few or too many, and
    /// idle parts.
    pub(super) broken: usize,
    /// Cost above the budget and time above the deadline, each as a fraction of its limit.
    pub(super) beyond: f64,
    /// The score by the plan's objective: the first number decides, the second breaks ties.
    pub(super) score: (f64, f64),
}

impl DivisionGrade {
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        self.compare_to(other).is_lt()
    }

    pub(super) fn compare_to(&self, other: &Self) -> Ordering {
        let order = self.broken.cmp(&other.broken);
        let order = order.then(self.beyond.total_cmp(&other.beyond));
        let order = order.then(self.score.0.total_cmp(&other.score.0));
        order.then(self.score.1.total_cmp(&other.score.1))
    }
}

pub(super) fn grade_division(
    model: &Model<'_>,
    options: &PlanOptions,
    division: &Division,
) -> DivisionGrade {
    let works = model.part_works(division);
    let timing = model.simulate_division(division, &works);
    let devices = division.device_count();
    let parts = works.len();
    let idle = (options.min_devices > 1).then(|| {
        let floor = REAL_WORK_SHARE / parts as f64;
        works.iter().filter(|work| work.share < floor).count()
    });
    let unable = works.iter().filter(|work| !work.seconds.is_finite());
    let lacking = options.min_devices.saturating_sub(devices);
    let excess = devices.saturating_sub(options.max_devices);
    let over = |value: f64, limit: Option<f64>| match limit {
        Some(limit) if value > limit => (value - limit) / limit.abs().max(f64::MIN_POSITIVE),
        _ => 0.0,
    };
    DivisionGrade {
        broken: unable.count()
            + short_of_memory(model, options, division, &works)
            + lacking
            + excess
            + idle.unwrap_or(0),
        beyond: over(timing.cost, options.budget) + over(timing.makespan, options.deadline_seconds),
        score: timing.score(options.objective),
    }
}

/// Returns the number of devices that cannot hold the weights of all their parts and the
/// activations of one part.
fn short_of_memory(
    model: &Model<'_>,
    options: &PlanOptions,
    division: &Division,
    works: &[PartWork],
) -> usize {
    let mut held = vec![(0u64, 0u64); model.offers.len()];
    for (work, &offer) in works.iter().zip(&division.offers) {
        let (weights, peak) = &mut held[offer];
        *weights = weights.saturating_add(work.weight_bytes);
        if options.activations == Activations::Held {
            *peak = (*peak).max(work.memory_bytes - work.weight_bytes);
        }
    }
    let short = held
        .iter()
        .zip(model.offers)
        .filter(|((weights, peak), offer)| weights.saturating_add(*peak) > offer.memory_bytes);
    short.count()
}
