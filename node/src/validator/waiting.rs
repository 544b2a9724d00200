//! Callers that wait for what becomes of the commands they proposed together.

use std::collections::BTreeMap;

use souk_consensus::replica::Ticket;
use tokio::sync::oneshot;

use super::ProposeError;

/// What became of one command.
pub(super) type ProposalResult = Result<Vec<u8>, ProposeError>;

/// Where a caller hears what became of all its commands.
pub(super) type Reply = oneshot::Sender<Vec<ProposalResult>>;

/// Commands proposed together, under tickets that follow each other.
struct ProposalGroup {
    results: Vec<Option<ProposalResult>>,
    missing: usize,
    reply: Reply,
}

/// All that wait, by their first ticket.
#[derive(Default)]
pub(super) struct PendingProposals {
    groups: BTreeMap<Ticket, ProposalGroup>,
}

impl PendingProposals {
    /// A caller waits for `count` commands, `first` and the next ones.
    pub(super) fn insert(&mut self, first: Ticket, count: usize, reply: Reply) {
        let results = vec![None; count];
        let missing = count;
        self.groups.insert(
            first,
            ProposalGroup {
                results,
                missing,
                reply,
            },
        );
    }

    /// One command has ended; its caller is told once all of its commands have.
    pub(super) fn on_answer(&mut self, ticket: Ticket, result: ProposalResult) {
        let Some((first, group)) = self.groups.range_mut(..=ticket).next_back() else {
            return;
        };
        let place = usize::try_from(ticket.0 - first.0).unwrap_or(usize::MAX);
        let Some(slot @ None) = group.results.get_mut(place) else {
            return;
        };
        *slot = Some(result);
        group.missing -= 1;
        if group.missing == 0 {
            let first = *first;
            self.tell(first);
        }
    }

    fn tell(&mut self, first: Ticket) {
        if let Some(ProposalGroup { results, reply, .. }) = self.groups.remove(&first) {
            // A caller that no longer waits is no error.
            let _gone = reply.send(results.into_iter().flatten().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_told_once_all_its_commands_have_ended() {
        let mut waiting = PendingProposals::default();
        let (reply, mut answer) = oneshot::channel();
        waiting.insert(Ticket(5), 2, reply);
        waiting.on_answer(Ticket(6), Ok(vec![6]));
        waiting.on_answer(Ticket(6), Ok(vec![7]));
        waiting.on_answer(Ticket(7), Ok(vec![7]));
        assert!(answer.try_recv().is_err(), "one is still missing");
        waiting.on_answer(Ticket(5), Ok(vec![5]));
        let results: Vec<Vec<u8>> = answer.try_recv().unwrap().into_iter().flatten().collect();
        assert_eq!(results, [[5], [6]]);
    }
}
