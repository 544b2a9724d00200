//! Simulates the journal of a buyer's job: writes facts in order, and answers the job once a sync
//! has made them durable.

use souk_roles::effect::Ticket;
use souk_roles::job::{Answer, Fact};

use super::EffectResult;
use crate::world::World;
use crate::world::actors::Role;

impl World {
    /// Writes facts to the buyer's journal and schedules its sync; answers at once if the disk is
    /// full.
    pub(super) fn record_for_buyer(&mut self, actor: usize, ticket: Ticket, facts: Vec<Fact>) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let journal = buyer
            .journal
            .as_mut()
            .expect("a running buyer has a journal");
        if journal.write(&facts) {
            buyer.unsynced.push((ticket, facts));
            let delay = self.jobs.random.draw_between(1, 12);
            return self.done_in(actor, delay, ticket, EffectResult::Sync);
        }
        self.record_trouble(actor);
        let answer = Answer::NotWritten("the disk is full".to_owned());
        self.done_in(actor, 1, ticket, EffectResult::Buyer(answer));
    }

    /// Syncs the buyer's journal, and answers all writes up to that of `ticket`.
    pub(super) fn sync_for_buyer(&mut self, actor: usize, ticket: Ticket) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let mut tickets = buyer.unsynced.iter().map(|(ticket, _)| *ticket);
        let Some(last) = tickets.position(|unsynced| unsynced == ticket) else {
            return;
        };
        let journal = buyer
            .journal
            .as_mut()
            .expect("a running buyer has a journal");
        let is_synced = journal.sync();
        let writes: Vec<(Ticket, Vec<Fact>)> = buyer.unsynced.drain(..=last).collect();
        let mut tickets = Vec::new();
        for (ticket, facts) in writes {
            let durable = facts.into_iter().filter(|_| is_synced);
            durable.for_each(|fact| buyer.safe.apply_fact(fact));
            tickets.push(ticket);
        }
        if !is_synced {
            self.record_trouble(actor);
        }
        for ticket in tickets {
            let answer = match is_synced {
                true => Answer::Recorded,
                false => Answer::NotWritten("the disk failed".to_owned()),
            };
            self.done_in(actor, 0, ticket, EffectResult::Buyer(answer));
        }
    }
}
