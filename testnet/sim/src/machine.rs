//! Runs the real exchange as the state machine of each simulated replica, and checks its
//! invariants: credits add up, no lease closes twice, and no device is sold twice at the same time.
//! All replicas share a cache, so that each batch of commands is decoded, verified and hashed only
//! once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use souk_consensus::{
    ChangeStanding, CommandFault, Digest, LogTime, MachineFailure, MemberChange, OfferedState,
    Position, ReplicaId, RestoreError, StateMachine, Tally,
};
use souk_market::{
    AccountKey, Balances, BatchFault, DeviceId, Event, Exchange, FIRST_RULES_VERSION, Genesis,
    LeaseId, LeaseState, Millis, RULES_VERSION, Signature, SignedBatch, SigningKey, VerifiedBatch,
};
use souk_roles::market::market_protocol::{Answer, Request};
use souk_roles::market::roster::{Roster, SignedMembershipOrder};
pub use souk_roles::validator::exchange::BatchResult;
use souk_roles::validator::exchange::{ExchangeMachine, LogCommand, Watch};
use souk_roles::validator::questions::{self, AnsweringMachine};

use super::random::Random;

/// Wall clock time at the start of a simulation, in Unix milliseconds.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// Stands for a valid signature, so that the simulator spends its time on replication. It really
/// verifies all other signatures.
pub const TRUSTED: Signature = Signature([0; 64]);

/// Cached decoded batches: all replicas apply the same ones at about the same time.
const DECODED_MAX: usize = 4_096;

/// Decoded batches by their bytes, shared by all replicas of one simulation, so that each batch is
/// decoded, verified and hashed only once.
#[derive(Default)]
pub struct DecodingCache {
    batches: Vec<Option<Rc<Decoding>>>,
}

/// A decoded command of the log: a batch, or an order about validators. It is decoded and verified
/// once for all replicas.
#[derive(Debug)]
pub struct Decoding {
    bytes: Vec<u8>,
    /// The batch, with an unverified author.
    pub batch: Result<VerifiedBatch, BatchFault>,
    /// The order about validators, if the command is one.
    pub order: Option<SignedMembershipOrder>,
    /// Whether the command's account signed it.
    pub authentic: bool,
}

impl DecodingCache {
    /// Returns the decoded command.
    pub fn get(&mut self, command: &[u8]) -> Rc<Decoding> {
        let mut hasher = DefaultHasher::new();
        hasher.write(command);
        let place = hasher.finish() as usize % DECODED_MAX;
        if let Some(Some(decoding)) = self.batches.get(place)
            && decoding.bytes == command
        {
            return decoding.clone();
        }
        let decoding = Rc::new(Decoding::from_command(command));
        if self.batches.len() <= place {
            self.batches.resize(place + 1, None);
        }
        self.batches[place] = Some(decoding.clone());
        decoding
    }
}

impl Decoding {
    fn from_command(command: &[u8]) -> Self {
        let order = SignedMembershipOrder::decode(command).and_then(Result::ok);
        let signed = SignedBatch::decode(command);
        let authentic = match &order {
            Some(order) => order.verify().is_ok(),
            None => signed.as_ref().is_ok_and(is_signed),
        };
        Self {
            bytes: command.to_vec(),
            batch: signed.and_then(VerifiedBatch::from_own_log),
            order,
            authentic,
        }
    }

    /// Returns the command, or an error if its account did not sign it.
    pub fn into_verified(self: Rc<Self>) -> Result<Rc<Self>, CommandFault> {
        match self.authentic {
            true => Ok(self),
            false => Err(CommandFault {
                cause: "its account did not sign it".into(),
            }),
        }
    }
}

/// Returns a digest that names a command with its result.
pub fn hash_result(command: &[u8], result: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(command.len() as u64).to_le_bytes());
    hasher.update(command);
    hasher.update(result);
    Digest(*hasher.finalize().as_bytes())
}

fn is_signed(signed: &SignedBatch) -> bool {
    signed.signature == TRUSTED || signed.clone().verify().is_ok()
}

/// Machines that begin with an old release of the program, in a thousand.
const OLD_PERMILLE: u64 = 400;

/// Returns the latest version of the rules that a machine's first program carries out.
pub fn draw_rules_version(id: ReplicaId, seed: u64) -> u16 {
    let mut random = Random::new(seed, &format!("release {id}"));
    match random.chance(OLD_PERMILLE) {
        true => FIRST_RULES_VERSION,
        false => RULES_VERSION,
    }
}

/// Acts of the exchange since the last call of `take_events`.
#[derive(Default)]
pub struct EventRecorder(RefCell<Vec<Event>>);

impl Watch for EventRecorder {
    fn on_events(&mut self, _at: Position, _time: Millis, events: &[Event]) {
        self.0.get_mut().extend_from_slice(events);
    }
}

/// Initial capacity for encoded results; enough for most.
const RESULT_BYTES: usize = 256;

/// A broken promise of the market.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarketBreach {
    /// Balances, escrow and fees do not equal deposits less withdrawals.
    Unbalanced,
    /// An account's credits moved without an event, so its statement does not add up.
    Untold(AccountKey),
    /// A lease was closed a second time.
    ClosedTwice(LeaseId),
    /// A device was leased beyond its capacity.
    SoldTwice(AccountKey, DeviceId),
}

/// The exchange as a replica's state machine, with checks of its invariants.
pub struct SimExchange {
    machine: ExchangeMachine<EventRecorder>,
    closed: BTreeSet<LeaseId>,
    /// The last reported balances of each account.
    reported_balances: BTreeMap<AccountKey, Balances>,
    breach: Option<MarketBreach>,
    /// Whether the replica's memory went wrong: the state differs, and every quick digest is right.
    is_wrong: Cell<bool>,
}

impl SimExchange {
    /// Creates a market at its beginning.
    pub fn new(genesis: &Genesis) -> Self {
        Self {
            machine: ExchangeMachine::new(genesis, EventRecorder::default()),
            closed: BTreeSet::new(),
            reported_balances: BTreeMap::new(),
            breach: None,
            is_wrong: Cell::new(false),
        }
    }

    /// Returns this exchange with a validator's key, which signs its states.
    pub fn signing_with(self, key: SigningKey) -> Self {
        Self {
            machine: self.machine.signing_with(key),
            ..self
        }
    }

    /// Returns this exchange as a build that supports versions of the rules up to this one.
    pub fn with_rules_version_max(self, rules_version_max: u16) -> Self {
        Self {
            machine: self.machine.with_rules_version_max(rules_version_max),
            ..self
        }
    }

    /// Returns the roster of validators.
    pub fn roster(&self) -> &Roster {
        self.machine.roster()
    }

    /// Corrupts the memory until the next start.
    pub fn go_wrong(&self) {
        self.is_wrong.set(true);
    }

    /// Returns whether the memory went wrong.
    pub fn is_wrong(&self) -> bool {
        self.is_wrong.get()
    }

    /// Returns the exchange.
    pub fn exchange(&self) -> &Exchange {
        self.machine.exchange()
    }

    /// Returns the events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.machine.watch().0.take()
    }

    /// Returns the first broken promise, if any.
    pub fn breach(&self) -> Option<&MarketBreach> {
        self.breach.as_ref()
    }

    fn run(&mut self, at: Position, now: LogTime, command: &Decoding) -> Vec<u8> {
        if let Some(order) = &command.order {
            let order = LogCommand::Order(order.clone());
            return self.machine.apply_command(at, now, &order);
        }
        let Ok(batch) = &command.batch else {
            return Vec::new();
        };
        let before = self.machine.watch().0.borrow().len();
        let result = self.machine.apply_batch(at, now, batch);
        self.check_events(before);
        encode_result(&result)
    }

    /// Checks the events after the first `before` ones.
    fn check_events(&mut self, before: usize) {
        for event in &self.machine.watch().0.borrow()[before..] {
            match event {
                Event::LeaseClosed { lease, .. } if !self.closed.insert(*lease) => {
                    self.breach.get_or_insert(MarketBreach::ClosedTwice(*lease));
                }
                Event::Balance {
                    account,
                    before,
                    after,
                } => {
                    let told = self.reported_balances.insert(*account, *after);
                    if told.is_some_and(|told| told != *before) {
                        self.breach.get_or_insert(MarketBreach::Untold(*account));
                    }
                }
                _ => {}
            }
        }
        if !self.exchange().totals().is_balanced() {
            self.breach.get_or_insert(MarketBreach::Unbalanced);
        }
    }

    /// Checks every lease. This costs more, so the simulator should call it only now and then.
    pub fn check_leases(&self, capacity: u64) -> Option<MarketBreach> {
        let mut sold: BTreeMap<(AccountKey, DeviceId), u64> = BTreeMap::new();
        for lease in self.exchange().leases() {
            if matches!(lease.state, LeaseState::Active | LeaseState::Ending { .. }) {
                *sold.entry((lease.provider, lease.device)).or_default() +=
                    u64::from(lease.quantity.0);
            }
        }
        let over = sold.into_iter().find(|(_, units)| *units > capacity);
        over.map(|((provider, device), _)| MarketBreach::SoldTwice(provider, device))
    }
}

impl AnsweringMachine for SimExchange {
    type Question = Box<Request>;
    type Reply = Box<Answer>;

    fn answer_question(&self, question: Box<Request>) -> Box<Answer> {
        Box::new(questions::answer_request(self.exchange(), *question))
    }

    fn foresee_refusal(&self, command: &Rc<Decoding>) -> Option<Vec<u8>> {
        let batch = command.batch.as_ref().ok()?;
        let refused = self.machine.foresee_batch_refusal(batch)?;
        Some(encode_result(&refused))
    }
}

fn encode_result(result: &BatchResult) -> Vec<u8> {
    postcard::to_extend(result, Vec::with_capacity(RESULT_BYTES))
        .expect("plain data in memory always encodes")
}

impl StateMachine for SimExchange {
    type Command = Rc<Decoding>;

    fn verify_command(command: &[u8]) -> Result<Rc<Decoding>, CommandFault> {
        Rc::new(Decoding::from_command(command)).into_verified()
    }

    fn unsupported_reason(&self, now: LogTime) -> Option<MachineFailure> {
        self.machine.unsupported_reason(now)
    }

    fn apply_command(&mut self, at: Position, now: LogTime, command: &Rc<Decoding>) -> Vec<u8> {
        self.run(at, now, command)
    }

    fn tick(&mut self, at: Position, now: LogTime) -> Vec<u8> {
        let before = self.machine.watch().0.borrow().len();
        let told = self.machine.tick(at, now);
        self.check_events(before);
        told
    }

    fn events_digest(&self) -> Digest {
        self.machine.events_digest()
    }

    fn state_root(&mut self) -> Digest {
        self.machine.state_root()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        self.machine.wakes_at()
    }

    fn judge_change(&self, change: MemberChange) -> ChangeStanding {
        self.machine.judge_change(change)
    }

    fn sign_statement(&self, statement: &[u8]) -> Vec<u8> {
        self.machine.sign_statement(statement)
    }

    fn has_signed(&self, by: ReplicaId, statement: &[u8], signature: &[u8]) -> bool {
        self.machine.has_signed(by, statement, signature)
    }

    fn count_vouchers(&self, offered: &OfferedState<'_>) -> Tally {
        self.machine.count_vouchers(offered)
    }

    fn digest(&self) -> [u8; 32] {
        self.machine.digest()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = self.machine.snapshot();
        if let Some(last) = bytes.last_mut() {
            *last ^= u8::from(self.is_wrong());
        }
        bytes
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.machine.restore(bytes)?;
        let closed = |lease: &souk_market::Lease| lease.is_closed().then_some(lease.id);
        self.closed = self.exchange().leases().filter_map(closed).collect();
        self.reported_balances.clear();
        Ok(())
    }
}
