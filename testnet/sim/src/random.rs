//! Generates the random numbers of a run from its seed (splitmix64), as the simulator's only source
//! of randomness. Separate streams never disturb each other.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the stream `name` of a seed.
    pub fn new(seed: u64, name: &str) -> Self {
        let mut state = seed ^ 0x5bd1_e995_9e37_79b9;
        for byte in name.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self { state }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn draw_below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("below the bound")
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn draw_between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw_below(high - low + 1)
    }

    /// Returns a number from `-most` to `most`.
    pub fn draw_signed(&mut self, most: i64) -> i64 {
        let span = most.unsigned_abs() * 2 + 1;
        i64::try_from(self.draw_below(span)).expect("a small span") - most
    }

    /// Returns an index into a list of `length`, which must not be zero.
    pub fn draw_index(&mut self, length: usize) -> usize {
        usize::try_from(self.draw_below(length as u64)).expect("below a length")
    }

    /// Returns true with a chance of `permille` in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.draw_below(1_000) < permille
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for place in (1..list.len()).rev() {
            let other = self.draw_index(place + 1);
            list.swap(place, other);
        }
    }
}
