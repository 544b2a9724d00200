//! Makes a new snapshot valid: all members make the whole state at the same entries, sign its
//! digest (they *vouch* for it), and send the signatures to each other.
//!
//! A state becomes this replica's snapshot, on disk and for lagging replicas, only once a majority
//! of its voters has signed it. Until then the log after the previous snapshot stays. The snapshot
//! carries the signatures: they convince a lagging replica even if the signers are gone. A replica
//! whose state differs from the one that a quorum signed must stop.

use std::collections::{BTreeMap, BTreeSet};

use super::members::all_voters;
use super::{Divergence, Replica};
use crate::ids::ReplicaId;
use crate::machine::StateMachine;
use crate::snapshot::Snapshot;
use crate::voucher::{Certificate, Statement, Voucher};
use crate::wire::{Envelope, PeerMessage};
use bytes::Bytes;
use souk_proof::Digest;
use souk_proof::LogIndex;

/// The states of each member whose signatures a replica stores.
const STATES_MAX: usize = 16;

/// The states that one member signed, by entry.
type SignedStates = BTreeMap<LogIndex, (Digest, Bytes)>;

/// The signatures of members, as the module describes.
#[derive(Debug, Default)]
pub(super) struct Vouching {
    /// The states that this replica reached itself.
    own_digests: BTreeMap<LogIndex, Digest>,
    /// The verified signatures of members, this one included. A member that signs many states
    /// displaces only its own.
    signed: BTreeMap<ReplicaId, SignedStates>,
    /// The latest state of this replica that still lacks signatures.
    pending: Option<Snapshot>,
    /// The latest state for which a majority vouches, until the caller takes it.
    certified: Option<Snapshot>,
    /// Whether no signature came since the last comparison.
    compared: bool,
}

impl Vouching {
    /// Records a state that this replica reached and signed.
    fn on_reached(&mut self, snapshot: Snapshot, voucher: Voucher) {
        let statement = snapshot.statement();
        insert_bounded(&mut self.own_digests, statement.index, statement.state);
        self.on_signed(statement, voucher);
        self.pending = Some(snapshot);
    }

    /// Records a member's verified signature under a statement.
    fn on_signed(&mut self, statement: Statement, voucher: Voucher) {
        self.compared = false;
        let states = self.signed.entry(voucher.by).or_default();
        insert_bounded(
            states,
            statement.index,
            (statement.state, voucher.signature),
        );
    }

    fn has_signed(&self, statement: Statement, by: ReplicaId) -> bool {
        let states = self.signed.get(&by);
        let signed = states.and_then(|states| states.get(&statement.index));
        signed.is_some_and(|(state, _)| *state == statement.state)
    }

    /// Returns a statement with all its signatures that this replica has.
    fn build_certificate(&self, statement: Statement) -> Certificate {
        let voucher = |(by, states): (&ReplicaId, &SignedStates)| {
            let (state, signature) = states.get(&statement.index)?;
            (*state == statement.state).then(|| Voucher {
                by: *by,
                signature: signature.clone(),
            })
        };
        Certificate {
            statement,
            vouchers: self.signed.iter().filter_map(voucher).collect(),
        }
    }

    /// Certifies the pending state if a majority of its voters now vouches for it.
    fn certify_pending(&mut self) {
        let Some(pending) = &self.pending else { return };
        let electors = all_voters(&pending.members);
        let mut vouchers = self.build_certificate(pending.statement()).vouchers;
        vouchers.retain(|voucher| electors.contains(&voucher.by));
        if 2 * vouchers.len() <= electors.len() {
            return;
        }
        self.certified = self.pending.take();
        if let Some(certified) = &mut self.certified {
            certified.vouchers = vouchers;
        }
    }

    /// Drops states that an installed snapshot replaces.
    pub(super) fn on_installed(&mut self, index: LogIndex) {
        self.pending.take_if(|pending| pending.index <= index);
        self.certified.take_if(|certified| certified.index <= index);
    }

    pub(super) fn has_certified(&self) -> bool {
        self.certified.is_some()
    }

    /// Takes the latest state for which a majority vouches.
    pub(super) fn take_certified(&mut self) -> Option<Snapshot> {
        self.certified.take()
    }

    /// Returns the difference if `quorum` other replicas signed another state than this one's.
    pub(super) fn find_divergence(&mut self, me: ReplicaId, quorum: usize) -> Option<Divergence> {
        if std::mem::replace(&mut self.compared, true) {
            return None;
        }
        let others = || self.signed.iter().filter(|(by, _)| **by != me);
        let mut agreed = LogIndex(0);
        for (index, mine) in &self.own_digests {
            let mut states: BTreeMap<Digest, BTreeSet<ReplicaId>> = BTreeMap::new();
            for (by, signed) in others() {
                if let Some((state, _)) = signed.get(index) {
                    states.entry(*state).or_default().insert(*by);
                }
            }
            if states.contains_key(mine) {
                agreed = *index;
            }
            states.remove(mine);
            if let Some((theirs, by)) = states.into_iter().find(|(_, by)| by.len() >= quorum) {
                return Some(Divergence {
                    index: *index,
                    agreed,
                    part: "whole state",
                    mine: *mine,
                    theirs,
                    by: by.into_iter().collect(),
                });
            }
        }
        None
    }
}

/// Adds a row and removes the earliest ones beyond the limit.
fn insert_bounded<T>(rows: &mut BTreeMap<LogIndex, T>, index: LogIndex, row: T) {
    rows.insert(index, row);
    while rows.len() > STATES_MAX {
        rows.pop_first();
    }
}

impl<M: StateMachine> Replica<M> {
    /// Makes the whole state at the last applied entry, signs it and sends the signature to the
    /// others.
    pub(super) fn vouch_for_state(&mut self) {
        let snapshot = self.vouched_snapshot();
        self.growth = snapshot.growth;
        let statement = snapshot.statement();
        let voucher = Voucher {
            by: self.config.id,
            signature: self
                .machine
                .sign_statement(&statement.signing_bytes())
                .into(),
        };
        let certificate = Certificate {
            statement,
            vouchers: vec![voucher.clone()],
        };
        self.vouching.on_reached(snapshot, voucher);
        self.vouching.certify_pending();
        self.tell_others(&PeerMessage::Vouchers(certificate));
    }

    /// Checks and records members' signatures from any source.
    pub(super) fn on_vouchers(&mut self, certificate: Certificate) {
        let Certificate {
            statement,
            vouchers,
        } = certificate;
        let bytes = statement.signing_bytes();
        for voucher in vouchers {
            let by = voucher.by;
            let is_news = by != self.config.id && !self.vouching.has_signed(statement, by);
            let is_member = all_voters(self.raw.store().members()).contains(&by);
            if is_news && is_member && self.machine.has_signed(by, &bytes, &voucher.signature) {
                self.vouching.on_signed(statement, voucher);
            }
        }
        self.vouching.certify_pending();
    }

    /// Sends the signatures that another replica lacks under its state at an index.
    pub(super) fn on_voucher_request(&mut self, from: ReplicaId, index: LogIndex) {
        let kept = self.raw.store().snapshot();
        let certificate = match self.vouching.own_digests.get(&index) {
            Some(state) => {
                let state = *state;
                self.vouching.build_certificate(Statement { index, state })
            }
            None if kept.index == index => Certificate {
                statement: kept.statement(),
                vouchers: kept.vouchers.clone(),
            },
            None => return,
        };
        let bytes = PeerMessage::Vouchers(certificate).encode();
        self.outbox.push(Envelope { to: from, bytes });
    }

    /// Sends and requests the signatures of the pending state, once in each election timeout.
    pub(super) fn request_vouchers(&mut self) {
        if !self.ticks.is_multiple_of(self.config.election_ticks as u64) {
            return;
        }
        let Some(pending) = &self.vouching.pending else {
            return;
        };
        let statement = pending.statement();
        let certificate = self.vouching.build_certificate(statement);
        self.tell_others(&PeerMessage::Vouchers(certificate));
        self.tell_others(&PeerMessage::VoucherRequest(statement.index));
    }

    /// Sends the same message to all other members.
    pub(super) fn tell_others(&mut self, message: &PeerMessage) {
        let bytes = message.encode();
        let others = self.other_members().into_iter();
        self.outbox.extend(others.map(|to| Envelope {
            to,
            bytes: bytes.clone(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ReplicaId {
        ReplicaId::new(number).unwrap()
    }

    fn say(vouching: &mut Vouching, by: u64, index: u64, state: u8) {
        let statement = Statement {
            index: LogIndex(index),
            state: Digest([state; 32]),
        };
        if by == 1 {
            insert_bounded(&mut vouching.own_digests, statement.index, statement.state);
        }
        let signature = Bytes::new();
        vouching.on_signed(
            statement,
            Voucher {
                by: id(by),
                signature,
            },
        );
    }

    #[test]
    fn who_differs_from_a_quorum_is_the_one_that_stops() {
        let mut vouching = Vouching::default();
        for (by, state) in [(1, 5), (2, 5), (3, 5)] {
            say(&mut vouching, by, 8, state);
        }
        for (by, state) in [(1, 5), (2, 6)] {
            say(&mut vouching, by, 16, state);
        }
        assert_eq!(
            vouching.find_divergence(id(1), 2),
            None,
            "one voice is no quorum"
        );
        say(&mut vouching, 3, 16, 6);
        let divergence = vouching.find_divergence(id(1), 2).unwrap();
        assert_eq!(divergence.index, LogIndex(16));
        assert_eq!(divergence.agreed, LogIndex(8));
        assert_eq!(divergence.by, [id(2), id(3)]);
    }

    #[test]
    fn one_that_signs_much_crowds_out_nobody() {
        let mut vouching = Vouching::default();
        for by in [1, 2, 3] {
            say(&mut vouching, by, 8, if by == 1 { 5 } else { 6 });
        }
        for index in 0..1_000 {
            say(&mut vouching, 4, u64::MAX - index, 1);
        }
        assert_eq!(vouching.signed[&id(4)].len(), STATES_MAX);
        assert_eq!(
            vouching.find_divergence(id(1), 2).unwrap().by,
            [id(2), id(3)]
        );
    }
}
