//! Determines which devices of a group share cores of this machine and so slow each other, and
//! lists the arrangements that the planner compares: each of these devices alone, or all of them,
//! each slower.
//!
//! A software GPU, for example, computes on the cores of the CPU device. So a device takes longer
//! while another one uses its cores. The planner keeps a history of measured times for each case.

use std::num::NonZeroUsize;

/// States whether a device computes in a plan, and whether other devices use its cores at the same
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreUse {
    /// The device computes and has its cores to itself, or needs none.
    Alone,
    /// The device computes while other devices use its cores.
    Beside,
    /// The device does not compute.
    Out,
}

/// The devices of a group that share cores, because the machine has fewer cores than all of them
/// use together.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreSharing {
    shared: Vec<bool>,
    /// The factor by which sharing is assumed to slow each device, until measurements replace it; 1
    /// if no devices share cores. It is the square root of the threads per core, less than the full
    /// slowdown, so that plans try sharing where it can pay.
    pub slow: f64,
}

impl CoreSharing {
    /// Determines the sharing between devices that use this many cores each, on this machine.
    pub fn for_this_machine(used: &[usize]) -> Self {
        let available = std::thread::available_parallelism();
        Self::new(used, available.map_or(1, NonZeroUsize::get))
    }

    /// Determines the sharing between devices that use this many cores each (0 for none), on a
    /// machine with `available` cores.
    pub fn new(used: &[usize], available: usize) -> Self {
        let sum: usize = used.iter().sum();
        let shared: Vec<bool> = used
            .iter()
            .map(|&used| used > 0 && sum > available)
            .collect();
        let slow = (sum as f64 / available.max(1) as f64).sqrt();
        match shared.iter().filter(|shared| **shared).count() {
            0 | 1 => Self {
                shared: vec![false; used.len()],
                slow: 1.0,
            },
            _ => Self { shared, slow },
        }
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> usize {
        self.shared.len()
    }

    /// Returns whether the device shares its cores with other devices.
    pub fn is_shared(&self, device: usize) -> bool {
        self.shared[device]
    }

    /// Returns the arrangements to compare, each with the use of cores by device: one for each
    /// device that shares cores, without the others of them, and one with all of them. Devices that
    /// share no cores compute in every arrangement.
    pub fn arrangements(&self) -> Vec<Vec<CoreUse>> {
        let sharing: Vec<usize> = (0..self.shared.len())
            .filter(|&device| self.shared[device])
            .collect();
        if sharing.is_empty() {
            return vec![vec![CoreUse::Alone; self.shared.len()]];
        }
        let arrangement = |of_sharing: &dyn Fn(usize) -> CoreUse| -> Vec<CoreUse> {
            let devices = self.shared.iter().enumerate();
            let each = devices.map(|(device, &shared)| match shared {
                true => of_sharing(device),
                false => CoreUse::Alone,
            });
            each.collect()
        };
        let with_one = sharing.iter().map(|&one| {
            arrangement(&|device| match device == one {
                true => CoreUse::Alone,
                false => CoreUse::Out,
            })
        });
        with_one
            .chain([arrangement(&|_| CoreUse::Beside)])
            .collect()
    }
}

/// Returns the expected time of a computation that shares its cores for the fraction `part` of that
/// time, from its time if it never shares them (`alone`) and its time if it always does (the second
/// argument); all three times have the same unit.
pub(crate) fn mixed_time(alone: f64, beside: f64, part: f64) -> f64 {
    alone / (1.0 - part + part * alone / beside)
}
