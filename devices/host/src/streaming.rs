//! Copies bytes without displacing the data in use from the processor's cache. A node puts content
//! that arrives from peers into its place with it, because no code will read those bytes again
//! soon.

/// The width of one store, and the alignment of its address.
#[cfg(target_arch = "x86_64")]
const STORE_BYTES: usize = 16;

/// Copies bytes that no code will read again soon. Use an ordinary copy for others, which should
/// stay in the cache. Uses streaming stores where the processor has them (x86-64), which neither
/// read the target first nor bring it into the cache.
///
/// # Panics
/// Panics if the two differ in length.
pub fn stream_copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "bytes are copied one for one");
    #[cfg(target_arch = "x86_64")]
    let (to, from) = {
        let before = to.as_ptr().align_offset(STORE_BYTES).min(to.len());
        let (head, to) = to.split_at_mut(before);
        let (before, from) = from.split_at(before);
        head.copy_from_slice(before);
        let (lines, to) = to.as_chunks_mut();
        let (pieces, from) = from.as_chunks();
        stream(lines, pieces);
        (to, from)
    };
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "streaming stores take pointers")]
fn stream(to: &mut [[u8; STORE_BYTES]], from: &[[u8; STORE_BYTES]]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    for (to, from) in to.iter_mut().zip(from) {
        let to: *mut __m128i = to.as_mut_ptr().cast();
        debug_assert!(to.is_aligned(), "the caller begins at a multiple");
        // SAFETY: each pointer is to as many bytes as are read or written, and `to` is aligned:
        // the first is, and they lie one behind the other.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: every x86-64 has the instruction. It makes the stores visible to later reads.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_at_any_place_are_copied_and_none_beside_them() {
        let from: Vec<u8> = (0..400).map(|n| n as u8 | 1).collect();
        for begin in 0..40 {
            for length in (0..70).chain([255, 256, 257, 300]) {
                let mut to = vec![0; 400];
                let end = begin + length;
                stream_copy(&mut to[begin..end], &from[3..3 + length]);
                assert_eq!(to[begin..end], from[3..3 + length]);
                let beside = to[..begin].iter().chain(&to[end..]);
                assert!(beside.into_iter().all(|byte| *byte == 0));
            }
        }
    }
}
