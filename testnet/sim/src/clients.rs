//! The people of the simulated market: honest ones, hasty ones, forgers and some who vanish.

use souk_market::{
    Acceptance, Accepts, AccountKey, Ask, Batch, Bid, Command, Credits, DeviceId, DeviceMicros,
    Direction, Dtype, Genesis, JobId, KindCode, LeaseId, Limit, MarketId, Millis, Name, Nonce,
    OrderId, Price, Resources, Signature, SignedBatch, SigningKey, Term, Throughput, TimeInForce,
    Units, Wants,
};

use super::machine::{BatchResult, TRUSTED};
use super::random::Random;

/// Accounts in the market.
const PEOPLE: usize = 12;

/// Units of each device.
pub const CAPACITY: u32 = 2;

/// Commands in a batch, at most.
const COMMANDS_MAX: u64 = 7;

/// One account and what it knows of its affairs.
struct Person {
    account: AccountKey,
    nonce: u64,
    orders: Vec<OrderId>,
    bought: Vec<LeaseId>,
    sold: Vec<LeaseId>,
}

/// All accounts.
pub struct People {
    random: Random,
    market: MarketId,
    people: Vec<Person>,
    /// Batches sent before, to be replayed.
    sent: Vec<Vec<u8>>,
}

/// A batch as it is sent, and whose it is.
pub struct Letter {
    /// Who wrote it.
    pub person: usize,
    /// The signed batch.
    pub bytes: Vec<u8>,
    /// How many commands it holds.
    pub commands: usize,
}

impl People {
    /// The people of a seed, and the market they begin with.
    pub fn new(mut random: Random) -> (Self, Genesis) {
        let name = |text: String| Name::try_from(text).expect("a short plain name");
        let keys: Vec<SigningKey> = (0..=PEOPLE).map(|_| key(&mut random)).collect();
        let operator = AccountKey::from(&keys[PEOPLE]);
        let mut genesis = Genesis::new(name("simulation".to_owned()), operator);
        genesis.rules.fee_basis_points = 250;
        genesis.rules.stake_hold = Millis(10_000);
        genesis.rules.closed_leases_kept = 500;
        genesis.rules.settle_grace = Millis(5_000);
        genesis.rules.note_deadline = Millis(2_000);
        genesis.rules.silent_notes_max = 2;
        genesis.rules.reserve_wait = Millis(1_500);
        for (number, key) in keys.iter().take(PEOPLE).enumerate() {
            let purse = Credits(1_000_000_000);
            genesis
                .accounts
                .push((key.into(), name(format!("person {number}")), purse));
        }
        let person = |key: &SigningKey| Person {
            account: key.into(),
            nonce: 0,
            orders: Vec::new(),
            bought: Vec::new(),
            sold: Vec::new(),
        };
        let people = keys.iter().take(PEOPLE).map(person).collect();
        (
            Self {
                random,
                market: genesis.market_id(),
                people,
                sent: Vec::new(),
            },
            genesis,
        )
    }

    /// The market they trade in, once all its accounts are known.
    pub fn join(&mut self, market: MarketId) {
        self.market = market;
    }

    /// The next batch somebody sends.
    pub fn write(&mut self) -> Letter {
        if self.random.chance(20) && !self.sent.is_empty() {
            let bytes = self.sent[self.random.place(self.sent.len())].clone();
            return Letter {
                person: 0,
                bytes,
                commands: 1,
            };
        }
        let person = self.random.place(PEOPLE);
        let count = self.random.between(1, COMMANDS_MAX);
        let commands: Vec<Command> = (0..count).map(|_| self.command(person)).collect();
        let conflict = self.random.chance(10);
        let forged = self.random.chance(5);
        let writer = &mut self.people[person];
        writer.nonce += u64::from(!conflict || writer.nonce == 0);
        let (nonce, account) = (Nonce(writer.nonce), writer.account);
        let expires = Millis(u64::MAX);
        let commands_count = commands.len();
        let batch = Batch {
            market: self.market,
            account,
            nonce,
            expires,
            commands,
        };
        let signature = if forged { Signature([7; 64]) } else { TRUSTED };
        let bytes = SignedBatch { batch, signature }.encode();
        self.remember(bytes.clone());
        Letter {
            person,
            bytes,
            commands: commands_count,
        }
    }

    fn remember(&mut self, bytes: Vec<u8>) {
        if self.sent.len() < 64 {
            self.sent.push(bytes);
        } else {
            let place = self.random.place(self.sent.len());
            self.sent[place] = bytes;
        }
    }

    /// A person reads what came of its batch.
    pub fn read(&mut self, person: usize, result: &[u8]) {
        let Ok(BatchResult::Applied(outcomes)) = postcard::from_bytes(result) else {
            return;
        };
        for outcome in outcomes {
            if let Ok(Acceptance::Placed {
                order,
                trades,
                resting,
            }) = outcome
            {
                if resting.0 > 0 {
                    push(&mut self.people[person].orders, order);
                }
                for trade in trades {
                    self.on_trade(trade.buyer, trade.provider, trade.lease);
                }
            }
        }
    }

    fn on_trade(&mut self, buyer: AccountKey, provider: AccountKey, lease: LeaseId) {
        for person in &mut self.people {
            if person.account == buyer {
                push(&mut person.bought, lease);
            }
            if person.account == provider {
                push(&mut person.sold, lease);
            }
        }
    }

    fn command(&mut self, person: usize) -> Command {
        let choice = self.random.below(100);
        let random = &mut self.random;
        let of = &self.people[person];
        let any = |random: &mut Random, leases: &[LeaseId]| {
            (!leases.is_empty()).then(|| leases[random.place(leases.len())])
        };
        let usage = DeviceMicros(random.between(1, 3_000_000));
        match choice {
            0..30 => Command::PlaceAsk(Box::new(ask(random))),
            30..65 => Command::PlaceBid(Box::new(bid(random))),
            65..75 => match of.orders.last() {
                Some(_) => Command::Cancel {
                    order: of.orders[random.place(of.orders.len())],
                },
                None => withdraw(random.between(1, 1_000)),
            },
            75..83 => match any(random, &of.sold) {
                Some(lease) => Command::NoteUsage { lease, usage },
                None => Command::PlaceAsk(Box::new(ask(random))),
            },
            83..86 => Command::StartWork {
                lease: pick(random, &of.bought),
            },
            86..89 => match any(random, &of.bought) {
                Some(lease) => Command::AcceptNote { lease, usage },
                None => Command::PlaceBid(Box::new(bid(random))),
            },
            89..92 => Command::EndLease {
                lease: pick(random, &of.bought),
            },
            92..94 => Command::GiveUp {
                lease: pick(random, &of.sold),
            },
            94..95 => Command::StateReady {
                lease: pick(random, &of.sold),
            },
            95..97 => Command::Reclaim {
                lease: pick(random, &of.sold),
            },
            97..98 => Command::Dispute {
                lease: pick(random, &of.bought),
            },
            _ => withdraw(random.between(1, 10_000)),
        }
    }
}

/// A lease of theirs, or one they have nothing to do with.
fn withdraw(amount: u64) -> Command {
    Command::Request {
        direction: Direction::Withdrawal,
        amount: Credits(amount),
        reference: Name::default(),
    }
}

fn pick(random: &mut Random, leases: &[LeaseId]) -> LeaseId {
    match leases.len() {
        0 => LeaseId(random.below(100)),
        length => leases[random.place(length)],
    }
}

/// Keeps the latest few.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == 16 {
        list.remove(0);
    }
    list.push(item);
}

fn key(random: &mut Random) -> SigningKey {
    let mut seed = [0; 32];
    for part in seed.chunks_mut(8) {
        part.copy_from_slice(&random.draw().to_le_bytes());
    }
    SigningKey::from_bytes(&seed)
}

/// What every device has.
pub fn resources() -> Resources {
    Resources {
        kind: KindCode(2),
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        ..Resources::default()
    }
}

fn ask(random: &mut Random) -> Ask {
    Ask {
        device: DeviceId(random.below(4)),
        capacity: Units(CAPACITY),
        resources: resources(),
        limit: Limit::Price(Price(random.between(50, 150))),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: Millis(60_000),
        notice: Millis(random.below(3_000)),
        accepts: Accepts::default(),
        tif: TimeInForce::Gtc,
    }
}

fn bid(random: &mut Random) -> Bid {
    let term = if random.chance(500) {
        Term::Spot
    } else {
        Term::Firm
    };
    let tif = if random.chance(700) {
        TimeInForce::Ioc
    } else {
        TimeInForce::Gtc
    };
    Bid {
        class: resources().class(),
        wants: Wants::default(),
        limit: Limit::Price(Price(random.between(80, 200))),
        budget: Credits(1_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(random.between(100, 20_000)),
        start_delay_max: Millis(0),
        term,
        tif,
        job: JobId([7; 32]),
    }
}
