//! Runs a validator as a node of the network: it starts the replica, the connections to the other
//! validators, and the server of peers' requests.
//!
//! A file in the folder records that the validator once had a log. If that file exists and the log
//! is gone, the validator has lost its votes and acknowledgements, and must not start under its old
//! id.

mod admission;
mod gauges;
mod keeper;
mod restore;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use souk_consensus::replica::StartError;
use souk_consensus::{ReplicaConfig, ReplicaId};
use souk_folder::config::{self, ConfigError, VALIDATOR_FILE, ValidatorFile};
use souk_folder::contact::Contact;
use souk_folder::key::{self, NodeKey, NotAKey};
use souk_folder::market_file::MarketFile;
use souk_market::{AccountKey, Founder};
use souk_network::Network;
use souk_network::metrics::PageMaker;
use souk_network::protocols::market::Member;
use souk_roles::validator::action::ReplicaFailure;
use tokio::sync::{mpsc, watch};

use crate::validator::account_watchers::AccountWatchers;
use crate::validator::exchange_machine::{self, ExchangeMachine};
use crate::validator::statements::{self, StatementWriter, Statements};
use crate::validator::{
    self, LogBeginning, Validator, ValidatorAudit, ValidatorAuditError, ValidatorConfig,
    ValidatorEnd, ValidatorError, ValidatorFailure,
};
use crate::validator::{CosigningError, cosigning, jury, raft_link, request_server};
use admission::MembersTold;
use keeper::MembershipKeeper;

pub use restore::{Restoration, RestoreError, restore_backup};

/// Raft messages that can wait for the network task; raft repeats those that do not fit.
const OUTBOUND_MAX: usize = 4096;

/// The file that records that this node has had its log: a missing log is then a loss, not a
/// beginning.
const FOUNDED_FILE: &str = "founded";

/// The file that records that the market has removed the validator of this folder.
pub const REMOVED_FILE: &str = "removed";

/// The folder of the log, its snapshots and the views.
const REPLICA_FOLDER: &str = "replica";

/// The folder of accounts' statements, inside it.
const STATEMENTS_FOLDER: &str = "statements";

/// The configuration of a validator node.
pub struct ValidatorNodeConfig {
    /// The validator's folder.
    pub home: PathBuf,
    /// The validator's key.
    pub key: NodeKey,
    /// The market that it belongs to.
    pub market: MarketFile,
    /// The validator's id and address.
    pub validator: ValidatorFile,
    /// Optional features of its network.
    pub network: souk_network::Options,
}

/// Why a validator did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ValidatorNodeError {
    /// The market's file is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A validator in the market's file has no usable key.
    #[error(transparent)]
    Key(#[from] NotAKey),
    /// The market assigns this node's raft id to another key.
    #[error("this node's key is not that of validator {raft_id} of the market")]
    Impostor {
        /// The raft id that this node was configured with.
        raft_id: u64,
    },
    /// The log of this validator is missing.
    #[error(
        "the log of validator {raft_id} is gone from {path}: it has forgotten what it promised the \
         others, and can't come back under its old id"
    )]
    Wiped {
        /// The raft id of this validator.
        raft_id: u64,
        /// The folder in which the log was.
        path: PathBuf,
    },
    /// The market removed this validator.
    #[error("validator {raft_id} was removed from the market; its id never comes back")]
    Removed {
        /// The raft id of this validator.
        raft_id: u64,
    },
    /// A raft id is 0.
    #[error("0 is not a raft id")]
    RaftId,
    /// The network did not start.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// The folder could not be used.
    #[error("cannot use {path}: {source}")]
    Folder {
        /// The folder or file that could not be used.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The replica did not start.
    #[error(transparent)]
    Replica(#[from] ValidatorError),
    /// The record of what the validator signed cannot be read.
    #[error(transparent)]
    Cosigning(#[from] CosigningError),
    /// The replica stopped.
    #[error(transparent)]
    Failure(#[from] ValidatorFailure),
}

impl ValidatorNodeError {
    /// Returns whether a later release of souk can continue in this folder, while this one cannot.
    #[must_use]
    pub fn is_for_later_build(&self) -> bool {
        let error = match self {
            ValidatorNodeError::Failure(ValidatorFailure::Replica(ReplicaFailure::Apply(
                error,
            )))
            | ValidatorNodeError::Replica(ValidatorError::Start(StartError::Apply(error))) => error,
            _ => return false,
        };
        exchange_machine::is_for_later_build(error)
    }
}

/// A running validator.
pub struct ValidatorNode {
    id: ReplicaId,
    validator: Validator<ExchangeMachine>,
    ended: ValidatorEnd,
    keeper: MembershipKeeper,
    watchers: AccountWatchers,
    questions: request_server::QuestionCounts,
}

impl ValidatorNode {
    /// Recovers the replica, joins the network and serves. A new validator waits here for its
    /// admission and passes its address to `waiting`.
    pub async fn start(
        config: ValidatorNodeConfig,
        waiting: impl FnOnce(&str),
    ) -> Result<ValidatorNode, ValidatorNodeError> {
        let ValidatorNodeConfig {
            home,
            key,
            market,
            validator: mut file,
            network,
        } = config;
        if home.join(REMOVED_FILE).exists() {
            let raft_id = file.raft_id.unwrap_or_default();
            return Err(ValidatorNodeError::Removed { raft_id });
        }
        let network = join_network(&home, &key, &file, network).await?;
        add_founders(&network, &market).await?;
        let address = reached_at(&file.listen, &key);
        let assigned = IdAssignment::find_id(&home, &network, &key, &market, &mut file, || {
            waiting(address.as_deref().unwrap_or_default());
        });
        let IdAssignment { id, told, founders } = assigned.await?;
        let (writer, statements) = open_statements(&home)?;
        let (machine, watchers) = exchange_machine::new_machine(&market, writer);
        let machine = machine.signing_with(key.signing_key().clone());
        let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
        let config = replica_config(&home, &key, id, founders);
        let (validator, ended) = Validator::start(&config, machine, outbound.clone())?;
        let (market_id, signing_key) = (market.genesis.market_id(), key.signing_key());
        let (notes, history) =
            cosigning::start_cosigning(&validator, market_id, id, signing_key, outbound)?;
        if holds_log(&home) {
            mark_founded(&home)?;
        }
        let (peers, known) = watch::channel(raft_link::Peers::default());
        raft_link::receive(&network, validator.clone(), notes, known.clone());
        let sender = validator.clone();
        tokio::spawn(raft_link::send(network.clone(), sender, messages, known));
        let questions = request_server::QuestionCounts::default();
        let context = request_server::ServerContext {
            watchers: watchers.clone(),
            questions: questions.clone(),
            statements,
            history,
        };
        request_server::serve_market(&network, validator.clone(), &market.genesis, context);
        jury::start_jury(&network, &validator, &key, market_id).await;
        let keeper = MembershipKeeper {
            home,
            network,
            validator: validator.clone(),
            key,
            genesis: market.genesis,
            id,
            address,
            told,
            peers,
            learned: HashMap::new(),
        };
        Ok(ValidatorNode {
            id,
            validator,
            ended,
            keeper,
            watchers,
            questions,
        })
    }

    /// Returns a function that renders the validator's metrics for as long as the process runs.
    #[must_use]
    pub fn page_maker(&self) -> PageMaker {
        let sources = gauges::MetricsSources {
            validator: self.validator.clone(),
            network: self.keeper.network.clone(),
            watchers: self.watchers.clone(),
            questions: self.questions.clone(),
        };
        Arc::new(move || Box::pin(gauges::metrics_page(sources.clone())))
    }

    /// Serves until `stop` ends, the replica fails, or the market has removed this validator.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ValidatorNodeError> {
        let ended = self.ended.wait_for_end();
        tokio::pin!(ended);
        let home = self.keeper.home.clone();
        let removed = tokio::select! {
            failed = &mut ended => return Ok(failed?),
            () = self.keeper.run_until_removed() => true,
            () = stop => false,
        };
        self.validator.stop().await;
        ended.await?;
        if !removed {
            return Ok(());
        }
        create_marker(&home, REMOVED_FILE)?;
        let raft_id = self.id.get();
        Err(ValidatorNodeError::Removed { raft_id })
    }
}

/// A validator's place among the others, before it begins.
struct IdAssignment {
    id: ReplicaId,
    /// The members that the other validators named, if it asked them.
    told: Vec<Member>,
    /// The founders, if this one is a founder and may begin.
    founders: Option<Vec<ReplicaId>>,
}

impl IdAssignment {
    async fn find_id(
        home: &Path,
        network: &Network,
        key: &NodeKey,
        market: &MarketFile,
        file: &mut ValidatorFile,
        waiting: impl FnOnce(),
    ) -> Result<IdAssignment, ValidatorNodeError> {
        let mine = key.peer_id();
        let members = founder_ids(market)?;
        let others: Vec<PeerId> = members
            .keys()
            .copied()
            .filter(|peer| *peer != mine)
            .collect();
        let account = AccountKey(key.public_key());
        let Some(raft_id) = file.raft_id else {
            waiting();
            let genesis = &market.genesis;
            let admitted = admission::await_admission(network, &others, account, genesis);
            let (raft_id, told) = admitted.await;
            file.raft_id = Some(raft_id);
            config::write(&home.join(VALIDATOR_FILE), file)?;
            return IdAssignment::from_parts(home, raft_id, account, Some(told), None);
        };
        let id = ReplicaId::new(raft_id).ok_or(ValidatorNodeError::RaftId)?;
        let founder = members.get(&mine) == Some(&id);
        if !founder && members.values().any(|member| *member == id) {
            return Err(ValidatorNodeError::Impostor { raft_id });
        }
        let told = match (founder, holds_log(home)) {
            // It needs no confirmation.
            (true, true) => None,
            (true, false) => admission::ask_as_fresh(network, &others, &market.genesis).await,
            (false, _) => admission::ask_members(network, &others, &market.genesis).await,
        };
        match &told {
            Some(told) if told.shows_removal(raft_id) => {
                return Err(ValidatorNodeError::Removed { raft_id });
            }
            Some(told) if told.names_another(raft_id, account) => {
                return Err(ValidatorNodeError::Impostor { raft_id });
            }
            _ => {}
        }
        let founders = founder.then(|| {
            let mut all: Vec<ReplicaId> = members.values().copied().collect();
            all.sort_unstable();
            all
        });
        IdAssignment::from_parts(home, raft_id, account, told, founders)
    }

    fn from_parts(
        home: &Path,
        raft_id: u64,
        account: AccountKey,
        told: Option<MembersTold>,
        founders: Option<Vec<ReplicaId>>,
    ) -> Result<IdAssignment, ValidatorNodeError> {
        let id = ReplicaId::new(raft_id).ok_or(ValidatorNodeError::RaftId)?;
        let known = told.map(|told| told.known);
        let begun = known.as_ref();
        let begun = begun.is_some_and(|known| known.has_begun(raft_id, account));
        let begun = begun || home.join(FOUNDED_FILE).exists();
        if begun && !holds_log(home) {
            let path = home.join(REPLICA_FOLDER);
            return Err(ValidatorNodeError::Wiped { raft_id, path });
        }
        Ok(IdAssignment {
            id,
            told: known.map_or_else(Vec::new, |known| known.staying_members().cloned().collect()),
            founders,
        })
    }
}

/// Passes the addresses of the first validators to a network that has just started.
async fn add_founders(network: &Network, market: &MarketFile) -> Result<(), ConfigError> {
    for contact in market.contacts()? {
        // The network has just started, so it has not stopped.
        let _ = network.add_contact(&contact).await;
    }
    Ok(())
}

/// Starts the network of a validator that listens at its file's address.
async fn join_network(
    home: &Path,
    key: &NodeKey,
    file: &ValidatorFile,
    options: souk_network::Options,
) -> Result<Network, souk_network::StartError> {
    let config = souk_network::NetworkConfig {
        listen: Some(file.listen.clone()),
        peers_file: Some(home.join(souk_network::PEERS_FILE)),
        options,
    };
    Network::start(key, config).await
}

/// Returns the address at which peers reach a validator that listens at `listen`; none if `listen`
/// does not determine it.
pub fn reached_at(listen: &Multiaddr, key: &NodeKey) -> Option<String> {
    let anywhere = |part: Protocol<'_>| match part {
        Protocol::Ip4(ip) => ip.is_unspecified(),
        Protocol::Ip6(ip) => ip.is_unspecified(),
        Protocol::Tcp(port) => port == 0,
        _ => false,
    };
    if listen.iter().any(anywhere) {
        return None;
    }
    let contact = Contact {
        account: key.public_key(),
        addresses: vec![listen.clone()],
    };
    contact.to_text()
}

/// Returns whether a validator's folder has ever held a log.
pub fn has_begun(home: &Path) -> bool {
    home.join(FOUNDED_FILE).exists() || holds_log(home)
}

/// Moves a validator's log aside, so that a new validator can use its folder. Returns the log's new
/// path.
///
/// # Errors
/// If the file system refuses.
pub fn put_aside(home: &Path) -> Result<Option<PathBuf>, ValidatorNodeError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ValidatorNodeError::Folder { path, source }
    };
    for mark in [FOUNDED_FILE, REMOVED_FILE].map(|name| home.join(name)) {
        if mark.exists() {
            fs::remove_file(&mark).map_err(failed(&mark))?;
        }
    }
    let replica = home.join(REPLICA_FOLDER);
    if !replica.exists() {
        return Ok(None);
    }
    let free = |number: &u32| !home.join(format!("{REPLICA_FOLDER}-old-{number}")).exists();
    let number = (1..).find(free).expect("there is always another number");
    let aside = home.join(format!("{REPLICA_FOLDER}-old-{number}"));
    fs::rename(&replica, &aside).map_err(failed(&replica))?;
    Ok(Some(aside))
}

fn open_statements(home: &Path) -> Result<(StatementWriter, Statements), ValidatorNodeError> {
    let path = home.join(REPLICA_FOLDER).join(STATEMENTS_FOLDER);
    statements::open_folder(&path).map_err(|source| ValidatorNodeError::Folder { path, source })
}

fn holds_log(home: &Path) -> bool {
    // A replica's folder has a snapshot from its start.
    let names = fs::read_dir(home.join(REPLICA_FOLDER))
        .into_iter()
        .flatten();
    names
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("snapshot-"))
}

/// Audits the log of a stopped validator whose folder is `home`.
///
/// # Errors
/// The first part that is damaged, or that does not replay to the recorded result.
pub fn audit_log(home: &Path, market: &MarketFile) -> Result<ValidatorAudit, ValidatorAuditError> {
    let any = ReplicaId::new(1).expect("1 is an id");
    let checkpoint_entries = ReplicaConfig::new(any, 0).checkpoint_entries;
    let machine = || exchange_machine::new_machine(market, StatementWriter::new_discarding()).0;
    validator::audit_folder(&home.join(REPLICA_FOLDER), checkpoint_entries, machine)
}

fn founder_ids(market: &MarketFile) -> Result<HashMap<PeerId, ReplicaId>, ValidatorNodeError> {
    let founders = market.genesis.validators.iter();
    let member = |founder: &Founder| {
        let id = ReplicaId::new(founder.raft_id).ok_or(ValidatorNodeError::RaftId)?;
        Ok((key::peer_of(&founder.account.0)?, id))
    };
    founders.map(member).collect()
}

fn replica_config(
    home: &Path,
    key: &NodeKey,
    id: ReplicaId,
    founders: Option<Vec<ReplicaId>>,
) -> ValidatorConfig {
    let beginning = match founders {
        _ if holds_log(home) => LogBeginning::Refuse,
        Some(founders) => LogBeginning::NewGroup(founders),
        None => LogBeginning::Join,
    };
    // Election timeouts must differ between validators; the key's bytes do.
    let mut seed = [0; 8];
    seed.copy_from_slice(&key.public_key()[..8]);
    ValidatorConfig::new(
        id,
        u64::from_le_bytes(seed),
        home.join(REPLICA_FOLDER),
        beginning,
    )
}

fn mark_founded(home: &Path) -> Result<(), ValidatorNodeError> {
    create_marker(home, FOUNDED_FILE)
}

fn create_marker(home: &Path, name: &str) -> Result<(), ValidatorNodeError> {
    let path = home.join(name);
    match path.exists() {
        true => Ok(()),
        false => fs::write(&path, "").map_err(|source| ValidatorNodeError::Folder { path, source }),
    }
}
