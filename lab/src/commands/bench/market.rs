//! `souk bench market`: measures how fast the bare order book and the full exchange carry out the
//! order flows (generated sequences of orders) that docs/market.md describes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_host::clock::of_thread;
use souk_market_bench::{BookEngine, Engine, ExchangeEngine, Flow, Script, Tally};
use souk_node::market::BatchOutcome;

use crate::args::FlowName;
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// Batches prepared at a time, so that they are as warm as a freshly decoded log entry.
const CHUNK: usize = 512;

/// One chunk in this many is timed batch by batch, the others as a whole.
const LATENCY_CHUNKS: usize = 8;

/// Runs of each engine, in turn; the best run counts.
const ROUNDS: usize = 3;

/// A run of one engine.
struct Run {
    /// Seconds of processor time, which other processes do not affect, and of wall time.
    core: f64,
    wall: f64,
    tally: Tally,
    /// Nanoseconds of single batches, sorted.
    latencies: Vec<u64>,
}

/// Measures both engines in turn and prints rates, latencies and check values.
pub fn run(output: Output, name: FlowName, operations: usize) {
    let flow = match name {
        FlowName::A => Flow::Deep,
        FlowName::B => Flow::Hot,
    };
    let script = Script::draw_operations(flow, operations);
    let (mut book, mut exchange) = (run_bare_engine(&script), run_full_engine(&script));
    for _ in 1..ROUNDS {
        book = faster_run(book, run_bare_engine(&script));
        exchange = faster_run(exchange, run_full_engine(&script));
    }
    let facts = json!({
        "flow": format!("{flow:?}").to_lowercase(), "operations": operations, "rounds": ROUNDS,
        "bare_book": facts_json(&book, operations),
        "full_exchange": facts_json(&exchange, operations),
    });
    match output {
        Output::Json => show::print_json(&facts),
        Output::Text => {
            for engine in ["bare_book", "full_exchange"] {
                print_line(&format!("{engine}: {}", facts[engine]));
            }
        }
    }
}

fn facts_json(run: &Run, operations: usize) -> Value {
    let at = |part: f64| {
        let place = (run.latencies.len() as f64 * part) as usize;
        run.latencies.get(place).copied()
    };
    json!({
        "operations_per_second": (operations as f64 / run.core).round(),
        "operations_per_second_wall": (operations as f64 / run.wall).round(),
        "p50_ns": at(0.5), "p99_ns": at(0.99), "p9999_ns": at(0.9999),
        "traded": run.tally.traded, "resting": run.tally.resting,
    })
}

fn faster_run(a: Run, b: Run) -> Run {
    if b.core < a.core { b } else { a }
}

fn run_bare_engine(script: &Script) -> Run {
    let mut engine = BookEngine::default();
    script
        .prefill
        .iter()
        .for_each(|operation| engine.run(operation));
    let start = Clocks::now();
    script
        .operations
        .iter()
        .for_each(|operation| engine.run(operation));
    let (core, wall) = start.elapsed();
    Run {
        core: core.as_secs_f64(),
        wall: wall.as_secs_f64(),
        tally: engine.tally(),
        latencies: Vec::new(),
    }
}

fn run_full_engine(script: &Script) -> Run {
    let mut engine = ExchangeEngine::new(script);
    let mut applied = BatchOutcome::default();
    for batch in engine.prepare_batches(&script.prefill) {
        engine.apply_batch(&batch, &mut applied);
    }
    let (mut core, mut wall) = (Duration::ZERO, Duration::ZERO);
    let mut latencies = Vec::new();
    for (number, chunk) in script.operations.chunks(CHUNK).enumerate() {
        let batches = engine.prepare_batches(chunk);
        let start = Clocks::now();
        if number % LATENCY_CHUNKS == LATENCY_CHUNKS - 1 {
            for batch in &batches {
                let start = Instant::now();
                engine.apply_batch(batch, &mut applied);
                latencies.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
        } else {
            batches
                .iter()
                .for_each(|batch| engine.apply_batch(batch, &mut applied));
            let (on, passed) = start.elapsed();
            (core, wall) = (core + on, wall + passed);
        }
    }
    latencies.sort_unstable();
    // The chunks timed batch by batch include the cost of the clock; the rate comes from the
    // others.
    let timed = script.operations.len() - latencies.len();
    let share = script.operations.len() as f64 / timed.max(1) as f64;
    Run {
        core: core.as_secs_f64() * share,
        wall: wall.as_secs_f64() * share,
        tally: engine.tally(),
        latencies,
    }
}

/// The processor time of this thread, and the wall time.
struct Clocks {
    core: Duration,
    wall: Instant,
}

impl Clocks {
    fn now() -> Self {
        Self {
            core: of_thread(),
            wall: Instant::now(),
        }
    }

    fn elapsed(&self) -> (Duration, Duration) {
        (of_thread().saturating_sub(self.core), self.wall.elapsed())
    }
}
