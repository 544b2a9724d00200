//! Scores an answer with a reference model, so that an audit can judge whether the model that was
//! sold wrote it. The reference reads the answer again. For each token, this module computes
//! whether the reference would have drawn it too, and otherwise how far it was from drawing it.
//!
//! The distance is a *shift* in units of logits: by how much the reference's logits must move
//! against each other before it draws the given token. At temperature 0 the shift of a
//! token is the top logit minus the token's own. A seeded draw takes the token whose share, with
//! the shares of the tokens of smaller numbers, first exceeds a point; there it is the temperature
//! times the distance from the point to the nearest end of the token's range, both as logarithms of
//! the odds. The point depends on the seed and the position alone, so souk's own decoder has the
//! same one everywhere.
//!
//! One pass over the prompt and the answer gives the scores of all tokens, so a check costs less
//! than the answer did.

use souk_memory::Bf16;
use thiserror::Error;

use crate::generation::{GenerationError, Sequence};
use crate::sampling::{History, LogProbabilities, Sampling};

/// The tokens of one step, which returns the logits after each: for a vocabulary of 150,000 they
/// take 19 MB.
const STEP_TOKENS: usize = 32;

/// The number of likeliest tokens of a position whose logits are kept.
pub const LIKELIEST: usize = 8;

/// By how much the rounding of sums changes a share.
const RANGE_ROUNDING: f64 = 1e-12;

/// How far the reference was from drawing a given token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub token: u32,
    /// The reference's own draw.
    pub drawn: u32,
    /// The tokens that the reference would rather have drawn; 0 if this one is its own draw.
    pub rank: u32,
    /// The shift in logits from which on the token is drawn; 0 if it is drawn already.
    pub margin: f64,
    /// The shift beyond which another token is drawn instead; infinite at temperature 0. For the
    /// reference's own draw, the shift to the nearest other one.
    pub margin_end: f64,
    /// The shift to the nearest draw on the other side, for the reference's own one; otherwise the
    /// shift from its own draw to the nearest other one. Infinite if there is none.
    pub nearest: f64,
    /// The probability of the token by the reference; none at temperature 0.
    pub share: Option<f64>,
    /// The probability that the reference draws this token or one that is no likelier; 1 at
    /// temperature 0.
    pub rarity: f64,
    /// The likeliest tokens but the reference's own draw with their shifts, the likeliest first, up
    /// to [`LIKELIEST`] with the own draw. Empty for the own draw, and where a seed draws.
    pub rivals: Vec<(u32, f64)>,
}

/// Why an answer cannot be read again.
#[derive(Debug, Error)]
pub enum ScoringError {
    /// The draw depends on the tokens before it, which engines count in different ways.
    #[error("answers with penalties cannot be read again")]
    Penalties,
    /// The draw is from a part of the tokens, whose end moves with the least difference.
    #[error("answers drawn with top-p, top-k, min-p or a bias cannot be read again")]
    Filters,
    /// The reference cannot read the answer.
    #[error(transparent)]
    Generation(#[from] GenerationError),
}

/// Checks whether the draws of a sampling can be read again.
///
/// # Errors
/// [`ScoringError::Penalties`] or [`ScoringError::Filters`].
pub fn check_sampling(sampling: &Sampling) -> Result<(), ScoringError> {
    if sampling.needs_history() {
        return Err(ScoringError::Penalties);
    }
    let is_filtered = sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0;
    match !sampling.bias.is_empty() || sampling.temperature > 0.0 && is_filtered {
        true => Err(ScoringError::Filters),
        false => Ok(()),
    }
}

/// Reads an answer to a prompt again, in one pass over both. Replaces the sequence by them.
///
/// # Errors
/// [`ScoringError`], also if both are longer than the sequence's room.
pub fn score_answer(
    sequence: &mut Sequence<'_>,
    prompt: &[u32],
    answer: &[u32],
    sampling: &Sampling,
) -> Result<Vec<TokenScore>, ScoringError> {
    check_sampling(sampling)?;
    let mut scores = Vec::with_capacity(answer.len());
    read_logits(sequence, prompt, answer, |logits| {
        let at = scores.len();
        let position = (prompt.len() + at) as u64;
        scores.push(score_token(logits, answer[at], sampling, position));
    })?;
    Ok(scores)
}

/// Returns the likeliest tokens before each token of an answer with their logits, the likeliest
/// first.
///
/// # Errors
/// As [`score_answer`].
pub fn read_likeliest(
    sequence: &mut Sequence<'_>,
    prompt: &[u32],
    answer: &[u32],
) -> Result<Vec<Vec<(u32, f32)>>, ScoringError> {
    let mut read = Vec::with_capacity(answer.len());
    read_logits(sequence, prompt, answer, |logits| {
        read.push(find_likeliest(logits));
    })?;
    Ok(read)
}

/// Returns by how much the likeliest logits of each position differ between the reference
/// (`likeliest`, from [`read_likeliest`]) and another version of it, whose logits are rounded to
/// bf16 as many engines round them.
///
/// # Errors
/// As [`score_answer`].
pub fn measure_differences(
    other: &mut Sequence<'_>,
    (prompt, answer): (&[u32], &[u32]),
    likeliest: &[Vec<(u32, f32)>],
) -> Result<Vec<Difference>, ScoringError> {
    let mut differences = Vec::with_capacity(answer.len());
    read_logits(other, prompt, answer, |logits| {
        let each = likeliest.get(differences.len());
        let each = each.map_or(&[][..], Vec::as_slice);
        let moved = |(token, logit): &(u32, f32)| {
            let other = Bf16::from_f32(logits[*token as usize]).to_f32();
            f64::from(other - logit)
        };
        let mut sum = Difference::default();
        if let Some((first, rest)) = each.split_first() {
            let base = moved(first);
            for one in rest {
                sum.squares += (moved(one) - base).powi(2);
                sum.count += 1;
            }
        }
        differences.push(sum);
    })?;
    Ok(differences)
}

/// Squared differences between the logits of two versions of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// The sum of the squares.
    pub squares: f64,
    /// Their number.
    pub count: u64,
}

impl Difference {
    /// Adds another sum.
    pub fn add(&mut self, more: Difference) {
        self.squares += more.squares;
        self.count += more.count;
    }

    /// Returns the root of the mean square, in logits.
    #[must_use]
    pub fn root_mean_square(self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// Passes the logits before each token of an answer to `take`. The sequence keeps what it has read
/// of the prompt, for example for the answer before: a position has the same bits either way.
fn read_logits(
    sequence: &mut Sequence<'_>,
    prompt: &[u32],
    answer: &[u32],
    mut take: impl FnMut(&[f32]),
) -> Result<(), GenerationError> {
    let Some((_, before)) = answer.split_last() else {
        return Ok(());
    };
    let kept = sequence.truncate_to_prefix(prompt);
    take(&sequence.push(&prompt[kept..])?);
    for chunk in before.chunks(STEP_TOKENS) {
        let logits = sequence.push_all(chunk)?;
        let vocabulary = (logits.len() / chunk.len()).max(1);
        logits.chunks_exact(vocabulary).for_each(&mut take);
    }
    Ok(())
}

/// Scores a token by the logits before it. A token that the reference does not have is as far as
/// none can be.
fn score_token(logits: &[f32], token: u32, sampling: &Sampling, position: u64) -> TokenScore {
    match sampling.temperature == 0.0 {
        true => score_likeliest(logits, token),
        false => score_seeded(logits, token, sampling, position),
    }
}

/// Returns the likeliest tokens with their logits, the likeliest first.
fn find_likeliest(logits: &[f32]) -> Vec<(u32, f32)> {
    let likeliest = LogProbabilities::from_logits(logits, 0, LIKELIEST).likeliest;
    let logit = |(token, _): (u32, f64)| (token, logits[token as usize]);
    likeliest.into_iter().map(logit).collect()
}

fn score_likeliest(logits: &[f32], token: u32) -> TokenScore {
    let (mut top, mut second) = (0, f32::NEG_INFINITY);
    for (at, &logit) in logits.iter().enumerate().skip(1) {
        // Of equal logits, the first one is drawn.
        if logit > logits[top] {
            (top, second) = (at, logits[top]);
        } else {
            second = second.max(logit);
        }
    }
    let shift = |logit: f32| f64::from(logits[top]) - f64::from(logit);
    let nearest = shift(second);
    if token as usize == top {
        return TokenScore {
            token,
            drawn: token,
            rank: 0,
            margin: 0.0,
            margin_end: nearest,
            nearest: f64::INFINITY,
            share: None,
            rarity: 1.0,
            rivals: Vec::new(),
        };
    }
    let logit = logits.get(token as usize).copied();
    let logit = logit.unwrap_or(f32::NEG_INFINITY);
    let likelier = logits.iter().filter(|other| **other > logit).count();
    let rivals = find_likeliest(logits).into_iter();
    let rivals = rivals.filter(|(rival, _)| *rival as usize != top);
    TokenScore {
        token,
        drawn: top as u32,
        rank: u32::try_from(likelier).unwrap_or(u32::MAX).max(1),
        margin: shift(logit),
        margin_end: f64::INFINITY,
        nearest,
        share: None,
        rarity: 1.0,
        rivals: rivals.map(|(rival, logit)| (rival, shift(logit))).collect(),
    }
}

fn score_seeded(logits: &[f32], token: u32, sampling: &Sampling, position: u64) -> TokenScore {
    let none = History {
        prompt: &[],
        generated: &[],
    };
    let shares = sampling.token_probabilities(logits, none);
    let point = sampling.draw_point(position);
    let shift = |edge: f64| (sampling.temperature * (log_odds(point) - log_odds(edge))).abs();
    // The ranges of the given token and of the drawn one.
    let (mut below, mut told, mut drawn, mut ranges) = (0.0, None, None, 0_u32);
    for &(id, share) in &shares {
        let range = (below, below + share);
        below = range.1;
        if drawn.is_none() && point < below {
            drawn = Some((ranges, id, range));
        }
        if id == token {
            told = Some((ranges, range));
        }
        ranges += 1;
    }
    // Sums are rounded, so the last token gets the rest to one.
    let last = shares.last().map_or(0, |(id, _)| *id);
    let last = (ranges.saturating_sub(1), last, (below, 1.0));
    let (drawn_at, drawn_token, drawn) = drawn.unwrap_or(last);
    let (told_at, told) = told.unwrap_or((u32::MAX, (1.0, 1.0)));
    let share = (told.1 - told.0).max(0.0);
    let no_likelier = shares.iter().map(|(_, other)| *other);
    let no_likelier = no_likelier.filter(|other| *other <= share + RANGE_ROUNDING);
    let own = [shift(drawn.0), shift(drawn.1)];
    let near = own[0].min(own[1]);
    let score = TokenScore {
        token,
        drawn: drawn_token,
        rank: told_at.abs_diff(drawn_at),
        margin: 0.0,
        margin_end: near,
        nearest: own[0].max(own[1]),
        share: Some(share),
        rarity: no_likelier.sum::<f64>().min(1.0),
        rivals: Vec::new(),
    };
    if told_at == drawn_at {
        return score;
    }
    let [margin, margin_end] = match told_at < drawn_at {
        true => [shift(told.1), shift(told.0)],
        false => [shift(told.0), shift(told.1)],
    };
    TokenScore {
        margin,
        margin_end,
        nearest: near,
        ..score
    }
}

/// Returns the logarithm of the odds of a share; infinite at 0 and 1.
fn log_odds(share: f64) -> f64 {
    (share / (1.0 - share).max(0.0)).ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampling(temperature: f64, seed: u64) -> Sampling {
        Sampling {
            temperature,
            seed,
            ..Sampling::default()
        }
    }

    #[test]
    fn the_likeliest_token_is_at_no_distance_and_others_are_by_their_logits() {
        let logits = [0.5, 2.0, 1.5, 2.0];
        let score = |token| score_token(&logits, token, &sampling(0.0, 0), 3);
        let own = score(1);
        assert_eq!((own.rank, own.margin, own.margin_end), (0, 0.0, 0.0));
        assert_eq!((own.drawn, score(2).drawn), (1, 1));
        let third = score(2);
        assert_eq!((third.rank, third.margin, third.nearest), (2, 0.5, 0.0));
        assert_eq!(third.rivals, [(3, 0.0), (2, 0.5), (0, 1.5)]);
        assert!(own.rivals.is_empty());
        // Equal to the top, and not drawn.
        assert_eq!((score(3).rank, score(3).margin), (1, 0.0));
        // A token that the reference does not have.
        assert_eq!(score(9).margin, f64::INFINITY);
    }

    #[test]
    fn a_rare_token_is_one_of_few_that_are_no_likelier() {
        let logits = [3.0, 0.0, 0.0, -9.0];
        let rarity = |token| score_token(&logits, token, &sampling(1.0, 0), 3).rarity;
        let shares = [1.0, (-3.0_f64).exp(), (-3.0_f64).exp(), (-12.0_f64).exp()];
        let all: f64 = shares.iter().sum();
        for (token, of) in [(0, 0), (1, 1), (2, 1), (3, 3)] {
            let exact = shares[of..].iter().sum::<f64>() / all;
            assert!((rarity(token) - exact).abs() < 1e-6, "{token}");
        }
        // A token that the reference does not have.
        assert!(rarity(9) < 1e-9);
    }

    #[test]
    fn penalties_and_filters_are_refused() {
        let refused = |change: &dyn Fn(&mut Sampling)| {
            let mut sampling = sampling(1.0, 0);
            change(&mut sampling);
            check_sampling(&sampling).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|it| it.presence = 0.5) && refused(&|it| it.top_p = 0.9));
        assert!(refused(&|it| it.bias = [(1, 2.0)].into()));
        // The likeliest token passes each filter.
        assert!(!refused(&|it| (it.temperature, it.top_p) = (0.0, 0.9)));
    }

    proptest! {
        /// The reference's own draw has no margin, and any other one has.
        #[test]
        fn only_the_own_draw_is_at_no_distance(
            logits in prop::collection::vec(-6.0f32..6.0, 2..40), seed in any::<u64>(),
            position in 0u64..99, temperature in 0.3..2.0,
        ) {
            let sampling = sampling(temperature, seed);
            let drawn = sampling.draw_at(&logits, position).unwrap();
            for token in 0..logits.len() as u32 {
                let score = score_token(&logits, token, &sampling, position);
                prop_assert_eq!(score.rank == 0, token == drawn, "{:?}", score);
                prop_assert_eq!(score.drawn, drawn);
                prop_assert!(score.rank == 0 || score.margin >= 0.0);
                prop_assert!(score.margin_end >= score.margin);
            }
        }

        /// A shift of the given token and all on its side by the margin makes it the draw.
        #[test]
        fn a_shift_by_the_margin_changes_the_draw(
            logits in prop::collection::vec(-4.0f32..4.0, 2..20), seed in any::<u64>(),
            temperature in 0.3..2.0, told in any::<prop::sample::Index>(),
        ) {
            let sampling = sampling(temperature, seed);
            let told = told.index(logits.len());
            let drawn = sampling.draw_at(&logits, 7).unwrap() as usize;
            let score = score_token(&logits, told as u32, &sampling, 7);
            prop_assume!(told != drawn && score.margin_end - score.margin > 1e-3);
            let moved = |by: f64| {
                // Below the point, the tokens up to the given one must gain; above it, they lose.
                let each = logits.iter().enumerate().map(|(at, logit)| match (told < drawn, at) {
                    (true, at) if at <= told => logit + by as f32,
                    (false, at) if at < told => logit - by as f32,
                    _ => *logit,
                });
                let each: Vec<f32> = each.collect();
                sampling.draw_at(&each, 7).unwrap() as usize
            };
            prop_assert_eq!(moved(score.margin + 5e-4), told);
            if score.margin > 1e-3 {
                prop_assert_ne!(moved(score.margin - 5e-4), told);
            }
        }
    }
}
