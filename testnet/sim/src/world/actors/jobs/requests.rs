//! Sends the questions of buyers and providers to the market, through the client of their account,
//! and handles the replies.

use souk_market::{Acceptance, Command, Lease, Millis, OrderId, Permille, Price, SpotPrice, Units};
use souk_roles::effect::Ticket;
use souk_roles::job;
use souk_roles::job::plan::{NoPlan, NoPlanKind};
use souk_roles::market::client::{CallId, Event as ClientEvent, Reply};
use souk_roles::market::market_protocol::{Answer as Word, Request};
use souk_roles::provider::{self, MarketView, NotDone, Terms};

use super::buyer::BuyerAsked;
use super::misconduct::BuyerMisconduct;
use super::worker::WorkerAsked;
use super::{EffectAnswer, EffectResult};
use crate::world::actors::{ActorEvent, Role};
use crate::world::{Event, World};

impl World {
    /// Returns whether a buyer's job takes spot leases.
    pub(super) fn buys_spot(&self, actor: usize) -> bool {
        let job = match &self.actors.list[actor].role {
            Role::Buyer(buyer) => buyer.job.as_ref(),
            _ => None,
        };
        job.is_some_and(|job| job.spec.limits.spot)
    }

    /// Schedules the result of an effect after this many milliseconds.
    pub(super) fn done_in(&mut self, actor: usize, after: u64, ticket: Ticket, done: EffectResult) {
        let life = self.actors.list[actor].life;
        let done = Box::new((ticket, done));
        let event = ActorEvent::Done { life, done };
        self.schedule_event(self.now + after, Event::Actor(actor, event));
    }

    pub(super) fn done_soon(
        &mut self,
        actor: usize,
        least: u64,
        most: u64,
        ticket: Ticket,
        done: EffectResult,
    ) {
        let after = self.jobs.random.draw_between(least, most);
        self.done_in(actor, after, ticket, done);
    }

    /// Handles the result of an effect.
    pub(crate) fn on_done(&mut self, actor: usize, life: u64, (ticket, done): EffectAnswer) {
        if self.actors.list[actor].life != life {
            return;
        }
        match &self.actors.list[actor].role {
            Role::Worker(_) => self.on_worker_done(actor, ticket, done),
            Role::Buyer(_) => self.on_buyer_done(actor, ticket, done),
            Role::Trader(_) => {}
        }
    }

    pub(super) fn ask_for_worker(&mut self, actor: usize, what: WorkerAsked, request: Request) {
        let asked = self.actors.list[actor].name();
        if let Role::Worker(worker) = &mut self.actors.list[actor].role {
            worker.asked.insert(asked, what);
        }
        let question = Box::new(request);
        self.apply_client_event(actor, ClientEvent::Ask { asked, question });
    }

    pub(super) fn ask_for_buyer(&mut self, actor: usize, what: BuyerAsked, request: Request) {
        let asked = self.actors.list[actor].name();
        if let Role::Buyer(buyer) = &mut self.actors.list[actor].role {
            buyer.asked.insert(asked, what);
        }
        let question = Box::new(request);
        self.apply_client_event(actor, ClientEvent::Ask { asked, question });
    }

    /// Handles the market's reply to a provider.
    pub(crate) fn on_worker_reply(&mut self, actor: usize, asked: CallId, reply: Reply) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(what) = worker.asked.remove(&asked) else {
            return;
        };
        let account = self.actors.list[actor].account;
        let word = match reply {
            Reply::Answer(word) => Ok(*word),
            Reply::Carried(results) => {
                if let WorkerAsked::Command(ticket) = what {
                    let result = results.into_iter().next();
                    let result = result.map(|result| result.map_err(NotDone::Refused));
                    let none = || Err(NotDone::Uncertain("no result".to_owned()));
                    let answer = provider::Answer::Commanded(result.unwrap_or_else(none));
                    self.done_in(actor, 0, ticket, EffectResult::Worker(answer));
                }
                return;
            }
            other => Err(format!("{other:?}")),
        };
        let (ticket, answer) = match (what, word) {
            (WorkerAsked::Lease(ticket), Ok(Word::Lease(lease))) => {
                (ticket, provider::Answer::LeaseSeen(lease))
            }
            (WorkerAsked::Market(ticket), Ok(Word::Leases(leases))) => {
                let what = WorkerAsked::Book(ticket, leases);
                return self.ask_for_worker(actor, what, Request::Book);
            }
            (WorkerAsked::Book(ticket, leases), Ok(Word::Book(book))) => {
                let own = book.iter().filter(|listing| listing.provider == account);
                let asks: Vec<OrderId> = own.clone().map(|listing| listing.order).collect();
                let view = MarketView {
                    leases,
                    offered: Units(own.map(|listing| listing.quantity.0).sum()),
                    open_orders: u32::try_from(asks.len()).unwrap_or(u32::MAX),
                    asks,
                    due: Some(Terms {
                        price: Price(100 + actor as u64),
                        duration_max: Millis(400_000),
                        notice: Millis(2_000),
                        spot: vec![SpotPrice {
                            notice: Millis(1_000),
                            price: Price(60 + actor as u64),
                        }],
                        idle: Permille(100),
                        reputation_min: Permille(0),
                    }),
                    slots: Units(u32::MAX),
                };
                (ticket, provider::Answer::MarketSeen(Box::new(view)))
            }
            (WorkerAsked::Command(ticket), Err(why)) => {
                let answer = Err(NotDone::Uncertain(why));
                (ticket, provider::Answer::Commanded(answer))
            }
            (
                WorkerAsked::Lease(ticket)
                | WorkerAsked::Market(ticket)
                | WorkerAsked::Book(ticket, _)
                | WorkerAsked::Command(ticket),
                word,
            ) => (
                ticket,
                provider::Answer::NotSeen(format!("{:?}", word.err())),
            ),
        };
        self.done_in(actor, 0, ticket, EffectResult::Worker(answer));
    }

    /// Makes a buyer that refuses all work dispute a lease as soon as it sees it.
    fn look_at_lease(&mut self, actor: usize, lease: &Lease) {
        let is_refused = self.has_misconduct(actor, BuyerMisconduct::Refuses) && lease.is_running();
        if let Role::Buyer(buyer) = &mut self.actors.list[actor].role
            && is_refused
            && buyer.refused.insert(lease.id)
        {
            self.refuse_at_once(actor, lease.id);
        }
    }

    /// Disputes all notes of a buyer's providers, whatever they did.
    pub(super) fn dispute_all(&mut self, actor: usize, leases: &[Lease]) {
        let noted = leases.iter().filter(|lease| lease.note.is_some());
        for lease in noted.map(|lease| lease.id) {
            self.counts.disputes_false += 1;
            let command = Command::Dispute { lease };
            self.carry_for_buyer(actor, BuyerAsked::Cheating, command);
        }
    }

    /// Handles the market's reply to a buyer.
    pub(crate) fn on_buyer_reply(&mut self, actor: usize, asked: CallId, reply: Reply) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(what) = buyer.asked.remove(&asked) else {
            return;
        };
        if matches!(what, BuyerAsked::Buy(_) | BuyerAsked::Look(_)) {
            self.check_budget(actor);
        }
        let (ticket, answer) = match (what, reply) {
            (BuyerAsked::Lease, Reply::Answer(word)) => {
                if let Word::Lease(Some(lease)) = *word {
                    self.look_at_lease(actor, &lease);
                    self.tell_buyer(actor, job::Event::Changed(lease));
                }
                return;
            }
            (BuyerAsked::Notes, Reply::Answer(word)) => {
                if let Word::Leases(leases) = *word {
                    self.dispute_all(actor, &leases);
                }
                return;
            }
            (BuyerAsked::Lease | BuyerAsked::Notes | BuyerAsked::Cheating, _) => return,
            (BuyerAsked::Plan(ticket, wanted), Reply::Answer(word)) => {
                let answer = match *word {
                    Word::Chosen(choice) => {
                        let mut listings = choice.listings;
                        listings.retain(|it| !wanted.excluded.iter().any(|out| out.rules_out(it)));
                        self.plan_for_buyer(actor, &wanted, &listings)
                    }
                    _ => unreachable_answer(),
                };
                (ticket, answer)
            }
            (BuyerAsked::Plan(ticket, _), _) => (ticket, unreachable_answer()),
            (BuyerAsked::Look(ticket), Reply::Answer(word)) => {
                let answer = match *word {
                    Word::Leases(leases) => job::Answer::Leases(leases),
                    other => job::Answer::NotSeen(format!("{other:?}")),
                };
                (ticket, answer)
            }
            (BuyerAsked::Look(ticket), other) => {
                (ticket, job::Answer::NotSeen(format!("{other:?}")))
            }
            (BuyerAsked::Buy(ticket), Reply::Carried(results)) => {
                let answer = match results.into_iter().next() {
                    Some(Ok(Acceptance::Ganged { trades })) => job::Answer::Bought(trades),
                    Some(Err(refusal)) => job::Answer::NotBought(refusal),
                    other => job::Answer::Uncertain(format!("{other:?}")),
                };
                (ticket, answer)
            }
            (BuyerAsked::Buy(ticket), other) => {
                (ticket, job::Answer::Uncertain(format!("{other:?}")))
            }
            (BuyerAsked::Command(ticket), Reply::Carried(results)) => {
                let result = results.into_iter().next();
                let answer =
                    result.map_or_else(unreachable_market, job::Answer::from_command_result);
                (ticket, answer)
            }
            (BuyerAsked::Command(ticket), _) => (ticket, unreachable_market()),
        };
        self.done_in(actor, 0, ticket, EffectResult::Buyer(answer));
    }
}

fn unreachable_answer() -> job::Answer {
    let kind = NoPlanKind::Unreachable;
    let why = NoPlan {
        kind,
        text: format!("{kind:?}"),
    };
    let passes = true;
    job::Answer::NotPlanned { why, passes }
}

fn unreachable_market() -> job::Answer {
    let why = "the market was not reached".to_owned();
    job::Answer::Commanded(Err(job::CommandError::Unreachable(why)))
}
