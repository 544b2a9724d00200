//! Stores the history's tree in a validator's folder, as C2SP `tlog-tiles` lays it out: a file for
//! each full tile, `checkpoint` with the last certified head, and `signed`, the journal of the head
//! that this validator signed last.
//!
//! Any web server that serves the folder serves the history. Tiles can be computed again from the
//! log, so the validator repeats a write that a killed process did not finish. Tiles are not synced
//! to the disk: after a power loss this validator can lack some, but other validators have them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use souk_consensus::{Tile, TileId};
use souk_folder::durable_file::write_durably;

/// The folder inside the replica's.
const FOLDER: &str = "history";

/// The file with the last certified head.
const CHECKPOINT_FILE: &str = "checkpoint";

/// The file with the head that this validator signed last.
const SIGNED_FILE: &str = "signed";

/// The end of the name of the folder with the beginning of a tile that is not full.
const PARTIAL: &str = "p";

/// The end of a file's name until all of its bytes are written.
const UNFINISHED: &str = "unfinished";

/// The folder of one validator's history.
#[derive(Clone, Debug)]
pub(super) struct HistoryFolder {
    root: PathBuf,
}

impl HistoryFolder {
    /// Returns the folder inside a replica's folder, which need not exist yet.
    pub(super) fn in_replica(folder: &Path) -> Self {
        let root = folder.join(FOLDER);
        Self { root }
    }

    /// Writes full tiles; each appears whole or not at all, unless power fails.
    pub(super) fn write_tiles(&self, tiles: &[Tile]) -> io::Result<()> {
        tiles.iter().try_for_each(|tile| {
            let path = self.root.join(tile.id.to_path());
            self.replace(&path, &tile.encode())?;
            match fs::remove_dir_all(path.with_extension(PARTIAL)) {
                // The task that stores certified heads writes the tile's beginning just now. It
                // does no harm there: readers take the full tile.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
                removed => remove_if_there(removed),
            }
        })
    }

    /// Reads a full tile; none if it is not here, or not whole.
    pub(super) fn read_tile(&self, id: TileId) -> io::Result<Option<Tile>> {
        let bytes = read_if_there(&self.root.join(id.to_path()))?;
        let tile = bytes.and_then(|bytes| Tile::decode(id, &bytes));
        Ok(tile.filter(Tile::is_full))
    }

    /// Reads the journal.
    pub(super) fn read_journal(&self) -> io::Result<Option<Vec<u8>>> {
        read_if_there(&self.journal_path())
    }

    /// Makes a new journal durable.
    pub(super) fn write_journal(&self, note: &str) -> io::Result<()> {
        fs::create_dir_all(&self.root)?;
        write_durably(&self.journal_path(), note.as_bytes())
    }

    /// Returns the path of the journal.
    pub(super) fn journal_path(&self) -> PathBuf {
        self.root.join(SIGNED_FILE)
    }

    /// Reads the last certified head.
    pub(super) fn read_checkpoint(&self) -> io::Result<Option<Vec<u8>>> {
        read_if_there(&self.root.join(CHECKPOINT_FILE))
    }

    /// Replaces the last certified head. `open` are the tiles that are not full in its tree, for
    /// readers of the folder.
    pub(super) fn write_checkpoint(&self, note: &str, open: &[Tile]) -> io::Result<()> {
        for tile in open {
            let path = self.root.join(tile.id.to_partial_path(tile.hashes.len()));
            let folder = path.parent().unwrap_or(&self.root);
            let before = list_if_there(folder)?;
            self.replace(&path, &tile.encode())?;
            for older in before.into_iter().filter(|older| *older != path) {
                remove_if_there(fs::remove_file(older))?;
            }
        }
        self.replace(&self.root.join(CHECKPOINT_FILE), note.as_bytes())
    }

    /// Writes a file under a temporary name, then renames it, so that it is never incomplete.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let unfinished = path.with_extension(UNFINISHED);
        match fs::write(&unfinished, bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
                fs::write(&unfinished, bytes)?;
            }
            written => written?,
        }
        fs::rename(unfinished, path)
    }
}

/// Returns the result of a removal, which succeeds if there was nothing.
fn remove_if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn list_if_there(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(files) => files.map(|file| Ok(file?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use souk_consensus::Digest;

    use super::*;

    #[test]
    fn tiles_lie_where_the_format_says_and_a_torn_one_is_none() {
        let home = tempfile::tempdir().unwrap();
        let folder = HistoryFolder::in_replica(home.path());
        let id = TileId {
            level: 0,
            index: 1_234_067,
        };
        assert_eq!(folder.read_tile(id).unwrap(), None);
        let hashes = vec![Digest([3; 32]); 256];
        let tile = Tile { id, hashes };
        folder.write_tiles(std::slice::from_ref(&tile)).unwrap();
        assert_eq!(folder.read_tile(id).unwrap(), Some(tile));
        let path = home.path().join("history/tile/0/x001/x234/067");
        assert_eq!(fs::read(&path).unwrap(), [3; 256 * 32]);
        fs::write(path, [3; 32]).unwrap();
        assert_eq!(folder.read_tile(id).unwrap(), None);
    }

    #[test]
    fn an_open_tile_has_one_file_until_it_is_full() {
        let home = tempfile::tempdir().unwrap();
        let folder = HistoryFolder::in_replica(home.path());
        let id = TileId { level: 0, index: 7 };
        let tile = |width| Tile {
            id,
            hashes: vec![Digest([3; 32]); width],
        };
        let partial = home.path().join("history/tile/0/007.p");
        for width in [3, 4, 4] {
            folder.write_checkpoint("note", &[tile(width)]).unwrap();
            let files = list_if_there(&partial).unwrap();
            assert_eq!(files, [partial.join(width.to_string())]);
        }
        folder.write_tiles(&[tile(256)]).unwrap();
        assert!(!partial.exists());
        assert_eq!(folder.read_tile(id).unwrap(), Some(tile(256)));
    }

    /// The thread that owns the log writes full tiles, and another task the beginnings.
    #[test]
    fn a_tile_that_fills_up_while_its_beginning_is_written_is_no_error() {
        let home = tempfile::tempdir().unwrap();
        let folder = HistoryFolder::in_replica(home.path());
        let id = TileId { level: 0, index: 7 };
        let tile = |width| Tile {
            id,
            hashes: vec![Digest([3; 32]); width],
        };
        std::thread::scope(|scope| {
            let written = scope.spawn(|| {
                let full = [tile(256)];
                (0..500).try_for_each(|_| folder.write_tiles(&full))
            });
            let mut width = 1;
            while !written.is_finished() {
                // This write can find its folder gone, which the task reports and lives with.
                let _gone = folder.write_checkpoint("note", &[tile(width)]);
                width = 1 + width % 255;
            }
            written.join().unwrap().unwrap();
        });
        assert_eq!(folder.read_tile(id).unwrap(), Some(tile(256)));
    }

    #[test]
    fn the_journal_and_the_certified_head_are_read_as_written() {
        let home = tempfile::tempdir().unwrap();
        let folder = HistoryFolder::in_replica(home.path());
        assert_eq!(folder.read_journal().unwrap(), None);
        assert_eq!(folder.read_checkpoint().unwrap(), None);
        for note in ["one", "two"] {
            folder.write_journal(note).unwrap();
            folder.write_checkpoint(note, &[]).unwrap();
        }
        assert_eq!(folder.read_journal().unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(
            folder.read_checkpoint().unwrap().as_deref(),
            Some(&b"two"[..])
        );
    }
}
