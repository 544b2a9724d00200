//! Finds the closed leases of an account in its statement (the history of its credits), for the
//! gateway's HTTP paths about leases and earnings. The market's own state soon forgets closed
//! leases.

use futures::future::join_all;
use souk_api::account::format_place;
use souk_api::lease::Closing;
use souk_network::protocols::statement::StatementLine;
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::market::{AccountKey, Event, Lease};

use crate::page::{Page, Paging};
use crate::problem::Problem;
use crate::statement_place;

/// Statement lines to search for one page: few of many orders become leases.
const LINES_MAX: usize = 4_096;

/// Returns one page of closed leases, the newest first.
///
/// # Errors
/// Fails if the market is unreachable or the paging is invalid.
pub async fn fetch_page(
    broker: &Broker,
    account: AccountKey,
    paging: &Paging,
) -> Result<Page<Closing>, Problem> {
    let limit = paging.page_limit()?;
    let mut before = statement_place::parse_cursor(paging)?;
    let (mut items, mut seen) = (Vec::new(), 0);
    loop {
        let page = broker.statement_before(account, before).await?;
        for line in &page.lines {
            items.extend(line_closings(account, line));
            before = Some(line.place);
            if items.len() >= limit {
                return Ok(Page {
                    items,
                    next: before.map(format_place),
                });
            }
        }
        seen += page.lines.len();
        let next = before.filter(|_| page.more && !page.lines.is_empty());
        if next.is_none() || seen >= LINES_MAX {
            return Ok(Page {
                items,
                next: next.map(format_place),
            });
        }
    }
}

/// Returns the leases that closed in a line. Two accounts can share a lease of a line; it appears
/// once.
pub fn line_closings(account: AccountKey, line: &StatementLine) -> impl Iterator<Item = Closing> {
    let at = line.time;
    let closing = move |event: &Event| match *event {
        Event::LeaseClosed {
            lease,
            buyer,
            provider,
            reason,
            paid,
            fee,
            refunded,
        } if buyer == account || provider == account => Some(Closing {
            lease,
            at,
            buyer,
            provider,
            reason,
            paid: paid.0,
            fee: fee.0,
            refunded: refunded.0,
        }),
        _ => None,
    };
    line.causes.iter().filter_map(closing)
}

/// Returns the market's record of each lease, `None` if the market has forgotten it.
///
/// # Errors
/// Fails if the market is unreachable.
pub async fn fetch_leases(
    broker: &Broker,
    closings: &[Closing],
) -> Result<Vec<Option<Lease>>, BrokerError> {
    let asked = closings
        .iter()
        .map(|closing| broker.fetch_lease(closing.lease));
    join_all(asked).await.into_iter().collect()
}
