//! Why a job was not planned or run, as a person or a script sees it.

use souk_node::buyer::{
    End, JournalError, NoPlan, NoPlanKind, QuoteError, Reason, Spending, UnfinishedJob,
};
use souk_node::scheduler::graph::ImportError;
use souk_node::scheduler::planning::PlanError;

use crate::failure::{Failure, Kind};
use crate::folder::unreachable_market;

const RESUME: &str = "go on with `souk job resume`, or submit the job again";

/// A failure from a journal.
pub fn unreadable(error: JournalError) -> Failure {
    let hint = match error {
        JournalError::Unknown { .. } => "`souk job list` shows the jobs of this folder",
        _ => "restore the folder from a copy, or submit the job again",
    };
    Failure::new(Kind::State, error, hint)
}

/// A failure from a model or its inputs.
pub fn from_import(error: ImportError) -> Failure {
    let hint = match &error {
        ImportError::Decode(_) => "give an ONNX model, as torch.onnx.export writes it",
        ImportError::UnknownInput { .. } | ImportError::MissingInput { .. } => {
            "give each of the model's inputs once with -i NAME=FILE"
        }
        ImportError::InputType { .. } => "convert the array with numpy's astype and save it again",
        ImportError::InputShape { .. } | ImportError::SymbolConflict { .. } => {
            "reshape the array, or export the model with dynamic axes"
        }
        ImportError::ExternalOutside { .. } | ImportError::ExternalMissing { .. } => {
            "keep the model's weight files in the folder of the model"
        }
        _ => "check the model with onnx.checker.check_model",
    };
    Failure::new(Kind::Input, error, hint)
}

/// A failure to plan.
pub fn from_quote(error: QuoteError) -> Failure {
    match error {
        QuoteError::Import(error) => from_import(error),
        QuoteError::Broker(error) => unreachable_market(error),
        QuoteError::Unsupported(_) => {
            let hint = "export the model with another opset, or without that operator";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::NoneEligible { .. } => {
            let hint = "loosen --max-price, --device, --backend, --exclude, --real, --region, \
                        --min-reputation or --min-notice; `souk book` shows what is on offer";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Budget { .. } => Failure::new(
            Kind::Budget,
            error,
            "raise --budget, or try --prefer cheapest",
        ),
        QuoteError::Escrow { .. } => Failure::new(
            Kind::Budget,
            error,
            "raise --budget: only what is used is paid, but a lease holds what it could use",
        ),
        QuoteError::Behind { .. } => {
            let hint = "give it more time with --wait, or a higher --priority";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Plan(PlanError::Deadline { .. }) => Failure::new(
            Kind::Deadline,
            error,
            "give it more time with --deadline, or try --prefer fastest",
        ),
        QuoteError::Plan(_) => {
            let hint = "loosen the limits; `souk book` shows what is on offer";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Cut(_) => Failure::new(
            Kind::NoPlan,
            error,
            "try --max-providers 1, which cuts nothing",
        ),
    }
}

/// A failure to run, with what it has cost.
pub fn from_ended(ended: &UnfinishedJob) -> Failure {
    let failure = match &ended.how {
        End::Failed(reason) => from_reason(reason),
        End::Done | End::Cancelled => {
            let cause = format!("interrupted: {} lease(s) ended at once", ended.leases_ended);
            let facts = [
                ("reason", "interrupted".into()),
                ("leases_ended", ended.leases_ended.into()),
            ];
            Failure::new(Kind::Interrupted, cause, RESUME).with(facts)
        }
    };
    let facts = ended.spending.as_ref().map(cost).into_iter().flatten();
    let failure = failure.with(facts);
    let before: Vec<String> = ended.before.iter().map(Reason::to_string).collect();
    match &before[..] {
        [] => failure,
        before => failure.with([("failed_before", before.into())]),
    }
}

/// A job that was left with its leases.
pub fn left() -> Failure {
    let cause = "interrupted; its leases run out by themselves: asked again before they were ended";
    let reason = [("reason", "interrupted".into())];
    Failure::new(Kind::Interrupted, cause, RESUME).with(reason)
}

fn cost(spending: &Spending) -> [(&'static str, serde_json::Value); 2] {
    [
        ("spent_micro_credits", spending.spent.0.into()),
        ("held_micro_credits", spending.held.0.into()),
    ]
}

fn from_reason(reason: &Reason) -> Failure {
    let (kind, hint) = match reason {
        Reason::NoPlan(NoPlan {
            kind: NoPlanKind::Unreachable,
            ..
        })
        | Reason::Unreachable(_) => (
            Kind::Network,
            "is the market up? `souk testnet up` starts the one in --dir",
        ),
        Reason::NoPlan(NoPlan {
            kind: NoPlanKind::Budget,
            ..
        })
        | Reason::Escrow { .. } => (Kind::Budget, "raise --budget, or try --prefer cheapest"),
        Reason::Late(_) => (
            Kind::Deadline,
            "what was computed is kept: `souk job resume` goes on with it",
        ),
        Reason::NoPlan(_) | Reason::Unsold(_) => {
            (Kind::NoPlan, "the book allows no more; loosen a limit")
        }
        Reason::Receipt { .. } | Reason::Outvoted { .. } | Reason::Disagreement { .. } => (
            Kind::Verification,
            "nothing was signed for it, and its usage is disputed",
        ),
        Reason::Memory(_) => (Kind::Input, "the job's tensors do not fit in memory"),
        Reason::Journal(_) => (
            Kind::State,
            "check the folder's permissions and the space left",
        ),
        _ => (
            Kind::Job,
            "its leases are ended and their escrow comes back; go on with `souk job resume`",
        ),
    };
    Failure::new(kind, reason, hint).with([("reason", reason.code().into())])
}
