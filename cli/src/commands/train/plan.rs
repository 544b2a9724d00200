//! Describes the plan of a training run before it starts: the model, the number of steps, the
//! audits, and the price.

use serde_json::{Value, json};
use souk_node::buyer::job::Limits;
use souk_node::buyer::training::Training;
use souk_node::buyer::{Quote, plan_json};
use souk_node::market::{Credits, Permille};

use super::subject::Subject;
use crate::args::Output;
use crate::show::{self, format_bytes, format_count, format_credits};

/// Describes what is trained, in lines for people.
pub fn describe_training(subject: &Subject, training: &Training) -> Vec<String> {
    let (step, settings) = (&training.step, &training.settings);
    let states: u64 = step.states.values().map(|it| it.bytes().len() as u64).sum();
    let batches = settings.steps as f64 * settings.batches_per_step() as f64;
    let passes = batches / training.batches_per_pass() as f64;
    let of_workers = settings.workers.map_or_else(String::new, |workers| {
        format!(
            " of each of {}",
            format_count(show::to_u64(workers.count), "worker")
        )
    });
    let mut lines = vec![format!(
        "training: {}{of_workers} of {} examples ({passes:.1} passes), {} of \"{}\" by {}",
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

/// Describes the audits of a run, and what of its budget is kept back for them; none if there are
/// none.
pub fn describe_audits(
    training: &Training,
    share: Permille,
    kept_back: Option<Credits>,
) -> Option<String> {
    let steps = audited_steps(training, share);
    let kept_back = kept_back.filter(|it| it.0 > 0);
    let kept_back = kept_back.map_or_else(String::new, |it| {
        let credits = format_credits(it.0);
        format!("; of the budget, {credits} credits are kept back for that")
    });
    let steps = (steps > 0).then(|| format_count(steps, "step"));
    steps.map(|steps| format!("  about {steps} run again by other providers{kept_back}"))
}

/// Returns how many steps are run again, as far as nobody lies.
fn audited_steps(training: &Training, share: Permille) -> u64 {
    let steps = training.settings.steps;
    steps.saturating_mul(u64::from(share.0)).div_ceil(1_000)
}

/// The plan of a run.
pub struct TrainingPlan<'a> {
    pub subject: &'a Subject,
    pub training: &'a Training,
    /// The quote of the first lease.
    pub quote: &'a Quote,
    /// What of the budget is kept back for the audits of that lease.
    pub kept_back: Credits,
    pub limits: &'a Limits,
    /// The steps from one kept state to the next.
    pub keep_steps: u64,
    /// The share of the steps that another provider runs again.
    pub audit_share: Permille,
}

impl TrainingPlan<'_> {
    /// Shows the plan.
    pub fn show(&self, output: Output) {
        let TrainingPlan {
            subject,
            training,
            quote,
            ..
        } = *self;
        let (step, settings) = (&training.step, &training.settings);
        let memory = quote.graph.summary().memory_bytes_peak;
        // A quote is for the steps of one lease.
        let requests = (training.request_count() + self.audited_steps()) as f64;
        let leases = requests / f64::from(quote.requests.max(1));
        let seconds = quote.run_seconds() * leases;
        let price = (quote.price().0 as f64 * leases).ceil() as u64;
        let batches = settings.steps as f64 * settings.batches_per_step() as f64;
        let examples = batches * settings.batch as f64;
        let tokens = subject.tokens_per_example().map(|tokens| tokens * examples);
        let per_million = tokens.map(|tokens| (price as f64 / tokens * 1e6).ceil() as u64);
        match output {
            Output::Json => show::print_json(&json!({
                "steps": settings.steps,
                "workers": self.describe_workers(),
                "audited_steps": self.audited_steps(),
                "audits_kept_back_micro": self.kept_back.0,
                "evaluations": training.held_out.as_ref().map(|_| training.evaluation_count()),
                "tokens": tokens.map(|tokens| tokens.round() as u64),
                "price_micro_per_million_tokens": per_million,
                "steps_per_pass": training.batches_per_pass(),
                "parameters": step.parameters.elements(),
                "initialisers": step.parameters.count(),
                "memory_bytes": memory,
                "seconds": seconds,
                "price_micro": price,
                "plan": plan_json::to_json(quote),
            })),
            Output::Text => {
                let mut text = describe_training(subject, training);
                let audits = match self.audited_steps() {
                    0 => "",
                    _ => " with audits",
                };
                text.push(format!(
                    "  about {:.3} s and {} credits in all{audits}; {} of memory at the provider",
                    seconds,
                    format_credits(price),
                    format_bytes(memory),
                ));
                text.extend(self.round_line());
                text.extend(describe_audits(
                    training,
                    self.audit_share,
                    Some(self.kept_back),
                ));
                if let (Some(tokens), Some(per_million)) = (tokens, per_million) {
                    text.push(format!(
                        "  {tokens:.0} tokens in all, {} credits for a million",
                        format_credits(per_million)
                    ));
                }
                text.extend(self.first_lease_line());
                text.extend(show::plan::describe_plan(quote, self.limits));
                text.iter().for_each(|line| show::print_line(line));
            }
        }
    }

    /// Returns a line on the first lease, unless it is for the whole run.
    fn first_lease_line(&self) -> Option<String> {
        let count = u64::from(self.quote.requests);
        if count >= self.training.request_count() {
            return None;
        }
        let steps = match self.training.held_out {
            Some(_) if self.training.settings.workers.is_none() => {
                format!("{count} steps and held-out batches")
            }
            _ => format_count(count, "step"),
        };
        Some(format!("  the first lease is for {steps}:"))
    }

    /// Returns the workers of the run; null if there is one whose steps nobody averages.
    fn describe_workers(&self) -> Value {
        let Some((workers, bytes)) = self.training.settings.workers.zip(self.round_bytes()) else {
            return Value::Null;
        };
        json!({
            "count": workers.count,
            "round_steps": workers.round_steps,
            "rounds": workers.round_count(self.training.settings.steps),
            "round_bytes_to_workers": bytes.0,
            "round_bytes_from_workers": bytes.1,
        })
    }

    fn audited_steps(&self) -> u64 {
        audited_steps(self.training, self.audit_share)
    }

    /// Returns a line on the rounds of several workers.
    fn round_line(&self) -> Option<String> {
        let (workers, (to, from)) = self.training.settings.workers.zip(self.round_bytes())?;
        let rounds = workers.round_count(self.training.settings.steps);
        Some(format!(
            "  {} of {} a worker; in each, {} of states go to the workers and {} come back",
            format_count(rounds, "round"),
            format_count(workers.round_steps, "step"),
            format_bytes(to),
            format_bytes(from),
        ))
    }

    /// Returns how many bytes of states a round moves to its workers, and from them.
    fn round_bytes(&self) -> Option<(u64, u64)> {
        let workers = self.training.settings.workers?;
        let states = self.training.step.states.values();
        let states: u64 = states.map(|it| it.bytes().len() as u64).sum();
        let of_all = states.saturating_mul(show::to_u64(workers.count));
        let kept = workers.round_steps.div_ceil(self.keep_steps.max(1));
        Some((of_all, of_all.saturating_mul(kept)))
    }
}
