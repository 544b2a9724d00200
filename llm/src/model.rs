//! Opens a language model with all its parts: decoder, tokeniser, chat template and licence.
//!
//! The model can be a folder in the layout of Hugging Face's tools, a GGUF file, or a folder that
//! [`LanguageModel::write`] wrote.

mod folder;
mod gguf_file;
mod model_folder;
mod onnx_folder;
mod rounding;

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::ContentId;
use souk_memory::safetensors::SafetensorsError;
use souk_onnx::states::StateError;
use souk_onnx::{DecodeError, encode_model};
use thiserror::Error;

use crate::adapter::{self, Adapter, AdapterError, AdapterSettings};
use crate::chat::ChatTemplate;
use crate::config::{Config, ConfigError};
use crate::decoder::{BatchSize, Decoder, build_training_model, check_trainable};
use crate::embedding::Pooling;
use crate::gguf::GgufError;
use crate::tokens::{TokenError, Tokenizer};
use crate::weights::{Weight, WeightError, Weights, order_queries, widen};

pub use model_folder::ModelFolder;

/// A language model.
pub struct LanguageModel {
    /// The model's metadata.
    pub card: Card,
    /// The model's tokeniser.
    pub tokenizer: Tokenizer,
    body: Body,
}

/// Metadata of a model, apart from its decoder and its tokeniser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The model's name.
    pub name: String,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// The chat template, if the model has one.
    pub template: Option<ChatTemplate>,
    /// The licence, if the model's files name one.
    pub licence: Option<String>,
    /// Positions that the makers designed the model for.
    pub positions: usize,
    /// Tokens for which the model has a row of numbers; its tokeniser may know others.
    pub vocabulary: usize,
    /// The positions from which a text's vector comes, if you request one.
    #[serde(default)]
    pub pooling: Pooling,
}

/// The decoder, built or not yet.
enum Body {
    Checkpoint {
        config: Box<Config>,
        weights: Weights,
    },
    Written(Decoder),
}

/// Why a model cannot be opened or written.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A file cannot be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file is not the expected JSON.
    #[error("{path}: {cause}")]
    Json {
        /// The file's path.
        path: PathBuf,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// The model's dimensions are refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's weights are refused.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A file of weights is refused.
    #[error("{path}: {cause}")]
    Safetensors {
        /// The file's path.
        path: PathBuf,
        /// The reader's error.
        cause: SafetensorsError,
    },
    /// The GGUF file is refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The GGUF file lacks something that a decoder needs.
    #[error("the GGUF file has no {0}")]
    GgufLacks(String),
    /// A part of a model in several GGUF files is missing from the first one's folder.
    #[error(
        "the model consists of {parts} GGUF files, one of which is {path}: put them all in one \
         folder, named ...-00001-of-{parts:05}.gguf and so on"
    )]
    GgufParts {
        /// The path that you opened.
        path: PathBuf,
        /// Number of parts that the file states.
        parts: u64,
    },
    /// No supported decoder has this tensor of the GGUF file.
    #[error("tensor {0:?} belongs to no known decoder")]
    Tensor(String),
    /// The tokeniser of the GGUF file is not supported.
    #[error("{key} = {value} is not known")]
    GgufTokenizer {
        /// The metadata key.
        key: &'static str,
        /// The key's value.
        value: String,
    },
    /// The tokeniser is refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A path leads out of the model's folder.
    #[error("{0:?} is not a file in the model's folder")]
    Outside(String),
    /// The folder holds no known form of a model.
    #[error("{0} has neither config.json nor language-model.json")]
    Unknown(PathBuf),
    /// A model with other weights would replace the model that it comes from.
    #[error("{0} is the model's own folder")]
    SameFolder(PathBuf),
    /// A model with other weights would have files of another one beside it.
    #[error("{0} has files of another model or adapter; name another folder")]
    OtherModel(PathBuf),
    /// The folder's ONNX model is refused.
    #[error("{path}: {cause}")]
    Onnx {
        /// The file's path.
        path: PathBuf,
        /// The parser's error.
        cause: DecodeError,
    },
    /// The state annotations of the folder's ONNX model are invalid.
    #[error(transparent)]
    State(#[from] StateError),
    /// The adapter is refused.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The folder's ONNX model is no decoder.
    #[error("the ONNX model is not a decoder made by souk: {0}")]
    NoDecoder(&'static str),
    /// The room extends beyond the positions up to which the angles stay the same.
    #[error(
        "the model's longrope is supported only in its original window of {bound} positions, but \
         {wanted} are requested"
    )]
    Window {
        /// Positions with the same angles.
        bound: usize,
        /// Positions requested.
        wanted: usize,
    },
    /// The folder was written with less room.
    #[error("the model was imported with room for {room} positions, but {wanted} are requested")]
    Room {
        /// Positions available.
        room: usize,
        /// Positions requested.
        wanted: usize,
    },
}

impl LanguageModel {
    /// Opens a model in any of the supported forms.
    ///
    /// # Errors
    /// [`ModelError`]; it names the missing or unsupported part.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if path.join(onnx_folder::CARD).is_file() {
            return onnx_folder::open_written(path);
        }
        if path.join(folder::CONFIG).is_file() {
            return folder::open_folder(path);
        }
        if path.is_dir() {
            return Err(ModelError::Unknown(path.to_owned()));
        }
        gguf_file::open_gguf(path)
    }

    /// Returns the decoder with caches of at most `room` positions.
    ///
    /// # Errors
    /// [`ModelError::Weight`], [`ModelError::Window`], or [`ModelError::Room`] if the folder was
    /// written with less room.
    pub fn into_decoder(self, room: usize) -> Result<Decoder, ModelError> {
        match self.body {
            Body::Checkpoint { config, weights } => match config.bound {
                Some(bound) if room > bound => Err(ModelError::Window {
                    bound,
                    wanted: room,
                }),
                _ => Ok(Decoder::build(&config, weights, room)?),
            },
            Body::Written(decoder) if room <= decoder.room => Ok(decoder),
            Body::Written(decoder) => Err(ModelError::Room {
                room: decoder.room,
                wanted: room,
            }),
        }
    }

    /// Orders the rows of queries and keys as Hugging Face's folders do: training and adapters need
    /// that order, and GGUF files of Llama have another one. You must call this before you create
    /// an adapter; a model whose weights are in blocks of few bits stays as it is.
    pub fn order_queries(&mut self) {
        if let Body::Checkpoint { config, weights } = &mut self.body {
            order_queries(config, weights);
        }
    }

    /// Adds an adapter to the weights.
    ///
    /// # Errors
    /// [`AdapterError`] if it does not fit the model.
    pub fn merge_adapter(&mut self, adapter: &Adapter) -> Result<(), AdapterError> {
        self.order_queries();
        match &mut self.body {
            Body::Checkpoint { config, .. } if config.rotary.interleaved => {
                Err(AdapterError::Form(
                    "this GGUF file, whose queries souk cannot order: give the Hugging Face folder",
                ))
            }
            Body::Checkpoint { weights, .. } => adapter::merge_into(weights, adapter),
            Body::Written(_) => Err(AdapterError::Form(
                "a folder of `souk model import`; give the model before its import",
            )),
        }
    }

    /// Creates an adapter for training.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the model cannot be trained, and [`ModelError::Adapter`].
    pub fn create_adapter(&self, settings: &AdapterSettings) -> Result<Adapter, ModelError> {
        let (config, _) = self.trainable_checkpoint()?;
        Ok(Adapter::new(config, settings)?)
    }

    /// Returns the names of the weights, all of which can be trained.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the model cannot be trained.
    pub fn trainable_weights(&self) -> Result<Vec<String>, ModelError> {
        let (_, weights) = self.trainable_checkpoint()?;
        Ok(weights.keys().cloned().collect())
    }

    /// Returns the decoder over whole sequences as an ONNX model that contains its weights. With an
    /// adapter, only the adapter can be trained; without one, the weights can, so they are f32.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the model cannot be trained, and [`ModelError::Weight`].
    pub fn to_training_model(
        &self,
        adapter: Option<&Adapter>,
        size: BatchSize,
    ) -> Result<Bytes, ModelError> {
        let (config, weights) = self.trainable_checkpoint()?;
        let weights = match adapter {
            Some(_) => weights.clone(),
            None => widen(weights),
        };
        let model = build_training_model(config, weights, adapter, size)?;
        Ok(encode_model(&model))
    }

    fn trainable_checkpoint(&self) -> Result<(&Config, &Weights), ModelError> {
        let (config, weights) = self.checkpoint()?;
        check_trainable(config)?;
        let is_in_blocks = |weight: &Weight| matches!(weight, Weight::Blocks { .. });
        if weights.values().any(is_in_blocks) {
            let part = "its weights in blocks of few bits: take one in f32, f16 or bf16";
            return Err(ConfigError::Training(part).into());
        }
        if config.rotary.interleaved {
            let part = "the order of its queries: give the Hugging Face folder";
            return Err(ConfigError::Training(part).into());
        }
        Ok((config, weights))
    }

    /// Returns a digest of the names, types and values of the weights.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the model is a decoder already.
    pub fn weights_id(&self) -> Result<ContentId, ModelError> {
        let (_, weights) = self.checkpoint()?;
        let mut list = String::new();
        for (name, weight) in weights {
            let tensors = match weight {
                Weight::Floats(tensor) => vec![tensor],
                Weight::Blocks { integers, scales } => vec![integers, scales],
            };
            for tensor in tensors {
                list.push_str(&format!("{name} {}\n", tensor.id()));
            }
        }
        Ok(ContentId::for_content(list.as_bytes()))
    }

    /// Changes each weight at random by up to one part in 256, the most that a rounding to bf16
    /// changes it, and up to twice as much as the usual one. The same model changes in the same
    /// way each time.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the model is a decoder already or has weights of few bits, which
    /// have no such neighbours.
    pub fn jitter_weights(&mut self) -> Result<(), ModelError> {
        match &mut self.body {
            Body::Checkpoint { weights, .. } => Ok(rounding::jitter(weights)?),
            Body::Written(_) => Err(ConfigError::Reference(
                "its form: give the model as it was before `souk model import`",
            )
            .into()),
        }
    }

    /// Returns the dimensions and the weights of a model that is no decoder yet.
    fn checkpoint(&self) -> Result<(&Config, &Weights), ModelError> {
        match &self.body {
            Body::Checkpoint { config, weights } => Ok((config, weights)),
            Body::Written(_) => Err(ConfigError::Training(
                "its form: give the model as it was before `souk model import`",
            )
            .into()),
        }
    }

    /// Returns the positions that the makers designed the model for, or that its folder was written
    /// with.
    #[must_use]
    pub fn positions(&self) -> usize {
        match &self.body {
            Body::Checkpoint { config, .. } => config.positions,
            Body::Written(decoder) => decoder.room,
        }
    }

    /// Writes the model as a folder: an ONNX model, its weights in a separate file, its tokeniser,
    /// its card.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn write(self, folder: &Path, room: usize) -> Result<(), ModelError> {
        let (card, tokenizer) = (self.card.clone(), self.tokenizer.to_json()?);
        let decoder = self.into_decoder(room)?;
        onnx_folder::write(folder, &card, &tokenizer, &decoder)
    }
}

/// Returns the contents of a file.
fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|cause| ModelError::File {
        path: path.to_owned(),
        cause,
    })
}

fn json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_slice(&read(path)?).map_err(|cause| ModelError::Json {
        path: path.to_owned(),
        cause,
    })
}
