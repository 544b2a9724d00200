//! Any bytes as a signed batch and as a snapshot: an answer, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use souk_market::{Exchange, SignedBatch};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(signed) = SignedBatch::decode(bytes) {
        let again = SignedBatch::decode(&signed.encode());
        assert_eq!(again.as_ref(), Ok(&signed));
        let _ = signed.verify();
    }
    let _ = Exchange::restore(bytes);
});
