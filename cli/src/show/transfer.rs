//! What is sent, at the foot of a terminal, as it goes.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use super::{bytes, is_quiet};

/// How often it is told anew.
pub const PERIOD: Duration = Duration::from_millis(500);

/// A line that is written over until another one is printed.
pub struct TransferLine {
    is_shown: bool,
    begun: u64,
    last: (u64, Instant),
    /// Letters of it that are on the screen.
    letters: usize,
}

impl TransferLine {
    /// One of what is sent beyond so many bytes; for people at a terminal alone.
    pub fn new(is_wanted: bool, sent: u64) -> Self {
        Self {
            is_shown: is_wanted && stderr().is_terminal() && !is_quiet(),
            begun: sent,
            last: (sent, Instant::now()),
            letters: 0,
        }
    }

    /// So many bytes were sent by now.
    pub fn tell(&mut self, sent: u64) {
        let (before, since) = self.last;
        let fresh = sent.saturating_sub(before);
        self.last = (sent, Instant::now());
        if !self.is_shown || (fresh == 0 && self.letters == 0) {
            return;
        }
        let text = words(sent.saturating_sub(self.begun), fresh, since.elapsed());
        let width = self.letters.max(text.len());
        self.letters = text.len();
        // A terminal that is gone is no reason to stop.
        let _ = write!(stderr(), "\r{text:width$}");
    }

    /// Makes room for another line.
    pub fn clear(&mut self) {
        let letters = std::mem::take(&mut self.letters);
        if letters > 0 {
            let _ = write!(stderr(), "\r{:letters$}\r", "");
        }
    }
}

fn words(sent: u64, fresh: u64, took: Duration) -> String {
    let rate = fresh as f64 / took.as_secs_f64().max(1e-3);
    format!("  {} sent, {}/s", bytes(sent), bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_told_with_its_rate() {
        let told = words(34_500_000, 6_000_000, Duration::from_millis(500));
        assert_eq!(told, "  34.5 MB sent, 12.0 MB/s");
        let stalled = words(34_500_000, 0, PERIOD);
        assert_eq!(stalled, "  34.5 MB sent, 0 B/s");
    }
}
