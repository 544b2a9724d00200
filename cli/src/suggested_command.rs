//! Formats `souk` commands for messages, so that users can paste them: a new command with this
//! market's `--dir`, or the current command with changed options.

use std::path::Path;
use std::sync::OnceLock;

/// The default folder.
pub const DIR: &str = "souk-testnet";

/// Beginning of each command.
static BEGINS: OnceLock<String> = OnceLock::new();

/// Sets the folder of the printed commands. You should call it once, before you print any.
pub fn work_in(folder: &Path) {
    let text = match folder == Path::new(DIR) {
        true => "souk".to_owned(),
        false => format!("souk --dir {}", quote_word(&folder.to_string_lossy())),
    };
    // If this runs twice, the first folder stays.
    let _ = BEGINS.set(text);
}

/// Returns a command for this market.
pub fn market_command(words: &str) -> String {
    format!("{} {words}", BEGINS.get().map_or("souk", String::as_str))
}

/// Returns the current command with these options in place of their earlier values.
pub fn command_with(options: &[(&str, &str)]) -> String {
    let given = std::env::args_os().skip(1);
    let given = given.map(|word| word.to_string_lossy().into_owned());
    let kept = without_options(given, options);
    let kept = kept.iter().map(|word| quote_word(word));
    let new = options
        .iter()
        .map(|(name, value)| format!("{name} {value}"));
    let words: Vec<String> = kept.chain(new).collect();
    format!("souk {}", words.join(" "))
}

/// Returns the words of a command without some options and their values.
fn without_options(words: impl Iterator<Item = String>, options: &[(&str, &str)]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut is_value = false;
    for word in words {
        if std::mem::take(&mut is_value) {
            continue;
        }
        let (name, has_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.as_str(), false),
        };
        match options.iter().any(|(option, _)| *option == name) {
            true => is_value = !has_value,
            false => kept.push(word),
        }
    }
    kept
}

/// Quotes a word for a shell.
fn quote_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@+%".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_replaced_however_it_was_given() {
        let given = [
            "submit",
            "m.onnx",
            "--budget",
            "1",
            "--prefer=fastest",
            "-o",
            "out",
        ];
        let options = [("--budget", "2"), ("--prefer", "cheapest")];
        let left = without_options(given.map(str::to_owned).into_iter(), &options);
        assert_eq!(left, ["submit", "m.onnx", "-o", "out"]);
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_would_change_it() {
        assert_eq!(quote_word("x=a/b.npy"), "x=a/b.npy");
        assert_eq!(quote_word("my model.onnx"), "'my model.onnx'");
        assert_eq!(quote_word("it's"), "'it'\\''s'");
        assert_eq!(quote_word(""), "''");
    }
}
