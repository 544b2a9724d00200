//! Finds the parts of a graph that devices cannot run: nodes that they do not support, and programs
//! that they refuse to compile. Plans then leave these parts to other devices.

use souk_onnx::subgraph::CompileError;

use super::GroupDevice;
use super::fragment::Fragment;
use crate::graph::{DeviceRequirement, Graph, Node, NodeId};

/// A node that a device cannot run.
#[derive(Clone, Debug)]
pub(super) struct UnsupportedNode {
    /// Label of the device, or the request if no device meets it.
    pub device: String,
    pub node: NodeId,
    /// None if the reason is not a single operator.
    pub operator: Option<String>,
    pub reason: String,
}

impl UnsupportedNode {
    /// Describes a fragment that a device refused to compile.
    pub fn from_refusal(device: &str, fragment: &Fragment, why: &CompileError) -> Option<Self> {
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

    /// Describes a node that asks for a device that the group lacks.
    pub fn from_unmet_requirement(
        node: NodeId,
        asking: &Node,
        requirement: &DeviceRequirement<'_>,
    ) -> Self {
        Self {
            device: requirement.to_string(),
            node,
            operator: Some(asking.operator_name()),
            reason: "no device here is that".to_owned(),
        }
    }
}

/// Returns the nodes of a graph that devices do not support.
pub(super) fn find_lacks(members: &[GroupDevice], graph: &Graph) -> Vec<UnsupportedNode> {
    let of = |member: &GroupDevice| -> Vec<UnsupportedNode> {
        let lacked = graph.nodes().iter().enumerate().filter_map(|(node, it)| {
            let why = member.processor.check_support(&it.proto).err()?;
            Some(UnsupportedNode {
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

/// Returns whether a device lacked room.
pub(super) fn is_full(error: &CompileError) -> bool {
    matches!(error, CompileError::OutOfMemory { .. })
}

/// Returns whether another device can accept a program that one refused with this error.
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
