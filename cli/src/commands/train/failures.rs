//! Turns the reasons why training cannot begin, or ended early, into failures: a cause, an exit
//! code, and what to change.

use std::path::Path;

use souk_node::buyer::training::{
    RunJournalError, ShortMoney, TrainingEnd, TrainingError, TrainingRunError,
};
use souk_node::scheduler::gradient::GradientError;

use crate::commands::submit::{from_ended, from_import, from_quote};
use crate::failure::{Failure, Kind};
use crate::show::format_credits;
use crate::suggested_command::command_with;

/// Converts the reason why a run cannot begin.
pub fn from_training(error: TrainingError) -> Failure {
    let text = error.to_string();
    let error = match error {
        TrainingError::HeldOut(error) => *error,
        error => error,
    };
    let hint = match &error {
        TrainingError::Gradient(GradientError::Import(import)) => {
            return from_import((**import).clone());
        }
        TrainingError::Gradient(error) => gradient_hint(error),
        TrainingError::Scalar { .. } => "give one row for each example",
        TrainingError::Rows { .. } => "give as many rows in each file",
        TrainingError::Batch { .. } => "give another --batch",
        TrainingError::Steps { .. } => "give another number with --steps",
        TrainingError::LearningRate { .. } => "give a number above 0 with --lr, such as 0.001",
        TrainingError::Warmup { .. } => "give fewer steps with --warmup",
        TrainingError::Workers { .. } => "give for example --workers 4 --round 32",
        TrainingError::GradientNorm { .. } => "give a number above 0, such as --clip 1",
        TrainingError::NotFinite { .. } => "remove the example, or replace the number",
        TrainingError::HeldOut(_) => "check the files of --eval",
        TrainingError::HeldOutType { .. } => {
            "give --eval for each input and the target, with rows like those of the training"
        }
        TrainingError::HeldOutFew { .. } => "give more held-out examples, or a smaller --batch",
        TrainingError::HeldOutMany { .. } => "give fewer held-out examples, or a larger --batch",
        TrainingError::Label { .. } => {
            "number the classes from 0, or give the output with the classes by --loss-of"
        }
    };
    Failure::new(Kind::Input, text, hint)
}

fn gradient_hint(error: &GradientError) -> &'static str {
    match error {
        GradientError::Decode(_) => "give an ONNX model, as torch.onnx.export writes it",
        GradientError::Opset { .. } => "export it again, with opset_version=17 or newer",
        GradientError::Operator { .. } | GradientError::Unsupported { .. } => {
            "export the model without it, or freeze all initialisers before it with --freeze; \
             docs/training.md lists the operators"
        }
        GradientError::UnknownShape { .. } => "export the model with fixed shapes",
        GradientError::Type { .. } => "export the model in 32 bits",
        GradientError::NothingToTrain { .. } => "check --freeze and --loss-of",
        GradientError::UnknownPrefix { .. } => "`souk model inspect` lists what the model has",
        GradientError::Weight { .. } => "onnx.save(model, path) writes it so",
        GradientError::TooLarge { .. } => "give --freeze with the beginnings of their names",
        GradientError::Input { .. } => "give each of the model's inputs once with -i NAME=FILE",
        GradientError::Output { .. } | GradientError::Outputs { .. } => "give one with --loss-of",
        GradientError::Target(_) => "convert or reshape the array, or give another --loss",
        GradientError::Name { .. } => "give the target another name in --target NAME=FILE",
        GradientError::Import(_) => "",
    }
}

/// Converts the reason why a run's journal cannot be used.
pub fn from_run_journal(error: &RunJournalError) -> Failure {
    let hint = match error {
        RunJournalError::Unknown { .. } => {
            "name what --out named; `souk train list` shows the runs of --dir"
        }
        RunJournalError::Busy { .. } => "wait for it, or stop it",
        RunJournalError::File { .. } | RunJournalError::States(_) => {
            "check the path, its permissions and the space on its disk"
        }
        RunJournalError::Facts(_)
        | RunJournalError::Fact { .. }
        | RunJournalError::State { .. } => {
            "restore the folder from a copy, or remove it and begin anew"
        }
    };
    Failure::new(Kind::State, error, hint)
}

/// Converts the reason why a run cannot begin or go on.
pub fn from_run(error: TrainingRunError, out: &Path) -> Failure {
    match error {
        TrainingRunError::Journal(error) => from_run_journal(&error),
        error @ TrainingRunError::Subject => {
            let hint = "restore the files with which it began, or begin anew with another --out";
            Failure::new(Kind::Input, error, hint)
        }
        error @ TrainingRunError::Payer { .. } => {
            let hint = "give the --dir from which the run began, or begin anew with another --out";
            Failure::new(Kind::State, error, hint)
        }
        error @ TrainingRunError::Done => {
            let cause = format!("{error}; its result is {}", out.display());
            Failure::new(Kind::State, cause, "begin another one with another --out")
        }
        error @ (TrainingRunError::Market(_) | TrainingRunError::Trade(_)) => {
            Failure::new(Kind::Network, error, "try again when the market runs")
        }
    }
}

/// Converts the reason why the first lease of a run got no quote.
pub fn from_no_quote(end: TrainingEnd) -> Failure {
    match end {
        TrainingEnd::NoLease(error) => from_quote(*error),
        TrainingEnd::NoMoney(short) => from_shortage(&short, None),
        end => Failure::new(Kind::Unexpected, format!("{end:?}"), ""),
    }
}

/// Converts the end of a run into a failure, unless all steps are done. The note says where the
/// result of the steps so far is; the command resumes the run, if it can be resumed.
pub fn from_end(
    end: TrainingEnd,
    (done, steps): (u64, u64),
    note: Option<String>,
    resume: Option<&str>,
) -> Option<Failure> {
    let mut failure = match end {
        TrainingEnd::Done => return None,
        TrainingEnd::Stopped => {
            let cause = format!("interrupted after {done} of {steps} steps");
            Failure::new(Kind::Interrupted, cause, "")
        }
        TrainingEnd::NotFinite { step, loss } => {
            let cause = match loss.is_finite() {
                true => format!("step {} made parameters that are no numbers", step + 1),
                false => format!("the loss of step {} is {loss}", step + 1),
            };
            let hint = "give a smaller --lr and another -o, or scale the inputs to about -1 to 1";
            Failure::new(Kind::Job, cause, hint)
        }
        TrainingEnd::NoLease(error) => {
            let mut failure = from_quote(*error);
            if done > 0 {
                failure.cause = format!("after {done} of {steps} steps: {}", failure.cause);
            }
            failure
        }
        TrainingEnd::NoMoney(short) => {
            let mut failure = from_shortage(&short, resume);
            if done > 0 {
                failure.cause = format!("after {done} of {steps} steps: {}", failure.cause);
            }
            failure
        }
        TrainingEnd::Lost(Some(unfinished)) => from_ended(&unfinished, None),
        TrainingEnd::Lost(None) => {
            let cause = "several leases in a row brought no parameters";
            Failure::new(Kind::Job, cause, "give a smaller --keep, or other devices")
        }
        TrainingEnd::Disputed { step, short } => from_dispute(step, short, resume),
        TrainingEnd::Journal(why) => {
            let cause = format!("the journal of the run could not be written: {why}");
            Failure::new(
                Kind::State,
                cause,
                "make space on the disk, then resume the run",
            )
        }
    };
    failure.notes.extend(note);
    Some(failure.with([("steps_done", done.into()), ("steps", steps.into())]))
}

/// Converts a dispute of two providers, which no third one decides.
fn from_dispute(step: u64, short: Option<ShortMoney>, resume: Option<&str>) -> Failure {
    let first = step + 1;
    let differ = format!("two providers made different parameters from step {first} on");
    let (cause, hint) = match short {
        Some(short) => {
            let why = describe_shortage(&short);
            let more = with_larger_budget(&short, resume);
            (
                format!("{differ}, and a third one cannot be paid: {why}"),
                format!("do not use the model; {more}"),
            )
        }
        None => (
            format!("{differ}, and no third one is on offer"),
            "resume the run when another provider offers a device; do not use the model".to_owned(),
        ),
    };
    Failure::new(Kind::Verification, cause, hint)
}

/// Converts a budget that does not pay the next lease.
fn from_shortage(short: &ShortMoney, resume: Option<&str>) -> Failure {
    let hint = with_larger_budget(short, resume);
    Failure::new(Kind::Budget, describe_shortage(short), hint)
}

/// Describes where the budget of a run goes, and what it does not pay.
fn describe_shortage(short: &ShortMoney) -> String {
    let mut uses = Vec::new();
    if short.spent.0 > 0 {
        uses.push(format!("{} are spent", format_credits(short.spent.0)));
    }
    if short.kept_back.0 > 0 {
        uses.push(format!(
            "{} are kept back for audits",
            format_credits(short.kept_back.0)
        ));
    }
    let lease = match short.audit {
        Some(step) => format!("the audit of the steps from {} on", step + 1),
        None => "the next lease".to_owned(),
    };
    uses.push(format!(
        "{lease} needs at least {}",
        format_credits(short.needed.0)
    ));
    let uses = match uses.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{}, and {last}", before.join(", ")),
        None => String::new(),
    };
    format!(
        "the budget of {} credits is too small: {uses}",
        format_credits(short.budget.0)
    )
}

/// Returns the command that gives the run a budget which suffices.
fn with_larger_budget(short: &ShortMoney, resume: Option<&str>) -> String {
    let enough = format_credits(short.sufficient_budget().0);
    match (short.spent.0, resume) {
        (0, _) => format!("give more: {}", command_with(&[("--budget", &enough)])),
        (_, Some(resume)) => format!("go on with more: {resume} --budget {enough}"),
        (_, None) => format!("begin anew with a --budget above {enough}"),
    }
}

#[cfg(test)]
mod tests {
    use souk_node::market::Credits;

    use super::*;

    fn short(audit: Option<u64>) -> ShortMoney {
        ShortMoney {
            budget: Credits(5_000_000),
            spent: Credits(4_900_000),
            kept_back: Credits(if audit.is_some() { 0 } else { 40_000 }),
            needed: Credits(250_000),
            audit,
        }
    }

    #[test]
    fn a_budget_that_does_not_pay_an_audit_names_its_steps_and_what_is_enough() {
        let resume = Some("souk train resume tuned.onnx");
        let end = TrainingEnd::NoMoney(short(Some(32)));
        let failure = from_end(end, (40, 40), None, resume).expect("it failed");
        assert_eq!(failure.kind, Kind::Budget);
        assert_eq!(
            failure.cause,
            "after 40 of 40 steps: the budget of 5.000000 credits is too small: 4.900000 are \
             spent, and the audit of the steps from 33 on needs at least 0.250000"
        );
        assert_eq!(
            failure.hint,
            "go on with more: souk train resume tuned.onnx --budget 5.150000"
        );
    }

    #[test]
    fn a_budget_that_does_not_pay_a_lease_says_what_is_kept_back() {
        let failure = from_shortage(&short(None), None);
        assert!(
            failure.cause.ends_with(
                "4.900000 are spent, 0.040000 are kept back for audits, and the next lease needs \
                 at least 0.250000"
            ),
            "{}",
            failure.cause
        );
    }

    #[test]
    fn a_dispute_without_money_still_warns_of_the_model() {
        let end = TrainingEnd::Disputed {
            step: 32,
            short: Some(short(Some(32))),
        };
        let failure = from_end(end, (40, 40), None, None).expect("it failed");
        assert_eq!(failure.kind, Kind::Verification);
        assert!(failure.cause.contains("a third one cannot be paid"));
        assert!(failure.hint.starts_with("do not use the model; "));
    }
}
