//! One account's way to a market: which validator is asked, for how long, and what is signed.
//!
//! A signed batch may be sent again to another validator without harm, since its nonce makes it
//! take effect once. So the validators are tried in turn, beginning with the last that answered,
//! with the same bytes, until one answers or time is up.

mod nonces;
mod offsets;
mod watching;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use souk_market::{
    Acceptance, AccountKey, Batch, Command, MarketId, Millis, Nonce, Refusal, SignedBatch,
};

use crate::clock::{Micros, Now, Timers};
use crate::market::words::{Answer, Request};
use nonces::Nonces;
use offsets::Offsets;
pub use watching::WatchId;
use watching::Watching;

/// How long a question is put again. A new leader is elected well within it.
pub const PATIENCE: Micros = Micros::seconds(10);

/// How long one validator may take for one answer before the next is tried.
pub const ANSWER_PATIENCE: Micros = Micros::seconds(3);

/// The pause after each validator has failed once.
const ROUND_PAUSE: Micros = Micros::millis(100);

/// How long a signed batch stays valid by the market's clock.
const EXPIRY: Millis = Millis(60_000);

/// Times commands are signed anew because another process of the same account was faster.
const SIGNED_MAX: u32 = 4;

/// How long what the validators said of their clocks is believed before all are asked again.
const CLOCK_PERIOD: Micros = Micros::seconds(30);

/// Questions under way at a time; more wait for their turn.
const ASKED_MAX: usize = 256;

/// Names what somebody asked of the client; chosen by who asks, and given back with the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CallId(pub u64);

/// Names one question that was put to one validator. None is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Putting(pub u64);

/// A validator, by its place in the list that the client was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Seat(pub usize);

/// Everything that can happen to a client.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody asks.
    Ask {
        /// What the reply names.
        asked: CallId,
        /// What.
        question: Box<Request>,
    },
    /// Somebody commands.
    Carry {
        /// What the reply names.
        asked: CallId,
        /// What.
        commands: Vec<Command>,
    },
    /// Who asked does not wait any more.
    Forget(CallId),
    /// A batch is signed.
    Signed {
        /// For whom.
        asked: CallId,
        /// The batch.
        batch: Box<SignedBatch>,
    },
    /// A validator answered, or did not.
    Heard {
        /// Which question.
        putting: Putting,
        /// What.
        heard: Result<ValidatorAnswer, Silence>,
    },
    /// A validator that was asked for no more than that said what its clock shows.
    Time {
        /// Which.
        validator: Seat,
        /// Its clock.
        time: Millis,
    },
    /// Somebody wants to be told of changes to the account.
    Watch(AccountKey),
    /// Nobody does any more.
    Unwatch(AccountKey),
    /// A validator that watches said that something changed, or its word broke off.
    Watched {
        /// Which watch.
        watch: WatchId,
        /// Whether it goes on.
        goes_on: bool,
    },
    /// The validators are these many from now on, in a new order.
    Validators(usize),
    /// A moment that was asked for is here.
    Woke,
}

/// What a validator answered.
#[derive(Clone, Debug)]
pub struct ValidatorAnswer {
    /// Its clock, where it said so.
    pub time: Option<Millis>,
    /// What.
    pub answer: Answer,
}

/// Why a validator did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Silence {
    /// It was not reached, or the stream broke.
    Broken,
    /// It said nothing in time.
    Slow,
    /// It is full.
    Busy,
    /// It cannot answer now.
    Unavailable,
}

/// What a client wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign a batch: [`Event::Signed`].
    Sign {
        /// For whom.
        asked: CallId,
        /// The batch.
        batch: Box<Batch>,
    },
    /// Put a question to a validator: [`Event::Heard`], or nothing once it is stopped.
    Put {
        /// For whom.
        asked: CallId,
        /// What the answer names.
        putting: Putting,
        /// Whom.
        validator: Seat,
        /// What; the same bytes each time it is put.
        question: Box<Request>,
    },
    /// Put [`Request::Time`] to a validator: [`Event::Time`], or nothing where it is silent.
    AskTime(Seat),
    /// What is put is not awaited any more.
    Stop(Putting),
    /// What somebody asked came to this.
    Reply {
        /// Who asked.
        asked: CallId,
        /// What it came to.
        reply: Reply,
    },
    /// Have a validator watch an account: [`Event::Watched`].
    Watch {
        /// What its word names.
        watch: WatchId,
        /// Whom.
        validator: Seat,
        /// The account.
        account: AccountKey,
    },
    /// A watch is over.
    Unwatch(WatchId),
    /// Something changed about a watched account, or may have.
    Changed(AccountKey),
}

/// What a question or a batch came to.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A validator's answer to a question.
    Answer(Box<Answer>),
    /// One result for each command.
    Carried(Vec<Result<Acceptance, Refusal>>),
    /// The batch is no batch to a validator, or too large for it.
    NotTaken(Box<Answer>),
    /// The batch may have been carried out or may not, and never will be again: who commanded
    /// looks at the log.
    Uncertain(Silence),
    /// No validator answered a question, or took a batch in, in time.
    Unreached(Silence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Timer {
    /// A validator's time for a question is over.
    Answer(CallId),
    /// A question is put again.
    Pause(CallId),
    /// A watch is taken up again.
    Watch(AccountKey),
}

/// What is asked.
#[derive(Clone, Debug, Serialize)]
enum Matter {
    Question,
    /// Commands, how often they were signed, and whether their expiry was mended.
    Commands {
        commands: Vec<Command>,
        signed: u32,
        mended: bool,
    },
}

/// A question under way.
#[derive(Clone, Debug, Serialize)]
struct Open {
    matter: Matter,
    /// What is put; none while it is being signed.
    question: Option<Box<Request>>,
    began: Micros,
    /// Validators tried, beginning with `first`.
    tried: usize,
    first: usize,
    putting: Option<Putting>,
    /// Whether a validator may have taken it in although it did not answer.
    repeated: bool,
    last: Silence,
}

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub struct MarketClient {
    account: AccountKey,
    market: MarketId,
    validators: usize,
    preferred: usize,
    next: u64,
    open: BTreeMap<CallId, Open>,
    putting: BTreeMap<Putting, (CallId, Seat)>,
    waiting: VecDeque<(CallId, Matter, Option<Box<Request>>)>,
    nonces: Nonces,
    offsets: Offsets,
    /// When all validators were last asked what their clocks show.
    clocks_asked: Option<Micros>,
    watching: Watching,
    timers: Timers<Timer>,
}

impl MarketClient {
    /// A client of an account, which knows so many validators, at least one.
    #[must_use]
    pub fn new(account: AccountKey, market: MarketId, validators: usize) -> MarketClient {
        assert!(validators > 0, "a client knows a validator");
        MarketClient {
            account,
            market,
            validators,
            preferred: 0,
            next: 0,
            open: BTreeMap::new(),
            putting: BTreeMap::new(),
            waiting: VecDeque::new(),
            nonces: Nonces::default(),
            offsets: Offsets::default(),
            clocks_asked: None,
            watching: Watching::default(),
            timers: Timers::default(),
        }
    }

    /// Commands are of this account, in this market, from now on.
    pub fn sign_for(&mut self, account: AccountKey, market: MarketId) {
        (self.account, self.market) = (account, market);
    }

    /// When it wants to be woken.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// The market's clock where this machine's shows `own`, as far as validators have said.
    #[must_use]
    pub fn log_time(&self, own: Millis) -> Millis {
        self.offsets.log_time(own)
    }

    /// Questions and batches whose reply is awaited.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// Takes an event in; `own` is this machine's clock, in microseconds since 1970.
    pub fn apply(&mut self, now: Now, own: Micros, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ask { asked, question } => {
                self.waiting
                    .push_back((asked, Matter::Question, Some(question)));
            }
            Event::Carry { asked, commands } => {
                let (signed, mended) = (0, false);
                let matter = Matter::Commands {
                    commands,
                    signed,
                    mended,
                };
                self.waiting.push_back((asked, matter, None));
            }
            Event::Forget(asked) => self.forget(asked, &mut actions),
            Event::Signed { asked, batch } => self.on_signed(asked, *batch, now, &mut actions),
            Event::Heard { putting, heard } => {
                self.on_heard(putting, heard, now, own, &mut actions);
            }
            Event::Time { validator, time } => {
                self.offsets.hear(validator, time, Millis(own.0 / 1_000));
            }
            Event::Watch(account) => self.watch(account, &mut actions),
            Event::Unwatch(account) => {
                self.timers.stop(Timer::Watch(account));
                actions.extend(self.watching.end(account).map(Action::Unwatch));
            }
            Event::Watched { watch, goes_on } => {
                self.on_watched(watch, goes_on, now, &mut actions);
            }
            Event::Validators(count) => {
                assert!(count > 0, "a client knows a validator");
                self.validators = count;
                self.preferred = 0;
                self.offsets.forget();
                self.clocks_asked = None;
            }
            Event::Woke => self.on_woke(now, &mut actions),
        }
        self.begin_waiting(now, own, &mut actions);
        assert!(self.open.len() <= ASKED_MAX, "what is under way is bounded");
        actions
    }

    fn begin_waiting(&mut self, now: Now, own: Micros, actions: &mut Vec<Action>) {
        while self.open.len() < ASKED_MAX
            && let Some((asked, matter, question)) = self.waiting.pop_front()
        {
            let open = Open {
                matter,
                question,
                began: now.tick,
                tried: 0,
                first: self.preferred,
                putting: None,
                repeated: false,
                last: Silence::Broken,
            };
            self.ask_times(now, actions);
            let before = self.open.insert(asked, open);
            assert!(before.is_none(), "what is asked has a name of its own");
            match self.open[&asked].question {
                Some(_) => self.put(asked, now, actions),
                None => self.sign(asked, own, actions),
            }
        }
    }

    /// Asks all validators for their clocks, unless they were lately: the one that answers the
    /// questions is believed only among others. Who asks nothing needs no clock.
    fn ask_times(&mut self, now: Now, actions: &mut Vec<Action>) {
        let lately = |at: Micros| now.tick.since(at) < CLOCK_PERIOD;
        if self.validators < offsets::SAID_MIN || self.clocks_asked.is_some_and(lately) {
            return;
        }
        self.clocks_asked = Some(now.tick);
        actions.extend((0..self.validators).map(|place| Action::AskTime(Seat(place))));
    }

    fn forget(&mut self, asked: CallId, actions: &mut Vec<Action>) {
        self.waiting.retain(|(other, ..)| *other != asked);
        if let Some(open) = self.close(asked) {
            actions.extend(open.putting.map(Action::Stop));
        }
    }

    /// Nothing is awaited any more for what was asked.
    fn close(&mut self, asked: CallId) -> Option<Open> {
        let open = self.open.remove(&asked)?;
        self.timers.stop(Timer::Answer(asked));
        self.timers.stop(Timer::Pause(asked));
        if let Some(putting) = open.putting {
            self.putting.remove(&putting);
        }
        Some(open)
    }

    fn reply(&mut self, asked: CallId, reply: Reply, actions: &mut Vec<Action>) {
        self.close(asked).expect("a reply is to what is under way");
        actions.push(Action::Reply { asked, reply });
    }

    fn sign(&mut self, asked: CallId, own: Micros, actions: &mut Vec<Action>) {
        let is_other = |(call, open): (&CallId, &Open)| {
            *call != asked && matches!(open.matter, Matter::Commands { signed: 1.., .. })
        };
        let others = self.open.iter().any(is_other);
        let open = self.open.get_mut(&asked).expect("it is under way");
        let Matter::Commands {
            commands, signed, ..
        } = &mut open.matter
        else {
            unreachable!("questions are not signed");
        };
        *signed += 1;
        let expires = self.offsets.log_time(Millis(own.0 / 1_000)).0;
        let batch = Batch {
            market: self.market,
            account: self.account,
            nonce: Nonce(self.nonces.next(own, others)),
            expires: Millis(expires.saturating_add(EXPIRY.0)),
            commands: commands.clone(),
        };
        open.question = None;
        open.repeated = false;
        let batch = Box::new(batch);
        actions.push(Action::Sign { asked, batch });
    }

    fn on_signed(
        &mut self,
        asked: CallId,
        batch: SignedBatch,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(open) = self.open.get_mut(&asked) else {
            return;
        };
        open.question = Some(Box::new(Request::Submit(batch)));
        self.put(asked, now, actions);
    }

    /// Puts what is asked to the next validator.
    fn put(&mut self, asked: CallId, now: Now, actions: &mut Vec<Action>) {
        let putting = Putting(self.next);
        self.next += 1;
        let open = self.open.get_mut(&asked).expect("it is under way");
        let validator = Seat((open.first + open.tried) % self.validators);
        open.putting = Some(putting);
        let question = open.question.clone().expect("what is put is signed");
        self.putting.insert(putting, (asked, validator));
        let over = now.tick.plus(ANSWER_PATIENCE);
        self.timers.set(Timer::Answer(asked), over);
        actions.push(Action::Put {
            asked,
            putting,
            validator,
            question,
        });
    }

    fn on_heard(
        &mut self,
        putting: Putting,
        heard: Result<ValidatorAnswer, Silence>,
        now: Now,
        own: Micros,
        actions: &mut Vec<Action>,
    ) {
        let Some((asked, validator)) = self.putting.remove(&putting) else {
            return;
        };
        self.timers.stop(Timer::Answer(asked));
        let heard = heard.and_then(|heard| {
            if let Some(time) = heard.time {
                self.offsets.hear(validator, time, Millis(own.0 / 1_000));
            }
            match heard.answer {
                Answer::Busy { .. } => Err(Silence::Busy),
                Answer::Unavailable(_) => Err(Silence::Unavailable),
                answer => Ok(answer),
            }
        });
        let open = self.open.get_mut(&asked).expect("what is put is under way");
        open.putting = None;
        match heard {
            Err(silence) => self.on_silence(asked, silence, now, actions),
            Ok(answer) => {
                self.preferred = validator.0 % self.validators;
                self.on_answer(asked, answer, own, actions);
            }
        }
    }

    fn on_silence(&mut self, asked: CallId, silence: Silence, now: Now, actions: &mut Vec<Action>) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        open.last = silence;
        // One that is full has taken nothing in; of all others nobody knows.
        open.repeated |= silence != Silence::Busy;
        if now.tick.since(open.began) >= PATIENCE {
            let maybe = open.repeated && matches!(open.matter, Matter::Commands { .. });
            let reply = match maybe {
                true => Reply::Uncertain(silence),
                false => Reply::Unreached(silence),
            };
            return self.reply(asked, reply, actions);
        }
        open.tried += 1;
        if open.tried.is_multiple_of(self.validators) {
            let over = now.tick.plus(ROUND_PAUSE);
            return self.timers.set(Timer::Pause(asked), over);
        }
        self.put(asked, now, actions);
    }

    fn on_answer(&mut self, asked: CallId, answer: Answer, own: Micros, actions: &mut Vec<Action>) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        let Matter::Commands { signed, mended, .. } = &mut open.matter else {
            let answer = Box::new(answer);
            return self.reply(asked, Reply::Answer(answer), actions);
        };
        let Answer::Applied(results) = answer else {
            let answer = Box::new(answer);
            return self.reply(asked, Reply::NotTaken(answer), actions);
        };
        match results.first() {
            // The same bytes may have been taken in before: what came of them is in the log alone.
            // Signed anew they would be carried out twice.
            Some(Err(
                Refusal::NonceUsed { .. } | Refusal::NonceOld { .. } | Refusal::BatchExpired { .. },
            )) if open.repeated => {
                let last = open.last;
                self.reply(asked, Reply::Uncertain(last), actions);
            }
            // This clock was ahead once, or that of another process of this account is. Of those
            // within the window any may be used: the next is to be above the highest.
            Some(Err(Refusal::NonceOld { oldest, .. })) if *signed < SIGNED_MAX => {
                self.nonces.rise_above(*oldest);
                self.sign(asked, own, actions);
            }
            Some(Err(Refusal::BatchExpired { now, .. })) if !*mended => {
                *mended = true;
                self.offsets.learn(*now, Millis(own.0 / 1_000));
                self.sign(asked, own, actions);
            }
            _ => self.reply(asked, Reply::Carried(results), actions),
        }
    }

    fn on_woke(&mut self, now: Now, actions: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop(now.tick) {
            match timer {
                Timer::Pause(asked) => self.put(asked, now, actions),
                Timer::Watch(account) => self.watch(account, actions),
                Timer::Answer(asked) => {
                    let open = self.open.get_mut(&asked).expect("a timer has an owner");
                    let putting = open.putting.take().expect("it waits for a validator");
                    self.putting.remove(&putting);
                    actions.push(Action::Stop(putting));
                    self.on_silence(asked, Silence::Slow, now, actions);
                }
            }
        }
    }

    fn watch(&mut self, account: AccountKey, actions: &mut Vec<Action>) {
        let (watch, turn) = self.watching.begin(account);
        let validator = Seat(turn % self.validators);
        actions.push(Action::Watch {
            watch,
            validator,
            account,
        });
    }

    fn on_watched(&mut self, watch: WatchId, goes_on: bool, now: Now, actions: &mut Vec<Action>) {
        let Some(account) = self.watching.account(watch) else {
            return;
        };
        if goes_on {
            return actions.push(Action::Changed(account));
        }
        self.watching.broke(watch);
        let over = now.tick.plus(watching::RECONNECT_PAUSE);
        self.timers.set(Timer::Watch(account), over);
    }
}

#[cfg(test)]
mod tests;
