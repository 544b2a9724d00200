//! What a division of the graph into stretches takes and costs.

use super::{Links, Offer, PlanOptions, Weights, node_seconds};
use crate::graph::{Graph, Source, ValueId};

/// Everything the search asks about, computed once.
pub(super) struct Model<'a> {
    pub(super) graph: &'a Graph,
    pub(super) offers: &'a [Offer],
    pub(super) links: &'a Links,
    pub(super) options: &'a PlanOptions,
    /// Seconds of nodes `0..n` on each offer, infinite nodes left out: `seconds[offer][n]`.
    seconds: Vec<Vec<f64>>,
    /// Number of nodes among `0..n` that the offer does not run.
    unsupported: Vec<Vec<usize>>,
    /// Least seconds of nodes `0..n` over the offers: how much work they are.
    work: Vec<f64>,
    alive: Vec<u64>,
    travellers: Vec<Traveller>,
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

/// A division of the nodes into stretches: stretch `k` ends before node `ends[k]`, on `offers[k]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretches {
    pub(super) ends: Vec<usize>,
    pub(super) offers: Vec<usize>,
}

/// When each stretch runs.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    pub(super) start: Vec<f64>,
    pub(super) finish: Vec<f64>,
    pub(super) makespan: f64,
    pub(super) cost: f64,
}

impl Stretches {
    /// First node of stretch `k`.
    pub(super) fn begin(&self, k: usize) -> usize {
        if k == 0 { 0 } else { self.ends[k - 1] }
    }

    /// Stretch that holds `node`.
    pub(super) fn holder(&self, node: usize) -> usize {
        self.ends.partition_point(|&end| end <= node)
    }

    /// The same division without empty stretches, neighbours on one offer joined.
    pub(super) fn tidy(self) -> Self {
        let mut tidy = Self {
            ends: Vec::with_capacity(self.ends.len()),
            offers: Vec::with_capacity(self.ends.len()),
        };
        for (k, (&end, &offer)) in self.ends.iter().zip(&self.offers).enumerate() {
            let last = k + 1 == self.ends.len();
            if self.begin(k) == end && !(last && tidy.ends.is_empty()) {
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

    /// Number of different offers.
    pub(super) fn devices(&self) -> usize {
        let mut used = self.offers.clone();
        used.sort_unstable();
        used.dedup();
        used.len()
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        offers: &'a [Offer],
        links: &'a Links,
        options: &'a PlanOptions,
    ) -> Self {
        let times = |offer: &Offer| -> Vec<f64> {
            graph
                .nodes()
                .iter()
                .map(|node| node_seconds(node, offer))
                .collect()
        };
        let times: Vec<Vec<f64>> = offers.iter().map(times).collect();
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
            alive: graph.activation_bytes(),
            travellers: travellers(graph),
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.graph.nodes().len()
    }

    pub(super) fn travellers(&self) -> &[Traveller] {
        &self.travellers
    }

    /// Seconds of nodes `begin..end` on `offer`; infinite if it does not run one of them.
    pub(super) fn seconds(&self, offer: usize, begin: usize, end: usize) -> f64 {
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

    /// Bytes of weights that nodes `begin..end` read.
    pub(super) fn weight_bytes(&self, begin: usize, end: usize) -> u64 {
        let within = |value: &crate::graph::Value| {
            let first = value.readers.partition_point(|node| node.0 < begin);
            value.readers.get(first).is_some_and(|node| node.0 < end)
        };
        let values = self.graph.values().iter().filter(|value| within(value));
        values
            .filter_map(|value| value.weight())
            .map(|weight| weight.byte_length)
            .sum()
    }

    /// Weights and peak of activations of nodes `begin..end`.
    pub(super) fn memory_bytes(&self, begin: usize, end: usize) -> u64 {
        let peak = self.alive[begin..end].iter().max().copied().unwrap_or(0);
        self.weight_bytes(begin, end).saturating_add(peak)
    }

    /// Whether every stretch runs on its offer and fits its memory.
    pub(super) fn feasible(&self, stretches: &Stretches) -> bool {
        (0..stretches.ends.len()).all(|k| {
            let (begin, end, offer) = (stretches.begin(k), stretches.ends[k], stretches.offers[k]);
            self.seconds(offer, begin, end).is_finite()
                && self.memory_bytes(begin, end) <= self.offers[offer].memory_bytes
        })
    }

    /// Runs the stretches on paper. A device runs one stretch at a time, in order.
    pub(super) fn time(&self, stretches: &Stretches) -> Timing {
        let count = stretches.ends.len();
        let mut ready = vec![0.0f64; count];
        let mut free = vec![0.0f64; self.offers.len()];
        let mut timing = Timing {
            start: vec![0.0; count],
            finish: vec![0.0; count],
            makespan: 0.0,
            cost: 0.0,
        };
        self.arrivals_from_buyer(stretches, &mut ready);
        let leaving = self.leaving(stretches);
        for k in 0..count {
            let offer = stretches.offers[k];
            let start = ready[k].max(free[offer]);
            let busy = self.seconds(offer, stretches.begin(k), stretches.ends[k]);
            let finish = start + busy;
            free[offer] = finish;
            timing.start[k] = start;
            timing.finish[k] = finish;
            timing.cost += busy * self.offers[offer].cost_per_second;
            for &(to, bytes) in &leaving[k] {
                match to {
                    None => {
                        let back = finish + self.links.buyer[offer].seconds(bytes);
                        timing.makespan = timing.makespan.max(back);
                    }
                    Some(to) => {
                        let arrival = finish + self.hop(offer, stretches.offers[to], bytes);
                        ready[to] = ready[to].max(arrival);
                    }
                }
            }
            timing.makespan = timing.makespan.max(finish);
        }
        timing
    }

    /// Time of `bytes` from one offer to another; none within one.
    pub(super) fn hop(&self, from: usize, to: usize, bytes: u64) -> f64 {
        if from == to {
            return 0.0;
        }
        self.links.between[from][to].seconds(bytes)
    }

    fn arrivals_from_buyer(&self, stretches: &Stretches, ready: &mut [f64]) {
        let mut bytes = vec![0u64; ready.len()];
        for traveller in self
            .travellers
            .iter()
            .filter(|traveller| traveller.made.is_none())
        {
            for to in holders(stretches, &traveller.readers) {
                bytes[to] = bytes[to].saturating_add(traveller.bytes);
            }
        }
        for (k, ready) in ready.iter_mut().enumerate() {
            if self.options.weights == Weights::Sent {
                let weights = self.weight_bytes(stretches.begin(k), stretches.ends[k]);
                bytes[k] = bytes[k].saturating_add(weights);
            }
            let link = &self.links.buyer[stretches.offers[k]];
            *ready = if bytes[k] > 0 {
                link.seconds(bytes[k])
            } else {
                0.0
            };
        }
    }

    /// For each stretch, where its results go and how many bytes: `None` is the buyer.
    fn leaving(&self, stretches: &Stretches) -> Vec<Vec<(Option<usize>, u64)>> {
        let mut leaving = vec![Vec::new(); stretches.ends.len()];
        for traveller in &self.travellers {
            let Some(made) = traveller.made else { continue };
            let from = stretches.holder(made);
            let far = holders(stretches, &traveller.readers).filter(|&to| to != from);
            let back = traveller.job_output.then_some(None);
            for to in far.map(Some).chain(back) {
                add(&mut leaving[from], to, traveller.bytes);
            }
        }
        leaving
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

/// Stretches that hold any of `nodes`, ascending, each once.
pub(super) fn holders<'a>(
    stretches: &'a Stretches,
    nodes: &'a [usize],
) -> impl Iterator<Item = usize> + 'a {
    let mut last = None;
    nodes.iter().filter_map(move |&node| {
        let holder = stretches.holder(node);
        (last.replace(holder) != Some(holder)).then_some(holder)
    })
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

fn travellers(graph: &Graph) -> Vec<Traveller> {
    let moving = graph
        .values()
        .iter()
        .enumerate()
        .filter(|(_, value)| !value.is_constant());
    let travellers = moving.map(|(index, value)| Traveller {
        value: ValueId(index),
        made: match value.source {
            Source::Node(node) => Some(node.0),
            Source::Input | Source::Constant(_) => None,
        },
        readers: value.readers.iter().map(|node| node.0).collect(),
        bytes: value.fact.byte_length().unwrap_or(0),
        job_output: graph.outputs().contains(&ValueId(index)),
        portable: value.is_portable(),
    });
    travellers.collect()
}
