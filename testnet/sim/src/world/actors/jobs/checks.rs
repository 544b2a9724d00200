//! What must hold of jobs and leases, whatever went wrong.

use souk_market::{JobId, LeaseId};
use souk_memory::ContentId;
use souk_roles::job::{Action, End, Outcome, attempt_id};
use souk_roles::lease::{BuyerWord, Opening};

use super::worker::Vice;
use crate::world::World;
use crate::world::actors::Role;

/// A job may take so long after its limits: an escrow of 120 s that comes back, and some leases.
const LATE_MS: u64 = 600_000;

/// A promise to a buyer or provider that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBreach {
    /// The machine, from zero.
    pub actor: usize,
    /// What was broken.
    pub reason: String,
}

impl World {
    /// The first promise broken is kept.
    pub(super) fn breach_of_job(&mut self, actor: usize, reason: String) {
        self.jobs.breach.get_or_insert(JobBreach { actor, reason });
    }

    /// L1: nothing is run before it is put down that the lease was begun, and nothing twice.
    pub(super) fn check_run(
        &mut self,
        actor: usize,
        (lease, request, part): (LeaseId, u32, u32),
        inputs: &[(String, ContentId)],
    ) {
        let account = self.actors.list[actor].account;
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return;
        };
        if !worker.began.contains(&lease) {
            self.breach_of_job(actor, format!("{lease} is run and not put down"));
        }
        if let Some((name, _)) = inputs
            .iter()
            .find(|(_, id)| !self.jobs.contents.has(account, *id))
        {
            self.breach_of_job(actor, format!("{lease} is run without {name}"));
        }
        let runs = self
            .jobs
            .ran
            .entry((account, lease, request, part))
            .or_default();
        *runs += 1;
        if *runs > 1 {
            let what = format!("part {part} of request {request} of {lease} is run twice");
            self.breach_of_job(actor, what);
        }
    }

    /// J1: nothing leaves before the facts it waits for are safe.
    pub(super) fn check_order(&mut self, actor: usize, action: &Action) {
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let safe = &buyer.safe;
        let wrong = match action {
            Action::Buy { .. } => safe.began.is_none(),
            Action::Open {
                leg,
                opening: Opening::Start(_),
                ..
            } => !safe.attempts.contains_key(&leg.attempt),
            Action::Sign { receipt } => !safe.right.contains_key(&receipt.body.lease),
            Action::Say {
                word: BuyerWord::Signed(receipt),
                ..
            } => !safe.right.contains_key(&receipt.body.lease),
            _ => false,
        };
        if wrong {
            let what = format!("{action:?}").chars().take(60).collect::<String>();
            self.breach_of_job(actor, format!("before it was put down: {what}"));
        }
    }

    /// C1: an answer is what the model gives, but for liars whom nobody compares, or who lie alike.
    pub(super) fn check_answer(
        &mut self,
        actor: usize,
        request: u32,
        outputs: &[(String, ContentId)],
    ) {
        let account = self.actors.list[actor].account;
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let Some(job) = &buyer.job else { return };
        let Some(truth) = job.truth(request) else {
            return self.breach_of_job(actor, format!("request {request} was never given"));
        };
        let compared = job.spec.limits.copies > 1;
        let mut names: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let mut wanted: Vec<&str> = job.spec.outputs.iter().map(String::as_str).collect();
        wanted.sort_unstable();
        let value = |id| self.jobs.contents.value(id);
        let wrong = outputs
            .iter()
            .any(|(name, id)| value(*id) != truth.get(name).copied());
        let missing = outputs
            .iter()
            .any(|(_, id)| !self.jobs.contents.has(account, *id));
        if names != wanted {
            self.breach_of_job(actor, format!("request {request} is answered by {names:?}"));
        } else if missing {
            self.breach_of_job(actor, format!("the answer to {request} is not here"));
        } else if wrong && compared && !self.lie_alike() {
            self.breach_of_job(actor, format!("the answer to {request} is wrong"));
        } else {
            self.counts.answers_wrong += u64::from(wrong);
        }
    }

    /// Whether two liars may have said the same, since all lie alike here.
    fn lie_alike(&self) -> bool {
        let lies = |role: &Role| matches!(role, Role::Worker(worker) if worker.vice == Vice::Lies);
        self.actors.list.iter().filter(|it| lies(&it.role)).count() > 1
    }

    /// M2: what a job cost and holds is within its budget. J1: what is told done is done.
    pub(super) fn check_outcome(&mut self, actor: usize, outcome: &Outcome) {
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let Some(job) = &buyer.job else { return };
        if outcome.how == End::Done && job.answered() < job.requests() {
            let what = format!("done with {} of {}", job.answered(), job.requests());
            return self.breach_of_job(actor, what);
        }
        let (spec, last) = (job.spec.clone(), job.lives * 20 + 20);
        let Some(budget) = spec.limits.budget else {
            return;
        };
        let ids: Vec<JobId> = (0..=last).map(|n| attempt_id(spec.job, n)).collect();
        let (_, shadow) = self.checker.shadow();
        let leases = shadow.exchange().leases();
        let mine = leases.filter(|lease| ids.contains(&lease.job));
        let spent: u64 = mine.map(|lease| lease.cost.0 + lease.escrow.0).sum();
        if spent > budget.0 {
            self.breach_of_job(actor, format!("{spent} of a budget of {}", budget.0));
        }
    }

    /// T1: every job ends in time.
    pub(crate) fn check_patience(&mut self) {
        for actor in 0..self.actors.list.len() {
            let Role::Buyer(buyer) = &self.actors.list[actor].role else {
                continue;
            };
            if let Some(job) = &buyer.job
                && job.began_at() + LATE_MS < self.now
            {
                let status = buyer.core.as_ref().map(souk_roles::job::JobCore::status);
                let what = format!("a job does not end: {status:?}");
                self.breach_of_job(actor, what);
            }
        }
    }

    /// Whether a job is still under way.
    pub(crate) fn has_jobs(&self) -> bool {
        let has = |role: &Role| matches!(role, Role::Buyer(buyer) if buyer.job.is_some());
        self.actors.list.iter().any(|actor| has(&actor.role))
    }
}
