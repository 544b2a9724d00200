//! Applies requirements for devices, which a model's metadata states for single nodes: if a device
//! that a node asks for can run it, all others are barred from it. The group calls this before it
//! plans.

use std::collections::BTreeSet;

use super::GroupDevice;
use super::group_problem::GroupProblem;
use super::refusals::UnsupportedNode;
use crate::graph::NodeId;

/// Bars each node that asks for a device from all other devices, unless no such device can run it:
/// those in `barred` refused it, those in `lost` have failed. Returns the requests for devices that
/// the group does not have.
pub(super) fn restrict_devices(
    group: &mut GroupProblem,
    members: &[GroupDevice],
    barred: &BTreeSet<(usize, NodeId)>,
    lost: u64,
) -> Vec<UnsupportedNode> {
    let graph = group.graph.clone();
    let mut unmet = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(requirement) = node.device_requirement() else {
            continue;
        };
        let id = NodeId(index);
        let meant = |device: usize| requirement.is_met_by(members[device].processor.profile());
        let takes = |device: usize| {
            lost >> device & 1 == 0
                && !barred.contains(&(device, id))
                && members[device].processor.check_support(&node.proto).is_ok()
        };
        let devices = 0..members.len();
        if devices.clone().any(|device| meant(device) && takes(device)) {
            group.has_requirements = true;
            for device in devices.filter(|&device| !meant(device)) {
                group.known.bar_node(device, id);
            }
        } else if !devices.clone().any(meant) {
            unmet.push(UnsupportedNode::from_unmet_requirement(
                id,
                node,
                &requirement,
            ));
        }
    }
    unmet
}
