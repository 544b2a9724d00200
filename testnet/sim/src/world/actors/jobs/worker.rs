//! Plays a provider through the core of a real one, with a simulated disk, store and device. Some
//! providers are dishonest.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{
    AccountKey, KindCode, LeaseId, MarketId, Name, Price, Resources, SigningKey, Units,
};
use souk_memory::ContentId;
use souk_roles::clock::Micros;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::lease::{Failure, Opening};
use souk_roles::market::client::{CallId, Event as ClientEvent};
use souk_roles::market::market_protocol::Request;
use souk_roles::provider::{
    Action, Answer, Config, Event, Fact, LeaseReaders, Past, ProviderCore, RunResult, StreamId,
};

use super::EffectResult;
use super::contents::{CONTENT_BYTES, output_value};
use super::journal::Journal;
use super::links::Purpose;
use super::misconduct::ProviderMisconduct;
use super::planner::STATE;
use super::tally::WorkTally;
use crate::disk::SimDisk;
use crate::random::Random;
use crate::resources::device_resources;
use crate::world::actors::{ActorEvent, Role};
use crate::world::{Event as WorldEvent, World};

/// The model name of devices for jobs.
pub const MODEL: &str = "worker";

/// The reason for which a provider asked the market a question.
pub enum WorkerAsked {
    Lease(Ticket),
    Market(Ticket),
    /// A question for the account's book; its leases are already here.
    Book(Ticket, Vec<souk_market::Lease>),
    Command(Ticket),
}

/// A simulated provider with its device.
pub struct Worker {
    pub core: Option<ProviderCore>,
    pub key: SigningKey,
    market: MarketId,
    journal: Option<Journal>,
    pub disk: SimDisk,
    pub streams: BTreeSet<StreamId>,
    pub asked: BTreeMap<CallId, WorkerAsked>,
    /// Writes that wait for a sync, in order.
    unsynced: Vec<(Ticket, Vec<Fact>)>,
    /// Begun leases according to the disk.
    pub began: BTreeSet<LeaseId>,
    /// Leases with finished work, and leases with both signatures, according to the disk.
    pub safe_ran: BTreeSet<LeaseId>,
    pub safe_signed: BTreeSet<LeaseId>,
    /// The lease of each stream.
    pub spoken_of: BTreeMap<StreamId, LeaseId>,
    /// Whether the core has stopped by itself, so that the process ends.
    pub is_over: bool,
    /// Effects in the sandbox of a lease.
    places: BTreeMap<Ticket, LeaseId>,
    /// Completed steps of each part and sequence of the running sessions.
    pub sessions: BTreeMap<LeaseId, BTreeMap<(u32, u32), u64>>,
    /// Readers of the contents of running leases.
    pub readers: BTreeMap<LeaseId, LeaseReaders>,
    stopped: BTreeSet<Ticket>,
    pub wakes: Option<u64>,
    pub misconduct: ProviderMisconduct,
    noise: u64,
    /// Counts of the provider's runs and pins.
    pub tally: WorkTally,
}

impl Worker {
    /// Creates a provider that has not started.
    pub fn new(key: SigningKey, market: MarketId, random: &mut Random) -> Self {
        let misconduct = ProviderMisconduct::new(random);
        Self {
            core: None,
            key,
            market,
            journal: None,
            disk: SimDisk::new(Random::new(random.next_u64(), "disk")),
            streams: BTreeSet::new(),
            asked: BTreeMap::new(),
            unsynced: Vec::new(),
            began: BTreeSet::new(),
            safe_ran: BTreeSet::new(),
            safe_signed: BTreeSet::new(),
            spoken_of: BTreeMap::new(),
            is_over: false,
            places: BTreeMap::new(),
            sessions: BTreeMap::new(),
            readers: BTreeMap::new(),
            stopped: BTreeSet::new(),
            wakes: None,
            misconduct,
            noise: random.draw_below(3),
            tally: WorkTally::default(),
        }
    }

    /// Records a fact that is safe on the disk.
    fn take_safe(&mut self, fact: &Fact) {
        match fact {
            Fact::Ran { lease, .. } => drop(self.safe_ran.insert(*lease)),
            Fact::Signed { receipt } => drop(self.safe_signed.insert(receipt.body.lease)),
            _ => {}
        }
    }

    fn config(&self) -> Config {
        Config {
            account: AccountKey::from(&self.key),
            market: self.market,
            resources: job_device(),
            capacity: Units(2),
            price_min: Price(1),
            memory_bytes_max: 1 << 30,
            made_bytes_max: 1 << 30,
            patience: Micros::from_seconds(20),
        }
    }
}

/// Returns the resources of devices for jobs.
pub fn job_device() -> Resources {
    Resources {
        kind: KindCode(1),
        model: Name::try_from(MODEL).expect("a short plain name"),
        ..device_resources()
    }
}

impl World {
    /// Starts a provider's process.
    pub(crate) fn start_worker(&mut self, actor: usize) {
        let now = self.actors.list[actor].moment_at(self.now);
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let (journal, facts) = Journal::open::<Fact>(worker.disk.clone());
        worker.journal = Some(journal);
        worker.began = started_leases(&facts);
        (worker.safe_ran, worker.safe_signed) = Default::default();
        facts.iter().for_each(|fact| worker.take_safe(fact));
        let twice = begun_twice(&facts);
        let past = Past::from_facts(facts);
        let (core, effects) = ProviderCore::resume(worker.config(), past.clone(), now);
        worker.core = Some(core);
        if let Some(lease) = twice {
            self.breach_of_job(actor, format!("{lease} was begun twice"));
        }
        self.counts.providers_started += 1;
        self.record_trouble(actor);
        let account = self.actors.list[actor].account;
        self.serve_past(account, &past);
        self.apply_client_event(actor, ClientEvent::Watch(account));
        self.carry_out_worker(actor, effects);
    }

    /// Kills a provider's process; with `power`, the machine loses power, otherwise the page cache
    /// survives.
    pub(crate) fn kill_worker(&mut self, actor: usize, power: bool) {
        self.end_worker(actor);
        if let Role::Worker(worker) = &self.actors.list[actor].role
            && power
        {
            worker.disk.crash();
        }
        self.counts.providers_killed += 1;
    }

    /// Removes the state of a provider's process.
    pub(crate) fn end_worker(&mut self, actor: usize) {
        self.remember_core(actor);
        self.restart_client(actor);
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        worker.core = None;
        worker.journal = None;
        worker.streams.clear();
        worker.spoken_of.clear();
        worker.is_over = false;
        worker.asked.clear();
        worker.unsynced.clear();
        worker.places.clear();
        worker.tally.on_restart();
        worker.readers.clear();
        worker.sessions.clear();
        worker.stopped.clear();
        worker.wakes = None;
        let account = self.actors.list[actor].account;
        self.jobs.contents.serve_nothing(account);
        self.break_links_of(actor);
    }

    /// Gives an event to a provider's core, and carries out its actions.
    pub(crate) fn tell_worker(&mut self, actor: usize, event: Event) {
        let now = self.actors.list[actor].moment_at(self.now);
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(core) = &mut worker.core else {
            return;
        };
        let effects = core.apply(now, event);
        core.assert_invariants();
        if core.wakes_at().is_some_and(|at| at < now.tick) {
            self.breach_of_job(
                actor,
                "a provider asks for a moment that has passed".to_owned(),
            );
        }
        self.carry_out_worker(actor, effects);
        self.check_pins(actor);
    }

    fn carry_out_worker(&mut self, actor: usize, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.check_order_of_worker(actor, &action);
            self.count_pins(actor, &action);
            self.serve_for_lease(actor, &action);
            self.carry_out_of_worker(actor, ticket, action);
        }
        let life = self.actors.list[actor].life;
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let wakes = worker.core.as_ref().and_then(ProviderCore::wakes_at);
        let wakes = wakes.map(|at| at.0.div_ceil(1_000).max(self.now));
        if let Some(at) = wakes
            && worker.wakes.is_none_or(|known| known > at)
        {
            worker.wakes = Some(at);
            self.schedule_event(at, WorldEvent::Actor(actor, ActorEvent::RoleWake { life }));
        }
    }

    fn carry_out_of_worker(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let account = self.actors.list[actor].account;
        match action {
            Action::SendMessage { stream, message } => self.say_to_buyer(stream, &message),
            Action::Reply { stream, taken } => self.reply_to_offer(stream, taken),
            Action::CloseStream { stream } => {
                if let Role::Worker(worker) = &mut self.actors.list[actor].role {
                    worker.streams.remove(&stream);
                }
                self.hang_up_on_buyer(stream);
            }
            Action::Offer { to, offer } => {
                self.counts.offers += 1;
                self.open_link(actor, Purpose::Offer(ticket), to, &Opening::Offer(offer));
                let done = EffectResult::Worker(Answer::Offered(Err("no answer".to_owned())));
                self.done_in(actor, 10_000, ticket, done);
            }
            Action::LookAt { lease } => {
                self.ask_for_worker(actor, WorkerAsked::Lease(ticket), Request::Lease(lease));
            }
            Action::LookAtMarket { .. } => {
                self.ask_for_worker(actor, WorkerAsked::Market(ticket), Request::Leases(account));
            }
            Action::Command(command) => {
                let asked = self.actors.list[actor].name();
                if let Role::Worker(worker) = &mut self.actors.list[actor].role {
                    worker.asked.insert(asked, WorkerAsked::Command(ticket));
                }
                let commands = vec![*command];
                self.apply_client_event(actor, ClientEvent::Carry { asked, commands });
            }
            Action::Bring {
                lease,
                contents,
                holders,
                ..
            } => {
                self.check_parties(actor, lease, &holders);
                let answer = self.fetch_contents(actor, lease, &contents, &holders);
                self.counts.contents_moved += contents.len() as u64;
                self.done_soon(actor, 5, 60, ticket, EffectResult::Worker(answer));
            }
            Action::Check { .. } => {
                let checked = Answer::Checked(Ok(()));
                self.done_soon(actor, 0, 3, ticket, EffectResult::Worker(checked));
            }
            Action::Record(facts) => self.record_for_worker(actor, ticket, facts),
            Action::Sign(body) => {
                self.check_bill(actor, &body);
                let Role::Worker(worker) = &self.actors.list[actor].role else {
                    return;
                };
                let receipt = souk_market::Receipt::new(*body).sign_as_provider(&worker.key);
                let done = EffectResult::Worker(Answer::Signed(Box::new(receipt)));
                self.done_soon(actor, 0, 2, ticket, done);
            }
            Action::Stop(of) => {
                if let Role::Worker(worker) = &mut self.actors.list[actor].role {
                    worker.stopped.insert(of);
                }
            }
            Action::Over => self.on_worker_over(actor),
            Action::Hurry { .. }
            | Action::Hold { .. }
            | Action::Release { .. }
            | Action::Learn { .. }
            | Action::Tell(_) => {}
            place => self.carry_out_in_place(actor, ticket, place),
        }
    }

    /// Counts the pins of requested contents before they arrive, whether they do or not.
    fn count_pins(&mut self, actor: usize, action: &Action) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        match action {
            Action::Bring { contents, .. } => {
                worker.tally.pin_contents(contents.iter().map(|it| it.id))
            }
            Action::Hold { contents } => worker.tally.pin_contents(contents.iter().copied()),
            Action::Release { contents } => worker.tally.unpin_contents(contents.iter().copied()),
            _ => {}
        }
    }

    /// Returns when a run of this length ends on a device that does one run at a time.
    fn run_takes(&mut self, actor: usize, lease: LeaseId, takes: u64) -> u64 {
        match &mut self.actors.list[actor].role {
            Role::Worker(worker) => worker.tally.run(lease, self.now, takes),
            _ => takes,
        }
    }

    fn on_worker_over(&mut self, actor: usize) {
        self.counts.providers_stopped += 1;
        if let Role::Worker(worker) = &mut self.actors.list[actor].role {
            worker.is_over = true;
        }
    }

    /// Carries out an action in a lease's own sandbox.
    fn carry_out_in_place(&mut self, actor: usize, ticket: Ticket, action: Action) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let misconduct = worker.misconduct;
        let (lease, after, answer) = match action {
            Action::EndSandbox { lease } => {
                worker.sessions.remove(&lease);
                return worker.places.retain(|_, other| *other != lease);
            }
            Action::Sandbox { lease, .. } => {
                let slots = self.jobs.random.draw_between(1, 2) as u32;
                let lost = self.jobs.random.chance(10);
                self.actors.list[actor].harm_if(lost, self.now);
                let fault = Failure::Crashed("no process".to_owned());
                let answer = match lost {
                    true => Answer::NoSandbox(fault),
                    false => Answer::Sandboxed { slots },
                };
                (lease, 5, answer)
            }
            Action::Prepare { lease, .. } => (lease, 10, Answer::Prepared(Ok(()))),
            Action::Run {
                lease,
                request,
                sequence,
                part,
                work,
                inputs,
                ..
            } => {
                let steps = worker.sessions.get_mut(&lease);
                let steps = steps.map(|steps| steps.entry((sequence, part)).or_default());
                let state = steps.map(|steps| std::mem::replace(steps, *steps + 1));
                self.check_run(actor, lease, request, part, &inputs);
                let jitter = self.jobs.random.draw_between(800, 1_300);
                let turns = self.turns_of(work.graph, &inputs);
                let busy = Micros(work.expected.0 * turns * jitter / 1_000);
                let wrong = self.jobs.random.chance(300);
                self.actors.list[actor]
                    .harm_if(wrong && misconduct != ProviderMisconduct::None, self.now);
                if misconduct == ProviderMisconduct::Fails && wrong {
                    let answer = Answer::Ran(Err(Failure::Run("it failed".to_owned()).into()));
                    (lease, 5, answer)
                } else {
                    // No comparison covers sessions, so a wrong answer there would break a promise.
                    let lies = misconduct == ProviderMisconduct::Lies && wrong && state.is_none();
                    let outputs = self.compute_part(actor, &work, &inputs, state, lies);
                    self.on_made(actor, lease, &outputs);
                    let slow =
                        [1, 400][usize::from(misconduct == ProviderMisconduct::Stalls && wrong)];
                    let after = self.run_takes(actor, lease, busy.0.div_ceil(1_000) * slow);
                    let busy = self.state_time(misconduct, busy, wrong);
                    let answer = Answer::Ran(Ok(RunResult {
                        bytes: outputs.len() as u64 * CONTENT_BYTES,
                        outputs,
                        busy,
                        promised: Some(work.expected),
                        tokens: None,
                    }));
                    (lease, after, answer)
                }
            }
            _ => unreachable!("carried out elsewhere"),
        };
        if let Role::Worker(worker) = &mut self.actors.list[actor].role {
            worker.places.insert(ticket, lease);
        }
        self.done_in(actor, after, ticket, EffectResult::Worker(answer));
    }

    fn compute_part(
        &mut self,
        actor: usize,
        work: &souk_roles::lease::Part,
        inputs: &[(String, ContentId)],
        state: Option<u64>,
        lies: bool,
    ) -> Vec<(String, ContentId)> {
        let account = self.actors.list[actor].account;
        let Role::Worker(worker) = &self.actors.list[actor].role else {
            return Vec::new();
        };
        let noise = worker.noise;
        // Different liars return different values.
        let lie = if lies { actor as u64 + 1 } else { 0 };
        let value = |id| self.jobs.contents.value(id);
        let mut values: BTreeMap<String, u64> = inputs
            .iter()
            .filter_map(|(name, id)| Some((name.clone(), value(*id)?)))
            .collect();
        values.extend(state.map(|state| (STATE.to_owned(), state)));
        let mut outputs = Vec::new();
        for output in &work.outputs {
            let value = output_value(work.graph, &values, &output.name) ^ lie;
            let id = self.jobs.contents.create_content(value, noise);
            self.jobs.contents.store_content(account, id);
            outputs.push((output.name.clone(), id));
        }
        self.counts.lies += u64::from(lies);
        self.counts.parts_run += 1;
        outputs
    }

    fn record_for_worker(&mut self, actor: usize, ticket: Ticket, facts: Vec<Fact>) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let journal = worker.journal.as_mut().expect("who runs has a journal");
        if journal.write(&facts) {
            worker.unsynced.push((ticket, facts));
            let after = self.jobs.random.draw_between(1, 12);
            return self.done_in(actor, after, ticket, EffectResult::Sync);
        }
        let answer = Answer::NotWritten("the disk is full".to_owned());
        self.done_in(actor, 1, ticket, EffectResult::Worker(answer));
    }

    fn sync_for_worker(&mut self, actor: usize, ticket: Ticket) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let Some(at) = worker.unsynced.iter().position(|(of, _)| *of == ticket) else {
            return;
        };
        let journal = worker.journal.as_mut().expect("who runs has a journal");
        let synced = journal.sync();
        let done: Vec<(Ticket, Vec<Fact>)> = worker.unsynced.drain(..=at).collect();
        let mut twice = None;
        let begun = done
            .iter()
            .flat_map(|(_, facts)| facts)
            .filter_map(started_lease);
        for lease in begun.filter(|_| synced) {
            twice = twice.or((!worker.began.insert(lease)).then_some(lease));
        }
        let facts = done.iter().flat_map(|(_, facts)| facts);
        facts
            .filter(|_| synced)
            .for_each(|fact| worker.take_safe(fact));
        for (ticket, _) in done {
            let answer = match synced {
                true => Answer::Recorded,
                false => Answer::NotWritten("the disk failed".to_owned()),
            };
            self.done_in(actor, 0, ticket, EffectResult::Worker(answer));
        }
        if let Some(lease) = twice {
            self.breach_of_job(actor, format!("{lease} was begun twice"));
        }
    }

    /// Handles the result of a provider's effect.
    pub(super) fn on_worker_done(&mut self, actor: usize, ticket: Ticket, done: EffectResult) {
        let Role::Worker(worker) = &mut self.actors.list[actor].role else {
            return;
        };
        let answer = match done {
            EffectResult::Sync => return self.sync_for_worker(actor, ticket),
            EffectResult::Worker(answer) => answer,
            EffectResult::Buyer(_) => return,
        };
        let in_place = matches!(
            answer,
            Answer::Sandboxed { .. } | Answer::NoSandbox(_) | Answer::Prepared(_) | Answer::Ran(_)
        );
        let lease = worker.places.remove(&ticket);
        if in_place && lease.is_none() {
            return;
        }
        // A stopped effect may complete all the same.
        match worker.stopped.remove(&ticket) {
            true if self.jobs.random.chance(500) => return,
            true => {}
            false => worker.tally.record_answer(lease, &answer),
        }
        self.tell_worker(actor, Event::EffectAnswered { ticket, answer });
        if let Some(lease) = lease {
            self.check_risk(actor, lease);
        }
    }
}

fn started_lease(fact: &Fact) -> Option<LeaseId> {
    match fact {
        Fact::Began { lease, .. } => Some(*lease),
        _ => None,
    }
}

fn started_leases(facts: &[Fact]) -> BTreeSet<LeaseId> {
    facts.iter().filter_map(started_lease).collect()
}

fn begun_twice(facts: &[Fact]) -> Option<LeaseId> {
    let mut known = BTreeSet::new();
    facts
        .iter()
        .filter_map(started_lease)
        .find(|lease| !known.insert(*lease))
}
