//! Decides when a replica can answer reads so that they reflect everything acknowledged before
//! (linearizable reads). One ReadIndex round, a question to the leader, serves all reads that
//! arrived before it.

use std::collections::VecDeque;

use crate::codec::{Reader, Writer};
use crate::ids::{Incarnation, ReplicaId};
use souk_proof::LogIndex;

use super::proposals::QueueFull;

/// Names one read until the local state can answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadTicket(pub u64);

/// The most reads that can wait; further ones get [`QueueFull`].
const READS_MAX: usize = 65_536;

/// A round in progress.
#[derive(Debug)]
struct Round {
    number: u64,
    tickets: Vec<ReadTicket>,
    sent_tick: u64,
    /// The index that the local state must reach, once the leader has answered.
    index: Option<LogIndex>,
}

/// The reads of a replica, as the module describes.
#[derive(Debug)]
pub(super) struct Reads {
    origin: ReplicaId,
    incarnation: Incarnation,
    next_ticket: u64,
    next_round: u64,
    waiting: VecDeque<ReadTicket>,
    round: Option<Round>,
}

impl Reads {
    pub(super) fn new(origin: ReplicaId, incarnation: Incarnation) -> Self {
        Self {
            origin,
            incarnation,
            next_ticket: 1,
            next_round: 1,
            waiting: VecDeque::new(),
            round: None,
        }
    }

    pub(super) fn push(&mut self) -> Result<ReadTicket, QueueFull> {
        if self.waiting.len() >= READS_MAX {
            return Err(QueueFull {
                commands: self.waiting.len(),
                bytes: 0,
            });
        }
        let ticket = ReadTicket(self.next_ticket);
        self.next_ticket += 1;
        assert!(self.waiting.back().is_none_or(|last| *last < ticket));
        self.waiting.push_back(ticket);
        Ok(ticket)
    }

    /// Returns the context of a round to send now: a new round, or the old one under a new number
    /// if its answer is overdue.
    pub(super) fn due_round(&mut self, tick: u64, retry_ticks: u64) -> Option<Vec<u8>> {
        if self.round.is_none() && self.waiting.is_empty() {
            return None;
        }
        let mut tickets = match self.round.take() {
            Some(round) if round.index.is_some() || round.sent_tick + retry_ticks > tick => {
                self.round = Some(round);
                return None;
            }
            Some(round) => round.tickets,
            None => Vec::new(),
        };
        tickets.extend(self.waiting.drain(..));
        assert!(self.round.is_none(), "one round at a time");
        if tickets.is_empty() {
            return None;
        }
        let number = self.next_round;
        self.next_round += 1;
        self.round = Some(Round {
            number,
            tickets,
            sent_tick: tick,
            index: None,
        });
        let mut writer = Writer::default();
        writer.write_u64(self.origin.get());
        writer.write_u64(self.incarnation.0);
        writer.write_u64(number);
        Some(writer.into_bytes())
    }

    /// Records the index up to which a round must read, as the leader answered.
    pub(super) fn on_index(&mut self, context: Vec<u8>, index: LogIndex) {
        let mut reader = Reader::new(context.into());
        let name = (reader.read_u64(), reader.read_u64(), reader.read_u64());
        let Some(round) = &mut self.round else { return };
        if name
            == (
                Ok(self.origin.get()),
                Ok(self.incarnation.0),
                Ok(round.number),
            )
        {
            round.index = Some(index);
        }
    }

    /// Returns the reads that a state can answer that has applied entries up to `applied`.
    pub(super) fn take_ready(&mut self, applied: LogIndex) -> Vec<ReadTicket> {
        match self.round.take() {
            Some(round) if round.index.is_some_and(|index| index <= applied) => round.tickets,
            round => {
                self.round = round;
                Vec::new()
            }
        }
    }
}
