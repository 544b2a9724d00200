//! The model that comes with souk: a Llama of a million parameters that explains the words of
//! souk's glossary and knows little else. The name `bundled` selects it in place of a path, for
//! example for `souk generate`. Its files are part of the program. souk trained it;
//! `llm/models/glossary/begin.py` states the commands.

use std::fs;
use std::path::{Path, PathBuf};

use crate::model::ModelError;

/// The name that selects this model in place of a path.
pub const NAME: &str = "bundled";

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../models/glossary/", $name)))),*]
    };
}

/// The files of its folder, as Hugging Face's tools would write it.
const FILES: &[(&str, &[u8])] = files![
    "README.md",
    "chat_template.jinja",
    "config.json",
    "model.safetensors",
    "tokenizer.json"
];

/// Writes the files of the bundled model to a folder in `folder`, and returns its path.
///
/// # Errors
/// [`ModelError::File`] if the folder cannot be written.
pub fn write_files(folder: &Path) -> Result<PathBuf, ModelError> {
    let home = folder.join(NAME);
    let failed = |cause| ModelError::File {
        path: home.clone(),
        cause,
    };
    fs::create_dir_all(&home).map_err(failed)?;
    for (name, bytes) in FILES {
        fs::write(home.join(name), bytes).map_err(failed)?;
    }
    Ok(home)
}
