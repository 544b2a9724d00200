//! Defines a caller's options for a plan: the objective, and limits on devices, time and cost.

use crate::planning::objective::Objective;

/// Limits and preferences of a plan. You can start from the default, which permits four devices and
/// minimises time.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Minimum number of devices; each must then have real work.
    pub min_devices: usize,
    /// Maximum number of devices.
    pub max_devices: usize,
    /// The quantity to minimise.
    pub objective: Objective,
    /// Latest end, in seconds from the start.
    pub deadline_seconds: Option<f64>,
    /// Maximum cost of the plan.
    pub budget: Option<f64>,
    /// Whether the buyer must send the weights first.
    pub weights: Weights,
    /// Whether activations that do not fit must stay on the device or can spill.
    pub activations: Activations,
    /// Minimum gain of several devices, as a part of the best single device's time. Runs differ by
    /// as much, and smaller gains vanish in costs that no plan counts.
    pub gain_min: f64,
    /// Number of requests that pass through the plan one after the other; 1 for a single run. The
    /// plan's times and costs cover all of them.
    pub requests: u32,
    /// Number of sequences of a session, or 0 for none. Each has its own states, which must all fit
    /// at once, and one request in progress at a time.
    pub sequences: u32,
    /// Number of candidates that the search can try: its whole effort. A larger number can improve
    /// the plan but takes longer.
    pub steps: usize,
}

/// The location of the weights when the job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The providers have them.
    Held,
    /// The buyer has them: a part starts only when its weights have arrived.
    Sent,
}

/// The treatment of activations that do not fit next to a device's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// The device cannot run the part.
    Held,
    /// They move to other memory, or to disk.
    Spilled,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            min_devices: 1,
            max_devices: 4,
            objective: Objective::Fastest,
            deadline_seconds: None,
            budget: None,
            weights: Weights::Held,
            activations: Activations::Held,
            gain_min: 0.0,
            requests: 1,
            sequences: 0,
            steps: 2_000,
        }
    }
}
