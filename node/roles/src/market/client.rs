//! One account's client to a market: decides which validator to ask, for how long, and which
//! batches to sign.
//!
//! The client can safely send a signed batch again to another validator, because its nonce makes it
//! take effect once. So it tries the validators in turn with the same bytes, beginning with the
//! last that answered, until one answers or time is up.
//!
//! A validator serves a limited number of streams. So a client begins at a place in the list that
//! its account's key determines: the clients of a market spread over all validators.

mod batches;
mod nonces;
mod offsets;
mod open_call;
mod refused_batch;
mod watching;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use souk_market::{Acceptance, AccountKey, Batch, Command, MarketId, Millis, Refusal, SignedBatch};

use crate::clock::{Micros, Now, Timers};
use crate::market::market_protocol::{Answer, Request};
use nonces::Nonces;
use offsets::{ClockReading, Offsets};
use open_call::{Open, PendingCall};
pub use watching::WatchId;
use watching::Watching;

/// How long the client repeats a question. The validators elect a new leader well within that time.
pub const PATIENCE: Micros = Micros::from_seconds(10);

/// How long one validator can take for an answer before the client tries the next.
pub const ANSWER_PATIENCE: Micros = Micros::from_seconds(3);

/// The pause after each validator has failed once.
const ROUND_PAUSE: Micros = Micros::from_millis(100);

/// The most questions under way at a time; later ones wait for their turn.
const ASKED_MAX: usize = 256;

/// The id of a call to the client. The caller chooses it, and the reply repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CallId(pub u64);

/// The id of one question to one validator. The client will never use an id twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RequestAttempt(pub u64);

/// A validator, by its place in the client's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ValidatorIndex(pub usize);

/// An event that happens to a client.
#[derive(Clone, Debug)]
pub enum Event {
    /// A caller asks a question.
    Ask {
        /// The call's id, for the reply.
        asked: CallId,
        /// The question for a validator.
        question: Box<Request>,
    },
    /// A caller sends commands.
    Carry {
        /// The call's id, for the reply.
        asked: CallId,
        /// The commands, in order.
        commands: Vec<Command>,
    },
    /// The caller no longer waits for the reply.
    Forget(CallId),
    /// A batch is signed.
    Signed {
        /// The call that needs it.
        asked: CallId,
        /// The batch with its signature.
        batch: Box<SignedBatch>,
    },
    /// A validator answered, or failed to.
    Heard {
        /// The id of the question.
        putting: RequestAttempt,
        /// The answer, or why there is none.
        heard: Result<ValidatorAnswer, NoReply>,
    },
    /// A validator that the client only asked for the time sent it.
    Time {
        /// The validator that answered.
        validator: ValidatorIndex,
        /// The time that its clock shows.
        time: Millis,
    },
    /// A caller wants to follow changes to an account.
    Watch(AccountKey),
    /// No caller follows the account any more.
    Unwatch(AccountKey),
    /// A validator that watches an account reported a change, or the watch broke off.
    Watched {
        /// The id of the watch.
        watch: WatchId,
        /// Whether the watch continues.
        goes_on: bool,
    },
    /// The number of validators from now on, in a new order.
    Validators(usize),
    /// A moment that the client requested is here.
    TimerFired,
}

/// A validator's answer.
#[derive(Clone, Debug)]
pub struct ValidatorAnswer {
    /// The validator's clock, if it sent the time.
    pub time: Option<Millis>,
    /// The answer to the question.
    pub answer: Answer,
}

/// Why a validator did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NoReply {
    /// It was unreachable, or the stream broke.
    Broken,
    /// It did not answer in time.
    Slow,
    /// It is full.
    Busy,
    /// It cannot answer now.
    Unavailable,
}

/// An effect that the client requests.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign a batch. Answer: [`Event::Signed`].
    Sign {
        /// The call that needs it.
        asked: CallId,
        /// The batch to sign.
        batch: Box<Batch>,
    },
    /// Put a question to a validator. Answer: [`Event::Heard`], or none once it is stopped.
    Put {
        /// The call that the question belongs to.
        asked: CallId,
        /// The id of the question, for the answer.
        putting: RequestAttempt,
        /// The validator to ask.
        validator: ValidatorIndex,
        /// The question; the bytes are the same each time.
        question: Box<Request>,
    },
    /// Put [`Request::Time`] to a validator. Answer: [`Event::Time`], or none if it is silent.
    AskTime(ValidatorIndex),
    /// Stop waiting for the answer to a question.
    Stop(RequestAttempt),
    /// Reply to a caller.
    Reply {
        /// The call's id.
        asked: CallId,
        /// The reply to the call.
        reply: Reply,
    },
    /// Ask a validator to watch an account. Answer: [`Event::Watched`].
    Watch {
        /// The id of the watch, for the answer.
        watch: WatchId,
        /// The validator to ask.
        validator: ValidatorIndex,
        /// The account to watch.
        account: AccountKey,
    },
    /// End a watch.
    Unwatch(WatchId),
    /// Report that a watched account changed, or may have. A validator reports changes from now on.
    Changed(AccountKey),
    /// Report that the watch over an account broke.
    WatchLost(AccountKey),
}

/// The reply to a question or a batch.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A validator's answer to a question.
    Answer(Box<Answer>),
    /// One result for each command.
    Carried(Vec<Result<Acceptance, Refusal>>),
    /// A validator found the batch invalid or too large.
    NotTaken(Box<Answer>),
    /// The market may or may not have carried out the batch, and never will again: the caller must
    /// look at the log.
    Uncertain(NoReply),
    /// No validator answered a question, or accepted a batch, in time.
    Unreached(NoReply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum Timer {
    /// A validator's time for a question is over.
    Answer(CallId),
    /// The client repeats a question.
    Pause(CallId),
    /// The client signs a batch by its own clock, because too few validators stated theirs.
    Clocks(CallId),
    /// The client resumes a watch.
    Watch(AccountKey),
}

/// The moment of an answer, by the clocks of this machine.
#[derive(Clone, Copy, Debug)]
struct Moment {
    now: Now,
    /// The clock that people set, in microseconds since 1970.
    own: Micros,
}

/// A client to a market; see the module.
#[derive(Clone, Debug, Serialize)]
pub struct MarketClient {
    account: AccountKey,
    market: MarketId,
    validators: usize,
    preferred: usize,
    next: u64,
    open: BTreeMap<CallId, Open>,
    putting: BTreeMap<RequestAttempt, (CallId, ValidatorIndex)>,
    waiting: VecDeque<(CallId, PendingCall, Option<Box<Request>>)>,
    nonces: Nonces,
    offsets: Offsets,
    /// When the client last asked all validators for their clocks, by both of its own.
    clocks_asked: Option<ClockReading>,
    watching: Watching,
    timers: Timers<Timer>,
}

impl MarketClient {
    /// Creates a client of an account that knows `validators` validators: at least one.
    #[must_use]
    pub fn new(account: AccountKey, market: MarketId, validators: usize) -> MarketClient {
        assert!(validators > 0, "a client knows a validator");
        MarketClient {
            account,
            market,
            validators,
            preferred: first_validator(account, validators),
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

    /// Sets the account and the market of all later commands, and begins with the account's first
    /// validator.
    pub fn sign_for(&mut self, account: AccountKey, market: MarketId) {
        (self.account, self.market) = (account, market);
        self.preferred = first_validator(account, self.validators);
    }

    /// Returns the moment at which you must send [`Event::TimerFired`], if any.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// Returns the market's clock when this machine's shows `own`, as far as validators have
    /// reported it.
    #[must_use]
    pub fn log_time(&self, own: Millis) -> Millis {
        self.offsets.log_time(own)
    }

    /// Returns the number of questions and batches that await a reply.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// Applies an event and returns the actions to carry out; `own` is this machine's clock, in
    /// microseconds since 1970.
    pub fn apply(&mut self, now: Now, own: Micros, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ask { asked, question } => {
                self.waiting
                    .push_back((asked, PendingCall::Question, Some(question)));
            }
            Event::Carry { asked, commands } => {
                let matter = PendingCall::of_commands(commands);
                self.waiting.push_back((asked, matter, None));
            }
            Event::Forget(asked) => self.forget_call(asked, &mut actions),
            Event::Signed { asked, batch } => self.on_signed(asked, *batch, now, &mut actions),
            Event::Heard { putting, heard } => {
                self.on_heard(putting, heard, now, own, &mut actions);
            }
            Event::Time { validator, time } => {
                self.offsets
                    .record_clock(validator, time, Millis(own.0 / 1_000));
                self.sign_waiting(own, &mut actions);
            }
            Event::Watch(account) => self.watch_account(account, &mut actions),
            Event::Unwatch(account) => {
                self.timers.stop_timer(Timer::Watch(account));
                actions.extend(self.watching.end_watch(account).map(Action::Unwatch));
            }
            Event::Watched { watch, goes_on } => {
                self.on_watched(watch, goes_on, now, &mut actions);
            }
            Event::Validators(count) => {
                assert!(count > 0, "a client knows a validator");
                self.validators = count;
                self.preferred = first_validator(self.account, count);
                self.offsets.forget_clocks();
                self.clocks_asked = None;
                self.forget_refusals();
            }
            Event::TimerFired => self.on_timer_fired(now, own, &mut actions),
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
                last: NoReply::Broken,
            };
            self.ask_times(
                ClockReading {
                    tick: now.tick,
                    own,
                },
                actions,
            );
            let before = self.open.insert(asked, open);
            assert!(before.is_none(), "what is asked has a name of its own");
            match self.open[&asked].question {
                Some(_) => self.ask_next_validator(asked, now, actions),
                None => self.begin_batch(asked, now, own, actions),
            }
        }
    }

    /// Asks all validators for their clocks, unless it did lately: one validator's clock alone is
    /// not to be trusted. A client without questions needs no clock.
    fn ask_times(&mut self, now: ClockReading, actions: &mut Vec<Action>) {
        let is_known = |asked: ClockReading| !now.needs_clocks(asked);
        if self.validators < offsets::SAID_MIN || self.clocks_asked.is_some_and(is_known) {
            return;
        }
        self.clocks_asked = Some(now);
        actions.extend((0..self.validators).map(|place| Action::AskTime(ValidatorIndex(place))));
    }

    fn forget_call(&mut self, asked: CallId, actions: &mut Vec<Action>) {
        self.waiting.retain(|(other, ..)| *other != asked);
        if let Some(open) = self.close_call(asked) {
            actions.extend(open.putting.map(Action::Stop));
        }
    }

    /// Ends a call and all that it waits for.
    fn close_call(&mut self, asked: CallId) -> Option<Open> {
        let open = self.open.remove(&asked)?;
        self.timers.stop_timer(Timer::Answer(asked));
        self.timers.stop_timer(Timer::Pause(asked));
        self.timers.stop_timer(Timer::Clocks(asked));
        if let Some(putting) = open.putting {
            self.putting.remove(&putting);
        }
        Some(open)
    }

    fn send_reply(&mut self, asked: CallId, reply: Reply, actions: &mut Vec<Action>) {
        self.close_call(asked).expect("a reply is to an open call");
        actions.push(Action::Reply { asked, reply });
    }

    /// Puts the question to the next validator.
    fn ask_next_validator(&mut self, asked: CallId, now: Now, actions: &mut Vec<Action>) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        if let PendingCall::Commands { refused, .. } = &mut open.matter {
            refused.stop_asking();
        }
        let validator = ValidatorIndex((open.first + open.tried) % self.validators);
        let question = open.question.clone().expect("what is put is signed");
        self.put_question(asked, validator, question, now, actions);
    }

    fn put_question(
        &mut self,
        asked: CallId,
        validator: ValidatorIndex,
        question: Box<Request>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let putting = RequestAttempt(self.next);
        self.next += 1;
        let open = self.open.get_mut(&asked).expect("it is under way");
        open.putting = Some(putting);
        self.putting.insert(putting, (asked, validator));
        let over = now.tick.plus(ANSWER_PATIENCE);
        self.timers.set_timer(Timer::Answer(asked), over);
        actions.push(Action::Put {
            asked,
            putting,
            validator,
            question,
        });
    }

    fn on_heard(
        &mut self,
        putting: RequestAttempt,
        heard: Result<ValidatorAnswer, NoReply>,
        now: Now,
        own: Micros,
        actions: &mut Vec<Action>,
    ) {
        let Some((asked, validator)) = self.putting.remove(&putting) else {
            return;
        };
        self.timers.stop_timer(Timer::Answer(asked));
        let heard = heard.and_then(|heard| {
            if let Some(time) = heard.time {
                self.offsets
                    .record_clock(validator, time, Millis(own.0 / 1_000));
            }
            match heard.answer {
                Answer::Busy { .. } => Err(NoReply::Busy),
                Answer::Unavailable(_) => Err(NoReply::Unavailable),
                answer => Ok(answer),
            }
        });
        let open = self.open.get_mut(&asked).expect("what is put is under way");
        open.putting = None;
        match heard {
            Err(silence) => self.on_silence(asked, silence, now, actions),
            Ok(answer) => {
                self.preferred = validator.0 % self.validators;
                self.on_answer(asked, validator, answer, Moment { now, own }, actions);
            }
        }
    }

    fn on_silence(&mut self, asked: CallId, silence: NoReply, now: Now, actions: &mut Vec<Action>) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        open.last = silence;
        // A full validator has accepted nothing; any other may have.
        open.repeated |= silence != NoReply::Busy;
        self.try_next_validator(asked, now, actions);
    }

    /// Asks the next validator, after a pause if each was asked once more, or gives up.
    fn try_next_validator(&mut self, asked: CallId, now: Now, actions: &mut Vec<Action>) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        if now.tick.since(open.began) >= PATIENCE {
            let maybe = open.repeated && matches!(open.matter, PendingCall::Commands { .. });
            let reply = match maybe {
                true => Reply::Uncertain(open.last),
                false => Reply::Unreached(open.last),
            };
            return self.send_reply(asked, reply, actions);
        }
        open.tried += 1;
        if open.tried.is_multiple_of(self.validators) {
            let over = now.tick.plus(ROUND_PAUSE);
            return self.timers.set_timer(Timer::Pause(asked), over);
        }
        self.ask_next_validator(asked, now, actions);
    }

    fn on_answer(
        &mut self,
        asked: CallId,
        validator: ValidatorIndex,
        answer: Answer,
        at: Moment,
        actions: &mut Vec<Action>,
    ) {
        match self.open[&asked].matter {
            PendingCall::Commands { .. } => {
                self.on_batch_answer(asked, validator, answer, at, actions);
            }
            PendingCall::Question => {
                self.send_reply(asked, Reply::Answer(Box::new(answer)), actions);
            }
        }
    }

    fn on_timer_fired(&mut self, now: Now, own: Micros, actions: &mut Vec<Action>) {
        while let Some(timer) = self.timers.pop(now.tick) {
            match timer {
                Timer::Pause(asked) => self.ask_next_validator(asked, now, actions),
                Timer::Clocks(asked) => self.sign_batch(asked, own, actions),
                Timer::Watch(account) => self.watch_account(account, actions),
                Timer::Answer(asked) => {
                    let open = self.open.get_mut(&asked).expect("a timer has an owner");
                    let putting = open.putting.take().expect("it waits for a validator");
                    self.putting.remove(&putting);
                    actions.push(Action::Stop(putting));
                    self.on_silence(asked, NoReply::Slow, now, actions);
                }
            }
        }
    }

    fn watch_account(&mut self, account: AccountKey, actions: &mut Vec<Action>) {
        let (watch, turn) = self.watching.begin_watch(account);
        let first = first_validator(self.account, self.validators);
        let validator = ValidatorIndex((first + turn % self.validators) % self.validators);
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
        actions.push(Action::WatchLost(account));
        self.watching.forget_watch(watch);
        let over = now.tick.plus(watching::RECONNECT_PAUSE);
        self.timers.set_timer(Timer::Watch(account), over);
    }
}

/// Returns the place of the validator with which an account begins: its key, as one number, modulo
/// the number of validators. Keys are as good as random, so accounts spread evenly.
fn first_validator(account: AccountKey, validators: usize) -> usize {
    let digits = account.0.iter().map(|byte| usize::from(*byte));
    digits.fold(0, |place, byte| (place * 256 + byte) % validators)
}

#[cfg(test)]
mod tests;
