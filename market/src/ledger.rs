//! Moves credits between the balances of accounts, by double entry: every credit that leaves one
//! balance enters another.
//!
//! The ledger updates its totals with each entry, so that one comparison after every command checks
//! the equation available + escrow + stake + fees = deposits - withdrawals.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::accounts::Account;
use crate::event::{Balances, Event};
use crate::ids::{AccountKey, Slot};
use crate::refusal::{Quantity, Refusal};
use crate::state_tree::TouchedRows;
use crate::text::Name;
use crate::units::{Count, Credits, Rounding, divide_rounded, widening_product};

/// The sums over all accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All credits that ever came in.
    pub deposits: Credits,
    /// All credits that ever went out.
    pub withdrawals: Credits,
    /// Credits that accounts can spend.
    pub available: Credits,
    /// Credits that orders, leases and withdrawal requests hold.
    pub escrow: Credits,
    /// Credits at stake.
    pub stake: Credits,
    /// Fees that the market has earned and the operators have not collected.
    pub fees: Credits,
}

impl Totals {
    /// Returns whether available + escrow + stake + fees = deposits - withdrawals.
    pub fn is_balanced(&self) -> bool {
        let parts = [
            self.available,
            self.escrow,
            self.stake,
            self.fees,
            self.withdrawals,
        ];
        let all = parts.iter().map(|part| u128::from(part.0));
        let all = all.fold(0_u128, u128::saturating_add);
        all == u128::from(self.deposits.0)
    }
}

fn to_balances(account: &Account) -> Balances {
    Balances {
        available: account.available,
        escrow: account.escrow,
        stake: account.stake,
    }
}

/// All accounts and their sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    slots: BTreeMap<AccountKey, Slot>,
    accounts: Vec<Account>,
    /// The accounts opened so far.
    opened: u64,
    totals: Totals,
    /// The accounts whose balances the current command changed, with the balances before it.
    #[serde(skip)]
    touched: Vec<(Slot, Balances)>,
    #[serde(skip)]
    hints: AccountHints,
    /// The slots of accounts that commands touched since the last state root.
    #[serde(skip)]
    pub(crate) touched_slots: TouchedRows,
    /// The keys whose accounts were replaced since then.
    #[serde(skip)]
    pub(crate) forgotten_keys: Vec<AccountKey>,
}

/// The most keys noted between two state roots; after more, the next root hashes all accounts.
const FORGOTTEN_MAX: usize = 1 << 16;

/// The most entries of [`AccountHints`], half a megabyte.
const HINTS_MAX: usize = 1 << 16;

/// For the first bytes of a key, the last opened account whose key has them: a lookup tries it
/// before the tree. It follows from the list of accounts, so it is no part of the state.
#[derive(Clone, Debug, Default)]
struct AccountHints(Vec<Option<Slot>>);

impl PartialEq for AccountHints {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AccountHints {}

impl AccountHints {
    fn hint_index(&self, key: AccountKey) -> usize {
        let first = key.0.first_chunk().copied().map(u64::from_le_bytes);
        debug_assert!(self.0.is_empty() || self.0.len().is_power_of_two());
        first.unwrap_or(0) as usize & self.0.len().wrapping_sub(1)
    }

    fn get(&self, key: AccountKey) -> Option<Slot> {
        *self.0.get(self.hint_index(key))?
    }

    /// Records an account that took another's slot.
    fn tell_one(&mut self, key: AccountKey, slot: Slot) {
        let place = self.hint_index(key);
        self.0[place] = Some(slot);
    }

    /// Records the newest account; if the list is too short, builds a longer one for all accounts.
    fn record_newest(&mut self, accounts: &[Account]) {
        let wanted = (accounts.len().saturating_mul(2))
            .next_power_of_two()
            .clamp(64, HINTS_MAX);
        let mut first = accounts.len().saturating_sub(1);
        if self.0.len() < wanted {
            self.0 = vec![None; wanted];
            first = 0;
        }
        for (account, at) in accounts[first..].iter().zip(first..) {
            let place = self.hint_index(account.key);
            self.0[place] = u32::try_from(at).ok().map(Slot);
        }
        assert!(self.0.len() <= HINTS_MAX, "hints take little memory");
    }
}

impl Ledger {
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the number of accounts opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    pub(crate) fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    pub(crate) fn find_slot(&self, key: AccountKey) -> Option<Slot> {
        let hinted = self.hints.get(key);
        let known = hinted.filter(|slot| self.get(*slot).key == key);
        known.or_else(|| self.slots.get(&key).copied())
    }

    /// Returns the slot of an account that must have an open order, lease or request, which keeps
    /// it known.
    pub(crate) fn expect_slot(&self, key: AccountKey) -> Slot {
        self.find_slot(key)
            .expect("an account with something open stays")
    }

    pub(crate) fn get(&self, slot: Slot) -> &Account {
        &self.accounts[slot.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut Account {
        self.touched_slots.note(u64::from(slot.0));
        &mut self.accounts[slot.0 as usize]
    }

    fn balances_mut(&mut self, slot: Slot) -> &mut Account {
        if !self.touched.iter().any(|(known, _)| *known == slot) {
            self.touched.push((slot, to_balances(self.get(slot))));
        }
        debug_assert!(!self.touched.is_empty(), "who is touched is told of");
        self.get_mut(slot)
    }

    pub(crate) fn open_account(&mut self, key: AccountKey, name: Name) -> Slot {
        let slot = Slot(u32::try_from(self.accounts.len()).expect("fewer than 2^32 accounts"));
        let earlier = self.slots.insert(key, slot);
        assert!(earlier.is_none(), "an account is opened once");
        let account = self.new_account(key, name);
        self.accounts.push(account);
        self.touched_slots.note(u64::from(slot.0));
        self.hints.record_newest(&self.accounts);
        debug_assert_eq!(self.find_slot(key), Some(slot), "what was opened is found");
        debug_assert_eq!(self.slots.len(), self.accounts.len(), "one key an account");
        slot
    }

    fn new_account(&mut self, key: AccountKey, name: Name) -> Account {
        self.opened.count_up();
        Account {
            opened: self.opened,
            ..Account::new(key, name)
        }
    }

    /// Replaces an account by a new one and returns the old key. Nothing must refer to the old
    /// account any more.
    pub(crate) fn replace_account(
        &mut self,
        slot: Slot,
        key: AccountKey,
        name: Name,
    ) -> AccountKey {
        let old = self.get(slot).key;
        debug_assert!(self.touched.iter().all(|(touched, _)| *touched != slot));
        let known = self.slots.remove(&old);
        assert_eq!(known, Some(slot), "the old one was found by its key");
        let earlier = self.slots.insert(key, slot);
        assert!(earlier.is_none(), "an account is opened once");
        let account = self.new_account(key, name);
        *self.get_mut(slot) = account;
        self.note_forgotten(old);
        self.hints.tell_one(key, slot);
        assert_eq!(self.slots.len(), self.accounts.len(), "one key an account");
        old
    }

    /// Notes the key of a replaced account, which the state's tree must drop.
    fn note_forgotten(&mut self, key: AccountKey) {
        if self.touched_slots.is_all() {
            self.forgotten_keys.clear();
            return;
        }
        self.forgotten_keys.push(key);
        if self.forgotten_keys.len() >= FORGOTTEN_MAX {
            self.forgotten_keys.clear();
            self.touched_slots = TouchedRows::default();
        }
    }

    /// Checks that each account's key leads to it, because a snapshot can hold anything.
    pub(crate) fn is_sound(&self) -> bool {
        let found =
            |(account, at): (&Account, u32)| self.slots.get(&account.key) == Some(&Slot(at));
        self.accounts.len() == self.slots.len() && self.accounts.iter().zip(0..).all(found)
    }

    /// Rebuilds the hints after a restore.
    pub(crate) fn rebuild_hints(&mut self) {
        assert_eq!(self.slots.len(), self.accounts.len(), "one key an account");
        self.hints = AccountHints::default();
        self.hints.record_newest(&self.accounts);
    }

    /// Returns the sum of all deposits including `amount`, or refuses a sum beyond 64 bits.
    pub(crate) fn check_deposit(&self, amount: Credits) -> Result<Credits, Refusal> {
        let deposits = self.totals.deposits.checked_add(amount);
        deposits.ok_or(Refusal::AmountLarge {
            what: Quantity::Deposits,
        })
    }

    pub(crate) fn deposit(&mut self, slot: Slot, amount: Credits) -> Result<(), Refusal> {
        debug_assert!(
            self.totals.is_balanced(),
            "credits are neither made nor lost"
        );
        self.totals.deposits = self.check_deposit(amount)?;
        self.totals.available = self.totals.available.plus(amount);
        let account = self.balances_mut(slot);
        account.available = account.available.plus(amount);
        assert!(amount <= account.available, "what came in is available");
        assert!(self.totals.is_balanced(), "what came in is available");
        Ok(())
    }

    pub(crate) fn withdraw(&mut self, slot: Slot, amount: Credits) -> Result<(), Refusal> {
        self.check_available(slot, amount)?;
        let account = self.balances_mut(slot);
        account.available = account.available.minus(amount);
        self.totals.available = self.totals.available.minus(amount);
        self.totals.withdrawals = self.totals.withdrawals.plus(amount);
        assert!(self.totals.is_balanced(), "what went out was available");
        debug_assert!(
            self.get(slot).available <= self.totals.available,
            "a part of the whole"
        );
        Ok(())
    }

    pub(crate) fn check_available(&self, slot: Slot, needed: Credits) -> Result<(), Refusal> {
        let available = self.get(slot).available;
        if available < needed {
            Err(Refusal::FundsShort { available, needed })
        } else {
            Ok(())
        }
    }

    /// Moves available credits to escrow; the caller must call [`Self::check_available`] first.
    pub(crate) fn hold_in_escrow(&mut self, slot: Slot, amount: Credits) {
        let account = self.balances_mut(slot);
        assert!(
            amount <= account.available,
            "the caller has asked for the need"
        );
        account.available = account.available.minus(amount);
        account.escrow = account.escrow.plus(amount);
        self.totals.available = self.totals.available.minus(amount);
        self.totals.escrow = self.totals.escrow.plus(amount);
        debug_assert!(self.totals.is_balanced(), "what is held was available");
        debug_assert!(
            self.get(slot).escrow <= self.totals.escrow,
            "a part of the whole"
        );
    }

    /// Moves credits from escrow to available. The account must have them in escrow.
    pub(crate) fn release_escrow(&mut self, slot: Slot, amount: Credits) {
        let account = self.balances_mut(slot);
        assert!(amount <= account.escrow, "what is released was held");
        account.escrow = account.escrow.minus(amount);
        account.available = account.available.plus(amount);
        self.totals.escrow = self.totals.escrow.minus(amount);
        self.totals.available = self.totals.available.plus(amount);
        debug_assert!(self.totals.is_balanced(), "what is released was held");
        debug_assert!(
            self.get(slot).available <= self.totals.available,
            "a part of the whole"
        );
    }

    /// Moves available credits to another account; the caller must check [`Self::need`] first.
    pub(crate) fn transfer_credits(&mut self, from: Slot, to: Slot, amount: Credits) {
        let account = self.balances_mut(from);
        account.available = account.available.minus(amount);
        let account = self.balances_mut(to);
        account.available = account.available.plus(amount);
        assert!(self.totals.is_balanced(), "what one loses the other gains");
        debug_assert!(
            self.get(to).available <= self.totals.available,
            "a part of the whole"
        );
    }

    /// Moves all available credits of an account to the fees. Returns the amount.
    pub(crate) fn forfeit_available(&mut self, from: Slot) -> Credits {
        let account = self.balances_mut(from);
        let amount = std::mem::take(&mut account.available);
        self.totals.available = self.totals.available.minus(amount);
        self.totals.fees = self.totals.fees.plus(amount);
        assert!(self.totals.is_balanced(), "what one loses the market gains");
        amount
    }

    /// Moves fees to an account's available credits; `amount` must not exceed the fees.
    pub(crate) fn collect_fees(&mut self, to: Slot, amount: Credits) {
        assert!(amount <= self.totals.fees, "what is taken was earned");
        let account = self.balances_mut(to);
        account.available = account.available.plus(amount);
        self.totals.fees = self.totals.fees.minus(amount);
        self.totals.available = self.totals.available.plus(amount);
        assert!(self.totals.is_balanced(), "what is taken was earned");
    }

    /// Moves available credits to stake; the caller must call [`Self::check_available`] first.
    pub(crate) fn add_stake(&mut self, slot: Slot, amount: Credits) {
        let account = self.balances_mut(slot);
        assert!(
            amount <= account.available,
            "the caller has asked for the need"
        );
        account.available = account.available.minus(amount);
        account.stake = account.stake.plus(amount);
        self.totals.available = self.totals.available.minus(amount);
        self.totals.stake = self.totals.stake.plus(amount);
        assert!(self.totals.is_balanced(), "what is at stake was available");
    }

    /// Moves stake to available credits.
    pub(crate) fn remove_stake(&mut self, slot: Slot, amount: Credits) {
        let account = self.balances_mut(slot);
        assert!(amount <= account.stake, "what is taken back is at stake");
        account.stake = account.stake.minus(amount);
        account.available = account.available.plus(amount);
        self.totals.stake = self.totals.stake.minus(amount);
        self.totals.available = self.totals.available.plus(amount);
        assert!(
            self.totals.is_balanced(),
            "what is available again was at stake"
        );
    }

    /// Moves stake to another account's available credits, if that account is known, and to the
    /// fees. The other account must not be the one that loses the stake.
    pub(crate) fn slash_stake(
        &mut self,
        from: Slot,
        to: Option<Slot>,
        compensated: Credits,
        fees: Credits,
    ) {
        assert!(to != Some(from), "nobody compensates itself");
        assert!(to.is_some() || compensated.0 == 0, "nobody gets nothing");
        let account = self.balances_mut(from);
        account.stake = account.stake.minus(compensated).minus(fees);
        if let Some(to) = to {
            let account = self.balances_mut(to);
            account.available = account.available.plus(compensated);
        }
        self.totals.stake = self.totals.stake.minus(compensated).minus(fees);
        self.totals.available = self.totals.available.plus(compensated);
        self.totals.fees = self.totals.fees.plus(fees);
        assert!(self.totals.is_balanced(), "lost stake goes somewhere");
    }

    /// Moves a buyer's escrow to the provider, less the fee. Returns the fee, which is rounded
    /// down.
    pub(crate) fn pay_provider(
        &mut self,
        buyer: Slot,
        provider: Slot,
        amount: Credits,
        basis_points: u16,
    ) -> Credits {
        let fee = fee_share(amount, basis_points);
        let net = amount.minus(fee);
        debug_assert!(fee <= amount, "the market takes a share");
        let account = self.balances_mut(buyer);
        account.escrow = account.escrow.minus(amount);
        let account = self.balances_mut(provider);
        account.available = account.available.plus(net);
        self.totals.escrow = self.totals.escrow.minus(amount);
        self.totals.available = self.totals.available.plus(net);
        self.totals.fees = self.totals.fees.plus(fee);
        debug_assert!(self.totals.is_balanced(), "what is paid was held");
        fee
    }

    /// Adds an event for each account whose balances changed since the last call, in the order of
    /// slots.
    pub(crate) fn report_balances(&mut self, events: &mut Vec<Event>) {
        self.touched.sort_unstable();
        let twice = self.touched.windows(2).any(|two| two[0].0 == two[1].0);
        debug_assert!(!twice, "an account is told of once a command");
        for at in 0..self.touched.len() {
            let (slot, before) = self.touched[at];
            let account = self.get(slot);
            let after = to_balances(account);
            if after != before {
                events.push(Event::Balance {
                    account: account.key,
                    before,
                    after,
                });
            }
        }
        self.touched.clear();
        debug_assert!(self.totals.is_balanced(), "what is told adds up");
    }

    pub(crate) fn assert_balanced(&self) {
        assert!(
            self.totals.is_balanced(),
            "credits are neither made nor lost: {:?}",
            self.totals
        );
    }
}

fn fee_share(amount: Credits, basis_points: u16) -> Credits {
    let part = widening_product(amount.0, basis_points.min(10_000).into());
    let share = divide_rounded(part, 10_000, Rounding::Down);
    let share = share.expect("a share is no more than the whole");
    assert!(share <= amount, "a share is no more than the whole");
    share
}
