//! Measures the speed of the market: `cargo bench -p souk-market-bench` runs the order flows of
//! docs/market.md through the bare book, the crate lobster (another order book) and the full
//! exchange, in turn. It then measures searches for an ask that suits a bid, memory and snapshots,
//! signatures, and the worst batches of an attacker.
//!
//! `cargo bench -p souk-market-bench -- flows|search|memory|signatures|hostile` runs one part, and
//! `-- full a` (or b) only the exchange.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::float_arithmetic,
    reason = "a bench looks at the clock and tells what it saw"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use souk_market::{
    AccountKey, Batch, BatchOutcome, Command, Credits, Exchange, MarketId, Millis, Nonce, Outcome,
    SigningKey,
};
use souk_market_bench::{
    Attributes, BookEngine, Engine, ExchangeEngine, Flow, Hostile, HostileMarket, Operation,
    Script, SearchEngine, Tally,
};

/// The operations of a flow.
const OPERATIONS: usize = 1_000_000;

/// The runs of each engine, in turn with the others; the best run counts.
const ROUNDS: usize = 5;

/// The batches to prepare at a time.
const CHUNK: usize = 512;

/// One run of the full exchange.
struct FullRun {
    /// The time on the core; `wall` is the elapsed time.
    core: Duration,
    wall: Duration,
    tally: Tally,
    /// The sorted times of single operations, in nanoseconds.
    core_each: Vec<u64>,
    wall_each: Vec<u64>,
}

impl FullRun {
    fn tell(&self, name: &str) {
        let told = |clock, each: &[u64]| {
            let at = |part: f64| each[(each.len() as f64 * part) as usize];
            let [p50, p99, p9999] = [0.5, 0.99, 0.9999].map(at);
            println!("  {name} latency, {clock}: p50 {p50} ns, p99 {p99} ns, p99.99 {p9999} ns");
        };
        let (core, wall) = (rate(self.core), rate(self.wall));
        println!("  {name}  {core:6.2} M op/s on the core, {wall:.2} by the wall clock");
        told("on the core", &self.core_each);
        told("by the wall clock", &self.wall_each);
    }
}

fn rate(time: Duration) -> f64 {
    OPERATIONS as f64 / time.as_secs_f64() / 1e6
}

/// An allocator that counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[allow(
    unsafe_code,
    reason = "an allocator that counts can't be written without"
)]
// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps dealloc's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The crate lobster, which runs the same operations.
struct Lobster {
    book: lobster::OrderBook,
    tally: Tally,
    taken: u128,
}

impl Engine for Lobster {
    fn add(&mut self, id: u32, buys: bool, price: u64, quantity: u32) {
        let (id, qty) = (u128::from(id), u64::from(quantity));
        let side = if buys {
            lobster::Side::Bid
        } else {
            lobster::Side::Ask
        };
        black_box(self.book.execute(lobster::OrderType::Limit {
            id,
            side,
            qty,
            price,
        }));
    }

    fn cancel_order(&mut self, id: u32) {
        black_box(
            self.book
                .execute(lobster::OrderType::Cancel { id: u128::from(id) }),
        );
    }

    fn execute_market_order(&mut self, buys: bool, quantity: u32) {
        self.taken += 1;
        let (id, qty) = (u128::from(u64::MAX) + self.taken, u64::from(quantity));
        let side = if buys {
            lobster::Side::Bid
        } else {
            lobster::Side::Ask
        };
        let event = self
            .book
            .execute(lobster::OrderType::Market { id, side, qty });
        if let lobster::OrderEvent::Filled { filled_qty, .. }
        | lobster::OrderEvent::PartiallyFilled { filled_qty, .. } = event
        {
            self.tally.traded += filled_qty;
        }
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

fn main() {
    let mut words = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let part = words.next();
    let wanted = |name: &str| part.as_deref().is_none_or(|part| part == name);
    if wanted("flows") {
        flows(Flow::Deep, "A deep");
        flows(Flow::Hot, "B hot");
    }
    if part.as_deref() == Some("full") {
        let only = words.next();
        let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
        let flows = [("a", Flow::Deep), ("b", Flow::Hot)];
        for (_, flow) in flows.into_iter().filter(|(name, _)| wanted(name)) {
            let script = Script::draw_operations(flow, OPERATIONS);
            (0..ROUNDS).for_each(|_| run_full(&script).tell(&format!("full, {flow:?}")));
        }
    }
    if wanted("search") {
        search();
    }
    if wanted("memory") {
        memory();
    }
    if wanted("signatures") {
        signatures();
    }
    if wanted("hostile") {
        hostile();
    }
}

fn flows(flow: Flow, name: &str) {
    let script = Script::draw_operations(flow, OPERATIONS);
    println!("flow {name}: {OPERATIONS} operations");
    let (mut bare, mut peer) = (Duration::MAX, Duration::MAX);
    let mut full: Option<FullRun> = None;
    for _ in 0..ROUNDS {
        let (time, tally) = run(&script, BookEngine::default());
        show_once(&mut bare, time, "bare book", tally);
        let (time, tally) = run(&script, new_lobster());
        show_once(&mut peer, time, "lobster", tally);
        let one = run_full(&script);
        if full.as_ref().is_none_or(|best| one.core < best.core) {
            full = Some(one);
        }
    }
    let full = full.expect("there is a round");
    println!("  full exchange: {:?}", full.tally);
    let ratio = rate(bare) / rate(peer);
    println!(
        "  bare book      {:6.2} M op/s, {ratio:.2} x lobster",
        rate(bare)
    );
    println!("  lobster        {:6.2} M op/s", rate(peer));
    full.tell("full exchange");
}

fn show_once(best: &mut Duration, time: Duration, name: &str, tally: Tally) {
    if *best == Duration::MAX {
        println!("  {name}: {tally:?}");
    }
    *best = time.min(*best);
}

fn new_lobster() -> Lobster {
    let book = lobster::OrderBook::default();
    Lobster {
        book,
        tally: Tally::default(),
        taken: 0,
    }
}

fn run(script: &Script, mut engine: impl Engine) -> (Duration, Tally) {
    script
        .prefill
        .iter()
        .for_each(|operation| engine.run(operation));
    let start = on_core();
    script
        .operations
        .iter()
        .for_each(|operation| engine.run(operation));
    (on_core() - start, engine.tally())
}

/// Runs a script through the full exchange. It prepares batches a few hundred at a time, outside
/// the clock, so that they are as warm as a log entry's batches after decoding. It times throughput
/// over whole chunks; latency one by one in every eighth chunk by the wall clock, and in another
/// eighth by the time on the core, less the cost of reading that clock.
fn run_full(script: &Script) -> FullRun {
    let mut engine = ExchangeEngine::new(script);
    let mut applied = BatchOutcome::default();
    for batch in engine.prepare_batches(&script.prefill) {
        engine.apply_batch(&batch, &mut applied);
    }
    let (mut core, mut wall) = (Duration::ZERO, Duration::ZERO);
    let (mut core_each, mut wall_each) = (Vec::new(), Vec::new());
    let asking = cost_of_asking();
    for (number, chunk) in script.operations.chunks(CHUNK).enumerate() {
        let batches = engine.prepare_batches(chunk);
        let mut each = batches.iter();
        match number % 8 {
            7 => wall_each.extend(each.map(|batch| {
                let start = Instant::now();
                engine.apply_batch(batch, &mut applied);
                start.elapsed().as_nanos() as u64
            })),
            3 => core_each.extend(each.map(|batch| {
                let start = on_core();
                engine.apply_batch(batch, &mut applied);
                (on_core() - start).saturating_sub(asking).as_nanos() as u64
            })),
            _ => {
                let (on, at) = (on_core(), Instant::now());
                each.by_ref()
                    .for_each(|batch| engine.apply_batch(batch, &mut applied));
                (core, wall) = (core + (on_core() - on), wall + at.elapsed());
            }
        }
    }
    let timed = script.operations.len() - core_each.len() - wall_each.len();
    let whole = |time: Duration| time.mul_f64(script.operations.len() as f64 / timed as f64);
    core_each.sort_unstable();
    wall_each.sort_unstable();
    FullRun {
        core: whole(core),
        wall: whole(wall),
        tally: engine.tally(),
        core_each,
        wall_each,
    }
}

/// Returns the median cost of reading the time on the core.
fn cost_of_asking() -> Duration {
    let mut costs = [(); 1_001].map(|()| {
        let start = on_core();
        on_core() - start
    });
    costs.sort_unstable();
    costs[500]
}

/// Returns the time of this thread on a core, so that other threads' time does not count.
fn on_core() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("time on a core is not negative");
    let nanos = u32::try_from(time.tv_nsec).expect("less than a second");
    Duration::new(seconds, nanos)
}

fn search() {
    for (attributes, name) in [
        (Attributes::Usual, "usual"),
        (Attributes::Adversarial, "adversarial"),
    ] {
        for asks in [100_000, 1_000_000] {
            let engine = SearchEngine::new(attributes, asks);
            let count = if attributes == Attributes::Usual {
                200_000
            } else {
                2_000
            };
            let (mut visits, mut found) = (0, 0);
            let start = on_core();
            for number in 0..count {
                let first = black_box(engine.find_ask(number));
                visits += u64::from(first.visits);
                found += u64::from(first.ask.is_some());
            }
            let mean = (on_core() - start).as_secs_f64() / count as f64 * 1e6;
            let visits = visits as f64 / count as f64;
            let found = 100.0 * found as f64 / count as f64;
            println!(
                "search, {name}, {asks} asks: {mean:.2} us mean, {visits:.1} visits, {found:.0} % found"
            );
        }
    }
}

/// Prints the longest of three batches against each market filled for it.
fn hostile() {
    for case in Hostile::ALL {
        let mut market = HostileMarket::for_case(case);
        let mut applied = BatchOutcome::default();
        let mut longest = Duration::ZERO;
        let mut refused = 0;
        for _ in 0..3 {
            let (at, batch) = market.attack_batch(case);
            let start = on_core();
            market.apply_batch(at, &batch, &mut applied);
            longest = longest.max(on_core() - start);
            let outcomes = applied.outcomes.iter();
            let is_spent = |one: &&Outcome| matches!(one, Outcome::Refused(refusal) if refusal.code() == "steps_spent");
            refused += outcomes.filter(is_spent).count();
        }
        let took = longest.as_secs_f64() * 1e3;
        println!(
            "hostile, {case:?}: {took:.1} ms a batch of 64, {refused} of 192 beyond its steps"
        );
    }
}

fn memory() {
    let adds = |count| Script::draw_operations(Flow::Deep, count);
    let script = adds(1_800_000);
    let only_adds = |operation: &&Operation| matches!(operation, Operation::Add { .. });
    let operations: Vec<Operation> = script
        .prefill
        .iter()
        .chain(script.operations.iter().filter(only_adds))
        .copied()
        .collect();
    let operations = &operations[..operations.len().min(1_000_000)];
    let mut engine = ExchangeEngine::new(&script);
    let mut applied = BatchOutcome::default();
    let before = IN_USE.load(Ordering::Relaxed);
    for (id, operation) in operations.iter().enumerate() {
        // The remaining orders get consecutive numbers.
        let Operation::Add {
            buys,
            price,
            quantity,
            ..
        } = *operation
        else {
            continue;
        };
        let add = Operation::Add {
            id: id as u32,
            buys,
            price,
            quantity,
        };
        for batch in engine.prepare_batches(&[add]) {
            engine.apply_batch(&batch, &mut applied);
        }
    }
    let used = IN_USE.load(Ordering::Relaxed) - before;
    let resting = engine.tally().resting;
    println!(
        "memory: {resting} orders rest, {} bytes each",
        used as u64 / resting
    );
    let start = on_core();
    let bytes = engine.exchange().snapshot();
    let written = on_core() - start;
    let start = on_core();
    let restored = Exchange::restore(&bytes).expect("it was just written");
    let read = on_core() - start;
    assert_eq!(restored.digest(), engine.digest());
    println!(
        "snapshot: {} MB, written in {:.3} s, restored in {:.3} s",
        bytes.len() / 1_000_000,
        written.as_secs_f64(),
        read.as_secs_f64()
    );
}

fn signatures() {
    let key = SigningKey::from_bytes(&[7; 32]);
    for commands in [1, 64] {
        let batch = |nonce| Batch {
            market: MarketId::default(),
            account: AccountKey::from(&key),
            nonce: Nonce(nonce),
            expires: Millis(3_600_000),
            commands: vec![Command::Stake { amount: Credits(1) }; commands],
        };
        let signed: Vec<_> = (0..2_000).map(|nonce| batch(nonce).sign(&key)).collect();
        let count = signed.len() as f64;
        let start = on_core();
        for signed in signed {
            black_box(signed.verify().expect("just signed"));
        }
        let each = (on_core() - start).as_secs_f64() / count * 1e6;
        println!("signatures: {each:.1} us for a batch of {commands}");
    }
}
