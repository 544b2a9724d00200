//! What is between a job and the machine, as it is told, kept and shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is between a job and the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPolicy {
    /// What stands.
    pub enforced: Vec<String>,
    /// What does not, with the reason.
    pub missing: Vec<MissingRule>,
}

/// A rule that does not stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRule {
    /// What it would be.
    pub rule: String,
    /// Why it is not.
    pub reason: String,
}

impl SandboxPolicy {
    #[cfg(target_os = "linux")]
    pub(super) fn note(&mut self, rule: &str, raised: Result<(), String>) {
        match raised {
            Ok(()) => self.enforced.push(rule.to_owned()),
            Err(reason) => self.leave_out(rule, &reason),
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn leave_out(&mut self, rule: &str, reason: &str) {
        self.missing.push(MissingRule {
            rule: rule.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

impl fmt::Display for MissingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rule, self.reason)
    }
}
