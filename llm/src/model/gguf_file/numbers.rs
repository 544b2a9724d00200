//! The numbers of a GGUF file's metadata, as a decoder's.

use super::super::ModelError;
use super::text;
use crate::config::{Architecture, Config, ConfigError, Rotary};
use crate::gguf::{Gguf, Value};
use crate::weights::Weight;

/// What each pair's angle is divided by, where a file says so.
const DIVISORS: &str = "rope_freqs.weight";
/// The same of files that have others past the positions they were first made for.
const DIVISORS_SHORT: &str = "rope_factors_short.weight";
const DIVISORS_LONG: &str = "rope_factors_long.weight";

/// Tensors that are numbers of a decoder, and no weights.
pub(super) const TABLES: [&str; 3] = [DIVISORS, DIVISORS_SHORT, DIVISORS_LONG];

/// The metadata of a family.
struct Numbers<'a> {
    file: &'a Gguf,
    family: &'a str,
}

pub(super) fn config(file: &Gguf) -> Result<Config, ModelError> {
    let family = text(file, "general.architecture")?;
    let architecture = Architecture::named(family)?;
    let numbers = Numbers { file, family };
    let hidden = numbers.number("embedding_length")?;
    let heads = numbers.number("attention.head_count")?;
    let width = hidden.checked_div(heads).unwrap_or(0);
    let head_width = numbers.number_or("attention.key_length", width)?;
    let vocabulary = file
        .array("tokenizer.ggml.tokens")
        .map_or(0, <[Value]>::len);
    let epsilon = numbers.key("attention.layer_norm_rms_epsilon");
    let epsilon = file.float(&epsilon).ok_or(ModelError::GgufLacks(epsilon))?;
    let (positions, bound) = numbers.positions(architecture)?;
    let config = Config {
        architecture,
        hidden,
        layers: numbers.number("block_count")?,
        heads,
        key_heads: numbers.number_or("attention.head_count_kv", heads)?,
        head_width,
        feed_forward: numbers.number("feed_forward_length")?,
        vocabulary: numbers.number_or("vocab_size", vocabulary)?,
        epsilon: epsilon as f32,
        positions,
        bound,
        rotary: numbers.rotary(architecture, head_width)?,
    };
    Ok(config.checked()?)
}

impl Numbers<'_> {
    fn key(&self, part: &str) -> String {
        format!("{}.{part}", self.family)
    }

    fn number(&self, part: &str) -> Result<usize, ModelError> {
        let key = self.key(part);
        let number = self.file.number(&key);
        // A number beyond the machine's is refused with the others.
        let number = number.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        number.ok_or(ModelError::GgufLacks(key))
    }

    fn number_or(&self, part: &str, otherwise: usize) -> Result<usize, ModelError> {
        match self.file.number(&self.key(part)) {
            Some(_) => self.number(part),
            None => Ok(otherwise),
        }
    }

    fn float_or(&self, part: &str, otherwise: f64) -> f64 {
        self.file.float(&self.key(part)).unwrap_or(otherwise)
    }

    /// Positions it was made for, and within which a window that slides shows everything; and
    /// those past which its angles would be others.
    fn positions(&self, architecture: Architecture) -> Result<(usize, Option<usize>), ModelError> {
        let made_for = self.number("context_length")?;
        let window = match architecture {
            // Zero stands for none.
            Architecture::Phi3 => Some(self.number_or("attention.sliding_window", 0)?),
            _ => None,
        };
        let bound = match self.table(DIVISORS_SHORT)?.is_empty() {
            true => None,
            false => Some(self.number("rope.scaling.original_context_length")?),
        };
        let bounds = [window.filter(|window| *window > 0), bound];
        let positions = bounds.into_iter().flatten().fold(made_for, usize::min);
        Ok((positions, bound))
    }

    fn rotary(&self, architecture: Architecture, head_width: usize) -> Result<Rotary, ModelError> {
        let width = self.number_or("rope.dimension_count", head_width)?;
        let mut rotary = Rotary::plain(width, self.float_or("rope.freq_base", 10_000.0));
        // Llama's converters put the numbers of a pair side by side; the others leave them.
        rotary.interleaved = architecture == Architecture::Llama;
        for name in [DIVISORS, DIVISORS_SHORT] {
            let divisors = self.table(name)?;
            if !divisors.is_empty() && divisors.len() != width / 2 {
                return Err(ModelError::GgufLacks(name.to_owned()));
            }
            if !divisors.is_empty() {
                rotary.divisors = divisors;
            }
        }
        rotary.factor = self.float_or("rope.scaling.attn_factor", 1.0);
        match self.file.text(&self.key("rope.scaling.type")) {
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

    /// A table of floats; an empty one where there is none.
    fn table(&self, name: &str) -> Result<Vec<f64>, ModelError> {
        match self.file.weight(name) {
            None => Ok(Vec::new()),
            Some(Weight::Floats(tensor)) => Ok(tensor.to_f64s().unwrap_or_default()),
            Some(Weight::Blocks { .. }) => Err(ModelError::GgufLacks(name.to_owned())),
        }
    }
}
