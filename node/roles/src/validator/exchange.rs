//! What the replicated log drives: the exchange and the roster of its validators. Bytes of signed
//! batches and orders in, bytes of results out.

use serde::{Deserialize, Serialize};
use souk_consensus::{CommandFault, LogTime, Position, RestoreError, StateMachine};
use souk_market::{
    Acceptance, BatchFault, BatchOutcome, Event, Exchange, Genesis, Millis, Outcome, Refusal,
    SignedBatch, VerifiedBatch,
};
use souk_memory::ContentId;

use crate::market::roster::{Roster, RosterRefusal, SignedOrder};

/// What a state's bytes begin with: name and layout version.
const MAGIC: &[u8; 8] = b"soukMKT3";

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

/// Who is told what each step of the log did: a validator's own watchers, who are no part of the
/// replicated state.
pub trait Watch {
    /// The exchange did this.
    fn on_events(&mut self, events: &[Event]);
}

/// An exchange that tells what each step of the log did, and its validators.
pub struct ExchangeMachine<W> {
    exchange: Exchange,
    roster: Roster,
    watch: W,
    /// What the last batch came to, in memory that is used again.
    applied: BatchOutcome,
}

impl<W: Watch> ExchangeMachine<W> {
    /// A market at its beginning.
    pub fn new(genesis: &Genesis, watch: W) -> ExchangeMachine<W> {
        ExchangeMachine {
            exchange: Exchange::new(genesis.clone()),
            roster: Roster::new(genesis),
            watch,
            applied: BatchOutcome::default(),
        }
    }

    /// Who is told.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// The exchange.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The validators.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The same market with the validators of its genesis, none of which has begun: for a market
    /// that is founded again from a backup.
    pub fn refound(&mut self, genesis: &Genesis) {
        self.roster = Roster::new(genesis);
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StateFault> {
        let bytes = bytes.strip_prefix(MAGIC).ok_or(StateFault::Magic)?;
        let (roster, exchange) = postcard::take_from_bytes(bytes)?;
        self.exchange = Exchange::restore(exchange)?;
        self.roster = roster;
        Ok(())
    }

    /// Applies a batch that was read and checked.
    pub fn apply_batch(&mut self, now: LogTime, batch: &VerifiedBatch) -> BatchResult {
        self.exchange
            .apply_into(Millis(now.0), batch, &mut self.applied);
        self.watch.on_events(&self.applied.events);
        let outcomes = self.applied.outcomes.drain(..);
        BatchResult::Applied(outcomes.map(Outcome::into_result).collect())
    }
}

/// A command of the log, read and checked.
#[derive(Debug)]
pub enum LogCommand {
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

/// A command's bytes, read.
enum DecodedCommand {
    Batch(SignedBatch),
    Order(SignedOrder),
}

fn read(command: &[u8]) -> Result<DecodedCommand, CommandFault> {
    let forged = |cause: Box<dyn std::error::Error + Send + Sync>| CommandFault { cause };
    match SignedOrder::decode(command) {
        Some(Ok(order)) => Ok(DecodedCommand::Order(order)),
        Some(Err(fault)) => Err(forged(Box::new(NoOrder(fault)))),
        None => SignedBatch::decode(command)
            .map(DecodedCommand::Batch)
            .map_err(|fault| forged(Box::new(fault))),
    }
}

fn checked(verified: Result<VerifiedBatch, BatchFault>) -> Result<LogCommand, CommandFault> {
    verified
        .map(LogCommand::Batch)
        .map_err(|fault| CommandFault {
            cause: Box::new(fault),
        })
}

impl<W: Watch> StateMachine for ExchangeMachine<W> {
    type Command = LogCommand;

    fn verify(command: &[u8]) -> Result<LogCommand, CommandFault> {
        match read(command)? {
            DecodedCommand::Order(order) => Ok(LogCommand::Order(order)),
            DecodedCommand::Batch(signed) => checked(signed.verify()),
        }
    }

    fn verify_each(commands: &[&[u8]]) -> Vec<Result<LogCommand, CommandFault>> {
        let mut batches = Vec::new();
        // What is not a batch is known already; the rest is in the order of the batches.
        let known = |command: &&[u8]| match read(command) {
            Ok(DecodedCommand::Order(order)) => Some(Ok(LogCommand::Order(order))),
            Ok(DecodedCommand::Batch(signed)) => {
                batches.push(signed);
                None
            }
            Err(forged) => Some(Err(forged)),
        };
        let known: Vec<_> = commands.iter().map(known).collect();
        let mut verified = SignedBatch::verify_each(batches).into_iter().map(checked);
        let known = known.into_iter();
        known
            .filter_map(|known| known.or_else(|| verified.next()))
            .collect()
    }

    fn apply(&mut self, _at: Position, now: LogTime, command: &LogCommand) -> Vec<u8> {
        let result = match command {
            LogCommand::Order(order) => {
                BatchResult::Ordered(self.roster.apply(Millis(now.0), order))
            }
            LogCommand::Batch(batch) => self.apply_batch(now, batch),
        };
        postcard::to_allocvec(&result).expect("plain data in memory always encodes")
    }

    fn tick(&mut self, _at: Position, now: LogTime) -> Vec<u8> {
        let events = self.exchange.tick(Millis(now.0));
        self.watch.on_events(&events);
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

fn encoded(roster: &Roster) -> Vec<u8> {
    postcard::to_allocvec(roster).expect("plain data in memory always encodes")
}

#[cfg(test)]
mod tests {
    use souk_market::{AccountKey, Batch, Command, Credits, MarketId, Nonce, SigningKey};

    use super::*;
    use crate::market::roster::{Body, Order};

    struct Nobody;

    impl Watch for Nobody {
        fn on_events(&mut self, _events: &[Event]) {}
    }

    type Machine = ExchangeMachine<Nobody>;

    fn batch(number: u64, signer: u8) -> Vec<u8> {
        let amount = Credits(number);
        let batch = Batch {
            market: MarketId::default(),
            account: AccountKey::from(&SigningKey::from_bytes(&[7; 32])),
            nonce: Nonce(number),
            expires: Millis(1),
            commands: vec![Command::Stake { amount }],
        };
        batch.sign(&SigningKey::from_bytes(&[signer; 32])).encode()
    }

    fn order() -> Vec<u8> {
        let key = SigningKey::from_bytes(&[9; 32]);
        let body = Body {
            market: MarketId::default(),
            signer: AccountKey::from(&key),
            number: 1,
            expires: Millis(1),
            order: Order::Remove { raft_id: 1 },
        };
        SignedOrder::sign(body, &key).encode()
    }

    #[test]
    fn commands_verified_together_are_judged_as_each_alone_in_their_order() {
        let cut_short = order()[..20].to_vec();
        let commands = [
            order(),
            batch(1, 7),
            b"neither".to_vec(),
            batch(2, 8),
            cut_short,
            batch(3, 7),
            order(),
        ];
        let commands: Vec<&[u8]> = commands.iter().map(|it| &**it).collect();
        let alone: Vec<_> = commands.iter().map(|it| Machine::verify(it)).collect();
        let holds: Vec<bool> = alone.iter().map(Result::is_ok).collect();
        assert_eq!(holds, [true, true, false, false, false, true, true]);
        let together = Machine::verify_each(&commands);
        assert_eq!(format!("{together:?}"), format!("{alone:?}"));
    }
}
