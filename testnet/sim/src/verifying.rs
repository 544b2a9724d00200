//! Verification behind, in simulated time: what others took in is checked a while after it was
//! applied, and only then vouched for.

use souk_consensus::replica::Applied;
use souk_consensus::wire::{Envelope, PeerMessage};
use souk_consensus::{LogIndex, Position, ReplicaId};

use super::bugs::Bug;
use super::checker::Violation;
use super::node::Unverified;
use super::world::{Event, World};

/// The most simulated milliseconds a replica lets pass before it verifies.
const BEHIND_MS: u64 = 400;

impl World {
    /// Takes note of what a replica applied on the word of others.
    pub(super) fn verify_later(&mut self, node: usize, applied: &[Applied]) {
        let skips = self.config.bug == Some(Bug::VouchUnverified);
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        let foreign = applied.iter().filter(|it| !it.taken_in_here && !skips);
        for applied in foreign {
            let commands = applied.results.iter().map(|(command, _)| command.clone());
            running.behind.push_back(Unverified {
                index: applied.index,
                origin: applied.origin,
                commands: commands.filter(|command| !command.is_empty()).collect(),
            });
        }
        if !running.verifies_soon && running.replica.verified() < running.replica.applied() {
            running.verifies_soon = true;
            let life = self.nodes[node].life;
            let soon = self.nodes[node].random().below(BEHIND_MS);
            self.at(self.now + soon, Event::Verify { node, life });
        }
    }

    /// A replica verifies what it has applied up to now.
    pub(super) fn on_verify(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life {
            return;
        }
        let Some(running) = &mut self.nodes[node].running else {
            return;
        };
        running.verifies_soon = false;
        let behind = std::mem::take(&mut running.behind);
        for entry in &behind {
            self.counts.verified_behind += entry.commands.len() as u64;
            if !self.is_authentic(entry) {
                let replica = self.nodes[node].id.get();
                let (index, origin) = (entry.index.0, entry.origin.get());
                return self.checker.report(Violation::Forged {
                    replica,
                    index,
                    origin,
                });
            }
        }
        if let Some(running) = &mut self.nodes[node].running {
            let applied = running.replica.applied();
            running.replica.on_verified(applied);
            self.work(node);
        }
    }

    fn is_authentic(&self, entry: &Unverified) -> bool {
        let mut decoded = self.decoded.borrow_mut();
        let index = entry.index;
        let mut commands = (0..).zip(&entry.commands);
        commands.all(|(offset, it)| decoded.get(Position { index, offset }, it).authentic)
    }

    /// Once a forged command is in the log, nobody may vouch for a state with it.
    pub(super) fn check_vouching(&mut self, replica: ReplicaId, sent: &[Envelope]) {
        let Some(forged) = self.checker.forged() else {
            return;
        };
        let vouched = |envelope: &Envelope| match PeerMessage::decode(envelope.bytes.clone()) {
            Ok(PeerMessage::Checkpoint(checkpoint)) => Some(checkpoint.index),
            _ => None,
        };
        let vouched = sent
            .iter()
            .filter_map(vouched)
            .find(|index| *index >= forged);
        if let Some(LogIndex(index)) = vouched {
            let replica = replica.get();
            self.checker
                .report(Violation::VouchedForged { replica, index });
        }
    }
}
