//! Ends a lease at work: decides when it begins no more runs, stops its runs and releases its
//! contents. The sandbox (the process in which it runs) must end before any party learns of the
//! end.

use super::*;

impl LeaseCore {
    /// Handles the lease's state in the log.
    pub(in crate::provider) fn on_seen(
        &mut self,
        shared: &mut SharedState,
        lease: &Lease,
    ) -> Option<End> {
        assert_eq!(lease.id, self.id());
        if lease.is_closed() {
            return Some(End::Failed(Failure::Expired));
        }
        *self.lease = lease.clone();
        self.ends_at = lease.end_time();
        self.set_timers(shared);
        self.pump_runs(shared)
    }

    /// Handles a moment of the lease's end; clocks may differ.
    pub(in crate::provider) fn on_time(&mut self, shared: &mut SharedState) -> Option<End> {
        if shared.now.log >= self.ends_at {
            self.stop_runs(shared);
            return Some(match self.bill.has_run() {
                true => End::Done,
                false => End::Failed(Failure::Expired),
            });
        }
        if self.bill.has_run() && !self.is_in_time(shared) {
            self.stall_work(shared, Failure::Expired);
        }
        self.set_timers(shared);
        self.pump_runs(shared)
    }

    /// Returns the end of the lease if its buyer extends it as far as possible. The sandbox gets
    /// that deadline, because it cannot learn a later one and is closed when the lease ends.
    pub(super) fn ends_at_most(&self) -> Millis {
        let longest = self.lease.start.saturating_add(self.lease.duration_max);
        self.lease.deadline.max(longest)
    }

    /// Returns the moment by which a run must end. An answer of a tab ends by itself before its
    /// lease does, and is owed. A run on a device is stopped when its lease ends, and its sandbox
    /// can learn no later deadline.
    pub(super) fn run_deadline(&self) -> Millis {
        match self.start.is_tab() {
            true => self.ends_at,
            false => self.ends_at_most(),
        }
    }

    /// Returns whether a further run would end in time for the buyer to sign.
    pub(super) fn is_in_time(&self, shared: &SharedState) -> bool {
        shared.now.log < self.last_begin()
    }

    /// Returns the moment from which no further run would end in time, counting the runs still at
    /// work when it begins.
    pub(super) fn last_begin(&self) -> Millis {
        let runs = self.start.parts.iter().map(|part| part.expected.0);
        let longest = runs.max().unwrap_or(0).div_ceil(1_000);
        let is_noticed = self.ends_at < self.lease.deadline;
        let handover = match is_noticed {
            true => HANDOVER,
            false => {
                let whole = self.lease.deadline.saturating_since(self.lease.start).0;
                HANDOVER.min(Millis(whole / HANDOVER_SHARE))
            }
        };
        let needed = longest.saturating_mul(u64::from(self.slots));
        Millis(
            self.ends_at
                .0
                .saturating_sub(needed.saturating_add(handover.0)),
        )
    }

    pub(super) fn set_timers(&self, shared: &mut SharedState) {
        let ends = shared.tick_at(self.ends_at);
        shared.timers.set_timer(Timer::Ends(self.id()), ends);
        let last = self.last_begin();
        if self.bill.has_run() && last > shared.now.log && self.over.is_none() {
            let nears = shared.tick_at(last);
            shared.timers.set_timer(Timer::Nears(self.id()), nears);
        }
    }

    /// Returns whether the provider is stopping and this lease must end too.
    pub(super) fn is_to_end(&self, shared: &SharedState) -> bool {
        let due = match self.lease.term {
            Term::Spot => Stage::Draining,
            // The buyer has the lease for its whole time, so it continues as long as it can.
            Term::Firm => Stage::LastCall,
        };
        shared.stage >= due
    }

    /// Stops beginning work, and reports the reason to the buyer.
    pub(super) fn stall_work(&mut self, shared: &mut SharedState, why: Failure) {
        if self.over.is_none() {
            self.over = Some(why.clone());
            shared.send_message(self.stream, ProviderMessage::Stalled(why));
        }
    }

    /// Returns how the lease ended, if it did and its offers to others are done.
    pub(super) fn end_state(&self, shared: &SharedState) -> Option<End> {
        let is_offering = |effort: &LeaseEffect| matches!(effort, LeaseEffect::Offer(..));
        let parts = self.limit;
        let mut open = self.requests.open.values();
        let is_done = self.no_more && open.all(|open| open.part >= parts);
        let is_over = self.over.is_some() || is_done;
        if !is_over || !self.runs.is_empty() || shared.pending_efforts(self.id()).any(is_offering) {
            return None;
        }
        Some(match self.bill.has_run() {
            true => End::Done,
            false => End::Failed(self.over.clone().unwrap_or_else(unwanted_failure)),
        })
    }

    pub(super) fn stop_runs(&mut self, shared: &mut SharedState) {
        let id = self.id();
        shared.stop_effects(
            |wait| matches!(wait, Wait::LeaseResult(of, LeaseEffect::Run(..)) if *of == id),
        );
        for run in std::mem::take(&mut self.runs) {
            shared.runs_by_rank.end_turn(self.rank());
            if let Some(open) = self.requests.open.get_mut(&run.request) {
                open.at_work = false;
            }
        }
    }

    /// Removes a request, and releases its contents.
    pub(super) fn drop_request(&mut self, shared: &mut SharedState, number: u32) {
        let Some(open) = self.requests.remove(number) else {
            return;
        };
        let lease = self.id();
        let of =
            |effort: &LeaseEffect| matches!(effort, LeaseEffect::Input(of, ..) if *of == number);
        shared.stop_effects(
            |wait| matches!(wait, Wait::LeaseResult(id, effort) if *id == lease && of(effort)),
        );
        let contents = open.pins;
        if !contents.is_empty() {
            shared.push_effect(Action::Release { contents });
        }
    }

    /// Ends everything that runs for the lease. Its process must end before any party learns of it.
    pub(in crate::provider) fn close_lease(&mut self, shared: &mut SharedState) {
        let id = self.id();
        self.end_idle(shared);
        self.stop_runs(shared);
        shared.stop_effects(|wait| matches!(wait, Wait::LeaseResult(of, _) if *of == id));
        if std::mem::take(&mut self.has_place) {
            shared.push_effect(Action::EndSandbox { lease: id });
        }
        let open: Vec<u32> = self.requests.open.keys().copied().collect();
        for number in open {
            self.drop_request(shared, number);
        }
        let mut contents = std::mem::take(&mut self.pins);
        contents.extend(self.requests.take_held());
        if !contents.is_empty() {
            shared.push_effect(Action::Release { contents });
        }
        shared.timers.stop_all(|timer| timer.lease_id() == Some(id));
        assert_eq!(
            shared.pending_efforts(id).count(),
            0,
            "nothing goes on for it"
        );
    }

    /// Asserts the invariants that hold after each step.
    pub(super) fn assert_step_invariants(&self) {
        let parts = self.start.parts.len();
        assert!(self.runs.len() <= self.slots as usize, "runs have slots");
        assert!(self.prepared <= self.here && self.here as usize <= parts);
        assert!(
            self.runs.is_empty() || self.stage == WorkStage::Serving,
            "nothing runs before the buyer starts it"
        );
    }

    /// Asserts the same, and the invariants that take longer to check.
    pub(in crate::provider) fn assert_invariants(&self, shared: &SharedState) {
        self.assert_step_invariants();
        self.requests.assert_invariants();
        let efforts = shared.pending_efforts(self.id());
        let running = efforts.filter(|effort| matches!(effort, LeaseEffect::Run(..)));
        let unended = self.runs.iter().filter(|run| run.ended.is_none());
        assert_eq!(running.count(), unended.count(), "runs are awaited");
        let at_work = self.requests.open.values().filter(|open| open.at_work);
        assert_eq!(at_work.count(), self.runs.len());
        for run in &self.runs {
            let open = &self.requests.open[&run.request];
            assert!(open.at_work && open.part == run.part, "part by part");
        }
        assert!(shared.timers.is_set(Timer::Ends(self.id())), "it ends");
        assert!(shared.begun.has_begun(self.id()), "it was begun");
    }

    /// Returns the number of its runs at work.
    pub(in crate::provider) fn at_work(&self) -> usize {
        self.runs.len()
    }
}
