//! Keeps the members of the simulated raft group in step with its machines, as operators and the
//! leader would: orders the admission of a new machine's id or the removal of a lost one's, and
//! lets the leader take its next step towards the roster (the replicated list of validators).

use std::collections::BTreeSet;

use bytes::Bytes;
use souk_consensus::ReplicaId;
use souk_consensus::replica::Proposal;
use souk_market::{AccountKey, Millis};
use souk_roles::market::roster::{MembershipOrder, Roster};
use souk_roles::validator::event::Event as CoreEvent;
use souk_roles::validator::steps::{Group, Step};

use super::machine::EPOCH_MS;
use super::operators;
use super::world::{World, operations};

/// How long an order is valid, in milliseconds: more than the clock error of any computer.
const ORDER_MS: u64 = 600_000;

impl World {
    /// Operators admit the existing machines and remove the lost ones. The leader takes the next
    /// step: a newcomer learns, then votes, and then the replica that it replaces leaves.
    pub(super) fn drive_members(&mut self) {
        let Some(leader) = self.find_leader() else {
            return;
        };
        let Some(running) = &self.nodes[leader].running else {
            return;
        };
        let group = Group::from_status(&running.replica().status());
        let roster = running.replica().machine().roster().clone();
        for node in &mut self.nodes {
            let has_left = |old: ReplicaId| !group.voters.contains(&old.get());
            if group.voters.contains(&node.id.get()) && node.replaces.is_some_and(has_left) {
                node.replaces = None;
            }
        }
        if let Some(order) = self.next_order(&roster) {
            self.give_order(leader, &order);
        }
        // Ignores ids that neither a computer nor the group has, such as that of a computer
        // which was replaced before it joined.
        let is_known = |id: &u64| {
            self.is_id_in_use(*id) || group.voters.contains(id) || group.learners.contains(id)
        };
        let wanted: BTreeSet<u64> = roster.staying_ids().filter(is_known).collect();
        let running = self.nodes.iter().filter(|node| node.running.is_some());
        let running = running.map(|node| node.id.get()).collect();
        let Some(step) = group.next_step(&wanted, &running) else {
            return;
        };
        let event = match step {
            Step::HandOver(to) => CoreEvent::Transfer(to),
            Step::Change(change) => CoreEvent::Members {
                caller: operations::OPERATOR,
                changes: vec![change],
            },
        };
        // The leader will refuse the step during another change or while it is behind, and retry in
        // a second.
        self.nodes[leader].apply_event(self.now, event);
        self.run_rounds(leader);
    }

    fn is_id_in_use(&self, raft_id: u64) -> bool {
        self.nodes.iter().any(|node| node.id.get() == raft_id)
    }

    /// Returns the next order. Operators admit machines in the order of their ids, so that each
    /// gets its own.
    fn next_order(&self, roster: &Roster) -> Option<MembershipOrder> {
        let unknown = |id: &u64| !roster.entries().contains_key(id);
        if let Some(raft_id) = (1..self.next_id).find(unknown) {
            return Some(MembershipOrder::Admit {
                account: AccountKey::from(&operators::validator_key(raft_id)),
                address: format!("validator {raft_id}"),
            });
        }
        let gone = roster.staying_ids().find(|id| !self.is_id_in_use(*id))?;
        Some(MembershipOrder::Remove { raft_id: gone })
    }

    fn give_order(&mut self, leader: usize, order: &MembershipOrder) {
        let market = self.genesis().market_id();
        let expires = Millis(EPOCH_MS + self.now + ORDER_MS);
        let signed = operators::sign_order(market, order, self.now, expires);
        let proposal = |bytes: Vec<u8>| Proposal {
            command: self.decoded.borrow_mut().get(&bytes),
            bytes: Bytes::from(bytes),
        };
        let commands = signed.iter().map(|it| proposal(it.encode())).collect();
        self.counts.orders += 1;
        let event = CoreEvent::Propose {
            caller: operations::OPERATOR,
            commands,
        };
        self.nodes[leader].apply_event(self.now, event);
        self.run_rounds(leader);
    }
}
