//! Damaged bytes for the decoders' tests, alike in every run.

use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

/// So many frames are tried, the same each time.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 4_000,
        rng_seed: RngSeed::Fixed(22),
        ..ProptestConfig::default()
    }
}

/// What is valid, with up to five bytes changed, and sometimes cut short or longer.
pub(crate) fn damaged(valid: Bytes) -> impl Strategy<Value = Bytes> {
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
