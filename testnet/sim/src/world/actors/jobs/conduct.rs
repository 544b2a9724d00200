//! What some buyers and some providers do to each other.

use crate::random::Random;

/// What a buyer does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    None,
    /// What it signs reaches nobody.
    NeverSigns,
    /// The same, and it disputes whatever its providers note.
    Disputes,
    /// Where its process ends nobody starts it again.
    Vanishes,
    /// It disputes each lease as soon as it has it.
    Refuses,
    /// It tells the log that work has begun, and sends nothing.
    Holds,
}

impl Trick {
    /// Half of the buyers do nothing wrong.
    pub fn new(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Trick::NeverSigns,
            1 => Trick::Disputes,
            2 => Trick::Vanishes,
            3 => Trick::Refuses,
            4 => Trick::Holds,
            _ => Trick::None,
        }
    }
}

/// What a device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vice {
    /// Nothing.
    None,
    /// It gives wrong values now and then.
    Lies,
    /// It runs on and on now and then.
    Stalls,
    /// Its runs fail now and then.
    Fails,
    /// It bills more time than it worked now and then.
    Overbills,
}

impl Vice {
    /// Most do nothing wrong.
    pub fn new(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Vice::Lies,
            1 => Vice::Stalls,
            2 => Vice::Fails,
            3 => Vice::Overbills,
            _ => Vice::None,
        }
    }
}
