//! Lends the sequences of one session to the requests of tabs (leases of single buyers). A request
//! gets the sequence that its tab used last, whose cache already has the beginning of the
//! conversation. No other tab can reuse that cache, because the time of an answer would then tell
//! one buyer what another one wrote.

use souk_node::market::LeaseId;

/// The free sequences of a session.
#[derive(Debug)]
pub(crate) struct SlotPool<S> {
    /// The number of the session: sequences of an earlier one do not return.
    session: u64,
    /// The free sequences; the one that has been free for the longest time comes first.
    free: Vec<Slot<S>>,
}

/// A sequence, lent to a request.
#[derive(Debug)]
pub(crate) struct Slot<S> {
    pub(crate) sequence: S,
    /// The tab whose tokens it holds.
    pub(crate) tab: Option<LeaseId>,
    session: u64,
}

impl<S> SlotPool<S> {
    /// Creates the pool of a new session.
    pub(crate) fn new(sequences: Vec<S>) -> SlotPool<S> {
        let mut pool = SlotPool {
            session: 0,
            free: Vec::new(),
        };
        pool.replace_session(sequences);
        pool
    }

    /// Opens another session if the one of `failed` is still in use. Of several requests that fail
    /// together, the first does so.
    ///
    /// # Errors
    /// If it did not open. The pool then keeps the session.
    pub(crate) fn replace_session_of<E>(
        &mut self,
        failed: &Slot<S>,
        open: impl FnOnce() -> Result<Vec<S>, E>,
    ) -> Result<(), E> {
        if failed.session == self.session {
            let sequences = open()?;
            self.replace_session(sequences);
        }
        Ok(())
    }

    /// Gives up the session for another one.
    pub(crate) fn replace_session(&mut self, sequences: Vec<S>) {
        self.session += 1;
        let session = self.session;
        let slots = sequences.into_iter().map(|sequence| Slot {
            sequence,
            tab: None,
            session,
        });
        self.free = slots.collect();
    }

    /// Lends a sequence: the one that the tab used last, or else the one that is free longest.
    pub(crate) fn lend(&mut self, tab: LeaseId) -> Option<Slot<S>> {
        let own = self.free.iter().position(|slot| slot.tab == Some(tab));
        let at = own.or(if self.free.is_empty() { None } else { Some(0) })?;
        Some(self.free.remove(at))
    }

    /// Takes a sequence back.
    pub(crate) fn take_back(&mut self, slot: Slot<S>) {
        if slot.session == self.session {
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tab_gets_its_own_sequence_back_and_never_prefers_that_of_another_one() {
        let mut pool = SlotPool::new(vec!['a', 'b', 'c']);
        for (tab, sequence) in [(1, 'a'), (2, 'b'), (3, 'c')] {
            let mut slot = pool.lend(LeaseId(tab)).unwrap();
            assert_eq!(slot.sequence, sequence);
            slot.tab = Some(LeaseId(tab));
            pool.take_back(slot);
        }
        assert_eq!(pool.lend(LeaseId(3)).unwrap().sequence, 'c');
        assert_eq!(pool.lend(LeaseId(4)).unwrap().sequence, 'a');
        assert_eq!(pool.lend(LeaseId(4)).unwrap().sequence, 'b');
        assert!(pool.lend(LeaseId(4)).is_none());
    }

    #[test]
    fn requests_that_fail_together_replace_the_session_once() {
        let mut pool = SlotPool::new(vec![1, 2]);
        let [first, second] = [1, 2].map(|tab| pool.lend(LeaseId(tab)).unwrap());
        let refused = pool.replace_session_of(&first, || Err("no memory"));
        assert_eq!(refused, Err("no memory"));
        let opened: Result<(), &str> = pool.replace_session_of(&first, || Ok(vec![3]));
        opened.unwrap();
        let opened = pool.replace_session_of(&second, || Err("a third session"));
        opened.unwrap();
        // Sequences of the failed one do not return.
        pool.take_back(first);
        pool.take_back(second);
        assert_eq!(pool.lend(LeaseId(1)).unwrap().sequence, 3);
        assert!(pool.lend(LeaseId(1)).is_none());
    }
}
