//! Leases for a quote: a gang of bids that all match or none, and their end where a job fails.

use souk_market::{
    Acceptance, Bid, Command, Credits, EXCLUDED_MAX, JobId, Lease, LeaseId, Limit, Listing, Millis,
    Refusal, Term, TimeInForce, Trade, Units, Wants,
};
use souk_scheduler::graph::cut::Subgraph;

use super::terms::{ALLOWANCE, MICRO, TIME_MARGIN, millis, shortest};
use super::{Buyer, JobError, Quote};
use crate::buyer::job::Limits;
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;

/// The leases of a job: first those that run it, then those that run it again to compare.
#[derive(Clone, Debug)]
pub(super) struct Bought {
    /// The id they were bought under.
    pub(super) job: JobId,
    /// The providers' places in the quote's list of offers, each once.
    pub(super) offers: Vec<usize>,
    /// One trade for each of `offers`.
    pub(super) trades: Vec<Trade>,
    /// How many of them run the job; the nth beyond them runs again what the nth runs.
    pub(super) firsts: usize,
}

impl Bought {
    /// The trade that runs a part of the plan.
    pub(super) fn place_of(&self, quote: &Quote, part: usize) -> usize {
        let offer = quote.plan.parts[part].offer;
        let place = self.offers[..self.firsts]
            .iter()
            .position(|bought| *bought == offer);
        place.expect("a lease was bought from every offer of the plan")
    }

    /// The place whose parts are run at `place`: itself, or the one it is compared with.
    pub(super) fn first_of(&self, place: usize) -> usize {
        if place < self.firsts {
            place
        } else {
            place - self.firsts
        }
    }

    /// The place that runs again what `place` runs, if any does.
    pub(super) fn second_of(&self, place: usize) -> Option<usize> {
        let second = place + self.firsts;
        (place < self.firsts && second < self.trades.len()).then_some(second)
    }

    /// The parts that are run at `place`, with their numbers in the order of the quote.
    pub(super) fn parts<'a>(
        &'a self,
        quote: &'a Quote,
        place: usize,
    ) -> impl Iterator<Item = (usize, &'a Subgraph)> {
        let first = self.first_of(place);
        let mine = move |part: &(usize, &Subgraph)| self.place_of(quote, part.1.part) == first;
        quote.parts.iter().enumerate().filter(mine)
    }
}

/// Buys one lease from each provider of the quote, or none.
pub(super) async fn buy(
    buyer: &Buyer,
    limits: &Limits,
    quote: &Quote,
    id: JobId,
) -> Result<Bought, JobError> {
    let offers: Vec<usize> = quote
        .plan
        .offers()
        .into_iter()
        .chain(quote.seconds.iter().copied())
        .collect();
    let duration = duration(limits, quote, &offers)?;
    let legs = offers
        .iter()
        .map(|offer| bid(&quote.listings[*offer], limits, duration, id));
    let gang = Command::PlaceGang(legs.collect());
    let trades = match buyer.trader.submit_one(gang).await {
        Ok(Acceptance::Ganged { trades }) => trades,
        // An answer was lost and the batch sent again: what it did is in the log.
        Err(TradeError::Refused(Refusal::NonceUsed { .. })) => return lost(buyer, id).await,
        Ok(_) => return Err(BrokerError::Confused.into()),
        Err(TradeError::Refused(refusal)) => return Err(JobError::Unsold(refusal)),
        Err(error) => return Err(error.into()),
    };
    quote.turn.over();
    let firsts = quote.plan.offers().len();
    Ok(Bought {
        job: id,
        offers,
        trades,
        firsts,
    })
}

/// Ends what is left of leases, so that their escrow comes back.
pub(super) async fn end(buyer: &Buyer, leases: impl Iterator<Item = LeaseId>) {
    let commands: Vec<_> = leases.map(|lease| Command::EndLease { lease }).collect();
    if commands.is_empty() {
        return;
    }
    match buyer.trader.submit(commands).await {
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "the leases were not ended; their deadline will"),
    }
}

/// Leases whose trade was not heard of are ended; the job is then bought anew.
async fn lost(buyer: &Buyer, job: JobId) -> Result<Bought, JobError> {
    let leases = buyer.broker().job_leases(buyer.account(), &[job]).await?;
    end(
        buyer,
        leases
            .iter()
            .filter(|lease| lease.is_running())
            .map(|lease| lease.id),
    )
    .await;
    Err(JobError::Unsold(Refusal::NonceUsed {
        nonce: souk_market::Nonce(0),
    }))
}

/// What leases have cost, and what they still hold.
pub(super) fn spending(leases: &[Lease]) -> super::Spending {
    let sum = |part: fn(&Lease) -> u64| Credits(leases.iter().map(part).sum());
    super::Spending {
        spent: sum(|lease| lease.cost.0),
        held: sum(|lease| lease.escrow.0),
    }
}

fn bid(listing: &Listing, limits: &Limits, duration: Millis, id: JobId) -> Bid {
    // A bid names few; the last excluded are those that failed just now.
    let excluded = &limits.excluded[limits.excluded.len().saturating_sub(EXCLUDED_MAX)..];
    let wants = Wants {
        memory_bytes: listing.resources.memory_bytes,
        memory_bandwidth: listing.resources.memory_bandwidth,
        throughput: listing.resources.throughput,
        regions: limits.regions,
        features: listing.resources.features,
        reputation: limits.reputation_min,
        notice: limits.notice_min,
        excluded: excluded.to_vec(),
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
        term: match limits.spot {
            true => Term::Spot,
            false => Term::Firm,
        },
        tif: TimeInForce::Fok,
        job: id,
    }
}

/// How long to lease: generously, but never for more than the budget holds.
fn duration(limits: &Limits, quote: &Quote, offers: &[usize]) -> Result<Millis, JobError> {
    let makespan = quote.run_seconds() + weights_seconds(quote);
    let longest = offers
        .iter()
        .map(|offer| quote.listings[*offer].duration_max)
        .min();
    let wanted = millis(makespan * TIME_MARGIN + ALLOWANCE.as_secs_f64());
    let wanted = wanted.min(longest.unwrap_or(Millis(u64::MAX)));
    let Some(budget) = limits.budget else {
        return Ok(wanted);
    };
    let price = |offer: &usize| quote.listings[*offer].price.0;
    let per_second: u64 = offers.iter().map(price).sum();
    let affordable = Millis(budget.0.saturating_mul(1000) / per_second.max(1));
    let shortest = shortest(makespan);
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
