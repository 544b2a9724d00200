//! Shows in the last line of a terminal how many bytes a running `souk submit` has sent, and how
//! fast. The line must be cleared before another one is printed.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use super::{format_bytes, is_quiet};

/// Period of the updates.
pub const PERIOD: Duration = Duration::from_millis(500);

/// A line that is overwritten until another one is printed.
pub struct TransferLine {
    is_shown: bool,
    begun: u64,
    last: (u64, Instant),
    /// Number of its characters on the screen.
    letters: usize,
}

impl TransferLine {
    /// Creates the line, which counts bytes beyond `sent`; it is shown only on a terminal.
    pub fn new(is_wanted: bool, sent: u64) -> Self {
        Self {
            is_shown: is_wanted && stderr().is_terminal() && !is_quiet(),
            begun: sent,
            last: (sent, Instant::now()),
            letters: 0,
        }
    }

    /// Shows that this many bytes were sent so far.
    pub fn show_progress(&mut self, sent: u64) {
        let (before, since) = self.last;
        let fresh = sent.saturating_sub(before);
        self.last = (sent, Instant::now());
        if !self.is_shown || (fresh == 0 && self.letters == 0) {
            return;
        }
        let text = format_progress(sent.saturating_sub(self.begun), fresh, since.elapsed());
        let width = self.letters.max(text.len());
        self.letters = text.len();
        // A terminal that went away is no reason to stop.
        let _ = write!(stderr(), "\r{text:width$}");
    }

    /// Removes the line. You must call this before you print another one.
    pub fn clear(&mut self) {
        let letters = std::mem::take(&mut self.letters);
        if letters > 0 {
            let _ = write!(stderr(), "\r{:letters$}\r", "");
        }
    }
}

fn format_progress(sent: u64, fresh: u64, took: Duration) -> String {
    let rate = fresh as f64 / took.as_secs_f64().max(1e-3);
    format!(
        "  {} sent, {}/s",
        format_bytes(sent),
        format_bytes(rate as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_told_with_its_rate() {
        let told = format_progress(34_500_000, 6_000_000, Duration::from_millis(500));
        assert_eq!(told, "  34.5 MB sent, 12.0 MB/s");
        let stalled = format_progress(34_500_000, 0, PERIOD);
        assert_eq!(stalled, "  34.5 MB sent, 0 B/s");
    }
}
