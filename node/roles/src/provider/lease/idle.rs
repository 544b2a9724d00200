//! Bills the time in which a device waits for a buyer's next request. If a buyer holds the device
//! for long, this file reports in the log that the provider is ready, and the market ends the lease
//! unless the buyer answers.

use souk_market::Command;

use super::*;

/// The time between two requests that the provider does not bill, because messages take time.
const IDLE_FREE: Micros = Micros::from_seconds(1);

/// How often the provider reports in the log that it is ready while a buyer sends nothing. The
/// buyer then has a minute to answer.
const ASK_PERIOD: Micros = Micros::from_seconds(120);

impl LeaseCore {
    /// Returns whether the device only waits for the buyer's next request.
    fn is_idle(&self) -> bool {
        let may_come = self.stage == WorkStage::Serving && !self.no_more && self.over.is_none();
        may_come && self.requests.open.is_empty() && self.runs.is_empty()
    }

    /// Begins or ends the count of idle time, as the device waits for a request now or does not.
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

    /// Ends the count of idle time, and adds it to the bill.
    pub(super) fn end_idle(&mut self, shared: &mut SharedState) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        let waited = shared.now.tick.0.saturating_sub(since.0);
        self.bill
            .add_idle_time(Micros(waited.saturating_sub(IDLE_FREE.0)));
        shared.timers.stop_timer(Timer::Idle(self.id()));
    }

    /// Reports in the log that the provider is ready, because the device has waited for long: the
    /// buyer must answer, or the lease will end.
    pub(in crate::provider) fn on_idle(&self, shared: &mut SharedState) {
        let lease = self.id();
        let is_asked = |wait: &Wait| matches!(wait, Wait::Ready(of) if *of == lease);
        if self.lease.is_running() && !shared.pending.iter().any(is_asked) {
            let ready = Command::StateReady { lease };
            shared.request_effect(Wait::Ready(lease), Action::Command(Box::new(ready)));
        }
        shared.wake_in(Timer::Idle(lease), ASK_PERIOD);
    }
}
