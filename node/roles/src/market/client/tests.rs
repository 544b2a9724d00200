//! Tests which validators a client asks, what it sends them, and how it handles their answers.

mod refused;

use souk_market::{LeaseId, NONCE_WINDOW, Nonce, SigningKey};

use super::offsets::{CLOCK_PERIOD, CLOCK_STEP};
use super::*;

const ASKED: CallId = CallId(7);
const OWN: Micros = Micros::from_seconds(1_700_000_000);

struct Scene {
    client: MarketClient,
    /// The place of the validator with which it begins, of three.
    first: usize,
    key: SigningKey,
    tick: Micros,
    /// How far somebody set this machine's clock ahead.
    ahead: Micros,
    /// The number of signatures so far.
    signed: usize,
}

/// A question that was put: its name, whom, and what.
type Put = (RequestAttempt, ValidatorIndex, Request);

impl Scene {
    fn new() -> Scene {
        let key = SigningKey::from_bytes(&[3; 32]);
        let client = MarketClient::new(AccountKey::from(&key), MarketId([1; 32]), 3);
        let mut scene = Scene {
            first: client.preferred,
            client,
            key,
            tick: Micros(0),
            ahead: Micros(0),
            signed: 0,
        };
        scene.state_clocks();
        scene
    }

    /// Two validators state their clocks, which show the same as this one.
    fn state_clocks(&mut self) -> Vec<Action> {
        let time = Millis(OWN.plus(self.tick).0 / 1_000);
        let states = |place| Event::Time {
            validator: ValidatorIndex(place),
            time,
        };
        [0, 1].map(|place| self.apply(states(place))).concat()
    }

    /// The validator so many places after the first.
    fn nth(&self, place: usize) -> ValidatorIndex {
        ValidatorIndex((self.first + place) % 3)
    }

    /// What comes of an event once what is to be signed is signed.
    fn apply(&mut self, event: Event) -> Vec<Action> {
        let now = Now {
            tick: self.tick,
            log: Millis(0),
        };
        let mut done = Vec::new();
        for action in self
            .client
            .apply(now, OWN.plus(self.tick).plus(self.ahead), event)
        {
            match action {
                Action::Sign { asked, batch } => {
                    self.signed += 1;
                    let batch = Box::new(batch.sign(&self.key));
                    done.extend(self.apply(Event::Signed { asked, batch }));
                }
                other => done.push(other),
            }
        }
        done
    }

    fn carry(&mut self) -> Put {
        let commands = vec![Command::GiveUp { lease: LeaseId(1) }];
        let asked = ASKED;
        put(self.apply(Event::Carry { asked, commands }))
    }

    fn hear(&mut self, putting: RequestAttempt, answer: Answer) -> Vec<Action> {
        let time = None;
        let heard = Ok(ValidatorAnswer { time, answer });
        self.apply(Event::Heard { putting, heard })
    }

    fn applied(&mut self, putting: RequestAttempt, refusal: Refusal) -> Vec<Action> {
        self.hear(putting, Answer::Applied(vec![Err(refusal)]))
    }

    fn silent(&mut self, putting: RequestAttempt) -> Vec<Action> {
        let heard = Err(NoReply::Broken);
        self.apply(Event::Heard { putting, heard })
    }

    /// Time passes until it is woken.
    fn wake(&mut self) -> Vec<Action> {
        self.tick = self.client.wakes_at().expect("it waits for a moment");
        self.apply(Event::TimerFired)
    }
}

fn put(actions: Vec<Action>) -> Put {
    let put = actions.into_iter().find_map(|action| match action {
        Action::Put {
            putting,
            validator,
            question,
            ..
        } => Some((putting, validator, *question)),
        _ => None,
    });
    put.expect("something is put")
}

fn reply(actions: Vec<Action>) -> Reply {
    let reply = actions.into_iter().find_map(|action| match action {
        Action::Reply {
            asked: ASKED,
            reply,
        } => Some(reply),
        _ => None,
    });
    reply.expect("it is answered")
}

fn batch(request: &Request) -> &SignedBatch {
    let Request::Submit(batch) = request else {
        panic!("it is no batch: {request:?}");
    };
    batch
}

#[test]
fn a_batch_is_signed_once_and_put_to_each_validator_in_turn() {
    let mut scene = Scene::new();
    let (first, index, question) = scene.carry();
    assert_eq!(index, scene.nth(0));
    let (second, index, again) = put(scene.silent(first));
    assert_eq!((index, batch(&again)), (scene.nth(1), batch(&question)));
    // One that says nothing has three seconds.
    let (third, index, _) = put(scene.wake());
    assert_eq!((index, scene.tick), (scene.nth(2), ANSWER_PATIENCE));
    assert!(scene.hear(second, Answer::Done).is_empty(), "too late");
    let busy = Answer::Busy { retry_after_ms: 1 };
    assert!(scene.hear(third, busy).is_empty(), "each failed once");
    let (fourth, index, again) = put(scene.wake());
    assert_eq!(index, scene.nth(0));
    assert_eq!(scene.tick, ANSWER_PATIENCE.plus(ROUND_PAUSE));
    assert_eq!(batch(&again), batch(&question));
    let carried = reply(scene.hear(fourth, Answer::Applied(Vec::new())));
    assert!(matches!(carried, Reply::Carried(results) if results.is_empty()));
    assert_eq!(scene.client.pending_count(), 0);
    assert_eq!(scene.client.wakes_at(), None);
}

#[test]
fn a_nonce_that_a_repeated_batch_finds_used_says_nothing() {
    let mut scene = Scene::new();
    let (first, ..) = scene.carry();
    let (second, ..) = put(scene.silent(first));
    let nonce = Nonce(1);
    let uncertain = reply(scene.applied(second, Refusal::NonceUsed { nonce }));
    assert!(matches!(uncertain, Reply::Uncertain(NoReply::Broken)));
}

/// Another process of the account can have used it, and a lying validator can have put the batch
/// into the log twice: signed anew by itself, it would be carried out again each time.
#[test]
fn a_batch_that_finds_its_nonce_used_is_not_signed_anew_and_the_next_is_above_the_window() {
    let mut scene = Scene::new();
    let (putting, _, question) = scene.carry();
    let own = batch(&question).batch.nonce;
    let said = Nonce(u64::MAX);
    let uncertain = reply(scene.applied(putting, Refusal::NonceUsed { nonce: said }));
    assert!(matches!(uncertain, Reply::Uncertain(NoReply::Broken)));
    let (_, _, question) = scene.carry();
    assert_eq!(batch(&question).batch.nonce.0, own.0 + NONCE_WINDOW);
}

/// Signed by the clock, each would put those before it below the window.
#[test]
fn commands_that_are_under_way_together_are_within_one_window() {
    let mut scene = Scene::new();
    let carry = |scene: &mut Scene, call: u64| {
        scene.tick = scene.tick.plus(Micros::from_seconds(1));
        let commands = vec![Command::GiveUp { lease: LeaseId(1) }];
        let asked = CallId(call);
        let (putting, _, question) = put(scene.apply(Event::Carry { asked, commands }));
        (putting, batch(&question).batch.nonce.0)
    };
    let sent = [10, 11, 12].map(|call| carry(&mut scene, call));
    let first = sent[0].1;
    assert_eq!(sent.map(|(_, nonce)| nonce - first), [0, 1, 2]);
    for (putting, _) in sent {
        scene.hear(putting, Answer::Applied(Vec::new()));
    }
    let (_, later) = carry(&mut scene, 13);
    assert!(
        later - first > NONCE_WINDOW,
        "the clock again: another process may have used it"
    );
}

#[test]
fn after_ten_seconds_a_question_is_unreached_and_a_batch_uncertain() {
    let mut scene = Scene::new();
    let (asked, question) = (ASKED, Box::new(Request::Totals));
    scene.apply(Event::Ask { asked, question });
    let mut actions = Vec::new();
    while scene.client.pending_count() > 0 {
        actions = scene.wake();
    }
    let unreached = reply(actions);
    assert!(matches!(unreached, Reply::Unreached(NoReply::Slow)));
    assert!(scene.tick >= PATIENCE && scene.tick < PATIENCE.plus(ANSWER_PATIENCE));
    scene.carry();
    let mut actions = Vec::new();
    while scene.client.pending_count() > 0 {
        actions = scene.wake();
    }
    assert!(matches!(reply(actions), Reply::Uncertain(NoReply::Slow)));
}

#[test]
fn who_answered_last_is_asked_first() {
    let mut scene = Scene::new();
    let (first, ..) = scene.carry();
    let (second, ..) = put(scene.silent(first));
    reply(scene.hear(second, Answer::Applied(Vec::new())));
    let (_, index, _) = scene.carry();
    assert_eq!(index, scene.nth(1));
}

/// Whether it knew its account and the validators at its begin or learnt them later.
#[test]
fn a_hundred_accounts_spread_over_the_validators() {
    let market = MarketId([1; 32]);
    for validators in [3, 7] {
        let mut clients_at = vec![0_usize; validators];
        for number in 0..100 {
            let account = AccountKey::from(&SigningKey::from_bytes(&[number; 32]));
            let known = MarketClient::new(account, market, validators);
            let mut told = MarketClient::new(AccountKey::default(), market, validators);
            told.sign_for(account, market);
            let mut grown = MarketClient::new(account, market, 1);
            first_validators(&mut grown, Event::Validators(validators));
            let firsts = [known, told, grown].map(|mut client| {
                let [watch, call] = first_validators(&mut client, Event::Watch(account));
                assert_eq!(watch, call, "{validators} {number}");
                watch.expect("it watches").0
            });
            assert!(firsts.iter().all(|first| *first == firsts[0]), "{firsts:?}");
            clients_at[firsts[0]] += 1;
        }
        let fair = 100 / validators;
        let is_fair = |clients: &usize| (fair / 2..=fair * 2).contains(clients);
        assert!(clients_at.iter().all(is_fair), "{clients_at:?}");
    }
}

/// The validators that a client asks to watch, and to answer a question, after an event.
fn first_validators(client: &mut MarketClient, event: Event) -> [Option<ValidatorIndex>; 2] {
    let (asked, question) = (ASKED, Box::new(Request::Totals));
    let mut actions = client.apply(Now::default(), OWN, event);
    actions.extend(client.apply(Now::default(), OWN, Event::Ask { asked, question }));
    client.apply(Now::default(), OWN, Event::Forget(ASKED));
    let watch = actions.iter().find_map(|action| match action {
        Action::Watch { validator, .. } => Some(*validator),
        _ => None,
    });
    let call = actions.iter().find_map(|action| match action {
        Action::Put { validator, .. } => Some(*validator),
        _ => None,
    });
    [watch, call]
}

#[test]
fn what_is_not_awaited_any_more_is_stopped() {
    let mut scene = Scene::new();
    let (first, ..) = scene.carry();
    let actions = scene.apply(Event::Forget(ASKED));
    assert!(matches!(actions[..], [Action::Stop(putting)] if putting == first));
    assert!(scene.hear(first, Answer::Done).is_empty());
    assert_eq!(scene.client.wakes_at(), None);
}

#[test]
fn a_watch_that_broke_is_taken_up_by_the_next_validator() {
    let mut scene = Scene::new();
    let account = AccountKey([9; 32]);
    let watched = |actions: Vec<Action>| match &actions[..] {
        [
            Action::Watch {
                watch, validator, ..
            },
        ] => (*watch, *validator),
        other => panic!("{other:?}"),
    };
    let (watch, index) = watched(scene.apply(Event::Watch(account)));
    assert_eq!(index, scene.nth(0));
    let goes_on = true;
    let told = scene.apply(Event::Watched { watch, goes_on });
    assert!(matches!(told[..], [Action::Changed(changed)] if changed == account));
    let goes_on = false;
    let told = scene.apply(Event::Watched { watch, goes_on });
    assert!(matches!(told[..], [Action::WatchLost(lost)] if lost == account));
    let (again, index) = watched(scene.wake());
    assert_eq!(index, scene.nth(1));
    let ended = scene.apply(Event::Unwatch(account));
    assert!(matches!(ended[..], [Action::Unwatch(watch)] if watch == again));
}

#[test]
fn all_validators_are_asked_for_their_clocks_while_something_is_asked() {
    let mut scene = Scene::new();
    let indices = |actions: &[Action]| -> Vec<usize> {
        let index = |action: &Action| match action {
            Action::AskTime(index) => Some(index.0),
            _ => None,
        };
        actions.iter().filter_map(index).collect()
    };
    let ask = |scene: &mut Scene, asked: u64| {
        let (asked, question) = (CallId(asked), Box::new(Request::Totals));
        scene.apply(Event::Ask { asked, question })
    };
    let own = Millis(OWN.0 / 1_000);
    assert_eq!(indices(&ask(&mut scene, 1)), [0, 1, 2]);
    for (place, ahead_ms) in [(0, 90_000), (1, 2_000), (2, 1_000)] {
        let (validator, time) = (ValidatorIndex(place), Millis(own.0 + ahead_ms));
        assert!(scene.apply(Event::Time { validator, time }).is_empty());
    }
    assert_eq!(scene.client.log_time(own), Millis(own.0 + 2_000));
    assert_eq!(
        indices(&ask(&mut scene, 2)),
        [0; 0],
        "they were asked lately"
    );
    scene.tick = CLOCK_PERIOD;
    assert_eq!(indices(&ask(&mut scene, 3)), [0, 1, 2]);
    scene.ahead = Micros::from_millis(900);
    assert_eq!(indices(&ask(&mut scene, 4)), [0; 0], "clocks drift");
    scene.ahead = CLOCK_STEP;
    let set = indices(&ask(&mut scene, 5));
    assert_eq!(set, [0, 1, 2], "somebody set the clock");
    // What others said counts for nothing among these.
    scene.apply(Event::Validators(2));
    assert_eq!(scene.client.log_time(own), own);
    assert_eq!(indices(&ask(&mut scene, 6)), [0, 1]);
}
