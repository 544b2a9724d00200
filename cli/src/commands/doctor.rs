//! `souk doctor`: finds problems of this machine, this folder and its market, and suggests
//! solutions.

mod folder;
mod machine;
mod market;

use std::path::Path;

use serde::Serialize;

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, print_line};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// No problem.
    Good,
    /// Works, but could work better.
    Warning,
    /// Will make something fail.
    Problem,
}

/// A finding of one check.
#[derive(Serialize)]
pub struct Finding {
    severity: Severity,
    /// Subject of the check.
    about: &'static str,
    /// Description of the finding.
    found: String,
    /// Suggested solution, if one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn good(about: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Good,
            about,
            found: found.into(),
            fix: None,
        }
    }

    fn with_fix(
        severity: Severity,
        about: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            about,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    fn warning(about: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::with_fix(Severity::Warning, about, found, fix)
    }

    fn problem(about: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::with_fix(Severity::Problem, about, found, fix)
    }
}

/// Runs all checks.
pub async fn run_checks(dir: &Path) -> Vec<Finding> {
    let mut findings = machine::check_machine(dir);
    findings.extend(folder::check_folder(dir));
    findings.extend(market::check_market(dir).await);
    findings
}

/// Runs all checks and shows the findings; fails if a finding is a problem.
pub async fn run(dir: &Path, output: Output) -> Outcome {
    let findings = run_checks(dir).await;
    match output {
        Output::Json => show::print_json(&serde_json::json!({ "findings": findings })),
        Output::Text => print_findings(&findings),
    }
    let problems = findings
        .iter()
        .filter(|it| it.severity == Severity::Problem);
    match problems.count() {
        0 => Ok(()),
        many => {
            let cause = format!(
                "{} found",
                show::format_count(show::to_u64(many), "problem")
            );
            Err(Failure::new(
                Kind::State,
                cause,
                "follow the fix shown with each",
            ))
        }
    }
}

fn print_findings(findings: &[Finding]) {
    for finding in findings {
        let word = match finding.severity {
            Severity::Good => "ok",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        print_line(&format!(
            "{word:<8} {:<10} {}",
            finding.about, finding.found
        ));
        if let Some(fix) = &finding.fix {
            print_line(&format!("{:19} fix: {fix}", ""));
        }
    }
}

#[cfg(test)]
mod tests;
