//! Builds the JSON of the market's providers and validators for the gateway's paths about them and
//! for followers of those topics.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_api::account::AccountView;
use souk_api::ask::AskView;
use souk_api::member::ValidatorView;
use souk_network::protocols::market::{Member, Status};
use souk_node::client::broker::{Broker, BrokerError};
use souk_node::market::{AccountKey, Listing};
use utoipa::ToSchema;

/// Who has something on offer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProviderView {
    pub account: String,
    name: String,
    /// From 0 to 1000.
    reputation: u16,
    stake: u64,
    /// What is on offer.
    devices: Vec<DeviceView>,
}

/// A device on offer.
#[derive(Debug, Serialize, ToSchema)]
struct DeviceView {
    device: String,
    emulated: bool,
    /// The least price that is asked, in micro-credits a device-second.
    price: u64,
}

/// An account, and what it offers.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProviderDetail {
    account: AccountView,
    asks: Vec<AskView>,
}

/// Returns all providers that have asks in the book.
pub fn list_providers(book: &[Listing]) -> Vec<ProviderView> {
    let mut all = BTreeMap::<AccountKey, Vec<&Listing>>::new();
    for ask in book {
        all.entry(ask.provider).or_default().push(ask);
    }
    let all = all.into_values();
    all.map(|asks| ProviderView::new(&asks)).collect()
}

/// Returns an account and its asks, or `None` if the account does not exist.
///
/// # Errors
/// Fails if the market is unreachable.
pub async fn find_provider(
    broker: &Broker,
    book: &[Listing],
    key: AccountKey,
) -> Result<Option<ProviderDetail>, BrokerError> {
    let found = broker.fetch_account(key).await?;
    let own = || book.iter().filter(|ask| ask.provider == key);
    Ok(found.map(|found| ProviderDetail {
        account: AccountView::from(&found),
        asks: own().map(AskView::from).collect(),
    }))
}

/// Returns the validators with their status.
///
/// # Errors
/// Fails if no validator is reachable.
pub async fn list_validators(broker: &Broker) -> Result<Vec<ValidatorView>, BrokerError> {
    let (members, statuses) = tokio::join!(broker.fetch_members(), broker.fetch_statuses());
    let known: BTreeMap<u64, Status> = statuses
        .into_iter()
        .flatten()
        .map(|status| (status.raft_id, status))
        .collect();
    let all = members?.validators;
    let view = |member: &Member| ValidatorView::new(member, known.get(&member.raft_id));
    Ok(all.iter().map(view).collect())
}

impl ProviderView {
    fn new(asks: &[&Listing]) -> ProviderView {
        let mut devices = BTreeMap::<(String, bool), u64>::new();
        for ask in asks {
            let device = (ask.resources.model.to_string(), ask.resources.emulated);
            let least = devices.entry(device).or_insert(ask.price.0);
            *least = (*least).min(ask.price.0);
        }
        let devices = devices
            .into_iter()
            .map(|((device, emulated), price)| DeviceView {
                device,
                emulated,
                price,
            });
        ProviderView {
            account: asks[0].provider.to_string(),
            name: asks[0].name.to_string(),
            reputation: asks[0].reputation.0,
            stake: asks[0].stake.0,
            devices: devices.collect(),
        }
    }
}
