//! Draws the next token of a text from a language model's logits, the scores of all tokens.
//!
//! Penalties, temperature and filters have the order and meaning of Hugging Face's tools. The draw
//! depends only on the seed and the position, so after a failure another device continues a text
//! with the same draws.
//!
//! Sampling is also an operator, `Sample` of the domain `ai.souk`, so that the device that computes
//! logits can draw from them and does not need to send them. Its inputs are logits, `[.., rows,
//! vocabulary]`, and the settings as numbers ([`Sampling::to_numbers`]); its output is the token of
//! each row, `[.., rows]`, where each row is one position further.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::NodeProto;
use crate::custom::DOMAIN;

/// Name of the operator.
pub const OPERATOR: &str = "Sample";

/// Number of entries in [`Sampling::to_numbers`] before those of the bias.
const NUMBERS: usize = 7;

/// Up to this number a float can represent every integer.
const WHOLE_MAX: f64 = (1_u64 << 53) as f64;

/// Number of likeliest tokens in the first search for a nucleus.
const NUCLEUS_FIRST: usize = 256;

/// Returns whether a node draws tokens.
#[must_use]
pub fn is_sample(node: &NodeProto) -> bool {
    (node.operator_domain(), node.op_type()) == (DOMAIN, OPERATOR)
}

/// The settings of sampling. The default takes the likeliest token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Number of likeliest tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Probability that the kept likeliest tokens have together.
    pub top_p: f64,
    /// Least probability of a kept token, as a part of the likeliest one's.
    pub min_p: f64,
    /// Divisor of the logits of tokens in the history, or multiplier if a logit is negative.
    pub repetition: f64,
    /// Amount to subtract from a token's logit for each time that the model generated it.
    pub frequency: f64,
    /// Amount to subtract from the logit of each generated token.
    pub presence: f64,
    /// Amounts to add to the logits of these tokens.
    pub bias: BTreeMap<u32, f64>,
    /// Seed; draws with the same seed will repeat.
    pub seed: u64,
}

/// The reason to refuse a setting.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} is {value}, but must be {range}")]
pub struct SamplingError {
    /// Name of the setting.
    pub name: &'static str,
    /// Value of the setting.
    pub value: f64,
    /// Allowed values.
    pub range: &'static str,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

/// Reasons why no token can be drawn from logits.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SampleError {
    /// The numbers do not denote settings.
    #[error("a sampling configuration has 7 numbers and two for each bias; this one has {0}")]
    Numbers(usize),
    /// A setting is out of its range.
    #[error(transparent)]
    Range(#[from] SamplingError),
    /// There are no logits, or one is not a number.
    #[error("there are no logits, or one of them is not a number")]
    Logits,
}

/// The tokens before the one to draw.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Tokens generated so far.
    pub generated: &'a [u32],
}

impl History<'_> {
    fn next_position(&self) -> u64 {
        (self.prompt.len() + self.generated.len()) as u64
    }
}

impl Sampling {
    /// Returns the settings, if every number is in its range. You should check settings before you
    /// draw.
    ///
    /// # Errors
    /// [`SamplingError`], for the first that is not.
    pub fn check_ranges(self) -> Result<Self, SamplingError> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let bias = self.bias.values().find(|bias| !bias.is_finite());
        let bias = bias.copied().unwrap_or_default();
        let checks = [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0,
                "0 or more",
            ),
            (
                "top-p",
                self.top_p,
                share(self.top_p) && self.top_p > 0.0,
                "above 0, at most 1",
            ),
            ("min-p", self.min_p, share(self.min_p), "from 0 to 1"),
            (
                "repetition penalty",
                self.repetition,
                self.repetition > 0.0,
                "above 0",
            ),
            (
                "frequency penalty",
                self.frequency,
                self.frequency.is_finite(),
                "a number",
            ),
            (
                "presence penalty",
                self.presence,
                self.presence.is_finite(),
                "a number",
            ),
            ("logit bias", bias, bias.is_finite(), "a number"),
        ];
        let wrong = checks
            .into_iter()
            .find(|(_, value, fits, _)| !fits || !value.is_finite());
        match wrong {
            Some((name, value, _, range)) => Err(SamplingError { name, value, range }),
            None => Ok(self),
        }
    }

    /// Returns whether a draw depends on the tokens of the history, and not only on their number.
    #[must_use]
    pub fn needs_history(&self) -> bool {
        self.repetition != 1.0 || self.frequency != 0.0 || self.presence != 0.0
    }

    /// Returns the settings as numbers, for a first token at a position. They do not include
    /// penalties, because the operator has no history.
    #[must_use]
    pub fn to_numbers(&self, position: u64) -> Vec<f64> {
        let half = |word: u64| f64::from(word as u32);
        let mut numbers = vec![
            self.temperature,
            self.top_k as f64,
            self.top_p,
            self.min_p,
            half(self.seed),
            half(self.seed >> 32),
            position as f64,
        ];
        let bias = self.bias.iter();
        numbers.extend(bias.flat_map(|(token, bias)| [f64::from(*token), *bias]));
        numbers
    }

    /// Parses numbers into the settings and the position of the first token.
    ///
    /// # Errors
    /// [`SampleError`] if the numbers do not denote settings.
    pub fn from_numbers(numbers: &[f64]) -> Result<(Self, u64), SampleError> {
        let wrong = SampleError::Numbers(numbers.len());
        let (&[temperature, top_k, top_p, min_p, low, high, position], bias) = numbers
            .split_first_chunk::<NUMBERS>()
            .ok_or_else(|| wrong.clone())?;
        let (bias, rest) = bias.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong);
        }
        let bias = bias.iter().map(|&[token, bias]| {
            let token = check_integer("a token", token, f64::from(u32::MAX))?;
            Ok((token as u32, bias))
        });
        let half = |half: f64| check_integer("half of the seed", half, f64::from(u32::MAX));
        let sampling = Self {
            temperature,
            top_k: check_integer("top-k", top_k, WHOLE_MAX)? as usize,
            top_p,
            min_p,
            bias: bias.collect::<Result<_, SamplingError>>()?,
            seed: half(low)? | half(high)? << 32,
            ..Self::default()
        };
        let position = check_integer("the position", position, WHOLE_MAX)?;
        Ok((sampling.check_ranges()?, position))
    }

    /// Returns the point from 0 to below 1 that decides the draw at a position: the token is drawn
    /// whose share, with the shares of the tokens of smaller numbers, first exceeds it.
    #[must_use]
    pub fn draw_point(&self, position: u64) -> f64 {
        uniform_fraction(self.seed, position)
    }

    /// Draws the token at a position, without a history.
    ///
    /// # Errors
    /// [`SampleError::Logits`] if there are none, or one is not a number.
    pub fn draw_at(&self, logits: &[f32], position: u64) -> Result<u32, SampleError> {
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
            return Err(SampleError::Logits);
        }
        let history = History {
            prompt: &[],
            generated: &[],
        };
        Ok(self.draw_from_scores(self.token_scores(logits, history), position))
    }

    /// Draws the next token. The settings should be checked before ([`Self::check_ranges`]).
    ///
    /// # Panics
    /// Panics if there are no logits.
    #[must_use]
    pub fn draw_token(&self, logits: &[f32], history: History<'_>) -> u32 {
        assert!(!logits.is_empty(), "a vocabulary has tokens");
        self.draw_from_scores(self.token_scores(logits, history), history.next_position())
    }

    /// Draws the next token from those allowed; returns `None` if the logit of each of them is
    /// minus infinity or not a number.
    #[must_use]
    pub fn draw_among(
        &self,
        logits: &[f32],
        history: History<'_>,
        is_allowed: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut scores = self.token_scores(logits, history);
        scores.retain(|(token, score)| *score > f64::NEG_INFINITY && is_allowed(*token));
        (!scores.is_empty()).then(|| self.draw_from_scores(scores, history.next_position()))
    }

    fn draw_from_scores(&self, scores: Vec<(u32, f64)>, position: u64) -> u32 {
        if self.temperature == 0.0 {
            return likeliest_token(&scores);
        }
        let shares = self.token_shares(scores);
        let point = self.draw_point(position);
        let mut below = 0.0;
        for &(token, share) in &shares {
            below += share;
            if point < below {
                return token;
            }
        }
        // Sums are rounded, so the last token gets the rest to one.
        shares[shares.len() - 1].0
    }

    /// Returns the tokens that can be drawn with their probabilities, by number.
    #[must_use]
    pub fn token_probabilities(&self, logits: &[f32], history: History<'_>) -> Vec<(u32, f64)> {
        self.token_shares(self.token_scores(logits, history))
    }

    fn token_scores(&self, logits: &[f32], history: History<'_>) -> Vec<(u32, f64)> {
        let scores = self
            .penalise_logits(logits, history)
            .into_iter()
            .enumerate();
        scores.map(|(token, score)| (token as u32, score)).collect()
    }

    /// Returns the tokens that can be drawn, by number. It sorts only where necessary, because
    /// sorting a whole vocabulary takes longer than the rest.
    fn token_shares(&self, mut scores: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
        let temperature = match self.temperature {
            0.0 => 1.0,
            temperature => temperature,
        };
        scores
            .iter_mut()
            .for_each(|(_, score)| *score /= temperature);
        if self.top_k > 0 && self.top_k < scores.len() {
            scores.select_nth_unstable_by(self.top_k, compare_likelihood);
            scores.truncate(self.top_k);
            scores.sort_unstable_by_key(|(token, _)| *token);
        }
        let mut shares = softmax(scores);
        if self.top_p < 1.0 {
            keep_nucleus(&mut shares, self.top_p);
            shares.sort_unstable_by_key(|(token, _)| *token);
            normalise_shares(&mut shares);
        }
        if self.min_p > 0.0 {
            let (likeliest, most) = shares
                .iter()
                .copied()
                .min_by(compare_likelihood)
                .unwrap_or_default();
            let least = self.min_p * most;
            // The likeliest token stays even if its share is not a number, because logits can be
            // infinite.
            shares.retain(|(token, share)| *share >= least || *token == likeliest);
            normalise_shares(&mut shares);
        }
        shares
    }

    fn penalise_logits(&self, logits: &[f32], history: History<'_>) -> Vec<f64> {
        let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
        for (&token, bias) in &self.bias {
            if let Some(score) = scores.get_mut(token as usize) {
                *score += bias;
            }
        }
        if self.repetition != 1.0 {
            let mut seen = [history.prompt, history.generated].concat();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                if let Some(score) = scores.get_mut(token as usize) {
                    let factor = self.repetition;
                    *score = if *score < 0.0 {
                        *score * factor
                    } else {
                        *score / factor
                    };
                }
            }
        }
        if self.frequency != 0.0 || self.presence != 0.0 {
            let mut times = BTreeMap::new();
            for token in history.generated {
                *times.entry(*token).or_insert(0u32) += 1;
            }
            for (token, times) in times {
                if let Some(score) = scores.get_mut(token as usize) {
                    *score -= self.frequency * f64::from(times) + self.presence;
                }
            }
        }
        scores
    }
}

/// Log probabilities of a token and of the likeliest ones, by the unmodified logits.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities {
    /// Log probability of the token.
    pub token: f64,
    /// The likeliest tokens, the likeliest first.
    pub likeliest: Vec<(u32, f64)>,
}

impl LogProbabilities {
    /// Computes the log probabilities of a token and of the `most` likeliest ones from logits.
    ///
    /// # Panics
    /// Panics if the token has no logit.
    #[must_use]
    pub fn from_logits(logits: &[f32], token: u32, most: usize) -> Self {
        let scores = logits.iter().map(|&logit| f64::from(logit)).enumerate();
        let mut scores: Vec<(u32, f64)> = scores.map(|(id, score)| (id as u32, score)).collect();
        let largest = scores
            .iter()
            .fold(f64::NEG_INFINITY, |most, (_, score)| most.max(*score));
        let sum: f64 = scores
            .iter()
            .map(|(_, score)| (score - largest).exp())
            .sum();
        let all = largest + sum.ln();
        let own = scores[token as usize].1 - all;
        if most < scores.len() {
            scores.select_nth_unstable_by(most, compare_likelihood);
            scores.truncate(most);
        }
        scores.sort_unstable_by(compare_likelihood);
        Self {
            token: own,
            likeliest: scores
                .iter()
                .map(|(id, score)| (*id, score - all))
                .collect(),
        }
    }
}

/// Checks that a number is an integer from 0 to `most`.
fn check_integer(name: &'static str, value: f64, most: f64) -> Result<u64, SamplingError> {
    let range = "a whole number";
    let is_whole = (0.0..=most).contains(&value) && value.fract() == 0.0;
    let refused = SamplingError { name, value, range };
    is_whole.then_some(value as u64).ok_or(refused)
}

/// Returns the first token with the largest score; there must be at least one.
fn likeliest_token(scores: &[(u32, f64)]) -> u32 {
    let mut best = scores[0];
    for one in scores {
        if one.1 > best.1 {
            best = *one;
        }
    }
    best.0
}

/// Orders tokens by their scores or shares, the likeliest first.
fn compare_likelihood(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Returns the probabilities of scores.
fn softmax(mut scores: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
    let scored = scores.iter().map(|(_, score)| *score);
    let largest = scored.fold(f64::NEG_INFINITY, f64::max);
    scores
        .iter_mut()
        .for_each(|(_, score)| *score = (*score - largest).exp());
    normalise_shares(&mut scores);
    scores
}

fn normalise_shares(shares: &mut [(u32, f64)]) {
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    shares.iter_mut().for_each(|(_, share)| *share /= sum);
}

/// Keeps the likeliest tokens that reach a probability together, at least one. It first searches
/// among few.
fn keep_nucleus(shares: &mut Vec<(u32, f64)>, wanted: f64) {
    let mut count = NUCLEUS_FIRST;
    loop {
        let is_all = count >= shares.len();
        let first = match is_all {
            true => &mut shares[..],
            false => {
                shares.select_nth_unstable_by(count, compare_likelihood);
                &mut shares[..count]
            }
        };
        first.sort_unstable_by(compare_likelihood);
        let mut sum = 0.0;
        let enough = |(_, share): &(u32, f64)| {
            sum += share;
            sum >= wanted
        };
        match first.iter().position(enough) {
            Some(last) => return shares.truncate(last + 1),
            None if is_all => return,
            None => count *= 8,
        }
    }
}

/// Returns a number from 0 to below 1 for a seed and a position, by two rounds of SplitMix64.
fn uniform_fraction(seed: u64, position: u64) -> f64 {
    let bits = mix_bits(mix_bits(seed).wrapping_add(position)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

fn mix_bits(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: History<'_> = History {
        prompt: &[],
        generated: &[],
    };

    fn with(change: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut sampling = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        change(&mut sampling);
        sampling
    }

    /// The tokens with their probabilities, the likeliest first.
    fn sort_shares(sampling: &Sampling, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut shares = sampling.token_probabilities(logits, NONE);
        assert!(shares.is_sorted_by_key(|(token, _)| *token));
        shares.sort_unstable_by(compare_likelihood);
        shares
    }

    fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<(u32, f64)> {
        let shares = sort_shares(sampling, logits).into_iter();
        let rounded = |share: f64| (share * 1e6).round() / 1e6;
        shares
            .map(|(token, share)| (token, rounded(share)))
            .collect()
    }

    /// Logits of these probabilities.
    fn logits(shares: &[f64]) -> Vec<f32> {
        shares.iter().map(|share| share.ln() as f32).collect()
    }

    #[test]
    fn probabilities_that_are_told_are_the_models_own() {
        let told = LogProbabilities::from_logits(&logits(&[0.1, 0.4, 0.2, 0.3]), 0, 2);
        let near = |a: f64, b: f64| (a.exp() - b).abs() < 1e-6;
        assert!(near(told.token, 0.1));
        let ids: Vec<u32> = told.likeliest.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 3]);
        assert!(near(told.likeliest[0].1, 0.4) && near(told.likeliest[1].1, 0.3));
        // More than there are, of logits that are far from being logarithms.
        let told = LogProbabilities::from_logits(&[1000.0, 1000.0, f32::NEG_INFINITY], 1, 20);
        assert!(near(told.token, 0.5));
        assert_eq!(told.likeliest.len(), 3);
    }

    #[test]
    fn filters_keep_what_they_say_and_renormalise() {
        let logits = logits(&[0.1, 0.4, 0.2, 0.3]);
        let all = shares(&with(|_| {}), &logits);
        assert_eq!(all, [(1, 0.4), (3, 0.3), (2, 0.2), (0, 0.1)]);
        let two = shares(&with(|it| it.top_k = 2), &logits);
        assert_eq!(two, [(1, 0.571429), (3, 0.428571)]);
        // 0.4 and 0.3 are not 0.75 yet: the one that passes it stays.
        let nucleus = shares(&with(|it| it.top_p = 0.75), &logits);
        assert_eq!(nucleus, [(1, 0.444444), (3, 0.333333), (2, 0.222222)]);
        let near = shares(&with(|it| it.min_p = 0.6), &logits);
        assert_eq!(near, [(1, 0.571429), (3, 0.428571)]);
        let cold = shares(&with(|it| it.temperature = 0.5), &logits);
        assert_eq!(cold[0], (1, 0.533333));
    }

    #[test]
    fn a_nucleus_of_many_tokens_is_the_likeliest_of_them() {
        // Of 3,000 tokens each is a little likelier than the one before.
        let logits: Vec<f32> = (0..3000).map(|at| at as f32 / 1000.0).collect();
        let all = sort_shares(&with(|_| {}), &logits);
        for top_p in [0.05, 0.5, 0.999] {
            let kept = sort_shares(&with(|it| it.top_p = top_p), &logits);
            let together = |count: usize| all[..count].iter().map(|it| it.1).sum::<f64>();
            assert!(together(kept.len()) >= top_p && together(kept.len() - 1) < top_p);
            let ids = |of: &[(u32, f64)]| of.iter().map(|it| it.0).collect::<Vec<_>>();
            assert_eq!(ids(&kept), ids(&all[..kept.len()]));
        }
    }

    #[test]
    fn penalties_fall_on_what_was_seen() {
        let history = History {
            prompt: &[0],
            generated: &[1, 1],
        };
        let penalised = |change: fn(&mut Sampling)| {
            with(change).penalise_logits(&[2.0, 2.0, -2.0, 1.0], history)
        };
        assert_eq!(penalised(|it| it.repetition = 2.0), [1.0, 1.0, -2.0, 1.0]);
        assert_eq!(penalised(|it| it.frequency = 0.5), [2.0, 1.0, -2.0, 1.0]);
        assert_eq!(penalised(|it| it.presence = 0.5), [2.0, 1.5, -2.0, 1.0]);
        let biased = penalised(|it| it.bias = BTreeMap::from([(3, 9.0), (99, 1.0)]));
        assert_eq!(biased, [2.0, 2.0, -2.0, 10.0]);
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_alone_and_follows_the_shares() {
        let logits = logits(&[0.5, 0.25, 0.25]);
        let drawn = |seed: u64| -> Vec<u32> {
            let sampling = with(|it| it.seed = seed);
            let at = |position: usize| {
                let prompt = vec![0; position];
                let history = History {
                    prompt: &prompt,
                    generated: &[],
                };
                sampling.draw_token(&logits, history)
            };
            (0..4000).map(at).collect()
        };
        let first = drawn(7);
        assert_eq!(first, drawn(7));
        assert_ne!(first, drawn(8));
        let share = first.iter().filter(|token| **token == 0).count() as f64 / 4000.0;
        assert!((share - 0.5).abs() < 0.04, "{share}");
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let refused = |change: fn(&mut Sampling)| with(change).check_ranges().unwrap_err().name;
        assert_eq!(refused(|it| it.temperature = -1.0), "temperature");
        assert_eq!(refused(|it| it.temperature = f64::NAN), "temperature");
        assert_eq!(refused(|it| it.top_p = 0.0), "top-p");
        assert_eq!(refused(|it| it.min_p = 1.5), "min-p");
        assert_eq!(refused(|it| it.repetition = 0.0), "repetition penalty");
        let bias = refused(|it| it.bias = BTreeMap::from([(3, 1.0), (4, f64::INFINITY)]));
        assert_eq!(bias, "logit bias");
    }

    #[test]
    fn numbers_that_are_of_no_way_are_refused() {
        let refused = |numbers: &[f64]| Sampling::from_numbers(numbers).unwrap_err();
        assert_eq!(refused(&[]), SampleError::Numbers(0));
        let mut numbers = Sampling::default().to_numbers(3);
        numbers.push(1.0);
        assert_eq!(refused(&numbers), SampleError::Numbers(8));
        numbers.push(f64::NAN);
        assert!(matches!(refused(&numbers), SampleError::Range(_)));
        for (at, value) in [
            (1, -1.0),
            (4, 0.5),
            (5, 5e9),
            (6, f64::INFINITY),
            (6, 1e300),
        ] {
            let mut numbers = Sampling::default().to_numbers(3);
            numbers[at] = value;
            assert!(matches!(refused(&numbers), SampleError::Range(_)), "{at}");
        }
        let greedy = Sampling::default();
        let narrow = with(|it| it.min_p = 0.5);
        for odd in [f32::INFINITY, f32::NEG_INFINITY] {
            assert!(narrow.draw_at(&[odd; 3], 0).is_ok_and(|token| token < 3));
        }
        assert_eq!(greedy.draw_at(&[], 0), Err(SampleError::Logits));
        assert_eq!(
            greedy.draw_at(&[0.0, f32::NAN], 0),
            Err(SampleError::Logits)
        );
    }

    proptest! {
        /// By its numbers the same is drawn, without history.
        #[test]
        fn a_way_and_its_numbers_draw_the_same(
            logits in prop::collection::vec(-9.0f32..9.0, 1..40), seed in any::<u64>(),
            temperature in 0.0..2.0, (top_k, top_p, min_p) in (0usize..9, 0.1..=1.0, 0.0..0.5),
            before in prop::collection::vec(any::<u32>(), 0..9), bias in -4.0..4.0,
        ) {
            let temperature = if temperature < 0.5 { 0.0 } else { temperature };
            let bias = BTreeMap::from([(1, bias)]);
            let sampling =
                Sampling { temperature, top_k, top_p, min_p, seed, bias, ..Sampling::default() };
            prop_assert!(!sampling.needs_history());
            let history = History { prompt: &before, generated: &[] };
            let numbers = sampling.to_numbers(before.len() as u64);
            let (read, position) = Sampling::from_numbers(&numbers).unwrap();
            prop_assert_eq!(&read, &sampling);
            let drawn = read.draw_at(&logits, position);
            prop_assert_eq!(drawn, Ok(sampling.draw_token(&logits, history)));
        }

        /// Among all tokens the same is drawn as before there were others; among some, one of them.
        #[test]
        fn what_is_drawn_is_allowed_and_of_all_the_same(
            logits in prop::collection::vec(-9.0f32..9.0, 1..40), seed in any::<u64>(),
            temperature in 0.0..2.0, (top_k, top_p) in (0usize..9, 0.1..=1.0), each in 2u32..9,
        ) {
            let temperature = if temperature < 0.5 { 0.0 } else { temperature };
            let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::default() };
            let drawn = sampling.draw_token(&logits, NONE);
            prop_assert_eq!(sampling.draw_among(&logits, NONE, |_| true), Some(drawn));
            let drawn = sampling.draw_among(&logits, NONE, |token| token % each == 1);
            prop_assert_eq!(drawn.is_none(), logits.len() == 1);
            prop_assert!(drawn.is_none_or(|token| token % each == 1));
            prop_assert_eq!(sampling.draw_among(&logits, NONE, |_| false), None);
        }
    }
}
