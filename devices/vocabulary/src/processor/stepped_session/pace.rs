//! Decides how many of a session's sequences to step at once, and how long to wait for more. It
//! observes how long each sequence is away between its steps, while its caller uses the last
//! answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::WaitingStep;
use crate::processor::session::SequenceStep;

/// The part of a step's time to wait for the sequences that it answered. A longer wait would waste
/// more if they do not return; a shorter one would separate them if they do.
const RETURN_PART: u32 = 8;

/// The wait must not be longer than this; a sequence that is away for longer belongs to another
/// group.
const RETURN_MAX: Duration = Duration::from_millis(20);

/// A sequence no longer counts if it took part in none of this many last steps.
const ACTIVE_STEPS: u64 = 8;

/// The observed timing of a session's sequences.
pub(super) struct Pace {
    /// The sequences of the last step, and until when the thread waits for them.
    pub last: BTreeSet<u32>,
    pub until: Option<Instant>,
    /// Number of steps so far.
    steps: u64,
    /// Time and number of the step that last answered each sequence.
    answered: BTreeMap<u32, (Instant, u64)>,
    /// The shortest absence among the sequences that returned last.
    away: Duration,
    /// Time of the quickest step: of one sequence, if there was such a step.
    quickest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            last: BTreeSet::new(),
            until: None,
            steps: 0,
            answered: BTreeMap::new(),
            away: Duration::ZERO,
            quickest: Duration::MAX,
        }
    }
}

impl Pace {
    /// Returns the most sequences to step at once. If they are away for longer than the quickest
    /// step takes, they go in two groups, so that the device can step one while the other is away.
    pub fn most_at_once(&mut self, waiting: &[WaitingStep]) -> usize {
        let absences = waiting.iter().filter_map(|asked| {
            let (answered, _) = self.answered.get(&asked.step.sequence)?;
            Some(asked.since.saturating_duration_since(*answered))
        });
        if let Some(away) = absences.min() {
            self.away = away;
        }
        match self.away > self.quickest {
            true => self.answered.len().div_ceil(2).max(1),
            false => usize::MAX,
        }
    }

    /// Notes that these sequences were stepped and answered.
    pub fn on_stepped(&mut self, steps: &[SequenceStep], took: Duration) {
        self.steps += 1;
        let now = Instant::now();
        self.last = steps.iter().map(|step| step.sequence).collect();
        for sequence in &self.last {
            self.answered.insert(*sequence, (now, self.steps));
        }
        let oldest = self.steps.saturating_sub(ACTIVE_STEPS);
        self.answered.retain(|_, (_, step)| *step > oldest);
        self.quickest = self.quickest.min(took);
        let patience = (took / RETURN_PART).min(RETURN_MAX);
        // The thread does not wait at all for sequences that are away for longer.
        self.until = (self.away <= patience).then(|| now + patience);
    }
}
