//! Computes the time and cost of a division, which assigns the graph's nodes to parts and each part
//! to a device. The searches for plans compare divisions by this time and cost.

use super::{PlanOptions, Weights};
use crate::graph::{Graph, Source, ValueId};
use crate::planning::objective::Objective;
use crate::planning::offer::{Links, Offer, node_seconds};

/// Maximum number of places for a cut; longer graphs offer only the narrowest place of each piece.
const PLACES_MAX: usize = 512;

/// Destinations and bytes of a part's results; `None` is the buyer.
type Outflow = Vec<(Option<usize>, u64)>;

/// The graph, the offers and all quantities derived from them that the searches use.
pub(crate) struct Model<'a> {
    pub(super) graph: &'a Graph,
    pub(super) offers: &'a [Offer],
    pub(super) links: &'a Links,
    pub(super) options: &'a PlanOptions,
    /// Seconds of each node on each offer: `times[offer][node]`.
    times: Vec<Vec<f64>>,
    /// Seconds of nodes `0..n` on each offer, without infinite nodes: `seconds[offer][n]`.
    seconds: Vec<Vec<f64>>,
    /// Number of nodes among `0..n` that the offer cannot run.
    unsupported: Vec<Vec<usize>>,
    /// Least seconds of nodes `0..n` over the offers, as a measure of their work.
    work: Vec<f64>,
    /// Watts of each offer while it computes.
    watts: Vec<f64>,
    alive: Vec<u64>,
    /// Bytes of each node's states for all sequences after the first.
    further: Vec<u64>,
    movable_values: Vec<MovableValue>,
    weights: Vec<HeldWeight>,
}

/// A weight and its readers.
struct HeldWeight {
    readers: Vec<usize>,
    bytes: u64,
}

/// A value that is not constant, with its producer and its readers.
pub(super) struct MovableValue {
    pub(super) value: ValueId,
    /// Node that produces it; `None` for the job's inputs.
    pub(super) made: Option<usize>,
    pub(super) readers: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) job_output: bool,
    pub(super) portable: bool,
}

/// A division of the nodes into parts, numbered in an order in which they can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// The index of each node's part.
    pub(super) assignment: Vec<usize>,
    /// Offer of each part.
    pub(super) offers: Vec<usize>,
}

/// The total work of a part's nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartWork {
    /// Seconds on the part's offer; infinite if the offer cannot run one of them.
    pub(super) seconds: f64,
    /// Share of the graph's work, in 0..=1.
    pub(super) share: f64,
    /// Bytes of the weights that the nodes read, each counted once.
    pub(super) weight_bytes: u64,
    /// Bytes of weights, peak activations and the states of further sequences.
    pub(super) memory_bytes: u64,
}

/// The times of the parts.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) start: Vec<f64>,
    pub(super) finish: Vec<f64>,
    pub(super) makespan: f64,
    pub(super) cost: f64,
    /// Joules of all devices. A device without stated power counts like the device with the highest
    /// stated power.
    pub(super) joules: f64,
    /// The part that each part waits for last; `None` for data from the buyer.
    pub(super) cause: Vec<Option<usize>>,
    /// The part whose end decides the makespan.
    pub(super) last: Option<usize>,
}

impl Timing {
    /// Returns the score: the first number decides, then the second.
    pub(super) fn score(&self, objective: Objective) -> (f64, f64) {
        objective.weigh_figures(self.makespan, self.cost, self.joules)
    }
}

impl Division {
    /// Returns the division that runs everything on one offer.
    pub(super) fn for_single_offer(nodes: usize, offer: usize) -> Self {
        Self {
            assignment: vec![0; nodes],
            offers: vec![offer],
        }
    }

    /// Returns the number of different offers.
    pub(super) fn device_count(&self) -> usize {
        let mut used = self.offers.clone();
        used.sort_unstable();
        used.dedup();
        used.len()
    }

    /// Returns the parts that hold any of `nodes`, ascending, each once.
    pub(super) fn parts_holding(&self, nodes: &[usize]) -> Vec<usize> {
        let mut holders: Vec<usize> = nodes.iter().map(|&node| self.assignment[node]).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        offers: &'a [Offer],
        links: &'a Links,
        options: &'a PlanOptions,
    ) -> Self {
        let times = |offer: &Offer| node_times(graph, offer);
        let times = offers.iter().map(times).collect();
        Self::with_times(graph, offers, times, links, options)
    }

    /// Creates a model in which nodes take `times[offer][node]`, whatever the offers' own figures
    /// say. There must be one row for each offer, with one entry for each node.
    pub(crate) fn with_times(
        graph: &'a Graph,
        offers: &'a [Offer],
        mut times: Vec<Vec<f64>>,
        links: &'a Links,
        options: &'a PlanOptions,
    ) -> Self {
        // Each part computes values from constants alone once for itself, so they take no device
        // time in a run.
        let stays = graph.single_part_nodes(&graph.constant_only_nodes());
        for row in &mut times {
            let once = row.iter_mut().zip(&stays).filter(|(_, stays)| !**stays);
            let once = once.filter(|(seconds, _)| seconds.is_finite());
            once.for_each(|(seconds, _)| *seconds = 0.0);
        }
        let finite = |seconds: &f64| if seconds.is_finite() { *seconds } else { 0.0 };
        let missing = |seconds: &f64| usize::from(!seconds.is_finite());
        Self {
            graph,
            offers,
            links,
            options,
            seconds: times
                .iter()
                .map(|row| sums(row.iter().map(finite)))
                .collect(),
            unsupported: times
                .iter()
                .map(|row| sums(row.iter().map(missing)))
                .collect(),
            work: sums((0..graph.nodes().len()).map(|node| fastest_seconds(&times, node))),
            watts: offer_watts(offers),
            alive: graph.activation_bytes(),
            further: further_states(graph, options.sequences),
            movable_values: collect_movable_values(graph),
            weights: collect_weights(graph),
            times,
        }
    }

    pub(crate) fn node_count(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Returns whether all devices of a division state their power.
    pub(super) fn states_power(&self, division: &Division) -> bool {
        let mut used = division.offers.iter();
        used.all(|&offer| self.offers[offer].busy_watts.is_some())
    }

    pub(super) fn watts(&self) -> &[f64] {
        &self.watts
    }

    pub(super) fn times(&self) -> &[Vec<f64>] {
        &self.times
    }

    pub(super) fn movable_values(&self) -> &[MovableValue] {
        &self.movable_values
    }

    /// Returns the seconds of nodes `begin..end` on `offer`; infinite if it cannot run one of them.
    pub(crate) fn range_seconds(&self, offer: usize, begin: usize, end: usize) -> f64 {
        let missing = &self.unsupported[offer];
        if missing[end] > missing[begin] {
            return f64::INFINITY;
        }
        (self.seconds[offer][end] - self.seconds[offer][begin]).max(0.0)
    }

    /// Returns the share of nodes `begin..end` in the graph's work, in 0..=1.
    pub(super) fn work_share(&self, begin: usize, end: usize) -> f64 {
        let total = self.work[self.node_count()];
        if total > 0.0 {
            (self.work[end] - self.work[begin]) / total
        } else {
            0.0
        }
    }

    /// Returns the work of each part.
    pub(super) fn part_works(&self, division: &Division) -> Vec<PartWork> {
        let mut works = vec![PartWork::default(); division.offers.len()];
        let mut peaks = vec![0; works.len()];
        let total = self.work[self.node_count()];
        for (node, &part) in division.assignment.iter().enumerate() {
            let work = &mut works[part];
            work.seconds += self.times[division.offers[part]][node];
            if total > 0.0 {
                work.share += (self.work[node + 1] - self.work[node]) / total;
            }
            peaks[part] = self.alive[node].max(peaks[part]);
            work.memory_bytes = work.memory_bytes.saturating_add(self.further[node]);
        }
        for weight in &self.weights {
            for part in division.parts_holding(&weight.readers) {
                let held = &mut works[part].weight_bytes;
                *held = held.saturating_add(weight.bytes);
            }
        }
        for (work, peak) in works.iter_mut().zip(peaks) {
            let activations = work.memory_bytes.saturating_add(peak);
            work.memory_bytes = work.weight_bytes.saturating_add(activations);
        }
        works
    }

    /// Returns the bytes of weights and peak activations of the whole graph.
    pub(super) fn memory_bytes(&self) -> u64 {
        let whole = self.part_works(&Division::for_single_offer(self.node_count(), 0));
        whole.first().map_or(0, |work| work.memory_bytes)
    }

    /// Returns whether an offer can run a part and has the memory for it.
    pub(super) fn can_run_part(&self, work: &PartWork, offer: usize) -> bool {
        work.seconds.is_finite() && work.memory_bytes <= self.offers[offer].memory_bytes
    }

    /// Simulates the parts. A device runs one part at a time, in order.
    pub(super) fn simulate_division(&self, division: &Division, works: &[PartWork]) -> Timing {
        let count = division.offers.len();
        let mut ready = vec![(0.0f64, None); count];
        let mut free = vec![(0.0f64, None); self.offers.len()];
        let mut timing = Timing {
            start: vec![0.0; count],
            finish: vec![0.0; count],
            makespan: 0.0,
            cost: 0.0,
            joules: 0.0,
            cause: vec![None; count],
            last: None,
        };
        self.arrivals_from_buyer(division, works, &mut ready);
        let leaving = self.part_outflows(division);
        for k in 0..count {
            let offer = division.offers[k];
            let waited = later_of(ready[k], free[offer]);
            let finish = waited.0 + works[k].seconds;
            free[offer] = (finish, Some(k));
            (timing.start[k], timing.cause[k]) = waited;
            timing.finish[k] = finish;
            timing.cost += works[k].seconds * self.offers[offer].cost_per_second;
            timing.joules += works[k].seconds * self.watts[offer];
            let mut end = finish;
            for &(to, bytes) in &leaving[k] {
                match to {
                    None => end = end.max(finish + self.links.buyer[offer].transfer_seconds(bytes)),
                    Some(to) => {
                        let arrival = finish + self.hop_seconds(offer, division.offers[to], bytes);
                        ready[to] = later_of((arrival, Some(k)), ready[to]);
                    }
                }
            }
            if end >= timing.makespan {
                (timing.makespan, timing.last) = (end, Some(k));
            }
        }
        let further = f64::from(self.options.requests.saturating_sub(1));
        if further > 0.0 {
            // A sequence's next request needs the answer to its previous one.
            let round = match self.options.sequences {
                0 => 0.0,
                sequences => timing.makespan / f64::from(sequences),
            };
            timing.makespan += further * round.max(self.request_period(division, works, &leaving));
            timing.cost *= further + 1.0;
            timing.joules *= further + 1.0;
        }
        timing
    }

    /// Returns the time between the ends of two requests in a pipeline: that of the device or link
    /// with the longest work on one request.
    fn request_period(&self, division: &Division, works: &[PartWork], leaving: &[Outflow]) -> f64 {
        let mut busy = vec![0.0; self.offers.len()];
        let mut longest = 0.0f64;
        for (k, &offer) in division.offers.iter().enumerate() {
            busy[offer] += works[k].seconds;
            for &(to, bytes) in &leaving[k] {
                let link = match to.map(|to| division.offers[to]) {
                    None => self.links.buyer[offer],
                    Some(to) if to == offer => continue,
                    Some(to) => self.links.between[offer][to],
                };
                // The next request's first byte waits for this one's last byte to leave, not to
                // arrive.
                longest = longest.max(link.transfer_seconds(bytes) - link.transfer_seconds(0));
            }
        }
        busy.into_iter().fold(longest, f64::max)
    }

    /// Returns the time of `bytes` from one offer to another; zero within one.
    pub(super) fn hop_seconds(&self, from: usize, to: usize, bytes: u64) -> f64 {
        if from == to {
            return 0.0;
        }
        self.links.between[from][to].transfer_seconds(bytes)
    }

    fn arrivals_from_buyer(
        &self,
        division: &Division,
        works: &[PartWork],
        ready: &mut [(f64, Option<usize>)],
    ) {
        let mut bytes = vec![0u64; ready.len()];
        let sent = |movable: &&MovableValue| movable.made.is_none();
        for movable in self.movable_values.iter().filter(sent) {
            for to in division.parts_holding(&movable.readers) {
                bytes[to] = bytes[to].saturating_add(movable.bytes);
            }
        }
        for (k, ready) in ready.iter_mut().enumerate() {
            if self.options.weights == Weights::Sent {
                bytes[k] = bytes[k].saturating_add(works[k].weight_bytes);
            }
            let link = &self.links.buyer[division.offers[k]];
            if bytes[k] > 0 {
                ready.0 = link.transfer_seconds(bytes[k]);
            }
        }
    }

    /// Returns the destinations and bytes of each part's results; `None` is the buyer.
    fn part_outflows(&self, division: &Division) -> Vec<Outflow> {
        let mut leaving = vec![Vec::new(); division.offers.len()];
        for movable in &self.movable_values {
            let Some(made) = movable.made else { continue };
            let from = division.assignment[made];
            let far = division.parts_holding(&movable.readers).into_iter();
            let far = far.filter(|&to| to != from);
            let back = movable.job_output.then_some(None);
            for to in far.map(Some).chain(back) {
                add(&mut leaving[from], to, movable.bytes);
            }
        }
        leaving
    }

    /// Returns the places where the graph can be cut, ascending.
    pub(super) fn cut_places(&self) -> Vec<usize> {
        let widths = self.cut_widths();
        let nodes = self.node_count();
        let open = |at: &usize| widths[*at].is_some();
        if nodes <= PLACES_MAX {
            return (1..nodes).filter(open).collect();
        }
        let piece = nodes.div_ceil(PLACES_MAX);
        let pieces = (1..nodes)
            .step_by(piece)
            .map(|begin| begin..(begin + piece).min(nodes));
        let narrowest = pieces.filter_map(|piece| piece.filter(open).min_by_key(|&at| widths[at]));
        narrowest.collect()
    }

    /// Returns for each `n` the bytes that cross between node `n - 1` and node `n`, or none if one
    /// of those values cannot be sent.
    pub(super) fn cut_widths(&self) -> Vec<Option<u64>> {
        let mut widths = vec![0i128; self.node_count() + 1];
        let mut stuck = vec![0i64; self.node_count() + 1];
        for movable in &self.movable_values {
            let (Some(made), Some(&last)) = (movable.made, movable.readers.last()) else {
                continue;
            };
            widths[made + 1] += i128::from(movable.bytes);
            widths[last + 1] -= i128::from(movable.bytes);
            stuck[made + 1] += i64::from(!movable.portable);
            stuck[last + 1] -= i64::from(!movable.portable);
        }
        let (mut width, mut blocked) = (0i128, 0i64);
        let running = widths.iter().zip(&stuck).map(|(delta, stuck)| {
            width += delta;
            blocked += stuck;
            (blocked == 0).then(|| u64::try_from(width).unwrap_or(u64::MAX))
        });
        running.collect()
    }
}

/// Returns the watts of the offers. An offer without stated power counts like the offer with the
/// highest stated power.
pub(super) fn offer_watts(offers: &[Offer]) -> Vec<f64> {
    let stated = offers.iter().filter_map(|offer| offer.busy_watts);
    let highest = stated.fold(0.0, f64::max);
    let watts = offers
        .iter()
        .map(|offer| offer.busy_watts.unwrap_or(highest));
    watts.collect()
}

/// Returns the later of two times with its cause; the second if they are equal.
fn later_of(a: (f64, Option<usize>), b: (f64, Option<usize>)) -> (f64, Option<usize>) {
    if a.0 > b.0 { a } else { b }
}

/// Returns the seconds of each node on an offer.
pub(super) fn node_times(graph: &Graph, offer: &Offer) -> Vec<f64> {
    let nodes = graph.nodes().iter();
    nodes.map(|node| node_seconds(node, offer)).collect()
}

fn add(list: &mut Vec<(Option<usize>, u64)>, to: Option<usize>, bytes: u64) {
    match list.iter_mut().find(|(known, _)| *known == to) {
        Some((_, sum)) => *sum = sum.saturating_add(bytes),
        None => list.push((to, bytes)),
    }
}

/// Returns the seconds of `node` on its fastest offer.
fn fastest_seconds(times: &[Vec<f64>], node: usize) -> f64 {
    let least = times
        .iter()
        .map(|row| row[node])
        .fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// Returns the running sums, starting with zero.
fn sums<T: Copy + Default + std::ops::Add<Output = T>>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut total = T::default();
    let mut sums = vec![total];
    for value in values {
        total = total + value;
        sums.push(total);
    }
    sums
}

fn collect_weights(graph: &Graph) -> Vec<HeldWeight> {
    let stays = graph.single_part_nodes(&graph.constant_only_nodes());
    let weights = graph.values().iter().filter_map(|value| {
        Some(HeldWeight {
            bytes: value.weight()?.byte_length,
            readers: graph.readers_beyond(value, &stays),
        })
    });
    weights
        .filter(|weight| !weight.readers.is_empty())
        .collect()
}

/// Returns the bytes of each node's states for all sequences after the first.
fn further_states(graph: &Graph, sequences: u32) -> Vec<u64> {
    let further = u64::from(sequences.saturating_sub(1));
    let mut bytes = vec![0_u64; graph.nodes().len()];
    for state in graph.state_values() {
        let value = graph.value(state);
        if let (None, Some(reader)) = (value.producer(), value.readers.first()) {
            let each = value.fact.byte_length().unwrap_or(0);
            let held = &mut bytes[reader.0];
            *held = held.saturating_add(each.saturating_mul(further));
        }
    }
    bytes
}

fn collect_movable_values(graph: &Graph) -> Vec<MovableValue> {
    let fixed = graph.constant_only_nodes();
    let is_output = |index: usize| graph.outputs().contains(&ValueId(index));
    let moving = graph
        .values()
        .iter()
        .enumerate()
        .filter(|(id, value)| is_output(*id) || !value.is_known(&fixed));
    let (states, cuts) = (graph.state_values(), graph.permitted_cuts());
    let may_leave = |id: &ValueId| cuts.as_ref().is_none_or(|cuts| cuts.contains(id));
    let movable_values = moving.map(|(index, value)| MovableValue {
        value: ValueId(index),
        made: match value.source {
            Source::Node(node) => Some(node.0),
            Source::Input | Source::Constant(_) => None,
        },
        readers: match value.is_known(&fixed) {
            true => Vec::new(),
            false => value.readers.iter().map(|node| node.0).collect(),
        },
        // A state stays on the device that computes it.
        bytes: match states.contains(&ValueId(index)) {
            true => 0,
            false => value.fact.byte_length().unwrap_or(0),
        },
        job_output: is_output(index),
        portable: value.is_portable()
            && !states.contains(&ValueId(index))
            && may_leave(&ValueId(index)),
    });
    movable_values.collect()
}
