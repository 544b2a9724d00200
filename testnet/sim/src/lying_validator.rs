//! Makes one simulated validator lie to the others, which must not believe it.
//!
//! It offers a forged snapshot, and sends membership changes that no operator ordered, as if it led
//! a later term. While it serves the snapshot, it also denies its clients what it put into the log:
//! it answers that a batch's nonce is too old, or that the batch has expired, and shows an account
//! that never applied it. All its other messages are honest.

use bytes::Bytes;
use raft::eraftpb::{ConfChangeType, ConfChangeV2, Entry, Message, MessageType};
use souk_consensus::manifest::{Manifest, SnapshotOffer};
use souk_consensus::snapshot::{LogGrowth, SnapshotParts};
use souk_consensus::wire::PeerMessage;
use souk_consensus::{
    Certificate, Digest, History, LogIndex, LogTime, Replica, ReplicaId, Sessions, Snapshot,
    StateMachine, Term, Voucher,
};
use souk_market::{Batch, Millis, NONCE_WINDOW, Nonce, Refusal};
use souk_roles::market::market_protocol::{Answer, Request};

use super::forged_messages::{ForgedState, STRANGER, change_members, membership_change};
use super::machine::SimExchange;
use super::random::Random;
use super::world::actors::Waiter;
use super::world::{Event, World};

/// The bytes of each part of the forged snapshot.
const PART_BYTES: usize = 16 << 10;

/// Maximum milliseconds by which a state sets the log's clock ahead.
const YEAR_MS: u64 = 31_536_000_000;

impl World {
    /// Makes a validator offer a forged snapshot and send forged membership changes to each other
    /// validator.
    pub(super) fn send_forged_state(&mut self, node: usize) {
        let market = self.new_machine();
        let Some(running) = &self.nodes[node].running else {
            return;
        };
        let liar = running.replica();
        let (from, state) = (
            liar.status().id,
            forged_state(liar, &market, &mut self.random),
        );
        let manifest = Manifest::for_snapshot(&state.bytes, PART_BYTES);
        let others: Vec<(usize, ReplicaId)> = {
            let others = self.nodes.iter().enumerate();
            let others = others.filter(|(number, _)| *number != node);
            others.map(|(number, other)| (number, other.id)).collect()
        };
        let mut told = Vec::new();
        for (to, id) in &others {
            told.push((*to, forged_offer(liar, *id, &state, &manifest)));
            let steps = forged_steps(liar, *id, &others, &mut self.random);
            told.push((*to, forged_append(liar, *id, &steps)));
        }
        self.nodes[node].forged = true;
        self.nodes[node].lie = Some(ForgedState {
            manifest,
            bytes: state.bytes,
        });
        for (to, bytes) in told {
            let time = self.now + self.random.draw_between(1, 200);
            self.schedule_event(time, Event::Deliver { from, to, bytes });
        }
    }

    /// Answers a request for a part of the forged snapshot. Returns false, and answers nothing, if
    /// the message asks for something else.
    pub(super) fn answer_with_forged_part(
        &mut self,
        from: ReplicaId,
        to: usize,
        bytes: &Bytes,
    ) -> bool {
        let Some(lie) = &self.nodes[to].lie else {
            return false;
        };
        let Ok(PeerMessage::PartRequest { snapshot, number }) = PeerMessage::decode(bytes.clone())
        else {
            return false;
        };
        let range = lie.manifest.part_range(number);
        let range = range.filter(|_| lie.manifest.digest() == snapshot);
        let asker = self.nodes.iter().position(|node| node.id == from);
        let (Some(range), Some(asker)) = (range, asker) else {
            return false;
        };
        let bytes = lie.bytes.slice(range);
        let part = PeerMessage::Part {
            snapshot,
            number,
            bytes,
        };
        let event = Event::Deliver {
            from: self.nodes[to].id,
            to: asker,
            bytes: part.encode(),
        };
        self.schedule_event(self.now + 5, event);
        true
    }

    /// Returns the answer that an actor gets from a validator: a liar denies batches, if there are
    /// validators enough that the others can show it.
    pub(super) fn distort_answer(&mut self, waiter: &Waiter, answer: Answer) -> Answer {
        if self.nodes[waiter.node].lie.is_none() || self.nodes.len() < 3 {
            return answer;
        }
        match (&*waiter.question, answer) {
            (Request::Submit(signed), Answer::Applied(results)) if self.random.chance(500) => {
                self.counts.batches_denied += 1;
                let Batch { nonce, expires, .. } = signed.batch;
                let denial = match self.random.chance(500) {
                    true => Refusal::NonceOld {
                        nonce,
                        oldest: Nonce(nonce.0 + NONCE_WINDOW),
                    },
                    false => Refusal::BatchExpired {
                        expires,
                        now: expires,
                    },
                };
                Answer::Applied(vec![Err(denial); results.len()])
            }
            (Request::Account(_), Answer::Account(Some(mut account))) => {
                account.quiet_at = Millis(0);
                Answer::Account(Some(account))
            }
            (_, answer) => answer,
        }
    }
}

/// Returns the market's initial state as if it were the latest one, sometimes with a time far
/// ahead.
fn forged_state(
    liar: &Replica<SimExchange>,
    market: &SimExchange,
    random: &mut Random,
) -> Snapshot {
    let status = liar.status();
    let ahead_ms = if random.chance(200) { YEAR_MS } else { 0 };
    Snapshot::new(&SnapshotParts {
        index: LogIndex(status.last.0 + random.draw_between(1, 2_000)),
        term: Term(status.term.0 + 1),
        members: &status.members,
        time: LogTime(status.time.0 + ahead_ms),
        sessions: &Sessions::default(),
        history: &History::default(),
        growth: LogGrowth::default(),
        state: Digest(market.digest()),
        machine: &market.snapshot(),
    })
}

/// Returns an offer that the liar signs for itself and in the name of all others.
fn forged_offer(
    liar: &Replica<SimExchange>,
    to: ReplicaId,
    state: &Snapshot,
    manifest: &Manifest,
) -> Bytes {
    let statement = state.statement();
    let signature = Bytes::from(liar.machine().sign_statement(&statement.signing_bytes()));
    let voters = state.members.get_voters().iter();
    let voters = voters.filter_map(|id| ReplicaId::new(*id));
    let vouchers = voters.map(|by| Voucher {
        by,
        signature: signature.clone(),
    });
    let certificate = Certificate {
        statement,
        vouchers: vouchers.collect(),
    };
    let mut message = forged_message(liar, to, MessageType::MsgSnapshot);
    let offered = message.mut_snapshot();
    offered.mut_metadata().index = state.index.0;
    offered.mut_metadata().term = state.term.0;
    offered.data = SnapshotOffer {
        certificate,
        manifest: manifest.clone(),
    }
    .encode();
    PeerMessage::Raft(Box::new(message)).encode()
}

/// Returns the members to remove or add, and the second step if the change takes two entries.
/// Excludes changes that operators ordered: if valid entries are sent in two versions, only the
/// next snapshot can reveal it.
fn forged_steps(
    liar: &Replica<SimExchange>,
    to: ReplicaId,
    others: &[(usize, ReplicaId)],
    random: &mut Random,
) -> Vec<ConfChangeV2> {
    use ConfChangeType::{AddLearnerNode, AddNode, RemoveNode};
    let all = |kind| -> Vec<(ConfChangeType, u64)> {
        others.iter().map(|(_, id)| (kind, id.get())).collect()
    };
    let entries = liar.machine().roster().entries();
    let leaves = |id: &ReplicaId| entries.get(&id.get()).is_none_or(|entry| entry.leaving);
    let is_member = |id: &ReplicaId| liar.status().members.get_voters().contains(&id.get());
    let all_known = others.iter().all(|(_, id)| is_member(id) && !leaves(id));
    match random.draw_below(4) {
        _ if !all_known => vec![membership_change(&[(AddNode, STRANGER)])],
        0 => vec![membership_change(&all(RemoveNode)), membership_change(&[])],
        1 => vec![
            membership_change(&all(AddLearnerNode)),
            membership_change(&[]),
        ],
        2 => vec![membership_change(&[(AddNode, STRANGER)])],
        _ => vec![membership_change(&[(RemoveNode, to.get())])],
    }
}

/// Returns an append message with entries after the liar's last, marked as committed.
fn forged_append(liar: &Replica<SimExchange>, to: ReplicaId, changes: &[ConfChangeV2]) -> Bytes {
    let mut message = forged_message(liar, to, MessageType::MsgAppend);
    let last = liar.log().last_entry_index();
    message.index = last.0;
    message.log_term = liar.log().term_at(last).map_or(0, |term| term.0);
    message.commit = last.0 + changes.len() as u64;
    let entry = |(index, change): (u64, &ConfChangeV2)| {
        let mut entry = Entry {
            term: message.term,
            index,
            ..Entry::default()
        };
        change_members(&mut entry, change.clone());
        entry
    };
    let entries: Vec<Entry> = (last.0 + 1..).zip(changes).map(entry).collect();
    message.set_entries(entries.into());
    PeerMessage::Raft(Box::new(message)).encode()
}

/// Returns a message in a term without an elected leader.
fn forged_message(liar: &Replica<SimExchange>, to: ReplicaId, kind: MessageType) -> Message {
    let mut message = Message {
        from: liar.status().id.get(),
        to: to.get(),
        term: liar.term().0 + 1,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}
