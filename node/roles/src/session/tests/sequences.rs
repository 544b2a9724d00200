//! Tests the steps of one sequence: which run ahead, which are stale, and which tokens are
//! replayed.

use crate::clock::Micros;
use crate::session::look_ahead::LookAhead;
use crate::session::sequence::{AskedStep, Requester, SessionOutput, SessionSequence};
use crate::session::token_history::TokenHistory;
use crate::session::{Caller, OutputId, Step};

const CHUNK: usize = 256;

/// A sequence, and the outputs that it drops.
struct Script {
    sequence: SessionSequence,
    unused: Vec<OutputId>,
    outputs: u64,
}

impl Script {
    fn new(positions: usize) -> Script {
        Script {
            sequence: SessionSequence::new(positions, CHUNK),
            unused: Vec::new(),
            outputs: 0,
        }
    }

    fn ask(&mut self, step: Step, caller: u64, ahead: &mut LookAhead) -> Option<SessionOutput> {
        let requester = Requester::Caller(Caller(caller));
        let asked = AskedStep {
            step,
            requester,
            order: caller,
        };
        let unused = &mut self.unused;
        self.sequence.request_step(&[], asked, ahead, unused)
    }

    /// Sends all steps that can run. Returns the position of each, and whether its token is known.
    fn send(&mut self, steps: usize) -> Vec<(usize, bool)> {
        let mut sent = Vec::new();
        while let Some(step) = self.sequence.next_step(&ahead(steps)) {
            sent.push((step.after, step.has_known_tokens()));
            self.sequence.on_sent(step, Micros(0));
        }
        sent
    }

    /// Ends the first running step, which draws this token. Returns the caller that gets it.
    fn end_step(&mut self, token: i64) -> Option<u64> {
        let output = SessionOutput {
            output: OutputId(self.outputs),
            drawn: vec![token],
            opening: 1,
            providers: Vec::new(),
        };
        self.outputs += 1;
        let unused = &mut self.unused;
        let done = self
            .sequence
            .on_done(output, Micros(0), &mut ahead(3), unused);
        done.map(|(requester, _)| match requester {
            Requester::Caller(caller) => caller.0,
            Requester::Comparison(id) => id,
        })
    }
}

fn ahead(steps: usize) -> LookAhead {
    LookAhead::with_steps(steps, 8)
}

#[test]
fn steps_run_ahead_of_the_caller_as_far_as_allowed() {
    let mut script = Script::new(64);
    let far = &mut ahead(3);
    assert!(script.send(3).is_empty(), "no caller waits");
    let first = Step::for_last_token(&[4, 5, 6], 0);
    assert_eq!(script.ask(first, 1, far), None);
    assert_eq!(script.send(3), [(0, true), (3, false), (4, false)]);
    assert_eq!(script.end_step(7), Some(1));
    assert_eq!(script.send(3), [(5, false)]);
    // It is done before the caller asks for it.
    assert_eq!(script.end_step(8), None);
    assert!(script.send(3).is_empty(), "no caller asks for more");
    let early = script.ask(Step::for_last_token(&[7], 3), 2, far);
    assert_eq!(early.unwrap().drawn, [8]);
    // The caller asks for it while it runs.
    assert_eq!(script.ask(Step::for_last_token(&[8], 4), 3, far), None);
    assert_eq!(script.end_step(9), Some(3));
    assert!(script.unused.is_empty());
}

#[test]
fn steps_ahead_of_another_text_are_dropped() {
    let mut script = Script::new(64);
    script.ask(Step::for_last_token(&[4, 5], 0), 1, &mut ahead(3));
    script.send(3);
    assert_eq!(script.end_step(6), Some(1));
    // The caller continues with another token than the one that was drawn.
    let mut before = ahead(3);
    script.ask(Step::for_last_token(&[9], 2), 2, &mut before);
    assert_eq!(before.steps(), 1, "steps ran ahead in vain");
    assert_eq!(script.send(2), [(2, true), (3, false)]);
    assert_eq!([script.end_step(7), script.end_step(8)], [None, None]);
    assert_eq!(script.end_step(3), Some(2));
    assert_eq!(script.unused, [OutputId(1), OutputId(2)]);
}

#[test]
fn early_outputs_of_another_text_are_dropped() {
    let mut script = Script::new(64);
    let far = &mut ahead(3);
    script.ask(Step::for_last_token(&[4, 5], 0), 1, far);
    script.send(3);
    assert_eq!([script.end_step(6), script.end_step(7)], [Some(1), None]);
    // The tokens before the same step differ.
    let requester = Requester::Caller(Caller(2));
    let asked = AskedStep {
        step: Step::for_last_token(&[6], 2),
        requester,
        order: 2,
    };
    let unused = &mut script.unused;
    let early = script.sequence.request_step(&[4, 9], asked, far, unused);
    assert_eq!(early, None);
    assert_eq!(script.unused, [OutputId(1)]);
    // Only the tokens that changed are replayed.
    assert_eq!(script.send(3), [(1, true)]);
}

#[test]
fn no_step_continues_from_a_step_that_drew_no_token() {
    let mut script = Script::new(64);
    let far = &mut ahead(3);
    script.ask(Step::for_last_token(&[4, 5], 0), 1, far);
    script.send(3);
    assert_eq!(script.end_step(-1), Some(1), "the caller learns of it");
    script.ask(Step::for_last_token(&[6], 2), 2, far);
    assert_eq!(script.send(1), [(2, true)]);
    assert_eq!([script.end_step(7), script.end_step(8)], [None, None]);
    assert_eq!(script.end_step(9), Some(2));
}

#[test]
fn no_step_runs_ahead_of_logits_of_drafts_or_beyond_the_positions() {
    let far = &mut ahead(3);
    let first = Step::for_last_token(&[4], 0);
    let mut script = Script::new(64);
    script.ask(first.clone().with_logits(), 1, far);
    assert_eq!(script.send(3), [(0, true)]);
    let mut script = Script::new(64);
    let drafts = Step {
        rows: vec![0, 1],
        ..Step::for_last_token(&[4, 5], 0)
    };
    script.ask(drafts, 1, far);
    assert_eq!(script.send(3), [(0, true)]);
    let mut script = Script::new(3);
    script.ask(first, 1, far);
    assert_eq!(script.send(8), [(0, true), (1, false), (2, false)]);
}

#[test]
fn a_new_session_gets_all_tokens_before_a_step_runs_ahead() {
    let mut script = Script::new(64);
    let far = &mut ahead(3);
    script.ask(Step::for_last_token(&[4, 5], 0), 1, far);
    script.send(3);
    assert_eq!(script.end_step(6), Some(1));
    script.ask(Step::for_last_token(&[6], 2), 2, far);
    script.sequence.begin_anew(&mut script.unused);
    assert_eq!(script.send(3), [(0, true)]);
    assert_eq!(script.end_step(0), None);
    assert_eq!(script.send(3), [(2, true), (3, false), (4, false)]);
    assert_eq!(script.end_step(7), Some(2));
}

#[test]
fn more_steps_run_ahead_until_they_wait_for_each_other() {
    let mut far = LookAhead::new(16);
    let mut learn = |millis| {
        far.adapt_steps(Micros::from_millis(millis));
        far.steps()
    };
    assert_eq!([learn(110), learn(110), learn(110)], [2, 3, 4]);
    // Of four each waits for a tenth of the time: fewer than one waits.
    assert_eq!(learn(122), 5);
    // Half of the time of five: two and a half wait.
    assert_eq!(learn(220), 4);
    // A third of the time of four: between one and two wait.
    assert_eq!(learn(165), 4);
    let mut near = LookAhead::new(1);
    near.adapt_steps(Micros(0));
    assert_eq!(near.steps(), 1);
}

#[test]
fn a_new_session_gets_all_tokens_once_before_those_that_are_added() {
    let mut history = TokenHistory::new(CHUNK);
    let first = Step::for_last_token(&[7; 300], 0);
    assert!(history.on_done(&first));
    let next = Step::for_last_token(&[8], 300).with_logits();
    assert_eq!(history.next_step(&next), next);
    history.begin_anew();
    for (after, count) in [(0, CHUNK), (CHUNK, 300 - CHUNK)] {
        let chunk = history.next_step(&next);
        assert_eq!((chunk.after, chunk.tokens.len()), (after, count));
        assert!(!history.on_done(&next));
    }
    assert_eq!(history.next_step(&next), next);
    assert!(history.on_done(&next));
    assert!(!history.go_back(&[], 2), "no token changed");
    let next = Step::for_last_token(&[9], 2);
    assert_eq!(history.next_step(&next), next);
}

#[test]
fn tokens_before_a_step_replace_those_that_differ() {
    let mut history = TokenHistory::new(CHUNK);
    assert!(history.is_known_before(&[1, 2, 3], 3));
    assert!(!history.is_known_before(&[1, 2], 3));
    assert!(!history.go_back(&[1, 2, 3], 3));
    let adds = Step::for_last_token(&[4], 3);
    assert_eq!(
        history.next_step(&adds),
        Step::for_last_token(&[1, 2, 3], 0)
    );
    assert!(!history.on_done(&adds));
    assert!(history.is_whole());
    assert!(history.go_back(&[1, 5, 3], 3), "a token changed");
    assert_eq!(history.next_step(&adds), Step::for_last_token(&[5, 3], 1));
}
