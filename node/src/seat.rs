//! A validator as a node: its replica, its lines to the other validators, its door for peers.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use souk_consensus::{ReplicaConfig, ReplicaId};
use tokio::sync::mpsc;

use crate::config::{ConfigError, MarketFile, ValidatorFile};
use crate::contact::Contact;
use crate::exchange_machine::ExchangeMachine;
use crate::key::{NodeKey, NotAKey};
use crate::network::{self, Network};
use crate::validator::{
    self, Beginning, Ended, Validator, ValidatorAudit, ValidatorAuditError, ValidatorConfig,
    ValidatorError, ValidatorFailure,
};
use crate::{order_entry, raft_link};

/// Raft messages on their way to the network task; raft sends again what does not fit.
const OUTBOUND_MAX: usize = 4096;

/// The file that says that this node has had its log: a log that is gone is then a loss, not a
/// beginning.
const FOUNDED_FILE: &str = "founded";

/// The log, its snapshots and the views.
const REPLICA_FOLDER: &str = "replica";

/// What a validator runs with.
pub struct Config {
    /// Its folder.
    pub home: PathBuf,
    /// Its key.
    pub key: NodeKey,
    /// Its market.
    pub market: MarketFile,
    /// Its place in it.
    pub validator: ValidatorFile,
}

/// Why a validator stopped or did not start.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// The market's file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A validator in the market's file has no usable key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// This node's key is not the one the market's file has for its raft id.
    #[error("this node's key is not that of validator {raft_id} in the market's file")]
    Impostor {
        /// The raft id it was told.
        raft_id: u64,
    },
    /// A raft id is 0.
    #[error("0 is not a raft id")]
    RaftId,
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] network::StartError),
    /// The folder could not be used.
    #[error("cannot use {path}: {source}")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The replica did not start.
    #[error(transparent)]
    Replica(#[from] ValidatorError),
    /// The replica stopped.
    #[error(transparent)]
    Failure(#[from] ValidatorFailure),
}

/// A running validator.
pub struct Seat {
    validator: Validator<ExchangeMachine>,
    ended: Ended,
}

impl Seat {
    /// Recovers the replica, joins the network and serves.
    pub async fn start(config: Config) -> Result<Seat, SeatError> {
        let Config {
            home,
            key,
            market,
            validator: file,
        } = config;
        let members = members(&market)?;
        let id = ReplicaId::new(file.raft_id).ok_or(SeatError::RaftId)?;
        if members.get(&key.peer_id()) != Some(&id) {
            return Err(SeatError::Impostor {
                raft_id: file.raft_id,
            });
        }
        let listen = Some(file.listen);
        let network = Network::start(&key, network::Config { listen }).await?;
        for contact in market.contacts()? {
            // The network was started a moment ago: it has not stopped.
            let _ = network.learn(&contact).await;
        }
        let (machine, changes) = ExchangeMachine::new(market.genesis);
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        let config = replica_config(&home, &key, id, &members);
        let (validator, ended) = Validator::start(&config, machine, outbound)?;
        mark_founded(&home)?;
        let peers: HashMap<PeerId, ReplicaId> = members
            .into_iter()
            .filter(|(_, member)| *member != id)
            .collect();
        raft_link::receive(&network, validator.clone(), peers.clone());
        tokio::spawn(raft_link::send(network.clone(), messages, peers));
        order_entry::serve(&network, validator.clone(), changes);
        Ok(Seat { validator, ended })
    }

    /// Serves until `stop` ends or the replica fails.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), SeatError> {
        let ended = self.ended.wait();
        tokio::pin!(ended);
        tokio::select! {
            failed = &mut ended => return Ok(failed?),
            () = stop => {}
        }
        self.validator.stop();
        Ok(ended.await?)
    }
}

/// Audits the log of a stopped validator whose folder `home` is.
///
/// # Errors
/// The first thing that is damaged or does not come out as written.
pub fn audit(home: &Path, market: &MarketFile) -> Result<ValidatorAudit, ValidatorAuditError> {
    let any = ReplicaId::new(1).expect("1 is an id");
    let checkpoint_entries = ReplicaConfig::new(any, 0).checkpoint_entries;
    let machine = || ExchangeMachine::new(market.genesis.clone()).0;
    validator::audit(&home.join(REPLICA_FOLDER), checkpoint_entries, machine)
}

fn members(market: &MarketFile) -> Result<HashMap<PeerId, ReplicaId>, SeatError> {
    let contacts = market.contacts()?;
    let member = |(entry, contact): (&crate::config::ValidatorEntry, &Contact)| {
        let id = ReplicaId::new(entry.raft_id).ok_or(SeatError::RaftId)?;
        Ok((contact.peer()?, id))
    };
    market
        .validators
        .iter()
        .zip(&contacts)
        .map(member)
        .collect()
}

fn replica_config(
    home: &Path,
    key: &NodeKey,
    id: ReplicaId,
    members: &HashMap<PeerId, ReplicaId>,
) -> ValidatorConfig {
    let mut all: Vec<ReplicaId> = members.values().copied().collect();
    all.sort_unstable();
    let beginning = match home.join(FOUNDED_FILE).exists() {
        true => Beginning::Refuse,
        false => Beginning::Found(all),
    };
    // Election timeouts must differ between validators; the key's bytes do.
    let mut seed = [0; 8];
    seed.copy_from_slice(&key.public()[..8]);
    ValidatorConfig::new(
        id,
        u64::from_le_bytes(seed),
        home.join(REPLICA_FOLDER),
        beginning,
    )
}

fn mark_founded(home: &Path) -> Result<(), SeatError> {
    let path = home.join(FOUNDED_FILE);
    fs::write(&path, "").map_err(|source| SeatError::Folder { path, source })
}
