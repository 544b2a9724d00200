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
    /// Whether it is a wall: without it a job could reach what is not its own. Else it is one
    /// limit of several.
    #[serde(default)]
    pub wall: bool,
}

impl SandboxPolicy {
    /// The first wall that does not stand.
    #[must_use]
    pub fn gap(&self) -> Option<&MissingRule> {
        self.missing.iter().find(|missing| missing.wall)
    }

    /// Notes a limit, and whether it stands.
    #[cfg(target_os = "linux")]
    pub(super) fn note(&mut self, rule: &str, raised: Result<(), String>) {
        self.tell(rule, raised, false);
    }

    /// Notes a wall, and whether it stands.
    #[cfg(target_os = "linux")]
    pub(super) fn wall(&mut self, rule: &str, raised: Result<(), String>) {
        self.tell(rule, raised, true);
    }

    #[cfg(target_os = "linux")]
    fn tell(&mut self, rule: &str, raised: Result<(), String>, wall: bool) {
        let rule = rule.to_owned();
        match raised {
            Ok(()) => self.enforced.push(rule),
            Err(reason) => self.missing.push(MissingRule { rule, reason, wall }),
        }
    }
}

impl fmt::Display for MissingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rule, self.reason)
    }
}
