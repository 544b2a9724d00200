//! What a core wants done, and how an answer finds its question.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Names one effect of a core; its answer carries it. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// One thing to be done. Effects are begun in the order in which a core gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct Effect<A> {
    /// What an answer to it carries.
    pub ticket: Ticket,
    /// What is to be done.
    pub action: A,
}

/// The effects whose answers are awaited, and what each is for.
///
/// An answer whose ticket is gone (its effect was stopped, or what it was for is over) is counted
/// and means nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waits<W> {
    next: u64,
    open: BTreeMap<Ticket, W>,
    /// Answers that came for nothing that was awaited.
    pub strays: u64,
}

impl<W> Default for Waits<W> {
    fn default() -> Self {
        Waits {
            next: 0,
            open: BTreeMap::new(),
            strays: 0,
        }
    }
}

impl<W> Waits<W> {
    /// A ticket of an effect that nobody answers.
    pub fn unanswered(&mut self) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        ticket
    }

    /// A ticket of an effect whose answer is `wait`.
    pub fn open(&mut self, wait: W) -> Ticket {
        let ticket = self.unanswered();
        self.open.insert(ticket, wait);
        ticket
    }

    /// What the answer to `ticket` is for; none where nothing awaits it any more.
    pub fn take(&mut self, ticket: Ticket) -> Option<W> {
        let wait = self.open.remove(&ticket);
        self.strays += u64::from(wait.is_none());
        wait
    }

    /// The tickets of what `is_over` names. They are awaited no more: their effects may be stopped.
    pub fn forget(&mut self, mut is_over: impl FnMut(&W) -> bool) -> Vec<Ticket> {
        let over = self.open.iter().filter(|(_, wait)| is_over(wait));
        let over: Vec<Ticket> = over.map(|(ticket, _)| *ticket).collect();
        for ticket in &over {
            self.open.remove(ticket);
        }
        over
    }

    /// What is awaited.
    pub fn iter(&self) -> impl Iterator<Item = &W> {
        self.open.values()
    }

    /// How many answers are awaited.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no answer is awaited.
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
        let mut waits = Waits::default();
        let (left, right) = (waits.open("left"), waits.open("right"));
        assert_eq!(waits.take(left), Some("left"));
        assert_eq!(waits.take(left), None);
        assert_eq!(waits.forget(|wait| *wait == "right"), [right]);
        assert_eq!(waits.take(right), None);
        assert_eq!(waits.strays, 2);
        assert!(waits.is_empty());
        assert_ne!(waits.open("left"), left);
    }
}
