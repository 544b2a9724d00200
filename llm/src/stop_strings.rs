//! Finds stop strings, at which a text must end, in a text that arrives in pieces. It holds back
//! the end of a piece as long as it could begin a stop string.

/// Holds text back as long as it could become a stop string.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    pending_text: String,
}

/// The result of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// This text is certain, and more may follow.
    On(String),
    /// This text came before a stop string.
    Found(String),
}

impl StopStrings {
    /// Creates a reader that stops at the first of these strings, ignoring empty ones.
    #[must_use]
    pub fn new(mut strings: Vec<String>) -> Self {
        strings.retain(|string| !string.is_empty());
        Self {
            strings,
            pending_text: String::new(),
        }
    }

    /// Adds the next piece.
    pub fn push(&mut self, piece: &str) -> Stop {
        self.pending_text.push_str(piece);
        let found = self
            .strings
            .iter()
            .filter_map(|string| self.pending_text.find(string.as_str()));
        if let Some(end) = found.min() {
            self.pending_text.truncate(end);
            return Stop::Found(std::mem::take(&mut self.pending_text));
        }
        let sure = self.pending_text.len() - self.partial_stop_length();
        let rest = self.pending_text.split_off(sure);
        Stop::On(std::mem::replace(&mut self.pending_text, rest))
    }

    /// Returns the text held back, when the text ends by itself.
    #[must_use]
    pub fn into_rest(self) -> String {
        self.pending_text
    }

    /// Returns the length in bytes of the longest ending that begins a stop string.
    fn partial_stop_length(&self) -> usize {
        let lengths = |string: &String| {
            let most = (string.len() - 1).min(self.pending_text.len());
            let begins = |length: &usize| {
                let ending = &self.pending_text.as_bytes()[self.pending_text.len() - length..];
                string.as_bytes().starts_with(ending)
            };
            (1..=most).rev().find(begins)
        };
        self.strings.iter().filter_map(lengths).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn on(text: &str) -> Stop {
        Stop::On(text.to_owned())
    }

    #[test]
    fn what_could_become_a_stop_is_held_back_until_it_cannot() {
        let mut stops = StopStrings::new(vec!["END".to_owned(), String::new()]);
        assert_eq!(stops.push("the E"), on("the "));
        assert_eq!(stops.push("N"), on(""));
        assert_eq!(stops.push("tE"), on("ENt"));
        assert_eq!(stops.push("ND rest"), Stop::Found(String::new()));
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        let mut stops = StopStrings::new(vec!["bc".to_owned(), "ab".to_owned()]);
        assert_eq!(stops.push("xabc"), Stop::Found("x".to_owned()));
    }

    /// All that is said of a text that comes in two pieces.
    fn said(pieces: [&str; 2], stop: &str) -> String {
        let mut stops = StopStrings::new(vec![stop.to_owned()]);
        let mut said = String::new();
        for piece in pieces {
            match stops.push(piece) {
                Stop::On(text) => said.push_str(&text),
                Stop::Found(text) => return said + &text,
            }
        }
        said + &stops.into_rest()
    }

    proptest! {
        #[test]
        fn pieces_say_what_the_whole_says(
            text in "[aé]{0,12}", cut in 0usize..12, stop in "[aé]{1,3}",
        ) {
            let mut cuts = (0..=cut.min(text.len())).rev();
            let cut = cuts.find(|at| text.is_char_boundary(*at)).unwrap();
            let expected = text.find(&stop).map_or(&text[..], |end| &text[..end]);
            prop_assert_eq!(&said([&text[..cut], &text[cut..]], &stop)[..], expected);
        }
    }
}
