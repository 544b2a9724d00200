//! Restores a backup into a validator's folder.
//!
//! The folder belongs either to a new validator, which the market must then admit under a new id
//! and which lacks only later entries, or to a founder, if the whole market begins again from the
//! backup.

use std::path::Path;

use souk_consensus::{Digest, LogIndex, StateMachine};
use souk_folder::config::{self, ConfigError, VALIDATOR_FILE, ValidatorFile};
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_market::MarketId;

use super::{REPLICA_FOLDER, ValidatorNodeError, founder_ids, has_begun};
use crate::validator::exchange_machine;
use crate::validator::statements::StatementWriter;
use crate::validator::{RestoreBackupError, place_state, read_backup};

/// The result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restoration {
    /// The last entry in the state.
    pub index: LogIndex,
    /// The digest of the state.
    pub state: Digest,
}

/// Why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file or the folder is not usable.
    #[error(transparent)]
    Backup(#[from] RestoreBackupError),
    /// The folder belongs to a validator that has begun.
    #[error("this folder belongs to a validator that has begun")]
    Begun,
    /// The state does not decode.
    #[error("the backup's state can't be restored: {0}")]
    State(#[from] souk_consensus::RestoreError),
    /// The state does not match its digest.
    #[error("the backup's state has the digest {found}, {wanted} was written")]
    Digest {
        /// The digest that was recorded.
        wanted: Digest,
        /// The digest of the restored state.
        found: Digest,
    },
    /// The backup is of another market.
    #[error("the backup is of market {found}, this folder belongs to {wanted}")]
    Market {
        /// The market of this folder.
        wanted: MarketId,
        /// The market of the backup.
        found: MarketId,
    },
    /// The market's file is not usable.
    #[error(transparent)]
    ValidatorNode(Box<ValidatorNodeError>),
    /// This node is not a founder, so the market cannot begin again from it.
    #[error(
        "this node's key belongs to none of the validators in market.json, which found the market"
    )]
    NoFounder,
    /// The validator's own file could not be read or written.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Restores a backup into a folder that has not begun. With `found` the market begins again from it
/// with the validators of its file; you must restore each of them from the same backup.
///
/// # Errors
/// If the backup is damaged, with the position, or of another market, or if the folder is in use.
pub fn restore_backup(
    home: &Path,
    key: &NodeKey,
    market: &MarketFile,
    file: &Path,
    found: bool,
) -> Result<Restoration, RestoreError> {
    if has_begun(home) {
        return Err(RestoreError::Begun);
    }
    let mut snapshot = read_backup(file)?;
    let (mut machine, _) = exchange_machine::new_machine(market, StatementWriter::new_discarding());
    machine.restore(&snapshot.machine)?;
    let (wanted, state) = (snapshot.state, Digest(machine.digest()));
    if wanted != state {
        let found = state;
        return Err(RestoreError::Digest { wanted, found });
    }
    let (wanted, of) = (market.genesis.market_id(), machine.exchange().market());
    if wanted != of {
        return Err(RestoreError::Market { wanted, found: of });
    }
    if found {
        let founders =
            founder_ids(market).map_err(|error| RestoreError::ValidatorNode(Box::new(error)))?;
        let mine = founders.get(&key.peer_id());
        name_founder(home, mine.ok_or(RestoreError::NoFounder)?.get())?;
        let mut all: Vec<_> = founders.into_values().collect();
        all.sort_unstable();
        machine.reset_roster(&market.genesis);
        let state = Digest(machine.digest());
        snapshot = snapshot.start_group_with_machine(&all, state, &machine.snapshot());
    }
    let state = snapshot.state;
    let index = place_state(&home.join(REPLICA_FOLDER), snapshot)?;
    Ok(Restoration { index, state })
}

/// Gives a founder the id that it has in the market's file, whatever id it had later.
fn name_founder(home: &Path, raft_id: u64) -> Result<(), ConfigError> {
    let path = home.join(VALIDATOR_FILE);
    let mut file: ValidatorFile = config::read(&path)?;
    file.raft_id = Some(raft_id);
    config::write(&path, &file)
}
