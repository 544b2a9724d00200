//! Keeps a running validator in step with the *roster*, the replicated list of the validators: it
//! opens connections to the validators of the roster, reports that this one has begun and, while it
//! leads, changes raft's members to match the roster. It ends once it learns that this validator
//! was removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Proposal, Role, Status};
use souk_folder::clock::{unix_ms, unix_us};
use souk_folder::contact::Contact;
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Genesis, Millis, RULES_VERSION};
use souk_network::Network;
use souk_network::protocols::market::Member;
use souk_network::protocols::roster::{Body, MembershipOrder, Roster, SignedMembershipOrder};
use souk_roles::validator::steps::{Group, Step};
use tokio::sync::watch;
use tokio::time::Instant;

use super::admission;
use crate::validator::Validator;
use crate::validator::exchange_machine::{ExchangeMachine, LogCommand};
use crate::validator::raft_link::Peers;

/// How often the task examines the roster. An addition takes a few of these periods.
const PERIOD: Duration = Duration::from_millis(200);

/// How long a validator without a leader waits before it asks the others whether it was removed.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// How long its own orders are valid, in milliseconds.
const ORDER_MS: u64 = 60_000;

/// The task that keeps the validator in step with the roster.
pub(super) struct MembershipKeeper {
    pub(super) home: PathBuf,
    pub(super) network: Network,
    pub(super) validator: Validator<ExchangeMachine>,
    pub(super) key: NodeKey,
    pub(super) genesis: Genesis,
    pub(super) id: ReplicaId,
    /// The address of this validator; none if it cannot determine that.
    pub(super) address: Option<String>,
    /// Validators that others named when this one started: its own log may be behind.
    pub(super) told: Vec<Member>,
    pub(super) peers: watch::Sender<Peers>,
    pub(super) learned: HashMap<u64, String>,
}

impl MembershipKeeper {
    /// Runs until this validator learns that it was removed.
    pub(super) async fn run_until_removed(mut self) {
        let mut heard = Instant::now();
        loop {
            if let Some((roster, status)) = self.roster_and_status().await {
                self.update_connections(&roster, &status).await;
                self.record_beginning(&roster).await;
                if status.role == Role::Leader {
                    self.advance_membership(&roster, &status).await;
                }
                if status.leader.is_some() && status.member {
                    heard = Instant::now();
                }
            }
            if heard.elapsed() > LOST_AFTER {
                heard = Instant::now();
                if self.was_removed().await {
                    return;
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn roster_and_status(&self) -> Option<(Roster, Status)> {
        let roster = self.validator.fetch_roster().await.ok()?;
        Some((roster, self.validator.status().await.ok()?))
    }

    /// Opens connections to current and future members, and closes all others.
    async fn update_connections(&mut self, roster: &Roster, status: &Status) {
        let members = Group::from_status(status);
        let is_member = |id: &u64| members.voters.contains(id) || members.learners.contains(id);
        let mut entries: BTreeMap<u64, (AccountKey, &str)> = BTreeMap::new();
        for member in &self.told {
            if !roster.entries().contains_key(&member.raft_id) {
                entries.insert(member.raft_id, (member.account, &member.address));
            }
        }
        for (id, entry) in roster.entries() {
            if !entry.leaving || is_member(id) {
                entries.insert(*id, (entry.account, &entry.address));
            }
        }
        entries.remove(&self.id.get());
        let mut peers = HashMap::new();
        for (id, (account, address)) in entries {
            let (Ok(peer), Some(replica)) =
                (souk_folder::key::peer_of(&account.0), ReplicaId::new(id))
            else {
                continue;
            };
            peers.insert(peer, replica);
            add_address(&self.network, &mut self.learned, id, address).await;
        }
        self.peers.send_if_modified(|known| {
            let changed = **known != peers;
            if changed {
                *known = Arc::new(peers);
            }
            changed
        });
    }

    /// Records in the log that this validator has begun, with its address.
    async fn record_beginning(&self, roster: &Roster) {
        let id = self.id.get();
        let Some(entry) = roster.entries().get(&id).filter(|entry| !entry.leaving) else {
            return;
        };
        let address = self.address.as_ref().unwrap_or(&entry.address);
        let mine = entry.account == AccountKey(self.key.public_key());
        if mine && entry.begun {
            // From here on an empty folder counts as a loss.
            if let Err(error) = super::mark_founded(&self.home) {
                tracing::warn!(%error, "the folder could not be marked as having a log");
            }
        }
        let is_known = entry.begun && entry.address == *address && entry.speaks == RULES_VERSION;
        if !mine || is_known {
            return;
        }
        let body = Body {
            market: self.genesis.market_id(),
            signer: entry.account,
            number: unix_us(),
            expires: Millis(unix_ms() + ORDER_MS),
            order: MembershipOrder::Begin {
                raft_id: id,
                address: address.clone(),
                speaks: RULES_VERSION,
            },
        };
        let order = SignedMembershipOrder::sign(body, self.key.signing_key());
        let proposal = Proposal {
            bytes: order.encode().into(),
            command: LogCommand::Order(order),
        };
        if let Err(error) = self.validator.propose(proposal).await {
            tracing::debug!(%error, "this validator's start could not be recorded in the log yet");
        }
    }

    /// Takes the next step towards the members that the roster names.
    async fn advance_membership(&self, roster: &Roster, status: &Status) {
        let wanted: BTreeSet<u64> = roster.staying_ids().collect();
        let entries = roster.entries().iter().filter(|(_, entry)| entry.begun);
        let begun: BTreeSet<u64> = entries.map(|(id, _)| *id).collect();
        let Some(step) = Group::from_status(status).next_step(&wanted, &begun) else {
            return;
        };
        let change = match step {
            Step::Change(change) => change,
            Step::HandOver(to) => {
                tracing::info!(%to, "this validator is leaving; transferring leadership first");
                if let Err(error) = self.validator.transfer_leadership(to).await {
                    tracing::warn!(%error, "leadership could not be transferred");
                }
                return;
            }
        };
        match self.validator.change_members(vec![change]).await {
            Ok(()) => tracing::info!(?change, "changing the members"),
            Err(error) => tracing::debug!(?change, %error, "the members could not be changed yet"),
        }
    }

    /// Returns whether another validator can prove, by the operators' signatures, that this one was
    /// removed.
    async fn was_removed(&self) -> bool {
        let others: Vec<_> = self.peers.borrow().keys().copied().collect();
        let told = admission::ask_members(&self.network, &others, &self.genesis).await;
        told.is_some_and(|told| told.shows_removal(self.id.get()))
    }
}

/// Passes a validator's address to the network if it is new.
async fn add_address(
    network: &Network,
    learned: &mut HashMap<u64, String>,
    id: u64,
    address: &str,
) {
    if learned.get(&id).is_some_and(|known| known == address) {
        return;
    }
    match Contact::parse(address) {
        // The call fails only if the network has stopped.
        Ok(contact) => drop(network.add_contact(&contact).await),
        Err(error) => tracing::warn!(id, %error, "a validator's address can't be used"),
    }
    learned.insert(id, address.to_owned());
}
