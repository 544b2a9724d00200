//! How fast bytes may go: a token bucket, as the time at which the next may follow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What may go at once after a pause: less would cost rate to timers, more would be a burst.
const BURST: Duration = Duration::from_millis(20);

/// Under a limit, bytes go in pieces of which at least so many go in a second.
const PIECES_PER_SECOND: u64 = 8;

/// A limit in bytes a second; it says how long to wait, and waits nowhere.
#[derive(Debug)]
pub struct Bucket {
    bytes_per_second: u64,
    /// When what was let go so far has gone, at the limit's rate.
    clear_at: Option<Instant>,
}

impl Bucket {
    /// A full bucket.
    ///
    /// # Panics
    /// If the limit is 0: nothing would ever go.
    pub fn new(bytes_per_second: u64) -> Bucket {
        assert!(bytes_per_second > 0, "a limit lets something through");
        Bucket {
            bytes_per_second,
            clear_at: None,
        }
    }

    /// Counts `bytes` that are about to go, and says how long they have to wait.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let begin = self.clear_at.map_or(earliest, |at| at.max(earliest));
        let takes = bytes as f64 / self.bytes_per_second as f64;
        let clear_at = begin + Duration::from_secs_f64(takes);
        self.clear_at = Some(clear_at);
        begin.saturating_duration_since(now)
    }
}

/// A limit that several transfers share, or none; and how much went so far.
#[derive(Debug, Default)]
pub struct Pacer {
    bucket: Option<Mutex<Bucket>>,
    passed: AtomicU64,
}

impl Pacer {
    /// At most so many bytes a second, if any limit is given.
    pub fn new(bytes_per_second: Option<u64>) -> Pacer {
        let bucket = |limit: u64| Mutex::new(Bucket::new(limit.max(1)));
        Pacer {
            bucket: bytes_per_second.map(bucket),
            passed: AtomicU64::new(0),
        }
    }

    /// How many bytes to let go at once: `most`, or less where those would take so long that the
    /// other end gives up.
    pub fn piece(&self, most: usize) -> usize {
        let Some(bucket) = &self.bucket else {
            return most;
        };
        let bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let short = bucket.bytes_per_second / PIECES_PER_SECOND;
        usize::try_from(short).unwrap_or(most).clamp(1, most)
    }

    /// Bytes that were let go so far.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    fn wait(&self, bytes: usize) -> Duration {
        self.passed.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(bucket) = &self.bucket else {
            return Duration::ZERO;
        };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(bytes as u64, Instant::now())
    }

    /// Waits until `bytes` may go.
    pub async fn pass(&self, bytes: usize) {
        let wait = self.wait(bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// The same, on a thread that may wait.
    pub fn pass_blocking(&self, bytes: usize) {
        let wait = self.wait(bytes);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_over_any_time() {
        let (mut bucket, begin) = (Bucket::new(1_000_000), Instant::now());
        let mut now = begin;
        for _ in 0..100 {
            now += bucket.take(50_000, now);
        }
        // 5 MB at 1 MB/s; the last piece has not gone yet, and the burst went at once.
        let took = now.duration_since(begin);
        assert_eq!(took, Duration::from_millis(5_000 - 50) - BURST);
    }

    #[test]
    fn a_low_limit_makes_small_pieces() {
        assert_eq!(Pacer::default().piece(512), 512);
        assert_eq!(Pacer::new(Some(1 << 30)).piece(512), 512);
        assert_eq!(Pacer::new(Some(800)).piece(512), 100);
        assert_eq!(Pacer::new(Some(1)).piece(512), 1);
    }

    #[test]
    fn a_pause_saves_up_no_more_than_a_burst() {
        let (mut bucket, begin) = (Bucket::new(1_000_000), Instant::now());
        bucket.take(1, begin);
        let later = begin + Duration::from_secs(3600);
        assert_eq!(bucket.take(100_000, later), Duration::ZERO);
        assert_eq!(bucket.take(1, later), Duration::from_millis(100) - BURST);
    }
}
