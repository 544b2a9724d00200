//! `souk market classes|depth|trades|candles|price`: the market's data, which take no account.

use std::path::Path;

use souk_node::client::broker::Broker;
use souk_node::client::market_data::{self, ClassError};
use souk_node::market::{Class, Quotes};

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
    let candles = market_data::merged(&quotes.candles, u64::from(step) * MINUTE_MS);
    let value = market::candles_json(&quotes.class, &candles);
    show_dated(&broker, output, &value, || {
        market::print_candles(&quotes.class, &candles);
    });
    Ok(())
}

/// The class of a name, or the one whose name begins so.
pub async fn class(broker: &Broker, name: &str) -> Result<Class, Failure> {
    market_data::class(broker, name).await.map_err(no_class)
}

async fn quotes(broker: &Broker, name: &str) -> Result<Quotes, Failure> {
    market_data::quotes(broker, name).await.map_err(no_class)
}

fn no_class(error: ClassError) -> Failure {
    match error {
        ClassError::Broker(error) => no_answer(error),
        ClassError::Unknown { .. } => {
            Failure::new(Kind::Input, error, "`souk market classes` lists them")
        }
        ClassError::Several { .. } => Failure::new(Kind::Input, error, "give more of its name"),
    }
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
