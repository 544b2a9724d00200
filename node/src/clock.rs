//! This machine's clock, as every log and file of a node has it.

use std::ffi::OsString;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable by which a test gives a node a wrong clock: it names a file with the milliseconds
/// that the clock is ahead, or behind where negative. What the file says is followed while the node
/// runs, so that its clock can jump.
pub const CLOCK_VARIABLE: &str = "SOUK_CLOCK_FILE";

/// How often that file is read.
const CLOCK_PERIOD: Duration = Duration::from_millis(100);

/// Microseconds since 1970 by this machine's clock.
pub fn unix_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    now.saturating_add_signed(clock_ahead_us())
}

/// By how much this node's clock is wrong on purpose.
fn clock_ahead_us() -> i64 {
    static AHEAD_US: OnceLock<Option<Arc<AtomicI64>>> = OnceLock::new();
    let ahead_us = AHEAD_US.get_or_init(|| std::env::var_os(CLOCK_VARIABLE).map(followed));
    ahead_us
        .as_ref()
        .map_or(0, |ahead_us| ahead_us.load(Ordering::Relaxed))
}

/// What a clock's file says, from now on.
fn followed(file: OsString) -> Arc<AtomicI64> {
    let read = move || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let ahead_ms: i64 = text.trim().parse().unwrap_or(0);
        ahead_ms.saturating_mul(1_000)
    };
    let ahead_us = Arc::new(AtomicI64::new(read()));
    let kept = ahead_us.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(CLOCK_PERIOD);
            kept.store(read(), Ordering::Relaxed);
        }
    });
    ahead_us
}

/// Milliseconds since 1970 by this machine's clock.
pub fn unix_ms() -> u64 {
    unix_us() / 1000
}
