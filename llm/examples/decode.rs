//! Measures how fast a model decodes on this machine's processor, and how fast the processor reads
//! memory.
//!
//!     cargo run --release -p souk-llm --example decode -- MODEL [THREADS [PROMPT [TOKENS [SEQUENCES [FILE]]]]]
//!
//! If you name a FILE, the program writes the logits after the prompt to it, for
//! `llm/bench/beside_llama.py` to compare.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use souk_cpu::Cpu;
use souk_llm::decoder;
use souk_llm::generation::{self, Sequence};
use souk_llm::model::LanguageModel;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::processor::session::{SequenceStep, Session, State};

/// Bytes that the memory measurement reads: far more than caches hold.
const READ_BYTES: usize = 512 << 20;

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| {
        given
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(otherwise)
    };
    let (threads, prompt, tokens) = (number(1, 2), number(2, 128), number(3, 64));
    let path = given
        .first()
        .expect("the model's path is the first argument");
    let room = prompt + tokens;
    let start = Instant::now();
    let model = LanguageModel::open(Path::new(path)).expect("a model is there");
    let mut decoder = model.into_decoder(room).expect("it is a decoder");
    let drawing = decoder::to_sampling_model(decoder.subgraph.model);
    decoder.subgraph.model = drawing.expect("it is a model");
    println!("opened and built in {:.2} s", start.elapsed().as_secs_f64());
    let threads = NonZeroUsize::new(threads).expect("one thread at least");
    let cpu = Cpu::new(catalogue::all_processors()[0].clone(), threads);
    let start = Instant::now();
    let (states, cache) = (decoder.states.clone(), decoder.empty_cache(room));
    let bytes: usize = decoder.subgraph.weights.values().map(|it| it.len()).sum();
    let program = cpu
        .compile_owned(decoder.subgraph)
        .expect("the processor takes it");
    println!("compiled in {:.2} s", start.elapsed().as_secs_f64());
    let session = || {
        let states = states.iter().map(|port| State {
            port: port.clone(),
            value: cache.clone(),
        });
        program
            .open_session(states.collect())
            .expect("there is room")
    };
    let mut sequence = Sequence::new(session(), room);
    let ids: Vec<u32> = (0..prompt as u32).map(|at| at * 31 % 200).collect();
    let start = Instant::now();
    let logits = sequence.push(&ids).expect("the prompt is run");
    let took = start.elapsed().as_secs_f64();
    if let Some(file) = given.get(5) {
        let bytes: Vec<u8> = logits.iter().flat_map(|it| it.to_le_bytes()).collect();
        std::fs::write(file, bytes).expect("the file can be written");
    }
    println!(
        "prefill of {prompt}: {:.1} tokens per second",
        prompt as f64 / took
    );
    let mut times = Vec::new();
    for at in 0..tokens as u32 {
        let start = Instant::now();
        sequence.push(&[at % 200]).expect("a token is run");
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let middle = times[times.len() / 2];
    let read = bytes as f64 / middle / 1e9;
    let memory = bandwidth(threads.get());
    println!(
        "decode after {prompt}: {:.2} tokens per second at the median, {:.2} at the best; \
         {read:.2} GB/s of weights, {:.0} % of the {memory:.2} GB/s that memory reads",
        1.0 / middle,
        1.0 / times[0],
        100.0 * read / memory,
    );
    let sequences = number(4, 0);
    if sequences > 0 {
        let together = rate_of_all(session(), sequences, (&ids, tokens));
        println!(
            "{sequences} sequences: {together:.2} tokens per second (median), {:.2} times one's",
            together * middle
        );
    }
}

/// Returns the median tokens per second of sequences stepped together after a prompt each.
fn rate_of_all(
    mut session: Box<dyn Session + '_>,
    sequences: usize,
    (prompt, tokens): (&[u32], usize),
) -> f64 {
    let mut step = |steps: &[SequenceStep]| {
        let outcomes = session.step_all(steps);
        assert!(outcomes.iter().all(Result::is_ok), "every step is run");
    };
    let all = 0..sequences as u32;
    for sequence in all.clone() {
        let inputs = generation::step_inputs(prompt, 0, &[prompt.len() - 1]);
        step(&[SequenceStep { sequence, inputs }]);
    }
    let mut times = Vec::new();
    for at in 0..tokens {
        let steps = all.clone().map(|sequence| SequenceStep {
            sequence,
            inputs: generation::step_inputs(&[at as u32 % 200], prompt.len() + at, &[0]),
        });
        let steps: Vec<SequenceStep> = steps.collect();
        let start = Instant::now();
        step(&steps);
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    sequences as f64 / times[times.len() / 2]
}

/// Returns the bytes a second that this many threads read together: the best of some runs.
fn bandwidth(threads: usize) -> f64 {
    let words = vec![1u64; READ_BYTES / 8];
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(words.len() / threads) {
                scope.spawn(|| std::hint::black_box(summed(part)));
            }
        });
        READ_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

fn summed(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for part in words.chunks_exact(32) {
        for (sum, word) in sums.iter_mut().zip(part) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
