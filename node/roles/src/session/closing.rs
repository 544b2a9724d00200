//! Closes sessions: all of them when the caller is done, or one that `judging` removes. A session
//! that leaves the text returns its part of the budget.

use super::SessionCore;
use super::action::Action;
use super::event::Caller;
use super::failure::SessionFailure;
use super::text_session::Stage;
use crate::job::End;

impl SessionCore {
    /// Closes all sessions.
    pub(super) fn on_finish(&mut self, finisher: Caller) {
        self.finishers.push(finisher);
        for caller in std::mem::take(&mut self.postponed).into_keys() {
            let failure = SessionFailure::Finished;
            self.push_effect(Action::Fail { caller, failure });
        }
        self.end_comparisons();
        let numbers: Vec<u32> = self.sessions.keys().copied().collect();
        for number in numbers {
            let is_leaving = !self.active_sessions.contains(&number);
            self.session_mut(number).is_leaving = is_leaving;
            self.close_session(number);
        }
    }

    /// Closes a session that leaves the text.
    pub(super) fn let_session_leave(&mut self, number: u32) {
        self.session_mut(number).is_leaving = true;
        self.close_session(number);
    }

    /// Closes the job of a session, and fails the steps that wait for it.
    fn close_session(&mut self, number: u32) {
        self.fail_requesters(number, &SessionFailure::Finished);
        let session = self.sessions.get_mut(&number);
        let session = session.expect("a session that the core named exists");
        session.forget_sequences(&mut self.unused);
        match session.stage {
            Stage::Closing => {}
            Stage::Open => {
                session.stage = Stage::Closing;
                self.push_effect(Action::Close { session: number });
            }
            Stage::Idle => self.end_session(number),
            Stage::Queued
            | Stage::LookingUpSpending
            | Stage::Quoting
            | Stage::WaitingForCredits => {
                self.abort_purchase(number);
                self.end_session(number);
            }
        }
    }

    /// Forgets the job of a session, which is over or never began. A session that leaves returns
    /// its part of the budget.
    pub(super) fn end_session(&mut self, number: u32) {
        self.sellers.forget_session(number);
        let session = self.session_mut(number);
        session.stage = Stage::Idle;
        let end = session.end.take().and_then(|end| end.how);
        let end = end.filter(|end| *end != End::Done);
        let ended = end.map(|end| SessionFailure::Ended {
            session: number,
            end,
        });
        session.failure = session.failure.take().or(ended);
        if session.is_leaving
            && let Some(session) = self.sessions.remove(&number)
        {
            self.spare.push(session.budget);
        }
    }

    /// Answers those that wait for the end of all sessions, once no job runs. Returns whether it
    /// did.
    pub(super) fn end_finish(&mut self) -> bool {
        let mut sessions = self.sessions.values();
        if self.finishers.is_empty() || sessions.any(|it| it.stage == Stage::Closing) {
            return false;
        }
        let failures = self.active_sessions.clone().into_iter();
        let failures = failures.map(|number| self.session_mut(number).failure.take());
        let of_sessions = failures.collect::<Vec<_>>().into_iter().flatten().next();
        let mut failure = self.failure.take().or(of_sessions);
        for caller in std::mem::take(&mut self.finishers) {
            let failure = failure.take();
            self.push_effect(Action::Finished { caller, failure });
        }
        for (caller, order) in std::mem::take(&mut self.postponed) {
            self.begin_step(caller, order);
        }
        true
    }
}
