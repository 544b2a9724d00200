//! Plays providers of tokens that sell a cheaper model than they name, or pad their answers, until
//! the buyer's audit finds it. The audit is the core of a real one.
//!
//! No model runs here. In its place, logits are drawn: at some positions the model is sure, at
//! others it is not. An honest engine differs from the reference by a normal error, the *noise*,
//! and a cheaper version of the model by a multiple of that. How far real versions differ is in
//! `docs/audits.md`.

use souk_market::{DeviceMicros, Millis, ReceiptBody};
use souk_roles::tokens::audit::{AuditCore, TokenReading, Verdict};

use super::position::PRICE;
use super::{AttackCost, Loss, WorstLoss, new_attack_cost};
use crate::random::Random;

/// The difference between two logits of an honest engine and of the reference, in logits.
const NOISE: f64 = 0.05;

/// The audits of each provider, and the most tokens of one.
const AUDITS: u64 = 100;
const TOKENS_MAX: u64 = 4_000;

/// The tokens of an answer, and of the honest beginning of one that is padded.
const ANSWER_TOKENS: u64 = 64;
const BEGINNING_TOKENS: u64 = 16;

/// The tokens of the vocabulary that a position can have.
const CHOICES: usize = 12;

/// The likeliest rivals that a reading states.
const RIVALS_MAX: usize = 7;

/// The way in which a provider cheats.
#[derive(Clone, Copy, Debug)]
enum Fraud {
    /// It sells a version that errs by this multiple of the noise.
    Version { errors: f64 },
    /// It sells another model.
    OtherModel,
    /// After the beginning of each answer, it goes on with any words.
    Padding,
}

/// Plays each fraud until the audit finds it.
pub fn play_cheap_models() -> Vec<AttackCost> {
    [
        ("another model", Fraud::OtherModel),
        (
            "a version that errs 20-fold",
            Fraud::Version { errors: 20.0 },
        ),
        (
            "a version that errs 10-fold",
            Fraud::Version { errors: 10.0 },
        ),
        ("a padded answer", Fraud::Padding),
    ]
    .map(|(sold, fraud)| play_audits(sold, fraud))
    .into()
}

fn play_audits(sold: &str, fraud: Fraud) -> AttackCost {
    let found: Vec<u64> = (0..AUDITS)
        .filter_map(|seed| find_after(fraud, seed))
        .collect();
    let most = found.iter().copied().max().unwrap_or(TOKENS_MAX);
    // A token that is not the model's is worth nothing to its buyer.
    let paid = ReceiptBody::amount_due(PRICE, DeviceMicros(most * 1_000));
    let paid = paid.map_or(0, |due| i64::try_from(due.0).unwrap_or(i64::MAX));
    let loss = WorstLoss::from_loss(Loss {
        lost: paid,
        gained: paid,
        reputation: 0,
    });
    let (count, planned) = (found.len(), Millis(TOKENS_MAX));
    let attack = format!("{sold} is sold, found in {count} of {AUDITS} by {most} tokens");
    new_attack_cost(attack, planned, loss, AUDITS as usize)
}

/// Returns the tokens after which an audit is certain of a fraud; none if it is not within
/// [`TOKENS_MAX`].
fn find_after(fraud: Fraud, seed: u64) -> Option<u64> {
    let mut draws = Draws(Random::new(seed, "cheap models"));
    let mut audit = AuditCore::new(NOISE).expect("a finite noise");
    for at in 0..TOKENS_MAX {
        if at % ANSWER_TOKENS == 0 {
            audit.begin_answer();
        }
        let logits = draws.draw_logits();
        let given = draws.draw_given(fraud, at, &logits);
        audit.push(&read_token(&logits, given, at));
        if audit.verdict() == Verdict::DoesNotFit {
            return audit.tally().convicted_after;
        }
    }
    None
}

struct Draws(Random);

impl Draws {
    /// Draws a number from 0 up to 1.
    fn draw_part(&mut self) -> f64 {
        self.0.draw_below(1 << 53) as f64 / (1_u64 << 53) as f64
    }

    /// Draws from the normal distribution.
    fn draw_error(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.draw_part()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.draw_part()).cos()
    }

    fn draw_logits(&mut self) -> Vec<f64> {
        let sharpness = 1.0 + 6.0 * self.draw_part();
        let logits = (0..CHOICES).map(|_| sharpness * self.draw_error());
        logits.collect()
    }

    /// Draws the token that a provider gives.
    fn draw_given(&mut self, fraud: Fraud, at: u64, logits: &[f64]) -> usize {
        match fraud {
            Fraud::Version { errors } => {
                // The difference of two logits has the noise: each has less by the root of 2.
                let error = errors * NOISE / std::f64::consts::SQRT_2;
                let given = logits.iter().map(|it| it + error * self.draw_error());
                find_likeliest(&given.collect::<Vec<f64>>())
            }
            Fraud::OtherModel => find_likeliest(&self.draw_logits()),
            Fraud::Padding if at % ANSWER_TOKENS < BEGINNING_TOKENS => find_likeliest(logits),
            Fraud::Padding => find_likeliest(&self.draw_logits()),
        }
    }
}

fn find_likeliest(logits: &[f64]) -> usize {
    let order = |one: &usize, other: &usize| logits[*one].total_cmp(&logits[*other]);
    (0..logits.len()).max_by(order).expect("there are tokens")
}

/// Reads a token at temperature 0 as the reference does. No position has the tokens of another one,
/// as if the vocabulary were large.
fn read_token(logits: &[f64], given: usize, at: u64) -> TokenReading {
    let own = find_likeliest(logits);
    let mut shifts: Vec<f64> = logits.iter().map(|logit| logits[own] - logit).collect();
    shifts.sort_by(f64::total_cmp);
    shifts.remove(0);
    let nearest = shifts[0];
    let rank = logits.iter().filter(|it| **it > logits[given]).count();
    let is_own = given == own;
    shifts.truncate(RIVALS_MAX);
    let number = |token: usize| {
        let before = CHOICES * usize::try_from(at).expect("it is small");
        u32::try_from(before + token).expect("it is small")
    };
    let reading = TokenReading {
        token: number(given),
        drawn: number(own),
        rank: u32::try_from(rank).expect("it is small"),
        margin: logits[own] - logits[given],
        margin_end: if is_own { nearest } else { f64::INFINITY },
        nearest: if is_own { f64::INFINITY } else { nearest },
        share: None,
        rarity: 1.0,
        rivals: if is_own { Vec::new() } else { shifts },
        noise: None,
        is_respelled: false,
        is_penalised: false,
    };
    reading.bounded()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_states_when_each_fraud_is_found_and_an_honest_model_is_not() {
        let page = include_str!("../../../../docs/token-prices.md");
        let costs = play_cheap_models();
        let rows = super::super::table_rows(&costs);
        let lines = rows.map(|row| format!("| {} |", row.join(" | ")));
        let missing: Vec<String> = lines.filter(|line| !page.contains(line)).collect();
        assert!(missing.is_empty(), "the page lacks {missing:#?}");
        let honest = Fraud::Version { errors: 1.0 };
        assert!((0..20).all(|seed| find_after(honest, seed).is_none()));
    }
}
