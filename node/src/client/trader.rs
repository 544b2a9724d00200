//! Signs the commands of one account and submits them to the market. Buyers, providers and the
//! command line trade through a [`Trader`].

use souk_folder::key::NodeKey;
use souk_market::{Acceptance, AccountKey, Command, Credits, MarketId, Name, Refusal};
use souk_network::protocols::market::Answer;
use souk_roles::market::client::Reply;

use crate::client::broker::{Broker, BrokerError};

/// Signs and submits the commands of one account. Clones share the counter of nonces, so that no
/// nonce is used twice.
#[derive(Clone)]
pub struct Trader {
    key: NodeKey,
    market: MarketId,
    broker: Broker,
}

/// Why the market did not carry out commands.
#[derive(Debug, thiserror::Error)]
pub enum TradeError {
    /// No validator answered.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The market may have carried the commands out, or may yet do so until the batch expires, a
    /// minute after its signature. The log has the result: you should look there before you repeat
    /// them.
    #[error(
        "no validator confirmed the command, which may still be carried out within a minute: \
         check before you repeat it ({0})"
    )]
    Uncertain(BrokerError),
    /// A new account does not have its first credits, and no validator states why.
    #[error(
        "no validator confirmed the first credits of {account}: check its balance before you give \
         them again ({cause})"
    )]
    Endowment {
        /// The new account.
        account: AccountKey,
        /// The last error of a validator.
        cause: BrokerError,
    },
    /// The market refused a command.
    #[error("the market refused: {0}")]
    Refused(#[from] Refusal),
    /// The batch is larger than the log accepts: you must send fewer commands at a time.
    #[error("the commands are {bytes} bytes; at most {bytes_max} go into one batch: send fewer")]
    TooLarge {
        /// The size of the commands, in bytes.
        bytes: u64,
        /// The largest accepted size, in bytes.
        bytes_max: u64,
    },
    /// The market does not accept the batch as valid.
    #[error("the market does not accept this node's commands: {0}")]
    Invalid(String),
}

impl Trader {
    /// Returns a trader that signs with `key` in `market` through `broker`.
    pub fn new(key: NodeKey, market: MarketId, broker: Broker) -> Trader {
        let broker = broker.for_account(AccountKey(key.public_key()));
        broker.client.sign_for(key.clone(), market);
        Trader {
            key,
            market,
            broker,
        }
    }

    /// Returns the account.
    pub fn account(&self) -> AccountKey {
        AccountKey(self.key.public_key())
    }

    /// Returns the account's key.
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Returns the market's id.
    pub fn market(&self) -> MarketId {
        self.market
    }

    /// Returns the broker, which reaches the market.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Submits commands under one signature, and returns one result per command.
    ///
    /// # Errors
    /// When no validator received them, or none knows their result.
    pub async fn submit_commands(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Acceptance, Refusal>>, TradeError> {
        let came = self.broker.client.submit_commands(commands).await;
        match came.reply {
            Reply::Carried(results) => Ok(results),
            Reply::NotTaken(answer) => Err(match *answer {
                Answer::Invalid(reason) => TradeError::Invalid(reason),
                Answer::TooLarge { bytes, bytes_max } => TradeError::TooLarge { bytes, bytes_max },
                _ => BrokerError::Confused.into(),
            }),
            Reply::Uncertain(_) => Err(TradeError::Uncertain(
                self.broker.unreachable_error(came.last),
            )),
            Reply::Unreached(_) => Err(self.broker.unreachable_error(came.last).into()),
            Reply::Answer(_) => Err(BrokerError::Confused.into()),
        }
    }

    /// Submits one command.
    ///
    /// # Errors
    /// As [`Trader::submit_commands`], and when the market refuses the command.
    pub async fn submit_one(&self, command: Command) -> Result<Acceptance, TradeError> {
        let mut results = self.submit_commands(vec![command]).await?;
        let result = results.pop().ok_or(BrokerError::Confused)?;
        Ok(result?)
    }

    /// Opens the account under `name`, unless it is open. If an answer is lost, this will retry,
    /// because registering twice has the same effect as once.
    ///
    /// # Errors
    /// As [`Trader::submit_commands`], and when the market refuses.
    pub async fn register_account(&self, name: Name) -> Result<(), TradeError> {
        let register = || self.submit_one(Command::Register { name: name.clone() });
        let mut registered = register().await;
        if let Err(TradeError::Uncertain(_)) = registered {
            registered = register().await;
        }
        match registered {
            Ok(_) | Err(TradeError::Refused(Refusal::AccountKnown { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deposits a new account's first credits once, as the operator. If the result is uncertain,
    /// this checks the account's balance.
    ///
    /// # Errors
    /// As [`Trader::submit_commands`], and when the account does not have the credits.
    pub async fn endow_account(
        &self,
        account: AccountKey,
        amount: Credits,
    ) -> Result<(), TradeError> {
        let given = self.submit_one(Command::Deposit { account, amount }).await;
        let cause = match given {
            Ok(_) => return Ok(()),
            Err(TradeError::Uncertain(cause)) => cause,
            Err(error) => return Err(error),
        };
        match self.broker.fetch_account(account).await {
            Ok(Some(found)) if found.available >= amount => Ok(()),
            Ok(_) => Err(TradeError::Endowment { account, cause }),
            Err(_) => Err(TradeError::Uncertain(cause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use souk_folder::clock::{unix_ms, unix_us};
    use souk_folder::contact::Contact;
    use souk_market::{Exchange, Genesis, Millis, NONCE_WINDOW, Nonce, Outcome, SignedBatch};
    use souk_network::protocols::market::{PROTOCOL, Request, TimedAnswer};
    use souk_network::wire;
    use souk_network::{Network, NetworkConfig};
    use souk_roles::validator::questions;

    use super::*;

    /// The response of a validator to a batch; none if it applied the batch and its answer was
    /// lost.
    type Made = Option<Result<Acceptance, Refusal>>;

    async fn network(key: &NodeKey) -> Network {
        let config = NetworkConfig {
            listen: Some("/ip4/127.0.0.1/tcp/0".parse().unwrap()),
            ..NetworkConfig::default()
        };
        Network::start(key, config).await.unwrap()
    }

    /// A broker at a validator that answers so, or leaves without an answer.
    async fn reach(
        key: &NodeKey,
        answer: impl Fn(Request) -> Option<Answer> + Send + Sync + 'static,
    ) -> (Broker, Network) {
        let validator_key = NodeKey::generate();
        let validator = network(&validator_key).await;
        let answer = Arc::new(answer);
        validator.serve_protocol(PROTOCOL, 8, move |_, mut stream| {
            let answer = answer.clone();
            async move {
                if let Some(answer) = answer(wire::receive(&mut stream).await?) {
                    let (time, age) = (Millis(unix_ms()), None);
                    let told = TimedAnswer { time, age, answer };
                    return wire::send(&mut stream, &told).await;
                }
                Ok(())
            }
        });
        let contact = Contact {
            account: validator_key.public_key(),
            addresses: validator.own_addresses().await,
        };
        let broker = Broker::new(network(key).await, &[contact]).await;
        (broker.unwrap(), validator)
    }

    /// A trader at a validator that answers one batch after the other so, and the batches.
    async fn at(made: Vec<Made>) -> (Trader, Arc<Mutex<Vec<SignedBatch>>>, Network) {
        let (key, heard) = (NodeKey::generate(), Arc::<Mutex<Vec<_>>>::default());
        let (made, told) = (Mutex::new(VecDeque::from(made)), heard.clone());
        let answer = move |request| {
            let Request::Submit(batch) = request else {
                return None;
            };
            told.lock().unwrap().push(batch);
            let next = made.lock().unwrap().pop_front();
            let result = next.expect("no more batches than answers")?;
            Some(Answer::Applied(vec![result]))
        };
        let (broker, validator) = reach(&key, answer).await;
        (
            Trader::new(key, MarketId([7; 32]), broker),
            heard,
            validator,
        )
    }

    /// The operator of a market with another account, and the market, at a validator whose first
    /// answer to a batch is lost.
    async fn operator(account: AccountKey) -> (Trader, Arc<Mutex<Exchange>>, Network) {
        let key = NodeKey::generate();
        let operator = AccountKey(key.public_key());
        let mut genesis = Genesis::new("test".try_into().unwrap(), operator);
        for (account, name) in [(operator, "operator"), (account, "somebody")] {
            let entry = (account, name.try_into().unwrap(), Credits(0));
            genesis.accounts.push(entry);
        }
        let market = genesis.market_id();
        let exchange = Arc::new(Mutex::new(Exchange::new(genesis)));
        let (replica, is_lost) = (exchange.clone(), Mutex::new(true));
        let answer = move |request| {
            let mut exchange = replica.lock().unwrap();
            match request {
                Request::Submit(batch) => {
                    let applied = exchange.apply(Millis(unix_ms()), &batch.verify().unwrap());
                    let results = applied.outcomes.into_iter().map(Outcome::into_result);
                    let is_lost = std::mem::take(&mut *is_lost.lock().unwrap());
                    (!is_lost).then(|| Answer::Applied(results.collect()))
                }
                request @ Request::Account(_) => {
                    Some(questions::answer_request(&exchange, request))
                }
                _ => None,
            }
        };
        let (broker, validator) = reach(&key, answer).await;
        (Trader::new(key, market, broker), exchange, validator)
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
        trader.register_account(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        assert_eq!(heard.len(), 3);
        assert_eq!(heard[0], heard[1]);
        assert_ne!(heard[1], heard[2]);
    }

    #[tokio::test]
    async fn credits_whose_answer_was_lost_are_looked_for_and_not_given_twice() {
        let account = AccountKey(NodeKey::generate().public_key());
        let (operator, exchange, _validator) = operator(account).await;
        operator.endow_account(account, Credits(5)).await.unwrap();
        let exchange = exchange.lock().unwrap();
        assert_eq!(exchange.account(account).unwrap().available, Credits(5));
    }

    #[tokio::test]
    async fn credits_that_are_not_there_are_told_with_the_account_and_what_to_do() {
        // A key that opens no account, of a point with few multiples.
        let account = AccountKey([0; 32]);
        let (operator, ..) = operator(AccountKey([1; 32])).await;
        let missing = operator
            .endow_account(account, Credits(5))
            .await
            .unwrap_err();
        let text = missing.to_string();
        assert!(matches!(missing, TradeError::Endowment { .. }), "{text}");
        let hint = format!("no validator confirmed the first credits of {account}");
        assert!(text.starts_with(&hint), "{text}");
        assert!(text.contains("check its balance"), "{text}");
    }

    #[tokio::test]
    async fn two_accounts_that_share_a_broker_sign_for_themselves() {
        let account = AccountKey([1; 32]);
        let known = || Some(Err(Refusal::AccountKnown { account }));
        let (first, heard, _validator) = at(vec![known(), known()]).await;
        let key = NodeKey::generate();
        let second = Trader::new(key, MarketId([7; 32]), first.broker().clone());
        first.register_account(name()).await.unwrap();
        second.register_account(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        let signers = heard.iter().map(|signed| signed.batch.account);
        let accounts = [first.account(), second.account()];
        assert_eq!(signers.collect::<Vec<_>>(), accounts);
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
        trader.register_account(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        // Restarts before may have used any of the window, however short they ran.
        assert_eq!(heard[1].batch.nonce, Nonce(oldest.0 + NONCE_WINDOW));
    }

    #[tokio::test]
    async fn a_registration_whose_nonce_another_batch_used_is_signed_anew() {
        let used = Err(Refusal::NonceUsed { nonce: Nonce(1) });
        let account = AccountKey([1; 32]);
        let known = Err(Refusal::AccountKnown { account });
        let (trader, heard, _validator) = at(vec![Some(used), Some(known)]).await;
        trader.register_account(name()).await.unwrap();
        let heard = heard.lock().unwrap().clone();
        let nonces = [0, 1].map(|at: usize| heard[at].batch.nonce.0);
        assert!(nonces[1] >= nonces[0] + NONCE_WINDOW, "{nonces:?}");
    }
}
