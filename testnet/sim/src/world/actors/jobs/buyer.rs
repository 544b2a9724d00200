//! Plays a buyer, which runs one job after another through the core of a real buyer, with a
//! simulated disk and store. Its user can stop it, its process can crash, and some buyers cheat.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{Command, JobId, LeaseId, MarketId, SigningKey};
use souk_memory::ContentId;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::job::{
    Action, Answer, End, Event, Fact, FetchFault, JobCore, JobEvent, JobSpec, Outcome, Past,
    PlanRequest, request_id,
};
use souk_roles::lease::{BuyerMessage, Contact, Opening, Request as JobRequest};
use souk_roles::market::client::{CallId, Event as ClientEvent};
use souk_roles::market::market_protocol::Request;

use super::EffectResult;
use super::journal::Journal;
use super::links::Purpose;
use super::misconduct::BuyerMisconduct;
use super::planner::JobShape;
use super::simulated_job::{SimulatedJob, buyer_demands, draw_limits, draw_pace, draw_session};
use super::witness::Witness;
use crate::disk::SimDisk;
use crate::random::Random;
use crate::world::actors::{ActorEvent, Role};
use crate::world::{Event as WorldEvent, World};

/// The reason for which a buyer asked the market a question.
pub enum BuyerAsked {
    /// A followed lease.
    Lease,
    /// All leases of a buyer that disputes notes.
    Notes,
    /// A command that the job's core does not know.
    Cheating,
    Plan(Ticket, Box<PlanRequest>),
    Look(Ticket),
    Buy(Ticket),
    Command(Ticket),
}

/// A simulated buyer with its current job.
pub struct Buyer {
    pub core: Option<JobCore>,
    pub key: SigningKey,
    market: MarketId,
    pub(super) journal: Option<Journal>,
    pub disk: SimDisk,
    pub job: Option<SimulatedJob>,
    pub asked: BTreeMap<CallId, BuyerAsked>,
    followed: Vec<LeaseId>,
    pub(super) unsynced: Vec<(Ticket, Vec<Fact>)>,
    /// The job's facts that are safe on disk.
    pub safe: Past,
    stopped: BTreeSet<Ticket>,
    pub(super) plans: BTreeMap<ContentId, Vec<usize>>,
    pub wakes: Option<u64>,
    pub misconduct: BuyerMisconduct,
    /// The buyer's observations of its leases, and leases that it refused at once.
    pub witness: Witness,
    pub refused: BTreeSet<LeaseId>,
    jobs: u64,
}

impl Buyer {
    /// Creates a buyer without a job.
    pub fn new(key: SigningKey, market: MarketId, random: &mut Random) -> Self {
        let misconduct = BuyerMisconduct::new(random);
        Self {
            core: None,
            key,
            market,
            journal: None,
            disk: SimDisk::new(Random::new(random.next_u64(), "disk")),
            job: None,
            asked: BTreeMap::new(),
            followed: Vec::new(),
            unsynced: Vec::new(),
            safe: Past::default(),
            stopped: BTreeSet::new(),
            plans: BTreeMap::new(),
            wakes: None,
            misconduct,
            witness: Witness::default(),
            refused: BTreeSet::new(),
            jobs: 0,
        }
    }
}

impl World {
    /// Acts on a buyer: begins or stops its job, or kills its process.
    pub(crate) fn act_on_buyer(&mut self, actor: usize) {
        let chance = self.jobs.random.draw_below(1_000);
        self.give_requests(actor);
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        match (&buyer.core, &buyer.job) {
            (Some(_), _) if self.healed => {}
            (Some(_), _) if chance < 60 => {
                self.kill_buyer(actor);
            }
            (Some(_), _) if chance < 70 => {
                self.counts.jobs_cancelled += 1;
                self.tell_buyer(actor, Event::Cancel);
            }
            (None, Some(_)) => self.resume_job(actor),
            (None, None) if !self.healed => self.begin_job(actor),
            _ => {}
        }
    }

    fn begin_job(&mut self, actor: usize) {
        let account = self.actors.list[actor].account;
        let now = self.actors.list[actor].moment_at(self.now);
        let random = &mut self.jobs.random;
        let mut id = account.0.to_vec();
        id.extend(random.next_u64().to_le_bytes());
        let job = JobId(*ContentId::for_content(&id).as_bytes());
        let mut shape = JobShape::new(job, random);
        let count = match random.draw_below(3) {
            0 => 1,
            _ => random.draw_between(2, 12),
        };
        let mut given = Vec::new();
        for n in 0..count {
            let value = super::contents::hash_to_number(&[&id[..], &n.to_le_bytes()].concat());
            given.push((self.jobs.contents.create_content(value, 0), value));
        }
        let mut limits = draw_limits(random);
        let (sequences, without_input) = draw_session(&mut shape, count as u32, random);
        let (window, pause) = draw_pace(&mut shape, sequences, count, &mut limits, random);
        let spec = JobSpec {
            sequences,
            job,
            account,
            market: genesis_market(&self.actors.list[actor].role),
            subject: ContentId::for_content(&id),
            command: String::new(),
            outputs: shape.output_names(),
            requests: count as u32,
            window,
            request_inputs: given.iter().map(|(id, _)| *id).collect(),
            limits,
        };
        for (id, _) in &given {
            self.jobs.contents.store_content(account, *id);
        }
        self.jobs.loops.extend(shape.loop_graphs());
        self.counts.jobs_begun += 1;
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        buyer.jobs += 1;
        buyer.disk.wipe();
        buyer.journal = Some(Journal::open::<Fact>(buyer.disk.clone()).0);
        buyer.safe = Past::default();
        buyer.plans.clear();
        buyer.job = Some(SimulatedJob {
            spec: spec.clone(),
            shape,
            given,
            without_input,
            next: 0,
            under_way: 0,
            has_sent_no_more: false,
            pause,
            next_at: 0,
            answers: BTreeMap::new(),
            began_at: self.now,
            kept: BTreeSet::new(),
            process_count: 1,
            has_failed_command: false,
        });
        let (core, effects) = JobCore::begin(spec, None, now);
        buyer.core = Some(core);
        self.apply_client_event(actor, ClientEvent::Watch(account));
        self.carry_out_buyer(actor, effects);
        self.give_requests(actor);
    }

    /// Kills the buyer's process: facts not on the disk are lost.
    fn kill_buyer(&mut self, actor: usize) {
        self.restart_client(actor);
        let account = self.actors.list[actor].account;
        let power = self.jobs.random.chance(700);
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        buyer.core = None;
        buyer.journal = None;
        buyer.asked.clear();
        buyer.followed.clear();
        buyer.unsynced.clear();
        buyer.stopped.clear();
        buyer.witness.on_restart();
        buyer.wakes = None;
        if power {
            buyer.disk.crash();
        }
        let job = buyer.job.as_ref().expect("who runs has a job");
        let mut kept: BTreeSet<ContentId> = job.given.iter().map(|(id, _)| *id).collect();
        kept.extend(job.answers.values().flatten().map(|(_, id)| *id));
        kept.extend(&job.kept);
        self.counts.buyers_killed += 1;
        // A session's user has no use for the rest of it.
        if buyer.misconduct == BuyerMisconduct::Vanishes || job.spec.sequences > 0 {
            buyer.job = None;
            self.counts.buyers_vanished += 1;
        }
        self.jobs.contents.forget_contents(account, &kept);
        self.break_links_of(actor);
    }

    fn resume_job(&mut self, actor: usize) {
        let now = self.actors.list[actor].moment_at(self.now);
        let account = self.actors.list[actor].account;
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let (journal, facts) = Journal::open::<Fact>(buyer.disk.clone());
        let past = Past::from_facts(facts);
        let job = buyer.job.as_mut().expect("who is resumed has a job");
        buyer.journal = Some(journal);
        buyer.safe = past.clone();
        job.process_count += 1;
        (job.next, job.under_way, job.has_sent_no_more) = (0, 0, false);
        let over = past.over.clone();
        if past.began.is_none() {
            // The job was never begun.
            buyer.job = None;
            return;
        }
        if over.is_some() {
            buyer.job = None;
            return;
        }
        self.counts.jobs_resumed += 1;
        let spec = job.spec.clone();
        let (core, effects) = JobCore::resume(spec, past, now);
        buyer.core = Some(core);
        self.apply_client_event(actor, ClientEvent::Watch(account));
        self.carry_out_buyer(actor, effects);
        self.give_requests(actor);
    }

    /// Gives the job as many requests as can be in flight.
    fn give_requests(&mut self, actor: usize) {
        loop {
            let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
                return;
            };
            let (Some(job), Some(_)) = (&mut buyer.job, &buyer.core) else {
                return;
            };
            if job.next >= job.given.len() {
                if !job.has_sent_no_more {
                    job.has_sent_no_more = true;
                    self.tell_buyer(actor, Event::NoMore);
                }
                return;
            }
            if job.under_way >= job.spec.window as usize || self.now < job.next_at {
                return;
            }
            let number = job.next as u32;
            let inputs = job.request_inputs(number);
            job.next += 1;
            // The inputs of a session's step do not identify it, so a resumed job never continues a
            // session.
            let is_session = job.spec.sequences > 0;
            if !is_session && buyer.safe.answered.contains_key(&request_id(&inputs)) {
                continue;
            }
            job.under_way += 1;
            let mut request = JobRequest::new(number, inputs);
            request.sequence = request.number.checked_rem(job.spec.sequences).unwrap_or(0);
            self.tell_buyer(actor, Event::NewRequest { request, size: 1 });
        }
    }

    /// Gives an event to a job's core, and carries out its actions.
    pub(crate) fn tell_buyer(&mut self, actor: usize, event: Event) {
        let now = self.actors.list[actor].moment_at(self.now);
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(core) = &mut buyer.core else {
            return;
        };
        let effects = core.apply(now, event);
        core.assert_invariants();
        if core.wakes_at().is_some_and(|at| at < now.tick) {
            self.breach_of_job(actor, "a job asks for a moment that has passed".to_owned());
        }
        self.carry_out_buyer(actor, effects);
    }

    fn carry_out_buyer(&mut self, actor: usize, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.check_order(actor, &action);
            self.check_id(actor, &action);
            if self.try_cheat(actor, &action) {
                continue;
            }
            self.serve_for_job(actor, &action);
            self.carry_out_of_buyer(actor, ticket, action);
        }
        let life = self.actors.list[actor].life;
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let wakes = buyer.core.as_ref().and_then(JobCore::wakes_at);
        let wakes = wakes.map(|at| at.0.div_ceil(1_000).max(self.now));
        if let Some(at) = wakes
            && buyer.wakes.is_none_or(|known| known > at)
        {
            buyer.wakes = Some(at);
            self.schedule_event(at, WorldEvent::Actor(actor, ActorEvent::RoleWake { life }));
        }
    }

    fn carry_out_of_buyer(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let account = self.actors.list[actor].account;
        let soon = |answer: Answer| EffectResult::Buyer(answer);
        match action {
            Action::Plan(wanted) => {
                let is_spot = self.buys_spot(actor);
                let for_good = wanted.excluded.iter().filter(|it| it.ask.is_none());
                let excluded: Vec<_> = for_good.map(|it| it.provider).collect();
                let demands = buyer_demands(account, &excluded, is_spot);
                let request = Request::Choose(Box::new(demands));
                self.ask_for_buyer(actor, BuyerAsked::Plan(ticket, wanted), request);
            }
            Action::Buy { bids, .. } => {
                self.carry_for_buyer(actor, BuyerAsked::Buy(ticket), Command::PlaceGang(bids));
            }
            Action::Look { ids } => {
                let request = Request::JobLeases(account, ids);
                self.ask_for_buyer(actor, BuyerAsked::Look(ticket), request);
            }
            Action::Find { providers } => {
                let contact = |account| Contact {
                    account,
                    addresses: Vec::new(),
                };
                let found = providers.into_iter().map(contact).collect();
                self.done_soon(actor, 1, 30, ticket, soon(Answer::Found(found)));
            }
            Action::Follow { leases } => {
                if let Role::Buyer(buyer) = &mut self.actors.list[actor].role {
                    buyer.followed = leases;
                }
                self.look_at_followed(actor);
            }
            Action::Command(command) => {
                if self.is_kept_back(actor, &command) {
                    return self.done_in(actor, 5, ticket, soon(Answer::Commanded(Ok(()))));
                }
                self.carry_for_buyer(actor, BuyerAsked::Command(ticket), *command);
            }
            Action::Open {
                leg,
                provider,
                opening,
            } => {
                self.counts.legs_resumed += u64::from(matches!(opening, Opening::Resume(_)));
                self.open_link(actor, Purpose::Leg(leg), provider, &opening);
            }
            Action::SendMessage { leg, message } => {
                let cheats = self.never_signs(actor);
                self.counts.refused_aloud +=
                    u64::from(matches!(message, BuyerMessage::Refused { .. }));
                if !(cheats && matches!(message, BuyerMessage::Signed(_))) {
                    self.say_to_worker(actor, leg, &message);
                }
            }
            Action::CloseStream { leg } => self.hang_up(actor, leg),
            Action::HandOn { to, offer, .. } => {
                self.counts.handed_on += 1;
                self.open_link(actor, Purpose::Offer(ticket), to, &Opening::Offer(offer));
                let late = soon(Answer::HandedOn(Err("no answer".to_owned())));
                self.done_in(actor, 10_000, ticket, late);
            }
            other => self.carry_out_here(actor, ticket, other),
        }
    }

    /// Carries out an action on the buyer's own machine.
    fn carry_out_here(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let account = self.actors.list[actor].account;
        let soon = |answer: Answer| EffectResult::Buyer(answer);
        match action {
            Action::Serve { contents } => {
                for id in contents {
                    // The buyer owns graphs and weights, but must have received a tensor.
                    let contents = &self.jobs.contents;
                    if contents.value(id).is_some() && !contents.has_content(account, id) {
                        self.breach_of_job(actor, "a job serves what it has not".to_owned());
                    }
                    self.jobs.contents.store_content(account, id);
                }
                self.done_soon(actor, 0, 5, ticket, soon(Answer::Served));
            }
            Action::Fetch {
                job, id, holders, ..
            } => {
                let answer = match self.fetch_for_job(actor, job, id, &holders) {
                    true => Answer::Fetched,
                    false => Answer::NotFetched(FetchFault::Lost("nobody gives it".to_owned())),
                };
                self.done_soon(actor, 2, 60, ticket, soon(answer));
            }
            Action::Compare { left, right, .. } => {
                let value = |id| self.jobs.contents.value(id);
                let alike = value(left).is_some() && value(left) == value(right);
                self.counts.compared += 1;
                self.done_soon(actor, 1, 20, ticket, soon(Answer::Compared(alike)));
            }
            Action::Sign { receipt } => {
                let Role::Buyer(buyer) = &self.actors.list[actor].role else {
                    return;
                };
                let receipt = receipt.sign_as_buyer(&buyer.key);
                let answer = Answer::Signed(Box::new(receipt));
                self.done_soon(actor, 0, 2, ticket, soon(answer));
            }
            Action::Keep { ids } => {
                if let Role::Buyer(buyer) = &mut self.actors.list[actor].role
                    && let Some(job) = &mut buyer.job
                {
                    job.kept.extend(ids);
                }
                self.done_soon(actor, 1, 10, ticket, soon(Answer::Kept));
            }
            Action::Record(facts) => {
                self.check_kept(actor, &facts);
                self.record_for_buyer(actor, ticket, facts);
            }
            Action::Give {
                request, outputs, ..
            } => self.take_answer(actor, ticket, request, outputs),
            Action::Stop(of) => {
                if let Role::Buyer(buyer) = &mut self.actors.list[actor].role {
                    buyer.stopped.insert(of);
                }
            }
            Action::Tell(JobEvent::NotCommanded { .. }) => {
                if let Role::Buyer(buyer) = &mut self.actors.list[actor].role
                    && let Some(job) = &mut buyer.job
                {
                    job.has_failed_command = true;
                }
            }
            Action::Over(outcome) => self.on_job_over(actor, *outcome),
            _ => {}
        }
    }

    pub(super) fn carry_for_buyer(&mut self, actor: usize, what: BuyerAsked, command: Command) {
        let asked = self.actors.list[actor].name();
        if let Role::Buyer(buyer) = &mut self.actors.list[actor].role {
            buyer.asked.insert(asked, what);
        }
        let commands = vec![command];
        self.apply_client_event(actor, ClientEvent::Carry { asked, commands });
    }

    /// Asks for the state of followed leases after a change of a buyer's account.
    pub(crate) fn look_at_followed(&mut self, actor: usize) {
        if self.has_misconduct(actor, BuyerMisconduct::Disputes) {
            let account = self.actors.list[actor].account;
            self.ask_for_buyer(actor, BuyerAsked::Notes, Request::Leases(account));
        }
        let Role::Buyer(buyer) = &self.actors.list[actor].role else {
            return;
        };
        for lease in buyer.followed.clone() {
            self.ask_for_buyer(actor, BuyerAsked::Lease, Request::Lease(lease));
        }
    }

    /// Writes an answer to its final place, after checking it against the model.
    fn take_answer(
        &mut self,
        actor: usize,
        ticket: Ticket,
        request: u32,
        outputs: Vec<(String, ContentId)>,
    ) {
        self.check_answer(actor, request, &outputs);
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(job) = &mut buyer.job else { return };
        self.counts.answers_fed += u64::from(job.without_input.contains(&request));
        job.answers.insert(request, outputs);
        job.under_way = job.under_way.saturating_sub(1);
        job.next_at = self.now + job.pause;
        self.counts.pauses += u64::from(job.pause > 0);
        self.counts.answers += 1;
        self.done_soon(actor, 0, 8, ticket, EffectResult::Buyer(Answer::Taken));
        self.give_requests(actor);
    }

    fn on_job_over(&mut self, actor: usize, outcome: Outcome) {
        match &outcome.how {
            End::Done => {
                self.counts.jobs_finished += 1;
                if let Role::Buyer(buyer) = &self.actors.list[actor].role
                    && let Some(job) = &buyer.job
                {
                    let is_session = job.spec.sequences > 0;
                    let is_one = is_session && job.spec.window == 1;
                    self.counts.sessions_finished += u64::from(is_session);
                    self.counts.sessions_of_one += u64::from(is_one);
                }
            }
            End::Cancelled => {}
            End::Failed(reason) => {
                self.counts.jobs_failed += 1;
                let code = format!("job_{}", reason.code());
                *self.counts.reasons.entry(code).or_default() += 1;
            }
        }
        self.check_outcome(actor, &outcome);
        self.remember_core(actor);
        self.break_links_of(actor);
        self.restart_client(actor);
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        buyer.core = None;
        buyer.journal = None;
        buyer.asked.clear();
        buyer.followed.clear();
        buyer.unsynced.clear();
        buyer.stopped.clear();
        buyer.wakes = None;
        buyer.job = None;
    }

    /// Handles the result of a job's effect.
    pub(super) fn on_buyer_done(&mut self, actor: usize, ticket: Ticket, done: EffectResult) {
        let Role::Buyer(buyer) = &mut self.actors.list[actor].role else {
            return;
        };
        let answer = match done {
            EffectResult::Sync => return self.sync_for_buyer(actor, ticket),
            EffectResult::Buyer(answer) => answer,
            EffectResult::Worker(_) => return,
        };
        // A stopped effect can complete all the same.
        if buyer.stopped.remove(&ticket) && self.jobs.random.chance(500) {
            return;
        }
        self.tell_buyer(actor, Event::EffectAnswered { ticket, answer });
    }
}

fn genesis_market(role: &Role) -> MarketId {
    match role {
        Role::Buyer(buyer) => buyer.market,
        _ => unreachable!("buyers have jobs"),
    }
}
