//! What a division of the graph into parts takes and costs.

use super::{PlanOptions, Weights};
use crate::graph::{Graph, Source, ValueId};
use crate::planning::objective::Objective;
use crate::planning::offer::{Links, Offer, node_seconds};

/// Most places a cut may be at; longer graphs offer the narrowest place of each piece.
const PLACES_MAX: usize = 512;

/// Where a part's results go and how many bytes: `None` is the buyer.
type Outflow = Vec<(Option<usize>, u64)>;

/// Everything the search asks about, computed once.
pub(crate) struct Model<'a> {
    pub(super) graph: &'a Graph,
    pub(super) offers: &'a [Offer],
    pub(super) links: &'a Links,
    pub(super) options: &'a PlanOptions,
    /// Seconds of each node on each offer: `times[offer][node]`.
    times: Vec<Vec<f64>>,
    /// Seconds of nodes `0..n` on each offer, infinite nodes left out: `seconds[offer][n]`.
    seconds: Vec<Vec<f64>>,
    /// Number of nodes among `0..n` that the offer does not run.
    unsupported: Vec<Vec<usize>>,
    /// Least seconds of nodes `0..n` over the offers: how much work they are.
    work: Vec<f64>,
    /// What each offer draws while it computes.
    watts: Vec<f64>,
    alive: Vec<u64>,
    /// Bytes of the states of each node that further sequences have.
    further: Vec<u64>,
    travellers: Vec<Traveller>,
    weights: Vec<HeldWeight>,
}

/// A weight and who reads it.
struct HeldWeight {
    readers: Vec<usize>,
    bytes: u64,
}

/// A value that is no constant: where it is made and read.
pub(super) struct Traveller {
    pub(super) value: ValueId,
    /// Node that makes it; `None` for the job's inputs.
    pub(super) made: Option<usize>,
    pub(super) readers: Vec<usize>,
    pub(super) bytes: u64,
    pub(super) job_output: bool,
    pub(super) portable: bool,
}

/// A division of the nodes into parts, numbered in an order in which they can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Part of each node.
    pub(super) part: Vec<usize>,
    /// Offer of each part.
    pub(super) offers: Vec<usize>,
}

/// What the nodes of a part are together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartWork {
    /// Seconds on the part's offer; infinite if it does not run one of them.
    pub(super) seconds: f64,
    /// Share of the graph's work, in 0..=1.
    pub(super) share: f64,
    /// Weights the nodes read, each once.
    pub(super) weight_bytes: u64,
    /// Weights, peak of activations, and the states of further sequences.
    pub(super) memory_bytes: u64,
}

/// When each part runs.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) start: Vec<f64>,
    pub(super) finish: Vec<f64>,
    pub(super) makespan: f64,
    pub(super) cost: f64,
    /// What devices draw; of one of which nobody says it, as much as the hungriest does.
    pub(super) joules: f64,
    /// The part each one waited for last; `None` for what the buyer sent.
    pub(super) cause: Vec<Option<usize>>,
    /// The part whose end decides the makespan.
    pub(super) last: Option<usize>,
}

impl Timing {
    /// How good it is: the first number, then the second.
    pub(super) fn score(&self, objective: Objective) -> (f64, f64) {
        objective.weigh(self.makespan, self.cost, self.joules)
    }
}

impl Division {
    /// Everything on one offer.
    pub(super) fn whole(nodes: usize, offer: usize) -> Self {
        Self {
            part: vec![0; nodes],
            offers: vec![offer],
        }
    }

    /// Number of different offers.
    pub(super) fn devices(&self) -> usize {
        let mut used = self.offers.clone();
        used.sort_unstable();
        used.dedup();
        used.len()
    }

    /// Parts that hold any of `nodes`, ascending, each once.
    pub(super) fn holders(&self, nodes: &[usize]) -> Vec<usize> {
        let mut holders: Vec<usize> = nodes.iter().map(|&node| self.part[node]).collect();
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

    /// A model in which nodes take `times[offer][node]`, whatever the offers' own figures say.
    pub(crate) fn with_times(
        graph: &'a Graph,
        offers: &'a [Offer],
        mut times: Vec<Vec<f64>>,
        links: &'a Links,
        options: &'a PlanOptions,
    ) -> Self {
        // What is made of constants alone is made once, by each part that wants it: no device has
        // work for it in a run.
        let stays = graph.stays(&graph.fixed());
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
            work: sums((0..graph.nodes().len()).map(|node| least(&times, node))),
            watts: watts(offers),
            alive: graph.activation_bytes(),
            further: further_states(graph, options.sequences),
            travellers: travellers(graph),
            weights: weights(graph),
            times,
        }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Whether all devices of a division say what they draw.
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

    pub(super) fn travellers(&self) -> &[Traveller] {
        &self.travellers
    }

    /// Seconds of nodes `begin..end` on `offer`; infinite if it does not run one of them.
    pub(crate) fn seconds(&self, offer: usize, begin: usize, end: usize) -> f64 {
        let missing = &self.unsupported[offer];
        if missing[end] > missing[begin] {
            return f64::INFINITY;
        }
        (self.seconds[offer][end] - self.seconds[offer][begin]).max(0.0)
    }

    /// Share of the graph's work that nodes `begin..end` are, in 0..=1.
    pub(super) fn share(&self, begin: usize, end: usize) -> f64 {
        let total = self.work[self.nodes()];
        if total > 0.0 {
            (self.work[end] - self.work[begin]) / total
        } else {
            0.0
        }
    }

    /// What each part is.
    pub(super) fn works(&self, division: &Division) -> Vec<PartWork> {
        let mut works = vec![PartWork::default(); division.offers.len()];
        let mut peaks = vec![0; works.len()];
        let total = self.work[self.nodes()];
        for (node, &part) in division.part.iter().enumerate() {
            let work = &mut works[part];
            work.seconds += self.times[division.offers[part]][node];
            if total > 0.0 {
                work.share += (self.work[node + 1] - self.work[node]) / total;
            }
            peaks[part] = self.alive[node].max(peaks[part]);
            work.memory_bytes = work.memory_bytes.saturating_add(self.further[node]);
        }
        for weight in &self.weights {
            for part in division.holders(&weight.readers) {
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

    /// Weights and peak of activations of the whole graph.
    pub(super) fn memory_bytes(&self) -> u64 {
        let whole = self.works(&Division::whole(self.nodes(), 0));
        whole.first().map_or(0, |work| work.memory_bytes)
    }

    /// Whether a part runs on an offer and fits its memory.
    pub(super) fn fits(&self, work: &PartWork, offer: usize) -> bool {
        work.seconds.is_finite() && work.memory_bytes <= self.offers[offer].memory_bytes
    }

    /// Runs the parts on paper. A device runs one part at a time, in order.
    pub(super) fn time(&self, division: &Division, works: &[PartWork]) -> Timing {
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
        let leaving = self.leaving(division);
        for k in 0..count {
            let offer = division.offers[k];
            let waited = later(ready[k], free[offer]);
            let finish = waited.0 + works[k].seconds;
            free[offer] = (finish, Some(k));
            (timing.start[k], timing.cause[k]) = waited;
            timing.finish[k] = finish;
            timing.cost += works[k].seconds * self.offers[offer].cost_per_second;
            timing.joules += works[k].seconds * self.watts[offer];
            let mut end = finish;
            for &(to, bytes) in &leaving[k] {
                match to {
                    None => end = end.max(finish + self.links.buyer[offer].seconds(bytes)),
                    Some(to) => {
                        let arrival = finish + self.hop(offer, division.offers[to], bytes);
                        ready[to] = later((arrival, Some(k)), ready[to]);
                    }
                }
            }
            if end >= timing.makespan {
                (timing.makespan, timing.last) = (end, Some(k));
            }
        }
        let further = f64::from(self.options.requests.saturating_sub(1));
        if further > 0.0 {
            // A sequence's next request is made of what the one before gave.
            let round = match self.options.sequences {
                0 => 0.0,
                sequences => timing.makespan / f64::from(sequences),
            };
            timing.makespan += further * round.max(self.period(division, works, &leaving));
            timing.cost *= further + 1.0;
            timing.joules *= further + 1.0;
        }
        timing
    }

    /// Time from one request's end to the next one's, where many go through: that of the device or
    /// of the way that is busy longest with one.
    fn period(&self, division: &Division, works: &[PartWork], leaving: &[Outflow]) -> f64 {
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
                // The next one's first byte waits for this one's last, not for its arrival.
                longest = longest.max(link.seconds(bytes) - link.seconds(0));
            }
        }
        busy.into_iter().fold(longest, f64::max)
    }

    /// Time of `bytes` from one offer to another; none within one.
    pub(super) fn hop(&self, from: usize, to: usize, bytes: u64) -> f64 {
        if from == to {
            return 0.0;
        }
        self.links.between[from][to].seconds(bytes)
    }

    fn arrivals_from_buyer(
        &self,
        division: &Division,
        works: &[PartWork],
        ready: &mut [(f64, Option<usize>)],
    ) {
        let mut bytes = vec![0u64; ready.len()];
        let sent = |traveller: &&Traveller| traveller.made.is_none();
        for traveller in self.travellers.iter().filter(sent) {
            for to in division.holders(&traveller.readers) {
                bytes[to] = bytes[to].saturating_add(traveller.bytes);
            }
        }
        for (k, ready) in ready.iter_mut().enumerate() {
            if self.options.weights == Weights::Sent {
                bytes[k] = bytes[k].saturating_add(works[k].weight_bytes);
            }
            let link = &self.links.buyer[division.offers[k]];
            if bytes[k] > 0 {
                ready.0 = link.seconds(bytes[k]);
            }
        }
    }

    /// For each part, where its results go and how many bytes: `None` is the buyer.
    fn leaving(&self, division: &Division) -> Vec<Outflow> {
        let mut leaving = vec![Vec::new(); division.offers.len()];
        for traveller in &self.travellers {
            let Some(made) = traveller.made else { continue };
            let from = division.part[made];
            let far = division.holders(&traveller.readers).into_iter();
            let far = far.filter(|&to| to != from);
            let back = traveller.job_output.then_some(None);
            for to in far.map(Some).chain(back) {
                add(&mut leaving[from], to, traveller.bytes);
            }
        }
        leaving
    }

    /// Places where the graph may be cut, ascending.
    pub(super) fn places(&self) -> Vec<usize> {
        let widths = self.widths();
        let nodes = self.nodes();
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

    /// Bytes that cross between node `n - 1` and node `n`, and whether all of them can be sent:
    /// one entry for each `n`.
    pub(super) fn widths(&self) -> Vec<Option<u64>> {
        let mut widths = vec![0i128; self.nodes() + 1];
        let mut stuck = vec![0i64; self.nodes() + 1];
        for traveller in &self.travellers {
            let (Some(made), Some(&last)) = (traveller.made, traveller.readers.last()) else {
                continue;
            };
            widths[made + 1] += i128::from(traveller.bytes);
            widths[last + 1] -= i128::from(traveller.bytes);
            stuck[made + 1] += i64::from(!traveller.portable);
            stuck[last + 1] -= i64::from(!traveller.portable);
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

/// What offers draw: those of which nobody says it as much as the hungriest that is known.
pub(super) fn watts(offers: &[Offer]) -> Vec<f64> {
    let known = offers.iter().filter_map(|offer| offer.busy_watts);
    let most = known.fold(0.0, f64::max);
    let each = offers.iter().map(|offer| offer.busy_watts.unwrap_or(most));
    each.collect()
}

/// The later of two times, with what it was waited for; the second if they are equal.
fn later(a: (f64, Option<usize>), b: (f64, Option<usize>)) -> (f64, Option<usize>) {
    if a.0 > b.0 { a } else { b }
}

/// Seconds of each node on an offer.
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

/// Seconds of `node` where it is fastest.
fn least(times: &[Vec<f64>], node: usize) -> f64 {
    let least = times
        .iter()
        .map(|row| row[node])
        .fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}

/// Running sums, beginning with zero.
fn sums<T: Copy + Default + std::ops::Add<Output = T>>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut total = T::default();
    let mut sums = vec![total];
    for value in values {
        total = total + value;
        sums.push(total);
    }
    sums
}

fn weights(graph: &Graph) -> Vec<HeldWeight> {
    let stays = graph.stays(&graph.fixed());
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

/// Bytes of each node's states that sequences after the first have.
fn further_states(graph: &Graph, sequences: u32) -> Vec<u64> {
    let further = u64::from(sequences.saturating_sub(1));
    let mut bytes = vec![0_u64; graph.nodes().len()];
    for state in graph.states() {
        let value = graph.value(state);
        if let (None, Some(reader)) = (value.producer(), value.readers.first()) {
            let each = value.fact.byte_length().unwrap_or(0);
            let held = &mut bytes[reader.0];
            *held = held.saturating_add(each.saturating_mul(further));
        }
    }
    bytes
}

fn travellers(graph: &Graph) -> Vec<Traveller> {
    let fixed = graph.fixed();
    let is_output = |index: usize| graph.outputs().contains(&ValueId(index));
    let moving = graph
        .values()
        .iter()
        .enumerate()
        .filter(|(id, value)| is_output(*id) || !value.is_known(&fixed));
    let (states, cuts) = (graph.states(), graph.cuts());
    let may_leave = |id: &ValueId| cuts.as_ref().is_none_or(|cuts| cuts.contains(id));
    let travellers = moving.map(|(index, value)| Traveller {
        value: ValueId(index),
        made: match value.source {
            Source::Node(node) => Some(node.0),
            Source::Input | Source::Constant(_) => None,
        },
        readers: match value.is_known(&fixed) {
            true => Vec::new(),
            false => value.readers.iter().map(|node| node.0).collect(),
        },
        // A state stays where it is made.
        bytes: match states.contains(&ValueId(index)) {
            true => 0,
            false => value.fact.byte_length().unwrap_or(0),
        },
        job_output: is_output(index),
        portable: value.is_portable()
            && !states.contains(&ValueId(index))
            && may_leave(&ValueId(index)),
    });
    travellers.collect()
}
