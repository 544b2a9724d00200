//! Answers questions about a validator's state: the closed list of questions and replies, and how
//! the exchange answers each. Bounds on the work of one answer protect the task that applies the
//! log.

use std::collections::BTreeSet;

use souk_consensus::StateMachine;
use souk_market::{
    Census, Class, Digest, Dispute, Exchange, JobId, Lease, ListingRef, MarketId, MoneyRequest,
    Totals,
};

use super::exchange::{ExchangeMachine, LogCommand, Watch, encode_result};
use crate::market::market_protocol::{Answer, Governance, MONEY_REQUESTS_MAX, Request};
use crate::market::roster::Roster;

/// The most asks in one answer, or examined for it: more would not fit a frame, and would delay the
/// task that applies the log.
const BOOK_MAX: usize = 20_000;

/// The most leases of one buyer examined for one answer, the newest first.
const LEASES_MAX: usize = 200_000;

/// The most price levels of a side in one answer.
const QUOTES_DEPTH: usize = 32;

/// A replicated machine with a closed list of questions about its state, so that reads of a
/// validator can be named, counted and simulated.
pub trait AnsweringMachine: StateMachine {
    /// The type of its questions.
    type Question: Send + 'static;
    /// The type of its replies.
    type Reply: Send + 'static;

    /// Answers from the current state.
    fn answer_question(&self, question: Self::Question) -> Self::Reply;

    /// Returns the result that refuses a command, if the current state shows that applying the
    /// command would change nothing: then it needs no place in the log.
    fn foresee_refusal(&self, _command: &Self::Command) -> Option<Vec<u8>> {
        None
    }
}

/// A question of a validator's own tasks about its state.
#[derive(Clone, Debug)]
pub enum Question {
    /// A client's question to the market. Reply: [`Reply::Market`].
    Market(Box<Request>),
    /// The members. Reply: [`Reply::Roster`].
    Roster,
    /// The counts and sums. Reply: [`Reply::Sums`].
    Sums,
    /// The hash of the state. Reply: [`Reply::Digest`].
    Digest,
    /// The disputes. Reply: [`Reply::Disputes`].
    Disputes,
}

/// A reply from the state.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The answer to a client.
    Market(Box<Answer>),
    /// The members of the roster.
    Roster(Box<Roster>),
    /// The counts, and the sums of credits.
    Sums(Box<(Census, Totals)>),
    /// The id of the market, and the hash of its state.
    Digest(MarketId, Digest),
    /// The disputes that the exchange knows.
    Disputes(Vec<Dispute>),
}

impl<W: Watch> AnsweringMachine for ExchangeMachine<W> {
    type Question = Question;
    type Reply = Reply;

    fn answer_question(&self, question: Question) -> Reply {
        let exchange = self.exchange();
        match question {
            Question::Market(request) => {
                Reply::Market(Box::new(answer_request(exchange, *request)))
            }
            Question::Roster => Reply::Roster(Box::new(self.roster().clone())),
            Question::Sums => Reply::Sums(Box::new((exchange.census(), exchange.totals()))),
            Question::Digest => Reply::Digest(exchange.market(), exchange.digest()),
            Question::Disputes => Reply::Disputes(exchange.disputes().cloned().collect()),
        }
    }

    fn foresee_refusal(&self, command: &LogCommand) -> Option<Vec<u8>> {
        let refused = match command {
            LogCommand::Batch(batch) => self.foresee_batch_refusal(batch)?,
            LogCommand::Verdict(verdict) => self.foresee_verdict_refusal(verdict)?,
            // The leader checks an order about the validators before it proposes the order.
            LogCommand::Order(_) => return None,
        };
        Some(encode_result(&refused))
    }
}

/// Returns an exchange's answer to a question about it.
#[must_use]
pub fn answer_request(exchange: &Exchange, request: Request) -> Answer {
    match request {
        Request::Book => Answer::Book(
            exchange
                .best_asks(BOOK_MAX, |_| true)
                .map(ListingRef::to_listing)
                .collect(),
        ),
        Request::Account(key) => Answer::Account(exchange.account(key).cloned().map(Box::new)),
        Request::Lease(id) => Answer::Lease(exchange.lease(id).cloned().map(Box::new)),
        Request::Leases(key) => {
            Answer::Leases(exchange.leases_of(key).into_iter().cloned().collect())
        }
        Request::JobLeases(key, jobs) => {
            let jobs: BTreeSet<JobId> = jobs.into_iter().collect();
            let named = |lease: &&Lease| jobs.contains(&lease.job);
            let newest = exchange.leases_bought_by(key).rev().take(LEASES_MAX);
            let mut found: Vec<Lease> = newest.filter(named).cloned().collect();
            found.reverse();
            Answer::Leases(found)
        }
        Request::Choose(demands) => {
            let class = demands.class();
            let counts = move |it: &Class| class.is_none_or(|class| class == *it);
            let classes = exchange.asks_by_class(BOOK_MAX, counts);
            let classes = classes.map(|class| (class.devices(), class.best_asks()));
            Answer::Chosen(Box::new(demands.choose_asks(classes)))
        }
        Request::Totals => Answer::Totals(exchange.totals()),
        Request::Quotes(class) => {
            Answer::Quotes(exchange.class_quotes(class, QUOTES_DEPTH).map(Box::new))
        }
        Request::Orders(key) => Answer::Orders(exchange.orders_of(key)),
        Request::Classes => Answer::Classes(exchange.class_summaries().collect()),
        Request::MoneyRequests(of, after) => {
            let wanted = |request: &&MoneyRequest| of.is_none_or(|key| request.account == key);
            let later = exchange.requests_after(after).filter(wanted);
            Answer::MoneyRequests(later.take(MONEY_REQUESTS_MAX).cloned().collect())
        }
        Request::AccountProof(key, root) => {
            Answer::AccountProof(exchange.prove_account(key, root).map(Box::new))
        }
        Request::Governance => Answer::Governance(Box::new(governance(exchange))),
        Request::Disputes => Answer::Disputes(exchange.disputes().cloned().collect()),
        Request::Explain(key, bid) => Answer::Explanation(exchange.explain_bid(key, &bid)),
        _ => Answer::Unavailable("this is no question to the book".to_owned()),
    }
}

fn governance(exchange: &Exchange) -> Governance {
    let (operators, operators_needed) = exchange.operators();
    let (version, upgrade) = exchange.rules_version();
    Governance {
        operators: operators.to_vec(),
        operators_needed,
        rules: exchange.rules().clone(),
        changes: exchange.pending_changes().cloned().collect(),
        approvals: exchange.pending_approvals().cloned().collect(),
        version,
        upgrade,
        now: exchange.now(),
    }
}
