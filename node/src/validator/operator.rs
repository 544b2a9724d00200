//! Whoever looks after the validators: signs orders about them and brings them to the leader.
//!
//! An order is signed with the market's operator key, a backup also with the validator's own. The
//! connection is made under a key of its own that means nothing, so that a running validator can
//! be asked with the validator's key.

use std::time::Duration;

use bytes::Bytes;
use libp2p::PeerId;
use souk_market::{AccountKey, MarketId, Millis};
use tokio::time::Instant;

use crate::client::broker::{AttemptError, Broker, BrokerError};
use crate::client::reach::{self, ReachError};
use crate::clock::{unix_ms, unix_us};
use crate::folder::contact::{Contact, ContactError};
use crate::folder::key::{self, NodeKey};
use crate::folder::market_file::MarketFile;
use crate::network::OpenError;
use crate::network::wire::{self, WireError};
use crate::protocols::market::{
    Answer, Member, Members, OrderRefusal, PROTOCOL, Request, Standing,
};
use crate::protocols::roster::{Body, Order, RosterRefusal, SignedOrder};

/// How long a signed order stays valid, in milliseconds.
const EXPIRY_MS: u64 = 60_000;

/// How long a leader is looked for.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);

/// How often the members are looked at while a change is under way.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// How long the next piece of a backup may take.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a backup that are believed: the most a snapshot can be sent with.
const BACKUP_BYTES_MAX: u64 = 16 << 30;

/// Signs for one key; see the module.
pub struct Operator {
    key: NodeKey,
    market: MarketId,
    broker: Broker,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// No validator answers.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The order may not be given, or would do harm.
    #[error(transparent)]
    Declined(#[from] OrderRefusal),
    /// Nobody leads.
    #[error("no validator leads: too few of them run")]
    NoLeader,
    /// The leader did not answer.
    #[error("validator {leader} leads and does not answer: {cause}")]
    Leader {
        /// Its raft id.
        leader: u64,
        /// What came instead.
        cause: AttemptError,
    },
    /// No such validator.
    #[error("there is no validator {raft_id}; there are {known}")]
    Unknown {
        /// The id given.
        raft_id: u64,
        /// Those there are.
        known: String,
    },
    /// The address.
    #[error(transparent)]
    Address(#[from] ContactError),
    /// It has a place already.
    #[error("{address} is validator {raft_id} already ({standing})")]
    Already {
        /// The address.
        address: String,
        /// Its raft id.
        raft_id: u64,
        /// What it is.
        standing: &'static str,
    },
    /// It left before.
    #[error("validator {0} was removed before")]
    Removed(u64),
    /// It is in the log and has not happened yet.
    #[error(
        "validator {raft_id} is {standing} after {} s: {}", waited.as_secs(), why(standing)
    )]
    Waiting {
        /// Its raft id.
        raft_id: u64,
        /// What it is.
        standing: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The backup did not come.
    #[error("the backup did not come from validator {raft_id}: {cause}")]
    Backup {
        /// Who was asked.
        raft_id: u64,
        /// What came instead.
        cause: BackupFailure,
    },
}

/// Why a backup did not come.
#[derive(Debug, thiserror::Error)]
pub enum BackupFailure {
    /// Nobody is there.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The conversation broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It says no.
    #[error("{0}")]
    Refused(String),
    /// It stopped in between.
    #[error("nothing came for {} s", BACKUP_TIMEOUT.as_secs())]
    Silent,
}

impl Operator {
    /// Reaches the market of `market` to sign with `key`.
    pub async fn join(key: NodeKey, market: &MarketFile) -> Result<Operator, ReachError> {
        let (broker, _) = reach::look(market).await?;
        Ok(Operator {
            key,
            market: market.genesis.market_id(),
            broker,
        })
    }

    /// The account of the key it signs with.
    pub fn account(&self) -> AccountKey {
        AccountKey(self.key.public())
    }

    /// Who the validators are: as the leader sees it, where there is one.
    pub async fn members(&self) -> Result<Members, OrderError> {
        let seen = self.broker.refresh().await?;
        let Some(leader) = seen.member(seen.leader).and_then(peer_of) else {
            return Ok(seen);
        };
        match self.broker.ask_one(leader, &Request::Members).await {
            Ok(Answer::Members(members)) => Ok(members),
            _ => Ok(seen),
        }
    }

    /// Adds a validator and waits until it votes. One that was added before and does not vote yet
    /// is waited for.
    pub async fn add(&self, address: &str, patience: Duration) -> Result<Member, OrderError> {
        let contact = Contact::parse(address)?;
        let account = AccountKey(contact.account);
        let raft_id = match self.members().await?.of(account) {
            Some(member) if member.standing == Standing::Voter => {
                return Err(OrderError::Already {
                    address: address.to_owned(),
                    raft_id: member.raft_id,
                    standing: name(member.standing),
                });
            }
            Some(member) => member.raft_id,
            None => {
                let address = address.to_owned();
                self.order(Order::Admit { account, address }).await?
            }
        };
        self.until(raft_id, Standing::Voter, patience).await
    }

    /// Removes a validator and waits until it has left.
    pub async fn remove(&self, raft_id: u64, patience: Duration) -> Result<Member, OrderError> {
        match self.known(raft_id).await?.standing {
            Standing::Removed => return Err(OrderError::Removed(raft_id)),
            Standing::Leaving => {}
            _ => drop(self.order(Order::Remove { raft_id }).await?),
        }
        self.until(raft_id, Standing::Removed, patience).await
    }

    /// Has another validator lead.
    pub async fn transfer(&self, raft_id: u64) -> Result<u64, OrderError> {
        self.known(raft_id).await?;
        self.order(Order::Lead { raft_id }).await
    }

    /// Fetches a backup from one validator.
    pub async fn backup(&self, raft_id: u64) -> Result<Bytes, OrderError> {
        let member = self.known(raft_id).await?;
        let order = self.sign(Order::Backup { raft_id });
        let fetched = self.fetch_backup(&member, order).await;
        fetched.map_err(|cause| OrderError::Backup { raft_id, cause })
    }

    async fn fetch_backup(
        &self,
        member: &Member,
        order: SignedOrder,
    ) -> Result<Bytes, BackupFailure> {
        let peer = key::peer_of(&member.account.0).map_err(OpenError::from)?;
        let mut stream = self.broker.network().open(peer, PROTOCOL).await?;
        wire::send(&mut stream, &Request::Backup(order)).await?;
        let total =
            match wire::receive_within(&mut stream, BACKUP_TIMEOUT, wire::FRAME_BYTES_MAX).await? {
                Some(Answer::Backup { bytes }) if bytes <= BACKUP_BYTES_MAX => bytes,
                Some(Answer::Invalid(reason) | Answer::Unavailable(reason)) => {
                    return Err(BackupFailure::Refused(reason));
                }
                other => return Err(BackupFailure::Refused(format!("it answered {other:?}"))),
            };
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < total {
            let next = tokio::time::timeout(BACKUP_TIMEOUT, wire::receive_bytes(&mut stream));
            let frame = next.await.map_err(|_| BackupFailure::Silent)??;
            bytes.extend(frame.ok_or(WireError::Closed)?);
        }
        Ok(bytes.into())
    }

    async fn known(&self, raft_id: u64) -> Result<Member, OrderError> {
        let members = self.members().await?;
        members.member(raft_id).cloned().ok_or_else(|| {
            let stay = members.validators.iter();
            let ids = stay.filter(|member| member.standing != Standing::Removed);
            let ids: Vec<String> = ids.map(|member| member.raft_id.to_string()).collect();
            let known = ids.join(", ");
            OrderError::Unknown { raft_id, known }
        })
    }

    /// Brings an order to whoever leads.
    async fn order(&self, order: Order) -> Result<u64, OrderError> {
        let request = Request::Order(self.sign(order.clone()));
        let deadline = Instant::now() + LEADER_PATIENCE;
        let mut unanswered = false;
        loop {
            let members = self.broker.members().await?;
            let leader = members.leader;
            let cause =
                match members.member(leader).and_then(peer_of) {
                    None => OrderError::NoLeader,
                    Some(peer) => match self.broker.ask_one(peer, &request).await {
                        Ok(Answer::Ordered(Err(OrderRefusal::Refused(
                            RosterRefusal::Number { .. },
                        )))) if unanswered => {
                            return self.carried_out(&order).await;
                        }
                        Ok(Answer::Ordered(done)) => return Ok(done?),
                        Ok(Answer::Elsewhere { .. }) => OrderError::NoLeader,
                        Ok(_) => return Err(BrokerError::Confused.into()),
                        Err(cause) => {
                            unanswered = true;
                            OrderError::Leader { leader, cause }
                        }
                    },
                };
            if Instant::now() >= deadline {
                return Err(cause);
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    /// The raft id of an order that took effect although its answer was lost.
    async fn carried_out(&self, order: &Order) -> Result<u64, OrderError> {
        match order {
            Order::Admit { account, .. } => {
                let members = self.broker.members().await?;
                let member = members.of(*account).ok_or(OrderError::NoLeader)?;
                Ok(member.raft_id)
            }
            Order::Remove { raft_id }
            | Order::Lead { raft_id }
            | Order::Begin { raft_id, .. }
            | Order::Backup { raft_id } => Ok(*raft_id),
        }
    }

    async fn until(
        &self,
        raft_id: u64,
        wanted: Standing,
        patience: Duration,
    ) -> Result<Member, OrderError> {
        let deadline = Instant::now() + patience;
        loop {
            // While leadership changes nobody may answer for a moment.
            if let Ok(members) = self.members().await
                && let Some(member) = members.member(raft_id)
            {
                if member.standing == wanted {
                    return Ok(member.clone());
                }
                if Instant::now() >= deadline {
                    return Err(OrderError::Waiting {
                        raft_id,
                        standing: name(member.standing),
                        waited: patience,
                    });
                }
            } else if Instant::now() >= deadline {
                return Err(OrderError::NoLeader);
            }
            tokio::time::sleep(LOOK_PERIOD).await;
        }
    }

    fn sign(&self, order: Order) -> SignedOrder {
        let body = Body {
            market: self.market,
            signer: self.account(),
            number: unix_us(),
            expires: Millis(unix_ms() + EXPIRY_MS),
            order,
        };
        SignedOrder::sign(body, self.key.signing())
    }
}

/// A standing in a word.
pub fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Waiting => "waiting",
        Standing::Learner => "learner",
        Standing::Voter => "voter",
        Standing::Leaving => "leaving",
        Standing::Removed => "removed",
    }
}

fn why(standing: &str) -> &'static str {
    match standing {
        "waiting" => "no leader has taken it in yet",
        "learner" => "it gets its vote once it has caught up",
        "leaving" => "too few of the others run, or no change was possible",
        _ => "look again later",
    }
}

fn peer_of(member: &Member) -> Option<PeerId> {
    key::peer_of(&member.account.0).ok()
}
