//! A small market for the tests: an operator, providers and buyers, whose keys come from numbers.

use std::sync::LazyLock;

use souk_market::*;

/// Key pairs made from numbers, and their accounts; making one is dear.
static KEYS: LazyLock<Vec<(SigningKey, AccountKey)>> = LazyLock::new(|| {
    let pair = |number| {
        let key = SigningKey::from_bytes(&[number; 32]);
        let account = AccountKey::from(&key);
        (key, account)
    };
    (0..64).map(pair).collect()
});

/// A key pair made from a number below 64.
pub fn key(number: u8) -> &'static SigningKey {
    &KEYS[usize::from(number)].0
}

/// The account of that key.
pub fn account(number: u8) -> AccountKey {
    KEYS[usize::from(number)].1
}

/// The operator's number.
pub const OPERATOR: u8 = 1;

/// A market and the nonces its accounts have used.
pub struct Town {
    pub exchange: Exchange,
    pub events: Vec<Event>,
    pub now: u64,
    nonce: u64,
}

impl Town {
    /// A market with default rules in which accounts 10..20 have a thousand credits each.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same with the genesis changed.
    pub fn with(change: impl FnOnce(&mut Genesis)) -> Self {
        let mut genesis = Genesis::new("town".try_into().unwrap(), account(OPERATOR));
        for number in 10..20 {
            let name = Name::try_from(format!("account {number}")).unwrap();
            genesis
                .accounts
                .push((account(number), name, Credits(1_000_000_000)));
        }
        change(&mut genesis);
        Self {
            exchange: Exchange::new(genesis),
            events: Vec::new(),
            now: 1_000,
            nonce: 0,
        }
    }

    /// A batch of that account, signed.
    pub fn batch(&mut self, number: u8, commands: Vec<Command>) -> SignedBatch {
        self.nonce += 1;
        let market = self.exchange.market();
        let (nonce, expires) = (Nonce(self.nonce), Millis(self.now + 60_000));
        Batch {
            market,
            account: account(number),
            nonce,
            expires,
            commands,
        }
        .sign(key(number))
    }

    /// Applies commands of that account, and checks the great equation.
    pub fn run_all(&mut self, number: u8, commands: Vec<Command>) -> Vec<Outcome> {
        let batch = self.batch(number, commands).verify().unwrap();
        let applied = self.exchange.apply(Millis(self.now), &batch);
        self.exchange.audit();
        self.events = applied.events;
        applied.outcomes
    }

    /// Applies one command of that account.
    pub fn run(&mut self, number: u8, command: Command) -> Result<Acceptance, Refusal> {
        self.run_all(number, vec![command]).remove(0).into_result()
    }

    /// Places an order and tells its id and trades.
    pub fn place(&mut self, number: u8, command: Command) -> (OrderId, Vec<Trade>) {
        match self.run(number, command) {
            Ok(Acceptance::Placed { order, trades, .. }) => (order, trades),
            other => panic!("not placed: {other:?}"),
        }
    }

    /// Applies one command without the whole check, for tests of thousands; it must be accepted.
    pub fn run_quietly(&mut self, number: u8, command: Command) -> Acceptance {
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account: account(number),
            nonce: Nonce(self.nonce),
            expires: Millis(self.now + 60_000),
            commands: vec![command],
        };
        let signed = SignedBatch {
            batch,
            signature: Signature([0; 64]),
        };
        let verified = VerifiedBatch::from_own_log(signed).unwrap();
        let mut applied = self.exchange.apply(Millis(self.now), &verified);
        applied.outcomes.remove(0).into_result().unwrap()
    }

    /// Places an order without the whole check.
    pub fn place_quietly(&mut self, number: u8, command: Command) -> (OrderId, Vec<Trade>) {
        match self.run_quietly(number, command) {
            Acceptance::Placed { order, trades, .. } => (order, trades),
            other => panic!("not placed: {other:?}"),
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, millis: u64) {
        self.now += millis;
        self.events = self.exchange.tick(Millis(self.now));
        self.exchange.audit();
    }

    /// What an account has available and in escrow.
    pub fn purse(&self, number: u8) -> (u64, u64) {
        let account = self.exchange.account(account(number)).unwrap();
        (account.available.0, account.escrow.0)
    }

    /// What became of a lease.
    pub fn state(&self, lease: LeaseId) -> LeaseState {
        self.exchange.lease(lease).unwrap().state
    }
}

/// A device of kind 2 with 24 GiB.
pub fn resources() -> Resources {
    Resources {
        kind: KindCode(2),
        kind_name: "gpu".try_into().unwrap(),
        model: "Test 24".try_into().unwrap(),
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        link_bandwidth: 1 << 30,
        link_latency_us: 200,
        ..Resources::default()
    }
}

/// One unit of device `device` at `price`, for up to an hour.
pub fn ask(device: u64, price: u64) -> Ask {
    Ask {
        device: DeviceId(device),
        capacity: Units(1),
        resources: resources(),
        limit: Limit::Price(Price(price)),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: Millis(3_600_000),
        notice: Millis(5_000),
        spot: Vec::new(),
        idle: Permille(0),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

/// A pool of `units`.
pub fn pool(device: u64, price: u64, units: u32) -> Ask {
    Ask {
        capacity: Units(units),
        quantity: Units(units),
        ..ask(device, price)
    }
}

/// One unit for ten seconds at up to `price`.
pub fn bid(price: u64) -> Bid {
    Bid {
        class: resources().class(),
        wants: Wants::default(),
        limit: Limit::Price(Price(price)),
        budget: Credits(1_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(10_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Gtc,
        job: JobId([7; 32]),
    }
}

/// Places an ask.
pub fn sell(ask: Ask) -> Command {
    Command::PlaceAsk(Box::new(ask))
}

/// Places a bid.
pub fn buy(bid: Bid) -> Command {
    Command::PlaceBid(Box::new(bid))
}

/// The receipt of a lease for `usage` device-microseconds, unsigned.
pub fn body(exchange: &Exchange, lease: LeaseId, usage: u64) -> ReceiptBody {
    let lease = exchange.lease(lease).unwrap();
    let usage = DeviceMicros(usage);
    ReceiptBody {
        market: exchange.market(),
        lease: lease.id,
        job: lease.job,
        buyer: lease.buyer,
        provider: lease.provider,
        graph: ContentId([1; 32]),
        inputs: vec![ContentId([2; 32])],
        outputs: vec![ContentId([3; 32])],
        class: lease.class,
        model: lease.model.clone(),
        emulated: lease.class.emulated,
        dtype: Dtype::F32,
        declared_mega_ops: 80_000_000,
        delivered_mega_ops: 79_000_000,
        usage,
        metered: None,
        idle: DeviceMicros(0),
        idle_part: lease.idle,
        price: lease.price,
        amount: ReceiptBody::amount_due(lease.price, usage).unwrap(),
        bytes_in: 1_024,
        bytes_out: 64,
        started: Millis(5),
        finished: Millis(9),
    }
}

/// The receipt signed by both.
pub fn receipt(body: ReceiptBody, provider: u8, buyer: u8) -> Receipt {
    Receipt::new(body)
        .sign_as_provider(key(provider))
        .sign_as_buyer(key(buyer))
}
