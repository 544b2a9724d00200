//! Runs the benchmark's flows on the full exchange: accounts, nonces, escrow, predicates, leases,
//! events, digest.
//!
//! Each operation is one batch of the account that owns the order; market orders must come from
//! accounts that own no orders, so that self-trade prevention can never change a check value. The
//! engine prepares batches in advance as verified: another part measures the cost of signatures.

use souk_market::{
    AccountKey, Ask, Batch, BatchOutcome, Bid, BuyerFilter, Command, Credits, DeviceId, Digest,
    Dtype, Exchange, Features, Genesis, JobId, KindCode, Limit, Millis, Name, Nonce, OrderId,
    Permille, Price, Region, Resources, Signature, SignedBatch, Term, Throughput, TimeInForce,
    Units, VerifiedBatch, Wants,
};

use crate::{Operation, Script, Tally};

/// The accounts that place and cancel orders.
const MAKERS: u32 = 1_000;

/// The accounts that only take.
const TAKERS: u32 = 100;

/// The operations in a millisecond of log time.
const OPERATIONS_PER_MILLI: u64 = 100;

/// An exchange that runs a script.
pub struct ExchangeEngine {
    exchange: Exchange,
    /// The owner of each of the script's orders; `numbers` holds its id in the exchange.
    owners: Vec<u32>,
    numbers: Vec<OrderId>,
    placed: u64,
    made: u64,
    applied: u64,
}

fn account_key(number: u32) -> AccountKey {
    let hash = blake3::hash(&number.to_le_bytes());
    AccountKey(*hash.as_bytes())
}

/// Returns one of eight like devices of one class, with different regions and features.
fn device_resources(number: u32) -> Resources {
    Resources {
        kind: KindCode(2),
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        region: Region((number % 8) as u8),
        features: Features(0b11 | 1 << (number % 8)),
        ..Resources::default()
    }
}

impl ExchangeEngine {
    /// Creates an exchange with all accounts of a script funded, and no orders.
    ///
    /// # Panics
    /// Never: the genesis is sound.
    pub fn new(script: &Script) -> Self {
        let name = Name::try_from("flow").expect("a short name");
        let mut genesis = Genesis::new(name, account_key(u32::MAX));
        let fund = |number| (account_key(number), Name::default(), Credits(1 << 50));
        genesis.accounts = (0..MAKERS + TAKERS).map(fund).collect();
        genesis.rules.open_orders_max = u32::MAX;
        genesis.rules.orders_max = u32::MAX;
        Self {
            exchange: Exchange::new(genesis),
            owners: Vec::with_capacity(script.orders as usize),
            numbers: Vec::with_capacity(script.orders as usize),
            placed: 0,
            made: 0,
            applied: 0,
        }
    }

    /// Prepares the batches of some operations. The caller must apply them in this order, because
    /// the engine predicts the ids of the orders.
    pub fn prepare_batches(&mut self, operations: &[Operation]) -> Vec<VerifiedBatch> {
        operations
            .iter()
            .map(|operation| self.build_batch(operation))
            .collect()
    }

    fn build_batch(&mut self, operation: &Operation) -> VerifiedBatch {
        self.made += 1;
        let (owner, commands) = match *operation {
            Operation::Add {
                id,
                buys,
                price,
                quantity,
            } => {
                let owner = id % MAKERS;
                (
                    owner,
                    vec![self.place_command(owner, buys, price, quantity)],
                )
            }
            Operation::Cancel { id } => (self.owners[id as usize], vec![self.cancel_command(id)]),
            Operation::Market { buys, quantity } => {
                let taker = MAKERS + self.made as u32 % TAKERS;
                (taker, vec![self.market_command(taker, buys, quantity)])
            }
            Operation::Move {
                from,
                buys,
                price,
                quantity,
                ..
            } => {
                let owner = self.owners[from as usize];
                let cancel = self.cancel_command(from);
                (
                    owner,
                    vec![cancel, self.place_command(owner, buys, price, quantity)],
                )
            }
        };
        let batch = Batch {
            market: self.exchange.market(),
            account: account_key(owner),
            nonce: Nonce(self.made),
            expires: Millis(3_600_000),
            commands,
        };
        let signed = SignedBatch {
            batch,
            signature: Signature([0; 64]),
        };
        VerifiedBatch::from_own_log(signed).expect("one or two commands")
    }

    fn cancel_command(&self, id: u32) -> Command {
        Command::Cancel {
            order: self.numbers[id as usize],
        }
    }

    fn place_command(&mut self, owner: u32, buys: bool, price: u64, quantity: u32) -> Command {
        self.owners.push(owner);
        self.placed += 1;
        self.numbers.push(OrderId(self.placed));
        order_command(
            owner,
            buys,
            Limit::Price(Price(price)),
            quantity,
            TimeInForce::Gtc,
        )
    }

    fn market_command(&mut self, taker: u32, buys: bool, quantity: u32) -> Command {
        self.placed += 1;
        order_command(taker, buys, Limit::Market, quantity, TimeInForce::Ioc)
    }

    /// Carries out one operation, the timed part.
    pub fn apply_batch(&mut self, batch: &VerifiedBatch, applied: &mut BatchOutcome) {
        self.applied += 1;
        debug_assert!(
            self.applied <= self.made,
            "only batches that were made are applied"
        );
        let now = Millis(1 + self.applied / OPERATIONS_PER_MILLI);
        self.exchange.apply_into(now, batch, applied);
    }

    /// Returns the tally; the exchange still knows every lease, because a lease lasts longer than a
    /// flow.
    pub fn tally(&self) -> Tally {
        let open = self
            .exchange
            .accounts()
            .iter()
            .map(|one| u64::from(one.open_orders));
        let units = self
            .exchange
            .leases()
            .map(|lease| u64::from(lease.quantity.0));
        Tally {
            traded: units.sum(),
            resting: open.sum(),
        }
    }

    /// Returns the running digest.
    pub fn digest(&self) -> Digest {
        self.exchange.digest()
    }

    /// Returns the state root, as validators compute it for each head.
    pub fn state_root(&mut self) -> Digest {
        self.exchange.state_root(Digest::default())
    }

    /// Returns the exchange, for example to take a snapshot.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }
}

fn order_command(owner: u32, buys: bool, limit: Limit, quantity: u32, tif: TimeInForce) -> Command {
    let quantity = Units(quantity);
    if !buys {
        return Command::PlaceAsk(Box::new(Ask {
            device: DeviceId(0),
            capacity: Units(u32::MAX),
            resources: device_resources(owner),
            limit,
            quantity,
            duration_min: Millis(1_000),
            duration_max: Millis(7_200_000),
            notice: Millis(0),
            idle: Permille(0),
            spot: Vec::new(),
            accepts: BuyerFilter::default(),
            tif,
        }));
    }
    let wants = Wants {
        memory_bytes: 16 << 30,
        throughput: Throughput::default().with(Dtype::F32, 70_000_000),
        features: Features(0b1),
        ..Wants::default()
    };
    Command::PlaceBid(Box::new(Bid {
        class: device_resources(owner).class(),
        wants,
        limit,
        budget: Credits(1 << 45),
        quantity,
        all_or_none: false,
        duration: Millis(3_600_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif,
        job: JobId::default(),
    }))
}
