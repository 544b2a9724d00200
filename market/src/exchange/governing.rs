//! Carries out the commands of the market's operators (for example deposits, freezes and changes of
//! rules), once enough operators have given the same command.

use crate::approval::{APPROVAL_LIFE, APPROVALS_MAX, Approval};
use crate::command::{Acceptance, Command};
use crate::event::{Event, MoveReason};
use crate::ids::AccountKey;
use crate::refusal::Refusal;
use crate::text::Name;
use crate::units::{Count, Credits};

use super::{Context, Exchange, Timer};

impl Exchange {
    /// Carries out a command of the operators, or records it until enough of them have given it.
    pub(super) fn on_operator_command(
        &mut self,
        context: &mut Context<'_>,
        command: &Command,
    ) -> Result<Acceptance, Refusal> {
        if let Command::Refuse { request, reason } = command {
            let open = self.open_request(*request)?;
            match open.lock {
                _ if open.account != context.key => {}
                None => return self.on_refuse(context, *request, reason),
                Some(lock) if !self.operators.contains(&context.key) => {
                    let (request, at) = (*request, lock.at);
                    return Err(Refusal::RequestLocked { request, at });
                }
                Some(_) => {}
            }
        }
        self.only_operator(context.key)?;
        // A command that is no longer possible is refused to each operator, not only to the last
        // one.
        match command {
            Command::Lock { request } => self.check_lock(*request)?,
            Command::Confirm { request } => self.check_confirm(*request)?,
            _ => {}
        }
        if let Some(waits) = self.record_approval(context, command)? {
            return Ok(waits);
        }
        match command {
            Command::Deposit { account, amount } => self.on_deposit(context, *account, *amount),
            Command::Lock { request } => self.on_lock(context, *request),
            Command::Confirm { request } => self.on_confirm(context, *request),
            Command::Refuse { request, reason } => self.on_refuse(context, *request, reason),
            Command::Collect { to, amount } => self.on_collect(context, *to, *amount),
            Command::Freeze { account, reason } => self.on_freeze(context, *account, reason),
            Command::Thaw { account } => self.on_thaw(context, *account),
            Command::ChangeRules { settings, at } => self.on_change(context, settings, *at),
            Command::KeepRules { change } => self.on_keep(context, *change),
            Command::Upgrade(upgrade) => self.on_upgrade(context, *upgrade),
            _ => unreachable!("what every account may do is done elsewhere"),
        }
    }

    pub(super) fn only_operator(&self, account: AccountKey) -> Result<(), Refusal> {
        match self.operators.contains(&account) {
            true => Ok(()),
            false => Err(Refusal::OperatorOnly { account }),
        }
    }

    /// Records that an operator has given a command. Returns `None` if the exchange must now carry
    /// it out.
    fn record_approval(
        &mut self,
        context: &mut Context<'_>,
        command: &Command,
    ) -> Result<Option<Acceptance>, Refusal> {
        let needed = self.operators_needed;
        if needed <= 1 {
            return Ok(None);
        }
        let mut known = self.approvals.values();
        let id = match known.find(|approval| approval.command == *command) {
            Some(approval) => approval.id,
            None => self.begin_approval(context.key, command)?,
        };
        let approval = self.approvals.get_mut(&id).expect("it was just found");
        if !approval.given.contains(&context.key) {
            approval.given.push(context.key);
        }
        let given = u32::try_from(approval.given.len()).unwrap_or(u32::MAX);
        let until = approval.until;
        assert!((1..=needed).contains(&given), "who gave it is counted");
        let account = context.key;
        context.events.push(Event::Approved {
            approval: id,
            account,
            given,
            needed,
        });
        if given == needed {
            self.approvals.remove(&id);
            self.timers.remove(&(until, Timer::Approval(id)));
            return Ok(None);
        }
        Ok(Some(Acceptance::Awaited {
            approval: id,
            given,
            needed,
            until,
        }))
    }

    fn begin_approval(&mut self, by: AccountKey, command: &Command) -> Result<u64, Refusal> {
        let own = self.approvals.values();
        let own = own.filter(|approval| approval.given.first() == Some(&by));
        if own.count() >= APPROVALS_MAX {
            let limit = APPROVALS_MAX as u32;
            return Err(Refusal::ApprovalsMany { limit });
        }
        self.approvals_made.count_up();
        let (id, until) = (self.approvals_made, self.now.saturating_add(APPROVAL_LIFE));
        let approval = Approval {
            id,
            command: command.clone(),
            given: Vec::new(),
            until,
        };
        let earlier = self.approvals.insert(id, approval);
        assert!(earlier.is_none(), "a number is given once");
        self.timers.insert((until, Timer::Approval(id)));
        Ok(id)
    }

    /// Forgets a command that too few operators have given in time.
    pub(super) fn forget_approval(&mut self, id: u64) {
        let gone = self.approvals.remove(&id);
        assert!(gone.is_some(), "an approval's timer has an approval");
    }

    fn on_deposit(
        &mut self,
        context: &mut Context<'_>,
        account: AccountKey,
        amount: Credits,
    ) -> Result<Acceptance, Refusal> {
        self.ledger.check_deposit(amount)?;
        self.check_deposit_cap(self.ledger.find_slot(account), amount)?;
        let slot = match self.ledger.find_slot(account) {
            Some(slot) => slot,
            None => {
                let slot = self.open_account(account, &Name::default(), context.events)?;
                context.events.push(Event::Registered { account });
                slot
            }
        };
        self.ledger.deposit(slot, amount)?;
        self.count_deposit(slot, amount);
        context.events.push(Event::Moved {
            account,
            reason: MoveReason::Credited,
            amount,
        });
        let available = self.ledger.get(slot).available;
        assert!(available >= amount, "what came in is available");
        Ok(Acceptance::Deposited { available })
    }

    /// Moves collected market earnings to an account.
    fn on_collect(
        &mut self,
        context: &mut Context<'_>,
        to: AccountKey,
        amount: Credits,
    ) -> Result<Acceptance, Refusal> {
        let slot = self.ledger.find_slot(to);
        let slot = slot.ok_or(Refusal::AccountUnknown { account: to })?;
        let fees = self.ledger.totals().fees;
        if amount > fees {
            return Err(Refusal::FundsShort {
                available: fees,
                needed: amount,
            });
        }
        self.ledger.collect_fees(slot, amount);
        context.events.push(Event::Moved {
            account: to,
            reason: MoveReason::Collected,
            amount,
        });
        let available = self.ledger.get(slot).available;
        Ok(Acceptance::Collected { available })
    }
}

/// Queries that anyone may make.
impl Exchange {
    /// Returns the operators, and how many of them must give the same command.
    pub fn operators(&self) -> (&[AccountKey], u32) {
        (&self.operators, self.operators_needed)
    }

    /// Iterates over the commands that wait for more operators, the oldest first.
    pub fn pending_approvals(&self) -> impl Iterator<Item = &Approval> {
        self.approvals.values()
    }
}
