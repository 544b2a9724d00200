//! Records which walls and limits stand between a job and the machine, and which are missing and
//! why. A sandbox reports this to its provider, which stores and shows it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The walls and limits between a job and the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxPolicy {
    /// The names of those in force.
    pub enforced: Vec<String>,
    /// Those that are not, with the reason.
    pub missing: Vec<MissingRule>,
}

/// A rule that is not in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRule {
    /// The name of the rule.
    pub rule: String,
    /// Why it is not in force.
    pub reason: String,
    /// Whether it is a wall, without which a job could reach what belongs to others. Otherwise it
    /// is one limit of several.
    #[serde(default)]
    pub wall: bool,
}

impl SandboxPolicy {
    /// Returns the first wall that is not in force.
    #[must_use]
    pub fn missing_wall(&self) -> Option<&MissingRule> {
        self.missing.iter().find(|missing| missing.wall)
    }

    /// Records a limit, and whether it is in force.
    #[cfg(target_os = "linux")]
    pub(super) fn record_limit(&mut self, rule: &str, raised: Result<(), String>) {
        self.record_rule(rule, raised, false);
    }

    /// Records a wall, and whether it is in force.
    #[cfg(target_os = "linux")]
    pub(super) fn record_wall(&mut self, rule: &str, raised: Result<(), String>) {
        self.record_rule(rule, raised, true);
    }

    #[cfg(target_os = "linux")]
    fn record_rule(&mut self, rule: &str, raised: Result<(), String>, wall: bool) {
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
