//! Lists in a run's report the work that a device could not do or failed to do, and the device that
//! did it instead.

use std::collections::BTreeMap;

use super::GroupDevice;
use super::execution_plan::ExecutionPlan;
use super::fragment::Fragment;
use crate::execution::report::Fallback;
use crate::execution::worker_pool::Execution;

/// Maximum number of entries in a report: one for each device, operator and reason. The report will
/// omit further ones.
const FALLBACKS_MAX: usize = 64;

/// Returns the report entries for features that devices lack, and for failures and refusals during
/// the run.
pub(super) fn collect_fallbacks(
    plan: &ExecutionPlan,
    execution: &Execution,
    members: &[GroupDevice],
) -> Vec<Fallback> {
    let label = |device: usize| members[device].label.clone();
    let mut told = FallbackCounts::default();
    for lack in &plan.lacks {
        let of = |fragment: &Fragment| fragment.nodes.contains(&lack.node);
        let fragment = plan.fragments.iter().position(of);
        let by = fragment.and_then(|fragment| execution.places[fragment]);
        let key = (
            lack.device.clone(),
            lack.operator.clone(),
            lack.reason.clone(),
        );
        told.count_fallback(key, by.map(label));
    }
    for (device, used) in execution.devices.iter().enumerate() {
        for (task, reason) in &used.refused {
            let by = execution.places[*task].map(label);
            for operator in &plan.fragments[*task].operators {
                let key = (label(device), Some(operator.clone()), reason.clone());
                told.count_fallback(key, by.clone());
            }
        }
        let Some(reason) = &used.failed else { continue };
        let others = execution.places.iter().flatten();
        for &other in others.filter(|other| **other != device) {
            told.count_fallback((label(device), None, reason.clone()), Some(label(other)));
        }
    }
    told.into_fallbacks()
}

/// Device, operator and reason.
type FallbackKey = (String, Option<String>, String);

#[derive(Default)]
struct FallbackCounts(BTreeMap<FallbackKey, (u64, Vec<String>)>);

impl FallbackCounts {
    fn count_fallback(&mut self, key: FallbackKey, by: Option<String>) {
        if self.0.len() >= FALLBACKS_MAX && !self.0.contains_key(&key) {
            return;
        }
        let (nodes, devices) = self.0.entry(key).or_default();
        *nodes += 1;
        if let Some(by) = by.filter(|by| !devices.contains(by)) {
            devices.push(by);
        }
    }

    fn into_fallbacks(self) -> Vec<Fallback> {
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
