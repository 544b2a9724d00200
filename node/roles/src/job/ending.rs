//! The end of a job: ends leases, reports and disputes refusals, and looks up the total cost.

use serde::{Deserialize, Serialize};

use super::JobCore;
use super::action::{Action, Outcome, Spending};
use super::event::{Answer, Leg};
use super::facts::{End, Fact};
use super::state::{Stage, Wait};
use super::timer::Timer;
use crate::clock::Micros;
use crate::lease::BuyerMessage;

/// The pause before the core looks again after an unreachable market.
const LOOK_PERIOD: Micros = Micros::from_seconds(1);

/// How often the core looks for running leases: those left by then will end with their time.
const LOOKS_MAX: u32 = 4;

/// The state of a job's end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ending {
    pub how: End,
    pub leases_ended: u32,
    pub spending: Option<Spending>,
    looks: u32,
    pub step: EndingStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum EndingStep {
    /// The core ends the work under way.
    Closing,
    /// The core looks for leases that still run.
    Looking,
    /// The core records the end.
    Recording,
    Over,
}

impl JobCore {
    /// Ends the job: no new work begins.
    pub(super) fn end_job(&mut self, how: End) {
        if self.ending.is_some() {
            return;
        }
        self.refuse_all_doubtful();
        self.stop_effects(|wait| !wait.can_outlive_job());
        self.stop_pairs(|_| true);
        self.timers.stop_all(|_| true);
        self.ending = Some(Ending {
            how,
            leases_ended: 0,
            spending: None,
            looks: 0,
            step: EndingStep::Closing,
        });
        let numbers: Vec<u32> = self.attempts.keys().copied().collect();
        for n in numbers {
            for place in self.attempt_mut(n).places() {
                self.end_leg(Leg { attempt: n, place });
            }
        }
    }

    fn end_leg(&mut self, leg: Leg) {
        let attempt = self.attempt_mut(leg.attempt);
        let state = attempt.leg(leg.place);
        let (has_started, is_told) = (state.has_started, state.is_disputed);
        match state.stage {
            // No buyer will answer its notes, so the leg gets paid by the buyer's observations.
            Stage::Working => {
                let is_unseen = has_started && state.outputs_made.is_empty();
                self.push_effect(Action::SendMessage {
                    leg,
                    message: BuyerMessage::Limit { parts: 0 },
                });
                self.end_or_dispute_leg(leg, is_unseen);
            }
            // A right result stays with its provider. The buyer can pay for it when the job
            // resumes, or the provider notes it.
            Stage::Finished => {
                let is_open = has_started && !attempt.is_borne_out(leg.place);
                self.end_or_dispute_leg(leg, is_open || is_told);
            }
            Stage::Asked => self.end_leg_unpaid(leg),
            stage if stage < Stage::Finished => self.end_or_dispute_leg(leg, has_started),
            _ => {}
        }
    }

    /// Takes the steps towards the end that need no answer.
    pub(super) fn step_out(&mut self) {
        let ending = self.ending.as_ref().expect("it ends");
        if ending.step != EndingStep::Closing || !self.pending.is_empty() {
            return;
        }
        self.set_step(EndingStep::Looking);
        self.look_last();
    }

    pub(super) fn look_last(&mut self) {
        let ids = self.attempt_ids();
        self.request_effect(Action::Look { ids }, Wait::LookLast);
    }

    fn set_step(&mut self, step: EndingStep) {
        self.ending.as_mut().expect("it ends").step = step;
    }

    /// Reads the log's view of the job: its cost, and leases that the core did not know.
    pub(super) fn on_last_seen(&mut self, answer: Answer) {
        let ending = self.ending.as_mut().expect("it ends");
        ending.looks += 1;
        let is_early = ending.looks < LOOKS_MAX;
        let mut closed = Vec::new();
        match answer {
            Answer::Leases(leases) => {
                let spending = self.count_costs(&leases);
                let ending = self.ending.as_mut().expect("it ends");
                ending.spending = Some(spending);
                let running: Vec<_> = leases.iter().filter(|it| it.is_running()).collect();
                if is_early && !running.is_empty() {
                    for lease in running {
                        self.end_lease(lease.id);
                    }
                    return self.set_step(EndingStep::Closing);
                }
                let over = leases.iter().filter(|it| it.is_closed());
                closed.extend(over.map(|it| Fact::Closed {
                    lease: it.id,
                    cost: it.cost,
                }));
            }
            _ if is_early => {
                let again = self.now.tick.plus(LOOK_PERIOD);
                return self.timers.set_timer(Timer::LookLast, again);
            }
            _ => {}
        }
        self.set_step(EndingStep::Recording);
        let how = self.ending.as_ref().expect("it ends").how.clone();
        let mut facts = closed;
        facts.push(Fact::Over { how });
        self.record_facts(facts, Wait::RecordOver);
    }

    pub(super) fn close_job(&mut self) {
        self.attempts.clear();
        self.timers.stop_all(|_| true);
        self.set_step(EndingStep::Over);
        let ending = self.ending.clone().expect("it ends");
        let outcome = Outcome {
            how: ending.how,
            before: self.losses.clone(),
            spending: ending.spending,
            leases_ended: ending.leases_ended,
        };
        self.push_effect(Action::Over(Box::new(outcome)));
    }
}
