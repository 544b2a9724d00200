//! A simulated caller of one sequence: decides which step to ask for next.

use super::model::{Dice, VOCABULARY};
use crate::session::{Caller, Step};

/// A step that a reader wants.
#[derive(Clone, Debug)]
pub struct Wish {
    pub sequence: u32,
    /// All tokens before the step.
    pub text: Vec<u32>,
    /// The tokens before the step, as far as the core gets them.
    pub before: Vec<u32>,
    pub step: Step,
    /// Whether the core cannot know the tokens.
    pub is_bad: bool,
}

/// A reader.
#[derive(Default)]
pub struct Reader {
    pub sequence: u32,
    pub text: Vec<u32>,
    /// The token that the last step drew.
    pub drawn: Option<u32>,
    pub waiting: Option<Caller>,
    /// The number of tokens that the core has of it.
    pub has: usize,
    sampling: Vec<u64>,
}

impl Reader {
    pub fn new(sequence: u32) -> Reader {
        Reader {
            sequence,
            ..Reader::default()
        }
    }

    /// Makes up the next step.
    pub fn wish(&mut self, dice: &mut Dice, positions: usize, sessions_per_step: u32) -> Wish {
        if self.text.len() + 4 > positions {
            self.text
                .truncate(dice.below(positions as u64 / 2) as usize);
            self.drawn = None;
        }
        let style = dice.below(100);
        let mut is_changed = false;
        let mut step = match (style, self.drawn) {
            (0..60, Some(drawn)) => self.step(vec![drawn], false),
            (60..66, _) => self.step(random_tokens(dice, 1), false),
            (66..72, _) => {
                let count = 2 + dice.below(2);
                self.step(random_tokens(dice, count), true)
            }
            (72..77, Some(drawn)) => self.step(vec![drawn], false).with_logits(),
            (77..81, _) => {
                let all = self.step(random_tokens(dice, 3), true);
                let logit_rows = vec![1];
                Step { logit_rows, ..all }
            }
            (81..84, _) => {
                self.sampling = vec![dice.below(3)];
                self.step(random_tokens(dice, 1), false)
            }
            (84..87, _) if !self.text.is_empty() => {
                let place = dice.below(self.text.len() as u64) as usize;
                self.text[place] = (self.text[place] + 1) % VOCABULARY;
                is_changed = true;
                self.step(random_tokens(dice, 1), false)
            }
            (87..90, _) => {
                self.text.clear();
                self.prompt(dice, positions)
            }
            _ => {
                let length = self.text.len() as u64;
                self.text.truncate(dice.below(length + 1) as usize);
                self.prompt(dice, positions)
            }
        };
        let mut is_bad = false;
        let has_all = self.has >= step.after && !is_changed;
        let mut before = self.text.clone();
        if sessions_per_step == 1 && has_all && dice.is_hit(50) {
            before.clear();
        } else if !is_changed && dice.is_hit(1) {
            is_bad = true;
            if dice.is_hit(50) {
                step.tokens.clear();
            } else {
                step.after = positions + 1;
            }
        }
        Wish {
            sequence: self.sequence,
            text: self.text.clone(),
            before,
            step,
            is_bad,
        }
    }

    fn step(&self, tokens: Vec<u32>, is_for_all: bool) -> Step {
        let mut step = Step::for_last_token(&tokens, self.text.len());
        if is_for_all {
            step.rows = (0..tokens.len()).collect();
        }
        step.sampling.clone_from(&self.sampling);
        step
    }

    fn prompt(&self, dice: &mut Dice, positions: usize) -> Step {
        let most = (positions - self.text.len()).min(9) as u64;
        let count = 1 + dice.below(most);
        self.step(random_tokens(dice, count), false)
    }
}

fn random_tokens(dice: &mut Dice, count: u64) -> Vec<u32> {
    let tokens = (0..count).map(|_| dice.below(u64::from(VOCABULARY)) as u32);
    tokens.collect()
}
