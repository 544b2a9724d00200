//! `souk submit --bid`: places a bid at the buyer's own price, waits for a match, then runs the
//! job.

use std::time::Duration;

use souk_folder::clock::unix_ms;
use souk_node::buyer::job::Job;
use souk_node::buyer::resting_bid::{LimitPrice, RestingError};
use souk_node::buyer::{Buyer, Quote, QuoteError};
use souk_node::market::{JobId, Lease, LeaseState, Millis, OrderId, Price};

use super::{from_quote, with_held};
use crate::args::SubmitArgs;
use crate::commands::account::from_trade;
use crate::failure::{Failure, Kind};
use crate::folder::unreachable_market;
use crate::{show, stop, suggested_command};
use souk_node::buyer::job_files::JobFiles;

/// Plans a job. If no ask is at or below the bid price, plans over dearer asks at the bid price and
/// returns the bid.
pub async fn quote_with_bid(
    buyer: &Buyer,
    job: &mut Job,
    args: &SubmitArgs,
) -> Result<(Quote, Option<LimitPrice>), Failure> {
    let Some(bid) = args.bid.map(Price) else {
        return Ok((buyer.quote_job(job).await.map_err(from_quote)?, None));
    };
    let wait = std::mem::take(&mut job.limits.wait);
    let dearer = job.limits.price_max.replace(bid);
    (job.limits.providers_min, job.limits.providers_max) = (1, 1);
    match buyer.quote_job(job).await {
        Ok(quote) => return Ok((quote, None)),
        Err(QuoteError::NoneEligible { .. }) => {}
        Err(other) => return Err(from_quote(other)),
    }
    let mut any = job.clone();
    (any.limits.price_max, any.limits.wait) = (dearer, wait);
    let quote = buyer
        .quote_job(&any)
        .await
        .map_err(from_quote)?
        .with_price(bid);
    let own = LimitPrice {
        price: bid,
        until: Millis(unix_ms().saturating_add(to_millis(wait))),
        displace: Millis(args.displace.map_or(0, to_millis)),
    };
    Ok((quote, Some(own)))
}

/// Places a bid and returns the lease that it buys. If the user stops it or its time runs out,
/// takes the bid out of the book.
pub async fn buy_with_bid(
    buyer: &Buyer,
    job: &Job,
    id: JobId,
    kept: &JobFiles,
    quote: &Quote,
    own: LimitPrice,
) -> Result<Lease, Failure> {
    let mut stops = stop::Requests::new();
    let rested = buyer.place_bid(quote, &job.limits, (id, own)).await;
    let (order, held) = rested.map_err(from_resting)?;
    let until = show::time_of_day(own.until.0);
    show::print_notice(&format!(
        "  bid {order} of {} a second rests until {until} UTC and holds {}; take it back:\n    {}",
        show::format_credits(own.price.0),
        show::format_credits(held.0),
        suggested_command::market_command(&format!("order cancel {order}")),
    ));
    let left = Duration::from_millis(own.until.0.saturating_sub(unix_ms()));
    let lease = tokio::select! {
        filled = buyer.wait_until_filled(id) => filled.map_err(unreachable_market)?,
        () = tokio::time::sleep(left) => {
            return Err(withdraw_bid(buyer, order, id, Kind::NoPlan).await);
        }
        () = wait_for_stop(&mut stops, kept) => {
            return Err(withdraw_bid(buyer, order, id, Kind::Interrupted).await);
        }
    };
    let price = show::format_credits(lease.price.0);
    show::print_notice(&format!("  it bought lease {} at {price}", lease.id));
    let LeaseState::Waiting { behind, until } = lease.state else {
        return Ok(lease);
    };
    show::print_notice(&format!(
        "  which begins when lease {behind} has had its notice, at {} UTC at the latest",
        show::time_of_day(until.0)
    ));
    tokio::select! {
        begun = buyer.wait_until_begun(id) => match begun.map_err(unreachable_market)? {
            lease if lease.is_running() => Ok(lease),
            over => {
                let cause = format!("lease {} ended before it began", over.id);
                Err(Failure::new(Kind::Job, cause, "submit it again"))
            }
        },
        () = wait_for_stop(&mut stops, kept) => {
            Err(withdraw_bid(buyer, order, id, Kind::Interrupted).await)
        }
    }
}

/// Waits until the user or another process stops the job.
async fn wait_for_stop(stops: &mut stop::Requests, kept: &JobFiles) {
    tokio::select! {
        () = stops.next() => {}
        () = kept.wait_for_cancel() => {}
    }
}

/// Withdraws the bid, or ends the lease that it bought; returns why the job does not run.
async fn withdraw_bid(buyer: &Buyer, order: OrderId, id: JobId, why: Kind) -> Failure {
    let withdrawn = match buyer.withdraw_bid(order, id).await {
        Ok(withdrawn) => withdrawn,
        Err(error) => return from_trade(error),
    };
    let returned = match withdrawn {
        Some(returned) => format!("{} returned", show::format_credits(returned.0)),
        None => "it had left the book, and nothing is held for it".to_owned(),
    };
    let (cause, reason) = match why {
        Kind::Interrupted => ("interrupted", "interrupted"),
        _ => ("no ask came down to the bid in time", "unsold"),
    };
    let cause = format!("{cause}: bid {order} is taken back, {returned}");
    let hint = format!(
        "bid more, or wait longer; on offer: {}",
        suggested_command::market_command("book")
    );
    let failure = Failure::new(why, cause, hint).with([("reason", reason.into())]);
    with_held(failure, buyer).await
}

fn from_resting(error: RestingError) -> Failure {
    match error {
        RestingError::Trade(error) => from_trade(error),
        RestingError::Leases(_) => {
            Failure::new(Kind::Input, error, "leave out --verify and --min-providers")
        }
        RestingError::Budget(_) => Failure::new(Kind::Budget, error, "raise --budget, or bid less"),
    }
}

fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
