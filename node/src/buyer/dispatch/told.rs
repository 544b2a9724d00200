//! What each provider of a round is told: its parts, where their inputs come from, and who waits
//! for their outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use souk_market::{AccountKey, LeaseId};
use souk_memory::{ContentId, Tensor};
use souk_scheduler::graph::cut::{Boundary, Subgraph};

use super::super::purchase::Bought;
use super::super::{Buyer, JobError, Quote};
use crate::folder::contact::Contact;
use crate::protocols::lease::{Input, Output, Part, Source, Start};

/// Puts graphs and inputs where providers can fetch them; the inputs' ids by name.
fn serve_content(
    buyer: &Buyer,
    quote: &Quote,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, ContentId>, JobError> {
    let store = buyer.tensors.store();
    for part in &quote.parts {
        store.put(part.model.clone())?;
    }
    let put = |(name, tensor): (&String, _)| Ok((name.clone(), store.put_tensor(tensor)?));
    inputs.iter().map(put).collect()
}

/// What each provider is told, by the place of its trade.
pub(in crate::buyer) async fn starts(
    buyer: &Buyer,
    quote: &Quote,
    bought: &Bought,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<Start>, JobError> {
    let inputs = serve_content(buyer, quote, inputs)?;
    let providers: Vec<AccountKey> = bought.trades.iter().map(|trade| trade.provider).collect();
    let contacts = find(buyer, &providers).await?;
    let start = |place: usize| start_of(quote, bought, place, &inputs, &contacts);
    Ok((0..bought.trades.len()).map(start).collect())
}

/// Where providers are; the network learns it too.
pub(in crate::buyer) async fn find(
    buyer: &Buyer,
    providers: &[AccountKey],
) -> Result<Vec<Contact>, JobError> {
    let found = buyer.broker().find(providers).await?;
    for provider in providers {
        let contact = found.iter().find(|contact| contact.account == provider.0);
        buyer
            .network
            .learn(contact.ok_or(JobError::Lost(*provider))?)
            .await?;
    }
    Ok(found)
}

/// What the provider of the trade at `place` is told.
fn start_of(
    quote: &Quote,
    bought: &Bought,
    place: usize,
    inputs: &BTreeMap<String, ContentId>,
    contacts: &[Contact],
) -> Start {
    let trade = &bought.trades[place];
    let describe = |(number, part): (usize, &Subgraph)| {
        let planned = &quote.plan.parts[part.part];
        let seconds = quote.seconds_on(planned, bought.offers[place]);
        let read = part
            .inputs
            .iter()
            .map(|b| input(quote, bought, place, b, inputs));
        let made = part.outputs.iter().map(|b| output(quote, bought, place, b));
        Part {
            name: format!("part {} of {}", number + 1, quote.parts.len()),
            graph: part.id,
            weights: part.weights.iter().map(|weight| weight.id).collect(),
            inputs: read.collect(),
            outputs: made.collect(),
            flops: quote.flops_told(part, (bought.offers[place], trade)),
            expected: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        }
    };
    let others = contacts
        .iter()
        .filter(|contact| contact.account != trade.provider.0);
    Start {
        lease: trade.lease,
        job: bought.job,
        parts: bought.parts(quote, place).map(describe).collect(),
        peers: others.cloned().collect(),
        priority: quote.turn.priority() as u8,
    }
}

/// Where an input comes from. A second run reads what the first runs made, so that what is compared
/// was made from the same.
fn input(
    quote: &Quote,
    bought: &Bought,
    place: usize,
    boundary: &Boundary,
    inputs: &BTreeMap<String, ContentId>,
) -> Input {
    let source = match boundary.from.map(|part| bought.place_of(quote, part)) {
        None => Source::Buyer(inputs[&boundary.name]),
        Some(maker) if maker == place => Source::Own,
        Some(maker) => {
            let trade = &bought.trades[maker];
            Source::Lease {
                lease: trade.lease,
                provider: trade.provider,
            }
        }
    };
    Input {
        name: boundary.name.clone(),
        source,
    }
}

fn output(quote: &Quote, bought: &Bought, place: usize, boundary: &Boundary) -> Output {
    let name = boundary.name.clone();
    if bought.first_of(place) != place {
        return Output {
            name,
            consumers: Vec::new(),
        };
    }
    // A part of one's own is no reader, but its second run is.
    let firsts = boundary.to.iter().map(|part| bought.place_of(quote, *part));
    let readers = firsts.flat_map(|first| [Some(first), bought.second_of(first)]);
    let others: BTreeSet<usize> = readers
        .flatten()
        .filter(|reader| *reader != place)
        .collect();
    let consumer = |reader: usize| -> (LeaseId, AccountKey) {
        (bought.trades[reader].lease, bought.trades[reader].provider)
    };
    Output {
        name,
        consumers: others.into_iter().map(consumer).collect(),
    }
}
