//! Turns the errors of planning and running a job into the failures that `souk plan`, `souk submit`
//! and other commands on jobs and models report: a cause, an exit code, and a hint with the command
//! or the option that helps.

use souk_network::protocols::lease::Failure as Declined;
use souk_node::buyer::{
    Buyer, End, JournalError, NoPlan, NoPlanKind, QuoteError, Reason, Spending, UnfinishedJob,
};
use souk_node::market::Refusal;
use souk_node::scheduler::graph::ImportError;
use souk_node::scheduler::planning::PlanError;

use crate::failure::{Failure, Kind};
use crate::folder::unreachable_market;
use crate::{show, suggested_command};

/// Converts a failure to read a journal.
pub fn journal_failure(error: JournalError) -> Failure {
    let hint = match error {
        JournalError::Unknown { .. } => {
            format!(
                "the jobs of this folder: {}",
                suggested_command::market_command("job list")
            )
        }
        _ => "restore the folder from a copy, or submit the job again".to_owned(),
    };
    Failure::new(Kind::State, error, hint)
}

/// Converts a failure to import a model or its inputs.
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
        ImportError::InputIndex { .. } => "give indices from 0 to below that",
        ImportError::ExternalOutside { .. } | ImportError::ExternalMissing { .. } => {
            "keep the model's weight files in the folder of the model"
        }
        _ => "check the model with onnx.checker.check_model",
    };
    Failure::new(Kind::Input, error, hint)
}

/// Converts a failure to plan.
pub fn from_quote(error: QuoteError) -> Failure {
    match error {
        QuoteError::Import(error) => from_import(error),
        QuoteError::Broker(error) => unreachable_market(error),
        QuoteError::Kernel(_) => {
            let hint = "correct the kernel's attributes";
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Operators { .. } => {
            let hint = format!(
                "export the model without them, or wait for a provider with them; on offer: {}",
                suggested_command::market_command("book")
            );
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::NoneEligible { .. } => {
            let hint = format!(
                "loosen the limits that rule them out; on offer: {}",
                suggested_command::market_command("book")
            );
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Budget { cheapest, .. } => {
            let enough = [
                ("--budget", format_amount(cheapest)),
                ("--prefer", "cheapest".to_owned()),
            ];
            Failure::new(Kind::Budget, error, command_with(&enough))
        }
        QuoteError::Escrow { needed, .. } => {
            let hint = format!(
                "you pay only what you use, but a lease holds what it could use: {}",
                command_with(&[("--budget", format_amount(needed))])
            );
            Failure::new(Kind::Budget, error, hint)
        }
        QuoteError::Behind { .. } => {
            let hint = format!(
                "let it wait: {}",
                command_with(&[("--wait", "60".to_owned())])
            );
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::TooFewProviders { free, .. } => {
            let fewer = [("--min-providers", free.to_string())];
            let hint = format!("use those that are free: {}", command_with(&fewer));
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::TooFewSeconds { free, .. } => {
            let fewer = match free / 2 {
                0 => ("--verify", "1".to_owned()),
                pairs => ("--min-providers", pairs.to_string()),
            };
            let hint = format!("ask for less: {}", command_with(&[fewer]));
            Failure::new(Kind::NoPlan, error, hint)
        }
        QuoteError::Plan(ref plan) => {
            let (kind, hint) = of_plan(plan);
            Failure::new(kind, error, hint)
        }
        QuoteError::Cut(_) => {
            let whole = [
                ("--min-providers", "1".to_owned()),
                ("--max-providers", "1".to_owned()),
            ];
            let hint = format!("do not cut it: {}", command_with(&whole));
            Failure::new(Kind::NoPlan, error, hint)
        }
    }
}

/// Returns the kind of a failure to plan over suitable asks, and a hint with other options.
fn of_plan(error: &PlanError) -> (Kind, String) {
    match error {
        PlanError::NotDivisible { possible, .. } => {
            let fewer = [("--min-providers", possible.to_string())];
            let hint = format!(
                "cut it into as many parts as it has: {}",
                command_with(&fewer)
            );
            (Kind::NoPlan, hint)
        }
        PlanError::Deadline {
            fastest_seconds, ..
        } => {
            let deadline = format_amount(fastest_seconds * DEADLINE_SLACK);
            let enough = [("--deadline", deadline), ("--prefer", "fastest".to_owned())];
            (Kind::Deadline, command_with(&enough))
        }
        _ => {
            let hint = format!(
                "loosen the limits; on offer: {}",
                suggested_command::market_command("book")
            );
            (Kind::NoPlan, hint)
        }
    }
}

/// Factor between the time of the fastest plan and the deadline that the hint proposes.
const DEADLINE_SLACK: f64 = 2.0;

/// Formats an amount for an option.
fn format_amount(least: f64) -> String {
    // Rounded up, so that the amount suffices.
    format!("{:.6}", (least * 1e6).ceil() / 1e6)
}

/// Returns the current command with other options.
fn command_with(options: &[(&str, String)]) -> String {
    let options: Vec<(&str, &str)> = options
        .iter()
        .map(|(name, it)| (*name, it.as_str()))
        .collect();
    suggested_command::command_with(&options)
}

/// Returns the command that resumes a job, if it has a name.
fn resume_hint(name: Option<&str>) -> String {
    match name {
        Some(name) => format!(
            "resume it: {}",
            suggested_command::market_command(&format!("job resume {name}"))
        ),
        None => "run it again".to_owned(),
    }
}

/// Adds to a failure the credits that the job's leases hold, and when and how they return.
pub async fn with_held(mut failure: Failure, buyer: &Buyer) -> Failure {
    // While the market is unreachable, this can add nothing.
    let leases = buyer.fetch_leases().await.unwrap_or_default();
    failure
        .notes
        .extend(show::held_credits::describe_leases(&leases));
    failure.with([("escrow_by_lease", show::held_credits::to_json(&leases))])
}

/// Converts the failure of a job with this name, and adds its cost.
pub fn from_ended(ended: &UnfinishedJob, name: Option<&str>) -> Failure {
    let failure = match &ended.how {
        End::Failed(reason) => from_reason(reason, name),
        End::Done | End::Cancelled => {
            let leases = show::format_count(ended.leases_ended, "lease");
            let cause = format!("interrupted: {leases} ended at once");
            let facts = [
                ("reason", "interrupted".into()),
                ("leases_ended", ended.leases_ended.into()),
            ];
            Failure::new(Kind::Interrupted, cause, resume_hint(name)).with(facts)
        }
    };
    let facts = ended
        .spending
        .as_ref()
        .map(spending_facts)
        .into_iter()
        .flatten();
    let failure = failure.with(facts);
    let before: Vec<String> = ended.before.iter().map(Reason::to_string).collect();
    if before.is_empty() {
        return failure;
    }
    let mut failure = failure.with([("failed_before", before.clone().into())]);
    // No seller is left because the earlier ones failed: their failures are the cause.
    if let End::Failed(Reason::NoPlan(_)) = &ended.how {
        let told = before.iter().map(|why| format!("before that: {why}"));
        failure.notes.extend(told);
        let hint = "this machine must be able to reach the provider: is its port open, or is \
                    there a validator with --relay?";
        if ended
            .before
            .iter()
            .all(|it| it.code() == "provider_vanished")
        {
            hint.clone_into(&mut failure.hint);
        }
    }
    failure
}

/// Returns the failure of a job whose leases the user left running.
pub fn leases_left_failure(name: &str) -> Failure {
    let cause = "interrupted; its leases run out by themselves: a second signal came before they \
                 were ended";
    let reason = [("reason", "interrupted".into())];
    let hint = format!(
        "end them: {}",
        suggested_command::market_command(&format!("job cancel {name}"))
    );
    Failure::new(Kind::Interrupted, cause, hint).with(reason)
}

fn spending_facts(spending: &Spending) -> [(&'static str, serde_json::Value); 2] {
    [
        ("spent_micro_credits", spending.spent.0.into()),
        ("escrow_micro_credits", spending.held.0.into()),
    ]
}

fn from_reason(reason: &Reason, name: Option<&str>) -> Failure {
    let text = str::to_owned;
    let (kind, hint) = match reason {
        Reason::NoPlan(NoPlan {
            kind: NoPlanKind::Unreachable,
            ..
        })
        | Reason::Unreachable(_) => (
            Kind::Network,
            format!(
                "is the market up? {}",
                suggested_command::market_command("validator list")
            ),
        ),
        Reason::NoPlan(NoPlan {
            kind: NoPlanKind::Budget,
            ..
        })
        | Reason::Escrow { .. } => (Kind::Budget, text("raise --budget, or --prefer cheapest")),
        Reason::Late(_) => (
            Kind::Deadline,
            format!("what was computed is kept; {}", resume_hint(name)),
        ),
        Reason::Unsold(Refusal::FundsShort { available, needed }) => {
            let least = show::format_credits(available.0);
            let hint = format!(
                "a lease holds what it could use, {} credits here, and the account has {least}; a \
                 budget buys a shorter one: {}",
                show::format_credits(needed.0),
                command_with(&[("--budget", least.clone())])
            );
            (Kind::Budget, hint)
        }
        Reason::NoPlan(_) | Reason::Unsold(_) => {
            let hint = format!(
                "loosen a limit; on offer: {}",
                suggested_command::market_command("book")
            );
            (Kind::NoPlan, hint)
        }
        Reason::Receipt { .. } | Reason::Outvoted { .. } | Reason::Disagreement { .. } => (
            Kind::Verification,
            text("no receipt was signed for it, and its usage is disputed"),
        ),
        Reason::BadInput(_)
        | Reason::Failed {
            failure: Declined::BadInput(_),
            ..
        } => (
            Kind::Input,
            text("correct the inputs; no provider is at fault, and none was tried after this"),
        ),
        Reason::Memory(_) => (Kind::Input, text("the job's tensors do not fit in memory")),
        Reason::Journal(_) => (
            Kind::State,
            text("check the folder's permissions and the space left"),
        ),
        _ => (
            Kind::Job,
            format!(
                "its leases are ended and what they hold comes back; {}",
                resume_hint(name)
            ),
        ),
    };
    Failure::new(kind, reason, hint).with([("reason", reason.code().into())])
}
