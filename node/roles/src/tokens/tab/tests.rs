//! Tests the core of a tab against the real core of a provider and a real exchange, in short
//! scripts and in random histories.

mod crowd;

use std::cell::Cell;
use std::collections::VecDeque;

use souk_market::{
    Acceptance, CloseReason, DeviceMicros, LeaseState, ReceiptBody, SigningKey, TokenUsage,
};

use super::*;
use crate::lease::Opening;
use crate::provider::Answer as ProviderAnswer;
use crate::provider::event::RunResult;
use crate::provider::tests::world::{PRICE, RUN_TOKENS, World, account, id, is_run, key};
use crate::provider::{Fact, StreamId};
use crate::session::tests::model::Dice;
use crate::tokens::card::TextCard;

/// What an honest provider bills for a request, as the world plays it.
const HONEST: DeviceMicros = DeviceMicros(30_000);

/// The terms of the provider: an honest one bills [`HONEST`] by them for [`RUN_TOKENS`].
const TERMS: TokenTerms = TokenTerms::USUAL;

/// A tab, and the provider and market around it.
struct TabWorld {
    world: World,
    core: TabCore,
    pending: VecDeque<Effect<TabAction>>,
    stream: Option<StreamId>,
    /// How many messages of the provider the tab has received.
    heard: usize,
    heard_alive: u32,
    /// The lease that the tab follows.
    followed: Option<LeaseId>,
    last_seen: Option<Lease>,
    /// The tokens that the tab counts for a request.
    counts: TokenCount,
    /// Why the tab's owner cannot store an answer, if so.
    is_full: Option<String>,
    asked: u32,
    delivered: u32,
    failures: Vec<TabFailure>,
    outcome: Option<TabOutcome>,
}

impl TabWorld {
    fn new() -> TabWorld {
        TabWorld::with_spec(|_| {})
    }

    fn with_spec(change: impl FnOnce(&mut TabSpec)) -> TabWorld {
        TabWorld::with_terms(TERMS, change)
    }

    fn with_terms(terms: TokenTerms, change: impl FnOnce(&mut TabSpec)) -> TabWorld {
        let card = TextCard::new("qwen/qwen3-8b").unwrap();
        let world = World::selling_model(&card, terms);
        let listing = world.exchange.all_asks().next().expect("it is on offer");
        let mut spec = TabSpec {
            market: world.exchange.market(),
            account: account(&world.buyer),
            job: JobId([8; 32]),
            listing: Box::new(listing),
            excluded: Vec::new(),
            is_strict: false,
            card: card.id(),
            duration: Millis(300_000),
        };
        change(&mut spec);
        let (core, effects) = TabCore::begin(spec, id("body 0"), world.now);
        TabWorld {
            world,
            core,
            pending: effects.into(),
            stream: None,
            heard: 0,
            heard_alive: 0,
            followed: None,
            last_seen: None,
            counts: RUN_TOKENS,
            is_full: None,
            asked: 1,
            delivered: 0,
            failures: Vec::new(),
            outcome: None,
        }
    }

    fn on(&mut self, event: TabEvent) {
        let effects = self.core.apply(self.world.now, event);
        self.pending.extend(effects);
    }

    fn buyer(&self) -> SigningKey {
        self.world.buyer.clone()
    }

    /// Carries out the tab's next effect.
    fn carry_out(&mut self) {
        let Some(Effect { ticket, action }) = self.pending.pop_front() else {
            return;
        };
        let answer = match action {
            TabAction::Buy(bid) => match self.carry(Command::PlaceBid(bid)) {
                Ok(Acceptance::Placed { trades, .. }) => TabAnswer::Bought(Box::new(trades[0])),
                Ok(other) => panic!("{other:?} is no trade"),
                Err(refusal) => TabAnswer::NotBought(refusal),
            },
            TabAction::Look => {
                let job = JobId([8; 32]);
                let leases = self.world.exchange.leases();
                TabAnswer::Leases(leases.filter(|it| it.job == job).cloned().collect())
            }
            TabAction::Find(_) => TabAnswer::Found,
            TabAction::Open(start) => {
                self.stream = Some(self.world.open(Opening::Start(start)));
                return;
            }
            TabAction::SendMessage(message) => {
                if let Some(stream) = self.stream {
                    self.world.say(stream, message);
                }
                return;
            }
            TabAction::CloseStream => return self.hang(),
            TabAction::Follow(terms) => {
                self.followed = Some(terms.lease);
                return;
            }
            TabAction::Count { .. } => match self.is_full.clone() {
                Some(why) => TabAnswer::NotStored(why),
                None => TabAnswer::Counted(self.counts),
            },
            TabAction::Deliver => {
                self.delivered += 1;
                return;
            }
            TabAction::Fail(failure) => return self.failures.push(failure),
            TabAction::Sign(receipt) => {
                TabAnswer::Signed(Box::new(receipt.sign_as_buyer(&self.buyer())))
            }
            TabAction::Command(command) => {
                let done = self.carry(*command);
                TabAnswer::Commanded(done.map(drop).map_err(|refusal| refusal.to_string()))
            }
            TabAction::Over(outcome) => {
                assert_eq!(self.outcome.replace(outcome), None, "it ends once");
                return;
            }
        };
        self.on(TabEvent::EffectAnswered { ticket, answer });
    }

    fn carry(&mut self, command: Command) -> Result<Acceptance, souk_market::Refusal> {
        let buyer = self.buyer();
        self.world.carry(&buyer, command)
    }

    /// The tab's end of the stream closes.
    fn hang(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.world.hang(stream);
        }
    }

    /// The tab receives the provider's next message, or what changed in the log.
    fn hear(&mut self) -> bool {
        let lease = self.followed.and_then(|id| self.world.exchange.lease(id));
        if let Some(lease) = lease.filter(|lease| self.last_seen.as_ref() != Some(lease)) {
            let lease = Box::new(lease.clone());
            self.last_seen = Some((*lease).clone());
            self.on(TabEvent::Changed { lease });
            return true;
        }
        let Some(stream) = self.stream else {
            return false;
        };
        if self.heard_alive < self.world.alive {
            self.heard_alive = self.world.alive;
            self.on(TabEvent::MessageReceived(ProviderMessage::Alive));
            return true;
        }
        let Some(message) = self.world.said[&stream].get(self.heard).cloned() else {
            return false;
        };
        self.heard += 1;
        self.on(TabEvent::MessageReceived(message));
        true
    }

    /// Everything happens at once, until nothing does.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            self.world.settle();
            let heard = self.hear();
            if self.pending.is_empty() && !heard {
                return;
            }
            self.carry_out();
        }
        panic!("it never comes to rest: {:?}", self.pending);
    }

    fn wake(&mut self) {
        let is_due = |at: &Micros| *at <= self.world.now.tick;
        if self.core.wakes_at().filter(is_due).is_some() {
            self.on(TabEvent::TimerFired);
        }
    }

    /// Time goes on, and all that is wanted is done at once.
    fn live(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.world.pass(250);
            self.wake();
            self.settle();
        }
    }

    /// Time goes on while the engine gives no answer.
    fn live_without_answers(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.world.pass(250);
            self.wake();
            self.settle_without_answers();
        }
    }

    /// All happens but that the tab hears of its provider.
    fn settle_but_the_receipt(&mut self) {
        while !self.pending.is_empty() {
            self.carry_out();
            self.world.settle();
        }
        self.world.settle();
    }

    /// Everything happens at once, but the effects of one kind are dropped.
    fn settle_but(&mut self, is_dropped: impl Fn(&Effect<TabAction>) -> bool) {
        for _ in 0..1_000 {
            self.world.settle();
            let heard = self.hear();
            self.pending.retain(|effect| !is_dropped(effect));
            if self.pending.is_empty() && !heard {
                return;
            }
            self.carry_out();
        }
        panic!("it never comes to rest: {:?}", self.pending);
    }

    fn settle_without_answers(&mut self) {
        for _ in 0..1_000 {
            self.world.settle_but(is_run);
            let heard = self.hear();
            if self.pending.is_empty() && !heard {
                return;
            }
            self.carry_out();
        }
        panic!("it never comes to rest: {:?}", self.pending);
    }

    fn ask(&mut self) {
        self.asked += 1;
        let body = id(&format!("body {}", self.asked));
        self.on(TabEvent::NewRequest {
            body,
            most: RUN_TOKENS,
        });
    }

    fn outcome(&self) -> &TabOutcome {
        self.outcome.as_ref().expect("it is over")
    }

    fn closed_lease(&self) -> &Lease {
        let lease = self
            .world
            .exchange
            .lease(self.followed.expect("it was bought"));
        let lease = lease.expect("it is known");
        assert!(lease.is_closed(), "{:?}", lease.state);
        lease
    }
}

#[test]
fn a_tab_answers_one_request_after_the_other_and_is_paid_by_one_receipt() {
    let mut tab = TabWorld::new();
    tab.settle();
    assert!(tab.core.is_free() && tab.delivered == 1);
    for _ in 0..4 {
        tab.ask();
        tab.settle();
    }
    assert_eq!((tab.delivered, tab.failures.len()), (5, 0));
    // Nobody asks for two seconds, so it closes by itself.
    tab.live(15);
    let outcome = tab.outcome();
    assert_eq!(outcome.failure, None);
    let receipt = outcome.receipt.as_ref().expect("both signed");
    assert_eq!(receipt.body.usage, DeviceMicros(5 * HONEST.0));
    assert_eq!(receipt.verify(), Ok(()));
    assert_eq!(tab.closed_lease().cost, receipt.body.amount);
    assert_eq!(outcome.cost, receipt.body.amount);
    tab.world.assert_at_rest();
}

#[test]
fn a_bill_beyond_the_count_is_not_signed_and_what_was_not_accepted_is_not_paid() {
    let mut tab = TabWorld::new();
    tab.counts.output = 10;
    tab.settle();
    tab.on(TabEvent::Close);
    tab.live(120);
    let billed = Some(TabFailure::Bill(BillObjection::Tokens {
        billed: RUN_TOKENS,
        counted: tab.counts,
    }));
    assert_eq!(tab.outcome().failure, billed);
    assert_eq!(tab.outcome().receipt, None);
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert_eq!(paid, Credits(0));
}

/// What the provider of a closed lease got, and what the buyer lost in all.
fn paid_to_provider(lease: &Lease) -> (Credits, Credits) {
    match lease.state {
        LeaseState::Closed { paid, .. } => (paid, lease.cost),
        _ => panic!("{:?}", lease.state),
    }
}

#[test]
fn a_lost_provider_fails_the_open_request_alone() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    while let Some(Effect { action, .. }) = tab.pending.front() {
        let is_sent = matches!(action, TabAction::SendMessage(_));
        tab.carry_out();
        if is_sent {
            break;
        }
    }
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    assert_eq!(tab.core.stage(), TabStage::Ending);
    tab.hang();
    tab.live(200);
    assert_eq!((tab.delivered, tab.failures.len()), (1, 1));
    assert!(tab.failures[0].is_of_provider());
    // Both answers were made before the provider noticed: the buyer counted one of them.
    assert!(tab.closed_lease().is_closed());
}

#[test]
fn a_request_that_comes_as_the_tab_closes_is_failed_and_not_lost() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.on(TabEvent::Close);
    tab.ask();
    tab.settle();
    assert_eq!(tab.failures, [TabFailure::Closing]);
    tab.live(5);
    assert!(tab.outcome().receipt.is_some());
}

#[test]
fn a_market_that_sells_nothing_costs_nothing() {
    let mut tab = TabWorld::new();
    let effect = tab.pending.pop_front().expect("it buys");
    let refusal = tab
        .carry(Command::Stake {
            amount: Credits(u64::MAX),
        })
        .unwrap_err();
    tab.on(TabEvent::EffectAnswered {
        ticket: effect.ticket,
        answer: TabAnswer::NotBought(refusal),
    });
    tab.settle();
    assert_eq!((tab.delivered, tab.failures.len()), (0, 1));
    assert_eq!(tab.outcome().cost, Credits(0));
}

#[test]
fn a_purchase_without_an_answer_is_found_in_the_log() {
    let mut tab = TabWorld::new();
    let Some(Effect {
        ticket,
        action: TabAction::Buy(bid),
    }) = tab.pending.pop_front()
    else {
        panic!("it buys first");
    };
    let answer = TabAnswer::Uncertain("no answer".to_owned());
    tab.on(TabEvent::EffectAnswered { ticket, answer });
    tab.settle();
    assert_eq!(tab.core.stage(), TabStage::Adopting);
    // The market carries the bid out a second later.
    tab.carry(Command::PlaceBid(bid)).unwrap();
    tab.live(2);
    assert_eq!(tab.delivered, 1);
}

#[test]
fn an_answer_that_fails_leaves_those_before_it_owed() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.settle_without_answers();
    let failure = Failure::Run("the engine is gone".to_owned());
    tab.world
        .answer_with(is_run, ProviderAnswer::Ran(Err(failure.into())));
    tab.live(5);
    assert_eq!((tab.delivered, tab.failures.len()), (1, 1));
    let receipt = tab.outcome().receipt.as_ref().expect("both signed");
    assert_eq!(receipt.body.usage, HONEST);
}

#[test]
fn an_answer_that_the_buyer_cannot_store_is_not_disputed() {
    let mut tab = TabWorld::new();
    tab.is_full = Some("it holds 8 GiB".to_owned());
    tab.live(200);
    let failure = TabFailure::Memory("it holds 8 GiB".to_owned());
    assert_eq!(tab.failures, std::slice::from_ref(&failure));
    assert!(!failure.is_of_provider());
    assert_eq!(tab.outcome().failure, Some(failure));
    let LeaseState::Closed { reason, .. } = tab.closed_lease().state else {
        unreachable!("it is closed");
    };
    assert_eq!(reason, CloseReason::BuyerEnded);
}

#[test]
fn text_that_its_buyer_wants_no_more_is_owed() {
    let mut tab = TabWorld::new();
    tab.settle_without_answers();
    // The buyer has read the pieces, and says that it wants nothing.
    let stream = tab.stream.expect("it is open");
    tab.world.say(stream, BuyerMessage::Limit { parts: 0 });
    tab.world.settle();
    let finished = tab.world.finished(stream);
    assert_eq!(finished.receipt.body.usage, HONEST);
}

#[test]
fn a_note_beyond_the_count_is_disputed_though_the_provider_is_lost() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.live_without_answers(30);
    let lease = tab.followed.expect("it is bought");
    let usage = DeviceMicros(25_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("the work has begun");
    tab.settle_without_answers();
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.stream = None;
    tab.live_without_answers(200);
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert_eq!(paid, Credits(0), "silence would have paid 25 s");
}

/// A tab of two answers and an open request, whose provider's process dies and starts again.
fn restart_provider(change: impl Fn(&mut DeviceMicros)) -> TabWorld {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.settle();
    tab.ask();
    tab.settle_without_answers();
    assert_eq!(tab.delivered, 2);
    for fact in &mut tab.world.journal {
        if let Fact::Answered { usage, .. } = fact {
            change(usage);
        }
    }
    tab.world.restart();
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.stream = None;
    tab.live(200);
    assert!(!tab.world.commands.iter().any(is_giving_up));
    tab.world.assert_at_rest();
    tab
}

fn is_giving_up(command: &Command) -> bool {
    matches!(command, Command::GiveUp { .. })
}

#[test]
fn a_provider_that_dies_is_paid_for_the_answers_that_its_buyer_has() {
    let tab = restart_provider(|_| {});
    let amount = ReceiptBody::amount_due(PRICE, DeviceMicros(2 * HONEST.0));
    assert_eq!(Some(paid_to_provider(tab.closed_lease()).0), amount);
    assert_eq!(tab.outcome().cost, tab.closed_lease().cost);
    assert_eq!(tab.failures.len(), 1, "the open request is for another");
}

#[test]
fn a_provider_that_records_more_than_its_buyer_counted_gains_nothing() {
    let tab = restart_provider(|usage| usage.0 += 1);
    assert_eq!(paid_to_provider(tab.closed_lease()).0, Credits(0));
    let LeaseState::Closed { reason, .. } = tab.closed_lease().state else {
        unreachable!("it is closed");
    };
    assert_eq!(reason, CloseReason::Disputed);
}

#[test]
fn a_bill_that_differs_in_time_alone_leaves_the_tokens_owed() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.settle();
    // Its provider hears for four seconds of no request that its buyer has sent.
    tab.ask();
    tab.world.pass(4_000);
    tab.settle();
    tab.on(TabEvent::Close);
    tab.live(200);
    let failure = tab.outcome().failure.clone();
    let is_of_time = matches!(failure, Some(TabFailure::Bill(BillObjection::Idle { .. })));
    assert!(is_of_time, "{failure:?}");
    let owed = ReceiptBody::amount_due(PRICE, DeviceMicros(3 * HONEST.0));
    assert_eq!(Some(paid_to_provider(tab.closed_lease()).0), owed);
}

#[test]
fn a_provider_that_says_only_that_it_lives_is_left() {
    let mut tab = TabWorld::new();
    tab.settle_without_answers();
    tab.live_without_answers(70);
    assert_eq!(tab.failures, []);
    // Text keeps it.
    let streamed = TokenCount {
        output: 1,
        ..TokenCount::default()
    };
    tab.on(TabEvent::TextArrived { streamed });
    tab.live_without_answers(20);
    tab.on(TabEvent::TextArrived { streamed });
    tab.live_without_answers(20);
    assert_eq!(tab.failures, []);
    // Text that began pauses for less long than an engine reads a prompt.
    tab.live_without_answers(10);
    assert_eq!(tab.failures, [TabFailure::Silent(TEXT_PAUSE_MAX)]);
}

#[test]
fn a_tab_of_another_provider_than_the_chosen_one_is_given_back() {
    let mut tab = TabWorld::with_spec(|spec| {
        spec.is_strict = true;
        spec.listing.provider = AccountKey([9; 32]);
    });
    tab.settle();
    assert_eq!(tab.failures, [TabFailure::OtherProvider]);
    tab.live(200);
    let (paid, cost) = paid_to_provider(tab.closed_lease());
    assert_eq!((paid, cost), (Credits(0), Credits(0)));
}

#[test]
fn text_that_came_before_its_provider_was_lost_is_not_disputed() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.live_without_answers(30);
    let streamed = TokenCount {
        output: 20_000,
        ..TokenCount::default()
    };
    tab.on(TabEvent::TextArrived { streamed });
    let lease = tab.followed.expect("it is bought");
    let usage = DeviceMicros(20_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("the work has begun");
    tab.settle_without_answers();
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.stream = None;
    tab.live_without_answers(200);
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert!(paid > Credits(0), "the text was delivered");
}

#[test]
fn an_engine_that_is_faster_than_its_device_time_is_noted_and_goes_on() {
    let mut tab = TabWorld::new();
    tab.counts.output = 245_000;
    tab.settle_without_answers();
    tab.live_without_answers(10);
    let busy = Micros::from_seconds(245).plus(Micros::from_millis(10));
    let ran = RunResult {
        outputs: vec![(TAB_ANSWER.to_owned(), id("answer 0"))],
        bytes: 10,
        busy,
        promised: None,
        tokens: Some(tab.counts),
    };
    tab.world.answer_with(is_run, ProviderAnswer::Ran(Ok(ran)));
    tab.settle_without_answers();
    assert_eq!(tab.delivered, 1);
    tab.ask();
    for _ in 0..24 {
        // The answer is under way as the note comes, at 240 s.
        let streamed = RUN_TOKENS;
        tab.on(TabEvent::TextArrived { streamed });
        tab.live_without_answers(10);
    }
    tab.counts = RUN_TOKENS;
    tab.on(TabEvent::Close);
    tab.live(20);
    let noted = |it: &&Command| matches!(it, Command::NoteUsage { .. });
    assert_eq!(tab.world.commands.iter().filter(noted).count(), 1);
    assert_eq!((tab.delivered, &tab.failures[..]), (2, &[][..]));
    let receipt = tab.outcome().receipt.as_ref().expect("both signed");
    assert_eq!(receipt.body.usage, DeviceMicros(busy.0 + HONEST.0));
}

#[test]
fn idle_time_is_billed_as_far_as_the_buyer_was_idle() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.on(TabEvent::Close);
    // The provider's receipt comes, with more idle time than there was.
    while tab.core.stage() != TabStage::Finishing {
        tab.carry_out();
    }
    tab.settle_but_the_receipt();
    let stream = tab.stream.expect("it is open");
    let mut finished = tab.world.finished(stream);
    finished.receipt.body.idle = DeviceMicros(9_000_000);
    let body = finished.receipt.body.clone();
    let due = ReceiptBody::amount_due(body.price, body.billable_usage());
    finished.receipt.body.amount = due.expect("it fits");
    finished.receipt = Receipt::new(finished.receipt.body).sign_as_provider(&key(1));
    let message = ProviderMessage::Finished(Box::new(finished));
    tab.on(TabEvent::MessageReceived(message));
    let failure = tab.core.failure.clone().expect("it is refused");
    let is_idle = matches!(failure, TabFailure::Bill(BillObjection::Idle { .. }));
    assert!(is_idle, "{failure:?}");
}

/// Lets an honest provider's receipt come after one request, changed by a liar. Returns why the
/// buyer does not sign it, if so.
fn lie(terms: TokenTerms, change: impl FnOnce(&mut ReceiptBody)) -> Option<TabFailure> {
    let mut tab = TabWorld::with_terms(terms, |_| {});
    tab.settle();
    tab.on(TabEvent::Close);
    while tab.core.stage() != TabStage::Finishing {
        tab.carry_out();
    }
    tab.settle_but_the_receipt();
    let stream = tab.stream.expect("it is open");
    let mut finished = tab.world.finished(stream);
    let body = &mut finished.receipt.body;
    change(body);
    let due = ReceiptBody::amount_due(body.price, body.billable_usage());
    body.amount = due.expect("it fits");
    finished.receipt = Receipt::new(finished.receipt.body).sign_as_provider(&key(1));
    let message = ProviderMessage::Finished(Box::new(finished));
    tab.on(TabEvent::MessageReceived(message));
    tab.core.failure.clone()
}

#[test]
fn a_receipt_with_other_prices_or_more_tokens_is_not_signed() {
    let metered = |change: fn(&mut TokenUsage)| {
        let refused = lie(TERMS, |body| {
            let metered = body.metered.as_mut().expect("tokens were sold");
            change(metered);
            body.usage = metered.usage();
        });
        match refused {
            Some(TabFailure::Bill(objection)) => Some(objection),
            None => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(metered(|_| {}), None);
    let dear = metered(|it| it.terms.input_us += 1);
    assert_eq!(dear, Some(BillObjection::Rates));
    // Even lower prices are not those of the lease: the market would refuse the receipt.
    let cheap = metered(|it| it.terms.cached_us -= 1);
    assert_eq!(cheap, Some(BillObjection::Rates));
    let padded = metered(|it| it.output += 1);
    assert!(matches!(padded, Some(BillObjection::Tokens { .. })));
    // Tokens of one kind do not make up for those of another.
    let shifted = metered(|it| (it.input, it.output) = (it.input + 4, it.output - 1));
    assert!(matches!(shifted, Some(BillObjection::Tokens { .. })));
    // A provider that counts less is paid less, and holds nobody up.
    assert_eq!(metered(|it| it.output -= 1), None);
    let unmetered = lie(TERMS, |body| body.metered = None);
    assert_eq!(unmetered, Some(TabFailure::Bill(BillObjection::Rates)));
}

#[test]
fn tokens_that_are_not_cached_for_the_buyer_are_billed_as_such_at_most() {
    let terms = TokenTerms {
        cached_us: 25,
        ..TERMS
    };
    // The provider says that a cached message was not.
    let mut tab = TabWorld::with_terms(terms, |_| {});
    tab.counts = TokenCount {
        input: 0,
        cached: RUN_TOKENS.input,
        output: RUN_TOKENS.output,
    };
    tab.settle();
    tab.on(TabEvent::Close);
    tab.live(120);
    let failure = tab.outcome().failure.clone();
    let refused = matches!(failure, Some(TabFailure::Bill(BillObjection::Usage { .. })));
    assert!(refused, "{failure:?}");
    // The other way round, the smaller bill is paid at once.
    let generous = lie(terms, |body| {
        let metered = body.metered.as_mut().expect("tokens were sold");
        (metered.input, metered.cached) = (0, metered.input);
        body.usage = metered.usage();
    });
    assert_eq!(generous, None);
}

/// Holds a tab of an ask with this floor for a number of pauses of 1.75 seconds between requests.
fn hold(floor_us: u32, pauses: u32) -> TabWorld {
    let terms = TokenTerms { floor_us, ..TERMS };
    let mut tab = TabWorld::with_terms(terms, |_| {});
    tab.settle();
    for _ in 0..pauses {
        for _ in 0..7 {
            tab.world.pass(250);
            tab.wake();
            tab.settle();
        }
        assert!(tab.core.is_free(), "{:?}", tab.core.stage());
        tab.ask();
        tab.settle();
    }
    tab
}

#[test]
fn a_held_slot_costs_the_larger_of_the_floor_and_the_reserve() {
    let paid = |floor_us| {
        let mut tab = hold(floor_us, 80);
        tab.on(TabEvent::Close);
        tab.live(15);
        let outcome = tab.outcome();
        assert_eq!(outcome.failure, None);
        let receipt = outcome.receipt.as_ref().expect("both signed");
        assert_eq!(receipt.body.amount, tab.closed_lease().cost);
        receipt.body.billable_usage().0
    };
    // 81 requests of 30 ms, and a tenth of 80 pauses beyond a second each.
    let without = paid(0);
    assert_eq!(without, 81 * HONEST.0 + 80 * 75_000);
    assert_eq!((paid(1), paid(100_000)), (without, without));
    // Ten of the 60 seconds are free.
    assert_eq!(paid(500_000), 25_000_000);
}

#[test]
fn a_longer_hold_than_there_was_is_not_paid() {
    let terms = TokenTerms {
        floor_us: 50_000,
        ..TERMS
    };
    let longer = lie(terms, |body| {
        let metered = body.metered.as_mut().expect("tokens were sold");
        metered.held = DeviceMicros(100_000_000);
        body.usage = metered.usage();
    });
    let refused = matches!(longer, Some(TabFailure::Bill(BillObjection::Usage { .. })));
    assert!(refused, "{longer:?}");
}

#[test]
fn a_provider_that_bills_the_floor_and_the_idle_time_that_it_covers_is_refused() {
    let mut tab = hold(500_000, 80);
    tab.on(TabEvent::Close);
    while tab.core.stage() != TabStage::Finishing {
        tab.carry_out();
    }
    tab.settle_but_the_receipt();
    let stream = tab.stream.expect("it is open");
    let mut finished = tab.world.finished(stream);
    let body = &mut finished.receipt.body;
    // The buyer's own idle time is 140 s, since it gives away no second of a pause.
    let metered = body.metered.as_mut().expect("tokens were sold");
    metered.held = DeviceMicros(140_000_000);
    (body.usage, body.idle) = (metered.usage(), metered.held);
    let due = ReceiptBody::amount_due(body.price, body.billable_usage());
    body.amount = due.expect("it fits");
    finished.receipt = Receipt::new(finished.receipt.body).sign_as_provider(&key(1));
    let message = ProviderMessage::Finished(Box::new(finished));
    tab.on(TabEvent::MessageReceived(message));
    let failure = tab.core.failure.clone();
    let refused = matches!(failure, Some(TabFailure::Bill(BillObjection::Usage { .. })));
    assert!(refused, "{failure:?}");
}

#[test]
fn a_floor_that_an_honest_provider_notes_is_not_disputed() {
    let mut tab = hold(500_000, 40);
    let lease = tab.followed.expect("it is bought");
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.stream = None;
    // 41 requests come to 1.23 s, and 20 of 30 held seconds to ten.
    let usage = DeviceMicros(10_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("the work has begun");
    tab.live_without_answers(200);
    let closed = tab.closed_lease();
    assert!(closed.accepted >= usage, "{closed:?}");
    assert!(paid_to_provider(closed).0 > Credits(0));
}

#[test]
fn clocks_that_differ_by_a_minute_settle_a_floor_all_the_same() {
    let mut tab = hold(500_000, 40);
    // The buyer thinks that less of the log's time has passed than its provider does.
    let log = tab.world.now.log;
    let behind = Now {
        tick: tab.world.now.tick,
        log: Millis(log.0 - 60_000),
    };
    tab.pending.extend(tab.core.apply(behind, TabEvent::Close));
    tab.settle_but_the_receipt();
    let stream = tab.stream.expect("it is open");
    let finished = Box::new(tab.world.finished(stream));
    let message = TabEvent::MessageReceived(ProviderMessage::Finished(finished));
    tab.pending.extend(tab.core.apply(behind, message));
    assert_eq!(tab.core.stage(), TabStage::Signing);
}

#[test]
fn the_time_of_an_open_request_is_not_held() {
    let mut tab = hold(500_000, 1);
    tab.ask();
    tab.live_without_answers(60);
    tab.settle();
    tab.on(TabEvent::Close);
    tab.live(15);
    let receipt = tab.outcome().receipt.clone().expect("both signed");
    assert_eq!(receipt.body.usage, DeviceMicros(3 * HONEST.0));
}

#[test]
fn a_request_that_does_not_fit_into_the_rest_of_the_tab_is_for_another_one() {
    let mut tab = TabWorld::new();
    tab.settle();
    let most = TokenCount {
        output: 299_971,
        ..TokenCount::default()
    };
    tab.on(TabEvent::NewRequest {
        body: id("too much"),
        most,
    });
    tab.settle();
    assert_eq!(
        (tab.delivered, &tab.failures[..]),
        (1, &[TabFailure::Closing][..])
    );
    tab.live(15);
    // It says nothing about the provider, which is paid for what it did.
    assert_eq!(tab.outcome().failure, None);
    let receipt = tab.outcome().receipt.as_ref().expect("both signed");
    assert_eq!(receipt.body.usage, HONEST);
    // One token less would have fitted.
    let mut tab = TabWorld::new();
    tab.settle();
    let most = TokenCount {
        output: 299_970,
        ..TokenCount::default()
    };
    tab.on(TabEvent::NewRequest {
        body: id("just so"),
        most,
    });
    tab.settle();
    assert_eq!((tab.delivered, tab.failures.len()), (2, 0));
}

#[test]
fn a_buyer_that_leaves_a_held_slot_pays_its_floor_all_the_same() {
    let terms = TokenTerms {
        floor_us: 100_000,
        ..TERMS
    };
    let mut tab = TabWorld::with_terms(terms, |_| {});
    tab.settle();
    let lease = tab.followed.expect("it is bought");
    // A changed buyer holds the slot without a request, and signs nothing.
    tab.pending.clear();
    for _ in 0..60 {
        tab.world.pass(1_000);
        tab.world.settle();
    }
    let buyer = tab.buyer();
    tab.world
        .carry(&buyer, Command::EndLease { lease })
        .unwrap();
    for _ in 0..200 {
        tab.world.pass(1_000);
        tab.world.settle();
    }
    let closed = tab.world.exchange.lease(lease).expect("it is known");
    let (_, cost) = paid_to_provider(closed);
    // The reserve comes to more than the floor, whose first ten seconds are free.
    let floor = closed.price.0 * 6;
    assert!(cost.0.abs_diff(floor) * 10 <= floor, "{cost:?} of {floor}");
}

/// A tab whose buyer tells the log nothing, and asks one request after the other for so long.
fn hide_work(millis: u64) -> TabWorld {
    let mut tab = TabWorld::new();
    for _ in 0..millis / 30 {
        tab.settle_but(is_start);
        if tab.core.is_free() {
            tab.ask();
        }
        tab.world.pass(30);
        tab.wake();
    }
    tab
}

fn is_start(effect: &Effect<TabAction>) -> bool {
    match &effect.action {
        TabAction::Command(command) => matches!(**command, Command::StartWork { .. }),
        _ => false,
    }
}

#[test]
fn a_start_that_the_market_did_not_get_is_reported_again() {
    let mut tab = TabWorld::new();
    let lost = Cell::new(None);
    let is_lost = |effect: &Effect<TabAction>| {
        let is_first = lost.get().is_none() && is_start(effect);
        if is_first {
            lost.set(Some(effect.ticket));
        }
        is_first
    };
    let mut is_answered = false;
    for _ in 0..200 {
        tab.settle_but(is_lost);
        if let Some(ticket) = lost.get().filter(|_| !is_answered) {
            let answer = TabAnswer::Commanded(Err("no validator answered".to_owned()));
            tab.on(TabEvent::EffectAnswered { ticket, answer });
            is_answered = true;
        }
        if tab.core.is_free() {
            tab.ask();
        }
        tab.world.pass(30);
        tab.wake();
    }
    assert!(is_answered);
    // Of six seconds, at most one passes until it is reported again.
    let made = u64::from(tab.delivered) * HONEST.0;
    assert!(made >= 4_500_000, "{made}");
}

#[test]
fn a_buyer_that_hides_the_work_gets_two_seconds_and_a_request() {
    let mut tab = hide_work(6_000);
    let lease = tab.followed.expect("it is bought");
    let made = u64::from(tab.delivered) * HONEST.0;
    assert!((1_900_000..=2_100_000).contains(&made), "{made}");
    // What was made is paid, though its buyer signs nothing.
    tab.hang();
    tab.pending.clear();
    let buyer = tab.buyer();
    drop(tab.world.carry(&buyer, Command::EndLease { lease }));
    for _ in 0..200 {
        tab.world.pass(1_000);
        tab.world.settle();
    }
    let closed = tab.world.exchange.lease(lease).expect("it is known");
    let (paid, _) = paid_to_provider(closed);
    let owed = ReceiptBody::amount_due(PRICE, DeviceMicros(made - HONEST.0));
    assert!(
        Some(paid) >= owed.map(|owed| Credits(owed.0 - 100_000)),
        "{paid:?}"
    );
}

#[test]
fn a_buyer_whose_clock_is_late_disputes_a_note_in_time() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.live_without_answers(30);
    let lease = tab.followed.expect("it is bought");
    let usage = DeviceMicros(25_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("the work has begun");
    // By its clock it has two minutes to answer.
    let log = tab.world.now.log;
    tab.world.now.log = Millis(log.0 - 60_000);
    tab.hear();
    tab.world.now.log = log;
    for output in 1..6 {
        let streamed = TokenCount {
            output,
            ..TokenCount::default()
        };
        tab.on(TabEvent::TextArrived { streamed });
        tab.live_without_answers(20);
    }
    tab.live_without_answers(100);
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert_eq!(paid, Credits(0), "silence would have paid 25 s");
}

#[test]
fn a_note_at_the_end_of_the_grace_is_disputed() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.ask();
    tab.live_without_answers(30);
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.hang();
    tab.settle_without_answers();
    // The provider's own core is quiet meanwhile.
    let late = |tab: &mut TabWorld, seconds: u32| {
        for _ in 0..seconds {
            tab.world.pass_without_provider(1_000);
            tab.wake();
            tab.hear();
            tab.carry_out();
        }
    };
    late(&mut tab, 115);
    let lease = tab.followed.expect("it is bought");
    let usage = DeviceMicros(25_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("it is in time");
    late(&mut tab, 200);
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert_eq!(paid, Credits(0), "silence would have paid 25 s");
}

#[test]
fn a_receipt_of_another_model_or_class_is_not_signed() {
    let refused = Some(TabFailure::Bill(BillObjection::Terms));
    let model = lie(TERMS, |body| body.model = "another".try_into().unwrap());
    assert_eq!(model, refused);
    let class = lie(TERMS, |body| body.class.kind.0 += 1);
    assert_eq!(class, refused);
    let idle = lie(TERMS, |body| body.idle_part.0 += 1);
    assert_eq!(idle, refused);
}

#[test]
fn after_a_settlement_that_fails_a_tab_still_disputes_notes() {
    let mut tab = TabWorld::new();
    tab.settle();
    tab.on(TabEvent::Close);
    let is_settling = |tab: &TabWorld| tab.core.stage() == TabStage::Settling;
    while !is_settling(&tab) {
        tab.world.settle();
        tab.hear();
        if !is_settling(&tab) {
            tab.carry_out();
        }
    }
    // The provider signed, and does not settle what the market refuses to its buyer.
    let is_settle = |it: &Effect<TabAction>| match &it.action {
        TabAction::Command(command) => matches!(**command, Command::Settle(_)),
        _ => false,
    };
    let place = tab.pending.iter().position(is_settle).expect("it settles");
    let ticket = tab.pending.remove(place).expect("it is there").ticket;
    tab.pending.clear();
    let answer = TabAnswer::Commanded(Err("the receipt has other terms".to_owned()));
    tab.on(TabEvent::EffectAnswered { ticket, answer });
    let lease = tab.followed.expect("it is bought");
    let buyer = tab.buyer();
    drop(tab.world.carry(&buyer, Command::StartWork { lease }));
    tab.world.pass_without_provider(30_000);
    let usage = DeviceMicros(25_000_000);
    let note = Command::NoteUsage { lease, usage };
    tab.world.carry(&key(1), note).expect("the work has begun");
    for _ in 0..600 {
        tab.world.pass_without_provider(1_000);
        tab.wake();
        tab.hear();
        tab.carry_out();
    }
    let (paid, _) = paid_to_provider(tab.closed_lease());
    assert!(paid <= Credits(30_000), "{paid:?}");
}

#[test]
fn an_answer_that_was_lost_on_the_way_leaves_those_before_it_owed() {
    let mut tab = TabWorld::new();
    tab.settle();
    for _ in 0..4 {
        tab.ask();
        tab.settle();
    }
    tab.ask();
    // The last answer is made, and its buyer never hears of it.
    tab.settle_but_the_receipt();
    let why = "the connection is broken".to_owned();
    tab.on(TabEvent::StreamClosed { why });
    tab.hang();
    tab.live(200);
    assert_eq!((tab.delivered, tab.failures.len()), (5, 1));
    let closed = tab.closed_lease();
    let owed = ReceiptBody::amount_due(PRICE, DeviceMicros(5 * HONEST.0));
    assert_eq!(Some(paid_to_provider(closed).0), owed);
}

#[test]
fn a_dearer_ask_of_the_same_model_does_not_sell_the_tab() {
    let dear = TokenTerms {
        input_us: 900_000,
        ..TERMS
    };
    // The book has only an ask that is as cheap by the output token.
    let mut tab = TabWorld::with_terms(dear, |spec| {
        spec.listing.resources.tokens = Some(TERMS);
    });
    tab.settle();
    assert!(matches!(tab.failures[..], [TabFailure::NotSold(_)]));
    assert_eq!(tab.outcome().cost, Credits(0));
    // Nor does one of another model, though it is in the same book.
    let mut tab = TabWorld::with_spec(|spec| {
        spec.listing.resources.model = "another".try_into().unwrap();
    });
    tab.settle();
    assert!(matches!(tab.failures[..], [TabFailure::NotSold(_)]));
}

/// Plays a history that a seed draws. Returns how often what happened.
fn play(seed: u64) -> [u32; 4] {
    let mut dice = Dice::new(seed);
    let mut tab = TabWorld::new();
    let lies = dice.below(4) == 0;
    if lies {
        tab.counts.output = dice.below(RUN_TOKENS.output);
    }
    for _ in 0..400 {
        match dice.below(20) {
            0..=6 => tab.carry_out(),
            7..=10 => drop(tab.hear()),
            11..=15 if !tab.world.pending.is_empty() => {
                let place = dice.below(tab.world.pending.len() as u64) as usize;
                let is_well = dice.below(40) != 0;
                tab.world.carry_out(place, is_well);
            }
            16..=17 => {
                tab.world.pass(1 + dice.below(400));
                tab.wake();
            }
            18 if tab.core.is_free() => tab.ask(),
            19 if dice.below(60) == 0 => tab.on(TabEvent::Close),
            19 if dice.below(80) == 0 => {
                let why = "the connection is broken".to_owned();
                tab.on(TabEvent::StreamClosed { why });
                tab.hang();
            }
            19 if dice.below(150) == 0 => {
                let why = "the provider's process is gone".to_owned();
                tab.on(TabEvent::StreamClosed { why });
                tab.stream = None;
                tab.world.restart();
            }
            _ => {}
        }
    }
    tab.on(TabEvent::Close);
    tab.live(400);
    let outcome = tab.outcome().clone();
    assert_eq!(
        tab.delivered + tab.failures.len() as u32,
        tab.asked,
        "each request is answered or failed once"
    );
    let each = tab.counts.device_time(TERMS);
    assert_eq!(outcome.counted.0, u64::from(tab.delivered) * each.0);
    if let Some(receipt) = &outcome.receipt {
        let counted = outcome.counted.max(crate::lease::USAGE_MIN);
        assert!(receipt.body.usage <= counted, "no more is signed than came");
    }
    if tab.followed.is_some() {
        let lease = tab.closed_lease();
        assert!(lease.accepted <= outcome.counted.max(crate::lease::USAGE_MIN));
    }
    [
        u32::from(outcome.receipt.is_some()),
        u32::from(matches!(outcome.failure, Some(TabFailure::Bill(_)))),
        tab.delivered,
        tab.failures.len() as u32,
    ]
}

#[test]
fn whatever_happens_each_request_is_answered_once_and_no_more_is_signed_than_came() {
    let mut sums = [0_u32; 4];
    for seed in 0..400 {
        let played = std::panic::catch_unwind(|| play(seed));
        let Ok(counts) = played else {
            panic!("seed {seed} breaks a promise: see above");
        };
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    // Receipts, refused bills, answers and failures all happen.
    assert!(sums.iter().all(|sum| *sum >= 20), "{sums:?}");
}
