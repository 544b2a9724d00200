//! Tests the replicated state machine: versions of its rules, events, and disputes when the
//! validators change.

use souk_market::{
    AccountKey, Accusation, Ask, Batch, Bid, BuyerFilter, Command, ContentId as Content, Credits,
    DeviceId, DeviceMicros, DisputeId, DisputeState, Dtype, Features, Founder, JobId, Limit,
    MarketId, Name, Nonce, Permille, Price, Receipt, ReceiptBody, Resources, Term, TimeInForce,
    Units, Upgrade, Verdict, Wants,
};

mod upgrades;

use super::*;
use crate::market::roster::{Body, MembershipOrder};
use crate::market::verdict::VerdictBody;

/// Where the log has a command; no test here depends on it.
const POSITION: Position = Position {
    index: souk_consensus::LogIndex(7),
    offset: 0,
};

struct Nobody;

impl Watch for Nobody {
    fn on_events(&mut self, _at: Position, _time: Millis, _events: &[Event]) {}
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

#[test]
fn a_build_without_the_next_version_stops_before_it() {
    let key = SigningKey::from_bytes(&[5; 32]);
    let operator = AccountKey::from(&key);
    let mut genesis = Genesis::new("m".try_into().unwrap(), operator);
    genesis.accounts = vec![(operator, Name::default(), Credits(0))];
    genesis.rules.rules_notice = Millis(1_000);
    let mut old = Machine::new(&genesis, Nobody).with_rules_version_max(1);
    let mut new = Machine::new(&genesis, Nobody);
    let at = Millis(5_000);
    let batch = Batch {
        market: genesis.market_id(),
        account: operator,
        nonce: Nonce(1),
        expires: Millis(60_000),
        commands: vec![Command::Upgrade(Upgrade { to: 2, at })],
    };
    let batch = batch.sign(&key).verify().unwrap();
    let due = Acceptance::UpgradeDue(Upgrade { to: 2, at });
    for machine in [&mut old, &mut new] {
        let result = machine.apply_batch(POSITION, LogTime(1_000), &batch);
        assert_eq!(result, BatchResult::Applied(vec![Ok(due.clone())]));
        assert!(machine.unsupported_reason(LogTime(4_999)).is_none());
    }
    let why = old.unsupported_reason(LogTime(5_000)).unwrap().to_string();
    assert!(
        why.ends_with("install a release of souk that supports version 2"),
        "{why}"
    );
    assert!(new.unsupported_reason(LogTime(5_000)).is_none());
    new.tick(POSITION, LogTime(5_000));
    assert_eq!(new.exchange().rules_version(), (2, None));
    // A build does not restore a state whose rules it does not support.
    assert!(old.restore(&new.snapshot()).is_err());
    assert_eq!(old.exchange().rules_version().0, 1);
}

#[test]
fn the_events_digest_covers_the_last_command_or_tick_only() {
    let key = SigningKey::from_bytes(&[5; 32]);
    let operator = AccountKey::from(&key);
    let mut genesis = Genesis::new("m".try_into().unwrap(), operator);
    genesis.accounts = vec![(operator, Name::default(), Credits(0))];
    let mut machine = Machine::new(&genesis, Nobody);
    let answer = machine.tick(POSITION, LogTime(1_000));
    assert!(answer.is_empty(), "a tick answers nothing");
    let without = machine.events_digest();
    let event = Event::Registered { account: operator };
    encode_events(&[event], &mut machine.events);
    assert_ne!(machine.events_digest(), without);
    // The next tick clears them.
    machine.tick(POSITION, LogTime(1_001));
    assert_eq!(machine.events_digest(), without);
}

fn order() -> Vec<u8> {
    let key = key(9);
    let body = Body {
        market: MarketId::default(),
        signer: AccountKey::from(&key),
        number: 1,
        expires: Millis(1),
        order: MembershipOrder::Remove { raft_id: 1 },
    };
    SignedMembershipOrder::sign(body, &key).encode()
}

#[test]
fn commands_verified_together_get_the_same_verdicts_as_each_alone() {
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
    let commands: Vec<&[u8]> = commands.iter().map(|bytes| &**bytes).collect();
    let alone: Vec<_> = commands
        .iter()
        .map(|bytes| Machine::verify_command(bytes))
        .collect();
    let are_valid: Vec<bool> = alone.iter().map(Result::is_ok).collect();
    assert_eq!(are_valid, [true, true, false, false, false, true, true]);
    let together = Machine::verify_each(&commands);
    assert_eq!(format!("{together:?}"), format!("{alone:?}"));
}

/// Counts the disputes that were closed.
#[derive(Default)]
struct ClosedDisputes(u32);

impl Watch for ClosedDisputes {
    fn on_events(&mut self, _at: Position, _time: Millis, events: &[Event]) {
        let closed = |event: &&Event| matches!(event, Event::DisputeClosed { .. });
        self.0 += events.iter().filter(closed).count() as u32;
    }
}

const OPERATOR: u8 = 1;
const PROVIDER: u8 = 2;
const BUYER: u8 = 3;
/// The key of validator 0; those of the others follow.
const VALIDATORS: u8 = 10;

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

fn account(number: u8) -> AccountKey {
    AccountKey::from(&key(number))
}

/// A market of four validators that have begun.
struct Court {
    machine: ExchangeMachine<ClosedDisputes>,
    genesis: Genesis,
    market: MarketId,
    number: u64,
    now: LogTime,
    /// The commands of its log, and the time of each.
    log: Vec<(LogTime, LogCommand)>,
}

impl Court {
    /// A market in which a dispute is open.
    fn new() -> Court {
        let mut court = Court::found();
        court.open_dispute();
        court
    }

    fn found() -> Court {
        Court::found_and_begin(4)
    }

    /// A market of four validators, of which the first ones have begun.
    fn found_and_begin(begun: u8) -> Court {
        let mut genesis = Genesis::new("m".try_into().unwrap(), account(OPERATOR));
        let rich = |number| (account(number), Name::default(), Credits(100_000_000));
        genesis.accounts = [OPERATOR, PROVIDER, BUYER].map(rich).to_vec();
        let founder = |number: u8| Founder {
            raft_id: u64::from(number) + 1,
            account: account(VALIDATORS + number),
            address: String::new(),
        };
        genesis.validators = (0..4).map(founder).collect();
        genesis.rules.rules_notice = Millis(0);
        genesis.rules.closed_leases_kept = 0;
        let mut court = Court {
            machine: ExchangeMachine::new(&genesis, ClosedDisputes::default()),
            market: genesis.market_id(),
            genesis,
            number: 0,
            now: LogTime(1_000),
            log: Vec::new(),
        };
        for number in 0..begun {
            court.begin(number, u64::from(number) + 1);
        }
        court
    }

    fn apply(&mut self, command: LogCommand) -> BatchResult {
        let result = self.machine.apply_command(POSITION, self.now, &command);
        self.log.push((self.now, command));
        postcard::from_bytes(&result).unwrap()
    }

    fn begin(&mut self, validator: u8, raft_id: u64) {
        let begin = MembershipOrder::Begin {
            raft_id,
            address: String::new(),
            speaks: RULES_VERSION,
        };
        self.order(VALIDATORS + validator, begin);
    }

    /// Gives an order that is carried out, and returns the id that it concerns.
    fn order(&mut self, signer: u8, order: MembershipOrder) -> u64 {
        self.number += 1;
        let body = Body {
            market: self.market,
            signer: account(signer),
            number: self.number,
            expires: Millis(self.now.0 + 60_000),
            order,
        };
        let signed = SignedMembershipOrder::sign(body, &key(signer));
        match self.apply(LogCommand::Order(signed)) {
            BatchResult::Ordered(Ok(raft_id)) => raft_id,
            other => panic!("not ordered: {other:?}"),
        }
    }

    fn remove(&mut self, validator: u8) {
        let raft_id = u64::from(validator) + 1;
        self.order(OPERATOR, MembershipOrder::Remove { raft_id });
    }

    fn command(&mut self, signer: u8, command: Command) {
        let result = self.try_command(signer, command);
        assert!(result.is_ok(), "{result:?}");
    }

    fn try_command(&mut self, signer: u8, command: Command) -> Result<Acceptance, Refusal> {
        self.number += 1;
        let batch = Batch {
            market: self.market,
            account: account(signer),
            nonce: Nonce(self.number),
            expires: Millis(self.now.0 + 60_000),
            commands: vec![command],
        };
        let batch = batch.sign(&key(signer)).verify().unwrap();
        let BatchResult::Applied(mut results) = self.apply(LogCommand::Batch(batch)) else {
            panic!("a batch is applied");
        };
        results.remove(0)
    }

    fn open_dispute(&mut self) {
        self.trade(Features::EXACT_1);
        let receipt = Receipt::new(self.receipt_body()).sign_as_provider(&key(PROVIDER));
        let weights = Vec::new();
        let accusation = Accusation { receipt, weights };
        self.command(BUYER, Command::Accuse(Box::new(accusation)));
    }

    /// The buyer gets a lease of the provider, which promises exact results.
    fn trade(&mut self, features: Features) {
        let resources = Resources {
            kind_name: "gpu".try_into().unwrap(),
            model: "Test 24".try_into().unwrap(),
            memory_bytes: 24 << 30,
            features: Features::EXACT_1,
            ..Resources::default()
        };
        let class = resources.class();
        let amount = Credits(5_000);
        self.command(PROVIDER, Command::Stake { amount });
        let ask = Ask {
            device: DeviceId(self.number),
            capacity: Units(1),
            resources,
            limit: Limit::Price(Price(300)),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(3_600_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(0),
            accepts: BuyerFilter::default(),
            tif: TimeInForce::Gtc,
        };
        self.command(PROVIDER, Command::PlaceAsk(Box::new(ask)));
        let bid = Bid {
            class,
            wants: Wants {
                features,
                ..Wants::default()
            },
            limit: Limit::Price(Price(300)),
            budget: Credits(1_000_000),
            quantity: Units(1),
            all_or_none: false,
            duration: Millis(10_000),
            start_delay_max: Millis(0),
            term: Term::Firm,
            tif: TimeInForce::Gtc,
            job: JobId([7; 32]),
        };
        self.command(BUYER, Command::PlaceBid(Box::new(bid)));
    }

    fn receipt_body(&self) -> ReceiptBody {
        let lease = self.machine.exchange().leases().last().unwrap();
        let usage = DeviceMicros(1_000_000);
        ReceiptBody {
            market: self.market,
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            graph: Content([1; 32]),
            inputs: vec![Content([2; 32])],
            outputs: vec![Content([3; 32])],
            class: lease.class,
            model: lease.model.clone(),
            emulated: lease.class.emulated,
            dtype: Dtype::F32,
            declared_mega_ops: 1,
            delivered_mega_ops: 1,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount: ReceiptBody::amount_due(lease.price, usage).unwrap(),
            bytes_in: 0,
            bytes_out: 0,
            started: Millis(0),
            finished: Millis(1),
        }
    }

    fn judge(&mut self, validator: u8) {
        let body = VerdictBody {
            market: self.market,
            dispute: self.dispute(),
            juror: account(VALIDATORS + validator),
            verdict: Verdict::Guilty,
        };
        let signed = SignedVerdict::sign(body, &key(VALIDATORS + validator));
        let judged = self.apply(LogCommand::Verdict(signed));
        assert_eq!(judged, BatchResult::Judged(Ok(())));
    }

    fn dispute(&self) -> DisputeId {
        self.machine.exchange().disputes().next().unwrap().id
    }

    fn is_convicted(&self) -> bool {
        let dispute = self.machine.exchange().dispute(self.dispute()).unwrap();
        matches!(dispute.state, DisputeState::Guilty { .. })
    }
}

#[test]
fn an_order_that_removes_validators_decides_what_the_rest_agrees_on() {
    let mut court = Court::new();
    court.judge(0);
    court.judge(1);
    // Three remain, and three must agree.
    court.remove(3);
    assert!(!court.is_convicted());
    let nothing = court.machine.events_digest();
    // Two remain, and both have.
    court.remove(2);
    assert!(court.is_convicted());
    assert_eq!(court.machine.watch().0, 1);
    assert_ne!(court.machine.events_digest(), nothing, "the history has it");
    let account = court.machine.exchange().account(account(PROVIDER)).unwrap();
    assert_eq!(account.stake, Credits(0));
    court.machine.exchange().audit();
}

#[test]
fn verdicts_of_removed_validators_do_not_count() {
    let mut court = Court::new();
    court.judge(0);
    court.judge(1);
    court.remove(0);
    court.remove(2);
    assert!(!court.is_convicted(), "one of two");
    court.judge(3);
    assert!(court.is_convicted());
}
