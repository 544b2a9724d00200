//! What the operators of a graph take on each member: by its profile, and as it really was.
//!
//! A profile states a few speeds, and operators reach different parts of them. Each run tells what
//! its pieces took; each member's [`History`] keeps that by operator, window, type and size, so
//! that the next plan knows a depthwise convolution from a dense one and a small product from a
//! large. A class it knows nothing of is foretold with care from the others of its operator, so
//! that it is tried; an operator it knows nothing of is corrected like others of its kind
//! ([`Speeds`]).

mod sums;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk_devices::history::{self, History, Key, Part, Together};
use souk_devices::processor::Energy;
use souk_devices::work::{Extent, Work};
use souk_memory::DType;

use super::Member;
use super::cores::{Cores, Standing, mixed};
use super::offers::kind;
use crate::executor::Speeds;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::plan::{Offer, node_seconds};

/// What a member's name has beside it where its history is of times when others computed on its
/// cores.
const BESIDE: &str = ", beside others on its cores";
/// The part of its time beside others from which on a piece tells what that takes.
const MOSTLY: f64 = 0.5;
/// A plan is made anew when what is known of its operators now has changed their time on a device
/// by this part.
const STALE: f64 = 0.1;
/// Operators that are told apart in what one piece took; beyond them it says nothing of any.
const PARTS_MAX: usize = 256;
/// Bytes of what a device is called.
const NAME_BYTES_MAX: usize = 1024;
/// Devices whose history is kept.
const DEVICES_MAX: usize = 256;

/// What devices were seen to take, by what they are called with their model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    devices: BTreeMap<String, History>,
}

/// What a device took for some operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// What it is called with its model.
    pub device: String,
    /// The operators, and their time.
    pub measured: Together,
}

impl Costs {
    /// Whether runs can have taught it: what a file says may be damaged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.devices.len() <= DEVICES_MAX && self.devices.values().all(History::is_sound)
    }

    /// Takes in what a run told.
    pub fn learn(&mut self, learned: &Learned) {
        let is_new = !self.devices.contains_key(&learned.device);
        let is_named = learned.device.len() <= NAME_BYTES_MAX;
        if !is_named || (is_new && self.devices.len() >= DEVICES_MAX) {
            return;
        }
        for (device, history) in &mut self.devices {
            if *device != learned.device {
                history.pass_over();
            }
        }
        let history = self.devices.entry(learned.device.clone()).or_default();
        history.learn_together(&learned.measured);
    }

    /// The devices and their histories.
    #[cfg(test)]
    pub(super) fn devices(&self) -> impl Iterator<Item = (&String, &History)> {
        self.devices.iter()
    }

    /// The history of a device, if there is one.
    #[must_use]
    pub fn of(&self, device: &str) -> Option<&History> {
        self.devices.get(device)
    }
}

/// What a device is called with its model.
fn called(label: &str, model: &str) -> String {
    format!("{label}: {model}")
}

/// The members' histories.
pub(super) struct Ledger {
    names: Vec<String>,
    histories: Vec<History>,
    cores: Cores,
    /// What each took while others computed on its cores.
    beside: Vec<History>,
    /// How often there was news for plans, and how many pieces told what they took.
    news: u64,
    told: u64,
}

impl Ledger {
    pub fn new(members: &[Member], cores: Cores) -> Self {
        let name = |member: &Member| called(&member.label, &member.processor.profile().model);
        Self {
            names: members.iter().map(name).collect(),
            histories: vec![History::default(); members.len()],
            beside: vec![History::default(); members.len()],
            cores,
            news: 0,
            told: 0,
        }
    }

    /// Goes on from what was kept.
    pub fn recall(&mut self, costs: &Costs) {
        let beside = self.names.iter().map(|name| format!("{name}{BESIDE}"));
        let names = self.names.iter().cloned().chain(beside);
        let histories = self.histories.iter_mut().chain(&mut self.beside);
        for (name, history) in names.zip(histories) {
            if let Some(kept) = costs.of(&name) {
                history.clone_from(kept);
            }
        }
        self.news += 1;
    }

    pub fn costs(&self) -> Costs {
        let names = self.names.iter().cloned();
        let alone = names.zip(self.histories.iter().cloned());
        let sharing = (0..self.names.len()).filter(|&device| self.cores.shares(device));
        let beside = sharing.map(|device| {
            let name = format!("{}{BESIDE}", self.names[device]);
            (name, self.beside[device].clone())
        });
        let known = beside.filter(|(_, history)| !history.records().is_empty());
        Costs {
            devices: alone.chain(known).collect(),
        }
    }

    /// Takes in what a member took for a piece, `part` of that time beside others on its cores, and
    /// says it. What a piece is off by goes to what most of its time was.
    pub fn learn(&mut self, device: usize, mut measured: Together, part: f64) -> Learned {
        self.told += 1;
        self.pass_over(device);
        if !self.cores.shares(device) || part <= 0.0 {
            self.news += u64::from(self.histories[device].learn_together(&measured));
            return Learned {
                device: self.names[device].clone(),
                measured,
            };
        }
        let slow = self.slow(device);
        let alone = &mut self.histories[device];
        let mut slower = measured.clone();
        for part in &mut slower.parts {
            part.prior = alone.correction(part) * slow;
        }
        let beside = &mut self.beside[device];
        let of_alone = alone.expected_together(&measured.parts);
        let of_beside = beside.expected_together(&slower.parts);
        let ratio = measured.seconds / mixed(of_alone, of_beside, part);
        let (name, history) = match part < MOSTLY {
            true => (String::new(), alone),
            false => (BESIDE.to_owned(), beside),
        };
        if part < MOSTLY {
            measured.seconds = of_alone * ratio;
        } else {
            slower.seconds = of_beside * ratio;
            measured = slower;
        }
        self.news += u64::from(history.learn_together(&measured));
        Learned {
            device: format!("{}{name}", self.names[device]),
            measured,
        }
    }

    /// A member told what it took, and the others did not: of one that was given nothing for long
    /// it may be news that it is tried again.
    fn pass_over(&mut self, told: usize) {
        for histories in [&mut self.histories, &mut self.beside] {
            let others = histories.iter_mut().enumerate();
            let others = others.filter(|(member, _)| *member != told);
            let tried = others.filter_map(|(_, history)| history.pass_over().then_some(()));
            self.news += tried.count() as u64;
        }
    }

    /// How many times as long a member takes beside others on its cores where that is not known:
    /// the mean of what is known both ways.
    fn slow(&self, device: usize) -> f64 {
        let seen = self.beside[device].over(&self.histories[device]);
        seen.map_or(self.cores.slow, |seen| seen.max(1.0))
    }

    /// How many pieces have told what they took.
    pub fn told(&self) -> u64 {
        self.told
    }
}

/// Operators of a piece that are one to history.
pub(in crate::run) struct Share {
    key: Key,
    count: u32,
    /// Seconds of all of them by each member's profile, and what it was corrected by unless more
    /// was known.
    modelled: Vec<f64>,
    prior: Arc<[f64]>,
}

/// What a member's time for these operators says.
pub(super) fn measured(
    shares: &[Share],
    device: usize,
    took: Duration,
    energy: Option<Energy>,
) -> Option<Together> {
    let part = |share: &Share| Part {
        key: share.key.clone(),
        count: share.count,
        modelled: share.modelled[device],
        prior: share.prior[device],
    };
    let tells = !shares.is_empty() && shares.len() <= PARTS_MAX;
    tells.then(|| Together {
        parts: shares.iter().map(part).collect(),
        seconds: took.as_secs_f64(),
        joules: energy.map(|energy| energy.joules),
    })
}

/// The operators of a graph that are one to history, and what that says of them.
struct Alike {
    key: Key,
    kind: u16,
    nodes: u32,
    /// Seconds of all of them by each member's profile.
    stated: Vec<f64>,
    /// What that is multiplied by, and what it is where nobody else computes on the member's cores.
    factor: Vec<f64>,
    alone: Arc<[f64]>,
}

/// What is known of a graph's operators.
pub(in crate::run) struct Known {
    alike: Vec<Alike>,
    of_node: Vec<Option<usize>>,
    /// By member and node: by the profile, and expected.
    pub stated: Vec<Vec<f64>>,
    pub seconds: Vec<Vec<f64>>,
    /// Expected where nobody else computes on the member's cores.
    pub alone: Vec<Vec<f64>>,
    /// How each member takes part.
    pub standing: Vec<Standing>,
    /// The part of each member's time that it was seen to take by itself.
    pub seen_alone: Vec<f64>,
    seen: AtomicU64,
}

impl Known {
    pub fn new(
        graph: &Graph,
        (offers, standing): (&[Offer], Vec<Standing>),
        ledger: &Ledger,
        speeds: &Speeds,
    ) -> Self {
        let each = |offer: &Offer| -> Vec<f64> {
            let nodes = graph.nodes().iter();
            nodes.map(|node| node_seconds(node, offer)).collect()
        };
        let stated: Vec<Vec<f64>> = offers.iter().map(each).collect();
        let (mut alike, of_node) = gather(graph, &stated);
        let slow: Vec<f64> = (0..offers.len())
            .map(|device| ledger.slow(device))
            .collect();
        for entry in &mut alike {
            let alone = (0..offers.len()).map(|device| {
                let by_others = || ledger.histories[device].by_others(&entry.key);
                let known = entry.known(device, Standing::Alone, ledger);
                let beside = || entry.known(device, Standing::Beside, ledger);
                let known = known.or_else(|| Some(beside()? / slow[device]));
                let known = known.or_else(by_others);
                known.unwrap_or_else(|| speeds.factor(entry.kind, device))
            });
            entry.alone = alone.collect();
            let known = standing.iter().enumerate().map(|(device, &standing)| {
                let alone = entry.alone[device];
                let known = || entry.known(device, standing, ledger);
                match standing {
                    Standing::Alone | Standing::Out => alone,
                    Standing::Beside => known().unwrap_or_else(|| alone * slow[device]),
                }
            });
            entry.factor = known.collect();
        }
        let rows = |of_entry: fn(&Alike, usize) -> f64| -> Vec<Vec<f64>> {
            let row = |(device, row): (usize, &Vec<f64>)| -> Vec<f64> {
                let nodes = graph.nodes().iter().zip(row).zip(&of_node);
                let each = nodes.map(|((node, seconds), entry)| {
                    let factor = match entry {
                        Some(entry) => of_entry(&alike[*entry], device),
                        None => speeds.factor(kind(node.cost.class), device),
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
            seen_alone: seen_alone(&alike, &standing, ledger),
            standing,
            alike,
            of_node,
            stated,
            seen: AtomicU64::new(ledger.news),
        }
    }

    /// Seconds of some nodes on a member.
    pub fn sum(&self, device: usize, nodes: &[NodeId]) -> f64 {
        nodes.iter().map(|node| self.seconds[device][node.0]).sum()
    }

    /// What a member takes for some nodes with its cores to itself, of what it takes as planned.
    pub fn alone(&self, device: usize, nodes: &[NodeId]) -> f64 {
        let alone: f64 = nodes.iter().map(|node| self.alone[device][node.0]).sum();
        let part = alone / self.sum(device, nodes);
        if part.is_finite() { part } else { 1.0 }
    }

    /// A node does not run on a member.
    pub fn bar(&mut self, device: usize, node: NodeId) {
        self.seconds[device][node.0] = f64::INFINITY;
        self.alone[device][node.0] = f64::INFINITY;
    }

    /// Whether members are to compute on the same cores.
    pub fn is_contended(&self) -> bool {
        self.standing.contains(&Standing::Beside)
    }

    /// What a member's profile is off by for some nodes that it runs.
    pub fn factor(&self, device: usize, nodes: &[NodeId]) -> f64 {
        let stated: f64 = nodes.iter().map(|node| self.stated[device][node.0]).sum();
        let factor = self.sum(device, nodes) / stated;
        if factor.is_finite() && factor > 0.0 {
            factor
        } else {
            1.0
        }
    }

    /// Some nodes as history tells them apart.
    pub fn shares(&self, nodes: &[NodeId]) -> Vec<Share> {
        let mut shares: BTreeMap<usize, Share> = BTreeMap::new();
        for node in nodes {
            let Some(index) = self.of_node[node.0] else {
                continue;
            };
            let entry = &self.alike[index];
            let share = shares.entry(index).or_insert_with(|| Share {
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

    /// A part of some nodes that are shared out, told apart as its first: `part` of their work,
    /// which takes so many seconds by each member's profile.
    pub fn part(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
        part: f64,
        modelled: Vec<f64>,
    ) -> Vec<Share> {
        let Some(index) = nodes.first().and_then(|node| self.of_node[node.0]) else {
            return Vec::new();
        };
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
        vec![Share {
            key: Key::of(&entry.key.operator, &entry.key.class, &work),
            count: 1,
            modelled,
            prior: entry.alone.clone(),
        }]
    }

    /// What a member takes for some nodes by what is known now, of what was believed; `None` if
    /// nothing is known of any.
    pub fn change(&self, device: usize, nodes: &[NodeId], ledger: &Ledger) -> Option<f64> {
        let change = |entry: &Alike| {
            let known = |standing| entry.known(device, standing, ledger);
            let planned = known(self.standing[device]).map(|it| it / entry.factor[device]);
            planned.or_else(|| Some(known(Standing::Alone)? / entry.alone[device]))
        };
        self.changed(nodes, &self.seconds[device], change)
    }

    /// The same with the member's cores to itself.
    pub fn change_alone(&self, device: usize, nodes: &[NodeId], ledger: &Ledger) -> Option<f64> {
        let change = |entry: &Alike| {
            let known = entry.known(device, Standing::Alone, ledger)?;
            Some(known / entry.alone[device])
        };
        self.changed(nodes, &self.alone[device], change)
    }

    /// The time of some nodes, each changed so, of what was believed.
    fn changed(
        &self,
        nodes: &[NodeId],
        row: &[f64],
        change: impl Fn(&Alike) -> Option<f64>,
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

    /// Whether what is known now would still make this plan.
    pub fn is_fresh(&self, ledger: &Ledger) -> bool {
        if self.seen.load(Ordering::Relaxed) == ledger.news {
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
                let known = entry.known(device, self.standing[device], ledger);
                let now = known.map_or(believed, |factor| entry.stated[device] * factor);
                sum += believed;
                change += (now - believed).abs();
            }
            change <= STALE * sum
        });
        if is_fresh {
            self.seen.store(ledger.news, Ordering::Relaxed);
        }
        is_fresh
    }
}

impl Alike {
    /// What a member's history says to multiply its profile's time with.
    fn known(&self, device: usize, standing: Standing, ledger: &Ledger) -> Option<f64> {
        let each = self.stated[device] / f64::from(self.nodes);
        if !each.is_finite() || each <= 0.0 {
            return None;
        }
        let history = match standing {
            Standing::Alone | Standing::Out => &ledger.histories[device],
            Standing::Beside => &ledger.beside[device],
        };
        Some(history.foretold(&self.key, each)? / each)
    }
}

/// The part of each member's time of which it was seen what that takes alone.
fn seen_alone(alike: &[Alike], standing: &[Standing], ledger: &Ledger) -> Vec<f64> {
    let part = |device: usize| {
        let (mut seen, mut sum) = (0.0, 0.0);
        for entry in alike {
            let seconds = entry.stated[device] * entry.alone[device];
            let known = entry.known(device, Standing::Alone, ledger);
            sum += seconds;
            seen += known.map_or(0.0, |_| seconds);
        }
        if sum > 0.0 { seen / sum } else { 1.0 }
    };
    (0..standing.len()).map(part).collect()
}

/// The nodes by what they are to history.
fn gather(graph: &Graph, stated: &[Vec<f64>]) -> (Vec<Alike>, Vec<Option<usize>>) {
    let mut places: BTreeMap<Key, usize> = BTreeMap::new();
    let mut alike: Vec<Alike> = Vec::new();
    let mut of_node = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some((key, _)) = key(graph, node) else {
            of_node.push(None);
            continue;
        };
        let place = *places.entry(key).or_insert_with_key(|key| {
            alike.push(Alike {
                key: key.clone(),
                kind: kind(node.cost.class),
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

/// What history calls a node, and its work; `None` where its sizes are not known, or it does
/// nothing.
fn key(graph: &Graph, node: &Node) -> Option<(Key, Work)> {
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
        .map(|input| input.as_ref().map(|(extent, held)| (seen(extent), *held)))
        .collect();
    let inputs: Vec<Option<Extent<'_>>> = given
        .iter()
        .map(|input| input.map(|(extent, _)| extent))
        .collect();
    let made: Vec<Extent<'_>> = made.iter().map(seen).collect();
    let work = Work::of(&node.proto, &inputs, &made) + node.cost.bodies;
    let class = history::class(&node.proto, &given);
    (work.launches > 0).then(|| (Key::of(node.proto.op_type(), &class, &work), work))
}

fn seen((dtype, dims): &(DType, Vec<usize>)) -> Extent<'_> {
    Extent {
        dtype: *dtype,
        dims,
    }
}

#[cfg(test)]
mod tests;
