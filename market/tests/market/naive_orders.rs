//! The orders of the naive exchange: placing, matching, displacement and gangs.

use super::*;

struct Fill {
    ask: u64,
    quantity: u32,
    price: u64,
}

/// What an ask with this limit asks of a bid: a spot bid pays by the notice it wants.
fn asked(limit: u64, ask: &Ask, bid: &Bid) -> u64 {
    spot_price(ask, bid).map_or(limit, |spot| spot.price.0)
}

fn notice(ask: &Ask, bid: &Bid) -> u64 {
    spot_price(ask, bid)
        .map_or(ask.notice, |spot| spot.notice)
        .0
}

fn spot_price(ask: &Ask, bid: &Bid) -> Option<SpotPrice> {
    let enough = |spot: &&SpotPrice| bid.term == Term::Spot && spot.notice >= bid.wants.notice;
    ask.spot.iter().find(enough).copied()
}

/// A tick more than the lease pays; where its provider has spot prices, not less than it asks.
fn displaced_price(rent: &Rent, bid: &Bid, tick: u64) -> u64 {
    let asked = match rent.terms.limit {
        Limit::Price(limit) if !rent.terms.spot.is_empty() => asked(limit.0, &rent.terms, bid),
        _ => 0,
    };
    asked.max(rent.price + tick)
}

fn rests(tif: TimeInForce) -> bool {
    matches!(tif, TimeInForce::Gtc | TimeInForce::Gtd(_))
}

impl Naive {
    fn of_class(&self, class: Class) -> ClassRules {
        let own = self.rules.classes.iter().find(|rules| rules.class == class);
        let (tick, lot) = (self.rules.tick, Units(1));
        own.copied().unwrap_or(ClassRules { class, tick, lot })
    }

    /// Only an ask that rests, or a rule, makes a class known.
    fn check_class(&self, class: Class) -> Result<(), Refusal> {
        let named = self.rules.classes.iter().any(|rules| rules.class == class);
        match named || self.classes.contains(&class) {
            true => Ok(()),
            false => Err(Refusal::ClassUnknown { class }),
        }
    }

    fn check_common(
        &self,
        rules: &ClassRules,
        quantity: Units,
        (min, max): (Millis, Millis),
    ) -> Result<(), Refusal> {
        if quantity.0 == 0 {
            return Err(Refusal::AmountZero {
                what: Quantity::Units,
            });
        }
        if !quantity.0.is_multiple_of(rules.lot.0) {
            return Err(Refusal::QuantityOffLot {
                quantity,
                lot: rules.lot,
            });
        }
        let limit = self.rules.lease_max;
        if min.0 == 0 || min > max || max > limit {
            return Err(Refusal::DurationBad { min, max, limit });
        }
        Ok(())
    }

    fn check_tif(&self, tif: TimeInForce, limit: Limit, quantity: Units) -> Result<(), Refusal> {
        if let TimeInForce::Gtd(expires) = tif
            && expires.0 <= self.now
        {
            return Err(Refusal::OrderExpired {
                expires,
                now: Millis(self.now),
            });
        }
        if rests(tif) && limit == Limit::Market {
            return Err(Refusal::MarketRests { quantity });
        }
        Ok(())
    }

    fn check_price(&self, price: Price, tick: Price) -> Result<u64, Refusal> {
        if price.0 == 0 {
            return Err(Refusal::AmountZero {
                what: Quantity::Price,
            });
        }
        if !price.0.is_multiple_of(tick.0) {
            return Err(Refusal::PriceOffTick { price, tick });
        }
        Ok(price.0)
    }

    /// The first price by notice that does not rise, or is not below the limit.
    fn check_spot(&self, ask: &Ask, tick: Price) -> Result<(), Refusal> {
        for (at, spot) in ask.spot.iter().enumerate() {
            let before = ask.spot[..at].last();
            let rises = before.is_none_or(|it| it.notice < spot.notice && it.price < spot.price);
            let below = matches!(ask.limit, Limit::Price(limit) if spot.price < limit);
            if at >= 4 || !rises || !below {
                let place = at as u32 + 1;
                return Err(Refusal::SpotPriceBad { place });
            }
            self.check_price(spot.price, tick)?;
        }
        Ok(())
    }

    fn check_open(&self, who: usize) -> Result<(), Refusal> {
        let open = self
            .orders
            .iter()
            .filter(|order| order.owner == who)
            .count() as u32;
        let limit = self.rules.open_orders_max;
        if open >= limit {
            Err(Refusal::OrdersMany { open, limit })
        } else {
            Ok(())
        }
    }

    fn check_device(&self, who: usize, ask: &Ask) -> Result<(), Refusal> {
        let mut capacity = None;
        let (mut offered, mut leased) = (0, 0);
        for order in self.orders.iter().filter(|order| order.owner == who) {
            if let What::Ask(other, None) = &order.what
                && other.device == ask.device
            {
                offered += order.left;
                capacity = Some(other.capacity);
            }
        }
        for rent in self
            .rents
            .iter()
            .filter(|rent| rent.provider == who && rent.running())
        {
            if rent.terms.device == ask.device {
                leased += rent.quantity;
                capacity = Some(rent.terms.capacity);
            }
        }
        let device = ask.device;
        if let Some(capacity) = capacity.filter(|capacity| *capacity != ask.capacity) {
            return Err(Refusal::CapacityDiffers {
                device,
                capacity,
                claimed: ask.capacity,
            });
        }
        if offered + leased + ask.quantity.0 > ask.capacity.0 {
            let (capacity, offered, leased) = (ask.capacity, Units(offered), Units(leased));
            return Err(Refusal::DeviceBusy {
                device,
                capacity,
                offered,
                leased,
            });
        }
        Ok(())
    }

    pub fn ask(&mut self, who: usize, ask: &Ask) -> Done {
        let rules = self.of_class(ask.resources.class());
        self.check_open(who)?;
        self.check_common(&rules, ask.quantity, (ask.duration_min, ask.duration_max))?;
        for list in [&ask.accepts.excluded, &ask.accepts.only] {
            if list.len() > 16 {
                return Err(Refusal::PredicateLarge {
                    count: list.len() as u32,
                    limit: 16,
                });
            }
        }
        if ask.resources.region.0 > 31 {
            return Err(Refusal::RegionBad {
                region: ask.resources.region.0,
            });
        }
        self.check_tif(ask.tif, ask.limit, ask.quantity)?;
        let price = match ask.limit {
            Limit::Price(price) => self.check_price(price, rules.tick)?,
            Limit::Market => rules.tick.0,
        };
        self.check_spot(ask, rules.tick)?;
        self.check_device(who, ask)?;
        let deposit = self.deposit_of(who, ask)?;
        if rests(ask.tif) {
            self.classes.insert(rules.class);
        } else {
            self.check_class(rules.class)?;
        }
        let id = self.orders_made + 1;
        let what = What::Ask(ask.clone(), None);
        let order = Resting {
            id,
            owner: who,
            price,
            left: ask.quantity.0,
            deposit,
            what,
        };
        if ask.tif == TimeInForce::Fok {
            let found = Units(self.fillable(&order, ask));
            if found < ask.quantity {
                return Err(Refusal::Unfilled {
                    wanted: ask.quantity,
                    found,
                });
            }
        }
        Ok(self.enter(order, ask.tif))
    }

    /// An account's first ask is free, and so is what does not rest.
    fn deposit_of(&self, who: usize, ask: &Ask) -> Result<u64, Refusal> {
        if !rests(ask.tif) {
            return Ok(0);
        }
        let is_free = |order: &&Resting| order.owner == who && order.free_ask();
        let deposit = match self.orders.iter().find(is_free) {
            Some(_) => self.rules.ask_deposit.0,
            None => 0,
        };
        let available = Credits(self.purses[who].available);
        if available.0 < deposit {
            let deposit = Credits(deposit);
            return Err(Refusal::DepositShort { deposit, available });
        }
        self.check_room(deposit)?;
        Ok(deposit)
    }

    /// The order that gives way next: that of the youngest account that holds less than a deposit.
    fn lightest(&self) -> Option<u64> {
        let light = |order: &&Resting| match order.what {
            What::Bid(_) => self.held(order, order.left) < self.rules.ask_deposit.0,
            What::Ask(..) => order.free_ask(),
        };
        let light = self.orders.iter().filter(light);
        let youngest = light.max_by_key(|order| (order.owner, order.id))?;
        Some(youngest.id)
    }

    fn check_room(&self, held: u64) -> Result<(), Refusal> {
        let (limit, deposit) = (self.rules.orders_max, self.rules.ask_deposit);
        let holds = held > 0 && held >= deposit.0;
        let is_full = self.orders.len() >= limit as usize;
        if is_full && !(holds && self.lightest().is_some()) {
            return Err(Refusal::OrdersFull { limit, deposit });
        }
        Ok(())
    }

    fn make_room(&mut self) {
        if self.orders.len() > self.rules.orders_max as usize
            && let Some(order) = self.lightest()
        {
            self.drop_order(order, OrderEnd::Evicted);
        }
    }

    fn enter(&mut self, order: Resting, tif: TimeInForce) -> Acceptance {
        let id = order.id;
        self.orders_made += 1;
        self.hold(order.owner, order.deposit);
        self.orders.push(order);
        let trades = self.match_ask(id, tif);
        let mut resting = Units(0);
        if let Some(order) = self.order(id) {
            if rests(tif) {
                resting = Units(order.left);
                self.tell_rested(id);
                self.make_room();
            } else {
                self.drop_order(id, OrderEnd::Unfilled);
            }
        }
        Acceptance::Placed {
            order: OrderId(id),
            trades,
            resting,
        }
    }

    fn order(&self, id: u64) -> Option<&Resting> {
        self.orders.iter().find(|order| order.id == id)
    }

    fn order_mut(&mut self, id: u64) -> &mut Resting {
        self.orders.iter_mut().find(|order| order.id == id).unwrap()
    }

    fn tell_rested(&mut self, id: u64) {
        let order = self.order(id).unwrap();
        let side = match order.what {
            What::Ask(..) => Side::Ask,
            What::Bid(_) => Side::Bid,
        };
        self.events.push(Event::Rested {
            account: self.purses[order.owner].key,
            order: OrderId(id),
            side,
            price: Price(order.price),
            quantity: Units(order.left),
        });
    }

    fn tell_closed(&mut self, owner: usize, id: u64, reason: OrderEnd) {
        let account = self.purses[owner].key;
        self.events.push(Event::OrderClosed {
            account,
            order: OrderId(id),
            reason,
        });
    }

    /// One side of a class, best first.
    fn side(&self, class: Class, asks: bool) -> Vec<Resting> {
        let of = |order: &&Resting| {
            order.class() == class && matches!(order.what, What::Ask(..)) == asks
        };
        let mut side: Vec<Resting> = self.orders.iter().filter(of).cloned().collect();
        side.sort_by_key(|order| (if asks { order.price } else { !order.price }, order.id));
        side
    }

    /// Who runs the work of an ask, and the lease it is the rest of.
    fn provider(&self, order: &Resting) -> (usize, Option<u64>) {
        match order.what {
            What::Ask(_, Some(lease)) => (self.rent(lease).provider, Some(lease)),
            _ => (order.owner, None),
        }
    }

    fn suits(&self, order: &Resting, ask: &Ask, buyer: usize, bid: &Bid, left: u32) -> bool {
        let (provider, resale) = self.provider(order);
        if order.owner == buyer || !self.device_suits(ask, provider, buyer, bid) {
            return false;
        }
        resale.is_none_or(|lease| {
            let lease = self.rent(lease);
            let fits = self.now + bid.duration.0 <= lease.deadline && order.left <= left;
            fits && (lease.term == Term::Firm || bid.term == Term::Spot)
        })
    }

    fn device_suits(&self, ask: &Ask, provider: usize, buyer: usize, bid: &Bid) -> bool {
        let (wants, has) = (&bid.wants, &ask.resources);
        let (seller, customer) = (&self.purses[provider], &self.purses[buyer]);
        let fast = (0..DTYPES).all(|at| has.throughput.0[at] >= wants.throughput.0[at]);
        let near = wants.link_latency_us == 0 || has.link_latency_us <= wants.link_latency_us;
        let there = wants.regions.0 == 0 || wants.regions.0 >> has.region.0 & 1 == 1;
        let accepts = &ask.accepts;
        provider != buyer
            && !wants.excluded.contains(&seller.key)
            && has.memory_bytes >= wants.memory_bytes
            && has.memory_bandwidth >= wants.memory_bandwidth
            && has.link_bandwidth >= wants.link_bandwidth
            && (fast && near && there)
            && wants.features.0 & has.features.0 == wants.features.0
            && seller.score >= wants.reputation.0
            && seller.stake >= wants.stake.0
            && notice(ask, bid) >= wants.notice.0
            && (ask.duration_min..=ask.duration_max).contains(&bid.duration)
            && customer.score >= accepts.reputation.0
            && !accepts.excluded.contains(&customer.key)
            && (accepts.only.is_empty() || accepts.only.contains(&customer.key))
    }

    /// A class's asks with what each asks of a bid, the cheapest first.
    fn asks(&self, bid: &Bid) -> Vec<(u64, Resting)> {
        let priced = |order: Resting| match &order.what {
            What::Ask(ask, _) => (asked(order.price, ask, bid), order),
            What::Bid(_) => unreachable!(),
        };
        let asks = self.side(bid.class, true).into_iter().map(priced);
        let mut asks: Vec<(u64, Resting)> = asks.collect();
        asks.sort_by_key(|(asked, order)| (*asked, order.id));
        asks
    }

    fn fills(&self, id: u64, buyer: usize, bid: &Bid, price: u64, wanted: u32) -> (Vec<Fill>, u32) {
        let mut left = wanted;
        let mut fills = Vec::new();
        for (asked, order) in self.asks(bid) {
            let What::Ask(ask, resale) = &order.what else {
                unreachable!()
            };
            let whole = resale.is_some() && order.left > left;
            if left == 0 || asked > price || whole {
                continue;
            }
            if self.suits(&order, ask, buyer, bid, wanted) {
                let quantity = left.min(order.left);
                let price = if order.id < id { asked } else { price };
                fills.push(Fill {
                    ask: order.id,
                    quantity,
                    price,
                });
                left -= quantity;
            }
        }
        (fills, left)
    }

    fn check_bid(&self, bid: &Bid, rules: &ClassRules) -> Result<u64, Refusal> {
        self.check_common(rules, bid.quantity, (bid.duration, bid.duration))?;
        if bid.wants.excluded.len() > 16 {
            let count = bid.wants.excluded.len() as u32;
            return Err(Refusal::PredicateLarge { count, limit: 16 });
        }
        self.check_tif(bid.tif, bid.limit, bid.quantity)?;
        let each = bid.budget.0 / u64::from(bid.quantity.0);
        let most = u64::try_from(u128::from(each) * 1_000 / u128::from(bid.duration.0)).unwrap();
        let most = most / rules.tick.0 * rules.tick.0;
        if most == 0 {
            let needed = Credits(cost(rules.tick.0, bid.quantity.0, bid.duration.0));
            return Err(Refusal::BudgetSmall {
                budget: bid.budget,
                needed,
            });
        }
        match bid.limit {
            Limit::Price(price) => Ok(self.check_price(price, rules.tick)?.min(most)),
            Limit::Market => Ok(most),
        }
    }

    pub fn bid(&mut self, who: usize, bid: &Bid) -> Done {
        self.check_open(who)?;
        let rules = self.of_class(bid.class);
        let price = self.check_bid(bid, &rules)?;
        self.check_class(bid.class)?;
        let (wanted, span) = (bid.quantity.0, bid.duration.0);
        let id = self.orders_made + 1;
        let (mut fills, mut rest) = self.fills(id, who, bid, price, wanted);
        let mut displaced = Vec::new();
        if rest > 0 {
            (displaced, rest) = self.victims(who, bid, price, &fills, rest);
        }
        if rest > 0 && bid.tif == TimeInForce::Fok {
            let found = Units(wanted - rest);
            return Err(Refusal::Unfilled {
                wanted: bid.quantity,
                found,
            });
        }
        if rest > 0 && bid.all_or_none {
            (fills, displaced, rest) = (Vec::new(), Vec::new(), wanted);
        }
        let mut needed: u64 = fills
            .iter()
            .map(|fill| cost(fill.price, fill.quantity, span))
            .sum();
        for id in &displaced {
            let rent = self.rent(*id);
            let price = displaced_price(rent, bid, rules.tick.0);
            needed += cost(price, rent.quantity, span);
        }
        if rests(bid.tif) {
            let held = cost(price, rest, span);
            needed += held;
            if rest > 0 {
                self.check_room(held)?;
            }
        }
        self.need(who, needed)?;
        self.orders_made += 1;
        let mut trades: Vec<Trade> = fills
            .iter()
            .map(|fill| self.trade(id, who, bid, fill))
            .collect();
        for behind in displaced {
            trades.push(self.displace(id, who, bid, behind, rules.tick.0));
        }
        let spent: u64 = trades.iter().map(|trade| trade.escrow.0).sum();
        let mut resting = Units(0);
        if rest == 0 {
            self.tell_closed(who, id, OrderEnd::Filled);
        } else if rests(bid.tif) {
            resting = Units(rest);
            let left = Bid {
                budget: Credits(bid.budget.0 - spent),
                ..bid.clone()
            };
            let what = What::Bid(left);
            self.orders.push(Resting {
                id,
                owner: who,
                price,
                left: rest,
                deposit: 0,
                what,
            });
            self.hold(who, cost(price, rest, span));
            self.tell_rested(id);
            self.make_room();
        } else {
            self.tell_closed(who, id, OrderEnd::Unfilled);
        }
        Ok(Acceptance::Placed {
            order: OrderId(id),
            trades,
            resting,
        })
    }

    /// The spot leases a bid may displace: the cheapest first, and of those the newest.
    fn displaceable(&self, who: usize, bid: &Bid, price: u64, tick: u64) -> Vec<u64> {
        let spot = |rent: &&Rent| {
            let active = rent.state == LeaseState::Active && rent.resale.is_none();
            let class = rent.terms.resources.class() == bid.class;
            let paid = displaced_price(rent, bid, tick) <= price;
            active && class && rent.term == Term::Spot && paid
        };
        let mut spot: Vec<&Rent> = self.rents.iter().filter(spot).collect();
        spot.sort_by_key(|rent| (rent.price, !rent.id));
        let may = |rent: &&&Rent| {
            let mine = rent.buyer == who || rent.provider == who;
            let soon = rent.notice <= bid.start_delay_max.0;
            let thawed = self.purses[rent.provider].frozen.is_none();
            !mine && soon && thawed && self.device_suits(&rent.terms, rent.provider, who, bid)
        };
        spot.iter().filter(may).map(|rent| rent.id).collect()
    }

    /// The leases a bid displaces, whole, and what it wants even so.
    fn victims(
        &self,
        who: usize,
        bid: &Bid,
        price: u64,
        fills: &[Fill],
        wanted: u32,
    ) -> (Vec<u64>, u32) {
        let tick = self.of_class(bid.class).tick.0;
        let (mut victims, mut rest) = (Vec::new(), wanted);
        for id in self.displaceable(who, bid, price, tick) {
            let quantity = self.rent(id).quantity;
            let bought = fills
                .iter()
                .any(|fill| self.resale_ask(id) == Some(fill.ask));
            if rest > 0 && quantity <= rest && !bought {
                victims.push(id);
                rest -= quantity;
            }
        }
        (victims, rest)
    }

    fn displace(&mut self, bid_id: u64, who: usize, bid: &Bid, behind: u64, tick: u64) -> Trade {
        let old = self.rent(behind).clone();
        let until = (self.now + old.notice).min(old.deadline);
        let state = LeaseState::Waiting {
            behind: LeaseId(behind),
            until: Millis(until),
        };
        let (price, quantity) = (displaced_price(&old, bid, tick), old.quantity);
        let fill = Fill {
            ask: old.ask,
            quantity,
            price,
        };
        let trade = self.open(
            bid_id,
            who,
            bid,
            &fill,
            old.provider,
            &old.terms,
            (until, state),
        );
        self.rent_mut(behind).successor = Some(trade.lease.0);
        self.give_notice(behind, until, CloseReason::Displaced);
        if until <= self.now {
            self.end(behind, CloseReason::Displaced);
        }
        trade
    }

    fn trade(&mut self, bid_id: u64, buyer: usize, bid: &Bid, fill: &Fill) -> Trade {
        let order = self.order(fill.ask).unwrap().clone();
        let What::Ask(ask, resale) = &order.what else {
            unreachable!()
        };
        let provider = self.provider(&order).0;
        let state = (self.now, LeaseState::Active);
        let trade = self.open(bid_id, buyer, bid, fill, provider, ask, state);
        self.reduce(fill.ask, fill.quantity);
        if let Some(from) = resale {
            self.hand_over(*from, trade.lease.0);
        }
        trade
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "naive means that nothing is bundled"
    )]
    fn open(
        &mut self,
        bid_id: u64,
        buyer: usize,
        bid: &Bid,
        fill: &Fill,
        provider: usize,
        terms: &Ask,
        (start, state): (u64, LeaseState),
    ) -> Trade {
        let id = self.rents.len() as u64 + 1;
        let escrow = cost(fill.price, fill.quantity, bid.duration.0);
        self.hold(buyer, escrow);
        let deadline = start + bid.duration.0;
        self.rents.push(Rent {
            id,
            buyer,
            provider,
            terms: terms.clone(),
            notice: notice(terms, bid),
            ask: fill.ask,
            job: bid.job,
            price: fill.price,
            quantity: fill.quantity,
            escrow,
            cost: 0,
            start,
            deadline,
            term: bid.term,
            started: false,
            idle: u64::from(terms.idle.0).clamp(u64::from(self.rules.reserve.0), 1_000),
            claimed: false,
            refused: 0,
            reserved: None,
            accepted: 0,
            agreed: 0,
            silent: 0,
            note: None,
            state,
            successor: None,
            resale: None,
            faulted: false,
        });
        let trade = Trade {
            id: TradeId(id),
            lease: LeaseId(id),
            bid: OrderId(bid_id),
            ask: OrderId(fill.ask),
            buyer: self.purses[buyer].key,
            provider: self.purses[provider].key,
            device: terms.device,
            job: bid.job,
            price: Price(fill.price),
            quantity: Units(fill.quantity),
            escrow: Credits(escrow),
            start: Millis(start),
            deadline: Millis(deadline),
            tokens: terms.resources.tokens,
        };
        self.events.push(Event::Traded(trade));
        trade
    }

    fn reduce(&mut self, id: u64, quantity: u32) {
        let order = self.order_mut(id);
        order.left -= quantity;
        if order.left == 0 {
            let (owner, deposit) = (order.owner, order.deposit);
            self.release(owner, deposit);
            self.orders.retain(|order| order.id != id);
            self.tell_closed(owner, id, OrderEnd::Filled);
        }
    }

    fn fillable(&self, order: &Resting, ask: &Ask) -> u32 {
        let mut left = order.left;
        for other in self.side(order.class(), false) {
            let What::Bid(bid) = &other.what else {
                unreachable!()
            };
            let fits = !bid.all_or_none || other.left <= left;
            if other.price >= asked(order.price, ask, bid)
                && fits
                && self.suits(order, ask, other.owner, bid, other.left)
            {
                left -= left.min(other.left);
            }
        }
        order.left - left
    }

    fn match_ask(&mut self, id: u64, tif: TimeInForce) -> Vec<Trade> {
        let first = self.order(id).unwrap().clone();
        let What::Ask(ask, _) = &first.what else {
            unreachable!()
        };
        let mut trades = Vec::new();
        for other in self.side(first.class(), false) {
            let What::Bid(bid) = &other.what else {
                unreachable!()
            };
            let Some(order) = self.order(id).cloned() else {
                break;
            };
            let asked = asked(order.price, ask, bid);
            if other.price < asked || !self.suits(&order, ask, other.owner, bid, other.left) {
                continue;
            }
            let mut fills = vec![Fill {
                ask: id,
                quantity: order.left.min(other.left),
                price: other.price,
            }];
            if bid.all_or_none && other.left > order.left {
                let (whole, left) = self.fills(other.id, other.owner, bid, other.price, other.left);
                fills = if left == 0 && tif != TimeInForce::Fok {
                    whole
                } else {
                    Vec::new()
                };
            }
            trades.extend(self.trade_resting(&other, bid, &fills));
        }
        trades
    }

    fn trade_resting(&mut self, order: &Resting, bid: &Bid, fills: &[Fill]) -> Vec<Trade> {
        let quantity: u32 = fills.iter().map(|fill| fill.quantity).sum();
        if quantity == 0 {
            return Vec::new();
        }
        self.release(order.owner, cost(order.price, quantity, bid.duration.0));
        let trades: Vec<Trade> = fills
            .iter()
            .map(|fill| self.trade(order.id, order.owner, bid, fill))
            .collect();
        let spent: u64 = trades.iter().map(|trade| trade.escrow.0).sum();
        if let What::Bid(bid) = &mut self.order_mut(order.id).what {
            bid.budget.0 -= spent;
        }
        self.reduce(order.id, quantity);
        trades
    }

    fn own(&self, who: usize, order: OrderId) -> Result<Resting, Refusal> {
        let found = self.order(order.0).ok_or(Refusal::OrderUnknown { order })?;
        if found.owner != who {
            return Err(Refusal::OrderNotYours { order });
        }
        Ok(found.clone())
    }

    fn held(&self, order: &Resting, units: u32) -> u64 {
        match &order.what {
            What::Bid(bid) => cost(order.price, units, bid.duration.0),
            What::Ask(..) => 0,
        }
    }

    pub fn cancel(&mut self, who: usize, id: OrderId) -> Done {
        let order = self.own(who, id)?;
        let released = Credits(self.held(&order, order.left) + order.deposit);
        self.drop_order(id.0, OrderEnd::Cancelled);
        Ok(Acceptance::Cancelled { released })
    }

    pub fn drop_order(&mut self, id: u64, reason: OrderEnd) {
        let order = self.order(id).unwrap().clone();
        self.orders.retain(|order| order.id != id);
        self.release(order.owner, self.held(&order, order.left) + order.deposit);
        self.tell_closed(order.owner, id, reason);
    }

    pub fn amend(&mut self, who: usize, id: OrderId, quantity: u32, price: u64) -> Done {
        let order = self.own(who, id)?;
        if matches!(order.what, What::Ask(_, Some(_))) {
            return Err(Refusal::ResaleFixed { order: id });
        }
        let lot = self.of_class(order.class()).lot;
        let units = Units(quantity);
        if quantity == 0 {
            return Err(Refusal::AmountZero {
                what: Quantity::Units,
            });
        }
        if !quantity.is_multiple_of(lot.0) {
            return Err(Refusal::QuantityOffLot {
                quantity: units,
                lot,
            });
        }
        if price == order.price && quantity <= order.left {
            self.release(who, self.held(&order, order.left - quantity));
            self.order_mut(id.0).left = quantity;
            self.tell_rested(id.0);
            return Ok(Acceptance::Amended {
                order: id,
                trades: Vec::new(),
                resting: units,
            });
        }
        self.orders.retain(|other| other.id != id.0);
        let held = self.held(&order, order.left) + order.deposit;
        self.release(who, held);
        let limit = Limit::Price(Price(price));
        let placed = match order.what.clone() {
            What::Ask(ask, _) => self.ask(
                who,
                &Ask {
                    quantity: units,
                    limit,
                    ..ask
                },
            ),
            What::Bid(bid) => self.bid(
                who,
                &Bid {
                    quantity: units,
                    limit,
                    ..bid
                },
            ),
        };
        match placed {
            Ok(Acceptance::Placed {
                order,
                trades,
                resting,
            }) => {
                self.tell_closed(who, id.0, OrderEnd::Cancelled);
                Ok(Acceptance::Amended {
                    order,
                    trades,
                    resting,
                })
            }
            Ok(other) => Ok(other),
            Err(refusal) => {
                self.hold(who, held);
                self.orders.push(order);
                Err(refusal)
            }
        }
    }

    pub fn resell(&mut self, who: usize, id: LeaseId, price: u64) -> Done {
        let rent = self.active(id)?;
        self.must_buy(who, &rent)?;
        if rent.resale.is_some() || self.resale_ask(id.0).is_some() {
            return Err(Refusal::LeaseResold { lease: id });
        }
        self.check_open(who)?;
        self.check_room(u64::MAX)?;
        let rules = self.of_class(rent.terms.resources.class());
        self.check_price(Price(price), rules.tick)?;
        let tif = TimeInForce::Gtd(Millis(rent.deadline));
        let ask = Ask {
            tif,
            notice: Millis(rent.notice),
            spot: Vec::new(),
            ..rent.terms
        };
        let order = Resting {
            id: self.orders_made + 1,
            owner: who,
            price,
            left: rent.quantity,
            deposit: 0,
            what: What::Ask(ask, Some(id.0)),
        };
        Ok(self.enter(order, tif))
    }

    /// The ask by which the rest of a lease is resold.
    pub fn resale_ask(&self, lease: u64) -> Option<u64> {
        let of = |order: &&Resting| matches!(order.what, What::Ask(_, Some(of)) if of == lease);
        self.orders.iter().find(of).map(|order| order.id)
    }

    /// Tries every way to give each leg a provider and takes the cheapest, the first of equals.
    pub fn gang(&mut self, who: usize, legs: &[Bid]) -> Done {
        if legs.is_empty() || legs.len() > 16 {
            return Err(Refusal::GangSize {
                legs: legs.len() as u32,
                limit: 16,
            });
        }
        let mut prices = Vec::new();
        for bid in legs {
            let rules = self.of_class(bid.class);
            prices.push(self.check_bid(bid, &rules)?);
            self.check_class(bid.class)?;
        }
        let mut choices: Vec<Vec<Choice>> = Vec::new();
        for (leg, (bid, price)) in legs.iter().zip(&prices).enumerate() {
            let mut found = self.gang_choices(who, bid, *price);
            found.extend(self.gang_victims(who, bid, *price, &found));
            if found.is_empty() {
                let seen = self.side(bid.class, true).len() as u32;
                return Err(Refusal::GangLegUnmatched {
                    leg: leg as u32,
                    seen,
                });
            }
            choices.push(found);
        }
        let mut best = (0, (usize::MAX, u64::MAX), Vec::new());
        try_legs(&choices, legs, &mut Vec::new(), &mut best);
        if best.0 < legs.len() {
            let (legs, matched) = (legs.len() as u32, best.0 as u32);
            return Err(Refusal::GangUnmatched { legs, matched });
        }
        self.need(who, best.1.1)?;
        let first = self.orders_made + 1;
        self.orders_made += legs.len() as u64;
        let mut trades = Vec::new();
        for (leg, bid) in legs.iter().enumerate() {
            let Choice {
                id: from,
                price,
                displaces,
                ..
            } = best.2[leg].unwrap();
            let fill = Fill {
                ask: from,
                quantity: bid.quantity.0,
                price,
            };
            let id = first + leg as u64;
            trades.push(match displaces {
                true => self.displace(id, who, bid, from, self.of_class(bid.class).tick.0),
                false => self.trade(id, who, bid, &fill),
            });
            self.tell_closed(who, id, OrderEnd::Filled);
        }
        Ok(Acceptance::Ganged { trades })
    }

    /// Each provider's first suitable ask.
    fn gang_choices(&self, who: usize, bid: &Bid, price: u64) -> Vec<Choice> {
        let mut found: Vec<Choice> = Vec::new();
        for (asked, order) in self.asks(bid) {
            let What::Ask(ask, resale) = &order.what else {
                unreachable!()
            };
            let fits = match resale {
                Some(_) => order.left == bid.quantity.0,
                None => order.left >= bid.quantity.0,
            };
            let provider = self.provider(&order).0;
            let fresh = found.iter().all(|other| other.provider != provider);
            let suits = self.suits(&order, ask, who, bid, bid.quantity.0);
            if fits && fresh && suits && asked <= price {
                found.push(Choice {
                    provider,
                    id: order.id,
                    price: asked,
                    displaces: false,
                });
            }
        }
        found
    }

    /// The first spot lease of just the right size that the leg may displace, of each provider
    /// without a suitable ask.
    fn gang_victims(&self, who: usize, bid: &Bid, price: u64, asks: &[Choice]) -> Vec<Choice> {
        let tick = self.of_class(bid.class).tick.0;
        let mut found: Vec<Choice> = Vec::new();
        for id in self.displaceable(who, bid, price, tick) {
            let rent = self.rent(id);
            let mut known = asks.iter().chain(&found);
            let fresh = known.all(|other| other.provider != rent.provider);
            if rent.quantity == bid.quantity.0 && fresh {
                found.push(Choice {
                    provider: rent.provider,
                    id,
                    price: displaced_price(rent, bid, tick),
                    displaces: true,
                });
            }
        }
        found
    }
}

/// What a leg of a gang may have: of whom, which ask or spot lease, and for how much.
#[derive(Clone, Copy)]
struct Choice {
    provider: usize,
    id: u64,
    price: u64,
    displaces: bool,
}

type Way = Vec<Option<Choice>>;

/// The most legs matched, then the fewest leases displaced, then the least money.
fn try_legs(
    choices: &[Vec<Choice>],
    legs: &[Bid],
    way: &mut Way,
    best: &mut (usize, (usize, u64), Way),
) {
    if way.len() == legs.len() {
        let matched = way.iter().flatten().count();
        let price = |(leg, chosen): (&Bid, &Option<Choice>)| {
            chosen.map_or(0, |chosen| {
                cost(chosen.price, leg.quantity.0, leg.duration.0)
            })
        };
        let displaced = way.iter().flatten().filter(|chosen| chosen.displaces);
        let sum: u64 = legs.iter().zip(way.iter()).map(price).sum();
        let total = (displaced.count(), sum);
        if matched > best.0 || (matched == best.0 && total < best.1) {
            *best = (matched, total, way.clone());
        }
        return;
    }
    for choice in &choices[way.len()] {
        if way
            .iter()
            .flatten()
            .all(|other| other.provider != choice.provider)
        {
            way.push(Some(*choice));
            try_legs(choices, legs, way, best);
            way.pop();
        }
    }
    way.push(None);
    try_legs(choices, legs, way, best);
    way.pop();
}
