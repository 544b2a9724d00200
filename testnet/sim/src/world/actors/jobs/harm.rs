//! Checks that simulated buyers and providers that are honest lose no more to cheating partners
//! than docs/market.md states.

use souk_market::{CloseReason, DeviceMicros, Lease, LeaseId, LeaseState, Millis, ReceiptBody};
use souk_roles::job::plan::NoPlanKind;
use souk_roles::job::{End, Outcome, Reason};

use super::misconduct::{BuyerMisconduct, ProviderMisconduct};
use crate::checker::LeaseChange;
use crate::machine::EPOCH_MS;
use crate::world::World;
use crate::world::actors::Role;

/// Maximum usage that a note adds beyond the buyer's acceptance.
const NOTE_SPAN: DeviceMicros = DeviceMicros(300_000_000);

/// Maximum noted usage of work that the buyer has not begun.
const UNSTARTED: DeviceMicros = DeviceMicros(2_000_000);

/// Tolerance for messages in flight.
const WORDS: DeviceMicros = DeviceMicros(1_000_000);

/// Simulated milliseconds after which a held device must be paid: its provider declares itself
/// ready after ten seconds.
const HELD_MS: u64 = 30_000;

/// The maximum difference between the log's clock and that of a party that no fault disturbed.
const CLOCKS_DIFFER: Millis = Millis(5_000);

impl World {
    /// Checks the leases that changed since the last call.
    pub(crate) fn check_leases(&mut self) {
        for change in self.checker.take_changes() {
            match change {
                LeaseChange::Opened(lease) => {
                    self.jobs.opened.insert(lease, self.now);
                }
                LeaseChange::Closed(lease) => self.check_closed(lease),
            }
        }
    }

    fn check_closed(&mut self, id: LeaseId) {
        let Some(opened_at) = self.jobs.opened.remove(&id) else {
            return;
        };
        let (_, shadow) = self.checker.shadow_state();
        let Some(lease) = shadow.exchange().lease(id).cloned() else {
            return;
        };
        self.check_paid_too_much(&lease, opened_at);
        self.check_held(&lease, opened_at);
    }

    /// M7: a present buyer pays for no more usage than it saw, and a silent one for at most a
    /// note's span more. A buyer that never contacted its provider pays for the held device.
    fn check_paid_too_much(&mut self, lease: &Lease, opened_at: u64) {
        let Some(actor) = self.actors.place_of(lease.buyer) else {
            return;
        };
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        if !matches!(
            buyer.misconduct,
            BuyerMisconduct::None | BuyerMisconduct::Vanishes
        ) {
            return;
        }
        let LeaseState::Closed { reason, .. } = lease.state else {
            return;
        };
        let all = DeviceMicros((self.now - opened_at) * 1_000);
        let begin = lease.start.saturating_since(Millis(EPOCH_MS)).0;
        let seen = buyer.witness.payable_usage(lease.id, begin, self.now);
        let (payable, held) = seen.unwrap_or((UNSTARTED, all));
        let silent = match reason {
            CloseReason::Receipt => DeviceMicros(0),
            _ if seen.is_some() => NOTE_SPAN,
            _ => DeviceMicros(0),
        };
        let idle = DeviceMicros((held.0 * u64::from(lease.idle.0)).div_ceil(1_000));
        let most = DeviceMicros(payable.0 + silent.0 + idle.0 + WORDS.0);
        let bound = ReceiptBody::amount_due(lease.price, most).unwrap_or_default();
        if lease.cost > bound {
            let (id, cost) = (lease.id, lease.cost);
            let what = format!("{id} cost {cost} by {reason:?}, of {bound} at most");
            self.breach_of_job(actor, what);
        }
    }

    /// M8: a held device is paid if its provider was present and reached the market all the time.
    fn check_held(&mut self, lease: &Lease, opened_at: u64) {
        let Some(actor) = self.actors.place_of(lease.provider) else {
            return;
        };
        let of = &self.actors.list[actor];
        let Role::Worker(worker) = &of.role else {
            return;
        };
        let was_there = of.troubled_at < opened_at && worker.core.is_some();
        let grace = self.genesis().rules.settle_grace.0;
        let held_ms = (self.now - opened_at).saturating_sub(grace);
        if was_there && lease.cost.0 == 0 && held_ms >= HELD_MS {
            let (id, state) = (lease.id, lease.state);
            let what = format!("{id} held a device {held_ms} ms for nothing: {state:?}");
            self.breach_of_job(actor, what);
        }
    }

    /// M9: messages alone change no reputation.
    pub(crate) fn check_reputations(&mut self) {
        let (_, shadow) = self.checker.shadow_state();
        let mut wrong = None;
        for (actor, of) in self.actors.list.iter().enumerate() {
            let known = shadow.exchange().account(of.account);
            let Some(reputation) = known.map(|account| account.reputation) else {
                continue;
            };
            let is_blameless =
                reputation.gave_up == 0 && reputation.slow == 0 && reputation.faults == 0;
            if is_blameless && reputation.score.0 < 500 {
                wrong = Some((actor, reputation));
            }
        }
        if let Some((actor, reputation)) = wrong {
            self.breach_of_job(
                actor,
                format!("its reputation was talked down: {reputation:?}"),
            );
        }
    }

    /// M10: unpaid work without a note never exceeds one note's span plus the longest run.
    pub(super) fn check_risk(&mut self, actor: usize, id: LeaseId) {
        let of = &self.actors.list[actor];
        let Role::Worker(worker) = &of.role else {
            return;
        };
        let (_, shadow) = self.checker.shadow_state();
        let Some(lease) = shadow.exchange().lease(id) else {
            return;
        };
        let opened_at = self.jobs.opened.get(&id).copied().unwrap_or(self.now);
        if worker.misconduct != ProviderMisconduct::None
            || lease.is_closed()
            || of.troubled_at >= opened_at
        {
            return;
        }
        let noted = lease.note.map_or(lease.accepted, |note| note.usage);
        let (busy, longest) = worker.tally.device_time(id);
        let risk = DeviceMicros(busy.0.saturating_sub(noted.0));
        if risk.0 > NOTE_SPAN.0 + longest.0 {
            let what = format!("{id} has worked {} us that nobody noted", risk.0);
            self.breach_of_job(actor, what);
        }
    }

    /// J3: a session without trouble succeeds: its buyer and its providers lived, reached each
    /// other and the market, and no limit ended it.
    pub(super) fn check_session(&mut self, actor: usize, outcome: &Outcome) {
        let End::Failed(reason) = &outcome.how else {
            return;
        };
        let of = &self.actors.list[actor];
        let Role::Buyer(buyer) = &of.role else {
            return;
        };
        let Some(job) = &buyer.job else { return };
        let limits = &job.spec.limits;
        let is_limited = limits.budget.is_some() || limits.deadline.is_some() || limits.spot;
        let is_of_market = match reason {
            Reason::Unreachable(_) | Reason::Unsold(_) => true,
            Reason::NoPlan(why) => why.kind != NoPlanKind::Other,
            _ => false,
        };
        let is_long = job.shape.loop_graphs().next().is_some();
        if is_long
            || job.spec.sequences == 0
            || is_limited
            || is_of_market
            || buyer.misconduct != BuyerMisconduct::None
        {
            return;
        }
        let since = job.began_at();
        let (_, shadow) = self.checker.shadow_state();
        let leases = shadow.exchange().leases();
        let ids = job.attempt_ids();
        let mine = leases.filter(|lease| ids.contains(&lease.job) && lease.buyer == of.account);
        let providers = mine.filter_map(|lease| self.actors.place_of(lease.provider));
        let mut parties: Vec<usize> = providers.collect();
        parties.push(actor);
        let log = shadow.exchange().now();
        let is_harmed = |place: &usize| {
            let of = &self.actors.list[*place];
            // A clock that jumped before the job began can be wrong still: to its owner, the lease
            // is over then.
            let known = of.moment_at(self.now).log;
            let is_astray =
                known.saturating_since(log).max(log.saturating_since(known)) > CLOCKS_DIFFER;
            let is_troubled = of.troubled_at >= since || is_astray || of.role.is_stopping();
            is_troubled || !of.role.is_running() || of.is_waiting(self.now)
        };
        if parties.iter().any(is_harmed) {
            return;
        }
        let known = self.known_of_leases(actor);
        let what = format!("nobody harmed a session, which fails: {reason}; {known}");
        self.breach_of_job(actor, what);
    }

    /// Describes the log's knowledge of the leases of a buyer's job, for a report.
    pub(super) fn known_of_leases(&self, actor: usize) -> String {
        let of = &self.actors.list[actor];
        let Role::Buyer(buyer) = &of.role else {
            return String::new();
        };
        let Some(job) = &buyer.job else {
            return String::new();
        };
        let (spec, ids) = (&job.spec, job.attempt_ids());
        let (_, shadow) = self.checker.shadow_state();
        let leases = shadow.exchange().leases();
        let mine = leases.filter(|lease| ids.contains(&lease.job));
        let known = mine.map(|lease| {
            let ms = |at: Millis| at.saturating_since(Millis(EPOCH_MS)).0;
            let place = self.actors.place_of(lease.provider).unwrap_or_default();
            let (start, end, id) = (ms(lease.start), ms(lease.deadline), lease.id);
            format!(
                "lease {id} of actor {place} from {start} to {end} {:?}",
                lease.state
            )
        });
        let known: Vec<String> = known.collect();
        let (now, began, limits) = (self.now, job.began_at(), &spec.limits);
        format!(
            "at {now}, begun at {began}, {limits:?}: {}",
            known.join("; ")
        )
    }
}
