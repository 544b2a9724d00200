//! Buys the providers of a session: looks up the credits that came back, requests a quote, and
//! opens the job.
//!
//! Only one session chooses at a time, because sessions that are compared must have no provider in
//! common. If a session replaces another one, it waits for the devices and credits of that one.

use souk_market::JobId;

use super::action::Action;
use super::event::{Choice, QuoteFailure};
use super::failure::SessionFailure;
use super::session_budget::SessionBudget;
use super::text_session::{Purchase, Stage};
use super::{SessionCore, Wait};
use crate::clock::Micros;
use crate::job::Spending;

/// Longest wait of a new session for the devices and credits of the one before it, and the period
/// of its checks.
const GIVEN_BACK_MAX: Micros = Micros::from_seconds(20);
const LOOK_PERIOD: Micros = Micros::from_millis(500);

/// Largest number of running steps of a sequence: the buyer also pays for steps that it never uses.
const REACH_MAX: u32 = 16;

impl SessionCore {
    /// Begins to buy a job for a session.
    pub(super) fn buy_session(&mut self, number: u32, is_replacement: bool) {
        let session = self.session_mut(number);
        session.bought += 1;
        session.stage = Stage::Queued;
        session.purchase = Purchase {
            is_replacement,
            ..Purchase::default()
        };
        self.choosers.push_back(number);
    }

    /// Lets the next session choose, if none does. Returns whether one begins.
    pub(super) fn begin_choice(&mut self) -> bool {
        if self.choosing.is_some() {
            return false;
        }
        self.choosing = self.choosers.pop_front();
        if let Some(number) = self.choosing {
            self.look_up_spending(number);
        }
        self.choosing.is_some()
    }

    /// Looks up the credits that came back, before a quote.
    pub(super) fn look_up_spending(&mut self, number: u32) {
        let session = self.session_mut(number);
        let jobs = session.budget.holding_jobs();
        if jobs.is_empty() {
            return self.quote_session(number, None);
        }
        session.stage = Stage::LookingUpSpending;
        self.push_question(Action::LookUpSpending { jobs }, Wait::Spending(number));
    }

    pub(super) fn on_spent(&mut self, number: u32, spent: &[(JobId, Option<Spending>)]) {
        self.session_mut(number).budget.add_returned_credits(spent);
        self.quote_session(number, None);
    }

    fn quote_session(&mut self, number: u32, wait_longer: Option<Micros>) {
        // The providers about which it decides can be free by now.
        let judged = self.judged_providers(number);
        let excluded = self.sellers.excluded_providers(number, judged);
        let session = self.session_mut(number);
        session.stage = Stage::Quoting;
        session.purchase.is_last = wait_longer.is_some();
        let quote = Action::Quote {
            session: number,
            budget: session.budget.remaining_credits(),
            excluded,
            wait_longer,
        };
        self.push_question(quote, Wait::Quote(number));
    }

    pub(super) fn on_quoted(&mut self, number: u32, quoted: Result<Choice, QuoteFailure>) {
        match quoted {
            Ok(choice) => self.open_session(number, choice),
            Err(failure) => self.on_not_quoted(number, failure),
        }
    }

    fn open_session(&mut self, number: u32, choice: Choice) {
        self.choosing = None;
        self.sellers.set_session(number, choice.providers.clone());
        let most = self.config.window_max.max(1);
        let sequences = self.config.sequences.max(1);
        let ahead = (most / sequences).clamp(1, REACH_MAX);
        let window = sequences.saturating_mul(ahead).min(most);
        let session = self.session_mut(number);
        session.on_opened(choice.providers, window as usize, ahead as usize);
        let session = number;
        self.push_effect(Action::Open { session, window });
    }

    fn on_not_quoted(&mut self, number: u32, failure: QuoteFailure) {
        let now = self.now;
        let session = self.session_mut(number);
        let purchase = &mut session.purchase;
        let is_first_try = purchase.is_replacement && !purchase.is_last;
        if is_first_try && failure.is_short && !session.budget.holding_jobs().is_empty() {
            let since = *purchase.short_since.get_or_insert(now);
            if now.since(since) < GIVEN_BACK_MAX {
                session.stage = Stage::WaitingForCredits;
                self.timers.set_timer(number, now.plus(LOOK_PERIOD));
                return;
            }
        }
        if is_first_try {
            // Failed providers may be back, and the leases of the last session release their
            // devices.
            self.sellers.clear_lost_providers();
            return self.quote_session(number, Some(GIVEN_BACK_MAX));
        }
        let failure = SessionFailure::NotQuoted {
            session: number,
            budget: session.budget.budget(),
            left: session.budget.remaining_credits(),
        };
        self.abort_purchase(number);
        self.fail_session(number, failure);
    }

    /// Ends the choice of a session's providers without a purchase.
    pub(super) fn abort_purchase(&mut self, number: u32) {
        self.choosers.retain(|it| *it != number);
        if self.choosing == Some(number) {
            self.choosing = None;
        }
        self.timers.stop_timer(number);
        self.stop_effects(|wait| match wait {
            Wait::Quote(of) | Wait::Spending(of) => *of == number,
            Wait::Question { .. } => false,
        });
        self.session_mut(number).stage = Stage::Idle;
    }

    /// Records the cost of a session's job.
    pub(super) fn on_spending(&mut self, number: u32, job: JobId, spending: Spending) {
        self.session_mut(number).budget.on_ended(job, spending);
    }

    /// Returns an unused part of the budget, if there is one.
    pub(super) fn take_budget_part(&mut self) -> Option<SessionBudget> {
        let without_limit = || SessionBudget::new(None);
        let spare = self.spare.pop();
        spare.or_else(|| self.config.budget.is_none().then(without_limit))
    }
}
