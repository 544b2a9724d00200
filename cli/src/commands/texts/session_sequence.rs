//! A sequence of a session that is bought: what is asked of it, and what the session is at.
//!
//! A provider that drew a token goes on with it where the next request leaves it out. So requests
//! are given ahead of what is asked: while the buyer reads one token the next are on their way.
//! Who asks for something else than what was given ahead makes that stale: its answer is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use souk_llm::decoder::{DRAWN, TOKENS};
use souk_llm::generation::Step;
use souk_node::memory::Tensor;

use super::told_tokens::ToldTokens;

/// What a step gives, by name.
pub type StepOutputs = BTreeMap<String, Tensor>;

/// A sequence whose steps `A` waits for.
pub struct SessionSequence<A> {
    told: ToldTokens,
    asked: Option<(Step, A)>,
    /// Steps under way, in their order.
    given: VecDeque<GivenStep>,
    /// Steps that are done before they were asked for.
    early: VecDeque<(Step, StepOutputs)>,
    /// Positions that there are.
    room: usize,
}

/// A step under way.
struct GivenStep {
    /// Of one that goes on with what the step before it draws the token is not known before that
    /// is done.
    step: Step,
    is_stale: bool,
    since: Instant,
}

/// How many steps of a sequence are under way at a time.
///
/// As many as keep the provider busy: where a step takes no longer than the quickest did, none
/// waited for another, and one more may be under way. Where something else is asked for than was
/// given ahead, as after drafts, it begins anew.
pub struct Reach {
    steps: usize,
    most: usize,
    quickest: Duration,
}

impl Reach {
    /// One step at first, and `most` at most.
    pub fn new(most: usize) -> Self {
        Self {
            steps: 1,
            most: most.max(1),
            quickest: Duration::MAX,
        }
    }

    /// A step of one token took so long from when it was given.
    fn learn(&mut self, took: Duration) {
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
    /// An empty one of a session with so many positions.
    pub fn new(room: usize) -> Self {
        Self {
            told: ToldTokens::default(),
            asked: None,
            given: VecDeque::new(),
            early: VecDeque::new(),
            room,
        }
    }

    /// What comes before the next step, where another session was told it.
    pub fn remember(&mut self, tokens: &[u32]) {
        self.told.remember(tokens);
    }

    /// Asks for a step; gives back who waits, and what it gives, where that is there already.
    pub fn ask(&mut self, step: Step, waiting: A, reach: &mut Reach) -> Option<(A, StepOutputs)> {
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

    /// Whether somebody waits.
    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// Who waits, and then waits no more.
    pub fn give_up(&mut self) -> Option<A> {
        self.asked.take().map(|(_, waiting)| waiting)
    }

    /// Another session is open, which has nothing of it.
    pub fn begin_anew(&mut self) {
        self.told.begin_anew();
        self.given.clear();
        self.early.clear();
    }

    /// What the session is to be given now: what is asked, or one step more ahead of it.
    pub fn next(&self, reach: &Reach) -> Option<BTreeMap<String, Tensor>> {
        let step = self.next_step(reach)?;
        let mut inputs = step.inputs();
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
        // What is said again to another session is nobody's last word.
        let is_asked = self.told.is_whole();
        next.filter(|_| is_asked && steps < reach.steps)
    }

    /// The step that [`Self::next`] told of was given.
    pub fn on_given(&mut self, reach: &Reach) {
        let step = self.next_step(reach);
        let since = Instant::now();
        self.given.extend(step.map(|step| GivenStep {
            step,
            is_stale: false,
            since,
        }));
    }

    /// The first of the steps under way is done; gives who waited for it.
    pub fn on_done(&mut self, outputs: StepOutputs, reach: &mut Reach) -> Option<(A, StepOutputs)> {
        let GivenStep {
            step,
            is_stale,
            since,
        } = self.given.pop_front()?;
        if step.tokens.len() == 1 {
            reach.learn(since.elapsed());
        }
        if is_stale {
            return None;
        }
        match (self.given.front_mut(), drawn(&outputs)) {
            (Some(next), Some(token)) => next.step.tokens = vec![token],
            // Who asked hears what is wrong with it; nothing can go on with it.
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

/// The token that a step drew.
fn drawn(outputs: &StepOutputs) -> Option<u32> {
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
        sequence.ask(step, waiting, &mut reach(3))
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
        assert!(ask(&mut sequence, Step::last(&[4, 5, 6], 0), 1).is_none());
        assert_eq!(give(&mut sequence, 3), [(0, true), (3, false), (4, false)]);
        let (waiting, _) = sequence.on_done(drew(7), &mut reach(3)).unwrap();
        assert_eq!(waiting, 1);
        assert_eq!(give(&mut sequence, 3), [(5, false)]);
        // Done before it is asked for.
        assert!(sequence.on_done(drew(8), &mut reach(3)).is_none());
        assert!(give(&mut sequence, 3).is_empty(), "nobody asks any more");
        let (waiting, outputs) = ask(&mut sequence, Step::last(&[7], 3), 2).unwrap();
        assert_eq!((waiting, drawn(&outputs)), (2, Some(8)));
        // Asked for while it is under way.
        assert!(ask(&mut sequence, Step::last(&[8], 4), 3).is_none());
        let (waiting, _) = sequence.on_done(drew(9), &mut reach(3)).unwrap();
        assert_eq!(waiting, 3);
    }

    #[test]
    fn what_was_given_ahead_of_something_else_is_dropped() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::last(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        sequence.on_done(drew(6), &mut reach(3)).unwrap();
        // Another token than was drawn, and what follows it.
        let mut before = reach(3);
        sequence.ask(Step::last(&[9], 2), 2, &mut before);
        assert_eq!(before.steps, 1, "it was given ahead in vain");
        assert_eq!(give(&mut sequence, 2), [(2, true), (3, false)]);
        for stale in [7, 8] {
            assert!(sequence.on_done(drew(stale), &mut reach(2)).is_none());
        }
        let (waiting, outputs) = sequence.on_done(drew(3), &mut reach(2)).unwrap();
        assert_eq!((waiting, drawn(&outputs)), (2, Some(3)));
    }

    #[test]
    fn a_step_that_drew_no_token_is_answered_and_nothing_goes_on_with_it() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::last(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        let (waiting, _) = sequence.on_done(drew(-1), &mut reach(3)).unwrap();
        assert_eq!(waiting, 1);
        ask(&mut sequence, Step::last(&[6], 2), 2);
        assert_eq!(give(&mut sequence, 1), [(2, true)]);
        for stale in [7, 8] {
            assert!(sequence.on_done(drew(stale), &mut reach(3)).is_none());
        }
        assert!(sequence.on_done(drew(9), &mut reach(3)).is_some());
    }

    #[test]
    fn nothing_goes_ahead_of_logits_of_drafts_or_beyond_the_room() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::last(&[4], 0).told(), 1);
        assert_eq!(give(&mut sequence, 3), [(0, true)]);
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::all(&[4, 5], 0), 1);
        assert_eq!(give(&mut sequence, 3), [(0, true)]);
        let mut sequence = SessionSequence::new(3);
        ask(&mut sequence, Step::last(&[4], 0), 1);
        assert_eq!(give(&mut sequence, 9), [(0, true), (1, false), (2, false)]);
    }

    #[test]
    fn a_session_that_begins_anew_is_told_all_before_anything_goes_ahead() {
        let mut sequence = SessionSequence::new(64);
        ask(&mut sequence, Step::last(&[4, 5], 0), 1);
        give(&mut sequence, 3);
        sequence.on_done(drew(6), &mut reach(3)).unwrap();
        ask(&mut sequence, Step::last(&[6], 2), 2);
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
            far.learn(Duration::from_millis(ms));
            far.steps
        };
        assert_eq!([learn(110), learn(110), learn(110)], [2, 3, 4]);
        // Of four each waits for a tenth of the time: fewer than one waits.
        assert_eq!(learn(122), 5);
        // Half of the time of five: two and a half wait.
        assert_eq!(learn(220), 4);
        let mut near = Reach::new(1);
        near.learn(Duration::ZERO);
        assert_eq!(near.steps, 1);
    }
}
