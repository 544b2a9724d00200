//! Defines how the reference (the buyer's trusted copy of a model) reads one token of a provider's
//! answer: which token it would draw itself, and how far its logits must shift to draw this one.

use serde::{Deserialize, Serialize};

/// The largest shift that a reading states; larger ones are cut to it.
pub const SHIFT_MAX: f64 = 1_000.0;

/// A token of an answer as the reference reads it. Shifts are in logits, [`SHIFT_MAX`] at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenReading {
    /// The token.
    pub token: u32,
    /// The reference's own draw.
    pub drawn: u32,
    /// The number of tokens that the reference would have drawn before this one; 0 if it is the
    /// reference's own draw.
    pub rank: u32,
    /// The least shift of the reference's logits at which it draws the token.
    pub margin: f64,
    /// The shift beyond which it draws another token; for its own draw, the shift to the nearest
    /// other token.
    pub margin_end: f64,
    /// The shift to the nearest draw on the other side, for the own one; otherwise from the own to
    /// the nearest other one.
    pub nearest: f64,
    /// The probability of the token by the reference, if it was drawn by seed; none at temperature
    /// 0.
    pub share: Option<f64>,
    /// The probability that the reference draws this token by seed, or one that is no likelier; 1
    /// at temperature 0.
    pub rarity: f64,
    /// The shifts to the likeliest tokens but the own draw, the least first. Empty for the own draw
    /// and where a seed draws.
    pub rivals: Vec<f64>,
    /// The noise of an honest engine at this position, in logits, if it was measured.
    pub noise: Option<f64>,
    /// Whether the text continues with the reference's own draw, spelled in other tokens: then this
    /// token does not count against the provider.
    pub is_respelled: bool,
    /// Whether an engine that penalises repeated tokens can have given this one instead of the
    /// reference's own draw: then it does not count against the provider either.
    pub is_penalised: bool,
}

impl TokenReading {
    /// Returns the shift from the reference's own draw to the nearest other one.
    pub(super) fn nearest_other(&self) -> f64 {
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
            rarity: self.rarity.clamp(0.0, 1.0),
            rivals: self.rivals.into_iter().map(bound).collect(),
            noise: self.noise.map(bound),
            ..self
        }
    }
}
