//! Begins a run of training, or goes on with one that an earlier life left.
//!
//! [`souk_roles::train`] decides which leases it buys and which steps count; `run_shell` carries
//! that out.

use souk_market::{Credits, JobId, Millis};
use souk_roles::job::attempt_id;
use souk_roles::train::{Action, Blame, EvaluationSpec, Fact, Past, Payer, RunSpec, TrainCore};

use super::journal::{RunJournal, RunJournalError};
use super::run::{TrainingEvent, TrainingResult, TrainingRun};
use super::run_shell::RunShell;
use super::training_job;
use crate::buyer::lease_cancellation::end_leases;
use crate::buyer::{ATTEMPTS_SEEN, Quote, QuoteError};
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;

/// The most steps of one lease. Its receipt names what they made, and a lease of a longer time
/// holds more credits.
const LEASE_STEPS_MAX: u64 = 512;

/// The most bytes of states that one lease makes. A provider keeps them until the lease ends.
const LEASE_BYTES_MAX: u64 = 4 << 30;

/// Why a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainingRunError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] RunJournalError),
    /// The model, the data or a setting is not that with which the run began.
    #[error("the model, the examples or the settings have changed since the run began")]
    Subject,
    /// Another account of the market began the run, or one of another market. Only it can end the
    /// run's leases and learn what they cost.
    #[error("the account {} of the market {} began the run", .began.account, .began.market)]
    Payer {
        /// The account that pays for the run.
        began: Payer,
    },
    /// All its steps are done, and its result is written.
    #[error("all steps of this run are done")]
    Done,
    /// The market did not answer how the last lease of the earlier life ended.
    #[error("the market does not say what the run's last lease cost: {0}")]
    Market(#[from] BrokerError),
    /// The market did not end the last lease of the earlier life.
    #[error("the run's last lease could not be ended: {0}")]
    Trade(#[from] TradeError),
}

impl TrainingRun<'_> {
    /// Quotes the first lease. No money moves.
    ///
    /// # Errors
    /// [`QuoteError`]: no plan fits.
    pub async fn quote(&self) -> Result<Quote, QuoteError> {
        let (_, actions) = TrainCore::begin(self.spec(), self.begin_fact(String::new()));
        let first = actions.iter().find_map(|action| match action {
            Action::Quote(wish) => Some((wish.steps, wish.evaluations)),
            _ => None,
        });
        let (steps, evaluations) = first.expect("a run has at least one step");
        let requests = self.training.count_requests(steps, evaluations);
        let mut inputs = self.training.step_inputs(0);
        inputs.extend(self.training.step.states.clone());
        let job = training_job(self.training, self.limits.clone(), requests, inputs);
        self.buyer.quote_job(&job).await
    }

    /// Trains to the end of the run, or to what stops it. An open journal goes on with its run; a
    /// new one gets the caller's command, which the run does not interpret. After the caller has
    /// written the result of a run that is done, it must call [`RunJournal::finish_run`].
    ///
    /// # Errors
    /// [`TrainingRunError`] if the run cannot begin or go on.
    pub async fn run(
        &self,
        mut journal: RunJournal,
        command: String,
        observe: impl FnMut(TrainingEvent<'_>),
    ) -> Result<TrainingResult, TrainingRunError> {
        let spec = self.spec();
        let subject = self.training.subject();
        let payer = self.payer();
        let (core, actions, states) = match journal.past().cloned() {
            None => {
                let states = self.training.step.states.clone();
                let (core, actions) = TrainCore::begin(spec, self.begin_fact(command));
                (core, actions, states)
            }
            Some(past) => {
                if past.subject != subject {
                    return Err(TrainingRunError::Subject);
                }
                if past.payer != payer {
                    return Err(TrainingRunError::Payer { began: past.payer });
                }
                if RunJournal::is_finished(journal.folder(), &past) {
                    return Err(TrainingRunError::Done);
                }
                let states = journal.read_states(&past.kept)?;
                let past = self.settle_lease(&mut journal, past).await?;
                let (core, actions) = TrainCore::resume(spec, past);
                (core, actions, states)
            }
        };
        let writer = journal.start_writer();
        let shell = RunShell::new(self, core, states, writer, observe);
        Ok(shell.run(actions).await)
    }

    /// Ends the lease that an earlier life left open, and adds what it cost or still holds.
    async fn settle_lease(
        &self,
        journal: &mut RunJournal,
        mut past: Past,
    ) -> Result<Past, TrainingRunError> {
        let Some((job, provider)) = past.open_lease else {
            return Ok(past);
        };
        let ids: Vec<JobId> = (0..ATTEMPTS_SEEN).map(|n| attempt_id(job, n)).collect();
        end_leases(self.buyer.trader(), &ids).await?;
        let spending = self.buyer.job_spending(job).await?;
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

    /// Returns the first fact of a run that begins now.
    fn begin_fact(&self, command: String) -> Fact {
        let states = self.training.step.states.iter();
        Fact::Began {
            subject: self.training.subject(),
            payer: self.payer(),
            steps: self.training.settings.steps,
            states: states.map(|(name, it)| (name.clone(), it.id())).collect(),
            command,
            at: Millis(souk_folder::clock::unix_ms()),
        }
    }

    fn spec(&self) -> RunSpec {
        RunSpec {
            keep_steps: self.keep_steps.max(1),
            lease_steps_max: self.lease_steps_max(),
            budget: self.limits.budget,
            evaluation: self.training.held_out.as_ref().map(|it| EvaluationSpec {
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
