//! Estimates how many requests a provider's inference engine can answer at once. An engine that
//! reports that it is busy gets fewer slots; one that is unreachable, or refuses every request,
//! gets none for a while. So the provider does not sell slots in which buyers would wait in vain.

use crate::clock::Micros;

/// The time after which an engine that was busy gets one slot more.
const GROWTH_PERIOD: Micros = Micros::from_seconds(15);

/// How long an engine that is out of reach is left alone, at first and at most.
const PAUSE_MIN: Micros = Micros::from_seconds(10);
const PAUSE_MAX: Micros = Micros::from_seconds(300);
const PAUSE_DOUBLINGS_MAX: u32 = 5;

/// The refusals without an answer between them after which an engine is left alone.
const REFUSALS_MAX: u32 = 8;

/// How long an answer shows that the requests are at fault, and not the engine.
const ANSWER_COUNTS_FOR: Micros = Micros::from_seconds(60);

/// The slots of one engine.
#[derive(Clone, Debug)]
pub struct EngineCapacity {
    /// The slots that the owner set.
    slots: u32,
    /// The slots that were left when the engine was busy last, and when that was.
    busy: Option<(u32, Micros)>,
    /// When an engine out of reach is tried again.
    paused_until: Option<Micros>,
    /// The failures since the last answer.
    failures: u32,
    /// The refusals since the last answer or pause.
    refusals: u32,
    /// When it last answered.
    answered_at: Option<Micros>,
}

impl EngineCapacity {
    /// Creates the capacity of an engine that nobody has asked yet.
    #[must_use]
    pub fn new(slots: u32) -> EngineCapacity {
        EngineCapacity {
            slots,
            busy: None,
            paused_until: None,
            failures: 0,
            refusals: 0,
            answered_at: None,
        }
    }

    /// Returns how many requests the engine should get at once now.
    #[must_use]
    pub fn slots(&self, now: Micros) -> u32 {
        if self.is_paused(now) {
            return 0;
        }
        let Some((slots, at)) = self.busy else {
            return self.slots;
        };
        let grown = now.since(at).0 / GROWTH_PERIOD.0;
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        slots.saturating_add(grown).min(self.slots)
    }

    /// The engine had no room for a request. It keeps one slot at least, to see when it has. Of the
    /// failures of one period only the first counts, so that one buyer's do not take all slots.
    pub fn on_busy(&mut self, now: Micros) {
        let lately = |(_, at): (u32, Micros)| now.since(at) < GROWTH_PERIOD;
        if self.busy.is_some_and(lately) {
            return;
        }
        let slots = self.slots(now).max(1);
        self.busy = Some(((slots / 2).max(1), now));
    }

    /// The engine could not be reached, or refused its provider. Requests that were under way and
    /// fail in a pause tell nothing new.
    pub fn on_unreachable(&mut self, now: Micros) {
        if self.is_paused(now) {
            return;
        }
        let doublings = self.failures.min(PAUSE_DOUBLINGS_MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = Micros(PAUSE_MIN.0 << doublings).min(PAUSE_MAX);
        self.paused_until = Some(now.plus(pause));
    }

    /// The engine refused a request. Requests of one buyer can all be at fault: an engine that has
    /// answered others lately stays on sale, and one that did so earlier is left alone for the
    /// shortest time only.
    pub fn on_refused(&mut self, now: Micros) {
        self.refusals += 1;
        if self.refusals < REFUSALS_MAX {
            return;
        }
        self.refusals = 0;
        match self.answered_at {
            Some(at) if self.is_paused(now) || now.since(at) < ANSWER_COUNTS_FOR => {}
            Some(_) => self.paused_until = Some(now.plus(PAUSE_MIN)),
            None => self.on_unreachable(now),
        }
    }

    /// The engine answered a request. A pause lasts to its end all the same: the answer may have
    /// begun before it.
    pub fn on_answered(&mut self, now: Micros) {
        (self.refusals, self.answered_at) = (0, Some(now));
        if !self.is_paused(now) {
            self.failures = 0;
            self.paused_until = None;
        }
    }

    fn is_paused(&self, now: Micros) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Micros {
        Micros::from_seconds(count)
    }

    #[test]
    fn a_busy_engine_gets_fewer_slots_and_more_with_time() {
        let mut capacity = EngineCapacity::new(8);
        assert_eq!(capacity.slots(seconds(0)), 8);
        capacity.on_busy(seconds(1));
        assert_eq!(capacity.slots(seconds(1)), 4);
        // Failures of one period are one failure.
        for _ in 0..5 {
            capacity.on_busy(seconds(2));
        }
        assert_eq!(capacity.slots(seconds(2)), 4);
        assert_eq!(capacity.slots(seconds(16)), 5);
        for period in 1..9 {
            capacity.on_busy(seconds(1 + 15 * period));
        }
        assert_eq!(capacity.slots(seconds(121)), 1);
        assert_eq!(capacity.slots(seconds(136)), 2);
        assert_eq!(capacity.slots(seconds(900)), 8);
    }

    #[test]
    fn an_engine_that_only_refuses_gets_none() {
        let mut capacity = EngineCapacity::new(2);
        let refuse = |capacity: &mut EngineCapacity, count, now| {
            (0..count).for_each(|_| capacity.on_refused(seconds(now)));
        };
        refuse(&mut capacity, 7, 0);
        assert_eq!(capacity.slots(seconds(0)), 2);
        let mut now = 0;
        for (refusals, pause) in [
            (1, 10),
            (8, 20),
            (8, 40),
            (8, 80),
            (8, 160),
            (8, 300),
            (8, 300),
        ] {
            refuse(&mut capacity, refusals, now);
            assert_eq!(capacity.slots(seconds(now + pause - 1)), 0);
            now += pause;
            assert_eq!(capacity.slots(seconds(now)), 2);
        }
        // One that answers others is left alone for a moment, however often.
        let mut capacity = EngineCapacity::new(2);
        capacity.on_answered(seconds(0));
        refuse(&mut capacity, 80, 59);
        assert_eq!(capacity.slots(seconds(59)), 2);
        for now in [60, 70, 80, 90] {
            refuse(&mut capacity, 7, now);
            assert_eq!(capacity.slots(seconds(now)), 2);
            refuse(&mut capacity, 1, now);
            assert_eq!(capacity.slots(seconds(now + 9)), 0);
            assert_eq!(capacity.slots(seconds(now + 10)), 2);
        }
        // An answer between them shows that the requests are at fault.
        for _ in 0..9 {
            refuse(&mut capacity, 7, 100);
            capacity.on_answered(seconds(100));
        }
        assert_eq!(capacity.slots(seconds(100)), 2);
    }

    #[test]
    fn an_engine_out_of_reach_gets_none_for_longer_and_longer() {
        let mut capacity = EngineCapacity::new(2);
        capacity.on_unreachable(seconds(0));
        assert_eq!(capacity.slots(seconds(9)), 0);
        assert_eq!(capacity.slots(seconds(10)), 2);
        capacity.on_unreachable(seconds(10));
        assert_eq!(capacity.slots(seconds(29)), 0);
        assert_eq!(capacity.slots(seconds(30)), 2);
        // Requests that were under way together fail together.
        for _ in 0..99 {
            capacity.on_unreachable(seconds(30));
        }
        assert_eq!(capacity.slots(seconds(69)), 0);
        assert_eq!(capacity.slots(seconds(70)), 2);
        let mut now = 70;
        for pause in [80, 160, 300, 300] {
            capacity.on_unreachable(seconds(now));
            // One that began before the pause does not end it.
            capacity.on_answered(seconds(now + 1));
            assert_eq!(capacity.slots(seconds(now + pause - 1)), 0);
            now += pause;
            assert_eq!(capacity.slots(seconds(now)), 2);
        }
        capacity.on_answered(seconds(now));
        capacity.on_unreachable(seconds(now));
        assert_eq!(capacity.slots(seconds(now + 10)), 2);
    }
}
