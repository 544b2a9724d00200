//! The exchange as the replicated log drives it: bytes of signed batches in, bytes of results out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use souk_consensus::{LogTime, Position, RestoreError, StateMachine};
use souk_market::{
    Accepted, AccountKey, Applied, Event, Exchange, Genesis, Millis, Outcome, Refusal, SignedBatch,
};
use tokio::sync::broadcast;

/// Changes a slow watcher may fall behind by; beyond them it is told that it missed some.
const CHANGES_MAX: usize = 1024;

/// What a batch came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchResult {
    /// One result per command.
    Applied(Vec<Result<Accepted, Refusal>>),
    /// The bytes were no batch, or its signature does not hold.
    Invalid(String),
}

/// Accounts that something happened to, in one step of the log.
pub type Changed = Arc<[AccountKey]>;

/// An exchange that tells whose affairs each step of the log changed.
pub struct ExchangeMachine {
    exchange: Exchange,
    changes: broadcast::Sender<Changed>,
}

impl ExchangeMachine {
    /// A market at its beginning, and where its changes are told.
    pub fn new(genesis: Genesis) -> (ExchangeMachine, broadcast::Sender<Changed>) {
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let machine = ExchangeMachine {
            exchange: Exchange::new(genesis),
            changes: changes.clone(),
        };
        (machine, changes)
    }

    /// The exchange.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    fn tell(&self, events: &[Event]) {
        let mut accounts: Vec<AccountKey> = events.iter().flat_map(Event::accounts).collect();
        accounts.sort_unstable();
        accounts.dedup();
        if !accounts.is_empty() {
            // Nobody listens on most validators most of the time.
            let _ = self.changes.send(accounts.into());
        }
    }

    fn apply_batch(&mut self, now: LogTime, command: &[u8]) -> BatchResult {
        // Checked by every replica: raft survives crashes, and this keeps a validator that forges
        // commands from spending what is not its own.
        let verified = SignedBatch::decode(command).and_then(SignedBatch::verify);
        let verified = match verified {
            Ok(verified) => verified,
            Err(fault) => return BatchResult::Invalid(fault.to_string()),
        };
        let Applied { outcomes, events } = self.exchange.apply(Millis(now.0), &verified);
        self.tell(&events);
        BatchResult::Applied(outcomes.into_iter().map(Outcome::into_result).collect())
    }
}

impl StateMachine for ExchangeMachine {
    fn apply(&mut self, _at: Position, now: LogTime, command: &[u8]) -> Vec<u8> {
        let result = self.apply_batch(now, command);
        postcard::to_allocvec(&result).expect("plain data in memory always encodes")
    }

    fn tick(&mut self, _at: Position, now: LogTime) -> Vec<u8> {
        let events = self.exchange.tick(Millis(now.0));
        self.tell(&events);
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        self.exchange.wakes_at().map(|at| LogTime(at.0))
    }

    fn digest(&self) -> [u8; 32] {
        self.exchange.digest().0
    }

    fn snapshot(&self) -> Vec<u8> {
        self.exchange.snapshot()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let restored = Exchange::restore(bytes);
        self.exchange = restored.map_err(|fault| RestoreError {
            cause: Box::new(fault),
        })?;
        Ok(())
    }
}
