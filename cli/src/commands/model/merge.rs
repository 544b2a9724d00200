//! `souk model merge`: adds an adapter, which fine-tuning produced, to the weights of its language
//! model, and writes the result as a new model.

use std::path::Path;

use serde_json::json;
use souk_llm::adapter::Adapter;
use souk_texts::{TextError, open_model_folder};

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// Writes a language model with an adapter in its weights.
pub fn merge_model(output: Output, from: &Path, adapter: &Path, out: &Path) -> Outcome {
    let hint = "give the folder that `souk train` or PEFT wrote";
    let tensors = Adapter::read(adapter);
    let tensors = tensors.map_err(|error| Failure::new(Kind::Input, error, hint))?;
    files::prepare_folder(out)?;
    let mut folder = open_model_folder(from)?;
    folder.merge_adapter(&tensors).map_err(TextError::from)?;
    folder.write(out).map_err(TextError::from)?;
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
