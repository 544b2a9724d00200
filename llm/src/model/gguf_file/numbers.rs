//! Converts a GGUF file's metadata to a decoder's dimensions, the [`Config`].

mod experts;

use super::super::ModelError;
use super::require_text;
use crate::config::{Architecture, Config, ConfigError, LocalLayers, Rotary, Window};
use crate::gguf::{Gguf, Value};
use crate::weights::Weight;

/// The divisors of each pair's angle, if a file has them.
const DIVISORS: &str = "rope_freqs.weight";
/// The divisors for the original positions, if a file has others beyond those.
const DIVISORS_SHORT: &str = "rope_factors_short.weight";
const DIVISORS_LONG: &str = "rope_factors_long.weight";

/// Tensors that are dimensions of a decoder rather than weights.
pub(super) const TABLES: [&str; 3] = [DIVISORS, DIVISORS_SHORT, DIVISORS_LONG];

/// The metadata of a family.
struct FamilyMetadata<'a> {
    file: &'a Gguf,
    family: &'a str,
}

pub(super) fn read_config(file: &Gguf) -> Result<Config, ModelError> {
    let family = require_text(file, "general.architecture")?;
    let numbers = FamilyMetadata { file, family };
    let architecture = numbers.read_architecture()?;
    let hidden = numbers.require_number("embedding_length")?;
    let heads = numbers.require_number("attention.head_count")?;
    let width = hidden.checked_div(heads).unwrap_or(0);
    let head_width = numbers.number_or("attention.key_length", width)?;
    let vocabulary = file
        .metadata_array("tokenizer.ggml.tokens")
        .map_or(0, <[Value]>::len);
    let epsilon = numbers.key("attention.layer_norm_rms_epsilon");
    let epsilon = file
        .metadata_float(&epsilon)
        .ok_or(ModelError::GgufLacks(epsilon))?;
    let layers = numbers.require_number("block_count")?;
    let (positions, bound) = numbers.read_positions()?;
    let rotary = numbers.read_rotary(architecture, head_width)?;
    let [score_limit, logit_limit] = architecture.default_limits();
    let config = Config {
        architecture,
        hidden,
        layers,
        heads,
        key_heads: numbers.number_or("attention.head_count_kv", heads)?,
        head_width,
        feed_forward: numbers.require_number("feed_forward_length")?,
        experts: numbers.read_experts(architecture)?,
        vocabulary: numbers.number_or("vocab_size", vocabulary)?,
        epsilon: epsilon as f32,
        positions,
        bound,
        window: numbers.read_window(architecture, &rotary)?,
        rotary,
        score_factor: score_factor(architecture, layers, [hidden, heads, head_width]),
        score_limit: numbers.read_limit("attn_logit_softcapping", score_limit),
        logit_limit: numbers.read_limit("final_logit_softcapping", logit_limit),
    };
    Ok(config.into_validated()?)
}

/// Returns the factor of Gemma's scores. Files do not state it, but their largest models use the
/// width that heads would have if they shared the stream's.
fn score_factor(
    architecture: Architecture,
    layers: usize,
    [hidden, heads, head_width]: [usize; 3],
) -> Option<f32> {
    let largest = match architecture {
        Architecture::Gemma2 => 46,
        Architecture::Gemma3 => 62,
        _ => return None,
    };
    let width = match layers == largest {
        true => hidden.checked_div(heads).unwrap_or(0),
        false => head_width,
    };
    Some((width as f64).powf(-0.5) as f32)
}

impl FamilyMetadata<'_> {
    fn key(&self, part: &str) -> String {
        format!("{}.{part}", self.family)
    }

    fn require_number(&self, part: &str) -> Result<usize, ModelError> {
        let key = self.key(part);
        let number = self.file.metadata_integer(&key);
        // A number too large for the machine is refused with the others.
        let number = number.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        number.ok_or(ModelError::GgufLacks(key))
    }

    fn number_or(&self, part: &str, otherwise: usize) -> Result<usize, ModelError> {
        match self.file.metadata_integer(&self.key(part)) {
            Some(_) => self.require_number(part),
            None => Ok(otherwise),
        }
    }

    fn float_or(&self, part: &str, otherwise: f64) -> f64 {
        self.file
            .metadata_float(&self.key(part))
            .unwrap_or(otherwise)
    }

    /// Returns the positions that the makers designed the model for, and those beyond which the
    /// angles change.
    fn read_positions(&self) -> Result<(usize, Option<usize>), ModelError> {
        let made_for = self.require_number("context_length")?;
        let bound = match self.read_table(DIVISORS_SHORT)?.is_empty() {
            true => None,
            false => Some(self.require_number("rope.scaling.original_context_length")?),
        };
        Ok((bound.map_or(made_for, |bound| bound.min(made_for)), bound))
    }

    /// Returns the window, for families that have one; zero means none.
    fn read_window(
        &self,
        architecture: Architecture,
        rotary: &Rotary,
    ) -> Result<Option<Window>, ModelError> {
        let (otherwise, every) = match architecture {
            Architecture::Gemma2 => (4096, Some(2)),
            Architecture::Gemma3 => (0, Some(6)),
            Architecture::Phi3 => (0, None),
            _ => return Ok(None),
        };
        let positions = self.number_or("attention.sliding_window", otherwise)?;
        let key = self.key("attention.sliding_window_pattern");
        let layers = match (self.file.metadata_array(&key), every) {
            (Some(listed), _) => {
                let is_local = |value: &Value| *value == Value::Bool(true);
                LocalLayers::Listed(listed.iter().map(is_local).collect())
            }
            (None, Some(every)) => {
                let every = self.number_or("attention.sliding_window_pattern", every)?;
                LocalLayers::AllButLastOfEach(every)
            }
            (None, None) => LocalLayers::From(0),
        };
        let base = self.file.metadata_float(&self.key("rope.freq_base_swa"));
        let otherwise = (architecture == Architecture::Gemma3).then_some(10_000.0);
        let rotary = base
            .or(otherwise)
            .map(|base| Rotary::new_unscaled(rotary.width, base))
            .transpose()?;
        let window = Window {
            positions,
            layers,
            rotary,
        };
        Ok((positions > 0).then_some(window))
    }

    fn read_limit(&self, part: &str, otherwise: Option<f32>) -> Option<f32> {
        let stated = self.file.metadata_float(&self.key(part));
        // Zero means none.
        stated
            .map_or(otherwise, |limit| Some(limit as f32))
            .filter(|limit| *limit > 0.0)
    }

    fn read_rotary(
        &self,
        architecture: Architecture,
        head_width: usize,
    ) -> Result<Rotary, ModelError> {
        let width = self.number_or("rope.dimension_count", head_width)?;
        let mut rotary = Rotary::new_unscaled(width, self.float_or("rope.freq_base", 10_000.0))?;
        // Llama's converters put the numbers of a pair side by side; the others do not.
        rotary.interleaved = matches!(architecture, Architecture::Llama | Architecture::Mixtral);
        for name in [DIVISORS, DIVISORS_SHORT] {
            let divisors = self.read_table(name)?;
            if !divisors.is_empty() && divisors.len() != width / 2 {
                return Err(ModelError::GgufLacks(name.to_owned()));
            }
            if !divisors.is_empty() {
                rotary.divisors = divisors;
            }
        }
        rotary.factor = self.float_or("rope.scaling.attn_factor", 1.0);
        match self.file.metadata_text(&self.key("rope.scaling.type")) {
            None | Some("none" | "longrope") => {}
            Some("linear") => {
                let factor = self.float_or("rope.scaling.factor", 1.0);
                rotary.divisors = vec![factor; width / 2];
            }
            Some(other) => {
                let (key, value) = ("rope.scaling.type", other.to_owned());
                return Err(ConfigError::Feature { key, value }.into());
            }
        }
        Ok(rotary)
    }

    /// Returns a table of floats, or an empty one if the file has none.
    fn read_table(&self, name: &str) -> Result<Vec<f64>, ModelError> {
        match self.file.read_weight(name) {
            None => Ok(Vec::new()),
            Some(Weight::Floats(tensor)) => Ok(tensor.to_f64s().unwrap_or_default()),
            Some(Weight::Blocks { .. }) => Err(ModelError::GgufLacks(name.to_owned())),
        }
    }
}
