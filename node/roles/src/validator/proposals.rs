//! Collects the results of commands that a caller proposed together, and answers the caller once,
//! when all of them have ended.

use std::collections::BTreeMap;

use souk_consensus::replica::{Answer, Ticket};

use super::event::Caller;

/// Commands proposed together, under tickets that follow each other.
struct ProposalGroup {
    caller: Caller,
    answers: Vec<Option<Answer>>,
    missing: usize,
}

/// The groups that wait for results, by their first ticket.
#[derive(Default)]
pub(super) struct PendingProposals {
    groups: BTreeMap<Ticket, ProposalGroup>,
}

impl PendingProposals {
    /// Records that a caller waits for `count` commands, `first` and the next ones.
    pub(super) fn insert(&mut self, first: Ticket, count: usize, caller: Caller) {
        assert!(count > 0, "whoever waits, waits for something");
        let group = ProposalGroup {
            caller,
            answers: (0..count).map(|_| None).collect(),
            missing: count,
        };
        let before = self.groups.insert(first, group);
        assert!(before.is_none(), "a ticket is given once");
    }

    /// Records the result of one command. Returns its caller and all results once the last of them
    /// is there.
    pub(super) fn on_answer(&mut self, answer: Answer) -> Option<(Caller, Vec<Answer>)> {
        let (first, group) = self.groups.range_mut(..=answer.ticket).next_back()?;
        let place = usize::try_from(answer.ticket.0 - first.0).unwrap_or(usize::MAX);
        let slot = group.answers.get_mut(place).filter(|it| it.is_none())?;
        *slot = Some(answer);
        group.missing -= 1;
        if group.missing > 0 {
            return None;
        }
        let first = *first;
        let group = self.groups.remove(&first)?;
        Some((group.caller, group.answers.into_iter().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use souk_consensus::LogIndex;

    use super::*;

    fn answer(ticket: u64, said: u8) -> Answer {
        Answer {
            ticket: Ticket(ticket),
            index: LogIndex(ticket),
            result: Ok(vec![said]),
        }
    }

    #[test]
    fn a_caller_is_told_once_all_its_commands_have_ended() {
        let mut waiting = PendingProposals::default();
        waiting.insert(Ticket(5), 2, Caller(1));
        assert!(waiting.on_answer(answer(6, 6)).is_none());
        assert!(waiting.on_answer(answer(6, 7)).is_none(), "it has ended");
        assert!(waiting.on_answer(answer(7, 7)).is_none(), "it is nobody's");
        let (caller, answers) = waiting.on_answer(answer(5, 5)).expect("both have ended");
        assert_eq!(caller, Caller(1));
        let results = answers.into_iter().map(|it| it.result.unwrap());
        assert_eq!(results.collect::<Vec<_>>(), [[5], [6]]);
    }
}
