//! Questions to a validator's state, and their answers.

use std::collections::BTreeSet;

use souk_consensus::StateMachine;
use souk_market::{Census, Digest, Exchange, JobId, Lease, MarketId, MoneyRequest, Totals};

use super::exchange::{ExchangeMachine, Watch};
use crate::market::roster::Roster;
use crate::market::words::{Answer, Governance, MONEY_REQUESTS_MAX, Request};

/// The asks of one answer, or looked at for it: more would not fit a frame, and would hold up the
/// task that applies the log.
const BOOK_MAX: usize = 20_000;

/// The leases looked at for one answer, the newest first: all that are usually known.
const LEASES_MAX: usize = 200_000;

/// Price levels of a side in one answer.
const QUOTES_DEPTH: usize = 32;

/// A replicated machine that is asked about its state: a closed list of questions, so that what is
/// read of a validator can be told, counted and played.
pub trait AnsweringMachine: StateMachine {
    /// What can be asked.
    type Question: Send + 'static;
    /// What is answered.
    type Reply: Send + 'static;

    /// Answers from the state as it is.
    fn answer(&self, question: Self::Question) -> Self::Reply;
}

/// What a validator's own tasks ask of its state.
#[derive(Clone, Debug)]
pub enum Question {
    /// What a client asks of the market: [`Reply::Market`].
    Market(Box<Request>),
    /// Who the members are: [`Reply::Roster`].
    Roster,
    /// How much of everything there is: [`Reply::Sums`].
    Sums,
    /// What the state hashes to: [`Reply::Digest`].
    Digest,
}

/// What the state says.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To a client.
    Market(Box<Answer>),
    /// The members.
    Roster(Box<Roster>),
    /// Counts, and sums of credits.
    Sums(Box<(Census, Totals)>),
    /// Of which market, and the hash.
    Digest(MarketId, Digest),
}

impl<W: Watch> AnsweringMachine for ExchangeMachine<W> {
    type Question = Question;
    type Reply = Reply;

    fn answer(&self, question: Question) -> Reply {
        let exchange = self.exchange();
        match question {
            Question::Market(request) => Reply::Market(Box::new(answer(exchange, *request))),
            Question::Roster => Reply::Roster(Box::new(self.roster().clone())),
            Question::Sums => Reply::Sums(Box::new((exchange.census(), exchange.totals()))),
            Question::Digest => Reply::Digest(exchange.market(), exchange.digest()),
        }
    }
}

/// What an exchange answers to a question about it.
#[must_use]
pub fn answer(exchange: &Exchange, request: Request) -> Answer {
    match request {
        Request::Book => Answer::Book(exchange.best_asks(BOOK_MAX).collect()),
        Request::Account(key) => Answer::Account(exchange.account(key).cloned().map(Box::new)),
        Request::Lease(id) => Answer::Lease(exchange.lease(id).cloned().map(Box::new)),
        Request::Leases(key) => {
            Answer::Leases(exchange.leases_of(key).into_iter().cloned().collect())
        }
        Request::JobLeases(key, jobs) => {
            let jobs: BTreeSet<JobId> = jobs.into_iter().collect();
            let mine = |lease: &&Lease| lease.buyer == key && jobs.contains(&lease.job);
            let newest = exchange.leases().rev().take(LEASES_MAX);
            let mut found: Vec<Lease> = newest.filter(mine).cloned().collect();
            found.reverse();
            Answer::Leases(found)
        }
        Request::Choose(demands) => {
            Answer::Chosen(Box::new(demands.choose(exchange.best_asks(BOOK_MAX))))
        }
        Request::Totals => Answer::Totals(exchange.totals()),
        Request::Quotes(class) => {
            Answer::Quotes(exchange.quotes(class, QUOTES_DEPTH).map(Box::new))
        }
        Request::Orders(key) => Answer::Orders(exchange.orders_of(key)),
        Request::Classes => Answer::Classes(exchange.class_summaries().collect()),
        Request::MoneyRequests(of, after) => {
            let wanted = |request: &&MoneyRequest| of.is_none_or(|key| request.account == key);
            let later = exchange.requests_after(after).filter(wanted);
            Answer::MoneyRequests(later.take(MONEY_REQUESTS_MAX).cloned().collect())
        }
        Request::Governance => Answer::Governance(Box::new(governance(exchange))),
        Request::Explain(key, bid) => Answer::Explanation(exchange.explain(key, &bid)),
        _ => Answer::Unavailable("this is no question to the book".to_owned()),
    }
}

fn governance(exchange: &Exchange) -> Governance {
    let (operators, operators_needed) = exchange.operators();
    let (version, upgrade) = exchange.version();
    Governance {
        operators: operators.to_vec(),
        operators_needed,
        rules: exchange.rules().clone(),
        changes: exchange.changes().cloned().collect(),
        approvals: exchange.approvals().cloned().collect(),
        version,
        upgrade,
        now: exchange.now(),
    }
}
