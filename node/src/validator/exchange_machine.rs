//! What the replicated log drives: the exchange and the roster of its validators. Bytes of signed
//! batches and orders in, bytes of results out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use souk_consensus::{Forged, LogTime, Position, RestoreError, StateMachine};
use souk_market::{
    Acceptance, AccountKey, BatchOutcome, Event, Exchange, Millis, Outcome, Refusal, SignedBatch,
    VerifiedBatch,
};
use souk_memory::ContentId;
use tokio::sync::broadcast;

use crate::folder::config::MarketFile;
use crate::protocols::roster::{Roster, RosterRefusal, SignedOrder};

/// What a state's bytes begin with: name and layout version.
const MAGIC: &[u8; 8] = b"soukMKT2";

/// Changes a slow watcher may fall behind by; beyond them it is told that it missed some.
const CHANGES_MAX: usize = 1024;

/// What a batch came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchResult {
    /// One result per command.
    Applied(Vec<Result<Acceptance, Refusal>>),
    /// An order about the validators: the raft id it is about.
    Ordered(Result<u64, RosterRefusal>),
}

/// A state's bytes that are none.
#[derive(Debug, thiserror::Error)]
pub enum StateFault {
    /// Another layout.
    #[error("it is not a market's state of this version of souk")]
    Magic,
    /// The roster.
    #[error("its roster of validators does not decode: {0}")]
    Roster(#[from] postcard::Error),
    /// The exchange.
    #[error(transparent)]
    Exchange(#[from] souk_market::SnapshotFault),
}

/// Accounts that something happened to, in one step of the log.
pub type Changed = Arc<[AccountKey]>;

/// An exchange that tells whose affairs each step of the log changed, and its validators.
pub struct ExchangeMachine {
    exchange: Exchange,
    roster: Roster,
    changes: broadcast::Sender<Changed>,
}

impl ExchangeMachine {
    /// A market at its beginning, and where its changes are told.
    pub fn new(market: &MarketFile) -> (ExchangeMachine, broadcast::Sender<Changed>) {
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let machine = ExchangeMachine {
            exchange: Exchange::new(market.genesis.clone()),
            roster: founders(market),
            changes: changes.clone(),
        };
        (machine, changes)
    }

    /// The exchange.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The validators.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The same market with the validators of its file, none of which has begun: for a market that
    /// is founded again from a backup.
    pub fn refound(&mut self, market: &MarketFile) {
        self.roster = founders(market);
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StateFault> {
        let bytes = bytes.strip_prefix(MAGIC).ok_or(StateFault::Magic)?;
        let (roster, exchange) = postcard::take_from_bytes(bytes)?;
        self.exchange = Exchange::restore(exchange)?;
        self.roster = roster;
        Ok(())
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

    fn apply_batch(&mut self, now: LogTime, batch: &VerifiedBatch) -> BatchResult {
        let BatchOutcome { outcomes, events } = self.exchange.apply(Millis(now.0), batch);
        self.tell(&events);
        BatchResult::Applied(outcomes.into_iter().map(Outcome::into_result).collect())
    }
}

/// A command of the log, read and checked.
#[derive(Debug)]
pub enum Checked {
    /// Its account signed it.
    Batch(VerifiedBatch),
    /// Orders to the group are few: each replica checks their signatures as it applies them, since
    /// their validity decides what they come to.
    Order(SignedOrder),
}

/// The bytes are not a signed order.
#[derive(Debug, thiserror::Error)]
#[error("the bytes are not a signed order: {0}")]
struct NoOrder(#[source] postcard::Error);

impl StateMachine for ExchangeMachine {
    type Command = Checked;

    fn verify(command: &[u8]) -> Result<Checked, Forged> {
        if let Some(order) = SignedOrder::decode(command) {
            return order.map(Checked::Order).map_err(|fault| Forged {
                cause: Box::new(NoOrder(fault)),
            });
        }
        let verified = SignedBatch::decode(command).and_then(SignedBatch::verify);
        verified.map(Checked::Batch).map_err(|fault| Forged {
            cause: Box::new(fault),
        })
    }

    fn apply(&mut self, _at: Position, now: LogTime, command: &Checked) -> Vec<u8> {
        let result = match command {
            Checked::Order(order) => BatchResult::Ordered(self.roster.apply(Millis(now.0), order)),
            Checked::Batch(batch) => self.apply_batch(now, batch),
        };
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
        let mut both = self.exchange.digest().0.to_vec();
        both.extend(encoded(&self.roster));
        *ContentId::of(&both).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(encoded(&self.roster));
        bytes.extend(self.exchange.snapshot());
        bytes
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.take(bytes).map_err(|fault| RestoreError {
            cause: Box::new(fault),
        })
    }
}

fn founders(market: &MarketFile) -> Roster {
    let genesis = &market.genesis;
    Roster::new(genesis.market_id(), genesis.issuer, &market.validators)
}

fn encoded(roster: &Roster) -> Vec<u8> {
    postcard::to_allocvec(roster).expect("plain data in memory always encodes")
}
