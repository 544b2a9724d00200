//! How long sequences are away between their steps, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::WaitingStep;
use crate::processor::session::SequenceStep;

/// The part of a step's time that those who had it may take to come back: more would be lost where
/// they do not, less would part them where they do.
const RETURN_PART: u32 = 8;

/// The longest time they may: who is further away is in a group of its own.
const RETURN_MAX: Duration = Duration::from_millis(20);

/// Steps after which a sequence that had none of them counts no more.
const ACTIVE_STEPS: u64 = 8;

/// What is known of the sequences of a session.
pub(super) struct Pace {
    /// Those that were stepped last, and until when they are waited for.
    pub last: BTreeSet<u32>,
    pub until: Option<Instant>,
    /// Steps so far.
    steps: u64,
    /// When each was answered, and by which step.
    answered: BTreeMap<u32, (Instant, u64)>,
    /// How long those were away that came last, at least.
    away: Duration,
    /// The time of the quickest step: of one sequence, if there was such a step.
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
    /// How many sequences are stepped at once, at most. Where they are away for longer than what a
    /// second step costs, they go in groups: as many as find the device busy while others are away.
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

    /// Sequences were stepped and answered.
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
        // Who is away for longer is not waited for at all.
        self.until = (self.away <= patience).then(|| now + patience);
    }
}
