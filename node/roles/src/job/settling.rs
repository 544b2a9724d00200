//! Settling: how the buyer pays for each lease of a judged attempt, or refuses to pay.
//!
//! Attempt number `n` is one purchase of leases for one plan. A *leg* is one of its leases, with
//! its provider; its *place* is its index in the plan. If the plan runs each part twice to compare
//! the results, the leg with the second run is the *twin* of the first.
//!
//! The core settles in this order:
//! 1. `receipt_objections` compares each provider's receipt with the purchase and with the tensors
//!    that the buyer knows of. The core refuses a leg with an objection (`refuse_payment`).
//! 2. `doubt_attempt` puts a leg in *doubt* if the buyer restarted during the attempt, and neither
//!    the leg's other run nor an answer confirms all its outputs. Such a leg waits: each later
//!    answer is evidence for it (`weigh_evidence`). The core accepts the leg if answers confirm all
//!    its outputs, and refuses it if they do not in time.
//! 3. For each right leg the core signs the receipt once the journal has it, sends it to the
//!    provider, and settles it in the market. A receipt that the market refuses counts as refused.
//! 4. For each refused leg the core first records the refusal in the journal, then sends it to the
//!    provider and disputes the lease in the market, so that a later usage note comes too late.
//!
//! The core sends a signed receipt or a refusal only after the journal has recorded the decision.

use std::collections::BTreeSet;

use souk_market::{Command, Lease, LeaseId, Refusal};
use souk_memory::ContentId;

use super::JobCore;
use super::action::{Action, JobEvent};
use super::comparing::{Pair, Purpose, Side};
use super::event::{Answer, CommandError, Leg};
use super::facts::{End, Fact, attempt_id};
use super::paying::answer_within;
use super::reason::{Objection, Reason};
use super::receipt::Purchase;
use super::state::{Attempt, Stage, UnconfirmedOutputs, Wait};
use super::timer::Timer;
use crate::clock::Micros;
use crate::lease::{BuyerMessage, Source, WINDOW_MAX};

/// How long a leg in doubt waits for answers if no usage note is open. A provider sends its note at
/// most half a minute after the buyer asks how the lease went.
const DOUBT_MAX: Micros = Micros::from_seconds(25);

/// The most comparisons with answers under way at a time.
const PAIRS_MAX: usize = 512;

impl JobCore {
    /// Returns the finished legs of attempt `n` whose receipts do not match the purchase, each with
    /// the first objection.
    pub(super) fn receipt_objections(&self, n: u32) -> Vec<(Leg, Objection)> {
        let attempt = &self.attempts[&n];
        let earlier_facts = self.past.as_ref().filter(|_| attempt.is_resumed);
        let mut objections = Vec::new();
        for place in attempt.places() {
            let leg = attempt.leg(place);
            if leg.stage != Stage::Finished {
                continue;
            }
            let (inputs, unreported_inputs) = attempt.inputs_of_leg(place);
            let known_inputs: BTreeSet<ContentId> =
                inputs.into_iter().chain(self.buyer_tensors(n)).collect();
            let mut reported_outputs: BTreeSet<ContentId> =
                leg.all_made().map(|(_, id)| *id).collect();
            let has_twin = attempt.plan.second_of(place).is_some();
            if let Some(past) = earlier_facts.filter(|_| !has_twin) {
                // The receipt must name the tensors in the answers.
                let answered = past.answered_by(n);
                let outputs = attempt
                    .plan
                    .parts_at(place)
                    .flat_map(|(_, part)| &part.outputs);
                let named = outputs.filter_map(|output| answered.get(output.name.as_str()));
                let is_twin = attempt.plan.first_of(place) != place;
                reported_outputs.extend(named.filter(|_| !is_twin).flatten());
            }
            let parts = leg.outputs_made.values().map(Vec::len).max().unwrap_or(0);
            let bought = Purchase {
                market: self.spec.market,
                buyer: self.spec.account,
                job: attempt_id(self.spec.job, n),
                terms: &leg.terms,
                listing: &attempt.plan.legs[place as usize].listing,
                ends: leg.ends_at_most(),
                payable: self.payable_time(Leg { attempt: n, place }),
                holdable: self.holdable_time(Leg { attempt: n, place }),
                failed_run: leg.failed_run,
                start: leg.start.as_ref().expect("the core built its work"),
                parts,
                known_inputs,
                unreported_inputs,
                reported_outputs,
                served: leg.served.clone(),
            };
            let receipt = leg.receipt.as_ref().expect("a leg that finished has one");
            if let Err(objection) = bought.check_receipt(receipt) {
                objections.push((Leg { attempt: n, place }, objection));
            }
        }
        objections
    }

    /// Returns the tensors that the buyer itself can have given to the providers of attempt `n`.
    fn buyer_tensors(&self, n: u32) -> impl Iterator<Item = ContentId> {
        let attempt = &self.attempts[&n];
        let earlier = self
            .spec
            .request_inputs
            .iter()
            .filter(|_| attempt.is_resumed);
        attempt.request_inputs.iter().chain(earlier).copied()
    }

    /// Signs the receipts of all right legs of attempt `n`. The journal must have recorded that
    /// they are right.
    pub(super) fn sign_right_receipts(&mut self, n: u32) {
        let mut right = Vec::new();
        for place in self.attempt_mut(n).places() {
            let state = &mut self.attempt_mut(n).legs[place as usize];
            if state.stage == Stage::Right {
                state.stage = Stage::Signing;
                let receipt = state.receipt.clone().expect("a leg that is right has one");
                right.push((Leg { attempt: n, place }, receipt));
            }
        }
        for (leg, receipt) in right {
            let wait = Wait::Sign {
                lease: receipt.body.lease,
                leg,
            };
            self.request_effect(Action::Sign { receipt }, wait);
        }
    }

    /// Sends a signed receipt to its provider, closes the stream and settles the receipt.
    pub(super) fn on_signed(&mut self, lease: LeaseId, leg: Leg, answer: Answer) {
        let Answer::Signed(receipt) = answer else {
            return self.end_job(End::Failed(super::bidding::unreachable_reason(answer)));
        };
        assert_eq!(
            receipt.body.lease, lease,
            "the answer has the receipt that the core asked to sign"
        );
        let signed = BuyerMessage::Signed(receipt.clone());
        self.push_effect(Action::SendMessage {
            leg,
            message: signed,
        });
        self.push_effect(Action::CloseStream { leg });
        self.report_event(JobEvent::Signed {
            leg,
            receipt: receipt.clone(),
        });
        let leg = Some(leg);
        self.submit_command(Command::Settle(receipt), Wait::Settle { lease, leg });
    }

    /// Handles the market's answer to a settlement. The leg is none for a receipt that an earlier
    /// process of this job signed. A settlement that fails costs the receipt and not the job, whose
    /// results are here: a provider whose receipt the market refuses gets no payment, and if no
    /// answer came, the provider has the signed receipt and settles it.
    pub(super) fn on_settled(&mut self, lease: LeaseId, leg: Option<Leg>, answer: Answer) {
        let error = match answer {
            Answer::Commanded(settled) => settled.err(),
            other => return self.end_job(End::Failed(super::bidding::unreachable_reason(other))),
        };
        if let Some(leg) = leg {
            let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
            assert_eq!(
                state.stage,
                Stage::Signing,
                "the core settles only what it signed"
            );
            let provider = state.terms.provider;
            match &error {
                Some(CommandError::Refused(refusal)) if is_of_receipt(refusal) => {
                    let objection = Objection::Market(refusal.clone());
                    let reason = Reason::Receipt {
                        provider,
                        objection,
                    };
                    self.refuse_payment(leg, reason);
                }
                _ => {
                    state.stage = Stage::Settled;
                    self.paid.push(provider);
                }
            }
        }
        if let Some(error) = error {
            self.on_commanded(lease, Answer::Commanded(Err(error)));
        }
    }

    /// Refuses to pay for a leg, whose result must be here and unpaid. If the core has not disputed
    /// the lease already, it records the refusal; [`JobCore::send_refusal_and_dispute`] follows.
    pub(super) fn refuse_payment(&mut self, leg: Leg, reason: Reason) {
        let why = reason.to_string();
        let attempt = self.attempt_mut(leg.attempt);
        attempt.failed.get_or_insert(reason);
        let state = &mut attempt.legs[leg.place as usize];
        let is_unpaid = matches!(
            state.stage,
            Stage::Finished | Stage::Doubted | Stage::Signing
        );
        assert!(is_unpaid, "the core refuses only an unpaid result");
        (state.stage, state.doubt) = (Stage::Refused, None);
        let is_disputed = state.is_disputed;
        self.timers.stop_timer(Timer::Decide(leg));
        self.timers.stop_timer(Timer::Note(leg));
        self.stop_pairs(|pair| pair.is_of_doubt(leg));
        if !is_disputed {
            self.record_refused(leg, why);
        }
    }

    /// Records that a leg gets no payment. Only once that is on the disk can the core send the
    /// refusal and dispute the lease.
    pub(super) fn record_refused(&mut self, leg: Leg, why: String) {
        let terms = &self.attempt_mut(leg.attempt).leg(leg.place).terms;
        let (lease, provider) = (terms.lease, terms.provider);
        self.report_event(JobEvent::Refused {
            provider,
            why: why.clone(),
        });
        let refused = Fact::Refused {
            lease,
            why: why.clone(),
        };
        self.record_facts(vec![refused], Wait::RecordRefused { leg, lease, why });
    }

    /// Sends a recorded refusal to the leg's provider, closes the stream and disputes the lease.
    pub(super) fn send_refusal_and_dispute(&mut self, leg: Leg, lease: LeaseId, reason: String) {
        let message = BuyerMessage::Refused { reason };
        self.push_effect(Action::SendMessage { leg, message });
        self.push_effect(Action::CloseStream { leg });
        self.dispute_lease(lease);
    }

    /// Disputes a lease in the log, which then pays no more than the buyer accepted.
    pub(super) fn dispute_lease(&mut self, lease: LeaseId) {
        self.submit_command(Command::Dispute { lease }, Wait::Dispute(lease));
    }

    /// Handles a new state of a followed lease: of a leg at work, it reports the begin of the work
    /// and answers the usage note; of a leg in doubt, a new usage note sets the time to decide.
    pub(super) fn on_lease_changed(&mut self, lease: &Lease) {
        let at_work = self.paid_as_they_go().find(|(_, id)| *id == lease.id);
        if let Some((leg, _)) = at_work {
            if lease.reserved_until.is_some() {
                // The provider reports no work: this buyer answers, and pays for the time it holds
                // the device.
                self.start_work(leg);
            }
            self.on_prolonged(leg, lease.deadline);
            return lease.note.map_or((), |note| self.on_noted(leg, note));
        }
        let Some(leg) = self
            .doubtful_legs()
            .find(|(_, id)| *id == lease.id)
            .map(|(leg, _)| leg)
        else {
            return;
        };
        let (tick, log) = (self.now.tick, self.now.log);
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        let (Some(doubt), Some(note)) = (&mut state.doubt, &lease.note) else {
            return;
        };
        if doubt.note != Some(note.accepted_at) {
            doubt.note = Some(note.accepted_at);
            let moment = tick.plus(answer_within(note.accepted_at, log));
            self.timers.set_timer(Timer::Decide(leg), moment);
        }
    }

    /// Reports to people a command about a lease that the market did not carry out.
    pub(super) fn on_commanded(&mut self, lease: LeaseId, answer: Answer) {
        let why = match answer {
            Answer::Commanded(Err(CommandError::Refused(refusal))) => refusal.to_string(),
            Answer::Commanded(Err(CommandError::Unreachable(why))) => why,
            _ => return,
        };
        self.report_event(JobEvent::NotCommanded { lease, why });
    }

    /// Asks the shell to follow the leases whose state the core must know, if they changed.
    pub(super) fn follow_leases(&mut self) {
        let followed = self.doubtful_legs().chain(self.paid_as_they_go());
        let leases: Vec<LeaseId> = followed.map(|(_, lease)| lease).collect();
        if leases != self.followed && !self.is_over() {
            self.followed.clone_from(&leases);
            self.push_effect(Action::Follow { leases });
        }
    }

    fn doubtful_legs(&self) -> impl Iterator<Item = (Leg, LeaseId)> {
        self.attempts.iter().flat_map(|(n, attempt)| {
            let legs = (0..).zip(&attempt.legs);
            let legs = legs.filter(|(_, leg)| leg.stage == Stage::Doubted);
            legs.map(|(place, leg)| (Leg { attempt: *n, place }, leg.terms.lease))
        })
    }

    /// Puts each finished leg of the resumed attempt `n` in doubt whose parts run twice, and which
    /// made outputs that neither the other run nor an answer confirms.
    pub(super) fn doubt_attempt(&mut self, n: u32) {
        let attempt = &self.attempts[&n];
        let answered = self
            .past
            .as_ref()
            .map(|past| past.answered_by(n))
            .unwrap_or_default();
        let mut doubts = Vec::new();
        for place in attempt.places() {
            let is_twin = attempt.plan.first_of(place) != place;
            let has_second_run = is_twin || attempt.plan.second_of(place).is_some();
            if !has_second_run || attempt.leg(place).stage != Stage::Finished {
                continue;
            }
            let mut unconfirmed = Vec::new();
            for (request, made) in &attempt.leg(place).outputs_made {
                for ((number, part), outputs) in attempt.plan.parts_at(place).zip(made) {
                    let is_alike = attempt.alike.get(&(*request, number)) == Some(&true);
                    let is_answered = |(name, id): &&(String, ContentId)| {
                        let ids = answered.get(name.as_str());
                        ids.is_some_and(|ids| ids.contains(id))
                    };
                    let alone = outputs.iter().filter(|it| !is_alike && !is_answered(it));
                    unconfirmed
                        .extend(alone.map(|(name, id)| (name.clone(), *id, part.tolerance_ppm)));
                }
            }
            if !unconfirmed.is_empty() {
                doubts.push((place, unconfirmed));
            }
        }
        for (place, unconfirmed) in doubts {
            let state = &mut self.attempt_mut(n).legs[place as usize];
            state.stage = Stage::Doubted;
            state.doubt = Some(UnconfirmedOutputs {
                unconfirmed,
                note: None,
            });
            self.timers
                .stop_timer(Timer::Note(Leg { attempt: n, place }));
            let until = self.now.tick.plus(DOUBT_MAX);
            self.timers
                .set_timer(Timer::Decide(Leg { attempt: n, place }), until);
        }
    }

    /// Weighs the outputs of a new answer as evidence for the legs in doubt: an equal tensor
    /// confirms an output at once; a tensor of the same name goes into a comparison.
    pub(super) fn weigh_evidence(&mut self, outputs: &[(String, ContentId)]) {
        let doubted: Vec<Leg> = self.doubtful_legs().map(|(leg, _)| leg).collect();
        for leg in doubted {
            let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
            let doubt = state.doubt.as_mut().expect("a leg in doubt says why");
            doubt
                .unconfirmed
                .retain(|(name, id, _)| !outputs.iter().any(|out| *out == (name.clone(), *id)));
            let unconfirmed = doubt.unconfirmed.clone();
            for (name, id, tolerance) in unconfirmed {
                let Some((_, right)) = outputs.iter().find(|(made, _)| *made == name) else {
                    continue;
                };
                if self.pairs.len() < PAIRS_MAX {
                    let left = Side {
                        id,
                        maker: Some(leg),
                    };
                    let right = Side {
                        id: *right,
                        maker: None,
                    };
                    self.compare_contents(Purpose::Doubt { leg, id }, name, left, right, tolerance);
                }
            }
            self.accept_if_confirmed(leg);
        }
    }

    /// Handles the result of a comparison of an answer with output `id` of a leg in doubt.
    pub(super) fn on_evidence_compared(&mut self, leg: Leg, id: ContentId, is_alike: bool) {
        let attempt = self.attempts.get_mut(&leg.attempt);
        let state = attempt.map(|attempt| &mut attempt.legs[leg.place as usize]);
        let Some(doubt) = state
            .and_then(|state| state.doubt.as_mut())
            .filter(|_| is_alike)
        else {
            return;
        };
        doubt.unconfirmed.retain(|(_, left, _)| *left != id);
        self.stop_pairs(|pair| {
            matches!(pair.purpose,
            Purpose::Doubt { leg: of, id: left } if (of, left) == (leg, id))
        });
        self.accept_if_confirmed(leg);
    }

    /// Ends the doubt about a leg and records that it is right, if no output is unconfirmed.
    fn accept_if_confirmed(&mut self, leg: Leg) {
        let state = &mut self.attempt_mut(leg.attempt).legs[leg.place as usize];
        if state
            .doubt
            .as_ref()
            .is_none_or(|doubt| !doubt.unconfirmed.is_empty())
        {
            return;
        }
        (state.stage, state.doubt) = (Stage::Right, None);
        let receipt = state.receipt.clone().expect("a leg in doubt has one");
        self.timers.stop_timer(Timer::Decide(leg));
        self.stop_pairs(|pair| pair.is_of_doubt(leg));
        self.record_facts(
            vec![Fact::Right { receipt }],
            Wait::RecordRight(leg.attempt),
        );
    }

    /// Refuses a leg that no evidence confirmed in time.
    pub(super) fn refuse_doubtful_leg(&mut self, leg: Leg) {
        let provider = self.leg_provider(leg);
        let state = self.attempt_mut(leg.attempt).leg(leg.place);
        let doubt = state.doubt.as_ref().expect("a leg in doubt is decided");
        let names: BTreeSet<&str> = doubt
            .unconfirmed
            .iter()
            .map(|(name, ..)| name.as_str())
            .collect();
        let names: Vec<&str> = names.into_iter().collect();
        let count = u32::try_from(doubt.unconfirmed.len()).unwrap_or(u32::MAX);
        let names = crate::lease::truncate_text(names.join(", "));
        let objection = Objection::Alone { count, names };
        self.refuse_payment(
            leg,
            Reason::Receipt {
                provider,
                objection,
            },
        );
    }

    /// Refuses all legs in doubt. The caller knows that no more answers will come.
    pub(super) fn refuse_all_doubtful(&mut self) {
        let doubted: Vec<Leg> = self.doubtful_legs().map(|(leg, _)| leg).collect();
        for leg in doubted {
            self.refuse_doubtful_leg(leg);
        }
    }
}

/// Returns whether the market refuses a receipt because of its content, which the provider wrote.
fn is_of_receipt(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::ReceiptBad { .. }
            | Refusal::ReceiptMarket { .. }
            | Refusal::ReceiptParties { .. }
            | Refusal::ReceiptTerms { .. }
            | Refusal::ReceiptPrice { .. }
            | Refusal::ReceiptTokens { .. }
            | Refusal::ReceiptOver { .. }
            | Refusal::UsageOver { .. }
    )
}

impl Pair {
    fn is_of_doubt(&self, leg: Leg) -> bool {
        matches!(self.purpose, Purpose::Doubt { leg: of, .. } if of == leg)
    }
}

impl Attempt {
    /// Returns the inputs that the other legs made for the leg at `place`, and how many more inputs
    /// it can have used that no provider reported to this buyer.
    fn inputs_of_leg(&self, place: u32) -> (Vec<ContentId>, usize) {
        let start = self.leg(place).start.as_ref();
        let start = start.expect("the core built its work");
        let (mut inputs, mut unreported_inputs) = (Vec::new(), 0);
        for input in start.parts.iter().flat_map(|part| &part.inputs) {
            let Source::Lease { lease, .. } = input.source else {
                continue;
            };
            let maker = self.legs.iter().find(|leg| leg.terms.lease == lease);
            let made = maker.into_iter().flat_map(|maker| maker.all_made());
            let reported: Vec<ContentId> = made
                .filter(|(name, _)| *name == input.name)
                .map(|(_, id)| *id)
                .collect();
            let all = match self.is_resumed {
                // This buyer does not know the outputs of a maker that is gone.
                true if reported.is_empty() => WINDOW_MAX as usize,
                true => reported.len(),
                false => self.sent.len(),
            };
            unreported_inputs += all.saturating_sub(reported.len());
            inputs.extend(reported);
        }
        (inputs, unreported_inputs)
    }
}
