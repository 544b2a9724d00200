//! Draws which buyers and providers misbehave, and how. The other modules of this folder act on it.

use crate::random::Random;

/// A buyer's misconduct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    None,
    /// Its signatures reach no provider.
    NeverSigns,
    /// Its signatures reach no provider, and it disputes all their notes.
    Disputes,
    /// Its process will never restart.
    Vanishes,
    /// It disputes each lease immediately.
    Refuses,
    /// It reports the start of work to the log, and sends nothing.
    Holds,
}

impl Trick {
    /// Draws a misconduct; half of the buyers have none.
    pub fn new(random: &mut Random) -> Self {
        match random.draw_below(10) {
            0 => Trick::NeverSigns,
            1 => Trick::Disputes,
            2 => Trick::Vanishes,
            3 => Trick::Refuses,
            4 => Trick::Holds,
            _ => Trick::None,
        }
    }
}

/// A provider's misconduct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vice {
    /// The provider is honest.
    None,
    /// It sometimes returns wrong values.
    Lies,
    /// Its runs sometimes never end.
    Stalls,
    /// Its runs sometimes fail.
    Fails,
    /// It sometimes bills more time than it worked.
    Overbills,
}

impl Vice {
    /// Draws a misconduct; most providers have none.
    pub fn new(random: &mut Random) -> Self {
        match random.draw_below(10) {
            0 => Vice::Lies,
            1 => Vice::Stalls,
            2 => Vice::Fails,
            3 => Vice::Overbills,
            _ => Vice::None,
        }
    }
}
