//! Connects the effects that a core requests with their answers. An [`Effect`] is an action with a
//! [`Ticket`], which its answer repeats; [`PendingEffects`] is the table in which the core looks up
//! what the answer is for. A core ignores an answer whose purpose is over. The cores of providers,
//! jobs, sessions and tabs use both.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The id of one effect of a core, which its answer repeats. A core never uses an id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// One effect to carry out. You must begin effects in the order in which a core returns them.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect<A> {
    /// The ticket that an answer repeats.
    pub ticket: Ticket,
    /// The action to carry out.
    pub action: A,
}

/// The effects with pending answers, and the purpose of each.
///
/// An answer whose ticket is gone (because its effect was stopped, or its purpose is over) is
/// counted and ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingEffects<W> {
    next: u64,
    open: BTreeMap<Ticket, W>,
    /// The number of answers that arrived for no pending effect.
    pub strays: u64,
}

impl<W> Default for PendingEffects<W> {
    fn default() -> Self {
        PendingEffects {
            next: 0,
            open: BTreeMap::new(),
            strays: 0,
        }
    }
}

impl<W> PendingEffects<W> {
    /// Returns a ticket for an effect without an answer.
    pub fn new_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        ticket
    }

    /// Returns a ticket for an effect whose answer is for `wait`.
    pub fn open_wait(&mut self, wait: W) -> Ticket {
        let ticket = self.new_ticket();
        self.open.insert(ticket, wait);
        ticket
    }

    /// Takes the purpose of the answer to `ticket`; none if it is no longer pending.
    pub fn take_wait(&mut self, ticket: Ticket) -> Option<W> {
        let wait = self.open.remove(&ticket);
        self.strays += u64::from(wait.is_none());
        wait
    }

    /// Forgets the purposes that `is_over` selects. Returns their tickets, whose effects you can
    /// stop.
    pub fn forget_waits(&mut self, mut is_over: impl FnMut(&W) -> bool) -> Vec<Ticket> {
        let over = self.open.iter().filter(|(_, wait)| is_over(wait));
        let over: Vec<Ticket> = over.map(|(ticket, _)| *ticket).collect();
        for ticket in &over {
            self.open.remove(ticket);
        }
        over
    }

    /// Returns the purposes of pending answers.
    pub fn iter(&self) -> impl Iterator<Item = &W> {
        self.open.values()
    }

    /// Returns the number of pending answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether no answer is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_once_and_not_after_its_effect_was_stopped() {
        let mut waits = PendingEffects::default();
        let (left, right) = (waits.open_wait("left"), waits.open_wait("right"));
        assert_eq!(waits.take_wait(left), Some("left"));
        assert_eq!(waits.take_wait(left), None);
        assert_eq!(waits.forget_waits(|wait| *wait == "right"), [right]);
        assert_eq!(waits.take_wait(right), None);
        assert_eq!(waits.strays, 2);
        assert!(waits.is_empty());
        assert_ne!(waits.open_wait("left"), left);
    }
}
