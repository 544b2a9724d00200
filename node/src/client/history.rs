//! Gathers the signed heads of a market's history from every validator that answers, and the tiles
//! that prove that the heads are beginnings of one history.
//!
//! The caller must trust only the genesis: signatures prove who is a validator and who signed which
//! head, and hashes prove the rest. The client asks each validator directly, because a validator
//! that answered for another one could withhold that one's note (a signed head).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use souk_consensus::{Tile, TileId};
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_market::Genesis;
use souk_network::protocols::market::{Answer, Member, Request, TreeHeads};
use souk_proof::note::{Cosigners, NoteFault};
pub use souk_proof::note::{CosigningRoster, TreeNote};
use souk_proof::tiles::TILE_HASHES;
pub use souk_proof::witness::{NoWitnessKey, WitnessKey, WitnessedNote};
use souk_roles::market::history_check::{ANSWER_NOTES_MAX, list_known_cosigners};
pub use souk_roles::market::history_check::{
    Continuation, ContinuationCheck, Fork, HistoryCheck, SignedHead,
};
use souk_roles::market::known_members::KnownMembers;
use souk_roles::market::roster::Roster;
use souk_roles::market::roster_proof::ROSTER_FILE_BYTES_MAX;
pub use souk_roles::market::roster_proof::{CountedRoster, RosterFault, RosterProof};
use tokio::task::JoinSet;

use super::broker::{AttemptError, Broker};

/// The answer of one validator.
#[derive(Debug)]
pub struct ValidatorHeads {
    /// The raft id of the validator.
    pub raft_id: u64,
    /// The notes that it showed, or why it showed none.
    pub notes: Result<Vec<TreeNote>, HeadsError>,
}

impl ValidatorHeads {
    /// Returns the validators in whose names it showed signatures that are not theirs.
    #[must_use]
    pub fn list_forged(&self, members: &Cosigners) -> BTreeSet<u64> {
        let notes = self.notes.iter().flatten();
        notes.flat_map(|note| note.list_forged(members)).collect()
    }
}

/// Why a validator gave no valid heads.
#[derive(Debug, thiserror::Error)]
pub enum HeadsError {
    /// It gave no answer.
    #[error(transparent)]
    Attempt(#[from] AttemptError),
    /// The genesis or an order names it by bytes that are not an ed25519 key.
    #[error(transparent)]
    Key(#[from] key::NotAKey),
    /// Its answer does not belong to the question.
    #[error("it sent an unexpected answer: is it an older or newer souk?")]
    Confused,
}

/// The history as all reachable validators show it.
#[derive(Debug)]
pub struct GatheredHistory {
    /// The answers, by raft id.
    pub answers: Vec<ValidatorHeads>,
    /// The result of the check of all notes together.
    pub check: HistoryCheck,
    /// The operators' orders that admitted and removed validators.
    pub orders: RosterProof,
}

/// Asks each validator of a market for its signed heads. `known_notes` are judged with theirs.
pub async fn gather_heads(
    broker: &Broker,
    genesis: &Genesis,
    known_notes: Vec<TreeNote>,
) -> GatheredHistory {
    let (known, orders) = learn_members(broker, genesis).await;
    let mut asked = JoinSet::new();
    for member in known.staying_members() {
        let (broker, member) = (broker.clone(), member.clone());
        asked.spawn(async move {
            ValidatorHeads {
                raft_id: member.raft_id,
                notes: fetch_notes(&broker, &member).await,
            }
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|answer| answer.raft_id);
    let told = answers
        .iter()
        .flat_map(|answer| answer.notes.iter().flatten());
    let notes: Vec<TreeNote> = known_notes.into_iter().chain(told.cloned()).collect();
    let members = list_known_cosigners(genesis, &known);
    let check = HistoryCheck::judge_notes(genesis.market_id(), members, &notes);
    GatheredHistory {
        answers,
        check,
        orders,
    }
}

/// Asks each known validator for the list of validators, until no answer names new ones. Returns
/// also the operators' orders in the answers.
async fn learn_members(broker: &Broker, genesis: &Genesis) -> (KnownMembers, RosterProof) {
    let mut known = KnownMembers::new(genesis);
    let (began, mut orders) = (Roster::new(genesis), RosterProof::default());
    let mut asked = BTreeSet::new();
    loop {
        let fresh = known
            .staying_members()
            .filter(|it| !asked.contains(&it.raft_id));
        let fresh: Vec<Member> = fresh.cloned().collect();
        if fresh.is_empty() {
            return (known, orders);
        }
        let mut answers = JoinSet::new();
        for member in fresh {
            asked.insert(member.raft_id);
            let broker = broker.clone();
            answers.spawn(async move { ask_member(&broker, &member, &Request::Members).await });
        }
        for answer in answers.join_all().await {
            if let Ok(Answer::Members(members)) = answer {
                known.learn_members(&members);
                orders.learn_orders(&began, &members);
            }
        }
    }
}

async fn ask_member(
    broker: &Broker,
    member: &Member,
    request: &Request,
) -> Result<Answer, HeadsError> {
    let peer = key::peer_of(&member.account.0)?;
    // An address that this souk does not understand may be known to the network otherwise.
    if let Ok(contact) = Contact::parse(&member.address) {
        let _known = broker.network().add_contact(&contact).await;
    }
    Ok(broker.ask_one(peer, request).await?)
}

async fn fetch_notes(broker: &Broker, member: &Member) -> Result<Vec<TreeNote>, HeadsError> {
    let Answer::TreeHeads(heads) = ask_member(broker, member, &Request::TreeHeads).await? else {
        return Err(HeadsError::Confused);
    };
    let TreeHeads {
        latest,
        certified,
        conflicts,
    } = *heads;
    let texts = latest.into_iter().chain(certified).chain(conflicts);
    // A note that does not decode shows nothing.
    let notes = texts.filter_map(|text| TreeNote::decode(text.as_bytes()).ok());
    Ok(notes.take(ANSWER_NOTES_MAX).collect())
}

/// The result of a check, by tiles, that one head continues another, with the tiles.
#[derive(Clone, Debug)]
pub struct ShownContinuation {
    /// The result of the check.
    pub continuation: Continuation,
    /// The tiles.
    pub tiles: BTreeMap<TileId, Tile>,
}

impl ShownContinuation {
    /// Returns the one of two that shows more.
    fn or(self, other: Option<Self>) -> Self {
        let rank = |shown: &Self| match shown.continuation {
            Continuation::Proven { .. } | Continuation::Refuted => 2,
            Continuation::Contradicted => 1,
            Continuation::Missing(_) => 0,
        };
        other
            .filter(|other| rank(other) > rank(&self))
            .unwrap_or(self)
    }

    /// Returns whether no other tiles can show anything else.
    fn is_final(&self) -> bool {
        let shown = self.continuation;
        matches!(shown, Continuation::Proven { .. } | Continuation::Refuted)
    }
}

/// Fetches tiles from one validator after another until the tiles of one prove or refute the
/// continuation. Otherwise it returns that some tiles fit neither head, or which tiles are missing.
/// It skips the validators in `silent`, and adds those that do not give a tile.
pub async fn prove_continuation(
    broker: &Broker,
    history: &GatheredHistory,
    check: &ContinuationCheck,
    silent: &mut BTreeSet<u64>,
) -> Option<ShownContinuation> {
    let mut found = None;
    for answer in history.answers.iter().filter(|answer| answer.notes.is_ok()) {
        if silent.contains(&answer.raft_id) {
            continue;
        }
        let account = history.check.members.get(&answer.raft_id);
        let Some(peer) = account.and_then(|account| key::peer_of(&account.0).ok()) else {
            continue;
        };
        let mut tiles = BTreeMap::new();
        for id in check.needed_tiles().into_keys() {
            let request = Request::Tile {
                level: id.level,
                index: id.index,
            };
            let told = broker.ask_one(peer, &request).await;
            let Some(tile) = read_tile(id, told) else {
                silent.insert(answer.raft_id);
                break;
            };
            tiles.insert(id, tile);
        }
        let shown = ShownContinuation {
            continuation: check.check_tiles(&tiles),
            tiles,
        };
        let shown = shown.or(found);
        if shown.is_final() {
            return Some(shown);
        }
        found = Some(shown);
    }
    found
}

pub(super) fn read_tile(id: TileId, answer: Result<Answer, AttemptError>) -> Option<Tile> {
    match answer {
        Ok(Answer::Tile(Some(bytes))) => Tile::decode(id, &bytes),
        _ => None,
    }
}

/// Why a folder has no usable heads.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: std::io::Error,
    },
    /// A note in it does not decode.
    #[error("{path}: {cause}")]
    Note {
        /// The file that does not decode.
        path: PathBuf,
        /// Why it is not a note.
        #[source]
        cause: NoteFault,
    },
    /// It has more notes than are allowed.
    #[error("{0} has more than {FOLDER_NOTES_MAX} notes: name a folder with fewer")]
    Full(PathBuf),
    /// The operators' orders in it do not decode.
    #[error("{path}: {cause}")]
    Orders {
        /// The file with the orders.
        path: PathBuf,
        /// Why they are not orders.
        #[source]
        cause: RosterFault,
    },
    /// It has no notes.
    #[error("there is no note in {0}: no file \"checkpoint\" and none that ends in .{NOTE_ENDING}")]
    Empty(PathBuf),
}

/// The most notes of a folder.
const FOLDER_NOTES_MAX: usize = 4_096;

/// The file of a folder with the operators' orders about the validators.
pub const ROSTER_FILE: &str = "history.roster";

/// The ending of a file with a note.
pub const NOTE_ENDING: &str = "checkpoint";

/// The history in folders on disk, checked without a network: notes, and tiles in the layout of
/// C2SP.
#[derive(Debug)]
pub struct StoredHistory {
    folders: Vec<PathBuf>,
    notes: Vec<TreeNote>,
    /// The operators' orders in each folder, or why they cannot be read.
    pub orders: Vec<(PathBuf, Result<RosterProof, FolderError>)>,
}

impl StoredHistory {
    /// Reads the notes of folders, and the operators' orders about the validators.
    ///
    /// # Errors
    /// If a folder has no note, or a note does not decode.
    pub fn read_folders(folders: &[PathBuf]) -> Result<Self, FolderError> {
        let notes = folders.iter().map(|folder| read_notes(folder));
        let notes = notes.collect::<Result<Vec<_>, FolderError>>()?.concat();
        let orders = folders.iter().map(|it| (it.clone(), read_orders(it)));
        let orders = orders.collect();
        let folders = folders.to_vec();
        Ok(Self {
            folders,
            notes,
            orders,
        })
    }

    /// Judges all notes by the signatures of a roster. A validator that the genesis names and that
    /// was removed since is still convicted by what it signed.
    #[must_use]
    pub fn judge_notes(&self, genesis: &Genesis, roster: CosigningRoster) -> HistoryCheck {
        let market = genesis.market_id();
        let mut check = HistoryCheck::judge_notes(market, roster, &self.notes);
        let convicts = |fork: &Fork| !fork.liars().is_empty();
        if !check.forks.iter().any(convicts) {
            let founders = list_known_cosigners(genesis, &KnownMembers::new(genesis));
            let founded = HistoryCheck::judge_notes(market, founders, &self.notes);
            check
                .forks
                .extend(founded.forks.into_iter().filter(convicts));
        }
        check
    }

    /// Checks a continuation with the tiles of one folder after the other, whole or partial.
    #[must_use]
    pub fn prove_continuation(&self, check: &ContinuationCheck) -> Option<ShownContinuation> {
        let mut found = None;
        for folder in &self.folders {
            let tiles = read_tiles(folder, check);
            let continuation = check.check_tiles(&tiles);
            let shown = ShownContinuation {
                continuation,
                tiles,
            };
            found = Some(shown.or(found));
        }
        found
    }
}

/// Reads the operators' orders of a folder; none if it has no file with them.
///
/// # Errors
/// If the file cannot be read, is too long or does not decode.
pub fn read_orders(folder: &Path) -> Result<RosterProof, FolderError> {
    let path = folder.join(ROSTER_FILE);
    let read = std::fs::File::open(&path).and_then(|file| {
        let mut text = Vec::new();
        // One byte more shows that it is too long.
        file.take(ROSTER_FILE_BYTES_MAX as u64 + 1)
            .read_to_end(&mut text)?;
        Ok(text)
    });
    match read {
        Ok(text) => {
            RosterProof::from_text(&text).map_err(|cause| FolderError::Orders { path, cause })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(RosterProof::default()),
        Err(cause) => Err(FolderError::Read { path, cause }),
    }
}

fn read_notes(folder: &Path) -> Result<Vec<TreeNote>, FolderError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| FolderError::Read { path, cause }
    };
    let mut notes = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let path = entry.map_err(failed(folder))?.path();
        let is_note = [path.file_name(), path.extension()]
            .into_iter()
            .flatten()
            .any(|part| part == NOTE_ENDING);
        if !is_note {
            continue;
        }
        if notes.len() == FOLDER_NOTES_MAX {
            return Err(FolderError::Full(folder.to_owned()));
        }
        let bytes = std::fs::read(&path).map_err(failed(&path))?;
        let note = TreeNote::decode(&bytes);
        notes.push(note.map_err(|cause| FolderError::Note { path, cause })?);
    }
    if notes.is_empty() {
        return Err(FolderError::Empty(folder.to_owned()));
    }
    Ok(notes)
}

/// Returns those tiles that a continuation needs and the folder has.
fn read_tiles(folder: &Path, check: &ContinuationCheck) -> BTreeMap<TileId, Tile> {
    let mut tiles = BTreeMap::new();
    for (id, wanted) in check.needed_tiles() {
        let paths = std::iter::once(id.to_path())
            .chain((wanted..=TILE_HASHES).map(|width| id.to_partial_path(width)));
        let read = |path| std::fs::read(folder.join(path)).ok();
        let tile = paths
            .filter_map(read)
            .find_map(|bytes| Tile::decode(id, &bytes));
        tiles.extend(tile.map(|tile| (id, tile)));
    }
    tiles
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use souk_market::{AccountKey, Founder, Millis, SigningKey};
    use souk_network::protocols::market::{Members, Standing};
    use souk_network::protocols::roster::{Body, MembershipOrder, SignedMembershipOrder};
    use souk_roles::market::order_number::{ChangeCount, number_order};

    use super::*;

    const TIMES: u32 = 10;

    fn key(number: u64) -> SigningKey {
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        SigningKey::from_bytes(&seed)
    }

    /// Measures a check of the roster alone, which takes most of the time of an offline check.
    #[test]
    #[ignore = "a measurement: it prints times and sizes"]
    fn measure_a_roster_of_fifteen_after_each_number_of_changes() {
        for changes in [11, 100, 1_000] {
            let (genesis, answer) = change_validators(changes);
            let mut orders = RosterProof::default();
            orders.learn_orders(&Roster::new(&genesis), &answer);
            let bytes = orders.to_proof_bytes();
            let begin = Instant::now();
            for _ in 0..TIMES {
                let read = RosterProof::decode(&bytes).unwrap();
                let counted = read.count_validators(&genesis, &RosterProof::default());
                assert_eq!(counted.unwrap().changes, changes);
            }
            let text = bytes.len().div_ceil(3) * 4;
            let took = begin.elapsed() / TIMES;
            println!("{changes} changes: {text} bytes of base64, checked in {took:?}");
        }
    }

    /// A market of four founders that grows to 15 validators and then replaces the oldest ones, and
    /// a validator's answer about it.
    fn change_validators(changes: u64) -> (Genesis, Members) {
        let account = |of: u64| AccountKey::from(&key(of));
        let address = |of: u64| {
            format!(
                "/dns4/validator-{of}.example.org/tcp/4001/p2p/{}",
                account(of)
            )
        };
        let mut genesis = Genesis::new("m".try_into().unwrap(), account(0));
        let founder = |raft_id: u64| Founder {
            raft_id,
            account: account(raft_id),
            address: address(raft_id),
        };
        genesis.validators = (1..=4).map(founder).collect();
        let member = |raft_id: u64| Member {
            raft_id,
            account: account(raft_id),
            address: address(raft_id),
            standing: Standing::Voter,
            begun: true,
            speaks: 1,
            reached: None,
            running: None,
        };
        let mut answer = Members {
            answered_by: 1,
            leader: 1,
            operators: genesis.operators.clone(),
            validators: (1..=4).map(member).collect(),
            orders: Vec::new(),
        };
        let (mut highest_id, mut removals) = (4, 0);
        for change in 0..changes {
            let before = ChangeCount {
                highest_id,
                removals,
            };
            let now_ms = 1_764_428_531_250 + 1_000 * change;
            let order = if highest_id - removals < 15 {
                highest_id += 1;
                answer.validators.push(member(highest_id));
                MembershipOrder::Admit {
                    account: account(highest_id),
                    address: address(highest_id),
                }
            } else {
                removals += 1;
                MembershipOrder::Remove { raft_id: removals }
            };
            let body = Body {
                market: genesis.market_id(),
                signer: account(0),
                number: number_order(now_ms, Some(before)),
                expires: Millis(now_ms + 60_000),
                order,
            };
            answer
                .orders
                .push(SignedMembershipOrder::sign(body, &key(0)));
        }
        (genesis, answer)
    }
}
