//! The model that comes with souk: a Llama of a million parameters that knows what the words of
//! souk's glossary mean, and little else. `llm/models/glossary/make.py` made it.

use std::fs;
use std::path::Path;

use crate::model::{LanguageModel, ModelError};

/// What it is called where a model is named.
pub const NAME: &str = "bundled";

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../models/glossary/", $name)))),*]
    };
}

/// The folder that it is, as Hugging Face's tools would leave it.
const FILES: &[(&str, &[u8])] = files![
    "README.md",
    "chat_template.jinja",
    "config.json",
    "model.safetensors",
    "tokenizer.json"
];

/// Opens it, by way of files in a folder that may go then.
///
/// # Errors
/// [`ModelError::File`]: the folder cannot be written.
pub fn open(folder: &Path) -> Result<LanguageModel, ModelError> {
    let home = folder.join(NAME);
    let failed = |cause| ModelError::File {
        path: home.clone(),
        cause,
    };
    fs::create_dir_all(&home).map_err(failed)?;
    for (name, bytes) in FILES {
        fs::write(home.join(name), bytes).map_err(failed)?;
    }
    LanguageModel::open(&home)
}
