//! Formats the times of the public JSON: moments as RFC 3339 in UTC, durations in seconds.

use souk_market::Millis;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Formats a moment, in milliseconds since 1970, as RFC 3339 in UTC.
#[must_use]
pub fn format_rfc3339(ms: u64) -> String {
    let nanos = i128::from(ms) * 1_000_000;
    let known = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    let text = known.and_then(|known| known.format(&Rfc3339).ok());
    // The year is beyond 9999.
    text.unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned())
}

/// Formats a moment of the log as RFC 3339 in UTC.
#[must_use]
pub fn format_moment(moment: Millis) -> String {
    format_rfc3339(moment.0)
}

/// Converts milliseconds to seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a time in seconds is not exact")]
pub fn to_seconds(time: Millis) -> f64 {
    time.0 as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_in_utc() {
        assert_eq!(format_rfc3339(1_700_000_000_250), "2023-11-14T22:13:20.25Z");
        assert_eq!(format_rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
