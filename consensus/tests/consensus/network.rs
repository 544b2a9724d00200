//! Tests replicas in a simulated network, replayable from one seed: messages get lost, delayed,
//! doubled and reordered, and replicas crash and lose what they did not persist. No answered
//! command may be lost, and all replicas must agree.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;

use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};
use souk_consensus::check::checks_of;
use souk_consensus::replica::{Proposal, Ticket};
use souk_consensus::store::Recovery;
use souk_consensus::wire::Envelope;
use souk_consensus::{
    Check, CommandFault, Digest, Incarnation, LogIndex, LogTime, Position, Replica, ReplicaConfig,
    ReplicaId, RestoreError, Snapshot, StateMachine,
};

/// A list of commands, which shows order, loss and doubling at once.
#[derive(Clone, Debug, Default)]
struct Lines {
    lines: Vec<u8>,
}

impl StateMachine for Lines {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        Ok(command.to_vec())
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Vec<u8>) -> Vec<u8> {
        self.lines.extend_from_slice(command);
        self.lines.push(b'\n');
        command.clone()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        Some(LogTime(0))
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.lines).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.lines.clone()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.lines = bytes.to_vec();
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What a replica would have on its disk.
#[derive(Clone)]
struct Durable {
    snapshot: Snapshot,
    entries: Vec<Entry>,
    hard_state: HardState,
    lives: u64,
}

struct Node {
    durable: Durable,
    replica: Replica<Lines>,
    asked: BTreeMap<Ticket, String>,
    /// What it is to verify, which takes it a while.
    checks: Vec<Check>,
}

fn id(number: usize) -> ReplicaId {
    ReplicaId::new(number as u64 + 1).unwrap()
}

fn start(number: usize, seed: u64, durable: &mut Durable) -> Replica<Lines> {
    durable.lives += 1;
    let config = ReplicaConfig {
        snapshot_entries: 50,
        snapshot_chunk_bytes: 500,
        checkpoint_entries: 16,
        ..ReplicaConfig::new(id(number), seed)
    };
    let recovered = Recovery {
        snapshot: durable.snapshot.clone(),
        entries: durable.entries.clone(),
        hard_state: durable.hard_state.clone(),
        incarnation: Incarnation(durable.lives),
        cut: None,
    };
    let checks = checks_of(&recovered.entries);
    let verdicts = Check::run_all::<Lines>(&checks);
    Replica::new(config, recovered, verdicts, Lines::default()).unwrap()
}

struct World {
    random: Random,
    seed: u64,
    now: u64,
    nodes: Vec<Node>,
    /// Delivery time, sender, message.
    wires: Vec<(u64, usize, Envelope)>,
    answered: Vec<String>,
    /// The history's root at each index, as the first replica there had it.
    roots: BTreeMap<LogIndex, Digest>,
    calm: bool,
}

impl World {
    fn new(seed: u64, size: usize) -> Self {
        let members: Vec<ReplicaId> = (0..size).map(id).collect();
        let genesis = Replica::genesis_snapshot(&members, &Lines::default());
        let hard_state = HardState {
            term: 1,
            commit: 1,
            ..HardState::default()
        };
        let durable = Durable {
            snapshot: genesis,
            entries: Vec::new(),
            hard_state,
            lives: 0,
        };
        let nodes = (0..size).map(|number| {
            let mut durable = durable.clone();
            let replica = start(number, seed, &mut durable);
            Node {
                durable,
                replica,
                asked: BTreeMap::new(),
                checks: Vec::new(),
            }
        });
        let nodes = nodes.collect();
        let (wires, answered) = (Vec::new(), Vec::new());
        Self {
            random: Random(seed),
            seed,
            now: 0,
            nodes,
            wires,
            answered,
            roots: BTreeMap::new(),
            calm: false,
        }
    }

    fn step(&mut self) {
        self.now += 15;
        let now = LogTime(self.now);
        let (due, later) = self.wires.drain(..).partition(|(at, _, _)| *at <= self.now);
        self.wires = later;
        let due: Vec<(u64, usize, Envelope)> = due;
        for (_, from, envelope) in due {
            let to = usize::try_from(envelope.to.get() - 1).unwrap();
            let _dropped = self.nodes[to].replica.step(now, id(from), envelope.bytes);
            self.work(to);
        }
        for number in 0..self.nodes.len() {
            self.nodes[number].replica.tick(now);
            self.verify(number);
            self.work(number);
        }
        if !self.calm && self.random.below(60) == 0 {
            let number = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap();
            self.crash(number);
        }
    }

    /// Some of what a replica is to verify is done, in any order.
    fn verify(&mut self, number: usize) {
        while let left @ 1.. = self.nodes[number].checks.len() as u64 {
            if !self.calm && self.random.below(3) == 0 {
                return;
            }
            let place = usize::try_from(self.random.below(left)).unwrap();
            let check = self.nodes[number].checks.swap_remove(place);
            let replica = &mut self.nodes[number].replica;
            for verdict in Check::run_all::<Lines>(&[check]) {
                replica.on_verified(LogTime(self.now), verdict).unwrap();
            }
        }
    }

    fn crash(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.asked.clear();
        node.checks.clear();
        node.replica = start(number, self.seed + self.now, &mut node.durable);
    }

    fn propose(&mut self, number: usize, command: &str) {
        let node = &mut self.nodes[number];
        for proposal in Proposal::verify_commands::<Lines>(vec![Bytes::from(command.to_owned())]) {
            let ticket = node.replica.propose(proposal.unwrap()).unwrap();
            node.asked.insert(ticket, command.to_owned());
        }
        self.work(number);
    }

    fn work(&mut self, number: usize) {
        let now = LogTime(self.now);
        while let Some(mut work) = self.nodes[number].replica.take_work(now) {
            self.send(number, std::mem::take(&mut work.send_first));
            let checks = std::mem::take(&mut work.checks);
            self.nodes[number].checks.extend(checks);
            let durable = &mut self.nodes[number].durable;
            if let Some(snapshot) = &work.persist.snapshot {
                durable.snapshot = snapshot.clone();
                durable.entries.clear();
            }
            if let Some(first) = work.persist.entries.first() {
                let keep = first.index - durable.snapshot.index.0 - 1;
                durable.entries.truncate(usize::try_from(keep).unwrap());
                durable.entries.extend(work.persist.entries.iter().cloned());
            }
            if let Some(hard_state) = &work.persist.hard_state {
                durable.hard_state = hard_state.clone();
            }
            self.send(number, std::mem::take(&mut work.send_after));
            let outcome = self.nodes[number].replica.on_persisted(work).unwrap();
            self.send(number, outcome.send);
            let node = &mut self.nodes[number];
            let root = node.replica.history().root();
            let first = *self
                .roots
                .entry(node.replica.applied_index())
                .or_insert(root);
            assert_eq!(
                root, first,
                "seed {}: equal index, equal history",
                self.seed
            );
            for answer in outcome.answers {
                let command = node.asked.remove(&answer.ticket).unwrap();
                if let Ok(result) = answer.result {
                    assert_eq!(result, command.as_bytes(), "the answer is for this command");
                    self.answered.push(command);
                }
            }
            if let Some(snapshot) = outcome.snapshot {
                let keep_from = LogIndex(snapshot.index.0 + 1);
                node.durable
                    .entries
                    .retain(|entry| entry.index > snapshot.index.0);
                node.durable.hard_state.commit =
                    snapshot.index.0.max(node.durable.hard_state.commit);
                node.durable.snapshot = snapshot.clone();
                node.replica.compact(snapshot, keep_from);
            }
        }
    }

    fn send(&mut self, from: usize, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            if !self.calm && self.random.below(20) == 0 {
                continue;
            }
            let copies = if !self.calm && self.random.below(20) == 0 {
                2
            } else {
                1
            };
            for _ in 0..copies {
                let delay = if self.calm { 1 } else { self.random.below(120) };
                self.wires.push((self.now + delay, from, envelope.clone()));
            }
        }
    }

    fn settle(&mut self) {
        self.calm = true;
        for _ in 0..600 {
            self.step();
        }
    }
}

fn run(seed: u64) -> Vec<u8> {
    let mut world = World::new(seed, 3);
    let mut asked = 0;
    for round in 0..1_500_u64 {
        world.step();
        if round % 4 == 0 {
            let number = usize::try_from(world.random.below(3)).unwrap();
            world.propose(number, &format!("command {asked}"));
            asked += 1;
        }
    }
    world.settle();
    let lines = world.nodes[0].replica.machine().lines.clone();
    for node in &world.nodes[1..] {
        assert_eq!(
            node.replica.machine().lines,
            lines,
            "seed {seed}: the states differ"
        );
    }
    let text = String::from_utf8(lines.clone()).unwrap();
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    for line in text.lines() {
        *count.entry(line).or_default() += 1;
    }
    assert!(
        count.values().all(|count| *count == 1),
        "seed {seed}: a command was applied twice"
    );
    for command in &world.answered {
        assert!(
            count.contains_key(command.as_str()),
            "seed {seed}: {command} was lost"
        );
    }
    assert!(
        world.answered.len() > 100,
        "seed {seed}: only {} answered",
        world.answered.len()
    );
    lines
}

#[test]
fn nothing_answered_is_lost_or_applied_twice_under_any_seed() {
    for seed in 0..20 {
        run(seed);
    }
}

#[test]
fn a_few_large_entries_are_enough_for_a_snapshot() {
    let mut world = World::new(5, 3);
    world.calm = true;
    for _ in 0..100 {
        world.step();
    }
    let command = "x".repeat(1 << 20);
    for _ in 0..40 {
        world.propose(0, &command);
        world.propose(0, &command);
        world.step();
    }
    world.settle();
    for node in &world.nodes {
        let status = node.replica.status();
        assert!(status.snapshot > LogIndex(1), "{status:?}");
    }
}

#[test]
fn one_seed_gives_one_run() {
    assert_eq!(run(77), run(77));
}
