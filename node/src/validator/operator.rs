//! Signs an operator's orders about the validators and brings them to the leader. `souk validator`
//! uses it to add and remove validators, to transfer leadership and to fetch a backup.
//!
//! The market's operator key signs an order. For a backup the validator's own key can sign too. The
//! connection uses a throwaway key, so that you can contact a running validator while you hold the
//! validator's key.

use std::time::Duration;

use bytes::Bytes;
use libp2p::PeerId;
use souk_folder::clock::unix_ms;
use souk_folder::contact::{Contact, ContactError};
use souk_folder::key::{self, NodeKey};
use souk_folder::market_file::MarketFile;
use souk_market::{AccountKey, MarketId, Millis};
use souk_network::OpenError;
use souk_network::protocols::market::{
    Answer, Member, Members, OrderRefusal, PROTOCOL, Request, Standing,
};
use souk_network::protocols::roster::{
    Body, MembershipOrder, Roster, RosterRefusal, SignedMembershipOrder,
};
use souk_network::wire::{self, WireError};
use souk_roles::market::order_number::{ChangeCount, number_order};
use souk_roles::market::roster_proof::RosterProof;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::broker::{AttemptError, Broker, BrokerError};
use crate::client::reach::{self, ReachError};

/// How long a signed order stays valid, in milliseconds.
const EXPIRY_MS: u64 = 60_000;

/// How long the client looks for a leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);

/// How often the client checks the members while a change is in progress.
const LOOK_PERIOD: Duration = Duration::from_millis(200);

/// How long the next piece of a backup may take.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The most bytes that a backup can claim: the largest snapshot that can be sent.
const BACKUP_BYTES_MAX: u64 = 16 << 30;

/// Signs orders about the validators with one key, and sends them to the leader.
pub struct Operator {
    key: NodeKey,
    market: MarketId,
    /// The roster with which the market began.
    began: Roster,
    broker: Broker,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Another validator was added meanwhile.
    #[error(
        "validator {0} was added while another change was in progress, so saved proofs cannot show \
         it: remove it, then add it again, one change at a time"
    )]
    Overtaken(u64),
    /// No validator answered.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The leader refused the order: the signer may not give it, or it would do harm.
    #[error(transparent)]
    Declined(#[from] OrderRefusal),
    /// No validator leads.
    #[error("no validator leads: too few of them run")]
    NoLeader,
    /// The leader did not answer.
    #[error("validator {leader} leads but does not answer: {cause}")]
    Leader {
        /// The leader's raft id.
        leader: u64,
        /// The failure of the request.
        cause: AttemptError,
    },
    /// The market has no such validator.
    #[error("there is no validator {raft_id}; there are {known}")]
    Unknown {
        /// The id in the order.
        raft_id: u64,
        /// The ids of the market's validators.
        known: String,
    },
    /// The address does not parse.
    #[error(transparent)]
    Address(#[from] ContactError),
    /// The key at this address belongs to a validator already.
    #[error("{address} is validator {raft_id} already ({standing})")]
    Already {
        /// The address in the order.
        address: String,
        /// The validator's raft id.
        raft_id: u64,
        /// The validator's standing.
        standing: &'static str,
    },
    /// The market removed this validator before.
    #[error("validator {0} was removed before")]
    Removed(u64),
    /// The change is in the log but has not taken effect yet.
    #[error(
        "validator {raft_id} is {standing} after {} s: {}",
        waited.as_secs(), standing_hint(standing)
    )]
    Waiting {
        /// The validator's raft id.
        raft_id: u64,
        /// The validator's current standing.
        standing: &'static str,
        /// How long the client waited.
        waited: Duration,
    },
    /// The validator sent no complete backup.
    #[error("the backup did not come from validator {raft_id}: {cause}")]
    Backup {
        /// The validator's raft id.
        raft_id: u64,
        /// The failure of the transfer.
        cause: BackupFailure,
    },
}

/// Why a backup did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum BackupFailure {
    /// The validator could not be reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The validator refused.
    #[error("{0}")]
    Refused(String),
    /// The validator stopped in between.
    #[error("nothing arrived for {} s", BACKUP_TIMEOUT.as_secs())]
    Silent,
}

impl Operator {
    /// Connects to `market`, to sign with `key`.
    pub async fn join(key: NodeKey, market: &MarketFile) -> Result<Operator, ReachError> {
        let (broker, _) = reach::connect_read_only(market).await?;
        Ok(Operator {
            key,
            market: market.genesis.market_id(),
            began: Roster::new(&market.genesis),
            broker,
        })
    }

    /// Returns the account of the key it signs with.
    pub fn account(&self) -> AccountKey {
        AccountKey(self.key.public_key())
    }

    /// Returns the validators, as the leader sees them if there is one.
    pub async fn fetch_members(&self) -> Result<Members, OrderError> {
        let seen = self.broker.refresh_validators().await?;
        let Some(leader) = seen.member(seen.leader).and_then(peer_of) else {
            return Ok(seen);
        };
        match self.broker.ask_one(leader, &Request::Members).await {
            Ok(Answer::Members(members)) => Ok(members),
            _ => Ok(seen),
        }
    }

    /// Adds a validator and waits until it votes. If the market added it before, it only waits.
    pub async fn add(&self, address: &str, patience: Duration) -> Result<Member, OrderError> {
        let contact = Contact::parse(address)?;
        let account = AccountKey(contact.account);
        let raft_id = match self.fetch_members().await?.find_by_account(account) {
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
                self.send_order(MembershipOrder::Admit { account, address })
                    .await?
            }
        };
        self.wait_for_standing(raft_id, Standing::Voter, patience)
            .await
    }

    /// Removes a validator and waits until it has left.
    pub async fn remove(&self, raft_id: u64, patience: Duration) -> Result<Member, OrderError> {
        match self.find_member(raft_id).await?.standing {
            Standing::Removed => return Err(OrderError::Removed(raft_id)),
            Standing::Leaving => {}
            _ => drop(self.send_order(MembershipOrder::Remove { raft_id }).await?),
        }
        self.wait_for_standing(raft_id, Standing::Removed, patience)
            .await
    }

    /// Transfers the leadership to another validator.
    pub async fn transfer_leadership(&self, raft_id: u64) -> Result<u64, OrderError> {
        self.find_member(raft_id).await?;
        self.send_order(MembershipOrder::Lead { raft_id }).await
    }

    /// Fetches a backup from one validator.
    pub async fn download_backup(&self, raft_id: u64) -> Result<Bytes, OrderError> {
        let member = self.find_member(raft_id).await?;
        let order = self.sign_order(MembershipOrder::Backup { raft_id }, None);
        let fetched = self.fetch_backup(&member, order).await;
        fetched.map_err(|cause| OrderError::Backup { raft_id, cause })
    }

    async fn fetch_backup(
        &self,
        member: &Member,
        order: SignedMembershipOrder,
    ) -> Result<Bytes, BackupFailure> {
        let peer = key::peer_of(&member.account.0).map_err(OpenError::from)?;
        let mut stream = self.broker.network().open_stream(peer, PROTOCOL).await?;
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

    async fn find_member(&self, raft_id: u64) -> Result<Member, OrderError> {
        let members = self.fetch_members().await?;
        members.member(raft_id).cloned().ok_or_else(|| {
            let stay = members.validators.iter();
            let ids = stay.filter(|member| member.standing != Standing::Removed);
            let ids: Vec<String> = ids.map(|member| member.raft_id.to_string()).collect();
            let known = ids.join(", ");
            OrderError::Unknown { raft_id, known }
        })
    }

    /// Signs an order and brings it to the leader.
    async fn send_order(&self, order: MembershipOrder) -> Result<u64, OrderError> {
        let before = self.count_changes().await?;
        let request = Request::Order(self.sign_order(order.clone(), before));
        let deadline = Instant::now() + LEADER_PATIENCE;
        let mut unanswered = false;
        loop {
            let members = self.broker.fetch_members().await?;
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
                        Ok(Answer::Ordered(done)) => return check_place(&order, before, done?),
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

    /// Returns the raft id of an order that took effect although its answer was lost.
    async fn carried_out(&self, order: &MembershipOrder) -> Result<u64, OrderError> {
        match order {
            MembershipOrder::Admit { account, .. } => {
                let members = self.broker.fetch_members().await?;
                let member = members
                    .find_by_account(*account)
                    .ok_or(OrderError::NoLeader)?;
                Ok(member.raft_id)
            }
            MembershipOrder::Remove { raft_id }
            | MembershipOrder::Lead { raft_id }
            | MembershipOrder::Begin { raft_id, .. }
            | MembershipOrder::Backup { raft_id } => Ok(*raft_id),
        }
    }

    async fn wait_for_standing(
        &self,
        raft_id: u64,
        wanted: Standing,
        patience: Duration,
    ) -> Result<Member, OrderError> {
        let deadline = Instant::now() + patience;
        loop {
            // During a change of leadership there may be no answer for a moment.
            if let Ok(members) = self.fetch_members().await
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

    /// Counts the changes before the next order, as far as the operators' signatures prove them. It
    /// asks all validators and takes the median, because one that lies could hide changes, or show
    /// an order that the market never applied. None if less than a majority answers.
    async fn count_changes(&self) -> Result<Option<ChangeCount>, OrderError> {
        let seen = self.broker.refresh_validators().await?;
        let stay = seen.validators.iter();
        let stay = stay.filter(|it| it.standing != Standing::Removed);
        let peers: Vec<PeerId> = stay.filter_map(peer_of).collect();
        let mut answers = JoinSet::new();
        for peer in peers.iter().copied() {
            let broker = self.broker.clone();
            answers.spawn(async move { broker.ask_one(peer, &Request::Members).await });
        }
        let answers = answers.join_all().await.into_iter();
        let counts = answers.filter_map(|answer| match answer {
            Ok(Answer::Members(members)) => self.count_shown_changes(&members),
            _ => None,
        });
        Ok(median_count(counts.collect(), peers.len()))
    }

    /// Counts the changes that one validator's answer proves.
    fn count_shown_changes(&self, members: &Members) -> Option<ChangeCount> {
        let mut orders = RosterProof::default();
        orders.learn_orders(&self.began, members);
        orders.count_changes(&self.began, members.validators.iter().map(|it| it.raft_id))
    }

    fn sign_order(
        &self,
        order: MembershipOrder,
        before: Option<ChangeCount>,
    ) -> SignedMembershipOrder {
        let now_ms = unix_ms();
        let body = Body {
            market: self.market,
            signer: self.account(),
            number: number_order(now_ms, before),
            expires: Millis(now_ms + EXPIRY_MS),
            order,
        };
        SignedMembershipOrder::sign(body, self.key.signing_key())
    }
}

/// Returns the word with which souk prints the standing of a validator.
pub fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Waiting => "waiting",
        Standing::Learner => "learner",
        Standing::Voter => "voter",
        Standing::Leaving => "leaving",
        Standing::Removed => "removed",
    }
}

fn standing_hint(standing: &str) -> &'static str {
    match standing {
        "waiting" => "no leader has taken it in yet",
        "learner" => "it gets its vote once it has caught up",
        "leaving" => "too few of the others run, or no change was possible",
        _ => "look again later",
    }
}

/// Returns the median of the counts of a majority of `asked` validators; none if fewer know one.
fn median_count(counts: Vec<ChangeCount>, asked: usize) -> Option<ChangeCount> {
    if counts.len() <= asked / 2 {
        return None;
    }
    let median = |count: fn(&ChangeCount) -> u64| {
        let mut values: Vec<u64> = counts.iter().map(count).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    Some(ChangeCount {
        highest_id: median(|it| it.highest_id),
        removals: median(|it| it.removals),
    })
}

/// Checks that an admission got the raft id that its order states: otherwise proofs cannot show it.
fn check_place(
    order: &MembershipOrder,
    before: Option<ChangeCount>,
    raft_id: u64,
) -> Result<u64, OrderError> {
    let is_overtaken = before.is_some_and(|it| it.highest_id + 1 != raft_id);
    match order {
        MembershipOrder::Admit { .. } if is_overtaken => Err(OrderError::Overtaken(raft_id)),
        _ => Ok(raft_id),
    }
}

fn peer_of(member: &Member) -> Option<PeerId> {
    key::peer_of(&member.account.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_in_four_neither_hides_nor_adds_a_change() {
        let count = |highest_id, removals| ChangeCount {
            highest_id,
            removals,
        };
        let honest = count(8, 2);
        for lie in [count(4, 0), count(8, 3), count(2_000, 9), count(1, 9)] {
            let shown = vec![honest, lie, honest, honest];
            assert_eq!(median_count(shown, 4), Some(honest), "{lie:?}");
        }
        assert_eq!(median_count(vec![honest, honest], 4), None);
        assert_eq!(median_count(vec![honest], 1), Some(honest));
        assert_eq!(median_count(Vec::new(), 0), None);
    }

    #[test]
    fn an_admission_under_another_id_than_it_states_is_reported() {
        let admission = MembershipOrder::Admit {
            account: AccountKey([1; 32]),
            address: String::new(),
        };
        let before = |highest_id| {
            Some(ChangeCount {
                highest_id,
                removals: 0,
            })
        };
        assert!(matches!(check_place(&admission, before(4), 5), Ok(5)));
        assert!(matches!(check_place(&admission, None, 5), Ok(5)));
        let late = check_place(&admission, before(4), 6);
        assert!(matches!(late, Err(OrderError::Overtaken(6))));
        let removal = MembershipOrder::Remove { raft_id: 2 };
        assert!(matches!(check_place(&removal, before(4), 2), Ok(2)));
    }
}
