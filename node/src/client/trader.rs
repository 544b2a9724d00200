//! An account that trades: signs commands and brings them to the market.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_market::{
    Acceptance, AccountKey, Batch, Command, MarketId, Millis, NONCE_WINDOW, Name, Nonce, Refusal,
    SignedBatch,
};

use crate::client::broker::{Broker, BrokerError};
use crate::clock::{unix_ms, unix_us};
use crate::folder::key::NodeKey;
use crate::protocols::market::{Answer, Request};

/// How long a signed batch stays valid, in milliseconds.
const EXPIRY_MS: u64 = 60_000;

/// Times a batch is signed again because another process of the same account was faster.
const NONCES_MAX: usize = 4;

/// Signs for one account; clones share its nonces.
#[derive(Clone)]
pub struct Trader {
    key: NodeKey,
    market: MarketId,
    broker: Broker,
    nonce: Arc<AtomicU64>,
    /// By how much this clock is behind the market's, as far as is known.
    behind_ms: Arc<AtomicU64>,
}

/// Why commands were not carried out.
#[derive(Debug, thiserror::Error)]
pub enum TradeError {
    /// The market was not reached.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A command was refused.
    #[error("the market refused: {0}")]
    Refused(#[from] Refusal),
    /// The batch is larger than the log takes.
    #[error("the commands are {bytes} bytes; at most {bytes_max} go into one batch: send fewer")]
    TooLarge {
        /// Their size.
        bytes: u64,
        /// The most that is taken.
        bytes_max: u64,
    },
    /// The batch was not taken for one.
    #[error("the market does not take this node's commands: {0}")]
    Invalid(String),
}

impl Trader {
    /// Trades for `key` in `market` by way of `broker`.
    pub fn new(key: NodeKey, market: MarketId, broker: Broker) -> Trader {
        Trader {
            key,
            market,
            broker,
            nonce: Arc::default(),
            behind_ms: Arc::default(),
        }
    }

    /// The account.
    pub fn account(&self) -> AccountKey {
        AccountKey(self.key.public())
    }

    /// The account's key.
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// The market traded in.
    pub fn market(&self) -> MarketId {
        self.market
    }

    /// The way to the market.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Carries out commands under one signature: one result a command.
    pub async fn submit(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Acceptance, Refusal>>, TradeError> {
        let mut results = self.submit_once(commands.clone()).await?;
        for _ in 1..NONCES_MAX {
            let Some(Err(Refusal::NonceOld { oldest, .. })) = results.first() else {
                break;
            };
            // This clock was ahead once, or that of another process of this account is. Of those
            // within the window any may be used: the next is to be above the highest.
            let highest = oldest.0.saturating_add(NONCE_WINDOW - 1);
            self.nonce.fetch_max(highest, Ordering::Relaxed);
            results = self.submit_once(commands.clone()).await?;
        }
        Ok(results)
    }

    /// Carries out one command.
    pub async fn submit_one(&self, command: Command) -> Result<Acceptance, TradeError> {
        let mut results = self.submit(vec![command]).await?;
        let result = results.pop().ok_or(BrokerError::Confused)?;
        Ok(result?)
    }

    /// Opens the account under `name`, unless it is open.
    ///
    /// A clock that is a minute behind signs what has expired when it arrives. To register twice
    /// does nothing more than to register once, so this is where such a clock finds out.
    pub async fn register(&self, name: Name) -> Result<(), TradeError> {
        let register = || self.submit_one(Command::Register { name: name.clone() });
        let mut registered = register().await;
        match &registered {
            // An answer was lost and the batch sent again: what came of it is seen by asking anew.
            Err(TradeError::Refused(Refusal::NonceUsed { .. })) => registered = register().await,
            Err(TradeError::Refused(Refusal::BatchExpired { now, .. })) => {
                let behind_ms = now.0.saturating_sub(unix_ms());
                tracing::warn!(behind_ms, "this clock is behind the market's: set it right");
                self.behind_ms.store(behind_ms, Ordering::Relaxed);
                registered = register().await;
            }
            _ => {}
        }
        match registered {
            Ok(_) | Err(TradeError::Refused(Refusal::AccountKnown { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn submit_once(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Acceptance, Refusal>>, TradeError> {
        let request = Request::Submit(self.sign(commands));
        match self.broker.ask(&request).await? {
            Answer::Applied(results) => Ok(results),
            Answer::Invalid(reason) => Err(TradeError::Invalid(reason)),
            Answer::TooLarge { bytes, bytes_max } => Err(TradeError::TooLarge { bytes, bytes_max }),
            _ => Err(BrokerError::Confused.into()),
        }
    }

    fn sign(&self, commands: Vec<Command>) -> SignedBatch {
        let batch = Batch {
            market: self.market,
            account: self.account(),
            nonce: self.next_nonce(),
            expires: Millis(unix_ms() + self.behind_ms.load(Ordering::Relaxed) + EXPIRY_MS),
            commands,
        };
        batch.sign(self.key.signing())
    }

    /// The time in microseconds, or one more than the last: rising over restarts and processes.
    fn next_nonce(&self) -> Nonce {
        let now = unix_us();
        let next = |last: u64| Some((last + 1).max(now));
        let last = self
            .nonce
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Nonce((last.unwrap_or_default() + 1).max(now))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;
    use crate::folder::contact::Contact;
    use crate::network::wire;
    use crate::network::{Config, Network};
    use crate::protocols::market::PROTOCOL;

    /// What a validator made of a batch; none where it applied it and its answer was lost.
    type Made = Option<Result<Acceptance, Refusal>>;

    async fn network(key: &NodeKey) -> Network {
        let config = Config {
            listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
            ..Config::default()
        };
        Network::start(key, config).await.unwrap()
    }

    /// A trader at a validator that answers one batch after the other so, and the batches.
    async fn at(made: Vec<Made>) -> (Trader, Arc<Mutex<Vec<SignedBatch>>>, Network) {
        let key = NodeKey::generate();
        let validator = network(&key).await;
        let (made, heard) = (
            Mutex::new(VecDeque::from(made)),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (made, told) = (Arc::new(made), heard.clone());
        validator.serve(PROTOCOL, 8, move |_, mut stream| {
            let (made, told) = (made.clone(), told.clone());
            async move {
                if let Request::Submit(batch) = wire::receive(&mut stream).await? {
                    told.lock().unwrap().push(batch);
                    let next = made.lock().unwrap().pop_front();
                    if let Some(result) = next.expect("no more batches than answers") {
                        let answer = Answer::Applied(vec![result]);
                        return wire::send(&mut stream, &answer).await;
                    }
                }
                Ok(())
            }
        });
        let contact = Contact {
            account: key.public(),
            addresses: validator.addresses().await,
        };
        let key = NodeKey::generate();
        let broker = Broker::new(network(&key).await, &[contact]).await.unwrap();
        (
            Trader::new(key, MarketId([7; 32]), broker),
            heard,
            validator,
        )
    }

    fn name() -> Name {
        Name::try_from("somebody").unwrap()
    }

    #[tokio::test]
    async fn a_registration_whose_answer_was_lost_is_asked_anew() {
        let nonce = Nonce(1);
        let used = Err(Refusal::NonceUsed { nonce });
        let account = AccountKey([1; 32]);
        let known = Err(Refusal::AccountKnown { account });
        // The answer is lost, the same batch is sent again, and a new one asks what came of it.
        let (trader, heard, _validator) = at(vec![None, Some(used), Some(known)]).await;
        trader.register(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        assert_eq!(heard.len(), 3);
        assert_eq!(heard[0], heard[1]);
        assert_ne!(heard[1], heard[2]);
    }

    #[tokio::test]
    async fn a_clock_that_was_ahead_signs_above_what_it_signed_then() {
        let oldest = Nonce(unix_us() + 3_600_000_000);
        let old = Err(Refusal::NonceOld {
            nonce: Nonce(1),
            oldest,
        });
        let account = AccountKey([1; 32]);
        let known = Err(Refusal::AccountKnown { account });
        let (trader, heard, _validator) = at(vec![Some(old), Some(known)]).await;
        trader.register(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        // Restarts before may have used any of the window, however short they ran.
        assert_eq!(heard[1].batch.nonce, Nonce(oldest.0 + NONCE_WINDOW));
    }

    #[tokio::test]
    async fn a_registration_that_is_refused_is_asked_anew_once() {
        let nonce = Nonce(1);
        let used = || Some(Err(Refusal::NonceUsed { nonce }));
        let (trader, heard, _validator) = at(vec![used(), used()]).await;
        let refused = trader.register(name()).await.unwrap_err();
        assert!(matches!(
            refused,
            TradeError::Refused(Refusal::NonceUsed { .. })
        ));
        assert_eq!(heard.lock().unwrap().len(), 2);
    }
}
