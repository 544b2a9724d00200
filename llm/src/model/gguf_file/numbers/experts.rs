//! Reads from a GGUF file's metadata the family of the model and the settings of its experts. A
//! mixture model has several feed-forward parts, the experts, of which each row uses a few.

use super::super::super::ModelError;
use super::FamilyMetadata;
use crate::config::{Architecture, ConfigError, Experts};
use crate::gguf::Value;

/// The number of a router whose weights are a softmax over all experts.
const SOFTMAX: usize = 1;

/// Returns the error for an unsupported feature.
fn unsupported_feature<T>(key: &'static str, value: &impl ToString) -> Result<T, ModelError> {
    let value = value.to_string();
    Err(ConfigError::Feature { key, value }.into())
}

impl FamilyMetadata<'_> {
    /// Returns the family. Mixtral's files call themselves a Llama with experts.
    pub(super) fn read_architecture(&self) -> Result<Architecture, ModelError> {
        let named = Architecture::from_name(self.family)?;
        let experts = self.number_or("expert_count", 0)?;
        match named {
            Architecture::Llama if experts > 0 => Ok(Architecture::Mixtral),
            named if experts > 0 && !named.has_experts() => {
                unsupported_feature("expert_count", &experts)
            }
            named => Ok(named),
        }
    }

    pub(super) fn read_experts(
        &self,
        architecture: Architecture,
    ) -> Result<Option<Experts>, ModelError> {
        if !architecture.has_experts() {
            return Ok(None);
        }
        self.check_expert_features()?;
        let (count, used) = (
            self.require_number("expert_count")?,
            self.require_number("expert_used_count")?,
        );
        let whole = self.require_number("feed_forward_length")?;
        // If the file does not state the width, a row's experts share the whole width equally.
        let part = whole.checked_div(used).unwrap_or(0);
        let feed_forward = match architecture {
            Architecture::Mixtral => whole,
            _ => self.number_or("expert_feed_forward_length", part)?,
        };
        let shared = architecture.has_shared_expert();
        let shared = shared.then(|| self.number_or("expert_shared_feed_forward_length", whole));
        let is_normalised = match self.file.metadata.get(&self.key("expert_weights_norm")) {
            Some(Value::Bool(stated)) => *stated,
            // Converters do not write this setting, so the family decides.
            _ => architecture != Architecture::Qwen2Moe,
        };
        Ok(Some(Experts {
            count,
            used,
            feed_forward,
            is_normalised,
            shared: shared.transpose()?,
        }))
    }

    fn check_expert_features(&self) -> Result<(), ModelError> {
        let router = self.number_or("expert_gating_func", SOFTMAX)?;
        if router != SOFTMAX {
            return unsupported_feature("expert_gating_func", &router);
        }
        for key in ["leading_dense_block_count", "expert_group_count"] {
            let count = self.number_or(key, 0)?;
            if count > 0 {
                return unsupported_feature(key, &count);
            }
        }
        let step = self.number_or("interleave_moe_layer_step", 1)?;
        if step > 1 {
            return unsupported_feature("interleave_moe_layer_step", &step);
        }
        // Zero means none here.
        match self.float_or("expert_weights_scale", 1.0) {
            scale if scale == 0.0 || scale == 1.0 => Ok(()),
            scale => unsupported_feature("expert_weights_scale", &scale),
        }
    }
}
