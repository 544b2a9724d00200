//! Plays attacks on a tab (a lease in which answers are sold by the token), with the core that a
//! souk buyer runs: receipts that are false in one field, notes after them, and a slot that is held
//! for nothing.

use std::collections::VecDeque;

use souk_market::{
    Acceptance, AccountKey, Ask, Batch, Bid, BuyerFilter, Command, CountingRule, Credits, DeviceId,
    DeviceMicros, Exchange, Genesis, JobId, Lease, LeaseId, Limit, Listing, Millis, Name, Nonce,
    Permille, Receipt, ReceiptBody, Refusal, Signature, SignedBatch, SigningKey, TimeInForce,
    TokenTerms, TokenUsage, Units, VerifiedBatch,
};
use souk_memory::ContentId;
use souk_roles::clock::{Micros, Now};
use souk_roles::effect::Effect;
use souk_roles::lease::{ProviderMessage, TAB_ANSWER, WorkResult, transcript};
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::tab::{TabAction, TabAnswer, TabCore, TabEvent, TabSpec, TabStage};

use super::false_receipts::{FalseReceipt, make_false_receipts};
use super::position::PRICE;
use super::{AttackCost, Loss, WorstLoss, new_attack_cost};

/// The length of a tab.
pub(super) const LENGTH: Millis = Millis(300_000);

/// The answer that is bought: 60,000 tokens, in a minute of the device.
const PLANNED: Millis = Millis(60_000);

/// How long a market takes to close a lease after its end.
pub(super) const CLOSED_AFTER: Millis = Millis(400_000);

pub(super) const INITIAL_CREDITS: Credits = Credits(100_000_000);

/// The job of the purchase.
pub(super) const JOB: JobId = JobId([8; 32]);

/// Plays all attacks on a tab.
pub fn play_tabs() -> Vec<AttackCost> {
    let mut costs = play_false_bills();
    costs.push(play_held_slot(0));
    costs.push(play_held_slot(500_000));
    costs
}

/// Plays one false receipt for each field. Whatever its buyer does, the provider then notes as much
/// as the market lets it.
fn play_false_bills() -> Vec<AttackCost> {
    let mut by_loss: Vec<((Loss, bool), Vec<&'static str>)> = Vec::new();
    let honest = TabPosition::after_answer().honest_receipt();
    for forged in make_false_bills(&honest) {
        let mut position = TabPosition::after_answer();
        position.send_receipt(forged.body);
        let is_signed = position.has_signed;
        position.note_on();
        let worth = i64::try_from(honest.amount.0).unwrap_or(i64::MAX);
        let loss = Loss {
            lost: -position.gain(&buyer()) - worth,
            gained: position.gain(&provider()) - worth,
            reputation: 0,
        };
        let found = by_loss.iter_mut().find(|it| it.0 == (loss, is_signed));
        match found {
            Some((_, fields)) => fields.push(forged.field),
            None => by_loss.push(((loss, is_signed), vec![forged.field])),
        }
    }
    let cost = |((loss, is_signed), fields): ((Loss, bool), Vec<&'static str>)| {
        let what = match is_signed {
            true => "does not count",
            false => "counts",
        };
        let plural = if fields.len() == 1 { "" } else { "s" };
        let attack = format!(
            "a tab's receipt is false in what its buyer {what}, {} field{plural}",
            fields.len()
        );
        let cost = new_attack_cost(attack, PLANNED, WorstLoss::from_loss(loss), fields.len());
        AttackCost { fields, ..cost }
    };
    by_loss.into_iter().map(cost).collect()
}

/// Returns the receipts with one false field, of the receipt itself or of its tokens.
fn make_false_bills(honest: &ReceiptBody) -> Vec<FalseReceipt> {
    let metered = honest.metered.expect("tokens are sold");
    // Names every field and no other.
    let TokenUsage {
        terms,
        input,
        cached,
        output,
        held,
    } = metered;
    let TokenTerms {
        counting: CountingRule::FourBytes,
        input_us,
        cached_us: _,
        floor_us,
    } = terms;
    let dearer = TokenTerms {
        input_us: input_us + 1,
        floor_us: floor_us + 1,
        ..terms
    };
    let false_tokens = [
        (
            "metered.terms",
            TokenUsage {
                terms: dearer,
                ..metered
            },
        ),
        (
            "metered.input",
            TokenUsage {
                input: input + 4_000,
                ..metered
            },
        ),
        (
            "metered.cached",
            TokenUsage {
                cached: cached + 4_000,
                ..metered
            },
        ),
        (
            "metered.output",
            TokenUsage {
                output: output + 1_000,
                ..metered
            },
        ),
        (
            "metered.held",
            TokenUsage {
                held: DeviceMicros(held.0 + 100_000_000),
                ..metered
            },
        ),
    ];
    let tokens = false_tokens.map(|(field, metered)| {
        let mut body = honest.clone();
        (body.usage, body.metered) = (metered.usage(), Some(metered));
        let due = ReceiptBody::amount_due(body.price, body.billable_usage());
        body.amount = due.unwrap_or(body.amount);
        FalseReceipt { field, body }
    });
    let mut forged = make_false_receipts(honest, DeviceMicros(LENGTH.0 * 1_000));
    forged.extend(tokens);
    forged
}

/// A buyer takes a slot with this floor, in microseconds a second, and asks nothing.
fn play_held_slot(floor_us: u32) -> AttackCost {
    let mut position = TabPosition::new(floor_us);
    let lease = position.buy_alone();
    let mut held = Millis(0);
    while !position.lease(lease).is_closed() {
        position.pass_time(Millis(10_000));
        let now = position.lease(lease);
        if now.is_running() {
            held = held.saturating_add(Millis(10_000));
        }
        let is_unclaimed = !now.claimed && now.reserved_until.is_none();
        if !now.is_closed() && is_unclaimed {
            drop(position.carry(&provider(), Command::StateReady { lease }));
        }
    }
    let held = DeviceMicros(held.0 * 1_000);
    let terms = to_terms(floor_us);
    let reserve = held.0 / 10;
    let owed = DeviceMicros(reserve.max(terms.floor_usage(held).0));
    let owed = ReceiptBody::amount_due(PRICE, owed).map_or(0, |due| due.0);
    let loss = WorstLoss::from_loss(Loss {
        lost: i64::try_from(owed).unwrap_or(i64::MAX) - position.gain(&provider()),
        gained: position.gain(&buyer()),
        reputation: 0,
    });
    let tokens = floor_us / 1_000;
    let attack = format!("a slot of a tab is held, nothing is asked, floor {tokens}");
    new_attack_cost(attack, Millis(0), loss, 1)
}

pub(super) fn provider() -> SigningKey {
    SigningKey::from_bytes(&[2; 32])
}

pub(super) fn buyer() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

fn to_terms(floor_us: u32) -> TokenTerms {
    TokenTerms {
        floor_us,
        ..TokenTerms::USUAL
    }
}

/// Returns a market with the two parties of a tab.
pub(super) fn new_exchange() -> Exchange {
    let operator = AccountKey([1; 32]);
    let mut genesis = Genesis::new(Name::default(), operator);
    let accounts = [
        operator,
        AccountKey::from(&provider()),
        AccountKey::from(&buyer()),
    ];
    genesis.accounts = accounts
        .map(|key| (key, Name::default(), INITIAL_CREDITS))
        .into();
    Exchange::new(genesis)
}

/// Carries out a command of an account, whose `nonce` grows with each.
pub(super) fn carry(
    exchange: &mut Exchange,
    now: Millis,
    nonce: u64,
    key: &SigningKey,
    command: Command,
) -> Result<Acceptance, Refusal> {
    let batch = Batch {
        market: exchange.market(),
        account: AccountKey::from(key),
        nonce: Nonce(nonce),
        expires: now.saturating_add(Millis(60_000)),
        commands: vec![command],
    };
    let signature = Signature([0; 64]);
    let signed = SignedBatch { batch, signature };
    let batch = VerifiedBatch::from_own_log(signed).expect("one command makes a batch");
    let outcome = exchange.apply(now, &batch).outcomes.pop();
    outcome.expect("one a command").into_result()
}

/// A tab, and the market around it.
struct TabPosition {
    exchange: Exchange,
    now: Now,
    nonce: u64,
    listing: Listing,
    card: ContentId,
    core: Option<TabCore>,
    effects: VecDeque<Effect<TabAction>>,
    lease: Option<LeaseId>,
    last_seen: Option<Lease>,
    counted: TokenCount,
    answer: ContentId,
    has_signed: bool,
}

impl TabPosition {
    fn new(floor_us: u32) -> TabPosition {
        let card = TextCard::new("qwen/qwen3-8b").expect("a model's name");
        let now = Now {
            tick: Micros(0),
            log: Millis(1_000_000),
        };
        let ask = Ask {
            device: DeviceId(1),
            capacity: Units(1),
            resources: card.to_resources(to_terms(floor_us)),
            limit: Limit::Price(PRICE),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: LENGTH,
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: BuyerFilter::default(),
            tif: TimeInForce::Gtc,
        };
        let mut exchange = new_exchange();
        let nonce = 1;
        let placed = Command::PlaceAsk(Box::new(ask));
        carry(&mut exchange, now.log, nonce, &provider(), placed).expect("it is a fair ask");
        let listing = exchange.all_asks().next().expect("it is in the book");
        TabPosition {
            exchange,
            now,
            nonce,
            listing,
            card: card.id(),
            core: None,
            effects: VecDeque::new(),
            lease: None,
            last_seen: None,
            counted: TokenCount {
                input: 40,
                cached: 0,
                output: PLANNED.0 - 10,
            },
            answer: ContentId::for_content(b"answer"),
            has_signed: false,
        }
    }

    /// A tab whose buyer has its answer and wants no more.
    fn after_answer() -> TabPosition {
        let mut position = TabPosition::new(0);
        let spec = position.to_spec();
        let body = ContentId::for_content(b"question");
        let (core, effects) = TabCore::begin(spec, body, position.now);
        (position.core, position.effects) = (Some(core), effects.into());
        position.carry_out();
        position.tell(ProviderMessage::Accepted);
        position.tell(ProviderMessage::Ready);
        let steps = PLANNED.0 / 1_000;
        for step in 1..=steps {
            position.pass_time(Millis(1_000));
            position.tell(ProviderMessage::Alive);
            let streamed = TokenCount {
                output: position.counted.output * step / steps,
                ..position.counted
            };
            position.on(TabEvent::TextArrived { streamed });
        }
        position.on(TabEvent::Close);
        let outputs = vec![(TAB_ANSWER.to_owned(), position.answer)];
        position.tell(ProviderMessage::Made {
            request: 0,
            part: 0,
            outputs,
        });
        position
    }

    fn to_spec(&self) -> TabSpec {
        TabSpec {
            market: self.exchange.market(),
            account: AccountKey::from(&buyer()),
            job: JOB,
            listing: Box::new(self.listing.clone()),
            excluded: Vec::new(),
            is_strict: false,
            card: self.card,
            duration: LENGTH,
        }
    }

    fn carry(&mut self, key: &SigningKey, command: Command) -> Result<Acceptance, String> {
        self.nonce += 1;
        let done = carry(&mut self.exchange, self.now.log, self.nonce, key, command);
        done.map_err(|refusal| refusal.to_string())
    }

    /// Buys the tab as its core does, without one.
    fn buy_alone(&mut self) -> LeaseId {
        let body = ContentId::for_content(b"question");
        let (_, effects) = TabCore::begin(self.to_spec(), body, self.now);
        let bids = effects
            .into_iter()
            .filter_map(|effect| match effect.action {
                TabAction::Buy(bid) => Some(bid),
                _ => None,
            });
        let bids: Vec<Box<Bid>> = bids.collect();
        for bid in bids {
            self.carry(&buyer(), Command::PlaceBid(bid))
                .expect("it is on sale");
        }
        self.exchange.leases().next().expect("it is bought").id
    }

    fn lease(&self, id: LeaseId) -> &Lease {
        let lease = self.exchange.lease(id);
        lease.expect("a market keeps its closed leases for longer")
    }

    fn on(&mut self, event: TabEvent) {
        let core = self.core.as_mut().expect("a buyer is there");
        self.effects.extend(core.apply(self.now, event));
        self.carry_out();
    }

    fn tell(&mut self, message: ProviderMessage) {
        self.on(TabEvent::MessageReceived(message));
    }

    /// Carries out what the buyer's core wants.
    fn carry_out(&mut self) {
        while let Some(Effect { ticket, action }) = self.effects.pop_front() {
            if let Some(answer) = self.answer_action(action) {
                let core = self.core.as_mut().expect("a buyer is there");
                let event = TabEvent::EffectAnswered { ticket, answer };
                self.effects.extend(core.apply(self.now, event));
            }
        }
    }

    fn answer_action(&mut self, action: TabAction) -> Option<TabAnswer> {
        match action {
            TabAction::Buy(bid) => match self.carry(&buyer(), Command::PlaceBid(bid)) {
                Ok(Acceptance::Placed { trades, .. }) => {
                    let trade = trades.first().copied().expect("a slot is free");
                    self.lease = Some(trade.lease);
                    Some(TabAnswer::Bought(Box::new(trade)))
                }
                other => panic!("{other:?} is no trade"),
            },
            TabAction::Find(_) => Some(TabAnswer::Found),
            TabAction::Count { .. } => Some(TabAnswer::Counted(self.counted)),
            TabAction::Sign(receipt) => {
                self.has_signed = true;
                Some(TabAnswer::Signed(Box::new(receipt.sign_as_buyer(&buyer()))))
            }
            TabAction::Command(command) => {
                let done = self.carry(&buyer(), *command);
                Some(TabAnswer::Commanded(done.map(drop)))
            }
            _ => None,
        }
    }

    fn pass_time(&mut self, step: Millis) {
        self.now.tick = self.now.tick.plus(Micros::from_millis(step.0));
        self.now.log = self.now.log.saturating_add(step);
        self.exchange.tick(self.now.log);
        let Some(core) = &self.core else {
            return;
        };
        let is_due = core.wakes_at().is_some_and(|at| at <= self.now.tick);
        if is_due {
            self.on(TabEvent::TimerFired);
        }
        let lease = self.lease.map(|id| self.lease(id).clone());
        if let Some(lease) = lease.filter(|lease| self.last_seen.as_ref() != Some(lease)) {
            self.last_seen = Some(lease.clone());
            let lease = Box::new(lease);
            self.on(TabEvent::Changed { lease });
        }
    }

    /// Returns an honest provider's receipt.
    fn honest_receipt(&self) -> ReceiptBody {
        let lease = self.lease(self.lease.expect("it is bought"));
        let metered = TokenUsage {
            terms: lease.tokens.expect("tokens are sold"),
            input: self.counted.input,
            cached: self.counted.cached,
            output: self.counted.output,
            held: DeviceMicros(0),
        };
        let to_market = |id: ContentId| souk_market::ContentId(*id.as_bytes());
        let outputs = transcript([&self.answer]).into_iter().map(to_market);
        let mut body = ReceiptBody {
            market: self.exchange.market(),
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            graph: to_market(self.card),
            inputs: Vec::new(),
            outputs: outputs.collect(),
            class: lease.class,
            model: lease.model.clone(),
            emulated: lease.class.emulated,
            dtype: souk_market::Dtype::F32,
            declared_mega_ops: 0,
            delivered_mega_ops: 0,
            usage: metered.usage(),
            metered: Some(metered),
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount: Credits(0),
            bytes_in: 0,
            bytes_out: 0,
            started: lease.start,
            finished: self.now.log,
        };
        let due = ReceiptBody::amount_due(body.price, body.billable_usage());
        body.amount = due.expect("a small price");
        body
    }

    fn send_receipt(&mut self, body: ReceiptBody) {
        let receipt = Receipt::new(body).sign_as_provider(&provider());
        self.tell(ProviderMessage::Finished(Box::new(WorkResult {
            receipt,
            outputs: Vec::new(),
            shown: Vec::new(),
        })));
    }

    /// Time goes on until the lease is closed, and the provider notes all that it can.
    fn note_on(&mut self) {
        let id = self.lease.expect("it is bought");
        let until = self
            .now
            .log
            .saturating_add(LENGTH)
            .saturating_add(CLOSED_AFTER);
        while !self.lease(id).is_closed() {
            assert!(self.now.log < until, "each tab is settled");
            self.pass_time(Millis(5_000));
            let usage = self.lease(id).usage_possible(self.now.log);
            if !self.lease(id).is_closed() {
                drop(self.carry(&provider(), Command::NoteUsage { lease: id, usage }));
            }
        }
        let stage = self.core.as_ref().map(TabCore::stage);
        assert!(
            stage >= Some(TabStage::Settling),
            "its buyer has an end in sight"
        );
    }

    /// Returns an account's gain since the beginning, in micro-credits.
    fn gain(&self, key: &SigningKey) -> i64 {
        let account = self.exchange.account(AccountKey::from(key));
        let available = account.map_or(Credits(0), |account| account.available);
        let signed = |credits: Credits| i64::try_from(credits.0).unwrap_or(i64::MAX);
        signed(available) - signed(INITIAL_CREDITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_honest_receipt_of_a_tab_is_signed_and_settled() {
        let mut position = TabPosition::after_answer();
        let honest = position.honest_receipt();
        let amount = i64::try_from(honest.amount.0).expect("it is small");
        position.send_receipt(honest);
        assert!(position.has_signed);
        position.note_on();
        assert_eq!(position.gain(&buyer()), -amount);
        assert_eq!(position.gain(&provider()), amount);
    }

    #[test]
    fn a_liar_gains_nothing_by_a_tab_and_the_page_states_what_it_costs() {
        let page = include_str!("../../../../docs/token-prices.md");
        let costs = play_tabs();
        for cost in &costs {
            assert!(cost.cost_s >= 0.0, "a liar gains: {cost:?}");
            assert!(cost.lost_s <= 30.0, "{cost:?}");
        }
        let rows = super::super::table_rows(&costs);
        let lines = rows.map(|row| format!("| {} |", row.join(" | ")));
        let missing: Vec<String> = lines.filter(|line| !page.contains(line)).collect();
        assert!(missing.is_empty(), "the page lacks {missing:#?}");
    }
}
