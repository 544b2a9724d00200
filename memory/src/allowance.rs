//! How much a cache may hold of a machine's memory at a moment.
//!
//! What others want of the machine goes first: a cache grows into half of what is free beyond a
//! reserve, since another process may be doing the same, and gives back what the reserve lacks.

/// What of a machine a cache leaves alone, and how small and large it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes that stay free.
    pub reserve_bytes: u64,
    /// The least that it may hold, however little is free.
    pub least_bytes: u64,
    /// The most, however much is.
    pub most_bytes: u64,
}

impl Allowance {
    /// What a cache may hold that holds so much now, where so much is free.
    #[must_use]
    pub fn limit(&self, held_bytes: u64, free_bytes: u64) -> u64 {
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
        assert_eq!(ALLOWANCE.limit(0, 3_000), 1_000);
        assert_eq!(ALLOWANCE.limit(1_000, 2_000), 1_500);
        assert_eq!(ALLOWANCE.limit(800, 1_000), 800);
        assert_eq!(ALLOWANCE.limit(800, 600), 400);
        assert_eq!(ALLOWANCE.limit(0, u64::MAX), 5_000);
        assert_eq!(ALLOWANCE.limit(200, 0), 100);
    }

    #[test]
    fn two_caches_on_one_machine_leave_the_reserve() {
        let machine = 10_000_u64;
        let mut held = [0_u64; 2];
        for round in 0..40 {
            let free = machine.saturating_sub(held[0] + held[1]);
            let cache = round % 2;
            held[cache] = ALLOWANCE.limit(held[cache], free);
        }
        let free = machine - held[0] - held[1];
        assert!((1_000..1_010).contains(&free), "{held:?}");
    }
}
