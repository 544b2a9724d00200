//! Recognises the heartbeats that change nothing but the timer for silence. They are half of all
//! events of a large market, so the core handles them without its other steps.

use super::JobCore;
use super::event::{Event, Leg};
use super::state::{LegState, Stage};
use crate::lease::ProviderMessage;

impl JobCore {
    /// Returns the leg of a heartbeat that only restarts the timer for silence: every provider is
    /// at work on a request, so that no stopwatch starts or stops, and no step depends on the time.
    pub(super) fn find_plain_heartbeat(&self, event: &Event) -> Option<Leg> {
        let Event::MessageReceived {
            leg,
            message: ProviderMessage::Alive,
        } = event
        else {
            return None;
        };
        let is_at_work = |leg: &LegState| leg.stage == Stage::Working && !leg.open.is_empty();
        let mut legs = self.attempts.values().flat_map(|attempt| &attempt.legs);
        let attempt = self.attempts.get(&leg.attempt)?;
        let is_plain = self.ending.is_none() && legs.all(is_at_work);
        (is_plain && (leg.place as usize) < attempt.legs.len()).then_some(*leg)
    }
}
