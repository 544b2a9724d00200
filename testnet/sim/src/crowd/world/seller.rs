//! Plays the providers of a crowd: each runs the core of a real provider, leaves and returns, and
//! has a simulated device.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{LeaseId, Millis, OrderId, Permille, Price, Receipt, Units};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::market::client::{CallId, Event as ClientEvent, Reply};
use souk_roles::market::market_protocol::{Answer as Word, Request};
use souk_roles::provider::{
    Action, Answer, Arrival, Config as SellerConfig, EarlierLeases, Event, Fact, MarketView,
    NotDone, Past, ProviderCore, RunResult, StreamId, Terms,
};

use super::links::Departure;
use super::{Crowd, CrowdEvent, LeaseFrame};
use crate::crowd::CrowdConfig;
use crate::crowd::supply::{self, draw_exponential};
use crate::random::Random;

/// The maximum deviation of an ask's price from the usual price of its device, in per cent.
const PRICE_SPREAD: u64 = 2;

/// The longest lease that providers sell.
const LEASE_MAX: Millis = Millis(24 * 3_600_000);

/// Providers that leave in order, and those whose process is killed, per thousand; the machines of
/// the others lose their power or their network.
const IN_ORDER: u64 = 500;
const KILLED: u64 = 300;

/// A provider is away for this part of the time for which it was present, and a provider that
/// vanishes stays for this part of the usual time.
const AWAY_PART: u64 = 8;
const VANISHING_PART: u64 = 8;

/// The smallest number of facts for which it is worth shortening the journal.
const FACTS_MIN: usize = 12;

/// How a provider of a crowd misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misconduct {
    /// It is honest.
    None,
    /// It stays only for a short time, and leaves without a message.
    Vanishes,
    /// It bills several times the time that it worked.
    Overbills,
}

/// A question of a provider to the market.
pub enum SellerQuestion {
    Lease(Ticket),
    Leases(Ticket, bool),
    Account(Ticket, bool, Vec<souk_market::Lease>),
    Asks(Ticket, Box<MarketView>),
    Command(Ticket),
}

/// A simulated provider, present or away.
pub struct Seller {
    pub core: Option<ProviderCore>,
    pub model: usize,
    pub price: Price,
    pub misconduct: Misconduct,
    /// How its last process ended, while no process runs.
    pub departure: Departure,
    pub streams: BTreeSet<StreamId>,
    /// The time of its arrival, and the total time of its earlier presences, in microseconds.
    pub came_at: u64,
    pub present_us: u64,
    pub questions: u64,
    pub bytes: u64,
    /// Those questions and bytes that it sent while its device was not sold.
    pub idle_questions: u64,
    pub idle_bytes: u64,
    asked: BTreeMap<CallId, SellerQuestion>,
    facts: Vec<Fact>,
    wakes: Option<u64>,
    /// Effects in the sandbox of a lease.
    places: BTreeMap<Ticket, LeaseId>,
}

impl Seller {
    /// Draws a provider that has not come yet.
    pub fn draw(config: &CrowdConfig, random: &mut Random) -> Self {
        let shares = config.models.iter().map(|model| model.share);
        let model = supply::draw_share(shares, random);
        let percent = random.draw_between(100 - PRICE_SPREAD, 100 + PRICE_SPREAD);
        let misconduct = match random.draw_below(1_000) < config.liars_permille {
            false => Misconduct::None,
            true if random.chance(500) => Misconduct::Vanishes,
            true => Misconduct::Overbills,
        };
        Self {
            core: None,
            model,
            price: Price(config.models[model].price.0 * percent / 100),
            misconduct,
            departure: Departure::InOrder,
            streams: BTreeSet::new(),
            came_at: 0,
            present_us: 0,
            questions: 0,
            bytes: 0,
            idle_questions: 0,
            idle_bytes: 0,
            asked: BTreeMap::new(),
            facts: Vec::new(),
            wakes: None,
            places: BTreeMap::new(),
        }
    }

    /// Counts questions of a provider with the bytes in both directions, separately for times when
    /// its device is not sold.
    pub fn count_questions(&mut self, questions: u64, bytes: u64, is_sold: bool) {
        self.questions += questions;
        self.bytes += bytes;
        if !is_sold {
            self.idle_questions += questions;
            self.idle_bytes += bytes;
        }
    }

    /// Keeps facts, and forgets those of leases that are closed.
    fn keep_facts(&mut self, facts: &[Fact]) {
        self.facts.extend_from_slice(facts);
        let closed = |fact: &Fact| match fact {
            Fact::Closed { lease, .. } => Some(*lease),
            _ => None,
        };
        let over: BTreeSet<LeaseId> = self.facts.iter().filter_map(closed).collect();
        let begun = self.facts.iter().filter_map(|fact| match fact {
            Fact::Began { lease, .. } => Some(*lease),
            _ => None,
        });
        let first_open = begun.filter(|lease| !over.contains(lease)).min();
        let mut before = first_open.map_or(over.range(..), |lease| over.range(..lease));
        let (Some(last), FACTS_MIN..) = (before.next_back().copied(), self.facts.len()) else {
            return;
        };
        let lease_of = |fact: &Fact| match fact {
            Fact::Began { lease, .. }
            | Fact::Answered { lease, .. }
            | Fact::Ran { lease, .. }
            | Fact::Closed { lease, .. } => *lease,
            Fact::Signed { receipt } => receipt.body.lease,
            Fact::Before(before) => before.up_to,
        };
        self.facts.retain(|fact| lease_of(fact) > last);
        let up_to = EarlierLeases {
            up_to: last,
            ..EarlierLeases::default()
        };
        self.facts.insert(0, Fact::Before(up_to));
    }
}

impl Crowd {
    /// Starts a provider's process, unless the run is over.
    pub fn start_provider(&mut self, actor: usize) {
        let now = self.moment_of(actor);
        let seller = &mut self.sellers[actor];
        let model = &self.config.models[seller.model];
        let config = SellerConfig {
            account: self.machines[actor].account,
            market: self.market,
            resources: model.resources.clone(),
            capacity: Units(1),
            price_min: Price(1),
            memory_bytes_max: 1 << 40,
            made_bytes_max: 1 << 40,
            patience: Micros::from_seconds(60),
        };
        let past = Past::from_facts(seller.facts.iter().cloned());
        let (core, effects) = ProviderCore::resume(config, past, now);
        seller.core = Some(core);
        seller.came_at = self.now;
        self.counts.sessions += 1;
        let mean = match seller.misconduct {
            Misconduct::Vanishes => self.config.churn_us / VANISHING_PART,
            _ => self.config.churn_us,
        };
        let leaves = self.now + draw_exponential(mean, &mut self.random);
        let life = self.machines[actor].life;
        if leaves < self.config.end_us() {
            self.add_event(leaves, CrowdEvent::Leave(actor, life));
        }
        let account = self.machines[actor].account;
        self.tell_client(actor, ClientEvent::Watch(account));
        self.carry_out_provider(actor, effects);
    }

    /// Ends a provider's session.
    pub fn on_leave(&mut self, actor: usize) {
        let drawn = self.random.draw_below(1_000);
        let vanishes = self.sellers[actor].misconduct == Misconduct::Vanishes;
        match drawn {
            _ if vanishes => self.end_provider(actor, Departure::Silent),
            0..IN_ORDER => self.tell_provider(actor, Event::Stop),
            n if n < IN_ORDER + KILLED => self.end_provider(actor, Departure::Killed),
            _ => self.end_provider(actor, Departure::Silent),
        }
    }

    /// Ends a provider's process; it comes back later.
    fn end_provider(&mut self, actor: usize, departure: Departure) {
        let back = draw_exponential(self.config.churn_us / AWAY_PART, &mut self.random);
        self.break_links(actor, departure);
        self.end_process(actor);
        let seller = &mut self.sellers[actor];
        if let Some(core) = seller.core.take() {
            self.cores.update(&core.digest());
        }
        seller.departure = departure;
        seller.present_us += self.now - seller.came_at;
        seller.streams.clear();
        seller.asked.clear();
        seller.places.clear();
        seller.wakes = None;
        self.add_event(self.now + back, CrowdEvent::Return(actor));
    }

    pub fn wake_provider(&mut self, actor: usize) {
        let seller = &mut self.sellers[actor];
        if seller.wakes != Some(self.now) {
            return;
        }
        seller.wakes = None;
        match seller.core.as_ref().and_then(ProviderCore::wakes_at) {
            Some(at) if at.0 <= self.now => self.tell_provider(actor, Event::TimerFired),
            _ => self.set_provider_wake(actor),
        }
    }

    /// Gives an event to a provider's core, and carries out its actions.
    pub fn tell_provider(&mut self, actor: usize, event: Event) {
        let now = self.moment_of(actor);
        let Some(core) = &mut self.sellers[actor].core else {
            return;
        };
        let effects = core.apply(now, event);
        self.counts.provider_steps += 1;
        self.carry_out_provider(actor, effects);
    }

    fn carry_out_provider(&mut self, actor: usize, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.carry_out_of_provider(actor, ticket, action);
        }
        self.set_provider_wake(actor);
    }

    /// Schedules the next moment that a provider's core awaits, unless an earlier one is scheduled.
    fn set_provider_wake(&mut self, actor: usize) {
        let seller = &mut self.sellers[actor];
        let wakes = seller.core.as_ref().and_then(ProviderCore::wakes_at);
        let wakes = wakes.map(|at| at.0.max(self.now));
        if let Some(at) = wakes
            && seller.wakes.is_none_or(|known| known > at)
        {
            seller.wakes = Some(at);
            let life = self.machines[actor].life;
            self.add_event(at, CrowdEvent::ProviderWake(actor, life));
        }
    }

    fn carry_out_of_provider(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let account = self.machines[actor].account;
        match action {
            Action::SendMessage { stream, message } => {
                self.send_to_buyer(stream.0, LeaseFrame::Provider(message));
            }
            Action::CloseStream { stream } => {
                self.sellers[actor].streams.remove(&stream);
                self.send_to_buyer(stream.0, LeaseFrame::ProviderGone);
            }
            Action::LookAt { lease } => {
                self.ask_for_provider(actor, SellerQuestion::Lease(ticket), Request::Lease(lease));
            }
            Action::LookAtMarket { asks } => {
                let what = SellerQuestion::Leases(ticket, asks);
                self.ask_for_provider(actor, what, Request::Leases(account));
            }
            Action::Command(command) => {
                let asked = self.next_call(actor);
                self.sellers[actor]
                    .asked
                    .insert(asked, SellerQuestion::Command(ticket));
                let commands = vec![*command];
                self.tell_client(actor, ClientEvent::Carry { asked, commands });
            }
            Action::Bring { contents, .. } => {
                let arrival = |id: ContentId| Arrival {
                    id,
                    bytes: 1 << 20,
                    moved: 1 << 20,
                };
                let arrivals = contents.iter().map(|it| arrival(it.id)).collect();
                self.answer_provider(actor, 150_000, ticket, Answer::Arrived(arrivals));
            }
            Action::Check { .. } => {
                self.answer_provider(actor, 2_000, ticket, Answer::Checked(Ok(())));
            }
            Action::Record(facts) => {
                self.sellers[actor].keep_facts(&facts);
                self.answer_provider(actor, 1_500, ticket, Answer::Recorded);
            }
            Action::Sign(body) => {
                let receipt = Receipt::new(*body).sign_as_provider(&self.machines[actor].key);
                let answer = Answer::Signed(Box::new(receipt));
                self.answer_provider(actor, 50, ticket, answer);
            }
            Action::Over => self.end_provider(actor, Departure::InOrder),
            Action::EndSandbox { lease } => {
                let places = &mut self.sellers[actor].places;
                places.retain(|_, other| *other != lease);
            }
            other => self.carry_out_in_sandbox(actor, ticket, other),
        }
    }

    /// Carries out the effects that concern a lease's sandbox; other actions have no effect here.
    fn carry_out_in_sandbox(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let (lease, after, answer) = match action {
            Action::Sandbox { lease, .. } => (lease, 15_000, Answer::Sandboxed { slots: 1 }),
            Action::Prepare { lease, .. } => (lease, 20_000, Answer::Prepared(Ok(()))),
            Action::Run { lease, work, .. } => {
                let jitter = self.random.draw_between(950, 1_050);
                let worked = work.expected.0 * jitter / 1_000;
                self.ledger.begin_run(lease, worked);
                let overbills = self.sellers[actor].misconduct == Misconduct::Overbills;
                let factor = match overbills && self.random.chance(300) {
                    true => self.random.draw_between(2, 40),
                    false => 1,
                };
                self.counts.overbilled += u64::from(factor > 1);
                let output = |name: &String| {
                    let bytes = [work.graph.as_bytes(), name.as_bytes()].concat();
                    (name.clone(), ContentId::for_content(&bytes))
                };
                let outputs = work.outputs.iter().map(|it| output(&it.name)).collect();
                let result = RunResult {
                    outputs,
                    bytes: 1 << 16,
                    busy: Micros(worked * factor),
                    promised: Some(work.expected),
                    tokens: None,
                };
                (lease, worked, Answer::Ran(Ok(result)))
            }
            _ => return,
        };
        self.sellers[actor].places.insert(ticket, lease);
        self.answer_provider(actor, after, ticket, answer);
    }

    fn answer_provider(&mut self, actor: usize, after: u64, ticket: Ticket, answer: Answer) {
        let life = self.machines[actor].life;
        let event = CrowdEvent::ProviderDone(actor, life, ticket, Box::new(answer));
        self.add_event(self.now + after, event);
    }

    pub fn on_provider_done(&mut self, actor: usize, ticket: Ticket, answer: Answer) {
        let in_place = matches!(
            answer,
            Answer::Sandboxed { .. } | Answer::Prepared(_) | Answer::Ran(_)
        );
        if in_place && self.sellers[actor].places.remove(&ticket).is_none() {
            return;
        }
        self.tell_provider(actor, Event::EffectAnswered { ticket, answer });
    }

    fn ask_for_provider(&mut self, actor: usize, what: SellerQuestion, request: Request) {
        let asked = self.next_call(actor);
        self.sellers[actor].asked.insert(asked, what);
        let question = Box::new(request);
        self.tell_client(actor, ClientEvent::Ask { asked, question });
    }

    /// Handles the market's reply to a provider.
    pub fn on_provider_reply(&mut self, actor: usize, asked: CallId, reply: Reply) {
        let Some(what) = self.sellers[actor].asked.remove(&asked) else {
            return;
        };
        let account = self.machines[actor].account;
        let (ticket, answer) = match (what, reply) {
            (SellerQuestion::Command(ticket), Reply::Carried(results)) => {
                let result = results.into_iter().next();
                let result = result.map(|result| result.map_err(NotDone::Refused));
                let none = || Err(NotDone::Uncertain("no result".to_owned()));
                (ticket, Answer::Commanded(result.unwrap_or_else(none)))
            }
            (SellerQuestion::Command(ticket), other) => {
                let why = NotDone::Uncertain(format!("{other:?}"));
                (ticket, Answer::Commanded(Err(why)))
            }
            (what, Reply::Answer(word)) => match (what, *word) {
                (SellerQuestion::Lease(ticket), Word::Lease(lease)) => {
                    (ticket, Answer::LeaseSeen(lease))
                }
                (SellerQuestion::Leases(ticket, asks), Word::Leases(leases)) => {
                    let what = SellerQuestion::Account(ticket, asks, leases);
                    return self.ask_for_provider(actor, what, Request::Account(account));
                }
                (SellerQuestion::Account(ticket, asks, leases), Word::Account(account)) => {
                    let view = self.view_of(actor, leases, account.as_deref());
                    if asks {
                        let what = SellerQuestion::Asks(ticket, Box::new(view));
                        let account = self.machines[actor].account;
                        return self.ask_for_provider(actor, what, Request::Orders(account));
                    }
                    (ticket, Answer::MarketSeen(Box::new(view)))
                }
                (SellerQuestion::Asks(ticket, mut view), Word::Orders(orders)) => {
                    let ids = orders.iter().map(|order| order.id);
                    view.asks = ids.collect::<Vec<OrderId>>();
                    (ticket, Answer::MarketSeen(view))
                }
                (what, word) => (ticket_of(&what), Answer::NotSeen(format!("{word:?}"))),
            },
            (what, other) => (ticket_of(&what), Answer::NotSeen(format!("{other:?}"))),
        };
        self.answer_provider(actor, 0, ticket, answer);
    }

    fn view_of(
        &self,
        actor: usize,
        leases: Vec<souk_market::Lease>,
        account: Option<&souk_market::Account>,
    ) -> MarketView {
        let device = souk_roles::provider::DEVICE;
        MarketView {
            leases,
            offered: account
                .map(|it| it.offered_units(device))
                .unwrap_or_default(),
            open_orders: account.map_or(0, |it| it.open_orders),
            slots: Units(u32::MAX),
            asks: Vec::new(),
            due: Some(Terms {
                price: self.sellers[actor].price,
                duration_max: LEASE_MAX,
                notice: Millis(0),
                spot: Vec::new(),
                idle: Permille(100),
                reputation_min: Permille(0),
            }),
        }
    }
}

fn ticket_of(asked: &SellerQuestion) -> Ticket {
    match asked {
        SellerQuestion::Lease(ticket)
        | SellerQuestion::Leases(ticket, _)
        | SellerQuestion::Account(ticket, ..)
        | SellerQuestion::Asks(ticket, _)
        | SellerQuestion::Command(ticket) => *ticket,
    }
}
