//! A peer's way to the market: whichever validator answers.
//!
//! A signed batch may be sent again to another validator without harm, since its nonce makes it
//! take effect once. So a broker tries the validators in turn, beginning with the last that
//! answered, until one does or time is up.

mod queries;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use libp2p::PeerId;
use tokio::time::Instant;

use crate::folder::contact::Contact;
use crate::network::wire::{self, WireError};
use crate::network::{Network, OpenError};
use crate::protocols::market::{Age, Answer, Member, Members, PROTOCOL, Request, Standing};

/// How long a broker goes on trying. A new leader is elected well within it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long one validator may take for one answer before the next is tried.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause after each validator has failed once.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// Asks validators; clones share the memory of who answered last.
#[derive(Clone)]
pub struct Broker {
    network: Network,
    validators: Arc<RwLock<Arc<[PeerId]>>>,
    preferred: Arc<AtomicUsize>,
    /// The oldest answer so far, of a broker that takes stale ones.
    oldest: Option<Arc<Mutex<Option<Age>>>>,
}

/// Why the market was not reached.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// No validator answered in time.
    #[error("none of {tried} validators answered for {} s, the last: {last}", PATIENCE.as_secs())]
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

/// Why one validator did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// It was not reached.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The conversation broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It said nothing.
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// It is full.
    #[error("it is busy")]
    Busy,
    /// It cannot answer now.
    #[error("{0}")]
    Unavailable(String),
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
        Ok(Broker {
            network,
            validators: Arc::new(RwLock::new(validators.into())),
            preferred: Arc::default(),
            oldest: None,
        })
    }

    /// The same, content with what a validator has although it can't ask the others.
    pub fn stale(&self) -> Broker {
        Broker {
            oldest: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// How old the oldest answer was that this broker has taken, if it takes stale ones.
    pub fn oldest(&self) -> Option<Age> {
        let oldest = self.oldest.as_ref()?.lock();
        *oldest.unwrap_or_else(PoisonError::into_inner)
    }

    fn on_age(&self, age: Age) {
        let Some(oldest) = &self.oldest else {
            return;
        };
        let mut oldest = oldest.lock().unwrap_or_else(PoisonError::into_inner);
        if oldest.is_none_or(|oldest| oldest.applied > age.applied) {
            *oldest = Some(age);
        }
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

    /// Learns who the validators are now: those of the market's file may be gone by and by.
    pub async fn refresh(&self) -> Result<Members, BrokerError> {
        let members = self.members().await?;
        let mut peers = Vec::with_capacity(members.validators.len());
        let stay = |member: &&Member| member.standing != Standing::Removed;
        for member in members.validators.iter().filter(stay) {
            // An address that this souk does not understand is one it can't use.
            let Ok(contact) = Contact::parse(&member.address) else {
                continue;
            };
            if self.network.learn(&contact).await.is_ok() {
                peers.extend(contact.peer().ok());
            }
        }
        if !peers.is_empty() {
            let known = self.validators.write();
            *known.unwrap_or_else(PoisonError::into_inner) = peers.into();
        }
        Ok(members)
    }

    /// Puts `request` to one validator after another until one answers.
    pub async fn ask(&self, request: &Request) -> Result<Answer, BrokerError> {
        let deadline = Instant::now() + PATIENCE;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut attempt = 0;
        loop {
            let validators = self.validators();
            let place = (first + attempt) % validators.len();
            let last = match self.ask_one(validators[place], request).await {
                Ok(answer) => {
                    self.preferred.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(last) => last,
            };
            tracing::debug!(validator = %validators[place], %last, "no answer");
            if Instant::now() >= deadline {
                return Err(BrokerError::Unreachable {
                    tried: validators.len(),
                    last,
                });
            }
            attempt += 1;
            if attempt % validators.len() == 0 {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
        }
    }

    /// Puts `request` to one validator, once.
    pub async fn ask_one(
        &self,
        validator: PeerId,
        request: &Request,
    ) -> Result<Answer, AttemptError> {
        let exchange = async {
            let mut stream = self.network.open(validator, PROTOCOL).await?;
            if self.oldest.is_some() {
                wire::send(&mut stream, &Request::Stale).await?;
            }
            wire::send(&mut stream, request).await?;
            Ok::<_, AttemptError>(match wire::receive(&mut stream).await? {
                Answer::Age(age) => {
                    self.on_age(age);
                    wire::receive(&mut stream).await?
                }
                answer => answer,
            })
        };
        let timed = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await;
        match timed.map_err(|_| AttemptError::Timeout)?? {
            Answer::Busy { .. } => Err(AttemptError::Busy),
            Answer::Unavailable(reason) => Err(AttemptError::Unavailable(reason)),
            answer => Ok(answer),
        }
    }
}
