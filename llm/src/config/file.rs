//! `config.json` as a decoder in numbers.

use serde::Deserialize;

use super::rotary::{Rotary, Scaling};
use super::{Architecture, Config, ConfigError};

/// What says which family's the rest of the file is.
#[derive(Deserialize)]
struct Family {
    model_type: String,
}

/// `config.json`, of which only this is read.
#[derive(Deserialize)]
struct ConfigFile {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    rms_norm_eps: f32,
    max_position_embeddings: usize,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    /// Where newer tools put what is said of positions.
    rope_parameters: Option<Scaling>,
    hidden_act: Option<String>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    attention_bias: bool,
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`], naming what is not known rather than passing over it.
    pub fn read(json: &[u8]) -> Result<Self, ConfigError> {
        let family: Family = serde_json::from_slice(json)?;
        let architecture = Architecture::named(&family.model_type)?;
        let file: ConfigFile = serde_json::from_slice(json)?;
        file.config(architecture)?.checked()
    }
}

impl ConfigFile {
    fn config(mut self, architecture: Architecture) -> Result<Config, ConfigError> {
        self.check_features(architecture)?;
        if self.num_attention_heads == 0 {
            let (key, value) = ("num_attention_heads", 0);
            return Err(ConfigError::Number { key, value });
        }
        let width = self.hidden_size / self.num_attention_heads;
        let head_width = self.head_dim.unwrap_or(width);
        let scaling = self.rope_parameters.take().or(self.rope_scaling.take());
        let scaling = scaling.map(|mut scaling| {
            let original = &mut scaling.original_max_position_embeddings;
            *original = original.or(self.original_max_position_embeddings);
            scaling
        });
        let (positions, bound) = self.positions(scaling.as_ref());
        Ok(Config {
            architecture,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            key_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_width,
            feed_forward: self.intermediate_size,
            vocabulary: self.vocab_size,
            epsilon: self.rms_norm_eps,
            positions,
            bound,
            rotary: self.rotary(scaling.as_ref(), head_width)?,
        })
    }

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

    /// Positions it was made for, and within which a window that slides shows everything; and
    /// those past which its angles would be others.
    fn positions(&self, scaling: Option<&Scaling>) -> (usize, Option<usize>) {
        let window = self.sliding_window;
        let window = window.filter(|_| self.use_sliding_window != Some(false));
        let long = scaling.filter(|scaling| scaling.is_long());
        let bound = long.and_then(|scaling| scaling.original_max_position_embeddings);
        let bound = bound.map(|original| original as usize);
        let bounds = [window, bound].into_iter().flatten();
        let positions = bounds.fold(self.max_position_embeddings, usize::min);
        (positions, bound)
    }

    fn rotary(&self, scaling: Option<&Scaling>, head_width: usize) -> Result<Rotary, ConfigError> {
        let base = scaling.and_then(|it| it.rope_theta).or(self.rope_theta);
        let share = scaling.and_then(|it| it.partial_rotary_factor);
        let share = share.or(self.partial_rotary_factor).unwrap_or(1.0);
        let width = (head_width as f64 * share) as usize;
        let mut rotary = Rotary::plain(width, base.unwrap_or(10_000.0));
        if let Some(scaling) = scaling {
            scaling.apply(&mut rotary, self.max_position_embeddings)?;
        }
        Ok(rotary)
    }
}
