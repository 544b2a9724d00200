//! What runs jobs on one device, or on several of one owner that share each subgraph.

use std::path::Path;
use std::sync::Arc;

use souk_memory::Store;
use souk_scheduler::execution::{
    Clock, GroupConfig, GroupDevice, GroupError, Retrials, Runner, Sharing,
};
use souk_scheduler::planning::Objective;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

/// Tensors between the devices of a group in this process, in memory; more of them go to disk.
pub(crate) const GROUP_BYTES_MAX: u64 = 2 << 30;

/// Tensors between the devices of a group that memory has no room for.
const SPILL_BYTES_MAX: u64 = 16 << 30;

/// Where tensors between devices that share a subgraph may lie.
pub(crate) enum Between<'a> {
    /// In memory as far as the machine has some to spare, and beyond that in this folder.
    Folder(&'a Path),
    /// In so many bytes of memory: a process without a disk.
    Memory(u64),
}

/// What runs on one device, or on several that share each subgraph.
pub(crate) fn crew(
    (between, objective): (Between<'_>, Objective),
    name: &str,
    mut devices: Vec<Arc<dyn Processor>>,
    store: &Arc<Store>,
    clock: Arc<Clock>,
) -> Result<Runner, GroupError> {
    if devices.len() == 1 {
        let device = devices.remove(0);
        return Ok(Runner::new(name, device, store.clone(), clock));
    }
    let member = |(index, processor): (usize, Arc<dyn Processor>)| GroupDevice {
        label: member_label(name, index, processor.profile()),
        processor,
    };
    let members = devices.into_iter().enumerate().map(member).collect();
    let (host_bytes_max, spill) = match between {
        Between::Folder(home) => {
            let spill = (home.join("spill"), SPILL_BYTES_MAX);
            (GROUP_BYTES_MAX, Some(spill))
        }
        Between::Memory(bytes) => (bytes, None),
    };
    let config = GroupConfig {
        host_bytes_max,
        spill,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::trial),
        objective,
    };
    Runner::group(name, members, store.clone(), clock, config)
}

/// What a device of several is called.
pub(crate) fn member_label(name: &str, index: usize, profile: &Profile) -> String {
    format!("{name}/{index} {}", profile.name)
}
