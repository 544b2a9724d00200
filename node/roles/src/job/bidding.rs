//! Bids for the leases of a plan as one gang, a set that the market sells together or not at all.
//! The core first records the possible escrow in the journal, so that after a crash it counts what
//! an unanswered bid may have bought. `buying` calls it.

use souk_market::{AccountKey, Credits, Lease, Millis};

use super::JobCore;
use super::action::Action;
use super::event::Answer;
use super::facts::{End, Fact, Terms, attempt_id};
use super::money;
use super::plan::Plan;
use super::reason::Reason;
use super::state::{AttemptPurpose, Phase, UncertainPurchase, Wait};
use crate::clock::Micros;

/// The shortest and the longest pause before a job that waits for devices looks at the book again.
const BOOK_PAUSE_MIN: Micros = Micros::from_millis(50);
const BOOK_PAUSE_MAX: Micros = Micros::from_seconds(2);

/// Returns the pause before a buyer that has waited for devices for so long, and waits for `wait`
/// at most, looks at the book again: an eighth of the time so far, from 50 ms to 2 s. So a long
/// wait costs the market few questions, and the pause adds little to it. The last look is at the
/// end of the wait and not after it.
#[must_use]
pub fn book_pause(waited: Micros, wait: Micros) -> Micros {
    let left = wait.since(waited).max(BOOK_PAUSE_MIN);
    let pause = Micros(waited.0 / 8);
    pause.clamp(BOOK_PAUSE_MIN, BOOK_PAUSE_MAX).min(left)
}

/// How long the market can still sell a gang after no answer came: as long as a batch is valid,
/// plus a margin for clocks.
const UNCERTAIN_FOR: Micros = Micros::from_seconds(75);

impl JobCore {
    /// Buys the leases of a plan. Under a budget, the core first records their possible escrow,
    /// because the market can sell a gang in flight after the next life has looked. A resumed job
    /// always records its number: the next life skips only one unrecorded number, and this life has
    /// already skipped one.
    pub(super) fn buy_leases(&mut self, purpose: AttemptPurpose, plan: Box<Plan>) {
        let left = self.pursuit_mut(purpose).left;
        if let Err(reason) = money::lease_duration(&plan, left) {
            return self.on_shortage(purpose, reason);
        }
        let may_hold = self.may_hold(purpose, &plan);
        let pursuit = self.pursuit_mut(purpose);
        (pursuit.phase, pursuit.plan) = (Phase::Buying, Some(plan));
        match left.is_some() || self.is_resumed {
            true => self.record_facts(vec![may_hold], Wait::Announce(purpose)),
            false => self.send_bids(purpose),
        }
    }

    /// Sends the bids of the plan to buy.
    pub(super) fn send_bids(&mut self, purpose: AttemptPurpose) {
        let left = self.pursuit_mut(purpose).left;
        let plan = self
            .pursuit_mut(purpose)
            .plan
            .take()
            .expect("a plan is bought");
        let duration = money::lease_duration(&plan, left).expect("it was looked at before");
        let id = attempt_id(self.spec.job, self.next_attempt);
        let planned = |it: &AccountKey| plan.legs.iter().any(|leg| leg.listing.provider == *it);
        // The plan includes a provider that is back with a new ask.
        let excluded = self.excluded_from(purpose);
        let excluded = excluded.iter().map(|it| it.provider);
        let excluded: Vec<AccountKey> = excluded.filter(|it| !planned(it)).collect();
        let limits = &self.spec.limits;
        let legs = plan.legs.iter();
        let bids = legs
            .map(|leg| money::bid_for_leg(leg, limits, &excluded, duration, id))
            .collect();
        self.pursuit_mut(purpose).plan = Some(plan);
        self.request_effect(Action::Buy { id, bids }, Wait::Buy(purpose));
    }

    /// Returns the fact that the next number may hold escrow if the market sells its leases in a
    /// moment.
    fn may_hold(&mut self, purpose: AttemptPurpose, plan: &Plan) -> Fact {
        let left = self.pursuit_mut(purpose).left;
        let duration = money::lease_duration(plan, left).unwrap_or_default();
        let escrows = plan
            .legs
            .iter()
            .map(|leg| money::leg_escrow(leg, duration).0);
        Fact::Skipped {
            n: self.next_attempt,
            escrow: Credits(escrows.fold(0, u64::saturating_add)),
            until: Millis(self.now.log.0.saturating_add(UNCERTAIN_FOR.0 / 1_000)),
        }
    }

    pub(super) fn on_bought(&mut self, purpose: AttemptPurpose, answer: Answer) {
        match answer {
            Answer::Bought(trades) => {
                let plan = self
                    .pursuit_mut(purpose)
                    .plan
                    .take()
                    .expect("a plan is bought");
                if trades.len() != plan.legs.len() {
                    let text = "the market sold another number of leases".to_owned();
                    return self.end_job(End::Failed(Reason::Unreachable(text)));
                }
                self.begin_attempt(purpose, plan, trades.iter().map(Terms::from).collect());
            }
            Answer::NotBought(refusal) => {
                self.pursuit_mut(purpose).plan = None;
                match self.may_wait(purpose) {
                    // Another buyer was faster.
                    true => self.pause_before_book(purpose),
                    false => self.end_job(End::Failed(Reason::Unsold(refusal))),
                }
            }
            Answer::Uncertain(_) => {
                self.pursuit_mut(purpose).phase = Phase::Adopting;
                let ids = vec![attempt_id(self.spec.job, self.next_attempt)];
                self.request_effect(Action::Look { ids }, Wait::Adopt(purpose));
            }
            other => self.end_job(End::Failed(unreachable_reason(other))),
        }
    }

    /// Handles a gang without an answer: adopts its leases if they exist.
    pub(super) fn on_adopted(&mut self, purpose: AttemptPurpose, answer: Answer) {
        let leases = match answer {
            Answer::Leases(leases) => leases,
            other => return self.end_job(End::Failed(unreachable_reason(other))),
        };
        let plan = self
            .pursuit_mut(purpose)
            .plan
            .take()
            .expect("a plan is bought");
        let leases: Vec<&Lease> = leases.iter().filter(|lease| lease.is_running()).collect();
        if let Some(terms) = adopt_terms(&plan, &leases) {
            return self.begin_attempt(purpose, plan, terms);
        }
        for lease in &leases {
            self.end_lease(lease.id);
        }
        // The market can sell them a moment later: the core must not reuse the number, and must
        // keep their possible escrow unspent.
        let skipped = self.may_hold(purpose, &plan);
        if let Fact::Skipped { n, escrow, .. } = skipped {
            let until = self.now.tick.plus(UNCERTAIN_FOR);
            self.uncertain
                .insert(n, UncertainPurchase { escrow, until });
        }
        self.next_attempt += 1;
        self.record_facts(vec![skipped], Wait::Skip(purpose));
    }

    /// Continues once the journal says that a number is not used again.
    pub(super) fn on_skipped(&mut self, purpose: AttemptPurpose) {
        self.pause_before_book(purpose);
    }
}

/// Returns the terms of a gang's leases, by place; none if the gang is incomplete.
fn adopt_terms(plan: &Plan, leases: &[&Lease]) -> Option<Vec<Terms>> {
    if leases.len() != plan.legs.len() {
        return None;
    }
    let mut left = leases.to_vec();
    let mut take = |is_it: &dyn Fn(&Lease) -> bool| {
        let place = left.iter().position(|lease| is_it(lease))?;
        Some(Terms::from(left.remove(place)))
    };
    let mut terms: Vec<Option<Terms>> = Vec::new();
    for leg in &plan.legs {
        terms.push(take(&|lease| lease.ask == leg.listing.order));
    }
    // Another ask of the class was as good.
    for (leg, terms) in plan.legs.iter().zip(&mut terms) {
        if terms.is_none() {
            *terms = take(&|lease| lease.class == leg.listing.class);
        }
    }
    terms.into_iter().collect()
}

/// Returns the reason for an answer that reports a failure of the market or the node.
pub(super) fn unreachable_reason(answer: Answer) -> Reason {
    match answer {
        Answer::NotSeen(why) | Answer::Uncertain(why) => Reason::Unreachable(why),
        _ => Reason::Unreachable("an effect was answered out of turn".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_looks_at_the_book_after_an_eighth_of_its_wait_and_at_its_end() {
        let wait = Micros::from_seconds(60);
        let looks = [
            (0, 50),
            (800, 100),
            (30_000, 2_000),
            (59_000, 1_000),
            (60_000, 50),
        ];
        for (waited, pause) in looks {
            let expected = Micros::from_millis(pause);
            assert_eq!(
                book_pause(Micros::from_millis(waited), wait),
                expected,
                "{waited}"
            );
        }
    }
}
