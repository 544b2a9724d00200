//! Devices whose work the same cores of this machine do, and who so slow each other.
//!
//! A software GPU computes on the cores that the CPU beside it computes on. What a device takes
//! beside another is therefore another thing than what it takes by itself: both are learned, each
//! from runs of its kind, and plans tell them apart.

use std::num::NonZeroUsize;

/// How a device takes part in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// With its cores to itself, if it needs any.
    Alone,
    /// While others compute on its cores.
    Beside,
    /// Not at all.
    Out,
}

/// Which devices have too few cores together.
#[derive(Clone, Debug, PartialEq)]
pub struct Cores {
    shared: Vec<bool>,
    /// What each takes longer beside the others by, until that was seen: half way between nothing
    /// and as many times as there are threads for each core, so that it is tried where that pays.
    pub slow: f64,
}

impl Cores {
    /// Of devices that compute on so many cores each, on this machine.
    pub fn here(used: &[usize]) -> Self {
        let available = std::thread::available_parallelism();
        Self::new(used, available.map_or(1, NonZeroUsize::get))
    }

    /// Of devices that compute on so many cores each, on a machine that has so many.
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

    /// Devices it is of.
    pub fn devices(&self) -> usize {
        self.shared.len()
    }

    /// Whether others compute on a device's cores.
    pub fn shares(&self, device: usize) -> bool {
        self.shared[device]
    }

    /// The ways to plan: with one of those who share cores, or with all of them, each slower.
    pub fn arrangements(&self) -> Vec<Vec<Standing>> {
        let sharing: Vec<usize> = (0..self.shared.len())
            .filter(|&device| self.shared[device])
            .collect();
        if sharing.is_empty() {
            return vec![vec![Standing::Alone; self.shared.len()]];
        }
        let arrangement = |of_sharing: &dyn Fn(usize) -> Standing| -> Vec<Standing> {
            let devices = self.shared.iter().enumerate();
            let each = devices.map(|(device, &shared)| match shared {
                true => of_sharing(device),
                false => Standing::Alone,
            });
            each.collect()
        };
        let with_one = sharing.iter().map(|&one| {
            arrangement(&|device| match device == one {
                true => Standing::Alone,
                false => Standing::Out,
            })
        });
        with_one
            .chain([arrangement(&|_| Standing::Beside)])
            .collect()
    }
}

/// The part of its time that something takes alone of what it takes beside others, of which it
/// computed `part` of its time: what the whole should have taken.
pub(crate) fn mixed(alone: f64, beside: f64, part: f64) -> f64 {
    alone / (1.0 - part + part * alone / beside)
}
