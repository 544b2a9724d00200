//! Times of the API: moments as RFC 3339 in UTC, durations in seconds.

pub use souk_node::clock::format_rfc3339 as at;
use souk_node::market::Millis;

/// Converts milliseconds to seconds.
#[expect(clippy::cast_precision_loss, reason = "a time in seconds is not exact")]
pub fn millis_to_seconds(time: Millis) -> f64 {
    time.0 as f64 / 1e3
}
