//! Simulates the world around the sessions of a text for the tests: callers that read it, a market,
//! and a shell that checks each action. A seed determines the order of events, so the same seed
//! gives the same history.

use std::collections::{BTreeMap, BTreeSet};

use souk_market::{AccountKey, Credits};

use super::market::{Market, Rates};
use super::model::{Computed, Dice, Honesty, VOCABULARY};
use super::reader::{Reader, Wish};
use crate::clock::{Micros, Now};
use crate::effect::{Effect, Ticket};
use crate::session::{Action, Answer, Caller, Event, OutputId, SessionConfig, SessionCore};

/// Moves without a change after which nothing more will happen.
const IDLE_MAX: u32 = 3_000;

/// An output of a session.
pub struct WorldOutput {
    pub session: u32,
    pub computed: Computed,
    pub providers: Vec<AccountKey>,
    pub is_live: bool,
}

/// What can happen next.
#[derive(Clone, Debug)]
enum Move {
    Ask(usize),
    Reply(usize),
    Compute(u32, u32),
    EndJob(u32),
    Wake,
    Stop,
    Finish,
}

/// The world.
pub struct World {
    pub core: SessionCore,
    pub config: SessionConfig,
    pub now: Now,
    pub dice: Dice,
    pub market: Market,
    pub readers: Vec<Reader>,
    pub wishes: BTreeMap<Caller, Wish>,
    pub finishers: BTreeSet<Caller>,
    next_caller: u64,
    pub outputs: BTreeMap<OutputId, WorldOutput>,
    pub questions: Vec<(Ticket, Action)>,
    asks_left: u32,
    pub is_stopped: bool,
    /// How often the user stops the text, or the caller finishes it, in parts per thousand.
    stops: u64,
    finishes: u64,
    /// The providers that failed last, by session, and all whose sessions were replaced.
    pub culprits: BTreeMap<u32, Vec<AccountKey>>,
    pub lost: BTreeSet<AccountKey>,
    /// The providers that a judgement checked, by session, and all that were outvoted.
    pub accused: BTreeMap<u32, Vec<AccountKey>>,
    pub outvoted: BTreeSet<AccountKey>,
    /// All that the core had outvoted before the last notice.
    pub outvoted_before: BTreeSet<AccountKey>,
    /// How often what happened.
    pub counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(seed: u64, sessions_per_step: u32) -> World {
        let mut dice = Dice::new(seed * 2 + u64::from(sessions_per_step));
        let sequences = 1 + dice.below(4) as u32;
        let budgets = [None, None, Some(90), Some(300), Some(2_000)];
        let config = SessionConfig {
            budget: dice.pick(&budgets).map(Credits),
            positions: 16 + dice.below(24) as usize,
            sequences,
            vocabulary: dice.pick(&[VOCABULARY, 2_000]),
            window_max: 1 + dice.below(24) as u32,
            sessions_per_step,
            replay_tokens_max: 1 + dice.below(6) as usize,
        };
        let (once, often) = (dice.pick(&[0, 1, 3]), dice.pick(&[0, 2, 5, 20]));
        let rates = Rates {
            fails: often,
            blames: once,
            cancels: dice.pick(&[0, 0, 1]),
            quote_fails: often,
            unopened: once,
        };
        let liars = match sessions_per_step {
            // One session alone shows only tokens that the model does not have.
            1 if config.vocabulary == VOCABULARY => {
                vec![Honesty::Honest, Honesty::Mute, Honesty::SometimesLiar]
            }
            1 => vec![Honesty::Honest, Honesty::Mute],
            _ => vec![
                Honesty::Honest,
                Honesty::Honest,
                Honesty::Honest,
                Honesty::Honest,
                Honesty::Honest,
                Honesty::Honest,
                Honesty::Liar,
                Honesty::TokenLiar,
                Honesty::LogitsLiar,
                Honesty::SometimesLiar,
                Honesty::SometimesLogitsLiar,
            ],
        };
        let providers = 4 + dice.below(5);
        let honesties = (0..providers).map(|_| dice.pick(&liars)).collect();
        let requests_max = dice.pick(&[5, 40, 200, 1_000]);
        World {
            core: SessionCore::new(config.clone()),
            config,
            now: Now::default(),
            market: Market::new(honesties, rates, requests_max),
            readers: (0..sequences).map(Reader::new).collect(),
            wishes: BTreeMap::new(),
            finishers: BTreeSet::new(),
            next_caller: 0,
            outputs: BTreeMap::new(),
            questions: Vec::new(),
            asks_left: 60,
            is_stopped: false,
            stops: dice.pick(&[0, 0, 1, 5]),
            finishes: dice.pick(&[0, 1, 5, 20]),
            culprits: BTreeMap::new(),
            lost: BTreeSet::new(),
            accused: BTreeMap::new(),
            outvoted: BTreeSet::new(),
            outvoted_before: BTreeSet::new(),
            counts: BTreeMap::new(),
            dice,
        }
    }

    /// Plays until all readers have what they wanted, and all sessions are closed.
    pub fn play(&mut self) {
        while self.asks_left > 0 || !self.wishes.is_empty() {
            self.make_move();
        }
        self.finish();
        while !self.finishers.is_empty() {
            self.make_move();
        }
        assert!(self.market.jobs.is_empty(), "a session is open at the end");
        let mut outputs = self.outputs.values();
        assert!(!outputs.any(|it| it.is_live), "an output is never dropped");
        assert!(self.questions.is_empty() && self.core.pending.is_empty());
        assert_eq!(self.core.pending.strays, 0);
    }

    fn make_move(&mut self) {
        let mut idle = 0;
        loop {
            self.now.tick = self.now.tick.plus(Micros(self.dice.below(200_000)));
            let moves = self.moves();
            assert!(!moves.is_empty(), "callers wait, and nothing can happen");
            let next = self.dice.pick(&moves);
            if self.carry_out_move(next) {
                break;
            }
            idle += 1;
            assert!(idle < IDLE_MAX, "callers wait for ever");
        }
        self.market.assert_within(self.config.budget);
    }

    fn moves(&mut self) -> Vec<Move> {
        if self.dice.below(1_000) < self.stops && !self.is_stopped {
            return vec![Move::Stop];
        }
        if self.dice.below(1_000) < self.finishes {
            return vec![Move::Finish];
        }
        let mut moves = Vec::new();
        for (place, reader) in self.readers.iter().enumerate() {
            let is_asking = reader.waiting.is_none() || self.dice.is_hit(1);
            if is_asking && self.asks_left > 0 {
                moves.extend([Move::Ask(place), Move::Ask(place)]);
            }
        }
        moves.extend((0..self.questions.len()).map(Move::Reply));
        for (session, job) in &self.market.jobs {
            let sent = job.sent.iter().filter(|(_, queue)| !queue.is_empty());
            let can_compute = !job.is_used_up() && !job.is_unopened;
            for (sequence, _) in sent.filter(|_| can_compute) {
                moves.extend([
                    Move::Compute(*session, *sequence),
                    Move::Compute(*session, *sequence),
                ]);
            }
            moves.push(Move::EndJob(*session));
        }
        if self.core.wakes_at().is_some() {
            moves.push(Move::Wake);
        }
        moves
    }

    /// Returns whether anything happened.
    fn carry_out_move(&mut self, next: Move) -> bool {
        match next {
            Move::Ask(place) => self.ask(place),
            Move::Reply(place) => self.reply(place),
            Move::Compute(session, sequence) => self.compute(session, sequence),
            Move::EndJob(session) => return self.end_job(session),
            Move::Wake => {
                let moment = self.core.wakes_at().unwrap_or_default();
                self.now.tick = self.now.tick.max(moment);
                self.apply(Event::TimerFired);
            }
            Move::Stop => {
                self.is_stopped = true;
                // Few readers go on after that.
                self.asks_left = self.asks_left.min(5);
                self.apply(Event::Stop);
            }
            Move::Finish => self.finish(),
        }
        true
    }

    fn new_caller(&mut self) -> Caller {
        self.next_caller += 1;
        Caller(self.next_caller)
    }

    fn ask(&mut self, place: usize) {
        self.asks_left -= 1;
        let caller = self.new_caller();
        let reader = &mut self.readers[place];
        if let Some(waiting) = reader.waiting {
            let old = self.wishes[&waiting].clone();
            self.wishes.insert(caller, old.clone());
            let (sequence, before, step) = (old.sequence, old.before, old.step);
            self.apply(Event::Step {
                caller,
                sequence,
                before,
                step,
            });
            assert!(!self.wishes.contains_key(&caller), "the sequence is busy");
            return;
        }
        let wish = reader.wish(
            &mut self.dice,
            self.config.positions,
            self.config.sessions_per_step,
        );
        reader.waiting = Some(caller);
        if !wish.is_bad {
            reader.has = wish.step.after;
        }
        self.wishes.insert(caller, wish.clone());
        self.apply(Event::Step {
            caller,
            sequence: wish.sequence,
            before: wish.before,
            step: wish.step,
        });
    }

    fn finish(&mut self) {
        let caller = self.new_caller();
        self.finishers.insert(caller);
        self.lost.clear();
        self.readers.iter_mut().for_each(|reader| reader.has = 0);
        self.apply(Event::Finish { caller });
    }

    fn compute(&mut self, session: u32, sequence: u32) {
        let job = self.market.jobs.get_mut(&session).expect("it is open");
        let (request, step) = job.take_sent(sequence).expect("it has steps");
        let computed = job.machine.compute(sequence, &step);
        let output = OutputId(self.outputs.len() as u64);
        let drawn = computed.drawn.clone();
        let made = WorldOutput {
            session,
            computed,
            providers: job.machine.providers.clone(),
            is_live: true,
        };
        self.outputs.insert(output, made);
        self.apply(Event::Answered {
            session,
            request,
            output,
            drawn,
        });
    }

    fn end_job(&mut self, session: u32) -> bool {
        let is_closing = self.market.jobs[&session].is_closing;
        let ended = self.market.end_job(&mut self.dice, session);
        let Some((event, culprits)) = ended else {
            return false;
        };
        self.culprits.insert(session, culprits);
        if is_closing {
            self.lost.clear();
        }
        self.apply(event);
        true
    }

    fn reply(&mut self, place: usize) {
        let (ticket, question) = self.questions.swap_remove(place);
        let dice = &mut self.dice;
        let answer = match question {
            Action::Quote {
                session,
                budget,
                excluded,
                wait_longer,
            } => {
                let quoted = self
                    .market
                    .quote(dice, session, budget, &excluded, wait_longer);
                let is_short = quoted.as_ref().is_err_and(|failure| failure.is_short);
                self.count(if is_short {
                    "quotes too short"
                } else {
                    "quotes"
                });
                Answer::Quoted(quoted)
            }
            Action::LookUpSpending { jobs } => {
                let spent = jobs.into_iter();
                let spent = spent.map(|job| (job, self.market.look_up(dice, job)));
                Answer::Spent(spent.collect())
            }
            Action::Compare { left, right, rows } => {
                Answer::Compared(self.is_close(left, right, rows))
            }
            Action::Check { output, step } => {
                let computed = self.live_output(output);
                assert_eq!(computed.step, step, "the output of another step");
                Answer::Checked(computed.is_consistent())
            }
            other => unreachable!("{other:?} has no answer"),
        };
        self.apply(Event::EffectAnswered { ticket, answer });
    }

    fn is_close(&self, left: OutputId, right: OutputId, rows: Option<Vec<usize>>) -> bool {
        let (left, right) = (self.live_output(left), self.live_output(right));
        let rows = rows.unwrap_or_else(|| (0..right.logits.len()).collect());
        let mut pairs = left.logits.iter().zip(&rows);
        left.logits.len() == rows.len() && pairs.all(|(it, row)| it.is_close(&right.logits[*row]))
    }

    fn apply(&mut self, event: Event) {
        for Effect { ticket, action } in self.core.apply(self.now, event) {
            self.carry_out(ticket, action);
        }
    }
}
