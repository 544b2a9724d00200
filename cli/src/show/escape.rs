//! Escapes foreign text for a terminal.
//!
//! Names in models, messages of providers and texts of language models reach the screen. A terminal
//! obeys some characters instead of showing them: an escape sequence can rewrite earlier lines,
//! change the window's title or fill the clipboard, and a bidirectional override can show a name
//! backwards. This module writes such characters as their code points.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns the text with each character that a terminal would obey as its code point, such as
/// `\u{1b}`. Line breaks and tabs stay.
#[must_use]
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_obeyed(letter) {
            true => {
                let _ = write!(escaped, "{}", letter.escape_unicode());
            }
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

/// Returns whether a terminal acts on the character instead of showing it.
fn is_obeyed(letter: char) -> bool {
    let is_layout = matches!(letter, '\n' | '\t');
    let turns_text = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (letter.is_control() && !is_layout) || turns_text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_overrides_are_written_out() {
        let title = "\x1b]0;owned\x07 and \u{9b}2J";
        assert_eq!(
            escape_controls(title),
            "\\u{1b}]0;owned\\u{7} and \\u{9b}2J"
        );
        assert_eq!(escape_controls("a\u{202e}b\r"), "a\\u{202e}b\\u{d}");
    }

    #[test]
    fn ordinary_text_is_not_copied() {
        let text = "einé Zeile\n\tund 日本 👩‍🚀";
        assert!(matches!(escape_controls(text), Cow::Borrowed(same) if same == text));
    }
}
