//! Answers peers' requests about the validators, and carries out orders that change the validators.
//!
//! [`souk_roles::validator::members`] decides about an order. This module tests whether a new
//! validator can be reached, before the order goes into the log.

use std::time::Duration;

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Proposal, Status};
use souk_folder::contact::Contact;
use souk_market::{AccountKey, Millis};
use souk_network::OpenError;
use souk_network::protocols::market::{Answer, OrderRefusal};
use souk_network::protocols::roster::{MembershipOrder, Roster, SignedMembershipOrder};
use souk_roles::validator::members::{self, OrderDecision};

use super::{SharedState, unavailable_answer};
use crate::validator::exchange_machine::{BatchResult, LogCommand};
use crate::validator::raft_link;

/// A new validator must answer within this time, which must be less than the operator waits.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

impl SharedState {
    /// Returns the validators, as this one sees them.
    pub(super) async fn list_members(&self) -> Answer {
        match self.roster_and_status().await {
            Some((roster, status)) => Answer::Members(members::members_of(&roster, &status)),
            None => unavailable_answer(),
        }
    }

    /// Carries an order out if this validator leads.
    pub(super) async fn execute_order(&self, order: SignedMembershipOrder) -> Answer {
        let Some((roster, status)) = self.roster_and_status().await else {
            return unavailable_answer();
        };
        match members::decide_order(&order, &roster, &status) {
            OrderDecision::Answer(answer) => return *answer,
            OrderDecision::DialThenPropose { account, address } => {
                if let Err(refusal) = self.check_reachable(account, &address).await {
                    return Answer::Ordered(Err(refusal));
                }
            }
            OrderDecision::Propose => {}
        }
        let proposal = Proposal {
            bytes: order.encode().into(),
            command: LogCommand::Order(order.clone()),
        };
        let result = match self.validator.propose(proposal).await {
            Ok(result) => result,
            Err(error) => return Answer::Unavailable(error.to_string()),
        };
        match postcard::from_bytes(&result) {
            Ok(BatchResult::Ordered(Ok(raft_id))) => {
                self.complete_order(&order.body.order, raft_id).await
            }
            Ok(BatchResult::Ordered(Err(refusal))) => Answer::Ordered(Err(refusal.into())),
            _ => Answer::Unavailable("the result does not decode".to_owned()),
        }
    }

    /// Checks that the leader can reach a new validator.
    async fn check_reachable(
        &self,
        account: AccountKey,
        address: &str,
    ) -> Result<(), OrderRefusal> {
        let contact = Contact::parse(address)
            .ok()
            .filter(|c| c.account == account.0);
        let contact = contact.ok_or_else(|| OrderRefusal::Address(address.to_owned()))?;
        let unreached = |error: OpenError| OrderRefusal::Unreached(error.to_string());
        self.network
            .add_contact(&contact)
            .await
            .map_err(unreached)?;
        let peer = contact.peer_id().map_err(|error| unreached(error.into()))?;
        let opening = self.network.open_stream(peer, raft_link::PROTOCOL);
        match tokio::time::timeout(REACH_TIMEOUT, opening).await {
            // It runs. It serves the raft protocol only once it has its raft id.
            Ok(Ok(_) | Err(OpenError::Protocol { .. })) => Ok(()),
            Ok(Err(error)) => Err(unreached(error)),
            Err(_) => Err(unreached(OpenError::Timeout { peer })),
        }
    }

    async fn complete_order(&self, order: &MembershipOrder, raft_id: u64) -> Answer {
        let to = ReplicaId::new(raft_id).filter(|_| matches!(order, MembershipOrder::Lead { .. }));
        let Some(to) = to else {
            return Answer::Ordered(Ok(raft_id));
        };
        let transfer = self.validator.transfer_leadership(to).await;
        Answer::Ordered(match transfer {
            Ok(()) => Ok(raft_id),
            Err(error) => Err(OrderRefusal::NotHandedOver {
                raft_id,
                cause: error.to_string(),
            }),
        })
    }

    async fn roster_and_status(&self) -> Option<(Roster, Status)> {
        let roster = self.validator.fetch_roster().await.ok()?;
        Some((roster, self.validator.status().await.ok()?))
    }

    /// Returns whether the signer of this order may have a backup.
    pub(super) async fn admits_backup(&self, order: &SignedMembershipOrder, now_ms: u64) -> bool {
        let current = self.roster_and_status().await;
        current.is_some_and(|(roster, status)| {
            members::may_have_backup(order, &roster, status.id, Millis(now_ms))
        })
    }
}
