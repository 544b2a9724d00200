//! The course of a job: rounds of buying and running until every output is there.
//!
//! A round buys leases for what is left of the job and has it run. What it computed before a
//! provider failed is fetched, paid for and kept, and the next round runs only what is missing,
//! without the provider that failed and within what is left of the budget.

pub(super) mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use souk_market::{AccountKey, Credits, JobId, LeaseId, Receipt};
use souk_memory::{ContentId, Tensor};
use souk_scheduler::graph::Graph;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::dispatch::{self, Deadline, Ran};
use super::holders::Holders;
use super::journal::{Journal, Round};
use super::purchase::{self, Bought};
use super::rest::{self, Rest};
use super::session::Session;
use super::settle::{self, Gathered};
use super::verdict::{self, Verdict};
use super::{Buyer, Finished, JobError, Progress, Quote, Spending, lineage};
use crate::buyer::job::{Job, Limits};
use crate::clock::unix_ms;
use crate::protocols::lease::Start;

/// Providers a job may lose before it is given up.
const FAILURES_MAX: usize = 4;

/// How long the escrow of leases that are over is waited for where the budget needs it, and how
/// often it is looked at: longer than markets let receipts come late.
const ESCROW_WAIT_MAX: Duration = Duration::from_secs(120);
const ESCROW_PERIOD: Duration = Duration::from_millis(500);

/// A job on its way.
pub(super) struct Course<'a> {
    buyer: &'a Buyer,
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
    /// The buyer's limits; providers that failed are added to those excluded.
    limits: Limits,
    /// Values that are there: outputs of the job, and what the rest of it needs.
    values: BTreeMap<String, Tensor>,
    gathered: Gathered,
    first: JobId,
    /// Every id that leases were bought under.
    jobs: Vec<JobId>,
    /// Rounds that bought something; the ids follow from their number.
    rounds: usize,
    failures: Vec<String>,
    begun_ms: u64,
    journal: Option<&'a mut Journal>,
    progress: &'a mpsc::Sender<Progress>,
    /// Providers that are being refused, which takes them a moment to note.
    refusing: JoinSet<()>,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        buyer: &'a Buyer,
        graph: Graph,
        inputs: BTreeMap<String, Tensor>,
        limits: Limits,
        progress: &'a mpsc::Sender<Progress>,
    ) -> Course<'a> {
        let first = first_id(buyer, &inputs);
        Course {
            buyer,
            graph,
            inputs,
            limits,
            values: BTreeMap::new(),
            gathered: Gathered::default(),
            first,
            jobs: Vec::new(),
            rounds: 0,
            failures: Vec::new(),
            begun_ms: unix_ms(),
            journal: None,
            progress,
            refusing: JoinSet::new(),
        }
    }

    /// Goes on with a journal, from what it says is there.
    pub(super) fn journaled(mut self, journal: &'a mut Journal) -> Result<Course<'a>, JobError> {
        self.values = journal.values()?;
        let record = journal.record();
        self.first = record.first;
        self.rounds = record.rounds.len();
        let rounds = record.rounds.iter().map(|round| round.job);
        self.jobs = rounds.chain(record.others.iter().copied()).collect();
        self.limits.excluded.extend(&record.excluded);
        self.gathered.receipts = record.receipts.clone();
        self.journal = Some(journal);
        Ok(self)
    }

    /// Runs the job to its end, from a quote for what is left of it. On an error what failed
    /// before comes along.
    pub(super) async fn complete(
        mut self,
        quote: Option<Quote>,
    ) -> Result<Finished, (JobError, Vec<String>)> {
        let ended = self.rounds(quote).await;
        // Refused providers are disputed before the job is over, since silence would pay them.
        while self.refusing.join_next().await.is_some() {}
        match ended {
            Ok(()) => Ok(self.finish()),
            Err(error) => Err((error, self.failures)),
        }
    }

    /// What the job has cost so far.
    pub(super) async fn spending(&self) -> Result<Spending, JobError> {
        let account = self.buyer.account();
        let leases = self.buyer.broker().job_leases(account, &self.jobs).await?;
        Ok(purchase::spending(&leases))
    }

    async fn rounds(&mut self, mut quote: Option<Quote>) -> Result<(), JobError> {
        let waiting_until = Instant::now() + self.limits.wait;
        self.serve_weights()?;
        while !rest::missing(&self.graph, &self.values).is_empty() {
            let Rest { graph, inputs } = rest::rest(&self.graph, &self.inputs, &self.values)?;
            match self.step(quote.take(), graph, &inputs).await {
                Ok(()) => {}
                // Another buyer was faster.
                Err(JobError::Unsold(_)) if Instant::now() < waiting_until => {}
                // What a lost provider's lease holds is not left to buy another with.
                Err(error) if error.is_budget() && self.escrow_came_back().await? => {}
                Err(error) => self.on_failure(error).await?,
            }
        }
        Ok(())
    }

    /// Plans what is left, unless it was planned before, and has it run.
    async fn step(
        &mut self,
        quote: Option<Quote>,
        graph: Graph,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<(), JobError> {
        let planned = match quote {
            Some(quote) => quote,
            None => {
                let limits = self.limits_left().await?;
                self.buyer.requote(graph, &limits).await?
            }
        };
        self.round(&planned, inputs).await
    }

    /// Waits until leases that are over give back some of what they hold, if any hold anything:
    /// until the market's grace has passed. Whether there is more to spend now.
    async fn escrow_came_back(&self) -> Result<bool, JobError> {
        let begin = Instant::now();
        let Spending { held, .. } = self.spending().await?;
        while begin.elapsed() < ESCROW_WAIT_MAX && held > Credits(0) {
            tokio::time::sleep(ESCROW_PERIOD).await;
            if self.spending().await?.held < held {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Weights of the whole job: the graph of a rest names them by id alone.
    fn serve_weights(&self) -> Result<(), JobError> {
        let store = self.buyer.tensors.store();
        for (id, bytes) in souk_scheduler::graph::cut::weight_bytes(&self.graph) {
            if !store.contains(&id) {
                store.put_as(id, bytes)?;
            }
        }
        Ok(())
    }

    /// Does without the provider that failed, if there is one to do without.
    async fn on_failure(&mut self, error: JobError) -> Result<(), JobError> {
        let Some(provider) = error
            .culprit()
            .filter(|_| self.failures.len() < FAILURES_MAX)
        else {
            return Err(error);
        };
        self.exclude(provider)?;
        let (why, kept) = (error.to_string(), self.values.len());
        self.failures.push(why.clone());
        self.tell(Progress::Retrying {
            provider,
            why,
            kept,
        })
        .await;
        Ok(())
    }

    pub(super) fn exclude(&mut self, provider: AccountKey) -> Result<(), JobError> {
        self.limits.excluded.push(provider);
        if let Some(journal) = &mut self.journal {
            journal.change(|record| record.excluded.push(provider))?;
        }
        Ok(())
    }

    /// The limits, less what was spent of the budget and of the time, and without the providers
    /// over whom the job was spread already.
    async fn limits_left(&self) -> Result<Limits, JobError> {
        let mut limits = self.limits.clone();
        if let Some(Credits(budget)) = limits.budget
            && !self.jobs.is_empty()
        {
            let Spending { spent, held } = self.spending().await?;
            limits.budget = Some(Credits(budget.saturating_sub(spent.0 + held.0)));
        }
        let paid: BTreeSet<AccountKey> = self
            .gathered
            .receipts
            .iter()
            .map(|receipt| receipt.body.provider)
            .collect();
        limits.providers_min = limits.providers_min.saturating_sub(paid.len()).max(1);
        if let Some(wanted) = limits.deadline {
            let passed = Duration::from_millis(unix_ms().saturating_sub(self.begun_ms));
            let left = wanted.checked_sub(passed).filter(|left| !left.is_zero());
            limits.deadline = Some(left.ok_or(JobError::Late(wanted))?);
        }
        Ok(limits)
    }

    async fn round(
        &mut self,
        quote: &Quote,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<(), JobError> {
        let bought = self.lease(quote).await?;
        let done = self.under_leases(quote, &bought, inputs).await;
        if done.is_err() {
            purchase::end(self.buyer, self.unsettled(&bought)).await;
        }
        done
    }

    /// Buys the leases of a round.
    async fn lease(&mut self, quote: &Quote) -> Result<Bought, JobError> {
        let limits = self.limits_left().await?;
        let id = nth_id(self.first, self.rounds);
        self.buyer.opened(id);
        let bought = purchase::buy(self.buyer, &limits, quote, id).await?;
        self.jobs.push(id);
        self.rounds += 1;
        let leases = bought
            .trades
            .iter()
            .map(|t| (t.provider, t.lease.0, t.escrow.0))
            .collect();
        self.tell(Progress::Leased { leases }).await;
        Ok(bought)
    }

    fn unsettled(&self, bought: &Bought) -> impl Iterator<Item = LeaseId> {
        let settled: BTreeSet<LeaseId> = self
            .gathered
            .receipts
            .iter()
            .map(|receipt| receipt.body.lease)
            .collect();
        let leases: Vec<LeaseId> = bought.trades.iter().map(|trade| trade.lease).collect();
        leases
            .into_iter()
            .filter(move |lease| !settled.contains(lease))
    }

    async fn under_leases(
        &mut self,
        quote: &Quote,
        bought: &Bought,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<(), JobError> {
        let starts = self.starts(quote, bought, inputs).await?;
        let deadline = self.deadline(bought.trades.iter().map(|trade| trade.deadline.0).min());
        let ran = dispatch::run(self.buyer, quote, bought, starts, deadline, self.progress).await;
        self.on_ran(quote, bought, inputs, ran).await
    }

    /// What each provider is told, in the journal before anybody is.
    async fn starts(
        &mut self,
        quote: &Quote,
        bought: &Bought,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<Start>, JobError> {
        let starts = dispatch::starts(self.buyer, quote, bought, inputs).await;
        if let Some(journal) = &mut self.journal {
            let round = Round {
                job: bought.job,
                trades: bought.trades.clone(),
                starts: starts.as_ref().map_or(Vec::new(), Vec::clone),
            };
            journal.change(|record| record.rounds.push(round))?;
        }
        starts
    }

    pub(super) fn deadline(&self, first_lease_ms: Option<u64>) -> Deadline {
        let until = |wanted: Duration| {
            let wanted_ms = u64::try_from(wanted.as_millis()).unwrap_or(u64::MAX);
            (self.begun_ms.saturating_add(wanted_ms), wanted)
        };
        Deadline {
            lease_ms: first_lease_ms.unwrap_or(0),
            job: self.limits.deadline.map(until),
        }
    }

    /// Keeps, signs and pays what was done well; refuses what was not.
    async fn on_ran(
        &mut self,
        quote: &Quote,
        bought: &Bought,
        inputs: &BTreeMap<String, Tensor>,
        ran: Ran,
    ) -> Result<(), JobError> {
        let Ran {
            mut sessions,
            mut failed,
        } = ran;
        for (place, error) in objections(&sessions, bought) {
            self.refuse(&mut sessions, place, &error);
            failed.get_or_insert(error);
        }
        let mut verdict = Verdict::default();
        if bought.trades.len() > bought.firsts {
            let runs = sessions.iter();
            let runs = runs.map(|(place, session)| (*place, verdict::Run::of(session)));
            let runs = runs.collect();
            verdict = self.judge(quote, bought, inputs, &runs).await?;
        }
        for (place, error) in std::mem::take(&mut verdict.outvoted) {
            self.refuse(&mut sessions, place, &error);
            failed.get_or_insert(error);
        }
        let wanted = wanted(quote, bought, &sessions, &verdict, failed.is_some());
        let (mut kept, mut paid) = (verdict.right, Vec::new());
        let holders = Holders::of(self.buyer, &sessions);
        for (_, session) in sessions {
            match settle::fetch(self.buyer, &session, &wanted, &holders).await {
                Ok(values) => {
                    kept.extend(values);
                    paid.push(session);
                }
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        self.keep(kept)?;
        self.tell(Progress::Returned).await;
        self.settle(paid).await?;
        failed.map_or(Ok(()), Err)
    }

    /// Compares first and second runs; where they differ, a third decides.
    async fn judge(
        &mut self,
        quote: &Quote,
        bought: &Bought,
        inputs: &BTreeMap<String, Tensor>,
        runs: &BTreeMap<usize, verdict::Run<'_>>,
    ) -> Result<Verdict, JobError> {
        let mut verdict = Verdict::default();
        for question in verdict::questions(self.buyer, quote, bought, runs).await? {
            let (graph, given) =
                verdict::work(self.buyer, quote, bought, inputs, runs, &question).await?;
            let mut limits = self.limits_left().await?;
            limits
                .excluded
                .extend(bought.trades.iter().map(|trade| trade.provider));
            (limits.copies, limits.providers_min, limits.providers_max) = (1, 1, 1);
            limits.requests = 1;
            let third = Course::new(self.buyer, graph, given, limits, self.progress);
            // A future that holds itself has no size; in a box it has.
            let third = Box::pin(third.alone()).await;
            let (jobs, third) = third;
            if let Some(journal) = &mut self.journal {
                journal.change(|record| record.others.extend(&jobs))?;
            }
            self.jobs.extend(jobs);
            let third = third?;
            self.gathered.receipts.extend(third.receipts);
            self.gathered.moved.extend(third.moved);
            verdict.decide(quote, &question, third.outputs)?;
        }
        Ok(verdict)
    }

    /// Runs to the end; the ids that leases were bought under come along, whatever came of them.
    async fn alone(mut self) -> (Vec<JobId>, Result<Finished, JobError>) {
        let ended = self.rounds(None).await;
        while self.refusing.join_next().await.is_some() {}
        let jobs = self.jobs.clone();
        (jobs, ended.map(|()| self.finish()))
    }

    fn refuse(&mut self, sessions: &mut BTreeMap<usize, Session>, place: usize, why: &JobError) {
        let Some(session) = sessions.remove(&place) else {
            return;
        };
        let (buyer, why) = (self.buyer.clone(), why.to_string());
        self.refusing
            .spawn(async move { settle::refuse(&buyer, session, why).await });
    }

    pub(super) fn keep(&mut self, values: BTreeMap<String, Tensor>) -> Result<(), JobError> {
        if let Some(journal) = &mut self.journal {
            journal.keep(&values)?;
        }
        self.values.extend(values);
        Ok(())
    }

    /// Signs the receipts of sessions whose results are here, and has them settled.
    pub(super) async fn settle(&mut self, sessions: Vec<Session>) -> Result<(), JobError> {
        let mut receipts = Vec::<Receipt>::with_capacity(sessions.len());
        for session in sessions {
            receipts.push(self.gathered.sign(self.buyer, session).await);
        }
        if receipts.is_empty() {
            return Ok(());
        }
        if let Some(journal) = &mut self.journal {
            let signed = receipts.clone();
            journal.change(|record| record.receipts.extend(signed))?;
        }
        settle::pay(self.buyer, &receipts).await
    }

    pub(super) fn buyer(&self) -> &'a Buyer {
        self.buyer
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The id after the last one that is known of: leases may have been bought under it.
    pub(super) fn skip_unrecorded(&mut self) -> JobId {
        let next = nth_id(self.first, self.rounds);
        self.jobs.push(next);
        self.rounds += 1;
        next
    }

    pub(super) fn jobs(&self) -> &[JobId] {
        &self.jobs
    }

    async fn tell(&self, progress: Progress) {
        // Progress is for eyes: a reader that went away stops nothing.
        let _ = self.progress.send(progress).await;
    }

    fn finish(self) -> Finished {
        let outputs = self.graph.outputs().iter().filter_map(|id| {
            let name = &self.graph.value(*id).name;
            Some((name.clone(), self.values.get(name)?.clone()))
        });
        let Gathered {
            receipts,
            moved,
            report,
            timeline,
        } = self.gathered;
        Finished {
            job: self.first,
            outputs: outputs.collect(),
            receipts,
            moved,
            report: report.unwrap_or_default(),
            timeline,
        }
    }
}

/// The sessions whose receipts are not what was bought.
fn objections(sessions: &BTreeMap<usize, Session>, bought: &Bought) -> Vec<(usize, JobError)> {
    let check = |(place, session): (&usize, &Session)| {
        let provider = session.provider;
        let objection = settle::check(session, &bought.trades[*place], sessions).err()?;
        Some((
            *place,
            JobError::Receipt {
                provider,
                objection,
            },
        ))
    };
    sessions.iter().filter_map(check).collect()
}

/// The names of the values to fetch: the job's outputs, and where something failed also what the
/// parts that were not done, or were fed wrongly, will read.
fn wanted(
    quote: &Quote,
    bought: &Bought,
    sessions: &BTreeMap<usize, Session>,
    verdict: &Verdict,
    failed: bool,
) -> BTreeSet<String> {
    let done = |part: usize| {
        let session = sessions.get(&bought.place_of(quote, part));
        let run = session.map(|session| session.start.parts.len());
        run.is_some_and(|run| lineage::was_run(quote, bought, part, run))
            && !verdict.tainted.contains(&part)
    };
    let made = quote
        .parts
        .iter()
        .filter(|part| done(part.part))
        .flat_map(|part| &part.outputs);
    let needed = made.filter(|b| b.job_output || (failed && b.to.iter().any(|to| !done(*to))));
    needed.map(|boundary| boundary.name.clone()).collect()
}

/// The id of a job's first round: of no other job's.
pub(super) fn first_id(buyer: &Buyer, inputs: &BTreeMap<String, Tensor>) -> JobId {
    let mut words = buyer.account().0.to_vec();
    for tensor in inputs.values() {
        words.extend_from_slice(&(tensor.blob_length() as u64).to_le_bytes());
    }
    words.extend_from_slice(&buyer.draw().to_le_bytes());
    JobId(*ContentId::of(&words).as_bytes())
}

/// The id of a job's nth round: whoever knows the first knows where to look for leases.
fn nth_id(first: JobId, n: usize) -> JobId {
    if n == 0 {
        return first;
    }
    let mut words = first.0.to_vec();
    words.extend_from_slice(&(n as u64).to_le_bytes());
    JobId(*ContentId::of(&words).as_bytes())
}

/// The model with the shapes of its inputs, and the inputs: what a job is about. A stream is about
/// no input: its requests are named one by one.
pub(super) fn subject(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<ContentId, souk_scheduler::graph::cut::CutError> {
    let mut words = souk_scheduler::graph::cut::whole(graph)?
        .id
        .as_bytes()
        .to_vec();
    for (name, tensor) in inputs {
        words.extend_from_slice(name.as_bytes());
        words.extend_from_slice(tensor.id().as_bytes());
    }
    Ok(ContentId::of(&words))
}

/// A course for a job that was quoted.
pub(super) fn of<'a>(
    buyer: &'a Buyer,
    job: &Job,
    graph: Graph,
    progress: &'a mpsc::Sender<Progress>,
) -> Course<'a> {
    Course::new(
        buyer,
        graph,
        job.inputs.clone(),
        job.limits.clone(),
        progress,
    )
}

/// The providers of a round, for finding them.
pub(super) fn providers(round: &Round) -> Vec<AccountKey> {
    round.trades.iter().map(|trade| trade.provider).collect()
}
