//! Asks the market questions: one method of [`Broker`] for each, which returns the matching type of
//! answer.

use souk_folder::contact::Contact;
use souk_market::{
    Account, AccountKey, Bid, Class, ClassSummary, Dispute, Explanation, JobId, Lease, LeaseId,
    Listing, MoneyRequest, OpenOrder, Quotes, Refusal, RequestId, Totals,
};
use souk_network::protocols::demands::{Choice, Demands};
use souk_network::protocols::market::{
    Answer, Governance, MONEY_REQUESTS_MAX, Members, NAMED_MAX, Request, Status,
};
use souk_roles::market::statement::{LogPlace, Statement};

use super::{AttemptError, Broker, BrokerError};

/// Sends a request and returns its answer; fails if the answer belongs to another request.
macro_rules! asked {
    ($broker:expr, $request:expr, $answer:pat => $value:expr) => {
        match $broker.ask(&$request).await? {
            $answer => Ok($value),
            _ => Err(BrokerError::Confused),
        }
    };
}

impl Broker {
    /// Returns every ask in the book.
    pub async fn fetch_book(&self) -> Result<Vec<Listing>, BrokerError> {
        asked!(self, Request::Book, Answer::Book(asks) => asks)
    }

    /// Returns the cheapest suitable asks of each class, and why the others do not suit.
    pub async fn choose_asks(&self, demands: Demands) -> Result<Choice, BrokerError> {
        let request = Request::Choose(Box::new(demands));
        asked!(self, request, Answer::Chosen(choice) => *choice)
    }

    /// Returns every lease for these jobs; closed ones as long as the market keeps them.
    pub async fn job_leases(
        &self,
        buyer: AccountKey,
        jobs: &[JobId],
    ) -> Result<Vec<Lease>, BrokerError> {
        let mut all = Vec::new();
        for jobs in jobs.chunks(NAMED_MAX) {
            let request = Request::JobLeases(buyer, jobs.to_vec());
            let leases: Vec<Lease> = asked!(self, request, Answer::Leases(leases) => leases)?;
            all.extend(leases);
        }
        Ok(all)
    }

    /// Returns an account, if it is registered.
    pub async fn fetch_account(&self, key: AccountKey) -> Result<Option<Account>, BrokerError> {
        asked!(self, Request::Account(key), Answer::Account(account) => account.map(|a| *a))
    }

    /// Returns the requests for credits in or out that wait for the operator, of one account or of
    /// all, oldest first.
    pub async fn money_requests(
        &self,
        of: Option<AccountKey>,
    ) -> Result<Vec<MoneyRequest>, BrokerError> {
        let mut all: Vec<MoneyRequest> = Vec::new();
        loop {
            let after = all.last().map_or(RequestId(0), |last| last.id);
            let request = Request::MoneyRequests(of, after);
            let page: Vec<MoneyRequest> =
                asked!(self, request, Answer::MoneyRequests(requests) => requests)?;
            // Stop if a validator repeats a page; otherwise the loop might never end.
            let is_last = page.len() < MONEY_REQUESTS_MAX;
            let goes_on = page.first().is_some_and(|first| first.id > after);
            all.extend(page);
            if is_last || !goes_on {
                return Ok(all);
            }
        }
    }

    /// Returns how the operators run the market: its operators, its rules, and their pending
    /// changes.
    pub async fn fetch_governance(&self) -> Result<Governance, BrokerError> {
        asked!(self, Request::Governance, Answer::Governance(found) => *found)
    }

    /// Returns the open disputes and the last closed ones, oldest first.
    pub async fn fetch_disputes(&self) -> Result<Vec<Dispute>, BrokerError> {
        asked!(self, Request::Disputes, Answer::Disputes(disputes) => disputes)
    }

    /// Returns the orders of an account that rest in the books, oldest first.
    pub async fn fetch_orders(&self, account: AccountKey) -> Result<Vec<OpenOrder>, BrokerError> {
        asked!(self, Request::Orders(account), Answer::Orders(orders) => orders)
    }

    /// Returns at most `most` movements of an account's credits, newest first, and whether there
    /// are older ones. The answer is that of one validator, which can lack some.
    pub async fn fetch_statement(
        &self,
        account: AccountKey,
        most: usize,
    ) -> Result<Statement, BrokerError> {
        let mut all = Statement {
            lines: Vec::new(),
            more: true,
        };
        while all.more && all.lines.len() < most {
            let before = all.lines.last().map(|line| line.place);
            let page = self.statement_before(account, before).await?;
            all.more = page.more;
            all.lines.extend(page.lines);
        }
        all.more |= all.lines.len() > most;
        all.lines.truncate(most);
        Ok(all)
    }

    /// Returns one page of movements before a place in the log, newest first; without a place, the
    /// newest of all.
    pub async fn statement_before(
        &self,
        account: AccountKey,
        before: Option<LogPlace>,
    ) -> Result<Statement, BrokerError> {
        let request = Request::Statement(account, before);
        asked!(self, request, Answer::Statement(page) => page)
    }

    /// Returns a summary of every class that was ever traded or quoted.
    pub async fn fetch_classes(&self) -> Result<Vec<ClassSummary>, BrokerError> {
        asked!(self, Request::Classes, Answer::Classes(classes) => classes)
    }

    /// Returns a lease, if the market knows it.
    pub async fn fetch_lease(&self, id: LeaseId) -> Result<Option<Lease>, BrokerError> {
        asked!(self, Request::Lease(id), Answer::Lease(lease) => lease.map(|l| *l))
    }

    /// Returns the open leases of an account.
    pub async fn fetch_leases(&self, key: AccountKey) -> Result<Vec<Lease>, BrokerError> {
        asked!(self, Request::Leases(key), Answer::Leases(leases) => leases)
    }

    /// Returns the sums over all accounts.
    pub async fn fetch_totals(&self) -> Result<Totals, BrokerError> {
        asked!(self, Request::Totals, Answer::Totals(totals) => totals)
    }

    /// Returns the prices of a class, if it was ever quoted.
    pub async fn fetch_quotes(&self, class: Class) -> Result<Option<Quotes>, BrokerError> {
        asked!(self, Request::Quotes(class), Answer::Quotes(quotes) => quotes.map(|q| *q))
    }

    /// Returns which asks suit a bid, and why the others do not.
    pub async fn explain_bid(
        &self,
        key: AccountKey,
        bid: Bid,
    ) -> Result<Result<Explanation, Refusal>, BrokerError> {
        let request = Request::Explain(key, Box::new(bid));
        asked!(self, request, Answer::Explanation(explanation) => explanation)
    }

    /// Returns the addresses of these accounts' peers that validators know. Asks every validator
    /// until it has found all, because a peer can announce itself only to the validators that it
    /// reaches.
    pub async fn find_contacts(&self, keys: &[AccountKey]) -> Result<Vec<Contact>, BrokerError> {
        let request = Request::Find(keys.to_vec());
        let mut found = asked!(self, request, Answer::Found(found) => found)?;
        for validator in self.validators().iter() {
            if found.len() == keys.len() {
                break;
            }
            if let Ok(Answer::Found(more)) = self.ask_one(*validator, &request).await {
                found.extend(more);
                found.sort_by_key(|contact| contact.account);
                found.dedup_by_key(|contact| contact.account);
            }
        }
        Ok(found.iter().map(Contact::from).collect())
    }

    /// Announces this node's addresses to every validator. Returns how many confirmed it.
    pub async fn announce_addresses(&self) -> usize {
        let addresses = self.network.own_addresses().await;
        let request = Request::Announce(addresses.iter().map(ToString::to_string).collect());
        let validators = self.validators();
        let asked = validators.iter().map(|peer| self.ask_one(*peer, &request));
        let heard = futures::future::join_all(asked).await;
        heard
            .iter()
            .filter(|answer| matches!(answer, Ok(Answer::Done)))
            .count()
    }

    /// Returns the validators, as one of them knows them.
    pub async fn fetch_members(&self) -> Result<Members, BrokerError> {
        asked!(self, Request::Members, Answer::Members(members) => members)
    }

    /// Returns the status of each validator, in the broker's order.
    pub async fn fetch_statuses(&self) -> Vec<Result<Status, AttemptError>> {
        let validators = self.validators();
        let asked = validators.iter().map(|peer| async {
            match self.ask_one(*peer, &Request::Status).await? {
                Answer::Status(status) => Ok(status),
                other => Err(AttemptError::Unavailable(format!("it answered {other:?}"))),
            }
        });
        futures::future::join_all(asked).await
    }
}
