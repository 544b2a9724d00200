//! `souk model`: inspects and imports models.

use std::path::Path;

use souk_node::scheduler::graph::{Bindings, Graph};

#[cfg(feature = "generate")]
use super::generate;
use super::submit::from_import;
use crate::args::{Model, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::{files, show};

/// Runs a command on models.
pub fn run(output: Output, command: &Model) -> Outcome {
    match command {
        Model::Inspect { file, symbol } => inspect_model(output, file, symbol),
        #[cfg(feature = "generate")]
        Model::Import { from, to, context } => generate::import_model(output, from, to, *context),
    }
}

fn inspect_model(output: Output, file: &Path, symbol: &[String]) -> Outcome {
    let bytes = files::read(file)?;
    let mut bindings = Bindings::with_assumed_extent(1);
    for text in symbol {
        let parsed = text
            .split_once('=')
            .and_then(|(name, n)| Some((name, n.parse().ok()?)));
        let (name, extent) = parsed.ok_or_else(|| {
            let cause = format!("\"{text}\" is not NAME=N");
            Failure::new(Kind::Input, cause, "write --symbol batch=8")
        })?;
        bindings = bindings.with_symbol(name, extent);
    }
    let folder = file.parent().map(Path::to_owned).unwrap_or_default();
    let declared = Graph::declared_inputs(bytes.clone()).map_err(from_import)?;
    let mut find = |relative: &str| Some(folder.join(relative));
    let graph = Graph::import_with(bytes, &bindings, &mut find).map_err(from_import)?;
    match output {
        Output::Json => show::print_json(&show::model::to_json(&graph, &declared)),
        Output::Text => show::model::print_graph(&graph, &declared),
    }
    Ok(())
}
