//! Writes a folder in the layout of Hugging Face's tools with an adapter added to its weights.

use std::collections::BTreeMap;
use std::path::Path;

use souk_memory::{Tensor, safetensors};

use super::folder::{CONFIG, INDEX, WEIGHTS, read_weights};
use super::{ModelError, read};
use crate::adapter::{self, Adapter, merge_into};
use crate::weights::Weight;

/// Writes a copy of the folder `from` to `to`, with an adapter in its weights. The weights are in
/// one file, in their types; all other files are copied, but for other weights and adapters.
///
/// # Errors
/// [`ModelError`]; [`ModelError::SameFolder`] if the copy would replace the original, and
/// [`ModelError::OtherModel`] if `to` has weights in several files.
pub fn merge_folder(from: &Path, adapter: &Adapter, to: &Path) -> Result<(), ModelError> {
    if !from.join(CONFIG).is_file() {
        return Err(ModelError::Unknown(from.to_owned()));
    }
    let failed = |path: &Path, cause| ModelError::File {
        path: path.to_owned(),
        cause,
    };
    std::fs::create_dir_all(to).map_err(|cause| failed(to, cause))?;
    if from.canonicalize().ok() == to.canonicalize().ok() {
        return Err(ModelError::SameFolder(to.to_owned()));
    }
    if to.join(INDEX).exists() {
        return Err(ModelError::OtherModel(to.to_owned()));
    }
    let mut weights = read_weights(from)?;
    merge_into(&mut weights, adapter)?;
    let floats = weights
        .into_iter()
        .filter_map(|(name, weight)| match weight {
            Weight::Floats(tensor) => Some((name, tensor)),
            Weight::Blocks { .. } => None,
        });
    let floats: BTreeMap<String, Tensor> = floats.collect();
    let path = to.join(WEIGHTS);
    let bytes = safetensors::write(&floats).map_err(|cause| ModelError::Safetensors {
        path: path.clone(),
        cause,
    })?;
    let entries = std::fs::read_dir(from).map_err(|cause| failed(from, cause))?;
    for entry in entries {
        let entry = entry.map_err(|cause| failed(from, cause))?;
        let name = entry.file_name();
        let is_old = {
            let name = name.to_string_lossy();
            let is_weights = name.ends_with(".safetensors") || name.ends_with(".bin");
            is_weights || name == INDEX || name == adapter::CONFIG
        };
        if is_old || !entry.path().is_file() {
            continue;
        }
        let path = to.join(name);
        std::fs::write(&path, read(&entry.path())?).map_err(|cause| failed(&path, cause))?;
    }
    std::fs::write(&path, bytes).map_err(|cause| failed(&path, cause))
}
