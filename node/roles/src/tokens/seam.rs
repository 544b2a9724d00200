//! Checks the *seam* of an answer, where a second provider continues the text of a first one that
//! did not end it. An engine can ignore the request to continue, and begin the answer again or
//! reason again; such text must not reach the reader.

use super::text::AnswerText;

/// A continuation that begins with this many bytes of the first text, or with all of a shorter one,
/// has begun the answer again.
const RESTART_BYTES: usize = 48;

/// A shorter beginning can be the same by chance.
const RESTART_BYTES_MIN: usize = 12;

/// The beginning of a continuation, until it is certain that it continues.
#[derive(Clone, Debug, Default)]
pub struct Seam {
    /// The beginning of the whole answer; empty if it is too short to be recognised.
    head: String,
    /// The white space at the end of the first text. The request leaves it out, so the second
    /// provider can repeat it.
    space: String,
    /// Whether the first text has content, so that thoughts cannot follow it.
    has_content: bool,
    held: String,
}

/// The next step at a seam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeamStep {
    /// It is not certain yet: wait for more text.
    Hold,
    /// The text continues the first one. All text after it does too.
    Pass(AnswerText),
    /// The text does not continue the first one.
    Refuse(SeamFault),
}

/// Why text does not continue another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeamFault {
    /// It begins like the first one.
    #[error("the engine began the answer anew")]
    Restart,
    /// It has reasoning, after content.
    #[error("the engine began to reason in the middle of the answer")]
    Reasoning,
}

impl Seam {
    /// Creates the seam after a text; none if there is no text to continue.
    #[must_use]
    pub fn after(text: &AnswerText) -> Seam {
        let content = text.content.as_str();
        let trimmed = content.trim_end();
        // An engine that begins anew may begin with other white space.
        let begun = trimmed.trim_start();
        let mut end = begun.len().min(RESTART_BYTES);
        while !begun.is_char_boundary(end) {
            end -= 1;
        }
        let head = match end >= RESTART_BYTES_MIN {
            true => &begun[..end],
            false => "",
        };
        Seam {
            head: head.to_owned(),
            space: content[trimmed.len()..].to_owned(),
            has_content: !trimmed.is_empty(),
            held: String::new(),
        }
    }

    /// Adds a piece of the continuation.
    #[must_use]
    pub fn push(&mut self, piece: AnswerText) -> SeamStep {
        let AnswerText { reasoning, content } = piece;
        if !reasoning.is_empty() && self.has_content {
            return SeamStep::Refuse(SeamFault::Reasoning);
        }
        self.held.push_str(&content);
        let begun = self.held.trim_start();
        if !self.head.is_empty() && begun.starts_with(&self.head) {
            return SeamStep::Refuse(SeamFault::Restart);
        }
        let can_restart = self.head.starts_with(begun) && !self.head.is_empty();
        let can_repeat = self.space.starts_with(&self.held) && !self.space.is_empty();
        match reasoning.is_empty() && (can_restart || can_repeat) {
            true => SeamStep::Hold,
            false => SeamStep::Pass(AnswerText {
                reasoning,
                content: self.take_held(),
            }),
        }
    }

    /// Returns the text that was held, at the end of a short continuation.
    #[must_use]
    pub fn take_held(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        let is_same = |(one, other): &(char, char)| one == other;
        let repeated = self.space.chars().zip(held.chars()).take_while(is_same);
        let repeated: usize = repeated.map(|(letter, _)| letter.len_utf8()).sum();
        held[repeated..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &str) -> AnswerText {
        AnswerText {
            content: content.to_owned(),
            ..AnswerText::default()
        }
    }

    /// Returns the text that passes, however it is cut, or the fault.
    fn join(first: &str, second: &str) -> Result<String, SeamFault> {
        let mut joined = Vec::new();
        for cut in 1..=second.len() {
            let mut seam = Seam::after(&text(first));
            let (mut passed, mut fault, mut is_open) = (first.to_owned(), None, true);
            for piece in second.as_bytes().chunks(cut) {
                let piece = text(std::str::from_utf8(piece).unwrap());
                if !is_open {
                    passed.push_str(&piece.content);
                    continue;
                }
                match seam.push(piece) {
                    SeamStep::Hold => {}
                    SeamStep::Pass(text) => {
                        is_open = false;
                        passed.push_str(&text.content);
                    }
                    SeamStep::Refuse(refused) => {
                        fault = Some(refused);
                        break;
                    }
                }
            }
            passed.push_str(&seam.take_held());
            joined.push(fault.map_or(Ok(passed), Err));
        }
        assert!(joined.windows(2).all(|two| two[0] == two[1]), "{joined:?}");
        joined.remove(0)
    }

    #[test]
    fn a_continuation_follows_however_it_is_cut() {
        let whole = Ok("A market is where strangers trade.".to_owned());
        assert_eq!(join("A market is where", " strangers trade."), whole);
        // White space at the end was not sent, and comes again or not.
        assert_eq!(join("A market is where ", " strangers trade."), whole);
        assert_eq!(join("A market is where ", "strangers trade."), whole);
        assert_eq!(join("a\n\n", "\n\n\nb"), Ok("a\n\n\nb".to_owned()));
        assert_eq!(join("A market is", " "), Ok("A market is ".to_owned()));
        assert_eq!(join("", "A market"), Ok("A market".to_owned()));
        // A short beginning can come again by chance.
        assert_eq!(join("ha ", "ha ha"), Ok("ha ha ha".to_owned()));
    }

    #[test]
    fn an_engine_that_begins_anew_or_thinks_again_is_refused() {
        let again = join("A market is where", "A market is where strangers");
        assert_eq!(again, Err(SeamFault::Restart));
        let long = "x".repeat(100);
        assert_eq!(join(&long, &long[..50]), Err(SeamFault::Restart));
        // Templates put white space before an answer, or not.
        for (first, second) in [("", "\n\n"), ("\n\n", ""), ("\n", " ")] {
            let again = join(
                &format!("{first}A market is where"),
                &format!("{second}A market is where strangers"),
            );
            assert_eq!(again, Err(SeamFault::Restart), "{first:?} {second:?}");
        }
        let thought = || AnswerText {
            reasoning: "hm".to_owned(),
            content: String::new(),
        };
        let refused = Seam::after(&text("A")).push(thought());
        assert_eq!(refused, SeamStep::Refuse(SeamFault::Reasoning));
        // Where there was no content yet, the answer begins anew, and can think again.
        let passed = Seam::after(&AnswerText::default()).push(thought());
        assert_eq!(passed, SeamStep::Pass(thought()));
    }
}
