//! The asks in the book.

use souk_node::market::{Dtype, Listing, SpotPrice};
use souk_node::protocols::regions;

use super::{Table, bytes, count, credits, number, provider, say, scaled, seconds};

/// Prints the asks, cheapest first.
pub fn print(asks: &[Listing]) {
    let mut asks: Vec<&Listing> = asks.iter().collect();
    asks.sort_by_key(|ask| ask.price);
    let mut table = Table::new(&[
        "provider",
        "kind",
        ">credits/s",
        ">f32",
        ">memory",
        ">bandwidth",
        ">notice",
        "spot",
        ">reputation",
        "region",
    ])
    .sparing(&[
        "notice",
        "region",
        "spot",
        "kind",
        "bandwidth",
        "reputation",
        "memory",
    ]);
    for ask in &asks {
        let stated = &ask.resources;
        table.row([
            provider(ask),
            stated.kind_name.to_string(),
            credits(ask.price.0),
            scaled(stated.throughput.of(Dtype::F32) as f64 * 1e6, "FLOP/s"),
            bytes(stated.memory_bytes),
            format!("{}/s", bytes(stated.memory_bandwidth)),
            seconds(ask.notice.0 as f64 / 1e3),
            spot_prices(ask),
            ask.reputation.to_string(),
            regions::name(stated.region),
        ]);
    }
    say(&count(number(asks.len()), "ask"));
    table.print();
}

/// Formats the prices of an ask's spot leases by their notice.
fn spot_prices(ask: &Listing) -> String {
    let price = |spot: &SpotPrice| {
        let notice = seconds(spot.notice.0 as f64 / 1e3);
        format!("{} at {notice}", credits(spot.price.0))
    };
    let prices: Vec<String> = ask.spot.iter().map(price).collect();
    prices.join(", ")
}
