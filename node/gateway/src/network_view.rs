//! Builds the map of the network for the API: the gateway's own account, the validators and the
//! providers, and the measurements of the connections between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use futures::future::join_all;
use serde::Serialize;
use souk_api::class_name;
use souk_api::market::ByDtype;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_folder::key::account_of;
use souk_network::content::links::LinkRecord;
use souk_network::protocols::market::{Answer, Member, Request, Standing, Status};
use souk_network::protocols::regions;
use souk_network::swarm::routes::Route;
use souk_node::buyer::Buyer;
use souk_node::client::broker::BrokerError;
use souk_node::market::{Account, AccountKey, Listing};
use utoipa::ToSchema;

/// Providers on one map; a page cannot draw more.
const PROVIDERS_MAX: usize = 200;

/// Providers without an offer that the gateway remembers, and for how many milliseconds.
const SEEN_MAX: usize = 1_024;
const SEEN_MS: u64 = 10 * 60 * 1_000;

/// The participants of the market, and the connections between them.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapView {
    /// The last entry of the log that is applied, as far as any validator says.
    index: u64,
    /// When the gateway made this map, in RFC 3339.
    as_of: String,
    /// The gateway's own account first, then validators, then providers, the cheapest first.
    nodes: Vec<NodeView>,
    /// Providers beyond 200, which are left out.
    providers_omitted: usize,
    links: Vec<LinkView>,
}

/// The role of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Role {
    /// The gateway's own account.
    Me,
    Provider,
    Validator,
}

/// A participant of the market.
#[derive(Debug, Serialize, ToSchema)]
struct NodeView {
    account: String,
    role: Role,
    name: String,
    /// Seconds since a validator answered or a provider had an ask in the book; null if neither has
    /// happened.
    age: Option<f64>,
    /// What a provider has on offer, or had last.
    devices: Vec<NodeDevice>,
    /// Its reputation from 0 to 1000; null if it is not a provider.
    reputation: Option<u16>,
    /// What it has at stake, in micro-credits.
    stake: Option<u64>,
    /// Leases that it sold and that are not closed.
    leases: Option<u32>,
    /// The leased share of its units, from 0 to 1.
    busy: Option<f64>,
    /// A validator's number, whether it leads, and how far it is.
    validator: Option<u64>,
    leads: Option<bool>,
    applied: Option<u64>,
}

/// A device of a provider.
#[derive(Debug, Serialize, ToSchema)]
struct NodeDevice {
    device: String,
    kind: String,
    class: String,
    emulated: bool,
    /// Micro-credits a device-second.
    price: u64,
    /// How many are on offer.
    units: u32,
    memory_bytes: u64,
    /// Bytes a second.
    memory_bandwidth: u64,
    /// Mega-operations a second.
    throughput: ByDtype<u64>,
    /// Milliwatts under load; 0 where it is unknown.
    power_milliwatts: u64,
    region: String,
}

/// A connection between two participants, in one direction. Figures that were not measured are
/// null.
#[derive(Debug, Serialize, ToSchema)]
struct LinkView {
    from: String,
    to: String,
    /// `direct` or `relayed`; null where this gateway has no connection.
    #[schema(value_type = Option<String>)]
    route: Option<Route>,
    bytes_per_second: Option<f64>,
    /// Seconds from a request to the first byte of the answer.
    round_trip: Option<f64>,
    /// When it was used last, RFC 3339.
    used_at: Option<String>,
}

/// Recently seen providers: a provider whose devices are all leased is not in the book.
#[derive(Debug, Default)]
pub struct Sightings(Mutex<BTreeMap<AccountKey, AskSnapshot>>);

#[derive(Clone, Debug)]
struct AskSnapshot {
    asks: Vec<Listing>,
    at_ms: u64,
}

impl Sightings {
    /// Returns the providers of the book and those of the last minutes, the cheapest first.
    fn with(&self, book: &[Listing], now_ms: u64) -> Vec<(AccountKey, AskSnapshot)> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asks = BTreeMap::<AccountKey, Vec<Listing>>::new();
        for ask in book {
            asks.entry(ask.provider).or_default().push(ask.clone());
        }
        let at_ms = now_ms;
        seen.extend(
            asks.into_iter()
                .map(|(key, asks)| (key, AskSnapshot { asks, at_ms })),
        );
        seen.retain(|_, sighting| now_ms.saturating_sub(sighting.at_ms) < SEEN_MS);
        let mut all: Vec<_> = seen.iter().map(|(key, it)| (*key, it.clone())).collect();
        let least = |it: &AskSnapshot| it.asks.iter().map(|ask| ask.price).min();
        all.sort_by_key(|(key, it)| (least(it), *key));
        while seen.len() > SEEN_MAX
            && let Some(oldest) = seen
                .iter()
                .min_by_key(|(_, it)| it.at_ms)
                .map(|(key, _)| *key)
        {
            seen.remove(&oldest);
        }
        all
    }
}

/// A validator's reply to a status request: its account, the round trip in seconds, the status.
struct ValidatorReply {
    account: AccountKey,
    round_trip: f64,
    status: Option<Status>,
}

/// Builds the map.
///
/// # Errors
/// Fails if the market is unreachable.
pub async fn build_map(
    buyer: &Buyer,
    book: &[Listing],
    sightings: &Sightings,
) -> Result<MapView, BrokerError> {
    let now = unix_ms();
    let broker = buyer.broker();
    let mut providers = sightings.with(book, now);
    let providers_omitted = providers.len().saturating_sub(PROVIDERS_MAX);
    providers.truncate(PROVIDERS_MAX);
    let accounts = providers.iter().map(|(key, _)| broker.fetch_account(*key));
    let (own, members, asked, routes, accounts) = tokio::join!(
        broker.fetch_account(buyer.account()),
        broker.fetch_members(),
        ask_validators(buyer),
        broker.network().account_routes(),
        join_all(accounts)
    );
    let index = asked
        .iter()
        .flat_map(|one| &one.status)
        .map(|it| it.applied)
        .max();
    let mut nodes = vec![own_node(buyer.account(), own?.as_ref())];
    let staying = |member: &&Member| member.standing != Standing::Removed;
    let members = members?.validators;
    nodes.extend(
        members
            .iter()
            .filter(staying)
            .map(|it| validator_node(it, &asked)),
    );
    for ((key, sighting), account) in providers.iter().zip(accounts) {
        nodes.push(provider_node(*key, sighting, account?.as_ref(), now));
    }
    Ok(MapView {
        index: index.unwrap_or_default(),
        as_of: format_rfc3339(now),
        links: describe_links(buyer, &nodes, &asked, &routes),
        nodes,
        providers_omitted,
    })
}

/// Asks all validators for their status.
async fn ask_validators(buyer: &Buyer) -> Vec<ValidatorReply> {
    let broker = buyer.broker();
    let validators = broker.validators();
    let asking = validators.iter().map(|peer| async {
        let began = Instant::now();
        let answer = broker.ask_one(*peer, &Request::Status).await;
        let status = match answer {
            Ok(Answer::Status(status)) => Some(status),
            _ => None,
        };
        let round_trip = began.elapsed().as_secs_f64();
        let account = AccountKey(account_of(peer)?);
        Some(ValidatorReply {
            account,
            round_trip,
            status,
        })
    });
    join_all(asking).await.into_iter().flatten().collect()
}

impl NodeView {
    /// Describes a node of which nothing else is known.
    fn new(account: AccountKey, role: Role, name: String) -> NodeView {
        NodeView {
            account: account.to_string(),
            role,
            name,
            age: None,
            devices: Vec::new(),
            reputation: None,
            stake: None,
            leases: None,
            busy: None,
            validator: None,
            leads: None,
            applied: None,
        }
    }
}

fn own_node(account: AccountKey, known: Option<&Account>) -> NodeView {
    let name = known.map(|known| known.name.to_string());
    NodeView::new(account, Role::Me, name.unwrap_or_default())
}

fn validator_node(member: &Member, asked: &[ValidatorReply]) -> NodeView {
    let said = asked.iter().find(|one| one.account == member.account);
    let said = said.and_then(|one| one.status.as_ref());
    NodeView {
        age: said.map(|_| 0.0),
        validator: Some(member.raft_id),
        leads: said.map(|status| status.leader == status.raft_id),
        applied: said.map(|status| status.applied),
        ..NodeView::new(
            member.account,
            Role::Validator,
            format!("validator {}", member.raft_id),
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "an age is not exact")]
fn provider_node(
    key: AccountKey,
    sighting: &AskSnapshot,
    known: Option<&Account>,
    now_ms: u64,
) -> NodeView {
    let asks = &sighting.asks;
    let age = now_ms.saturating_sub(sighting.at_ms);
    let leases = known.map(|known| known.open_leases);
    let is_offered = age == 0;
    let offered: u32 = asks
        .iter()
        .filter(|_| is_offered)
        .map(|ask| ask.quantity.0)
        .sum();
    let all = |leases: u32| leases.saturating_add(offered);
    let busy = leases.filter(|leases| all(*leases) > 0);
    NodeView {
        age: Some(age as f64 / 1e3),
        devices: asks.iter().map(NodeDevice::from).collect(),
        reputation: known.map(|known| known.reputation.score.0),
        stake: known.map(|known| known.stake.0),
        leases,
        busy: busy.map(|leases| f64::from(leases) / f64::from(all(leases))),
        ..NodeView::new(
            key,
            Role::Provider,
            asks.first().map(name).unwrap_or_default(),
        )
    }
}

fn name(ask: &Listing) -> String {
    ask.name.to_string()
}

impl From<&Listing> for NodeDevice {
    fn from(ask: &Listing) -> NodeDevice {
        let stated = &ask.resources;
        NodeDevice {
            device: stated.model.to_string(),
            kind: stated.kind_name.to_string(),
            class: class_name::format_class(&ask.class),
            emulated: stated.emulated,
            price: ask.price.0,
            units: ask.quantity.0,
            memory_bytes: stated.memory_bytes,
            memory_bandwidth: stated.memory_bandwidth,
            throughput: ByDtype::from(&stated.throughput),
            power_milliwatts: stated.power_mw,
            region: regions::name(stated.region),
        }
    }
}

/// Describes the measured connections between nodes on the map, and this gateway's own unmeasured
/// ones.
fn describe_links(
    buyer: &Buyer,
    nodes: &[NodeView],
    asked: &[ValidatorReply],
    routes: &BTreeMap<AccountKey, Route>,
) -> Vec<LinkView> {
    let now = unix_ms();
    let own = buyer.account().to_string();
    let shown: BTreeSet<&str> = nodes.iter().map(|node| node.account.as_str()).collect();
    let route = |account: &AccountKey| routes.get(account).copied();
    let measured = |record: &LinkRecord| LinkView {
        from: record.from.to_string(),
        to: record.to.to_string(),
        route: match (record.from == buyer.account(), record.to == buyer.account()) {
            (true, _) => route(&record.to),
            (_, true) => route(&record.from),
            // This gateway cannot see the connections of other nodes.
            _ => None,
        },
        bytes_per_second: record.samples.bytes_per_second(now),
        round_trip: record.samples.latency_seconds(now),
        used_at: record
            .samples
            .last_sample()
            .map(|sample| format_rfc3339(sample.at_ms)),
    };
    let mut links: Vec<LinkView> = buyer
        .tensors()
        .links()
        .list_links()
        .iter()
        .map(measured)
        .collect();
    links.retain(|link| shown.contains(link.from.as_str()) && shown.contains(link.to.as_str()));
    for one in asked {
        let is_heard = one.status.is_some();
        links.push(LinkView {
            from: own.clone(),
            to: one.account.to_string(),
            route: route(&one.account),
            bytes_per_second: None,
            round_trip: is_heard.then_some(one.round_trip),
            used_at: is_heard.then(|| format_rfc3339(now)),
        });
    }
    let ends = links.iter().flat_map(|link| [&link.from, &link.to]);
    let reached: BTreeSet<String> = ends.cloned().collect();
    let unknown = nodes.iter().filter(|node| node.role == Role::Provider);
    for node in unknown.filter(|node| !reached.contains(&node.account)) {
        let account: Option<AccountKey> = node.account.parse().ok();
        links.push(LinkView {
            from: own.clone(),
            to: node.account.clone(),
            route: account.as_ref().and_then(route),
            bytes_per_second: None,
            round_trip: None,
            used_at: None,
        });
    }
    links
}
