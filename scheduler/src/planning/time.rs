//! Time as problems count it: whole numbers of one unit, so that equal problems give equal plans on
//! every machine.

/// Time, in a unit the problem's maker chose.
pub type Time = u64;

/// Execution time on a device that does not run the task.
pub const NEVER: Time = Time::MAX;

/// Every sum of a problem's times stays below this, so planners add without checking.
pub const TIME_MAX: Time = 1 << 61;

/// Picoseconds in a second.
pub const SECOND: f64 = 1e12;

/// Seconds as a problem's time, rounded up; infinite ones as [`NEVER`].
#[must_use]
pub fn time_of(seconds: f64) -> Time {
    if seconds.is_finite() {
        (seconds * SECOND).ceil() as Time
    } else {
        NEVER
    }
}
