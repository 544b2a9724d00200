//! An order as the exchange sees it, and the half a cache line that is kept of it.

use serde::{Deserialize, Serialize};

use crate::ids::{BookId, DeviceId, LeaseId, OrderId, Slot, TermsId};
use crate::order::Side;
use crate::units::{Credits, Millis, Price, Units};

/// An order, put together from what the slab and the details hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub id: OrderId,
    pub price: Price,
    pub remaining: Units,
    pub detail: OrderDetail,
}

/// What the bare book does not need to know of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderDetail {
    /// Whose order.
    pub slot: Slot,
    pub book: BookId,
    pub terms: TermsId,
    /// When it leaves the book; the greatest time for never.
    pub expires: Millis,
    pub kind: OrderKind,
}

/// What differs between the sides. The job of a bid lies elsewhere, for only its trades need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    Ask {
        device: DeviceId,
        /// Who will run the work: the order's account, but for a resale.
        provider: Slot,
        /// The lease of which the rest is resold; 0 for none.
        resale: LeaseId,
        /// What is held for it until it ends; nothing for the one its account has free.
        deposit: Credits,
    },
    Bid {
        /// What is left of it.
        budget: Credits,
    },
}

/// The provider of a bid: there is none.
const NOBODY: Slot = Slot::NONE;

/// A [`OrderDetail`] as it is kept: half a cache line, since nearly every command looks at one
/// order among very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(align(32))]
pub(super) struct OrderRecord {
    slot: Slot,
    book: BookId,
    terms: TermsId,
    /// [`NOBODY`] for a bid; not the order's account for a resale.
    provider: Slot,
    /// An ask's device, a bid's budget.
    pub(super) value: u64,
    expires: Millis,
}

impl OrderRecord {
    pub(super) fn of(detail: &OrderDetail) -> Self {
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

    /// The detail again; `resale` is the lease of which an ask resells the rest, `deposit` what is
    /// held for an ask.
    pub(super) fn detail(&self, resale: LeaseId, deposit: Credits) -> OrderDetail {
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

    /// Takes what a trade cost off a bid's budget.
    pub(super) fn spend(&mut self, spent: Credits) {
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

    pub(super) fn resells(&self) -> bool {
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

    /// The lease of which it resells the rest, if it does.
    pub(crate) fn resale(&self) -> Option<LeaseId> {
        match self.detail.kind {
            OrderKind::Ask { resale, .. } if resale.0 != 0 => Some(resale),
            _ => None,
        }
    }

    /// What is held for an ask until it ends.
    pub(crate) fn deposit(&self) -> Credits {
        match self.detail.kind {
            OrderKind::Ask { deposit, .. } => deposit,
            OrderKind::Bid { .. } => Credits::ZERO,
        }
    }

    /// Who will run the work an ask offers, and the lease it resells.
    pub(crate) fn provider(&self) -> (Slot, Option<LeaseId>) {
        match self.detail.kind {
            OrderKind::Ask { provider, .. } => (provider, self.resale()),
            OrderKind::Bid { .. } => unreachable!("only asks have providers"),
        }
    }
}
