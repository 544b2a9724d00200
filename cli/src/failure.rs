//! Defines [`Failure`], the error with which a command ends: one line with the cause and one with a
//! hint for a person, and a kind that sets the exit code for a script. The exit codes must never
//! change their meaning.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::show;

/// The exit code of an interrupted command, by the convention of shells: 128 plus SIGINT.
pub const INTERRUPTED: u8 = 130;

/// The kind of a failure. `docs/cli.md` documents the numbers, which must never change their
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A fault of souk or of the machine that souk does not expect.
    Unexpected,
    /// The arguments do not parse.
    Usage,
    /// A file, a model, an input or an option is not usable.
    Input,
    /// No plan is possible: for example, no device runs an operator, or no ask is eligible.
    NoPlan,
    /// Peers are unreachable, or ports are not usable.
    Network,
    /// A job bought leases and did not finish.
    Job,
    /// A signature, a digest or a result is wrong.
    Verification,
    /// A folder or a testnet is not in the state that the command needs.
    State,
    /// The budget does not suffice.
    Budget,
    /// The deadline is too early.
    Deadline,
    /// The user stopped the command.
    Interrupted,
}

impl Kind {
    /// Returns the exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Unexpected => 1,
            Kind::Usage => 2,
            Kind::Input => 3,
            Kind::NoPlan => 4,
            Kind::Network => 5,
            Kind::Job => 6,
            Kind::Verification => 7,
            Kind::State => 8,
            Kind::Budget => 9,
            Kind::Deadline => 10,
            Kind::Interrupted => INTERRUPTED,
        }
    }
}

impl Kind {
    /// Returns the kind for the exit code of another souk process.
    pub fn of_code(code: Option<i32>) -> Kind {
        let kinds = [
            Kind::Input,
            Kind::NoPlan,
            Kind::Network,
            Kind::Job,
            Kind::Verification,
            Kind::State,
            Kind::Budget,
            Kind::Deadline,
        ];
        let found = kinds
            .into_iter()
            .find(|kind| Some(i32::from(kind.exit_code())) == code);
        found.unwrap_or(Kind::Unexpected)
    }
}

/// A failure with its cause and a hint.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: Kind,
    /// Cause, in one line.
    pub cause: String,
    /// What the user can do about it, in one line.
    pub hint: String,
    /// Further facts for programs: for example, how a job ended and its cost.
    #[serde(skip)]
    pub facts: Vec<(&'static str, serde_json::Value)>,
    /// Longer facts for people: lines below the hint.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The result of a command.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// Creates a failure.
    pub fn new(kind: Kind, cause: impl ToString, hint: impl Into<String>) -> Failure {
        Failure {
            kind,
            cause: one_line(&cause.to_string()),
            hint: hint.into(),
            facts: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds facts to the failure.
    pub fn with(
        mut self,
        facts: impl IntoIterator<Item = (&'static str, serde_json::Value)>,
    ) -> Failure {
        self.facts.extend(facts);
        self
    }

    /// Prints the failure and returns its exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        if json {
            let mut error = serde_json::json!({
                "kind": self.kind, "exit_code": self.kind.exit_code(),
                "cause": self.cause, "hint": self.hint
            });
            for (name, value) in &self.facts {
                error[name] = value.clone();
            }
            show::print_json(&serde_json::json!({ "error": error }));
        } else {
            let mut text = format!("error: {}\n", self.cause);
            if !self.hint.is_empty() {
                text += &format!(" hint: {}\n", self.hint);
            }
            for (name, value) in self.facts.iter().filter(|(_, value)| !value.is_array()) {
                text += &format!(" {}\n", format_fact(name, value));
            }
            for note in &self.notes {
                text += &format!(" {note}\n");
            }
            // If this cannot be written, the exit code still reports the failure.
            let text = show::escape_controls(&text);
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        ExitCode::from(self.kind.exit_code())
    }
}

/// Formats a fact for people, with amounts in credits.
fn format_fact(name: &str, value: &serde_json::Value) -> String {
    let amount = name.strip_suffix("_micro_credits").zip(value.as_u64());
    if let Some((name, micro)) = amount {
        return format!(
            "{}: {} credits",
            name.replace('_', " "),
            show::format_credits(micro)
        );
    }
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    format!("{}: {text}", name.replace('_', " "))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
