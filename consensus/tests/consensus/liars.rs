//! Tests replicas that lie about the state or about the members, and honest ones that lag.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry,
    EntryType, HardState, Message, MessageType,
};
use souk_consensus::manifest::{Manifest, SnapshotOffer};
use souk_consensus::replica::{ChangeError, Proposal, StepError};
use souk_consensus::snapshot::{LogGrowth, SnapshotParts};
use souk_consensus::store::Recovery;
use souk_consensus::wire::{Envelope, PeerMessage};
use souk_consensus::{
    Certificate, ChangeStanding, Check, CommandFault, Digest, History, Incarnation, LogIndex,
    LogTime, MemberChange, Position, Replica, ReplicaConfig, ReplicaId, RestoreError, Sessions,
    Snapshot, StateMachine, Term, Voucher,
};

const NOW: LogTime = LogTime(1_000_000);

/// Part of each test's group.
const PART_BYTES: usize = 64;

/// Commands one after the other, and a purse that the quick digest does not cover. Each member
/// signs with a key of its own; `+admit4;` and `+remove2;` are the orders of who may be a member.
#[derive(Clone, Debug, Default)]
struct Lines {
    me: u64,
    text: String,
    purse: u8,
}

impl Lines {
    fn of(me: u64) -> Self {
        Self {
            me,
            ..Self::default()
        }
    }

    fn has(&self, order: &str, id: ReplicaId) -> bool {
        self.text.contains(&format!("+{order}{id};"))
    }
}

fn signature(by: u64, statement: &[u8]) -> Vec<u8> {
    let key = [by as u8; 32];
    blake3::keyed_hash(&key, statement).as_bytes().to_vec()
}

impl StateMachine for Lines {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        Ok(command.to_vec())
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Vec<u8>) -> Vec<u8> {
        self.text.push_str(std::str::from_utf8(command).unwrap());
        // The program of replica 2 went wrong.
        self.purse += u8::from(command == b"+odd;" && self.me == 2);
        Vec::new()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn judge_change(&self, change: MemberChange) -> ChangeStanding {
        let (wanted, id) = match change {
            MemberChange::Remove(id) => (self.has("remove", id), id),
            MemberChange::AddLearner(id) | MemberChange::Promote(id) => (self.has("admit", id), id),
        };
        match (wanted, self.has("remove", id)) {
            (false, _) => ChangeStanding::Unordered,
            (true, true) if !matches!(change, MemberChange::Remove(_)) => ChangeStanding::Outdated,
            _ => ChangeStanding::Ordered,
        }
    }

    fn sign_statement(&self, statement: &[u8]) -> Vec<u8> {
        signature(self.me, statement)
    }

    fn has_signed(&self, by: ReplicaId, statement: &[u8], signed: &[u8]) -> bool {
        signature(by.get(), statement) == signed
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(self.text.as_bytes()).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        [&[self.purse], self.text.as_bytes()].concat()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.purse = bytes[0];
        self.text = String::from_utf8(bytes[1..].to_vec()).unwrap();
        Ok(())
    }
}

fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number).unwrap()
}

/// Replicas whose messages arrive at once, but for those that are cut off.
struct Group {
    replicas: BTreeMap<u64, Replica<Lines>>,
    cut_off: BTreeSet<u64>,
    wires: Vec<(u64, Envelope)>,
    refused: Vec<(u64, StepError)>,
    installed: Vec<(u64, LogIndex)>,
}

impl Group {
    fn of(size: u64) -> Self {
        let members: Vec<ReplicaId> = (1..=size).map(id).collect();
        let genesis = Replica::genesis_snapshot(&members, &Lines::default());
        let mut group = Self {
            replicas: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            wires: Vec::new(),
            refused: Vec::new(),
            installed: Vec::new(),
        };
        for number in 1..=size {
            group.start(number, genesis.clone());
        }
        group
    }

    /// A group that has applied something, and its leader.
    fn led(size: u64) -> (Self, u64) {
        let mut group = Self::of(size);
        let leader = group.run_until(Self::leader);
        for _ in 0..30 {
            group.tick();
        }
        group.write("+one;", 1);
        (group, leader)
    }

    fn start(&mut self, number: u64, snapshot: Snapshot) {
        self.start_with_log(number, snapshot, Vec::new());
    }

    /// Starts a replica whose disk has a snapshot and committed entries after it.
    fn start_with_log(&mut self, number: u64, snapshot: Snapshot, entries: Vec<Entry>) {
        let hard_state = HardState {
            term: snapshot.term.0,
            commit: snapshot.index.0 + entries.len() as u64,
            ..HardState::default()
        };
        let recovered = Recovery {
            hard_state,
            snapshot,
            entries,
            incarnation: Incarnation(1),
            cut: None,
        };
        let config = ReplicaConfig {
            snapshot_entries: 8,
            snapshot_chunk_bytes: PART_BYTES,
            ..ReplicaConfig::new(id(number), 7)
        };
        let machine = Lines::of(number);
        let replica = Replica::new(config, recovered, Vec::new(), machine).unwrap();
        self.replicas.insert(number, replica);
    }

    fn replica(&mut self, number: u64) -> &mut Replica<Lines> {
        self.replicas.get_mut(&number).unwrap()
    }

    fn running(&self) -> Vec<u64> {
        let all = self.replicas.keys().copied();
        all.filter(|it| !self.cut_off.contains(it)).collect()
    }

    fn leader(&self) -> Option<u64> {
        let leads =
            |it: &u64| self.replicas[it].is_leader() && self.replicas[it].applied_index().0 > 1;
        self.running().into_iter().find(leads)
    }

    fn tick(&mut self) {
        for number in self.running() {
            self.replica(number).tick(NOW);
        }
        self.settle();
    }

    fn run_until<T>(&mut self, done: impl Fn(&Self) -> Option<T>) -> T {
        for _ in 0..600 {
            self.tick();
            if let Some(value) = done(self) {
                return value;
            }
        }
        let statuses = self.replicas.values().map(Replica::status);
        panic!(
            "it does not come to that: {:?}",
            statuses.collect::<Vec<_>>()
        );
    }

    fn settle(&mut self) {
        loop {
            for number in self.running() {
                self.work(number);
            }
            let wires = std::mem::take(&mut self.wires);
            if wires.is_empty() {
                return;
            }
            for (from, Envelope { to, bytes }) in wires {
                let reached = [from, to.get()].iter().all(|it| !self.cut_off.contains(it));
                if reached && self.replicas.contains_key(&to.get()) {
                    self.deliver(from, to.get(), bytes);
                }
            }
        }
    }

    fn deliver(&mut self, from: u64, to: u64, bytes: Bytes) {
        if let Err(refused) = self.replica(to).step(NOW, id(from), bytes) {
            self.refused.push((to, refused));
        }
    }

    fn work(&mut self, number: u64) {
        let mut checks = Vec::new();
        loop {
            for verdict in Check::run_all::<Lines>(&std::mem::take(&mut checks)) {
                self.replica(number).on_verified(NOW, verdict).unwrap();
            }
            let Some(mut work) = self.replica(number).take_work(NOW) else {
                return;
            };
            let mut sent = std::mem::take(&mut work.send_first);
            sent.append(&mut work.send_after);
            checks.append(&mut work.checks);
            let outcome = self.replica(number).on_persisted(work).unwrap();
            sent.extend(outcome.send);
            self.wires.extend(sent.into_iter().map(|it| (number, it)));
            self.installed
                .extend(outcome.installed.map(|at| (number, at)));
            if let Some(snapshot) = outcome.snapshot {
                assert!(!snapshot.vouchers.is_empty());
                let keep_from = LogIndex(snapshot.index.0 + 1);
                self.replica(number).compact(snapshot, keep_from);
            }
        }
    }

    /// The leader has these written, one entry each.
    fn write(&mut self, command: &'static str, times: u64) {
        for _ in 0..times {
            let leader = self.run_until(Self::leader);
            let command = Proposal {
                bytes: Bytes::from_static(command.as_bytes()),
                command: command.as_bytes().to_vec(),
            };
            self.replica(leader).propose(command).unwrap();
            self.settle();
            self.replica(leader).tell_commit();
            self.settle();
        }
    }

    fn change(&mut self, change: MemberChange) {
        let leader = self.run_until(Self::leader);
        self.replica(leader).change_members(&[change]).unwrap();
        self.settle();
    }

    /// Runs until all that run have the same state, and gives it.
    fn agree(&mut self) -> String {
        self.run_until(|group| {
            let running = group.running();
            let states = running.iter().map(|it| &group.replicas[it]);
            let states = states.map(|it| (it.applied_index(), it.machine().text.clone()));
            let states: BTreeSet<(LogIndex, String)> = states.collect();
            (states.len() == 1).then(|| states.into_iter().next().unwrap().1)
        })
    }

    /// Offers a snapshot to a replica in the name of `from`, and gives it the parts.
    fn offer(&mut self, from: u64, to: u64, snapshot: &Snapshot, signers: &[u64]) {
        let statement = snapshot.statement();
        let vouchers = signers.iter().map(|by| Voucher {
            by: id(*by),
            signature: signature(*by, &statement.signing_bytes()).into(),
        });
        // Signatures of the others are made with the liar's own key.
        let forged = (1..=9)
            .filter(|it| !signers.contains(it))
            .map(|by| Voucher {
                by: id(by),
                signature: signature(from, &statement.signing_bytes()).into(),
            });
        let certificate = Certificate {
            statement,
            vouchers: vouchers.chain(forged).collect(),
        };
        let manifest = Manifest::for_snapshot(&snapshot.bytes, PART_BYTES);
        let mut message = Message {
            from,
            to,
            term: snapshot.term.0,
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgSnapshot);
        let offered = message.mut_snapshot();
        offered.mut_metadata().index = snapshot.index.0;
        offered.mut_metadata().term = snapshot.term.0;
        offered.data = SnapshotOffer {
            certificate,
            manifest: manifest.clone(),
        }
        .encode();
        self.deliver(from, to, PeerMessage::Raft(Box::new(message)).encode());
        for number in 0..manifest.part_count() {
            let part = PeerMessage::Part {
                snapshot: manifest.digest(),
                number,
                bytes: snapshot.bytes.slice(manifest.part_range(number).unwrap()),
            };
            self.deliver(from, to, part.encode());
        }
    }

    /// A state of the liar's choice, far ahead of the others.
    fn forged_state(&self, voters: Vec<u64>, time: LogTime) -> Snapshot {
        let machine = Lines {
            me: 0,
            text: "+all is mine;".into(),
            purse: 255,
        };
        Snapshot::new(&SnapshotParts {
            index: LogIndex(1_000),
            term: Term(99),
            members: &ConfState::from((voters, Vec::new())),
            time,
            sessions: &Sessions::default(),
            history: &History::default(),
            growth: LogGrowth::default(),
            state: Digest(machine.digest()),
            machine: &machine.snapshot(),
        })
    }
}

#[test]
fn one_liar_replaces_no_state() {
    for size in 2..=5 {
        let (mut group, leader) = Group::led(size);
        let liar = leader % size + 1;
        let honest: Vec<u64> = (1..=size).filter(|it| *it != liar).collect();
        let others: Vec<u64> = (1..=size).collect();
        let forged = group.forged_state(others, NOW);
        for to in &honest {
            group.offer(liar, *to, &forged, &[liar]);
        }
        group.settle();
        let unvouched = |refused: &(u64, StepError)| {
            matches!(refused.1, StepError::Unvouched { vouched: 1, members, .. }
                if members == usize::try_from(size).unwrap())
        };
        let found = group.refused.iter().filter(|it| unvouched(it)).count();
        assert_eq!(found, honest.len(), "{:?}", group.refused);
        assert_eq!(group.installed, []);
        // Nothing of the offer reached raft: neither its term nor its time.
        for number in honest {
            let status = group.replica(number).status();
            assert!(status.term < Term(99) && status.time <= NOW, "{status:?}");
        }
        assert_eq!(group.agree(), "+one;");
    }
}

#[test]
fn a_liar_s_offer_is_not_taken_up_again_and_displaces_no_better_one() {
    let (mut group, leader) = Group::led(3);
    let (liar, to) = (leader % 3 + 1, leader);
    let forged = group.forged_state(vec![1, 2, 3], NOW);
    group.offer(liar, to, &forged, &[liar]);
    group.refused.clear();
    group.offer(liar, to, &forged, &[liar]);
    let refused = &group.refused[..];
    assert!(matches!(refused, [(_, StepError::Doubted(from))] if *from == id(liar)));
}

#[test]
fn a_state_does_not_set_the_clock_to_the_end_of_time() {
    let (mut group, leader) = Group::led(3);
    let liar = leader % 3 + 1;
    let forged = group.forged_state(vec![1, 2, 3], LogTime(u64::MAX / 2));
    // Even where two of three have signed it.
    group.offer(liar, leader, &forged, &[liar, leader % 3 + 2]);
    let refused = &group.refused[..];
    assert!(
        matches!(refused, [(_, StepError::Ahead { .. })]),
        "{refused:?}"
    );
    assert_eq!(group.agree(), "+one;");
}

#[test]
fn a_replica_that_lags_gets_the_state_for_which_a_majority_vouches() {
    for size in 3..=5 {
        let (mut group, leader) = Group::led(size);
        let lost = leader % size + 1;
        group.cut_off.insert(lost);
        group.write("+more;", 30);
        // One that vouched is gone when the other comes back.
        let other = lost % size + 1;
        let dead = if other == leader {
            other % size + 1
        } else {
            other
        };
        group.cut_off.insert(dead);
        group.cut_off.remove(&lost);
        group.run_until(|group| {
            let done = group.replicas[&lost]
                .machine()
                .text
                .matches("+more;")
                .count()
                == 30;
            done.then_some(())
        });
        assert!(group.installed.iter().any(|(it, _)| *it == lost), "{size}");
        group.write("+after;", 1);
        group.cut_off.remove(&dead);
        assert!(group.agree().ends_with("+more;+after;"));
    }
}

#[test]
fn a_newcomer_gets_the_state_for_which_a_majority_vouches() {
    for size in 1..=5 {
        let (mut group, _) = Group::led(size);
        group.write("+more;", 20);
        let new = size + 1;
        let admit = [
            "", "+admit2;", "+admit3;", "+admit4;", "+admit5;", "+admit6;",
        ];
        group.write(admit[usize::try_from(size).unwrap()], 1);
        group.start(new, Snapshot::new_empty());
        group.change(MemberChange::AddLearner(id(new)));
        let state = group.agree();
        assert!(state.contains("+more;"), "{state}");
        assert!(group.installed.iter().any(|(it, _)| *it == new), "{size}");
        group.change(MemberChange::Promote(id(new)));
        group.write("+after;", 1);
        assert!(group.agree().ends_with("+after;"));
        let voters = group.replica(new).status().members.get_voters().len();
        assert_eq!(voters as u64, new);
    }
}

#[test]
fn one_with_another_state_and_the_same_history_is_found_out_and_stops_alone() {
    let (mut group, _) = Group::led(3);
    group.write("+odd;", 1);
    let digests = group.replicas.values().map(|it| it.machine().digest());
    assert_eq!(
        digests.collect::<BTreeSet<_>>().len(),
        1,
        "the chain is right"
    );
    group.write("+more;", 20);
    let found = group.replica(2).compare_checkpoints().unwrap();
    assert_eq!(found.by, [id(1), id(3)]);
    assert_eq!(found.part, "whole state");
    for honest in [1, 3] {
        assert_eq!(group.replica(honest).compare_checkpoints(), None);
    }
    group.cut_off.insert(2);
    group.write("+after;", 1);
    assert!(group.agree().ends_with("+after;"), "the others go on");
}

fn single(kind: ConfChangeType, id: u64) -> ConfChangeSingle {
    let mut single = ConfChangeSingle {
        node_id: id,
        ..ConfChangeSingle::default()
    };
    single.set_change_type(kind);
    single
}

/// Builds a change of members with several steps.
fn joint_change(singles: Vec<ConfChangeSingle>) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    change.set_changes(singles.into());
    change
}

/// An append of `from` that changes the members, and says that all of it is committed.
fn append(from: u64, to: &Replica<Lines>, changes: &[ConfChangeV2]) -> Bytes {
    let (last, term) = {
        let last = to.log().last_entry_index();
        (last, to.log().term_at(last).unwrap())
    };
    let entry = |(place, change): (u64, &ConfChangeV2)| {
        let mut entry = Entry {
            term: 99,
            index: last.0 + 1 + place,
            data: change.write_to_bytes().unwrap().into(),
            ..Entry::default()
        };
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        entry
    };
    let entries: Vec<Entry> = (0..).zip(changes).map(entry).collect();
    let mut message = Message {
        from,
        to: to.status().id.get(),
        term: 99,
        log_term: term.0,
        index: last.0,
        commit: last.0 + entries.len() as u64,
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgAppend);
    message.set_entries(entries.into());
    PeerMessage::Raft(Box::new(message)).encode()
}

#[test]
fn a_liar_throws_nobody_out() {
    let (mut group, leader) = Group::led(3);
    let liar = leader % 3 + 1;
    let honest: Vec<u64> = (1..=3).filter(|it| *it != liar).collect();
    let out: Vec<_> = honest
        .iter()
        .map(|it| single(ConfChangeType::RemoveNode, *it))
        .collect();
    let one_by_one = out.iter().map(|it| vec![it.clone()]).collect();
    let demoted = honest
        .iter()
        .map(|it| single(ConfChangeType::AddLearnerNode, *it));
    let attacks = [
        vec![out, Vec::new()],
        one_by_one,
        vec![demoted.collect(), Vec::new()],
        vec![vec![single(ConfChangeType::AddNode, 7)]],
        vec![vec![single(ConfChangeType::AddLearnerNode, 7)]],
        vec![vec![single(ConfChangeType::RemoveNode, 0)]],
    ];
    for attack in attacks {
        let attack: Vec<ConfChangeV2> = attack.into_iter().map(joint_change).collect();
        for to in &honest {
            let bytes = append(liar, &group.replicas[to], &attack);
            group.replica(*to).step(NOW, id(liar), bytes).unwrap_err();
            let accusation = group.replica(*to).status().accusation.unwrap();
            assert_eq!(accusation.leader, Some(id(liar)));
        }
        group.settle();
        for to in &honest {
            let status = group.replica(*to).status();
            assert_eq!(status.members.get_voters().len(), 3, "{status:?}");
            assert!(status.member && status.term < Term(99));
        }
    }
    group.write("+two;", 1);
    assert_eq!(group.agree(), "+one;+two;");
}

#[test]
fn a_liar_keeps_nobody_in_a_joint_configuration() {
    use ConfChangeTransition::{Explicit, Implicit};
    let ordered = vec![single(ConfChangeType::AddLearnerNode, 4)];
    for (transition, steps) in [
        (Explicit, Vec::new()),
        (Explicit, ordered.clone()),
        (Implicit, Vec::new()),
        (Implicit, ordered.clone()),
    ] {
        let (mut group, leader) = Group::led(3);
        group.write("+admit4;", 1);
        group.agree();
        let liar = leader % 3 + 1;
        let mut change = joint_change(steps);
        change.set_transition(transition);
        for to in (1..=3).filter(|it| *it != liar) {
            let bytes = append(liar, &group.replicas[&to], &[change.clone()]);
            let refused = group.replica(to).step(NOW, id(liar), bytes).unwrap_err();
            assert!(matches!(refused, StepError::Unordered(_)), "{refused}");
        }
        group.settle();
        group.change(MemberChange::AddLearner(id(4)));
        group.run_until(|group| {
            let members = group.replicas[&leader].status().members;
            (members.get_learners() == [4]).then_some(())
        });
    }
}

#[test]
fn a_joint_configuration_that_is_in_the_log_has_no_effect() {
    let mut group = Group::of(1);
    let genesis = Replica::genesis_snapshot(&[id(1)], &Lines::default());
    let mut change = joint_change(Vec::new());
    change.set_transition(ConfChangeTransition::Explicit);
    let mut entry = Entry {
        term: genesis.term.0,
        index: genesis.index.0 + 1,
        data: change.write_to_bytes().unwrap().into(),
        ..Entry::default()
    };
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    group.start_with_log(1, genesis, vec![entry]);
    group.run_until(Group::leader);
    let members = group.replica(1).status().members;
    assert!(members.get_voters_outgoing().is_empty(), "{members:?}");
}

#[test]
fn a_single_voter_hands_over_to_the_replica_that_it_promotes() {
    let (mut group, leader) = Group::led(1);
    group.write("+admit2;+remove1;", 1);
    group.change(MemberChange::AddLearner(id(2)));
    group.start(2, Snapshot::new_empty());
    group.agree();
    let refused = group.replica(leader).change_members(&[]);
    assert_eq!(refused, Err(ChangeError::Empty));
    let alone = [MemberChange::Remove(id(1))];
    let refused = group.replica(leader).change_members(&alone);
    assert_eq!(refused, Err(ChangeError::NobodyLeft));
    let changes = [MemberChange::Promote(id(2)), MemberChange::Remove(id(1))];
    group.replica(leader).change_members(&changes).unwrap();
    group.run_until(|group| {
        let members = group.replicas[&2].status().members;
        (members.get_voters() == [2] && members.get_voters_outgoing().is_empty()).then_some(())
    });
}

#[test]
fn a_change_that_is_ordered_in_the_same_message_waits_until_the_order_is_applied() {
    let (mut group, leader) = Group::led(3);
    let lost = leader % 3 + 1;
    group.cut_off.insert(lost);
    group.write("+admit4;", 1);
    group.change(MemberChange::AddLearner(id(4)));
    group.cut_off.remove(&lost);
    group.start(4, Snapshot::new_empty());
    group.agree();
    for number in 1..=4 {
        let status = group.replica(number).status();
        assert_eq!(status.members.get_learners(), [4], "{status:?}");
        assert!(status.accusation.is_none(), "nobody is accused");
    }
}

#[test]
fn a_leader_proposes_no_change_that_nobody_ordered() {
    let (mut group, leader) = Group::led(3);
    let other = leader % 3 + 1;
    for change in [
        MemberChange::Remove(id(other)),
        MemberChange::AddLearner(id(4)),
    ] {
        let refused = group.replica(leader).change_members(&[change]).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("the operators did not order that replica")
        );
    }
}
