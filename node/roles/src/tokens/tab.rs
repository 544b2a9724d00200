//! The core of the buyer's side of one tab: buys a lease of an endpoint (a provider that sells text
//! by the token), opens it at the provider, sends one request after the other, and pays by a
//! receipt, but never for more tokens than the buyer counted itself.
//!
//! ```text
//! Buying ─> Finding ─> Opened ─Accepted─> Preparing ─Ready─> Serving ─closed─> Finishing
//!   ─receipt─> Signing ─> Settling ─> over
//! Opened … Finishing ─the provider is lost or wrong─> Ending ─the log closed the lease─> over
//! ```
//! A tab is for one request at a time. It closes if no request comes for [`IDLE_MAX`], if its lease
//! is about to end, or if its owner closes it. A tab that ends early fails its open request, and
//! says whether another provider can answer it.

mod buying;
mod ending;
mod event;
mod receipt;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{
    AccountKey, Command, Credits, DeviceMicros, JobId, Lease, LeaseId, Listing, MarketId, Millis,
    Note, Receipt, TokenTerms, Units,
};
use souk_memory::ContentId;

use crate::clock::{Micros, Now, Timers};
use crate::effect::{Effect, PendingEffects};
use crate::job::facts::Terms;
use crate::lease::{
    BuyerMessage, Failure, Input, Output, Part, ProviderMessage, Request, Source, Start,
    TAB_ANSWER, TAB_REQUEST, truncate_text,
};
use crate::tokens::counting::TokenCount;

use buying::LOOK_PERIOD;

pub use event::{TabAction, TabAnswer, TabEvent, TabFailure, TabOutcome, TabStage};
pub use receipt::BillObjection;

/// How long an answer can take without any text: an engine reads a long prompt first.
const TEXT_WAIT_MAX: Micros = Micros::from_seconds(75);

/// How long text that has begun can pause. The provider stops waiting for its engine earlier.
const TEXT_PAUSE_MAX: Micros = Micros::from_seconds(25);

/// How long a tab stays open without a request, because a new one takes a purchase. Each idle
/// second costs a tenth of the price by the market's reserve, or more by a floor.
pub const IDLE_MAX: Micros = Micros::from_seconds(2);

/// The longest silence of the provider, whose heartbeat comes every three seconds; the first
/// message can take longer.
const SILENCE_MAX: Micros = Micros::from_seconds(9);
const FIRST_MESSAGE_MAX: Micros = Micros::from_seconds(20);

/// When the core reports to the log that the work has begun, so that the provider may note usage.
const START_AFTER: Micros = Micros::from_seconds(2);

/// When it reports that again, if the market did not answer.
const START_AGAIN: Micros = Micros::from_seconds(1);

/// How long the provider can take for its receipt.
const RECEIPT_MAX: Micros = Micros::from_seconds(20);

/// How long the market can still carry out a purchase without an answer.
const UNCERTAIN_FOR: Micros = Micros::from_seconds(75);

/// The specification of a tab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TabSpec {
    /// The market of the purchase.
    pub market: MarketId,
    /// The account that buys.
    pub account: AccountKey,
    /// The id under which the lease is bought; no other purchase may have it.
    pub job: JobId,
    /// The ask to buy from. The market can sell a cheaper one of the same book instead.
    pub listing: Box<Listing>,
    /// The providers not to buy from, at most [`souk_market::EXCLUDED_MAX`].
    pub excluded: Vec<AccountKey>,
    /// Whether only the provider of the listing can sell the tab.
    pub is_strict: bool,
    /// The id of the card that the ask sells.
    pub card: ContentId,
    /// The length of the lease.
    pub duration: Millis,
}

impl TabSpec {
    /// Returns the most that the tab can cost: its lease's whole time.
    #[must_use]
    pub fn escrow(&self) -> Credits {
        let escrow = self.listing.price.escrow_for(Units(1), self.duration);
        escrow.unwrap_or(Credits(u64::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum TabWait {
    Buy,
    Look,
    Find,
    Count,
    Sign,
    Settle,
    /// The report that the work has begun.
    Start,
    /// A command whose result changes nothing here.
    Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum TabTimer {
    /// The provider is silent.
    Silent,
    /// The begin of the work is to be reported.
    Start,
    /// No request came.
    Idle,
    /// The lease is about to end.
    Nears,
    /// The receipt is late.
    Receipt,
    /// The open answer has had no text for long.
    Text,
    /// A note is to be answered.
    Note,
    /// The log did not close the lease in time.
    Closing,
    /// The log is to be searched for an uncertain purchase again.
    Look,
}

/// A request without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct TabRequest {
    number: u32,
    body: ContentId,
    is_sent: bool,
    /// The answer that the provider names.
    answer: Option<ContentId>,
}

/// The core of one tab.
#[derive(Clone, Debug, Serialize)]
pub struct TabCore {
    spec: TabSpec,
    now: Now,
    stage: TabStage,
    terms: Option<Terms>,
    start: Option<Box<Start>>,
    open: Option<TabRequest>,
    /// The number of the next request.
    next: u32,
    /// The answers that came, by request.
    answers: BTreeMap<u32, ContentId>,
    counted: TokenCount,
    /// The tokens of an unfinished answer whose text came and will not be counted otherwise.
    streamed: TokenCount,
    /// Since when the tab has no request, and for how long it had none before.
    idle_since: Option<Micros>,
    idle: Micros,
    is_closing: bool,
    note: Option<Note>,
    has_disputed: bool,
    receipt: Option<Box<Receipt>>,
    failure: Option<TabFailure>,
    cost: Option<Credits>,
    /// The last state of the lease that came while a receipt was signed and settled.
    seen_at_end: Option<Box<Lease>>,
    /// Until when an uncertain purchase can still be carried out.
    uncertain_until: Micros,
    timers: Timers<TabTimer>,
    waits: PendingEffects<TabWait>,
    #[serde(skip)]
    effects: Vec<Effect<TabAction>>,
}

impl TabCore {
    /// Begins a tab with its first request. Returns the core and its first effects.
    #[must_use]
    pub fn begin(spec: TabSpec, first: ContentId, now: Now) -> (TabCore, Vec<Effect<TabAction>>) {
        let mut core = TabCore {
            now,
            stage: TabStage::Buying,
            terms: None,
            start: None,
            open: Some(TabRequest {
                number: 0,
                body: first,
                is_sent: false,
                answer: None,
            }),
            next: 1,
            answers: BTreeMap::new(),
            counted: TokenCount::default(),
            streamed: TokenCount::default(),
            idle_since: None,
            idle: Micros(0),
            is_closing: false,
            note: None,
            has_disputed: false,
            receipt: None,
            failure: None,
            cost: None,
            seen_at_end: None,
            uncertain_until: Micros(0),
            timers: Timers::default(),
            waits: PendingEffects::default(),
            effects: Vec::new(),
            spec,
        };
        let bid = Box::new(core.to_bid());
        core.request_effect(TabAction::Buy(bid), TabWait::Buy);
        let effects = std::mem::take(&mut core.effects);
        (core, effects)
    }

    /// Applies an event and returns the effects to carry out. The tick of `now` must not go back.
    pub fn apply(&mut self, now: Now, event: TabEvent) -> Vec<Effect<TabAction>> {
        if self.stage == TabStage::Over {
            return Vec::new();
        }
        assert!(now.tick >= self.now.tick, "time does not go back");
        self.now = now;
        match event {
            TabEvent::NewRequest { body, most } => self.on_request(body, most),
            TabEvent::Close => self.close(),
            TabEvent::MessageReceived(message) => self.on_message(message),
            TabEvent::StreamClosed { why } => {
                if self.is_talking() {
                    self.end_early(TabFailure::NotReached(truncate_text(why)));
                }
            }
            TabEvent::Changed { lease } => self.on_changed(&lease),
            TabEvent::TextArrived { streamed } => self.on_text(streamed),
            TabEvent::TimerFired => {}
            TabEvent::EffectAnswered { ticket, answer } => {
                if let Some(wait) = self.waits.take_wait(ticket) {
                    self.on_answer(wait, answer);
                }
            }
        }
        while self.stage != TabStage::Over {
            let Some(timer) = self.timers.pop(now.tick) else {
                break;
            };
            self.on_timer(timer);
        }
        self.assert_invariants();
        std::mem::take(&mut self.effects)
    }

    /// Returns the moment at which you must send [`TabEvent::TimerFired`], if any.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Micros> {
        self.timers.wakes_at()
    }

    /// Returns the stage.
    #[must_use]
    pub fn stage(&self) -> TabStage {
        self.stage
    }

    /// Returns whether the tab can take a request now.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.stage == TabStage::Serving && self.open.is_none() && !self.is_closing
    }

    fn push_effect(&mut self, action: TabAction) {
        let ticket = self.waits.new_ticket();
        self.effects.push(Effect { ticket, action });
    }

    fn request_effect(&mut self, action: TabAction, wait: TabWait) {
        let ticket = self.waits.open_wait(wait);
        self.effects.push(Effect { ticket, action });
    }

    fn submit_command(&mut self, command: Command, wait: TabWait) {
        self.request_effect(TabAction::Command(Box::new(command)), wait);
    }

    fn wake_in(&mut self, timer: TabTimer, after: Micros) {
        self.timers.set_timer(timer, self.now.tick.plus(after));
    }

    /// Returns the terms of tokens of the lease.
    fn token_terms(&self) -> TokenTerms {
        let terms = self.terms.as_ref().and_then(|terms| terms.tokens);
        terms.unwrap_or(TokenTerms::USUAL)
    }

    /// Returns the device time of the whole lease.
    fn lease_time(&self) -> DeviceMicros {
        let time = |terms: &Terms| {
            let time = terms.deadline.saturating_since(terms.start);
            DeviceMicros::from_units(terms.quantity, time)
        };
        self.terms.as_ref().map_or(DeviceMicros(0), time)
    }

    /// Returns whether the lease has enough device time left for these tokens.
    fn has_time_for(&self, tokens: TokenCount) -> bool {
        let all = self.counted.plus(tokens);
        all.device_time(self.token_terms()) <= self.lease_time()
    }

    /// Returns whether the provider's messages still count.
    fn is_talking(&self) -> bool {
        (TabStage::Opened..=TabStage::Finishing).contains(&self.stage)
    }

    fn lease_id(&self) -> LeaseId {
        self.terms.as_ref().expect("the lease is bought").lease
    }

    fn on_answer(&mut self, wait: TabWait, answer: TabAnswer) {
        match (wait, answer) {
            (TabWait::Buy, TabAnswer::Bought(trade)) => self.on_bought(Terms::from(&*trade)),
            (TabWait::Buy, TabAnswer::NotBought(refusal)) => {
                self.stop(TabFailure::NotSold(refusal))
            }
            (TabWait::Buy, TabAnswer::Uncertain(_)) => {
                self.stage = TabStage::Adopting;
                self.uncertain_until = self.now.tick.plus(UNCERTAIN_FOR);
                self.request_effect(TabAction::Look, TabWait::Look);
            }
            (TabWait::Look, TabAnswer::Leases(leases)) => self.on_looked(&leases),
            (TabWait::Look, TabAnswer::Uncertain(_)) => self.wake_in(TabTimer::Look, LOOK_PERIOD),
            (TabWait::Find, TabAnswer::Found) => self.open_stream(),
            (TabWait::Find, TabAnswer::NotFound(why)) => {
                self.end_early(TabFailure::NotReached(truncate_text(why)));
            }
            (TabWait::Count, TabAnswer::Counted(count)) => self.on_counted(count),
            (TabWait::Count, TabAnswer::NotCounted(why)) => {
                self.end_early(TabFailure::BadAnswer(truncate_text(why)));
            }
            (TabWait::Count, TabAnswer::NotStored(why)) => {
                self.end_early(TabFailure::Memory(truncate_text(why)));
            }
            (TabWait::Sign, TabAnswer::Signed(receipt)) => self.on_signed(receipt),
            (TabWait::Settle, TabAnswer::Commanded(settled)) => self.on_settled(settled),
            (TabWait::Start, TabAnswer::Commanded(reported)) => self.on_start_reported(&reported),
            (TabWait::Command, TabAnswer::Commanded(_)) => {}
            (wait, answer) => unreachable!("{answer:?} does not answer {wait:?}"),
        }
    }

    fn open_stream(&mut self) {
        let Some(open) = &mut self.open else {
            return self.end_early(TabFailure::Closing);
        };
        open.is_sent = true;
        let first = Request::new(open.number, vec![(TAB_REQUEST.to_owned(), open.body)]);
        let start = Box::new(Start {
            lease: self.terms.as_ref().expect("it is bought").lease,
            job: self.spec.job,
            parts: vec![Part {
                name: self.spec.listing.resources.model.to_string(),
                graph: self.spec.card,
                weights: Vec::new(),
                inputs: vec![Input {
                    name: TAB_REQUEST.to_owned(),
                    source: Source::Buyer,
                    fed: None,
                }],
                outputs: vec![Output {
                    name: TAB_ANSWER.to_owned(),
                    consumers: Vec::new(),
                    is_wanted: true,
                }],
                // Tokens are counted, so no figure of a device judges the work.
                flops: 0,
                expected: Micros(0),
            }],
            peers: Vec::new(),
            priority: 0,
            sequences: 1,
            first,
            last: false,
        });
        self.start = Some(start.clone());
        self.stage = TabStage::Opened;
        self.wake_in(TabTimer::Silent, FIRST_MESSAGE_MAX);
        self.wake_in(TabTimer::Start, START_AFTER);
        self.push_effect(TabAction::Open(start));
    }

    fn on_request(&mut self, body: ContentId, most: TokenCount) {
        assert!(self.open.is_none(), "a tab has one request at a time");
        if !self.is_free() {
            return self.push_effect(TabAction::Fail(TabFailure::Closing));
        }
        if !self.has_time_for(most) {
            self.push_effect(TabAction::Fail(TabFailure::Closing));
            return self.close();
        }
        let number = self.next;
        self.next += 1;
        self.open = Some(TabRequest {
            number,
            body,
            is_sent: true,
            answer: None,
        });
        self.timers.stop_timer(TabTimer::Idle);
        self.end_idle();
        self.streamed = TokenCount::default();
        self.wait_for_text();
        let request = Request::new(number, vec![(TAB_REQUEST.to_owned(), body)]);
        self.push_effect(TabAction::SendMessage(BuyerMessage::Next(request)));
    }

    fn on_message(&mut self, message: ProviderMessage) {
        if !self.is_talking() {
            return;
        }
        if self.stage != TabStage::Opened || message == ProviderMessage::Accepted {
            self.wake_in(TabTimer::Silent, SILENCE_MAX);
        }
        match (message, self.stage) {
            (ProviderMessage::Alive | ProviderMessage::Fetched { .. }, _) => {}
            (ProviderMessage::Failed(failure), _) => {
                self.end_early(TabFailure::Failed(failure.truncate_texts()));
            }
            (ProviderMessage::Accepted, TabStage::Opened) => self.stage = TabStage::Preparing,
            (ProviderMessage::Ready, TabStage::Preparing) => {
                self.stage = TabStage::Serving;
                self.push_effect(TabAction::SendMessage(BuyerMessage::Go));
                self.wait_for_text();
                self.close_if_done();
            }
            (ProviderMessage::Running { .. }, TabStage::Serving | TabStage::Finishing) => {}
            (
                ProviderMessage::Made {
                    request, outputs, ..
                },
                TabStage::Serving | TabStage::Finishing,
            ) => {
                self.on_made(request, &outputs);
            }
            (ProviderMessage::Stalled(failure), TabStage::Serving | TabStage::Finishing) => {
                self.on_stalled(failure.truncate_texts());
            }
            (ProviderMessage::Stalled(failure), _) => {
                self.end_early(TabFailure::Failed(failure.truncate_texts()));
            }
            (ProviderMessage::Finished(finished), TabStage::Serving | TabStage::Finishing) => {
                self.on_finished(finished.receipt);
            }
            _ => self.end_early(TabFailure::Confused),
        }
    }

    /// Waits from now on for the first text of the open answer, or for the answer itself.
    fn wait_for_text(&mut self) {
        if self.open.is_some() && self.is_talking() {
            self.wake_in(TabTimer::Text, TEXT_WAIT_MAX);
        }
    }

    /// Records the text of the open answer so far, which the buyer owes even if no more comes.
    fn on_text(&mut self, streamed: TokenCount) {
        let open = self.open.as_ref().filter(|open| open.answer.is_none());
        if open.is_some() && self.is_talking() {
            self.streamed = streamed;
            self.wake_in(TabTimer::Text, TEXT_PAUSE_MAX);
        }
    }

    /// Adds the time in which the tab had no request.
    fn end_idle(&mut self) {
        if let Some(since) = self.idle_since.take() {
            self.idle = self.idle.plus(Micros(self.now.tick.since(since).0));
        }
    }

    fn on_made(&mut self, request: u32, outputs: &[(String, ContentId)]) {
        let named = match outputs {
            [(name, id)] if name == TAB_ANSWER => Some(*id),
            _ => None,
        };
        let open = self.open.as_mut();
        let open = open.filter(|open| open.number == request && open.answer.is_none());
        let (Some(open), Some(answer)) = (open, named) else {
            return self.end_early(TabFailure::Confused);
        };
        open.answer = Some(answer);
        self.answers.insert(request, answer);
        self.wait_for_text();
        self.request_effect(TabAction::Count { request, answer }, TabWait::Count);
    }

    fn on_counted(&mut self, count: TokenCount) {
        let Some(open) = &self.open else {
            return;
        };
        if open.answer.is_none() {
            return;
        }
        self.counted = self.counted.plus(count);
        (self.open, self.streamed) = (None, TokenCount::default());
        self.timers.stop_timer(TabTimer::Text);
        self.idle_since = Some(self.now.tick);
        self.push_effect(TabAction::Deliver);
        self.report_start_early();
        match self.receipt.take() {
            // The receipt came while the last answer was counted.
            Some(receipt) => self.on_finished(*receipt),
            None => {
                self.wake_in(TabTimer::Idle, IDLE_MAX);
                self.close_if_done();
            }
        }
    }

    /// The provider begins no more requests, and sends its receipt for the answers so far.
    fn on_stalled(&mut self, failure: Failure) {
        self.is_closing = true;
        if self.open.as_ref().is_some_and(|open| open.answer.is_none()) {
            self.fail_request(TabFailure::Failed(failure));
        }
        self.close_if_done();
    }

    fn close(&mut self) {
        self.is_closing = true;
        self.close_if_done();
    }

    /// Tells the provider that no more requests follow, once the tab is closing and no request is
    /// open.
    fn close_if_done(&mut self) {
        if !self.is_closing || self.open.is_some() || self.stage != TabStage::Serving {
            return;
        }
        self.stage = TabStage::Finishing;
        self.timers.stop_timer(TabTimer::Idle);
        self.wake_in(TabTimer::Receipt, RECEIPT_MAX);
        self.push_effect(TabAction::SendMessage(BuyerMessage::NoMore));
    }

    fn on_timer(&mut self, timer: TabTimer) {
        match timer {
            TabTimer::Silent if self.is_talking() => {
                let patience = match self.stage {
                    TabStage::Opened => FIRST_MESSAGE_MAX,
                    _ => SILENCE_MAX,
                };
                self.end_early(TabFailure::Silent(patience));
            }
            TabTimer::Start if self.is_talking() => self.start_work(),
            TabTimer::Idle | TabTimer::Nears => self.close(),
            TabTimer::Text if self.open.is_some() && self.is_talking() => {
                let patience = match self.streamed.output {
                    0 => TEXT_WAIT_MAX,
                    _ => TEXT_PAUSE_MAX,
                };
                self.end_early(TabFailure::Silent(patience));
            }
            TabTimer::Receipt if self.stage == TabStage::Finishing => {
                self.end_early(TabFailure::Silent(RECEIPT_MAX));
            }
            TabTimer::Note => self.answer_note(),
            TabTimer::Look => self.request_effect(TabAction::Look, TabWait::Look),
            TabTimer::Closing => {
                let escrow = self.terms.as_ref().map_or(Credits(0), |it| it.escrow);
                self.finish(self.cost.unwrap_or(escrow));
            }
            TabTimer::Silent | TabTimer::Start | TabTimer::Receipt | TabTimer::Text => {}
        }
    }

    fn assert_invariants(&self) {
        let is_over = self.stage == TabStage::Over;
        assert!(
            is_over || !self.timers.is_empty() || !self.waits.is_empty(),
            "{:?} waits for nothing",
            self.stage
        );
        assert!(!is_over || self.open.is_none(), "each request is answered");
        let is_billed = matches!(self.stage, TabStage::Signing | TabStage::Settling);
        assert!(!is_billed || self.open.is_none(), "a bill comes last");
    }
}
