//! Handles the answers to the effects of a provider's core: passes each answer to the lease, claim
//! or ask that waits for it. Also continues the work that waited for a timer, or for a fact to be
//! on the disk.

use souk_market::{Acceptance, OrderId, Resources};

use super::*;
use crate::provider::event::{NotDone, Terms};

impl ProviderCore {
    pub(super) fn on_answer(&mut self, wait: Wait, answer: Answer) {
        match (wait, answer) {
            (Wait::Market, Answer::MarketSeen(view)) => self.on_market(&view),
            (Wait::Market, Answer::NotSeen(_)) => self.on_market_unseen(),
            (Wait::Place(terms, resources), Answer::Commanded(placed)) => {
                self.on_placed(terms, resources, placed);
            }
            (Wait::Cancel(order), Answer::Commanded(cancelled)) => {
                self.on_cancelled(order, &cancelled);
            }
            (Wait::GiveBack(lease), Answer::Commanded(Ok(_))) => {
                let report = Report::GivenBack { lease };
                self.shared.push_effect(Action::Tell(report));
            }
            (Wait::GiveBack(_) | Wait::Ready(_), Answer::Commanded(done)) => {
                if done.is_err() {
                    self.look_soon();
                }
            }
            (Wait::Opening(stream), Answer::LeaseSeen(lease)) => {
                self.on_looked_up(stream, Ok(lease));
            }
            (Wait::Opening(stream), Answer::NotSeen(why)) => {
                self.on_looked_up(stream, Err(crate::lease::truncate_text(why)));
            }
            (Wait::Look(id), Answer::LeaseSeen(lease)) => self.on_seen(id, lease.as_deref()),
            (Wait::Look(id), Answer::NotSeen(_)) => {
                if let Some(claim) = self.claims.get(&id) {
                    claim.on_not_seen(&mut self.shared);
                }
            }
            (Wait::Record(facts, follows), Answer::Recorded) => {
                self.on_recorded(&facts, follows);
            }
            (Wait::Record(facts, follows), Answer::NotWritten(why)) => {
                self.on_not_written(facts, follows, why);
            }
            (Wait::LeaseResult(id, effort), answer) => {
                let lease = self.leases.get_mut(&id);
                let lease = lease.expect("what is done for a lease ends with it");
                let end = lease.on_answer(&mut self.shared, effort, answer);
                self.on_end(id, end);
            }
            (Wait::Sign(id), Answer::Signed(receipt)) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_signed(&mut self.shared, *receipt);
                }
            }
            (Wait::Note(id), Answer::Commanded(noted)) => {
                let lease = self.leases.get_mut(&id);
                let noted = noted.map(drop);
                let end = lease.and_then(|lease| lease.on_noted(&mut self.shared, noted));
                self.on_end(id, end);
            }
            (Wait::Command(id), Answer::Commanded(commanded)) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_commanded(&mut self.shared, commanded);
                }
            }
            (wait, answer) => panic!("{wait:?} is not answered by {answer:?}"),
        }
    }

    fn on_cancelled(&mut self, order: OrderId, cancelled: &Result<Acceptance, NotDone>) {
        let is_out = self.placed_asks.on_cancelled(order, cancelled);
        if is_out && self.shared.stage >= Stage::Draining {
            let report = Report::Withdrawn { order };
            self.shared.push_effect(Action::Tell(report));
        } else if is_out {
            self.look_at_market();
        } else {
            self.look_soon();
        }
    }

    fn on_market_unseen(&mut self) {
        self.placed_asks.clears = false;
        self.look_soon();
        if std::mem::take(&mut self.looks_again) {
            self.look_at_market();
        }
    }

    fn on_placed(
        &mut self,
        terms: Terms,
        resources: Box<Resources>,
        placed: Result<Acceptance, NotDone>,
    ) {
        if !matches!(placed, Ok(Acceptance::Placed { .. })) {
            self.look_soon();
        }
        self.placed_asks
            .on_placed(&mut self.shared, terms, resources, placed);
        if self.shared.stage >= Stage::Draining {
            self.placed_asks.withdraw_ask(&mut self.shared);
        }
    }

    pub(super) fn on_recorded(&mut self, facts: &[Fact], follows: FollowingStep) {
        if self.shared.journal.is_broken {
            // The core places no ask while the disk accepts nothing.
            self.look_soon();
        }
        self.shared.on_recorded(facts);
        for fact in facts {
            if let Fact::Closed { lease, .. } = fact {
                self.claims.remove(lease);
                self.counts.closed += 1;
                self.drop_hung(*lease);
            }
        }
        match follows {
            FollowingStep::Accepted(id) => {
                if let Some(lease) = self.leases.get_mut(&id) {
                    let end = lease.on_began(&mut self.shared);
                    self.on_end(id, end);
                }
            }
            FollowingStep::Told(id) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_work_recorded(&mut self.shared);
                }
            }
            FollowingStep::Settled(id) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_receipt_recorded(&mut self.shared);
                }
            }
            FollowingStep::Nothing => {}
        }
    }

    pub(super) fn on_not_written(&mut self, facts: Vec<Fact>, follows: FollowingStep, why: String) {
        let report = Report::NotWritable { why: why.clone() };
        self.shared.push_effect(Action::Tell(report));
        match follows {
            FollowingStep::Accepted(id) => {
                self.shared.on_not_written(facts, FollowingStep::Nothing);
                if self.leases.contains_key(&id) {
                    self.end_lease(id, End::Failed(not_written(why)));
                }
            }
            follows => self.shared.on_not_written(facts, follows),
        }
    }

    pub(super) fn on_timer(&mut self, timer: Timer) {
        let end = |lease: Option<&mut LeaseCore>, shared: &mut SharedState| {
            let lease = lease?;
            match timer {
                Timer::Patience(_) => lease.on_impatient(shared),
                _ => lease.on_time(shared),
            }
        };
        match timer {
            Timer::Ends(id) | Timer::Nears(id) | Timer::Patience(id) => {
                let end = end(self.leases.get_mut(&id), &mut self.shared);
                self.on_end(id, end);
            }
            Timer::Note(id) => {
                if let Some(lease) = self.leases.get(&id) {
                    lease.on_note_due(&mut self.shared);
                }
            }
            Timer::Idle(id) => {
                if let Some(lease) = self.leases.get(&id) {
                    lease.on_idle(&mut self.shared);
                }
            }
            Timer::Alive(id) => {
                if let Some(lease) = self.leases.get(&id) {
                    lease.say_alive(&mut self.shared);
                }
            }
            Timer::Signature(id) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_unsigned(&mut self.shared);
                }
            }
            Timer::Settle(id) => self.shared.look_at(id),
            Timer::Retry(id) => {
                if let Some(claim) = self.claims.get_mut(&id) {
                    claim.on_retry(&mut self.shared);
                }
            }
            Timer::Look => self.look_at_market(),
            Timer::Write => self.shared.write_again(),
            Timer::Drain => self.on_last_call(),
            Timer::LastCall => self.on_patience_over(),
            Timer::Silence => self.on_silence(),
            Timer::Leaving => self.finish_stopping(),
        }
    }
}
