//! Reads a decoder's dimensions from `config.json`, the file of settings in folders of Hugging
//! Face's tools. It refuses an unsupported feature by its name instead of ignoring it.

use serde::{Deserialize, Deserializer};

use super::experts::ExpertsFile;
use super::rotary::{Rotary, Scaling};
use super::{Architecture, Config, ConfigError, Experts, LocalLayers, Window, unsupported_feature};

/// The field that names the family, which decides how to read the rest.
#[derive(Deserialize)]
struct Family {
    model_type: String,
}

/// The fields of `config.json` that souk reads.
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
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Scaling>,
    /// Newer tools put the rotary settings here.
    rope_parameters: Option<Scaling>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    query_pre_attn_scalar: Option<f64>,
    #[serde(default, deserialize_with = "deserialize_present")]
    attn_logit_softcapping: Option<Option<f32>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    final_logit_softcapping: Option<Option<f32>>,
    use_bidirectional_attention: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    attention_bias: bool,
}

/// Deserialises a present value, which can be `null`: that differs from an absent one.
fn deserialize_present<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<f32>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`]; it names an unsupported feature instead of ignoring it.
    pub fn read(json: &[u8]) -> Result<Self, ConfigError> {
        let family: Family = serde_json::from_slice(json)?;
        let architecture = match family.model_type.as_str() {
            "gemma3_text" => Architecture::Gemma3,
            // This model also reads images.
            "gemma3" => return Err(ConfigError::Architecture(family.model_type)),
            other => Architecture::from_name(other)?,
        };
        let file: ConfigFile = serde_json::from_slice(json)?;
        let experts = match architecture.has_experts() {
            true => {
                let said: ExpertsFile = serde_json::from_slice(json)?;
                Some(said.to_experts(architecture, file.intermediate_size)?)
            }
            false => None,
        };
        file.into_config(architecture, experts)?.into_validated()
    }
}

impl ConfigFile {
    fn into_config(
        mut self,
        architecture: Architecture,
        experts: Option<Experts>,
    ) -> Result<Config, ConfigError> {
        self.check_features(architecture)?;
        if self.num_attention_heads == 0 {
            let (key, value) = ("num_attention_heads", 0);
            return Err(ConfigError::Number { key, value });
        }
        let width = match architecture.is_gemma() {
            true => 256,
            false => self.hidden_size / self.num_attention_heads,
        };
        let head_width = self.head_dim.unwrap_or(width);
        let (scaling, local) = self.take_scalings();
        let bound = self.position_bound(scaling.as_ref());
        let mut rotary = self.build_rotary(scaling.as_ref(), architecture, head_width)?;
        let positions = self.max_position_embeddings;
        if let Some(scaling) = &scaling {
            scaling.apply_to(&mut rotary, positions)?;
        }
        let score = self.query_pre_attn_scalar.unwrap_or(256.0);
        let [score_limit, logit_limit] = architecture.default_limits();
        Ok(Config {
            architecture,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            key_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_width,
            feed_forward: self.intermediate_size,
            experts,
            vocabulary: self.vocab_size,
            epsilon: self.rms_norm_eps,
            positions: bound.map_or(positions, |bound| bound.min(positions)),
            bound,
            rotary,
            window: self.build_window(architecture, local.as_ref(), head_width)?,
            score_factor: architecture.is_gemma().then(|| score.powf(-0.5) as f32),
            score_limit: self.attn_logit_softcapping.unwrap_or(score_limit),
            logit_limit: self.final_logit_softcapping.unwrap_or(logit_limit),
        })
    }

    fn check_features(&self, architecture: Architecture) -> Result<(), ConfigError> {
        let activation = match architecture.is_gemma() {
            true => "gelu_pytorch_tanh",
            false => "silu",
        };
        let stated = self.hidden_activation.as_deref();
        let stated = stated.or(self.hidden_act.as_deref());
        if let Some(other) = stated.filter(|it| *it != activation) {
            return unsupported_feature("hidden_act", other);
        }
        if self.mlp_bias {
            return unsupported_feature("mlp_bias", "true");
        }
        // Qwen 2 has biases even if the file does not say so.
        if self.attention_bias && !architecture.has_biases() {
            return unsupported_feature("attention_bias", "true");
        }
        if self.use_bidirectional_attention == Some(true) {
            return unsupported_feature("use_bidirectional_attention", "true");
        }
        let limit = self.attn_logit_softcapping.flatten();
        match limit.filter(|_| architecture != Architecture::Gemma2) {
            Some(limit) => unsupported_feature("attn_logit_softcapping", &limit.to_string()),
            None => Ok(()),
        }
    }

    /// Returns the rotary settings of full layers and of layers with a window.
    fn take_scalings(&mut self) -> (Option<Scaling>, Option<Scaling>) {
        let whole = self.rope_parameters.take().or(self.rope_scaling.take());
        let (mut scaling, local) = match whole {
            Some(mut whole) => {
                match (whole.full_attention.take(), whole.sliding_attention.take()) {
                    (None, None) => (Some(whole), None),
                    (full, sliding) => (full.map(|it| *it), sliding.map(|it| *it)),
                }
            }
            None => (None, None),
        };
        if let Some(scaling) = &mut scaling {
            let original = &mut scaling.original_max_position_embeddings;
            *original = original.or(self.original_max_position_embeddings);
        }
        (scaling, local)
    }

    /// Returns the number of positions beyond which the angles change, if they do.
    fn position_bound(&self, scaling: Option<&Scaling>) -> Option<usize> {
        let long = scaling.filter(|scaling| scaling.is_long());
        let original = long.and_then(|scaling| scaling.original_max_position_embeddings);
        original.map(|original| original as usize)
    }

    fn build_rotary(
        &self,
        scaling: Option<&Scaling>,
        architecture: Architecture,
        head_width: usize,
    ) -> Result<Rotary, ConfigError> {
        let base = scaling.and_then(|it| it.rope_theta).or(self.rope_theta);
        let otherwise = match architecture {
            Architecture::Gemma3 => 1_000_000.0,
            _ => 10_000.0,
        };
        let share = scaling.and_then(|it| it.partial_rotary_factor);
        let share = share.or(self.partial_rotary_factor).unwrap_or(1.0);
        let width = (head_width as f64 * share) as usize;
        Rotary::new_unscaled(width, base.unwrap_or(otherwise))
    }

    /// Returns the window, if the model uses one.
    fn build_window(
        &self,
        architecture: Architecture,
        local: Option<&Scaling>,
        head_width: usize,
    ) -> Result<Option<Window>, ConfigError> {
        let is_gemma_3 = architecture == Architecture::Gemma3;
        if local.is_some() && !is_gemma_3 {
            return unsupported_feature("rope_parameters", "sliding_attention");
        }
        let is_used = self.use_sliding_window.unwrap_or(!architecture.is_qwen());
        let otherwise = architecture.is_gemma().then_some(4096);
        let Some(positions) = self.sliding_window.or(otherwise).filter(|_| is_used) else {
            return Ok(None);
        };
        if positions == 0 {
            let (key, value) = ("sliding_window", 0);
            return Err(ConfigError::Number { key, value });
        }
        let rotary = match is_gemma_3 {
            true => {
                let base = local.and_then(|it| it.rope_theta);
                let base = base.or(self.rope_local_base_freq).unwrap_or(10_000.0);
                let mut rotary = Rotary::new_unscaled(head_width, base)?;
                if let Some(local) = local {
                    local.apply_to(&mut rotary, self.max_position_embeddings)?;
                }
                Some(rotary)
            }
            false => None,
        };
        Ok(Some(Window {
            positions,
            layers: self.local_layers(architecture)?,
            rotary,
        }))
    }

    fn local_layers(&self, architecture: Architecture) -> Result<LocalLayers, ConfigError> {
        let Some(types) = &self.layer_types else {
            return Ok(match architecture {
                Architecture::Gemma2 => LocalLayers::AllButLastOfEach(2),
                Architecture::Gemma3 => {
                    LocalLayers::AllButLastOfEach(self.sliding_window_pattern.unwrap_or(6))
                }
                _ if architecture.is_qwen() => {
                    LocalLayers::From(self.max_window_layers.unwrap_or(28))
                }
                _ => LocalLayers::From(0),
            });
        };
        if types.len() != self.num_hidden_layers {
            let (key, value) = ("layer_types", types.len());
            return Err(ConfigError::Number { key, value });
        }
        let is_local = |kind: &String| match kind.as_str() {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => unsupported_feature("layer_types", other),
        };
        let listed = types.iter().map(is_local).collect::<Result<_, _>>()?;
        Ok(LocalLayers::Listed(listed))
    }
}
