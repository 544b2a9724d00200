//! `souk audit`: checks with a copy of the model whether the answers that a buyer bought came from
//! that model, or replays a validator's log from its beginning and compares every digest. The
//! replay needs a stopped validator, because a running one locks its folder.

mod results;
#[cfg(feature = "generate")]
mod texts;

use std::path::Path;

use souk_folder::market_file::MarketFile;
use souk_node::validator::ValidatorAuditError;
use souk_node::validator::node;

use crate::args::{AuditArgs, AuditCommand, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

/// Carries out an audit, or lists those of texts.
pub async fn run(folder: &Path, output: Output, args: &AuditArgs) -> Outcome {
    match (&args.command, &args.folder) {
        (Some(AuditCommand::List), _) => results::list(folder, output),
        (Some(AuditCommand::Forget { id }), _) => results::forget(folder, output, id),
        #[cfg(feature = "generate")]
        (Some(AuditCommand::Run(args)), _) => texts::run(folder, output, args).await,
        #[cfg(feature = "generate")]
        (Some(AuditCommand::Verify { file, reference }), _) => {
            texts::verify(output, file, reference).await
        }
        (None, Some(validator)) => replay_log(validator, output),
        (None, None) => Err(Failure::new(
            Kind::Usage,
            "there is nothing to audit",
            "give a validator's folder, or `run`, `list`, `forget` or `verify`",
        )),
    }
}

/// Replays a validator's log and reports whether the results match the stored ones.
fn replay_log(folder: &Path, output: Output) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let audit = node::audit_log(folder, &market).map_err(|error| match error {
        later if later.is_for_later_build() => Failure::new(
            Kind::State,
            later,
            "the folder is not at fault: audit it with that release",
        ),
        ValidatorAuditError::ViewsOpen(_) | ValidatorAuditError::Folder(_) => Failure::new(
            Kind::State,
            error,
            "a running validator holds its folder: stop it first",
        ),
        ValidatorAuditError::ViewsSpoiled(_) => {
            let hint = "remove the folder `views`: the validator rebuilds it at its next start";
            Failure::new(Kind::Verification, error, hint)
        }
        ValidatorAuditError::Log(_) | ValidatorAuditError::Views { .. } => {
            let hint = "do not trust this replica: restore it from a copy, or add a new one";
            Failure::new(Kind::Verification, error, hint)
        }
    })?;
    let replay = &audit.replay;
    let facts = serde_json::json!({
        "valid": true, "from": replay.from.0, "to": replay.to.0, "commands": replay.commands,
        "snapshots": audit.snapshots.len(), "checkpoints": replay.checkpoints.len(),
        "views": audit.views, "history": replay.history.to_string(),
        "state": replay.state.to_string(),
    });
    let text = format!(
        "valid: {} commands replayed after entry {} up to {}; {} snapshots, {} checkpoints and {} \
         views came out as written\n  history {}\n  state   {}",
        replay.commands,
        replay.from.0,
        replay.to.0,
        audit.snapshots.len(),
        replay.checkpoints.len(),
        audit.views,
        replay.history,
        replay.state,
    );
    show::print_result(output, &facts, &text);
    Ok(())
}
