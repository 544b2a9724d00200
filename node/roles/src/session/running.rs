//! Sends steps to the open jobs of sessions, and buys another job when one ends, unless too many in
//! a row end without a new token.

use super::action::{Action, Notice};
use super::event::OutputId;
use super::failure::SessionFailure;
use super::sequence::Requester;
use super::text_session::{JobEnd, Stage, StepOrder};
use super::{SessionCore, StepResult};
use crate::job::{End, Reason};

/// Largest number of sessions to buy in a row without a new token.
const SESSIONS_MAX: u32 = 8;

/// Number of sessions whose complaint that the input does not fit the model settles the matter.
const BLAMED_MAX: u32 = 2;

impl SessionCore {
    /// Asks a session for a step.
    pub(super) fn request_step(&mut self, number: u32, requester: Requester, order: &StepOrder) {
        let session = self.sessions.get_mut(&number);
        let session = session.expect("a session that the core named exists");
        let requested = session.request_step(order, requester, &mut self.unused);
        if let Some(result) = requested.transpose() {
            if result.is_ok() {
                (session.bought, session.blamed) = (0, 0);
            }
            self.results.push_back(StepResult {
                session: number,
                requester,
                result,
            });
        }
        // The caller reads on, so steps can run ahead even if its output was there.
        self.fill_session(number);
    }

    /// Sends steps as long as the window has room.
    fn fill_session(&mut self, number: u32) {
        let now = self.now;
        if self.is_stopped || self.session_mut(number).stage != Stage::Open {
            return;
        }
        while let Some((sequence, step)) = self.session_mut(number).send_step(now) {
            self.push_effect(Action::SendStep {
                session: number,
                sequence,
                step,
            });
        }
    }

    pub(super) fn on_answered(
        &mut self,
        number: u32,
        request: u32,
        output: OutputId,
        drawn: Vec<i64>,
    ) {
        let known = 0..i64::from(self.config.vocabulary);
        if drawn.iter().any(|token| !known.contains(token)) {
            self.on_false_token(number);
        }
        let session = self.sessions.get_mut(&number);
        let Some(session) = session.filter(|session| !session.is_false()) else {
            self.unused.push(output);
            return;
        };
        let done = session.on_answered(request, output, drawn, self.now, &mut self.unused);
        if let Some((requester, output)) = done {
            (session.bought, session.blamed) = (0, 0);
            self.results.push_back(StepResult {
                session: number,
                requester,
                result: Ok(output),
            });
        }
    }

    /// Ends the job of a session that drew a token which the model does not have. No honest
    /// provider draws one, so the core buys from its providers no more.
    fn on_false_token(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let Some(providers) = session.on_false_token() else {
            return;
        };
        self.sellers
            .record_outvoted_providers(providers.iter().copied());
        self.push_effect(Action::Notify(Notice::FalseToken { session: number }));
        let open = self.session_mut(number).open.as_mut();
        if open.is_some_and(|open| !std::mem::replace(&mut open.is_cancelled, true)) {
            self.push_effect(Action::Cancel { session: number });
        }
    }

    /// Takes one step of a session that needs no event. Returns whether it took one.
    pub(super) fn advance_session(&mut self, number: u32) -> bool {
        let is_stopped = self.is_stopped;
        let session = self.session_mut(number);
        if !session.is_waiting() {
            return false;
        }
        match session.stage {
            Stage::Idle => {
                let end = session.end.take();
                let failure = match end {
                    Some(end) => self.replace_job(number, end),
                    None if is_stopped => Some(SessionFailure::Interrupted),
                    None => {
                        self.buy_session(number, false);
                        None
                    }
                };
                if let Some(failure) = failure {
                    self.fail_session(number, failure);
                }
                true
            }
            Stage::Open if is_stopped => {
                let open = session.open.as_mut();
                let open = open.filter(|open| !open.is_cancelled);
                let is_running = open.map(|open| open.is_cancelled = true).is_some();
                if is_running {
                    self.push_effect(Action::Cancel { session: number });
                }
                is_running
            }
            Stage::Open => {
                self.fill_session(number);
                false
            }
            Stage::Queued
            | Stage::LookingUpSpending
            | Stage::Quoting
            | Stage::WaitingForCredits
            | Stage::Closing => false,
        }
    }

    /// Buys another job for a session whose job is over. Returns a failure if it must not.
    fn replace_job(&mut self, number: u32, end: JobEnd) -> Option<SessionFailure> {
        let is_stopped = self.is_stopped;
        let session = self.session_mut(number);
        let has_too_many = session.bought >= SESSIONS_MAX;
        if end.is_false {
            if is_stopped {
                return Some(SessionFailure::Interrupted);
            }
            if has_too_many {
                return Some(SessionFailure::EndsBeforeToken { session: number });
            }
            self.buy_session(number, true);
            return None;
        }
        let notice = match end.how {
            None | Some(End::Done) if is_stopped => return Some(SessionFailure::Interrupted),
            None | Some(End::Done) if has_too_many => {
                return Some(SessionFailure::EndsBeforeToken { session: number });
            }
            None | Some(End::Done) => Notice::UsedUp { session: number },
            Some(how) => {
                let reason = match &how {
                    End::Failed(reason) => Some(reason),
                    End::Done | End::Cancelled => None,
                };
                let is_bad_input = reason.is_some_and(|reason| reason.bad_input().is_some());
                session.blamed += u32::from(is_bad_input);
                let is_over = has_too_many || session.blamed >= BLAMED_MAX;
                // The user, who cancelled the session, does not want another.
                if is_stopped || is_over || how == End::Cancelled {
                    let session = number;
                    return Some(SessionFailure::Ended { session, end: how });
                }
                let failed = end.before.iter().chain(reason);
                let lost = failed.filter_map(Reason::culprit);
                self.sellers.record_lost_providers(lost);
                Notice::Replaced {
                    session: number,
                    end: how,
                }
            }
        };
        self.push_effect(Action::Notify(notice));
        self.buy_session(number, true);
        None
    }

    pub(super) fn on_ended(&mut self, number: u32, how: Option<End>, before: Vec<Reason>) {
        let session = self.sessions.get_mut(&number);
        let session = session.expect("a session that the core named exists");
        let is_false = session.is_false();
        session.on_over(&mut self.unused);
        session.end = Some(JobEnd {
            how,
            before,
            is_false,
        });
        match session.stage {
            Stage::Closing => self.end_session(number),
            _ => session.stage = Stage::Idle,
        }
    }

    pub(super) fn on_not_opened(&mut self, number: u32) {
        if !self.has_job(number) {
            return;
        }
        self.on_ended(number, None, Vec::new());
        if let Some(session) = self.sessions.get_mut(&number) {
            session.end = None;
            self.fail_session(number, SessionFailure::NotOpened { session: number });
        }
    }

    /// Reports a failure to all that wait for a session, and keeps it for the end.
    pub(super) fn fail_session(&mut self, number: u32, failure: SessionFailure) {
        self.fail_requesters(number, &failure);
        self.session_mut(number).failure = Some(failure);
    }

    /// Reports a failure to all that wait for a session.
    pub(super) fn fail_requesters(&mut self, number: u32, failure: &SessionFailure) {
        for requester in self.session_mut(number).give_up() {
            self.results.push_back(StepResult {
                session: number,
                requester,
                result: Err(failure.clone()),
            });
        }
    }

    /// The user stops the text: a session bought from now on would be for no text.
    pub(super) fn on_stop(&mut self) {
        self.is_stopped = true;
        let numbers: Vec<u32> = self.sessions.keys().copied().collect();
        for number in numbers {
            match self.session_mut(number).stage {
                Stage::Idle | Stage::Open | Stage::Closing => {}
                Stage::Queued
                | Stage::LookingUpSpending
                | Stage::Quoting
                | Stage::WaitingForCredits => {
                    self.abort_purchase(number);
                    self.fail_session(number, SessionFailure::Interrupted);
                }
            }
        }
    }
}
