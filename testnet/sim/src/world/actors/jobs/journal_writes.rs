//! Writes the facts of a buyer's job to its journal in order, and answers the job once a sync has
//! made them safe.

use souk_roles::effect::Ticket;
use souk_roles::job::{Answer, Fact};

use super::EffectResult;
use crate::world::World;
use crate::world::actors::Role;

impl World {
    pub(super) fn record_for_buyer(&mut self, actor: usize, ticket: Ticket, facts: Vec<Fact>) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let journal = buyer.journal.as_mut().expect("who runs has a journal");
        if journal.write(&facts) {
            buyer.unsynced.push((ticket, facts));
            let after = self.jobs.random.draw_between(1, 12);
            return self.done_in(actor, after, ticket, EffectResult::Sync);
        }
        self.record_trouble(actor);
        let answer = Answer::NotWritten("the disk is full".to_owned());
        self.done_in(actor, 1, ticket, EffectResult::Buyer(answer));
    }

    pub(super) fn sync_for_buyer(&mut self, actor: usize, ticket: Ticket) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(at) = buyer.unsynced.iter().position(|(of, _)| *of == ticket) else {
            return;
        };
        let journal = buyer.journal.as_mut().expect("who runs has a journal");
        let synced = journal.sync();
        let done: Vec<(Ticket, Vec<Fact>)> = buyer.unsynced.drain(..=at).collect();
        let mut answered = Vec::new();
        for (ticket, facts) in done {
            let safe = facts.into_iter().filter(|_| synced);
            safe.for_each(|fact| buyer.safe.apply_fact(fact));
            answered.push(ticket);
        }
        if !synced {
            self.record_trouble(actor);
        }
        for ticket in answered {
            let answer = match synced {
                true => Answer::Recorded,
                false => Answer::NotWritten("the disk failed".to_owned()),
            };
            self.done_in(actor, 0, ticket, EffectResult::Buyer(answer));
        }
    }
}
