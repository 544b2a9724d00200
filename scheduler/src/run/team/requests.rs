//! Requests of a stream, each a run of its own along the stages of a line.
//!
//! A request by itself is planned to end soon; of many it is the longest stage that counts. So the
//! graph is cut as for a line, one stage a device, and each request is a job of the crew's whose
//! pieces are those stages: while one request is on the last device the next is on the first. What
//! a run by itself has, such a one has too: its deadline, its part of the devices, what it took.
//! Where a line gains nothing, or was lost with a device of it, requests are run one by one.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::choose::{compile, lay_without};
use super::flow::{Ends, lock, values};
use super::laid::{self, Laid, Setting};
use super::line::line;
use super::moved::MovedBytes;
use super::place::{Placed, wins};
use super::{Cancel, Key, LayError, PLANS_MAX, Precedence, Ran, Task, TaskError};
use super::{Team, TeamRunError, key, wishes};
use crate::executor::Speeds;
use crate::problem::{NEVER, Problem, Time};
use crate::tasks::time_of;
use crate::timeline::{SpanKind, Timeline};

/// Stretches of time that are remembered as charged: far more than requests under way leave open.
const CHARGED_MAX: usize = 64;

/// What the requests of one stream share. Whoever has requests to run makes one, and runs each with
/// [`Runner::run_in_stream`](crate::run::Runner::run_in_stream).
#[derive(Default)]
pub struct Stream {
    lines: Mutex<Lines>,
    /// Read by requests that are in a line, written by one that is run by itself.
    under_way: RwLock<()>,
    /// Until when each device was at work for it.
    pub(super) ends: Ends,
    /// What had been moved when a request was last told what it moved.
    pub(super) moved: Mutex<Option<MovedBytes>>,
    charged: Mutex<Charged>,
}

/// The lines of a stream, which keeps them as long as it lasts.
#[derive(Default)]
struct Lines {
    /// None where a line gains nothing.
    known: VecDeque<(Key, Option<Arc<Laid>>)>,
    /// A stage failed: what is left goes where any device may take it.
    given_up: bool,
}

/// Time in which at least one device was at work for a stream.
#[derive(Default)]
struct Charged {
    /// Stretches in order, none of which touch.
    stretches: VecDeque<(u64, u64)>,
    /// All before this was charged, or is not any more.
    before: u64,
}

impl Stream {
    /// The part of a request's computing in which no other one of its stream was charged for a
    /// device: all parts together are the time in which devices were at work.
    pub(super) fn charge(&self, timeline: &Timeline) -> Duration {
        let mut charged = lock(&self.charged);
        let computing = timeline.spans().iter();
        let computing = computing.filter(|span| span.kind == SpanKind::Compute);
        let added = computing.map(|span| charged.add(span.start.0, span.end.0));
        Duration::from_micros(added.sum())
    }
}

impl Charged {
    /// Charges a stretch; gives how much of it was not charged before.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let start = start.max(self.before);
        if start >= end {
            return 0;
        }
        let (mut added, mut whole) = (end - start, (start, end));
        self.stretches.retain(|&(from, to)| {
            let apart = to < start || end < from;
            if !apart {
                added -= to.min(end) - from.max(start);
                whole = (whole.0.min(from), whole.1.max(to));
            }
            apart
        });
        let place = self.stretches.partition_point(|&known| known < whole);
        self.stretches.insert(place, whole);
        if self.stretches.len() > CHARGED_MAX {
            let oldest = self.stretches.pop_front();
            self.before = oldest.map_or(self.before, |(_, to)| to);
        }
        added
    }
}

impl Team {
    /// Runs a request of a stream: along its line if it has one, beside others that are under way.
    ///
    /// # Errors
    /// As [`Team::run`].
    pub fn run_in_stream(
        &self,
        stream: &Stream,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<Ran, TaskError> {
        self.take_back();
        if let Some(laid) = self.line_of(stream, task)? {
            let under_way = stream.under_way.read();
            let _under_way = under_way.unwrap_or_else(PoisonError::into_inner);
            match self.run_laid(task, laid, (precedence, cancel), Some(stream)) {
                // A device failed, or there is no room for several: another device may take what
                // it was to do, and one by one they may fit.
                Err(error) if !is_over(&error) => lock(&stream.lines).given_up = true,
                ran => return ran,
            }
        }
        let alone = stream.under_way.write();
        let _alone = alone.unwrap_or_else(PoisonError::into_inner);
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(TeamRunError::Cancelled.into());
        }
        self.run_with(task, (precedence, cancel), Some(stream))
    }

    /// The line for requests like this one, laid with the first of them.
    fn line_of(&self, stream: &Stream, task: &Task) -> Result<Option<Arc<Laid>>, TaskError> {
        // Those that come meanwhile wait for it.
        let mut lines = lock(&stream.lines);
        if lines.given_up {
            return Ok(None);
        }
        let key = key(task);
        if let Some((_, laid)) = lines.known.iter().find(|(held, _)| *held == key) {
            return Ok(laid.clone());
        }
        let speeds = self.speeds().clone();
        let laid = lay_line(&self.setting(), task, speeds)?.map(Arc::new);
        if lines.known.len() == PLANS_MAX {
            lines.known.pop_front();
        }
        lines.known.push_back((key, laid.clone()));
        Ok(laid)
    }
}

/// Whether a run ended because nobody wants it any more.
fn is_over(error: &TaskError) -> bool {
    let TaskError::Team(error) = error else {
        return false;
    };
    matches!(error, TeamRunError::Cancelled | TeamRunError::Deadline)
}

/// Lays requests like this one along the best line of stages, each on one device and compiled
/// there. None where requests one by one come sooner.
fn lay_line(setting: &Setting<'_>, task: &Task, speeds: Speeds) -> Result<Option<Laid>, TaskError> {
    if setting.members.len() < 2 {
        return Ok(None);
    }
    let nothing = BTreeSet::new();
    let by_itself = lay_without(setting, task, speeds.clone(), &nothing)?;
    let offers = laid::offers(setting, task.model, &task.inputs, &speeds)?;
    let lines = offers.into_iter().filter_map(|mut offered| {
        wishes::heed(&mut offered, setting.members, &nothing, setting.lost);
        let line = line(&offered.graph, &offered.known.seconds, &offered.links)?;
        Some((offered, line))
    });
    let best = lines.min_by(|(_, one), (_, other)| {
        let other = &other.longest_seconds;
        one.longest_seconds.total_cmp(other)
    });
    let Some((offered, line)) = best else {
        return Ok(None);
    };
    let longest = time_of(line.longest_seconds);
    // One by one devices wait between requests, so that the line may lose a little.
    let loses = wins(time_of(by_itself.expected.as_secs_f64()), longest);
    if line.devices.len() < 2 || loses {
        return Ok(None);
    }
    let placed = Placed {
        // In the order of the line: when each begins is not known before there are requests.
        pieces: line.devices.into_iter().zip(0..).collect(),
        of_node: line.of_node,
        makespan: longest,
        single: None,
    };
    let laid = laid::pieced(&task.name, &offered, &placed, setting, speeds)?;
    let laid = Laid {
        readers: Arc::new(values::readers(&laid)),
        problem: Arc::new(pinned(&laid)?),
        single: by_itself.single,
        ..laid
    };
    // What a device does not take there is planned with what others take.
    let refused = compile(setting.members, &laid)?.is_some();
    Ok((!refused).then_some(laid))
}

/// The problem whose tasks run where they are planned and nowhere else: a device that waits for its
/// next request is not to load what another one has.
fn pinned(laid: &Laid) -> Result<Problem, LayError> {
    let mut parts = laid.problem.parts().clone();
    let devices = parts.devices;
    for (task, &own) in laid.schedule.device.iter().enumerate() {
        let row: &mut [Time] = &mut parts.exec[task * devices..][..devices];
        let others = row.iter_mut().enumerate();
        others
            .filter(|(device, _)| *device != own)
            .for_each(|(_, time)| *time = NEVER);
    }
    Ok(Problem::new(parts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_moment_is_charged_once() {
        let mut charged = Charged::default();
        let mut add = |start, end| charged.add(start, end);
        assert_eq!([add(0, 10), add(5, 20), add(30, 40)], [10, 10, 10]);
        assert_eq!([add(0, 50), add(0, 50), add(60, 60)], [20, 0, 0]);
        assert_eq!(charged.stretches, [(0, 50)]);
    }

    #[test]
    fn what_is_forgotten_is_not_charged_again() {
        let mut charged = Charged::default();
        for at in 0..1_000 {
            assert_eq!(charged.add(at * 10, at * 10 + 5), 5);
            assert!(charged.stretches.len() <= CHARGED_MAX);
        }
        assert_eq!(charged.add(0, 5), 0, "long ago");
        assert_eq!(charged.add(9_985, 10_000), 10, "beside the last one");
    }
}
