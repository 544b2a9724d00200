//! Shows the events of a training run as they happen: steps, evaluations, rounds of several
//! workers, and leases.

use std::time::Instant;

use serde_json::json;
use souk_node::buyer::JobEvent;
use souk_node::buyer::training::{AuditVerdict, Training, TrainingEvent};
use souk_node::market::{AccountKey, Credits};

use crate::args::Output;
use crate::show::{self, Names, format_count, progress};

/// About how many lines of steps the terminal gets.
const LINES: u64 = 50;

/// Micro-credits in a credit.
const MICRO: f64 = 1e6;

/// Shows the events of a run.
pub struct Progress {
    output: Output,
    steps: u64,
    every: u64,
    /// The steps from one evaluation to the next, if there are held-out examples, and every step
    /// is shown by itself.
    evaluation_every: Option<u64>,
    /// The loss of the last step.
    loss: Option<f32>,
    budget: Option<Credits>,
    names: Names,
    /// The last lease of each worker, and that of evaluations after them; one if there is one
    /// worker.
    leases: Vec<ShownLease>,
}

/// A lease of a worker.
#[derive(Clone, Default)]
struct ShownLease {
    provider: String,
    /// The price of a second of the lease, and its escrow.
    price: f64,
    escrow: f64,
    /// When the lease was bought.
    leased_at: Option<Instant>,
    /// The cost of the worker's leases before it in this round.
    spent: Credits,
}

impl ShownLease {
    /// Returns the most that the open lease has cost so far: until the receipt, the time since the
    /// purchase bounds the cost.
    fn open_cost_max(&self) -> f64 {
        self.leased_at.map_or(0.0, |since| {
            (since.elapsed().as_secs_f64() * self.price).min(self.escrow)
        })
    }
}

impl Progress {
    /// Creates the display of a run.
    pub fn new(output: Output, training: &Training, budget: Option<Credits>) -> Progress {
        let steps = training.settings.steps;
        let workers = training.settings.workers;
        let held_out = training.held_out.as_ref().filter(|_| workers.is_none());
        let leases = workers.map_or(1, |workers| workers.count + 1);
        Progress {
            output,
            steps,
            every: steps.div_ceil(LINES).max(1),
            evaluation_every: held_out.map(|it| it.every_steps),
            loss: None,
            budget,
            names: Names::default(),
            leases: vec![ShownLease::default(); leases],
        }
    }

    /// Shows an event.
    pub fn show_event(&mut self, event: TrainingEvent<'_>) {
        match event {
            TrainingEvent::OfWorker { place, event } => match event {
                TrainingEvent::Step { spent, .. } => self.leases[place].spent = *spent,
                event => self.show_lease_event(place, event),
            },
            TrainingEvent::Step { done, loss, spent } => self.show_step(done, loss, spent),
            TrainingEvent::Evaluated { done, loss, spent } => {
                self.show_evaluation(done, loss, spent);
            }
            TrainingEvent::Round {
                done,
                losses,
                of_workers,
                spent,
            } => self.show_round(done, losses, of_workers, spent),
            TrainingEvent::Audited { from, end, verdict } => {
                self.show_audit(from + 1, end, verdict);
            }
            event => self.show_lease_event(0, &event),
        }
    }

    /// Shows what came of running some steps again.
    fn show_audit(&mut self, first: u64, last: u64, verdict: AuditVerdict) {
        let name = |account: &AccountKey| {
            let account = account.to_string();
            show::replace_accounts(&account, &self.names)
        };
        let (word, provider, back_to) = match &verdict {
            AuditVerdict::Confirmed { by } => ("confirmed", Some(by), None),
            AuditVerdict::Contradicted { by } => ("contradicted", Some(by), None),
            AuditVerdict::Unaudited => ("unaudited", None, None),
            AuditVerdict::Convicted { provider, back_to } => {
                ("convicted", Some(provider), Some(*back_to))
            }
        };
        if self.output == Output::Json {
            if show::is_by_line() {
                show::print_json(&json!({
                    "audit": word, "first_step": first, "last_step": last, "provider": provider,
                    "back_to": back_to,
                }));
            }
            return;
        }
        let steps = match first == last {
            true => format!("step {first}"),
            false => format!("steps {first} to {last}"),
        };
        let text = match &verdict {
            AuditVerdict::Confirmed { by } => format!("{} made the same", name(by)),
            AuditVerdict::Contradicted { by } => {
                format!("{} made something else; a third provider decides", name(by))
            }
            AuditVerdict::Unaudited => "no other provider could run them again".to_owned(),
            AuditVerdict::Convicted { provider, back_to } => format!(
                "two others agree that {} lied; training goes on after {}",
                name(provider),
                format_count(*back_to, "step")
            ),
        };
        show::print_notice(&format!("  audit of {steps}: {text}"));
    }

    /// Shows an event of a lease of a worker.
    fn show_lease_event(&mut self, place: usize, event: &TrainingEvent<'_>) {
        match event {
            TrainingEvent::Planned(quote) => {
                let listing = quote.part_listing(0);
                let lease = &mut self.leases[place];
                lease.provider = show::provider_name(listing);
                lease.price = listing.price.0 as f64;
                self.names.extend(show::provider_names(&quote.listings));
            }
            TrainingEvent::Job(event) => self.show_job_event(place, event),
            TrainingEvent::LeaseEnded { unfinished, from } => {
                let from = format_count(*from, "step");
                let of_round = if self.leases.len() > 1 {
                    " of the round"
                } else {
                    ""
                };
                let how = match unfinished {
                    Some(unfinished) => {
                        let why = show::replace_accounts(&unfinished.reason_text(), &self.names);
                        format!("ended early: {why}")
                    }
                    None => "is over".to_owned(),
                };
                let text = format!("the lease {how}; training goes on after {from}{of_round}");
                show::print_notice(&format!("  {}{text}", self.worker_name(place)));
            }
            _ => {}
        }
    }

    fn show_job_event(&mut self, place: usize, event: &JobEvent) {
        let lease = &mut self.leases[place];
        match event {
            JobEvent::Leased { leases, .. } => {
                lease.escrow = leases.iter().map(|(_, _, escrow)| escrow.0 as f64).sum();
                lease.leased_at = Some(Instant::now());
            }
            JobEvent::Signed { .. } => lease.leased_at = None,
            _ => {}
        }
        let is_seldom = !matches!(event, JobEvent::Running { .. } | JobEvent::Finished { .. });
        if self.output == Output::Text
            && is_seldom
            && let Some(text) = progress::describe_event(event, &self.names)
        {
            show::print_notice(&format!("  {}{text}", self.worker_name(place)));
        }
    }

    /// Returns how a line about a worker begins.
    fn worker_name(&self, place: usize) -> String {
        match self.leases.len() {
            1 => String::new(),
            all if place + 1 == all => "evaluation: ".to_owned(),
            _ => format!("worker {}: ", place + 1),
        }
    }

    fn show_step(&mut self, done: u64, loss: f32, spent: Credits) {
        self.loss = Some(loss);
        let spent_max = self.spent_max(spent);
        if self.output == Output::Json {
            if show::is_by_line() {
                show::print_json(&json!({
                    "step": done, "steps": self.steps, "loss": loss,
                    "spent_micro_max": spent_max as u64, "provider": self.leases[0].provider,
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

    /// Shows a round of several workers: to programs each of its steps.
    fn show_round(&mut self, done: u64, losses: &[f32], of_workers: &[f32], spent: Credits) {
        self.loss = losses.last().copied();
        self.leases
            .iter_mut()
            .for_each(|it| it.spent = Credits::ZERO);
        let spent_max = self.spent_max(spent);
        if self.output == Output::Text {
            let last = losses.last().copied().unwrap_or(f32::NAN);
            let of_workers = of_workers.iter().map(|loss| format!("{loss:.4}"));
            let of_workers = of_workers.collect::<Vec<_>>().join(", ");
            let text = format!("loss {last:.4} (in the round, by worker: {of_workers})");
            return self.print_step(done, &text, spent_max);
        }
        if !show::is_by_line() {
            return;
        }
        let first = done - show::to_u64(losses.len());
        for (step, loss) in (first + 1..).zip(losses) {
            let mut line = json!({
                "step": step, "steps": self.steps, "loss": loss,
                "spent_micro_max": spent_max as u64,
            });
            if step == done {
                line["worker_losses"] = json!(of_workers);
            }
            show::print_json(&line);
        }
    }

    fn show_evaluation(&self, done: u64, loss: f32, spent: Credits) {
        let spent_max = self.spent_max(spent);
        if self.output == Output::Json {
            if show::is_by_line() {
                let provider = self.leases.last().map(|lease| &lease.provider);
                show::print_json(&json!({
                    "step": done, "steps": self.steps, "held_out_loss": loss,
                    "spent_micro_max": spent_max as u64, "provider": provider,
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

    /// Returns the most that the run has cost so far. `spent` are the ended leases of one worker
    /// alone, or those of all rounds before.
    fn spent_max(&self, spent: Credits) -> f64 {
        let of_leases = self.leases.iter().map(|lease| {
            let before = lease.spent.0 as f64;
            before + lease.open_cost_max()
        });
        spent.0 as f64 + of_leases.sum::<f64>()
    }

    fn print_step(&self, done: u64, losses: &str, spent_max: f64) {
        let budget = self.budget.map_or_else(String::new, |budget| {
            format!(" of {}", budget.0 as f64 / MICRO)
        });
        let provider = match &self.leases[..] {
            [only] => format!("  {}", only.provider),
            _ => String::new(),
        };
        show::print_notice(&format!(
            "step {done}/{}  {losses}  spent at most {:.3}{budget}{provider}",
            self.steps,
            spent_max / MICRO,
        ));
    }
}
