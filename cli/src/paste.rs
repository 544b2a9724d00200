//! Commands that can be pasted: with this market's folder, or the very one that was given.

use std::path::Path;
use std::sync::OnceLock;

/// The folder where none is named.
pub const DIR: &str = "souk-testnet";

/// What each command begins with.
static BEGINS: OnceLock<String> = OnceLock::new();

/// Says in which folder commands work; told once, before any is printed.
pub fn work_in(folder: &Path) {
    let text = match folder == Path::new(DIR) {
        true => "souk".to_owned(),
        false => format!("souk --dir {}", quoted(&folder.to_string_lossy())),
    };
    // Told twice, the first stands.
    let _ = BEGINS.set(text);
}

/// A command of this market.
pub fn command(words: &str) -> String {
    format!("{} {words}", BEGINS.get().map_or("souk", String::as_str))
}

/// The command that was given, with these options in place of what it said of them.
pub fn again(options: &[(&str, &str)]) -> String {
    let given = std::env::args_os().skip(1);
    let given = given.map(|word| word.to_string_lossy().into_owned());
    let kept = without(given, options);
    let kept = kept.iter().map(|word| quoted(word));
    let new = options
        .iter()
        .map(|(name, value)| format!("{name} {value}"));
    let words: Vec<String> = kept.chain(new).collect();
    format!("souk {}", words.join(" "))
}

/// The words of a command without some options and their values.
fn without(words: impl Iterator<Item = String>, options: &[(&str, &str)]) -> Vec<String> {
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

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
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
        let left = without(given.map(str::to_owned).into_iter(), &options);
        assert_eq!(left, ["submit", "m.onnx", "-o", "out"]);
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_would_change_it() {
        assert_eq!(quoted("x=a/b.npy"), "x=a/b.npy");
        assert_eq!(quoted("my model.onnx"), "'my model.onnx'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
