//! Computes how much one token of an audited answer counts for or against the provider.
//!
//! The evidence against a provider is the *surprise* of a token: the highest probability that any
//! honest engine gives to this token and all less likely ones together. So a surprise is a p-value,
//! and a less likely token is never less surprising. [`bet_on_surprise`] converts it into a bet
//! that is worth at most 1 on average if the provider is honest.

#![expect(
    clippy::float_arithmetic,
    reason = "the logarithms of probabilities; no replica computes them"
)]

use super::reading::TokenReading;

/// An honest answer has at most one token in this many that the reference cannot explain.
pub const STRAYS: f64 = 2_000.0;

/// The surprise up to which a token is a stray: no noise explains it.
const STRAY: f64 = 1.2 / STRAYS;

/// More tokens than the greatest vocabularies have.
const VOCABULARY_MAX: f64 = 300_000.0;

/// The part of a cheaper version's tokens that may be anything.
const STRAYS_OF_CHEATS: f64 = 1.0 / STRAYS;

/// How often another token than the own draw is the next likeliest.
const FIRST_RANK: f64 = 0.75;

/// By how much the share of a token can differ at an honest engine with other draws.
const SHARE_FACTOR: f64 = 1.1;
const SHARE_MORE: f64 = 0.001;

/// The least share of a token that a cheat might give: one by the greatest vocabulary.
const SHARE_MIN: f64 = 1e-6;

/// The worth of a token to a bet; at most 1 on average, at an honest provider whose draws are of
/// the kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBet {
    /// If an honest provider draws as the reference does.
    pub(super) of_seeds_draws: f64,
    /// If its draws are others.
    pub(super) of_other_draws: f64,
}

impl TokenBet {
    /// Bets that the provider runs a version of the model whose logits err by `error`, while those
    /// of an honest engine err by `noise`.
    pub(super) fn on_version(reading: &TokenReading, error: f64, noise: f64) -> TokenBet {
        let others = upper_tail(reading.nearest_other() / error);
        let of_seeds_draws = bet_on_surprise(reading, others, noise);
        let of_other_draws = match reading.share {
            None => of_seeds_draws,
            Some(share) => {
                weigh_version(reading, error) / (share * SHARE_FACTOR + SHARE_MORE).min(1.0)
            }
        };
        TokenBet {
            of_seeds_draws,
            of_other_draws,
        }
    }

    /// Bets on other tokens altogether in a part of all places.
    pub(super) fn on_another(reading: &TokenReading, others: f64, noise: f64) -> TokenBet {
        let of_seeds_draws = bet_on_surprise(reading, others, noise);
        let of_other_draws = match reading.share {
            None => of_seeds_draws,
            Some(_) => bet_on_rarity(reading, others),
        };
        TokenBet {
            of_seeds_draws,
            of_other_draws,
        }
    }
}

/// Bets that another token than the own draw is given in a part of all places, and often a
/// surprising one.
fn bet_on_surprise(reading: &TokenReading, others: f64, noise: f64) -> f64 {
    let none = 1.0 - others;
    if reading.rank == 0 {
        return none;
    }
    let (surprise, most) = measure_surprise(reading, noise);
    // Each term but for its factor is worth 1 if all surprises from 0 to `most` are alike likely.
    let any = 1.0 / most;
    let rare = 0.5 / (most * surprise).sqrt();
    let stray = if surprise <= STRAY { 1.0 / STRAY } else { 0.0 };
    none + others * (0.6 * any + 0.2 * rare + 0.2 * stray)
}

/// Returns the most that any honest engine gives to a token that is not the own draw, and to all
/// that are less likely, and the same for the nearest token.
fn measure_surprise(reading: &TokenReading, noise: f64) -> (f64, f64) {
    let tail = |shift: f64| upper_tail(shift / noise);
    let with_strays = |honest: f64| (honest + 1.0 / STRAYS).min(1.0);
    if reading.share.is_some() {
        // A draw is as far to either side of the point.
        let [told, nearest] =
            [reading.margin, reading.nearest].map(|it| with_strays(2.0 * tail(it)));
        return (told.min(nearest), nearest);
    }
    let rivals = &reading.rivals;
    // The likeliest tokens one by one, and the others as if there were as many as can be.
    let honest = |from: usize, shift: f64| {
        let known = rivals.get(from..).unwrap_or_default();
        let last = rivals.last().map_or(shift, |last| last.max(shift));
        let known: f64 = known.iter().map(|it| tail(*it)).sum();
        with_strays(known + VOCABULARY_MAX * tail(last))
    };
    let told = honest(reading.rank as usize - 1, reading.margin);
    let nearest = honest(0, reading.nearest);
    (told.min(nearest), nearest)
}

/// Bets that a token of a part of all places is a rare one, whatever draws it.
fn bet_on_rarity(reading: &TokenReading, others: f64) -> f64 {
    let surprise = (reading.rarity * SHARE_FACTOR + 1.0 / STRAYS).min(1.0);
    // Over all surprises from 0 to 1, the mean of the root is 1.
    1.0 - others + others * 0.5 / surprise.sqrt()
}

/// Returns a probability of the token for an honest engine. The probabilities of all tokens add up
/// to 1 at most.
pub(super) fn weigh_honest(reading: &TokenReading, noise: f64) -> f64 {
    weigh_noisy(reading, noise, 1.0 / STRAYS)
}

/// Returns a probability of the token for a version whose logits err by `error`. The probabilities
/// of all tokens add up to 1 at most.
pub(super) fn weigh_version(reading: &TokenReading, error: f64) -> f64 {
    weigh_noisy(reading, error, STRAYS_OF_CHEATS)
}

fn weigh_noisy(reading: &TokenReading, error: f64, strays: f64) -> f64 {
    let tail = |shift: f64| upper_tail(shift / error);
    let stray = |share: f64| strays * (share + SHARE_MIN) / 2.0;
    if reading.rank == 0 {
        return match reading.share {
            None => (1.0 - strays) * (1.0 - tail(reading.margin_end)),
            Some(share) => {
                let others = tail(reading.margin_end) + tail(reading.nearest);
                (1.0 - strays) * (1.0 - others).max(0.0) + stray(share)
            }
        };
    }
    match reading.share {
        None => ((1.0 - strays) * tail(reading.nearest) + strays) * part_of_rank(reading.rank),
        Some(share) => {
            let range = (tail(reading.margin) - tail(reading.margin_end)).max(0.0);
            (1.0 - strays) * range + stray(share)
        }
    }
}

/// Returns the part of a rank among all tokens but the own draw. All parts add up to 1.
fn part_of_rank(rank: u32) -> f64 {
    match f64::from(rank) {
        ..2.0 => FIRST_RANK,
        rank => (1.0 - FIRST_RANK) / (rank * (rank - 1.0)),
    }
}

/// Returns the probability that a normal error exceeds this many standard deviations.
pub(super) fn upper_tail(deviations: f64) -> f64 {
    // W. J. Cody's rational form as in Numerical Recipes: right to 1.2e-7 of the value.
    let x = deviations.max(0.0) / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    let terms = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let sum = terms.into_iter().fold(0.0, |sum, term| sum * t + term);
    0.5 * t * (sum - x * x).exp()
}
