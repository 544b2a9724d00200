//! Limits the rate of bytes: a token bucket, which stores the time at which the next byte may pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much may pass at once after a pause: less would cost rate because of timers, more would be a
/// burst.
const BURST: Duration = Duration::from_millis(20);

/// Under a limit, pieces are so short that at least this many pass in a second.
const PIECES_PER_SECOND: u64 = 8;

/// A limit in bytes a second. It returns how long the caller must wait, but will not wait itself.
#[derive(Debug)]
pub struct Bucket {
    bytes_per_second: u64,
    /// When all bytes so far have passed, at the limit's rate.
    clear_at: Option<Instant>,
}

impl Bucket {
    /// Returns a full bucket.
    ///
    /// # Panics
    /// If the limit is 0, because nothing would ever pass.
    pub fn new(bytes_per_second: u64) -> Bucket {
        assert!(bytes_per_second > 0, "a limit lets something through");
        Bucket {
            bytes_per_second,
            clear_at: None,
        }
    }

    /// Counts `bytes` that are about to pass, and returns how long they must wait.
    pub fn reserve_bytes(&mut self, bytes: u64, now: Instant) -> Duration {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let begin = self.clear_at.map_or(earliest, |at| at.max(earliest));
        let takes = bytes as f64 / self.bytes_per_second as f64;
        let clear_at = begin + Duration::from_secs_f64(takes);
        self.clear_at = Some(clear_at);
        begin.saturating_duration_since(now)
    }
}

/// A limit that several transfers share, or none, and a count of the bytes that passed.
#[derive(Debug, Default)]
pub struct Pacer {
    bucket: Option<Mutex<Bucket>>,
    passed: AtomicU64,
}

impl Pacer {
    /// Returns a pacer of this many bytes a second, or without a limit.
    pub fn new(bytes_per_second: Option<u64>) -> Pacer {
        let bucket = |limit: u64| Mutex::new(Bucket::new(limit.max(1)));
        Pacer {
            bucket: bytes_per_second.map(bucket),
            passed: AtomicU64::new(0),
        }
    }

    /// Returns how many bytes can pass at once: `most`, or less if those would take so long that
    /// the other end times out.
    pub fn piece_bytes(&self, most: usize) -> usize {
        let Some(bucket) = &self.bucket else {
            return most;
        };
        let bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let short = bucket.bytes_per_second / PIECES_PER_SECOND;
        usize::try_from(short).unwrap_or(most).clamp(1, most)
    }

    /// Returns whether there is a limit.
    pub const fn is_limited(&self) -> bool {
        self.bucket.is_some()
    }

    /// Returns how many bytes have passed.
    pub fn bytes_passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    fn reserve_bytes(&self, bytes: usize) -> Duration {
        self.passed.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(bucket) = &self.bucket else {
            return Duration::ZERO;
        };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.reserve_bytes(bytes as u64, Instant::now())
    }

    /// Waits until `bytes` may pass.
    pub async fn pass_bytes(&self, bytes: usize) {
        let wait = self.reserve_bytes(bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until `bytes` may pass, and blocks the thread: tasks should use [`Pacer::pass_bytes`]
    /// instead.
    pub fn pass_blocking(&self, bytes: usize) {
        let wait = self.reserve_bytes(bytes);
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
            now += bucket.reserve_bytes(50_000, now);
        }
        // 5 MB at 1 MB/s; the last piece has not gone yet, and the burst went at once.
        let took = now.duration_since(begin);
        assert_eq!(took, Duration::from_millis(5_000 - 50) - BURST);
    }

    #[test]
    fn a_low_limit_makes_small_pieces() {
        assert_eq!(Pacer::default().piece_bytes(512), 512);
        assert_eq!(Pacer::new(Some(1 << 30)).piece_bytes(512), 512);
        assert_eq!(Pacer::new(Some(800)).piece_bytes(512), 100);
        assert_eq!(Pacer::new(Some(1)).piece_bytes(512), 1);
    }

    #[test]
    fn a_pause_saves_up_no_more_than_a_burst() {
        let (mut bucket, begin) = (Bucket::new(1_000_000), Instant::now());
        bucket.reserve_bytes(1, begin);
        let later = begin + Duration::from_secs(3600);
        assert_eq!(bucket.reserve_bytes(100_000, later), Duration::ZERO);
        assert_eq!(
            bucket.reserve_bytes(1, later),
            Duration::from_millis(100) - BURST
        );
    }
}
