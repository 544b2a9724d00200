//! The state machine that every validator replicates: the exchange (accounts, order books and
//! leases) and the roster (list) of the validators. Its inputs are the commands of the log, as
//! bytes: batches that accounts signed, and membership orders and verdicts in disputes. Its outputs
//! are the results of the commands, as bytes.

use serde::{Deserialize, Serialize};
use souk_consensus::replica::ApplyError;
use souk_consensus::{
    ChangeStanding, CommandFault, Digest, LogTime, MachineFailure, MemberChange, OfferedState,
    Position, ReplicaId, RestoreError, StateMachine, Tally,
};
use souk_market::{
    Acceptance, BatchFault, BatchOutcome, CloseReason, Event, Exchange, Genesis, Millis, Outcome,
    RULES_VERSION, Refusal, SignedBatch, SigningKey, VerifiedBatch,
};
use souk_memory::ContentId;

use super::vouchers;
use crate::market::roster::{Roster, RosterRefusal, SignedMembershipOrder};
use crate::market::verdict::SignedVerdict;

/// The prefix of a state's bytes: name and layout version.
const MAGIC: &[u8; 8] = b"soukMKT6";

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchResult {
    /// One result per command.
    Applied(Vec<Result<Acceptance, Refusal>>),
    /// The result of an order about the validators: the raft id that it concerns.
    Ordered(Result<u64, RosterRefusal>),
    /// The result of a validator's verdict in a dispute.
    Judged(Result<(), Refusal>),
}

/// Why bytes are not a valid state.
#[derive(Debug, thiserror::Error)]
pub enum StateFault {
    /// The bytes have another layout.
    #[error("it is not a market's state of this version of souk")]
    Magic,
    /// The roster is invalid.
    #[error("its roster of validators does not decode: {0}")]
    Roster(#[from] postcard::Error),
    /// The exchange is invalid.
    #[error(transparent)]
    Exchange(#[from] souk_market::SnapshotFault),
    /// The version of the market's rules is unsupported.
    #[error(transparent)]
    Version(#[from] UnsupportedVersion),
}

/// The market's rules have a later version than this build supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "from here on the market has version {version} of its rules, and this build carries out \
     versions up to {supported}: install a release of souk that supports version {version}"
)]
pub struct UnsupportedVersion {
    /// The version that applies.
    pub version: u16,
    /// The latest version that this build supports.
    pub supported: u16,
}

/// Returns whether a state or an entry is refused because the market's rules have a later version
/// than this build supports: another release can continue.
pub fn is_for_later_build(error: &ApplyError) -> bool {
    match error {
        ApplyError::Unable { .. } => true,
        ApplyError::Restore { cause, .. } => {
            let fault = cause.cause.downcast_ref::<StateFault>();
            matches!(fault, Some(StateFault::Version(_)))
        }
        ApplyError::Differs { .. } => false,
    }
}

/// A follower of the log's events, such as those who watch accounts at a validator. It is not part
/// of the replicated state.
pub trait Watch {
    /// Handles events of the exchange, at this position and time of the log.
    fn on_events(&mut self, at: Position, time: Millis, events: &[Event]);
}

/// An exchange with the roster of its validators. It reports the events of each command and tick to
/// `watch`.
pub struct ExchangeMachine<W> {
    exchange: Exchange,
    roster: Roster,
    watch: W,
    /// The latest version of the rules that this build supports.
    rules_version_max: u16,
    /// The result of the last batch. Each batch reuses its memory.
    outcome: BatchOutcome,
    /// The encoded events of the last command or tick, for the history.
    events: Vec<u8>,
    /// Whether the last command or tick closed a lease by a receipt.
    has_settled: bool,
    /// This validator's key, which vouches for states; none if it only replays a log.
    key: Option<SigningKey>,
}

impl<W: Watch> ExchangeMachine<W> {
    /// Creates a market from its genesis.
    pub fn new(genesis: &Genesis, watch: W) -> ExchangeMachine<W> {
        ExchangeMachine {
            exchange: Exchange::new(genesis.clone()),
            roster: Roster::new(genesis),
            watch,
            rules_version_max: RULES_VERSION,
            outcome: BatchOutcome::default(),
            events: Vec::new(),
            has_settled: false,
            key: None,
        }
    }

    /// Sets the validator's key, with which it vouches for states.
    #[must_use]
    pub fn signing_with(self, key: SigningKey) -> ExchangeMachine<W> {
        let key = Some(key);
        ExchangeMachine { key, ..self }
    }

    /// Sets the latest version of the rules to support, as a later build would.
    #[must_use]
    pub fn with_rules_version_max(self, rules_version_max: u16) -> ExchangeMachine<W> {
        ExchangeMachine {
            rules_version_max,
            ..self
        }
    }

    /// Returns the follower.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    /// Returns the exchange.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Returns the roster of validators.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Resets the roster to the validators of the genesis, none of which has begun, and ends the
    /// open disputes: use it to found a market again from a backup.
    pub fn reset_roster(&mut self, genesis: &Genesis) {
        self.roster = Roster::new(genesis);
        self.exchange.end_disputes();
    }

    fn restore_state(&mut self, bytes: &[u8]) -> Result<(), StateFault> {
        let (roster, exchange) = split_state(bytes)?;
        let exchange = Exchange::restore(exchange)?;
        let supported = self.rules_version_max;
        if let Some(version) = exchange.unsupported_version(exchange.now(), supported) {
            return Err(UnsupportedVersion { version, supported }.into());
        }
        self.exchange = exchange;
        self.roster = roster;
        Ok(())
    }

    /// Returns the result of a batch that the state refuses without any change, if it shows that.
    pub fn foresee_batch_refusal(&self, batch: &VerifiedBatch) -> Option<BatchResult> {
        let refusal = self.exchange.foresee_refusal(batch)?;
        let commands = batch.batch().commands.iter();
        let results = commands.map(|_| Err(refusal.clone()));
        Some(BatchResult::Applied(results.collect()))
    }

    /// Applies a decoded and verified batch.
    pub fn apply_batch(
        &mut self,
        at: Position,
        now: LogTime,
        batch: &VerifiedBatch,
    ) -> BatchResult {
        self.exchange
            .apply_into(Millis(now.0), batch, &mut self.outcome);
        let time = self.exchange.now();
        self.watch.on_events(at, time, &self.outcome.events);
        encode_events(&self.outcome.events, &mut self.events);
        self.has_settled = self.outcome.events.iter().any(is_settlement);
        let outcomes = self.outcome.outcomes.drain(..);
        BatchResult::Applied(outcomes.map(Outcome::into_result).collect())
    }
}

impl<W: Watch> ExchangeMachine<W> {
    /// Returns the result of a verdict that the state refuses without any change.
    pub fn foresee_verdict_refusal(&self, signed: &SignedVerdict) -> Option<BatchResult> {
        // The largest jury, because the version that applies to the entry is not known yet.
        let (body, jury) = (&signed.body, self.roster.list_jury(RULES_VERSION));
        let checked = self.exchange.check_verdict(body.dispute, body.juror, &jury);
        checked
            .err()
            .map(|refusal| BatchResult::Judged(Err(refusal)))
    }

    /// Applies an order about the validators. If it changes who judges, the same command decides
    /// the open disputes again.
    fn apply_order(
        &mut self,
        at: Position,
        now: LogTime,
        order: &SignedMembershipOrder,
    ) -> BatchResult {
        self.events.clear();
        self.has_settled = false;
        let version = self.exchange.version_at(Millis(now.0));
        let before = self.roster.list_jury(version);
        let ordered = self.roster.apply_order(Millis(now.0), order);
        let jury = self.roster.list_jury(version);
        if self.exchange.is_recount_due(Millis(now.0), &before, &jury) {
            let events = self.exchange.recount_verdicts(Millis(now.0), &jury);
            self.watch.on_events(at, self.exchange.now(), &events);
            encode_events(&events, &mut self.events);
        }
        BatchResult::Ordered(ordered)
    }

    /// Counts a validator's verdict.
    fn apply_verdict(&mut self, at: Position, now: LogTime, signed: &SignedVerdict) -> BatchResult {
        let body = &signed.body;
        self.has_settled = false;
        if body.market != self.exchange.market() {
            self.events.clear();
            let (market, batch) = (self.exchange.market(), body.market);
            return BatchResult::Judged(Err(Refusal::MarketOther { market, batch }));
        }
        let version = self.exchange.version_at(Millis(now.0));
        let jury = self.roster.list_jury(version);
        let (counted, events) = self.exchange.count_verdict(
            Millis(now.0),
            body.dispute,
            body.juror,
            body.verdict,
            &jury,
        );
        self.watch.on_events(at, self.exchange.now(), &events);
        encode_events(&events, &mut self.events);
        BatchResult::Judged(counted)
    }
}

/// A decoded and verified command of the log.
#[derive(Debug)]
pub enum LogCommand {
    /// A batch that its account signed.
    Batch(VerifiedBatch),
    /// An order that an operator or a validator signed. The roster decides its result.
    Order(SignedMembershipOrder),
    /// A verdict that a validator signed. The exchange decides whether it counts.
    Verdict(SignedVerdict),
}

/// The bytes are not a signed order or verdict.
#[derive(Debug, thiserror::Error)]
#[error("the bytes are not a signed order or verdict: {0}")]
struct NoOrder(#[source] postcard::Error);

/// A decoded command.
enum DecodedCommand {
    Batch(SignedBatch),
    /// A command that is no batch, its signature verified.
    Verified(LogCommand),
}

fn to_fault(cause: impl std::error::Error + Send + Sync + 'static) -> CommandFault {
    CommandFault {
        cause: Box::new(cause),
    }
}

/// Decodes a command. Verifies the signature of an order or verdict, but not yet that of a batch.
fn decode_command(command: &[u8]) -> Result<DecodedCommand, CommandFault> {
    if let Some(order) = SignedMembershipOrder::decode(command) {
        let order = order.map_err(|fault| to_fault(NoOrder(fault)))?;
        order.verify().map_err(to_fault)?;
        return Ok(DecodedCommand::Verified(LogCommand::Order(order)));
    }
    if let Some(verdict) = SignedVerdict::decode(command) {
        let verdict = verdict.map_err(|fault| to_fault(NoOrder(fault)))?;
        verdict.verify().map_err(to_fault)?;
        return Ok(DecodedCommand::Verified(LogCommand::Verdict(verdict)));
    }
    let batch = SignedBatch::decode(command).map_err(to_fault)?;
    Ok(DecodedCommand::Batch(batch))
}

fn to_log_command(verified: Result<VerifiedBatch, BatchFault>) -> Result<LogCommand, CommandFault> {
    verified.map(LogCommand::Batch).map_err(to_fault)
}

impl<W: Watch> StateMachine for ExchangeMachine<W> {
    type Command = LogCommand;

    fn verify_command(command: &[u8]) -> Result<LogCommand, CommandFault> {
        match decode_command(command)? {
            DecodedCommand::Verified(command) => Ok(command),
            DecodedCommand::Batch(signed) => to_log_command(signed.verify()),
        }
    }

    fn verify_each(commands: &[&[u8]]) -> Vec<Result<LogCommand, CommandFault>> {
        let mut batches = Vec::new();
        // The verdict on each command that is not a batch. The verdicts on the batches follow
        // below, in the order of the batches.
        let other_verdict = |command: &&[u8]| match decode_command(command) {
            Ok(DecodedCommand::Verified(command)) => Some(Ok(command)),
            Ok(DecodedCommand::Batch(signed)) => {
                batches.push(signed);
                None
            }
            Err(forged) => Some(Err(forged)),
        };
        let other_verdicts: Vec<_> = commands.iter().map(other_verdict).collect();
        let mut batch_verdicts = SignedBatch::verify_each(batches)
            .into_iter()
            .map(to_log_command);
        let other_verdicts = other_verdicts.into_iter();
        other_verdicts
            .filter_map(|other| other.or_else(|| batch_verdicts.next()))
            .collect()
    }

    fn unsupported_reason(&self, now: LogTime) -> Option<MachineFailure> {
        let version = self
            .exchange
            .unsupported_version(Millis(now.0), self.rules_version_max)?;
        let supported = self.rules_version_max;
        Some(MachineFailure {
            cause: Box::new(UnsupportedVersion { version, supported }),
        })
    }

    fn apply_command(&mut self, at: Position, now: LogTime, command: &LogCommand) -> Vec<u8> {
        let result = match command {
            LogCommand::Order(order) => self.apply_order(at, now, order),
            LogCommand::Batch(batch) => self.apply_batch(at, now, batch),
            LogCommand::Verdict(verdict) => self.apply_verdict(at, now, verdict),
        };
        encode_result(&result)
    }

    fn tick(&mut self, at: Position, now: LogTime) -> Vec<u8> {
        let events = self.exchange.tick(Millis(now.0));
        self.watch.on_events(at, self.exchange.now(), &events);
        encode_events(&events, &mut self.events);
        self.has_settled = false;
        Vec::new()
    }

    fn events_digest(&self) -> Digest {
        Digest::for_content(&self.events)
    }

    fn is_proof_due(&self) -> bool {
        self.has_settled
    }

    fn wakes_at(&self) -> Option<LogTime> {
        self.exchange.wakes_at().map(|at| LogTime(at.0))
    }

    fn judge_change(&self, change: MemberChange) -> ChangeStanding {
        vouchers::judge_change(&self.roster, change)
    }

    fn sign_statement(&self, statement: &[u8]) -> Vec<u8> {
        let key = self.key.as_ref();
        key.map_or_else(Vec::new, |key| {
            vouchers::sign_statement(self.exchange.market(), statement, key)
        })
    }

    fn has_signed(&self, by: ReplicaId, statement: &[u8], signature: &[u8]) -> bool {
        let entry = self.roster.entries().get(&by.get());
        entry.is_some_and(|entry| {
            vouchers::has_signed(self.exchange.market(), statement, entry.account, signature)
        })
    }

    fn count_vouchers(&self, offered: &OfferedState<'_>) -> Tally {
        match split_state(offered.machine) {
            Ok((roster, _)) => {
                vouchers::tally_vouchers(self.exchange.market(), &self.roster, &roster, offered)
            }
            Err(_) => vouchers::NOBODY,
        }
    }

    fn digest(&self) -> [u8; 32] {
        let mut bytes = self.exchange.digest().0.to_vec();
        bytes.extend(encode_roster(&self.roster));
        *ContentId::for_content(&bytes).as_bytes()
    }

    fn state_root(&mut self) -> Digest {
        let roster = Digest::for_content(&encode_roster(&self.roster));
        Digest(self.exchange.state_root(souk_market::Digest(roster.0)).0)
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(encode_roster(&self.roster));
        bytes.extend(self.exchange.snapshot());
        bytes
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.restore_state(bytes).map_err(|fault| RestoreError {
            cause: Box::new(fault),
        })
    }
}

/// Splits a state's bytes into the roster and the bytes of the exchange.
fn split_state(bytes: &[u8]) -> Result<(Roster, &[u8]), StateFault> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(StateFault::Magic)?;
    Ok(postcard::take_from_bytes(bytes)?)
}

/// Encodes a result as the proposer of the command gets it.
pub(super) fn encode_result(result: &BatchResult) -> Vec<u8> {
    postcard::to_allocvec(result).expect("plain data in memory always encodes")
}

/// Returns whether the event is the end of a lease by a receipt.
fn is_settlement(event: &Event) -> bool {
    let Event::LeaseClosed { reason, .. } = event else {
        return false;
    };
    *reason == CloseReason::Receipt
}

/// Encodes events into `bytes`, whose memory it reuses; no bytes if there are no events.
fn encode_events(events: &[Event], bytes: &mut Vec<u8>) {
    bytes.clear();
    if !events.is_empty() {
        let reused = std::mem::take(bytes);
        *bytes = postcard::to_extend(events, reused).expect("plain data in memory always encodes");
    }
}

fn encode_roster(roster: &Roster) -> Vec<u8> {
    postcard::to_allocvec(roster).expect("plain data in memory always encodes")
}

#[cfg(test)]
mod tests;
