//! What whoever plans wants of a plan.

use crate::planning::objective::Objective;

/// Limits and wishes.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Fewest devices; each must then hold real work.
    pub min_devices: usize,
    /// Most devices.
    pub max_devices: usize,
    /// What to make small.
    pub objective: Objective,
    /// Latest end, in seconds from the start.
    pub deadline_seconds: Option<f64>,
    /// Most the plan may cost.
    pub budget: Option<f64>,
    /// Whether weights must be sent first.
    pub weights: Weights,
    /// Where what is computed finds no room.
    pub activations: Activations,
    /// The part of what the best single device takes that several must save at least: by as much
    /// runs differ, and less is lost to what no plan counts.
    pub gain_min: f64,
    /// Requests that go through the plan one behind the other; 1 for a single run. Times and costs
    /// of the plan are those of all of them.
    pub requests: u32,
    /// Sequences of a session, 0 where it is none: each has states of its own, which find room at
    /// once, and one request under way at a time.
    pub sequences: u32,
    /// Candidates tried when improving a plan: the whole of the search's effort.
    pub steps: usize,
}

/// Where the weights are when the job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Already with the providers.
    Held,
    /// With the buyer: a part starts only when its weights have arrived.
    Sent,
}

/// What becomes of activations for which a device has no room beside its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// The device does not run the part.
    Held,
    /// They are moved to other memory, or to disk.
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
