//! What the providers of a line made for one request, compared and fetched.

use std::collections::{BTreeMap, BTreeSet};

use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::{ContentId, Tensor};

use super::super::super::holders::Holders;
use super::super::super::purchase::Bought;
use super::super::super::{Buyer, JobError, Objection, Quote, settle, verdict};

/// What each place gave for one request: outputs by name.
pub(super) type Made = BTreeMap<usize, Vec<(String, ContentId)>>;

/// What was made for a request, fetched and compared.
pub(super) enum Fetched {
    /// Its outputs.
    Answer(BTreeMap<String, Tensor>),
    /// Two runs of a part do not agree.
    Differs(Made),
}

/// Fetches the job's outputs among what the providers made, once those who ran the same agree.
pub(super) async fn fetch(
    (buyer, quote, bought): (&Buyer, &Quote, &Bought),
    parties: Vec<(AccountKey, PeerId)>,
    made: Made,
) -> Result<Fetched, JobError> {
    for (first, second) in twins(bought, &made) {
        for name in outputs_of(quote, bought, first) {
            let (Some(one), Some(other)) = (id(&made[&first], name), id(&made[&second], name))
            else {
                return Ok(Fetched::Differs(made));
            };
            if one == other {
                continue;
            }
            let one = settle::fetch_one(buyer, parties[first], name, one).await?;
            let other = settle::fetch_one(buyer, parties[second], name, other).await?;
            if !verdict::same_value(quote, name, &one, &other) {
                return Ok(Fetched::Differs(made));
            }
        }
    }
    let outputs = quote.parts.iter().flat_map(|part| &part.outputs);
    let wanted = outputs.filter(|boundary| boundary.job_output);
    let wanted: BTreeSet<&str> = wanted.map(|boundary| boundary.name.as_str()).collect();
    let mut holders = Holders::new(buyer);
    for (&place, made) in &made {
        for (_, id) in made {
            holders.hold(parties[place], *id);
        }
    }
    let mut tensors = BTreeMap::new();
    for (&place, made) in made.range(..bought.firsts) {
        for name in outputs_of(quote, bought, place).filter(|name| wanted.contains(name)) {
            let lacks = || JobError::Receipt {
                provider: parties[place].0,
                objection: Objection::Outputs,
            };
            let id = id(made, name).ok_or_else(lacks)?;
            let (provider, peer) = parties[place];
            let whom = holders.whom(id, peer);
            let tensor = settle::fetch_from(buyer, (provider, &whom), name, id).await?;
            tensors.insert(name.to_owned(), tensor);
        }
    }
    Ok(Fetched::Answer(tensors))
}

/// What the parts at a place are to give.
fn outputs_of<'a>(
    quote: &'a Quote,
    bought: &'a Bought,
    place: usize,
) -> impl Iterator<Item = &'a str> {
    let parts = bought.parts(quote, place);
    parts.flat_map(|(_, part)| part.outputs.iter().map(|output| output.name.as_str()))
}

/// The first tensor of a name that a provider told of.
fn id(made: &[(String, ContentId)], name: &str) -> Option<ContentId> {
    let named = made.iter().find(|(made, _)| made == name);
    named.map(|(_, id)| *id)
}

/// Places that ran the same parts.
fn twins(bought: &Bought, made: &Made) -> Vec<(usize, usize)> {
    let twin = |first: &usize| {
        let second = bought.second_of(*first)?;
        made.contains_key(&second).then_some((*first, second))
    };
    made.keys().filter_map(twin).collect()
}
