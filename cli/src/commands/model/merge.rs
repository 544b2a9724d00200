//! `souk model merge`: writes a language model with an adapter in its weights.

use std::path::Path;

use serde_json::json;
use souk_llm::adapter::Adapter;
use souk_llm::bundled_model;
use souk_llm::model::merge_folder;
use souk_texts::TextError;

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// Writes a language model with an adapter in its weights.
pub fn merge_model(output: Output, from: &Path, adapter: &Path, out: &Path) -> Outcome {
    let hint = "give the folder that `souk train` or PEFT wrote";
    let tensors = Adapter::read(adapter);
    let tensors = tensors.map_err(|error| Failure::new(Kind::Input, error, hint))?;
    files::prepare_folder(out)?;
    match from == Path::new(bundled_model::NAME) && !from.exists() {
        true => {
            let folder = tempfile::Builder::new().prefix("souk-model-").tempdir();
            let folder = folder.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
            let files = bundled_model::write_files(folder.path()).map_err(TextError::from)?;
            merge_folder(&files, &tensors, out).map_err(TextError::from)?;
        }
        false => merge_folder(from, &tensors, out).map_err(TextError::from)?,
    }
    let facts = json!({ "model": from, "adapter": adapter, "folder": out });
    let text = format!(
        "{} with {} is in {}",
        from.display(),
        adapter.display(),
        out.display()
    );
    show::print_result(output, &facts, &text);
    Ok(())
}
