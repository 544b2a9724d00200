//! Brings commands into the log: queues and packs them, sends them to the leader, and sends them
//! again if the replica loses its leader. Each command gets one answer.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::batch::{Batch, BatchId};
use crate::ids::{Incarnation, ReplicaId};
use crate::machine::{CommandFault, StateMachine};
use crate::sessions::Sessions;
use souk_proof::LogTime;

/// Names one proposed command until its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The queue is full: it took no command, and you can send the same command again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("busy: {commands} commands of {bytes} bytes are waiting; try again shortly")]
pub struct QueueFull {
    /// The commands that wait.
    pub commands: usize,
    /// The bytes of these commands.
    pub bytes: usize,
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalRefusal {
    /// Too many commands wait.
    #[error(transparent)]
    Busy(#[from] QueueFull),
    /// The command is too large.
    #[error("a command of {bytes} bytes; at most {COMMAND_BYTES_MAX} are allowed")]
    TooLarge {
        /// The command's size in bytes.
        bytes: usize,
    },
}

/// The most bytes of one command: one message carries an entry, and messages are about this large.
pub const COMMAND_BYTES_MAX: usize = 1 << 20;

/// A verified command: its bytes for the log, and its decoded form to apply here.
#[derive(Debug)]
pub struct Proposal<C> {
    /// The command's bytes.
    pub bytes: Bytes,
    /// The decoded command.
    pub command: C,
}

impl<C> Proposal<C> {
    /// Verifies commands together and returns their proposals, or faults, in the same order.
    ///
    /// # Panics
    /// If the machine does not return one result for each command.
    pub fn verify_commands<M: StateMachine<Command = C>>(
        commands: Vec<Bytes>,
    ) -> Vec<Result<Self, CommandFault>> {
        let bytes: Vec<&[u8]> = commands.iter().map(|it| &**it).collect();
        let verified = M::verify_each(&bytes);
        assert_eq!(verified.len(), commands.len(), "each was verified");
        let proposal = |(bytes, verified): (Bytes, Result<C, CommandFault>)| {
            verified.map(|command| Self { bytes, command })
        };
        commands.into_iter().zip(verified).map(proposal).collect()
    }
}

/// The bounds of one replica's proposals.
#[derive(Clone, Copy, Debug)]
pub struct ProposalLimits {
    /// Commands queued or in flight.
    pub commands_max: usize,
    /// Bytes of these commands.
    pub bytes_max: usize,
    /// Commands in one entry.
    pub entry_commands_max: usize,
    /// Bytes of commands in one entry with more than one command.
    pub entry_bytes_max: usize,
    /// Entries in flight.
    pub flights_max: usize,
}

impl Default for ProposalLimits {
    /// 65,536 commands or 32 MiB: about 0.2 s of work at full speed. Entries of at most 256 KiB
    /// fill messages of 1 MiB without letting one entry delay the next.
    fn default() -> Self {
        Self {
            commands_max: 65_536,
            bytes_max: 32 << 20,
            entry_commands_max: 2_048,
            entry_bytes_max: 256 << 10,
            flights_max: 128,
        }
    }
}

/// A batch that this replica proposed and has not yet applied.
#[derive(Debug)]
struct InFlightBatch<C> {
    tickets: Vec<Ticket>,
    commands: Vec<Bytes>,
    verified: Vec<C>,
    bytes: usize,
    sent: SendMoment,
}

/// A command of this replica that is now applied.
#[derive(Debug)]
pub(super) struct LandedProposal<C> {
    pub ticket: Ticket,
    pub command: C,
}

/// The time, term and recipient of a flight's last transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendMoment {
    pub term: u64,
    pub leader: u64,
    pub tick: u64,
}

/// The proposals of a replica, as the module describes.
#[derive(Debug)]
pub(super) struct Proposals<C> {
    origin: ReplicaId,
    incarnation: Incarnation,
    limits: ProposalLimits,
    next_ticket: u64,
    next_sequence: u64,
    queue: VecDeque<(Ticket, Proposal<C>)>,
    flights: BTreeMap<u64, InFlightBatch<C>>,
    commands: usize,
    bytes: usize,
}

impl<C> Proposals<C> {
    pub(super) fn new(origin: ReplicaId, incarnation: Incarnation, limits: ProposalLimits) -> Self {
        Self {
            origin,
            incarnation,
            limits,
            next_ticket: 1,
            next_sequence: 1,
            queue: VecDeque::new(),
            flights: BTreeMap::new(),
            commands: 0,
            bytes: 0,
        }
    }

    /// Queues commands, all or none. Returns the first ticket; the others follow it.
    pub(super) fn push(&mut self, commands: Vec<Proposal<C>>) -> Result<Ticket, ProposalRefusal> {
        let sizes = || commands.iter().map(|it| it.bytes.len());
        if let Some(bytes) = sizes().find(|bytes| *bytes > COMMAND_BYTES_MAX) {
            return Err(ProposalRefusal::TooLarge { bytes });
        }
        let (limits, size) = (&self.limits, sizes().sum::<usize>());
        let full = self.commands + commands.len() > limits.commands_max
            || (self.commands > 0 && self.bytes + size > limits.bytes_max);
        if full {
            let (commands, bytes) = (self.commands, self.bytes);
            return Err(QueueFull { commands, bytes }.into());
        }
        let first = Ticket(self.next_ticket);
        self.commands += commands.len();
        self.bytes += size;
        assert!(
            self.commands <= limits.commands_max,
            "what is full takes nothing"
        );
        for command in commands {
            self.queue.push_back((Ticket(self.next_ticket), command));
            self.next_ticket += 1;
        }
        Ok(first)
    }

    /// Packs the head of the queue into a new flight, if there is a command and space for a flight.
    /// The flight counts as unsent until [`Proposals::on_sent`].
    pub(super) fn pack_flight(&mut self) -> Option<u64> {
        if self.queue.is_empty() || self.flights.len() >= self.limits.flights_max {
            return None;
        }
        let mut flight = InFlightBatch {
            tickets: Vec::new(),
            commands: Vec::new(),
            verified: Vec::new(),
            bytes: 0,
            sent: SendMoment {
                term: 0,
                leader: 0,
                tick: 0,
            },
        };
        while let Some((_, proposal)) = self.queue.front() {
            let size = flight.bytes + proposal.bytes.len() + 4;
            let full = size > self.limits.entry_bytes_max
                || flight.commands.len() >= self.limits.entry_commands_max;
            if full && !flight.commands.is_empty() {
                break;
            }
            let (ticket, proposal) = self.queue.pop_front().expect("it has a front");
            flight.bytes = size;
            flight.tickets.push(ticket);
            flight.commands.push(proposal.bytes);
            flight.verified.push(proposal.command);
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        assert!(!flight.tickets.is_empty(), "a flight carries something");
        self.flights.insert(sequence, flight);
        Some(sequence)
    }

    /// Returns the flights to send now: those never sent, sent to another leader or in another
    /// term, or sent long ago.
    pub(super) fn due_flights(&self, now: SendMoment, resend_ticks: u64) -> Vec<u64> {
        let due = |flight: &InFlightBatch<C>| {
            (flight.sent.term, flight.sent.leader) != (now.term, now.leader)
                || flight.sent.tick + resend_ticks <= now.tick
        };
        self.flights
            .iter()
            .filter(|(_, flight)| due(flight))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Encodes a flight as entry data.
    pub(super) fn encode_flight(&self, sequence: u64, time: LogTime) -> Option<Vec<u8>> {
        let flight = self.flights.get(&sequence)?;
        let id = BatchId {
            origin: self.origin,
            incarnation: self.incarnation,
            sequence,
        };
        let commands = flight.commands.clone();
        Some(
            Batch {
                time,
                id,
                floor: self.lowest_sequence(),
                commands,
            }
            .encode(),
        )
    }

    /// Encodes an entry that only advances time.
    pub(super) fn encode_tick(&mut self, time: LogTime) -> Vec<u8> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let id = BatchId {
            origin: self.origin,
            incarnation: self.incarnation,
            sequence,
        };
        Batch {
            time,
            id,
            floor: self.lowest_sequence().min(sequence),
            commands: Vec::new(),
        }
        .encode()
    }

    fn lowest_sequence(&self) -> u64 {
        self.flights
            .keys()
            .next()
            .copied()
            .unwrap_or(self.next_sequence)
    }

    pub(super) fn on_sent(&mut self, sequence: u64, sent: SendMoment) {
        assert!(sent.leader != 0, "nobody is no leader");
        if let Some(flight) = self.flights.get_mut(&sequence) {
            flight.sent = sent;
        }
    }

    /// Returns whether a batch that names this replica as its origin is one of its flights. Returns
    /// `None` for a batch of another replica, or one about which this replica knows nothing any
    /// more because it was applied or belongs to an earlier life.
    pub(super) fn is_own_flight(&self, batch: &Batch) -> Option<bool> {
        if batch.id.origin != self.origin || batch.id.incarnation < self.incarnation {
            return None;
        }
        let possible = batch.id.incarnation == self.incarnation
            && batch.id.sequence < self.next_sequence
            && batch.floor <= self.lowest_sequence();
        if !possible {
            return Some(false);
        }
        let flight = self.flights.get(&batch.id.sequence)?;
        Some(flight.commands == batch.commands || is_reordered(&flight.commands, &batch.commands))
    }

    /// Removes an applied flight and returns its commands in the order of the log, because a leader
    /// can have changed that order.
    pub(super) fn on_applied(&mut self, batch: &Batch) -> Vec<LandedProposal<C>> {
        let flight = self
            .remove_flight(batch.id)
            .expect("it was in flight when it was written");
        let tickets = flight.tickets.into_iter().zip(flight.verified);
        let landed = tickets.map(|(ticket, command)| LandedProposal { ticket, command });
        if flight.commands == batch.commands {
            return landed.collect();
        }
        let mut mine: Vec<(Bytes, LandedProposal<C>)> =
            flight.commands.into_iter().zip(landed).collect();
        let mut take = |command: &Bytes| {
            let place = mine.iter().position(|(candidate, _)| candidate == command);
            mine.remove(place.expect("it is the same batch")).1
        };
        batch.commands.iter().map(&mut take).collect()
    }

    /// Removes a flight of this incarnation.
    fn remove_flight(&mut self, id: BatchId) -> Option<InFlightBatch<C>> {
        if (id.origin, id.incarnation) != (self.origin, self.incarnation) {
            return None;
        }
        let flight = self.flights.remove(&id.sequence)?;
        assert!(self.commands >= flight.commands.len());
        self.commands -= flight.commands.len();
        self.bytes -= flight.commands.iter().map(Bytes::len).sum::<usize>();
        assert_eq!(flight.tickets.len(), flight.verified.len());
        Some(flight)
    }

    /// Removes the flights that an installed snapshot covers and returns their tickets.
    pub(super) fn on_installed(&mut self, sessions: &Sessions) -> Vec<Ticket> {
        let (origin, incarnation) = (self.origin, self.incarnation);
        let id = |sequence| BatchId {
            origin,
            incarnation,
            sequence,
        };
        let flights = self.flights.keys().map(|sequence| id(*sequence));
        let covered: Vec<BatchId> = flights.filter(|id| sessions.has_applied(*id)).collect();
        covered
            .into_iter()
            .filter_map(|id| self.remove_flight(id))
            .flat_map(|flight| flight.tickets)
            .collect()
    }

    /// Returns whether a command waits for a flight.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns whether no command is queued or in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty()
    }

    /// Returns the number of commands queued or in flight.
    pub(super) fn command_count(&self) -> usize {
        self.commands
    }
}

/// Returns whether two lists hold the same commands in any order.
fn is_reordered(one: &[Bytes], other: &[Bytes]) -> bool {
    let sorted = |commands: &[Bytes]| {
        let mut sorted = commands.to_vec();
        sorted.sort_unstable();
        sorted
    };
    one.len() == other.len() && sorted(one) == sorted(other)
}
