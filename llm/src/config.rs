//! What a decoder is made of, in numbers: as `config.json` states it, or the metadata of a GGUF
//! file.

use serde::Deserialize;
use thiserror::Error;

/// The families of decoders that are known. They differ in biases and norms alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM and all that call themselves so.
    Llama,
    /// Mistral, within its window.
    Mistral,
    /// Qwen 2 and 2.5: biases at queries, keys and values.
    Qwen2,
    /// Qwen 3: queries and keys are normalised by head.
    Qwen3,
}

/// A decoder in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its family.
    pub architecture: Architecture,
    /// Width of a position's vector between layers.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Width within the feed-forward part.
    pub feed_forward: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    /// What is added to a mean square before its root.
    pub epsilon: f32,
    /// Positions the model was made for.
    pub positions: usize,
    /// How positions are told.
    pub rotary: Rotary,
}

/// Positions told by turning pairs of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// The base of the angles' geometric series.
    pub base: f64,
    /// Whether a pair are neighbours; else they are half a head apart.
    pub interleaved: bool,
    /// What each pair's angle is divided by; one where there are none.
    pub divisors: Vec<f64>,
}

/// Why a model's numbers are refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is no such JSON.
    #[error("config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A family that is not known.
    #[error("models of type {0:?} are not known; known are llama, mistral, qwen2, qwen3")]
    Architecture(String),
    /// A feature that is not known.
    #[error("{key} = {value} is not supported")]
    Feature {
        /// What it is called.
        key: &'static str,
        /// What it is set to.
        value: String,
    },
    /// A number that cannot be.
    #[error("{key} = {value} makes no decoder")]
    Number {
        /// What it is called.
        key: &'static str,
        /// What it is set to.
        value: usize,
    },
}

/// Largest number of anything in a model: what keeps products within 64 bits.
const NUMBER_MAX: usize = 1 << 24;

/// `config.json`, of which only this is read.
#[derive(Deserialize)]
struct ConfigFile {
    model_type: String,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    rms_norm_eps: f32,
    max_position_embeddings: usize,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    /// Where newer tools put the two above.
    rope_parameters: Option<Scaling>,
    hidden_act: Option<String>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    attention_bias: bool,
}

#[derive(Deserialize)]
struct Scaling {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

impl Architecture {
    /// The family of this name.
    ///
    /// # Errors
    /// [`ConfigError::Architecture`].
    pub fn named(name: &str) -> Result<Self, ConfigError> {
        match name {
            "llama" => Ok(Self::Llama),
            "mistral" => Ok(Self::Mistral),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            _ => Err(ConfigError::Architecture(name.to_owned())),
        }
    }

    /// Whether queries, keys and values have biases.
    #[must_use]
    pub fn has_biases(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether queries and keys are normalised by head.
    #[must_use]
    pub fn has_head_norms(self) -> bool {
        self == Self::Qwen3
    }
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], naming what is not known rather than passing over it.
    pub fn read(json: &[u8]) -> Result<Self, ConfigError> {
        let file: ConfigFile = serde_json::from_slice(json)?;
        let architecture = Architecture::named(&file.model_type)?;
        file.check_features(architecture)?;
        if file.num_attention_heads == 0 {
            let (key, value) = ("num_attention_heads", 0);
            return Err(ConfigError::Number { key, value });
        }
        let width = file.hidden_size / file.num_attention_heads;
        let head_width = file.head_dim.unwrap_or(width);
        let config = Self {
            architecture,
            hidden: file.hidden_size,
            layers: file.num_hidden_layers,
            heads: file.num_attention_heads,
            key_heads: file.num_key_value_heads.unwrap_or(file.num_attention_heads),
            head_width,
            feed_forward: file.intermediate_size,
            vocabulary: file.vocab_size,
            epsilon: file.rms_norm_eps,
            positions: file.positions(),
            rotary: file.rotary(head_width)?,
        };
        config.checked()
    }

    /// The same, if it can be.
    ///
    /// # Errors
    /// [`ConfigError::Number`].
    pub fn checked(self) -> Result<Self, ConfigError> {
        let numbers = [
            ("hidden_size", self.hidden),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.key_heads),
            ("head_dim", self.head_width),
            ("intermediate_size", self.feed_forward),
            ("vocab_size", self.vocabulary),
            ("max_position_embeddings", self.positions),
        ];
        let wrong = |&(_, value): &(&str, usize)| value == 0 || value > NUMBER_MAX;
        if let Some((key, value)) = numbers.into_iter().find(wrong) {
            return Err(ConfigError::Number { key, value });
        }
        if !self.heads.is_multiple_of(self.key_heads) {
            let (key, value) = ("num_key_value_heads", self.key_heads);
            return Err(ConfigError::Number { key, value });
        }
        if !self.head_width.is_multiple_of(2) {
            let (key, value) = ("head_dim", self.head_width);
            return Err(ConfigError::Number { key, value });
        }
        Ok(self)
    }
}

impl ConfigFile {
    fn check_features(&self, architecture: Architecture) -> Result<(), ConfigError> {
        let refused = |key, value: &str| {
            let value = value.to_owned();
            Err(ConfigError::Feature { key, value })
        };
        if let Some(other) = self.hidden_act.as_deref().filter(|it| *it != "silu") {
            return refused("hidden_act", other);
        }
        if self.mlp_bias {
            return refused("mlp_bias", "true");
        }
        // Qwen 2 has its biases without saying so.
        if self.attention_bias && !architecture.has_biases() {
            return refused("attention_bias", "true");
        }
        Ok(())
    }

    /// Positions it was made for, and within which a window that slides shows everything.
    fn positions(&self) -> usize {
        let window = self.sliding_window;
        let window = window.filter(|_| self.use_sliding_window != Some(false));
        let positions = self.max_position_embeddings;
        window.map_or(positions, |window| window.min(positions))
    }

    fn rotary(&self, head_width: usize) -> Result<Rotary, ConfigError> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let stated = scaling.and_then(|it| it.rope_theta).or(self.rope_theta);
        let base = stated.unwrap_or(10_000.0);
        let divisors = match scaling {
            Some(scaling) => scaling.divisors(base, head_width)?,
            None => Vec::new(),
        };
        Ok(Rotary {
            base,
            interleaved: false,
            divisors,
        })
    }
}

impl Scaling {
    fn divisors(&self, base: f64, head_width: usize) -> Result<Vec<f64>, ConfigError> {
        let stated = |key, number: Option<f64>| {
            let missing = || ConfigError::Feature {
                key,
                value: "null".to_owned(),
            };
            number.ok_or_else(missing)
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(Vec::new()),
            Some("linear") => {
                let factor = stated("rope_scaling.factor", self.factor)?;
                Ok(vec![factor; head_width / 2])
            }
            Some("llama3") => {
                let factor = stated("rope_scaling.factor", self.factor)?;
                let low = stated("rope_scaling.low_freq_factor", self.low_freq_factor)?;
                let high = stated("rope_scaling.high_freq_factor", self.high_freq_factor)?;
                let original = self.original_max_position_embeddings;
                let key = "rope_scaling.original_max_position_embeddings";
                let original = stated(key, original)?;
                let pairs = 0..head_width / 2;
                let divisor = |pair| {
                    let wave = std::f64::consts::TAU / frequency(base, pair, head_width);
                    let turns = original / wave;
                    let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    // Frequencies, not divisors, are mixed.
                    1.0 / (share + (1.0 - share) / factor)
                };
                Ok(pairs.map(divisor).collect())
            }
            Some(other) => Err(ConfigError::Feature {
                key: "rope_scaling.rope_type",
                value: other.to_owned(),
            }),
        }
    }
}

fn frequency(base: f64, pair: usize, head_width: usize) -> f64 {
    base.powf(-2.0 * pair as f64 / head_width as f64)
}

impl Rotary {
    /// Cosines and sines for each position and pair of a head.
    #[must_use]
    pub fn tables(&self, positions: usize, head_width: usize) -> [Vec<f32>; 2] {
        let half = head_width / 2;
        let turn = |pair: usize| {
            let divisor = self.divisors.get(pair).copied().unwrap_or(1.0);
            frequency(self.base, pair, head_width) / divisor
        };
        let turns: Vec<f64> = (0..half).map(turn).collect();
        let angle = |at: usize| (at / half) as f64 * turns[at % half];
        let table = |of: fn(f64) -> f64| {
            let angles = (0..positions * half).map(angle);
            angles.map(|angle| of(angle) as f32).collect()
        };
        [table(f64::cos), table(f64::sin)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(more: &str) -> String {
        format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 100, "rms_norm_eps": 1e-5, "max_position_embeddings": 128{more}}}"#
        )
    }

    fn refusal(more: &str) -> String {
        Config::read(json(more).as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let act = refusal(r#", "hidden_act": "gelu""#);
        assert_eq!(act, "hidden_act = gelu is not supported");
        let yarn = refusal(r#", "rope_scaling": {"rope_type": "yarn", "factor": 2}"#);
        assert_eq!(yarn, "rope_scaling.rope_type = yarn is not supported");
        let heads = refusal(r#", "head_dim": 7"#);
        assert_eq!(heads, "head_dim = 7 makes no decoder");
        let other = json("").replace("llama", "mamba");
        let other = Config::read(other.as_bytes()).unwrap_err().to_string();
        assert!(other.starts_with("models of type \"mamba\" are not known"));
    }

    #[test]
    fn a_window_that_slides_bounds_the_positions() {
        let of = |more: &str| Config::read(json(more).as_bytes()).unwrap().positions;
        assert_eq!(of(r#", "sliding_window": 32"#), 32);
        let unused = r#", "sliding_window": 32, "use_sliding_window": false"#;
        assert_eq!(of(unused), 128);
    }

    #[test]
    fn slow_pairs_are_slowed_and_quick_ones_left() {
        let scaling = r#", "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}"#;
        let divisors = Config::read(json(scaling).as_bytes())
            .unwrap()
            .rotary
            .divisors;
        assert_eq!(divisors.first(), Some(&1.0));
        assert_eq!(divisors.last(), Some(&8.0));
    }
}
