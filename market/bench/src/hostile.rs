//! Builds markets that an attacker has filled with orders so that later commands must examine very
//! many of them, and the batches with such commands. The benchmark measures with them the longest
//! time for which one batch can delay a validator.

use souk_market::{
    AccountKey, Ask, Batch, BatchOutcome, Bid, BuyerFilter, Command, Credits, DeviceId, Exchange,
    Genesis, JobId, KindCode, Limit, Millis, Name, Nonce, Permille, Price, Resources, Signature,
    SignedBatch, Term, TimeInForce, Units, VerifiedBatch, Wants,
};

/// The content of a full market, and the commands that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// All-or-none bids for more units than there are; then asks.
    WholeBids,
    /// All-or-none bids for as many units as there are, of asks that refuse their buyer; then asks.
    RefusedBids,
    /// Asks that refuse the buyer; then gangs of 16 legs.
    RefusedGangs,
    /// Asks of 512 providers, with no lease to displace; then gangs that cannot all match.
    CrowdedGangs,
    /// Orders that all expire at once; then their expiry.
    Expiry,
}

impl Hostile {
    /// All cases.
    pub const ALL: [Self; 5] = [
        Self::WholeBids,
        Self::RefusedBids,
        Self::RefusedGangs,
        Self::CrowdedGangs,
        Self::Expiry,
    ];
}

/// The asks in a full market.
const ASKS: u64 = 16_384;

/// The bids in a full market.
const BIDS: u64 = 8_192;

/// The accounts that place asks.
const PROVIDERS: u64 = 512;

/// The account that places bids; the providers have the next numbers.
const BUYER: u64 = 0;

/// The time at which orders of [`Hostile::Expiry`] expire.
const DUE: Millis = Millis(60_000);

/// A full market, with the batches to follow.
pub struct HostileMarket {
    exchange: Exchange,
    nonce: u64,
    now: Millis,
}

fn account_key(number: u64) -> AccountKey {
    AccountKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn device_resources() -> Resources {
    Resources {
        kind: KindCode(2),
        memory_bytes: 24 << 30,
        ..Resources::default()
    }
}

fn build_ask(device: u64, price: u64) -> Ask {
    Ask {
        device: DeviceId(device),
        capacity: Units(1),
        resources: device_resources(),
        limit: Limit::Price(Price(price)),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: Millis(3_600_000),
        notice: Millis(0),
        idle: Permille(0),
        spot: Vec::new(),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

fn build_bid(quantity: u32, price: u64) -> Bid {
    Bid {
        class: device_resources().class(),
        wants: Wants::default(),
        limit: Limit::Price(Price(price)),
        budget: Credits(1 << 45),
        quantity: Units(quantity),
        all_or_none: true,
        duration: Millis(1_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Gtc,
        job: JobId::default(),
    }
}

impl HostileMarket {
    /// Creates a market with the content of a case.
    ///
    /// # Panics
    /// If the market refuses one of these orders: the case is then not valid.
    pub fn for_case(case: Hostile) -> Self {
        let name = Name::try_from("hostile").expect("a short name");
        let mut genesis = Genesis::new(name, account_key(u64::MAX));
        let fund = |number| (account_key(number), Name::default(), Credits(1 << 49));
        genesis.accounts = (0..=PROVIDERS).map(fund).collect();
        genesis.rules.open_orders_max = u32::MAX;
        let exchange = Exchange::new(genesis);
        let mut market = Self {
            exchange,
            nonce: 0,
            now: Millis(1),
        };
        market.place_orders(case);
        market
    }

    fn place_orders(&mut self, case: Hostile) {
        let refuses = |number: u64| BuyerFilter {
            only: vec![account_key(number)],
            ..BuyerFilter::default()
        };
        for number in 0..ASKS {
            let mut ask = build_ask(number, 100);
            match case {
                Hostile::WholeBids | Hostile::CrowdedGangs => {}
                Hostile::RefusedBids | Hostile::RefusedGangs => ask.accepts = refuses(1 << 40),
                Hostile::Expiry => ask.tif = TimeInForce::Gtd(DUE),
            }
            let provider = 1 + number % PROVIDERS;
            self.place_order(provider, Command::PlaceAsk(Box::new(ask)));
        }
        for _ in 0..BIDS {
            let bid = match case {
                Hostile::WholeBids => build_bid(100_000, 1_000),
                Hostile::RefusedBids => build_bid(ASKS as u32, 1_000),
                _ => return,
            };
            self.place_order(BUYER, Command::PlaceBid(Box::new(bid)));
        }
    }

    fn place_order(&mut self, number: u64, command: Command) {
        let batch = self.build_batch(number, vec![command]);
        let mut applied = BatchOutcome::default();
        self.exchange.apply_into(self.now, &batch, &mut applied);
        let outcome = applied.outcomes.remove(0).into_result();
        assert!(outcome.is_ok(), "the market is filled: {outcome:?}");
    }

    fn build_batch(&mut self, number: u64, commands: Vec<Command>) -> VerifiedBatch {
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account: account_key(number),
            nonce: Nonce(self.nonce),
            expires: Millis(3_600_000),
            commands,
        };
        let signed = SignedBatch {
            batch,
            signature: Signature([0; 64]),
        };
        VerifiedBatch::from_own_log(signed).expect("a batch of up to 64 commands")
    }

    /// Returns the batch of 64 commands of a case, and its log time.
    pub fn attack_batch(&mut self, case: Hostile) -> (Millis, VerifiedBatch) {
        let legs = |quantity| {
            let leg = Bid {
                all_or_none: false,
                tif: TimeInForce::Fok,
                ..build_bid(quantity, 1_000)
            };
            Command::PlaceGang(vec![leg; Command::GANG_MAX])
        };
        let command = |number: u64| match case {
            Hostile::WholeBids | Hostile::RefusedBids => {
                Command::PlaceAsk(Box::new(build_ask(ASKS + number, 100)))
            }
            Hostile::RefusedGangs => legs(1),
            Hostile::CrowdedGangs => legs(if number.is_multiple_of(2) { 1 } else { 2 }),
            Hostile::Expiry => Command::Stake { amount: Credits(1) },
        };
        let commands = (0..64).map(command).collect();
        let by = match case {
            Hostile::WholeBids | Hostile::RefusedBids => 1,
            _ => BUYER,
        };
        let at = match case {
            Hostile::Expiry => DUE,
            _ => self.now,
        };
        (at, self.build_batch(by, commands))
    }

    /// Applies a batch, the timed part.
    pub fn apply_batch(&mut self, at: Millis, batch: &VerifiedBatch, applied: &mut BatchOutcome) {
        self.exchange.apply_into(at, batch, applied);
    }
}
