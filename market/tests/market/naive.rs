//! A naive exchange for comparison with the real one: it has plain vectors, scans everything for
//! each command, and stores nothing twice.
//!
//! It is written from the rules, not from the code of the real exchange, and it is slow. It also
//! keeps the digest, so that equal digests mean equal histories.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::*;

#[path = "naive_leases.rs"]
mod leases;
#[path = "naive_orders.rs"]
mod orders;

/// What an account has, by its place in the list.
#[derive(Clone, Debug)]
pub struct Purse {
    pub key: AccountKey,
    pub available: u64,
    pub escrow: u64,
    pub stake: u64,
    pub score: u16,
    /// What was settled with each other account, as was stated and slowly.
    pub dealings: BTreeMap<usize, [u64; 2]>,
    pub last_closed: u64,
    pub used: BTreeSet<u64>,
    pub frozen: Option<Name>,
    /// A day, and what came in and was to go out on it.
    pub moved: (u64, u64, u64),
}

#[derive(Clone, Debug)]
pub struct Resting {
    pub id: u64,
    pub owner: usize,
    pub price: u64,
    pub left: u32,
    /// What an ask holds beside the first of its account.
    pub deposit: u64,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Ask(Ask, Option<u64>),
    Bid(Bid),
}

#[derive(Clone, Debug)]
pub struct Rent {
    pub id: u64,
    pub buyer: usize,
    pub provider: usize,
    pub terms: Ask,
    pub notice: u64,
    pub ask: u64,
    pub job: JobId,
    pub price: u64,
    pub quantity: u32,
    pub escrow: u64,
    pub cost: u64,
    pub start: u64,
    pub deadline: u64,
    pub term: Term,
    pub started: bool,
    pub idle: u64,
    pub reserved: Option<u64>,
    pub claimed: bool,
    pub refused: u64,
    pub accepted: u64,
    pub agreed: u64,
    pub silent: u8,
    pub note: Option<(u64, u64)>,
    pub state: LeaseState,
    pub successor: Option<u64>,
    /// Seller, the provider's price, the seller's subsidy.
    pub resale: Option<(usize, u64, u64)>,
    pub faulted: bool,
}

pub struct Naive {
    pub market: MarketId,
    pub operator: AccountKey,
    pub rules: Rules,
    pub now: u64,
    pub purses: Vec<Purse>,
    pub orders: Vec<Resting>,
    pub rents: Vec<Rent>,
    pub classes: BTreeSet<Class>,
    pub requests: BTreeMap<RequestId, MoneyRequest>,
    pub orders_made: u64,
    pub requests_made: u64,
    pub fees: u64,
    pub events: Vec<Event>,
    blocks: Digest,
    told: Vec<u8>,
}

const DAY: u64 = 24 * 3_600_000;

type Done = Result<Acceptance, Refusal>;

fn ceil(product: u128, by: u128) -> u64 {
    u64::try_from(product.div_ceil(by)).unwrap()
}

/// The escrow of some units: each unit's cost rounded up.
pub fn cost(price: u64, units: u32, span: u64) -> u64 {
    ceil(u128::from(price) * u128::from(span), 1_000) * u64::from(units)
}

fn due(price: u64, usage: u64) -> u64 {
    ceil(u128::from(price) * u128::from(usage), 1_000_000)
}

impl Naive {
    pub fn new(genesis: &Genesis) -> Self {
        let purse = |(key, _, deposit): &(AccountKey, Name, Credits)| Purse {
            key: *key,
            available: deposit.0,
            escrow: 0,
            stake: 0,
            score: 500,
            dealings: BTreeMap::new(),
            last_closed: 0,
            used: BTreeSet::new(),
            frozen: None,
            moved: (0, 0, 0),
        };
        let market = genesis.market_id();
        let mut naive = Self {
            market,
            operator: genesis.operators[0],
            rules: genesis.rules.clone(),
            now: 0,
            purses: genesis.accounts.iter().map(purse).collect(),
            orders: Vec::new(),
            rents: Vec::new(),
            classes: BTreeSet::new(),
            requests: BTreeMap::new(),
            orders_made: 0,
            requests_made: 0,
            fees: 0,
            events: Vec::new(),
            blocks: Digest::default(),
            told: Vec::new(),
        };
        naive.chain(postcard::to_stdvec(&market).unwrap());
        naive
    }

    fn chain(&mut self, link: Vec<u8>) {
        self.told.extend(link);
        if self.told.len() >= 16_384 {
            self.blocks = self.digest();
            self.told.clear();
        }
    }

    /// The digest of everything told so far.
    pub fn digest(&self) -> Digest {
        let bytes = [&self.blocks.0[..], &self.told].concat();
        Digest(*blake3::hash(&bytes).as_bytes())
    }

    fn balances(&self) -> Vec<Balances> {
        let of = |purse: &Purse| Balances {
            available: Credits(purse.available),
            escrow: Credits(purse.escrow),
            stake: Credits(purse.stake),
        };
        self.purses.iter().map(of).collect()
    }

    fn moved(&mut self, account: AccountKey, reason: MoveReason, amount: u64) {
        self.events.push(Event::Moved {
            account,
            reason,
            amount: Credits(amount),
        });
    }

    /// Does something and tells whose balances it changed.
    fn telling<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let mut before = self.balances();
        let done = act(self);
        before.resize(self.purses.len(), Balances::default());
        for (at, (old, new)) in before.into_iter().zip(self.balances()).enumerate() {
            if old != new {
                self.events.push(Event::Balance {
                    account: self.purses[at].key,
                    before: old,
                    after: new,
                });
            }
        }
        done
    }

    pub fn apply(&mut self, now: u64, batch: &Batch) -> BatchOutcome {
        self.advance(now);
        let mut outcomes = Vec::new();
        match self.admit(batch) {
            Err(refusal) => {
                outcomes = vec![Outcome::Refused(refusal); batch.commands.len()];
            }
            Ok((who, mut fresh)) => {
                for command in &batch.commands {
                    let done = self.telling(|naive| naive.command(who, command, fresh));
                    fresh = false;
                    outcomes.push(done.map_or_else(Outcome::Refused, Outcome::Accepted));
                }
            }
        }
        let events = std::mem::take(&mut self.events);
        let codes: Vec<&str> = outcomes.iter().map(code).collect();
        let link = (
            Millis(self.now),
            &batch.account,
            &batch.nonce,
            &events,
            codes,
        );
        self.chain(postcard::to_stdvec(&link).unwrap());
        BatchOutcome { outcomes, events }
    }

    pub fn tick(&mut self, now: u64) -> Vec<Event> {
        let before = self.now;
        self.advance(now);
        let events = std::mem::take(&mut self.events);
        if self.now > before || !events.is_empty() {
            self.chain(postcard::to_stdvec(&(Millis(self.now), &events)).unwrap());
        }
        events
    }

    fn admit(&mut self, batch: &Batch) -> Result<(usize, bool), Refusal> {
        let (account, nonce) = (batch.account, batch.nonce);
        if batch.market != self.market {
            return Err(Refusal::MarketOther {
                market: self.market,
                batch: batch.market,
            });
        }
        if batch.expires.0 <= self.now {
            return Err(Refusal::BatchExpired {
                expires: batch.expires,
                now: Millis(self.now),
            });
        }
        let known = self.purses.iter().position(|purse| purse.key == account);
        let who = match (known, &batch.commands[0]) {
            (Some(who), _) => who,
            (None, Command::Register { .. }) => self.open_purse(account),
            (None, _) => return Err(Refusal::AccountUnknown { account }),
        };
        let used = &mut self.purses[who].used;
        let highest = used.last().copied().unwrap_or(0);
        if nonce.0 + 64 <= highest {
            return Err(Refusal::NonceOld {
                nonce,
                oldest: Nonce(highest - 63),
            });
        }
        if !used.insert(nonce.0) {
            return Err(Refusal::NonceUsed { nonce });
        }
        Ok((who, known.is_none()))
    }

    fn open_purse(&mut self, key: AccountKey) -> usize {
        self.purses.push(Purse {
            key,
            available: 0,
            escrow: 0,
            stake: 0,
            score: 500,
            dealings: BTreeMap::new(),
            last_closed: 0,
            used: BTreeSet::new(),
            frozen: None,
            moved: (0, 0, 0),
        });
        self.purses.len() - 1
    }

    fn command(&mut self, who: usize, command: &Command, fresh: bool) -> Done {
        let account = self.purses[who].key;
        // What is begun by nobody who is frozen: all but what ends or serves what is there.
        let serves = match command {
            Command::Request { direction, .. } => *direction == Direction::Deposit,
            Command::Refuse { request, .. } => {
                let asked = self.requests.get(request);
                asked.is_none_or(|asked| asked.account == account)
            }
            Command::Cancel { .. }
            | Command::StartWork { .. }
            | Command::StateReady { .. }
            | Command::NoteUsage { .. }
            | Command::AcceptNote { .. }
            | Command::Dispute { .. }
            | Command::Settle(_)
            | Command::EndLease { .. }
            | Command::GiveUp { .. }
            | Command::Reclaim { .. }
            | Command::ProveFault(_)
            | Command::Register { .. }
            | Command::Thaw { .. } => true,
            _ => false,
        };
        if let Some(reason) = self.purses[who].frozen.clone().filter(|_| !serves) {
            return Err(Refusal::AccountFrozen { account, reason });
        }
        match command {
            Command::Register { .. } if fresh => {
                self.events.push(Event::Registered { account });
                Ok(Acceptance::Registered)
            }
            Command::Register { .. } => Err(Refusal::AccountKnown { account }),
            Command::Deposit { account, amount } => self.deposit(who, *account, amount.0),
            Command::Request {
                direction,
                amount,
                reference,
            } => self.request(who, *direction, amount.0, reference),
            Command::Lock { request } => self.lock(who, *request),
            Command::Confirm { request } => self.decide(who, *request, true, &Name::default()),
            Command::Refuse { request, reason } => self.decide(who, *request, false, reason),
            Command::Transfer {
                to,
                amount,
                reference,
            } => self.transfer(who, *to, amount.0, reference),
            Command::Collect { to, amount } => self.collect(who, *to, amount.0),
            Command::PlaceAsk(ask) => self.ask(who, ask),
            Command::PlaceBid(bid) => self.bid(who, bid),
            Command::PlaceGang(legs) => self.gang(who, legs),
            Command::Cancel { order } => self.cancel(who, *order),
            Command::Amend {
                order,
                quantity,
                price,
            } => self.amend(who, *order, quantity.0, price.0),
            Command::StartWork { lease } => self.start_work(who, *lease),
            Command::StateReady { lease } => self.state_ready(who, *lease),
            Command::NoteUsage { lease, usage } => self.note(who, *lease, usage.0),
            Command::AcceptNote { lease, usage } => self.accept(who, *lease, usage.0),
            Command::Dispute { lease } => self.dispute(who, *lease),
            Command::Settle(receipt) => self.settle(receipt),
            Command::EndLease { lease } => self.end_early(who, *lease),
            Command::GiveUp { lease } => self.give_up(who, *lease),
            Command::Reclaim { lease } => self.reclaim(who, *lease),
            Command::Extend { lease, by } => self.extend(who, *lease, by.0),
            Command::Resell { lease, price } => self.resell(who, *lease, price.0),
            Command::Stake { amount } => {
                self.need(who, amount.0)?;
                self.purses[who].available -= amount.0;
                self.purses[who].stake += amount.0;
                self.moved(self.purses[who].key, MoveReason::Staked, amount.0);
                Ok(Acceptance::Staked {
                    stake: Credits(self.purses[who].stake),
                })
            }
            Command::Unstake { amount } => self.unstake(who, amount.0),
            Command::Freeze { account, reason } => self.freeze(who, *account, Some(reason)),
            Command::Thaw { account } => self.freeze(who, *account, None),
            Command::ChangeRules { .. } | Command::KeepRules { .. } | Command::Upgrade(_) => {
                unreachable!("no stream changes the rules")
            }
            Command::ProveFault(pair) => self.prove(pair),
            Command::Accuse(_) => unreachable!("no stream accuses"),
        }
    }

    fn deposit(&mut self, who: usize, account: AccountKey, amount: u64) -> Done {
        self.operates(who)?;
        let to = self.purses.iter().position(|purse| purse.key == account);
        let cap = self.rules.deposit_cap_day;
        match to {
            Some(to) => self.check_cap(to, cap, amount, |moved| moved.1)?,
            None if cap.0 > 0 && amount > cap.0 => {
                let (moved, next) = (Credits(0), Millis((self.now / DAY + 1) * DAY));
                return Err(Refusal::CapReached { cap, moved, next });
            }
            None => {}
        }
        let to = to.unwrap_or_else(|| {
            self.events.push(Event::Registered { account });
            self.open_purse(account)
        });
        self.purses[to].available += amount;
        self.moved(account, MoveReason::Credited, amount);
        self.purses[to].moved.1 += amount;
        Ok(Acceptance::Deposited {
            available: Credits(self.purses[to].available),
        })
    }

    fn operates(&self, who: usize) -> Result<(), Refusal> {
        let account = self.purses[who].key;
        match account == self.operator {
            true => Ok(()),
            false => Err(Refusal::OperatorOnly { account }),
        }
    }

    fn request(&mut self, who: usize, way: Direction, amount: u64, text: &Name) -> Done {
        let account = self.purses[who].key;
        if amount == 0 {
            let what = Quantity::Amount;
            return Err(Refusal::AmountZero { what });
        }
        let own = self
            .requests
            .iter()
            .filter(|(_, one)| one.account == account);
        let (open, limit) = (own.count() as u32, self.rules.requests_max);
        if open >= limit {
            return Err(Refusal::RequestsMany { open, limit });
        }
        let mut crowded = None;
        let limit = self.rules.requests_open_max;
        if self.requests.len() >= limit as usize {
            let deposit = self.rules.ask_deposit;
            let light = |one: &&MoneyRequest| {
                let holds = one.direction == Direction::Withdrawal && one.amount >= deposit;
                !holds && one.lock.is_none()
            };
            let oldest = self.requests.values().find(light);
            crowded = Some(oldest.ok_or(Refusal::RequestsFull { limit })?.id);
        }
        if way == Direction::Withdrawal {
            self.need(who, amount)?;
            self.check_cap(who, self.rules.withdrawal_cap_day, amount, |moved| moved.2)?;
            self.purses[who].moved.2 += amount;
            self.purses[who].available -= amount;
            self.purses[who].escrow += amount;
        }
        self.requests_made += 1;
        let request = RequestId(self.requests_made);
        let made = MoneyRequest {
            id: request,
            account,
            direction: way,
            amount: Credits(amount),
            reference: text.clone(),
            made: Millis(self.now),
            lock: None,
        };
        self.requests.insert(request, made.clone());
        self.events.push(Event::Requested(made));
        if let Some(oldest) = crowded {
            let reason = Name::try_from("there are too many requests: ask again").unwrap();
            self.end_request(oldest, false, &reason);
        }
        Ok(Acceptance::Requested { request })
    }

    fn decide(&mut self, who: usize, request: RequestId, yes: bool, reason: &Name) -> Done {
        if yes {
            self.operates(who)?;
        }
        let asked = self.requests.get(&request).cloned();
        let asked = asked.ok_or(Refusal::RequestUnknown { request })?;
        let own = self
            .purses
            .iter()
            .position(|purse| purse.key == asked.account);
        let own = own.unwrap();
        if let Some(lock) = asked.lock.filter(|_| !yes && own == who)
            && self.operates(who).is_err()
        {
            let at = lock.at;
            return Err(Refusal::RequestLocked { request, at });
        }
        if own != who {
            self.operates(who)?;
        }
        if yes && asked.direction == Direction::Withdrawal && asked.lock.is_none() {
            return Err(Refusal::RequestUnlocked { request });
        }
        if asked.direction == Direction::Deposit && yes {
            self.check_cap(own, self.rules.deposit_cap_day, asked.amount.0, |moved| {
                moved.1
            })?;
        }
        Ok(self.end_request(request, yes, reason))
    }

    fn lock(&mut self, who: usize, request: RequestId) -> Done {
        self.operates(who)?;
        let (payer, at) = (self.purses[who].key, Millis(self.now));
        let asked = self.requests.get_mut(&request);
        let asked = asked.ok_or(Refusal::RequestUnknown { request })?;
        if asked.direction == Direction::Deposit {
            return Err(Refusal::LockNeedless { request });
        }
        if let Some(PayoutLock { at, .. }) = asked.lock {
            return Err(Refusal::RequestLocked { request, at });
        }
        let lock = PayoutLock { payer, at };
        asked.lock = Some(lock);
        self.events.push(Event::Locked(asked.clone()));
        Ok(Acceptance::Locked(lock))
    }

    fn end_request(&mut self, request: RequestId, yes: bool, reason: &Name) -> Acceptance {
        let asked = self.requests[&request].clone();
        let own = self
            .purses
            .iter()
            .position(|purse| purse.key == asked.account);
        let own = own.unwrap();
        let amount = asked.amount.0;
        if asked.direction == Direction::Deposit && yes {
            self.today(own).1 += amount;
        }
        if asked.direction == Direction::Withdrawal && !yes && asked.made.0 / DAY == self.now / DAY
        {
            self.today(own).2 -= amount;
        }
        let purse = &mut self.purses[own];
        let mut released = Credits(0);
        match (asked.direction, yes) {
            (Direction::Deposit, true) => purse.available += amount,
            (Direction::Deposit, false) => {}
            (Direction::Withdrawal, true) => purse.escrow -= amount,
            (Direction::Withdrawal, false) => {
                purse.escrow -= amount;
                purse.available += amount;
                released = asked.amount;
            }
        }
        let available = Credits(purse.available);
        self.requests.remove(&request);
        self.events.push(Event::Decided {
            request: asked,
            confirmed: yes,
            reason: reason.clone(),
        });
        match yes {
            true => Acceptance::Confirmed { available },
            false => Acceptance::Refused { released },
        }
    }

    /// What has moved on this day.
    fn today(&mut self, who: usize) -> &mut (u64, u64, u64) {
        let (day, moved) = (self.now / DAY, &mut self.purses[who].moved);
        if moved.0 != day {
            *moved = (day, 0, 0);
        }
        moved
    }

    fn check_cap(
        &mut self,
        who: usize,
        cap: Credits,
        amount: u64,
        of: fn(&(u64, u64, u64)) -> u64,
    ) -> Result<(), Refusal> {
        let moved = of(self.today(who));
        if cap.0 > 0 && moved.saturating_add(amount) > cap.0 {
            let (moved, next) = (Credits(moved), Millis((self.now / DAY + 1) * DAY));
            return Err(Refusal::CapReached { cap, moved, next });
        }
        Ok(())
    }

    fn freeze(&mut self, who: usize, account: AccountKey, reason: Option<&Name>) -> Done {
        self.operates(who)?;
        let at = self.purses.iter().position(|purse| purse.key == account);
        let at = at.ok_or(Refusal::AccountUnknown { account })?;
        let Some(reason) = reason.cloned() else {
            if self.purses[at].frozen.take().is_some() {
                self.events.push(Event::Thawed { account });
            }
            return Ok(Acceptance::Thawed);
        };
        let own = self.orders.iter().filter(|order| order.owner == at);
        let mut own: Vec<u64> = own.map(|order| order.id).collect();
        own.sort_unstable();
        own.into_iter()
            .for_each(|order| self.drop_order(order, OrderEnd::Frozen));
        self.purses[at].frozen = Some(reason.clone());
        self.events.push(Event::Frozen { account, reason });
        Ok(Acceptance::Frozen)
    }

    fn transfer(&mut self, who: usize, to: AccountKey, amount: u64, text: &Name) -> Done {
        if amount == 0 {
            let what = Quantity::Amount;
            return Err(Refusal::AmountZero { what });
        }
        let place = self.purses.iter().position(|purse| purse.key == to);
        let place = place.ok_or(Refusal::AccountUnknown { account: to })?;
        self.need(who, amount)?;
        self.purses[who].available -= amount;
        self.purses[place].available += amount;
        self.events.push(Event::Transferred {
            from: self.purses[who].key,
            to,
            amount: Credits(amount),
            reference: text.clone(),
        });
        let available = Credits(self.purses[who].available);
        Ok(Acceptance::Transferred { available })
    }

    fn collect(&mut self, who: usize, to: AccountKey, amount: u64) -> Done {
        self.operates(who)?;
        let place = self.purses.iter().position(|purse| purse.key == to);
        let place = place.ok_or(Refusal::AccountUnknown { account: to })?;
        if amount > self.fees {
            let (available, needed) = (Credits(self.fees), Credits(amount));
            return Err(Refusal::FundsShort { available, needed });
        }
        self.fees -= amount;
        self.moved(to, MoveReason::Collected, amount);
        self.purses[place].available += amount;
        let available = Credits(self.purses[place].available);
        Ok(Acceptance::Collected { available })
    }

    fn unstake(&mut self, who: usize, wanted: u64) -> Done {
        let Purse {
            stake, last_closed, ..
        } = self.purses[who];
        if wanted > stake {
            let (stake, wanted) = (Credits(stake), Credits(wanted));
            return Err(Refusal::StakeShort { stake, wanted });
        }
        let open = self
            .rents
            .iter()
            .filter(|rent| rent.provider == who && !rent.closed())
            .count();
        let until = last_closed + self.rules.stake_hold.0;
        if open > 0 || (last_closed != 0 && self.now < until) {
            let (open_leases, until) = (open as u32, Millis(until));
            return Err(Refusal::StakeHeld { open_leases, until });
        }
        self.purses[who].stake -= wanted;
        self.moved(self.purses[who].key, MoveReason::Unstaked, wanted);
        self.purses[who].available += wanted;
        Ok(Acceptance::Staked {
            stake: Credits(stake - wanted),
        })
    }

    fn need(&self, who: usize, needed: u64) -> Result<(), Refusal> {
        let available = self.purses[who].available;
        if available < needed {
            let (available, needed) = (Credits(available), Credits(needed));
            return Err(Refusal::FundsShort { available, needed });
        }
        Ok(())
    }

    fn hold(&mut self, who: usize, amount: u64) {
        self.purses[who].available -= amount;
        self.purses[who].escrow += amount;
    }

    fn release(&mut self, who: usize, amount: u64) {
        self.purses[who].escrow -= amount;
        self.purses[who].available += amount;
    }

    /// From escrow to someone else, less the fee, which is returned.
    fn pay(&mut self, from: usize, to: usize, amount: u64) -> u64 {
        let share = u128::from(amount) * u128::from(self.rules.fee_basis_points) / 10_000;
        let fee = u64::try_from(share).unwrap();
        self.purses[from].escrow -= amount;
        self.purses[to].available += amount - fee;
        self.fees += fee;
        fee
    }

    /// All that is due up to `now`, each at its time, by kind and number within one millisecond.
    fn advance(&mut self, now: u64) {
        let now = now.max(self.now);
        while let Some((at, kind, id)) = self.due_next().filter(|(at, _, _)| *at <= now) {
            self.now = self.now.max(at);
            self.telling(|naive| match kind {
                0 => naive.accept_silently(id),
                1 => naive.end_unused(id),
                2 => naive.end_by_time(id),
                3 => naive.close_by_time(id),
                _ => naive.drop_order(id, OrderEnd::Expired),
            });
        }
        self.now = now;
    }

    fn due_next(&self) -> Option<(u64, u8, u64)> {
        let mut due = Vec::new();
        for rent in &self.rents {
            due.extend(rent.note.map(|(_, at)| (at, 0, rent.id)));
            let reserved = rent.reserved.filter(|_| rent.running());
            due.extend(reserved.map(|at| (at, 1, rent.id)));
            match rent.state {
                LeaseState::Active => due.push((rent.deadline, 2, rent.id)),
                LeaseState::Ending { at, .. } => due.push((at.0, 2, rent.id)),
                LeaseState::Due { until, .. } => due.push((until.0, 3, rent.id)),
                _ => {}
            }
        }
        for order in &self.orders {
            due.extend(order.expires().map(|at| (at, 4, order.id)));
        }
        due.into_iter().min()
    }

    /// How many steps two accounts have settled: four at most.
    fn steps(&self, sum: u64) -> u64 {
        (sum / self.rules.reputation_step.0).min(4)
    }

    fn judge(&mut self, who: usize, with: usize, slow: bool, paid: u64) {
        let dealing = self.purses[who].dealings.entry(with).or_default();
        let before = dealing[usize::from(slow)];
        let after = (before + paid).min(4 * self.rules.reputation_step.0);
        dealing[usize::from(slow)] = after;
        for _ in self.steps(before)..self.steps(after) {
            let score = &mut self.purses[who].score;
            match slow {
                true => *score -= score.div_ceil(8),
                false => *score += (1_000 - *score).div_ceil(16),
            }
        }
    }
}

fn code(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted(_) => "",
        Outcome::Refused(refusal) => refusal.code(),
    }
}

impl Resting {
    /// Whether it is an ask that holds nothing, and not the rest of a lease.
    pub fn free_ask(&self) -> bool {
        matches!(self.what, What::Ask(_, None)) && self.deposit == 0
    }

    pub fn expires(&self) -> Option<u64> {
        let tif = match &self.what {
            What::Ask(ask, _) => ask.tif,
            What::Bid(bid) => bid.tif,
        };
        if let TimeInForce::Gtd(at) = tif {
            Some(at.0)
        } else {
            None
        }
    }

    pub fn class(&self) -> Class {
        match &self.what {
            What::Ask(ask, _) => ask.resources.class(),
            What::Bid(bid) => bid.class,
        }
    }
}

impl Rent {
    pub fn closed(&self) -> bool {
        matches!(self.state, LeaseState::Closed { .. })
    }

    pub fn running(&self) -> bool {
        matches!(self.state, LeaseState::Active | LeaseState::Ending { .. })
    }

    pub fn ends(&self) -> u64 {
        match self.state {
            LeaseState::Ending { at, .. } | LeaseState::Closed { at, .. } => at.0,
            LeaseState::Due { ended, .. } => ended.0,
            _ => self.deadline,
        }
    }
}
