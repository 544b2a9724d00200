//! Begins a run of training, or continues one that an earlier process began.
//!
//! [`souk_roles::train`] decides which leases it buys and which steps count; `run_shell` carries
//! that out.

use std::collections::BTreeMap;

use souk_folder::key::NodeKey;
use souk_market::{Credits, JobId, Millis};
use souk_memory::Tensor;
use souk_roles::job::attempt_id;
use souk_roles::train::{
    Action, AuditSpec, Blame, EvaluationSpec, Fact, LeaseWish, Past, Payer, RunSpec, TrainCore,
};

use super::journal::RunJournal;
use super::run::{RunQuote, TrainingEnd, TrainingEvent, TrainingResult, TrainingRun};
use super::run_error::TrainingRunError;
use super::run_shell::RunShell;
use super::sent::state_ids;
use super::short_money::ShortMoney;
use super::training_job;
use super::worker_run::WorkerRun;
use super::workers::Leg;
use crate::buyer::job::Limits;
use crate::buyer::lease_cancellation::end_leases;
use crate::buyer::{ATTEMPTS_SEEN, QuoteError};

/// The most steps of one lease. Its receipt names what they made, and a lease of a longer time
/// holds more credits.
const LEASE_STEPS_MAX: u64 = 512;

/// The most bytes of states that one lease makes. A provider keeps them until the lease ends.
const LEASE_BYTES_MAX: u64 = 4 << 30;

impl TrainingRun<'_> {
    /// Quotes the first lease. No money moves.
    ///
    /// # Errors
    /// [`TrainingEnd`]: no plan fits, or the budget does not pay it.
    pub async fn quote(&self) -> Result<RunQuote, TrainingEnd> {
        if let (Some(workers), None) = (self.training.settings.workers, &self.training.leg) {
            let first = self.training.for_leg(
                Leg {
                    worker: 0,
                    first: 0,
                    steps: workers.round_length(0, self.training.settings.steps),
                },
                self.training.step.states.clone(),
            );
            let run = TrainingRun {
                training: &first,
                limits: self.limits.clone(),
                cancel: self.cancel.clone(),
                ..*self
            };
            return Box::pin(run.quote()).await;
        }
        let wish = self.first_wish();
        let (steps, evaluations) = (wish.steps, wish.evaluations);
        let requests = self.training.count_requests(steps, evaluations);
        let mut inputs = self.training.step_inputs(0);
        inputs.extend(self.training.step.states.clone());
        let limits = Limits {
            budget: wish.budget,
            ..self.limits.clone()
        };
        let job = training_job(self.training, limits, requests, inputs);
        match self.buyer.quote_job(&job).await {
            Ok(lease) => Ok(RunQuote {
                lease,
                kept_back: wish.kept_back,
            }),
            Err(error) => Err(self.end_without_lease(Box::new(error), &wish, Credits::ZERO)),
        }
    }

    /// Returns what of the budget is kept back for the audits of the first lease.
    #[must_use]
    pub fn kept_back_at_first(&self) -> Credits {
        match self.audit_share.0 {
            0 => Credits::ZERO,
            _ => self.first_wish().kept_back,
        }
    }

    /// Returns the first lease of a run that begins now.
    fn first_wish(&self) -> LeaseWish {
        let began = self.begin_fact(String::new(), &self.training.step.states);
        let (_, actions) = TrainCore::begin(self.spec(), began);
        let first = actions.into_iter().find_map(|action| match action {
            Action::Quote(wish) => Some(wish),
            _ => None,
        });
        first.expect("a run has at least one step")
    }

    /// Returns how a run ends for which this lease got no quote. A worker of several has a share of
    /// the run's budget, so the run explains.
    pub(super) fn end_without_lease(
        &self,
        error: Box<QuoteError>,
        wish: &LeaseWish,
        spent: Credits,
    ) -> TrainingEnd {
        let is_whole = self.training.leg.is_none();
        let short = ShortMoney::explain(&error, wish, self.limits.budget, spent);
        match short.filter(|_| is_whole) {
            Some(short) => TrainingEnd::NoMoney(short),
            None => TrainingEnd::NoLease(error),
        }
    }

    /// Trains until the run ends or is stopped. With the journal of an earlier run, it continues
    /// that run; a new journal gets your command, which the run does not interpret. After you have
    /// written the result of a complete run, you must call [`RunJournal::finish_run`].
    ///
    /// # Errors
    /// [`TrainingRunError`] if the run cannot begin or go on.
    pub async fn run(
        &self,
        journal: RunJournal,
        command: String,
        observe: impl FnMut(TrainingEvent<'_>),
    ) -> Result<TrainingResult, TrainingRunError> {
        match self.training.settings.workers {
            None => self.run_alone(journal, command, observe).await,
            Some(workers) => {
                let run = WorkerRun::begin(self, workers, journal, command, observe)?;
                run.run().await
            }
        }
    }

    /// Trains a run or a leg of one worker.
    pub(super) async fn run_alone(
        &self,
        mut journal: RunJournal,
        command: String,
        observe: impl FnMut(TrainingEvent<'_>),
    ) -> Result<TrainingResult, TrainingRunError> {
        let spec = self.spec();
        let (core, actions, states) = match journal.past().cloned() {
            None => {
                let states = self.training.step.states.clone();
                let began = self.begin_fact(command, &states);
                let (core, actions) = TrainCore::begin(spec, began);
                (core, actions, states)
            }
            Some(past) => {
                self.check_past(&journal, &past)?;
                let states = journal.read_states(&past.kept)?;
                let past = self.settle_lease(&mut journal, past).await?;
                let (core, actions) = TrainCore::resume(spec, past);
                (core, actions, states)
            }
        };
        let folder = journal.folder().to_owned();
        let writer = journal.start_writer();
        let shell = RunShell::new(self, core, states, (writer, folder), observe);
        Ok(shell.run(actions).await)
    }

    /// Checks that this run is that of a journal, and that there is more to do.
    pub(super) fn check_past(
        &self,
        journal: &RunJournal,
        past: &Past,
    ) -> Result<(), TrainingRunError> {
        if past.subject != self.training.subject() {
            return Err(TrainingRunError::Subject);
        }
        if past.payer != self.payer() {
            return Err(TrainingRunError::Payer { began: past.payer });
        }
        match RunJournal::is_finished(journal.folder(), past) {
            true => Err(TrainingRunError::Done),
            false => Ok(()),
        }
    }

    /// Ends the lease that an earlier life left open, and adds what it cost or still holds.
    pub(super) async fn settle_lease(
        &self,
        journal: &mut RunJournal,
        mut past: Past,
    ) -> Result<Past, TrainingRunError> {
        let Some((job, provider)) = past.open_lease else {
            return Ok(past);
        };
        let ids: Vec<JobId> = (0..ATTEMPTS_SEEN).map(|n| attempt_id(job, n)).collect();
        let ended = end_leases(self.buyer.trader(), &ids).await;
        ended.map_err(Box::new)?;
        let spending = self.buyer.job_spending(job).await.map_err(Box::new)?;
        let settled = Fact::LeaseOver {
            provider,
            cost: Credits(spending.spent.0.saturating_add(spending.held.0)),
            receipts: Vec::new(),
            blame: Blame::Nothing,
        };
        journal.append_fact(settled.clone())?;
        past.apply(settled)
            .expect("the end of a lease follows from any fact");
        Ok(past)
    }

    fn payer(&self) -> Payer {
        let trader = self.buyer.trader();
        Payer {
            market: trader.market(),
            account: trader.account(),
        }
    }

    /// Returns the first fact of a run that begins now, from these states.
    pub(super) fn begin_fact(&self, command: String, states: &BTreeMap<String, Tensor>) -> Fact {
        Fact::Began {
            subject: self.training.subject(),
            payer: self.payer(),
            steps: self.training.steps(),
            states: state_ids(states),
            command,
            at: Millis(souk_folder::clock::unix_ms()),
            audits: (self.audit_share.0 > 0).then(|| AuditSpec {
                share: self.audit_share,
                // The public half of a key that no one sees is as unknown as any secret.
                secret: NodeKey::generate().public_key(),
            }),
        }
    }

    fn spec(&self) -> RunSpec {
        RunSpec {
            keep_steps: self.keep_steps.max(1),
            lease_steps_max: self.lease_steps_max(),
            budget: self.limits.budget,
            evaluation: self.training.held_out_of_steps().map(|it| EvaluationSpec {
                every_steps: it.every_steps,
                requests: it.batch_count() as u64,
            }),
        }
    }

    /// Returns the most steps of a lease.
    fn lease_steps_max(&self) -> u64 {
        let states = self.training.step.states.values();
        let bytes: u64 = states.map(|state| state.bytes().len() as u64).sum();
        let of_bytes = (LEASE_BYTES_MAX / bytes.max(1)).max(1);
        LEASE_STEPS_MAX.min(of_bytes)
    }
}
