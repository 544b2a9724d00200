//! Plays an account that trades at random: it sends commands of every kind, based on its knowledge
//! of its own orders and leases.

use souk_market::{
    Acceptance, AccountKey, Ask, Bid, BuyerFilter, Command, ContentId, Credits, DeviceId,
    DeviceMicros, Dtype, JobId, Lease, LeaseId, Limit, MarketId, Millis, OrderId, Permille, Price,
    Receipt, ReceiptBody, SigningKey, SpotPrice, Term, TimeInForce, Units, Wants,
};
use souk_roles::market::client::{CallId, Event, Reply};
use souk_roles::market::market_protocol::{Answer, Request};

use crate::random::Random;
use crate::resources::{CAPACITY, device_resources};

/// Maximum remembered orders.
const ORDERS_MAX: usize = 16;

/// An account that trades at random.
pub struct Trader {
    pub market: MarketId,
    /// Keys of all traders, so that two that trade can sign receipts together.
    keys: Vec<SigningKey>,
    random: Random,
    orders: Vec<OrderId>,
    leases: Vec<Lease>,
}

impl Trader {
    /// Creates a trader without knowledge.
    pub fn new(keys: Vec<SigningKey>, market: MarketId, random: Random) -> Self {
        Self {
            market,
            keys,
            random,
            orders: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// Returns the trader's next action; `now` is its estimate of the market's clock.
    pub fn next_action(&mut self, asked: CallId, account: AccountKey, now: Millis) -> Event {
        if self.random.chance(300) {
            let question = Box::new(Request::Leases(account));
            return Event::Ask { asked, question };
        }
        let count = self.random.draw_between(1, 3);
        let commands = (0..count)
            .map(|_| self.draw_command(account, now))
            .collect();
        Event::Carry { asked, commands }
    }

    /// Processes a reply.
    pub fn on_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Answer(answer) => {
                if let Answer::Leases(leases) = *answer {
                    self.leases = leases;
                }
            }
            Reply::Carried(results) => {
                for result in results.into_iter().flatten() {
                    if let Acceptance::Placed { order, .. } | Acceptance::Amended { order, .. } =
                        result
                    {
                        self.orders.push(order);
                    }
                }
                let excess = self.orders.len().saturating_sub(ORDERS_MAX);
                self.orders.drain(..excess);
            }
            _ => {}
        }
    }

    fn draw_command(&mut self, account: AccountKey, now: Millis) -> Command {
        let choice = self.random.draw_below(100);
        match choice {
            0..22 => Command::PlaceAsk(Box::new(self.draw_ask(now))),
            22..36 => Command::PlaceBid(Box::new(self.draw_bid(now))),
            36..44 => {
                let legs = self.random.draw_between(2, 3);
                Command::PlaceGang((0..legs).map(|_| self.draw_leg()).collect())
            }
            44..48 => Command::Stake {
                amount: Credits(self.random.draw_between(1, 10_000)),
            },
            48..50 => Command::Unstake {
                amount: Credits(self.random.draw_between(1, 1_000)),
            },
            50..58 => self.of_order(),
            _ => self.of_lease(account, choice),
        }
    }

    fn of_order(&mut self) -> Command {
        let Some(order) = pick_random(&mut self.random, &self.orders) else {
            return Command::Stake { amount: Credits(1) };
        };
        if self.random.chance(300) {
            return Command::Cancel { order };
        }
        Command::Amend {
            order,
            quantity: Units(1),
            price: Price(self.random.draw_between(50, 150)),
        }
    }

    fn of_lease(&mut self, account: AccountKey, choice: u64) -> Command {
        let Some(lease) = pick_random(&mut self.random, &self.leases) else {
            return Command::EndLease { lease: LeaseId(0) };
        };
        let random = &mut self.random;
        let (id, usage) = (lease.id, DeviceMicros(random.draw_between(1, 2_000_000)));
        let noted = lease.note.map_or(usage, |note| note.usage);
        if lease.buyer == account && lease.note.is_some() && random.chance(400) {
            let usage = noted;
            return Command::AcceptNote { lease: id, usage };
        }
        if lease.buyer == account && !lease.work_started && random.chance(400) {
            return Command::StartWork { lease: id };
        }
        if lease.provider == account && lease.work_started && random.chance(600) {
            let usage = DeviceMicros(lease.accepted.0 + random.draw_between(1, 500_000));
            return Command::NoteUsage { lease: id, usage };
        }
        match choice {
            58..74 => self.draw_settlement(&lease),
            _ if lease.provider == account && !lease.work_started && random.chance(300) => {
                Command::StateReady { lease: id }
            }
            _ if lease.provider == account => match random.draw_below(10) {
                0..8 => Command::NoteUsage { lease: id, usage },
                8 => Command::Reclaim { lease: id },
                _ => Command::GiveUp { lease: id },
            },
            74..80 => Command::Extend {
                lease: id,
                by: Millis(random.draw_between(1, 3_000)),
            },
            80..88 => Command::Resell {
                lease: id,
                price: Price(random.draw_between(40, 160)),
            },
            88..94 => Command::AcceptNote {
                lease: id,
                usage: noted,
            },
            94..98 => Command::Dispute { lease: id },
            _ => Command::EndLease { lease: id },
        }
    }

    /// Returns a receipt with both signatures if both parties are traders, otherwise an invalid
    /// one.
    fn draw_settlement(&mut self, lease: &Lease) -> Command {
        let most =
            DeviceMicros::from_units(lease.quantity, lease.deadline.saturating_since(lease.start));
        let usage = DeviceMicros(self.random.draw_below(most.0 + 2));
        let amount = ReceiptBody::amount_due(lease.price, usage).unwrap_or_default();
        let body = ReceiptBody {
            market: self.market,
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            graph: ContentId([1; 32]),
            inputs: Vec::new(),
            outputs: Vec::new(),
            class: lease.class,
            model: lease.model.clone(),
            emulated: false,
            dtype: Dtype::F32,
            declared_mega_ops: 80_000_000,
            delivered_mega_ops: 0,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount,
            bytes_in: 0,
            bytes_out: 0,
            started: lease.start,
            finished: lease.start,
        };
        let mut receipt = Receipt::new(body);
        for key in &self.keys {
            let account = AccountKey::from(key);
            if account == lease.provider {
                receipt = receipt.sign_as_provider(key);
            }
            if account == lease.buyer {
                receipt = receipt.sign_as_buyer(key);
            }
        }
        Command::Settle(Box::new(receipt))
    }

    fn draw_ask(&mut self, now: Millis) -> Ask {
        let price = self.random.draw_between(50, 150);
        let count = self.random.draw_below(3);
        let spot = (1..=count).map(|step| SpotPrice {
            notice: Millis(step * 1_000),
            price: Price(price * step / 3),
        });
        Ask {
            device: DeviceId(self.random.draw_below(4)),
            capacity: Units(CAPACITY),
            resources: device_resources(),
            limit: Limit::Price(Price(price)),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(30_000),
            notice: Millis(self.random.draw_below(3_000)),
            spot: spot.collect(),
            idle: Permille(0),
            accepts: BuyerFilter::default(),
            tif: self.draw_lifetime(now),
        }
    }

    fn draw_bid(&mut self, now: Millis) -> Bid {
        let firm = self.random.chance(500);
        Bid {
            class: device_resources().class(),
            wants: Wants::default(),
            limit: Limit::Price(Price(self.random.draw_between(80, 200))),
            budget: Credits(1_000_000),
            quantity: Units(1),
            all_or_none: false,
            duration: Millis(self.random.draw_between(100, 12_000)),
            start_delay_max: Millis(0),
            term: if firm { Term::Firm } else { Term::Spot },
            tif: self.draw_lifetime(now),
            job: JobId([9; 32]),
        }
    }

    /// Returns a bid of a gang, which trades completely now or not at all.
    fn draw_leg(&mut self) -> Bid {
        let bid = self.draw_bid(Millis(0));
        Bid {
            limit: Limit::Price(Price(200)),
            all_or_none: true,
            tif: TimeInForce::Fok,
            ..bid
        }
    }

    /// Returns the lifetime of an order: some seconds for most.
    fn draw_lifetime(&mut self, now: Millis) -> TimeInForce {
        match self.random.draw_below(10) {
            0..2 => TimeInForce::Ioc,
            _ => TimeInForce::Gtd(Millis(now.0 + self.random.draw_between(500, 15_000))),
        }
    }
}

fn pick_random<T: Clone>(random: &mut Random, list: &[T]) -> Option<T> {
    (!list.is_empty()).then(|| list[random.draw_index(list.len())].clone())
}
