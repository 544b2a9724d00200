//! Runs random streams of commands through the exchange and the naive exchange side by side, and
//! compares trades, balances, events and digests.
//!
//! `SOUK_MARKET_STREAMS=100000 cargo test -p souk-market` runs more of them, and
//! `SOUK_MARKET_STREAM_FIRST=n` begins at another one: a stream's number is its seed.

use std::collections::BTreeMap;

use souk_market::*;

use crate::naive::{Naive, Rent, Resting};
use crate::town::{account, body, key, resources};

/// Refusals that no stream comes near; `refusals.rs` and `disputes.rs` have a test for each.
const UNMET: [&str; 35] = [
    "market_other",
    "batch_far",
    "accounts_many",
    "key_weak",
    "approvals_many",
    "steps_spent",
    "rule_fixed",
    "rule_range",
    "notice_short",
    "settings_many",
    "changes_many",
    "change_unknown",
    "version_old",
    "request_locked",
    "amount_large",
    "duration_bad",
    "predicate_large",
    "region_bad",
    "token_terms_bad",
    "classes_many",
    "stake_disputed",
    "lease_inexact",
    "accusation_empty",
    "accusation_large",
    "accusation_late",
    "dispute_known",
    "disputes_many",
    "dispute_unknown",
    "juror_only",
    "verdict_known",
    "note_differs",
    "receipt_market",
    "receipt_parties",
    "receipt_tokens",
    "receipt_over",
];

/// Streams in an ordinary run.
const STREAMS: u64 = 10_000;

/// One stream in so many begins shortly before midnight, and crosses it.
const NIGHTLY: u64 = 8;
const MIDNIGHT: u64 = 24 * 3_600_000;

/// Numbers that look random and are the same everywhere (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const PEOPLE: [u8; 6] = [1, 10, 11, 12, 13, 14];

/// Mostly none; else prices below the limit, and now and then some that are refused.
fn spot_prices(dice: &mut Dice, limit: Limit) -> Vec<SpotPrice> {
    if limit == Limit::Market {
        return Vec::new();
    }
    let count = dice.pick(&[0, 0, 0, 1, 2, 3]);
    let step = dice.pick(&[1, 5, 5]);
    let price = |at: u64| SpotPrice {
        notice: Millis(at * 700),
        price: Price((at + 1) * step),
    };
    (0..count).map(price).collect()
}

fn device(dice: &mut Dice, kind: u16) -> Resources {
    Resources {
        kind: KindCode(kind),
        memory_bytes: dice.pick(&[20, 24, 30]) << 30,
        region: Region(dice.below(3) as u8),
        features: Features(dice.below(4) as u32),
        ..resources()
    }
}

pub fn genesis(dice: &mut Dice) -> Genesis {
    let mut genesis = Genesis::new("streams".try_into().unwrap(), account(1));
    for number in &PEOPLE[..5] {
        let deposit = Credits(dice.pick(&[200, 5_000, 1_000_000, 1_000_000]));
        genesis
            .accounts
            .push((account(*number), Name::default(), deposit));
    }
    let rules = &mut genesis.rules;
    rules.fee_basis_points = dice.pick(&[0, 0, 100, 2_500]);
    rules.settle_grace = Millis(4_000);
    rules.note_deadline = Millis(2_500);
    rules.note_span = Millis(1_500);
    rules.silent_notes_max = 2;
    rules.open_orders_max = 6;
    rules.orders_max = dice.pick(&[5, 9, 1_000, 1_000]);
    rules.ask_deposit = Credits(dice.pick(&[0, 0, 7, 60]));
    rules.requests_max = dice.pick(&[1, 3]);
    rules.requests_open_max = dice.pick(&[1, 2, 100]);
    rules.stake_hold = Millis(5_000);
    rules.note_unstarted = Millis(dice.pick(&[0, 700, 700]));
    rules.reputation_step = Credits(dice.pick(&[5, 60]));
    rules.deposit_cap_day = Credits(dice.pick(&[0, 0, 70]));
    rules.withdrawal_cap_day = Credits(dice.pick(&[0, 0, 50]));
    rules.slash = Permille(dice.pick(&[333, 1_000]));
    let other = Resources {
        kind: KindCode(3),
        ..resources()
    };
    rules.classes = vec![ClassRules {
        class: other.class(),
        tick: Price(5),
        lot: Units(2),
    }];
    genesis
}

/// One stream: who says what, and when.
pub struct Stream {
    pub dice: Dice,
    pub now: u64,
    nonce: u64,
}

impl Stream {
    pub fn new(seed: u64) -> Self {
        let now = match seed % NIGHTLY {
            3 => MIDNIGHT - 8_000,
            _ => 1,
        };
        Self {
            dice: Dice(seed),
            now,
            nonce: 0,
        }
    }

    fn kind(&mut self) -> u16 {
        self.dice.pick(&[2, 2, 2, 3])
    }

    /// Asks from 5 to 20, bids from 10 to 25, in fives; now and then something odd.
    fn price(&mut self, least: u64) -> Limit {
        match self.dice.below(40) {
            0..=2 => Limit::Market,
            3 => Limit::Price(Price(self.dice.below(3))),
            _ => Limit::Price(Price(5 * (least + self.dice.below(4)))),
        }
    }

    fn tif(&mut self, now: u64, limit: Limit) -> TimeInForce {
        let most = if limit == Limit::Market { 3 } else { 12 };
        match self.dice.below(most) {
            0 => TimeInForce::Ioc,
            1 => TimeInForce::Fok,
            2 => TimeInForce::Gtd(Millis(now + self.dice.below(4_000))),
            _ => TimeInForce::Gtc,
        }
    }

    fn quantity(&mut self) -> u32 {
        match self.dice.below(30) {
            0 => 0,
            _ => self.dice.pick(&[1, 2, 2, 2, 4, 6]),
        }
    }

    fn ask(&mut self) -> Ask {
        let kind = self.kind();
        let quantity = Units(self.quantity());
        let limit = self.price(1);
        let tif = self.tif(self.now, limit);
        let dice = &mut self.dice;
        let resources = device(dice, kind);
        let spot = spot_prices(dice, limit);
        let accepts = BuyerFilter {
            reputation: Permille(if dice.one_in(8) { 510 } else { 0 }),
            excluded: if dice.one_in(8) {
                vec![account(12)]
            } else {
                Vec::new()
            },
            only: if dice.one_in(20) {
                vec![account(13)]
            } else {
                Vec::new()
            },
        };
        Ask {
            device: DeviceId(dice.below(3)),
            capacity: Units(if dice.one_in(15) { 3 } else { 12 }),
            resources,
            quantity,
            duration_min: Millis(dice.pick(&[1, 1, 1, 1_000])),
            duration_max: Millis(dice.pick(&[3_000, 20_000, 20_000])),
            notice: Millis(dice.pick(&[0, 500, 2_000])),
            spot,
            idle: Permille(self.dice.pick(&[0, 0, 150, 1_000, 5_000])),
            accepts,
            limit,
            tif,
        }
    }

    fn bid(&mut self) -> Bid {
        let kind = self.kind();
        let quantity = Units(self.quantity());
        let limit = self.price(2);
        let tif = self.tif(self.now, limit);
        let dice = &mut self.dice;
        let wants = Wants {
            memory_bytes: dice.pick(&[0, 0, 0, 0, 22, 30]) << 30,
            throughput: Throughput([0, dice.pick(&[0, 80_000_000]), 0, 0, 0, 0]),
            regions: Regions(dice.pick(&[0, 0, 0, 0, 0, 3, 4])),
            features: Features(dice.pick(&[0, 0, 0, 0, 1, 2])),
            reputation: Permille(dice.pick(&[0, 0, 0, 0, 0, 0, 490, 520])),
            stake: Credits(if dice.one_in(25) { 50 } else { 0 }),
            notice: Millis(dice.pick(&[0, 0, 0, 0, 0, 500])),
            excluded: if dice.one_in(8) {
                vec![account(10)]
            } else {
                Vec::new()
            },
            ..Wants::default()
        };
        Bid {
            class: Resources {
                kind: KindCode(kind),
                ..resources()
            }
            .class(),
            wants,
            budget: Credits(dice.pick(&[1, 40, 300, 5_000, 5_000, 5_000, 5_000, 5_000])),
            quantity,
            all_or_none: dice.one_in(6),
            duration: Millis(dice.pick(&[999, 1_000, 3_000, 9_001])),
            start_delay_max: Millis(dice.pick(&[0, 0, 1_000, 5_000])),
            term: dice.pick(&[Term::Firm, Term::Spot]),
            job: JobId([7; 32]),
            limit,
            tif,
        }
    }

    /// Receipts that are right, and some that are wrong in one way.
    fn receipt(&mut self, exchange: &Exchange, lease: LeaseId) -> Option<Receipt> {
        let known = exchange.lease(lease)?;
        let dice = &mut self.dice;
        let usage = dice.below(2_000) * 5_000;
        let mut body = body(exchange, lease, usage);
        body.outputs = vec![ContentId([dice.below(2) as u8; 32])];
        body.idle = DeviceMicros(dice.pick(&[0, 0, 1_000, 700_000]));
        body.amount = ReceiptBody::amount_due(body.price, body.billable_usage()).unwrap();
        body.delivered_mega_ops = dice.pick(&[0, 79_000_000, 9_000_000]);
        match dice.below(12) {
            0 => body.amount.0 += 1,
            3 => body.idle_part.0 += 1,
            1 => body.price.0 += 1,
            2 => body.job = JobId([8; 32]),
            _ => {}
        }
        let number = |key| {
            *PEOPLE
                .iter()
                .find(|number| account(**number) == key)
                .unwrap()
        };
        let (provider, buyer) = (number(known.provider), number(known.buyer));
        Some(
            Receipt::new(body)
                .sign_as_provider(key(provider))
                .sign_as_buyer(key(buyer)),
        )
    }

    /// Mostly one of the account's own open orders.
    fn order(&mut self, naive: &Naive, who: u8) -> OrderId {
        let owner = |order: &&Resting| naive.purses[order.owner].key == account(who);
        let own: Vec<u64> = naive
            .orders
            .iter()
            .filter(owner)
            .map(|order| order.id)
            .collect();
        if own.is_empty() || self.dice.one_in(8) {
            return OrderId(naive.orders_made.saturating_sub(self.dice.below(8)));
        }
        OrderId(self.dice.pick(&own))
    }

    /// Mostly a lease that the account is a party of and that is not closed.
    fn lease(&mut self, naive: &Naive, who: u8) -> LeaseId {
        let party = |rent: &&Rent| {
            let parties = [
                naive.purses[rent.buyer].key,
                naive.purses[rent.provider].key,
            ];
            parties.contains(&account(who)) && !rent.closed()
        };
        let own: Vec<u64> = naive
            .rents
            .iter()
            .filter(party)
            .map(|rent| rent.id)
            .collect();
        if own.is_empty() || self.dice.one_in(8) {
            return LeaseId((naive.rents.len() as u64).saturating_sub(self.dice.below(5)));
        }
        LeaseId(self.dice.pick(&own))
    }

    fn command(&mut self, exchange: &Exchange, naive: &Naive, who: u8) -> Command {
        let order = self.order(naive, who);
        let lease = self.lease(naive, who);
        let rent = naive.rents.get((lease.0 as usize).wrapping_sub(1));
        let noted = rent
            .and_then(|rent| rent.note)
            .map_or(0, |(usage, _)| usage);
        let used = rent.map_or(0, |rent| naive.now.saturating_sub(rent.start) * 1_000);
        let amount = Credits(self.dice.below(60));
        let request = RequestId(naive.requests_made.saturating_sub(self.dice.below(5)));
        let rolled = self.dice.below(76);
        // Without a lease there is little to say of leases.
        let idle = rent.is_none() && rolled > 41 && !self.dice.one_in(8);
        match if idle { self.dice.below(34) } else { rolled } {
            0..=16 => Command::PlaceAsk(Box::new(self.ask())),
            17..=33 => Command::PlaceBid(Box::new(self.bid())),
            34..=36 => {
                let count = self.dice.below(4);
                Command::PlaceGang((0..count).map(|_| self.bid()).collect())
            }
            37..=38 => Command::Cancel { order },
            39..=41 => {
                let quantity = Units(self.quantity());
                Command::Amend {
                    order,
                    quantity,
                    price: Price(5 * self.dice.below(7)),
                }
            }
            74..=75 => Command::StateReady { lease },
            42..=43 | 71..=73 => {
                let most = used * self.dice.pick(&[1, 1, 2]);
                let accepted = rent.map_or(0, |rent| rent.accepted);
                let again = accepted > 0 && self.dice.one_in(2);
                let usage = if again {
                    accepted
                } else {
                    self.dice.below(most + 1)
                };
                Command::NoteUsage {
                    lease,
                    usage: DeviceMicros(usage),
                }
            }
            44 => Command::AcceptNote {
                lease,
                usage: DeviceMicros(noted),
            },
            45 if self.dice.one_in(2) => Command::Dispute { lease },
            45 | 67..=70 => Command::StartWork { lease },
            46 => match self.receipt(exchange, lease) {
                Some(receipt) => Command::Settle(Box::new(receipt)),
                None => Command::EndLease { lease },
            },
            47..=48 => Command::EndLease { lease },
            49 => Command::GiveUp { lease },
            50 => Command::Reclaim { lease },
            51..=52 => Command::Extend {
                lease,
                by: Millis(self.dice.below(9_000)),
            },
            53..=54 => Command::Resell {
                lease,
                price: Price(5 * self.dice.below(6)),
            },
            55 => Command::Stake { amount },
            56 => Command::Unstake { amount },
            57 => self.fault(exchange, lease),
            58..=59 => Command::Request {
                direction: self.dice.pick(&[Direction::Deposit, Direction::Withdrawal]),
                amount,
                reference: Name::default(),
            },
            60 if self.dice.one_in(2) => Command::Lock { request },
            60..=61 => Command::Confirm { request },
            62 => Command::Refuse {
                request,
                reason: Name::default(),
            },
            63 => Command::Transfer {
                to: account(self.dice.pick(&PEOPLE)),
                amount,
                reference: Name::default(),
            },
            64 => Command::Collect {
                to: account(self.dice.pick(&PEOPLE)),
                amount,
            },
            65 if self.dice.one_in(8) => Command::Freeze {
                account: account(self.dice.pick(&PEOPLE[1..])),
                reason: Name::default(),
            },
            65 => Command::Thaw {
                account: account(self.dice.pick(&PEOPLE[1..])),
            },
            _ => Command::Deposit {
                account: account(self.dice.pick(&PEOPLE)),
                amount,
            },
        }
    }

    fn fault(&mut self, exchange: &Exchange, lease: LeaseId) -> Command {
        let pair = [self.receipt(exchange, lease), self.receipt(exchange, lease)];
        match pair {
            [Some(one), Some(other)] if self.dice.one_in(2) => {
                Command::ProveFault(Box::new([one, other]))
            }
            _ => Command::Register {
                name: Name::default(),
            },
        }
    }

    pub fn batch(&mut self, exchange: &Exchange, naive: &Naive) -> SignedBatch {
        let who = self.dice.pick(&PEOPLE);
        let count = 1 + self.dice.below(3);
        let mut commands: Vec<Command> = (0..count)
            .map(|_| self.command(exchange, naive, who))
            .collect();
        if who == 14 && self.dice.one_in(2) {
            commands.insert(
                0,
                Command::Register {
                    name: Name::default(),
                },
            );
        }
        let jump = if self.dice.one_in(15) { 40 } else { 0 };
        self.nonce += 1 + self.dice.below(1 + jump);
        let back = if self.dice.one_in(15) {
            self.dice.below(80)
        } else {
            0
        };
        let batch = Batch {
            market: exchange.market(),
            account: account(who),
            nonce: Nonce(self.nonce.saturating_sub(back)),
            expires: Millis(self.now + if self.dice.one_in(25) { 0 } else { 1_000 }),
            commands,
        };
        SignedBatch {
            batch,
            signature: Signature([0; 64]),
        }
    }
}

/// Every balance and every open thing, not only what was told.
fn compare(exchange: &Exchange, naive: &Naive, context: &dyn Fn() -> String) {
    for purse in &naive.purses {
        let kept = exchange.account(purse.key).unwrap();
        let one = (
            kept.available.0,
            kept.escrow.0,
            kept.stake.0,
            kept.reputation.score.0,
        );
        let other = (purse.available, purse.escrow, purse.stake, purse.score);
        assert_eq!(one, other, "{} {}", purse.key, context());
    }
    assert_eq!(exchange.totals().fees.0, naive.fees, "{}", context());
    for rent in &naive.rents {
        let lease = exchange.lease(LeaseId(rent.id)).unwrap();
        let one = (
            lease.state,
            lease.escrow.0,
            lease.accepted.0,
            lease.deadline.0,
        );
        let other = (rent.state, rent.escrow, rent.accepted, rent.deadline);
        assert_eq!(one, other, "{}", context());
    }
    assert_eq!(exchange.digest(), naive.digest(), "{}", context());
}

/// What the streams have met: each refusal's code and each kind of event, and how often.
#[derive(Debug, Default)]
struct Met(BTreeMap<String, u64>);

impl Met {
    fn count(&mut self, applied: &BatchOutcome) {
        for outcome in &applied.outcomes {
            let what = match outcome {
                Outcome::Accepted(accepted) => first_word(accepted),
                Outcome::Refused(refusal) => refusal.code().to_owned(),
            };
            *self.0.entry(what).or_default() += 1;
        }
        for event in &applied.events {
            *self.0.entry(first_word(event)).or_default() += 1;
        }
    }

    fn count_crossing(&mut self, before: u64, now: u64) {
        let crosses = before < MIDNIGHT && now >= MIDNIGHT;
        *self.0.entry("midnight".to_owned()).or_default() += u64::from(crosses);
    }

    fn and(mut self, other: Met) -> Met {
        for (what, count) in other.0 {
            *self.0.entry(what).or_default() += count;
        }
        self
    }

    fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

fn first_word(value: &impl std::fmt::Debug) -> String {
    /// Takes letters and stops the writing at anything else.
    struct Word(String);
    impl std::fmt::Write for Word {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let end = text.find(|c: char| !c.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            if end.is_some() {
                Err(std::fmt::Error)
            } else {
                Ok(())
            }
        }
    }
    let mut word = Word(String::new());
    let _ = std::fmt::Write::write_fmt(&mut word, format_args!("{value:?}"));
    word.0
}

/// Runs one stream through both.
fn run_stream(seed: u64, met: &mut Met) {
    let mut stream = Stream::new(seed);
    let genesis = genesis(&mut stream.dice);
    let mut naive = Naive::new(&genesis);
    let mut exchange = Exchange::new(genesis);
    // Another replica computes its root at other moments.
    let mut replica = exchange.clone();
    for step in 0..24_u64 {
        let before = stream.now;
        stream.now += stream.dice.pick(&[0, 1, 100, 900, 2_500]);
        let context = || format!("in stream {seed}, step {step}");
        if stream.dice.one_in(12) {
            let told = exchange.tick(Millis(stream.now));
            assert_eq!(told, naive.tick(stream.now), "{}", context());
            replica.tick(Millis(stream.now));
        }
        let signed = stream.batch(&exchange, &naive);
        let verified = VerifiedBatch::from_own_log(signed).unwrap();
        let one = exchange.apply(Millis(stream.now), &verified);
        replica.apply(Millis(stream.now), &verified);
        let other = naive.apply(stream.now, verified.batch());
        let told = || format!("{}: {:#?}", context(), verified.batch());
        assert_eq!(one.outcomes, other.outcomes, "outcomes {}", told());
        assert_eq!(one.events, other.events, "events {}", told());
        assert_eq!(exchange.digest(), naive.digest(), "digest {}", told());
        if seed.is_multiple_of(4) || step == 23 {
            compare_roots(&mut exchange, &mut replica, step, &told);
        }
        if step % 6 == 5 {
            compare(&exchange, &naive, &told);
            exchange.audit();
        }
        met.count(&one);
        met.count_crossing(before, stream.now);
    }
    replay_from_snapshot(&exchange, &mut stream, &naive);
}

/// The state root, of which each step hashed only the touched rows, is that of the whole state, and
/// so is that of another replica and of a restored snapshot.
fn compare_roots(
    exchange: &mut Exchange,
    replica: &mut Exchange,
    step: u64,
    told: &dyn Fn() -> String,
) {
    let beside = Digest([step as u8; 32]);
    let root = exchange.state_root(beside);
    assert_eq!(root, exchange.rebuilt_state_root(beside), "root {}", told());
    if step % 7 == 6 || step == 23 {
        assert_eq!(root, replica.state_root(beside), "replica {}", told());
        let mut restored = Exchange::restore(&exchange.snapshot()).unwrap();
        assert_eq!(root, restored.state_root(beside), "restored {}", told());
        for account in exchange.accounts() {
            let proof = exchange.prove_account(account.key, root).unwrap();
            assert_eq!(proof.state_root(), Ok(root));
            let balances = proof.balances().unwrap();
            assert_eq!(balances.available, account.available);
            assert_eq!(balances.escrow, account.escrow);
            assert_eq!(balances.stake, account.stake);
        }
        let absent = exchange.prove_account(AccountKey([77; 32]), root).unwrap();
        assert_eq!((absent.state_root(), absent.balances()), (Ok(root), None));
    }
}

/// A restored copy does what the original does.
fn replay_from_snapshot(exchange: &Exchange, stream: &mut Stream, naive: &Naive) {
    let mut original = exchange.clone();
    let mut copy = Exchange::restore(&exchange.snapshot()).unwrap();
    for _ in 0..2 {
        stream.now += 1_500;
        let signed = stream.batch(exchange, naive);
        let verified = VerifiedBatch::from_own_log(signed).unwrap();
        let now = Millis(stream.now);
        assert_eq!(original.apply(now, &verified), copy.apply(now, &verified));
    }
    assert_eq!(original.digest(), copy.digest());
    assert_eq!(original.snapshot(), copy.snapshot());
}

fn number(name: &str, default: u64) -> u64 {
    #[allow(
        clippy::disallowed_methods,
        reason = "a test may be told how long to run"
    )]
    let told = std::env::var(name).ok();
    told.map_or(default, |told| told.parse().unwrap())
}

#[test]
fn random_streams_give_the_naive_exchange_s_trades_balances_events_and_digest() {
    let first = number("SOUK_MARKET_STREAM_FIRST", 0);
    let count = number("SOUK_MARKET_STREAMS", STREAMS);
    // Half of them each: the seconds of this test are those of its crate.
    let half = |parity: u64| {
        let mut met = Met::default();
        let seeds = (first..first + count).filter(|seed| seed % 2 == parity);
        seeds.for_each(|seed| run_stream(seed, &mut met));
        met
    };
    let met = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        half(0).and(odd.join().expect("all of them pass"))
    });
    if count >= STREAMS {
        let unmet: Vec<&str> = Refusal::CODES
            .iter()
            .copied()
            .filter(|code| met.of(code) == 0)
            .collect();
        assert_eq!(unmet, UNMET, "refusals that no stream met");
        assert!(
            met.of("Traded") * 3 > count,
            "the streams must trade: {met:?}"
        );
        assert!(
            met.of("midnight") * 10 > count,
            "a day must end within some: {met:?}"
        );
    }
}
