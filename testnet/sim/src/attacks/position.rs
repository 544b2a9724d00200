//! Holds the state of an attack, and changes it by moves and by the passage of time: the real
//! exchange with one lease, and the true time of work and of holding the device. From these the
//! search computes what each party gained and lost.

use souk_market::{
    AccountKey, Ask, Batch, Bid, BuyerFilter, Command, ContentId, Credits, DeviceId, DeviceMicros,
    Dispute, Dtype, Exchange, Features, Genesis, JobId, Lease, LeaseId, Limit, Millis, Name, Nonce,
    Permille, Price, Receipt, ReceiptBody, Resources, Signature, SignedBatch, SigningKey, Term,
    TimeInForce, Units, Verdict, VerifiedBatch, Wants,
};

/// The length of the lease.
pub const LENGTH: Millis = Millis(1_800_000);
/// Price of a device-second in micro-credits.
pub const PRICE: Price = Price(1_000);
/// Initial credits of each account.
const INITIAL_CREDITS: Credits = Credits(100_000_000);

/// A party of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The party that sells the device.
    Provider,
    /// The party that leases the device.
    Buyer,
}

impl Side {
    /// Returns the other party.
    pub fn other_party(self) -> Side {
        match self {
            Side::Provider => Side::Buyer,
            Side::Buyer => Side::Provider,
        }
    }

    fn key(self) -> SigningKey {
        let byte = match self {
            Side::Provider => 2,
            Side::Buyer => 3,
        };
        SigningKey::from_bytes(&[byte; 32])
    }

    fn account_key(self) -> AccountKey {
        AccountKey::from(&self.key())
    }
}

/// The state of an attack: the exchange with one lease, and what its parties really did.
#[derive(Clone)]
pub struct Position {
    exchange: Exchange,
    lease: LeaseId,
    accounts: [AccountKey; 2],
    /// The log's time.
    pub now: Millis,
    began: Millis,
    nonce: u64,
    /// Time of the honest provider's last note.
    pub noted: Millis,
    /// Device time of true work.
    pub worked: Millis,
    /// How long the buyer held the device.
    pub held: Millis,
    /// Whether an honest provider continues to work.
    pub is_working: bool,
}

impl Position {
    /// Creates a position with a newly opened lease.
    pub fn new() -> Position {
        let operator = AccountKey([1; 32]);
        let accounts = [Side::Provider.account_key(), Side::Buyer.account_key()];
        let mut genesis = Genesis::new(Name::default(), operator);
        let [provider, buyer] = accounts;
        let endowed =
            [operator, provider, buyer].map(|key| (key, Name::default(), INITIAL_CREDITS));
        genesis.accounts = endowed.into();
        let began = Millis(1_000_000);
        let mut position = Position {
            exchange: Exchange::new(genesis),
            lease: LeaseId(0),
            accounts,
            now: began,
            began,
            nonce: 0,
            noted: began,
            worked: Millis(0),
            held: Millis(0),
            is_working: true,
        };
        assert!(position.lease_again(), "the first is bought like any other");
        position
    }

    /// Opens a lease: the provider offers its device, and the buyer leases it.
    pub fn lease_again(&mut self) -> bool {
        let ask = make_ask();
        let bid = make_bid(ask.resources.class());
        self.lease = LeaseId(self.lease.0 + 1);
        self.send_command(Side::Provider, Command::PlaceAsk(Box::new(ask)))
            && self.send_command(Side::Buyer, Command::PlaceBid(Box::new(bid)))
    }

    /// Returns the lease.
    pub fn lease(&self) -> &Lease {
        let lease = self.exchange.lease(self.lease);
        lease.expect("a market keeps its closed leases for longer")
    }

    /// Sends a command of one party and returns whether the market accepted it.
    pub fn send_command(&mut self, side: Side, command: Command) -> bool {
        let account = match side {
            Side::Provider => self.accounts[0],
            Side::Buyer => self.accounts[1],
        };
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account,
            nonce: Nonce(self.nonce),
            expires: self.now.saturating_add(Millis(60_000)),
            commands: vec![command],
        };
        let signature = Signature([0; 64]);
        let signed = SignedBatch { batch, signature };
        let batch = VerifiedBatch::from_own_log(signed).expect("one command makes a batch");
        let applied = self.exchange.apply(self.now, &batch);
        let mut outcomes = applied.outcomes.into_iter();
        outcomes.all(|outcome| outcome.into_result().is_ok())
    }

    /// Advances time; the provider works in it if it can.
    pub fn pass_time(&mut self, step: Millis, planned: Millis) {
        if self.lease().is_running() {
            self.held = self.held.saturating_add(step);
            if self.is_working && self.worked < planned {
                self.worked = self.worked.saturating_add(step).min(planned);
            }
        }
        self.now = self.now.saturating_add(step);
        self.exchange.tick(self.now);
    }

    /// Returns the time since the lease was opened.
    pub fn lease_age(&self) -> Millis {
        self.now.saturating_since(self.began)
    }

    /// Returns an account's gain since the beginning, in micro-credits; its stake is still its own.
    pub fn gain(&self, side: Side) -> i64 {
        let signed = |credits: Credits| i64::try_from(credits.0).unwrap_or(i64::MAX);
        let account = self.account(side);
        signed(account.available) + signed(account.stake) - signed(INITIAL_CREDITS)
    }

    /// Returns the reputation that an account has lost.
    pub fn reputation_lost(&self, side: Side) -> u16 {
        500_u16.saturating_sub(self.account(side).reputation.score.0)
    }

    fn account(&self, side: Side) -> &souk_market::Account {
        let key = match side {
            Side::Provider => self.accounts[0],
            Side::Buyer => self.accounts[1],
        };
        self.exchange.account(key).expect("it was there first")
    }

    /// Returns an honest provider's current receipt.
    pub fn honest_receipt(&self) -> ReceiptBody {
        let lease = self.lease();
        let usage = DeviceMicros(self.worked.0 * 1_000);
        let mut body = ReceiptBody {
            market: self.exchange.market(),
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
            declared_mega_ops: 1_000,
            delivered_mega_ops: 1_000,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount: Credits(0),
            bytes_in: 0,
            bytes_out: 0,
            started: self.began,
            finished: self.now,
        };
        body.amount =
            ReceiptBody::amount_due(body.price, body.billable_usage()).expect("a small price");
        body
    }

    /// Settles a receipt with both signatures and returns whether the market accepted it.
    pub fn settle_receipt(&mut self, body: ReceiptBody) -> bool {
        let receipt = sign_receipt(body);
        self.send_command(Side::Provider, Command::Settle(Box::new(receipt)))
    }

    /// Returns the last dispute.
    pub fn last_dispute(&self) -> Option<&Dispute> {
        self.exchange.disputes().next_back()
    }

    /// Counts a verdict of each validator of a market about the last dispute; the validators sign
    /// by their places.
    pub fn judge_dispute(&mut self, verdicts: &[Verdict]) {
        let dispute = self.last_dispute().expect("a lease is disputed").id;
        let jurors = verdicts.iter().zip(10_u8..);
        let jury: Vec<AccountKey> = jurors.map(|(_, byte)| AccountKey([byte; 32])).collect();
        for (&juror, &verdict) in jury.iter().zip(verdicts) {
            // A verdict that comes after the decision is refused.
            let _ = self
                .exchange
                .count_verdict(self.now, dispute, juror, verdict, &jury);
        }
    }

    /// Returns everything on which the rest of an attack depends.
    pub fn key(&self) -> Vec<u8> {
        let honest = (
            self.now,
            self.noted,
            self.worked,
            self.held,
            self.is_working,
        );
        postcard::to_allocvec(&(self.lease(), honest)).expect("plain data always encodes")
    }
}

/// Returns a receipt with both signatures.
pub fn sign_receipt(body: ReceiptBody) -> Receipt {
    let receipt = Receipt::new(body).sign_as_provider(&Side::Provider.key());
    receipt.sign_as_buyer(&Side::Buyer.key())
}

/// A lease with an open note.
#[cfg(test)]
pub fn noted_lease() -> Lease {
    let mut position = Position::new();
    position.pass_time(Millis(10_000), Millis(0));
    let (lease, usage) = (position.lease, DeviceMicros(1));
    assert!(position.send_command(Side::Provider, Command::NoteUsage { lease, usage }));
    position.lease().clone()
}

fn make_ask() -> Ask {
    Ask {
        device: DeviceId(1),
        capacity: Units(1),
        resources: Resources {
            features: Features::EXACT_1,
            ..Resources::default()
        },
        limit: Limit::Price(PRICE),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: LENGTH,
        notice: Millis(0),
        spot: Vec::new(),
        idle: Permille(0),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

fn make_bid(class: souk_market::Class) -> Bid {
    Bid {
        class,
        wants: Wants {
            features: Features::EXACT_1,
            ..Wants::default()
        },
        limit: Limit::Price(PRICE),
        budget: INITIAL_CREDITS,
        quantity: Units(1),
        all_or_none: false,
        duration: LENGTH,
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Ioc,
        job: JobId([1; 32]),
    }
}
