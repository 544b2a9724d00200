//! Signs an account's batches, and judges the validators' answers to them.
//!
//! A validator refuses a batch whose nonce is too old, because a clock of the account was ahead, or
//! that has expired, because this clock is behind. Then the client should sign the commands anew.
//! But a lying validator can put the batch into the log and answer the same; the market would then
//! carry the commands out twice. So the client signs anew only once enough validators have shown
//! that the market never did ([`RefusedBatch`]). Without that, the result is uncertain.

use souk_market::{Batch, Millis, Nonce, Refusal, SignedBatch};

use super::open_call::{Open, PendingCall};
use super::refused_batch::{RefusedBatch, is_consistent, is_never_applied};
use super::{ANSWER_PATIENCE, Action, CallId, MarketClient, Moment, Reply, Timer, ValidatorIndex};
use crate::clock::{Micros, Now};
use crate::market::market_protocol::{Answer, Request};

/// How long a signed batch stays valid by the market's clock.
pub(super) const EXPIRY: Millis = Millis(60_000);

/// How often the client signs the same commands: other processes of the account can be faster.
pub(super) const SIGNED_MAX: u32 = 4;

impl MarketClient {
    /// Signs a batch as soon as enough validators have stated their clocks: with the market's time,
    /// each batch expires after all earlier ones of the account.
    pub(super) fn begin_batch(
        &mut self,
        asked: CallId,
        now: Now,
        own: Micros,
        actions: &mut Vec<Action>,
    ) {
        let clocks_asked = self.clocks_asked.filter(|_| !self.offsets.is_known());
        let until = clocks_asked.map(|asked| asked.tick.plus(ANSWER_PATIENCE));
        match until.filter(|until| now.tick < *until) {
            Some(until) => self.timers.set_timer(Timer::Clocks(asked), until),
            None => self.sign_batch(asked, own, actions),
        }
    }

    /// Signs the batches that waited for the validators' clocks, once these are known.
    pub(super) fn sign_waiting(&mut self, own: Micros, actions: &mut Vec<Action>) {
        if !self.offsets.is_known() {
            return;
        }
        let timers = self.timers.iter();
        let waiting = timers.filter_map(|(timer, _)| match timer {
            Timer::Clocks(asked) => Some(asked),
            _ => None,
        });
        for asked in waiting.collect::<Vec<_>>() {
            self.timers.stop_timer(Timer::Clocks(asked));
            self.sign_batch(asked, own, actions);
        }
    }

    pub(super) fn sign_batch(&mut self, asked: CallId, own: Micros, actions: &mut Vec<Action>) {
        let is_other = |(call, open): (&CallId, &Open)| {
            *call != asked && matches!(open.matter, PendingCall::Commands { signed: 1.., .. })
        };
        let others = self.open.iter().any(is_other);
        let open = self.open.get_mut(&asked).expect("it is under way");
        let PendingCall::Commands {
            commands,
            signed,
            refused,
        } = &mut open.matter
        else {
            unreachable!("questions are not signed");
        };
        *signed += 1;
        *refused = RefusedBatch::default();
        let expires = self.offsets.log_time(Millis(own.0 / 1_000)).0;
        let batch = Batch {
            market: self.market,
            account: self.account,
            nonce: Nonce(self.nonces.next(own, others)),
            expires: Millis(expires.saturating_add(EXPIRY.0)),
            commands: commands.clone(),
        };
        open.question = None;
        open.repeated = false;
        let batch = Box::new(batch);
        actions.push(Action::Sign { asked, batch });
    }

    pub(super) fn on_signed(
        &mut self,
        asked: CallId,
        batch: SignedBatch,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(open) = self.open.get_mut(&asked) else {
            return;
        };
        open.question = Some(Box::new(Request::Submit(batch)));
        self.ask_next_validator(asked, now, actions);
    }

    /// Judges a validator's answer to a batch, or to the question for its account.
    pub(super) fn on_batch_answer(
        &mut self,
        asked: CallId,
        validator: ValidatorIndex,
        answer: Answer,
        at: Moment,
        actions: &mut Vec<Action>,
    ) {
        let (batch, refused) = self.batch_under_way(asked);
        if let Some(refusal) = refused.asking.take() {
            let is_shown = match &answer {
                Answer::Account(account) => is_never_applied(batch, &refusal, account.as_deref()),
                _ => false,
            };
            refused.shown.insert(validator, is_shown);
            return self.on_refusal_judged(asked, refusal, at, actions);
        }
        let results = match answer {
            Answer::Applied(results) => results,
            // The list of validators changed since the question.
            Answer::Account(_) => return self.try_next_validator(asked, at.now, actions),
            other => return self.send_reply(asked, Reply::NotTaken(Box::new(other)), actions),
        };
        match results.first() {
            // The market applied these bytes, with a result that only the log has, or another
            // process of this account used the nonce: then the next one must be above the window.
            Some(Err(Refusal::NonceUsed { .. })) => {
                let nonce = batch.nonce;
                if !self.open[&asked].repeated {
                    self.nonces.rise_above(nonce);
                }
                self.reply_uncertain(asked, actions);
            }
            Some(Err(refusal @ (Refusal::NonceOld { .. } | Refusal::BatchExpired { .. }))) => {
                let refusal = refusal.clone();
                self.on_batch_refused(asked, validator, refusal, at, actions);
            }
            _ => self.send_reply(asked, Reply::Carried(results), actions),
        }
    }

    /// Asks the validator that refused a batch for its account.
    fn on_batch_refused(
        &mut self,
        asked: CallId,
        validator: ValidatorIndex,
        refusal: Refusal,
        at: Moment,
        actions: &mut Vec<Action>,
    ) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        // The validator may lie, and have put it into the log.
        open.repeated = true;
        let is_alone = self.validators == 1;
        let (batch, refused) = self.batch_under_way(asked);
        let account = batch.account;
        if !is_consistent(batch, &refusal, at.own) {
            refused.shown.insert(validator, false);
            return self.on_refusal_judged(asked, refusal, at, actions);
        }
        refused.record_refusal(&refusal);
        if is_alone {
            // Nobody else could show that it lies.
            refused.shown.insert(validator, true);
            return self.on_refusal_judged(asked, refusal, at, actions);
        }
        refused.asking = Some(refusal);
        let question = Box::new(Request::Account(account));
        self.put_question(asked, validator, question, at.now, actions);
    }

    /// Signs the commands of a refused batch anew if so many validators showed that the market
    /// never applied it; asks the next one while that is possible.
    fn on_refusal_judged(
        &mut self,
        asked: CallId,
        refusal: Refusal,
        at: Moment,
        actions: &mut Vec<Action>,
    ) {
        // Of two validators, one alone can lie.
        let (validators, needed) = (self.validators, self.validators.div_ceil(2).max(2));
        let needed = needed.min(validators);
        let open = self.open.get_mut(&asked).expect("it is under way");
        let PendingCall::Commands {
            commands,
            signed,
            refused,
        } = &mut open.matter
        else {
            unreachable!("questions are not refused");
        };
        let shown = refused.count_shown();
        let unheard = validators.saturating_sub(refused.shown.len());
        let is_open = shown < needed && shown + unheard >= needed;
        if let Some(oldest) = refused.oldest.filter(|_| !is_open) {
            self.nonces.rise_above(oldest);
        }
        if is_open {
            self.try_next_validator(asked, at.now, actions);
        } else if shown < needed {
            self.reply_uncertain(asked, actions);
        } else if *signed < SIGNED_MAX {
            if let Some(time) = refused.expired_at {
                self.offsets.record_log_time(time, Millis(at.own.0 / 1_000));
            }
            self.sign_batch(asked, at.own, actions);
        } else {
            let results = vec![Err(refusal); commands.len()];
            self.send_reply(asked, Reply::Carried(results), actions);
        }
    }

    fn reply_uncertain(&mut self, asked: CallId, actions: &mut Vec<Action>) {
        let last = self.open[&asked].last;
        self.send_reply(asked, Reply::Uncertain(last), actions);
    }

    /// Forgets what validators stated about refused batches, because their places have changed.
    pub(super) fn forget_refusals(&mut self) {
        for open in self.open.values_mut() {
            if let PendingCall::Commands { refused, .. } = &mut open.matter {
                *refused = RefusedBatch::default();
            }
        }
    }

    fn batch_under_way(&mut self, asked: CallId) -> (&Batch, &mut RefusedBatch) {
        let open = self.open.get_mut(&asked).expect("it is under way");
        match (&mut open.matter, open.question.as_deref()) {
            (PendingCall::Commands { refused, .. }, Some(Request::Submit(signed))) => {
                (&signed.batch, refused)
            }
            _ => unreachable!("an answer to commands is to a signed batch"),
        }
    }
}
