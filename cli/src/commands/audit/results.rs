//! `souk audit list` and `souk audit forget`: lists the results of earlier audits of bought
//! answers, and removes one.

use std::path::Path;

use souk_folder::market_file::MarketFile;
use souk_node::buyer::audit_results::{AuditResult, forget_audit, read_audits};

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show::{self, Table};

/// Lists the audits of a folder, the newest first.
pub fn list(folder: &Path, output: Output) -> Outcome {
    // A mistyped folder must not look like one without audits.
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let (mut audits, damaged) = read_audits(folder).map_err(|error| {
        let cause = format!("the audits of {} are not read: {error}", folder.display());
        Failure::new(Kind::State, cause, "check the permissions of buyer/audits")
    })?;
    show::text_offers::print_damaged_audits(damaged);
    audits.reverse();
    match output {
        Output::Json => show::print_json(&audits),
        Output::Text if audits.is_empty() => show::print_notice(
            "no audits yet: `souk openai --keep-transcripts 100` keeps texts, and `souk audit run \
             MODEL --reference PATH` reads them",
        ),
        Output::Text => print_audits(&audits, true),
    }
    Ok(())
}

/// Forgets an audit, so that a server of the folder does as if it had not been made.
pub fn forget(folder: &Path, output: Output, id: &str) -> Outcome {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    let is_gone = forget_audit(folder, id).map_err(|error| {
        let cause = format!("the audit {id} is not forgotten: {error}");
        Failure::new(Kind::State, cause, "check the permissions of buyer/audits")
    })?;
    if !is_gone {
        let cause = format!("there is no audit {id} in buyer/audits");
        let hint = "`souk audit list` shows the ids";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    let text = format!("forgot the audit {id} and its evidence");
    show::print_result(output, &serde_json::json!({ "forgotten": id }), &text);
    Ok(())
}

/// Prints audits as a table.
pub fn print_audits(audits: &[AuditResult], has_models: bool) {
    let header = ["provider", "own draws", "audited", "id", "model"];
    let header = &header[..header.len() - usize::from(!has_models)];
    let mut table = Table::new(header);
    for audit in audits {
        let mut row = vec![
            show::short_id(&audit.provider),
            format_own_draws(audit),
            show::text_offers::describe_tally(audit),
            audit.id(),
        ];
        if has_models {
            row.push(audit.model.clone());
        }
        table.add_row(row);
    }
    table.print();
}

/// Formats the part of the tokens that are the reference's own draws.
fn format_own_draws(audit: &AuditResult) -> String {
    match audit.tally.tokens {
        0 => String::new(),
        tokens => {
            let thousandths = audit.tally.own_draws * 1_000 / tokens;
            format!("{}.{} %", thousandths / 10, thousandths % 10)
        }
    }
}
