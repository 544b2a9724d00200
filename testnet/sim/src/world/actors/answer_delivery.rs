//! Delivers the validators' answers to actors (the simulated accounts), and the notices of changes
//! that an actor watches.

use souk_consensus::LogTime;
use souk_market::{AccountKey, Millis};
use souk_roles::market::client::{NoReply, ValidatorAnswer, WatchId};
use souk_roles::market::market_protocol::Answer;

use super::{ActorEvent, Waiter, Watcher};
use crate::world::{Event, World};

/// Maximum simulated milliseconds of a message to a validator.
const DELAY_MAX_MS: u64 = 40;

/// Lost messages to or from a validator, per thousand.
const LOST_PERMILLE: u64 = 15;

impl World {
    pub(super) fn on_put(&mut self, waiter: Waiter) {
        let node = waiter.node;
        if self.nodes[node].busy_until > self.now {
            return;
        }
        if self.nodes[node].running.is_none() {
            return self.send_answer(&waiter, Err(NoReply::Broken));
        }
        self.hand_in_for(waiter);
    }

    /// Sends a validator's answer to an actor.
    pub(crate) fn send_answer(&mut self, waiter: &Waiter, answer: Result<Answer, NoReply>) {
        let LogTime(time) = self.nodes[waiter.node].clock_time(self.now);
        let time = Some(Millis(time));
        let answer = answer.map(|answer| self.distort_answer(waiter, answer));
        let heard = answer.map(|answer| ValidatorAnswer { time, answer });
        self.send_message(
            waiter.actor,
            ActorEvent::Heard {
                life: waiter.life,
                putting: waiter.putting,
                heard: Box::new(heard),
            },
        );
    }

    pub(super) fn on_watch(&mut self, node: usize, watcher: Watcher) {
        let goes_on = self.nodes[node].running.is_some();
        let (actor, life, watch) = (watcher.actor, watcher.life, watcher.watch);
        if goes_on {
            let place = (node, self.nodes[node].life);
            self.actors.watchers.entry(place).or_default().push(watcher);
        }
        self.send_message(
            actor,
            ActorEvent::Watched {
                life,
                watch,
                goes_on,
            },
        );
    }

    /// Notifies the watchers of a validator of its changes, and those of a validator that has gone
    /// of the end of notices.
    pub(crate) fn tell_watchers(&mut self, node: usize) {
        let life = self.nodes[node].life;
        let events = match &self.nodes[node].running {
            Some(running) => running.replica().machine().take_events(),
            None => Vec::new(),
        };
        let mut told = Vec::new();
        for ((at, in_life), watchers) in &mut self.actors.watchers {
            if *at == node && *in_life != life {
                told.extend(watchers.drain(..).map(|it| (it, false)));
            }
        }
        let changed: Vec<AccountKey> = events
            .iter()
            .flat_map(|event| event.involved_accounts())
            .collect();
        let here = self.actors.watchers.entry((node, life)).or_default();
        let mut heard = Vec::new();
        for it in here.iter().filter(|it| changed.contains(&it.account)) {
            heard.push((it.actor, it.life, it.watch, true));
        }
        heard.extend(
            told.iter()
                .map(|(it, goes_on)| (it.actor, it.life, it.watch, *goes_on)),
        );
        self.actors
            .watchers
            .retain(|_, watchers| !watchers.is_empty());
        for (actor, life, watch, goes_on) in heard {
            self.send_message(
                actor,
                ActorEvent::Watched {
                    life,
                    watch,
                    goes_on,
                },
            );
        }
    }

    /// Delivers a message to or from a validator, unless it is lost. A stream loses no single
    /// message: if one of a watch is lost, the watch breaks, and its actor hears of that.
    pub(super) fn send_message(&mut self, actor: usize, event: ActorEvent) {
        let lost = !self.healed && self.actors.random.chance(LOST_PERMILLE);
        let delay = self.actors.random.draw_between(1, DELAY_MAX_MS);
        let event = match (lost, event) {
            (false, event) => event,
            (
                true,
                ActorEvent::Watch { life, watch, .. } | ActorEvent::Watched { life, watch, .. },
            ) => {
                self.end_watch(actor, life, watch);
                let goes_on = false;
                ActorEvent::Watched {
                    life,
                    watch,
                    goes_on,
                }
            }
            (true, _) => return,
        };
        self.schedule_event(self.now + delay, Event::Actor(actor, event));
    }

    /// Ends a watch at the validator that serves it, if one does.
    pub(super) fn end_watch(&mut self, actor: usize, life: u64, watch: WatchId) {
        for watchers in self.actors.watchers.values_mut() {
            watchers.retain(|it| (it.actor, it.life, it.watch) != (actor, life, watch));
        }
    }
}
