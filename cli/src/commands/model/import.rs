//! `souk model import`: converts a language model from its publisher's format to souk's.

use std::path::Path;

use serde_json::json;
use souk_llm::model::LanguageModel;
use souk_texts::{TextError, reserved_positions};

use crate::args::Output;
use crate::failure::Outcome;
use crate::show;

/// Converts a language model to souk's format.
pub fn import_model(output: Output, from: &Path, to: &Path, context: Option<usize>) -> Outcome {
    let model = LanguageModel::open(from).map_err(TextError::from)?;
    let (card, positions) = (model.card.clone(), reserved_positions(&model, context));
    model.write(to, positions).map_err(TextError::from)?;
    let licence = card.licence.as_deref().unwrap_or("not stated");
    let facts = json!({
        "name": card.name, "folder": to, "positions": positions, "licence": card.licence,
        "chat_template": card.template.is_some(),
    });
    let text = format!(
        "{} is in {}: {positions} positions, licence {licence}",
        card.name,
        to.display()
    );
    show::print_result(output, &facts, &text);
    Ok(())
}
