//! Accounts: balances, nonces and the device pools a provider has in use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, DeviceId, LeaseId, Nonce};
use crate::refusal::Refusal;
use crate::reputation::{Dealings, Reputation};
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Units};

/// One account, as the exchange keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its key.
    pub key: AccountKey,
    /// Its name, such as its peer id.
    pub name: Name,
    /// What it may spend or withdraw.
    pub available: Credits,
    /// What is held for its orders and leases.
    pub escrow: Credits,
    /// What it loses by a proven fault.
    pub stake: Credits,
    /// How many accounts had been opened when it was: a smaller number is an older account.
    pub opened: u64,
    /// When it last commanded something.
    pub used: Millis,
    /// When the last of its batches that were carried out expires.
    pub quiet_at: Millis,
    /// Leases as a provider that are not closed.
    pub open_leases: u32,
    /// Leases that it bought, or of which it sold the rest, that are not closed.
    pub leases_bought: u32,
    /// When its last lease as a provider closed.
    pub last_closed: Millis,
    /// What it has earned as a provider, fees not counted.
    pub earned: Credits,
    /// Device time it was paid for.
    pub sold: DeviceMicros,
    /// Orders in the book.
    pub open_orders: u32,
    /// Asks among them that hold no deposit.
    pub free_asks: u32,
    /// Requests that the operator has not decided.
    pub open_requests: u32,
    /// Why it is frozen, if it is: it begins nothing new then.
    pub frozen: Option<Name>,
    /// What has come in and gone out on the last day that anything did.
    pub moved: Movements,
    /// What its settled leases say of it.
    pub reputation: Reputation,
    /// What it has settled with whom.
    pub(crate) dealings: Dealings,
    /// The latest lease in which a fault of its was proven.
    pub(crate) faulted: Option<LeaseId>,
    /// Opened by the batch at hand, whose first command says so.
    #[serde(skip)]
    pub(crate) fresh: bool,
    pub(crate) nonces: Nonces,
    pub(crate) pools: BTreeMap<DeviceId, Pool>,
}

/// Credits that came into an account and went out of it on one day of log time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movements {
    /// Days since the log's clock was 0.
    pub day: u64,
    /// What came in.
    pub deposits: Credits,
    /// What was asked to go out, and was not refused.
    pub withdrawals: Credits,
}

/// How many nonces up to an account's highest may still arrive, in any order.
pub const NONCE_WINDOW: u64 = 64;

/// Which nonces an account has used: the highest, and a bit for each of the window up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nonces {
    highest: u64,
    seen: u64,
}

impl Nonces {
    pub(crate) fn check(&self, nonce: Nonce) -> Result<(), Refusal> {
        if nonce.0 > self.highest {
            return Ok(());
        }
        let back = self.highest.saturating_sub(nonce.0);
        if back >= NONCE_WINDOW {
            let oldest = Nonce(self.highest.saturating_sub(NONCE_WINDOW - 1));
            return Err(Refusal::NonceOld { nonce, oldest });
        }
        if self.seen & (1 << back) != 0 {
            return Err(Refusal::NonceUsed { nonce });
        }
        Ok(())
    }

    pub(crate) fn spend(&mut self, nonce: Nonce) {
        assert!(self.check(nonce).is_ok(), "a nonce is spent once");
        if nonce.0 > self.highest {
            let ahead = nonce.0.saturating_sub(self.highest);
            self.seen = if ahead >= NONCE_WINDOW {
                0
            } else {
                self.seen << ahead
            };
            self.highest = nonce.0;
        }
        self.seen |= 1 << self.highest.saturating_sub(nonce.0);
        assert!(self.highest >= nonce.0, "the highest is the highest");
        debug_assert!(self.check(nonce).is_err(), "it can't be spent again");
    }
}

/// What an account has that would be missed; the less comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdleRank {
    /// No credits, no orders and no requests, and nothing was ever said of it.
    Nothing,
    /// Less than a deposit, a free ask, a request that holds little, or a reputation.
    Little,
}

/// A device pool in use: what is offered and leased of it never exceeds its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub capacity: Units,
    pub offered: Units,
    pub leased: Units,
}

impl Pool {
    /// What is offered and leased of it.
    fn used(&self) -> Units {
        self.offered.plus(self.leased)
    }
}

impl Account {
    pub(crate) fn new(key: AccountKey, name: Name) -> Self {
        Self {
            key,
            name,
            available: Credits::ZERO,
            escrow: Credits::ZERO,
            stake: Credits::ZERO,
            opened: 0,
            used: Millis(0),
            quiet_at: Millis(0),
            open_leases: 0,
            leases_bought: 0,
            last_closed: Millis(0),
            earned: Credits::ZERO,
            sold: DeviceMicros(0),
            open_orders: 0,
            free_asks: 0,
            open_requests: 0,
            frozen: None,
            moved: Movements::default(),
            reputation: Reputation::default(),
            dealings: Dealings::default(),
            faulted: None,
            fresh: false,
            nonces: Nonces::default(),
            pools: BTreeMap::new(),
        }
    }

    /// All it has: available, in escrow and at stake.
    pub(crate) fn held(&self) -> Credits {
        self.available.plus(self.escrow).plus(self.stake)
    }

    /// What would be missed if it were not known any more at `now`; nothing where it stays: it
    /// holds a deposit, has a lease, is frozen, or a batch of its could be brought a second time.
    pub(crate) fn idle_rank(&self, now: Millis, deposit: Credits) -> Option<IdleRank> {
        let has_lease = self.open_leases > 0 || self.leases_bought > 0;
        if has_lease || self.frozen.is_some() || self.quiet_at > now {
            return None;
        }
        let open = self.open_orders > 0 || self.open_requests > 0;
        let held = self.held();
        let is_new = self.reputation == Reputation::default();
        if held == Credits::ZERO && !open && is_new {
            return Some(IdleRank::Nothing);
        }
        (held < deposit).then_some(IdleRank::Little)
    }

    /// Whether `quantity` more units of the pool may be offered.
    pub(crate) fn check_pool(
        &self,
        device: DeviceId,
        capacity: Units,
        quantity: Units,
    ) -> Result<(), Refusal> {
        let Some(pool) = self.pools.get(&device).copied() else {
            let (offered, leased) = (Units(0), Units(0));
            return match quantity <= capacity {
                true => Ok(()),
                false => Err(Refusal::DeviceBusy {
                    device,
                    capacity,
                    offered,
                    leased,
                }),
            };
        };
        let Pool {
            capacity: known,
            offered,
            leased,
        } = pool;
        debug_assert!(pool.used() <= known, "a device is sold once");
        if known != capacity {
            let (capacity, claimed) = (known, capacity);
            return Err(Refusal::CapacityDiffers {
                device,
                capacity,
                claimed,
            });
        }
        if quantity > capacity.minus(offered).minus(leased) {
            return Err(Refusal::DeviceBusy {
                device,
                capacity,
                offered,
                leased,
            });
        }
        Ok(())
    }

    /// Units of a pool that are on offer.
    #[must_use]
    pub fn offered(&self, device: DeviceId) -> Units {
        let pool = self.pools.get(&device);
        pool.map_or(Units(0), |pool| pool.offered)
    }

    pub(crate) fn offer(&mut self, device: DeviceId, capacity: Units, quantity: Units) {
        assert!(quantity.0 > 0, "an offer has units");
        let empty = Pool {
            capacity,
            offered: Units(0),
            leased: Units(0),
        };
        let pool = self.pools.entry(device).or_insert(empty);
        assert_eq!(pool.capacity, capacity, "a pool in use keeps its size");
        pool.offered = pool.offered.plus(quantity);
        assert!(pool.used() <= pool.capacity, "a device is sold once");
    }

    pub(crate) fn withdraw_offer(&mut self, device: DeviceId, quantity: Units) {
        assert!(quantity.0 > 0, "a pool changes by some units");
        self.change_pool(device, |pool| pool.offered = pool.offered.minus(quantity));
    }

    pub(crate) fn lease_out(&mut self, device: DeviceId, quantity: Units) {
        assert!(quantity.0 > 0, "a pool changes by some units");
        self.change_pool(device, |pool| {
            pool.offered = pool.offered.minus(quantity);
            pool.leased = pool.leased.plus(quantity);
        });
    }

    pub(crate) fn take_back(&mut self, device: DeviceId, quantity: Units) {
        assert!(quantity.0 > 0, "a pool changes by some units");
        self.change_pool(device, |pool| pool.leased = pool.leased.minus(quantity));
    }

    fn change_pool(&mut self, device: DeviceId, change: impl FnOnce(&mut Pool)) {
        let pool = self.pools.get_mut(&device).expect("a pool in use is known");
        assert!(pool.used() > Units(0), "a pool not in use is forgotten");
        change(pool);
        assert!(pool.used() <= pool.capacity, "a device is sold once");
        if pool.used() == Units(0) {
            self.pools.remove(&device);
        }
    }
}
