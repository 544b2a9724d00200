//! A request for text that an API key pays for: reserves the most that each part (one provider's
//! share of the answer) can cost, collects the bills, and charges the key in the end.

use std::sync::{Mutex, MutexGuard, PoisonError};

use souk_market::Credits;
use souk_roles::tokens::counting::{TokenCount, TokenRates};
use souk_roles::tokens::keys::{KeyRefusal, KeyedRequestId};
use tokio::sync::watch;

use super::TextKeys;

/// What a provider's part of an answer costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextBill {
    /// The tokens that both sides counted.
    pub count: TokenCount,
    /// Their price.
    pub cost: Credits,
}

/// Sends the bill for a part.
#[derive(Debug)]
pub struct BillSender(watch::Sender<Option<TextBill>>);

/// The bill for a part, once the part is over. Clones wait for the same bill.
#[derive(Clone, Debug)]
pub struct PendingBill(watch::Receiver<Option<TextBill>>);

/// A request that a key pays for. When it is dropped, the key is charged once all its parts are
/// billed.
#[derive(Debug)]
pub struct KeyedRequest {
    keys: TextKeys,
    id: KeyedRequestId,
    parts: Mutex<Vec<Part>>,
    /// Why its last reservation may not be on disk: nothing further is sent then.
    broken: Mutex<Option<String>>,
}

/// The share of one provider in the request.
#[derive(Debug)]
struct Part {
    /// The most that it costs.
    worst: TextBill,
    bill: BillState,
}

#[derive(Debug)]
enum BillState {
    Open(PendingBill),
    Billed(TextBill),
}

/// Why no further provider can get the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    /// The key does not allow it.
    #[error("{refusal}")]
    Refused {
        /// The rule of the key that forbids it.
        refusal: KeyRefusal,
        /// What the part could cost at most.
        left: Credits,
    },
    /// The reservation is not on disk.
    #[error("what the key spends cannot be written: {0}")]
    NotWritten(String),
}

impl KeyedRequest {
    pub(super) fn new(keys: TextKeys, id: KeyedRequestId) -> KeyedRequest {
        KeyedRequest {
            keys,
            id,
            parts: Mutex::default(),
            broken: Mutex::default(),
        }
    }

    /// Reserves the most that a further part can cost, besides what the earlier ones cost; it is on
    /// disk when this returns.
    ///
    /// # Errors
    /// When the key does not allow it, or the disk refuses. After the latter, it covers nothing
    /// more, because the memory then holds a reservation that the disk does not.
    pub async fn cover(&self, worst: Credits) -> Result<(), CoverError> {
        if let Some(cause) = lock(&self.broken).clone() {
            return Err(CoverError::NotWritten(cause));
        }
        let committed = self.sum_parts();
        let needed = Credits(committed.cost.0.saturating_add(worst.0));
        let written = {
            let mut state = self.keys.lock_state();
            let reserved = state.book.reserve(self.keys.now(), self.id, needed);
            let fact = reserved.map_err(|refusal| {
                let left = match refusal {
                    KeyRefusal::Budget { left, .. } | KeyRefusal::Held { left, .. } => left,
                    KeyRefusal::Unknown | KeyRefusal::AtOnce { .. } | KeyRefusal::Rate { .. } => {
                        Credits(0)
                    }
                };
                let left = Credits(left.0.saturating_sub(committed.cost.0));
                CoverError::Refused { refusal, left }
            })?;
            let Some(fact) = fact else {
                return Ok(());
            };
            state.write_fact(fact)
        };
        let written = written.await;
        let written = written.unwrap_or_else(|_| Err("the server is stopping".to_owned()));
        written.map_err(|cause| {
            *lock(&self.broken) = Some(cause.clone());
            CoverError::NotWritten(cause)
        })
    }

    /// Records a part that was sent and that [`Self::cover`] has covered before.
    pub fn on_sent(&self, worst: TextBill, bill: PendingBill) {
        let bill = BillState::Open(bill);
        self.lock_parts().push(Part { worst, bill });
    }

    /// Returns what all parts cost; one that is not billed yet counts with the most.
    fn sum_parts(&self) -> TextBill {
        let mut parts = self.lock_parts();
        parts.iter_mut().for_each(Part::take_bill);
        sum_bills(&parts)
    }

    fn lock_parts(&self) -> MutexGuard<'_, Vec<Part>> {
        lock(&self.parts)
    }
}

impl Part {
    /// Takes its bill, if it is there. The task of a tab that panicked bills nothing: the most
    /// counts.
    fn take_bill(&mut self) {
        let BillState::Open(bill) = &mut self.bill else {
            return;
        };
        if let Some(bill) = bill.find_bill() {
            self.bill = BillState::Billed(bill.unwrap_or(self.worst));
        }
    }
}

impl BillSender {
    /// Sends the bill. The receiver may be gone.
    pub fn send(self, bill: TextBill) {
        self.0.send_replace(Some(bill));
    }
}

impl PendingBill {
    /// Returns the sender of a bill, and the bill.
    #[must_use]
    pub fn channel() -> (BillSender, PendingBill) {
        let (sender, bill) = watch::channel(None);
        (BillSender(sender), PendingBill(bill))
    }

    /// Returns the bill if the part is over (`Some(None)` if there will be no bill), or none while
    /// the part continues.
    fn find_bill(&self) -> Option<Option<TextBill>> {
        // Perhaps the bill comes between the two looks.
        let is_over = self.0.has_changed().is_err();
        let bill = *self.0.borrow();
        (bill.is_some() || is_over).then_some(bill)
    }

    /// Waits until the part is over. Returns none if there is no bill.
    pub async fn wait(&mut self) -> Option<TextBill> {
        let bill = self.0.wait_for(Option::is_some).await;
        bill.ok().and_then(|bill| *bill)
    }
}

impl TextBill {
    /// Returns the bill for these tokens at an offer.
    #[must_use]
    pub fn at_rates(rates: TokenRates, count: TokenCount) -> TextBill {
        let cost = rates.cost_of(count);
        TextBill { count, cost }
    }

    fn plus(self, other: TextBill) -> TextBill {
        TextBill {
            count: self.count.plus(other.count),
            cost: Credits(self.cost.0.saturating_add(other.cost.0)),
        }
    }
}

impl Drop for KeyedRequest {
    fn drop(&mut self) {
        let mut parts = std::mem::take(&mut *self.lock_parts());
        parts.iter_mut().for_each(Part::take_bill);
        let (keys, id) = (self.keys.clone(), self.id);
        let is_open = |part: &Part| matches!(part.bill, BillState::Open(_));
        if !parts.iter().any(is_open) {
            return charge(&keys, id, &parts);
        }
        // The last part ends a moment after its reader has left.
        let charging = async move {
            let mut parts = parts;
            for part in &mut parts {
                if let BillState::Open(bill) = &mut part.bill {
                    part.bill = BillState::Billed(bill.wait().await.unwrap_or(part.worst));
                }
            }
            charge(&keys, id, &parts);
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(charging);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bill for all parts; the most counts for one that is not billed yet.
fn sum_bills(parts: &[Part]) -> TextBill {
    parts.iter().fold(TextBill::default(), |sum, part| {
        sum.plus(match &part.bill {
            BillState::Billed(bill) => *bill,
            BillState::Open(_) => part.worst,
        })
    })
}

fn charge(keys: &TextKeys, id: KeyedRequestId, parts: &[Part]) {
    let bill = sum_bills(parts);
    {
        let mut state = keys.lock_state();
        if let Some(fact) = state.book.charge(id, bill.cost, bill.count) {
            // Whoever reads the file a moment early sees the reservation.
            drop(state.write_fact(fact));
        }
    }
    keys.0.open.send_modify(|open| *open -= 1);
}
