//! Damages valid bytes at random, for the tests that give damaged input to the decoders. A fixed
//! seed makes all runs equal.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

/// Returns the configuration: the number of cases, with a fixed seed.
pub(crate) fn proptest_config() -> ProptestConfig {
    ProptestConfig {
        cases: 4_000,
        rng_seed: RngSeed::Fixed(22),
        ..ProptestConfig::default()
    }
}

/// Changes up to five bytes of valid input and sometimes changes its length.
pub(crate) fn arbitrary_damage(valid: Bytes) -> impl Strategy<Value = Bytes> {
    let changes = proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6);
    let length = proptest::option::of(0..2 * valid.len());
    (changes, length).prop_map(move |(changes, length)| {
        let mut bytes = valid.to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.resize(length.unwrap_or(bytes.len()), 0xff);
        bytes.into()
    })
}
