//! Decides when a provider announces its addresses to the validators: at the start, when something
//! changed, again soon after a validator did not confirm, and once in ten minutes.

/// The rounds between two announcements when nothing changes: ten minutes.
const QUIET_ROUNDS: u32 = 120;

/// The most rounds between two tries while a validator does not confirm: a minute.
const RETRY_ROUNDS_MAX: u32 = 12;

/// The schedule of announcements; it counts rounds of equal length.
#[derive(Debug)]
pub(super) struct AnnouncementSchedule<State> {
    /// The state that was announced last.
    announced: Option<State>,
    /// The round of the next announcement, unless the state changes before it.
    next: u32,
    /// The rounds until the next try if a validator does not confirm.
    retry_rounds: u32,
}

impl<State> Default for AnnouncementSchedule<State> {
    fn default() -> Self {
        Self {
            announced: None,
            next: 0,
            retry_rounds: 1,
        }
    }
}

impl<State: PartialEq> AnnouncementSchedule<State> {
    /// Returns whether to announce in this round; `state` is all that would be worth announcing.
    pub(super) fn is_due(&mut self, round: u32, state: State) -> bool {
        let is_other = self.announced.as_ref() != Some(&state);
        if is_other {
            self.announced = Some(state);
            self.retry_rounds = 1;
        }
        is_other || round >= self.next
    }

    /// Handles an announcement, which all validators confirmed if `outcome` says so.
    pub(super) fn on_announced(&mut self, round: u32, outcome: AnnouncementOutcome) {
        let wait = match outcome {
            AnnouncementOutcome::Confirmed => {
                self.retry_rounds = 1;
                QUIET_ROUNDS
            }
            AnnouncementOutcome::Partial => {
                let wait = self.retry_rounds;
                self.retry_rounds = (2 * wait).min(RETRY_ROUNDS_MAX);
                wait
            }
        };
        self.next = round.saturating_add(wait);
    }
}

/// The result of an announcement: whether all validators confirmed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnouncementOutcome {
    /// All validators.
    Confirmed,
    /// Some validators, or none.
    Partial,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rounds up to `last` in which an announcement is due.
    fn due_rounds(last: u32, state: impl Fn(u32) -> u32, outcome: AnnouncementOutcome) -> Vec<u32> {
        let mut schedule = AnnouncementSchedule::default();
        let announces = |round: &u32| {
            let is_due = schedule.is_due(*round, state(*round));
            if is_due {
                schedule.on_announced(*round, outcome);
            }
            is_due
        };
        (0..=last).filter(announces).collect()
    }

    #[test]
    fn a_provider_that_all_heard_is_quiet_for_ten_minutes() {
        let due = due_rounds(250, |_| 0, AnnouncementOutcome::Confirmed);
        assert_eq!(due, [0, 120, 240]);
    }

    #[test]
    fn a_change_is_announced_at_once() {
        let due = due_rounds(130, |round| round / 50, AnnouncementOutcome::Confirmed);
        assert_eq!(due, [0, 50, 100]);
    }

    #[test]
    fn a_validator_that_does_not_confirm_is_tried_less_and_less_often() {
        let due = due_rounds(40, |_| 0, AnnouncementOutcome::Partial);
        assert_eq!(due, [0, 1, 3, 7, 15, 27, 39]);
    }
}
