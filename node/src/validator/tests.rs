//! Tests three validators in one process: real threads and folders, and messages that the test
//! passes in memory. Leaders are lost, validators restart, and one catches up by a snapshot.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_consensus::replica::{ChangeError, Role};
use souk_consensus::wal::WalConfig;
use souk_consensus::wire::{Envelope, PeerMessage};
use souk_consensus::{
    CommandFault, LogIndex, LogTime, Position, ReplicaId, RestoreError, StateMachine, StoreConfig,
};
use souk_roles::validator::questions::AnsweringMachine;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

/// Counts how often each command was applied.
#[derive(Debug, Default, Clone)]
struct Tally {
    counts: BTreeMap<Vec<u8>, u64>,
}

impl AnsweringMachine for Tally {
    type Question = ();
    type Reply = BTreeMap<Vec<u8>, u64>;

    fn answer_question(&self, (): ()) -> BTreeMap<Vec<u8>, u64> {
        self.counts.clone()
    }

    /// Refuses a command that must follow another one, if that one was not applied.
    fn foresee_refusal(&self, command: &Vec<u8>) -> Option<Vec<u8>> {
        let name = command.strip_prefix(b"after ")?;
        let before = [b"before ", name].concat();
        (!self.counts.contains_key(&before)).then(|| b"too early".to_vec())
    }
}

impl StateMachine for Tally {
    type Command = Vec<u8>;

    fn verify_command(command: &[u8]) -> Result<Vec<u8>, CommandFault> {
        match command {
            b"forged" => Err(CommandFault {
                cause: "nobody signed it".into(),
            }),
            _ => Ok(command.to_vec()),
        }
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Vec<u8>) -> Vec<u8> {
        let count = self.counts.entry(command.clone()).or_default();
        *count += 1;
        count.to_le_bytes().to_vec()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.snapshot()).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (command, count) in &self.counts {
            bytes.extend_from_slice(&u32::try_from(command.len()).unwrap().to_le_bytes());
            bytes.extend_from_slice(command);
            bytes.extend_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    fn restore(&mut self, mut bytes: &[u8]) -> Result<(), RestoreError> {
        self.counts.clear();
        while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
            let (command, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            let (count, rest) = rest.split_first_chunk::<8>().unwrap();
            self.counts
                .insert(command.to_vec(), u64::from_le_bytes(*count));
            bytes = rest;
        }
        Ok(())
    }
}

type Running = Arc<Mutex<BTreeMap<u64, Validator<Tally>>>>;

/// Parts of snapshots on their way.
#[derive(Default)]
struct Parts {
    asked: Vec<u32>,
    arrived: Vec<u32>,
    /// Parts that still arrive, if not all do.
    left: Option<usize>,
}

impl Parts {
    /// Whether a message arrives.
    fn on_message(&mut self, bytes: &Bytes) -> bool {
        match PeerMessage::decode(bytes.clone()) {
            Ok(PeerMessage::PartRequest { number, .. }) => self.asked.push(number),
            Ok(PeerMessage::Part { number, .. }) => {
                match &mut self.left {
                    Some(0) => return false,
                    Some(left) => *left -= 1,
                    None => {}
                }
                self.arrived.push(number);
            }
            _ => {}
        }
        true
    }
}

/// A group of validators, and which of them are running.
struct Group {
    folders: Vec<TempDir>,
    snapshot_entries: u64,
    running: Running,
    parts: Arc<Mutex<Parts>>,
    ended: BTreeMap<u64, ValidatorEnd>,
}

fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number).unwrap()
}

fn config(number: u64, folder: &Path, snapshot_entries: u64) -> ValidatorConfig {
    let members = LogBeginning::NewGroup([1, 2, 3].map(id).to_vec());
    let mut config = ValidatorConfig::new(id(number), 7, folder.to_path_buf(), members);
    config.replica.snapshot_entries = snapshot_entries;
    config.replica.checkpoint_entries = 8;
    config.replica.snapshot_chunk_bytes = 64;
    config.store = StoreConfig {
        wal: WalConfig {
            segment_bytes: 64 << 10,
        },
    };
    config.tick = Duration::from_millis(5);
    config
}

/// Passes one validator's messages to the others while it runs.
async fn carry(
    from: u64,
    running: Running,
    parts: Arc<Mutex<Parts>>,
    mut outbound: mpsc::Receiver<Envelope>,
) {
    while let Some(envelope) = outbound.recv().await {
        if !parts.lock().unwrap().on_message(&envelope.bytes) {
            continue;
        }
        let to = running.lock().unwrap().get(&envelope.to.get()).cloned();
        if let Some(validator) = to {
            validator.peer_message(id(from), envelope.bytes);
        }
    }
}

impl Group {
    fn empty(snapshot_entries: u64) -> Self {
        let folders = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let (running, ended) = (Running::default(), BTreeMap::new());
        Self {
            folders,
            snapshot_entries,
            running,
            parts: Arc::default(),
            ended,
        }
    }

    fn start(snapshot_entries: u64) -> Self {
        let mut group = Self::empty(snapshot_entries);
        for number in 1..=3 {
            group.run(number);
        }
        group
    }

    fn folder(&self, number: u64) -> &Path {
        self.folders[usize::try_from(number - 1).unwrap()].path()
    }

    fn run(&mut self, number: u64) {
        self.run_as(number, LogBeginning::NewGroup([1, 2, 3].map(id).to_vec()));
    }

    fn run_as(&mut self, number: u64, beginning: LogBeginning) {
        let (sender, outbound) = mpsc::channel(1_024);
        let mut config = config(number, self.folder(number), self.snapshot_entries);
        config.beginning = beginning;
        let (validator, ended) = Validator::start(&config, Tally::default(), sender).unwrap();
        self.running.lock().unwrap().insert(number, validator);
        self.ended.insert(number, ended);
        let (running, parts) = (self.running.clone(), self.parts.clone());
        tokio::spawn(carry(number, running, parts, outbound));
    }

    async fn stop(&mut self, number: u64) {
        let validator = self.running.lock().unwrap().remove(&number).unwrap();
        validator.stop().await;
        self.ended
            .remove(&number)
            .unwrap()
            .wait_for_end()
            .await
            .unwrap();
    }

    fn get(&self, number: u64) -> Validator<Tally> {
        self.running.lock().unwrap()[&number].clone()
    }

    fn any(&self) -> Validator<Tally> {
        self.running
            .lock()
            .unwrap()
            .values()
            .next()
            .unwrap()
            .clone()
    }

    async fn leader(&self) -> u64 {
        loop {
            let running = self.running.lock().unwrap().clone();
            for (number, validator) in running {
                if validator.status().await.unwrap().role == Role::Leader {
                    return number;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    async fn counts(&self, number: u64) -> BTreeMap<Vec<u8>, u64> {
        let asked = self.get(number);
        let asked = asked.query_machine(Consistency::Linearizable, ());
        asked.await.unwrap().0
    }
}

/// Returns a command that is admitted on the word of the validator that took it, which may lie.
fn taken_in(command: impl Into<Vec<u8>>) -> Proposal<Vec<u8>> {
    let command = command.into();
    Proposal {
        bytes: command.clone().into(),
        command,
    }
}

async fn propose_each(validator: Validator<Tally>, name: &str, count: u32) {
    for number in 0..count {
        let command = format!("{name}-{number}");
        let answer = validator.propose(taken_in(command)).await.unwrap();
        assert_eq!(
            answer,
            1_u64.to_le_bytes(),
            "{name}-{number} was applied once"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_validator_takes_proposals_and_all_agree() {
    let group = Group::start(1_000);
    for number in 1..=3 {
        propose_each(group.get(number), &format!("from {number}"), 20).await;
    }
    let counts = group.counts(1).await;
    assert_eq!(counts.len(), 60);
    assert_eq!(group.counts(2).await, counts);
    assert_eq!(group.counts(3).await, counts);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_command_stays_out_of_the_log_and_an_old_state_refuses_nothing() {
    let group = Group::start(1_000);
    for round in 0..20 {
        // Whichever leads, two of three are asked before they applied the command of another.
        let [first, second, third] = [0, 1, 2].map(|by| group.get((round + by) % 3 + 1));
        let [before, after] = ["before", "after"].map(|when| format!("{when} {round}"));
        let early = third.propose(taken_in(after.clone())).await.unwrap();
        assert_eq!(early, b"too early");
        first.propose(taken_in(before)).await.unwrap();
        let answer = second.propose(taken_in(after)).await.unwrap();
        assert_eq!(answer, 1_u64.to_le_bytes(), "the only one in the log");
    }
    assert_eq!(group.counts(1).await.len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_leader_loses_nothing_acknowledged() {
    let mut group = Group::start(1_000);
    propose_each(group.any(), "before", 20).await;
    let leader = group.leader().await;
    group.stop(leader).await;
    propose_each(group.any(), "without", 20).await;
    group.run(leader);
    propose_each(group.get(leader), "after", 20).await;
    for number in 1..=3 {
        assert_eq!(group.counts(number).await.len(), 60, "validator {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_group_has_everything() {
    let mut group = Group::start(1_000);
    propose_each(group.any(), "before", 30).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    for number in 1..=3 {
        group.run(number);
    }
    for number in 1..=3 {
        assert_eq!(group.counts(number).await.len(), 30, "validator {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_away_for_long_catches_up_by_snapshot() {
    let mut group = Group::start(10);
    propose_each(group.any(), "before", 10).await;
    let leader = group.leader().await;
    let away = leader % 3 + 1;
    group.stop(away).await;
    propose_each(group.get(leader), "while away", 60).await;
    let first = group.get(leader).status().await.unwrap();
    assert!(
        first.snapshot > LogIndex(40),
        "the log was compacted: {first:?}"
    );
    group.run(away);
    assert_eq!(group.counts(away).await.len(), 70);
    propose_each(group.get(away), "back", 10).await;
    group.stop(away).await;
    group.run(away);
    assert_eq!(group.counts(away).await.len(), 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stops_amid_a_snapshot_asks_only_for_the_rest() {
    let mut group = Group::start(10);
    let leader = group.leader().await;
    let away = leader % 3 + 1;
    group.stop(away).await;
    propose_each(group.get(leader), "while away", 60).await;
    group.parts.lock().unwrap().left = Some(12);
    group.run(away);
    let came = || group.parts.lock().unwrap().arrived.len();
    while came() < 12 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    group.stop(away).await;
    let before = std::mem::take(&mut *group.parts.lock().unwrap()).arrived;
    group.run(away);
    assert_eq!(group.counts(away).await.len(), 60);
    let after = std::mem::take(&mut *group.parts.lock().unwrap());
    let again = |number: &&u32| before.contains(number);
    assert_eq!(after.asked.iter().find(again), None, "{before:?}");
    assert!(!after.asked.is_empty(), "some were missing");
    let folder = group.folder(away).join("incoming-snapshot");
    assert!(!folder.exists(), "it is gone once it was installed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_reproduces_every_digest_and_finds_a_changed_one() {
    let mut group = Group::start(20);
    propose_each(group.any(), "audited", 70).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    let audited = audit_folder(group.folder(1), 8, Tally::default).unwrap();
    assert!(
        !audited.snapshots.is_empty(),
        "one snapshot was replayed to: {audited:?}"
    );
    assert!(
        audited.views > 0,
        "the views' digests were compared: {audited:?}"
    );
    let mut others = Group::start(20);
    propose_each(others.any(), "something else", 70).await;
    others.stop(1).await;
    swap_views(&group, &others);
    let refused = audit_folder(group.folder(1), 8, Tally::default).unwrap_err();
    assert!(
        matches!(refused, ValidatorAuditError::Views { .. }),
        "{refused}"
    );
    swap_views(&group, &others);
    let views = views::open_database(&group.folder(1).join("views")).unwrap();
    let (key, row) = views.first().unwrap().unwrap();
    let mut row = row.to_vec();
    row[20] ^= 1;
    views.insert(key, row).unwrap();
    drop(views);
    let refused = audit_folder(group.folder(1), 8, Tally::default).unwrap_err();
    assert!(
        matches!(refused, ValidatorAuditError::ViewsSpoiled(_)),
        "{refused}"
    );
}

/// Exchanges the views of the first validators of two groups.
fn swap_views(one: &Group, other: &Group) {
    let aside = one.folder(1).join("aside");
    let (one, other) = (one.folder(1).join("views"), other.folder(1).join("views"));
    fs::rename(&one, &aside).unwrap();
    fs::rename(&other, &one).unwrap();
    fs::rename(&aside, &other).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn views_that_are_gone_or_garbage_are_rebuilt() {
    let mut group = Group::start(10);
    propose_each(group.any(), "before", 25).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    fs::remove_dir_all(group.folder(1).join("views")).unwrap();
    fs::write(group.folder(2).join("views/conf"), b"no configuration").unwrap();
    for number in 1..=3 {
        group.run(number);
    }
    propose_each(group.get(1), "after", 5).await;
    for number in 1..=3 {
        assert_eq!(group.counts(number).await.len(), 30, "validator {number}");
    }
}

fn views_of(folder: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let views = views::open_database(&folder.join("views")).unwrap();
    let rows = views.scan_prefix(b"checkpoint/").map(|row| row.unwrap());
    rows.map(|(key, row)| (key.to_vec(), row.to_vec()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn views_that_disagree_with_the_log_are_rebuilt() {
    let mut group = Group::start(1_000);
    propose_each(group.any(), "before", 40).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    let rows = views_of(group.folder(1));
    let views = views::open_database(&group.folder(1).join("views")).unwrap();
    views.insert(&rows[0].0, b"something else").unwrap();
    drop(views);
    for number in 1..=3 {
        group.run(number);
    }
    propose_each(group.get(1), "after", 5).await;
    group.stop(1).await;
    assert_eq!(views_of(group.folder(1))[..rows.len()], rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_told_of_every_entry_in_order() {
    let group = Group::start(1_000);
    let mut notices = group.get(2).watch_entries();
    propose_each(group.get(1), "seen", 10).await;
    let mut seen = Vec::new();
    while seen.len() < 10 {
        if let Notice::Applied(applied) = notices.recv().await.unwrap() {
            // A tick has no command.
            let commands = applied
                .results
                .iter()
                .filter(|(command, _)| !command.is_empty());
            seen.extend(commands.map(|(command, _)| String::from_utf8(command.to_vec()).unwrap()));
        }
    }
    let wanted: Vec<String> = (0..10).map(|number| format!("seen-{number}")).collect();
    assert_eq!(seen, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_learns_then_votes_and_a_removed_id_never_comes_back() {
    let mut group = Group::start(20);
    propose_each(group.any(), "before", 50).await;
    let folder = tempfile::tempdir().unwrap();
    group.folders.push(folder);
    group.run_as(4, LogBeginning::Join);
    let leader = group.leader().await;
    group.get(leader).add_member(id(4)).await.unwrap();
    let old = leader % 3 + 1;
    group
        .get(group.leader().await)
        .remove_member(id(old))
        .await
        .unwrap();
    group.stop(old).await;
    propose_each(group.get(4), "after", 10).await;
    assert_eq!(group.counts(4).await.len(), 60);
    let again = group.get(group.leader().await).add_member(id(old)).await;
    let retired = matches!(again, Err(MembersError::Change(ChangeError::Retired(_))));
    assert!(retired, "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_handed_over() {
    let group = Group::start(1_000);
    propose_each(group.any(), "before", 5).await;
    let leader = group.leader().await;
    let next = leader % 3 + 1;
    group
        .get(leader)
        .transfer_leadership(id(next))
        .await
        .unwrap();
    assert_eq!(group.leader().await, next);
    propose_each(group.get(leader), "after", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_begins_a_new_group_with_the_same_state() {
    let group = Group::start(1_000);
    propose_each(group.any(), "saved", 30).await;
    let counts = group.counts(2).await;
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("backup");
    let (index, bytes) = group.get(2).create_backup().await.unwrap();
    assert_eq!(write_backup(&file, &bytes).unwrap(), index);
    let mut restored = Group::empty(1_000);
    for number in 1..=3 {
        let members = [1, 2, 3].map(id);
        let at = restore_backup(&file, restored.folder(number), &members).unwrap();
        assert_eq!(at, index);
        restored.run(number);
    }
    propose_each(restored.get(3), "new", 5).await;
    let after = restored.counts(1).await;
    assert!(
        counts
            .iter()
            .all(|(command, count)| after.get(command) == Some(count))
    );
    let running = restore_backup(&file, restored.folder(1), &[id(1)]).unwrap_err();
    assert!(running.to_string().contains("stop it first"), "{running}");
    restored.stop(1).await;
    let used = restore_backup(&file, restored.folder(1), &[id(1)]);
    assert!(matches!(used, Err(RestoreBackupError::Used(_))), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_gone_from_under_its_snapshot_is_not_begun_anew() {
    let mut group = Group::start(1_000);
    propose_each(group.any(), "promised", 5).await;
    group.stop(1).await;
    for item in fs::read_dir(group.folder(1)).unwrap() {
        let item = item.unwrap();
        if item.file_name().to_string_lossy().starts_with("wal-") {
            fs::remove_file(item.path()).unwrap();
        }
    }
    let (sender, _outbound) = mpsc::channel(1);
    let config = config(1, group.folder(1), 10);
    let refused = Validator::start(&config, Tally::default(), sender).err();
    let refused = refused.expect("it forgot what it promised").to_string();
    assert!(refused.contains("no log after it"), "{refused}");
}

#[tokio::test]
async fn an_empty_folder_is_not_taken_for_a_replica_that_was_wiped() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(1, folder.path(), 10);
    config.beginning = LogBeginning::Refuse;
    let (sender, _outbound) = mpsc::channel(1);
    let started = Validator::start(&config, Tally::default(), sender);
    assert!(matches!(started.err(), Some(ValidatorError::Empty(_))));
}

#[tokio::test]
async fn a_full_queue_is_busy_and_says_when_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(1, folder.path(), 10);
    config.replica.limits.commands_max = 2;
    let (sender, _outbound) = mpsc::channel(1_024);
    let (validator, _ended) = Validator::start(&config, Tally::default(), sender).unwrap();
    let answers = validator.propose_all((0..3).map(|_| taken_in("many")).collect());
    let busy = |answer: &_| matches!(answer, Err(ProposeError::Busy { retry_after_ms }) if *retry_after_ms > 0);
    let answers = answers.await.unwrap();
    assert!(answers.iter().all(busy), "{answers:?}");
}

#[tokio::test]
async fn without_a_quorum_a_proposal_says_so_and_a_stale_read_still_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(1, folder.path(), 10);
    config.patience = Duration::from_millis(50);
    let (sender, _outbound) = mpsc::channel(1_024);
    let (validator, _ended) = Validator::start(&config, Tally::default(), sender).unwrap();
    let answer = validator.propose(taken_in("alone")).await;
    assert!(matches!(answer, Err(ProposeError::Timeout(_))));
    let fresh = validator.query_machine(Consistency::Linearizable, ()).await;
    assert!(matches!(fresh, Err(QueryError::Timeout(_))));
    let stale = validator
        .query_machine(Consistency::Stale, ())
        .await
        .unwrap();
    assert_eq!(stale.1.applied, LogIndex(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_sends_a_forged_command_is_named_and_replaced_and_nobody_applies_it() {
    let group = Group::start(1_000);
    propose_each(group.any(), "before", 5).await;
    let forger = group.leader().await;
    let liar = group.get(forger);
    let forging = tokio::spawn(async move { liar.propose(taken_in("forged")).await.is_ok() });
    let honest = forger % 3 + 1;
    loop {
        let status = group.get(honest).status().await.unwrap();
        let named = status.accusation.and_then(|accusation| accusation.leader);
        if named == Some(id(forger)) {
            break;
        }
        tokio::task::yield_now().await;
    }
    propose_each(group.get(honest), "after", 5).await;
    for number in 1..=3 {
        let counts = group.counts(number).await;
        assert!(!counts.contains_key(b"forged".as_slice()), "{number}");
    }
    forging.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_come_together_are_answered_together_in_order() {
    let group = Group::start(1_000);
    let commands = ["ask", "bid", "ask"].map(taken_in).into();
    let results = group.any().propose_all(commands).await.unwrap();
    let counts = results.into_iter().map(|result| result.unwrap()[0]);
    assert_eq!(counts.collect::<Vec<u8>>(), [1, 1, 2]);
    assert!(
        group
            .any()
            .propose_all(Vec::new())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_is_told_of_its_own_commands_however_many_ask_at_once() {
    let group = Group::start(1_000);
    let ask = |asker: usize| {
        let validator = group.any();
        let names = (0..asker % 5).map(move |place| match (asker + place) % 3 {
            0 => "forged".to_owned(),
            _ => format!("{asker}-{place}"),
        });
        let names: Vec<String> = names.collect();
        tokio::spawn(async move {
            let commands = names.iter().cloned().map(Bytes::from).collect();
            let verified = validator.verify_each(commands).await.unwrap();
            assert_eq!(verified.len(), names.len());
            for (verified, name) in verified.into_iter().zip(names) {
                let command = verified.ok().map(|it| it.command);
                assert_eq!(command, (name != "forged").then(|| name.into_bytes()));
            }
        })
    };
    let askers: Vec<_> = (0..200).map(ask).collect();
    for asker in askers {
        asker.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_too_large_for_the_log_is_refused_with_its_size() {
    let group = Group::start(1_000);
    let refused = group
        .any()
        .propose(taken_in(vec![0; COMMAND_BYTES_MAX + 1]))
        .await;
    let size = COMMAND_BYTES_MAX + 1;
    assert!(matches!(refused, Err(ProposeError::TooLarge { bytes }) if bytes == size));
}

/// The files of a validator's tiles, by path below the folder of its history.
fn tiles_of(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let level = folder.join("history/tile/0");
    let files = fs::read_dir(&level).into_iter().flatten().flatten();
    let tiles = files.map(|file| {
        (
            PathBuf::from(file.file_name()),
            fs::read(file.path()).unwrap(),
        )
    });
    tiles.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tile_that_a_killed_process_did_not_write_is_made_again_and_equal_everywhere() {
    let mut group = Group::start(100_000);
    propose_each(group.any(), "leaf", 600).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    let whole = tiles_of(group.folder(1));
    assert!(whole.len() >= 2, "{} tiles", whole.len());
    // As if it had died after the write of the log and before, or amid, that of the tile.
    let tile = |number: &str| group.folder(1).join("history/tile/0").join(number);
    fs::remove_file(tile("001")).unwrap();
    fs::write(tile("001.unfinished"), [7; 100]).unwrap();
    fs::write(tile("000"), [7; 100]).unwrap();
    for number in 1..=3 {
        group.run(number);
    }
    propose_each(group.get(1), "after", 5).await;
    for number in 1..=3 {
        group.stop(number).await;
    }
    let (one, two) = (tiles_of(group.folder(1)), tiles_of(group.folder(2)));
    for (path, bytes) in &whole {
        assert_eq!(bytes.len(), 256 * 32, "{}", path.display());
        assert!(
            one[path] == *bytes && two[path] == *bytes,
            "{}",
            path.display()
        );
    }
}
