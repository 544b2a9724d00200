//! The costs of a validator in the crowd simulator, each with the command that measured it. All
//! validators are queues with these costs, so that waiting is computed and not assumed. The figures
//! are of `docs/measurements/consensus.md` and `network.md`, on two shared cores.

use souk_roles::market::market_protocol::Request;

/// The check of one signature with up to 48 checked together, in microseconds of processor time:
/// `souk bench consensus --clients 256 --signed each`.
pub const SIGNATURE_US: u64 = 18;

/// The rest of a command on the leader, in microseconds of processor time: of 29 us in the same
/// run. On a follower it is 7; the simulator charges all of them the leader's, so it can only be
/// too pessimistic.
pub const COMMAND_US: u64 = 11;

/// The time from the proposal to the durable entry, in microseconds, without the way between
/// regions: `souk bench consensus --clients 1`, its p50.
pub const COMMIT_US: u64 = 620;

/// The time of a question to the state that looks up one thing, in microseconds. It is half of what
/// a whole command of one client takes on a follower, because nobody has measured it alone; a
/// measurement should replace it: `souk bench consensus --clients 1`.
const QUESTION_US: u64 = 100;

/// The time of `Choose` and of a book for each ask, in nanoseconds, of 10,000 asks on a busy
/// machine: `cargo run --release -p souk-roles --example choose -- 10000`.
const ASK_NS: u64 = 700;

/// The bytes of a frame beside its contents, with what noise, yamux and TCP add: a question for the
/// time has no contents.
pub const FRAME_BYTES: u64 = 60;

/// Returns the processor time of an answer, in microseconds, with this many asks in the book.
pub fn question_us(request: &Request, asks: u64) -> u64 {
    let walk = match request {
        Request::Choose(_) | Request::Book => asks * ASK_NS / 1_000,
        _ => 0,
    };
    QUESTION_US + walk
}
