//! A language model with all that belongs to it: decoder, tokeniser, template, licence.
//!
//! It comes as people have it: a folder as Hugging Face's tools leave it, a GGUF file, or a folder
//! that [`LanguageModel::write`] left.

mod folder;
mod gguf_file;
mod written;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_memory::safetensors::SafetensorsError;
use souk_onnx::DecodeError;
use souk_onnx::states::StateError;
use thiserror::Error;

use crate::chat::ChatTemplate;
use crate::config::{Config, ConfigError};
use crate::decoder::Decoder;
use crate::embedding::Pooling;
use crate::gguf::GgufError;
use crate::tokens::{TokenError, Tokenizer};
use crate::weights::{WeightError, Weights};

/// A language model.
pub struct LanguageModel {
    /// What is said of it.
    pub card: Card,
    /// Its tokeniser.
    pub tokenizer: Tokenizer,
    body: Body,
}

/// What is said of a model beside its decoder and its tokeniser.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// What it is called.
    pub name: String,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// What it was taught a conversation looks like, if anything.
    pub template: Option<ChatTemplate>,
    /// The licence, as far as its makers say.
    pub licence: Option<String>,
    /// Positions it was made for.
    pub positions: usize,
    /// Tokens that it has a row of numbers for; its tokeniser may know others.
    pub vocabulary: usize,
    /// Which of a text's positions its vector is of, where it is asked for one.
    #[serde(default)]
    pub pooling: Pooling,
}

/// The decoder, built or still to be.
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
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{path}: {cause}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: serde_json::Error,
    },
    /// Its numbers are refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its weights are refused.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A file of weights is refused.
    #[error("{path}: {cause}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: SafetensorsError,
    },
    /// The GGUF file is refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Something that a decoder needs is not in the GGUF file.
    #[error("the GGUF file has no {0}")]
    GgufLacks(String),
    /// A part of a model in several GGUF files is not where the first one is.
    #[error(
        "the model is in {parts} GGUF files, which {path} is one of: they are to lie in one \
         folder, named ...-00001-of-{parts:05}.gguf and so on"
    )]
    GgufParts {
        /// The file that was opened.
        path: PathBuf,
        /// How many it is one of.
        parts: u64,
    },
    /// A tensor of the GGUF file that no decoder known here has.
    #[error("tensor {0:?} belongs to no decoder that is known")]
    Tensor(String),
    /// A tokeniser of the GGUF file that is not known.
    #[error("{key} = {value} is not known")]
    GgufTokenizer {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The tokeniser is refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A path that leads out of the model's folder.
    #[error("{0:?} is no file of the model's folder")]
    Outside(String),
    /// The folder holds nothing that is known as a model.
    #[error("{0} has neither config.json nor language-model.json")]
    Unknown(PathBuf),
    /// The folder's ONNX model is refused.
    #[error("{path}: {cause}")]
    Onnx {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: DecodeError,
    },
    /// What the folder's ONNX model says of its states does not hold.
    #[error(transparent)]
    State(#[from] StateError),
    /// The folder's ONNX model is no decoder.
    #[error("the ONNX model is no decoder of souk's: {0}")]
    NoDecoder(&'static str),
    /// Room for positions whose angles would be others than those before them.
    #[error(
        "the model's longrope is supported in its original window of {bound} positions, and \
         {wanted} are wanted"
    )]
    Window {
        /// Positions of the window.
        bound: usize,
        /// Room wanted.
        wanted: usize,
    },
    /// The decoder was written with less room.
    #[error("the model was imported with room for {room} positions, and {wanted} are wanted")]
    Room {
        /// Room it has.
        room: usize,
        /// Room wanted.
        wanted: usize,
    },
}

impl LanguageModel {
    /// Opens a model, whichever way it is kept.
    ///
    /// # Errors
    /// [`ModelError`]: what is missing or not known, by name.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if path.join(written::CARD).is_file() {
            return written::open(path);
        }
        if path.join(folder::CONFIG).is_file() {
            return folder::open(path);
        }
        if path.is_dir() {
            return Err(ModelError::Unknown(path.to_owned()));
        }
        gguf_file::open(path)
    }

    /// Its decoder with caches of at most `room` positions.
    ///
    /// # Errors
    /// [`ModelError::Weight`], [`ModelError::Window`], or [`ModelError::Room`] where it was
    /// written with less.
    pub fn decoder(self, room: usize) -> Result<Decoder, ModelError> {
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

    /// Positions it was made for, or that it was written with.
    #[must_use]
    pub fn positions(&self) -> usize {
        match &self.body {
            Body::Checkpoint { config, .. } => config.positions,
            Body::Written(decoder) => decoder.room,
        }
    }

    /// Writes it as a folder: an ONNX model, its weights beside it, its tokeniser, its card.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn write(self, folder: &Path, room: usize) -> Result<(), ModelError> {
        let (card, tokenizer) = (self.card.clone(), self.tokenizer.json()?);
        let decoder = self.decoder(room)?;
        written::write(folder, &card, &tokenizer, &decoder)
    }
}

/// The contents of a file.
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
