//! Caches for a moment the asks of a model in the book. All requests share one such look, because a
//! validator limits the questions of one peer, and requests that wait for a slot would exceed the
//! limit.
//!
//! A unit that one request buys disappears from the look at once. Otherwise all waiting requests
//! would bid for the same free slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use souk_market::{AccountKey, Listing, OrderId, Units};
use souk_roles::market::demands::Choice;
use tokio::time::Instant;

use super::BOOK_PERIOD;
use crate::client::broker::BrokerError;

/// What a look asks for: a model, without the asks of these providers.
type Subject = (String, Vec<AccountKey>);

/// The recent looks, by what they asked for.
#[derive(Default)]
pub(super) struct BookLooks(Mutex<BTreeMap<Subject, Look>>);

/// One look, perhaps still without an answer.
#[derive(Clone)]
struct Look {
    began: Instant,
    found: SharedLook,
}

type SharedLook = Shared<BoxFuture<'static, LookResult>>;
type LookResult = Result<Arc<FoundAsks>, Arc<BrokerError>>;

/// The asks that a look found.
pub(super) struct FoundAsks {
    /// Whether these are all asks that suit.
    pub(super) is_whole: bool,
    /// Those with units that nobody bought from this look.
    left: Mutex<Vec<Listing>>,
}

impl BookLooks {
    /// Returns the asks of the last look, if it began neither before `not_before` nor a period ago,
    /// or of a new one that `ask` begins. It fails if no validator answers.
    pub(super) fn find_asks<F>(
        &self,
        subject: Subject,
        (not_before, now): (Option<Instant>, Instant),
        ask: impl FnOnce() -> F,
    ) -> SharedLook
    where
        F: Future<Output = Result<Choice, BrokerError>> + Send + 'static,
    {
        let mut looks = self.lock_looks();
        looks.retain(|_, look| now.duration_since(look.began) < BOOK_PERIOD);
        let known = looks.get(&subject);
        let is_young = |look: &&Look| not_before.is_none_or(|moment| look.began >= moment);
        if let Some(look) = known.filter(is_young) {
            return look.found.clone();
        }
        let asked = ask();
        let found = async move {
            let choice = asked.await.map_err(Arc::new)?;
            Ok(Arc::new(FoundAsks::from(choice)))
        };
        let look = Look {
            began: now,
            found: found.boxed().shared(),
        };
        let found = look.found.clone();
        looks.insert(subject, look);
        found
    }

    /// Takes a unit of an ask of a model out of the looks. Returns whether one was left.
    pub(super) fn take_unit(&self, model: &str, order: OrderId) -> bool {
        let looks = self.lock_looks();
        let of_model = looks.iter().filter(|((named, _), _)| named == model);
        let found: Vec<Arc<FoundAsks>> = of_model
            .filter_map(|(_, look)| look.found.peek()?.clone().ok())
            .collect();
        // A look that is too old is not in the way of a purchase.
        let taken: Vec<bool> = found.iter().map(|asks| asks.take_unit(order)).collect();
        taken.is_empty() || taken.contains(&true)
    }

    /// Forgets the looks for a model, so that its next request asks a validator again.
    pub(super) fn forget_model(&self, model: &str) {
        self.lock_looks().retain(|(named, _), _| named != model);
    }

    fn lock_looks(&self) -> MutexGuard<'_, BTreeMap<Subject, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FoundAsks {
    /// Returns the asks with units that are left.
    pub(super) fn listings(&self) -> Vec<Listing> {
        self.lock_left().clone()
    }

    fn take_unit(&self, order: OrderId) -> bool {
        let mut left = self.lock_left();
        let Some(at) = left.iter().position(|ask| ask.order == order) else {
            return false;
        };
        match left[at].quantity {
            Units(0 | 1) => drop(left.remove(at)),
            Units(more) => left[at].quantity = Units(more - 1),
        }
        true
    }

    fn lock_left(&self) -> MutexGuard<'_, Vec<Listing>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Choice> for FoundAsks {
    fn from(choice: Choice) -> FoundAsks {
        FoundAsks {
            is_whole: choice.listings.len() as u64 == choice.eligible,
            left: Mutex::new(choice.listings),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::buyer::job_priority::tests::listing;

    const MODEL: &str = "qwen/qwen3-8b";

    fn subject() -> Subject {
        (MODEL.to_owned(), Vec::new())
    }

    /// An ask of so many slots.
    fn ask(order: u8, slots: u32) -> Listing {
        Listing {
            quantity: Units(slots),
            ..listing(order, 5)
        }
    }

    /// Looks that are counted, and find these asks.
    struct CountedLooks {
        looks: BookLooks,
        begin: Instant,
        asks: Vec<Listing>,
        count: Cell<u32>,
    }

    impl CountedLooks {
        fn new(asks: Vec<Listing>) -> CountedLooks {
            CountedLooks {
                looks: BookLooks::default(),
                begin: Instant::now(),
                asks,
                count: Cell::new(0),
            }
        }

        /// Finds the asks at a millisecond, of a look since another one.
        async fn find(&self, since: Option<u64>, at: u64) -> Arc<FoundAsks> {
            let moment = |at| self.begin + Duration::from_millis(at);
            let choice = Choice {
                eligible: self.asks.len() as u64,
                listings: self.asks.clone(),
                ..Choice::default()
            };
            let ask = || {
                self.count.set(self.count.get() + 1);
                async { Ok(choice) }
            };
            let moments = (since.map(moment), moment(at));
            let found = self.looks.find_asks(subject(), moments, ask).await;
            found.expect("the market answers")
        }
    }

    #[tokio::test]
    async fn requests_that_wait_share_their_looks() {
        let counted = CountedLooks::new(Vec::new());
        // Each looks once a period, and they do not come together.
        for at in 0..2_000 {
            for _ in (0..256).filter(|number| (at + number) % 250 == 0) {
                counted.find(None, at).await;
            }
        }
        assert_eq!(counted.count.get(), 8, "four a second, of some 2,000");
    }

    #[tokio::test]
    async fn a_look_is_as_young_as_its_reader_wants() {
        let counted = CountedLooks::new(Vec::new());
        counted.find(None, 0).await;
        counted.find(Some(0), 1).await;
        assert_eq!(counted.count.get(), 1);
        // The look began before this moment.
        counted.find(Some(2), 2).await;
        assert_eq!(counted.count.get(), 2);
        counted.looks.forget_model("another");
        counted.find(None, 3).await;
        assert_eq!(counted.count.get(), 2);
        counted.looks.forget_model(MODEL);
        counted.find(None, 4).await;
        assert_eq!(counted.count.get(), 3);
    }

    #[tokio::test]
    async fn what_one_request_buys_from_a_look_no_other_one_does() {
        let counted = CountedLooks::new(vec![ask(1, 2), ask(2, 1)]);
        let found = counted.find(None, 0).await;
        assert!(found.is_whole);
        let orders = || -> Vec<u64> { found.listings().iter().map(|ask| ask.order.0).collect() };
        let take = |order| counted.looks.take_unit(MODEL, OrderId(order));
        assert!(take(1));
        assert_eq!(orders(), [1, 2]);
        assert!(take(2));
        assert_eq!(orders(), [1]);
        assert!(take(1));
        assert!(!take(1) && !take(2) && orders().is_empty());
        // The next look shows what is free again.
        counted.looks.forget_model(MODEL);
        assert!(take(1), "no look is there that says otherwise");
        assert_eq!(counted.find(None, 1).await.listings().len(), 2);
    }

    #[tokio::test]
    async fn a_look_without_an_answer_fails_all_that_wait_for_it() {
        let looks = BookLooks::default();
        let moments = (None, Instant::now());
        let failed = || async { Err(BrokerError::NoValidators) };
        let answered = || async { Ok(Choice::default()) };
        let both = tokio::join!(
            looks.find_asks(subject(), moments, failed),
            looks.find_asks(subject(), moments, answered),
        );
        assert!(both.0.is_err() && both.1.is_err());
    }
}
