//! Reads this machine's clock, which all logs and files of a node use; estimates the log's clock,
//! by which the market measures time; and supplies the time to the cores of the roles (their logic
//! without I/O).

use std::ffi::OsString;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use souk_market::Millis;
use souk_roles::clock::{Micros, Now};

/// The variable by which a test gives a node a wrong clock. It names a file with the milliseconds
/// by which the clock is ahead, or behind if negative. The node rereads the file, so that its clock
/// can jump.
pub const CLOCK_VARIABLE: &str = "SOUK_CLOCK_FILE";

/// The deviation from the market's clock from which the node warns.
const WRONG_MS: i64 = 30_000;

/// How often the node reads that file.
const CLOCK_PERIOD: Duration = Duration::from_millis(100);

/// Returns the microseconds since 1970 by this machine's clock.
pub fn unix_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    now.saturating_add_signed(clock_ahead_us())
}

/// Returns by how much a test sets this node's clock wrong.
fn clock_ahead_us() -> i64 {
    static AHEAD_US: OnceLock<Option<Arc<AtomicI64>>> = OnceLock::new();
    let ahead_us = AHEAD_US.get_or_init(|| std::env::var_os(CLOCK_VARIABLE).map(follow_clock_file));
    ahead_us
        .as_ref()
        .map_or(0, |ahead_us| ahead_us.load(Ordering::Relaxed))
}

/// Starts a thread that follows a clock file, and returns its value.
fn follow_clock_file(file: OsString) -> Arc<AtomicI64> {
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

/// Returns the milliseconds since 1970 by this machine's clock.
pub fn unix_ms() -> u64 {
    unix_us() / 1000
}

/// The log's clock, as far as this node knows it: this machine's clock and its deviation. Clones
/// share one clock.
#[derive(Clone, Debug, Default)]
pub struct LogClock {
    ahead_ms: Arc<AtomicI64>,
}

impl LogClock {
    /// Returns the log's time now.
    pub fn log_time(&self) -> Millis {
        let ahead_ms = self.ahead_ms.load(Ordering::Relaxed);
        Millis(unix_ms().saturating_add_signed(ahead_ms))
    }

    /// Sets the log's clock: it showed `log` when this machine's showed `own`. Warns if this
    /// machine's clock becomes wrong by much, because its owner should then set it right.
    pub fn set_time(&self, log: Millis, own: Millis) {
        let ahead_ms = i128::from(log.0) - i128::from(own.0);
        let ahead_ms = i64::try_from(ahead_ms).unwrap_or(0);
        let before_ms = self.ahead_ms.swap(ahead_ms, Ordering::Relaxed);
        if ahead_ms > WRONG_MS && before_ms <= WRONG_MS {
            tracing::warn!(ahead_ms, "this clock is behind the market's: set it right");
        }
        if ahead_ms < -WRONG_MS && before_ms >= -WRONG_MS {
            tracing::warn!(
                ahead_ms,
                "this clock is ahead of the market's: set it right"
            );
        }
    }
}

/// The clock of a core: it counts ticks from its creation, and knows the log's clock.
#[derive(Clone, Debug)]
pub struct CoreClock {
    began: Instant,
    log: LogClock,
}

impl CoreClock {
    /// Returns a clock that begins now.
    pub fn new(log: LogClock) -> CoreClock {
        let began = Instant::now();
        CoreClock { began, log }
    }

    /// Returns the current moment.
    pub fn now(&self) -> Now {
        Now {
            tick: self.current_tick(),
            log: self.log.log_time(),
        }
    }

    /// Returns how long it is until the log's clock shows `moment`.
    pub fn until_log(&self, moment: Millis) -> Duration {
        Duration::from_millis(moment.saturating_since(self.log.log_time()).0)
    }

    /// Waits until a moment. Returns at once if it has passed; without a moment, it will never
    /// return.
    pub async fn wait_until(&self, moment: Option<Micros>) {
        match moment {
            Some(moment) => tokio::time::sleep(self.duration_until(moment)).await,
            None => std::future::pending().await,
        }
    }

    fn duration_until(&self, moment: Micros) -> Duration {
        Duration::from_micros(moment.since(self.current_tick()).0)
    }

    fn current_tick(&self) -> Micros {
        Micros(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_is_told_the_logs_clock_once_validators_have_said_it() {
        let log = LogClock::default();
        let (provider, buyer) = (CoreClock::new(log.clone()), CoreClock::new(log.clone()));
        let own = Millis(unix_ms());
        log.set_time(Millis(own.0 + 3_600_000), own);
        for clock in [provider, buyer] {
            assert!(clock.now().log.0 >= own.0 + 3_600_000);
            assert_eq!(clock.duration_until(Micros(0)), Duration::ZERO);
            // A lease ends when the log says so, an hour before this machine's clock does.
            assert_eq!(clock.until_log(Millis(own.0 + 3_600_000)), Duration::ZERO);
        }
        log.set_time(Millis(own.0 - 3_600_000), own);
        assert!(log.log_time() < own);
    }
}
