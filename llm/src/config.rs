//! Describes a decoder by its dimensions: the family, the sizes of its layers, and its special
//! features. The readers of `config.json` and of GGUF files fill in a [`Config`], and the module
//! `decoder` builds the decoder from it.

mod experts;
mod file;
mod rotary;
mod window;

use thiserror::Error;

pub use experts::Experts;
pub use rotary::Rotary;
pub use window::{LocalLayers, Window};

/// The supported families of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM and other models with this name.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen 2 and 2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen 3: each head normalises queries and keys.
    Qwen3,
    /// Phi 3 and 4: matrices with the same input are stacked in one.
    Phi3,
    /// Mixtral: Mistral with several feed-forward experts, a few of which process each row.
    Mixtral,
    /// Qwen 1.5 and 2 with experts; one shared expert processes all rows.
    Qwen2Moe,
    /// Qwen 3 with experts.
    Qwen3Moe,
    /// Gemma 2: norms before and after each part, Gaussian gates, limits on scores and logits.
    Gemma2,
    /// Gemma 3: Gemma 2 with normalised queries and keys instead of limits.
    Gemma3,
}

/// The dimensions of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model's family.
    pub architecture: Architecture,
    /// Width of a position's vector between layers.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads. It must divide the number of query heads.
    pub key_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Inner width of the feed-forward part.
    pub feed_forward: usize,
    /// The experts in place of the feed-forward part, if the model has them.
    pub experts: Option<Experts>,
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Constant added to a mean square before the root.
    pub epsilon: f32,
    /// Maximum positions the makers designed the model for.
    pub positions: usize,
    /// The number of positions beyond which the angles change, if they do.
    pub bound: Option<usize>,
    /// The rotary encoding of positions.
    pub rotary: Rotary,
    /// The window of sliding-window layers, if there are any.
    pub window: Option<Window>,
    /// Factor of the products of queries and keys. If none, it is one divided by the root of a
    /// head's width.
    pub score_factor: Option<f32>,
    /// Upper limit of scores, if any.
    pub score_limit: Option<f32>,
    /// Upper limit of logits, if any.
    pub logit_limit: Option<f32>,
}

/// Why a model's dimensions are refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is not valid JSON of this form.
    #[error("config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// The family is not supported.
    #[error(
        "models of type {0:?} are not supported; supported are gemma2, gemma3_text, \
         llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe"
    )]
    Architecture(String),
    /// A feature is not supported.
    #[error("{key} = {value} is not supported")]
    Feature {
        /// Its key in the file.
        key: &'static str,
        /// Its value in the file.
        value: String,
    },
    /// The model can write texts, but not be trained.
    #[error("souk cannot train this model because of {0}")]
    Training(&'static str),
    /// The model can write texts, but audits cannot read with it.
    #[error("an audit cannot read with this model because of {0}")]
    Reference(&'static str),
    /// A number is impossible.
    #[error("{key} = {value} is not possible in a decoder")]
    Number {
        /// Its key in the file.
        key: &'static str,
        /// Its value in the file.
        value: usize,
    },
}

/// Largest allowed number in a model; it keeps products within 64 bits.
const NUMBER_MAX: usize = 1 << 24;

/// Returns the error for an unsupported feature.
fn unsupported_feature<T>(key: &'static str, value: &str) -> Result<T, ConfigError> {
    let value = value.to_owned();
    Err(ConfigError::Feature { key, value })
}

impl Architecture {
    /// Returns the family with this name.
    ///
    /// # Errors
    /// [`ConfigError::Architecture`] if the family is not supported.
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        match name {
            "gemma2" => Ok(Self::Gemma2),
            "gemma3" => Ok(Self::Gemma3),
            "llama" => Ok(Self::Llama),
            "mistral" => Ok(Self::Mistral),
            "mixtral" => Ok(Self::Mixtral),
            "phi3" => Ok(Self::Phi3),
            "qwen2" => Ok(Self::Qwen2),
            // In each pair, the second name is from GGUF files.
            "qwen2_moe" | "qwen2moe" => Ok(Self::Qwen2Moe),
            "qwen3" => Ok(Self::Qwen3),
            "qwen3_moe" | "qwen3moe" => Ok(Self::Qwen3Moe),
            _ => Err(ConfigError::Architecture(name.to_owned())),
        }
    }

    /// Returns whether queries, keys and values have biases.
    #[must_use]
    pub fn has_biases(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen2Moe)
    }

    /// Returns whether each head normalises queries and keys.
    #[must_use]
    pub fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3)
    }

    /// Returns whether this is a Qwen family.
    pub(crate) fn is_qwen(self) -> bool {
        matches!(
            self,
            Self::Qwen2 | Self::Qwen2Moe | Self::Qwen3 | Self::Qwen3Moe
        )
    }

    /// Returns whether the model has experts.
    #[must_use]
    pub fn has_experts(self) -> bool {
        matches!(self, Self::Mixtral | Self::Qwen2Moe | Self::Qwen3Moe)
    }

    /// Returns whether a shared expert processes all rows.
    #[must_use]
    pub fn has_shared_expert(self) -> bool {
        self == Self::Qwen2Moe
    }

    /// Returns whether one matrix makes queries, keys and values, and one matrix makes gates and
    /// their inputs.
    #[must_use]
    pub fn has_joint_matrices(self) -> bool {
        self == Self::Phi3
    }

    /// Returns whether this is a Gemma family: it scales embeddings by the root of their width,
    /// normalises the outputs of attention and feed-forward, and uses Gaussian gates.
    #[must_use]
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Returns the default limits of scores and logits.
    pub(crate) fn default_limits(self) -> [Option<f32>; 2] {
        match self {
            Self::Gemma2 => [Some(50.0), Some(30.0)],
            _ => [None, None],
        }
    }
}

impl Config {
    /// Returns how many positions a token sees in a layer, or `None` for all.
    #[must_use]
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let window = self.window.as_ref()?;
        window.layers.is_local(layer).then_some(window.positions)
    }

    /// Returns these dimensions if they are possible: every size must be from 1 to a limit.
    ///
    /// # Errors
    /// [`ConfigError::Number`] if a number is not.
    pub fn into_validated(self) -> Result<Self, ConfigError> {
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
        self.experts.map(Experts::into_validated).transpose()?;
        let turned = self.rotary.width;
        if turned > self.head_width {
            let (key, value) = ("head_dim", turned);
            return Err(ConfigError::Number { key, value });
        }
        Ok(self)
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
        assert_eq!(heads, "head_dim = 7 is not possible in a decoder");
        let huge = refusal(
            r#", "head_dim": 90000000000000, "rope_scaling": {"type": "linear", "factor": 2}"#,
        );
        assert_eq!(
            huge,
            "head_dim = 90000000000000 is not possible in a decoder"
        );
        let limit = refusal(r#", "attn_logit_softcapping": 50"#);
        assert_eq!(limit, "attn_logit_softcapping = 50 is not supported");
        let pictures = Config::read(br#"{"model_type": "gemma3", "text_config": {}}"#);
        let pictures = pictures.unwrap_err().to_string();
        assert!(pictures.starts_with("models of type \"gemma3\" are not supported"));
        let other = json("").replace("llama", "mamba");
        let other = Config::read(other.as_bytes()).unwrap_err().to_string();
        assert!(other.starts_with("models of type \"mamba\" are not supported"));
    }

    #[test]
    fn layers_have_the_window_that_the_file_says() {
        let of = |family: &str, more: &str| {
            let json = json(more).replace("llama", family);
            let config = Config::read(json.as_bytes()).unwrap();
            assert_eq!(config.positions, 128);
            [0, 1].map(|layer| config.window_of(layer))
        };
        assert_eq!(of("mistral", r#", "sliding_window": 32"#), [Some(32); 2]);
        let unused = r#", "sliding_window": 32, "use_sliding_window": false"#;
        assert_eq!(of("mistral", unused), [None; 2]);
        assert_eq!(of("qwen2", r#", "sliding_window": 32"#), [None; 2]);
        let upper = r#", "sliding_window": 32, "use_sliding_window": true,
            "max_window_layers": 1"#;
        assert_eq!(of("qwen2", upper), [None, Some(32)]);
        let listed = r#", "sliding_window": 32,
            "layer_types": ["full_attention", "sliding_attention"]"#;
        assert_eq!(of("gemma3_text", listed), [None, Some(32)]);
        assert_eq!(of("gemma2", r#", "sliding_window": 32"#), [Some(32), None]);
    }

    #[test]
    fn longrope_is_read_in_its_original_window() {
        let scaling = r#", "original_max_position_embeddings": 64, "rope_scaling": {
            "type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 2], "long_factor": []}"#;
        let config = Config::read(json(scaling).replace("llama", "phi3").as_bytes()).unwrap();
        assert_eq!((config.positions, config.bound), (64, Some(64)));
        assert!((config.rotary.factor - (7.0f64 / 6.0).sqrt()).abs() < 1e-12);
        let missing = refusal(r#", "rope_scaling": {"type": "longrope"}"#);
        assert_eq!(missing, "rope_scaling.short_factor = null is not supported");
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
