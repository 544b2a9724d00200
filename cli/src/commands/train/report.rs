//! Shows the plan and the progress of training, and writes the trained model with its report.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use souk_node::buyer::job::Limits;
use souk_node::buyer::training::{ExampleOrder, Training, TrainingEvent, TrainingResult};
use souk_node::buyer::{JobEvent, Quote, plan_json};
use souk_node::market::Credits;
use souk_node::memory::ContentId;
use souk_node::scheduler::gradient::{Optimizer, StepGraph};

use super::subject::Subject;
use crate::args::{Output, TrainArgs};
use crate::commands::submit::write_each;
use crate::failure::{Failure, Kind};
use crate::files;
use crate::show::{self, Names, format_bytes, format_count, format_credits, progress};

/// About how many lines of steps the terminal gets.
const LINES: u64 = 50;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

/// Describes what is trained, in lines for people.
pub fn describe_training(subject: &Subject, training: &Training) -> Vec<String> {
    let (step, settings) = (&training.step, &training.settings);
    let states: u64 = step.states.values().map(|it| it.bytes().len() as u64).sum();
    let passes = settings.steps as f64 / training.steps_per_pass() as f64;
    let mut lines = vec![format!(
        "training: {} of {} examples ({passes:.1} passes), {} of \"{}\" by {}",
        format_count(settings.steps, "step"),
        settings.batch,
        settings.recipe.loss.name(),
        step.output,
        settings.recipe.optimizer.name(),
    )];
    lines.extend(subject.describe_line());
    if let Some(held_out) = &training.held_out {
        let left_out = match held_out.left_out {
            0 => String::new(),
            rest => format!("; {rest} more fill no batch and are left out"),
        };
        lines.push(format!(
            "  evaluated on {} before the first step, each {} and at the end{left_out}",
            format_count(show::to_u64(held_out.examples), "held-out example"),
            format_count(held_out.every_steps, "step"),
        ));
    }
    lines.push(format!(
        "  {} in {}, {} of parameters and states; the provider sees model and examples",
        format_count(show::to_u64(step.parameters.elements()), "parameter"),
        format_count(show::to_u64(step.parameters.count()), "initialiser"),
        format_bytes(states),
    ));
    lines
}

/// Shows the plan of a run.
pub fn show_plan(
    output: Output,
    subject: &Subject,
    training: &Training,
    quote: &Quote,
    limits: &Limits,
) {
    let (step, settings) = (&training.step, &training.settings);
    let memory = quote.graph.summary().memory_bytes_peak;
    // A quote is for the steps of one lease.
    let leases = training.request_count() as f64 / f64::from(quote.requests.max(1));
    let seconds = quote.run_seconds() * leases;
    let price = (quote.price().0 as f64 * leases).ceil() as u64;
    let examples = settings.steps as f64 * settings.batch as f64;
    let tokens = subject.tokens_per_example().map(|tokens| tokens * examples);
    let per_million = tokens.map(|tokens| (price as f64 / tokens * 1e6).ceil() as u64);
    match output {
        Output::Json => show::print_json(&json!({
            "steps": settings.steps,
            "evaluations": training.held_out.as_ref().map(|it| it.evaluation_count(settings.steps)),
            "tokens": tokens.map(|tokens| tokens.round() as u64),
            "price_micro_per_million_tokens": per_million,
            "steps_per_pass": training.steps_per_pass(),
            "parameters": step.parameters.elements(),
            "initialisers": step.parameters.count(),
            "memory_bytes": memory,
            "seconds": seconds,
            "price_micro": price,
            "plan": plan_json::to_json(quote),
        })),
        Output::Text => {
            let mut text = describe_training(subject, training);
            text.push(format!(
                "  about {:.3} s and {} credits in all; {} of memory at the provider",
                seconds,
                format_credits(price),
                format_bytes(memory),
            ));
            if let (Some(tokens), Some(per_million)) = (tokens, per_million) {
                text.push(format!(
                    "  {tokens:.0} tokens in all, {} credits for a million",
                    format_credits(per_million)
                ));
            }
            if u64::from(quote.requests) < training.request_count() {
                let count = u64::from(quote.requests);
                let steps = match training.held_out {
                    Some(_) => format!("{count} steps and held-out batches"),
                    None => format_count(count, "step"),
                };
                text.push(format!("  the first lease is for {steps}:"));
            }
            text.extend(show::plan::describe_plan(quote, limits));
            text.iter().for_each(|line| show::print_line(line));
        }
    }
}

/// Shows the events of a run.
pub struct Progress {
    output: Output,
    steps: u64,
    every: u64,
    /// The steps from one evaluation to the next, if there are held-out examples.
    evaluation_every: Option<u64>,
    /// The loss of the last step.
    loss: Option<f32>,
    budget: Option<Credits>,
    names: Names,
    provider: String,
    /// The price of a second of the lease, and its escrow.
    price: f64,
    escrow: f64,
    /// When the lease was bought.
    leased_at: Option<Instant>,
}

impl Progress {
    /// Creates the display of a run.
    pub fn new(output: Output, training: &Training, budget: Option<Credits>) -> Progress {
        let steps = training.settings.steps;
        Progress {
            output,
            steps,
            every: steps.div_ceil(LINES).max(1),
            evaluation_every: training.held_out.as_ref().map(|it| it.every_steps),
            loss: None,
            budget,
            names: Names::default(),
            provider: String::new(),
            price: 0.0,
            escrow: 0.0,
            leased_at: None,
        }
    }

    /// Shows an event.
    pub fn show_event(&mut self, event: TrainingEvent<'_>) {
        match event {
            TrainingEvent::Planned(quote) => {
                let listing = quote.part_listing(0);
                self.provider = show::provider_name(listing);
                self.price = listing.price.0 as f64;
                self.names = show::provider_names(&quote.listings);
            }
            TrainingEvent::Job(event) => self.show_job_event(event),
            TrainingEvent::Step { done, loss, spent } => self.show_step(done, loss, spent),
            TrainingEvent::Evaluated { done, loss, spent } => {
                self.show_evaluation(done, loss, spent);
            }
            TrainingEvent::LeaseEnded { unfinished, from } => {
                let why = show::replace_accounts(&unfinished.reason_text(), &self.names);
                let from = format_count(from, "step");
                let line = format!("  the lease ended early: {why}; training goes on after {from}");
                show::print_notice(&line);
            }
        }
    }

    fn show_job_event(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Leased { leases, .. } => {
                self.escrow = leases.iter().map(|(_, _, escrow)| escrow.0 as f64).sum();
                self.leased_at = Some(Instant::now());
            }
            JobEvent::Signed { .. } => self.leased_at = None,
            _ => {}
        }
        let is_seldom = !matches!(event, JobEvent::Running { .. } | JobEvent::Finished { .. });
        if self.output == Output::Text && is_seldom {
            progress::print_event(event, &self.names);
        }
    }

    fn show_step(&mut self, done: u64, loss: f32, spent: Credits) {
        self.loss = Some(loss);
        let spent_max = self.spent_max(spent);
        if self.output == Output::Json {
            if show::is_by_line() {
                show::print_json(&json!({
                    "step": done, "steps": self.steps, "loss": loss,
                    "spent_micro_max": spent_max as u64, "provider": self.provider,
                }));
            }
            return;
        }
        // The line of an evaluation also has the loss of the step before.
        let is_evaluated = self
            .evaluation_every
            .is_some_and(|every| done.is_multiple_of(every) || done == self.steps);
        let is_shown = done.is_multiple_of(self.every) || done == self.steps || done == 1;
        if is_shown && !is_evaluated {
            self.print_step(done, &format!("loss {loss:.4}"), spent_max);
        }
    }

    fn show_evaluation(&self, done: u64, loss: f32, spent: Credits) {
        let spent_max = self.spent_max(spent);
        if self.output == Output::Json {
            if show::is_by_line() {
                show::print_json(&json!({
                    "step": done, "steps": self.steps, "held_out_loss": loss,
                    "spent_micro_max": spent_max as u64, "provider": self.provider,
                }));
            }
            return;
        }
        let held_out = format!("held-out {loss:.4}");
        let losses = match self.loss {
            Some(loss) => format!("loss {loss:.4}  {held_out}"),
            None => held_out,
        };
        self.print_step(done, &losses, spent_max);
    }

    /// Returns the most that the run has cost so far. Until the receipt, the time since the
    /// purchase bounds the cost of the lease.
    fn spent_max(&self, spent: Credits) -> f64 {
        let open = self.leased_at.map_or(0.0, |since| {
            (since.elapsed().as_secs_f64() * self.price).min(self.escrow)
        });
        spent.0 as f64 + open
    }

    fn print_step(&self, done: u64, losses: &str, spent_max: f64) {
        let budget = self.budget.map_or_else(String::new, |budget| {
            format!(" of {}", budget.0 as f64 / MICRO)
        });
        show::print_notice(&format!(
            "step {done}/{}  {losses}  spent at most {:.3}{budget}  {}",
            self.steps,
            spent_max / MICRO,
            self.provider
        ));
    }
}

/// A run that is over, and what its files need to say.
pub struct TrainingReport<'a> {
    pub args: &'a TrainArgs,
    pub training: &'a Training,
    /// What is trained, as it was before.
    pub subject: &'a Subject,
    pub result: &'a TrainingResult,
}

/// The files of a trained model.
pub struct WrittenModel {
    /// None if no step was done.
    model: Option<PathBuf>,
    /// None if there was nothing to report: no step and no receipt.
    report: Option<PathBuf>,
    facts: Value,
    lines: Vec<String>,
}

impl TrainingReport<'_> {
    /// Writes the receipts, the report, and the model unless no step was done. The model is the
    /// largest, so it comes last. Without a step and a receipt, the files of an earlier run stay.
    pub fn write(&self, out: &Path) -> Result<WrittenModel, Failure> {
        let (subject, result) = (self.subject, self.result);
        let vector = &result.states[&StepGraph::parameters_input()];
        let tuned = subject.encode_result(self.training, vector, out)?;
        let is_trained = !result.losses.is_empty();
        let mut facts = self.describe();
        let path = subject.report_path(out);
        if let Some(numbers) = tuned.last().filter(|_| is_trained) {
            let hash = ContentId::for_content(&numbers.bytes).to_string();
            facts["tuned"] = json!({ "file": out, "blake3": hash });
        }
        let has_facts = is_trained || !result.receipts.is_empty();
        if has_facts {
            write_each(&subject.folder(out), &result.receipts)?;
            let text = serde_json::to_vec_pretty(&facts);
            let text = text.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
            files::write(&path, &text)?;
        }
        for file in tuned.iter().filter(|_| is_trained) {
            files::write(&file.path, &file.bytes)?;
        }
        Ok(WrittenModel {
            model: is_trained.then(|| out.to_owned()),
            report: has_facts.then_some(path),
            facts,
            lines: self.summary_lines(),
        })
    }

    fn summary_lines(&self) -> Vec<String> {
        let losses = &self.result.losses;
        let (Some(first), Some(last)) = (losses.first(), losses.last()) else {
            return Vec::new();
        };
        let receipts = &self.result.receipts;
        let signed: u64 = receipts.iter().map(|receipt| receipt.body.amount.0).sum();
        let spent = self.result.spent.0;
        let rest = match spent.saturating_sub(signed) {
            0 => String::new(),
            rest => format!(
                "; at most {} more for leases without a receipt",
                format_credits(rest)
            ),
        };
        let held_out = &self.result.held_out;
        let held_out = held_out.first().zip(held_out.last());
        let held_out = held_out.map_or_else(String::new, |((_, first), (_, last))| {
            format!("; held-out {first:.4} at first, {last:.4} at last")
        });
        let missing = self.is_last_held_out_missing().then(|| {
            "  the last evaluation did not succeed, so the held-out loss at the end is missing"
                .to_owned()
        });
        let mut lines = vec![
            format!(
                "trained: {}, loss {first:.4} at first, {last:.4} at last{held_out}",
                format_count(show::to_u64(losses.len()), "step")
            ),
            format!(
                "  {} credits in {}, signed by both sides{rest}",
                format_credits(signed),
                format_count(show::to_u64(receipts.len()), "lease")
            ),
        ];
        lines.extend(missing);
        lines
    }

    /// Returns whether all steps are done, and held-out examples were not evaluated after the last.
    fn is_last_held_out_missing(&self) -> bool {
        let steps = self.training.settings.steps;
        let last = self.result.held_out.last();
        self.training.held_out.is_some()
            && show::to_u64(self.result.losses.len()) == steps
            && last.is_none_or(|(done, _)| *done < steps)
    }

    /// Returns all that somebody needs to repeat the run or to check its receipts.
    fn describe(&self) -> Value {
        let settings = &self.training.settings;
        let optimizer = match settings.recipe.optimizer {
            Optimizer::Sgd(sgd) => json!({
                "name": "sgd", "momentum": sgd.momentum, "weight_decay": sgd.weight_decay,
            }),
            Optimizer::AdamW(adamw) => json!({
                "name": "adamw", "beta1": adamw.beta1, "beta2": adamw.beta2,
                "epsilon": adamw.epsilon, "weight_decay": adamw.weight_decay,
            }),
        };
        let order = match settings.order {
            ExampleOrder::OfRows => json!("rows"),
            ExampleOrder::Shuffled(seed) => json!({ "seed": seed }),
        };
        let data = &self.training.data;
        let target = (&data.target_name, &data.target);
        let tensors = data.inputs.iter().chain([target]).map(|(name, tensor)| {
            let facts = json!({
                "dims": tensor.dims(), "dtype": tensor.dtype().to_string(),
                "blake3": ContentId::for_content(tensor.bytes()).to_string(),
            });
            (name.clone(), facts)
        });
        let parameters = self.training.step.parameters.iter();
        let parameters = parameters.map(|it| json!({ "name": it.name, "dims": it.dims }));
        let mut facts = self.subject.describe_facts(&self.args.model);
        let run = json!({
            "data": tensors.collect::<serde_json::Map<String, Value>>(),
            "recipe": {
                "loss": settings.recipe.loss.name(),
                "output": self.training.step.output,
                "optimizer": optimizer,
                "learning_rate": settings.learning_rate.peak,
                "warmup": settings.learning_rate.warmup,
                "decay": settings.learning_rate.decay.name(),
                "gradient_norm_max": settings.recipe.gradient_norm_max,
                "steps": settings.steps,
                "batch": settings.batch,
                "order": order,
                "frozen": self.args.freeze,
            },
            "parameters": parameters.collect::<Vec<Value>>(),
            "steps_done": self.result.losses.len(),
            "losses": self.result.losses,
            "held_out": self.describe_held_out(),
            "spent_micro": self.result.spent.0,
            "receipts": self.result.receipts,
        });
        if let (Value::Object(facts), Value::Object(run)) = (&mut facts, run) {
            facts.extend(run);
        }
        facts
    }
}

impl TrainingReport<'_> {
    /// Returns the evaluations; null without held-out examples.
    fn describe_held_out(&self) -> Value {
        let Some(held_out) = &self.training.held_out else {
            return Value::Null;
        };
        let losses = self.result.held_out.iter();
        let losses = losses.map(|(done, loss)| json!({ "step": done, "loss": loss }));
        json!({
            "examples": held_out.examples,
            "every": held_out.every_steps,
            "losses": losses.collect::<Vec<Value>>(),
        })
    }
}

impl WrittenModel {
    /// Shows a run that did all its steps.
    pub fn show_result(&self, output: Output) {
        if output == Output::Json {
            return show::print_json(&self.facts);
        }
        self.lines.iter().for_each(|line| show::print_line(line));
        let files = self.model.iter().chain(&self.report);
        files.for_each(|path| show::print_line(&format!("  {}", path.display())));
    }

    /// Returns the report of the run.
    #[cfg(feature = "generate")]
    pub fn facts(&self) -> &Value {
        &self.facts
    }

    /// Describes the model of a run that ended early, if it has a step.
    pub fn describe_partial(&self, done: u64) -> Option<String> {
        let model = self.model.as_ref()?;
        let steps = format_count(done, "step");
        Some(format!(
            "{} has the parameters after {steps}",
            model.display()
        ))
    }
}
