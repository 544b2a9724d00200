//! Sorts the commands into groups for `souk --help`, each under a heading. Each command is in
//! exactly one group.

use clap::Command;

use super::examples::COLUMNS;

/// A heading, and the commands below it.
type Group = (&'static str, &'static [&'static str]);

/// Each command is in exactly one group.
const GROUPS: &[Group] = &[
    ("Try it", &["demo", "testnet", "doctor"]),
    (
        "Buy",
        &[
            "plan", "submit", "train", "generate", "chat", "openai", "job", "model", "book",
            "account", "balance", "order", "lease", "receipt", "dispute",
        ],
    ),
    ("Sell", &["provider", "device"]),
    (
        "Run a market",
        &["market", "validator", "operator", "audit", "key", "peers"],
    ),
    (
        "Develop and monitor",
        &[
            "serve",
            "dashboard",
            "top",
            "config",
            "debug",
            "bench",
            "completions",
            "man",
        ],
    ),
];

/// Placeholders that clap fills before and after the groups.
const BEFORE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n";
const AFTER: &str = "\nGlobal options:\n{options}{after-help}";

/// Adds a help template that lists the subcommands by group.
pub fn with(command: Command) -> Command {
    let mut text = String::from(BEFORE);
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        let known = names
            .iter()
            .filter_map(|name| command.find_subcommand(name));
        for sub in known {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format_entry(sub.get_name(), &about);
        }
        text += "\n";
    }
    let text = format!("{}{AFTER}", text.trim_end_matches('\n').to_owned() + "\n");
    command.help_template(text)
}

/// Formats a command and its description in lines that fit a terminal.
fn format_entry(name: &str, about: &str) -> String {
    const INDENT: usize = 15;
    let mut text = format!("  {name:<13}");
    let mut column = INDENT;
    for word in about.split_whitespace() {
        if column > INDENT && column + 1 + word.chars().count() > COLUMNS {
            text += &format!("\n{:INDENT$}", "");
            column = INDENT;
        }
        if column > INDENT {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += word.chars().count();
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Args;
    use super::*;

    #[test]
    fn each_command_stands_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        let command = Args::command();
        let mut known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        #[cfg(not(feature = "generate"))]
        grouped.retain(|name| !["generate", "chat", "openai"].contains(name));
        #[cfg(not(feature = "gateway"))]
        grouped.retain(|name| !["serve", "dashboard"].contains(name));
        assert_eq!(grouped, known);
    }
}
