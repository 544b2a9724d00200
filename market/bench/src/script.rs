//! Draws the operations of the benchmark's order flows from a fixed seed (splitmix64, 42), so that
//! every engine runs the same ones. A small book tells it which orders still exist.

use std::collections::{BTreeMap, VecDeque};

/// A flow of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// 100,000 resting; 50 % add, 35 % cancel, 15 % market.
    Deep,
    /// About 2,000 resting; 9 % add, 6 % cancel, 3 % market, 82 % move.
    Hot,
}

/// One operation. Orders have numbers that count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adds an order that does not cross.
    Add {
        /// The number of the order.
        id: u32,
        /// Whether the order buys.
        buys: bool,
        /// The order's price, in ticks.
        price: u64,
        /// The units of the order.
        quantity: u32,
    },
    /// Cancels an order.
    Cancel {
        /// The number of the order.
        id: u32,
    },
    /// Takes units at any price.
    Market {
        /// Whether the operation buys.
        buys: bool,
        /// The units to take.
        quantity: u32,
    },
    /// Cancels an order and adds another as one operation.
    Move {
        /// The number of the cancelled order.
        from: u32,
        /// The number of the new order.
        id: u32,
        /// Whether the new order buys.
        buys: bool,
        /// The new order's price, in ticks.
        price: u64,
        /// The units of the new order.
        quantity: u32,
    },
}

/// A drawn flow.
#[derive(Clone, Debug)]
pub struct Script {
    /// The flow from which it was drawn.
    pub flow: Flow,
    /// The operations to run before the clock starts; their orders will rest.
    pub prefill: Vec<Operation>,
    /// The operations to time.
    pub operations: Vec<Operation>,
    /// The number of orders in the script.
    pub orders: u32,
}

const MIDDLE: u64 = 100_000;

impl Script {
    /// Draws `count` operations of a flow.
    pub fn draw_operations(flow: Flow, count: usize) -> Self {
        let mut generator = Generator::new(flow);
        let prefill = match flow {
            Flow::Deep => 100_000,
            Flow::Hot => 1_000,
        };
        let prefill: Vec<Operation> = (0..prefill).map(|_| generator.draw_add()).collect();
        let operations = (0..count).map(|_| generator.draw_operation()).collect();
        Self {
            flow,
            prefill,
            operations,
            orders: generator.next_id,
        }
    }
}

/// An order that the generator knows.
#[derive(Clone, Copy)]
struct LiveOrder {
    buys: bool,
    price: u64,
    left: u32,
}

/// Draws operations, and applies them to a small book to know the best prices and the living
/// orders.
struct Generator {
    flow: Flow,
    state: u64,
    next_id: u32,
    orders: Vec<LiveOrder>,
    /// The orders not yet drawn for a cancel.
    live: Vec<u32>,
    asks: BTreeMap<u64, VecDeque<u32>>,
    bids: BTreeMap<u64, VecDeque<u32>>,
}

impl Generator {
    fn new(flow: Flow) -> Self {
        Self {
            flow,
            state: 42,
            next_id: 0,
            orders: Vec::new(),
            live: Vec::new(),
            asks: BTreeMap::new(),
            bids: BTreeMap::new(),
        }
    }

    /// Draws a number below `n`, which must not be 0, with splitmix64.
    fn draw_below(&mut self, n: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let scaled = (u128::from(z) * u128::from(n)) >> 64;
        debug_assert!(n > 0, "something is drawn from");
        u64::try_from(scaled).expect("less than n")
    }

    fn draw_quantity(&mut self) -> u32 {
        u32::try_from(1 + self.draw_below(100)).expect("at most 100")
    }

    fn draw_operation(&mut self) -> Operation {
        let drawn = self.draw_below(100);
        match (self.flow, drawn) {
            (Flow::Deep, ..50) | (Flow::Hot, ..9) => self.draw_add(),
            (Flow::Deep, ..85) | (Flow::Hot, ..15) => self.draw_cancel(),
            (Flow::Deep, _) | (Flow::Hot, ..18) => self.draw_market(),
            (Flow::Hot, _) => self.draw_move(),
        }
    }

    fn draw_add(&mut self) -> Operation {
        let buys = self.draw_below(2) == 0;
        let (id, known) = self.draw_passive(buys);
        let LiveOrder { buys, price, left } = known;
        Operation::Add {
            id,
            buys,
            price,
            quantity: left,
        }
    }

    fn draw_passive(&mut self, buys: bool) -> (u32, LiveOrder) {
        let spread = match self.flow {
            Flow::Deep => 500,
            Flow::Hot => 375,
        };
        let offset = 1 + self.draw_below(spread);
        let left = self.draw_quantity();
        let price = self.uncrossed_price(buys, offset);
        let known = LiveOrder { buys, price, left };
        debug_assert!(
            self.best_price(!buys)
                .is_none_or(|best| (price < best) == buys && price != best)
        );
        let id = self.next_id;
        self.next_id += 1;
        self.orders.push(known);
        self.live.push(id);
        self.side_mut(buys).entry(price).or_default().push_back(id);
        (id, known)
    }

    /// Returns the price; if it would cross, one tick short of the other side's best.
    fn uncrossed_price(&self, buys: bool, offset: u64) -> u64 {
        if buys {
            let price = MIDDLE - offset;
            let best = self.best_price(false);
            best.filter(|best| price >= *best)
                .map_or(price, |best| best - 1)
        } else {
            let price = MIDDLE + offset;
            let best = self.best_price(true);
            best.filter(|best| price <= *best)
                .map_or(price, |best| best + 1)
        }
    }

    fn side_mut(&mut self, buys: bool) -> &mut BTreeMap<u64, VecDeque<u32>> {
        if buys { &mut self.bids } else { &mut self.asks }
    }

    fn best_price(&self, buys: bool) -> Option<u64> {
        let first = |side: &BTreeMap<u64, VecDeque<u32>>| side.keys().next().copied();
        let last = |side: &BTreeMap<u64, VecDeque<u32>>| side.keys().next_back().copied();
        if buys {
            last(&self.bids)
        } else {
            first(&self.asks)
        }
    }

    /// Draws a living order, each with equal probability.
    fn draw_live(&mut self) -> Option<u32> {
        while !self.live.is_empty() {
            let at = self.draw_below(self.live.len() as u64);
            let id = self
                .live
                .swap_remove(usize::try_from(at).expect("an index"));
            if self.orders[id as usize].left > 0 {
                return Some(id);
            }
        }
        None
    }

    fn drop_order(&mut self, id: u32) {
        let LiveOrder { buys, price, .. } = self.orders[id as usize];
        self.orders[id as usize].left = 0;
        debug_assert!(price > 0, "an order has a price");
        let side = self.side_mut(buys);
        let level = side.get_mut(&price).expect("a living order's level");
        level.retain(|other| *other != id);
        if level.is_empty() {
            side.remove(&price);
        }
    }

    fn draw_cancel(&mut self) -> Operation {
        match self.draw_live() {
            Some(id) => {
                self.drop_order(id);
                Operation::Cancel { id }
            }
            None => self.draw_add(),
        }
    }

    fn draw_market(&mut self) -> Operation {
        let buys = self.draw_below(2) == 0;
        let quantity = self.draw_quantity();
        let mut left = quantity;
        while left > 0 {
            let Some(price) = self.best_price(!buys) else {
                break;
            };
            let level = &self.side_mut(!buys)[&price];
            let id = level[0];
            let order = &mut self.orders[id as usize];
            let taken = left.min(order.left);
            left -= taken;
            if order.left == taken {
                self.drop_order(id);
            } else {
                order.left -= taken;
            }
        }
        Operation::Market { buys, quantity }
    }

    /// Draws a move; the new order is on the old one's side.
    fn draw_move(&mut self) -> Operation {
        let Some(from) = self.draw_live() else {
            return self.draw_add();
        };
        let buys = self.orders[from as usize].buys;
        self.drop_order(from);
        let (id, known) = self.draw_passive(buys);
        Operation::Move {
            from,
            id,
            buys,
            price: known.price,
            quantity: known.left,
        }
    }
}
