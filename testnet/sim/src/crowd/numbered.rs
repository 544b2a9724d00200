//! A table that numbers its items in the order of their addition and finds an item by its number in
//! constant time. The crowd simulator keeps its jobs and streams in such tables.

use std::ops::Index;

/// Items by number. A removed item leaves a place of eight bytes.
pub struct NumberedItems<T> {
    places: Vec<Option<Box<T>>>,
    count: usize,
}

impl<T> Default for NumberedItems<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            count: 0,
        }
    }
}

impl<T> NumberedItems<T> {
    /// Adds an item, and returns its number: the first is 0.
    pub fn add(&mut self, item: T) -> u64 {
        self.places.push(Some(Box::new(item)));
        self.count += 1;
        self.places.len() as u64 - 1
    }

    /// Returns how many items there have been.
    pub fn added(&self) -> u64 {
        self.places.len() as u64
    }

    /// Returns the number of items that are there.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.places.get(number as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_deref_mut()
    }

    pub fn remove(&mut self, number: u64) -> Option<Box<T>> {
        let removed = self.places.get_mut(number as usize)?.take();
        self.count -= usize::from(removed.is_some());
        removed
    }

    /// Iterates over the items by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(Option::as_deref)
    }
}

impl<T> Index<u64> for NumberedItems<T> {
    type Output = T;

    fn index(&self, number: u64) -> &T {
        self.get(number).expect("the item is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_found_by_its_number_until_it_is_removed() {
        let mut items = NumberedItems::default();
        assert_eq!(["a", "b", "c"].map(|item| items.add(item)), [0, 1, 2]);
        assert_eq!(items.remove(1), Some(Box::new("b")));
        assert_eq!(
            (items.remove(1), items.get(1), items.get(9)),
            (None, None, None)
        );
        assert_eq!((items.len(), items.added(), items[2]), (2, 3, "c"));
        assert_eq!(items.iter().collect::<Vec<_>>(), [&"a", &"c"]);
    }
}
