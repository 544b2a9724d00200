//! Leases for a quote: a gang of bids that all match or none, and their end where a job fails.

use std::time::Duration;

use souk_market::{
    Accepted, Bid, Command, Credits, JobId, Limit, Listing, Millis, Refusal, Term, TimeInForce,
    Trade, Units, Wants,
};
use souk_memory::ContentId;

use super::quote::MICRO;
use super::{Buyer, JobError, Quote};
use crate::job::Job;
use crate::trader::{TradeError, unix_us};

/// A lease is bought for the planned time this many times over, and the allowance.
const TIME_MARGIN: f64 = 4.0;

/// Time for sending, compiling and settling on top of the planned time.
const ALLOWANCE: Duration = Duration::from_secs(15);

/// The shortest allowance a small budget may press it down to.
const ALLOWANCE_MIN: Duration = Duration::from_millis(500);

/// The leases of a job.
pub(super) struct Bought {
    /// The job's id.
    pub(super) job: JobId,
    /// The providers' places in the quote's list of offers, each once.
    pub(super) offers: Vec<usize>,
    /// One trade for each of `offers`.
    pub(super) trades: Vec<Trade>,
}

/// Buys one lease from each provider of the quote, or none.
pub(super) async fn buy(buyer: &Buyer, job: &Job, quote: &Quote) -> Result<Bought, JobError> {
    let offers = quote.plan.offers();
    let duration = duration(job, quote, &offers)?;
    let id = job_id(buyer, quote);
    let legs = offers
        .iter()
        .map(|offer| bid(&quote.listings[*offer], job, duration, id));
    let gang = Command::PlaceGang(legs.collect());
    let trades = match buyer.trader.submit_one(gang).await {
        Ok(Accepted::Ganged { trades }) => trades,
        // An answer was lost and the batch sent again: what it did is in the log.
        Err(TradeError::Refused(Refusal::NonceUsed { .. })) => return lost(buyer, id).await,
        Ok(_) => return Err(crate::broker::BrokerError::Confused.into()),
        Err(TradeError::Refused(refusal)) => return Err(JobError::Unsold(refusal)),
        Err(error) => return Err(error.into()),
    };
    Ok(Bought {
        job: id,
        offers,
        trades,
    })
}

/// Ends what is left of the leases, so that their escrow comes back.
pub(super) async fn end(buyer: &Buyer, bought: &Bought) {
    let leases = bought.trades.iter().map(|trade| trade.lease);
    let commands: Vec<_> = leases.map(|lease| Command::EndLease { lease }).collect();
    match buyer.trader.submit(commands).await {
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "the leases were not ended; their deadline will"),
    }
}

/// Leases whose trade was not heard of are ended; the job is then bought anew.
async fn lost(buyer: &Buyer, job: JobId) -> Result<Bought, JobError> {
    let leases = buyer.broker().leases(buyer.account()).await?;
    let mine = leases
        .iter()
        .filter(|lease| lease.job == job && lease.buyer == buyer.account());
    let commands: Vec<_> = mine
        .map(|lease| Command::EndLease { lease: lease.id })
        .collect();
    if !commands.is_empty() {
        buyer.trader.submit(commands).await?;
    }
    Err(JobError::Unsold(Refusal::NonceUsed {
        nonce: souk_market::Nonce(0),
    }))
}

fn bid(listing: &Listing, job: &Job, duration: Millis, id: JobId) -> Bid {
    let wants = Wants {
        memory_bytes: listing.resources.memory_bytes,
        memory_bandwidth: listing.resources.memory_bandwidth,
        throughput: listing.resources.throughput,
        excluded: job.limits.excluded.clone(),
        ..Wants::default()
    };
    let budget = listing
        .price
        .escrow(Units(1), duration)
        .unwrap_or(Credits(u64::MAX));
    Bid {
        class: listing.class,
        wants,
        limit: Limit::Price(listing.price),
        budget,
        quantity: Units(1),
        all_or_none: true,
        duration,
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Fok,
        job: id,
    }
}

/// How long to lease: generously, but never for more than the budget holds.
fn duration(job: &Job, quote: &Quote, offers: &[usize]) -> Result<Millis, JobError> {
    let makespan = quote.plan.makespan_seconds + weights_seconds(quote);
    let lease = |times: f64, allowance: Duration| {
        Millis(((makespan * times + allowance.as_secs_f64()) * 1e3).ceil() as u64)
    };
    let longest = offers
        .iter()
        .map(|offer| quote.listings[*offer].duration_max)
        .min();
    let wanted = lease(TIME_MARGIN, ALLOWANCE).min(longest.unwrap_or(Millis(u64::MAX)));
    let Some(budget) = job.limits.budget else {
        return Ok(wanted);
    };
    let per_second: u64 = offers
        .iter()
        .map(|offer| quote.listings[*offer].price.0)
        .sum();
    let affordable = Millis(budget.0.saturating_mul(1000) / per_second.max(1));
    let shortest = lease(1.5, ALLOWANCE_MIN);
    if affordable < shortest {
        let needed = per_second as f64 * shortest.0 as f64 / 1e3 / MICRO;
        return Err(JobError::Escrow {
            needed,
            budget: budget.0 as f64 / MICRO,
        });
    }
    Ok(wanted.min(affordable))
}

/// Time to send every provider the weights of its parts, by the links they state, at once.
fn weights_seconds(quote: &Quote) -> f64 {
    let each = quote.parts.iter().map(|part| {
        let bytes: u64 = part.weights.iter().map(|weight| weight.byte_length).sum();
        bytes as f64 / quote.listing(part.part).resources.link_bandwidth.max(1) as f64
    });
    each.sum()
}

fn job_id(buyer: &Buyer, quote: &Quote) -> JobId {
    let mut words = buyer.account().0.to_vec();
    words.extend_from_slice(quote.hash().as_bytes());
    words.extend_from_slice(&unix_us().to_le_bytes());
    JobId(*ContentId::of(&words).as_bytes())
}
