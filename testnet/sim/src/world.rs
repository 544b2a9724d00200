//! Runs the simulated world, which is the machines, the network, the people and the faults, in one
//! thread and one order. A queue holds all events by their time, so a seed always gives the same
//! run.

pub(super) mod actors;
pub(super) mod final_checks;
pub(super) mod operations;

use std::cell::RefCell;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

use bytes::Bytes;
use souk_consensus::replica::Role;
use souk_consensus::wire::Envelope;
use souk_consensus::{LogIndex, LogTime, ReplicaId};
use souk_market::Genesis;
use souk_roles::validator::event::Event as CoreEvent;

use super::checker::{Checker, Violation};
use super::clients::Clients;
use super::faults::TimedFault;
use super::machine::{DecodingCache, SimExchange};
use super::message_faults;
use super::network::Network;
use super::node::{Node, Round, StartFault};
use super::operators;
use super::raft_promises::Pledges;
use super::random::Random;
use super::resources::CAPACITY;
use super::{Config, Counts};
use actors::jobs::Jobs;
use actors::{ActorEvent, Actors};
use operations::Operations;

/// Milliseconds from each half second to the check whether all machines are idle.
const REST_MS: u64 = 50;

/// Simulated milliseconds between two complete checks.
const LOOK_MS: u64 = 1_000;

/// Simulated milliseconds for the healed group to come to rest.
const SETTLE_MS: u64 = 60_000;

/// Simulated milliseconds until the last job is over and the last lease closes: the most that a job
/// can take, which [`World::check_patience`] bounds, and the longest lease with its grace and a
/// note's time.
const CLOSE_MS: u64 = 1_000_000;

/// Milliseconds that a clock can jump unnoticed: a little more than twice the tolerance.
const UNNOTICED_MS: u64 = 5_000;

/// A scheduled event.
pub(super) enum Event {
    Wake {
        node: usize,
        life: u64,
    },
    Deliver {
        from: ReplicaId,
        to: usize,
        bytes: Bytes,
    },
    Start {
        node: usize,
    },
    Fault {
        number: usize,
    },
    EndFault {
        number: usize,
    },
    Write,
    Read,
    Retry {
        operation: u64,
    },
    Look,
    Verify {
        node: usize,
        life: u64,
    },
    Actor(usize, ActorEvent),
}

/// An event in the queue. The earliest is the greatest; of simultaneous ones, the first added.
struct QueuedEvent {
    time: u64,
    sequence: u64,
    event: Event,
}

impl QueuedEvent {
    fn rank(&self) -> Reverse<(u64, u64)> {
        Reverse((self.time, self.sequence))
    }
}

impl Ord for QueuedEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueuedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for QueuedEvent {}

/// The simulated world: its machines, network, people and faults, and the queue of events.
pub struct World {
    pub(super) config: Config,
    pub(super) now: u64,
    sequence: u64,
    queue: BinaryHeap<QueuedEvent>,
    pub(super) nodes: Vec<Node>,
    pub(super) network: Network,
    pub(super) pledges: Pledges,
    pub(super) random: Random,
    pub(super) people: Clients,
    pub(super) actors: Actors,
    pub(super) jobs: Jobs,
    pub(super) operations: Operations,
    pub(super) checker: Checker,
    pub(super) counts: Counts,
    pub(super) faults: Vec<TimedFault>,
    pub(super) reorders: u32,
    pub(super) next_id: u64,
    pub(super) healed: bool,
    genesis: Genesis,
    pub(super) decoded: Rc<RefCell<DecodingCache>>,
}

impl World {
    /// Creates a world at its beginning.
    pub fn new(config: &Config, faults: Vec<TimedFault>) -> Self {
        let seed = config.seed;
        let (mut people, mut genesis) = Clients::new(Random::new(seed, "people"));
        // Validators come first, because the market's id depends on them and people sign for it.
        operators::found_validators(&mut genesis, config.nodes);
        let actors = Actors::new(seed, config.nodes, &mut genesis);
        people.join_market(&genesis);
        let decoded = Rc::new(RefCell::new(DecodingCache::default()));
        let nodes = config.nodes;
        let mut world = Self {
            config: config.clone(),
            now: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            nodes: (0..nodes)
                .map(|number| Node::new(id(number), seed))
                .collect(),
            network: Network::new(Random::new(seed, "network"), nodes),
            pledges: Pledges::default(),
            random: Random::new(seed, "world"),
            people,
            actors,
            jobs: Jobs::new(seed),
            operations: Operations::default(),
            checker: Checker::new(&genesis, decoded.clone()),
            counts: Counts::default(),
            faults,
            reorders: 0,
            next_id: nodes as u64 + 1,
            healed: false,
            genesis,
            decoded,
        };
        world.begin_run();
        world
    }

    fn begin_run(&mut self) {
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        for number in 0..self.faults.len() {
            self.schedule_event(self.faults[number].at_ms, Event::Fault { number });
        }
        self.schedule_event(500, Event::Write);
        self.schedule_event(500, Event::Read);
        for actor in 0..self.actors.len() {
            self.schedule_event(500, Event::Actor(actor, ActorEvent::Act));
        }
        self.schedule_event(LOOK_MS, Event::Look);
    }

    pub(super) fn schedule_event(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(QueuedEvent {
            time: time.max(self.now),
            sequence: self.sequence,
            event,
        });
    }

    /// Runs to the end: the faults, the healing, and the last checks.
    pub fn run(&mut self) -> Option<Violation> {
        let until = self.config.simulated_ms();
        self.run_until(until, |_| false);
        self.end_all_faults();
        self.run_until(until + SETTLE_MS, |world| {
            world.now % 500 < REST_MS && world.is_at_rest() && !world.has_proposals()
        });
        if self.is_at_rest() {
            self.run_until(until + CLOSE_MS, |world| {
                world.now % 500 < REST_MS
                    && world.is_at_rest()
                    && !world.has_proposals()
                    && !world.has_jobs()
                    && world.checker.is_all_closed()
            });
        }
        if self.checker.violation().is_none() {
            self.check_jobs_over();
            final_checks::check_ending(self);
        }
        self.counts.simulated_ms = self.now;
        self.checker.violation().cloned()
    }

    fn run_until(&mut self, until: u64, done: impl Fn(&Self) -> bool) {
        while self.checker.violation().is_none() {
            if self.queue.peek().is_some_and(|next| next.time > until) {
                self.now = until;
                return;
            }
            let Some(QueuedEvent { time, event, .. }) = self.queue.pop() else {
                return;
            };
            self.now = time;
            self.counts.events += 1;
            let look = matches!(event, Event::Wake { .. });
            self.on_event(event);
            if let Some(breach) = self.jobs.breach.take() {
                let (actor, reason) = (breach.actor, breach.reason);
                self.checker
                    .record_violation(Violation::Job { actor, reason });
            }
            if look && done(self) {
                return;
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Wake { node, life } => self.on_wake(node, life),
            Event::Deliver { from, to, bytes } => self.on_deliver(from, to, bytes),
            Event::Start { node } => self.start_node(node),
            Event::Fault { number } => self.begin_fault(number),
            Event::EndFault { number } => self.end_fault(number),
            Event::Write => self.on_write(),
            Event::Read => self.on_read(),
            Event::Retry { operation } => self.on_retry(operation),
            Event::Look => self.on_look(),
            Event::Verify { node, life } => self.on_verify(node, life),
            Event::Actor(actor, event) => self.on_actor(actor, event),
        }
    }

    pub(super) fn new_machine(&self) -> SimExchange {
        SimExchange::new(&self.genesis)
    }

    pub(super) fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// Starts a machine, if it is off.
    fn start_node(&mut self, node: usize) {
        if self.nodes[node].running.is_some() {
            return;
        }
        if self.nodes[node].disk.has_lost_unseen() {
            return self.replace_machine(node);
        }
        let members: Vec<ReplicaId> = (0..self.nodes.len()).map(id).collect();
        let founder = members.contains(&self.nodes[node].id);
        let key = operators::validator_key(self.nodes[node].id.get());
        let machine = self.new_machine().signing_with(key);
        let machine = machine.with_rules_version_max(self.nodes[node].rules_version_max);
        let seed = self.config.seed;
        let founders = founder.then_some(&members[..]);
        match self.nodes[node].start_replica(self.now, seed, founders, machine, &self.decoded) {
            Ok(()) => {
                self.counts.starts += 1;
                self.wake_later(node);
                self.check_pledge(node);
                self.check_views(node);
            }
            Err(fault) => self.on_start_fault(node, fault),
        }
    }

    fn on_start_fault(&mut self, node: usize, fault: StartFault) {
        let reason = match fault {
            StartFault::Store(souk_consensus::store::StoreOpenError::Wal(
                souk_consensus::wal::WalOpenError::Read(_)
                | souk_consensus::wal::WalOpenError::Write(_),
            ))
            | StartFault::Store(
                souk_consensus::store::StoreOpenError::Read(_)
                | souk_consensus::store::StoreOpenError::Sync(_),
            )
            | StartFault::Disk => {
                self.nodes[node].disk.crash();
                return self.schedule_event(self.now + 500, Event::Start { node });
            }
            StartFault::Outdated => return self.install_release(node),
            StartFault::Store(error) => error.to_string(),
            StartFault::Replica(error) => error,
        };
        self.on_refusal(node, reason);
    }

    /// Handles a replica that refuses its data: right if its disk was harmed, otherwise a
    /// violation.
    fn on_refusal(&mut self, node: usize, reason: String) {
        if self.nodes[node].harmed {
            self.counts.refused += 1;
            self.replace_machine(node);
        } else {
            let replica = self.nodes[node].id.get();
            self.checker
                .record_violation(Violation::RefusesItself { replica, reason });
        }
    }

    /// Wakes a validator's core, if it still wants to wake.
    fn on_wake(&mut self, node: usize, life: u64) {
        let machine = &mut self.nodes[node];
        if machine.life != life {
            return;
        }
        let Some(running) = &mut machine.running else {
            return;
        };
        if running.wakes_at != Some(self.now) {
            return;
        }
        if machine.busy_until > self.now {
            let time = machine.busy_until;
            running.wakes_at = Some(time);
            return self.schedule_event(time, Event::Wake { node, life });
        }
        running.wakes_at = None;
        if machine.wakes_at().is_some_and(|at| at > self.now) {
            return self.wake_later(node);
        }
        machine.apply_event(self.now, CoreEvent::TimerFired);
        self.run_rounds(node);
    }

    /// Schedules the next wake of a validator's core.
    fn wake_later(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        let (wanted, life) = (machine.wakes_at(), machine.life);
        let (Some(at), Some(running)) = (wanted, &mut machine.running) else {
            return;
        };
        let at = at.max(self.now);
        if running.wakes_at.is_none_or(|before| before > at) {
            running.wakes_at = Some(at);
            self.schedule_event(at, Event::Wake { node, life });
        }
    }

    fn on_deliver(&mut self, from: ReplicaId, to: usize, bytes: Bytes) {
        if self.nodes[to].busy_until > self.now {
            let time = self.nodes[to].busy_until;
            return self.schedule_event(time, Event::Deliver { from, to, bytes });
        }
        if self.answer_with_forged_part(from, to, &bytes) {
            return;
        }
        let bytes = if self.reorders > 0 {
            message_faults::reorder_commands(&bytes, &mut self.random).unwrap_or(bytes)
        } else {
            bytes
        };
        if self.nodes[to].running.is_some() {
            self.counts.messages += 1;
            self.nodes[to].apply_event(self.now, CoreEvent::Peer { from, bytes });
            if let Some(running) = &mut self.nodes[to].running
                && running.replica().leader() == Some(from)
            {
                running.heard_leader_at = self.now;
            }
            self.run_rounds(to);
        }
    }

    /// Does the work of a validator's core, round by round.
    pub(super) fn run_rounds(&mut self, node: usize) {
        loop {
            let from = self.nodes[node].id;
            match self.nodes[node].run_round(self.now) {
                Round::Idle => break,
                Round::Done(mut done) => {
                    let sent = std::mem::take(&mut done.sent);
                    self.send_envelopes(node, from, sent);
                    self.on_round(node, *done);
                }
                Round::Died(sent, applied) => {
                    let latest = self.latest_time();
                    for applied in &applied {
                        self.checker.on_applied(applied, latest);
                    }
                    self.send_envelopes(node, from, sent);
                    self.end_process(node, 1_000);
                    return;
                }
                Round::Refused(reason) => {
                    self.nodes[node].crash();
                    return self.on_refusal(node, reason);
                }
                Round::Outdated => return self.install_release(node),
                Round::Diverged(LogIndex(index)) => {
                    if self.nodes[node].is_wrong() {
                        self.counts.stopped_alone += 1;
                        return self.replace_machine(node);
                    }
                    let replica = from.get();
                    self.checker
                        .record_violation(Violation::StatesDiffer { index, replica });
                    return;
                }
            }
        }
        self.verify_later(node);
        self.wake_later(node);
        self.look_at(node);
        self.lose_misdirected(node);
    }

    /// Loses power and schedules its return.
    pub(super) fn power_off(&mut self, node: usize, down_ms: u64) {
        self.nodes[node].crash();
        self.counts.crashes += 1;
        self.schedule_event(self.now + down_ms, Event::Start { node });
    }

    /// Ends the process in the drawn way: a kill or a power loss.
    pub(super) fn end_process(&mut self, node: usize, down_ms: u64) {
        if !self.nodes[node].is_killed {
            return self.power_off(node, down_ms);
        }
        self.nodes[node].kill();
        self.counts.kills += 1;
        self.schedule_event(self.now + down_ms, Event::Start { node });
    }

    fn send_envelopes(&mut self, node: usize, from: ReplicaId, envelopes: Vec<Envelope>) {
        let slow = self.nodes[node].sync_ms;
        for envelope in envelopes {
            self.take_pledge(from, &envelope.bytes);
            let Some(to) = self.nodes.iter().position(|other| other.id == envelope.to) else {
                continue;
            };
            let bytes = match self.nodes[node].forges {
                true => message_faults::forge_message(envelope.bytes, &mut self.random),
                false => envelope.bytes,
            };
            for (delay, bytes) in self
                .network
                .carry_message(node, to, bytes)
                .into_iter()
                .flatten()
            {
                self.schedule_event(self.now + delay + slow, Event::Deliver { from, to, bytes });
            }
        }
    }

    /// Runs the cheap checks, after every step of a replica.
    fn look_at(&mut self, node: usize) {
        let Node { id, running, .. } = &mut self.nodes[node];
        let Some(running) = running else { return };
        let replica = running.core.replica();
        if replica.is_leader() {
            self.checker.on_leader(replica.term(), *id);
        }
        let index = replica.applied_index();
        if index > LogIndex(1) && index != running.looked_at {
            running.looked_at = index;
            self.checker.on_history(*id, index, replica.history());
        }
        if let Some(breach) = replica.machine().breach() {
            self.checker.on_breach(*id, breach);
        }
    }

    /// Runs the more expensive checks, once a second.
    fn on_look(&mut self) {
        final_checks::compare_logs(self);
        for node in &self.nodes {
            let machine = node
                .running
                .as_ref()
                .map(|running| running.replica().machine());
            let breach = machine.and_then(|machine| machine.check_leases(u64::from(CAPACITY)));
            if let Some(breach) = breach {
                self.checker.on_breach(node.id, &breach);
            }
        }
        self.check_patience();
        self.check_reputations();
        self.drive_members();
        self.schedule_event(self.now + LOOK_MS, Event::Look);
    }

    /// Ends all faults.
    fn end_all_faults(&mut self) {
        self.healed = true;
        self.heal_disks();
        self.network.end_all_faults();
        self.reorders = 0;
        for node in 0..self.nodes.len() {
            self.replace_liar(node);
            self.mend_memory(node);
            self.nodes[node].lie = None;
            let now = self.now;
            let machine = &mut self.nodes[node];
            (machine.clock_skew_ms, machine.drift_ppm) = (0, 0);
            machine.sync_ms = 0;
            machine.busy_until = now;
            machine.dies_at = None;
            machine.is_killed = false;
            if machine.running.is_none() {
                self.schedule_event(now + 100, Event::Start { node });
            }
        }
    }

    /// Returns the latest time that the log may show: the latest time of a majority's clocks so
    /// far, plus an unnoticed jump.
    pub(super) fn latest_time(&self) -> LogTime {
        let mut clocks: Vec<LogTime> = self
            .nodes
            .iter()
            .map(|it| it.latest_clock_time(self.now))
            .collect();
        clocks.sort_unstable();
        let minority = (clocks.len() - 1) / 2;
        LogTime(clocks[minority].0 + UNNOTICED_MS)
    }

    /// Returns whether a replica keeps commands to propose. It resends lost ones after a while,
    /// even if their client has vanished.
    fn has_proposals(&self) -> bool {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let mut statuses = running.map(|running| running.replica().status());
        statuses.any(|status| status.proposals > 0)
    }

    /// Returns whether every machine runs, follows one leader and has applied the same entries.
    pub(super) fn is_at_rest(&self) -> bool {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let statuses: Vec<_> = running.map(|running| running.replica().status()).collect();
        let Some(first) = statuses.first() else {
            return false;
        };
        let leaders = statuses
            .iter()
            .filter(|status| status.role == Role::Leader)
            .count();
        let voters = first.members.get_voters().len();
        statuses.len() == self.nodes.len()
            && leaders == 1
            && voters == self.nodes.len()
            && first.members.get_voters_outgoing().is_empty()
            && self.nodes.iter().all(|node| node.replaces.is_none())
            && self.operations.waiting_count() == 0
            && statuses
                .iter()
                .all(|status| status.applied == first.applied && status.member)
    }
}

/// Returns the first id of a machine.
pub(super) fn id(node: usize) -> ReplicaId {
    ReplicaId::new(node as u64 + 1).expect("one and more")
}
