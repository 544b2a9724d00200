//! Saves to files the signed heads that `souk market verify` found, so that others can compare or
//! check them without a network. A head states the size and the root hash of the market's history;
//! two contradictory ones convict the validators that signed both.

use std::path::{Path, PathBuf};

use souk_node::client::history::{
    ContinuationCheck, Fork, HistoryCheck, NOTE_ENDING, ROSTER_FILE, RosterProof,
    ShownContinuation, SignedHead, TreeNote,
};
use souk_node::memory::ContentId;

use crate::commands::roster;
use crate::failure::{Failure, Kind, Outcome};

/// Saves every head that validators signed, with all their signatures; those that the folder has of
/// the same head stay. Beside them are the operators' orders that show who the validators are.
pub fn save_heads(folder: &Path, check: &HistoryCheck, orders: &RosterProof) -> Outcome {
    create_folder(folder)?;
    let orders = orders.without_former_admissions();
    roster::write_orders(folder, &orders).map_err(|error| {
        let cause = format!(
            "cannot write {ROSTER_FILE} in {}: {error}",
            folder.display()
        );
        Failure::new(Kind::State, cause, "name a folder that you can write")
    })?;
    for signed in &check.heads {
        let mut note = signed.note.clone();
        let path = folder.join(name_note("head", signed));
        let known = std::fs::read(&path).ok();
        let known = known.and_then(|bytes| TreeNote::decode(&bytes).ok());
        let known = known.filter(|known| known.to_body() == note.to_body());
        let known = known.map_or_else(Vec::new, |known| known.cosignatures);
        known.into_iter().for_each(|it| note.insert(it));
        write_file(&path, note.encode().as_bytes())?;
    }
    Ok(())
}

/// Saves both heads of a fork. Returns their files, which convict who signed both.
pub fn save_fork(folder: &Path, fork: &Fork) -> Result<[PathBuf; 2], Failure> {
    let [one, other] = &fork.heads;
    Ok([save_head(folder, one)?, save_head(folder, other)?])
}

/// Saves two heads of which the larger does not continue the smaller, and the tiles that show it,
/// into a folder of their own. Returns that folder.
pub fn save_refutation(
    folder: &Path,
    check: &ContinuationCheck,
    shown: &ShownContinuation,
) -> Result<PathBuf, Failure> {
    let [from, to] = [&check.from, &check.to].map(|signed| signed.note.to_body());
    let bodies = ContentId::for_content([from, to].concat().as_bytes()).to_string();
    let sizes = [&check.from, &check.to].map(|signed| signed.head().size);
    let name = format!("evidence-{}-{}-{}", sizes[0], sizes[1], &bodies[..32]);
    let folder = folder.join(name);
    create_folder(&folder)?;
    save_head(&folder, &check.from)?;
    save_head(&folder, &check.to)?;
    for tile in shown.tiles.values() {
        let path = match tile.is_full() {
            true => tile.id.to_path(),
            false => tile.id.to_partial_path(tile.hashes.len()),
        };
        let path = folder.join(path);
        create_folder(path.parent().unwrap_or(&folder))?;
        write_file(&path, &tile.encode())?;
    }
    Ok(folder)
}

fn save_head(folder: &Path, signed: &SignedHead) -> Result<PathBuf, Failure> {
    let path = folder.join(name_note("evidence", signed));
    write_file(&path, signed.note.encode().as_bytes())?;
    Ok(path)
}

/// Returns the name of a file for a head. It is a hash of all that was signed: a validator can
/// choose roots that begin alike, so that one file would replace the other.
fn name_note(kind: &str, signed: &SignedHead) -> String {
    let body = ContentId::for_content(signed.note.to_body().as_bytes()).to_string();
    format!(
        "{kind}-{}-{}.{NOTE_ENDING}",
        signed.head().size,
        &body[..32]
    )
}

fn create_folder(folder: &Path) -> Outcome {
    std::fs::create_dir_all(folder).map_err(|error| {
        let cause = format!("cannot make the folder {}: {error}", folder.display());
        Failure::new(Kind::State, cause, "name a folder that you can write")
    })
}

/// Writes a file of a folder that the user named.
pub fn write_file(path: &Path, bytes: &[u8]) -> Outcome {
    std::fs::write(path, bytes).map_err(|error| {
        let cause = format!("cannot write {}: {error}", path.display());
        Failure::new(
            Kind::State,
            cause,
            "give a folder that you can write with --dir",
        )
    })
}
