//! Converts texts and numbers from request bodies into values of the market, and refuses invalid
//! ones.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use souk_network::protocols::regions;
use souk_node::market::{AccountKey, EXCLUDED_MAX, Millis, Permille, Regions};

use crate::problem::{Code, Problem};

/// The largest whole number that every program can read exactly: 2^53 - 1.
pub const WHOLE_MAX: u64 = (1 << 53) - 1;

/// Reads a whole number that all programs read alike.
///
/// # Errors
/// Fails if the number exceeds [`WHOLE_MAX`].
pub fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let given = u64::deserialize(from)?;
    match given {
        0..=WHOLE_MAX => Ok(given),
        _ => Err(Error::custom(format!("{given} is more than {WHOLE_MAX}"))),
    }
}

/// Reads an optional whole number that all programs read alike.
///
/// # Errors
/// Fails if the number exceeds [`WHOLE_MAX`].
pub fn amount_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match Option::<u64>::deserialize(from)? {
        Some(given) if given > WHOLE_MAX => {
            Err(Error::custom(format!("{given} is more than {WHOLE_MAX}")))
        }
        given => Ok(given),
    }
}

/// Returns the problem of a field with an invalid value.
pub fn invalid_input(detail: impl ToString) -> Problem {
    Problem::new(
        Code::Input,
        detail,
        "correct it; /v1/openapi.json says what is taken",
    )
}

/// Converts seconds to a duration.
///
/// # Errors
/// Fails if the number is not a valid duration.
pub fn parse_duration(field: &str, seconds: f64) -> Result<Duration, Problem> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        invalid_input(format!("{field}: {seconds} is no time in seconds: {error}"))
    })
}

/// Converts seconds to milliseconds of the market.
///
/// # Errors
/// Fails if the number is not a valid duration.
pub fn parse_millis(field: &str, seconds: f64) -> Result<Millis, Problem> {
    let time = parse_duration(field, seconds)?;
    Ok(Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

/// Converts a number to a reputation.
///
/// # Errors
/// Fails if the number exceeds 1000.
pub fn parse_reputation(permille: u16) -> Result<Permille, Problem> {
    match permille {
        0..=1000 => Ok(Permille(permille)),
        _ => Err(invalid_input("min_reputation is 0 to 1000")),
    }
}

/// Parses the accounts from which the buyer will not buy.
///
/// # Errors
/// Fails if a text is not an account, or if there are too many.
pub fn parse_excluded_accounts(texts: &[String]) -> Result<Vec<AccountKey>, Problem> {
    if texts.len() > EXCLUDED_MAX {
        let detail = format!("{} are excluded, {EXCLUDED_MAX} can be", texts.len());
        return Err(invalid_input(detail));
    }
    let account = |text: &String| {
        let known = text.parse::<AccountKey>();
        known.map_err(|error| invalid_input(format!("exclude: {text} is no account: {error}")))
    };
    texts.iter().map(account).collect()
}

/// Parses regions by their names, or by the beginnings of names.
///
/// # Errors
/// Fails if a name matches no region.
pub fn parse_regions(names: &[String]) -> Result<Regions, Problem> {
    let mut all = Regions(0);
    for name in names {
        let found = regions::find_regions(name);
        let known = regions::NAMES.join(", ");
        let found = found.ok_or_else(|| {
            invalid_input(format!("there is no region {name}; there are {known}"))
        })?;
        all.0 |= found.0;
    }
    Ok(all)
}
