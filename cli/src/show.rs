//! Prints the results of commands: tables for people, JSON for programs. Most submodules print one
//! kind of result, and this file has the formats that they share.

pub mod balance;
pub mod book;
pub mod certification;
pub mod device;
pub mod dispute;
mod escape;
pub mod governance;
pub mod held_credits;
pub mod history;
pub mod job;
pub mod jobs;
pub mod learned_costs;
pub mod market;
pub mod members;
pub mod model;
pub mod money;
pub mod plan;
pub mod power;
pub mod progress;
pub mod provider;
pub mod receipt;
pub mod statistics;
pub mod status;
mod table;
pub mod text_offers;
pub mod times;
pub mod trade;
pub mod transfer;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;
use souk_folder::clock;
use souk_network::protocols::market::Age;
use time::OffsetDateTime;

use crate::args::{GlobalArgs, Output};

pub use escape::escape_controls;
pub use souk_node::buyer::names::{
    Names, account_name, provider_name, provider_names, provider_of,
};
pub use souk_node::buyer::plan_json::format_seconds;
pub use table::Table;

const DAY_SECONDS: u64 = 86_400;

/// Whether each entry of a list is a line of its own.
static IS_BY_LINE: AtomicBool = AtomicBool::new(false);
/// Whether only results are printed.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Sets the form of the output.
pub fn set_output_form(everywhere: &GlobalArgs) {
    if everywhere.wide {
        table::print_wide();
    }
    IS_BY_LINE.store(everywhere.is_by_line(), Ordering::Relaxed);
    IS_QUIET.store(everywhere.quiet, Ordering::Relaxed);
}

/// Returns whether each event is printed as JSON when it happens.
pub fn is_by_line() -> bool {
    IS_BY_LINE.load(Ordering::Relaxed)
}

/// Returns whether only results are printed.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints a value as one line of JSON, or a list with a line for each entry if that is set.
pub fn print_json(value: &impl Serialize) {
    let text = match is_by_line() {
        false => serde_json::to_string(value),
        true => serde_json::to_value(value).map(|value| by_line(&value)),
    };
    match text {
        Ok(text) if text.is_empty() => {}
        // Programs read this, and JSON escapes control characters itself.
        Ok(text) => drop(writeln!(std::io::stdout(), "{text}")),
        Err(error) => eprintln!("error: cannot write JSON: {error}"),
    }
}

/// Returns a line for each entry of a list, or of an object whose only field is a list.
fn by_line(value: &Value) -> String {
    let entries = match value {
        Value::Array(entries) => Some(entries),
        Value::Object(fields) if fields.len() == 1 => {
            fields.values().next().and_then(Value::as_array)
        }
        _ => None,
    };
    let Some(entries) = entries else {
        return value.to_string();
    };
    let lines: Vec<String> = entries.iter().map(Value::to_string).collect();
    lines.join("\n")
}
/// Prints a line of text, or its facts as JSON.
pub fn print_result(output: Output, facts: &Value, text: &str) {
    match output {
        Output::Json => print_json(facts),
        Output::Text => print_line(text),
    }
}

/// Prints a line to standard output. A reader that went away is no reason to stop half-way.
pub fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", escape_controls(text));
}

/// Prints a line that is not a result to standard error, unless the user wants only results. A
/// reader that went away is no reason to stop half-way.
pub fn print_notice(text: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(std::io::stderr(), "{}", escape_controls(text));
}

/// Prints how old the following answers are, if they came from one validator alone.
pub fn print_age(age: Option<Age>) {
    let Some(age) = age else {
        return;
    };
    let ago = match age.age_ms {
        0 => "just now".to_owned(),
        ms => format!("{} ago", format_seconds(ms as f64 / 1e3)),
    };
    print_line(&format!(
        "as of entry {} of one validator's log, which heard from a leader {ago}: it may lack what \
         was acknowledged since",
        age.applied,
    ));
}

/// Adds fields to a JSON object.
pub fn with<const N: usize>(mut object: Value, fields: [(&str, Value); N]) -> Value {
    for (name, value) in fields {
        object[name] = value;
    }
    object
}

/// Replaces the accounts of providers in a text by their names.
pub fn replace_accounts(text: &str, names: &Names) -> String {
    names.iter().fold(text.to_owned(), |text, (account, name)| {
        text.replace(&format!("provider {account}"), name)
            .replace(&account.to_string(), name)
    })
}

/// Returns a number with a noun whose plural ends in s.
pub fn format_count(many: impl Into<u64>, what: &str) -> String {
    match many.into() {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    }
}

/// Converts a count for [`format_count`].
pub fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns a device's model or label, marked once if the device is emulated.
pub fn device_label(model: &str, emulated: bool) -> String {
    const MARK: &str = " (emulated)";
    let mark = if emulated && !model.ends_with(MARK) {
        MARK
    } else {
        ""
    };
    format!("{model}{mark}")
}

/// Formats micro-credits as credits.
pub fn format_credits(micro: u64) -> String {
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

/// Returns the first digits of an account or id.
pub fn short_id(id: &impl ToString) -> String {
    id.to_string().chars().take(8).collect()
}

/// Formats a time in milliseconds since 1970 as the time of day in UTC, with the date if it is not
/// today.
pub fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000 % DAY_SECONDS;
    let time = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    );
    let day = |ms: u64| ms / 1_000 / DAY_SECONDS;
    let date = i64::try_from(unix_ms / 1_000)
        .ok()
        .filter(|_| day(unix_ms) != day(clock::unix_ms()))
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    match date {
        Some(moment) => format!("{} {time}", moment.date()),
        None => time,
    }
}

/// Formats a number of bytes with a suitable unit.
pub fn format_bytes(count: u64) -> String {
    format_scaled(count as f64, "B")
}

/// Formats a count with a suitable decimal prefix.
pub fn format_scaled(count: f64, unit: &str) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(size, _)| count >= *size) {
        Some((size, prefix)) => format!("{:.1} {prefix}{unit}", count / size),
        None => format!("{count:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_another_day_has_its_date() {
        assert_eq!(time_of_day(86_400_000 + 3_661_000), "1970-01-02 01:01:01");
        let now = clock::unix_ms();
        assert!(!time_of_day(now).contains('-') || !time_of_day(clock::unix_ms()).contains('-'));
    }

    #[test]
    fn a_list_is_a_line_for_each_entry() {
        let jobs = serde_json::json!({ "jobs": [{ "job": "a" }, { "job": "b" }] });
        assert_eq!(by_line(&jobs), "{\"job\":\"a\"}\n{\"job\":\"b\"}");
        assert_eq!(by_line(&jobs["jobs"]), by_line(&jobs));
        assert_eq!(by_line(&serde_json::json!({ "jobs": [] })), "");
        let plan = serde_json::json!({ "parts": [1], "price": 2 });
        assert_eq!(by_line(&plan), plan.to_string());
    }

    #[test]
    fn amounts_keep_every_micro_credit() {
        assert_eq!(format_credits(100_000_000), "100.000000");
        assert_eq!(format_credits(7), "0.000007");
    }

    #[test]
    fn figures_take_the_unit_that_suits_them() {
        assert_eq!(format_bytes(143_545), "143.5 kB");
        assert_eq!(format_scaled(1.25e15, "FLOP/s"), "1.2 PFLOP/s");
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_seconds(0.0031), "3.10 ms");
        assert_eq!(format_count(1_u32, "lease"), "1 lease");
        assert_eq!(format_count(2_u32, "lease"), "2 leases");
    }
}
