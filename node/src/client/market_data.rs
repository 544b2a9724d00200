//! Looks up the market's data for users: finds a class (the group of devices that share one book)
//! by the beginning of its name, and merges candles of a minute into longer ones.

use souk_api::class_name;
use souk_market::{Candle, Class, Quotes};

use super::broker::{Broker, BrokerError};

/// Why no class was found.
#[derive(Debug, thiserror::Error)]
pub enum ClassError {
    /// No quoted class has this name.
    #[error("no class called \"{name}\" was ever quoted")]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// Several classes begin with this name.
    #[error("several classes begin with \"{name}\": {found}")]
    Several {
        /// The requested name.
        name: String,
        /// The names of these classes.
        found: String,
    },
    /// No validator answered.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Returns the class of this name, or the only one whose name begins with it.
///
/// # Errors
/// [`ClassError`]
pub async fn find_class(broker: &Broker, name: &str) -> Result<Class, ClassError> {
    if let Some(class) = class_name::parse_class(name) {
        return Ok(class);
    }
    let all = broker.fetch_classes().await?;
    let all = all.iter().map(|summary| summary.class);
    let found: Vec<Class> = all
        .filter(|class| class_name::format_class(class).starts_with(name))
        .collect();
    let name = name.to_owned();
    match found[..] {
        [class] => Ok(class),
        [] => Err(ClassError::Unknown { name }),
        _ => {
            let found: Vec<String> = found.iter().map(class_name::format_class).collect();
            let found = found.join(", ");
            Err(ClassError::Several { name, found })
        }
    }
}

/// Returns the prices of the class of this name, or of the only one whose name begins with it.
///
/// # Errors
/// [`ClassError`]
pub async fn find_quotes(broker: &Broker, name: &str) -> Result<Quotes, ClassError> {
    let class = find_class(broker, name).await?;
    let quotes = broker.fetch_quotes(class).await?;
    quotes.ok_or_else(|| ClassError::Unknown {
        name: name.to_owned(),
    })
}

/// Combines candles of a minute, which must be in order, into candles of `step` milliseconds.
/// `step` must not be 0.
#[must_use]
pub fn merge_candles(minutes: &[Candle], step: u64) -> Vec<Candle> {
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

#[cfg(test)]
mod tests {
    use souk_market::{Millis, Price};

    use super::*;

    const MINUTE_MS: u64 = 60_000;

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
        let merged = merge_candles(&minutes, 5 * MINUTE_MS);
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
