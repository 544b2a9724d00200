//! `souk doctor`: what on this machine, in this folder and in its market stands in the way, and
//! what to do about it.

mod folder;
mod machine;
mod market;

use std::path::Path;

use serde::Serialize;

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// As it should be.
    Good,
    /// Works, and could work better.
    Warning,
    /// Something will fail.
    Problem,
}

/// One thing that was looked at.
#[derive(Serialize)]
pub struct Finding {
    severity: Severity,
    /// What was looked at.
    about: &'static str,
    /// What was found.
    found: String,
    /// What to do, where something is to be done.
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

    fn bad(
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
        Finding::bad(Severity::Warning, about, found, fix)
    }

    fn problem(about: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::bad(Severity::Problem, about, found, fix)
    }
}

/// Looks at everything.
pub async fn findings(dir: &Path) -> Vec<Finding> {
    let mut findings = machine::look(dir);
    findings.extend(folder::look(dir));
    findings.extend(market::look(dir).await);
    findings
}

/// Looks at everything, says what was found, and fails where something will.
pub async fn run(dir: &Path, output: Output) -> Outcome {
    let findings = findings(dir).await;
    match output {
        Output::Json => show::json(&serde_json::json!({ "findings": findings })),
        Output::Text => print(&findings),
    }
    let problems = findings
        .iter()
        .filter(|it| it.severity == Severity::Problem);
    match problems.count() {
        0 => Ok(()),
        many => {
            let cause = format!("{} found", show::count(show::number(many), "problem"));
            Err(Failure::new(
                Kind::State,
                cause,
                "do what stands behind each",
            ))
        }
    }
}

fn print(findings: &[Finding]) {
    for finding in findings {
        let word = match finding.severity {
            Severity::Good => "ok",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        say(&format!(
            "{word:<8} {:<10} {}",
            finding.about, finding.found
        ));
        if let Some(fix) = &finding.fix {
            say(&format!("{:19} fix: {fix}", ""));
        }
    }
}

#[cfg(test)]
mod tests;
