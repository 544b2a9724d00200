//! A device that is held for requests which do not come: that time is billed, and a buyer that
//! holds it for long is asked whether it is still there.

use souk_market::Command;

use super::*;

/// So long a device waits for nothing between two requests: messages travel.
const IDLE_FREE: Micros = Micros::from_seconds(1);

/// So often a buyer is asked that holds the device and sends nothing. It has a minute to answer.
const ASK_PERIOD: Micros = Micros::from_seconds(120);

impl LeaseCore {
    /// Whether nothing but the buyer's next request is missing.
    fn is_idle(&self) -> bool {
        let may_come = self.stage == WorkStage::Serving && !self.no_more && self.over.is_none();
        may_come && self.requests.open.is_empty() && self.runs.is_empty()
    }

    /// Sees whether the device waits for a request now, and counts how long it did.
    pub(super) fn watch_idle(&mut self, shared: &mut SharedState) {
        match (self.is_idle(), self.idle_since) {
            (true, None) => {
                self.idle_since = Some(shared.now.tick);
                shared.wake_in(Timer::Idle(self.id()), ASK_PERIOD);
            }
            (false, Some(_)) => self.end_idle(shared),
            _ => {}
        }
    }

    /// The device waits no longer.
    pub(super) fn end_idle(&mut self, shared: &mut SharedState) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        let waited = shared.now.tick.0.saturating_sub(since.0);
        self.bill
            .add_idle_time(Micros(waited.saturating_sub(IDLE_FREE.0)));
        shared.timers.stop_timer(Timer::Idle(self.id()));
    }

    /// The device has waited for long: the buyer must say that it is there, or the lease will end.
    pub(in crate::provider) fn on_idle(&self, shared: &mut SharedState) {
        let lease = self.id();
        let is_asked = |wait: &Wait| matches!(wait, Wait::Ready(of) if *of == lease);
        if self.lease.is_running() && !shared.waits.iter().any(is_asked) {
            let ready = Command::StateReady { lease };
            shared.request_effect(Wait::Ready(lease), Action::Command(Box::new(ready)));
        }
        shared.wake_in(Timer::Idle(lease), ASK_PERIOD);
    }
}
