//! What devices do not take of a graph: nodes they lack, and programs they refuse.

use souk_onnx::subgraph::CompileError;

use super::GroupDevice;
use super::fragment::Fragment;
use crate::graph::{Graph, Node, NodeId, Wish};

/// A node that a device does not take.
#[derive(Clone, Debug)]
pub(super) struct Lack {
    /// What it is called, or what was asked for where there is none.
    pub device: String,
    pub node: NodeId,
    /// None if it is not for one operator.
    pub operator: Option<String>,
    pub reason: String,
}

impl Lack {
    /// A fragment that a device refused when it compiled it.
    pub fn refused(device: &str, fragment: &Fragment, why: &CompileError) -> Option<Self> {
        let (operator, reason) = match why {
            CompileError::Unsupported(it) => (Some(it.operator.clone()), it.reason.to_string()),
            other => (None, other.to_string()),
        };
        let numbered = fragment.operators.iter().zip(&fragment.nodes);
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

/// The nodes of a graph that devices lack.
pub(super) fn lacks(members: &[GroupDevice], graph: &Graph) -> Vec<Lack> {
    let of = |member: &GroupDevice| -> Vec<Lack> {
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

/// Whether a device had no room.
pub(super) fn is_full(error: &CompileError) -> bool {
    matches!(error, CompileError::OutOfMemory { .. })
}

/// Whether another device may take what one refused so.
pub(super) fn is_the_devices(error: &CompileError) -> bool {
    match error {
        CompileError::Unsupported(_)
        | CompileError::OutOfMemory { .. }
        | CompileError::Engine { .. } => true,
        CompileError::Decode(_)
        | CompileError::WeightMissing { .. }
        | CompileError::WeightMismatch { .. }
        | CompileError::WeightPlace { .. }
        | CompileError::Weight(_)
        | CompileError::Port { .. }
        | CompileError::Dangling { .. }
        | CompileError::DeviceLost { .. } => false,
    }
}
