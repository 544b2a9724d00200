//! Questions to a market's state, and their answers.

use std::collections::BTreeSet;

use souk_market::{Exchange, JobId, Lease};

use crate::market::words::{Answer, Request};

/// The asks of one answer: more would not fit a frame.
const BOOK_MAX: usize = 20_000;

/// Price levels of a side in one answer.
const QUOTES_DEPTH: usize = 32;

/// What an exchange answers to a question about it.
#[must_use]
pub fn answer(exchange: &Exchange, request: Request) -> Answer {
    match request {
        Request::Book => Answer::Book(exchange.asks().take(BOOK_MAX).collect()),
        Request::Account(key) => Answer::Account(exchange.account(key).cloned().map(Box::new)),
        Request::Lease(id) => Answer::Lease(exchange.lease(id).cloned().map(Box::new)),
        Request::Leases(key) => {
            let open = exchange.leases().filter(|lease| !lease.is_closed());
            let mine = open.filter(|lease| lease.buyer == key || lease.provider == key);
            Answer::Leases(mine.cloned().collect())
        }
        Request::JobLeases(key, jobs) => {
            let jobs: BTreeSet<JobId> = jobs.into_iter().collect();
            let mine = |lease: &&Lease| lease.buyer == key && jobs.contains(&lease.job);
            Answer::Leases(exchange.leases().filter(mine).cloned().collect())
        }
        Request::Choose(demands) => Answer::Chosen(Box::new(demands.choose(exchange.asks()))),
        Request::Totals => Answer::Totals(exchange.totals()),
        Request::Quotes(class) => {
            Answer::Quotes(exchange.quotes(class, QUOTES_DEPTH).map(Box::new))
        }
        Request::Explain(key, bid) => Answer::Explanation(exchange.explain(key, &bid)),
        _ => Answer::Unavailable("this is no question to the book".to_owned()),
    }
}
