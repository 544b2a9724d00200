//! Draws the mask of a `Dropout` (the elements that it keeps) from the node's seed, with a
//! generator that is identical on every machine. The reference kernel and the GPU backend both call
//! it.
//!
//! ONNX does not define the generator, so souk must refuse a node without a seed. For a node with
//! one, ONNX's reference draws by the Mersenne Twister, seeded by an integer as in numpy's
//! `RandomState`, and this module does the same.

use souk_onnx::NodeProto;

use super::call::{Call, KernelError};
use super::value::to_truths;

/// Words of the generator's state, and the distance between two words that make a new one.
const WORDS: usize = 624;
const APART: usize = 397;

/// The elements that a dropout keeps, and their factor.
pub struct DropoutMask {
    /// Whether the dropout keeps each element.
    pub mask: Vec<bool>,
    /// Factor of the kept elements.
    pub scale: f64,
}

/// Returns the seed of a node, if it states one that the generator accepts: it must be an unsigned
/// integer of 32 bits.
pub fn read_seed(node: &NodeProto) -> Option<u32> {
    u32::try_from(node.int("seed")?).ok()
}

/// Returns the elements that a `Dropout` of `count` elements keeps; `None` if it returns its input
/// unchanged. The ratio must be from 0 to below 1.
pub fn dropout_mask(call: &Call<'_>, count: usize) -> Result<Option<DropoutMask>, KernelError> {
    let trains = match call.optional_input(2) {
        Some(mode) => to_truths(mode)?.first().copied().unwrap_or(false),
        None => false,
    };
    let ratio = match call.optional_input(1) {
        _ if !trains => return Ok(None),
        Some(ratio) => ratio.to_f64s()?.first().copied(),
        None => Some(0.5),
    };
    let ratio = ratio.filter(|ratio| (0.0..1.0).contains(ratio));
    let ratio = ratio.ok_or(KernelError::Range(1))?;
    if ratio == 0.0 {
        return Ok(None);
    }
    let mut draws = Twister::new(read_seed(call.node).ok_or(KernelError::Attribute("seed"))?);
    Ok(Some(DropoutMask {
        mask: (0..count).map(|_| draws.next_fraction() >= ratio).collect(),
        scale: 1.0 / (1.0 - ratio),
    }))
}

/// The Mersenne Twister of 19,937 bits.
struct Twister {
    state: [u32; WORDS],
    at: usize,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; WORDS];
        for index in 1..WORDS {
            let before = state[index - 1];
            let mixed = (before ^ (before >> 30)).wrapping_mul(1_812_433_253);
            state[index] = mixed.wrapping_add(index as u32);
        }
        Self { state, at: WORDS }
    }

    fn twist(&mut self) {
        for index in 0..WORDS {
            let upper = self.state[index] & 0x8000_0000;
            let joined = upper | (self.state[(index + 1) % WORDS] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + APART) % WORDS] ^ (joined >> 1) ^ odd;
        }
        self.at = 0;
    }

    fn next_word(&mut self) -> u32 {
        if self.at == WORDS {
            self.twist();
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// Returns a number from 0 to below 1, with 53 bits.
    fn next_fraction(&mut self) -> f64 {
        let (upper, lower) = (self.next_word() >> 5, self.next_word() >> 6);
        (f64::from(upper) * f64::from(1 << 26) + f64::from(lower)) / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_numpy() {
        // numpy.random.seed(SEED); numpy.random.uniform(0, 1, 1000)[[0, 1, 2, 999]]
        let known = [
            (
                0,
                [
                    0.5488135039273248,
                    0.7151893663724195,
                    0.6027633760716439,
                    0.6771411441114241,
                ],
            ),
            (
                4294967295,
                [
                    0.0976320289940138,
                    0.9123828453026218,
                    0.78903530185164,
                    0.556626859384112,
                ],
            ),
        ];
        for (seed, expected) in known {
            let mut twister = Twister::new(seed);
            let draws: Vec<f64> = (0..1000).map(|_| twister.next_fraction()).collect();
            assert_eq!([draws[0], draws[1], draws[2], draws[999]], expected);
        }
    }
}
