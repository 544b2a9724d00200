//! Builds an exchange with many asks, in which the benchmark measures the search for the first ask
//! that suits a bid.

use souk_market::{
    AccountKey, Ask, Batch, Bid, BuyerFilter, COMMANDS_MAX, Command, Credits, DeviceId, Dtype,
    Exchange, Features, FirstAsk, Genesis, JobId, KindCode, Limit, Millis, Name, Nonce, Permille,
    Price, Region, Regions, Resources, Signature, SignedBatch, Term, Throughput, TimeInForce,
    Units, VerifiedBatch, Wants,
};

/// The distribution of the asks' attributes and of the bids' demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attributes {
    /// 24 models in as many classes, 16 regions, 8 flags; a bid demands a region and two flags.
    Usual,
    /// One class. Every ask is good in one of two figures and poor in the other, and a bid demands
    /// both good, so that no summary above a leaf can exclude anything.
    Adversarial,
}

/// An exchange of asks, and the bids with which to search it.
pub struct SearchEngine {
    exchange: Exchange,
    bids: Vec<Bid>,
}

const PROVIDERS: u64 = 1_000;

fn account_key(number: u64) -> AccountKey {
    AccountKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// Returns a pseudo-random number (splitmix64) below `n`.
fn pseudo_random(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let scaled = (u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64;
    u64::try_from(scaled).expect("less than n")
}

impl SearchEngine {
    /// Creates an exchange with `asks` asks.
    ///
    /// # Panics
    /// If the exchange refuses an ask: the benchmark's figures are then wrong.
    pub fn new(attributes: Attributes, asks: u64) -> Self {
        let name = Name::try_from("search").expect("a short name");
        let mut genesis = Genesis::new(name, account_key(u64::MAX));
        let open = |number| (account_key(number), Name::default(), Credits(1 << 40));
        genesis.accounts = (0..=PROVIDERS).map(open).collect();
        genesis.rules.open_orders_max = u32::MAX;
        let mut exchange = Exchange::new(genesis);
        let mut left = asks;
        for nonce in 1.. {
            let count = left.min(COMMANDS_MAX as u64);
            if count == 0 {
                break;
            }
            let numbers = left - count..left;
            let ask = |number| Command::PlaceAsk(Box::new(build_ask(attributes, number)));
            place_orders(&mut exchange, nonce, numbers.map(ask).collect());
            left -= count;
        }
        let bids = (0..4_096)
            .map(|number| build_bid(attributes, number))
            .collect();
        Self { exchange, bids }
    }

    /// Searches for bid number `number`, the timed part.
    ///
    /// # Panics
    /// If the exchange refuses the bid: the benchmark's figures are then wrong.
    pub fn find_ask(&self, number: usize) -> FirstAsk {
        let bid = &self.bids[number % self.bids.len()];
        let found = self.exchange.first_ask(account_key(PROVIDERS), bid);
        found.expect("the bid is sound")
    }

    /// Returns the exchange, to take a snapshot.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }
}

fn place_orders(exchange: &mut Exchange, nonce: u64, commands: Vec<Command>) {
    let batch = Batch {
        market: exchange.market(),
        account: account_key(nonce % PROVIDERS),
        nonce: Nonce(nonce),
        expires: Millis(3_600_000),
        commands,
    };
    let signed = SignedBatch {
        batch,
        signature: Signature([0; 64]),
    };
    let verified = VerifiedBatch::from_own_log(signed).expect("at most 64 commands");
    for outcome in exchange.apply(Millis(1), &verified).outcomes {
        outcome.into_result().expect("the ask is sound");
    }
}

fn device_resources(attributes: Attributes, number: u64) -> Resources {
    let model = pseudo_random(number, 24);
    let usual = Resources {
        kind: KindCode((model % 6) as u16),
        memory_bytes: (8 << 30) << (2 * (model / 6 % 4)),
        throughput: Throughput::default().with(Dtype::F32, 20_000_000 + model * 100_000),
        memory_bandwidth: 500 << 30,
        region: Region(pseudo_random(number ^ 1 << 40, 16) as u8),
        features: Features(pseudo_random(number ^ 1 << 41, 256) as u32),
        ..Resources::default()
    };
    if attributes == Attributes::Usual {
        return usual;
    }
    let (memory, bandwidth) = match number % 2 {
        0 => (30, 600),
        _ => (20, 900),
    };
    Resources {
        kind: KindCode(1),
        memory_bytes: memory << 30,
        memory_bandwidth: bandwidth << 30,
        throughput: Throughput::default().with(Dtype::F32, 20_000_000),
        ..usual
    }
}

fn build_ask(attributes: Attributes, number: u64) -> Ask {
    Ask {
        device: DeviceId(number),
        capacity: Units(1),
        resources: device_resources(attributes, number),
        limit: Limit::Price(Price(1 + pseudo_random(number ^ 1 << 42, 1_000_000))),
        quantity: Units(1),
        duration_min: Millis(1_000),
        duration_max: Millis(3_600_000),
        notice: Millis(0),
        idle: Permille(0),
        spot: Vec::new(),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

fn build_bid(attributes: Attributes, number: u64) -> Bid {
    let like = device_resources(attributes, number ^ 1 << 43);
    let wants = match attributes {
        Attributes::Usual => Wants {
            memory_bytes: like.memory_bytes,
            regions: Regions::from_regions(&[like.region]),
            features: Features(
                1 << pseudo_random(number, 8) | 1 << pseudo_random(number ^ 1 << 44, 8),
            ),
            ..Wants::default()
        },
        Attributes::Adversarial => Wants {
            memory_bytes: 30 << 30,
            memory_bandwidth: 900 << 30,
            ..Wants::default()
        },
    };
    Bid {
        class: like.class(),
        wants,
        limit: Limit::Price(Price(1_000_001)),
        budget: Credits(1 << 40),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(10_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Ioc,
        job: JobId::default(),
    }
}
