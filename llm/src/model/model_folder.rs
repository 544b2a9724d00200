//! Writes a copy of a folder in the layout of Hugging Face's tools with other weights: merged with
//! an adapter, or trained.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use souk_memory::{Tensor, safetensors};

use super::folder::{CONFIG, INDEX, WEIGHTS, read_weights};
use super::{ModelError, read};
use crate::adapter::{self, Adapter, merge_into};
use crate::weights::{Weight, WeightError, Weights, with_floats};

/// The report of a training, beside which its receipts lie.
const TRAINING: &str = "train.json";

/// Optional files that change a model or its answers.
const TELLING: [&str; 6] = [
    adapter::CONFIG,
    INDEX,
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "tokenizer_config.json",
];

/// The contents of a folder in the layout of Hugging Face's tools.
#[derive(Clone)]
pub struct ModelFolder {
    path: PathBuf,
    weights: Weights,
    /// All files but those of weights, of adapters and on a training, by name.
    files: BTreeMap<String, Bytes>,
}

impl ModelFolder {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if it has no `config.json`, and those of its files.
    pub fn open(path: &Path) -> Result<ModelFolder, ModelError> {
        if !path.join(CONFIG).is_file() {
            return Err(ModelError::Unknown(path.to_owned()));
        }
        let failed = |cause| ModelError::File {
            path: path.to_owned(),
            cause,
        };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if is_copied(&name) && entry.path().is_file() {
                files.insert(name, Bytes::from(read(&entry.path())?));
            }
        }
        Ok(ModelFolder {
            path: path.to_owned(),
            weights: read_weights(path)?,
            files,
        })
    }

    /// Adds an adapter to the weights.
    ///
    /// # Errors
    /// [`ModelError::Adapter`] if it does not fit the model.
    pub fn merge_adapter(&mut self, adapter: &Adapter) -> Result<(), ModelError> {
        Ok(merge_into(&mut self.weights, adapter)?)
    }

    /// Returns the folder with f32 tensors in place of weights of the same names and sizes, rounded
    /// to the types of the weights.
    ///
    /// # Errors
    /// [`ModelError::Weight`] if the folder lacks one of them, or has it in other sizes.
    pub fn with_weights(
        &self,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<ModelFolder, ModelError> {
        let mut made = self.clone();
        for (name, tensor) in tensors {
            let old = made.weights.get_mut(name);
            let Some(Weight::Floats(old)) = old else {
                return Err(WeightError::Missing(name.clone()).into());
            };
            let values = tensor.to_vec::<f32>().ok();
            let values = values.filter(|_| tensor.dims() == old.dims());
            let values = values.ok_or_else(|| WeightError::Sizes {
                name: name.clone(),
                found: tensor.dims().to_vec(),
                expected: old.dims().to_vec(),
            })?;
            *old = with_floats(old, values);
        }
        Ok(made)
    }

    /// Checks that the files can be written to a folder: it is not the one that they come from, and
    /// has no file of another model or of an adapter that they would not replace.
    ///
    /// # Errors
    /// [`ModelError::SameFolder`] and [`ModelError::OtherModel`].
    pub fn check_target(&self, to: &Path) -> Result<(), ModelError> {
        let target = to.canonicalize().ok();
        if target.is_some() && self.path.canonicalize().ok() == target {
            return Err(ModelError::SameFolder(to.to_owned()));
        }
        let stays = |name: &&str| !self.files.contains_key(*name) && to.join(name).exists();
        match TELLING.iter().any(stays) {
            true => Err(ModelError::OtherModel(to.to_owned())),
            false => Ok(()),
        }
    }

    /// Returns all files by name, with all weights in one file, which is the last one.
    ///
    /// # Errors
    /// [`ModelError::Safetensors`].
    pub fn encode(&self) -> Result<Vec<(String, Bytes)>, ModelError> {
        let weights = self.weights.iter();
        let floats = weights.filter_map(|(name, weight)| match weight {
            Weight::Floats(tensor) => Some((name.clone(), tensor.clone())),
            Weight::Blocks { .. } => None,
        });
        let floats: BTreeMap<String, Tensor> = floats.collect();
        let bytes = safetensors::write(&floats).map_err(|cause| ModelError::Safetensors {
            path: self.path.join(WEIGHTS),
            cause,
        })?;
        let files = self.files.iter();
        let files = files.map(|(name, bytes)| (name.clone(), bytes.clone()));
        Ok(files.chain([(WEIGHTS.to_owned(), bytes)]).collect())
    }

    /// Writes the files to a folder.
    ///
    /// # Errors
    /// Those of [`ModelFolder::check_target`] and [`ModelFolder::encode`], and
    /// [`ModelError::File`].
    pub fn write(&self, to: &Path) -> Result<(), ModelError> {
        let failed = |path: &Path, cause| ModelError::File {
            path: path.to_owned(),
            cause,
        };
        std::fs::create_dir_all(to).map_err(|cause| failed(to, cause))?;
        self.check_target(to)?;
        for (name, bytes) in self.encode()? {
            let path = to.join(name);
            std::fs::write(&path, bytes).map_err(|cause| failed(&path, cause))?;
        }
        Ok(())
    }
}

/// Returns whether a copy with other weights has this file too: it belongs to the model, and not to
/// its weights, to an adapter, or to a training that made it.
fn is_copied(name: &str) -> bool {
    let is_weights = name.ends_with(".safetensors") || name.ends_with(".bin");
    let is_of_training =
        name == TRAINING || name.starts_with("receipt-") && name.ends_with(".json");
    !is_weights && !is_of_training && name != INDEX && name != adapter::CONFIG
}
