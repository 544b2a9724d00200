//! Tests, in short scripts, how sessions are bought, replaced, stopped and compared.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Credits, JobId};

use crate::clock::{Micros, Now};
use crate::effect::{Effect, Ticket};
use crate::job::{End, Loss, Reason, Spending};
use crate::session::{
    Action, Answer, Caller, Choice, Event, Notice, OutputId, QuoteFailure, SessionConfig,
    SessionCore, SessionFailure, Step,
};

/// A core, and the actions that it wants.
struct Script {
    core: SessionCore,
    now: Now,
    effects: Vec<Effect<Action>>,
    outputs: u64,
    callers: u64,
    jobs: u8,
    /// The number of answers of each open job.
    requests: BTreeMap<u32, u32>,
}

impl Script {
    fn new(budget: Option<u64>, sessions_per_step: u32) -> Script {
        let config = SessionConfig {
            budget: budget.map(Credits),
            positions: 64,
            sequences: 1,
            vocabulary: 100,
            // Nothing runs ahead of steps that are compared.
            window_max: if sessions_per_step > 1 { 1 } else { 4 },
            sessions_per_step,
            replay_tokens_max: 256,
        };
        Script {
            core: SessionCore::new(config),
            now: Now::default(),
            effects: Vec::new(),
            outputs: 0,
            callers: 0,
            jobs: 0,
            requests: BTreeMap::new(),
        }
    }

    fn apply(&mut self, event: Event) {
        self.effects = self.core.apply(self.now, event);
    }

    /// Asks for a step of one token after others.
    fn ask(&mut self, before: &[u32], token: u32) {
        self.callers += 1;
        self.apply(Event::Step {
            caller: Caller(self.callers),
            sequence: 0,
            before: before.to_vec(),
            step: Step::for_last_token(&[token], before.len()),
        });
    }

    fn actions(&self) -> Vec<Action> {
        let effects = self.effects.iter();
        effects.map(|effect| effect.action.clone()).collect()
    }

    /// Returns the only pending question of a kind, and forgets it.
    fn take_question(&mut self, is_it: impl Fn(&Action) -> bool) -> (Ticket, Action) {
        let place = self.effects.iter().position(|it| is_it(&it.action));
        let effect = self.effects.remove(place.expect("the question"));
        (effect.ticket, effect.action)
    }

    fn reply(&mut self, is_it: impl Fn(&Action) -> bool, answer: Answer) {
        let (ticket, _) = self.take_question(is_it);
        self.apply(Event::EffectAnswered { ticket, answer });
    }

    /// Answers the pending quote. Returns its budget, the bytes of the excluded providers, and how
    /// much longer it may wait.
    fn quote(&mut self, quoted: Result<u8, bool>) -> (Option<u64>, Vec<u8>, Option<Micros>) {
        let (ticket, action) = self.take_question(|it| matches!(it, Action::Quote { .. }));
        let Action::Quote {
            budget,
            excluded,
            wait_longer,
            ..
        } = action
        else {
            unreachable!("it is a quote");
        };
        let choice = quoted.map(|byte| Choice {
            providers: vec![provider(byte)],
        });
        let answer = Answer::Quoted(choice.map_err(|is_short| QuoteFailure { is_short }));
        self.apply(Event::EffectAnswered { ticket, answer });
        let excluded = excluded.iter().map(|it| it.0[0]).collect();
        (budget.map(|it| it.0), excluded, wait_longer)
    }

    /// Answers the next step of a session.
    fn answer(&mut self, session: u32, token: i64) -> OutputId {
        let output = OutputId(self.outputs);
        self.outputs += 1;
        let number = self.requests.entry(session).or_default();
        let request = *number;
        *number += 1;
        self.apply(Event::Answered {
            session,
            request,
            output,
            drawn: vec![token],
        });
        output
    }

    fn end(&mut self, session: u32, how: Option<End>, spent: u64, held: u64) -> JobId {
        self.jobs += 1;
        self.requests.remove(&session);
        let job = JobId([self.jobs; 32]);
        let [spent, held] = [spent, held].map(Credits);
        self.apply(Event::Ended {
            session,
            job,
            how,
            before: Vec::new(),
            spending: Spending { spent, held },
        });
        job
    }

    fn has(&self, is_it: impl Fn(&Action) -> bool) -> bool {
        self.effects.iter().any(|it| is_it(&it.action))
    }

    fn failure(&self) -> Option<SessionFailure> {
        self.effects.iter().find_map(|it| match &it.action {
            Action::Fail { failure, .. } => Some(failure.clone()),
            _ => None,
        })
    }
}

fn provider(byte: u8) -> AccountKey {
    AccountKey([byte; 32])
}

fn lose(byte: u8) -> Option<End> {
    let provider = provider(byte);
    let loss = Loss::Confused;
    Some(End::Failed(Reason::Lost { provider, loss }))
}

fn is_quote(action: &Action) -> bool {
    matches!(action, Action::Quote { .. })
}

fn is_look_up(action: &Action) -> bool {
    matches!(action, Action::LookUpSpending { .. })
}

fn is_comparison(action: &Action) -> bool {
    matches!(action, Action::Compare { .. })
}

#[test]
fn the_first_step_buys_a_session_and_steps_run_ahead() {
    let mut script = Script::new(Some(100), 1);
    script.ask(&[], 1);
    let (budget, excluded, _) = script.quote(Ok(1));
    assert_eq!((budget, excluded), (Some(100), Vec::new()));
    let first = Step::for_last_token(&[1], 0);
    let send = |step: &Step| Action::SendStep {
        session: 0,
        sequence: 0,
        step: step.clone(),
    };
    let (session, window) = (0, 4);
    let open = Action::Open { session, window };
    assert_eq!(script.actions(), [open, send(&first)]);
    let output = script.answer(0, 5);
    let caller = Caller(1);
    assert_eq!(script.actions(), [Action::Answer { caller, output }]);
    // Each quick step lets one more run.
    script.ask(&[1], 5);
    assert_eq!(script.failure(), None);
    let second = Step::for_last_token(&[5], 1);
    let third = second.after_it().expect("it draws a token");
    assert_eq!(script.actions(), [send(&second), send(&third)]);
}

#[test]
fn a_stop_during_the_wait_buys_nothing() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    let ticket = script.effects[0].ticket;
    script.apply(Event::Stop);
    let (caller, failure) = (Caller(1), SessionFailure::Interrupted);
    let actions = [Action::Stop(ticket), Action::Fail { caller, failure }];
    assert_eq!(script.actions(), actions);
    script.ask(&[], 1);
    assert_eq!(script.failure(), Some(SessionFailure::Interrupted));
}

#[test]
fn a_stop_cancels_the_session_that_a_caller_waits_for() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    script.apply(Event::Stop);
    assert_eq!(script.actions(), [Action::Cancel { session: 0 }]);
    script.end(0, Some(End::Cancelled), 0, 0);
    let (session, end) = (0, End::Cancelled);
    let failure = SessionFailure::Ended { session, end };
    assert_eq!(script.failure(), Some(failure.clone()));
    script.apply(Event::Finish { caller: Caller(9) });
    let (caller, failure) = (Caller(9), Some(failure));
    assert_eq!(script.actions(), [Action::Finished { caller, failure }]);
}

#[test]
fn lost_providers_are_excluded_until_no_other_is_left() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    script.end(0, lose(1), 0, 0);
    let end = lose(1).expect("an end");
    let notice = Notice::Replaced { session: 0, end };
    assert!(script.has(|it| *it == Action::Notify(notice.clone())));
    let (_, excluded, longer) = script.quote(Err(false));
    assert_eq!((excluded, longer), (vec![1], None));
    let (_, excluded, longer) = script.quote(Err(false));
    assert_eq!((excluded, longer), (vec![], Some(Micros::from_seconds(20))));
    let failure = SessionFailure::NotQuoted {
        session: 0,
        budget: None,
        left: None,
    };
    assert_eq!(script.failure(), Some(failure));
}

#[test]
fn a_new_session_waits_for_the_credits_of_the_last_one() {
    let mut script = Script::new(Some(100), 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    let job = script.end(0, lose(1), 10, 80);
    let spent = |spent, held| {
        let [spent, held] = [spent, held].map(Credits);
        Answer::Spent(vec![(job, Some(Spending { spent, held }))])
    };
    script.reply(is_look_up, spent(10, 80));
    assert_eq!(script.quote(Err(true)).0, Some(10));
    assert_eq!(script.actions(), []);
    let half_second = Micros::from_millis(500);
    assert_eq!(script.core.wakes_at(), Some(half_second));
    script.now.tick = half_second;
    script.apply(Event::TimerFired);
    script.reply(is_look_up, spent(30, 0));
    assert_eq!(script.quote(Ok(2)).0, Some(70));
}

#[test]
fn the_wait_for_credits_ends() {
    let mut script = Script::new(Some(100), 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    let job = script.end(0, lose(1), 10, 80);
    let mut checks = 0;
    loop {
        script.reply(is_look_up, Answer::Spent(vec![(job, None)]));
        script.quote(Err(true));
        let Some(moment) = script.core.wakes_at() else {
            break;
        };
        checks += 1;
        script.now.tick = moment;
        script.apply(Event::TimerFired);
    }
    assert_eq!(checks, 40);
    let (left, _, longer) = script.quote(Err(true));
    assert_eq!((left, longer), (Some(10), Some(Micros::from_seconds(20))));
    let failure = SessionFailure::NotQuoted {
        session: 0,
        budget: Some(Credits(100)),
        left: Some(Credits(10)),
    };
    assert_eq!(script.failure(), Some(failure));
}

#[test]
fn sessions_that_make_no_token_end_the_text() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    for _ in 0..7 {
        script.quote(Ok(1));
        script.end(0, None, 0, 0);
        let notice = Notice::UsedUp { session: 0 };
        assert!(script.has(|it| *it == Action::Notify(notice.clone())));
    }
    script.quote(Ok(1));
    script.end(0, None, 0, 0);
    let failure = SessionFailure::EndsBeforeToken { session: 0 };
    assert_eq!(script.failure(), Some(failure));
}

#[test]
fn a_token_that_the_model_does_not_have_ends_its_session() {
    for token in [100, -1] {
        let mut script = Script::new(None, 1);
        script.ask(&[], 1);
        script.quote(Ok(1));
        let output = script.answer(0, token);
        let notice = Notice::FalseToken { session: 0 };
        let cancel = Action::Cancel { session: 0 };
        let dropped = Action::Drop { output };
        assert_eq!(script.actions(), [Action::Notify(notice), cancel, dropped]);
        // Its next step can end the job before the core cancels it, and blame the input.
        let blames = End::Failed(Reason::BadInput("it does not fit".to_owned()));
        script.end(0, Some(blames), 0, 0);
        assert_eq!(script.quote(Ok(2)).1, [1], "the liar is chosen again");
        let output = script.answer(0, 99);
        let answer = Action::Answer {
            caller: Caller(1),
            output,
        };
        assert!(script.has(|it| *it == answer));
    }
}

#[test]
fn two_sessions_that_blame_the_input_settle_the_matter() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    let end = End::Failed(Reason::BadInput("it does not fit".to_owned()));
    script.end(0, Some(end.clone()), 0, 0);
    script.quote(Ok(2));
    script.end(0, Some(end.clone()), 0, 0);
    let failure = SessionFailure::Ended { session: 0, end };
    assert_eq!(script.failure(), Some(failure));
}

#[test]
fn the_end_waits_for_the_last_job_and_later_steps_for_the_end() {
    let mut script = Script::new(None, 1);
    script.ask(&[], 1);
    script.quote(Ok(1));
    script.apply(Event::Finish { caller: Caller(9) });
    assert_eq!(script.failure(), Some(SessionFailure::Finished));
    assert!(script.has(|it| *it == Action::Close { session: 0 }));
    script.ask(&[], 2);
    assert_eq!(script.actions(), []);
    let output = script.answer(0, 5);
    assert_eq!(script.actions(), [Action::Drop { output }]);
    script.end(0, lose(1), 0, 0);
    let end = lose(1).expect("an end");
    let failure = Some(SessionFailure::Ended { session: 0, end });
    let caller = Caller(9);
    assert_eq!(script.actions()[0], Action::Finished { caller, failure });
    // The next session can buy from any provider.
    assert!(script.quote(Ok(1)).1.is_empty());
}

/// Opens two sessions with providers 1 and 2, which draw these tokens.
fn compare(script: &mut Script, tokens: [i64; 2]) -> [OutputId; 2] {
    script.ask(&[], 1);
    script.quote(Ok(1));
    assert_eq!(script.quote(Ok(2)).1, [1]);
    [0, 1].map(|session| script.answer(session, tokens[session as usize]))
}

/// Lets both sessions repeat the step, which the shell finds consistent.
fn repeat(script: &mut Script, tokens: [(u32, i64); 2]) {
    for (session, token) in tokens {
        script.answer(session, token);
    }
    let mut checks = std::mem::take(&mut script.effects);
    checks.retain(|it| matches!(it.action, Action::Check { .. }));
    assert_eq!(checks.len(), 2);
    for check in checks {
        let (ticket, answer) = (check.ticket, Answer::Checked(true));
        script.apply(Event::EffectAnswered { ticket, answer });
    }
}

#[test]
fn equal_tokens_of_two_sessions_need_no_judgement() {
    let mut script = Script::new(Some(90), 2);
    let [output, other] = compare(&mut script, [5, 5]);
    let answer = Action::Answer {
        caller: Caller(1),
        output,
    };
    assert_eq!(script.actions(), [answer, Action::Drop { output: other }]);
}

#[test]
fn different_tokens_of_close_logits_are_both_right() {
    let mut script = Script::new(None, 2);
    let [output, _] = compare(&mut script, [5, 6]);
    repeat(&mut script, [(0, 5), (1, 6)]);
    script.reply(is_comparison, Answer::Compared(true));
    let caller = Caller(1);
    assert_eq!(script.actions()[0], Action::Answer { caller, output });
    assert!(!script.has(is_quote));
}

/// Lets a third session decide against the first one.
fn outvote_first(script: &mut Script) {
    let [_, right] = compare(script, [5, 6]);
    repeat(script, [(0, 5), (1, 6)]);
    script.reply(is_comparison, Answer::Compared(false));
    let (sessions, position) = ([0, 1], 1);
    let notice = Notice::Differ { sessions, position };
    assert_eq!(script.actions()[0], Action::Notify(notice));
    let (budget, excluded, _) = script.quote(Ok(3));
    assert_eq!((budget, excluded), (Some(30), vec![1, 2]));
    script.answer(2, 6);
    let questions = std::mem::take(&mut script.effects);
    for (effect, is_close) in questions.into_iter().zip([false, true]) {
        let (ticket, answer) = (effect.ticket, Answer::Compared(is_close));
        script.apply(Event::EffectAnswered { ticket, answer });
    }
    let (session, position) = (0, 1);
    let notice = Notice::Outvoted { session, position };
    let (caller, output) = (Caller(1), right);
    let decided = [
        Action::Notify(notice),
        Action::Answer { caller, output },
        Action::Close { session: 0 },
    ];
    assert_eq!(script.actions()[..3], decided);
    assert_eq!(script.core.provider_accounts(), [3, 2].map(provider));
}

#[test]
fn a_third_session_that_agrees_with_both_leaves() {
    let mut script = Script::new(Some(90), 2);
    let [output, _] = compare(&mut script, [5, 6]);
    repeat(&mut script, [(0, 5), (1, 6)]);
    script.reply(is_comparison, Answer::Compared(false));
    script.quote(Ok(3));
    script.answer(2, 6);
    let questions = std::mem::take(&mut script.effects);
    for effect in questions {
        let (ticket, answer) = (effect.ticket, Answer::Compared(true));
        script.apply(Event::EffectAnswered { ticket, answer });
    }
    let answer = Action::Answer {
        caller: Caller(1),
        output,
    };
    assert_eq!(
        script.actions()[..2],
        [answer, Action::Close { session: 2 }]
    );
    assert_eq!(script.core.provider_accounts(), [1, 2].map(provider));
}

#[test]
fn an_outvoted_provider_stays_excluded() {
    let mut script = Script::new(Some(90), 2);
    outvote_first(&mut script);
    script.end(0, None, 0, 0);
    script.apply(Event::Finish { caller: Caller(9) });
    script.end(1, None, 0, 0);
    script.end(2, None, 0, 0);
    script.ask(&[], 1);
    assert_eq!(script.quote(Ok(2)).1, [1]);
}

#[test]
fn no_third_session_and_one_that_differs_from_both_end_the_text() {
    for has_third in [false, true] {
        let mut script = Script::new(None, 2);
        compare(&mut script, [5, 6]);
        repeat(&mut script, [(0, 5), (1, 6)]);
        script.reply(is_comparison, Answer::Compared(false));
        let (sessions, position) = ([0, 1], 1);
        let failure = if has_third {
            script.quote(Ok(3));
            script.answer(2, 7);
            let questions = std::mem::take(&mut script.effects);
            for effect in questions {
                let (ticket, answer) = (effect.ticket, Answer::Compared(false));
                script.apply(Event::EffectAnswered { ticket, answer });
            }
            SessionFailure::ThirdDiffers { sessions, position }
        } else {
            script.quote(Err(false));
            SessionFailure::Undecided { sessions, position }
        };
        assert_eq!(script.failure(), Some(failure));
    }
}

#[test]
fn a_third_session_gets_the_rest_of_one_that_left() {
    let mut script = Script::new(Some(90), 2);
    outvote_first(&mut script);
    script.ask(&[1], 6);
    for (session, token) in [(2, 4), (1, 3)] {
        script.answer(session, token);
    }
    repeat(&mut script, [(2, 4), (1, 3)]);
    script.reply(is_comparison, Answer::Compared(false));
    assert!(!script.has(is_quote), "no part of the budget is free");
    script.end(0, lose(1), 5, 2);
    script.reply(is_look_up, Answer::Spent(Vec::new()));
    let (budget, excluded, _) = script.quote(Ok(4));
    assert_eq!((budget, excluded), (Some(23), vec![1, 2, 3]));
}
