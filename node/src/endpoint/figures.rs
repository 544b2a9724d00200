//! Counts the requests and tokens of an endpoint, for `souk provider status` and the metrics page.
//! A file in the provider's folder keeps the counts over restarts; no payment depends on it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use souk_folder::clock::unix_ms;
use souk_folder::config::{self, ConfigError};
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::text::Finish;

/// The file in a provider's folder.
const FIGURES_FILE: &str = "tokens.json";

/// The counts of an endpoint's requests and tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenFigures {
    /// The start of the count, in milliseconds since 1970.
    pub since_ms: u64,
    /// The requests that the engine should get at once now.
    pub slots: u32,
    /// The requests that it answers now.
    pub running: u32,
    /// Complete answers.
    pub answered: u64,
    /// Answers that the buyer ended.
    pub cancelled: u64,
    /// Requests that the engine refused.
    pub refused: u64,
    /// Requests for which the engine had no room.
    pub busy: u64,
    /// Answers that broke off: the engine failed, or the time of the tab was over.
    pub broken: u64,
    /// Billed tokens of messages that were not cached.
    pub input_tokens: u64,
    /// Billed tokens of messages that were.
    pub cached_tokens: u64,
    /// Billed tokens of answers.
    pub output_tokens: u64,
    /// Why the engine failed last; none if it has answered since.
    pub trouble: Option<String>,
}

/// Counts the requests and tokens of a running endpoint.
#[derive(Debug)]
pub(super) struct RequestCounter(Mutex<TokenFigures>);

/// A request in progress. If it is dropped without an outcome, it counts as cancelled.
pub(super) struct CountedRequest<'a> {
    counter: &'a RequestCounter,
    is_ended: bool,
}

impl TokenFigures {
    /// Reads the figures that a provider wrote into its folder; none if it sells no tokens.
    #[must_use]
    pub fn read(home: &Path) -> Option<TokenFigures> {
        let text = std::fs::read_to_string(home.join(FIGURES_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns the number of requests that have ended.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        let ends = [self.answered, self.cancelled, self.refused, self.busy];
        ends.iter()
            .fold(self.broken, |sum, it| sum.saturating_add(*it))
    }

    fn on_end(&mut self, finish: Finish, count: TokenCount) {
        let kind = match finish {
            Finish::Stop | Finish::Length | Finish::ContentFilter => &mut self.answered,
            Finish::Cancelled => &mut self.cancelled,
            Finish::Refused => &mut self.refused,
            Finish::Busy => &mut self.busy,
            Finish::Interrupted | Finish::Expired => &mut self.broken,
        };
        *kind = kind.saturating_add(1);
        self.input_tokens = self.input_tokens.saturating_add(count.input);
        self.cached_tokens = self.cached_tokens.saturating_add(count.cached);
        self.output_tokens = self.output_tokens.saturating_add(count.output);
    }
}

impl RequestCounter {
    /// Continues the count that a folder holds, or starts one.
    pub(super) fn load_or_new(home: Option<&Path>) -> RequestCounter {
        let kept = home.and_then(TokenFigures::read);
        let new = || TokenFigures {
            since_ms: unix_ms(),
            ..TokenFigures::default()
        };
        RequestCounter(Mutex::new(TokenFigures {
            running: 0,
            trouble: None,
            ..kept.unwrap_or_else(new)
        }))
    }

    /// Counts a request that begins.
    pub(super) fn begin_request(&self) -> CountedRequest<'_> {
        self.lock_figures().running += 1;
        CountedRequest {
            counter: self,
            is_ended: false,
        }
    }

    /// Returns the present counts, for an engine with this many slots.
    pub(super) fn figures(&self, slots: u32) -> TokenFigures {
        TokenFigures {
            slots,
            ..self.lock_figures().clone()
        }
    }

    fn lock_figures(&self) -> MutexGuard<'_, TokenFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CountedRequest<'_> {
    /// Counts the end of the request, with the tokens that are billed.
    pub(super) fn end(mut self, finish: Finish, count: TokenCount) {
        self.is_ended = true;
        self.counter.lock_figures().on_end(finish, count);
    }
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        let mut figures = self.counter.lock_figures();
        figures.running = figures.running.saturating_sub(1);
        if !self.is_ended {
            figures.on_end(Finish::Cancelled, TokenCount::default());
        }
    }
}

/// Writes figures into a provider's folder.
pub(super) fn store_figures(home: &Path, figures: &TokenFigures) -> Result<(), ConfigError> {
    config::write(&home.join(FIGURES_FILE), figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once_by_its_end_and_a_restart_continues_the_count() {
        let home = tempfile::tempdir().unwrap();
        let counter = RequestCounter::load_or_new(Some(home.path()));
        let count = TokenCount {
            input: 3,
            cached: 5,
            output: 7,
        };
        let ends = [
            Finish::Stop,
            Finish::Length,
            Finish::Refused,
            Finish::Expired,
        ];
        for finish in ends {
            counter.begin_request().end(finish, count);
        }
        let dropped = counter.begin_request();
        assert_eq!(counter.figures(4).running, 1);
        drop(dropped);
        let figures = counter.figures(4);
        assert_eq!((figures.running, figures.slots), (0, 4));
        assert_eq!((figures.answered, figures.cancelled), (2, 1));
        assert_eq!((figures.refused, figures.broken), (1, 1));
        assert_eq!((figures.input_tokens, figures.output_tokens), (12, 28));
        assert_eq!(figures.cached_tokens, 20);
        assert_eq!(figures.request_count(), 5);
        store_figures(home.path(), &figures).unwrap();
        let again = RequestCounter::load_or_new(Some(home.path()));
        again
            .begin_request()
            .end(Finish::Busy, TokenCount::default());
        assert_eq!(again.figures(4).request_count(), 6);
        assert_eq!(again.figures(4).since_ms, figures.since_ms);
    }
}
