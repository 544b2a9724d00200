//! Low-rank adapters (LoRA), which fine-tune a model without changing its weights: for each
//! targeted matrix W of the model an adapter has two narrow matrices, A and B, and the tuned model
//! computes with `W + alpha / rank · B·A`.
//!
//! Training changes only A and B. The files have the form of the library PEFT, which reads what
//! souk writes; souk reads what PEFT writes, unless it uses an extension of LoRA.

mod files;
mod merge;

use std::collections::BTreeMap;
use std::path::PathBuf;

use souk_memory::Tensor;
use souk_memory::safetensors::SafetensorsError;
use thiserror::Error;

pub use files::{CONFIG, WEIGHTS};
pub(crate) use merge::merge_into;

use crate::config::Config;

/// The beginning of the names of an adapter's tensors, which PEFT adds to those of the model.
pub const PREFIX: &str = "base_model.model.";

/// The matrices of a layer that an adapter can target.
pub const TARGETS: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Largest rank: that of a matrix beyond which an adapter is no smaller than the matrix.
const RANK_MAX: usize = 1 << 14;

/// The settings of a new adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSettings {
    /// Number of rows of A and of columns of B.
    pub rank: usize,
    /// Factor of the product of B and A, which is divided by the rank.
    pub alpha: f64,
    /// Names of the targeted matrices, of [`TARGETS`].
    pub targets: Vec<String>,
    /// Seed of the first numbers of A.
    pub seed: u64,
}

/// An adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    rank: usize,
    alpha: f64,
    /// Factor of the product of B and A.
    scale: f32,
    targets: Vec<String>,
    /// All A and B, by their names in PEFT's files.
    tensors: BTreeMap<String, Tensor>,
}

/// Why an adapter cannot be made, read or merged.
#[derive(Debug, Error)]
pub enum AdapterError {
    /// A file cannot be read.
    #[error("{path}: {cause}")]
    File {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The configuration is not the expected JSON.
    #[error("{path}: {cause}")]
    Json {
        /// The file's path.
        path: PathBuf,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// The file of weights is refused.
    #[error("{path}: {cause}")]
    Safetensors {
        /// The file's path.
        path: PathBuf,
        /// The reader's error.
        cause: SafetensorsError,
    },
    /// The configuration states an extension of LoRA.
    #[error("adapter_config.json: {key} = {value} is not supported")]
    Feature {
        /// Its key in the file.
        key: &'static str,
        /// Its value in the file.
        value: String,
    },
    /// The rank is out of range.
    #[error("the rank {0} is not between 1 and {RANK_MAX}")]
    Rank(usize),
    /// The factor is no positive number.
    #[error("the alpha {0} is no positive number")]
    Alpha(f64),
    /// The model has no such matrix.
    #[error("the target {0:?} is no matrix of a layer; they are {all}", all = TARGETS.join(", "))]
    Target(String),
    /// A tensor is neither the A nor the B of a matrix.
    #[error("the adapter's tensor {0:?} is no lora_A or lora_B of a matrix")]
    Tensor(String),
    /// The file of weights has no tensor.
    #[error("the adapter has no tensors, so it would change nothing")]
    Empty,
    /// The model has no matrix of this name, or the adapter lacks one of its two tensors.
    #[error("the adapter is for another model: {name:?} {why}")]
    Model {
        /// Name of the weight.
        name: String,
        /// How the adapter does not fit the model.
        why: &'static str,
    },
    /// The model's form does not allow it.
    #[error("an adapter cannot be merged into {0}")]
    Form(&'static str),
}

impl Adapter {
    /// Creates an adapter that changes nothing yet: A has numbers by the seed, in the range of
    /// PEFT's (Kaiming's uniform distribution), and B is zero.
    ///
    /// # Errors
    /// [`AdapterError::Rank`], [`AdapterError::Alpha`] and [`AdapterError::Target`].
    pub(crate) fn new(config: &Config, settings: &AdapterSettings) -> Result<Self, AdapterError> {
        let AdapterSettings {
            rank,
            alpha,
            ref targets,
            seed,
        } = *settings;
        if rank == 0 || rank > RANK_MAX {
            return Err(AdapterError::Rank(rank));
        }
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(AdapterError::Alpha(alpha));
        }
        if let Some(unknown) = targets.iter().find(|it| !TARGETS.contains(&it.as_str())) {
            return Err(AdapterError::Target(unknown.clone()));
        }
        if targets.is_empty() {
            return Err(AdapterError::Target(String::new()));
        }
        let mut tensors = BTreeMap::new();
        for layer in 0..config.layers {
            for target in TARGETS
                .iter()
                .filter(|it| targets.iter().any(|t| t == **it))
            {
                let (name, [outputs, inputs]) = target_matrix(config, layer, target);
                let [down, up] = Self::tensor_names(&name);
                let numbers = uniform_numbers(&down, seed, rank * inputs, inputs);
                let numbers = Tensor::from_vec([rank, inputs], numbers);
                tensors.insert(down, numbers.expect("as many as its sizes say"));
                let zeros = Tensor::from_vec([outputs, rank], vec![0.0_f32; outputs * rank]);
                tensors.insert(up, zeros.expect("as many as its sizes say"));
            }
        }
        Ok(Self {
            rank,
            alpha,
            scale: (alpha / rank as f64) as f32,
            targets: targets.clone(),
            tensors,
        })
    }

    /// Returns the adapter with other numbers.
    ///
    /// # Panics
    /// If the tensors have other names or sizes than those of the adapter.
    #[must_use]
    pub fn with_tensors(&self, tensors: BTreeMap<String, Tensor>) -> Self {
        let outline = |all: &BTreeMap<String, Tensor>| -> Vec<(String, Vec<usize>)> {
            let all = all.iter();
            all.map(|(name, it)| (name.clone(), it.dims().to_vec()))
                .collect()
        };
        assert_eq!(
            outline(&self.tensors),
            outline(&tensors),
            "the same adapter"
        );
        Self {
            tensors,
            ..self.clone()
        }
    }

    /// Returns all A and B, by their names in PEFT's files.
    #[must_use]
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// Returns the names of the A and the B of a matrix.
    pub(crate) fn tensor_names(matrix: &str) -> [String; 2] {
        ["A", "B"].map(|which| format!("{PREFIX}{matrix}.lora_{which}.weight"))
    }

    /// Returns the A and the B of a matrix, if the adapter targets it.
    pub(crate) fn pair_of(&self, matrix: &str) -> Option<[&Tensor; 2]> {
        let [down, up] = Self::tensor_names(matrix);
        Some([self.tensors.get(&down)?, self.tensors.get(&up)?])
    }

    /// Returns the factor of the product of B and A.
    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }
}

/// Returns the name of a targeted matrix, and its sizes: outputs and inputs.
fn target_matrix(config: &Config, layer: usize, target: &str) -> (String, [usize; 2]) {
    let part = match target.ends_with("up_proj") || !target.starts_with(['q', 'k', 'v', 'o']) {
        true => "mlp",
        false => "self_attn",
    };
    let queries = config.heads * config.head_width;
    let keys = config.key_heads * config.head_width;
    let sizes = match target {
        "q_proj" => [queries, config.hidden],
        "k_proj" | "v_proj" => [keys, config.hidden],
        "o_proj" => [config.hidden, queries],
        "down_proj" => [config.hidden, config.feed_forward],
        _ => [config.feed_forward, config.hidden],
    };
    (format!("model.layers.{layer}.{part}.{target}"), sizes)
}

/// Returns numbers between −1/√inputs and 1/√inputs, by SplitMix64 from the seed and the name.
fn uniform_numbers(name: &str, seed: u64, count: usize, inputs: usize) -> Vec<f32> {
    let mix = |word: u64| {
        let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    };
    let of_name = name.bytes().fold(mix(seed), |word, byte| {
        (word ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let bound = 1.0 / (inputs as f64).sqrt();
    let unit = |at: u64| (mix(of_name.wrapping_add(at)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
    (0..count as u64)
        .map(|at| (unit(at) * bound) as f32)
        .collect()
}
