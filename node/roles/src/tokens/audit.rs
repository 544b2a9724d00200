//! Judges from a provider's answers whether the model that it names gave them: a sequential test
//! over the tokens, each as a reference model read it again.
//!
//! The honest provider has the reference's logits but for *noise*: other kernels add in another
//! order, and round to 16 bits. The noise is a number in logits that the caller measures for its
//! reference; two logits of an honest engine differ from the reference's by no more than a normal
//! error of that size, and one token in [`STRAYS`] may be anything. Where the text only has other
//! tokens than those that the engine drew, it says nothing. A cheaper version of the model errs
//! more. So each token is a bet: it is worth the probability that a cheaper version has of it,
//! divided by the most that any honest engine has. Whatever came before, an honest provider's bets
//! are worth at most 1 on average, so their product exceeds [`RATE`] for one honest provider in
//! [`RATE`] at most, at any length and however often one looks (Ville's inequality).
//!
//! A seeded draw needs more care, because only souk's decoder draws by souk's rule. An honest
//! engine of another kind draws by its own, and one of souk's does after a token that the text has
//! in another form. So an answer that is drawn by seed counts as much as the honest explanation
//! takes from it that suits it best: the seed's draws up to some token, and any draws after it.
//!
//! The bound holds if the noise of one token is no news about that of another. Where it is, a token
//! is *excused*: it can count for the provider, and not against it. So are tokens after the first
//! that were given in place of the same draw, and tokens that a penalty on repetitions explains.

#![expect(
    clippy::float_arithmetic,
    reason = "the logarithms of probabilities; no replica computes them"
)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One honest provider in so many is called a cheat, at most.
pub const RATE: f64 = 10_000.0;

/// One cheaper version in so many is called fitting, at most, if it errs by [`FIT_FACTOR`] times
/// the honest noise.
pub const FIT_RATE: f64 = 100.0;

/// By how much the error of the version that `fits` rules out exceeds the honest noise.
pub const FIT_FACTOR: f64 = 8.0;

/// An honest answer has at most one token in so many that the reference cannot explain.
pub const STRAYS: f64 = 2_000.0;

/// The least noise, in logits: engines that keep logits in 16 bits round the greatest of them by
/// about as much.
pub const NOISE_MIN: f64 = 0.01;

/// The errors of the cheaper versions that the test looks for, in parts of the honest noise.
const ERRORS: [f64; 2] = [6.0, 20.0];

/// The part of a cheaper version's tokens that may be anything.
const STRAYS_OF_CHEATS: f64 = 1.0 / STRAYS;

/// The part of other tokens of another model altogether.
const OTHERS_OF_ANOTHER: f64 = 0.3;

/// At a position where another draw is within so many times the noise, the test bets nothing: an
/// honest engine may take either.
const TIE: f64 = 1.5;

/// How often another token than the own draw is the next likeliest.
const FIRST_RANK: f64 = 0.75;

/// The largest shift that a reading states; more is as much.
pub const SHIFT_MAX: f64 = 1_000.0;

/// By how much the share of a token can differ at an honest engine with other draws.
const SHARE_FACTOR: f64 = 1.1;
const SHARE_MORE: f64 = 0.001;

/// The least share of a token that a cheat might give: one by the greatest vocabulary.
const SHARE_MIN: f64 = 1e-6;

/// A token of an answer as the reference reads it. Shifts are in logits, [`SHIFT_MAX`] at most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenReading {
    /// The token.
    pub token: u32,
    /// The reference's own draw.
    pub drawn: u32,
    /// The tokens that the reference would rather have drawn; 0 if this one is its own draw.
    pub rank: u32,
    /// The shift of the reference's logits from which on the token is drawn.
    pub margin: f64,
    /// The shift beyond which another one is drawn; for the own draw, the shift to the nearest
    /// other one.
    pub margin_end: f64,
    /// The shift to the nearest draw on the other side, for the own one; otherwise from the own to
    /// the nearest other one.
    pub nearest: f64,
    /// The probability of the token by the reference, if it was drawn by seed; none at temperature
    /// 0.
    pub share: Option<f64>,
    /// The noise of an honest engine at this position, in logits, if it was measured.
    pub noise: Option<f64>,
    /// Whether the text goes on with the reference's own draw, in other tokens: then this one says
    /// nothing against the provider.
    pub is_respelled: bool,
    /// Whether an engine that makes repeated tokens less likely can have given this one instead of
    /// the reference's own draw: then it says nothing against the provider either.
    pub is_penalised: bool,
}

/// The noise of a reference is no number, or none that logits can have.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("the reference's noise is {0} logits: its weights are damaged, or its values overflow")]
pub struct NoiseFault(f64);

/// What an audit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The answers are those of the reference, and no version that errs by [`FIT_FACTOR`] times the
    /// honest noise.
    Fits,
    /// The answers are not those of the reference, by any honest engine.
    DoesNotFit,
    /// There were too few tokens to say.
    NotEnough,
}

/// The state of an audit of one provider.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditCore {
    noise: f64,
    /// One for each of [`ERRORS`], and one for another model.
    bets: [Bet; ERRORS.len() + 1],
    /// The logarithm of what the answers are worth to the honest provider, against the version that
    /// `fits` rules out.
    fit: f64,
    tokens: u64,
    own_draws: u64,
    seeded: u64,
    is_convicted: bool,
    convicted_after: Option<u64>,
    penalised: u64,
    answers: u64,
    evasive_answers: u64,
    /// The draws and the tokens in their place that counted against the provider.
    pairs: BTreeSet<(u32, u32)>,
}

/// How much better a kind of cheat explains the answers, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bet {
    /// Of the answers before.
    before: f64,
    /// Of this answer, if its draws are those of the seed.
    seeded: f64,
    /// Of this answer, if its draws are not from some token on, the one that suits best.
    other: f64,
}

/// How far an audit came.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditTally {
    /// What it found.
    pub verdict: Verdict,
    /// The tokens that were read.
    pub tokens: u64,
    /// The tokens that are the reference's own draws.
    pub own_draws: u64,
    /// The tokens that were drawn by seed.
    pub seeded: u64,
    /// The tokens that a penalty on repetitions explains, and that do not convict therefore.
    pub penalised: u64,
    /// The answers in a form that the provider chose and that cannot be read. Nothing fits if they
    /// are more than the others.
    pub evasive_answers: u64,
    /// The common logarithm of the evidence that the model is another one; 4 convicts.
    pub evidence: f64,
    /// The common logarithm of the evidence that it is the reference; 2 is a fit.
    pub fit: f64,
    /// The tokens after which the verdict was certain, if the answers do not fit.
    pub convicted_after: Option<u64>,
}

impl Bet {
    fn current(&self) -> f64 {
        self.before + self.seeded.min(self.other)
    }
}

impl AuditCore {
    /// Begins an audit with the noise of an honest engine, in logits; see [`NOISE_MIN`].
    ///
    /// # Errors
    /// [`NoiseFault`] if it is no finite number from 0 on.
    pub fn new(noise: f64) -> Result<AuditCore, NoiseFault> {
        if !noise.is_finite() || noise < 0.0 {
            return Err(NoiseFault(noise));
        }
        Ok(AuditCore {
            noise: noise.max(NOISE_MIN),
            bets: Default::default(),
            fit: 0.0,
            tokens: 0,
            own_draws: 0,
            seeded: 0,
            is_convicted: false,
            convicted_after: None,
            penalised: 0,
            answers: 0,
            evasive_answers: 0,
            pairs: BTreeSet::new(),
        })
    }

    /// Begins the next answer. The draws of each are explained by themselves.
    pub fn begin_answer(&mut self) {
        self.answers += 1;
        for bet in &mut self.bets {
            *bet = Bet {
                before: bet.current(),
                ..Bet::default()
            };
        }
    }

    /// Takes an answer that cannot be read in the form that the provider chose for it.
    pub fn skip_evasive_answer(&mut self) {
        self.evasive_answers += 1;
    }

    /// Takes the next token of the answer.
    pub fn push(&mut self, reading: &TokenReading) {
        self.tokens += 1;
        self.own_draws += u64::from(reading.rank == 0);
        self.seeded += u64::from(reading.share.is_some());
        let noise = reading
            .noise
            .map_or(self.noise, |noise| noise.max(self.noise));
        let is_tie = reading.nearest_other() < TIE * self.noise;
        self.penalised += u64::from(reading.is_penalised);
        let is_excused = reading.is_respelled
            || reading.is_penalised
            || reading.rank > 0 && !is_tie && !self.pairs.insert((reading.drawn, reading.token));
        let honest = bound_honest(reading, noise).ln();
        let of_other = bound_other_draws(reading).map_or(honest, f64::ln);
        let errors = ERRORS.map(|factor| weigh_version(reading, factor * self.noise));
        let all = errors.into_iter().chain([weigh_another(reading)]);
        for (bet, weight) in self.bets.iter_mut().zip(all) {
            if is_tie {
                bet.other = bet.seeded.min(bet.other);
                continue;
            }
            let weight = match is_excused {
                true => weight.ln().min(honest).min(of_other),
                false => weight.ln(),
            };
            bet.other = bet.seeded.min(bet.other) + weight - of_other;
            bet.seeded += weight - honest;
            assert!(
                !bet.current().is_nan(),
                "each token has a weight: {reading:?}"
            );
        }
        let version = weigh_version(reading, FIT_FACTOR * self.noise);
        if !reading.is_respelled {
            self.fit += (weigh_honest(reading, self.noise) / version).ln();
        }
        if !self.is_convicted && self.evidence() >= RATE.ln() {
            self.is_convicted = true;
            self.convicted_after = Some(self.tokens);
        }
    }

    /// Returns the verdict so far. `DoesNotFit` is final.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.is_convicted {
            Verdict::DoesNotFit
        } else if self.fit >= FIT_RATE.ln() && self.evasive_answers <= self.answers {
            Verdict::Fits
        } else {
            Verdict::NotEnough
        }
    }

    /// Returns the noise that it takes honest engines to have, in logits.
    #[must_use]
    pub fn noise(&self) -> f64 {
        self.noise
    }

    /// Returns how far the audit came.
    #[must_use]
    pub fn tally(&self) -> AuditTally {
        AuditTally {
            verdict: self.verdict(),
            tokens: self.tokens,
            own_draws: self.own_draws,
            seeded: self.seeded,
            penalised: self.penalised,
            evasive_answers: self.evasive_answers,
            evidence: self.evidence() / std::f64::consts::LN_10,
            fit: self.fit / std::f64::consts::LN_10,
            convicted_after: self.convicted_after,
        }
    }

    /// Returns the logarithm of the mean of all bets.
    fn evidence(&self) -> f64 {
        let all = self.bets.iter().map(Bet::current);
        let most = all.clone().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.map(|bet| (bet - most).exp()).sum();
        most + (sum / self.bets.len() as f64).ln()
    }
}

impl TokenReading {
    /// Returns the shift from the reference's own draw to the nearest other one.
    fn nearest_other(&self) -> f64 {
        match self.rank {
            0 => self.margin_end,
            _ => self.nearest,
        }
    }

    /// Returns the reading with shifts that a file can have.
    #[must_use]
    pub fn bounded(self) -> TokenReading {
        let bound = |shift: f64| match shift.is_nan() {
            true => SHIFT_MAX,
            false => shift.clamp(0.0, SHIFT_MAX),
        };
        TokenReading {
            margin: bound(self.margin),
            margin_end: bound(self.margin_end),
            nearest: bound(self.nearest),
            share: self.share.map(|share| share.clamp(0.0, 1.0)),
            noise: self.noise.map(bound),
            ..self
        }
    }
}

/// Returns the most that an honest engine with the reference's draws has for a token.
fn bound_honest(reading: &TokenReading, noise: f64) -> f64 {
    match reading.rank {
        0 => 1.0,
        _ => (upper_tail(reading.margin / noise) + 1.0 / STRAYS).min(1.0),
    }
}

/// Returns the most that an honest engine with other draws has for a token; none if it would draw
/// the same one.
fn bound_other_draws(reading: &TokenReading) -> Option<f64> {
    let share = reading.share?;
    Some((share * SHARE_FACTOR + SHARE_MORE).min(1.0))
}

/// Returns a probability of the token for an honest engine; those of all tokens add up to 1 at
/// most.
fn weigh_honest(reading: &TokenReading, noise: f64) -> f64 {
    weigh_noisy(reading, noise, 1.0 / STRAYS)
}

/// Returns a probability of the token for a version that errs by so many logits; those of all
/// tokens add up to 1 at most.
fn weigh_version(reading: &TokenReading, error: f64) -> f64 {
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

/// Returns a probability of the token for another model.
fn weigh_another(reading: &TokenReading) -> f64 {
    match (reading.rank, reading.share) {
        (0, None) => 1.0 - OTHERS_OF_ANOTHER,
        (rank, None) => OTHERS_OF_ANOTHER * part_of_rank(rank),
        (0, Some(share)) => (1.0 - OTHERS_OF_ANOTHER) * share.max(0.5),
        (_, Some(share)) => OTHERS_OF_ANOTHER * (share + SHARE_MIN) / 2.0,
    }
}

/// Returns the part of a rank among all tokens but the own draw. All parts add up to 1.
fn part_of_rank(rank: u32) -> f64 {
    match f64::from(rank) {
        ..2.0 => FIRST_RANK,
        rank => (1.0 - FIRST_RANK) / (rank * (rank - 1.0)),
    }
}

/// Returns the probability that a normal error exceeds so many of its deviations.
fn upper_tail(deviations: f64) -> f64 {
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

#[cfg(test)]
mod tests;
