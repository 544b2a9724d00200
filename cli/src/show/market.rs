//! Prints market data for `souk market classes|depth|trades|candles|price` and `souk top`: the
//! classes of devices, the orders and trades of one, and the prices of measured work.

use souk_api::class_name;
use souk_node::market::{Candle, Class, ClassSummary, DepthLevel, Dtype, PriceIndex, Quotes};

use super::{Table, format_credits, print_line, time_of_day};

/// Text of an empty cell.
const NONE: &str = "-";

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| NONE.to_owned())
}

/// Prints the classes.
pub fn print_classes(classes: &[ClassSummary]) {
    if classes.is_empty() {
        return print_line("nothing was ever quoted");
    }
    let mut table = Table::new(&["class", ">bid", ">ask", ">units", ">last", ">traded"]);
    for summary in classes {
        let price = |level: Option<DepthLevel>| or_none(level.map(|it| format_credits(it.price.0)));
        table.add_row([
            class_name::format_class(&summary.class),
            price(summary.bid),
            price(summary.ask),
            or_none(summary.ask.map(|level| level.quantity.to_string())),
            or_none(summary.last.map(|print| format_credits(print.price.0))),
            summary.volume.to_string(),
        ]);
    }
    table.print();
    print_line("prices in credits per device-second; units at the best ask; units traded in a day");
}

/// Prints the prices of measured work.
pub fn print_prices(classes: &[ClassSummary]) {
    if classes.is_empty() {
        return print_line("nothing was ever quoted");
    }
    let header = ["class", ">f32", ">f16", ">int8", ">GB moved", ">GB for 1 h"];
    let mut table = Table::new(&header).with_spare_columns(&["GB for 1 h", "GB moved"]);
    for summary in classes {
        let PriceIndex {
            per_tera_operation,
            per_gigabyte_moved,
            per_gigabyte_hour,
        } = summary.index;
        let of = |dtype: Dtype| format_micro_credits(per_tera_operation[dtype as usize]);
        table.add_row([
            class_name::format_class(&summary.class),
            of(Dtype::F32),
            of(Dtype::F16),
            of(Dtype::Int8),
            format_micro_credits(per_gigabyte_moved),
            format_micro_credits(per_gigabyte_hour),
        ]);
    }
    table.print();
    print_line("in micro-credits: f32, f16 and int8 for 10^12 operations, over the last 64 trades");
}

/// Formats nano-credits as micro-credits.
fn format_micro_credits(nano: Option<u64>) -> String {
    or_none(nano.map(|nano| format!("{}.{:03}", nano / 1_000, nano % 1_000)))
}

/// Prints a book: asks above bids, the best in the middle.
pub fn print_depth(quotes: &Quotes) {
    print_line(&class_heading(&quotes.class));
    let mut table = Table::new(&["", ">price", ">units", ">orders"]);
    let mut row = |side: &str, level: &DepthLevel| {
        table.add_row([
            side.to_owned(),
            format_credits(level.price.0),
            level.quantity.to_string(),
            level.orders.to_string(),
        ]);
    };
    quotes.asks.iter().rev().for_each(|level| row("ask", level));
    quotes.bids.iter().for_each(|level| row("bid", level));
    table.print();
    if let (Some(ask), Some(bid)) = (quotes.asks.first(), quotes.bids.first()) {
        let spread = ask.price.0.saturating_sub(bid.price.0);
        print_line(&format!("spread {}", format_credits(spread)));
    }
}

fn class_heading(class: &Class) -> String {
    format!(
        "{}: {}",
        class_name::format_class(class),
        class_name::in_words(class)
    )
}

/// Prints trades.
pub fn print_trades(quotes: &Quotes) {
    print_line(&class_heading(&quotes.class));
    let mut table = Table::new(&["time (UTC)", ">price", ">units"]);
    for print in &quotes.last {
        table.add_row([
            time_of_day(print.at.0),
            format_credits(print.price.0),
            print.quantity.to_string(),
        ]);
    }
    table.print();
}

/// Prints candles.
pub fn print_candles(class: &Class, candles: &[Candle]) {
    print_line(&class_heading(class));
    let mut table = Table::new(&["from (UTC)", ">open", ">high", ">low", ">close", ">units"]);
    for candle in candles {
        let prices = [candle.open, candle.high, candle.low, candle.close];
        let cells = prices.iter().map(|price| format_credits(price.0));
        let ends = [time_of_day(candle.start.0)].into_iter().chain(cells);
        table.add_row(ends.chain([candle.volume.to_string()]));
    }
    table.print();
}
