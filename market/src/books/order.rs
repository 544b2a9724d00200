//! The two forms of an order: [`Order`], with which the exchange works, and the compact record of
//! half a cache line that the books store. This file converts one into the other.

use serde::{Deserialize, Serialize};

use crate::ids::{BookId, DeviceId, LeaseId, OrderId, Slot, TermsId};
use crate::order::Side;
use crate::units::{Credits, Millis, Price, Units};

/// An order, combined from the slab and the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub id: OrderId,
    pub price: Price,
    pub remaining: Units,
    pub detail: OrderDetail,
}

/// The attributes of an order that the bare book does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderDetail {
    /// The slot of the order's account.
    pub slot: Slot,
    pub book: BookId,
    pub terms: TermsId,
    /// The log time at which the order leaves the book; the greatest time means never.
    pub expires: Millis,
    pub kind: OrderKind,
}

/// The attributes in which the sides differ. A separate list holds the job of a bid, because only
/// its trades need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    Ask {
        device: DeviceId,
        /// The account that will run the work: the order's own, except for a resale.
        provider: Slot,
        /// The lease whose rest the ask resells; 0 if it resells none.
        resale: LeaseId,
        /// Credits that the ask holds until it ends; zero for an account's free ask.
        deposit: Credits,
    },
    Bid {
        /// Credits of the budget that remain.
        budget: Credits,
    },
}

/// The provider in a bid's record: a bid has none.
const NOBODY: Slot = Slot::NONE;

/// The stored form of an [`OrderDetail`] in half a cache line, because nearly every command reads
/// one order among very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(align(32))]
pub(super) struct OrderRecord {
    slot: Slot,
    book: BookId,
    terms: TermsId,
    /// [`NOBODY`] for a bid; for a resale another account than the order's.
    provider: Slot,
    /// The device of an ask, or the budget of a bid.
    pub(super) value: u64,
    expires: Millis,
}

impl OrderRecord {
    pub(super) fn from_detail(detail: &OrderDetail) -> Self {
        let OrderDetail {
            slot,
            book,
            terms,
            expires,
            kind,
        } = *detail;
        let (provider, value) = match kind {
            OrderKind::Ask {
                device, provider, ..
            } => (provider, device.0),
            OrderKind::Bid { budget } => (NOBODY, budget.0),
        };
        debug_assert_eq!(provider == NOBODY, matches!(kind, OrderKind::Bid { .. }));
        if let OrderKind::Ask { resale, .. } = kind {
            assert_eq!(
                resale.0 != 0,
                provider != slot,
                "one resells what another provides"
            );
        }
        Self {
            slot,
            book,
            terms,
            provider,
            value,
            expires,
        }
    }

    /// Restores the detail. For an ask, `resale` is the lease that it resells and `deposit` the
    /// credits that it holds.
    pub(super) fn order_detail(&self, resale: LeaseId, deposit: Credits) -> OrderDetail {
        let kind = match self.side() {
            Side::Bid => OrderKind::Bid {
                budget: Credits(self.value),
            },
            Side::Ask => OrderKind::Ask {
                device: DeviceId(self.value),
                provider: self.provider,
                resale,
                deposit,
            },
        };
        let Self {
            slot,
            book,
            terms,
            expires,
            ..
        } = *self;
        OrderDetail {
            slot,
            book,
            terms,
            expires,
            kind,
        }
    }

    /// Subtracts the cost of a trade from a bid's budget.
    pub(super) fn spend_budget(&mut self, spent: Credits) {
        assert_eq!(self.side(), Side::Bid, "only bids have a budget");
        let before = self.value;
        self.value = Credits(before).minus(spent).0;
        assert!(self.value <= before, "a budget only shrinks");
    }

    pub(super) fn side(&self) -> Side {
        match self.provider {
            NOBODY => Side::Bid,
            _ => Side::Ask,
        }
    }

    pub(super) fn is_resale(&self) -> bool {
        self.provider != NOBODY && self.provider != self.slot
    }
}

impl Order {
    pub(crate) fn side(&self) -> Side {
        match self.detail.kind {
            OrderKind::Ask { .. } => Side::Ask,
            OrderKind::Bid { .. } => Side::Bid,
        }
    }

    pub(crate) fn slot(&self) -> Slot {
        self.detail.slot
    }

    /// Returns the lease whose rest the order resells, if it resells one.
    pub(crate) fn resold_lease(&self) -> Option<LeaseId> {
        match self.detail.kind {
            OrderKind::Ask { resale, .. } if resale.0 != 0 => Some(resale),
            _ => None,
        }
    }

    /// Returns the credits that an ask holds until it ends.
    pub(crate) fn deposit(&self) -> Credits {
        match self.detail.kind {
            OrderKind::Ask { deposit, .. } => deposit,
            OrderKind::Bid { .. } => Credits::ZERO,
        }
    }

    /// Returns the account that will run an ask's work, and the lease that the ask resells.
    pub(crate) fn provider(&self) -> (Slot, Option<LeaseId>) {
        match self.detail.kind {
            OrderKind::Ask { provider, .. } => (provider, self.resold_lease()),
            OrderKind::Bid { .. } => unreachable!("only asks have providers"),
        }
    }
}
