//! `souk market classes|depth|trades|candles|price`: shows market data; needs no account.

use std::path::Path;

use serde::Serialize;
use souk_api::market::{CandlesView, ClassView, DepthView, TradesView, WorkPricesView};
use souk_node::client::broker::Broker;
use souk_node::client::market_data::{self, ClassError};
use souk_node::market::{Class, Quotes};

use crate::args::{Freshness, Output};
use crate::commands::book::{apply_freshness, market_failure};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::connect_broker;
use crate::show::{self, market};

/// Length of a candle in the market's own data, in seconds.
const MINUTE: u64 = 60;

/// Shows the classes.
pub async fn show_classes(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let classes = broker.fetch_classes().await.map_err(market_failure)?;
    let views: Vec<ClassView> = classes.iter().map(ClassView::from).collect();
    show_dated(&broker, output, &views, || market::print_classes(&classes));
    Ok(())
}

/// Shows the prices of measured work.
pub async fn show_prices(folder: &Path, freshness: Freshness, output: Output) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let classes = broker.fetch_classes().await.map_err(market_failure)?;
    let views: Vec<WorkPricesView> = classes.iter().map(WorkPricesView::from).collect();
    show_dated(&broker, output, &views, || market::print_prices(&classes));
    Ok(())
}

/// Shows the levels of a book.
pub async fn show_depth(
    folder: &Path,
    class: &str,
    freshness: Freshness,
    output: Output,
) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let quotes = fetch_quotes(&broker, class).await?;
    show_dated(
        &broker,
        output,
        &DepthView::new(&quotes, usize::MAX),
        || {
            market::print_depth(&quotes);
        },
    );
    Ok(())
}

/// Shows the last trades.
pub async fn show_trades(
    folder: &Path,
    class: &str,
    freshness: Freshness,
    output: Output,
) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let quotes = fetch_quotes(&broker, class).await?;
    show_dated(&broker, output, &TradesView::from(&quotes), || {
        market::print_trades(&quotes);
    });
    Ok(())
}

/// Shows the candles.
pub async fn show_candles(
    folder: &Path,
    class: &str,
    step: u32,
    freshness: Freshness,
    output: Output,
) -> Outcome {
    let broker = apply_freshness(connect_broker(folder).await?, freshness);
    let quotes = fetch_quotes(&broker, class).await?;
    let step = u64::from(step) * MINUTE;
    let candles = market_data::merge_candles(&quotes.candles, step * 1_000);
    let value = CandlesView::new(&quotes.class, step, &candles);
    show_dated(&broker, output, &value, || {
        market::print_candles(&quotes.class, &candles);
    });
    Ok(())
}

/// Returns the class with this name, or the only one whose name begins so.
pub async fn find_class(broker: &Broker, name: &str) -> Result<Class, Failure> {
    market_data::find_class(broker, name)
        .await
        .map_err(no_class)
}

async fn fetch_quotes(broker: &Broker, name: &str) -> Result<Quotes, Failure> {
    market_data::find_quotes(broker, name)
        .await
        .map_err(no_class)
}

fn no_class(error: ClassError) -> Failure {
    match error {
        ClassError::Broker(error) => market_failure(error),
        ClassError::Unknown { .. } => {
            Failure::new(Kind::Input, error, "`souk market classes` lists them")
        }
        ClassError::Several { .. } => Failure::new(Kind::Input, error, "give more of its name"),
    }
}

/// Prints a value, with its age if it is stale.
fn show_dated(broker: &Broker, output: Output, value: &impl Serialize, text: impl FnOnce()) {
    match (output, broker.oldest_age()) {
        (Output::Json, None) => show::print_json(value),
        (Output::Json, Some(age)) => {
            show::print_json(&serde_json::json!({ "stale": age, "value": value }));
        }
        (Output::Text, age) => {
            show::print_age(age);
            text();
        }
    }
}
