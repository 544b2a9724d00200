//! Describes which devices share cores of this machine and so slow each other, and lists the
//! arrangements that plans should compare: one of these devices alone, or all of them, each slower.
//!
//! A software GPU, for example, computes on the cores of the CPU device. So a device's time next to
//! another differs from its time alone. The histories learn both, each from runs of its kind, and
//! plans distinguish them.

use std::num::NonZeroUsize;

/// The part that a device takes in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreUse {
    /// The device has its cores to itself, if it needs any.
    Alone,
    /// The device computes while others use its cores.
    Beside,
    /// The device takes no part.
    Out,
}

/// The devices that together have too few cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Cores {
    shared: Vec<bool>,
    /// Factor by which sharing slows each device, until measurements replace it: the geometric mean
    /// of one and the number of threads for each core, so that plans try sharing where it pays.
    pub slow: f64,
}

impl Cores {
    /// Creates the core counts of devices that use this many cores each, on this machine.
    pub fn for_this_machine(used: &[usize]) -> Self {
        let available = std::thread::available_parallelism();
        Self::new(used, available.map_or(1, NonZeroUsize::get))
    }

    /// Creates the core counts of devices that use this many cores each, on a machine with
    /// `available` cores.
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

    /// Returns whether others can compute on a device's cores.
    pub fn is_shared(&self, device: usize) -> bool {
        self.shared[device]
    }

    /// Returns the arrangements to plan: with one of the devices that share cores, or with all of
    /// them, each slower.
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

/// Returns the expected time of a work that takes `alone` with its cores to itself and `beside`
/// next to others, if it runs next to others for `part` of its time.
pub(crate) fn mixed_time(alone: f64, beside: f64, part: f64) -> f64 {
    alone / (1.0 - part + part * alone / beside)
}
