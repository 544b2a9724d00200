//! States the processor time of a validator for each kind of request in the crowd simulator, with
//! the command that measured it. The simulator queues the requests at each validator, so waiting
//! times are computed and not assumed. `docs/measurements/consensus.md` and `network.md` have the
//! measurements, on two shared cores.

use souk_roles::market::market_protocol::Request;

/// The check of one signature with up to 48 checked together, in microseconds of processor time:
/// `souk bench consensus --clients 256 --signed each`.
pub const SIGNATURE_US: u64 = 18;

/// The rest of a command on the leader, in microseconds of processor time, out of 29 us in the same
/// run. On a follower it is 7. The simulator charges every validator the leader's cost, so it can
/// only be too pessimistic.
pub const COMMAND_US: u64 = 11;

/// The median time from the proposal to the durable entry, in microseconds, without the delay
/// between regions: `souk bench consensus --clients 1`.
pub const COMMIT_US: u64 = 620;

/// The processor time of a question that looks up one item of the state, in microseconds. Nobody
/// has measured it alone, so it is half of the time of a whole command of one client on a follower;
/// a measurement should replace it: `souk bench consensus --clients 1`.
const QUESTION_US: u64 = 100;

/// The time of `Choose` and of a book for each ask, in nanoseconds, of 10,000 asks on a busy
/// machine: `cargo run --release -p souk-roles --example choose -- 10000`.
const ASK_NS: u64 = 700;

/// The bytes of a frame in addition to its contents, with the overhead of noise, yamux and TCP. A
/// question for the time has no contents.
pub const FRAME_BYTES: u64 = 60;

/// Returns the processor time of an answer, in microseconds, with this many asks in the book.
pub fn question_us(request: &Request, asks: u64) -> u64 {
    let walk = match request {
        Request::Choose(_) | Request::Book => asks * ASK_NS / 1_000,
        _ => 0,
    };
    QUESTION_US + walk
}
