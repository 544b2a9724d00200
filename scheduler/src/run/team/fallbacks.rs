//! What a device did not take of a run, and which one did.

use std::collections::BTreeMap;

use souk_devices::processor::CompileError;

use super::Member;
use super::laid::{Laid, Piece};
use crate::executor::Execution;
use crate::graph::{Graph, Node, NodeId, Wish};
use crate::report::Fallback;

/// Entries in a report: one for each device, operator and reason.
const FALLBACKS_MAX: usize = 64;

/// A node that a device does not take.
#[derive(Clone, Debug)]
pub(super) struct Lack {
    /// What it is called, or what was asked for where there is none.
    device: String,
    node: NodeId,
    /// None if it is not for one operator.
    operator: Option<String>,
    reason: String,
}

impl Lack {
    /// A piece that a device refused when it compiled it.
    pub fn refused(device: &str, piece: &Piece, why: &CompileError) -> Option<Self> {
        let (operator, reason) = match why {
            CompileError::Unsupported(it) => (Some(it.operator.clone()), it.reason.to_string()),
            other => (None, other.to_string()),
        };
        let numbered = piece.operators.iter().zip(&piece.nodes);
        let named = numbered
            .clone()
            .find(|(own, _)| operator.as_ref() == Some(*own));
        let (_, &node) = named.or(numbered.clone().next())?;
        Some(Self {
            device: device.to_owned(),
            node,
            operator,
            reason,
        })
    }

    /// A node that asks for what is not here.
    pub fn unmet(node: NodeId, asking: &Node, wish: &Wish<'_>) -> Self {
        Self {
            device: wish.to_string(),
            node,
            operator: Some(asking.operator()),
            reason: "no device here is that".to_owned(),
        }
    }
}

/// The nodes of a graph that members lack.
pub(super) fn lacks(members: &[Member], graph: &Graph) -> Vec<Lack> {
    let of = |member: &Member| -> Vec<Lack> {
        let lacked = graph.nodes().iter().enumerate().filter_map(|(node, it)| {
            let why = member.processor.supports(&it.proto).err()?;
            Some(Lack {
                device: member.label.clone(),
                node: NodeId(node),
                operator: Some(why.operator),
                reason: why.reason.to_string(),
            })
        });
        lacked.collect()
    };
    members.iter().flat_map(of).collect()
}

/// What a run's report says of them, and of what failed or was refused in the run.
pub(super) fn told(laid: &Laid, execution: &Execution, members: &[Member]) -> Vec<Fallback> {
    let label = |device: usize| members[device].label.clone();
    let mut told = Told::default();
    for lack in &laid.lacks {
        let of = |piece: &Piece| piece.nodes.contains(&lack.node);
        let piece = laid.pieces.iter().position(of);
        let by = piece.and_then(|piece| execution.places[piece]);
        let key = (
            lack.device.clone(),
            lack.operator.clone(),
            lack.reason.clone(),
        );
        told.count(key, by.map(label));
    }
    for (device, used) in execution.devices.iter().enumerate() {
        for (task, reason) in &used.refused {
            let by = execution.places[*task].map(label);
            for operator in &laid.pieces[*task].operators {
                let key = (label(device), Some(operator.clone()), reason.clone());
                told.count(key, by.clone());
            }
        }
        let Some(reason) = &used.failed else { continue };
        let others = execution.places.iter().flatten();
        for &other in others.filter(|other| **other != device) {
            told.count((label(device), None, reason.clone()), Some(label(other)));
        }
    }
    told.fallbacks()
}

/// Device, operator and reason.
type Key = (String, Option<String>, String);

#[derive(Default)]
struct Told(BTreeMap<Key, (u64, Vec<String>)>);

impl Told {
    fn count(&mut self, key: Key, by: Option<String>) {
        if self.0.len() >= FALLBACKS_MAX && !self.0.contains_key(&key) {
            return;
        }
        let (nodes, devices) = self.0.entry(key).or_default();
        *nodes += 1;
        if let Some(by) = by.filter(|by| !devices.contains(by)) {
            devices.push(by);
        }
    }

    fn fallbacks(self) -> Vec<Fallback> {
        let entry = |((device, operator, reason), (nodes, by))| Fallback {
            device,
            operator,
            nodes,
            reason,
            by,
        };
        self.0.into_iter().map(entry).collect()
    }
}
