//! Gathers the signed heads of a market's history from every validator that answers, and the tiles
//! that prove that the heads are beginnings of one history.
//!
//! The caller must trust only the genesis: signatures prove who is a validator and who signed which
//! head, and hashes prove the rest. The client asks each validator directly, because a validator
//! that answered for another one could withhold that one's note (a signed head).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use souk_consensus::{Tile, TileId};
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_market::Genesis;
use souk_network::protocols::market::{Answer, Member, Request, TreeHeads};
pub use souk_proof::note::TreeNote;
use souk_proof::note::{Cosigners, NoteFault};
use souk_proof::tiles::TILE_HASHES;
use souk_roles::market::history_check::{ANSWER_NOTES_MAX, list_known_cosigners};
pub use souk_roles::market::history_check::{
    Continuation, ContinuationCheck, Fork, HistoryCheck, SignedHead,
};
use souk_roles::market::known_members::KnownMembers;
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
}

/// Asks each validator of a market for its signed heads. `known_notes` are judged with theirs.
pub async fn gather_heads(
    broker: &Broker,
    genesis: &Genesis,
    known_notes: Vec<TreeNote>,
) -> GatheredHistory {
    let known = learn_members(broker, genesis).await;
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
    GatheredHistory { answers, check }
}

/// Asks each known validator for the list of validators, until no answer names new ones.
async fn learn_members(broker: &Broker, genesis: &Genesis) -> KnownMembers {
    let mut known = KnownMembers::new(genesis);
    let mut asked = BTreeSet::new();
    loop {
        let fresh = known
            .staying_members()
            .filter(|it| !asked.contains(&it.raft_id));
        let fresh: Vec<Member> = fresh.cloned().collect();
        if fresh.is_empty() {
            return known;
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
    /// It has no notes.
    #[error("there is no note in {0}: no file \"checkpoint\" and none that ends in .{NOTE_ENDING}")]
    Empty(PathBuf),
}

/// The most notes of a folder.
const FOLDER_NOTES_MAX: usize = 4_096;

/// The ending of a file with a note.
pub const NOTE_ENDING: &str = "checkpoint";

/// The history in folders on disk, checked without a network: notes, and tiles in the layout of
/// C2SP.
#[derive(Debug)]
pub struct StoredHistory {
    folders: Vec<PathBuf>,
    /// The result of the check of all notes. Only the founders count as validators, because nothing
    /// in the folders proves who joined later.
    pub check: HistoryCheck,
}

impl StoredHistory {
    /// Reads the notes of folders, and judges them together.
    ///
    /// # Errors
    /// If one has none, or a note does not decode.
    pub fn read_folders(folders: &[PathBuf], genesis: &Genesis) -> Result<Self, FolderError> {
        let notes = folders.iter().map(|folder| read_notes(folder));
        let notes = notes.collect::<Result<Vec<_>, FolderError>>()?.concat();
        let members = list_known_cosigners(genesis, &KnownMembers::new(genesis));
        let check = HistoryCheck::judge_notes(genesis.market_id(), members, &notes);
        let folders = folders.to_vec();
        Ok(Self { folders, check })
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
