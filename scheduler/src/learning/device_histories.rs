//! Holds the histories of a group's devices during the life of the group: for each device its
//! measured times alone, and its times next to others on the same cores.

use souk_vocabulary::history::{History, JointMeasurement};

use super::core_sharing::{CoreSharing, CoreUse, mixed_time};
use super::history::{CostHistory, Measurement, history_name};

/// Suffix of a device's name for the history of its times while others computed on its cores.
const BESIDE: &str = ", beside others on its cores";
/// If a fragment runs next to others for at least this part of its time, its time goes to that
/// history.
const MOSTLY: f64 = 0.5;

/// The measured times of a group's devices, alone and next to others on their cores.
pub(crate) struct DeviceHistories {
    names: Vec<String>,
    histories: Vec<History>,
    cores: CoreSharing,
    /// Times of each device while others computed on its cores.
    shared_core_histories: Vec<History>,
    /// Number of changes that matter to plans, and number of fragments with a reported time.
    news: u64,
    told: u64,
}

impl DeviceHistories {
    /// Creates empty histories of devices with these labels and models.
    pub fn new<'a>(named: impl Iterator<Item = (&'a str, &'a str)>, cores: CoreSharing) -> Self {
        let names: Vec<String> = named
            .map(|(label, model)| history_name(label, model))
            .collect();
        Self {
            histories: vec![History::default(); names.len()],
            shared_core_histories: vec![History::default(); names.len()],
            names,
            cores,
            news: 0,
            told: 0,
        }
    }

    /// Loads the histories of these devices from a stored cost history.
    pub fn load_history(&mut self, costs: &CostHistory) {
        let beside = self.names.iter().map(|name| format!("{name}{BESIDE}"));
        let names = self.names.iter().cloned().chain(beside);
        let histories = self
            .histories
            .iter_mut()
            .chain(&mut self.shared_core_histories);
        for (name, history) in names.zip(histories) {
            if let Some(kept) = costs.history_for(&name) {
                history.clone_from(kept);
            }
        }
        self.news += 1;
    }

    pub fn cost_history(&self) -> CostHistory {
        let names = self.names.iter().cloned();
        let alone = names.zip(self.histories.iter().cloned());
        let sharing = (0..self.names.len()).filter(|&device| self.cores.is_shared(device));
        let beside = sharing.map(|device| {
            let name = format!("{}{BESIDE}", self.names[device]);
            (name, self.shared_core_histories[device].clone())
        });
        let known = beside.filter(|(_, history)| !history.records().is_empty());
        CostHistory::of_devices(alone.chain(known))
    }

    /// Records a device's time for a fragment, `part` of it next to others on its cores, and
    /// returns the recorded measurement. Its deviation goes to the history that covers most of its
    /// time.
    pub fn record_measurement(
        &mut self,
        device: usize,
        mut measured: JointMeasurement,
        part: f64,
    ) -> Measurement {
        self.told += 1;
        self.pass_over(device);
        if !self.cores.is_shared(device) || part <= 0.0 {
            self.news += u64::from(self.histories[device].learn_joint(&measured));
            return Measurement {
                device: self.names[device].clone(),
                measured,
            };
        }
        let slow = self.slow_factor(device);
        let alone = &mut self.histories[device];
        let mut slower = measured.clone();
        for part in &mut slower.parts {
            part.prior = alone.correction_factor(part) * slow;
        }
        let beside = &mut self.shared_core_histories[device];
        let of_alone = alone.expected_joint(&measured.parts);
        let of_beside = beside.expected_joint(&slower.parts);
        let ratio = measured.seconds / mixed_time(of_alone, of_beside, part);
        let (name, history) = match part < MOSTLY {
            true => (String::new(), alone),
            false => (BESIDE.to_owned(), beside),
        };
        if part < MOSTLY {
            measured.seconds = of_alone * ratio;
        } else {
            slower.seconds = of_beside * ratio;
            measured = slower;
        }
        self.news += u64::from(history.learn_joint(&measured));
        Measurement {
            device: format!("{}{name}", self.names[device]),
            measured,
        }
    }

    /// Counts a fragment for all other devices. A device without work for a long time should get a
    /// trial, and that is a change for plans.
    fn pass_over(&mut self, told: usize) {
        for histories in [&mut self.histories, &mut self.shared_core_histories] {
            let others = histories.iter_mut().enumerate();
            let others = others.filter(|(member, _)| *member != told);
            let tried = others.filter_map(|(_, history)| history.pass_over().then_some(()));
            self.news += tried.count() as u64;
        }
    }

    /// Returns the factor by which others on its cores slow a device, for operators without a
    /// measurement: the mean over operators that were measured both ways.
    pub(super) fn slow_factor(&self, device: usize) -> f64 {
        let seen = self.shared_core_histories[device].slowdown_over(&self.histories[device]);
        seen.map_or(self.cores.slow, |seen| seen.max(1.0))
    }

    /// Returns the history that matches a device's standing.
    pub(super) fn history_for(&self, device: usize, core_use: CoreUse) -> &History {
        match core_use {
            CoreUse::Alone | CoreUse::Out => &self.histories[device],
            CoreUse::Beside => &self.shared_core_histories[device],
        }
    }

    /// Returns the number of changes that matter to plans.
    pub(super) fn change_count(&self) -> u64 {
        self.news
    }

    /// Returns the number of fragments with a reported time.
    pub fn report_count(&self) -> u64 {
        self.told
    }
}
