//! Describes the rotary encoding of a decoder, which marks a token's position by rotating pairs of
//! numbers, and computes the tables of angles that the decoder contains. Also reads the scaling of
//! the angles from `config.json`.

use serde::Deserialize;

use super::{ConfigError, NUMBER_MAX};

/// The rotary encoding of positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// How many numbers of a head rotate, starting from the first. It must be even.
    pub width: usize,
    /// The base of the angles' geometric series.
    pub base: f64,
    /// Whether pairs are neighbours; otherwise they are half the width apart.
    pub interleaved: bool,
    /// The divisor of each pair's angle; if empty, all are one.
    pub divisors: Vec<f64>,
    /// Factor of the rotated numbers.
    pub factor: f64,
}

/// The scaling of angles in `config.json`.
#[derive(Deserialize)]
pub(super) struct Scaling {
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<f64>,
    short_factor: Option<Vec<f64>>,
    attention_factor: Option<f64>,
    /// Separate settings of full layers and of layers with a window, if the file has them.
    pub full_attention: Option<Box<Scaling>>,
    pub sliding_attention: Option<Box<Scaling>>,
}

/// Returns a required value, or the error that names its key.
fn require_value<T>(key: &'static str, value: Option<T>) -> Result<T, ConfigError> {
    let missing = || ConfigError::Feature {
        key,
        value: "null".to_owned(),
    };
    value.ok_or_else(missing)
}

impl Scaling {
    /// Returns whether angles change beyond the positions that the model was first made for.
    pub fn is_long(&self) -> bool {
        matches!(self.rope_type.as_deref(), Some("longrope" | "su"))
    }

    /// Applies this scaling to the plain angles of a model with this many positions.
    pub fn apply_to(&self, rotary: &mut Rotary, positions: usize) -> Result<(), ConfigError> {
        let pairs = rotary.width / 2;
        match self.rope_type.as_deref() {
            None | Some("default") => {}
            Some("linear") => {
                let factor = require_value("rope_scaling.factor", self.factor)?;
                rotary.divisors = vec![factor; pairs];
            }
            Some("llama3") => rotary.divisors = self.llama_3(rotary)?,
            Some("longrope" | "su") => {
                let key = "rope_scaling.short_factor";
                rotary.divisors = require_value(key, self.short_factor.clone())?;
                if rotary.divisors.len() != pairs {
                    let value = rotary.divisors.len();
                    return Err(ConfigError::Number { key, value });
                }
                rotary.factor = self.long_factor(positions)?;
            }
            Some(other) => {
                return Err(ConfigError::Feature {
                    key: "rope_scaling.rope_type",
                    value: other.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Slows slow pairs, keeps quick ones, and interpolates between.
    fn llama_3(&self, rotary: &Rotary) -> Result<Vec<f64>, ConfigError> {
        let factor = require_value("rope_scaling.factor", self.factor)?;
        let low = require_value("rope_scaling.low_freq_factor", self.low_freq_factor)?;
        let high = require_value("rope_scaling.high_freq_factor", self.high_freq_factor)?;
        let original = self.original_positions()?;
        let divisor = |pair| {
            let wave = std::f64::consts::TAU / rotary.base_frequency(pair);
            let turns = original / wave;
            let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            // Interpolates frequencies, not divisors.
            1.0 / (share + (1.0 - share) / factor)
        };
        Ok((0..rotary.width / 2).map(divisor).collect())
    }

    fn original_positions(&self) -> Result<f64, ConfigError> {
        let key = "rope_scaling.original_max_position_embeddings";
        require_value(key, self.original_max_position_embeddings)
    }

    /// Returns the factor of queries and keys for angles that cover this many positions.
    fn long_factor(&self, positions: usize) -> Result<f64, ConfigError> {
        let original = self.original_positions()?;
        let times = self.factor.unwrap_or(positions as f64 / original);
        let grown = (1.0 + times.max(1.0).ln() / original.ln()).sqrt();
        Ok(self.attention_factor.unwrap_or(grown))
    }
}

impl Rotary {
    /// Returns angles without scaling.
    ///
    /// # Errors
    /// [`ConfigError::Number`] if the width is no pairs, or has too many pairs.
    pub fn new_unscaled(width: usize, base: f64) -> Result<Self, ConfigError> {
        if width == 0 || width > NUMBER_MAX || !width.is_multiple_of(2) {
            let (key, value) = ("head_dim", width);
            return Err(ConfigError::Number { key, value });
        }
        Ok(Self {
            width,
            base,
            interleaved: false,
            divisors: Vec::new(),
            factor: 1.0,
        })
    }

    /// Returns the angle of a pair at position 1, not divided.
    fn base_frequency(&self, pair: usize) -> f64 {
        self.base.powf(-2.0 * pair as f64 / self.width as f64)
    }

    /// Returns the cosines and sines of each position and pair of a head.
    #[must_use]
    pub fn angle_tables(&self, positions: usize) -> [Vec<f32>; 2] {
        let half = self.width / 2;
        let turn = |pair: usize| {
            let divisor = self.divisors.get(pair).copied().unwrap_or(1.0);
            self.base_frequency(pair) / divisor
        };
        let turns: Vec<f64> = (0..half).map(turn).collect();
        let angle = |at: usize| (at / half) as f64 * turns[at % half];
        let table = |of: fn(f64) -> f64| {
            let angles = (0..positions * half).map(angle);
            angles
                .map(|angle| (of(angle) * self.factor) as f32)
                .collect()
        };
        [table(f64::cos), table(f64::sin)]
    }
}
