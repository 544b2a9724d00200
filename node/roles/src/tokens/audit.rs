//! Tests whether a provider's answers come from the model that it names. The buyer lets a trusted
//! copy of the model, the *reference*, read each answer again; this core gets one [`TokenReading`]
//! for each token, and runs a sequential statistical test over them.
//!
//! An honest provider has the reference's logits except for *noise*, because its kernels add in
//! another order or round to 16 bits. The caller measures the noise of its reference, in logits.
//! The test assumes that the difference of two logits is off by at most a normal error of this
//! size, and that at most one token in [`STRAYS`] is arbitrary. A token that only spells the same
//! text in another way does not count against the provider. A cheaper version of the model errs
//! more; another model, or nonsense, has other tokens altogether. So each token is a bet on one
//! kind of cheat: the bet loses if the reference draws the same token, and wins more, the less
//! likely an honest engine is to give this token or a less likely one (`weights`). Whatever came
//! before, the bets against an honest provider are worth at most 1 on average. So their product
//! exceeds [`RATE`] for at most one honest provider in [`RATE`], however long the answers are and
//! however often the caller looks (Ville's inequality).
//!
//! A *block* is an answer or a part of a long one. Its bets are together worth at most `BLOCK_MAX`,
//! so no single odd answer convicts a provider. A provider can cheat in some of its answers, which
//! the honest ones would outweigh. So the test also plays variants that stake only a part of their
//! worth on each block; the evidence is the mean over these variants and all kinds of cheats.
//!
//! Draws by a seed need more care, because only souk's decoder draws by souk's rule. An honest
//! engine of another kind draws by its own rule, and the draws of souk's engine differ after a
//! token that the text spells in another way. So for an answer drawn by seed, the test assumes the
//! honest explanation that fits best: the seed's draws up to some token, and any draws after it.
//!
//! The bound holds if the noise of each token is independent of the others. A token for which it
//! may not be is *excused*: it can count for the provider, but not against it. This concerns a
//! token that repeatedly replaces the same draw, after the first time, and tokens that a penalty on
//! repetitions explains.

#![expect(
    clippy::float_arithmetic,
    reason = "the logarithms of probabilities; no replica computes them"
)]

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use reading::{SHIFT_MAX, TokenReading};
pub use weights::STRAYS;

use weights::{TokenBet, weigh_honest, weigh_version};

mod reading;
mod weights;

/// The test calls at most one honest provider in this many a cheat.
pub const RATE: f64 = 10_000.0;

/// The test says of at most one cheaper version in this many that it fits, if the version errs by
/// [`FIT_FACTOR`] times the honest noise.
pub const FIT_RATE: f64 = 100.0;

/// The error of the cheaper version that [`Verdict::Fits`] rules out, as a multiple of the honest
/// noise.
pub const FIT_FACTOR: f64 = 8.0;

/// The least noise, in logits: engines that store logits in 16 bits round the largest of them by
/// about this much.
pub const NOISE_MIN: f64 = 0.01;

/// The most tokens of a block.
const BLOCK_TOKENS: u64 = 64;

/// The most that the bets of a block are worth: two blocks convict at least.
const BLOCK_MAX: f64 = 1_000.0;

/// The variants of the test: the share of its worth that each stakes on a block, and its weight in
/// the mean.
const STAKES: [(f64, f64); 4] = [(1.0, 0.5), (0.3, 0.2), (0.1, 0.15), (0.05, 0.15)];

/// The cheats that the test looks for.
const CHEATS: [Cheat; 4] = [
    Cheat::Version { errors: 6.0 },
    Cheat::Version { errors: 20.0 },
    Cheat::Another { others: 0.3 },
    Cheat::Another { others: 0.03 },
];

/// A position is a tie if another draw is within this multiple of the noise. There the test bets
/// nothing, because an honest engine may take either token.
const TIE: f64 = 1.5;

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

/// A kind of cheat.
#[derive(Clone, Copy, Debug)]
enum Cheat {
    /// A version of the model whose error is this multiple of the honest noise.
    Version { errors: f64 },
    /// Other tokens altogether, at this share of all positions.
    Another { others: f64 },
}

/// The state of an audit of one provider.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditCore {
    noise: f64,
    /// One for each of [`CHEATS`].
    bets: [Bet; CHEATS.len()],
    /// The tokens of the block.
    block_tokens: u64,
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
    /// Of the blocks before, for each of [`STAKES`].
    before: [f64; STAKES.len()],
    /// Of this block, if its draws are those of the seed.
    seeded: f64,
    /// Of this block, if its draws are not from some token on, the one that suits best.
    other: f64,
}

/// How far an audit came.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditTally {
    /// The verdict of the audit.
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

impl Cheat {
    /// Bets on this kind at a token, at whose position an honest engine has the noise `here`.
    fn bet_on(self, reading: &TokenReading, noise: f64, here: f64) -> TokenBet {
        match self {
            Cheat::Version { errors } => TokenBet::on_version(reading, errors * noise, here),
            Cheat::Another { others } => TokenBet::on_another(reading, others, here),
        }
    }
}

impl Bet {
    /// Adds a token; an excused one does not count against the provider.
    fn push(&mut self, token: &TokenBet, is_excused: bool) {
        let bound = |worth: f64| match is_excused {
            true => worth.min(1.0).ln(),
            false => worth.ln(),
        };
        self.other = self.seeded.min(self.other) + bound(token.of_other_draws);
        self.seeded += bound(token.of_seeds_draws);
    }

    /// Takes a token that either explanation may have.
    fn skip(&mut self) {
        self.other = self.seeded.min(self.other);
    }

    fn end_block(&mut self) {
        let current = self.current();
        *self = Bet {
            before: current,
            ..Bet::default()
        };
    }

    /// Returns the worth of all blocks for each of [`STAKES`].
    fn current(&self) -> [f64; STAKES.len()] {
        let block = self.seeded.min(self.other).exp().min(BLOCK_MAX);
        let mut current = self.before;
        for (worth, (stake, _)) in current.iter_mut().zip(STAKES) {
            *worth += (1.0 - stake + stake * block).ln();
        }
        current
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
            block_tokens: 0,
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

    /// Begins the next answer, whose draws the test explains independently of earlier answers.
    pub fn begin_answer(&mut self) {
        self.answers += 1;
        self.begin_block();
    }

    fn begin_block(&mut self) {
        self.bets.iter_mut().for_each(Bet::end_block);
        self.block_tokens = 0;
    }

    /// Takes an answer that cannot be read in the form that the provider chose for it.
    pub fn skip_evasive_answer(&mut self) {
        self.evasive_answers += 1;
    }

    /// Takes the next token of the answer.
    pub fn push(&mut self, reading: &TokenReading) {
        if self.block_tokens == BLOCK_TOKENS {
            self.begin_block();
        }
        self.block_tokens += 1;
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
        for (bet, cheat) in self.bets.iter_mut().zip(CHEATS) {
            if is_tie {
                bet.skip();
                continue;
            }
            bet.push(&cheat.bet_on(reading, self.noise, noise), is_excused);
            assert!(
                !bet.seeded.is_nan() && !bet.other.is_nan(),
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

    /// Returns the noise that the test expects of honest engines, in logits.
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
        let each = self
            .bets
            .iter()
            .flat_map(|bet| bet.current().into_iter().zip(STAKES));
        let each = each.map(|(worth, (_, part))| worth + part.ln());
        let most = each.clone().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = each.map(|worth| (worth - most).exp()).sum();
        most + (sum / self.bets.len() as f64).ln()
    }
}

#[cfg(test)]
mod tests;
