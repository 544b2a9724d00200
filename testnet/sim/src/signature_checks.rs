//! Simulates the time that a replica needs to verify signatures: input from others is verified some
//! time after its arrival, in any order. Also checks the accusations that follow: a replica must
//! accuse exactly the forger.

use bytes::Bytes;
use souk_consensus::check::Fault;
use souk_consensus::replica::Forgery;
use souk_consensus::{ReplicaId, Term};
use souk_roles::validator::event::Event as CoreEvent;

use super::checker::Violation;
use super::node::{Node, check_verdict};
use super::raft_promises::Pledge;
use super::world::{Event, World};

/// Maximum simulated milliseconds of a check, usually.
const CHECK_MS: u64 = 20;

/// Maximum simulated milliseconds of a check on a busy processor.
const CHECK_SLOW_MS: u64 = 800;

impl World {
    /// Schedules the pending verifications of a replica.
    pub(super) fn verify_later(&mut self, node: usize) {
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        if running.checks.is_empty() || running.verifies_soon {
            return;
        }
        running.verifies_soon = true;
        let life = self.nodes[node].life;
        let random = self.nodes[node].random();
        let slow = random.chance(10);
        let ms = random.draw_below(if slow { CHECK_SLOW_MS } else { CHECK_MS });
        self.schedule_event(self.now + ms, Event::Verify { node, life });
    }

    /// Verifies the input that a replica has received so far.
    pub(super) fn on_verify(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        if self.nodes[node].busy_until > self.now {
            return self.schedule_event(self.nodes[node].busy_until, Event::Verify { node, life });
        }
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        running.verifies_soon = false;
        let mut checks = std::mem::take(&mut running.checks);
        self.nodes[node].random().shuffle(&mut checks);
        for check in checks {
            self.counts.verified += check.commands.len() as u64;
            let verdict = check_verdict(&check, &self.decoded);
            self.nodes[node].apply_event(self.now, CoreEvent::Verdict(verdict));
        }
        self.run_rounds(node);
    }

    /// Checks an accusation: the accused replica must have forged.
    pub(super) fn on_forgery(&mut self, node: usize, forgery: &Forgery) {
        self.counts.forgeries += 1;
        if let Forgery::Leader(accusation) = forgery
            && matches!(
                accusation.found.fault,
                Fault::Unordered(_) | Fault::NoMember | Fault::Joint
            )
        {
            self.counts.changes_refused += 1;
        }
        let named = match forgery {
            Forgery::Leader(accusation) => accusation.leader,
            Forgery::Forwarded { from, .. } => Some(*from),
        };
        // A replica that lost its disk or left before the verification is unknown here.
        let known = self.nodes.iter().find(|it| Some(it.id) == named);
        if known.is_some_and(|it| !it.forged) {
            let replica = self.nodes[node].id.get();
            let reason = forgery.to_string();
            self.checker
                .record_violation(Violation::WronglyAccused { replica, reason });
        }
    }

    /// Checks that the sender of a state without a majority's signatures was a liar: honest
    /// replicas never offer one.
    pub(super) fn on_unvouched(&mut self, node: usize, from: ReplicaId) {
        self.counts.states_refused += 1;
        let sender = self.nodes.iter().find(|it| it.id == from);
        if sender.is_some_and(|it| !it.forged) {
            let replica = self.nodes[node].id.get();
            let reason = format!("{from} offers a state for which no majority vouches");
            self.checker
                .record_violation(Violation::WronglyAccused { replica, reason });
        }
    }

    /// Checks that the sender of a contradiction to committed entries was a liar: no honest leader
    /// of its term or a later one sends that.
    pub(super) fn on_contradiction(&mut self, node: usize, from: ReplicaId, term: Term) {
        let Some(running) = &self.nodes[node].running else {
            return;
        };
        let is_old = term < running.replica().term();
        let sender = self.nodes.iter().find(|it| it.id == from);
        if !is_old && sender.is_some_and(|it| !it.forged) {
            let replica = self.nodes[node].id.get();
            let reason = format!("{from} sends others than the committed entries");
            self.checker
                .record_violation(Violation::WronglyAccused { replica, reason });
        }
    }

    /// Records the pledge in a message that leaves a replica.
    pub(super) fn take_pledge(&mut self, id: ReplicaId, bytes: &Bytes) {
        let told = Pledge::from_message(bytes);
        let broken = told.and_then(|told| self.pledges.on_told(id, told));
        self.report_broken(id, broken);
    }

    /// Checks that a replica that starts from an unharmed disk still knows its pledges.
    pub(super) fn check_pledge(&mut self, node: usize) {
        let Node {
            id,
            running,
            harmed,
            ..
        } = &self.nodes[node];
        let Some(running) = running.as_ref().filter(|_| !harmed) else {
            return;
        };
        let (term, last) = (
            running.replica().term(),
            running.replica().log().last_entry_index(),
        );
        let broken = self.pledges.on_start(*id, term, last);
        self.report_broken(*id, broken);
    }

    fn report_broken(&mut self, id: ReplicaId, broken: Option<String>) {
        if let Some(reason) = broken {
            let replica = id.get();
            self.checker
                .record_violation(Violation::PledgeBroken { replica, reason });
        }
    }
}
