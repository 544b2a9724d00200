//! Word of changes to an account, as long as someone listens.

use std::time::Duration;

use souk_market::AccountKey;
use tokio::sync::watch;

use super::Broker;
use crate::network::wire;
use crate::protocols::market::{Answer, PROTOCOL, Request};

/// The pause before another validator is asked after one went away.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

impl Broker {
    /// A counter that rises whenever something happened to `account`, and whenever the watch was
    /// broken and is whole again, since something may have been missed then.
    pub fn watch(&self, account: AccountKey) -> watch::Receiver<u64> {
        let (changes, receiver) = watch::channel(0);
        let broker = self.clone();
        tokio::spawn(async move {
            let mut attempt = 0;
            while !changes.is_closed() {
                broker.follow(account, attempt, &changes).await;
                attempt += 1;
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        });
        receiver
    }

    /// Counts one validator's word of changes until it goes away or nobody listens.
    async fn follow(&self, account: AccountKey, attempt: usize, changes: &watch::Sender<u64>) {
        let validators = self.validators();
        let validator = validators[attempt % validators.len()];
        let Ok(mut stream) = self.network.open(validator, PROTOCOL).await else {
            return;
        };
        if wire::send(&mut stream, &Request::Watch(account))
            .await
            .is_err()
        {
            return;
        }
        loop {
            let word = tokio::select! {
                word = wire::receive::<Answer>(&mut stream) => word,
                () = changes.closed() => return,
            };
            match word {
                Ok(Answer::Changed) => changes.send_modify(|count| *count += 1),
                _ => return,
            }
        }
    }
}
