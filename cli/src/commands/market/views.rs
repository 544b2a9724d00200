//! `souk market classes|depth|trades|candles|price`: the market's data, which take no account.

use std::path::Path;

use souk_node::client::broker::Broker;
use souk_node::device::class_name;
use souk_node::market::{Candle, Class, ClassSummary, Quotes};

use crate::args::{Freshness, Output};
use crate::commands::book::{asked, no_answer};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::look;
use crate::show::{self, market};

/// A candle's length in the market's own data, in milliseconds.
const MINUTE_MS: u64 = 60_000;

/// Lists the classes.
pub async fn classes(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let classes = broker.classes().await.map_err(no_answer)?;
    show_dated(&broker, output, &market::classes_json(&classes), || {
        market::print_classes(&classes);
    });
    Ok(())
}

/// What measured work costs.
pub async fn price(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let classes = broker.classes().await.map_err(no_answer)?;
    show_dated(&broker, output, &market::prices_json(&classes), || {
        market::print_prices(&classes);
    });
    Ok(())
}

/// The levels of a book.
pub async fn depth(folder: &Path, class: &str, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let quotes = quotes(&broker, class).await?;
    show_dated(&broker, output, &market::depth_json(&quotes), || {
        market::print_depth(&quotes);
    });
    Ok(())
}

/// The last trades.
pub async fn trades(folder: &Path, class: &str, freshness: Freshness, output: Output) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let quotes = quotes(&broker, class).await?;
    show_dated(&broker, output, &market::trades_json(&quotes), || {
        market::print_trades(&quotes);
    });
    Ok(())
}

/// The candles.
pub async fn candles(
    folder: &Path,
    class: &str,
    step: u32,
    freshness: Freshness,
    output: Output,
) -> Outcome {
    let broker = asked(look(folder).await?, freshness);
    let quotes = quotes(&broker, class).await?;
    let candles = merged(&quotes.candles, u64::from(step) * MINUTE_MS);
    let value = market::candles_json(&quotes.class, &candles);
    show_dated(&broker, output, &value, || {
        market::print_candles(&quotes.class, &candles);
    });
    Ok(())
}

/// Candles of `step` milliseconds from candles of a minute.
fn merged(minutes: &[Candle], step: u64) -> Vec<Candle> {
    let mut merged: Vec<Candle> = Vec::new();
    for minute in minutes {
        let start = minute.start.0 - minute.start.0 % step;
        match merged.last_mut().filter(|last| last.start.0 == start) {
            Some(last) => {
                last.high = last.high.max(minute.high);
                last.low = last.low.min(minute.low);
                last.close = minute.close;
                last.volume += minute.volume;
            }
            None => {
                let mut first = *minute;
                first.start.0 = start;
                merged.push(first);
            }
        }
    }
    merged
}

/// The class of a name, or the one whose name begins so.
pub async fn class(broker: &Broker, name: &str) -> Result<Class, Failure> {
    match class_name::parse(name) {
        Some(class) => Ok(class),
        None => begins_so(&broker.classes().await.map_err(no_answer)?, name),
    }
}

/// What a class costs whose name begins so.
async fn quotes(broker: &Broker, name: &str) -> Result<Quotes, Failure> {
    let class = class(broker, name).await?;
    let quotes = broker.quotes(class).await.map_err(no_answer)?;
    quotes.ok_or_else(|| unknown(name))
}

fn begins_so(classes: &[ClassSummary], name: &str) -> Result<Class, Failure> {
    let all = classes.iter().map(|summary| summary.class);
    let found: Vec<Class> = all
        .filter(|class| class_name::of(class).starts_with(name))
        .collect();
    match found[..] {
        [class] => Ok(class),
        [] => Err(unknown(name)),
        _ => {
            let names: Vec<String> = found.iter().map(class_name::of).collect();
            let cause = format!(
                "several classes begin with \"{name}\": {}",
                names.join(", ")
            );
            Err(Failure::new(Kind::Input, cause, "give more of its name"))
        }
    }
}

fn unknown(name: &str) -> Failure {
    let cause = format!("no class called \"{name}\" was ever quoted");
    Failure::new(Kind::Input, cause, "`souk market classes` lists them")
}

/// Prints what one validator or all of them have; where it is old, how old.
fn show_dated(broker: &Broker, output: Output, value: &serde_json::Value, text: impl FnOnce()) {
    match (output, broker.oldest()) {
        (Output::Json, None) => show::json(value),
        (Output::Json, Some(age)) => {
            show::json(&serde_json::json!({ "stale": age, "value": value }));
        }
        (Output::Text, age) => {
            show::age(age);
            text();
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_node::market::{Millis, Price};

    use super::*;

    #[test]
    fn minutes_are_merged_by_the_clock() {
        let minute = |minute, open, close| Candle {
            start: Millis(minute * MINUTE_MS),
            open: Price(open),
            high: Price(open.max(close)),
            low: Price(open.min(close)),
            close: Price(close),
            volume: 2,
        };
        let minutes = [minute(4, 10, 12), minute(5, 12, 7), minute(9, 8, 9)];
        let merged = merged(&minutes, 5 * MINUTE_MS);
        let wide = |start, open, high, low, close, volume| Candle {
            start: Millis(start * MINUTE_MS),
            open: Price(open),
            high: Price(high),
            low: Price(low),
            close: Price(close),
            volume,
        };
        assert_eq!(
            merged,
            [wide(0, 10, 12, 10, 12, 2), wide(5, 12, 12, 7, 9, 4)]
        );
    }
}
