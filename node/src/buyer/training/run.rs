//! Defines a run of training in the market: its settings, its quote, the events during it, and its
//! result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use souk_market::{AccountKey, Credits, Permille, Receipt};
use souk_memory::{ContentId, Tensor};
use souk_roles::train::{AuditFindings, AuditVerdict};
use tokio::sync::Notify;

use super::Training;
use super::short_money::ShortMoney;
use crate::buyer::job::Limits;
use crate::buyer::{Buyer, JobEvent, Quote, QuoteError, UnfinishedJob};

/// A run in the market.
pub struct TrainingRun<'a> {
    /// The buyer that pays.
    pub buyer: &'a Buyer,
    /// The checked run, with the graph of its steps.
    pub training: &'a Training,
    /// The limits of its leases. The budget is that of all together.
    pub limits: Limits,
    /// The number of steps after which the states return to the buyer. A lost provider costs at
    /// most the steps since then. The number has no effect on the result.
    pub keep_steps: u64,
    /// The share of the steps that another provider runs again; zero for none. It has no effect on
    /// the result if nobody lies. A later life goes on with the share of the first.
    pub audit_share: Permille,
    /// Stops the run when you notify it: it sends one more step, takes those under way, and pays
    /// for them. A second time ends the lease at once.
    pub cancel: Arc<Notify>,
}

/// What a run costs at its beginning.
pub struct RunQuote {
    /// The quote of the first lease.
    pub lease: Quote,
    /// What of the budget is kept back for the audits of that lease.
    pub kept_back: Credits,
}

/// An event of a run, for its observer.
pub enum TrainingEvent<'a> {
    /// The next lease will be bought by this quote.
    Planned(&'a Quote),
    /// An event of the job of a lease.
    Job(&'a JobEvent),
    /// A step is done. If its lease ends before the next states return, the next lease repeats it.
    Step {
        /// The number of steps done, this one included.
        done: u64,
        /// The loss of its batch, before the step.
        loss: f32,
        /// The cost of the ended leases.
        spent: Credits,
    },
    /// The held-out examples are evaluated, beside a step at which the states are kept.
    Evaluated {
        /// The number of steps done.
        done: u64,
        /// The loss of the held-out examples after these steps.
        loss: f32,
        /// The cost of the ended leases.
        spent: Credits,
    },
    /// Another provider ran some steps again.
    Audited {
        /// The number of steps done before the first of them.
        from: u64,
        /// The number of steps done after the last of them.
        end: u64,
        /// The verdict of the audit.
        verdict: AuditVerdict,
    },
    /// An event of one worker of several. Its step counts once its round is done.
    OfWorker {
        /// The number of the worker, from 0; that after the last is of evaluations.
        place: usize,
        /// What happened; the cost is that of the worker's leases in this round.
        event: &'a TrainingEvent<'a>,
    },
    /// All workers did their steps of a round, and the parameters are averaged.
    Round {
        /// The number of steps done.
        done: u64,
        /// The mean loss of all workers at each step of the round.
        losses: &'a [f32],
        /// The mean loss of each worker over the round.
        of_workers: &'a [f32],
        /// The cost of all ended leases.
        spent: Credits,
    },
    /// A lease ended, and the run continues with another one.
    LeaseEnded {
        /// How it ended early; none if it did what it was bought for or its time was over.
        unfinished: Option<&'a UnfinishedJob>,
        /// The position (number of steps done) from which the run continues.
        from: u64,
    },
}

/// Why a run ended.
#[derive(Debug)]
pub enum TrainingEnd {
    /// All steps are done.
    Done,
    /// The caller stopped it.
    Stopped,
    /// The loss of a step, or a parameter or state after it, is infinite or no number, and no other
    /// provider found otherwise. The states of the result are the last kept ones before the step.
    NotFinite {
        /// The position of the step, from 0.
        step: u64,
        /// The loss of its batch.
        loss: f32,
    },
    /// No provider offers a lease.
    NoLease(Box<QuoteError>),
    /// The budget does not pay the next lease. If that is an audit, it stays due.
    NoMoney(ShortMoney),
    /// Leases ended without states.
    Lost(Option<Box<UnfinishedJob>>),
    /// Two providers made different states in the same steps, and no third one could be asked. The
    /// states of the result may be wrong.
    Disputed {
        /// The position of the first of these steps, from 0.
        step: u64,
        /// Why the budget does not pay a third one; none if no third one was on offer.
        short: Option<ShortMoney>,
    },
    /// The journal could not be written, for this reason.
    Journal(String),
}

/// What a run has made by its end, those of earlier lives included.
#[derive(Debug)]
pub struct TrainingResult {
    /// Why it ended.
    pub end: TrainingEnd,
    /// The loss of each step that counts.
    pub losses: Vec<f32>,
    /// The numbers of steps after which the held-out examples were evaluated, and their losses.
    pub held_out: Vec<(u64, f32)>,
    /// The head of the chain of these steps.
    pub link: ContentId,
    /// The parameters after the last of them, and of one worker alone the optimiser's states.
    pub states: BTreeMap<String, Tensor>,
    /// The cost of its leases.
    pub spent: Credits,
    /// The receipts of its leases.
    pub receipts: Vec<Receipt>,
    /// How many leases of this life ended early, by provider.
    pub lost: BTreeMap<AccountKey, u32>,
    /// The providers from which the run buys no more.
    pub banned: BTreeSet<AccountKey>,
    /// What audits found; none if no step was to be run again.
    pub audits: Option<AuditFindings>,
    /// The steps that wait for an audit, which a later life makes.
    pub due_steps: u64,
}
