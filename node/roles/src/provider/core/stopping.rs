//! Stops a provider in stages: it accepts no new lease, returns leases that did not begin, then
//! ends the running ones with the results so far, and leaves once the last facts are on the disk.

use super::*;

impl ProviderCore {
    pub(super) fn on_stop(&mut self) {
        if self.shared.stage >= Stage::Draining {
            return;
        }
        self.shared.stage = Stage::Draining;
        self.shared
            .wake_in(Timer::Drain, self.shared.config.patience);
        self.shared.wake_in(Timer::Silence, SILENCE);
        self.placed_asks.withdraw_ask(&mut self.shared);
        self.gives_back = true;
        self.look_at_market();
        let openings = self.streams.iter();
        let openings = openings.filter_map(|(stream, user)| match user {
            Use::Opening { start, .. } => Some((*stream, start.lease)),
            Use::Lease(_) => None,
        });
        let openings: Vec<(StreamId, LeaseId)> = openings.collect();
        for (stream, lease) in openings {
            self.forget_opening(stream);
            self.refuse_lease(stream, lease, Failure::Stopping);
        }
        for claim in self.claims.values_mut() {
            claim.on_stopping(&mut self.shared);
        }
        self.pump_all();
    }

    /// Returns leases that did not begin, and gives notice to those that allow it.
    pub(super) fn give_back(&mut self, view: &MarketView) {
        let account = self.shared.config.account;
        let mine = view.leases.iter();
        let mine = mine.filter(|lease| lease.provider == account && lease.is_running());
        for lease in mine {
            let id = lease.id;
            let command = match lease.term {
                _ if !self.shared.begun.has_begun(id) => Command::GiveUp { lease: id },
                Term::Spot if lease.state == LeaseState::Active => Command::Reclaim { lease: id },
                _ => continue,
            };
            let action = Action::Command(Box::new(command));
            self.shared.request_effect(Wait::GiveBack(id), action);
        }
    }

    /// Handles a market that has not answered. A provider without work does not wait: its commands
    /// are on their way, and its next start will remove from the book what is left there.
    pub(super) fn on_silence(&mut self) {
        let is_record = |wait: &Wait| matches!(wait, Wait::Record(..));
        let is_written =
            self.shared.unwritten_fact_count() == 0 && !self.shared.pending.iter().any(is_record);
        match self.is_at_work() {
            true if self.shared.stage >= Stage::Leaving => {}
            true => self.shared.wake_in(Timer::Silence, SILENCE),
            false if is_written => self.finish_stopping(),
            false => self.begin_leaving(),
        }
    }

    fn is_at_work(&self) -> bool {
        !self.leases.is_empty() || self.claims.values().any(Claim::is_busy)
    }

    /// Ends each lease at work with the results that it has.
    pub(super) fn on_last_call(&mut self) {
        if self.shared.stage != Stage::Draining {
            return;
        }
        self.shared.stage = Stage::LastCall;
        self.shared.timers.stop_timer(Timer::Drain);
        self.shared.wake_in(Timer::LastCall, LAST_CALL);
        self.pump_all();
    }

    /// Gives up the leases still at work, and notes the usage of those without a signature.
    pub(super) fn on_patience_over(&mut self) {
        let at_work: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in at_work {
            match self.leases[&id].bill.has_run() {
                true => self.end_lease(id, End::Done),
                false => self.give_back_at_work(id),
            }
        }
        for claim in self.claims.values_mut() {
            if claim.stage == ClaimStage::Told {
                claim.on_unsigned(&mut self.shared);
            }
        }
        self.begin_leaving();
    }

    pub(super) fn give_back_at_work(&mut self, id: LeaseId) {
        self.end_lease(id, End::Failed(Failure::Stopping));
        let claim = self.claims.get_mut(&id);
        let claim = claim.expect("what has ended is owed");
        claim.give_up(&mut self.shared);
        let report = Report::GivenBack { lease: id };
        self.shared.push_effect(Action::Tell(report));
    }

    pub(super) fn begin_leaving(&mut self) {
        if self.shared.stage >= Stage::Leaving {
            return;
        }
        self.shared.stage = Stage::Leaving;
        self.shared.timers.stop_timer(Timer::Drain);
        self.shared.timers.stop_timer(Timer::LastCall);
        self.shared.timers.stop_timer(Timer::Look);
        self.shared.wake_in(Timer::Leaving, LEAVE_WAIT);
        for id in self.claims.keys() {
            self.shared.look_at(*id);
        }
    }

    pub(super) fn finish_stopping(&mut self) {
        self.shared.stage = Stage::Stopped;
        let streams = std::mem::take(&mut self.streams);
        for stream in streams.into_keys() {
            self.shared.push_effect(Action::CloseStream { stream });
        }
        self.shared.stop_effects(|_| true);
        self.shared.forget_all();
        self.shared.push_effect(Action::Over);
    }

    pub(super) fn pump_all(&mut self) {
        let at_work: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in at_work {
            let end = match self.leases.get_mut(&id) {
                Some(lease) => lease.pump_runs(&mut self.shared),
                None => None,
            };
            self.on_end(id, end);
        }
    }

    /// Takes the steps that follow from an event as a whole.
    pub(super) fn settle_down(&mut self) {
        loop {
            let buyers = self.shared.runs_by_rank.take_ended();
            if buyers.is_empty() {
                break;
            }
            let theirs = self.leases.values();
            let theirs = theirs.filter(|lease| buyers.contains(&lease.buyer()));
            let theirs: Vec<LeaseId> = theirs.map(LeaseCore::id).collect();
            for id in theirs {
                let lease = self.leases.get_mut(&id);
                let end = lease.and_then(|lease| lease.pump_runs(&mut self.shared));
                self.on_end(id, end);
            }
        }
        let is_recovering = |claim: &Claim| claim.stage == ClaimStage::Recovering;
        if self.shared.stage == Stage::Recovering && !self.claims.values().any(is_recovering) {
            self.shared.stage = Stage::Selling;
            self.look_at_market();
        }
        let is_draining = matches!(self.shared.stage, Stage::Draining | Stage::LastCall);
        let is_giving_back =
            self.gives_back
                || self.shared.pending.iter().any(|wait| {
                    matches!(wait, Wait::GiveBack(_) | Wait::Place(..) | Wait::Cancel(_))
                });
        if is_draining && !self.is_at_work() && !is_giving_back {
            self.begin_leaving();
        }
        let is_written = self.shared.pending.is_empty() && self.shared.unwritten_fact_count() == 0;
        if self.shared.stage == Stage::Leaving && self.leases.is_empty() && is_written {
            self.finish_stopping();
        }
    }
}
