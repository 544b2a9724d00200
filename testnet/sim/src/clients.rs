//! Draws the batches of commands that the people of the simulated market send to validators: honest
//! people, hasty ones, forgers, and some who vanish. It reads the results, so that later batches
//! can name a person's own orders and leases.

use souk_market::{
    Acceptance, AccountKey, Ask, Batch, Bid, BuyerFilter, Command, Credits, DeviceId, DeviceMicros,
    Direction, Genesis, JobId, LeaseId, Limit, MarketId, Millis, Name, Nonce, OrderId, Permille,
    Price, Signature, SignedBatch, Term, TimeInForce, Units, Wants,
};

use super::machine::{BatchResult, EPOCH_MS, TRUSTED};
use super::operators::{self, OPERATORS, Operators};
use super::random::Random;
use super::resources::{CAPACITY, device_resources, key, push};

/// Number of accounts in the market.
const PEOPLE: usize = 12;

/// Number of accounts without credits that never act.
const STRANGERS: usize = 4;

/// Operators' share of batches, per thousand.
const OPERATING: u64 = 80;

/// Maximum commands in a batch.
const COMMANDS_MAX: u64 = 7;

/// An account, with what it knows of its orders and leases.
struct Person {
    account: AccountKey,
    nonce: u64,
    orders: Vec<OrderId>,
    bought: Vec<LeaseId>,
    sold: Vec<LeaseId>,
}

/// The accounts that send batches, with what they know of their orders and leases.
pub struct Clients {
    random: Random,
    market: MarketId,
    /// All people; the last ones are the operators.
    people: Vec<Person>,
    operators: Operators,
    /// Earlier batches, for replays.
    sent: Vec<Vec<u8>>,
}

/// Lifetime of a batch: long enough that its sender can repeat it at any time of a run.
const BATCH_LIFE: Millis = Millis(24 * 3_600_000);

/// A batch and its author.
pub struct SubmittedBatch {
    /// The author's index.
    pub person: usize,
    /// The signed batch.
    pub bytes: Vec<u8>,
    /// Number of commands in the batch.
    pub commands: usize,
}

impl Clients {
    /// Creates the people of a seed, and their market's genesis.
    pub fn new(mut random: Random) -> (Self, Genesis) {
        let name = |text: String| Name::try_from(text).expect("a short plain name");
        let mut key = || AccountKey::from(&key(&mut random));
        let mut keys: Vec<AccountKey> = (0..PEOPLE).map(|_| key()).collect();
        let operators = (0..OPERATORS).map(operators::signing_key);
        keys.extend(operators.map(|key| AccountKey::from(&key)));
        let strangers: Vec<AccountKey> = (0..STRANGERS).map(|_| key()).collect();
        let mut genesis = Genesis::new(name("simulation".to_owned()), keys[PEOPLE]);
        Operators::add_operators(&mut genesis, keys[PEOPLE..].to_vec(), &strangers);
        genesis.rules.fee_basis_points = 250;
        genesis.rules.batch_life_max = BATCH_LIFE;
        genesis.rules.stake_hold = Millis(10_000);
        genesis.rules.closed_leases_kept = 500;
        genesis.rules.settle_grace = Millis(5_000);
        genesis.rules.note_deadline = Millis(2_000);
        genesis.rules.silent_notes_max = 2;
        genesis.rules.reserve_wait = Millis(1_500);
        for (number, key) in keys.iter().enumerate() {
            let purse = Credits(1_000_000_000);
            genesis
                .accounts
                .push((*key, name(format!("person {number}")), purse));
        }
        let person = |key: &AccountKey| Person {
            account: *key,
            nonce: 0,
            orders: Vec::new(),
            bought: Vec::new(),
            sold: Vec::new(),
        };
        let people = keys.iter().map(person).collect();
        (
            Self {
                random,
                market: genesis.market_id(),
                people,
                operators: Operators::default(),
                sent: Vec::new(),
            },
            genesis,
        )
    }

    /// Sets the market of all people, once all accounts are known.
    pub fn join_market(&mut self, genesis: &Genesis) {
        self.market = genesis.market_id();
        self.operators.record_accounts(genesis);
    }

    /// Returns the next batch of a random person; `now` is the sender's clock.
    pub fn write(&mut self, now: Millis) -> SubmittedBatch {
        if self.random.chance(20) && !self.sent.is_empty() {
            let bytes = self.sent[self.random.draw_index(self.sent.len())].clone();
            return SubmittedBatch {
                person: 0,
                bytes,
                commands: 1,
            };
        }
        let person = match self.random.chance(OPERATING) {
            true => PEOPLE + self.random.draw_index(OPERATORS),
            false => self.random.draw_index(PEOPLE),
        };
        let count = self.random.draw_between(1, COMMANDS_MAX);
        let commands: Vec<Command> = (0..count).map(|_| self.draw_command(person, now)).collect();
        let conflict = self.random.chance(10);
        let forged = self.random.chance(5);
        let writer = &mut self.people[person];
        writer.nonce += u64::from(!conflict || writer.nonce == 0);
        let (nonce, account) = (Nonce(writer.nonce), writer.account);
        let expires = Millis(EPOCH_MS + BATCH_LIFE.0 / 2);
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
        self.remember_sent(bytes.clone());
        SubmittedBatch {
            person,
            bytes,
            commands: commands_count,
        }
    }

    fn remember_sent(&mut self, bytes: Vec<u8>) {
        if self.sent.len() < 64 {
            self.sent.push(bytes);
        } else {
            let place = self.random.draw_index(self.sent.len());
            self.sent[place] = bytes;
        }
    }

    /// Gives a person the result of its batch.
    pub fn read(&mut self, person: usize, result: &[u8]) {
        let Ok(BatchResult::Applied(outcomes)) = postcard::from_bytes(result) else {
            return;
        };
        self.operators.read(&outcomes);
        for acceptance in outcomes.into_iter().flatten() {
            match acceptance {
                Acceptance::Placed {
                    order,
                    trades,
                    resting,
                } => {
                    if resting.0 > 0 {
                        push(&mut self.people[person].orders, order);
                    }
                    for trade in trades {
                        self.on_trade(trade.buyer, trade.provider, trade.lease);
                    }
                }
                Acceptance::Requested { request } => self.operators.on_request(request),
                _ => {}
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

    fn draw_command(&mut self, person: usize, now: Millis) -> Command {
        let random = &mut self.random;
        if person >= PEOPLE {
            return self.operators.draw_command(random, now);
        }
        let choice = random.draw_below(100);
        let other = self.people[random.draw_index(PEOPLE)].account;
        let of = &self.people[person];
        let any = |random: &mut Random, leases: &[LeaseId]| {
            (!leases.is_empty()).then(|| leases[random.draw_index(leases.len())])
        };
        let usage = DeviceMicros(random.draw_between(1, 3_000_000));
        match choice {
            0..30 => Command::PlaceAsk(Box::new(draw_ask(random))),
            30..65 => Command::PlaceBid(Box::new(draw_bid(random))),
            65..75 => match of.orders.last() {
                Some(_) => Command::Cancel {
                    order: of.orders[random.draw_index(of.orders.len())],
                },
                None => draw_request(random),
            },
            75..83 => match any(random, &of.sold) {
                Some(lease) => Command::NoteUsage { lease, usage },
                None => Command::PlaceAsk(Box::new(draw_ask(random))),
            },
            83..86 => Command::StartWork {
                lease: pick_lease(random, &of.bought),
            },
            86..89 => match any(random, &of.bought) {
                Some(lease) => Command::AcceptNote { lease, usage },
                None => Command::PlaceBid(Box::new(draw_bid(random))),
            },
            89..92 => Command::EndLease {
                lease: pick_lease(random, &of.bought),
            },
            92..94 => Command::GiveUp {
                lease: pick_lease(random, &of.sold),
            },
            94..95 => Command::StateReady {
                lease: pick_lease(random, &of.sold),
            },
            95..97 => Command::Reclaim {
                lease: pick_lease(random, &of.sold),
            },
            97..98 => Command::Dispute {
                lease: pick_lease(random, &of.bought),
            },
            98..99 => Command::Transfer {
                to: other,
                amount: Credits(random.draw_between(1, 10_000)),
                reference: Name::default(),
            },
            _ => draw_request(random),
        }
    }
}

/// Returns a request to deposit or withdraw credits.
fn draw_request(random: &mut Random) -> Command {
    Command::Request {
        direction: match random.chance(300) {
            true => Direction::Deposit,
            false => Direction::Withdrawal,
        },
        amount: Credits(random.draw_between(1, 10_000)),
        reference: Name::default(),
    }
}

/// Returns one of the given leases, or a lease of others.
fn pick_lease(random: &mut Random, leases: &[LeaseId]) -> LeaseId {
    match leases.len() {
        0 => LeaseId(random.draw_below(100)),
        length => leases[random.draw_index(length)],
    }
}

fn draw_ask(random: &mut Random) -> Ask {
    Ask {
        device: DeviceId(random.draw_below(4)),
        capacity: Units(CAPACITY),
        resources: device_resources(),
        limit: Limit::Price(Price(random.draw_between(50, 150))),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: Millis(60_000),
        notice: Millis(random.draw_below(3_000)),
        spot: Vec::new(),
        idle: Permille(0),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    }
}

fn draw_bid(random: &mut Random) -> Bid {
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
        class: device_resources().class(),
        wants: Wants::default(),
        limit: Limit::Price(Price(random.draw_between(80, 200))),
        budget: Credits(1_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(random.draw_between(100, 20_000)),
        start_delay_max: Millis(0),
        term,
        tif,
        job: JobId([7; 32]),
    }
}
