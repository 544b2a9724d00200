//! A sequence of a leased session: the steps that the caller asks for, and those that run.
//!
//! If a request contains no token, the provider continues with the token that it drew last. So this
//! sends requests ahead: while the buyer reads one token, the next are being computed. If the
//! caller asks for a different step, those sent ahead become stale, and this drops their answers.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use souk_llm::decoder::{DRAWN, TOKENS};
use souk_llm::generation::Step;
use souk_node::memory::Tensor;

use super::sequence_tokens::TokenHistory;

/// Outputs of a step, by name.
pub type StepOutputs = BTreeMap<String, Tensor>;

/// A sequence whose callers wait with an `A`.
pub struct SessionSequence<A> {
    told: TokenHistory,
    asked: Option<(Step, A)>,
    /// Running steps, in their order.
    given: VecDeque<GivenStep>,
    /// Finished steps that the caller has not asked for yet.
    early: VecDeque<(Step, StepOutputs)>,
    /// Number of positions of the sequence.
    room: usize,
}

/// A running step.
struct GivenStep {
    /// The step. If it continues with the token that the step before it draws, its tokens are
    /// unknown until that one is done.
    step: Step,
    is_stale: bool,
    since: Instant,
}

/// The number of steps of a sequence to run at a time.
///
/// It grows until the provider is always busy: if a step takes as long as the quickest one, it
/// waited for no other step, so one more can run. If the caller asks for a different step than the
/// one sent ahead, for example after drafts, it starts again at one.
pub struct Reach {
    steps: usize,
    most: usize,
    quickest: Duration,
}

impl Reach {
    /// Starts at one step, with at most `most`.
    pub fn new(most: usize) -> Self {
        Self {
            steps: 1,
            most: most.max(1),
            quickest: Duration::MAX,
        }
    }

    /// Adapts the number to the time that a step of one token took.
    fn adapt_steps(&mut self, took: Duration) {
        self.quickest = self.quickest.min(took);
        let part = self.quickest.as_secs_f64() / took.as_secs_f64().max(f64::MIN_POSITIVE);
        let waiting = self.steps as f64 * (1.0 - part);
        if waiting < 1.0 {
            self.steps = (self.steps + 1).min(self.most);
        } else if waiting > 2.0 {
            self.steps -= 1;
        }
    }
}

impl<A> SessionSequence<A> {
    /// Creates an empty sequence with this number of positions.
    pub fn new(room: usize) -> Self {
        Self {
            told: TokenHistory::default(),
            asked: None,
            given: VecDeque::new(),
            early: VecDeque::new(),
            room,
        }
    }

    /// Adds the tokens before the next step, if another session computed them.
    pub fn extend_tokens(&mut self, tokens: &[u32]) {
        self.told.extend_tokens(tokens);
    }

    /// Asks for a step. If its outputs are already there, returns them with `waiting`.
    pub fn request_step(
        &mut self,
        step: Step,
        waiting: A,
        reach: &mut Reach,
    ) -> Option<(A, StepOutputs)> {
        self.told.go_back(step.after);
        if self.early.front().is_some_and(|(early, _)| *early == step) {
            let (_, outputs) = self.early.pop_front()?;
            self.told.on_done(&step);
            return Some((waiting, outputs));
        }
        let next = self.given.iter().find(|given| !given.is_stale);
        let is_next = self.early.is_empty() && next.is_some_and(|given| given.step == step);
        if !is_next {
            if next.is_some() || !self.early.is_empty() {
                reach.steps = 1;
            }
            self.early.clear();
            self.given.iter_mut().for_each(|it| it.is_stale = true);
        }
        self.asked = Some((step, waiting));
        None
    }

    /// Returns whether a caller waits.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Removes and returns the waiting caller.
    pub fn give_up(&mut self) -> Option<A> {
        self.asked.take().map(|(_, waiting)| waiting)
    }

    /// Prepares the sequence for a new session, whose caches are empty.
    pub fn begin_anew(&mut self) {
        self.told.begin_anew();
        self.given.clear();
        self.early.clear();
    }

    /// Returns the inputs of the next step to send: the one asked for, or one further ahead.
    pub fn next(&self, reach: &Reach) -> Option<BTreeMap<String, Tensor>> {
        let step = self.next_step(reach)?;
        let mut inputs = step.decoder_inputs();
        if !step.is_known() {
            inputs.remove(TOKENS);
        }
        Some(inputs)
    }

    fn next_step(&self, reach: &Reach) -> Option<Step> {
        let mut fresh = self.given.iter().filter(|given| !given.is_stale);
        let steps = self.early.len() + fresh.clone().count();
        let Some(last) = fresh.next_back() else {
            let (asked, _) = self.asked.as_ref()?;
            return self.early.is_empty().then(|| self.told.next(asked));
        };
        let next = last.step.after_it().filter(|next| next.after < self.room);
        // No step can run ahead while the tokens are being replayed.
        let is_asked = self.told.is_whole();
        next.filter(|_| is_asked && steps < reach.steps)
    }

    /// Records that the step of [`Self::next`] was sent. You must call it once for each step that
    /// you send.
    pub fn on_given(&mut self, reach: &Reach) {
        let step = self.next_step(reach);
        let since = Instant::now();
        self.given.extend(step.map(|step| GivenStep {
            step,
            is_stale: false,
            since,
        }));
    }

    /// Records that the first running step is done; returns the caller that waited for it.
    pub fn on_done(&mut self, outputs: StepOutputs, reach: &mut Reach) -> Option<(A, StepOutputs)> {
        let GivenStep {
            step,
            is_stale,
            since,
        } = self.given.pop_front()?;
        if step.tokens.len() == 1 {
            reach.adapt_steps(since.elapsed());
        }
        if is_stale {
            return None;
        }
        match (self.given.front_mut(), drawn_token(&outputs)) {
            (Some(next), Some(token)) => next.step.tokens = vec![token],
            // The caller learns of the fault; no step can continue from it.
            (_, None) => self.given.iter_mut().for_each(|it| it.is_stale = true),
            (None, Some(_)) => {}
        }
        let Some((asked, waiting)) = self.asked.take() else {
            self.early.push_back((step, outputs));
            return None;
        };
        if self.told.on_done(&asked) {
            return Some((waiting, outputs));
        }
        self.asked = Some((asked, waiting));
        None
    }
}

/// Returns the token that a step drew.
fn drawn_token(outputs: &StepOutputs) -> Option<u32> {
    let drawn = outputs.get(DRAWN)?.to_vec::<i64>().ok()?;
    u32::try_from(*drawn.last()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a step gives that draws a token.
    fn drew(token: i64) -> StepOutputs {
        let drawn = Tensor::from_vec([1, 1], vec![token]).unwrap();
        BTreeMap::from([(DRAWN.to_owned(), drawn)])
    }

    fn reach(steps: usize) -> Reach {
        Reach {
            steps,
            ..Reach::new(8)
        }
    }

    fn ask(
        sequence: &mut SessionSequence<u32>,
        step: Step,
        waiting: u32,
    ) -> Option<(u32, StepOutputs)> {
        sequence.request_step(step, waiting, &mut reach(3))
    }

    /// Gives what is to be given: where each step writes, and whether its token is told.
    fn give(sequence: &mut SessionSequence<u32>, steps: usize) -> Vec<(usize, bool)> {
        let mut given = Vec::new();
        while let Some(inputs) = sequence.next(&reach(steps)) {
            let step = Step::of_inputs(&inputs);
            given.push((step.after, inputs.contains_key(TOKENS)));
            sequence.on_given(&reach(steps));
        }
        given
    }

    #[test]
    fn steps_go_ahead_of_what_is_asked_for_as_far_as_the_reach() {
        let mut sequence = SessionSequence::new(64);
        assert!(sequence.next(&reach(3)).is_none(), "nobody asked");
        assert!(ask(&mut sequence, Step::for_last_token(&[4, 5, 6], 0), 1).is_none());
        assert_eq!(give(&mut sequence, 3), [(0, true), (3, false), (4, false)]);
        let (waiting, _) = sequence.on_done(drew(7), &mut reach(3)).unwrap();
        assert_eq!(waiting, 1);
        assert_eq!(give(&mut sequence, 3), [(5, false)]);
        // Done before it is asked for.
        assert!(sequence.on_done(drew(8), &mut reach(3)).is_none());
        assert!(give(&mut sequence, 3).is_empty(), "nobody asks any more");
        let (waiting, outputs) = ask(&mut sequence, Step::for_last_token(&[7], 3), 2).unwrap();
        assert_eq!((waiting, drawn_token(&outputs)), (2, Some(8)));
        // Asked for while it is under way.
        assert!(ask(&mut sequence, Step::for_last_token(&[8], 4), 3).is_none());
        let (waiting, _) = sequence.on_done(drew(9), &mut reach(3)).unwrap();
        assert_eq!(waiting, 3);
    }

    #[test]
    fn what_was_given_ahead_of_something_else_is_dropped() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::for_last_token(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        sequence.on_done(drew(6), &mut reach(3)).unwrap();
        // Another token than was drawn, and what follows it.
        let mut before = reach(3);
        sequence.request_step(Step::for_last_token(&[9], 2), 2, &mut before);
        assert_eq!(before.steps, 1, "it was given ahead in vain");
        assert_eq!(give(&mut sequence, 2), [(2, true), (3, false)]);
        for stale in [7, 8] {
            assert!(sequence.on_done(drew(stale), &mut reach(2)).is_none());
        }
        let (waiting, outputs) = sequence.on_done(drew(3), &mut reach(2)).unwrap();
        assert_eq!((waiting, drawn_token(&outputs)), (2, Some(3)));
    }

    #[test]
    fn a_step_that_drew_no_token_is_answered_and_nothing_goes_on_with_it() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::for_last_token(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        let (waiting, _) = sequence.on_done(drew(-1), &mut reach(3)).unwrap();
        assert_eq!(waiting, 1);
        ask(&mut sequence, Step::for_last_token(&[6], 2), 2);
        assert_eq!(give(&mut sequence, 1), [(2, true)]);
        for stale in [7, 8] {
            assert!(sequence.on_done(drew(stale), &mut reach(3)).is_none());
        }
        assert!(sequence.on_done(drew(9), &mut reach(3)).is_some());
    }

    #[test]
    fn nothing_goes_ahead_of_logits_of_drafts_or_beyond_the_room() {
        let mut sequence = SessionSequence::new(64);
        ask(
            &mut sequence,
            Step::for_last_token(&[4], 0).with_logits(),
            1,
        );
        assert_eq!(give(&mut sequence, 3), [(0, true)]);
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::for_all_tokens(&[4, 5], 0), 1);
        assert_eq!(give(&mut sequence, 3), [(0, true)]);
        let mut sequence = SessionSequence::new(3);
        ask(&mut sequence, Step::for_last_token(&[4], 0), 1);
        assert_eq!(give(&mut sequence, 9), [(0, true), (1, false), (2, false)]);
    }

    #[test]
    fn a_session_that_begins_anew_is_told_all_before_anything_goes_ahead() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::for_last_token(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        sequence.on_done(drew(6), &mut reach(3)).unwrap();
        ask(&mut sequence, Step::for_last_token(&[6], 2), 2);
        sequence.begin_anew();
        assert_eq!(give(&mut sequence, 3), [(0, true)]);
        assert!(sequence.on_done(drew(0), &mut reach(3)).is_none());
        assert_eq!(give(&mut sequence, 3), [(2, true), (3, false), (4, false)]);
        let (waiting, _) = sequence.on_done(drew(7), &mut reach(3)).unwrap();
        assert_eq!(waiting, 2);
    }

    #[test]
    fn a_reach_grows_until_steps_wait_for_each_other() {
        let mut far = Reach::new(16);
        let mut learn = |ms| {
            far.adapt_steps(Duration::from_millis(ms));
            far.steps
        };
        assert_eq!([learn(110), learn(110), learn(110)], [2, 3, 4]);
        // Of four each waits for a tenth of the time: fewer than one waits.
        assert_eq!(learn(122), 5);
        // Half of the time of five: two and a half wait.
        assert_eq!(learn(220), 4);
        let mut near = Reach::new(1);
        near.adapt_steps(Duration::ZERO);
        assert_eq!(near.steps, 1);
    }
}
