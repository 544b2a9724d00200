//! Draws which buyers and providers misbehave, and how. The other modules of this folder act on it.

use crate::random::Random;

/// A buyer's misconduct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuyerMisconduct {
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

impl BuyerMisconduct {
    /// Draws a misconduct; half of the buyers have none.
    pub fn new(random: &mut Random) -> Self {
        match random.draw_below(10) {
            0 => BuyerMisconduct::NeverSigns,
            1 => BuyerMisconduct::Disputes,
            2 => BuyerMisconduct::Vanishes,
            3 => BuyerMisconduct::Refuses,
            4 => BuyerMisconduct::Holds,
            _ => BuyerMisconduct::None,
        }
    }
}

/// A provider's misconduct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderMisconduct {
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

impl ProviderMisconduct {
    /// Draws a misconduct; most providers have none.
    pub fn new(random: &mut Random) -> Self {
        match random.draw_below(10) {
            0 => ProviderMisconduct::Lies,
            1 => ProviderMisconduct::Stalls,
            2 => ProviderMisconduct::Fails,
            3 => ProviderMisconduct::Overbills,
            _ => ProviderMisconduct::None,
        }
    }
}
