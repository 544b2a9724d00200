//! Defines the public JSON of asks, by which providers offer units of a device at a price, and of
//! offers that a provider would make.

use serde::Serialize;
use souk_market::{Ask, Limit, Listing, SpotPrice};
use souk_roles::market::regions;

use crate::class_name;
use crate::market::ByDtype;
use crate::time::to_seconds;

/// An offer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AskView {
    /// The ask's id.
    pub order: u64,
    /// The provider's account.
    pub provider: String,
    /// The provider's name.
    pub provider_name: String,
    /// The provider's reputation, from 0 to 1000.
    pub reputation: u16,
    /// What the provider has at stake, in micro-credits.
    pub stake: u64,
    /// The class that a bid must name to match it.
    pub class: String,
    /// The kind of the device, such as `gpu`.
    pub kind: String,
    /// The name of the device model.
    pub device: String,
    /// Whether the device is emulated.
    pub emulated: bool,
    /// Micro-credits per device-second.
    pub price: u64,
    /// Lower prices of spot leases, by notice.
    pub spot: Vec<SpotPriceView>,
    /// How many units remain.
    pub units: u32,
    /// Memory of a unit.
    pub memory_bytes: u64,
    /// Bytes per second.
    pub memory_bandwidth: u64,
    /// Mega-operations per second.
    pub throughput: ByDtype<u64>,
    /// Milliwatts under load; 0 if it is unknown.
    pub power_milliwatts: u64,
    /// Where the device is, such as `europe-west`.
    pub region: String,
    /// The shortest lease, in seconds.
    pub duration_min: f64,
    /// The longest lease, in seconds.
    pub duration_max: f64,
    /// Seconds of notice before its provider or a higher bid can take a spot lease back.
    pub notice: f64,
    /// The lease of which it sells the rest, if a buyer resells one.
    pub resale_of: Option<u64>,
}

/// The price of spot leases with a notice.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SpotPriceView {
    /// Seconds of notice.
    pub notice: f64,
    /// Micro-credits per device-second.
    pub price: u64,
}

/// An offer that a provider would make: its terms, before any ask rests in the book.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OfferView {
    /// The class of the device.
    pub class: String,
    /// Micro-credits per device-second; null if any price is accepted.
    pub price: Option<u64>,
    /// Lower prices of spot leases, by notice.
    pub spot: Vec<SpotPriceView>,
    /// How many units are on offer.
    pub units: u32,
    /// The shortest lease, in seconds.
    pub duration_min: f64,
    /// The longest lease, in seconds.
    pub duration_max: f64,
    /// Seconds of notice before the provider or a higher bid can take a spot lease back.
    pub notice: f64,
}

impl From<&Ask> for OfferView {
    fn from(ask: &Ask) -> OfferView {
        OfferView {
            class: class_name::format_class(&ask.resources.class()),
            price: match ask.limit {
                Limit::Price(price) => Some(price.0),
                Limit::Market => None,
            },
            spot: ask.spot.iter().map(SpotPriceView::from).collect(),
            units: ask.quantity.0,
            duration_min: to_seconds(ask.duration_min),
            duration_max: to_seconds(ask.duration_max),
            notice: to_seconds(ask.notice),
        }
    }
}

impl From<&Listing> for AskView {
    fn from(ask: &Listing) -> AskView {
        let stated = &ask.resources;
        AskView {
            order: ask.order.0,
            provider: ask.provider.to_string(),
            provider_name: ask.name.to_string(),
            reputation: ask.reputation.0,
            stake: ask.stake.0,
            class: class_name::format_class(&ask.class),
            kind: stated.kind_name.to_string(),
            device: stated.model.to_string(),
            emulated: stated.emulated,
            price: ask.price.0,
            spot: ask.spot.iter().map(SpotPriceView::from).collect(),
            units: ask.quantity.0,
            memory_bytes: stated.memory_bytes,
            memory_bandwidth: stated.memory_bandwidth,
            throughput: ByDtype::from(&stated.throughput),
            power_milliwatts: stated.power_mw,
            region: regions::name(stated.region),
            duration_min: to_seconds(ask.duration_min),
            duration_max: to_seconds(ask.duration_max),
            notice: to_seconds(ask.notice),
            resale_of: ask.resale.map(|lease| lease.0),
        }
    }
}

impl From<&SpotPrice> for SpotPriceView {
    fn from(spot: &SpotPrice) -> SpotPriceView {
        SpotPriceView {
            notice: to_seconds(spot.notice),
            price: spot.price.0,
        }
    }
}
