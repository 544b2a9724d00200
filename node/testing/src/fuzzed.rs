//! Feeds damaged frames to the decoders of protocols in tests, under fixed seeds, so that each run
//! tries the same.
//!
//! Frames that decode are grown from nothing but zeros, which are a message of every kind, and from
//! samples; each is then changed at random. Whatever a decoder makes of it, it must not panic, and
//! must take memory only in proportion to the received bytes.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Frames tried for each decoder.
const ROUNDS: u64 = 6_000;

/// Frames that decoded and are changed further.
const CORPUS_MAX: usize = 256;

/// Kinds of message that a protocol has, at most.
const KINDS: u8 = 32;

/// Bytes of zeros that are a message of any kind, lists empty.
const ZEROS: usize = 512;

/// The longest frame that is grown.
const FRAME_BYTES_MAX: usize = 8 << 10;

/// The memory that a decoder may take in addition to the proportional part: serde takes at most a
/// mebibyte for a list of stated length before its elements come, and lists are nested a few deep.
const TAKEN_BYTES_MIN: u64 = 5 << 20;

/// Bytes taken for each byte that came: an element of a list may be one byte long and some hundred
/// in memory, and lists double as they grow.
const TAKEN_PER_BYTE: u64 = 512;

/// A source of damage (splitmix64).
pub struct DamageSource {
    state: u64,
}

impl DamageSource {
    /// Returns the source of this seed: an equal one does equal damage.
    pub fn new(seed: u64) -> DamageSource {
        DamageSource { state: seed }
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_number() % bound.max(1) as u64) as usize
    }

    /// Returns the frame with one to four changes.
    pub fn of(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut damaged = frame.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut damaged);
        }
        damaged.truncate(FRAME_BYTES_MAX);
        damaged
    }

    fn change(&mut self, frame: &mut Vec<u8>) {
        let place = self.below(frame.len() + 1);
        let Some(byte) = frame.get(place).copied() else {
            let more = self.below(64);
            return frame.extend(std::iter::repeat_n(self.next_number() as u8, more));
        };
        match self.below(9) {
            0 => frame[place] = byte ^ (1 << self.below(8)),
            1 => frame[place] = self.next_number() as u8,
            // Small numbers are kinds, counts and lengths.
            2 | 3 => frame[place] = self.below(KINDS.into()) as u8,
            4 => frame.truncate(place),
            5 => {
                let end = place + self.below(frame.len() - place);
                let again = frame[place..end].to_vec();
                frame.splice(place..place, again);
            }
            6 => drop(frame.drain(place..place + self.below(frame.len() - place))),
            // A length beyond everything, in as many bytes as it takes.
            7 => drop(frame.splice(place..place, [0xff, 0xff, 0xff, 0xff, 0x0f])),
            // A list of very many of the least there is.
            _ => {
                frame.splice(place..place, [0xff, 0x1f]);
                frame.resize(frame.len() + 4096, 0);
            }
        }
    }
}

/// Tries damaged frames on a decoder that says whether it took one.
///
/// # Panics
/// If the decoder takes too much memory, or if it takes nearly none of the frames or all of them.
pub fn try_damaged(seed: u64, samples: &[Vec<u8>], decode: impl Fn(&[u8]) -> bool) {
    let mut damage = DamageSource::new(seed);
    let zeros = (0..KINDS).map(|kind| {
        let mut frame = vec![0; ZEROS];
        frame[0] = kind;
        frame
    });
    let mut corpus: Vec<Vec<u8>> = samples.iter().cloned().chain(zeros).collect();
    let (begun, mut taken) = (corpus.len(), 0_u64);
    for _ in 0..ROUNDS {
        let place = damage.below(corpus.len());
        let frame = damage.of(&corpus[place]);
        let mut decoded = false;
        let memory = allocation_counter::measure(|| decoded = decode(&frame));
        let most = TAKEN_BYTES_MIN + TAKEN_PER_BYTE * frame.len() as u64;
        assert!(
            memory.bytes_max <= most,
            "{} bytes of a frame took {} bytes of memory",
            frame.len(),
            memory.bytes_max
        );
        taken += u64::from(decoded);
        if decoded && corpus.len() < CORPUS_MAX {
            corpus.push(frame);
        } else if decoded {
            let place = begun + damage.below(CORPUS_MAX - begun);
            corpus[place] = frame;
        }
    }
    // Else nothing but the first byte of anything was tried.
    assert!(
        taken > ROUNDS / 100 && taken < ROUNDS,
        "{taken} of {ROUNDS} decode"
    );
}

/// Tries damaged frames of a protocol's message. It also encodes each one that decodes, and checks
/// that it reads as before.
///
/// # Panics
/// If it does not read as before, or as [`try_damaged`] does.
pub fn fuzz_decoder<T: Serialize + DeserializeOwned + Debug>(seed: u64, samples: &[T]) {
    let encode = |message: &T| postcard::to_allocvec(message).expect("it encodes");
    let samples: Vec<Vec<u8>> = samples.iter().map(encode).collect();
    for sample in &samples {
        postcard::from_bytes::<T>(sample).expect("a sample decodes");
    }
    try_damaged(seed, &samples, |frame| {
        let Ok(message) = postcard::from_bytes::<T>(frame) else {
            return false;
        };
        let again = postcard::to_allocvec(&message).expect("what decodes encodes");
        let read = postcard::from_bytes::<T>(&again).expect("what was encoded decodes");
        assert_eq!(format!("{message:?}"), format!("{read:?}"));
        true
    });
}
