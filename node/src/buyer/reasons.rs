//! Why a step of a job failed: its quote, a conversation, a receipt.

use std::time::Duration;

use souk_market::{AccountKey, DeviceMicros, ReceiptFault};
use souk_memory::TensorError;
use souk_onnx::subgraph::CompileError;
use souk_scheduler::graph::ImportError;
use souk_scheduler::graph::cut::CutError;
use souk_scheduler::planning::PlanError;

use crate::client::broker::BrokerError;
use crate::network::OpenError;
use crate::network::wire::WireError;

/// Why a conversation with a provider ended before its work was done.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It was not reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It went away, or spoke nonsense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The lease ended first.
    #[error("its lease ended before its work was done")]
    Deadline,
    /// A part takes far longer than its device promised.
    #[error("a part that it runs was not done within {} s", patience.as_secs())]
    Slow {
        /// How long was waited.
        patience: Duration,
    },
    /// It takes a tensor neither from who made it nor from the buyer.
    #[error("it takes {name} neither from {maker}, who made it ({why}), nor from here")]
    Untaken {
        /// The tensor's name.
        name: String,
        /// Who made it.
        maker: AccountKey,
        /// What was told to the maker.
        why: String,
    },
    /// It said things in the wrong order.
    #[error("it spoke out of turn: is it an older or newer souk?")]
    Confused,
    /// Another provider of the job failed.
    #[error("the job was stopped")]
    Stopped,
}

/// Why there is no quote.
#[derive(Debug, thiserror::Error)]
pub enum QuoteError {
    /// The model or its inputs are wrong.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A device's runtime refuses something in the model.
    #[error("no device can run the model: {0}")]
    Unsupported(#[from] CompileError),
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No ask suits.
    #[error("no provider is eligible: {seen} asks seen{}", reasons(lacks))]
    NoneEligible {
        /// How many asks there are.
        seen: u64,
        /// The model, what it lacks, and how many are so.
        lacks: Vec<(String, String, u64)>,
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
        "the shortest lease that runs this job holds {needed:.6} credits until it is settled, \
         the budget is {budget:.6}"
    )]
    Escrow {
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
            QuoteError::Plan(error) => matches!(error, PlanError::TooFewOffers { .. }),
            QuoteError::Behind { .. } => true,
            _ => false,
        }
    }
}

impl QuoteError {
    /// Whether a book with devices in it that others have leased could do better.
    pub(super) fn may_pass(&self) -> bool {
        self.passes() || matches!(self, QuoteError::NoneEligible { .. } | QuoteError::Plan(_))
    }
}

fn reasons(lacks: &[(String, String, u64)]) -> String {
    let one = |(model, lack, count): &(String, String, u64)| match count {
        1 => format!("{model} {lack}"),
        _ => format!("{count} of {model} {lack}"),
    };
    let each: Vec<String> = lacks.iter().map(one).collect();
    if each.is_empty() {
        String::new()
    } else {
        format!(": {}", each.join("; "))
    }
}

/// Why a receipt is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// It is not valid by itself.
    #[error(transparent)]
    Fault(#[from] ReceiptFault),
    /// It is not for the lease, job, parties or price that were traded.
    #[error("its {0} is not what was bought")]
    Terms(&'static str),
    /// It bills more device time than has passed.
    #[error("it bills {billed} device-us, the lease has {possible}")]
    Usage {
        /// What it bills.
        billed: DeviceMicros,
        /// What the lease has.
        possible: DeviceMicros,
    },
    /// It bills device time, and its provider gave nothing.
    #[error("it bills {billed} device-us and names no output")]
    Nothing {
        /// What it bills.
        billed: DeviceMicros,
    },
    /// It tells of another speed than there was.
    #[error("by the {what} of {said} Mop/s that it states, not the {true_one} Mop/s that follows")]
    Speed {
        /// Of which it does.
        what: &'static str,
        /// What it says.
        said: u64,
        /// What follows from its usage and from the plan.
        true_one: u64,
    },
    /// It names an input that nobody gave.
    #[error("it names the input {0}, which nobody gave it")]
    Input(souk_market::ContentId),
    /// Its outputs are not those it serves.
    #[error("its outputs are not those it serves")]
    Outputs,
    /// An output is no tensor.
    #[error("its output {name} is no tensor: {cause}")]
    NoTensor {
        /// The output's name.
        name: String,
        /// Why.
        cause: TensorError,
    },
}
