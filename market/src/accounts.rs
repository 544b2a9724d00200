//! The rows of the exchange's ledger: one [`Account`] for each key, with its credits, the nonces
//! (numbers used once) of its batches, and the devices that it sells as a provider. This module
//! also checks the nonce of every batch and the devices of every ask.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{AccountKey, DeviceId, LeaseId, Nonce};
use crate::refusal::Refusal;
use crate::reputation::{Dealings, Reputation};
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Units};

/// One account in the exchange's ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The account's public key.
    pub key: AccountKey,
    /// A name for people and peers, such as the account's peer id.
    pub name: Name,
    /// Credits that the account can spend or withdraw.
    pub available: Credits,
    /// Credits that its orders, leases and withdrawal requests hold.
    pub escrow: Credits,
    /// Credits that the account loses for a proven fault.
    pub stake: Credits,
    /// The account's number in the order of opening: an older account has a smaller number.
    pub opened: u64,
    /// The log time of the account's last command.
    pub used: Millis,
    /// The log time at which the last of its applied batches expires.
    pub quiet_at: Millis,
    /// Open leases in which the account is the provider.
    pub open_leases: u32,
    /// Open leases that the account bought, and open leases whose seller it is by a resale.
    pub leases_bought: u32,
    /// The log time at which its last lease as a provider closed.
    pub last_closed: Millis,
    /// Credits earned as a provider, less fees.
    pub earned: Credits,
    /// Device time for which the account was paid.
    pub sold: DeviceMicros,
    /// Orders of the account that rest in the books.
    pub open_orders: u32,
    /// Those of its asks in the books that hold no deposit.
    pub free_asks: u32,
    /// Requests of the account that the operator has not decided.
    pub open_requests: u32,
    /// Open disputes in which the account accuses or is accused.
    pub open_disputes: u32,
    /// The reason why the account is frozen, if it is; a frozen account can begin nothing new.
    pub frozen: Option<Name>,
    /// Credits that came in and went out on the last day with any movement.
    pub moved: Movements,
    /// The reputation that follows from its settled leases.
    pub reputation: Reputation,
    /// The amounts that it has settled with each counterpart.
    pub(crate) dealings: Dealings,
    /// The latest lease in which a fault of the account was proven.
    pub(crate) faulted: Option<LeaseId>,
    /// Whether the batch being applied opens the account with its first command.
    #[serde(skip)]
    pub(crate) fresh: bool,
    pub(crate) nonces: Nonces,
    pub(crate) pools: BTreeMap<DeviceId, Pool>,
}

/// Credits that came into an account and went out of it on one day of log time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movements {
    /// Days of log time since 0.
    pub day: u64,
    /// Credits that came in.
    pub deposits: Credits,
    /// Credits that the account asked to withdraw, without the requests refused on the same day.
    pub withdrawals: Credits,
}

/// The size of the window of nonces, ending at an account's highest, that can arrive in any order.
pub const NONCE_WINDOW: u64 = 64;

/// The nonces that an account has used: the highest, and one bit for each nonce of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nonces {
    highest: u64,
    seen: u64,
}

impl Nonces {
    pub(crate) fn check_nonce(&self, nonce: Nonce) -> Result<(), Refusal> {
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

    /// Marks a nonce as used. The caller must have checked it with [`Self::check_nonce`].
    pub(crate) fn spend_nonce(&mut self, nonce: Nonce) {
        assert!(self.check_nonce(nonce).is_ok(), "a nonce is spent once");
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
        debug_assert!(self.check_nonce(nonce).is_err(), "it can't be spent again");
    }
}

/// How much an account would lose if the exchange forgot it. The exchange forgets accounts of the
/// first rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IdleRank {
    /// No credits, no orders, no requests, and no history of reputation.
    Nothing,
    /// Less than a deposit, a free ask, a request that holds little, or a reputation.
    Little,
}

/// A device pool in use: the sum of the units offered and leased must not exceed its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub capacity: Units,
    pub offered: Units,
    pub leased: Units,
}

impl Pool {
    /// Returns the units that are offered or leased.
    fn units_in_use(&self) -> Units {
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
            open_disputes: 0,
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

    /// Returns the sum of the credits available, in escrow and at stake.
    pub(crate) fn total_credits(&self) -> Credits {
        self.available.plus(self.escrow).plus(self.stake)
    }

    /// Returns how much the account would lose if the exchange forgot it at `now`. Returns nothing
    /// if the exchange must keep it: it holds a deposit, has a lease, is frozen, or has a batch
    /// that could arrive a second time.
    pub(crate) fn idle_rank(&self, now: Millis, deposit: Credits) -> Option<IdleRank> {
        let has_lease = self.open_leases > 0 || self.leases_bought > 0;
        let is_party = has_lease || self.open_disputes > 0;
        if is_party || self.frozen.is_some() || self.quiet_at > now {
            return None;
        }
        let open = self.open_orders > 0 || self.open_requests > 0;
        let held = self.total_credits();
        let is_new = self.reputation == Reputation::default();
        if held == Credits::ZERO && !open && is_new {
            return Some(IdleRank::Nothing);
        }
        (held < deposit).then_some(IdleRank::Little)
    }

    /// Checks that the account can offer `quantity` more units of the pool.
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
        debug_assert!(pool.units_in_use() <= known, "a device is sold once");
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

    /// Returns the units of a pool that are on offer.
    #[must_use]
    pub fn offered_units(&self, device: DeviceId) -> Units {
        let pool = self.pools.get(&device);
        pool.map_or(Units(0), |pool| pool.offered)
    }

    pub(crate) fn add_offer(&mut self, device: DeviceId, capacity: Units, quantity: Units) {
        assert!(quantity.0 > 0, "an offer has units");
        let empty = Pool {
            capacity,
            offered: Units(0),
            leased: Units(0),
        };
        let pool = self.pools.entry(device).or_insert(empty);
        assert_eq!(pool.capacity, capacity, "a pool in use keeps its size");
        pool.offered = pool.offered.plus(quantity);
        assert!(
            pool.units_in_use() <= pool.capacity,
            "a device is sold once"
        );
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

    /// Changes a pool, which must be in use, and forgets it if no unit stays offered or leased.
    fn change_pool(&mut self, device: DeviceId, change: impl FnOnce(&mut Pool)) {
        let pool = self.pools.get_mut(&device).expect("a pool in use is known");
        assert!(
            pool.units_in_use() > Units(0),
            "a pool not in use is forgotten"
        );
        change(pool);
        assert!(
            pool.units_in_use() <= pool.capacity,
            "a device is sold once"
        );
        if pool.units_in_use() == Units(0) {
            self.pools.remove(&device);
        }
    }
}
