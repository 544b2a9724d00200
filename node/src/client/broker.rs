//! Sends requests to the market through any validator (a node that runs the market) that answers.
//! Buyers, providers and the command line hold a [`Broker`], whose clones share one task that
//! chooses the validator.

mod queries;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libp2p::PeerId;
use souk_folder::clock::LogClock;
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_market::{AccountKey, Genesis};
use souk_network::Network;
use souk_network::protocols::market::{Age, Answer, Member, Members, Request};
use souk_roles::market::client::{PATIENCE, Reply};
use souk_roles::market::known_members::KnownMembers;
use tokio::sync::watch;

pub use super::task::AccountWatch;
pub use super::task::AttemptError;
use super::task::{self, ANSWER_TIMEOUT, Client};

/// How long the client tries to get an answer, in seconds.
const PATIENCE_S: u64 = PATIENCE.0 / 1_000_000;

/// Sends requests to validators. Clones share one task, which remembers the validator that answered
/// last.
#[derive(Clone)]
pub struct Broker {
    network: Network,
    validators: Arc<RwLock<Arc<[PeerId]>>>,
    /// The validators that signatures prove; none if the market's genesis is unknown.
    known: Option<Arc<Mutex<KnownMembers>>>,
    pub(super) client: Client,
    takes_stale: bool,
}

/// Why the market gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// No validator answered in time.
    #[error("none of {tried} validators answered for {PATIENCE_S} s, the last: {last}")]
    Unreachable {
        /// How many validators are known.
        tried: usize,
        /// The last validator's error.
        last: AttemptError,
    },
    /// The list of validators is empty.
    #[error("no validators are known")]
    NoValidators,
    /// A validator's answer does not belong to the question.
    #[error("a validator sent an unexpected answer: is it an older or newer souk?")]
    Confused,
}

impl Broker {
    /// Returns a broker of these validators.
    ///
    /// # Errors
    /// When none of their addresses is usable.
    pub async fn new(network: Network, contacts: &[Contact]) -> Result<Broker, BrokerError> {
        let mut validators = Vec::with_capacity(contacts.len());
        for contact in contacts {
            if network.add_contact(contact).await.is_ok() {
                validators.extend(contact.peer_id().ok());
            }
        }
        if validators.is_empty() {
            return Err(BrokerError::NoValidators);
        }
        let validators: Arc<[PeerId]> = validators.into();
        Ok(Broker {
            client: Client::start_task(network.clone(), validators.clone(), false),
            network,
            validators: Arc::new(RwLock::new(validators)),
            known: None,
            takes_stale: false,
        })
    }

    /// Returns the broker with the genesis of its market: with the operators' keys in it, the
    /// broker can verify who became a validator later, and uses these too.
    #[must_use]
    pub fn in_market(self, genesis: &Genesis) -> Broker {
        let known = Some(Arc::new(Mutex::new(KnownMembers::new(genesis))));
        Broker { known, ..self }
    }

    /// Returns a broker that accepts a validator's own state, even if that validator cannot reach
    /// the others. You can read the age of its oldest answer from [`Broker::oldest_age`].
    pub fn with_stale_reads(&self) -> Broker {
        Broker {
            client: Client::start_task(self.network.clone(), self.validators(), true),
            takes_stale: true,
            ..self.clone()
        }
    }

    /// Returns a broker for the commands of an account: one client can sign for one account only.
    pub(super) fn for_account(self, account: AccountKey) -> Broker {
        if self.client.is_for(account) {
            return self;
        }
        let client = Client::start_task(self.network.clone(), self.validators(), self.takes_stale);
        assert!(client.is_for(account), "nobody else has it yet");
        Broker { client, ..self }
    }

    /// Returns the age of the oldest answer that this broker accepted, if it accepts stale ones.
    pub fn oldest_age(&self) -> Option<Age> {
        self.client.oldest_age().filter(|_| self.takes_stale)
    }

    /// Watches `account`: the receiver gets a new state whenever the account changed, whenever the
    /// watch breaks, and whenever it resumes, because it may have missed a change.
    pub fn watch_account(&self, account: AccountKey) -> watch::Receiver<AccountWatch> {
        self.client.watch_account(account)
    }

    /// Returns the log's clock: this machine's clock, and the median deviation of the validators'
    /// clocks from it. The market decides by this clock.
    pub fn log_clock(&self) -> LogClock {
        self.client.log_clock()
    }

    /// Returns the validators that this broker knows.
    pub fn validators(&self) -> Arc<[PeerId]> {
        let known = self.validators.read();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the network of this broker.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Asks for the current validators, because those of the market's file may be gone. The broker
    /// ignores unsigned statements in the answer, and all statements if it does not know the
    /// genesis; see [`KnownMembers`].
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn refresh_validators(&self) -> Result<Members, BrokerError> {
        let answer = self.fetch_members().await?;
        let Some(known) = &self.known else {
            return Ok(answer);
        };
        let validators: Vec<Member> = {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.learn_members(&answer);
            known.all_members().cloned().collect()
        };
        let answer = Members {
            validators,
            ..answer
        };
        self.adopt_validators(&answer).await;
        Ok(answer)
    }

    /// Uses these validators from now on, and those earlier ones that the list does not name.
    async fn adopt_validators(&self, members: &Members) {
        let mut peers = Vec::with_capacity(members.validators.len());
        for address in members.addresses() {
            // This souk cannot use an address that it does not understand.
            let Ok(contact) = Contact::parse(&address) else {
                continue;
            };
            if self.network.add_contact(&contact).await.is_ok() {
                peers.extend(contact.peer_id().ok());
            }
        }
        let all = members.validators.iter();
        let named: Vec<PeerId> = all
            .filter_map(|member| key::peer_of(&member.account.0).ok())
            .collect();
        let before = self.validators();
        let unnamed = before.iter().filter(|peer| !named.contains(peer));
        peers.extend(unnamed);
        if peers.is_empty() || peers[..] == before[..] {
            return;
        }
        let peers: Arc<[PeerId]> = peers.into();
        {
            let known = self.validators.write();
            *known.unwrap_or_else(PoisonError::into_inner) = peers.clone();
        }
        self.client.set_validators(peers).await;
    }

    /// Sends `request` to one validator after another until one answers.
    ///
    /// # Errors
    /// When none answers.
    pub async fn ask(&self, request: &Request) -> Result<Answer, BrokerError> {
        let came = self.client.ask_market(request.clone()).await;
        match came.reply {
            Reply::Answer(answer) => Ok(*answer),
            Reply::Unreached(_) => Err(self.unreachable_error(came.last)),
            _ => Err(BrokerError::Confused),
        }
    }

    /// Returns the error that no validator answered, with the last validator's error.
    pub(super) fn unreachable_error(&self, last: Option<AttemptError>) -> BrokerError {
        BrokerError::Unreachable {
            tried: self.validators().len(),
            last: last.unwrap_or(AttemptError::Timeout),
        }
    }

    /// Sends `request` to one validator, once. You should use [`Broker::ask`] unless that validator
    /// itself must answer.
    ///
    /// # Errors
    /// When that validator gives no answer.
    pub async fn ask_one(
        &self,
        validator: PeerId,
        request: &Request,
    ) -> Result<Answer, AttemptError> {
        let putting = task::ask_validator(&self.network, validator, self.takes_stale, request);
        let timed = tokio::time::timeout(ANSWER_TIMEOUT, putting).await;
        match timed.map_err(|_| AttemptError::Timeout)??.answer {
            Answer::Busy { .. } => Err(AttemptError::Busy),
            Answer::Unavailable(reason) => Err(AttemptError::Unavailable(reason)),
            answer => Ok(answer),
        }
    }
}
