//! Lists the reasons why a job has no quote (no plan with a price), with the texts that users see.

use souk_network::protocols::unsuitable::Unsuitable;
use souk_sandbox::device::operators::KernelFault;
use souk_scheduler::graph::ImportError;
use souk_scheduler::graph::cut::CutError;
use souk_scheduler::planning::PlanError;

use crate::client::broker::BrokerError;

/// Why there is no quote.
#[derive(Debug, thiserror::Error)]
pub enum QuoteError {
    /// The model or its inputs are invalid.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The description of the model's own kernel is wrong.
    #[error("no device can run the model: {0}")]
    Kernel(#[from] KernelFault),
    /// No ask runs an operator of the model.
    #[error("no provider runs {} (0 of {seen} asks)", nodes_of(operators))]
    Operators {
        /// The operators, each with the first node that uses it.
        operators: Vec<(String, String)>,
        /// How many asks the book has.
        seen: u64,
    },
    /// The market did not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No ask suits the job.
    #[error("no ask suits: {seen} on offer{}", join_reasons(unsuitable))]
    NoneEligible {
        /// How many asks the book has.
        seen: u64,
        /// Why they do not suit.
        unsuitable: Vec<Unsuitable>,
    },
    /// Too few suitable providers are free to spread the job as requested.
    #[error(
        "the job must be spread over at least {wanted} providers, but {free} suitable ones are free"
    )]
    TooFewProviders {
        /// The fewest requested providers.
        wanted: usize,
        /// How many asks suit.
        free: usize,
    },
    /// Too few suitable providers are free to run each part twice.
    #[error("running each part twice takes {needed} providers, but {free} suitable ones are free")]
    TooFewSeconds {
        /// The needed providers.
        needed: usize,
        /// How many asks suit.
        free: usize,
    },
    /// No plan over the eligible asks fits the limits.
    #[error("no plan fits: {0}")]
    Plan(PlanError),
    /// The cheapest plan is over the budget.
    #[error("the cheapest plan costs {cheapest:.6} credits, the budget is {budget:.6}")]
    Budget {
        /// The price of the cheapest plan, in credits.
        cheapest: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// The budget is below the escrow of the shortest leases.
    #[error(
        "the cheapest plan costs {cheapest:.6} credits, and the shortest lease that runs this job \
         holds {needed:.6} until it is settled: the budget is {budget:.6}"
    )]
    Escrow {
        /// The price of the cheapest plan, in credits.
        cheapest: f64,
        /// The escrow of the shortest leases, in credits.
        needed: f64,
        /// The budget in credits.
        budget: f64,
    },
    /// The buyer's own jobs of a higher priority go first.
    #[error(
        "{jobs} of this buyer's jobs with a higher priority need a device that this job would take"
    )]
    Behind {
        /// How many jobs.
        jobs: usize,
    },
    /// The plan's parts do not form models.
    #[error(transparent)]
    Cut(#[from] CutError),
}

impl QuoteError {
    /// Returns whether a book with more devices could give a quote.
    pub(super) fn is_transient(&self) -> bool {
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
    /// Returns whether the book could give a quote once leased devices come back: then the caller
    /// can retry.
    pub(super) fn may_pass(&self) -> bool {
        self.is_transient()
            || matches!(
                self,
                QuoteError::NoneEligible { .. }
                    | QuoteError::Operators { .. }
                    | QuoteError::Plan(_)
            )
    }
}

impl QuoteError {
    /// Returns the reason as a code whose meaning will never change. A job that fails for the same
    /// reason has the same code.
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

fn join_reasons(unsuitable: &[Unsuitable]) -> String {
    let each: Vec<String> = unsuitable.iter().map(Unsuitable::to_string).collect();
    if each.is_empty() {
        String::new()
    } else {
        format!(": {}", each.join("; "))
    }
}
