//! Defines [`Exchange`], the market as a state machine: it takes batches of commands, changes
//! accounts, orders and leases, and returns outcomes and events. It is synchronous and does no I/O.
//! Most submodules carry out one kind of command, such as bids or disputes.

mod admission;
mod amend;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "a sum that does not fit is a state that can not be trusted"
)]
mod audit;
mod bid;
mod book_entry;
mod census;
mod checks;
mod displace;
mod disputes;
mod explain;
mod forgetting;
mod freezing;
mod gang;
mod governing;
mod leases;
mod matching;
mod notes;
mod orders;
mod own_orders;
mod quotes;
mod requests;
mod resale;
mod reserve;
mod room;
mod rule_changes;
mod settle;
mod spot;
mod stake;
mod state_root;
mod steps;
mod tick;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize, Serializer};

use crate::accounts::Account;
use crate::approval::Approval;
use crate::batch::{Batch, VerifiedBatch};
use crate::books::Books;
use crate::command::{Acceptance, BatchOutcome, Command, Outcome};
use crate::digest::Chain;
use crate::dispute::{Dispute, DisputeId};
use crate::event::{Event, MoveReason};
use crate::genesis::Genesis;
use crate::ids::{AccountKey, BookId, Digest, LeaseId, MarketId, OrderId, RequestId, Slot};
use crate::lease::Lease;
use crate::lease_table::LeaseTable;
use crate::ledger::{Ledger, Totals};
use crate::refusal::Refusal;
use crate::request::MoneyRequest;
use crate::rules::{FIRST_RULES_VERSION, Rules, RulesChange, Upgrade};
use crate::state_tree::{StateTree, TouchedRows};
use crate::units::{Credits, Millis, Price};
use forgetting::AnsweringLeases;
use spot::SpotAskKey;
use steps::{LastSteps, StepCount};

pub use census::Census;
pub use explain::{ClassAsks, Exclusion, Explanation, FirstAsk, Listing, ListingRef};
pub use own_orders::OpenOrder;
pub use quotes::{ClassSummary, DepthLevel, Quotes};
pub use steps::BATCH_STEPS;

/// The market: accounts, books, leases. All replicas that applied the same log must hold equal
/// states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    market: MarketId,
    operators: Vec<AccountKey>,
    operators_needed: u32,
    rules: Rules,
    /// The version of the rules that applies; `upgrade` is the announced next one.
    version: u16,
    upgrade: Option<Upgrade>,
    now: Millis,
    ledger: Ledger,
    books: Books,
    leases: LeaseTable,
    /// The newest closed leases, as many as the rules keep.
    closed: BTreeSet<(Millis, LeaseId)>,
    /// The older ones for which a stake still answers.
    #[serde(skip)]
    answering: AnsweringLeases,
    timers: BTreeSet<(Millis, Timer)>,
    spot: BTreeSet<SpotKey>,
    /// Asks with spot prices below their limit.
    spot_asks: BTreeSet<SpotAskKey>,
    requests: BTreeMap<RequestId, MoneyRequest>,
    /// Requests that held less than a deposit when their account made them.
    light_requests: BTreeSet<RequestId>,
    /// Operators' commands that wait for more operators.
    approvals: BTreeMap<u64, Approval>,
    /// Announced changes of the rules.
    changes: BTreeMap<u64, RulesChange>,
    /// The open disputes, and the last closed ones.
    disputes: BTreeMap<DisputeId, Dispute>,
    /// Orders that hold less than a deposit, ordered by the age of their accounts, oldest first.
    light: BTreeSet<LightKey>,
    /// Accounts that had nothing, or little, at the last search, the longest unused first.
    idle: VecDeque<(Slot, AccountKey)>,
    /// The log time from which the exchange can search for such accounts again.
    idle_sought_at: Millis,
    orders_made: u64,
    trades_made: u64,
    requests_made: u64,
    approvals_made: u64,
    changes_made: u64,
    disputes_made: u64,
    chain: Chain,
    #[serde(skip)]
    last_steps: LastSteps,
    #[serde(skip)]
    state_tree: StateTree,
    /// The money requests that commands touched since the last state root.
    #[serde(skip)]
    touched_requests: TouchedRows,
}

/// The key of a running spot lease that a higher bid can displace: in each book the cheapest lease
/// comes first and, at one price, the newest.
type SpotKey = (BookId, Price, Reverse<LeaseId>);

fn spot_key(lease: &Lease) -> SpotKey {
    (lease.parties.book, lease.price, Reverse(lease.id))
}

/// The number of the order's account, and the order.
type LightKey = (u64, OrderId);

/// An action that falls due at a log time; the order of the variants is the order within a
/// millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Timer {
    Note(LeaseId),
    Reserve(LeaseId),
    LeaseEnds(LeaseId),
    LeaseCloses(LeaseId),
    OrderExpires(OrderId),
    Rules(u64),
    Approval(u64),
    Upgrade,
    Dispute(DisputeId),
}

/// The account that gives the current command, and the sinks for its events and steps.
struct Context<'a> {
    slot: Slot,
    key: AccountKey,
    events: &'a mut Vec<Event>,
    /// The steps that the batch's commands have taken so far.
    steps: &'a mut StepCount,
}

impl Context<'_> {
    /// Adds an event that says why credits of the current account moved.
    fn push_move_event(&mut self, reason: MoveReason, amount: Credits) {
        self.events.push(Event::Moved {
            account: self.key,
            reason,
            amount,
        });
    }
}

impl Exchange {
    /// Creates a market in its first state.
    ///
    /// # Panics
    /// If [`Genesis::check`] refuses the genesis.
    pub fn new(genesis: Genesis) -> Self {
        if let Err(fault) = genesis.check() {
            panic!("no market begins so: {fault}");
        }
        let market = genesis.market_id();
        let Genesis {
            operators,
            operators_needed,
            accounts,
            rules,
            ..
        } = genesis;
        let mut ledger = Ledger::default();
        for (key, name, deposit) in accounts {
            let slot = ledger.open_account(key, name);
            ledger
                .deposit(slot, deposit)
                .expect("the genesis' deposits fit");
        }
        ledger.report_balances(&mut Vec::new());
        ledger.assert_balanced();
        let mut chain = Chain::default();
        chain.extend(&market);
        Self {
            market,
            operators,
            operators_needed,
            rules,
            version: FIRST_RULES_VERSION,
            upgrade: None,
            now: Millis(0),
            ledger,
            books: Books::default(),
            leases: LeaseTable::default(),
            closed: BTreeSet::new(),
            answering: AnsweringLeases::default(),
            timers: BTreeSet::new(),
            spot: BTreeSet::new(),
            spot_asks: BTreeSet::new(),
            requests: BTreeMap::new(),
            light_requests: BTreeSet::new(),
            approvals: BTreeMap::new(),
            changes: BTreeMap::new(),
            disputes: BTreeMap::new(),
            light: BTreeSet::new(),
            idle: VecDeque::new(),
            idle_sought_at: Millis(0),
            orders_made: 0,
            trades_made: 0,
            requests_made: 0,
            approvals_made: 0,
            changes_made: 0,
            disputes_made: 0,
            chain,
            last_steps: LastSteps::default(),
            state_tree: StateTree::default(),
            touched_requests: TouchedRows::default(),
        }
    }

    /// Advances time to `now` and applies a batch. A `now` before the last one counts as the last
    /// one. The exchange applies each command fully or not at all; a refused command will not stop
    /// the next.
    pub fn apply(&mut self, now: Millis, verified: &VerifiedBatch) -> BatchOutcome {
        let mut applied = BatchOutcome::default();
        self.apply_into(now, verified, &mut applied);
        applied
    }

    /// Like [`Self::apply`], but writes to a value that you can reuse, which avoids allocation.
    pub fn apply_into(
        &mut self,
        now: Millis,
        verified: &VerifiedBatch,
        applied: &mut BatchOutcome,
    ) {
        let before = self.now;
        applied.outcomes.clear();
        applied.events.clear();
        for command in &verified.batch().commands {
            if let Command::Cancel { order } | Command::Amend { order, .. } = command {
                self.books.prefetch_order(*order);
            }
        }
        let due = self.advance_time(now, &mut applied.events);
        match self.admit_batch(verified.batch(), &mut applied.events) {
            Ok(slot) => {
                let taken = self.run(slot, verified, applied);
                self.last_steps = LastSteps(due.saturating_add(taken.steps_taken()));
            }
            Err(refusal) => {
                self.last_steps = LastSteps(due);
                let each = verified.batch().commands.iter();
                applied
                    .outcomes
                    .extend(each.map(|_| Outcome::Refused(refusal.clone())));
            }
        }
        let Batch {
            account,
            nonce,
            commands,
            ..
        } = verified.batch();
        assert!(self.now >= before, "time does not run backwards");
        assert_eq!(
            applied.outcomes.len(),
            commands.len(),
            "one outcome a command"
        );
        let codes = OutcomeCodes(&applied.outcomes);
        self.chain
            .extend(&(self.now, account, nonce, &applied.events, codes));
        self.ledger.assert_balanced();
    }

    /// Advances time: orders expire, leases end and close, notes become accepted.
    pub fn tick(&mut self, now: Millis) -> Vec<Event> {
        let mut events = Vec::new();
        let before = self.now;
        let due = self.advance_time(now, &mut events);
        self.last_steps = LastSteps(due);
        assert!(self.now >= before, "time does not run backwards");
        if self.now > before || !events.is_empty() {
            self.chain.extend(&(self.now, &events));
        }
        self.ledger.assert_balanced();
        events
    }

    fn run(
        &mut self,
        slot: Slot,
        verified: &VerifiedBatch,
        applied: &mut BatchOutcome,
    ) -> StepCount {
        let mut steps = StepCount::default();
        let batch = verified.batch();
        let key = batch.account;
        let nameless = self.ledger.get(slot).fresh;
        assert!(applied.outcomes.is_empty(), "the outcomes are this batch's");
        assert_eq!(self.ledger.get(slot).key, key, "the slot is the account's");
        for (place, command) in batch.commands.iter().enumerate() {
            let mut context = Context {
                slot,
                key,
                events: &mut applied.events,
                steps: &mut steps,
            };
            let first = nameless && place == 0;
            let done = match verified.receipt_fault(place) {
                Some(fault) => Err(Refusal::ReceiptBad {
                    fault: Box::new(fault.clone()),
                }),
                None => self.carry_out(&mut context, command, first),
            };
            applied
                .outcomes
                .push(done.map_or_else(Outcome::Refused, Outcome::Accepted));
            self.ledger.report_balances(&mut applied.events);
            self.ledger.assert_balanced();
        }
        steps
    }

    fn carry_out(
        &mut self,
        context: &mut Context<'_>,
        command: &Command,
        first: bool,
    ) -> Result<Acceptance, Refusal> {
        self.check_frozen(context.slot, command)?;
        self.check_steps(*context.steps, command)?;
        context.steps.spend_command();
        match command {
            Command::Register { .. } => self.on_register(context, first),
            Command::Request {
                direction,
                amount,
                reference,
            } => self.on_request(context, *direction, *amount, reference),
            Command::Transfer {
                to,
                amount,
                reference,
            } => self.on_transfer(context, *to, *amount, reference),
            Command::PlaceAsk(ask) => self.on_ask(context, ask),
            Command::PlaceBid(bid) => self.on_bid(context, bid),
            Command::PlaceGang(legs) => self.on_gang(context, legs),
            Command::Cancel { order } => self.on_cancel(context, *order),
            Command::Amend {
                order,
                quantity,
                price,
            } => self.on_amend(context, *order, *quantity, *price),
            Command::StartWork { lease } => self.on_start_work(context, *lease),
            Command::StateReady { lease } => self.on_ready(context, *lease),
            Command::NoteUsage { lease, usage } => self.on_note(context, *lease, *usage),
            Command::AcceptNote { lease, usage } => self.on_accept(context, *lease, *usage),
            Command::Dispute { lease } => self.on_dispute(context, *lease),
            Command::Settle(receipt) => self.on_settle(context, receipt),
            Command::EndLease { lease } => self.on_end(context, *lease),
            Command::GiveUp { lease } => self.on_give_up(context, *lease),
            Command::Reclaim { lease } => self.on_reclaim(context, *lease),
            Command::Extend { lease, by } => self.on_extend(context, *lease, *by),
            Command::Resell { lease, price } => self.on_resell(context, *lease, *price),
            Command::Stake { amount } => self.on_stake(context, *amount),
            Command::Unstake { amount } => self.on_unstake(context, *amount),
            Command::ProveFault(pair) => self.on_fault(context, pair),
            Command::Accuse(accusation) => self.on_accuse(context, accusation),
            operators => self.on_operator_command(context, operators),
        }
    }

    fn on_register(
        &mut self,
        context: &mut Context<'_>,
        first: bool,
    ) -> Result<Acceptance, Refusal> {
        let account = context.key;
        if !first {
            return Err(Refusal::AccountKnown { account });
        }
        let account_opened = self.ledger.get_mut(context.slot);
        assert!(account_opened.fresh, "an account is registered once");
        account_opened.fresh = false;
        context.events.push(Event::Registered { account });
        Ok(Acceptance::Registered)
    }
}

/// Queries that anyone can make.
impl Exchange {
    /// Returns the market's id, which the signatures of batches and receipts cover.
    pub fn market(&self) -> MarketId {
        self.market
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the last log time.
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Returns the log time at which the next action falls due, if any does.
    pub fn wakes_at(&self) -> Option<Millis> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the digest of all inputs and outputs so far. This hashes at most 64 KiB.
    pub fn digest(&self) -> Digest {
        self.chain.current_digest()
    }

    /// Checks the parts of a restored state on which the exchange relies without further checks.
    pub(crate) fn is_sound(&self) -> bool {
        self.rules.check_ranges().is_ok() && self.ledger.is_sound() && self.chain.is_sound()
    }

    /// Rebuilds, after a restore, the indices that a snapshot does not hold.
    pub(crate) fn rebuild_indices(&mut self) {
        self.books.rebuild_indices();
        self.ledger.rebuild_hints();
        self.leases.rebuild_indices();
        self.answering = self.find_answering();
        debug_assert!(self.is_sound(), "what is found again hangs together");
    }

    /// Returns the sums over all accounts.
    pub fn totals(&self) -> Totals {
        self.ledger.totals()
    }

    /// Returns an account, if the exchange knows the key.
    pub fn account(&self, key: AccountKey) -> Option<&Account> {
        self.ledger.find_slot(key).map(|slot| self.ledger.get(slot))
    }

    /// Returns all accounts in the order of their slots: the order of opening, except that a new
    /// account can take a forgotten one's slot.
    pub fn accounts(&self) -> &[Account] {
        self.ledger.accounts()
    }

    /// Returns a lease, if the exchange still knows it.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// Returns, by id, the open leases in which an account is buyer or provider.
    pub fn leases_of(&self, key: AccountKey) -> Vec<&Lease> {
        let slot = self.ledger.find_slot(key);
        let open = slot.map(|slot| self.leases.open_leases(slot));
        open.into_iter().flatten().collect()
    }

    /// Iterates, by id, over the leases that an account bought and the exchange still knows.
    pub fn leases_bought_by(&self, key: AccountKey) -> impl DoubleEndedIterator<Item = &Lease> {
        let slot = self.ledger.find_slot(key);
        let bought = slot.map(|slot| self.leases.bought_leases(slot));
        let bought = bought.into_iter().flatten();
        bought.filter(move |lease| lease.buyer == key)
    }

    /// Iterates over all leases that the exchange still knows, by id.
    pub fn leases(&self) -> impl DoubleEndedIterator<Item = &Lease> {
        self.leases.values()
    }
}

/// The code of each outcome; an accepted one has an empty code.
struct OutcomeCodes<'a>(&'a [Outcome]);

impl Serialize for OutcomeCodes<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let code = |outcome: &Outcome| match outcome {
            Outcome::Accepted(_) => "",
            Outcome::Refused(refusal) => refusal.code(),
        };
        to.collect_seq(self.0.iter().map(code))
    }
}
