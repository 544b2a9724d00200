//! Plays the buyers of a crowd. A buyer has many jobs at a time; each job runs the core of a real
//! job, with one request to one provider.

use std::collections::BTreeMap;

use souk_market::{
    AccountKey, Command, Credits, Features, JobId, Listing, Millis, Operators, Permille, Regions,
};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::job::plan::{
    NoPlan, NoPlanKind, Plan, PlanInput, PlanLeg, PlanOutput, PlanPart, PlanRequest,
};
use souk_roles::job::{Action, Answer, Event, JobCore, JobEvent, JobSpec, Leg, Limits};
use souk_roles::lease::Request as JobRequest;
use souk_roles::market::client::{CallId, Event as ClientEvent, Reply};
use souk_roles::market::demands::Demands;
use souk_roles::market::market_protocol::{Answer as Word, Request};

use super::follower::{FollowerQuestion, LeaseFollower};
use super::{Crowd, CrowdEvent, LeaseFrame};
use crate::crowd::counts::Demand;
use crate::crowd::supply;

/// How long a job waits for a device.
const WAIT: Micros = Micros::from_seconds(60);

/// Jobs with a budget, per thousand, and how many times the planned cost it is.
const WITH_BUDGET: u64 = 300;
const BUDGET_TIMES: u64 = 6;

/// Bursts per thousand arrivals, and the most jobs that one buyer sends in a burst, as a part of
/// all providers.
const BURSTS: u64 = 2;
const BURST_PART: u64 = 100;

/// The names of a job's input and output.
const GIVEN: &str = "x";
const WANTED: &str = "y";

/// A buyer: its questions to the market, and the leases that it follows.
#[derive(Default)]
pub struct Customer {
    asked: BTreeMap<CallId, BuyerQuestion>,
    pub follower: LeaseFollower,
}

/// A question of a buyer to the market.
pub enum BuyerQuestion {
    /// One of all jobs, about the leases that they follow.
    Followed(FollowerQuestion),
    /// One of the job with this number.
    OfJob(u64, JobQuestion),
}

/// A question of a job to the market.
pub enum JobQuestion {
    Plan(Ticket, Box<PlanRequest>),
    Look(Ticket),
    Find(Ticket),
    Buy(Ticket),
    Command(Ticket),
}

/// A running job of a simulated buyer.
pub struct Job {
    pub core: JobCore,
    pub buyer: usize,
    model: usize,
    length_us: u64,
    arrived_at: u64,
    id: JobId,
    budget: Option<Credits>,
    is_placed: bool,
    runs_since: Option<u64>,
    wakes: Option<u64>,
    links: BTreeMap<Leg, u64>,
    plans: u64,
}

impl Crowd {
    /// Begins the next job, sometimes many at once, and schedules the next arrival.
    pub fn on_arrival(&mut self) {
        if !self.is_running() {
            return;
        }
        let buyer = self.config.providers + self.random.draw_index(self.config.buyers);
        let count = match self.random.draw_below(1_000) < BURSTS {
            true => {
                1 + self
                    .random
                    .draw_below(1 + self.config.providers as u64 / BURST_PART)
            }
            false => 1,
        };
        for _ in 0..count {
            self.begin_job(buyer);
        }
        let devices = self.config.present_mean();
        let gap = supply::arrival_gap(self.config.hour_us(self.now), devices, self.mean_length);
        let next = self.now + supply::draw_exponential(gap, &mut self.random);
        self.add_event(next, CrowdEvent::Arrive);
    }

    fn begin_job(&mut self, buyer: usize) {
        let number = self.jobs.added();
        let shares = self.config.models.iter().map(|model| model.share);
        let model = supply::draw_share(shares, &mut self.random);
        let length_us = supply::draw_length(&mut self.random);
        self.counts.demands.push(Demand {
            arrived_us: self.now,
            model,
            length_us,
        });
        let account = self.machines[buyer].account;
        let named = [&account.0[..], &number.to_le_bytes()].concat();
        let subject = ContentId::for_content(&named);
        let id = JobId(*subject.as_bytes());
        let cost = self.config.models[model].price.0 * (length_us / 1_000_000 + 20);
        let has_budget = self.random.chance(WITH_BUDGET);
        let budget = has_budget.then_some(Credits(cost * BUDGET_TIMES));
        let spec = JobSpec {
            job: id,
            account,
            market: self.market,
            subject,
            command: String::new(),
            outputs: vec![WANTED.to_owned()],
            requests: 1,
            sequences: 0,
            window: 1,
            request_inputs: [subject].into(),
            limits: limits(budget),
        };
        let (core, effects) = JobCore::begin(spec, None, self.moment_of(buyer));
        let job = Job {
            core,
            buyer,
            model,
            length_us,
            arrived_at: self.now,
            id,
            budget,
            is_placed: false,
            runs_since: None,
            wakes: None,
            links: BTreeMap::new(),
            plans: 0,
        };
        self.jobs.add(job);
        self.carry_out_job(number, effects);
        let request = JobRequest::new(0, vec![(GIVEN.to_owned(), subject)]);
        self.tell_job(number, Event::NewRequest { request, size: 1 });
        self.tell_job(number, Event::NoMore);
    }

    pub fn wake_job(&mut self, number: u64) {
        let Some(job) = self.jobs.get_mut(number) else {
            return;
        };
        if job.wakes != Some(self.now) {
            return;
        }
        job.wakes = None;
        match job.core.wakes_at() {
            Some(at) if at.0 <= self.now => self.tell_job(number, Event::TimerFired),
            _ => self.set_job_wake(number),
        }
    }

    /// Gives an event to a job's core, and carries out its actions.
    pub fn tell_job(&mut self, number: u64, event: Event) {
        let Some(buyer) = self.jobs.get(number).map(|job| job.buyer) else {
            return;
        };
        let now = self.moment_of(buyer);
        let job = self.jobs.get_mut(number).expect("it was there just now");
        let effects = job.core.apply(now, event);
        self.counts.job_steps += 1;
        self.carry_out_job(number, effects);
    }

    fn carry_out_job(&mut self, number: u64, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.carry_out_of_job(number, ticket, action);
        }
        self.set_job_wake(number);
    }

    /// Schedules the next moment that a job's core awaits, unless an earlier one is scheduled.
    fn set_job_wake(&mut self, number: u64) {
        let Some(job) = self.jobs.get_mut(number) else {
            return;
        };
        let wakes = job.core.wakes_at().map(|at| at.0.max(self.now));
        if let Some(at) = wakes
            && job.wakes.is_none_or(|known| known > at)
        {
            job.wakes = Some(at);
            self.add_event(at, CrowdEvent::JobWake(number));
        }
    }

    fn carry_out_of_job(&mut self, number: u64, ticket: Ticket, action: Action) {
        let Some(job) = self.jobs.get_mut(number) else {
            return;
        };
        let (buyer, model) = (job.buyer, job.model);
        let account = self.machines[buyer].account;
        match action {
            Action::Plan(wanted) => {
                let for_good = wanted.excluded.iter().filter(|it| it.ask.is_none());
                let excluded = for_good.map(|it| it.provider).collect();
                let device = self.config.models[model].name().as_str().to_owned();
                let demands = Box::new(demands(account, excluded, device));
                self.counts.plans += 1;
                self.ask_for_job(
                    number,
                    JobQuestion::Plan(ticket, wanted),
                    Request::Choose(demands),
                );
            }
            Action::Buy { bids, .. } => {
                self.carry_for_job(number, JobQuestion::Buy(ticket), Command::PlaceGang(bids));
            }
            Action::Look { ids } => {
                let request = Request::JobLeases(account, ids);
                self.ask_for_job(number, JobQuestion::Look(ticket), request);
            }
            Action::Find { providers } => {
                self.ask_for_job(number, JobQuestion::Find(ticket), Request::Find(providers));
            }
            Action::Follow { leases } => self.follow_leases(buyer, number, &leases),
            Action::Command(command) => {
                self.carry_for_job(number, JobQuestion::Command(ticket), *command);
            }
            Action::Open {
                leg,
                provider,
                opening,
            } => {
                let seller = self.actors[&provider];
                let link = self.open_link(number, leg, seller, opening);
                let job = self.jobs.get_mut(number).expect("it was there just now");
                job.links.insert(leg, link);
            }
            Action::SendMessage { leg, message } => {
                if let Some(link) = job.links.get(&leg).copied() {
                    self.send_to_provider(link, LeaseFrame::Buyer(message));
                }
            }
            Action::CloseStream { leg } => {
                if let Some(link) = job.links.remove(&leg) {
                    self.send_to_provider(link, LeaseFrame::BuyerGone);
                }
            }
            Action::Tell(event) => self.on_job_event(number, &event),
            Action::Over(outcome) => self.on_job_over(number, &outcome),
            other => self.carry_out_here(number, ticket, other),
        }
    }

    /// Carries out an action on the buyer's own machine.
    fn carry_out_here(&mut self, number: u64, ticket: Ticket, action: Action) {
        let buyer = self.jobs[number].buyer;
        let (after, answer) = match action {
            Action::Serve { .. } => (1_000, Answer::Served),
            Action::Fetch { .. } => (100_000, Answer::Fetched),
            Action::Sign { receipt } => {
                let receipt = receipt.sign_as_buyer(&self.machines[buyer].key);
                (50, Answer::Signed(Box::new(receipt)))
            }
            Action::Keep { .. } => (1_500, Answer::Kept),
            Action::Record(_) => (1_500, Answer::Recorded),
            Action::Give { .. } => (1_000, Answer::Taken),
            _ => return,
        };
        self.answer_job(number, after, ticket, answer);
    }

    fn on_job_event(&mut self, number: u64, event: &JobEvent) {
        let now = self.now;
        let job = self.jobs.get_mut(number).expect("it is under way");
        let since = now - job.arrived_at;
        match event {
            JobEvent::Leased { .. } => {
                let was_placed = std::mem::replace(&mut job.is_placed, true);
                if !was_placed {
                    self.counts.placed_us.push(since);
                }
            }
            JobEvent::Running { .. } => {
                let before = job.runs_since.replace(now);
                if before.is_none() {
                    self.counts.started_us.push(since);
                }
            }
            JobEvent::Retrying { .. } => self.counts.retries += 1,
            JobEvent::Refused { .. } => self.counts.refused += 1,
            _ => {}
        }
    }

    fn on_job_over(&mut self, number: u64, outcome: &souk_roles::job::Outcome) {
        let job = self.jobs.remove(number).expect("it is under way");
        self.cores.update(job.core.digest().as_bytes());
        self.counts.count_outcome(&outcome.how);
        let in_time = |since: u64| self.config.end_us().saturating_sub(since);
        if let (souk_roles::job::End::Done, Some(since)) = (&outcome.how, job.runs_since) {
            self.counts.worked_us += job.length_us.min(in_time(since));
        }
        if let (Some(budget), Some(spending)) = (job.budget, outcome.spending)
            && spending.spent.0 + spending.held.0 > budget.0
        {
            let what = format!("job {number} spent {spending:?} of {budget:?}");
            self.ledger.record_breach(what);
        }
        for link in job.links.values() {
            self.send_to_provider(*link, LeaseFrame::BuyerGone);
        }
        self.follow_leases(job.buyer, number, &[]);
    }

    fn answer_job(&mut self, number: u64, after: u64, ticket: Ticket, answer: Answer) {
        let event = CrowdEvent::JobDone(number, ticket, Box::new(answer));
        self.add_event(self.now + after, event);
    }

    pub fn on_job_done(&mut self, number: u64, ticket: Ticket, answer: Answer) {
        self.tell_job(number, Event::EffectAnswered { ticket, answer });
    }

    fn ask_for_job(&mut self, number: u64, what: JobQuestion, request: Request) {
        let question = Box::new(request);
        let asked = self.note_question(number, what);
        let buyer = self.jobs[number].buyer;
        self.tell_client(buyer, ClientEvent::Ask { asked, question });
    }

    fn carry_for_job(&mut self, number: u64, what: JobQuestion, command: Command) {
        let asked = self.note_question(number, what);
        let buyer = self.jobs[number].buyer;
        let commands = vec![command];
        self.tell_client(buyer, ClientEvent::Carry { asked, commands });
    }

    fn note_question(&mut self, number: u64, what: JobQuestion) -> CallId {
        let buyer = self.jobs[number].buyer;
        self.note_buyer_question(buyer, BuyerQuestion::OfJob(number, what))
    }

    /// Notes a question about the leases that a buyer follows. Returns its call.
    pub fn note_follower_question(&mut self, buyer: usize, what: FollowerQuestion) -> CallId {
        self.note_buyer_question(buyer, BuyerQuestion::Followed(what))
    }

    /// Returns the id of a buyer's next question.
    fn note_buyer_question(&mut self, buyer: usize, what: BuyerQuestion) -> CallId {
        let asked = self.next_call(buyer);
        self.customer_mut(buyer).asked.insert(asked, what);
        asked
    }

    /// Returns the buyer that is this machine.
    pub fn customer_mut(&mut self, buyer: usize) -> &mut Customer {
        &mut self.buyers[buyer - self.config.providers]
    }

    /// Handles the market's reply to a buyer.
    pub fn on_buyer_reply(&mut self, buyer: usize, asked: CallId, reply: Reply) {
        let (number, what) = match self.customer_mut(buyer).asked.remove(&asked) {
            Some(BuyerQuestion::OfJob(number, what)) => (number, what),
            Some(BuyerQuestion::Followed(what)) => {
                return self.on_followed_reply(buyer, what, reply);
            }
            None => return,
        };
        let (ticket, answer) = match (what, reply) {
            (JobQuestion::Plan(ticket, wanted), Reply::Answer(word)) => {
                let answer = match *word {
                    Word::Chosen(choice) => self.plan_for_job(number, &wanted, choice.listings),
                    _ => not_planned(NoPlanKind::Unreachable),
                };
                (ticket, answer)
            }
            (JobQuestion::Plan(ticket, _), _) => (ticket, not_planned(NoPlanKind::Unreachable)),
            (JobQuestion::Look(ticket), Reply::Answer(word)) => match *word {
                Word::Leases(leases) => (ticket, Answer::Leases(leases)),
                other => (ticket, Answer::NotSeen(format!("{other:?}"))),
            },
            (JobQuestion::Find(ticket), Reply::Answer(word)) => match *word {
                Word::Found(contacts) => (ticket, Answer::Found(contacts)),
                other => (ticket, Answer::NotSeen(format!("{other:?}"))),
            },
            (JobQuestion::Look(ticket) | JobQuestion::Find(ticket), other) => {
                (ticket, Answer::NotSeen(format!("{other:?}")))
            }
            (JobQuestion::Buy(ticket), Reply::Carried(results)) => {
                use souk_market::Acceptance;
                let answer = match results.into_iter().next() {
                    Some(Ok(Acceptance::Ganged { trades })) => Answer::Bought(trades),
                    Some(Err(refusal)) => {
                        self.counts.taken_by_another += 1;
                        Answer::NotBought(refusal)
                    }
                    other => Answer::Uncertain(format!("{other:?}")),
                };
                (ticket, answer)
            }
            (JobQuestion::Buy(ticket), other) => (ticket, Answer::Uncertain(format!("{other:?}"))),
            (JobQuestion::Command(ticket), Reply::Carried(results)) => {
                let result = results.into_iter().next();
                let answer = result.map_or_else(not_reached, Answer::from_command_result);
                (ticket, answer)
            }
            (JobQuestion::Command(ticket), _) => (ticket, not_reached()),
        };
        self.answer_job(number, 0, ticket, answer);
    }

    /// Plans a job's one part for the cheapest of the listings; among equals, for any.
    fn plan_for_job(
        &mut self,
        number: u64,
        wanted: &PlanRequest,
        mut listings: Vec<Listing>,
    ) -> Answer {
        listings.retain(|it| !wanted.excluded.iter().any(|out| out.rules_out(it)));
        let Some(least) = listings.iter().map(|listing| listing.price).min() else {
            self.counts.plans_without += 1;
            return not_planned(NoPlanKind::NoneEligible);
        };
        listings.retain(|listing| listing.price == least);
        let listing = listings.swap_remove(self.random.draw_index(listings.len()));
        let Some(job) = self.jobs.get_mut(number) else {
            return not_planned(NoPlanKind::Other);
        };
        job.plans += 1;
        let named = [&job.id.0[..], &job.plans.to_le_bytes()].concat();
        let expected = Micros(job.length_us);
        Answer::Planned(Box::new(Plan {
            id: ContentId::for_content(&named),
            legs: vec![PlanLeg {
                listing: Box::new(listing),
                twin_of: None,
            }],
            parts: vec![PlanPart {
                leg: 0,
                graph: ContentId::for_content(&job.id.0),
                weights: Vec::new(),
                inputs: vec![PlanInput {
                    name: GIVEN.to_owned(),
                    maker: None,
                    fed: None,
                }],
                outputs: vec![PlanOutput {
                    name: WANTED.to_owned(),
                    readers: Vec::new(),
                    is_wanted: true,
                }],
                flops: [0; 2],
                is_open_ended: false,
                expected: [expected; 2],
                tolerance_ppm: 10,
            }],
            makespan: expected.plus(Micros::from_millis(200)),
        }))
    }
}

fn limits(budget: Option<Credits>) -> Limits {
    Limits {
        budget,
        deadline: None,
        time_max: Micros::from_seconds(7_200),
        wait: WAIT,
        providers_min: 1,
        providers_max: 1,
        excluded: Vec::new(),
        regions: Regions(0),
        reputation_min: Permille(0),
        notice_min: Millis(0),
        copies: 1,
        spot: false,
        priority: 0,
    }
}

fn demands(buyer: AccountKey, excluded: Vec<AccountKey>, device: String) -> Demands {
    Demands {
        buyer,
        excluded,
        real_only: false,
        price_max: None,
        notice_min: Millis(0),
        spot: false,
        regions: Regions(0),
        reputation_min: Permille(0),
        power_known: false,
        features: Features(0),
        operators: Operators::default(),
        nodes: Vec::new(),
        in_parts: false,
        devices: vec![device],
        text_model: None,
    }
}

fn not_planned(kind: NoPlanKind) -> Answer {
    let text = format!("{kind:?}");
    Answer::NotPlanned {
        why: NoPlan { kind, text },
        passes: kind != NoPlanKind::Other,
    }
}

fn not_reached() -> Answer {
    let why = "the market was not reached".to_owned();
    Answer::Commanded(Err(souk_roles::job::CommandError::Unreachable(why)))
}
