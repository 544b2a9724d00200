//! How fast a model decodes on this machine's processor, beside how fast it reads memory.
//!
//!     cargo run --release -p souk-llm --example decode -- MODEL [THREADS [PROMPT [TOKENS [FILE]]]]
//!
//! The file is given the logits after the prompt, for `llm/bench/beside_llama.py` to compare.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use souk_cpu::Cpu;
use souk_llm::generation::Sequence;
use souk_llm::model::LanguageModel;
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Processor;
use souk_vocabulary::processor::session::State;

/// Numbers read to measure memory: far more than caches hold.
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
    let decoder = model.decoder(room).expect("it is a decoder");
    println!("opened and built in {:.2} s", start.elapsed().as_secs_f64());
    let threads = NonZeroUsize::new(threads).expect("one thread at least");
    let cpu = Cpu::new(catalogue::all()[0].clone(), threads);
    let start = Instant::now();
    let (states, cache) = (decoder.states.clone(), decoder.empty_cache(room));
    let bytes: usize = decoder.subgraph.weights.values().map(|it| it.len()).sum();
    let program = cpu
        .compile_owned(decoder.subgraph)
        .expect("the processor takes it");
    println!("compiled in {:.2} s", start.elapsed().as_secs_f64());
    let states = states.into_iter().map(|port| State {
        port,
        value: cache.clone(),
    });
    let session = program.session(states.collect()).expect("there is room");
    let mut sequence = Sequence::new(session, room);
    let ids: Vec<u32> = (0..prompt as u32).map(|at| at * 31 % 200).collect();
    let start = Instant::now();
    let logits = sequence.push(&ids).expect("the prompt is run");
    let took = start.elapsed().as_secs_f64();
    if let Some(file) = given.get(4) {
        let bytes: Vec<u8> = logits.iter().flat_map(|it| it.to_le_bytes()).collect();
        std::fs::write(file, bytes).expect("the file can be written");
    }
    println!(
        "prefill of {prompt}: {:.1} tokens a second",
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
        "decode after {prompt}: {:.2} tokens a second at the median, {:.2} at the best; \
         {read:.2} GB/s of weights, {:.0} % of the {memory:.2} GB/s that memory reads",
        1.0 / middle,
        1.0 / times[0],
        100.0 * read / memory,
    );
}

/// Bytes a second that so many threads read at once, the best of some.
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
