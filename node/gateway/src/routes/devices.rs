//! `/v1/devices`: the offers by device, and the processors that souk knows by name.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk_api::class_name;
use souk_api::market::ByDtype;
use souk_node::market::Listing;
use souk_vocabulary::catalogue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Parameters;
use crate::page::{Page, Paging};
use crate::problem::Problem;
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(devices))
        .routes(routes!(known))
}

/// A device that one or more providers offer.
#[derive(Debug, Serialize, ToSchema)]
struct OfferedDevice {
    device: String,
    kind: String,
    emulated: bool,
    /// The classes it is traded in.
    classes: BTreeSet<String>,
    /// How many providers offer it, and how many of it.
    providers: usize,
    units: u64,
    /// The least and the most that is asked, in micro-credits a device-second.
    price_min: u64,
    price_max: u64,
    /// Figures of the cheapest.
    memory_bytes: u64,
    /// Bytes a second.
    memory_bandwidth: u64,
    /// Mega-operations a second.
    throughput: ByDtype<u64>,
    /// Milliwatts under load; 0 where it is unknown.
    power_milliwatts: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct DeviceFilter {
    /// Only this kind of device, such as `gpu`.
    kind: Option<String>,
    /// Only devices that are really there.
    #[serde(default)]
    real: bool,
    /// Entries at most: 1 to 1000, else 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// The offers in the book, by device.
#[utoipa::path(get, path = "/v1/devices", tag = "network", params(DeviceFilter),
    responses((status = 200, body = Page<OfferedDevice>)), security(("token" = ["read"])))]
async fn devices(
    State(state): State<SharedState>,
    Parameters(asked): Parameters<DeviceFilter>,
) -> Result<Page<OfferedDevice>, Problem> {
    let book = state.book().await?;
    let mut all = BTreeMap::<(String, bool), Vec<&Listing>>::new();
    for ask in book.iter() {
        let stated = &ask.resources;
        let kind = asked.kind.as_deref();
        let suits = kind.is_none_or(|kind| stated.kind_name.as_str() == kind);
        if suits && !(asked.real && stated.emulated) {
            let device = (stated.model.to_string(), stated.emulated);
            all.entry(device).or_default().push(ask);
        }
    }
    let all = all
        .into_values()
        .filter_map(|asks| OfferedDevice::from_asks(&asks));
    let paging = Paging {
        limit: asked.limit,
        cursor: asked.cursor,
    };
    let parse = |text: &str| {
        let (emulated, device) = text.split_once('.')?;
        let device = String::from_utf8(hex::decode(device).ok()?).ok()?;
        Some((device, emulated.parse().ok()?))
    };
    let key = |one: &OfferedDevice| (one.device.clone(), one.emulated);
    // Names contain spaces and signs, but a cursor must be one word.
    let write = |(device, emulated): &(String, bool)| format!("{emulated}.{}", hex::encode(device));
    Page::from_entries(all.collect(), key, &paging, parse, write)
}

/// The processors that souk knows by name, with what their data sheets say: those that providers
/// may sell emulated.
#[utoipa::path(get, path = "/v1/devices/catalogue", tag = "network",
    responses((status = 200, body = Vec<Object>)), security(("token" = ["read"])))]
async fn known() -> Result<Json<Value>, Problem> {
    serde_json::to_value(catalogue::all_processors())
        .map(Json)
        .map_err(Problem::unexpected_failure)
}

impl OfferedDevice {
    fn from_asks(asks: &[&Listing]) -> Option<OfferedDevice> {
        let cheapest = asks.iter().min_by_key(|ask| ask.price)?;
        let providers: BTreeSet<_> = asks.iter().map(|ask| ask.provider).collect();
        let stated = &cheapest.resources;
        Some(OfferedDevice {
            device: stated.model.to_string(),
            kind: stated.kind_name.to_string(),
            emulated: stated.emulated,
            classes: asks
                .iter()
                .map(|ask| class_name::format_class(&ask.class))
                .collect(),
            providers: providers.len(),
            units: asks.iter().map(|ask| u64::from(ask.quantity.0)).sum(),
            price_min: cheapest.price.0,
            price_max: asks.iter().map(|ask| ask.price.0).max().unwrap_or_default(),
            memory_bytes: stated.memory_bytes,
            memory_bandwidth: stated.memory_bandwidth,
            throughput: ByDtype::from(&stated.throughput),
            power_milliwatts: stated.power_mw,
        })
    }
}
