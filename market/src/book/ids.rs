//! Finds an order by its id: maps the id to the order's index in the slab, the array that holds all
//! orders. The map consists of pages of 256 consecutive ids.
//!
//! The exchange assigns ids in order, so a lookup is two array reads without a hash. A page goes
//! when its last order does, and pages at the front go for good.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::ids::OrderId;

use super::NONE;

const PAGE: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IdPage {
    live: u32,
    /// Empty, or one index for each id of the page.
    places: Vec<u32>,
}

/// The slab indices of all open orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdIndex {
    /// The number of the first page.
    first: u64,
    pages: VecDeque<IdPage>,
    /// The number of open orders.
    live: u64,
}

impl IdIndex {
    fn split_id(id: OrderId) -> (u64, usize) {
        let within = id.0 % PAGE as u64;
        (id.0 / PAGE as u64, within as usize)
    }

    fn page_mut(&mut self, number: u64) -> &mut IdPage {
        if self.pages.is_empty() {
            self.first = number;
        }
        // An order restored after a failed amend can be older than the first page.
        while number < self.first {
            self.pages.push_front(IdPage::new_empty());
            self.first -= 1;
        }
        let at = usize::try_from(number - self.first).expect("pages fit in memory");
        while self.pages.len() <= at {
            self.pages.push_back(IdPage::new_empty());
        }
        debug_assert!(self.first <= number, "the page is not before the first");
        debug_assert!(at < self.pages.len(), "the page is there");
        &mut self.pages[at]
    }

    pub(crate) fn get(&self, id: OrderId) -> Option<u32> {
        let (number, within) = Self::split_id(id);
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let place = *self.pages.get(at)?.places.get(within)?;
        (place != NONE).then_some(place)
    }

    /// Records the slab index of an order that now rests. The index must not hold the id already.
    #[inline]
    pub fn insert(&mut self, id: OrderId, place: u32) {
        let (number, within) = Self::split_id(id);
        let page = self.page_mut(number);
        if page.places.is_empty() {
            page.places = vec![NONE; PAGE];
        }
        assert_eq!(page.places[within], NONE, "an id is in use once");
        page.places[within] = place;
        page.live += 1;
        assert!(page.live as usize <= PAGE, "no more than there are ids");
        self.live += 1;
        debug_assert_eq!(self.get(id), Some(place), "what went in is found");
    }

    /// Removes an order and returns its slab index.
    #[inline]
    pub fn remove(&mut self, id: OrderId) -> Option<u32> {
        let place = self.get(id)?;
        let (number, within) = Self::split_id(id);
        let page = self.page_mut(number);
        assert!(page.live > 0, "a page with an order has one");
        assert_eq!(
            page.places[within], place,
            "an id has the place it was found at"
        );
        page.places[within] = NONE;
        page.live -= 1;
        let is_empty = page.live == 0;
        if is_empty {
            page.places = Vec::new();
        }
        self.live -= 1;
        if is_empty {
            self.drop_front();
        }
        Some(place)
    }

    /// Removes empty pages at the front. The newest page stays, because the next id goes into it.
    fn drop_front(&mut self) {
        let end = self.first + self.pages.len() as u64;
        while self.pages.len() > 1 && self.pages[0].live == 0 {
            self.pages.pop_front();
            self.first += 1;
        }
        assert!(!self.pages.is_empty(), "the newest page stays");
        assert_eq!(
            self.first + self.pages.len() as u64,
            end,
            "pages keep their numbers"
        );
    }

    /// Returns the number of open orders.
    pub(crate) fn len(&self) -> u64 {
        self.live
    }

    /// Iterates over the slab indices of all open orders, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let places = self
            .pages
            .iter()
            .flat_map(|page| page.places.iter().copied());
        places.filter(|place| *place != NONE)
    }
}

impl IdPage {
    fn new_empty() -> Self {
        Self {
            live: 0,
            places: Vec::new(),
        }
    }
}
