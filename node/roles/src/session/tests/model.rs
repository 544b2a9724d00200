//! A toy language model for the tests of sessions, which draws tokens by a hash of the text, and
//! providers that compute it correctly or lie.

use std::collections::BTreeMap;

use souk_market::AccountKey;

use crate::session::Step;

/// A source of numbers that a seed fixes.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555_1234)
    }

    /// Returns a number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % most.max(1)
    }

    /// Returns true so often, in percent.
    pub fn is_hit(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The tokens of the model.
pub const VOCABULARY: u32 = 6;

/// The first token that only a liar draws.
const LIE: i64 = 1_000;

/// How a provider computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honesty {
    Honest,
    /// Its logits and tokens are wrong.
    Liar,
    /// Its tokens do not follow from its logits.
    TokenLiar,
    /// Its logits are wrong, its tokens are not.
    LogitsLiar,
    /// It lies with every second step.
    SometimesLiar,
    /// Its logits are wrong with every second step, its tokens are not.
    SometimesLogitsLiar,
    /// It draws no token with every fourth step.
    Mute,
}

/// The logits of one row, as far as anyone compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logits {
    base: u64,
    /// How its kernels round, which makes no difference to a comparison.
    rounding: u64,
    lie: Option<u8>,
}

impl Logits {
    fn of_text(text: &[u32], rounding: u64) -> Logits {
        let base = text
            .iter()
            .fold(7, |word, token| mix(word ^ u64::from(*token) << 8));
        let lie = None;
        Logits {
            base,
            rounding,
            lie,
        }
    }

    pub fn is_close(&self, other: &Logits) -> bool {
        (self.base, self.lie) == (other.base, other.lie)
    }

    /// Draws a token: with few texts, rounding decides.
    fn draw(&self, sampling: &[u64]) -> i64 {
        if let Some(liar) = self.lie {
            return LIE + i64::from(liar);
        }
        let word = sampling.iter().fold(self.base, |word, it| mix(word ^ it));
        let is_tie = word.is_multiple_of(8);
        let token = (word >> 8) + if is_tie { self.rounding } else { 0 };
        (token % u64::from(VOCABULARY)) as i64
    }
}

/// A step as a provider computed it.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The tokens before the step.
    pub before: Vec<u32>,
    /// The step, with all tokens.
    pub step: Step,
    pub drawn: Vec<i64>,
    /// The logits of the rows that were told.
    pub logits: Vec<Logits>,
}

impl Computed {
    /// Returns whether each token follows from its logits, which must be there for all rows.
    pub fn is_consistent(&self) -> bool {
        let pairs = self.drawn.iter().zip(&self.logits);
        self.drawn.len() == self.logits.len()
            && pairs.clone().count() == self.step.rows.len()
            && pairs
                .clone()
                .all(|(token, logits)| logits.draw(&self.step.sampling) == *token)
    }

    /// Returns whether an honest provider can give this.
    pub fn is_honest(&self) -> bool {
        let texts = self.step.rows.iter().map(|row| self.text_to(*row));
        let texts: Vec<Vec<u32>> = texts.collect();
        let drawn = self.drawn.iter().zip(&texts).all(|(token, text)| {
            [0, 1]
                .into_iter()
                .any(|rounding| Logits::of_text(text, rounding).draw(&self.step.sampling) == *token)
        });
        let told = self.step.logit_rows.iter().zip(&self.logits);
        let mut told = told.map(|(row, logits)| logits.is_close(&Logits::of_text(&texts[*row], 0)));
        drawn && self.drawn.len() == texts.len() && told.all(|is_close| is_close)
    }

    fn text_to(&self, row: usize) -> Vec<u32> {
        let mut text = self.before.clone();
        text.extend(&self.step.tokens[..=row]);
        text
    }
}

/// The caches of one sequence at a provider.
#[derive(Default)]
struct Cache {
    tokens: Vec<u32>,
    /// The token that the last step drew, if it drew one after its last token.
    drawn: Option<u32>,
    steps: u64,
}

/// The providers of one job, as one machine.
pub struct Machine {
    pub providers: Vec<AccountKey>,
    honesty: Honesty,
    liar: u8,
    caches: BTreeMap<u32, Cache>,
}

impl Machine {
    pub fn new(providers: Vec<AccountKey>, honesties: &[Honesty]) -> Machine {
        let of = |account: &AccountKey| honesties[usize::from(account.0[0])];
        let liar = providers.iter().find(|it| of(it) != Honesty::Honest);
        Machine {
            honesty: liar.map_or(Honesty::Honest, of),
            liar: liar.unwrap_or(&providers[0]).0[0],
            providers,
            caches: BTreeMap::new(),
        }
    }

    pub fn lies(&self) -> bool {
        self.honesty != Honesty::Honest
    }

    /// Computes a step of a sequence.
    pub fn compute(&mut self, sequence: u32, step: &Step) -> Computed {
        let cache = self.caches.entry(sequence).or_default();
        assert!(step.after <= cache.tokens.len(), "a gap in the caches");
        let mut step = step.clone();
        if step.tokens.is_empty() {
            assert_eq!(step.after, cache.tokens.len(), "it continues elsewhere");
            step.tokens = vec![cache.drawn.unwrap_or_default()];
        }
        cache.tokens.truncate(step.after);
        let before = cache.tokens.clone();
        cache.tokens.extend(&step.tokens);
        cache.steps += 1;
        let is_lie = match self.honesty {
            Honesty::Honest | Honesty::Mute => false,
            Honesty::SometimesLiar | Honesty::SometimesLogitsLiar => cache.steps.is_multiple_of(2),
            Honesty::Liar | Honesty::TokenLiar | Honesty::LogitsLiar => true,
        };
        let lie = is_lie.then_some(self.liar);
        let logits_liars = [Honesty::LogitsLiar, Honesty::SometimesLogitsLiar];
        let tells_other_logits = logits_liars.contains(&self.honesty);
        let rounding = u64::from(self.liar % 2);
        let rows = step.rows.iter().map(|row| {
            let text = &cache.tokens[..=step.after + row];
            let honest = Logits::of_text(text, rounding);
            let lies = Logits { lie, ..honest };
            let tells = if self.honesty == Honesty::TokenLiar {
                honest
            } else {
                lies
            };
            let draws = if tells_other_logits { honest } else { lies };
            (draws.draw(&step.sampling), tells)
        });
        let (mut drawn, rows): (Vec<i64>, Vec<Logits>) = rows.unzip();
        if self.honesty == Honesty::Mute && cache.steps.is_multiple_of(4) {
            drawn = vec![-1; drawn.len()];
        }
        let is_last = step.rows.last() == Some(&(step.tokens.len() - 1));
        let last = drawn.last().filter(|_| is_last);
        cache.drawn = last.and_then(|token| u32::try_from(*token).ok());
        Computed {
            before,
            logits: step.logit_rows.iter().map(|row| rows[*row]).collect(),
            step,
            drawn,
        }
    }
}
