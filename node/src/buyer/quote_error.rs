//! Why there is no quote.

use souk_scheduler::graph::ImportError;
use souk_scheduler::graph::cut::CutError;
use souk_scheduler::planning::PlanError;

use crate::client::broker::BrokerError;
use crate::device::operators::KernelFault;
use crate::protocols::unsuitable::Unsuitable;

/// Why there is no quote.
#[derive(Debug, thiserror::Error)]
pub enum QuoteError {
    /// The model or its inputs are wrong.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A kernel of the model's own says wrongly what it is.
    #[error("no device can run the model: {0}")]
    Kernel(#[from] KernelFault),
    /// No ask runs an operator of the model.
    #[error("no provider runs {} (0 of {seen} asks)", nodes_of(operators))]
    Operators {
        /// Their names, each with the first node that has it.
        operators: Vec<(String, String)>,
        /// How many asks there are.
        seen: u64,
    },
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No ask suits.
    #[error("no ask suits: {seen} on offer{}", reasons(unsuitable))]
    NoneEligible {
        /// How many asks there are.
        seen: u64,
        /// Why they do not suit.
        unsuitable: Vec<Unsuitable>,
    },
    /// Fewer providers that suit are free than the job is to be spread over.
    #[error(
        "the job is to be spread over {wanted} providers at least, and {free} that suit are free"
    )]
    TooFewProviders {
        /// Providers asked for.
        wanted: usize,
        /// Asks that suit.
        free: usize,
    },
    /// Fewer providers that suit are free than it takes to run each part twice.
    #[error("to run each part twice takes {needed} providers, and {free} that suit are free")]
    TooFewSeconds {
        /// Providers that it takes.
        needed: usize,
        /// Asks that suit.
        free: usize,
    },
    /// No plan over the eligible asks fits the limits.
    #[error("no plan fits: {0}")]
    Plan(PlanError),
    /// The cheapest plan is over the budget.
    #[error("the cheapest plan costs {cheapest:.6} credits, the budget is {budget:.6}")]
    Budget {
        /// Its price in credits.
        cheapest: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// The budget does not hold what the shortest leases keep in escrow.
    #[error(
        "the cheapest plan costs {cheapest:.6} credits, and the shortest lease that runs this job \
         holds {needed:.6} until it is settled: the budget is {budget:.6}"
    )]
    Escrow {
        /// What the cheapest plan costs, in credits.
        cheapest: f64,
        /// What the shortest leases hold, in credits.
        needed: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// Jobs of the buyer's own go first.
    #[error("{jobs} of this buyer's jobs with a higher priority want a device that it would take")]
    Behind {
        /// How many.
        jobs: usize,
    },
    /// The plan's parts cannot be made into models.
    #[error(transparent)]
    Cut(#[from] CutError),
}

impl QuoteError {
    /// Whether a book with more devices in it could do better.
    pub(super) fn passes(&self) -> bool {
        match self {
            QuoteError::NoneEligible { seen, .. } => *seen == 0,
            QuoteError::TooFewProviders { .. }
            | QuoteError::TooFewSeconds { .. }
            | QuoteError::Behind { .. } => true,
            _ => false,
        }
    }
}

impl QuoteError {
    /// Whether a book with devices in it that others have leased could do better.
    pub(super) fn may_pass(&self) -> bool {
        self.passes()
            || matches!(
                self,
                QuoteError::NoneEligible { .. }
                    | QuoteError::Operators { .. }
                    | QuoteError::Plan(_)
            )
    }
}

impl QuoteError {
    /// Why, as a word that never changes its meaning; a job that fails for the same reason says
    /// the same.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            QuoteError::Import(_) => "input",
            QuoteError::Kernel(_)
            | QuoteError::Operators { .. }
            | QuoteError::Cut(_)
            | QuoteError::TooFewProviders { .. }
            | QuoteError::TooFewSeconds { .. } => "no_plan",
            QuoteError::Broker(_) => "market_unreachable",
            QuoteError::NoneEligible { .. } => "none_eligible",
            QuoteError::Budget { .. } | QuoteError::Escrow { .. } => "budget",
            QuoteError::Plan(PlanError::Deadline { .. }) => "deadline",
            QuoteError::Plan(_) => "no_plan",
            QuoteError::Behind { .. } => "behind",
        }
    }
}

fn nodes_of(operators: &[(String, String)]) -> String {
    let named = |(operator, node): &(String, String)| format!("{operator} of node {node:?}");
    let each: Vec<String> = operators.iter().map(named).collect();
    each.join(" and ")
}

fn reasons(unsuitable: &[Unsuitable]) -> String {
    let each: Vec<String> = unsuitable.iter().map(Unsuitable::to_string).collect();
    if each.is_empty() {
        String::new()
    } else {
        format!(": {}", each.join("; "))
    }
}
