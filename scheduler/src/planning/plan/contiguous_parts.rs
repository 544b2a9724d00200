//! Searches for the best division of a graph into stretches of its topological order, each on one
//! device. It starts from several divisions and improves each step by step.

use super::PlanOptions;
use super::partition::{Division, Model};
use super::pipeline::Pipeline;
use super::score::{DivisionGrade, REAL_WORK_SHARE, grade_division};

/// A division of the nodes into stretches: stretch `k` ends before node `ends[k]`, on `offers[k]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretches {
    pub(super) ends: Vec<usize>,
    pub(super) offers: Vec<usize>,
}

impl Stretches {
    /// Creates the stretches of a pipeline's stages.
    fn from_pipeline(pipeline: &Pipeline) -> Self {
        let stages = 0..pipeline.devices.len();
        let end = |stage: usize| pipeline.stage_of_node.partition_point(|of| *of <= stage);
        Self {
            ends: stages.map(end).collect(),
            offers: pipeline.devices.clone(),
        }
    }

    /// Returns the first node of stretch `k`.
    pub(super) fn first_node(&self, k: usize) -> usize {
        if k == 0 { 0 } else { self.ends[k - 1] }
    }

    /// Returns the same division without empty stretches, and with neighbours on one offer joined.
    pub(super) fn merge_neighbours(self) -> Self {
        let mut tidy = Self {
            ends: Vec::with_capacity(self.ends.len()),
            offers: Vec::with_capacity(self.ends.len()),
        };
        for (k, (&end, &offer)) in self.ends.iter().zip(&self.offers).enumerate() {
            let last = k + 1 == self.ends.len();
            if self.first_node(k) == end && !(last && tidy.ends.is_empty()) {
                continue;
            }
            if tidy.offers.last() == Some(&offer) {
                tidy.ends.pop();
                tidy.offers.pop();
            }
            tidy.ends.push(end);
            tidy.offers.push(offer);
        }
        tidy
    }

    /// Returns the division of the nodes into these parts.
    pub(super) fn to_division(&self, nodes: usize) -> Division {
        let mut assignment = Vec::with_capacity(nodes);
        for (k, &end) in self.ends.iter().enumerate() {
            assignment.resize(end.max(assignment.len()), k);
        }
        let offers = self.offers.clone();
        Division { assignment, offers }
    }
}

/// Returns the best division into stretches that the search finds within `steps` steps.
pub(super) fn search_stretches(model: &Model<'_>, options: &PlanOptions, steps: usize) -> Division {
    let places = model.cut_places();
    let starts = initial_stretches(model, options, &places);
    let steps = steps / starts.len().max(1);
    let improved = starts
        .into_iter()
        .map(|start| improve_stretches(model, options, &places, start, steps));
    let best = improved.reduce(|best, next| {
        if next.1.is_better_than(&best.1) {
            next
        } else {
            best
        }
    });
    let best = best.map_or_else(|| single_stretch(model, 0), |(stretches, _)| stretches);
    best.to_division(model.node_count())
}

fn grade_of(model: &Model<'_>, options: &PlanOptions, stretches: &Stretches) -> DivisionGrade {
    grade_division(model, options, &stretches.to_division(model.node_count()))
}

fn single_stretch(model: &Model<'_>, offer: usize) -> Stretches {
    Stretches {
        ends: vec![model.node_count()],
        offers: vec![offer],
    }
}

/// Returns the starts: every single device, and for each number of devices a division in proportion
/// to their speed.
fn initial_stretches(model: &Model<'_>, options: &PlanOptions, places: &[usize]) -> Vec<Stretches> {
    let mut starts = Vec::new();
    if options.min_devices <= 1 {
        starts.extend((0..model.offers.len()).map(|offer| single_stretch(model, offer)));
        starts.extend(by_support(model, places));
    }
    // A pipeline keeps all devices busy with one request after the other.
    if options.requests > 1 && most_devices(model, options, places) > 1 {
        let mut fastest = speed_rank(model);
        fastest.truncate(options.max_devices);
        starts.extend(
            Pipeline::best_for_devices(model, &fastest)
                .map(|pipeline| Stretches::from_pipeline(&pipeline)),
        );
    }
    let most = most_devices(model, options, places);
    for parts in options.min_devices.max(2)..=most {
        for rank in [speed_rank(model), cost_rank(model)] {
            starts.push(proportional_stretches(model, places, &rank[..parts]).merge_neighbours());
        }
    }
    // A proportional division would give the slowest of unlike devices too little to count.
    if options.min_devices > 1 && options.min_devices <= most {
        starts.push(minimal_work_stretches(
            model,
            places,
            &speed_rank(model)[..options.min_devices],
        ));
    }
    starts
}

/// Returns a division in which each device has just enough work to count, and the fastest, which
/// comes last, has the rest.
fn minimal_work_stretches(model: &Model<'_>, places: &[usize], fastest: &[usize]) -> Stretches {
    let enough = REAL_WORK_SHARE / fastest.len() as f64;
    let (mut begin, mut ends) = (0, Vec::new());
    for &end in places {
        if ends.len() + 1 < fastest.len() && model.work_share(begin, end) >= enough {
            ends.push(end);
            begin = end;
        }
    }
    ends.push(model.node_count());
    let offers = fastest[..ends.len()].iter().rev().copied().collect();
    Stretches { ends, offers }
}

/// Returns the maximum number of devices for stretches between these places.
fn most_devices(model: &Model<'_>, options: &PlanOptions, places: &[usize]) -> usize {
    let most = options.max_devices.min(model.offers.len());
    most.min(places.len() + 1)
}

fn total_seconds(model: &Model<'_>, offer: usize) -> f64 {
    model.range_seconds(offer, 0, model.node_count())
}

/// Returns the offers, fastest first; those that cannot run everything come last.
pub(super) fn speed_rank(model: &Model<'_>) -> Vec<usize> {
    rank_offers(model, |offer| total_seconds(model, offer))
}

/// Returns the offers, cheapest for the whole job first.
pub(super) fn cost_rank(model: &Model<'_>) -> Vec<usize> {
    rank_offers(model, |offer| {
        total_seconds(model, offer) * model.offers[offer].cost_per_second
    })
}

fn rank_offers(model: &Model<'_>, key: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut rank: Vec<usize> = (0..model.offers.len()).collect();
    rank.sort_by(|&a, &b| key(a).total_cmp(&key(b)).then(a.cmp(&b)));
    rank
}

/// Returns stretches with work in proportion to their devices' speed, each cut moved to the
/// narrowest place nearby.
fn proportional_stretches(model: &Model<'_>, places: &[usize], offers: &[usize]) -> Stretches {
    let speed = |offer: usize| {
        let seconds = total_seconds(model, offer);
        // A device that cannot run everything still starts with an average share.
        if seconds.is_finite() && seconds > 0.0 {
            1.0 / seconds
        } else {
            0.0
        }
    };
    let mean = offers.iter().map(|&offer| speed(offer)).sum::<f64>() / offers.len() as f64;
    let pace = |offer: usize| {
        if speed(offer) > 0.0 {
            speed(offer)
        } else {
            mean.max(1e-300)
        }
    };
    let total: f64 = offers.iter().map(|&offer| pace(offer)).sum();
    let widths = model.cut_widths();
    let mut ends = Vec::new();
    let mut wanted = 0.0;
    for (index, &offer) in offers[..offers.len() - 1].iter().enumerate() {
        wanted += pace(offer) / total;
        let floor = ends.last().copied().unwrap_or(0);
        let left = offers.len() - 2 - index;
        let open = places
            .iter()
            .enumerate()
            .filter(|(at, place)| **place > floor && *at + left < places.len());
        let near = |place: usize| (model.work_share(0, place) - wanted).abs();
        let slack = 0.25 / offers.len() as f64;
        let best = open.map(|(_, &place)| place).min_by(|&a, &b| {
            let key = |place: usize| (near(place) > slack, widths[place].unwrap_or(u64::MAX));
            let far = |place: usize| {
                if near(place) > slack {
                    near(place)
                } else {
                    0.0
                }
            };
            far(a)
                .total_cmp(&far(b))
                .then(key(a).cmp(&key(b)))
                .then(near(a).total_cmp(&near(b)))
        });
        ends.push(best.unwrap_or(floor));
    }
    ends.push(model.node_count());
    Stretches {
        ends,
        offers: offers.to_vec(),
    }
}

/// Returns the fastest division if stretches run one after the other: it avoids devices that lack
/// an operator.
fn by_support(model: &Model<'_>, places: &[usize]) -> Option<Stretches> {
    let offers = model.offers.len();
    let widths = model.cut_widths();
    let mut bounds = vec![0];
    bounds.extend(places);
    bounds.push(model.node_count());
    let mut best = vec![0.0; offers];
    let mut came: Vec<Vec<usize>> = Vec::new();
    for pair in bounds.windows(2) {
        let (begin, end) = (pair[0], pair[1]);
        let width = widths[begin].unwrap_or(0);
        let step = |offer: usize| {
            let from = |before: usize| match came.is_empty() {
                true => {
                    if before == offer {
                        0.0
                    } else {
                        f64::INFINITY
                    }
                }
                false => best[before] + model.hop_seconds(before, offer, width),
            };
            let before = (0..offers)
                .min_by(|&a, &b| from(a).total_cmp(&from(b)))
                .unwrap_or(offer);
            (
                before,
                from(before) + model.range_seconds(offer, begin, end),
            )
        };
        let steps: Vec<(usize, f64)> = (0..offers).map(step).collect();
        came.push(steps.iter().map(|step| step.0).collect());
        best = steps.into_iter().map(|step| step.1).collect();
    }
    let mut offer = (0..offers).min_by(|&a, &b| best[a].total_cmp(&best[b]))?;
    let mut stretches = Stretches {
        ends: Vec::new(),
        offers: Vec::new(),
    };
    for (index, came) in came.iter().enumerate().rev() {
        if stretches.offers.last() != Some(&offer) {
            stretches.ends.push(bounds[index + 1]);
            stretches.offers.push(offer);
        }
        offer = came[offer];
    }
    stretches.ends.reverse();
    stretches.offers.reverse();
    (best.iter().any(|seconds| seconds.is_finite())).then_some(stretches)
}

/// Moves to a better neighbour until there is none or the steps are used up.
fn improve_stretches(
    model: &Model<'_>,
    options: &PlanOptions,
    places: &[usize],
    start: Stretches,
    steps: usize,
) -> (Stretches, DivisionGrade) {
    let mut best = start;
    let mut best_grade = grade_of(model, options, &best);
    let mut left = steps;
    loop {
        let mut moved = None;
        for next in neighbour_stretches(model, places, &best)
            .into_iter()
            .take(left)
        {
            left -= 1;
            let next = next.merge_neighbours();
            let grade = grade_of(model, options, &next);
            let so_far = moved.as_ref().map_or(&best_grade, |(_, grade)| grade);
            if grade.is_better_than(so_far) {
                moved = Some((next, grade));
            }
        }
        match moved {
            Some((next, grade)) => (best, best_grade) = (next, grade),
            None => return (best, best_grade),
        }
    }
}

/// Returns the divisions one change away: a moved cut, a changed or exchanged offer, or two joined
/// stretches.
fn neighbour_stretches(model: &Model<'_>, places: &[usize], now: &Stretches) -> Vec<Stretches> {
    let mut neighbours = Vec::new();
    let parts = now.ends.len();
    for k in 0..parts.saturating_sub(1) {
        let at = places.partition_point(|&place| place < now.ends[k]);
        for distance in [1, 2, 4, 8, 16, 32, 64] {
            let back = at.checked_sub(distance).and_then(|at| places.get(at));
            for &place in [back, places.get(at + distance)].into_iter().flatten() {
                if place > now.first_node(k) && place < now.ends[k + 1] {
                    let mut next = now.clone();
                    next.ends[k] = place;
                    neighbours.push(next);
                }
            }
        }
    }
    for k in 0..parts {
        for offer in (0..model.offers.len()).filter(|&offer| offer != now.offers[k]) {
            let mut next = now.clone();
            next.offers[k] = offer;
            neighbours.push(next);
        }
        for other in k + 1..parts {
            let mut next = now.clone();
            next.offers.swap(k, other);
            neighbours.push(next);
        }
    }
    for k in 0..parts.saturating_sub(1) {
        let mut next = now.clone();
        next.ends.remove(k);
        next.offers.remove(k);
        neighbours.push(next);
    }
    neighbours
}
