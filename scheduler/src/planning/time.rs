//! Defines the time of planning problems: whole numbers of one unit, so that equal problems give
//! equal plans on every machine.

/// Time in the unit of the problem's creator.
pub type Time = u64;

/// Execution time on a device that cannot run the task.
pub const NEVER: Time = Time::MAX;

/// Upper limit of every sum of a problem's times, so planners can add without checks.
pub const TIME_MAX: Time = 1 << 61;

/// Picoseconds in a second.
pub const SECOND: f64 = 1e12;

/// Converts seconds to a problem's time, rounded up; infinite ones become [`NEVER`].
#[must_use]
pub fn time_of(seconds: f64) -> Time {
    if seconds.is_finite() {
        (seconds * SECOND).ceil() as Time
    } else {
        NEVER
    }
}
