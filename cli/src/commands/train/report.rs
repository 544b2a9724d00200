//! Writes the files of a finished training run (the trained model, the receipts, and a report of
//! losses and costs), and prints what it wrote.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use souk_node::buyer::training::{
    ExampleOrder, OUTER_LEARNING_RATE, OUTER_MOMENTUM, Training, TrainingResult,
};
use souk_node::memory::ContentId;
use souk_node::scheduler::gradient::{Optimizer, StepGraph};

use super::subject::Subject;
use crate::args::{Output, TrainArgs};
use crate::commands::submit::write_each;
use crate::failure::{Failure, Kind};
use crate::files;
use crate::show::{self, format_count, format_credits};

/// A finished training run, and the facts that its files must contain.
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
        lines.extend(self.audit_line());
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
                "workers": self.describe_workers(),
                "frozen": self.args.freeze,
            },
            "parameters": parameters.collect::<Vec<Value>>(),
            "steps_done": self.result.losses.len(),
            "losses": self.result.losses,
            "held_out": self.describe_held_out(),
            "audits": self.describe_audits(),
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
    /// Returns the workers of the run; null if there is one whose steps nobody averages.
    fn describe_workers(&self) -> Value {
        let workers = self.training.settings.workers;
        workers.map_or(Value::Null, |workers| {
            json!({
                "count": workers.count,
                "round_steps": workers.round_steps,
                "outer": {
                    "name": "nesterov",
                    "learning_rate": OUTER_LEARNING_RATE,
                    "momentum": OUTER_MOMENTUM,
                },
            })
        })
    }

    /// Returns what audits found; null if no step was to be run again.
    fn describe_audits(&self) -> Value {
        let audits = self.result.audits.as_ref();
        audits.map_or(Value::Null, |audits| {
            json!({
                "share": self.args.audit_share().0,
                "confirmed_steps": audits.confirmed_steps,
                "unaudited_steps": audits.unaudited_steps,
                "due_steps": self.result.due_steps,
                "convicted": audits.convicted,
            })
        })
    }

    /// Returns a line on the audits.
    fn audit_line(&self) -> Option<String> {
        let audits = self.result.audits.as_ref()?;
        let unaudited = match audits.unaudited_steps {
            0 => String::new(),
            steps => format!("; {} found no other provider", format_count(steps, "step")),
        };
        let convicted = match show::to_u64(audits.convicted.len()) {
            0 => String::new(),
            liars => format!("; {} lied", format_count(liars, "provider")),
        };
        Some(format!(
            "  {} confirmed by another provider{unaudited}{convicted}",
            format_count(audits.confirmed_steps, "step")
        ))
    }

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
