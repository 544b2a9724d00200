//! Compares a provider's leases with the replicated log. The provider looks at the log when a
//! validator reports a change, and seldom without: it updates each lease and claim, corrects its
//! ask, and replaces a lease at work by a claim (its open payment) once the work ends.

use super::*;

impl ProviderCore {
    pub(super) fn look_at_market(&mut self) {
        let is_asked = |wait: &Wait| matches!(wait, Wait::Market);
        if self.shared.pending.iter().any(is_asked) {
            self.looks_again = true;
            return;
        }
        self.looks_again = false;
        let asks = self.placed_asks.clears;
        self.shared
            .request_effect(Wait::Market, Action::LookAtMarket { asks });
    }

    /// Makes the core look again soon, after a failure that no report of a change follows.
    pub(super) fn look_soon(&mut self) {
        self.shared.wake_in(Timer::Look, LOOK_PERIOD);
    }

    /// Looks soon at a lease that was at work: the next look was to come in a quiet period.
    fn look_at_ended_work(&mut self) {
        let next = self.shared.now.tick.plus(LEASE_LOOK_PERIOD);
        let is_later = |at| at > next;
        if self.shared.timers.moment(Timer::Look).is_some_and(is_later) {
            self.shared.timers.set_timer(Timer::Look, next);
        }
    }

    /// Looks again at once if something changed during the last look, and otherwise after a period.
    fn look_again(&mut self, view: &MarketView) {
        self.looks += 1;
        let now = self.shared.now.tick;
        let next = now.plus(self.look_period(view));
        let retry = self.placed_asks.retries_at().filter(|retry| *retry > now);
        let next = retry.map_or(next, |retry| next.min(retry));
        self.shared.timers.set_timer(Timer::Look, next);
        if std::mem::take(&mut self.looks_again) {
            self.look_at_market();
        }
    }

    fn look_period(&self, view: &MarketView) -> Micros {
        if !self.is_watched || self.shared.stage != Stage::Selling {
            return LOOK_PERIOD;
        }
        // The validator reports what changes about a lease at work; what its buyer left alone, or
        // owes for, can need a command without any change.
        let is_at_work = |lease: &Lease| self.leases.contains_key(&lease.id);
        if !(self.claims.is_empty() && view.leases.iter().all(is_at_work)) {
            return LEASE_LOOK_PERIOD;
        }
        let shortest = QUIET_PERIOD_MIN.0;
        let mut drawn = blake3::Hasher::new();
        drawn.update(&self.shared.config.account.0);
        drawn.update(&self.looks.to_le_bytes());
        let drawn = drawn.finalize();
        let first = drawn.as_bytes().first_chunk();
        let drawn = u64::from_le_bytes(*first.expect("a hash has 32 bytes"));
        Micros(shortest + drawn % (2 * shortest))
    }

    pub(super) fn on_market(&mut self, view: &MarketView) {
        let known = self.leases.keys().chain(self.claims.keys());
        let known: Vec<LeaseId> = known.copied().collect();
        for id in known {
            match view.leases.iter().find(|lease| lease.id == id) {
                Some(lease) => self.on_seen(id, Some(lease)),
                // How it was closed is in the log for a while.
                None => self.shared.look_at(id),
            }
        }
        if self.shared.stage == Stage::Selling && !self.shared.journal.is_broken {
            self.placed_asks.put_right(&mut self.shared, view);
        }
        if self.shared.stage == Stage::Selling {
            self.say_ready(view);
        }
        if std::mem::take(&mut self.gives_back) {
            self.give_back(view);
        }
        self.look_again(view);
    }

    /// Reports in the log that this provider is ready, if a buyer has not been heard of for long,
    /// and claims the time for which a buyer held a device without using it.
    fn say_ready(&mut self, view: &MarketView) {
        let (account, now) = (self.shared.config.account, self.shared.now.log);
        let is_due = |lease: &&Lease| {
            let is_unheard = !self.leases.contains_key(&lease.id)
                && match self.claims.get(&lease.id) {
                    Some(claim) => claim.is_at_rest(),
                    None => !self.shared.begun.has_begun(lease.id),
                };
            let is_claimable = match lease.state {
                LeaseState::Active => {
                    lease.reserved_until.is_none() && now.saturating_since(lease.start) >= UNHEARD
                }
                // What was begun claims by itself.
                LeaseState::Due { ended, .. } => {
                    let is_held = ended > lease.start && !lease.claimed;
                    is_held && !self.shared.begun.has_begun(lease.id)
                }
                _ => false,
            };
            lease.provider == account && is_unheard && is_claimable
        };
        let due: Vec<LeaseId> = view.leases.iter().filter(is_due).map(|l| l.id).collect();
        for lease in due {
            let is_said = |wait: &Wait| matches!(wait, Wait::Ready(of) if *of == lease);
            if !self.shared.pending.iter().any(is_said) {
                let ready = Command::StateReady { lease };
                let action = Action::Command(Box::new(ready));
                self.shared.request_effect(Wait::Ready(lease), action);
            }
        }
    }

    /// Handles the log's state of a lease; none if the log has forgotten it.
    pub(super) fn on_seen(&mut self, id: LeaseId, lease: Option<&Lease>) {
        if let Some(core) = self.leases.get_mut(&id) {
            let end = match lease {
                Some(lease) => core.on_seen(&mut self.shared, lease),
                None => Some(End::Failed(Failure::Expired)),
            };
            let is_closed = lease.is_none_or(Lease::is_closed);
            self.on_end(id, end);
            if !is_closed {
                return;
            }
        }
        if let Some(claim) = self.claims.get_mut(&id) {
            claim.on_seen(&mut self.shared, lease);
            self.drop_hung(id);
        }
    }

    pub(super) fn on_end(&mut self, id: LeaseId, end: Option<End>) {
        if let Some(end) = end {
            self.end_lease(id, end);
        }
    }

    /// Replaces a lease whose work has ended by a claim for its payment.
    pub(super) fn end_lease(&mut self, id: LeaseId, end: End) {
        let lease = self.leases.remove(&id);
        let mut lease = lease.expect("what has ended was at work");
        lease.close_lease(&mut self.shared);
        let end = match end {
            End::Done => {
                let (terms, start) = (&*lease.lease, &*lease.start);
                match lease
                    .bill
                    .receipt_body(&self.shared, terms, start, lease.started)
                {
                    Some(body) => Ok(body),
                    None => Err(Failure::Run("its price overflows".to_owned())),
                }
            }
            End::Failed(failure) => Err(failure),
        };
        let claim = match end {
            Ok(body) => {
                self.counts.done += 1;
                let report = Report::Done {
                    body: Box::new(body.clone()),
                    judged: lease.bill.measurable_work(),
                };
                self.shared.push_effect(Action::Tell(report));
                let outputs = lease.bill.outputs();
                let work = LeaseResult { body, outputs };
                let known = lease.bill.known_time(&lease.lease);
                let mut claim = Claim::of_work(&mut self.shared, work, lease.ends_at, lease.stream);
                claim.known_usage = (known.0 > 0).then_some(known);
                claim
            }
            Err(failure) => {
                self.counts.failed += 1;
                let is_own = is_own(&failure);
                let report = Report::Failed {
                    lease: id,
                    failure: failure.clone(),
                };
                self.shared.push_effect(Action::Tell(report));
                self.shared
                    .send_message(lease.stream, ProviderMessage::Failed(failure));
                self.shared.close_stream(&mut lease.stream);
                Claim::of_nothing(&mut self.shared, id, lease.buyer(), lease.ends_at, is_own)
            }
        };
        self.claims.insert(id, claim);
        self.drop_hung(id);
        self.look_at_ended_work();
    }
}
