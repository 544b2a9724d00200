//! Computes how much of a machine's memory a provider's cache of content can hold at present.
//!
//! Other programs come first: a cache grows into half of the free memory beyond a reserve, because
//! another process can do the same, and it frees the memory that the reserve lacks.

/// The reserve that a cache must leave to the machine, and the bounds of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes of the machine that must stay free.
    pub reserve_bytes: u64,
    /// The least limit of the cache in bytes, however little memory is free. It must not exceed
    /// `most_bytes`.
    pub least_bytes: u64,
    /// The greatest limit of the cache in bytes, however much memory is free.
    pub most_bytes: u64,
}

impl Allowance {
    /// Returns the limit in bytes of a cache that holds `held_bytes` while `free_bytes` are free.
    #[must_use]
    pub fn limit_bytes(&self, held_bytes: u64, free_bytes: u64) -> u64 {
        assert!(self.least_bytes <= self.most_bytes, "some limit is allowed");
        let limit = match free_bytes.checked_sub(self.reserve_bytes) {
            Some(beyond) => held_bytes.saturating_add(beyond / 2),
            None => held_bytes.saturating_sub(self.reserve_bytes - free_bytes),
        };
        limit.clamp(self.least_bytes, self.most_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance {
        reserve_bytes: 1_000,
        least_bytes: 100,
        most_bytes: 5_000,
    };

    #[test]
    fn a_cache_grows_into_half_of_what_is_free_and_gives_back_what_lacks() {
        assert_eq!(ALLOWANCE.limit_bytes(0, 3_000), 1_000);
        assert_eq!(ALLOWANCE.limit_bytes(1_000, 2_000), 1_500);
        assert_eq!(ALLOWANCE.limit_bytes(800, 1_000), 800);
        assert_eq!(ALLOWANCE.limit_bytes(800, 600), 400);
        assert_eq!(ALLOWANCE.limit_bytes(0, u64::MAX), 5_000);
        assert_eq!(ALLOWANCE.limit_bytes(200, 0), 100);
    }

    #[test]
    fn two_caches_on_one_machine_leave_the_reserve() {
        let machine = 10_000_u64;
        let mut held = [0_u64; 2];
        for round in 0..40 {
            let free = machine.saturating_sub(held[0] + held[1]);
            let cache = round % 2;
            held[cache] = ALLOWANCE.limit_bytes(held[cache], free);
        }
        let free = machine - held[0] - held[1];
        assert!((1_000..1_010).contains(&free), "{held:?}");
    }
}
