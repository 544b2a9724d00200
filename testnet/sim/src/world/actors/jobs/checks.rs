//! Checks the promises about jobs and leases to simulated buyers and providers, which must hold
//! whatever goes wrong. Their code calls these checks as they act.

use souk_market::{AccountKey, CloseReason, Command, LeaseId, LeaseState, ReceiptBody};
use souk_memory::ContentId;
use souk_roles::job::{Action, End, Fact, Loss, Objection, Outcome, Reason, request_id};
use souk_roles::lease::{BuyerMessage, Opening, ProviderMessage};
use souk_roles::provider::{self, Report};

use super::misconduct::{BuyerMisconduct, ProviderMisconduct};
use super::planner::GIVEN;
use crate::checker::Violation;
use crate::world::World;
use crate::world::actors::Role;

/// Milliseconds that a job can take beyond its limits: the return of an escrow of 120 s, and some
/// leases.
const LATE_MS: u64 = 600_000;

/// Maximum steps of a core at one moment.
const STEPS_MAX: u32 = 64;

/// A broken promise to a buyer or provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBreach {
    /// The machine's index.
    pub actor: usize,
    /// A description.
    pub reason: String,
}

impl World {
    /// T2: no core loops endlessly at one moment.
    pub(crate) fn count_wake(&mut self, actor: usize) {
        let of = &mut self.actors.list[actor];
        of.woken = match of.woken {
            (at, often) if at == self.now => (at, often + 1),
            _ => (self.now, 1),
        };
        if of.woken.1 > STEPS_MAX {
            self.breach_of_job(actor, format!("woken {STEPS_MAX} times at one moment"));
        }
    }

    /// Records a broken promise, if it is the first.
    pub(crate) fn breach_of_job(&mut self, actor: usize, reason: String) {
        self.jobs.breach.get_or_insert(JobBreach { actor, reason });
    }

    /// L1: a provider runs no part before it has recorded the start of the lease, and no part
    /// twice.
    pub(super) fn check_run(
        &mut self,
        actor: usize,
        lease: LeaseId,
        request: u32,
        part: u32,
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
            .find(|(_, id)| !self.jobs.contents.has_content(account, *id))
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

    /// J1: no action of a buyer leaves before the facts that it depends on are safe.
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
            Action::SendMessage {
                message: BuyerMessage::Signed(receipt),
                ..
            } => !safe.right.contains_key(&receipt.body.lease),
            _ => false,
        };
        if wrong {
            let what = format!("{action:?}").chars().take(60).collect::<String>();
            self.breach_of_job(actor, format!("before it was put down: {what}"));
        }
    }

    /// J1 for a provider: no message or command leaves before the facts that it depends on are
    /// safe. Notes of usage are an exception: a provider that cannot write still bills its work.
    pub(super) fn check_order_of_worker(&mut self, actor: usize, action: &provider::Action) {
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return;
        };
        let wrong = match action {
            provider::Action::SendMessage { stream, message } => {
                let lease = worker.spoken_of.get(stream);
                match message {
                    ProviderMessage::Ready => lease.is_none_or(|it| !worker.began.contains(it)),
                    ProviderMessage::Finished(finished) => {
                        !worker.safe_ran.contains(&finished.receipt.body.lease)
                    }
                    _ => false,
                }
            }
            provider::Action::Command(command) => match &**command {
                Command::Settle(receipt) => !worker.safe_signed.contains(&receipt.body.lease),
                _ => false,
            },
            provider::Action::Bring { lease, .. } | provider::Action::Prepare { lease, .. } => {
                !worker.began.contains(lease)
            }
            provider::Action::Tell(Report::Settled(receipt)) => {
                !worker.safe_signed.contains(&receipt.body.lease)
            }
            _ => false,
        };
        if wrong {
            let what = format!("{action:?}").chars().take(80).collect::<String>();
            self.breach_of_job(actor, format!("before it was put down: {what}"));
        }
    }

    /// M4: a provider is paid for its runs, so its bill must equal them.
    pub(super) fn check_bill(&mut self, actor: usize, body: &ReceiptBody) {
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return;
        };
        if let Some(what) = worker.tally.wrong_bill(body) {
            self.breach_of_job(actor, what);
        }
    }

    /// M6: a provider releases the contents of leases with the last lease, and never more often
    /// than it pinned them.
    pub(super) fn check_pins(&mut self, actor: usize) {
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return;
        };
        let Some(core) = &worker.core else { return };
        let is_idle = core.status().at_work.is_empty();
        if let Some((id, count)) = worker.tally.unlike_pin(is_idle) {
            self.breach_of_job(actor, format!("{id} is pinned {count} times"));
        }
    }

    /// J2: a job never buys twice with the same id.
    pub(super) fn check_id(&mut self, actor: usize, action: &Action) {
        let Action::Buy { id, .. } = action else {
            return;
        };
        let account = self.actors.list[actor].account;
        let (_, shadow) = self.checker.shadow_state();
        let mut leases = shadow.exchange().leases();
        let is_bought = leases.any(|lease| lease.job == *id && lease.buyer == account);
        drop(leases);
        if is_bought {
            self.breach_of_job(actor, format!("{id} is bought under twice"));
        }
    }

    /// M5: a buyer never blames an honest provider for billing more than the buyer can have seen or
    /// than it bought, or for a message out of turn.
    fn check_blame(&mut self, actor: usize, outcome: &Outcome) {
        let last = match &outcome.how {
            End::Failed(reason) => Some(reason),
            _ => None,
        };
        let mut reasons = outcome.before.iter().chain(last);
        let overbills = |provider: &AccountKey| {
            self.provider_misconduct(*provider) == ProviderMisconduct::Overbills
        };
        let wronged = reasons.find(|reason| match reason {
            Reason::Lost { provider, loss } => {
                matches!(loss, Loss::Confused | Loss::Overnoted { .. }) && !overbills(provider)
            }
            Reason::Receipt { provider, .. } if overbills(provider) => false,
            Reason::Receipt { objection, .. } => matches!(
                objection,
                Objection::Fault(_)
                    | Objection::Terms(_)
                    | Objection::Usage { .. }
                    | Objection::Nothing { .. }
                    | Objection::Speed { .. }
                    | Objection::Input(_)
                    | Objection::NoInput
                    | Objection::Outputs
            ),
            _ => false,
        });
        if let Some(reason) = wronged {
            let known = self.known_of_leases(actor);
            let what = format!("an honest provider is refused: {reason}; {known}");
            self.breach_of_job(actor, what);
        }
    }

    /// C2: a provider fetches only from parties to the lease or to its job.
    pub(super) fn check_parties(&mut self, actor: usize, id: LeaseId, holders: &[AccountKey]) {
        let (_, shadow) = self.checker.shadow_state();
        let Some(lease) = shadow.exchange().lease(id) else {
            return;
        };
        let is_party = |holder: &&AccountKey| {
            let mut leases = shadow.exchange().leases();
            **holder == lease.buyer
                || leases.any(|it| it.job == lease.job && it.provider == **holder)
        };
        if let Some(stranger) = holders.iter().find(|holder| !is_party(holder)) {
            self.breach_of_job(
                actor,
                format!("{id} fetches from {stranger}, who is no party"),
            );
        }
    }

    /// C1: an answer equals the model's, except for liars without a comparison.
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
        let Some(truth) = job.expected_values(request) else {
            return self.breach_of_job(actor, format!("request {request} was never given"));
        };
        // Providers never lie in a session.
        let compared = job.spec.limits.copies > 1 || job.spec.sequences > 0;
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
            .any(|(_, id)| !self.jobs.contents.has_content(account, *id));
        if names != wanted {
            self.breach_of_job(actor, format!("request {request} is answered by {names:?}"));
        } else if missing {
            self.breach_of_job(actor, format!("the answer to {request} is not here"));
        } else if wrong && compared {
            self.breach_of_job(actor, format!("the answer to {request} is wrong"));
        } else {
            self.counts.answers_wrong += u64::from(wrong);
        }
    }

    /// C1 for inputs of the next attempt: of parts that run twice, the buyer keeps only the model's
    /// values.
    pub(super) fn check_kept(&mut self, actor: usize, facts: &[Fact]) {
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let Some(job) = buyer.job.as_ref().filter(|it| it.spec.limits.copies > 1) else {
            return;
        };
        let wrong = facts.iter().find_map(|fact| {
            let Fact::Kept { request, name, id } = fact else {
                return None;
            };
            let asked = |(given, _): &(ContentId, u64)| {
                request_id(&[(GIVEN.to_owned(), *given)]) == *request
            };
            let number = job.given.iter().position(asked)?;
            let truth = job.expected_values(number as u32)?;
            let is_right = self.jobs.contents.value(*id) == truth.get(name).copied();
            (!is_right).then(|| format!("{name} of request {number} is kept and wrong"))
        });
        if let Some(what) = wrong {
            self.breach_of_job(actor, what);
        }
    }

    /// J1: a job that reports success is complete.
    pub(super) fn check_outcome(&mut self, actor: usize, outcome: &Outcome) {
        self.check_paid(actor, outcome);
        self.check_blame(actor, outcome);
        self.check_session(actor, outcome);
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let Some(job) = &buyer.job else { return };
        if outcome.how == End::Done && job.answer_count() < job.request_count() {
            let what = format!(
                "done with {} of {}",
                job.answer_count(),
                job.request_count()
            );
            return self.breach_of_job(actor, what);
        }
        self.check_budget(actor);
    }

    /// M2: a job's cost and escrow are within its budget, at its end and whenever it has bought.
    pub(super) fn check_budget(&mut self, actor: usize) {
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let Some(job) = &buyer.job else { return };
        let Some(budget) = job.spec.limits.budget else {
            return;
        };
        let ids = job.attempt_ids();
        let (_, shadow) = self.checker.shadow_state();
        let leases = shadow.exchange().leases();
        let mine = leases.filter(|lease| ids.contains(&lease.job));
        let spent: u64 = mine.map(|lease| lease.cost.0 + lease.escrow.0).sum();
        if spent > budget.0 {
            self.breach_of_job(actor, format!("{spent} of a budget of {}", budget.0));
        }
    }

    /// M3: before a buyer reports the end of a job, every right provider is paid by the signed
    /// receipt, unless the market closed the lease before.
    fn check_paid(&mut self, actor: usize, outcome: &Outcome) {
        let honest = self.has_misconduct(actor, BuyerMisconduct::None)
            || self.has_misconduct(actor, BuyerMisconduct::Vanishes);
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        if !honest || outcome.how != End::Done {
            return;
        }
        let (_, shadow) = self.checker.shadow_state();
        let unpaid = buyer.safe.right.iter().find_map(|(id, receipt)| {
            let lease = shadow.exchange().lease(*id)?;
            let (paid, due) = (lease.cost, receipt.body.amount);
            let is_signed = matches!(
                lease.state,
                LeaseState::Closed {
                    reason: CloseReason::Receipt,
                    ..
                }
            );
            let is_wrong = !lease.is_closed() || (is_signed && paid != due);
            is_wrong.then(|| format!("{id} is {:?}, paid {paid:?} of {due:?}", lease.state))
        });
        let mut jobs = buyer.job.iter();
        let has_failed_command = jobs.any(|job| job.has_failed_command);
        if let Some(what) = unpaid.filter(|_| !has_failed_command) {
            self.breach_of_job(actor, what);
        }
    }

    /// T1: no job runs long after all faults were healed.
    pub(crate) fn check_jobs_over(&mut self) {
        let is_under_way = |role: &Role| matches!(role, Role::Buyer(buyer) if buyer.job.is_some());
        let mut actors = self.actors.list.iter();
        let Some(actor) = actors.position(|actor| is_under_way(&actor.role)) else {
            return;
        };
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        let status = buyer.core.as_ref().map(souk_roles::job::JobCore::status);
        let reason = format!("a job is not over: {status:?}");
        self.checker
            .record_violation(Violation::Job { actor, reason });
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

    /// Returns whether a job is still running.
    pub(crate) fn has_jobs(&self) -> bool {
        let has = |role: &Role| matches!(role, Role::Buyer(buyer) if buyer.job.is_some());
        self.actors.list.iter().any(|actor| has(&actor.role))
    }
}
