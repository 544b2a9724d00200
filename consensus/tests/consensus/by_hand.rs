//! Tests three replicas whose messages arrive at once and in order, unless a test holds or changes
//! them: a replica acknowledges only what it verified, replaces a leader that sends forged
//! commands, and survives messages that no honest replica would send.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::BTreeMap;

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use souk_consensus::batch::Batch;
use souk_consensus::check::checks_of;
use souk_consensus::replica::{Forgery, Proposal, StepError};
use souk_consensus::snapshot::{LogGrowth, SnapshotParts};
use souk_consensus::store::Recovery;
use souk_consensus::wire::{Envelope, PeerMessage};
use souk_consensus::{
    Check, CommandFault, Digest, History, Incarnation, LogIndex, LogTime, MachineFailure, Position,
    Replica, ReplicaConfig, ReplicaId, RestoreError, Sessions, Snapshot, StateMachine, Term,
};

/// What the clocks show.
const NOW: LogTime = LogTime(1_000_000);

/// Commands one after the other. Those that begin with `-` nobody signed. An old build, which the
/// flag says, can't do what follows `+new;`.
#[derive(Clone, Debug, Default)]
struct Lines(Vec<u8>, bool);

impl StateMachine for Lines {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        let cause = || CommandFault {
            cause: "account 7 did not sign it".into(),
        };
        let signed = command.first() != Some(&b'-');
        signed.then_some(command.to_vec()).ok_or_else(cause)
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Vec<u8>) -> Vec<u8> {
        self.0.extend_from_slice(command);
        command.clone()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn unsupported_reason(&self, _now: LogTime) -> Option<MachineFailure> {
        let cannot = self.1 && self.0.ends_with(b"+new;");
        cannot.then(|| MachineFailure {
            cause: "install a newer one".into(),
        })
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.0).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number).unwrap()
}

/// What is changed in a message on its way from one replica to another.
type Change = fn(u64, &mut Message);

/// Three replicas whose messages arrive at once, in order.
struct Group {
    replicas: Vec<Replica<Lines>>,
    /// What each is to verify.
    checks: Vec<Vec<Check>>,
    wires: Vec<(u64, Envelope)>,
    /// Whether checks end as soon as they begin.
    prompt: bool,
    change: Option<Change>,
    found: Vec<(u64, Forgery)>,
    refused: Vec<(u64, StepError)>,
    /// Who can't go on, and why.
    stopped: Vec<(u64, String)>,
}

impl Group {
    fn new() -> Self {
        Self::with_old(None)
    }

    /// A group of which one has an old build.
    fn with_old(old: Option<u64>) -> Self {
        let members = [id(1), id(2), id(3)];
        let start = |member: &ReplicaId| {
            let genesis = Replica::genesis_snapshot(&members, &Lines::default());
            let recovered = Recovery {
                hard_state: raft::eraftpb::HardState {
                    term: 1,
                    commit: 1,
                    ..raft::eraftpb::HardState::default()
                },
                snapshot: genesis,
                entries: Vec::new(),
                incarnation: Incarnation(1),
                cut: None,
            };
            let config = ReplicaConfig::new(*member, 7);
            let machine = Lines(Vec::new(), old == Some(member.get()));
            Replica::new(config, recovered, Vec::new(), machine).unwrap()
        };
        Self {
            replicas: members.iter().map(start).collect(),
            checks: vec![Vec::new(); 3],
            wires: Vec::new(),
            prompt: true,
            change: None,
            found: Vec::new(),
            refused: Vec::new(),
            stopped: Vec::new(),
        }
    }

    /// The group once it has a leader, and which it is.
    fn led() -> (Self, u64) {
        Self::new().lead()
    }

    fn lead(mut self) -> (Self, u64) {
        let group = &mut self;
        let leader = group.run_until(|group| group.leader());
        // The leader hears what the others' clocks show within an election timeout.
        for _ in 0..30 {
            (1..=3).for_each(|number| group.replica(number).tick(NOW));
            group.settle();
        }
        (self, leader)
    }

    fn leader(&self) -> Option<u64> {
        let status = self.replicas.iter().map(Replica::status);
        let mut leaders = status.filter(|it| Some(it.id) == it.leader && it.applied.0 > 1);
        leaders.next().map(|it| it.id.get())
    }

    fn replica(&mut self, number: u64) -> &mut Replica<Lines> {
        &mut self.replicas[usize::try_from(number - 1).unwrap()]
    }

    fn run_until<T>(&mut self, done: impl Fn(&Self) -> Option<T>) -> T {
        for _ in 0..400 {
            for number in 1..=3 {
                if !self.has_stopped(number) {
                    self.replica(number).tick(NOW);
                }
            }
            self.settle();
            if let Some(value) = done(self) {
                return value;
            }
        }
        panic!("it does not come to that");
    }

    fn settle(&mut self) {
        loop {
            for number in 1..=3 {
                self.work(number);
            }
            let wires = std::mem::take(&mut self.wires);
            if wires.is_empty() {
                return;
            }
            for (from, envelope) in wires {
                self.deliver(from, envelope);
            }
        }
    }

    fn deliver(&mut self, from: u64, envelope: Envelope) {
        let to = envelope.to.get();
        if self.has_stopped(to) {
            return;
        }
        let mut bytes = envelope.bytes;
        if let (Some(change), Ok(PeerMessage::Raft(mut message))) =
            (self.change, PeerMessage::decode(bytes.clone()))
        {
            change(to, &mut message);
            bytes = PeerMessage::Raft(message).encode();
        }
        if let Err(refused) = self.replica(to).step(NOW, id(from), bytes) {
            self.refused.push((to, refused));
        }
    }

    fn has_stopped(&self, number: u64) -> bool {
        self.stopped.iter().any(|(stopped, _)| *stopped == number)
    }

    fn work(&mut self, number: u64) {
        let place = usize::try_from(number - 1).unwrap();
        while !self.has_stopped(number) {
            let prompt = self.prompt;
            let checks = std::mem::take(&mut self.checks[place]);
            let (now, later) = checks.into_iter().partition(|_| prompt);
            self.checks[place] = later;
            for verdict in Check::run_all::<Lines>(&Vec::from_iter(now)) {
                if let Err(forgery) = self.replicas[place].on_verified(NOW, verdict) {
                    self.found.push((number, forgery));
                }
            }
            let Some(mut work) = self.replicas[place].take_work(NOW) else {
                return;
            };
            let mut sent = std::mem::take(&mut work.send_first);
            sent.append(&mut work.send_after);
            self.checks[place].append(&mut work.checks);
            let outcome = match self.replicas[place].on_persisted(work) {
                Ok(outcome) => outcome,
                Err(error) => return self.stopped.push((number, error.to_string())),
            };
            sent.extend(outcome.send);
            self.wires.extend(sent.into_iter().map(|it| (number, it)));
            if let Some(forgery) = outcome.forgery {
                self.found.push((number, forgery));
            }
        }
    }

    fn propose(&mut self, number: u64, command: &'static str) {
        let command = Proposal {
            bytes: Bytes::from_static(command.as_bytes()),
            command: command.as_bytes().to_vec(),
        };
        self.replica(number).propose(command).unwrap();
    }

    fn lines(&self) -> Vec<String> {
        let lines = self.replicas.iter().map(|it| it.machine().0.clone());
        lines.map(|it| String::from_utf8(it).unwrap()).collect()
    }
}

/// Changes the batches in what a leader sends.
fn change_batches(message: &mut Message, change: impl Fn(&mut Batch)) {
    if message.get_msg_type() != MessageType::MsgAppend {
        return;
    }
    for entry in message.mut_entries().iter_mut() {
        if let Ok(mut batch) = Batch::decode(entry.data.clone()) {
            change(&mut batch);
            entry.data = batch.encode().into();
        }
    }
}

#[test]
fn what_is_not_verified_is_not_acknowledged() {
    let (mut group, leader) = Group::led();
    group.prompt = false;
    group.propose(leader, "+one;");
    group.settle();
    assert!(
        group.lines().iter().all(String::is_empty),
        "{:?}",
        group.lines()
    );
    let last = group.replica(leader).status().last;
    let follower = leader % 3 + 1;
    assert_eq!(group.replica(follower).status().last, last, "it is written");
    assert!(group.replica(follower).verified_index() < last);
    group.prompt = true;
    group.run_until(|group| group.lines().iter().all(|it| it == "+one;").then_some(()));
}

#[test]
fn who_can_not_do_what_is_to_be_done_stops_before_it_and_the_others_go_on() {
    let (mut group, leader) = Group::with_old(Some(3)).lead();
    group.propose(leader, "+one;");
    group.settle();
    group.propose(leader, "+new;");
    group.settle();
    assert_eq!(group.stopped, []);
    group.propose(leader, "+two;");
    group.run_until(|group| {
        let gone_on = group
            .lines()
            .into_iter()
            .filter(|it| it == "+one;+new;+two;");
        (gone_on.count() == 2 || leader == 3).then_some(())
    });
    let [(3, why)] = &group.stopped[..] else {
        panic!("{:?}", group.stopped);
    };
    assert!(why.ends_with("can't be applied by this build: install a newer one"));
    assert_eq!(group.lines()[2], "+one;+new;", "and not one command more");
}

#[test]
fn a_leader_that_sends_forged_commands_is_named_and_replaced() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        // Its successors tell the truth.
        if message.term > 2 {
            return;
        }
        change_batches(message, |batch| {
            let command = batch.commands.iter_mut().find(|it| it.starts_with(b"+bad"));
            if let Some(command) = command {
                *command = Bytes::from_static(b"-bad;");
            }
        });
    });
    group.propose(leader, "+good;");
    group.settle();
    group.propose(leader, "+bad;");
    let next = group.run_until(|group| group.leader().filter(|it| *it != leader));
    let named = |forgery: &Forgery| match forgery {
        Forgery::Leader(accusation) => accusation.leader == Some(id(leader)),
        Forgery::Forwarded { .. } => false,
    };
    assert_eq!(group.found.len(), 2, "{:?}", group.found);
    assert!(
        group.found.iter().all(|(_, it)| named(it)),
        "{:?}",
        group.found
    );
    let accusation = group.replica(next).status().accusation.unwrap();
    let said = accusation.to_string();
    let wanted = format!(
        "validator {leader}, which led term 2, sent an entry that must not be in the log: "
    );
    assert!(said.starts_with(&wanted), "{said}");
    assert!(
        said.ends_with("command 0 is forged: account 7 did not sign it"),
        "{said}"
    );
    group.propose(next, "+more;");
    group.run_until(|group| {
        let all = |it: &String| it.starts_with("+good;") && it.contains("+more;");
        group.lines().iter().all(all).then_some(())
    });
    assert!(
        group.lines().iter().all(|it| !it.contains('-')),
        "{:?}",
        group.lines()
    );
}

#[test]
fn one_that_is_sent_forged_commands_alone_comes_back() {
    let (mut group, leader) = Group::led();
    group.change = Some(|to, message| {
        change_batches(message, |batch| {
            if to != batch.id.origin.get() % 3 + 1 || batch.commands.is_empty() {
                return;
            }
            batch.commands[0] = Bytes::from_static(b"-bad;");
        });
    });
    group.propose(leader, "+one;");
    group.settle();
    let muted = leader % 3 + 1;
    assert_eq!(group.found.len(), 1);
    assert_eq!(group.found[0].0, muted);
    assert_eq!(
        group.replica(leader).machine().0,
        b"+one;",
        "two of three go on"
    );
    group.change = None;
    group.run_until(|group| group.lines().iter().all(|it| it == "+one;").then_some(()));
}

#[test]
fn what_is_forged_and_forwarded_enters_no_log() {
    let (mut group, leader) = Group::led();
    let forger = leader % 3 + 1;
    let last = group.replica(leader).status().last;
    group.propose(forger, "-bad;");
    group.settle();
    assert_eq!(group.replica(leader).status().last, last);
    assert!(matches!(
        group.found[..],
        [(finder, Forgery::Forwarded { from, .. })] if finder == leader && from == id(forger)
    ));
    assert_eq!(
        group.leader(),
        Some(leader),
        "nobody holds it against the leader"
    );
}

#[test]
fn nobody_forwards_a_batch_in_the_name_of_another() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        if message.get_msg_type() != MessageType::MsgPropose {
            return;
        }
        for entry in message.mut_entries().iter_mut() {
            let mut batch = Batch::decode(entry.data.clone()).unwrap();
            batch.id.origin = id(batch.id.origin.get() % 3 + 1);
            batch.id.incarnation = Incarnation(u64::MAX);
            entry.data = batch.encode().into();
        }
    });
    group.propose(leader % 3 + 1, "+one;");
    group.settle();
    assert!(matches!(group.refused[..], [(to, StepError::Sender { .. })] if to == leader));
}

#[test]
fn a_leader_that_mutes_a_replica_in_its_own_name_is_named_by_it() {
    let (mut group, leader) = Group::led();
    let framed = leader % 3 + 1;
    group.change = Some(|_, message| {
        change_batches(message, |batch| {
            batch.id.incarnation = Incarnation(u64::MAX)
        });
    });
    group.propose(framed, "+one;");
    group.settle();
    let (finder, forgery) = &group.found[0];
    assert_eq!(*finder, framed);
    let said = forgery.to_string();
    assert!(
        said.ends_with("it names this replica as its origin, which did not send it"),
        "{said}"
    );
}

#[test]
fn a_heartbeat_that_says_more_is_committed_than_there_is_harms_nobody() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        if message.get_msg_type() == MessageType::MsgHeartbeat {
            message.commit = 1 << 40;
        }
    });
    let heard = |group: &Group| (!group.refused.is_empty()).then_some(());
    group.run_until(heard);
    assert!(matches!(group.refused[0], (_, StepError::Commit { from, .. }) if from == id(leader)));
}

#[test]
fn entries_that_are_none_are_refused_before_they_are_written() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        if message.get_msg_type() == MessageType::MsgAppend {
            for entry in message.mut_entries().iter_mut() {
                entry.data = Bytes::from_static(b"no batch");
            }
        }
    });
    let last = group.replica(leader).status().last;
    group.propose(leader, "+one;");
    group.settle();
    assert_eq!(group.replica(leader % 3 + 1).status().last, last);
    assert!(matches!(group.refused[0], (_, StepError::Entry { .. })));
}

#[test]
fn a_leader_does_not_set_the_clock_to_the_end_of_time() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        change_batches(message, |batch| batch.time = LogTime(u64::MAX));
    });
    group.propose(leader, "+one;");
    group.settle();
    assert!(
        matches!(group.refused[0], (_, StepError::Ahead { .. })),
        "{:?}",
        group.refused
    );
    assert!(group.lines().iter().all(String::is_empty));
}

#[test]
fn nobody_campaigns_with_what_is_unverified() {
    let (mut group, leader) = Group::led();
    group.prompt = false;
    group.propose(leader, "+one;");
    group.settle();
    for _ in 0..200 {
        for number in (1..=3).filter(|number| *number != leader) {
            group.replica(number).tick(NOW);
        }
        group.settle();
    }
    assert_eq!(group.leader(), Some(leader));
    group.prompt = true;
    group.run_until(|group| group.lines().iter().all(|it| it == "+one;").then_some(()));
}

#[test]
fn what_was_written_and_not_verified_is_cut_off_at_the_start() {
    let (mut group, leader) = Group::led();
    group.change = Some(|_, message| {
        change_batches(message, |batch| {
            if batch
                .commands
                .first()
                .is_some_and(|it| it.starts_with(b"+bad"))
            {
                batch.commands[0] = Bytes::from_static(b"-bad;");
            }
        });
    });
    group.prompt = false;
    group.propose(leader, "+bad;");
    group.settle();
    let follower = leader % 3 + 1;
    let log = group.replica(follower).log();
    let last = log.last_entry_index();
    let entries: Vec<_> = (2..=last.0)
        .filter_map(|it| log.get(LogIndex(it)).cloned())
        .collect();
    let recovered = |commit| Recovery {
        snapshot: log.snapshot().clone(),
        entries: entries.clone(),
        hard_state: raft::eraftpb::HardState {
            term: 2,
            commit,
            ..raft::eraftpb::HardState::default()
        },
        incarnation: Incarnation(2),
        cut: None,
    };
    let start = |recovered: Recovery| {
        let checks = checks_of(&recovered.entries);
        let verdicts = Check::run_all::<Lines>(&checks);
        let config = ReplicaConfig::new(id(follower), 1);
        Replica::new(config, recovered, verdicts, Lines::default())
    };
    let replica = start(recovered(last.0 - 1)).unwrap();
    assert_eq!(replica.status().last, LogIndex(last.0 - 1));
    let refused = start(recovered(last.0)).err().unwrap().to_string();
    let wanted = format!("entry {last} of the log must not be there: command 0 is forged: ");
    assert!(refused.starts_with(&wanted), "{refused}");
}

#[test]
fn a_peer_that_is_not_reached_is_not_sent_entries_in_advance() {
    let (mut group, leader) = Group::led();
    let [lost, other] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    group.replica(leader).on_unreachable(id(lost));
    let mut sent = BTreeMap::new();
    for command in ["+one;", "+two;", "+three;"] {
        group.propose(leader, command);
        group.work(leader);
        for (_, envelope) in std::mem::take(&mut group.wires) {
            if let Ok(PeerMessage::Raft(message)) = PeerMessage::decode(envelope.bytes) {
                let entries = message.entries.len();
                *sent.entry(message.to).or_insert(0) += entries;
            }
        }
    }
    assert_eq!(sent.get(&other), Some(&3));
    assert_eq!(sent.get(&lost), Some(&1), "one to see whether it is back");
}

#[test]
fn a_leader_knows_at_any_moment_whom_it_hears() {
    let (mut group, leader) = Group::led();
    let lost = leader % 3 + 1;
    let active = |group: &mut Group| -> Vec<u64> {
        let peers = group.replica(leader).peer_progress().into_iter();
        let active = peers.filter(|peer| peer.active);
        active.map(|peer| peer.id.get()).collect()
    };
    let ticks = ReplicaConfig::new(id(1), 7).election_ticks;
    for _ in 0..5 * ticks {
        (1..=3).for_each(|number| group.replica(number).tick(NOW));
        assert_eq!(active(&mut group).len(), 2, "as a timeout ends, too");
        group.settle();
    }
    group.stopped.push((lost, "it is lost".into()));
    for _ in 0..=ticks {
        group.replica(leader).tick(NOW);
        group.settle();
    }
    assert_eq!(active(&mut group), [6 - leader - lost]);
}

#[test]
fn entries_that_a_snapshot_took_the_place_of_contradict_nothing() {
    let members = [id(1), id(2), id(3)];
    let machine = Lines::default();
    let snapshot = Snapshot::new(&SnapshotParts {
        index: LogIndex(10),
        term: Term(1),
        members: &Replica::genesis_snapshot(&members, &machine).members,
        time: NOW,
        sessions: &Sessions::default(),
        history: &History::default(),
        growth: LogGrowth::default(),
        state: Digest(machine.digest()),
        machine: &machine.snapshot(),
    });
    let recovered = Recovery {
        snapshot,
        entries: Vec::new(),
        hard_state: raft::eraftpb::HardState {
            term: 1,
            commit: 10,
            ..raft::eraftpb::HardState::default()
        },
        incarnation: Incarnation(1),
        cut: None,
    };
    let mut replica =
        Replica::new(ReplicaConfig::new(id(1), 7), recovered, Vec::new(), machine).unwrap();
    // The leader was not told of the snapshot, and goes on from where it knows this one to be.
    let entries = (5..=12).map(|index| {
        let mut entry = Entry::default();
        (entry.index, entry.term) = (index, 1);
        entry
    });
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgAppend);
    (message.from, message.to, message.term) = (2, 1, 1);
    (message.index, message.log_term, message.commit) = (4, 1, 12);
    message.set_entries(entries.collect::<Vec<_>>().into());
    let bytes = PeerMessage::Raft(Box::new(message)).encode();
    replica.step(NOW, id(2), bytes).unwrap();
    let work = replica.take_work(NOW).unwrap();
    let sent = work.send_first.into_iter().chain(work.send_after);
    let answers = sent.filter_map(|it| match PeerMessage::decode(it.bytes) {
        Ok(PeerMessage::Raft(message)) => Some((message.get_msg_type(), message.index)),
        _ => None,
    });
    let told = (MessageType::MsgAppendResponse, 10);
    assert_eq!(answers.collect::<Vec<_>>(), [told], "it is as far as that");
}
