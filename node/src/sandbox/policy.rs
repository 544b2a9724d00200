//! What is between a job and the machine, as it is told, kept and shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is between a job and the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
    /// What stands.
    pub standing: Vec<String>,
    /// What does not, with the reason.
    pub missing: Vec<Missing>,
}

/// A wall that does not stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What it would be.
    pub wall: String,
    /// Why it is not.
    pub reason: String,
}

impl Walls {
    #[cfg(target_os = "linux")]
    pub(super) fn note(&mut self, wall: &str, raised: Result<(), String>) {
        match raised {
            Ok(()) => self.standing.push(wall.to_owned()),
            Err(reason) => self.leave_out(wall, &reason),
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn leave_out(&mut self, wall: &str, reason: &str) {
        self.missing.push(Missing {
            wall: wall.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.wall, self.reason)
    }
}
