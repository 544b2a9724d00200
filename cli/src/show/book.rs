//! Prints the asks in the market's book (the offers of device time and of tokens) as a table, the
//! cheapest first, for `souk book`, `souk top` and the demo.

use souk_api::text_offer::sells_tokens;
use souk_network::protocols::regions;
use souk_node::market::{Dtype, Listing, SpotPrice};

use super::{
    Table, format_bytes, format_count, format_credits, format_scaled, format_seconds, print_line,
    provider_name, to_u64,
};

/// Prints the asks, cheapest first.
pub fn print_asks(asks: &[Listing]) {
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
    .with_spare_columns(&[
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
        let [speed, memory, bandwidth] = match sells_tokens(ask) {
            true => ["tokens".to_owned(), String::new(), String::new()],
            false => [
                format_scaled(
                    stated.throughput.for_dtype(Dtype::F32) as f64 * 1e6,
                    "FLOP/s",
                ),
                format_bytes(stated.memory_bytes),
                format!("{}/s", format_bytes(stated.memory_bandwidth)),
            ],
        };
        table.add_row([
            provider_name(ask),
            stated.kind_name.to_string(),
            format_credits(ask.price.0),
            speed,
            memory,
            bandwidth,
            format_seconds(ask.notice.0 as f64 / 1e3),
            spot_prices(ask),
            ask.reputation.to_string(),
            regions::name(stated.region),
        ]);
    }
    print_line(&format_count(to_u64(asks.len()), "ask"));
    table.print();
}

/// Formats the prices of an ask's spot leases by their notice.
fn spot_prices(ask: &Listing) -> String {
    let price = |spot: &SpotPrice| {
        let notice = format_seconds(spot.notice.0 as f64 / 1e3);
        format!("{} at {notice}", format_credits(spot.price.0))
    };
    let prices: Vec<String> = ask.spot.iter().map(price).collect();
    prices.join(", ")
}
