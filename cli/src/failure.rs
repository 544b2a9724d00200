//! A failure as a person or a script sees it: one line of cause, one of hint, an exit code.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::show;

/// The exit code of a command that was interrupted, as shells have it: 128 and SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Why a command ended without doing what it was asked. The numbers are documented in
/// `docs/cli.md` and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Something souk does not expect: a fault of souk or of the machine.
    Unexpected,
    /// The arguments do not parse.
    Usage,
    /// A file, a model, an input or an option is not usable.
    Input,
    /// No plan fits: an operator no device runs, nobody eligible.
    NoPlan,
    /// Peers or ports cannot be reached or used.
    Network,
    /// The job was bought and did not finish.
    Job,
    /// A signature, a digest or a result does not hold.
    Verification,
    /// A folder or a testnet is not in the state the command needs.
    State,
    /// The budget allows no more.
    Budget,
    /// The deadline allows no more.
    Deadline,
    /// The user stopped it.
    Interrupted,
}

impl Kind {
    /// The process's exit code.
    pub fn code(self) -> u8 {
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
    /// The kind of failure that another souk process ended with.
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
            .find(|kind| Some(i32::from(kind.code())) == code);
        found.unwrap_or(Kind::Unexpected)
    }
}

/// A failure with its cause and what to do about it.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// What sort of failure.
    pub kind: Kind,
    /// What went wrong, in one line.
    pub cause: String,
    /// What to do, in one line.
    pub hint: String,
    /// What a program may want to know beside: how a job ended and what it cost.
    #[serde(skip)]
    pub facts: Vec<(&'static str, serde_json::Value)>,
    /// The same for people, where it takes more than a word: lines below the hint.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// What each command returns.
pub type Outcome = Result<(), Failure>;

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, cause: impl ToString, hint: impl Into<String>) -> Failure {
        Failure {
            kind,
            cause: one_line(&cause.to_string()),
            hint: hint.into(),
            facts: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The same failure with further facts.
    pub fn with(
        mut self,
        facts: impl IntoIterator<Item = (&'static str, serde_json::Value)>,
    ) -> Failure {
        self.facts.extend(facts);
        self
    }

    /// Prints it and gives the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        if json {
            let mut error = serde_json::json!({
                "kind": self.kind, "exit_code": self.kind.code(),
                "cause": self.cause, "hint": self.hint
            });
            for (name, value) in &self.facts {
                error[name] = value.clone();
            }
            show::json(&serde_json::json!({ "error": error }));
        } else {
            let mut text = format!("error: {}\n", self.cause);
            if !self.hint.is_empty() {
                text += &format!(" hint: {}\n", self.hint);
            }
            for (name, value) in self.facts.iter().filter(|(_, value)| !value.is_array()) {
                text += &format!(" {}\n", fact(name, value));
            }
            for note in &self.notes {
                text += &format!(" {note}\n");
            }
            // The exit code says it where nothing can be written.
            let text = show::escape_controls(&text);
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        ExitCode::from(self.kind.code())
    }
}

/// A fact for people: amounts in credits.
fn fact(name: &str, value: &serde_json::Value) -> String {
    let amount = name.strip_suffix("_micro_credits").zip(value.as_u64());
    if let Some((name, micro)) = amount {
        return format!(
            "{}: {} credits",
            name.replace('_', " "),
            show::credits(micro)
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
