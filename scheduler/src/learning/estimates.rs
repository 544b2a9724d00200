//! Estimates the time of a graph's operators on each device, from its profile and from past runs.
//!
//! A profile states a few speeds, and operators reach different parts of them. Each run reports the
//! time of its fragments; each device's [`History`] records that time by operator, window, type and
//! size. So the next plan can tell a depthwise convolution from a dense one and a small product
//! from a large one. For a class that a history does not know, the estimate comes, with care, from
//! other classes of its operator, so that plans try it. For an unknown operator, it uses the
//! correction of the operator's kind ([`Speeds`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use souk_memory::DType;
use souk_onnx::work::{Extent, Work};
use souk_vocabulary::history::{self, JointMeasurement, Key, Part};
use souk_vocabulary::processor::Energy;

use super::core_sharing::CoreUse;
use super::device_histories::DeviceHistories;
use super::speeds::{Speeds, kind_of_class};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::planning::{Offer, node_seconds};

/// A plan is stale if present knowledge changes the time of its operators on a device by this part.
const STALE: f64 = 0.1;
/// Maximum number of different operators in a fragment whose time teaches the history anything.
const PARTS_MAX: usize = 256;

/// Operators of a fragment that share one key in the history.
pub(crate) struct OperatorShare {
    key: Key,
    count: u32,
    /// Total seconds by each device's profile, and the correction of that time to use if the
    /// history knows nothing better.
    modelled: Vec<f64>,
    prior: Arc<[f64]>,
}

impl OperatorShare {
    /// Returns the seconds on a device by its history of exactly this key.
    pub fn forecast_seconds(&self, device: usize, histories: &DeviceHistories) -> Option<f64> {
        let history = histories.history_for(device, CoreUse::Alone);
        history.expected_time(&self.key, self.modelled[device])
    }
}

/// Returns the measurement that a device's time for these operators yields, if they are few enough.
pub(crate) fn joint_measurement(
    shares: &[OperatorShare],
    device: usize,
    took: Duration,
    energy: Option<Energy>,
) -> Option<JointMeasurement> {
    let part = |share: &OperatorShare| Part {
        key: share.key.clone(),
        count: share.count,
        modelled: share.modelled[device],
        prior: share.prior[device],
    };
    let tells = !shares.is_empty() && shares.len() <= PARTS_MAX;
    tells.then(|| JointMeasurement {
        parts: shares.iter().map(part).collect(),
        seconds: took.as_secs_f64(),
        joules: energy.map(|energy| energy.joules),
    })
}

/// The operators of a graph that share one key, and the history's estimates of them.
struct AlikeOperators {
    key: Key,
    kind: u16,
    nodes: u32,
    /// Total seconds by each device's profile.
    stated: Vec<f64>,
    /// Factors for that time by device: as planned, and with the device's cores to itself.
    factor: Vec<f64>,
    alone: Arc<[f64]>,
}

/// The estimated times of a graph's operators on each device.
pub(crate) struct OperatorEstimates {
    alike: Vec<AlikeOperators>,
    of_node: Vec<Option<usize>>,
    /// Seconds by device and node: by the profile, and as expected.
    pub stated: Vec<Vec<f64>>,
    pub seconds: Vec<Vec<f64>>,
    /// Expected seconds with the device's cores to itself.
    pub alone: Vec<Vec<f64>>,
    /// The part that each device takes.
    pub core_use: Vec<CoreUse>,
    /// Whether the work of each node is known in advance.
    certain: Vec<bool>,
    /// The part of each device's time that past runs measured on the device alone.
    pub seen_alone: Vec<f64>,
    seen: AtomicU64,
}

impl OperatorEstimates {
    pub fn new(
        graph: &Graph,
        (offers, core_use): (&[Offer], Vec<CoreUse>),
        histories: &DeviceHistories,
        speeds: &Speeds,
    ) -> Self {
        let each = |offer: &Offer| -> Vec<f64> {
            let nodes = graph.nodes().iter();
            nodes.map(|node| node_seconds(node, offer)).collect()
        };
        let stated: Vec<Vec<f64>> = offers.iter().map(each).collect();
        let (mut alike, of_node) = group_nodes(graph, &stated);
        let slow: Vec<f64> = (0..offers.len())
            .map(|device| histories.slow_factor(device))
            .collect();
        for entry in &mut alike {
            let alone = (0..offers.len()).map(|device| {
                let estimate_from_others = || {
                    histories
                        .history_for(device, CoreUse::Alone)
                        .estimate_from_others(&entry.key)
                };
                let known = entry.known_factor(device, CoreUse::Alone, histories);
                let beside = || entry.known_factor(device, CoreUse::Beside, histories);
                let known = known.or_else(|| Some(beside()? / slow[device]));
                let known = known.or_else(estimate_from_others);
                known.unwrap_or_else(|| speeds.factor(entry.kind, device))
            });
            entry.alone = alone.collect();
            let known = core_use.iter().enumerate().map(|(device, &core_use)| {
                let alone = entry.alone[device];
                let known = || entry.known_factor(device, core_use, histories);
                match core_use {
                    CoreUse::Alone | CoreUse::Out => alone,
                    CoreUse::Beside => known().unwrap_or_else(|| alone * slow[device]),
                }
            });
            entry.factor = known.collect();
        }
        let rows = |of_entry: fn(&AlikeOperators, usize) -> f64| -> Vec<Vec<f64>> {
            let row = |(device, row): (usize, &Vec<f64>)| -> Vec<f64> {
                let nodes = graph.nodes().iter().zip(row).zip(&of_node);
                let each = nodes.map(|((node, seconds), entry)| {
                    let factor = match entry {
                        Some(entry) => of_entry(&alike[*entry], device),
                        None => speeds.factor(kind_of_class(node.cost.class), device),
                    };
                    seconds * factor
                });
                each.collect()
            };
            stated.iter().enumerate().map(row).collect()
        };
        Self {
            seconds: rows(|entry, device| entry.factor[device]),
            alone: rows(|entry, device| entry.alone[device]),
            seen_alone: seen_alone(&alike, &core_use, histories),
            core_use,
            certain: graph.nodes().iter().map(|node| node.cost.certain).collect(),
            alike,
            of_node,
            stated,
            seen: AtomicU64::new(histories.change_count()),
        }
    }

    /// Returns the expected seconds of some nodes on a device.
    pub fn sum(&self, device: usize, nodes: &[NodeId]) -> f64 {
        nodes.iter().map(|node| self.seconds[device][node.0]).sum()
    }

    /// Returns the time of some nodes with the device's cores to itself, as a part of the planned
    /// time.
    pub fn alone_fraction(&self, device: usize, nodes: &[NodeId]) -> f64 {
        let alone: f64 = nodes.iter().map(|node| self.alone[device][node.0]).sum();
        let part = alone / self.sum(device, nodes);
        if part.is_finite() { part } else { 1.0 }
    }

    /// Marks a node as unable to run on a device.
    pub fn bar_node(&mut self, device: usize, node: NodeId) {
        self.seconds[device][node.0] = f64::INFINITY;
        self.alone[device][node.0] = f64::INFINITY;
    }

    /// Returns whether the plan has devices that share cores compute together.
    pub fn is_contended(&self) -> bool {
        self.core_use.contains(&CoreUse::Beside)
    }

    /// Returns the factor from the profile's time of some nodes to their expected time.
    pub fn time_factor(&self, device: usize, nodes: &[NodeId]) -> f64 {
        let stated: f64 = nodes.iter().map(|node| self.stated[device][node.0]).sum();
        let factor = self.sum(device, nodes) / stated;
        if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            1.0
        }
    }

    /// Returns whether the work of all these nodes is known in advance.
    pub fn is_certain(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().all(|node| self.certain[node.0])
    }

    /// Returns all nodes of the graph as a single work with its own key.
    pub fn to_single_share(&self, key: Key) -> OperatorShare {
        let sums = |rows: &[Vec<f64>]| rows.iter().map(|row| row.iter().sum()).collect();
        let stated: Vec<f64> = sums(&self.stated);
        let expected: Vec<f64> = sums(&self.alone);
        let factors = expected.iter().zip(&stated);
        OperatorShare {
            key,
            count: 1,
            prior: factors
                .map(|(expected, stated)| expected / stated)
                .collect(),
            modelled: stated,
        }
    }

    /// Groups some nodes by their key in the history. Returns nothing if the work of one of them is
    /// unknown in advance, because then the total time says nothing of any node.
    pub fn operator_shares(&self, nodes: &[NodeId]) -> Vec<OperatorShare> {
        if !self.is_certain(nodes) {
            return Vec::new();
        }
        let mut shares: BTreeMap<usize, OperatorShare> = BTreeMap::new();
        for node in nodes {
            let Some(index) = self.of_node[node.0] else {
                continue;
            };
            let entry = &self.alike[index];
            let share = shares.entry(index).or_insert_with(|| OperatorShare {
                key: entry.key.clone(),
                count: 0,
                modelled: vec![0.0; self.stated.len()],
                prior: entry.alone.clone(),
            });
            share.count += 1;
            for (sum, row) in share.modelled.iter_mut().zip(&self.stated) {
                *sum += row[node.0];
            }
        }
        shares.into_values().collect()
    }

    /// Returns one device's part of shared nodes under the operator of the first node. `part` is
    /// its part of their work, `modelled` the seconds of that part by each device's profile.
    pub fn part_shares(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
        part: f64,
        modelled: Vec<f64>,
    ) -> Vec<OperatorShare> {
        let Some(index) = nodes.first().and_then(|node| self.of_node[node.0]) else {
            return Vec::new();
        };
        if !self.is_certain(nodes) {
            return Vec::new();
        }
        let entry = &self.alike[index];
        let Some((_, work)) = key(graph, graph.node(nodes[0])) else {
            return Vec::new();
        };
        let of = |amount: u64| (amount as f64 * part) as u64;
        let work = Work {
            operations: of(work.operations),
            bytes_written: of(work.bytes_written),
            ..work
        };
        vec![OperatorShare {
            key: Key::for_work(&entry.key.operator, &entry.key.class, &work),
            count: 1,
            modelled,
            prior: entry.alone.clone(),
        }]
    }

    /// Returns the present estimate of some nodes on a device divided by the plan's, or `None` if
    /// the history knows none of them.
    pub fn estimate_ratio(
        &self,
        device: usize,
        nodes: &[NodeId],
        histories: &DeviceHistories,
    ) -> Option<f64> {
        let change = |entry: &AlikeOperators| {
            let known = |core_use| entry.known_factor(device, core_use, histories);
            let planned = known(self.core_use[device]).map(|it| it / entry.factor[device]);
            planned.or_else(|| Some(known(CoreUse::Alone)? / entry.alone[device]))
        };
        self.time_ratio(nodes, &self.seconds[device], change)
    }

    /// Does the same for a device with its cores to itself.
    pub fn change_alone(
        &self,
        device: usize,
        nodes: &[NodeId],
        histories: &DeviceHistories,
    ) -> Option<f64> {
        let change = |entry: &AlikeOperators| {
            let known = entry.known_factor(device, CoreUse::Alone, histories)?;
            Some(known / entry.alone[device])
        };
        self.time_ratio(nodes, &self.alone[device], change)
    }

    /// Returns the changed time of some nodes divided by the plan's.
    fn time_ratio(
        &self,
        nodes: &[NodeId],
        row: &[f64],
        change: impl Fn(&AlikeOperators) -> Option<f64>,
    ) -> Option<f64> {
        let (mut believed, mut now, mut is_known) = (0.0, 0.0, false);
        for node in nodes {
            let entry = self.of_node[node.0].map(|index| &self.alike[index]);
            let change = entry.and_then(&change);
            let seconds = row[node.0];
            believed += seconds;
            now += seconds * change.unwrap_or(1.0);
            is_known |= change.is_some();
        }
        Some(now / believed).filter(|change| is_known && change.is_finite())
    }

    /// Returns whether present knowledge would still lead to this plan.
    pub fn is_fresh(&self, histories: &DeviceHistories) -> bool {
        if self.seen.load(Ordering::Relaxed) == histories.change_count() {
            return true;
        }
        let mut devices = 0..self.stated.len();
        let is_fresh = devices.all(|device| {
            let (mut sum, mut change) = (0.0, 0.0);
            for entry in &self.alike {
                let believed = entry.stated[device] * entry.factor[device];
                if !believed.is_finite() {
                    continue;
                }
                let known = entry.known_factor(device, self.core_use[device], histories);
                let now = known.map_or(believed, |factor| entry.stated[device] * factor);
                sum += believed;
                change += (now - believed).abs();
            }
            change <= STALE * sum
        });
        if is_fresh {
            self.seen.store(histories.change_count(), Ordering::Relaxed);
        }
        is_fresh
    }

    /// Returns the watts that a device draws for the graph: from its history, else from its own
    /// statement; none if neither is known.
    pub fn expected_watts(
        &self,
        device: usize,
        histories: &DeviceHistories,
        stated: Option<f64>,
    ) -> Option<f64> {
        let history = histories.history_for(device, CoreUse::Alone);
        let (mut joules, mut seconds) = (0.0, 0.0);
        for entry in &self.alike {
            let time = entry.stated[device] * entry.factor[device];
            if time.is_finite() {
                joules += time * history.expected_watts(&entry.key).or(stated)?;
                seconds += time;
            }
        }
        let watts = joules / seconds;
        if watts.is_finite() {
            Some(watts)
        } else {
            stated
        }
    }
}

impl AlikeOperators {
    /// Returns the factor for the profile's time according to a device's history.
    fn known_factor(
        &self,
        device: usize,
        core_use: CoreUse,
        histories: &DeviceHistories,
    ) -> Option<f64> {
        let each = self.stated[device] / f64::from(self.nodes);
        if !each.is_finite() || each <= 0.0 {
            return None;
        }
        let history = histories.history_for(device, core_use);
        Some(history.expected_time(&self.key, each)? / each)
    }
}

/// Returns the part of each device's time that past runs measured on the device alone.
fn seen_alone(
    alike: &[AlikeOperators],
    core_use: &[CoreUse],
    histories: &DeviceHistories,
) -> Vec<f64> {
    let part = |device: usize| {
        let (mut seen, mut sum) = (0.0, 0.0);
        for entry in alike {
            let seconds = entry.stated[device] * entry.alone[device];
            let known = entry.known_factor(device, CoreUse::Alone, histories);
            sum += seconds;
            seen += known.map_or(0.0, |_| seconds);
        }
        if sum > 0.0 { seen / sum } else { 1.0 }
    };
    (0..core_use.len()).map(part).collect()
}

/// Groups the nodes by their key in the history.
fn group_nodes(graph: &Graph, stated: &[Vec<f64>]) -> (Vec<AlikeOperators>, Vec<Option<usize>>) {
    let mut places: BTreeMap<Key, usize> = BTreeMap::new();
    let mut alike: Vec<AlikeOperators> = Vec::new();
    let mut of_node = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some((key, _)) = key(graph, node) else {
            of_node.push(None);
            continue;
        };
        let place = *places.entry(key).or_insert_with_key(|key| {
            alike.push(AlikeOperators {
                key: key.clone(),
                kind: kind_of_class(node.cost.class),
                nodes: 0,
                stated: vec![0.0; stated.len()],
                factor: Vec::new(),
                alone: Arc::default(),
            });
            alike.len() - 1
        });
        let entry = &mut alike[place];
        entry.nodes += 1;
        for (sum, row) in entry.stated.iter_mut().zip(stated) {
            *sum += row[index];
        }
        of_node.push(Some(place));
    }
    (alike, of_node)
}

/// Returns a node's key in the history and its work; `None` if its sizes are unknown or it does no
/// work.
pub(crate) fn key(graph: &Graph, node: &Node) -> Option<(Key, Work)> {
    let extent = |id: &ValueId| -> Option<(DType, Vec<usize>)> {
        let value = graph.value(*id);
        let dims = value.dims()?.into_iter().map(usize::try_from);
        Some((value.dtype()?, dims.collect::<Result<_, _>>().ok()?))
    };
    let mut given = Vec::with_capacity(node.inputs.len());
    for id in &node.inputs {
        let held = id.is_some_and(|id| graph.value(id).weight().is_some());
        given.push(match id {
            Some(id) => Some((extent(id)?, held)),
            None => None,
        });
    }
    let made: Option<Vec<_>> = node.outputs.iter().flatten().map(extent).collect();
    let made = made?;
    let given: Vec<Option<(Extent<'_>, bool)>> = given
        .iter()
        .map(|input| {
            input
                .as_ref()
                .map(|(extent, held)| (as_extent(extent), *held))
        })
        .collect();
    let inputs: Vec<Option<Extent<'_>>> = given
        .iter()
        .map(|input| input.map(|(extent, _)| extent))
        .collect();
    let made: Vec<Extent<'_>> = made.iter().map(as_extent).collect();
    let work = Work::for_node(&node.proto, &inputs, &made) + node.cost.bodies;
    let class = history::node_class(&node.proto, &given);
    (work.launches > 0).then(|| (Key::for_work(node.proto.op_type(), &class, &work), work))
}

fn as_extent((dtype, dims): &(DType, Vec<usize>)) -> Extent<'_> {
    Extent {
        dtype: *dtype,
        dims,
    }
}
