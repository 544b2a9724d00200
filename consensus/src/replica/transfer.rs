//! Transfers a snapshot to a replica that lags. The leader's offer carries the signatures of the
//! members that vouch for the snapshot and a list of its parts, which the replica requests one by
//! one.
//!
//! The replica keeps verified parts, in memory and on disk, while offers name the same snapshot,
//! even if another leader repeats the offer or this replica restarts. So a lost message costs one
//! part. An offer of another snapshot keeps the parts that both share. Once all parts are there and
//! a majority of the members vouches for the whole, raft gets the snapshot as if it had come in one
//! piece; before that nothing of the offer reaches raft.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use raft::eraftpb::Message;
use raft::{ProgressState, SnapshotStatus};

use super::members::all_voters;
use super::{Replica, StepError};
use crate::ids::{ReplicaId, Term};
use crate::incoming_snapshot::{self, PartToStore, StoredParts};
use crate::machine::StateMachine;
use crate::manifest::{Manifest, SnapshotOffer};
use crate::snapshot::Snapshot;
use crate::voucher::{Certificate, OfferedState, Tally};
use crate::wire::{Envelope, PeerMessage};
use souk_proof::Digest;
use souk_proof::LogIndex;

/// The parts to request at once: enough to fill a link, few enough that their loss is cheap.
const WINDOW_PARTS: usize = 8;

/// Election timeouts for which this replica refuses the offers of a sender whose last offer proved
/// false.
const DOUBT_TIMEOUTS: u64 = 16;

/// Election timeouts without a part after which any offer replaces a transfer.
const IDLE_TIMEOUTS: u64 = 4;

/// A snapshot in transfer, with missing parts.
#[derive(Debug)]
pub(super) struct Incoming {
    offer: Message,
    from: ReplicaId,
    certificate: Certificate,
    /// The signatures in it of members that this replica knows.
    known_vouchers: usize,
    /// The tick of the offer or of the last part received.
    last_heard_ticks: u64,
    manifest: Manifest,
    parts: BTreeMap<u32, Bytes>,
    /// The requested parts, and the tick of each request.
    requested_parts: BTreeMap<u32, u64>,
    /// The header that names the snapshot on disk.
    header: Bytes,
    /// Parts that are not on disk yet.
    unstored: BTreeSet<u32>,
}

impl Incoming {
    /// Creates a transfer without parts.
    fn new(from: ReplicaId, offer: Message, state: SnapshotOffer) -> Self {
        let index = LogIndex(offer.get_snapshot().get_metadata().index);
        let SnapshotOffer {
            certificate,
            manifest,
        } = state;
        Self {
            header: incoming_snapshot::build_header(index, &manifest),
            offer,
            from,
            certificate,
            known_vouchers: 0,
            last_heard_ticks: 0,
            manifest,
            parts: BTreeMap::new(),
            requested_parts: BTreeMap::new(),
            unstored: BTreeSet::new(),
        }
    }

    /// Takes over the parts of another transfer that are equal in this one. All are written to disk
    /// again.
    fn adopt_parts(&mut self, parts: BTreeMap<u32, Bytes>) {
        let same = |(number, bytes): &(u32, Bytes)| self.manifest.is_part(*number, bytes);
        self.parts = parts.into_iter().filter(same).collect();
        self.unstored = self.parts.keys().copied().collect();
    }

    fn on_part(&mut self, number: u32, bytes: Bytes) {
        assert!(
            number < self.manifest.part_count(),
            "the transfer accepts only verified parts"
        );
        self.requested_parts.remove(&number);
        self.parts.insert(number, bytes);
        self.unstored.insert(number);
    }

    pub(super) fn has_unstored_parts(&self) -> bool {
        !self.unstored.is_empty()
    }

    /// Returns the parts to write now.
    pub(super) fn take_unstored_parts(&mut self) -> Vec<PartToStore> {
        let numbers = std::mem::take(&mut self.unstored).into_iter();
        let part = |number| {
            Some(PartToStore {
                index: LogIndex(self.offer.get_snapshot().get_metadata().index),
                header: self.header.clone(),
                start: self.manifest.part_range(number)?.start as u64,
                bytes: self.parts.get(&number)?.clone(),
            })
        };
        numbers.filter_map(part).collect()
    }

    fn is_whole(&self) -> bool {
        self.parts.len() == self.manifest.part_count() as usize
    }

    /// Returns the parts to request now.
    fn due_parts(&mut self, tick: u64, retry_ticks: u64) -> Vec<u32> {
        self.requested_parts
            .retain(|_, at| *at + retry_ticks > tick);
        let room = WINDOW_PARTS.saturating_sub(self.requested_parts.len());
        let missing = (0..self.manifest.part_count()).filter(|number| {
            !self.parts.contains_key(number) && !self.requested_parts.contains_key(number)
        });
        let due: Vec<u32> = missing.take(room).collect();
        self.requested_parts
            .extend(due.iter().map(|number| (*number, tick)));
        due
    }
}

impl<M: StateMachine> Replica<M> {
    /// Handles a snapshot that another replica offers.
    pub(super) fn on_snapshot_offered(
        &mut self,
        from: ReplicaId,
        offer: Message,
    ) -> Result<(), StepError> {
        let state = SnapshotOffer::decode(offer.get_snapshot().data.clone())
            .map_err(|cause| StepError::Manifest { from, cause })?;
        let (index, term) = {
            let offered = offer.get_snapshot().get_metadata();
            (LogIndex(offered.index), Term(offered.term))
        };
        if index != state.certificate.statement.index {
            return Err(StepError::Unlike(from));
        }
        if index <= self.applied {
            let known = self.raw.store().term_at(index);
            if known.is_some_and(|known| known != term) {
                return Err(StepError::Unlike(from));
            }
            // raft answers how far this log goes. A leader that missed the answer at the
            // installation would offer the same snapshot again and again.
            return Ok(self.step_raft(offer)?);
        }
        self.doubted.retain(|_, until| *until > self.ticks);
        if self.doubted.contains_key(&from) {
            return Err(StepError::Doubted(from));
        }
        let mut incoming = Incoming::new(from, offer, state);
        incoming.known_vouchers = self.count_known_vouchers(&incoming.certificate);
        incoming.last_heard_ticks = self.ticks;
        // An offer with fewer signatures replaces a transfer only if no parts come any more.
        let patience = IDLE_TIMEOUTS * self.config.election_ticks as u64;
        let is_better = |earlier: &Incoming| {
            earlier.known_vouchers > incoming.known_vouchers
                && earlier.last_heard_ticks + patience > self.ticks
        };
        if self.incoming.as_ref().is_some_and(is_better) {
            return Err(StepError::Fewer(from));
        }
        match self.incoming.take() {
            Some(earlier) if earlier.header == incoming.header => {
                (incoming.parts, incoming.unstored) = (earlier.parts, earlier.unstored);
            }
            Some(earlier) => incoming.adopt_parts(earlier.parts),
            None => incoming.adopt_parts(self.stored_parts.take().unwrap_or_default()),
        }
        self.incoming = Some(incoming);
        self.request_chunks();
        self.install_if_whole()
    }

    /// Counts the valid signatures of members whose keys this replica knows, each member once.
    fn count_known_vouchers(&self, certificate: &Certificate) -> usize {
        let statement = certificate.statement.signing_bytes();
        let vouchers = certificate.vouchers.iter();
        let valid = vouchers.filter(|it| self.machine.has_signed(it.by, &statement, &it.signature));
        valid.map(|it| it.by).collect::<BTreeSet<_>>().len()
    }

    /// Takes over the parts that the replica stored before its restart, so that the replica does
    /// not request them again.
    pub fn resume_transfer(&mut self, stored: StoredParts) {
        self.stored_parts = Some(stored.parts);
    }

    /// Sends a requested part. If the snapshot is gone, it sends nothing: the leader will offer the
    /// current one.
    pub(super) fn on_chunk_request(&mut self, from: ReplicaId, snapshot: Digest, number: u32) {
        if let Some(bytes) = self.raw.store().snapshot_chunk(snapshot, number) {
            self.snapshot_ticks.insert(from.get(), 0);
            let bytes = PeerMessage::Part {
                snapshot,
                number,
                bytes,
            }
            .encode();
            self.outbox.push(Envelope { to: from, bytes });
        }
    }

    /// Handles a part that arrived.
    pub(super) fn on_chunk(
        &mut self,
        snapshot: Digest,
        number: u32,
        bytes: Bytes,
    ) -> Result<(), StepError> {
        let Some(incoming) = &mut self.incoming else {
            return Ok(());
        };
        if incoming.manifest.digest() != snapshot || !incoming.manifest.is_part(number, &bytes) {
            return Ok(());
        }
        incoming.on_part(number, bytes);
        incoming.last_heard_ticks = self.ticks;
        self.request_chunks();
        self.install_if_whole()
    }

    /// Requests missing parts.
    pub(super) fn request_chunks(&mut self) {
        let retry_ticks = self.config.election_ticks as u64;
        let applied = self.applied.0;
        self.incoming
            .take_if(|it| it.offer.get_snapshot().get_metadata().index <= applied);
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let (to, snapshot) = (incoming.from, incoming.manifest.digest());
        for number in incoming.due_parts(self.ticks, retry_ticks) {
            let bytes = PeerMessage::PartRequest { snapshot, number }.encode();
            self.outbox.push(Envelope { to, bytes });
        }
    }

    /// Sends again to a peer that got a snapshot offer and has been silent for long.
    pub(super) fn watch_snapshots(&mut self) {
        let patience = 8 * self.config.election_ticks as u64;
        let progress = self.raw.raft.prs().iter();
        let waiting = progress.filter(|(_, peer)| peer.state == ProgressState::Snapshot);
        let waiting: Vec<u64> = waiting.map(|(peer, _)| *peer).collect();
        self.snapshot_ticks.retain(|peer, _| waiting.contains(peer));
        for peer in waiting {
            *self.snapshot_ticks.entry(peer).or_default() += 1;
        }
        let silent = |ticks: &u64| *ticks > patience;
        let lost: Vec<u64> = self
            .snapshot_ticks
            .iter()
            .filter(|(_, n)| silent(n))
            .map(|(peer, _)| *peer)
            .collect();
        for peer in lost {
            self.snapshot_ticks.remove(&peer);
            self.raw.report_snapshot(peer, SnapshotStatus::Failure);
        }
    }

    /// Passes a whole snapshot to raft, if a majority of the members vouches for it. The parts stay
    /// until its installation: raft can find the offer outdated, and the same snapshot can be
    /// offered again.
    fn install_if_whole(&mut self) -> Result<(), StepError> {
        let Some(incoming) = self
            .incoming
            .as_ref()
            .filter(|incoming| incoming.is_whole())
        else {
            return Ok(());
        };
        let from = incoming.from;
        let whole: Vec<u8> = incoming.parts.values().flatten().copied().collect();
        let snapshot = match self.admit_state(incoming, whole.into()) {
            Ok(snapshot) => snapshot,
            Err(refusal) => {
                self.incoming = None;
                let timeout = self.config.election_ticks as u64;
                let until = self.ticks + DOUBT_TIMEOUTS * timeout;
                self.doubted.insert(from, until);
                return Err(refusal);
            }
        };
        let mut offer = incoming.offer.clone();
        offer
            .mut_snapshot()
            .mut_metadata()
            .set_conf_state(snapshot.members.clone());
        offer.mut_snapshot().data = snapshot.encode_with_vouchers().into();
        Ok(self.step_raft(offer)?)
    }

    /// Decodes a state and compares it with its offer and with the members' signatures.
    fn admit_state(&self, incoming: &Incoming, whole: Bytes) -> Result<Snapshot, StepError> {
        let Incoming {
            offer,
            from,
            certificate,
            ..
        } = incoming;
        let from = *from;
        let mut snapshot = Snapshot::decode(whole)?;
        let offered = offer.get_snapshot().get_metadata();
        let is_vouched_for = snapshot.statement() == certificate.statement;
        if !is_vouched_for || !is_sound(&snapshot, offered.index, offered.term) {
            return Err(StepError::Unlike(from));
        }
        self.admit_time(from, snapshot.time)?;
        let tally = self.machine.count_vouchers(&OfferedState {
            known: &all_voters(self.raw.store().members()),
            voters: &all_voters(&snapshot.members),
            machine: &snapshot.machine,
            certificate,
        });
        if !tally.is_majority() {
            let Tally { members, vouched } = tally;
            return Err(StepError::Unvouched {
                from,
                vouched,
                members,
            });
        }
        snapshot.vouchers = certificate.vouchers.clone();
        Ok(snapshot)
    }
}

/// Returns whether a snapshot is the offered one, and has members that a group can have.
fn is_sound(snapshot: &Snapshot, index: u64, term: u64) -> bool {
    let members = &snapshot.members;
    let distinct = |lists: [&[u64]; 2]| {
        let all = lists.concat();
        !all.contains(&0) && all.iter().collect::<BTreeSet<_>>().len() == all.len()
    };
    let outgoing = members.get_voters_outgoing();
    let next = members.get_learners_next();
    (snapshot.index.0, snapshot.term.0) == (index, term)
        && !members.get_voters().is_empty()
        && distinct([members.get_voters(), members.get_learners()])
        && distinct([outgoing, members.get_learners()])
        && distinct([members.get_voters(), next])
        && next.iter().all(|id| outgoing.contains(id))
        && (!members.auto_leave || !outgoing.is_empty())
}
