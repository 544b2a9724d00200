//! What the buyer wants of a plan.

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
    /// Requests that go through the plan one behind the other; 1 for a single run. Times and costs
    /// of the plan are those of all of them.
    pub requests: u32,
    /// Candidates tried when improving a plan: the whole of the search's effort.
    pub steps: usize,
}

/// What a plan should make small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Time to the last output.
    Makespan,
    /// Cost; time among equals.
    Cost,
    /// `seconds` x makespan + `cost` x cost.
    Weighted {
        /// Weight of a second.
        seconds: f64,
        /// Weight of a unit of cost.
        cost: f64,
    },
}

/// Where the weights are when the job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Already with the providers.
    Held,
    /// With the buyer: a part starts only when its weights have arrived.
    Sent,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            min_devices: 1,
            max_devices: 4,
            objective: Objective::Makespan,
            deadline_seconds: None,
            budget: None,
            weights: Weights::Held,
            requests: 1,
            steps: 2_000,
        }
    }
}

impl Objective {
    /// The number to be made small, and the one that decides among equals.
    #[must_use]
    pub fn score(&self, makespan_seconds: f64, cost: f64) -> (f64, f64) {
        match self {
            Self::Makespan => (makespan_seconds, cost),
            Self::Cost => (cost, makespan_seconds),
            Self::Weighted {
                seconds,
                cost: weight,
            } => (seconds * makespan_seconds + weight * cost, makespan_seconds),
        }
    }
}
