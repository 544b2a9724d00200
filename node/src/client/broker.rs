//! A peer's way to the market: whichever validator answers.

mod queries;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libp2p::PeerId;
use souk_market::{AccountKey, Genesis};
use souk_roles::market::client::{PATIENCE, Reply};
use souk_roles::market::known_members::KnownMembers;
use tokio::sync::watch;

pub use super::task::AttemptError;
use super::task::{self, ANSWER_TIMEOUT, Client};
use crate::clock::LogClock;
use crate::folder::contact::Contact;
use crate::folder::key;
use crate::network::Network;
use crate::protocols::market::{Age, Answer, Member, Members, Request};

/// How long a question is put, in seconds.
const PATIENCE_S: u64 = PATIENCE.0 / 1_000_000;

/// Asks validators; clones share one task, which knows who answered last.
#[derive(Clone)]
pub struct Broker {
    network: Network,
    validators: Arc<RwLock<Arc<[PeerId]>>>,
    /// The validators that signatures show; none where the market's genesis is not known.
    known: Option<Arc<Mutex<KnownMembers>>>,
    pub(super) client: Client,
    takes_stale: bool,
}

/// Why the market was not reached.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// No validator answered in time.
    #[error("none of {tried} validators answered for {PATIENCE_S} s, the last: {last}")]
    Unreachable {
        /// How many validators are known.
        tried: usize,
        /// What the last one said.
        last: AttemptError,
    },
    /// The list of validators is empty.
    #[error("no validators are known")]
    NoValidators,
    /// A validator gave an answer to another question.
    #[error("a validator answered out of turn: is it an older or newer souk?")]
    Confused,
}

impl Broker {
    /// A broker over these validators.
    pub async fn new(network: Network, contacts: &[Contact]) -> Result<Broker, BrokerError> {
        let mut validators = Vec::with_capacity(contacts.len());
        for contact in contacts {
            if network.learn(contact).await.is_ok() {
                validators.extend(contact.peer().ok());
            }
        }
        if validators.is_empty() {
            return Err(BrokerError::NoValidators);
        }
        let validators: Arc<[PeerId]> = validators.into();
        Ok(Broker {
            client: Client::start(network.clone(), validators.clone(), false),
            network,
            validators: Arc::new(RwLock::new(validators)),
            known: None,
            takes_stale: false,
        })
    }

    /// The same in a market that began so: with its operators' keys a broker can tell who became a
    /// validator since, and follows.
    #[must_use]
    pub fn in_market(self, genesis: &Genesis) -> Broker {
        let known = Some(Arc::new(Mutex::new(KnownMembers::new(genesis))));
        Broker { known, ..self }
    }

    /// The same, content with what a validator has although it can't ask the others.
    pub fn stale(&self) -> Broker {
        Broker {
            client: Client::start(self.network.clone(), self.validators(), true),
            takes_stale: true,
            ..self.clone()
        }
    }

    /// The same for commands of an account: one client signs for one.
    pub(super) fn for_account(self, account: AccountKey) -> Broker {
        if self.client.is_for(account) {
            return self;
        }
        let client = Client::start(self.network.clone(), self.validators(), self.takes_stale);
        assert!(client.is_for(account), "nobody else has it yet");
        Broker { client, ..self }
    }

    /// How old the oldest answer was that this broker has taken, if it takes stale ones.
    pub fn oldest(&self) -> Option<Age> {
        self.client.oldest().filter(|_| self.takes_stale)
    }

    /// A counter that rises whenever something happened to `account`, and whenever the watch was
    /// broken and is whole again, since something may have been missed then.
    pub fn watch(&self, account: AccountKey) -> watch::Receiver<u64> {
        self.client.watch(account)
    }

    /// The log's clock: this machine's, and by how much those of the validators differ from it in
    /// the median. What the market judges is judged by it.
    pub fn log_clock(&self) -> LogClock {
        self.client.log_clock()
    }

    /// The validators this broker knows.
    pub fn validators(&self) -> Arc<[PeerId]> {
        let known = self.validators.read();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The network it asks over.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Learns who the validators are now: those of the market's file may be gone by and by. What
    /// the answer says without signatures changes nothing, nor does any where the genesis is not
    /// known; see [`KnownMembers`].
    ///
    /// # Errors
    /// When no validator answers.
    pub async fn refresh(&self) -> Result<Members, BrokerError> {
        let answer = self.members().await?;
        let Some(known) = &self.known else {
            return Ok(answer);
        };
        let validators: Vec<Member> = {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.learn(&answer);
            known.all().cloned().collect()
        };
        let answer = Members {
            validators,
            ..answer
        };
        self.follow(&answer).await;
        Ok(answer)
    }

    /// Asks these validators from now on, and those it knew that were not removed.
    async fn follow(&self, members: &Members) {
        let mut peers = Vec::with_capacity(members.validators.len());
        for address in members.addresses() {
            // An address that this souk does not understand is one it can't use.
            let Ok(contact) = Contact::parse(&address) else {
                continue;
            };
            if self.network.learn(&contact).await.is_ok() {
                peers.extend(contact.peer().ok());
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
        self.client.knows(peers).await;
    }

    /// Puts `request` to one validator after another until one answers.
    pub async fn ask(&self, request: &Request) -> Result<Answer, BrokerError> {
        let came = self.client.ask(request.clone()).await;
        match came.reply {
            Reply::Answer(answer) => Ok(*answer),
            Reply::Unreached(_) => Err(self.unreachable(came.last)),
            _ => Err(BrokerError::Confused),
        }
    }

    /// None of the validators answered, the last for this reason.
    pub(super) fn unreachable(&self, last: Option<AttemptError>) -> BrokerError {
        BrokerError::Unreachable {
            tried: self.validators().len(),
            last: last.unwrap_or(AttemptError::Timeout),
        }
    }

    /// Puts `request` to one validator, once.
    pub async fn ask_one(
        &self,
        validator: PeerId,
        request: &Request,
    ) -> Result<Answer, AttemptError> {
        let putting = task::put(&self.network, validator, self.takes_stale, request);
        let timed = tokio::time::timeout(ANSWER_TIMEOUT, putting).await;
        match timed.map_err(|_| AttemptError::Timeout)??.answer {
            Answer::Busy { .. } => Err(AttemptError::Busy),
            Answer::Unavailable(reason) => Err(AttemptError::Unavailable(reason)),
            answer => Ok(answer),
        }
    }
}
