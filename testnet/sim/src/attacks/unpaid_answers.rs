//! Plays a buyer that takes the answers of a tab and never signs the receipt, against the core that
//! a souk provider runs. It tries every combination of what such a buyer can do: whether it tells
//! the log that the work began, how many answers it takes, how it leaves, and how it reacts to the
//! provider's notes.

use std::collections::VecDeque;

use souk_market::{
    Acceptance, AccountKey, Command, DeviceMicros, Exchange, Lease, LeaseId, Millis, Permille,
    Receipt, ReceiptBody, Refusal, TokenTerms, Units,
};
use souk_memory::ContentId;
use souk_roles::clock::{Micros, Now};
use souk_roles::effect::{Effect, Ticket};
use souk_roles::lease::{
    BuyerMessage, Opening, Part, ProviderMessage, Request, Start, TAB_REQUEST,
};
use souk_roles::provider::{
    Action, Answer, Arrival, Config, DEVICE, Event, MarketView, NotDone, Past, ProviderCore,
    RunResult, StreamId, Terms,
};
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::tab::{TabAction, TabAnswer, TabCore, TabEvent, TabSpec};

use super::moves::{CommandKind, Player, Scene, command_instances};
use super::position::PRICE;
use super::tabs::{
    CLOSED_AFTER, INITIAL_CREDITS, JOB, LENGTH, buyer, carry, new_exchange, provider,
};
use super::{AttackCost, Loss, WorstLoss, new_attack_cost};

/// The tokens of each answer: five seconds of the device, with the question.
const ANSWER: TokenCount = TokenCount {
    input: 40,
    cached: 0,
    output: 4_990,
};

/// The time that the engine takes for an answer.
const ANSWER_TIME: Millis = Millis(5_000);

/// The time between the moves of a buyer that has what it wants.
const STEP: Millis = Millis(5_000);

/// More answers than a tab has time for.
const ANSWERS_MAX: u32 = 70;

/// The stream of the tab.
const STREAM: StreamId = StreamId(1);

/// How a buyer leaves its tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// It stays connected, and sends nothing more.
    Silence,
    /// It closes the connection.
    HangUp,
    /// It asks for the receipt, and does not sign.
    NoSignature,
    /// It asks for the receipt, and says that it is wrong.
    Refusal,
}

impl Leaving {
    const ALL: [Leaving; 4] = [
        Leaving::Silence,
        Leaving::HangUp,
        Leaving::NoSignature,
        Leaving::Refusal,
    ];
}

/// What a buyer does that never signs.
#[derive(Clone, Copy, Debug)]
struct Conduct {
    /// Whether it tells the log that the work began.
    tells_start: bool,
    /// The answers that it takes at most.
    answers_max: u32,
    leaving: Leaving,
    /// The command that it gives when it leaves, and when the provider has noted its usage.
    at_end: Option<CommandKind>,
    at_note: Option<CommandKind>,
}

/// A provider of a model, with the market around it and one tab.
struct TabSeller {
    exchange: Exchange,
    now: Now,
    nonce: u64,
    core: ProviderCore,
    effects: VecDeque<Effect<Action>>,
    /// The request that the engine answers.
    run: Option<(Ticket, Box<Part>)>,
    answered: u64,
    is_stalled: bool,
    has_receipt: bool,
    is_hung_up: bool,
}

/// Plays all such buyers, apart from whether they tell the log that the work began.
pub fn play_unpaid_answers() -> Vec<AttackCost> {
    let plays = [
        (false, "answers are taken unsigned, the start is not told"),
        (true, "answers are taken unsigned, the start is told"),
    ];
    let play = |(tells_start, attack): (bool, &str)| {
        let conducts = list_conducts(tells_start);
        let losses = conducts.iter().map(|it| find_loss(*it));
        let worst = losses.reduce(WorstLoss::max_with).expect("there are some");
        let planned = Millis(LENGTH.0);
        new_attack_cost(attack.to_owned(), planned, worst, conducts.len())
    };
    plays.into_iter().map(play).collect()
}

fn list_conducts(tells_start: bool) -> Vec<Conduct> {
    let kinds = CommandKind::ALL.iter().copied();
    let kinds = kinds.filter(|kind| kind.player() == Player::Buyer);
    let moves: Vec<Option<CommandKind>> = std::iter::once(None).chain(kinds.map(Some)).collect();
    // Who tells the start at the end has not told it before.
    let is_told = |kind: Option<CommandKind>| kind == Some(CommandKind::StartWork);
    // After other commands, the lease gets no note.
    let can_be_noted =
        |kind: Option<CommandKind>| kind.is_none_or(|kind| kind == CommandKind::EndLease);
    let mut conducts = Vec::new();
    for answers_max in [1, ANSWERS_MAX] {
        for leaving in Leaving::ALL {
            for at_end in &moves {
                for at_note in &moves {
                    let is_noted = at_note.is_none() || can_be_noted(*at_end);
                    let is_other = !tells_start && (is_told(*at_end) || is_told(*at_note));
                    if is_other || !is_noted {
                        continue;
                    }
                    conducts.push(Conduct {
                        tells_start,
                        answers_max,
                        leaving,
                        at_end: *at_end,
                        at_note: *at_note,
                    });
                }
            }
        }
    }
    conducts
}

fn find_loss(conduct: Conduct) -> WorstLoss {
    let mut seller = TabSeller::new();
    let lease = seller.sell_tab();
    seller.deliver(lease, conduct);
    seller.wait_for_end(lease, conduct);
    let each = ANSWER.device_time(TokenTerms::USUAL).0;
    let worth = DeviceMicros(each * seller.answered);
    let worth = ReceiptBody::amount_due(PRICE, worth).map_or(0, |due| due.0);
    WorstLoss::from_loss(Loss {
        lost: i64::try_from(worth).unwrap_or(i64::MAX) - seller.gain_of_provider(),
        gained: seller.gain_of_buyer(),
        reputation: 0,
    })
}

impl TabSeller {
    /// Creates a provider whose ask is in the book.
    fn new() -> TabSeller {
        let exchange = new_exchange();
        let now = Now {
            tick: Micros(0),
            log: Millis(1_000_000),
        };
        let card = TextCard::new("qwen/qwen3-8b").expect("a model's name");
        let config = Config {
            account: AccountKey::from(&provider()),
            market: exchange.market(),
            resources: card.to_resources(TokenTerms::USUAL),
            capacity: Units(1),
            price_min: PRICE,
            memory_bytes_max: 1 << 30,
            made_bytes_max: 1 << 30,
            patience: Micros::from_seconds(60),
        };
        let (core, effects) = ProviderCore::resume(config, Past::default(), now);
        let mut seller = TabSeller {
            exchange,
            now,
            nonce: 0,
            core,
            effects: effects.into(),
            run: None,
            answered: 0,
            is_stalled: false,
            has_receipt: false,
            is_hung_up: false,
        };
        seller.carry_out();
        seller
    }

    /// Sells a tab to the buyer, which opens it as souk does. Returns its lease.
    fn sell_tab(&mut self) -> LeaseId {
        let listing = self.exchange.all_asks().next().expect("it is on sale");
        let card = TextCard::of_resources(&listing.resources).expect("a model");
        let spec = TabSpec {
            market: self.exchange.market(),
            account: AccountKey::from(&buyer()),
            job: JOB,
            listing: Box::new(listing),
            excluded: Vec::new(),
            is_strict: false,
            card: card.id(),
            duration: LENGTH,
        };
        let body = ContentId::for_content(b"question");
        let (mut core, effects) = TabCore::begin(spec, body, self.now);
        let mut effects = VecDeque::from(effects);
        let start: Box<Start> = loop {
            let Effect { ticket, action } = effects.pop_front().expect("it opens its tab");
            let answer = match action {
                TabAction::Buy(bid) => match self.carry_of_buyer(Command::PlaceBid(bid)) {
                    Ok(Acceptance::Placed { trades, .. }) => TabAnswer::Bought(Box::new(trades[0])),
                    other => panic!("{other:?} is no trade"),
                },
                TabAction::Find(_) => TabAnswer::Found,
                TabAction::Open(start) => break start,
                _ => continue,
            };
            effects.extend(core.apply(self.now, TabEvent::EffectAnswered { ticket, answer }));
        };
        let lease = start.lease;
        self.on(Event::Changed);
        self.on(Event::Opened {
            stream: STREAM,
            peer: AccountKey::from(&buyer()),
            opening: Opening::Start(start),
        });
        self.say(BuyerMessage::Go);
        lease
    }

    /// Lets the buyer take answers, for as long as the provider begins them, and leave.
    fn deliver(&mut self, lease: LeaseId, conduct: Conduct) {
        let mut asked = 1;
        while let Some((ticket, work)) = self.run.take() {
            self.pass_time(ANSWER_TIME);
            if conduct.tells_start && asked == 1 {
                drop(self.carry_of_buyer(Command::StartWork { lease }));
                self.on(Event::Changed);
            }
            self.end_run(ticket, &work);
            if asked >= conduct.answers_max || self.is_stalled {
                break;
            }
            let body = ContentId::for_content(&asked.to_le_bytes());
            let inputs = vec![(TAB_REQUEST.to_owned(), body)];
            self.say(BuyerMessage::Next(Request::new(asked, inputs)));
            asked += 1;
        }
        match conduct.leaving {
            Leaving::Silence => {}
            Leaving::HangUp => self.hang_up(),
            Leaving::NoSignature => self.say(BuyerMessage::NoMore),
            Leaving::Refusal => {
                self.say(BuyerMessage::NoMore);
                if self.has_receipt {
                    let reason = "it is wrong".to_owned();
                    self.say(BuyerMessage::Refused { reason });
                }
            }
        }
        self.give_commands(lease, conduct.at_end);
    }

    /// Lets time pass until the market has closed the lease.
    fn wait_for_end(&mut self, lease: LeaseId, conduct: Conduct) {
        let until = self.now.log.0 + LENGTH.0 + CLOSED_AFTER.0;
        while !self.lease(lease).is_closed() {
            assert!(self.now.log.0 < until, "each tab is settled: {conduct:?}");
            self.pass_time(STEP);
            if self.lease(lease).note.is_some() {
                self.give_commands(lease, conduct.at_note);
            }
        }
    }

    /// Gives the market all commands of a kind that the buyer can give.
    fn give_commands(&mut self, lease: LeaseId, kind: Option<CommandKind>) {
        let Some(kind) = kind else {
            return;
        };
        let scene = Scene {
            lease: self.lease(lease),
            usages: [DeviceMicros(0); 2],
        };
        for command in command_instances(kind, &scene) {
            drop(self.carry_of_buyer(command));
            self.on(Event::Changed);
        }
    }

    fn lease(&self, id: LeaseId) -> &Lease {
        let lease = self.exchange.lease(id);
        lease.expect("a market keeps its closed leases for longer")
    }

    fn on(&mut self, event: Event) {
        let effects = self.core.apply(self.now, event);
        self.effects.extend(effects);
        self.carry_out();
    }

    fn say(&mut self, message: BuyerMessage) {
        if !self.is_hung_up {
            let stream = STREAM;
            self.on(Event::MessageReceived { stream, message });
        }
    }

    fn hang_up(&mut self) {
        if !self.is_hung_up {
            self.is_hung_up = true;
            self.on(Event::StreamClosed { stream: STREAM });
        }
    }

    fn end_run(&mut self, ticket: Ticket, work: &Part) {
        self.answered += 1;
        let answer = ContentId::for_content(&self.answered.to_le_bytes());
        let outputs = work.outputs.iter().map(|it| (it.name.clone(), answer));
        let result = RunResult {
            outputs: outputs.collect(),
            bytes: 4 * ANSWER.output,
            busy: Micros(ANSWER.device_time(TokenTerms::USUAL).0),
            promised: None,
            tokens: Some(ANSWER),
        };
        let answer = Answer::Ran(Ok(result));
        self.on(Event::EffectAnswered { ticket, answer });
    }

    fn pass_time(&mut self, step: Millis) {
        let until = self.now.tick.plus(Micros::from_millis(step.0));
        loop {
            let wakes = self.core.wakes_at().filter(|at| *at <= until);
            let at = wakes.map_or(until, |at| at.max(self.now.tick));
            let passed = Micros(at.since(self.now.tick).0).0;
            self.now.tick = at;
            self.now.log = self.now.log.saturating_add(Millis(passed.div_ceil(1_000)));
            self.exchange.tick(self.now.log);
            if wakes.is_none() {
                break;
            }
            self.on(Event::TimerFired);
        }
        self.on(Event::Changed);
    }

    fn carry_of_buyer(&mut self, command: Command) -> Result<Acceptance, Refusal> {
        self.nonce += 1;
        carry(
            &mut self.exchange,
            self.now.log,
            self.nonce,
            &buyer(),
            command,
        )
    }

    fn carry_out(&mut self) {
        while let Some(Effect { ticket, action }) = self.effects.pop_front() {
            if let Some(answer) = self.answer_action(ticket, action) {
                let event = Event::EffectAnswered { ticket, answer };
                self.effects.extend(self.core.apply(self.now, event));
            }
        }
    }

    fn answer_action(&mut self, ticket: Ticket, action: Action) -> Option<Answer> {
        Some(match action {
            Action::SendMessage { message, .. } => {
                self.is_stalled |= matches!(
                    message,
                    ProviderMessage::Stalled(_) | ProviderMessage::Failed(_)
                );
                self.has_receipt |= matches!(message, ProviderMessage::Finished(_));
                return None;
            }
            Action::CloseStream { .. } => {
                (self.is_hung_up, self.is_stalled) = (true, true);
                return None;
            }
            Action::Stop(stopped) => {
                self.run.take_if(|(run, _)| *run == stopped);
                return None;
            }
            Action::Run { work, .. } => {
                self.run = Some((ticket, work));
                return None;
            }
            Action::LookAt { lease } => {
                Answer::LeaseSeen(self.exchange.lease(lease).cloned().map(Box::new))
            }
            Action::LookAtMarket { asks } => Answer::MarketSeen(Box::new(self.view_market(asks))),
            Action::Command(command) => {
                self.nonce += 1;
                let (log, nonce) = (self.now.log, self.nonce);
                let done = carry(&mut self.exchange, log, nonce, &provider(), *command);
                Answer::Commanded(done.map_err(NotDone::Refused))
            }
            Action::Bring { contents, .. } => {
                let arrival = |id: ContentId| Arrival {
                    id,
                    bytes: 100,
                    moved: 100,
                };
                Answer::Arrived(contents.iter().map(|it| arrival(it.id)).collect())
            }
            Action::Check { .. } => Answer::Checked(Ok(())),
            Action::Sandbox { .. } => Answer::Sandboxed { slots: 1 },
            Action::Prepare { .. } => Answer::Prepared(Ok(())),
            Action::Record(_) => Answer::Recorded,
            Action::Sign(body) => {
                let receipt = Receipt::new(*body).sign_as_provider(&provider());
                Answer::Signed(Box::new(receipt))
            }
            _ => return None,
        })
    }

    fn view_market(&self, asks: bool) -> MarketView {
        let own = AccountKey::from(&provider());
        let is_open = |lease: &&Lease| lease.provider == own && !lease.is_closed();
        let known = self.exchange.account(own).expect("it has an account");
        let listed = self.exchange.all_asks().filter(|_| asks);
        MarketView {
            leases: self.exchange.leases().filter(is_open).cloned().collect(),
            offered: known.offered_units(DEVICE),
            open_orders: known.open_orders,
            asks: listed.map(|listing| listing.order).collect(),
            due: Some(Terms {
                price: PRICE,
                duration_max: LENGTH,
                notice: Millis(0),
                spot: Vec::new(),
                idle: Permille(100),
                reputation_min: Permille(0),
            }),
            slots: Units(1),
        }
    }

    fn gain_of_provider(&self) -> i64 {
        self.gain(AccountKey::from(&provider()))
    }

    fn gain_of_buyer(&self) -> i64 {
        self.gain(AccountKey::from(&buyer()))
    }

    /// Returns an account's gain since the beginning, in micro-credits.
    fn gain(&self, account: AccountKey) -> i64 {
        let available = self.exchange.account(account).map(|it| it.available);
        let signed = |credits: u64| i64::try_from(credits).unwrap_or(i64::MAX);
        signed(available.map_or(0, |it| it.0)) - signed(INITIAL_CREDITS.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_of_answers_loses_no_more_than_the_page_states() {
        let page = include_str!("../../../../docs/token-prices.md");
        let costs = play_unpaid_answers();
        let [untold, told] = &costs[..] else {
            panic!("two kinds of buyers were played");
        };
        // Two seconds without the buyer's word, and the answer that was begun in them.
        let answer_s = ANSWER.device_time(TokenTerms::USUAL).0 as f64 / 1e6;
        assert!(untold.lost_s <= 2.0 + answer_s, "{untold:?}");
        // Whoever told the start pays more than the provider loses.
        assert!(
            told.excess_s <= 0.0 || told.cost_s >= told.lost_s,
            "{told:?}"
        );
        let rows = super::super::table_rows(&costs);
        let lines = rows.map(|row| format!("| {} |", row.join(" | ")));
        let missing: Vec<String> = lines.filter(|line| !page.contains(line)).collect();
        assert!(missing.is_empty(), "the page lacks {missing:#?}");
    }

    #[test]
    fn who_leaves_without_a_word_pays_for_the_answers_all_the_same() {
        let conduct = Conduct {
            tells_start: true,
            answers_max: 3,
            leaving: Leaving::HangUp,
            at_end: None,
            at_note: None,
        };
        let WorstLoss { loss, .. } = find_loss(conduct);
        assert!(loss.lost <= 0 && loss.gained < 0, "{loss:?}");
    }
}
