//! Builds the runner (which executes graphs) for a provider's jobs: over one device, or over
//! several devices of one owner that share the work of each subgraph.

use std::path::Path;
use std::sync::Arc;

use souk_memory::Store;
use souk_scheduler::execution::{
    Clock, GroupConfig, GroupDevice, GroupError, Retrials, Runner, Sharing,
};
use souk_scheduler::planning::Objective;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::profile::Profile;

/// The most bytes of tensors between the devices of a group in this process; the rest goes to disk.
pub const GROUP_BYTES_MAX: u64 = 2 << 30;

/// The most bytes of such tensors on disk.
const SPILL_BYTES_MAX: u64 = 16 << 30;

/// The place of tensors between devices that share a subgraph.
pub enum Between<'a> {
    /// In memory up to a limit, and beyond that in this folder.
    Folder(&'a Path),
    /// In this many bytes of memory, because the process has no disk.
    Memory(u64),
}

/// Returns a runner for one device, or for several that share each subgraph.
///
/// # Errors
/// When the devices cannot work together.
pub fn build_runner(
    between: Between<'_>,
    objective: Objective,
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
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective,
    };
    Runner::new_group(name, members, store.clone(), clock, config)
}

/// Returns the label of a device in a group.
pub fn member_label(name: &str, index: usize, profile: &Profile) -> String {
    format!("{name}/{index} {}", profile.name)
}
