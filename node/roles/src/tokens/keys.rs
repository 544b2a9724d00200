//! Decides how much each API key of an organisation can still spend. Many programs buy text with
//! one account, each with a key of its own and a budget.
//!
//! Before a request is sent, the core reserves from the key's budget the most that the request can
//! cost; in the end it charges the real cost. So requests that run at the same time can never spend
//! more than the budget together.
//!
//! The shell must write each [`KeyFact`] to disk before it sends the request that depends on it. A
//! reservation without a charge belongs to a process that died: [`KeyBook::charge_abandoned`]
//! charges it whole, because nobody knows how much of it was spent.

mod rate;
mod terms;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use souk_market::{Credits, Millis};
use souk_memory::ContentId;

use crate::tokens::counting::TokenCount;
use rate::RateLimit;

pub use terms::{
    BudgetPeriod, InvalidKeyName, InvalidModelPattern, KeyBudget, KeyId, KeyName, KeyTerms,
    MODELS_MAX, ModelPattern, REQUESTS_AT_ONCE,
};

/// The number of a request that a key pays for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyedRequestId(pub u64);

/// A fact about the spending of keys. All facts, in their order, give the state again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what", deny_unknown_fields)]
pub enum KeyFact {
    /// The most that a request can cost; it replaces earlier reservations for the request.
    Reserved {
        /// The number of the open request.
        request: KeyedRequestId,
        /// The key that it was sent with.
        key: KeyId,
        /// The most that it can cost.
        credits: Credits,
        /// The number of the budget's period that pays for it.
        period: u32,
    },
    /// A request is over.
    Charged {
        /// The number of the request that was open.
        request: KeyedRequestId,
        /// What it cost.
        cost: Credits,
        /// The tokens that it read and wrote.
        tokens: TokenCount,
    },
    /// What a key had spent when the log was shortened: it replaces older facts.
    Carried {
        /// The key that spent it.
        key: KeyId,
        /// Its requests, tokens and credits so far.
        usage: KeyUsage,
    },
}

/// What a key has spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyUsage {
    /// The cost of all its requests since it was issued.
    pub spent: Credits,
    /// The number of the budget's last period in which it was used.
    pub period: u32,
    /// The cost of its requests that began in that period.
    pub period_spent: Credits,
    /// Its requests for which something was reserved.
    pub requests: u64,
    /// Their tokens.
    pub tokens: TokenCount,
}

/// A key, as [`KeyBook::accounts`] lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAccount {
    /// Its usage so far. The period is the one at the time of the call.
    pub usage: KeyUsage,
    /// The amount that its open requests reserve in this period.
    pub held: Credits,
    /// The rest of its budget for further requests; none if it has no budget.
    pub left: Option<Credits>,
}

/// Why a request with a key is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// The key is not issued, or was revoked.
    #[error("the key is not known, or was revoked")]
    Unknown,
    /// The rest of the budget is less than the request can cost.
    #[error(
        "the key's budget of {} credits{} does not allow the request: {} are spent, and it can \
         cost {}",
        format_credits(budget.credits), budget.period.describe(), format_credits(*spent),
        format_credits(*needed)
    )]
    Budget {
        /// The budget of the key, with its period.
        budget: KeyBudget,
        /// What was spent of it.
        spent: Credits,
        /// The most that the request can cost.
        needed: Credits,
        /// The amount that is left for this request.
        left: Credits,
    },
    /// The rest of the budget would do, but for the key's other open requests.
    #[error(
        "the key's other open requests hold {} of the {} credits that are left of its budget, and \
         this one can cost {}",
        format_credits(*held), format_credits(*unspent), format_credits(*needed)
    )]
    Held {
        /// What the other open requests hold.
        held: Credits,
        /// The budget without what was spent.
        unspent: Credits,
        /// The most that the request can cost.
        needed: Credits,
        /// The amount that is left for this request.
        left: Credits,
    },
    /// So many requests of the key are open already.
    #[error("{most} requests of the key are open already, and it allows no more at once")]
    AtOnce {
        /// How many it allows.
        most: u32,
    },
    /// The key was used too often in the last minute.
    #[error("the key allows {per_minute} {} a minute", unit.describe())]
    Rate {
        /// What is counted.
        unit: RateUnit,
        /// How many a minute allows.
        per_minute: u64,
        /// When the request can be sent again; none if it is larger than the limit.
        wait: Option<Millis>,
    },
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    /// Requests.
    Requests,
    /// Tokens of messages and answers.
    Tokens,
}

impl RateUnit {
    fn describe(self) -> &'static str {
        match self {
            RateUnit::Requests => "requests",
            RateUnit::Tokens => "tokens",
        }
    }
}

/// What a request costs at least.
const COST_MIN: Credits = Credits(1);

/// The state of all keys.
#[derive(Clone, Debug, Default)]
pub struct KeyBook {
    keys: BTreeMap<KeyId, KeyRecord>,
    open: BTreeMap<KeyedRequestId, OpenReservation>,
    next_request: u64,
}

#[derive(Clone, Debug, Default)]
struct KeyRecord {
    /// None for a key of which only its usage is known.
    terms: Option<KeyTerms>,
    usage: KeyUsage,
    /// What the open requests of the usage's period hold.
    held: Credits,
    requests: Option<RateLimit>,
    tokens: Option<RateLimit>,
}

#[derive(Clone, Copy, Debug)]
struct OpenReservation {
    key: KeyId,
    /// The period that pays for it.
    period: u32,
    reserved: Credits,
    /// The tokens that it took from the rate.
    tokens: u64,
}

impl KeyBook {
    /// Restores the state from all facts. Requests that are still open in them stay open.
    #[must_use]
    pub fn restore(terms: Vec<KeyTerms>, facts: &[KeyFact]) -> KeyBook {
        let mut book = KeyBook::default();
        book.set_terms(terms);
        for fact in facts {
            book.apply_fact(fact);
        }
        book
    }

    /// Sets the terms of all keys. A key that is not among them can be used no more; what it spent
    /// is kept.
    pub fn set_terms(&mut self, terms: Vec<KeyTerms>) {
        for record in self.keys.values_mut() {
            record.terms = None;
        }
        for terms in terms {
            let record = self.keys.entry(terms.id()).or_default();
            record.set_terms(terms);
        }
    }

    /// Returns the terms of a key that is in use, by its hash.
    #[must_use]
    pub fn find_key(&self, hash: ContentId) -> Option<&KeyTerms> {
        let terms = self.keys.get(&KeyId::of_hash(hash))?.terms.as_ref()?;
        (terms.hash == hash && !terms.is_revoked).then_some(terms)
    }

    /// Returns whether any key can be used.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        let mut terms = self.keys.values().filter_map(|it| it.terms.as_ref());
        terms.any(|terms| !terms.is_revoked)
    }

    /// Returns each key with its account at a time, revoked ones included, in the order of their
    /// issue.
    #[must_use]
    pub fn accounts(&self, now: Millis) -> Vec<(&KeyTerms, KeyAccount)> {
        let account = |record: &KeyRecord| {
            let mut at = record.clone();
            at.begin_period(now);
            KeyAccount {
                usage: at.usage,
                held: at.held,
                left: at.budget_left(),
            }
        };
        let known = self.keys.values();
        let known = known.filter_map(|record| Some((record.terms.as_ref()?, account(record))));
        let mut all: Vec<_> = known.collect();
        all.sort_by_key(|(terms, _)| (terms.issued, &terms.name));
        all
    }

    /// Admits a request of at most this many tokens by the rates of its key. It reserves nothing of
    /// the budget yet.
    ///
    /// # Errors
    /// When the key is not in use, nothing is left of its budget, too many of its requests are
    /// open, or its rates do not allow the request now.
    pub fn admit(
        &mut self,
        now: Millis,
        key: KeyId,
        tokens: u64,
    ) -> Result<KeyedRequestId, KeyRefusal> {
        let record = self.keys.get_mut(&key).ok_or(KeyRefusal::Unknown)?;
        record.check_use()?;
        record.begin_period(now);
        record.check_budget(Credits(0), COST_MIN)?;
        let open = self.open.values().filter(|open| open.key == key).count();
        record.check_open(open)?;
        check_rate(&mut record.requests, now, 1, RateUnit::Requests)?;
        check_rate(&mut record.tokens, now, tokens, RateUnit::Tokens)?;
        for (rate, count) in [(&mut record.requests, 1), (&mut record.tokens, tokens)] {
            if let Some(rate) = rate {
                rate.take(count);
            }
        }
        let request = KeyedRequestId(self.next_request);
        self.next_request += 1;
        let open = OpenReservation {
            key,
            period: record.usage.period,
            reserved: Credits(0),
            tokens,
        };
        self.open.insert(request, open);
        Ok(request)
    }

    /// Reserves an amount for a request, which includes what it has cost so far, in the budget's
    /// period at this time. Returns the fact that you must write to disk before you send the
    /// request; none if as much was reserved already.
    ///
    /// # Errors
    /// When the key was revoked, whatever was reserved before, or its budget has not so much left.
    ///
    /// # Panics
    /// If the request is not open.
    pub fn reserve(
        &mut self,
        now: Millis,
        request: KeyedRequestId,
        credits: Credits,
    ) -> Result<Option<KeyFact>, KeyRefusal> {
        let open = self.open.get(&request).expect("the request is open");
        let record = self.keys.get_mut(&open.key).expect("a request has a key");
        record.check_use()?;
        if credits <= open.reserved {
            return Ok(None);
        }
        record.begin_period(now);
        let period = record.usage.period;
        // A new period pays for the whole request.
        let reserved = match open.period == period {
            true => open.reserved,
            false => Credits(0),
        };
        record.check_budget(reserved, credits)?;
        let fact = KeyFact::Reserved {
            request,
            key: open.key,
            credits,
            period,
        };
        let key = open.key;
        self.apply_fact(&fact);
        self.keys[&key].assert_within_budget();
        Ok(Some(fact))
    }

    /// Ends a request. Returns the fact about it; none if nothing was reserved for it. It is
    /// charged what it cost, and never more than was reserved. If it had more tokens than it was
    /// admitted with, the next minutes of its rate pay for them.
    pub fn charge(
        &mut self,
        request: KeyedRequestId,
        cost: Credits,
        tokens: TokenCount,
    ) -> Option<KeyFact> {
        let open = self.open.get(&request)?;
        let (reserved, taken) = (open.reserved, open.tokens);
        let used = tokens.total();
        if let Some(rate) = self.keys.get_mut(&open.key)?.tokens.as_mut() {
            rate.give_back(taken.saturating_sub(used));
            rate.owe(used.saturating_sub(taken));
        }
        if reserved == Credits(0) {
            self.open.remove(&request);
            return None;
        }
        let cost = Credits(cost.0.min(reserved.0));
        let fact = KeyFact::Charged {
            request,
            cost,
            tokens,
        };
        self.apply_fact(&fact);
        Some(fact)
    }

    /// Charges all open requests with what was reserved for them, after a process that died.
    pub fn charge_abandoned(&mut self) -> Vec<KeyFact> {
        let open: Vec<_> = self
            .open
            .iter()
            .map(|(id, it)| (*id, it.reserved))
            .collect();
        let charge = |(id, reserved)| self.charge(id, reserved, TokenCount::default());
        open.into_iter().filter_map(charge).collect()
    }

    /// Returns facts that give the state again, fewer than those so far.
    #[must_use]
    pub fn to_facts(&self) -> Vec<KeyFact> {
        let carried = self.keys.iter().map(|(key, record)| KeyFact::Carried {
            key: *key,
            usage: record.usage,
        });
        let reserved = self.open.iter().map(|(request, open)| KeyFact::Reserved {
            request: *request,
            key: open.key,
            credits: open.reserved,
            period: open.period,
        });
        let reserved = reserved.filter(
            |fact| !matches!(fact, KeyFact::Reserved { credits, .. } if *credits == Credits(0)),
        );
        carried.chain(reserved).collect()
    }

    fn apply_fact(&mut self, fact: &KeyFact) {
        match *fact {
            KeyFact::Carried { key, usage } => {
                self.keys.entry(key).or_default().usage = usage;
            }
            KeyFact::Reserved {
                request,
                key,
                credits,
                period,
            } => {
                self.next_request = self.next_request.max(request.0.saturating_add(1));
                let record = self.keys.entry(key).or_default();
                record.begin_period_number(period);
                let open = self.open.entry(request).or_insert(OpenReservation {
                    key,
                    period,
                    reserved: Credits(0),
                    tokens: 0,
                });
                if open.period == record.usage.period {
                    record.held = minus(record.held, open.reserved);
                }
                if period == record.usage.period {
                    record.held = plus(record.held, credits);
                }
                (open.period, open.reserved) = (period, credits);
            }
            KeyFact::Charged {
                request,
                cost,
                tokens,
            } => {
                let Some(open) = self.open.remove(&request) else {
                    return;
                };
                let record = self.keys.entry(open.key).or_default();
                let usage = &mut record.usage;
                usage.spent = plus(usage.spent, cost);
                usage.requests = usage.requests.saturating_add(1);
                usage.tokens = usage.tokens.plus(tokens);
                if open.period == usage.period {
                    usage.period_spent = plus(usage.period_spent, cost);
                    record.held = minus(record.held, open.reserved);
                }
            }
        }
    }
}

impl KeyRecord {
    fn set_terms(&mut self, terms: KeyTerms) {
        // What a rate has left is kept as long as the key is known.
        if self.requests.is_none() {
            self.requests = terms.requests_per_minute.map(u64::from).map(RateLimit::new);
        }
        if self.tokens.is_none() {
            self.tokens = terms.tokens_per_minute.map(RateLimit::new);
        }
        self.terms = Some(terms);
    }

    fn check_use(&self) -> Result<(), KeyRefusal> {
        let terms = self.terms.as_ref();
        match terms.is_some_and(|terms| !terms.is_revoked) {
            true => Ok(()),
            false => Err(KeyRefusal::Unknown),
        }
    }

    /// Checks that one more request can be open while `open` others are.
    fn check_open(&self, open: usize) -> Result<(), KeyRefusal> {
        let most = self
            .terms
            .as_ref()
            .map_or(0, |terms| terms.requests_at_once);
        match open < most as usize {
            true => Ok(()),
            false => Err(KeyRefusal::AtOnce { most }),
        }
    }

    /// Begins the period of a time, unless it is over. A clock that goes back begins none.
    fn begin_period(&mut self, now: Millis) {
        if let Some(terms) = &self.terms {
            self.begin_period_number(terms.period_at(now));
        }
    }

    fn begin_period_number(&mut self, period: u32) {
        if period > self.usage.period {
            self.usage.period = period;
            (self.usage.period_spent, self.held) = (Credits(0), Credits(0));
        }
    }

    fn budget(&self) -> Option<KeyBudget> {
        self.terms.as_ref()?.budget
    }

    fn budget_left(&self) -> Option<Credits> {
        let unspent = minus(self.budget()?.credits, self.usage.period_spent);
        Some(minus(unspent, self.held))
    }

    /// Checks that the budget allows to reserve `needed` for a request, in place of `reserved`.
    fn check_budget(&self, reserved: Credits, needed: Credits) -> Result<(), KeyRefusal> {
        let Some(budget) = self.budget() else {
            return Ok(());
        };
        let spent = self.usage.period_spent;
        let unspent = minus(budget.credits, spent);
        let held = minus(self.held, reserved);
        let left = minus(unspent, held);
        if needed <= left {
            return Ok(());
        }
        Err(match needed <= unspent {
            true => KeyRefusal::Held {
                held,
                unspent,
                needed,
                left,
            },
            false => KeyRefusal::Budget {
                budget,
                spent,
                needed,
                left,
            },
        })
    }

    fn assert_within_budget(&self) {
        if let Some(budget) = self.budget() {
            let used = plus(self.usage.period_spent, self.held);
            assert!(used <= budget.credits, "no reservation exceeds the budget");
        }
    }
}

fn check_rate(
    rate: &mut Option<RateLimit>,
    now: Millis,
    count: u64,
    unit: RateUnit,
) -> Result<(), KeyRefusal> {
    let Some(rate) = rate else {
        return Ok(());
    };
    match rate.find_wait(now, count) {
        Some(Millis(0)) => Ok(()),
        wait => Err(KeyRefusal::Rate {
            unit,
            per_minute: rate.per_minute(),
            wait,
        }),
    }
}

fn plus(one: Credits, other: Credits) -> Credits {
    Credits(one.0.saturating_add(other.0))
}

fn minus(one: Credits, other: Credits) -> Credits {
    Credits(one.0.saturating_sub(other.0))
}

/// Formats credits, of which one is a million micro-credits.
fn format_credits(credits: Credits) -> String {
    let text = format!("{}.{:06}", credits.0 / 1_000_000, credits.0 % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
