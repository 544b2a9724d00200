//! Describes the experts of a mixture model: feed-forward parts of which each row of a request uses
//! only a few. Also reads their settings from `config.json`.

use serde::Deserialize;

use super::{Architecture, ConfigError, NUMBER_MAX, unsupported_feature};

/// The experts of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts that each row uses; there can be no more than `count`.
    pub used: usize,
    /// Inner width of an expert.
    pub feed_forward: usize,
    /// Whether the weights of a row's experts sum to one.
    pub is_normalised: bool,
    /// Inner width of the shared expert, if there is one.
    pub shared: Option<usize>,
}

/// The fields of `config.json` about experts.
#[derive(Deserialize)]
pub(super) struct ExpertsFile {
    num_local_experts: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    mlp_only_layers: Option<Vec<usize>>,
    use_sliding_window: Option<bool>,
    qkv_bias: Option<bool>,
}

impl ExpertsFile {
    /// Returns the experts of a mixture family, where `feed_forward` is the width of its other
    /// parts.
    pub fn to_experts(
        &self,
        architecture: Architecture,
        feed_forward: usize,
    ) -> Result<Experts, ConfigError> {
        let is_mixtral = architecture == Architecture::Mixtral;
        if !is_mixtral {
            self.check_features()?;
        }
        // A missing number is zero, and the check refuses it.
        let (count, width) = match is_mixtral {
            true => (self.num_local_experts, Some(feed_forward)),
            false => (self.num_experts, self.moe_intermediate_size),
        };
        let shared = self.shared_expert_intermediate_size.unwrap_or(0);
        Ok(Experts {
            count: count.unwrap_or(0),
            used: self.num_experts_per_tok.unwrap_or(0),
            feed_forward: width.unwrap_or(0),
            is_normalised: is_mixtral || self.norm_topk_prob.unwrap_or(false),
            shared: architecture.has_shared_expert().then_some(shared),
        })
    }

    /// Refuses layers without experts and windows in some layers, because tools interpret them
    /// differently.
    fn check_features(&self) -> Result<(), ConfigError> {
        if let Some(step) = self.decoder_sparse_step.filter(|step| *step != 1) {
            return unsupported_feature("decoder_sparse_step", &step.to_string());
        }
        if let Some(layers) = self.mlp_only_layers.as_ref().filter(|it| !it.is_empty()) {
            return unsupported_feature("mlp_only_layers", &format!("{layers:?}"));
        }
        if self.use_sliding_window == Some(true) {
            return unsupported_feature("use_sliding_window", "true");
        }
        match self.qkv_bias {
            Some(false) => unsupported_feature("qkv_bias", "false"),
            _ => Ok(()),
        }
    }
}

impl Experts {
    /// Returns these experts if they are possible.
    ///
    /// # Errors
    /// [`ConfigError::Number`] if a number is not.
    pub(super) fn into_validated(self) -> Result<Self, ConfigError> {
        let numbers = [
            ("num_experts", self.count),
            ("num_experts_per_tok", self.used),
            ("moe_intermediate_size", self.feed_forward),
            ("shared_expert_intermediate_size", self.shared.unwrap_or(1)),
        ];
        let wrong = |&(_, value): &(&str, usize)| value == 0 || value > NUMBER_MAX;
        if let Some((key, value)) = numbers.into_iter().find(wrong) {
            return Err(ConfigError::Number { key, value });
        }
        if self.used > self.count {
            let (key, value) = ("num_experts_per_tok", self.used);
            return Err(ConfigError::Number { key, value });
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn read(family: &str, more: &str) -> Result<Config, ConfigError> {
        let json = format!(
            r#"{{"model_type": "{family}", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 100, "rms_norm_eps": 1e-5, "max_position_embeddings": 128{more}}}"#
        );
        Config::read(json.as_bytes())
    }

    const QWEN: &str = r#", "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48"#;

    #[test]
    fn each_family_has_the_experts_that_its_file_says() {
        let mixtral = r#", "num_local_experts": 8, "num_experts_per_tok": 2"#;
        let expected = Experts {
            count: 8,
            used: 2,
            feed_forward: 96,
            is_normalised: true,
            shared: None,
        };
        assert_eq!(read("mixtral", mixtral).unwrap().experts, Some(expected));
        let expected = Experts {
            count: 6,
            used: 2,
            feed_forward: 32,
            is_normalised: false,
            shared: Some(48),
        };
        assert_eq!(read("qwen2_moe", QWEN).unwrap().experts, Some(expected));
        let whole = format!(r#"{QWEN}, "norm_topk_prob": true"#);
        let expected = Experts {
            is_normalised: true,
            shared: None,
            ..expected
        };
        assert_eq!(read("qwen3_moe", &whole).unwrap().experts, Some(expected));
        assert_eq!(read("qwen3", &whole).unwrap().experts, None);
    }

    #[test]
    fn what_is_not_known_of_experts_is_refused_by_name() {
        let refused = |family: &str, more: &str| {
            let more = format!("{QWEN}, {more}");
            read(family, &more).unwrap_err().to_string()
        };
        let features = [
            (r#""decoder_sparse_step": 2"#, "decoder_sparse_step = 2"),
            (r#""mlp_only_layers": [0, 1]"#, "mlp_only_layers = [0, 1]"),
            (r#""use_sliding_window": true"#, "use_sliding_window = true"),
            (r#""qkv_bias": false"#, "qkv_bias = false"),
        ];
        for (more, named) in features {
            for family in ["qwen2_moe", "qwen3_moe"] {
                let expected = format!("{named} is not supported");
                assert_eq!(refused(family, more), expected);
            }
        }
        let known = r#""decoder_sparse_step": 1, "mlp_only_layers": []"#;
        assert!(read("qwen2_moe", &format!("{QWEN}, {known}")).is_ok());
    }

    #[test]
    fn numbers_of_experts_that_cannot_be_are_refused_by_name() {
        let refused = |family: &str, more: &str| read(family, more).unwrap_err().to_string();
        let none = refused("mixtral", "");
        assert_eq!(none, "num_experts = 0 is not possible in a decoder");
        let more = r#", "num_local_experts": 2, "num_experts_per_tok": 3"#;
        let more = refused("mixtral", more);
        assert_eq!(more, "num_experts_per_tok = 3 is not possible in a decoder");
        let shared = QWEN.replace(r#""shared_expert_intermediate_size": 48"#, r#""a": 1"#);
        let shared = refused("qwen2_moe", &shared);
        assert_eq!(
            shared,
            "shared_expert_intermediate_size = 0 is not possible in a decoder"
        );
    }
}
