//! `souk train`: trains the user's ONNX model, a language model, or an adapter of one, on devices
//! that it leases, and writes the result to files. It also shows the plan of a run, resumes runs
//! and lists them.

mod failures;
#[cfg(feature = "generate")]
mod language;
mod onnx_model;
mod plan;
mod progress;
mod report;
mod runs;
mod subject;

use std::path::Path;
use std::sync::Arc;

use souk_folder::clock::unix_ms;
use souk_node::buyer::job::{EmulatedDevices, Limits};
use souk_node::buyer::training::{
    ExampleOrder, HeldOutData, LearningRate, RateDecay, RunJournal, Training, TrainingData,
    TrainingEvent, TrainingRun, TrainingSettings,
};
use souk_node::market::{Credits, Price};
use souk_node::scheduler::gradient::adamw::AdamW;
use souk_node::scheduler::gradient::sgd::Sgd;
use souk_node::scheduler::gradient::{Optimizer, Recipe};
use tokio::sync::Notify;

use super::submit::to_micro_credits;
use crate::args::{
    DecayName, OptimizerName, Output, Train, TrainArgs, TrainCommand, TrainLeaseArgs,
};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::join_as_buyer;
use crate::{show, stop, suggested_command};
use failures::{from_end, from_no_quote, from_run, from_run_journal};
use plan::{TrainingPlan, describe_audits, describe_training};
use progress::Progress;
use report::{TrainingReport, WrittenModel};
use subject::Subject;

/// The settings of a run that the user did not give; they depend on the kind of model.
struct SettingDefaults {
    /// Number of steps; `None`: as many as [`EPOCHS`] epochs need.
    steps: Option<u64>,
    batch: usize,
    learning_rate: f64,
}

/// The epochs of a run for which nobody states steps or epochs.
const EPOCHS: u64 = 3;

/// Runs `souk train` or one of its subcommands.
pub async fn run(folder: &Path, output: Output, train: &Train) -> Outcome {
    match train {
        Train::Run(args) => begin_run(folder, output, args).await,
        Train::Command(TrainCommand::Resume(args)) => runs::resume_run(folder, output, args).await,
        Train::Command(TrainCommand::List) => {
            runs::list_runs(folder, output);
            Ok(())
        }
    }
}

/// Trains to the last step, or with `--plan` only shows the plan and its price.
async fn begin_run(folder: &Path, output: Output, args: &TrainArgs) -> Outcome {
    if !args.plan {
        let written = train_to_end(folder, output, args, Lasting::Yes).await?;
        written.show_result(output);
        return Ok(());
    }
    let (subject, training) = prepare_run(args, unix_ms() / 1000)?;
    let limits = lease_limits(&args.lease)?;
    let buyer = join_as_buyer(folder).await?;
    let training_run = TrainingRun {
        buyer: &buyer,
        training: &training,
        limits: limits.clone(),
        keep_steps: args.keep_steps(),
        audit_share: args.audit_share(),
        cancel: Arc::default(),
    };
    let quoted = training_run.quote().await.map_err(from_no_quote)?;
    let plan = TrainingPlan {
        subject: &subject,
        training: &training,
        quote: &quoted.lease,
        kept_back: quoted.kept_back,
        limits: &limits,
        keep_steps: args.keep_steps(),
        audit_share: args.audit_share(),
    };
    plan.show(output);
    Ok(())
}

/// Trains a model to its last step, writes it, and pays.
pub(super) async fn train_to_end(
    folder: &Path,
    output: Output,
    args: &TrainArgs,
    lasting: Lasting,
) -> Result<WrittenModel, Failure> {
    let command = runs::RunCommand::new(args);
    let encoded = command.to_json()?;
    let (subject, training) = prepare_run(args, command.unix_seconds)?;
    let out = args.out.as_deref().ok_or_else(|| {
        let cause = "the run has no place for its result";
        Failure::new(Kind::Usage, cause, "name one with -o")
    })?;
    // This comes before any payment: souk must not train what it cannot store.
    subject.check_sources(out, args)?;
    subject.prepare_out(out)?;
    let prepared = PreparedRun {
        args,
        out,
        subject,
        training,
        limits: lease_limits(&args.lease)?,
        lasting,
    };
    let journal = runs::begin_journal(folder, &prepared)?;
    prepared.train_model(folder, output, journal, encoded).await
}

/// A run that is checked, and has a place for its result.
struct PreparedRun<'a> {
    args: &'a TrainArgs,
    out: &'a Path,
    subject: Subject,
    training: Training,
    limits: Limits,
    lasting: Lasting,
}

/// Whether a run can be resumed: its market and its files outlive the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    Yes,
    /// The caller ends the run itself, with its market.
    #[cfg(feature = "generate")]
    No,
}

impl PreparedRun<'_> {
    /// Trains the model, writes it with its report, and pays.
    async fn train_model(
        self,
        folder: &Path,
        output: Output,
        journal: RunJournal,
        command: String,
    ) -> Result<WrittenModel, Failure> {
        let (args, training, subject) = (self.args, &self.training, &self.subject);
        let run = journal.folder().to_owned();
        let is_new = journal.past().is_none();
        let buyer = join_as_buyer(folder).await?;
        let cancel = Arc::<Notify>::default();
        let training_run = TrainingRun {
            buyer: &buyer,
            training,
            limits: self.limits.clone(),
            keep_steps: args.keep_steps(),
            audit_share: args.audit_share(),
            cancel: cancel.clone(),
        };
        let is_lasting = self.lasting == Lasting::Yes;
        if is_lasting {
            tokio::spawn(stop_on_request(cancel, args.until_stdin_closes));
        }
        if output == Output::Text {
            let kept_back = is_new.then(|| training_run.kept_back_at_first());
            let of_audits = describe_audits(training, args.audit_share(), kept_back);
            let lines = describe_training(subject, training).into_iter();
            lines
                .chain(of_audits)
                .for_each(|line| show::print_notice(&line));
        }
        let mut progress = Progress::new(output, training, self.limits.budget);
        let observe = |event: TrainingEvent<'_>| progress.show_event(event);
        let result = training_run.run(journal, command, observe).await;
        let result = result.map_err(|error| from_run(error, self.out))?;
        let report = TrainingReport {
            args,
            training,
            subject,
            result: &result,
        };
        let resume = format!("train resume {}", self.out.display());
        let resume = suggested_command::market_command(&resume);
        let written = report.write(self.out).map_err(|mut failure| {
            let note = format!("the states are kept; to write the result: {resume}");
            failure.notes.extend(is_lasting.then_some(note));
            failure
        })?;
        let done = result.losses.len() as u64;
        let note = written.describe_partial(done);
        let steps = training.settings.steps;
        let to_resume = is_lasting.then_some(resume.as_str());
        match from_end(result.end, (done, steps), note, to_resume) {
            Some(mut failure) => {
                let is_named = failure.hint.contains(&resume);
                let is_open = !matches!(failure.kind, Kind::Job) && done > 0 && !is_named;
                if is_open && is_lasting {
                    failure.notes.push(format!("to go on: {resume}"));
                }
                Err(failure)
            }
            None => {
                RunJournal::finish_run(&run).map_err(|error| from_run_journal(&error))?;
                Ok(written)
            }
        }
    }
}

/// Waits for requests to stop (Ctrl-C, or a closed input), and passes each one on to the run.
async fn stop_on_request(cancel: Arc<Notify>, until_stdin_closes: bool) {
    let mut stops = stop::Requests::new();
    // A closed input is one request: the steps under way are kept.
    let mut is_input_open = until_stdin_closes;
    loop {
        match std::mem::take(&mut is_input_open) {
            true => stops.next_or_stdin_closed().await,
            false => stops.next().await,
        }
        show::print_notice("stopping after the steps under way; again to end the lease at once");
        cancel.notify_one();
    }
}

/// Reads the model and the examples, and checks the settings of the run.
fn prepare_run(args: &TrainArgs, unix_seconds: u64) -> Result<(Subject, Training), Failure> {
    let Some(data) = &args.data else {
        let (model, training) = onnx_model::prepare_run(args)?;
        return Ok((Subject::Model(model), training));
    };
    #[cfg(feature = "generate")]
    {
        let (subject, training) = language::prepare_run(args, data, unix_seconds)?;
        Ok((Subject::Language(Box::new(subject)), training))
    }
    #[cfg(not(feature = "generate"))]
    {
        let _ = unix_seconds;
        let cause = format!("{} is for language models", data.display());
        let hint = "this souk was built without the feature `generate`";
        Err(Failure::new(Kind::Input, cause, hint))
    }
}

/// Returns the optimiser that the arguments describe; refuses arguments that do not fit it.
fn read_optimizer(args: &TrainArgs) -> Result<Optimizer, Failure> {
    if args.momentum.is_some() && args.optimizer != OptimizerName::Sgd {
        let cause = "--momentum works only with sgd, and the optimiser is adamw";
        return Err(Failure::new(Kind::Usage, cause, "add --optimizer sgd"));
    }
    let momentum = args.momentum.unwrap_or(0.0);
    if !(0.0..1.0).contains(&momentum) {
        let cause = format!("the momentum {momentum} is not between 0 and 1");
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give for example --momentum 0.9",
        ));
    }
    if let Some(decay) = args.weight_decay
        && !(decay.is_finite() && decay >= 0.0)
    {
        let cause = format!("the weight decay {decay} is not a number of at least 0");
        return Err(Failure::new(
            Kind::Input,
            cause,
            "give for example --weight-decay 0.01",
        ));
    }
    Ok(match args.optimizer {
        OptimizerName::Sgd => Optimizer::Sgd(Sgd {
            momentum,
            weight_decay: args.weight_decay.unwrap_or(0.0),
        }),
        OptimizerName::Adamw => {
            let default = AdamW::default();
            let weight_decay = args.weight_decay.unwrap_or(default.weight_decay);
            Optimizer::AdamW(AdamW {
                weight_decay,
                ..default
            })
        }
    })
}

/// Returns the settings of a run: its steps, batch, learning rate, order of examples and workers.
fn read_settings(
    args: &TrainArgs,
    data: &TrainingData,
    recipe: Recipe,
    defaults: &SettingDefaults,
) -> TrainingSettings {
    let examples = data.target.dims().first().copied().unwrap_or(0);
    let batch = args.batch.unwrap_or(defaults.batch);
    let steps_of = |epochs: u64| {
        let of_one = (examples / batch.max(1)) as u64;
        let batches = epochs.saturating_mul(of_one.max(1));
        (batches / args.workers.map_or(1, u64::from)).max(1)
    };
    let steps = match (args.steps, args.epochs, defaults.steps) {
        (Some(steps), _, _) | (None, None, Some(steps)) => steps,
        (None, Some(epochs), _) => steps_of(epochs),
        (None, None, None) => steps_of(EPOCHS),
    };
    TrainingSettings {
        steps,
        batch,
        learning_rate: LearningRate {
            peak: args.learning_rate.unwrap_or(defaults.learning_rate),
            warmup: args.warmup,
            decay: match args.decay {
                DecayName::Constant => RateDecay::Constant,
                DecayName::Linear => RateDecay::Linear,
                DecayName::Cosine => RateDecay::Cosine,
            },
        },
        order: match args.in_order {
            true => ExampleOrder::OfRows,
            false => ExampleOrder::Shuffled(args.seed),
        },
        recipe,
        workers: args.workers(),
    }
}

/// Says how often souk evaluates on held-out examples: by default once for each pass over the data,
/// rounded up to a step that is kept.
fn with_period(
    args: &TrainArgs,
    settings: &TrainingSettings,
    data: &TrainingData,
    examples: TrainingData,
) -> HeldOutData {
    let count = data.target.dims().first().copied().unwrap_or(0);
    let pass = (count / settings.batch.max(1)).max(1) as u64;
    let pass = pass.div_ceil(settings.batches_per_step().max(1));
    let every = args.eval_every.unwrap_or_else(|| {
        let kept = args.keep_steps();
        pass.div_ceil(kept).saturating_mul(kept)
    });
    HeldOutData {
        examples,
        every_steps: every,
    }
}

fn lease_limits(args: &TrainLeaseArgs) -> Result<Limits, Failure> {
    let amount = |option: &str, given: Option<f64>| {
        given
            .map(|given| to_micro_credits(option, given))
            .transpose()
    };
    Ok(Limits {
        budget: amount("--budget", args.budget)?.map(Credits),
        price_max: amount("--max-price", args.max_price)?.map(Price),
        emulated: EmulatedDevices::by_flags(args.emulated, args.real)
            .map_err(|error| Failure::new(Kind::Input, error, ""))?,
        devices: args.device.clone(),
        objective: args.prefer,
        wait: args.wait,
        ..Limits::default()
    })
}
