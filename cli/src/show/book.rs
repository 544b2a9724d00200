//! The asks in the book.

use souk_node::market::{Dtype, Listing};

use super::{Table, bytes, credits, device, say, scaled};

/// Prints the asks, cheapest first.
pub fn print(asks: &[Listing]) {
    let mut asks: Vec<&Listing> = asks.iter().collect();
    asks.sort_by_key(|ask| ask.price);
    let mut table = Table::new(&[
        "device",
        "kind",
        ">f32",
        ">memory",
        ">bandwidth",
        ">credits/s",
        ">reputation",
        "account",
    ]);
    for ask in &asks {
        let stated = &ask.resources;
        table.row([
            device(stated.model.as_str(), stated.emulated),
            stated.kind_name.to_string(),
            scaled(stated.throughput.of(Dtype::F32) as f64 * 1e6, "FLOP/s"),
            bytes(stated.memory_bytes),
            format!("{}/s", bytes(stated.memory_bandwidth)),
            credits(ask.price.0),
            ask.reputation.to_string(),
            ask.provider.to_string(),
        ]);
    }
    say(&format!("{} asks", asks.len()));
    table.print();
}
