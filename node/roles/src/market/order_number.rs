//! Numbers the operators' orders about validators. The number of an order has to rise, and it also
//! states which changes there were before the order, so that nobody can hide them
//! ([`super::roster_proof`]).

/// The bits of an order's number that state the changes before it: first the highest raft id, then
/// the removals.
const COUNT_BITS: u32 = 11;

/// The largest count that a number can state.
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// The least number that states something. Earlier releases numbered orders by microseconds, and
/// remain below it for two thousand years.
const STATED_MIN: u64 = 1 << 56;

/// The changes of the roster before an order, as its number states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeCount {
    /// The highest raft id of a founder or an admitted validator.
    pub highest_id: u64,
    /// The number of removals.
    pub removals: u64,
}

/// Returns the number of an order that is signed at `now_ms`, in milliseconds since 1970. Without
/// `before`, or after more changes than fit, it states nothing of them. Numbers rise with time.
#[must_use]
pub fn number_order(now_ms: u64, before: Option<ChangeCount>) -> u64 {
    let fits = |count: &ChangeCount| count.highest_id.max(count.removals) <= COUNT_MAX;
    let stated = before.filter(fits).map_or(0, |before| {
        before.highest_id << COUNT_BITS | before.removals
    });
    now_ms << (2 * COUNT_BITS) | stated
}

/// Returns the changes that a number states; none if an earlier release made it, or the signer did
/// not know them.
#[must_use]
pub fn read_count(number: u64) -> Option<ChangeCount> {
    let count = ChangeCount {
        highest_id: number >> COUNT_BITS & COUNT_MAX,
        removals: number & COUNT_MAX,
    };
    (number >= STATED_MIN && count.highest_id > 0).then_some(count)
}

/// Returns when an order was signed by its number, in milliseconds since 1970.
pub(super) fn number_ms(number: u64) -> u64 {
    match number >= STATED_MIN {
        true => number >> (2 * COUNT_BITS),
        false => number / 1_000,
    }
}
