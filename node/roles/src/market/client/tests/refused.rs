//! Tests that a client signs commands anew only once validators show that the market never carried
//! them out.

use souk_market::{Account, Credits, Exchange, Genesis};

use super::super::batches::{EXPIRY, SIGNED_MAX};
use super::*;

/// The account of the scene, whose last batch expires at `quiet_at`.
fn account(scene: &Scene, quiet_at: Millis) -> Answer {
    let key = AccountKey::from(&scene.key);
    let mut genesis = Genesis::new("m".try_into().unwrap(), key);
    let row = (key, "n".try_into().unwrap(), Credits(1));
    genesis.accounts.push(row);
    let exchange = Exchange::new(genesis);
    let mut account: Account = exchange.account(key).unwrap().clone();
    account.quiet_at = quiet_at;
    Answer::Account(Some(Box::new(account)))
}

fn old(request: &Request, ahead: u64) -> Refusal {
    let nonce = batch(request).batch.nonce;
    let oldest = Nonce(nonce.0 + ahead);
    Refusal::NonceOld { nonce, oldest }
}

fn expired(request: &Request, late_ms: u64) -> Refusal {
    let expires = batch(request).batch.expires;
    let now = Millis(expires.0 + late_ms);
    Refusal::BatchExpired { expires, now }
}

impl Scene {
    /// A validator refuses a batch; the client asks it for the account.
    fn refuse(&mut self, putting: RequestAttempt, refusal: Refusal) -> RequestAttempt {
        let (asking, _, question) = put(self.applied(putting, refusal));
        let own = AccountKey::from(&self.key);
        assert!(
            matches!(question, Request::Account(account) if account == own),
            "{question:?}"
        );
        asking
    }

    /// A validator refuses a batch and shows an account whose last batch expires at `quiet_at`.
    fn refuse_and_show(
        &mut self,
        putting: RequestAttempt,
        refusal: Refusal,
        quiet_at: Millis,
    ) -> Vec<Action> {
        let asking = self.refuse(putting, refusal);
        let shown = account(self, quiet_at);
        self.hear(asking, shown)
    }

    /// The same; the client goes on at once, or after the pause in which it has asked everybody.
    fn refuse_and_go_on(
        &mut self,
        putting: RequestAttempt,
        refusal: Refusal,
        quiet_at: Millis,
    ) -> Put {
        match self.refuse_and_show(putting, refusal, quiet_at) {
            actions if actions.is_empty() => put(self.wake()),
            actions => put(actions),
        }
    }
}

/// The money of an order: a validator that puts the batch into the log and denies it, by whatever
/// refusal and with whatever account, must not have the commands signed a second time.
#[test]
fn a_validator_that_denies_what_it_put_into_the_log_gets_no_second_signature() {
    for refusal in [old, expired] {
        let mut scene = Scene::new();
        let (first, liar, question) = scene.carry();
        let denied = refusal(&question, 1_000_000);
        let (second, honest, again) = put(scene.refuse_and_show(first, denied, Millis(0)));
        assert_ne!(liar, honest);
        assert_eq!(batch(&again), batch(&question), "the same bytes");
        let nonce = batch(&question).batch.nonce;
        let uncertain = reply(scene.applied(second, Refusal::NonceUsed { nonce }));
        assert!(matches!(uncertain, Reply::Uncertain(_)));
        assert_eq!(scene.signed, 1);
    }
}

/// By then other batches of the account may have moved the window on, so the honest refuse alike.
#[test]
fn an_account_that_may_have_applied_the_batch_gets_no_second_signature() {
    for refusal in [old, expired] {
        let mut scene = Scene::new();
        let (first, _, question) = scene.carry();
        let expires = batch(&question).batch.expires;
        let denied = refusal(&question, 1_000_000);
        let (second, ..) = put(scene.refuse_and_show(first, denied.clone(), Millis(0)));
        let (third, ..) = put(scene.refuse_and_show(second, denied.clone(), expires));
        let uncertain = reply(scene.refuse_and_show(third, denied, expires));
        assert!(matches!(uncertain, Reply::Uncertain(_)));
        assert_eq!(scene.signed, 1);
    }
}

#[test]
fn a_validator_that_only_refuses_is_passed_over() {
    let mut scene = Scene::new();
    let (first, _, question) = scene.carry();
    let denied = old(&question, 1_000_000);
    let (second, _, again) = put(scene.refuse_and_show(first, denied, Millis(0)));
    assert_eq!(batch(&again), batch(&question));
    let carried = reply(scene.hear(second, Answer::Applied(Vec::new())));
    assert!(matches!(carried, Reply::Carried(results) if results.is_empty()));
    assert_eq!(scene.signed, 1);
}

#[test]
fn a_nonce_below_the_window_is_signed_above_it_once_two_of_three_show_it() {
    let mut scene = Scene::new();
    let (mut putting, _, mut question) = scene.carry();
    for _ in 1..SIGNED_MAX {
        let denied = old(&question, 3_600_000_000);
        let Refusal::NonceOld { oldest, .. } = denied else {
            unreachable!()
        };
        let before = Millis(batch(&question).batch.expires.0 - 1);
        let (second, ..) = scene.refuse_and_go_on(putting, denied.clone(), before);
        (putting, _, question) = scene.refuse_and_go_on(second, denied, before);
        // Restarts before may have used any of the window, however short they ran.
        assert_eq!(batch(&question).batch.nonce.0, oldest.0 + NONCE_WINDOW);
    }
    let denied = old(&question, 1);
    let (second, ..) = scene.refuse_and_go_on(putting, denied.clone(), Millis(0));
    let refused = reply(scene.refuse_and_show(second, denied.clone(), Millis(0)));
    assert!(matches!(refused, Reply::Carried(results) if results == [Err(denied)]));
    assert_eq!(scene.signed as u32, SIGNED_MAX);
}

/// A question that nobody answered may have reached a validator, which accepted the batch.
#[test]
fn a_repeated_batch_is_judged_as_any_other() {
    let mut scene = Scene::new();
    let (first, _, question) = scene.carry();
    let expires = batch(&question).batch.expires;
    let (second, ..) = put(scene.silent(first));
    let denied = old(&question, 1_000_000);
    let (third, ..) = put(scene.refuse_and_show(second, denied.clone(), Millis(0)));
    assert!(
        scene
            .refuse_and_show(third, denied.clone(), expires)
            .is_empty()
    );
    // The first one may still answer: after a pause it is asked again.
    let (fourth, index, _) = put(scene.wake());
    assert_eq!(index, scene.nth(0));
    put(scene.refuse_and_show(fourth, denied, Millis(0)));
    assert_eq!(scene.signed, 2);
}

#[test]
fn a_clock_that_is_behind_is_set_right_once_two_of_three_show_it() {
    let mut scene = Scene::new();
    let (first, _, question) = scene.carry();
    let denied = expired(&question, 40_000);
    let (second, ..) = put(scene.refuse_and_show(first, denied, Millis(0)));
    // The earlier time counts: a liar cannot have batches stay valid for long.
    let denied = expired(&question, 30_000);
    let now = Millis(batch(&question).batch.expires.0 + 30_000);
    let (_, _, mended) = put(scene.refuse_and_show(second, denied, Millis(0)));
    assert_eq!(batch(&mended).batch.expires, Millis(now.0 + EXPIRY.0));
}

#[test]
fn an_account_that_the_market_does_not_have_never_applied_an_expired_batch() {
    let mut scene = Scene::new();
    let (mut putting, _, question) = scene.carry();
    for _ in 0..2 {
        let asking = scene.refuse(putting, expired(&question, 1));
        (putting, ..) = put(scene.hear(asking, Answer::Account(None)));
    }
    assert_eq!(scene.signed, 2);
}

#[test]
fn a_refusal_that_cannot_be_true_shows_nothing() {
    let mut scene = Scene::new();
    let (mut putting, _, question) = scene.carry();
    let nonce = batch(&question).batch.nonce;
    // No clock can have been so far ahead; and the second window has the nonce in it.
    let oldest = Nonce(u64::MAX - NONCE_WINDOW);
    (putting, ..) = put(scene.applied(putting, Refusal::NonceOld { nonce, oldest }));
    let oldest = nonce;
    let false_one = Refusal::NonceOld { nonce, oldest };
    let uncertain = reply(scene.applied(putting, false_one));
    assert!(matches!(uncertain, Reply::Uncertain(_)));
    let (_, _, question) = scene.carry();
    assert_eq!(batch(&question).batch.nonce.0, nonce.0 + 1);
    assert_eq!(scene.signed, 2);
}

/// A validator has another place in the list then, and would count twice.
#[test]
fn a_new_list_of_validators_forgets_what_the_old_ones_showed() {
    let mut scene = Scene::new();
    let (first, _, question) = scene.carry();
    let denied = old(&question, 1_000_000);
    let (second, ..) = put(scene.refuse_and_show(first, denied.clone(), Millis(0)));
    let asking = scene.refuse(second, denied.clone());
    scene.apply(Event::Validators(3));
    let shown = account(&scene, Millis(0));
    let (third, _, again) = put(scene.hear(asking, shown));
    assert_eq!(batch(&again), batch(&question));
    let waits = scene.refuse_and_show(third, denied, Millis(0));
    assert!(waits.is_empty(), "one showed it: {waits:?}");
    assert_eq!(scene.signed, 1);
}

#[test]
fn the_only_validator_is_believed() {
    let mut scene = Scene::new();
    scene.apply(Event::Validators(1));
    let (first, _, question) = scene.carry();
    put(scene.applied(first, old(&question, 1_000_000)));
    assert_eq!(scene.signed, 2);
}

/// With the market's time, each batch expires after all earlier ones of the account, whatever this
/// machine's clock showed then.
#[test]
fn the_first_batch_waits_for_two_clocks_or_three_seconds() {
    let mut scene = Scene::new();
    scene.apply(Event::Validators(3));
    let commands = vec![Command::GiveUp { lease: LeaseId(1) }];
    let carry = |asked| Event::Carry {
        asked,
        commands: commands.clone(),
    };
    let actions = scene.apply(carry(ASKED));
    let is_asked = |action: &Action| matches!(action, Action::AskTime(_));
    assert!(actions.iter().all(is_asked) && actions.len() == 3);
    put(scene.state_clocks());
    assert_eq!(scene.signed, 1);
    scene.apply(Event::Validators(3));
    assert_eq!(scene.apply(carry(CallId(8))).len(), 3);
    let asked_at = scene.tick;
    scene.tick = asked_at.plus(ANSWER_PATIENCE);
    put(scene.apply(Event::TimerFired));
    assert_eq!(scene.signed, 2);
    put(scene.apply(carry(CallId(9))));
    assert_eq!(scene.signed, 3, "it waits once for silent ones");
}
