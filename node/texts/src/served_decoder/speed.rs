//! Measures how many tokens a decoder generates in a second: in one sequence, and in all of them at
//! once.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use souk_llm::generation::{Request, Sequence, generate};
use souk_llm::sampling::Sampling;
use tokio::runtime::Handle;

use crate::{TextEngine, TextError};

/// How long one measurement takes at most, and how many tokens it generates in a sequence.
const TIME_MAX: Duration = Duration::from_secs(2);
const TOKENS_MAX: usize = 256;

/// Speeds of a decoder, in tokens of the model a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecoderSpeed {
    /// With one request.
    pub one: f64,
    /// With requests in all slots, together.
    pub all: f64,
}

/// Measures the speeds of a decoder. It opens its own sequences, and closes them afterwards.
pub(super) fn measure_speed(
    engine: &TextEngine,
    handle: &Handle,
    vocabulary: usize,
) -> Result<DecoderSpeed, TextError> {
    let mut sequences = engine.open_sequences(handle)?;
    // The first run is slower: it takes memory.
    count_tokens(&mut sequences[..1], vocabulary)?;
    Ok(DecoderSpeed {
        one: count_tokens(&mut sequences[..1], vocabulary)?,
        all: count_tokens(&mut sequences, vocabulary)?,
    })
}

/// Generates in all these sequences at once, and returns the tokens a second.
fn count_tokens(sequences: &mut [Sequence<'_>], vocabulary: usize) -> Result<f64, TextError> {
    let begun = Instant::now();
    let counts: Result<Vec<usize>, TextError> = std::thread::scope(|scope| {
        let threads: Vec<_> = sequences
            .iter_mut()
            .enumerate()
            .map(|(number, sequence)| {
                scope.spawn(move || generate_in(sequence, number, vocabulary, begun))
            })
            .collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(count) => count,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    let tokens: usize = counts?.iter().sum();
    Ok(tokens as f64 / begun.elapsed().as_secs_f64())
}

/// Generates text in a sequence without an end of its own.
fn generate_in(
    sequence: &mut Sequence<'_>,
    number: usize,
    vocabulary: usize,
    begun: Instant,
) -> Result<usize, TextError> {
    sequence.truncate(0);
    let first = (number % vocabulary.max(1)) as u32;
    let sampling = Sampling {
        temperature: 1.0,
        seed: number as u64,
        ..Sampling::default()
    };
    let is_wanted = || begun.elapsed() < TIME_MAX;
    let request = Request {
        prompt: &[first],
        sampling: &sampling,
        ends: &[],
        grammar: None,
        tokens_max: TOKENS_MAX,
        drafts_max: 0,
        likeliest: None,
        is_wanted: &is_wanted,
    };
    let mut count = 0;
    generate(sequence, &request, |_| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    Ok(count)
}
