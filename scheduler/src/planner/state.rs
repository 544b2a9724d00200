//! A schedule under construction: the common ground of all list planners.
//!
//! Each device keeps its idle gaps, sorted, so the earliest place for a task is found by bisection
//! instead of a walk over everything already placed.

use super::room::Room;
use crate::problem::{NEVER, Problem, ProblemError, Time};
use crate::schedule::{LinkUse, Schedule};

/// A task's earliest place on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) start: Time,
    pub(crate) finish: Time,
}

/// Whether a task may go into a gap between tasks already placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    /// Into the first gap it fits.
    Insert,
    /// Only behind the last task.
    Append,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    gaps: Vec<(Time, Time)>,
    end: Time,
}

/// A schedule under construction.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) problem: &'a Problem,
    placing: Placing,
    lines: Vec<Timeline>,
    pub(crate) device: Vec<usize>,
    pub(crate) start: Vec<Time>,
    pub(crate) finish: Vec<Time>,
    room: Room,
    link_free: Vec<Time>,
    transfers: Vec<LinkUse>,
    makespan: Time,
}

const UNPLACED: usize = usize::MAX;

impl Timeline {
    /// Earliest start of a task of `length` that is ready at `ready`.
    fn find(&self, ready: Time, length: Time, placing: Placing) -> Time {
        if length == 0 {
            return ready;
        }
        if placing == Placing::Insert && ready < self.end {
            let first = self.gaps.partition_point(|gap| gap.1 < ready + length);
            for &(begin, end) in &self.gaps[first..] {
                let start = begin.max(ready);
                if start + length <= end {
                    return start;
                }
            }
        }
        self.end.max(ready)
    }

    fn occupy(&mut self, start: Time, length: Time) {
        if length == 0 {
            return;
        }
        if start >= self.end {
            if start > self.end {
                self.gaps.push((self.end, start));
            }
            self.end = start + length;
            return;
        }
        let index = self.gaps.partition_point(|gap| gap.1 <= start);
        let (begin, end) = self.gaps[index];
        let pieces = [(begin, start), (start + length, end)];
        let left = pieces.into_iter().filter(|piece| piece.0 < piece.1);
        self.gaps.splice(index..=index, left);
    }
}

impl<'a> State<'a> {
    pub(crate) fn new(problem: &'a Problem, placing: Placing) -> Self {
        let devices = problem.devices();
        let links = if problem.is_contended() {
            devices * devices
        } else {
            0
        };
        Self {
            problem,
            placing,
            lines: vec![Timeline::default(); devices],
            device: vec![UNPLACED; problem.tasks()],
            start: vec![0; problem.tasks()],
            finish: vec![0; problem.tasks()],
            room: Room::new(problem),
            link_free: vec![0; links],
            transfers: Vec::new(),
            makespan: 0,
        }
    }

    pub(crate) fn is_placed(&self, task: usize) -> bool {
        self.device[task] != UNPLACED
    }

    /// When the last task placed on `device` ends.
    pub(crate) fn device_end(&self, device: usize) -> Time {
        self.lines[device].end
    }

    /// When everything a task needs is on `device`; tasks not yet placed count nothing.
    pub(crate) fn ready(&self, task: usize, device: usize) -> Time {
        if self.problem.is_contended() {
            return self.contended_ready(task, device, |_, _| {});
        }
        let placed = self
            .problem
            .before(task)
            .filter(|(before, _)| self.is_placed(*before));
        let arrivals = placed.map(|(before, bytes)| {
            self.finish[before] + self.problem.transfer(self.device[before], device, bytes)
        });
        arrivals.max().unwrap_or(0).max(self.problem.release(task))
    }

    /// [`Self::ready`] on every device at once: each source is looked up once only.
    pub(crate) fn ready_everywhere(&self, task: usize) -> Vec<Time> {
        let devices = self.problem.devices();
        if self.problem.is_contended() {
            return (0..devices)
                .map(|device| self.ready(task, device))
                .collect();
        }
        let mut ready = vec![self.problem.release(task); devices];
        for (before, bytes) in self
            .problem
            .before(task)
            .filter(|(b, _)| self.is_placed(*b))
        {
            let (from, finish) = (self.device[before], self.finish[before]);
            let own = ready[from].max(finish);
            for (ready, (latency, per_byte)) in ready.iter_mut().zip(self.problem.link_row(from)) {
                *ready = (*ready).max(finish + latency + bytes * per_byte);
            }
            // Within the device nothing is sent.
            ready[from] = own;
        }
        ready
    }

    /// As [`Self::ready`], each transfer behind those its link already carries; `note` is told of
    /// each one with the link it takes.
    fn contended_ready(
        &self,
        task: usize,
        device: usize,
        mut note: impl FnMut(LinkUse, usize),
    ) -> Time {
        let mut sources: Vec<(Time, usize, u64)> = self
            .problem
            .before(task)
            .filter(|(before, _)| self.is_placed(*before))
            .map(|(before, bytes)| (self.finish[before], before, bytes))
            .collect();
        sources.sort_unstable();
        let mut ready = self.problem.release(task);
        let mut taken: Vec<(usize, Time)> = Vec::new();
        for (finish, before, bytes) in sources {
            let from = self.device[before];
            if from == device {
                ready = ready.max(finish);
                continue;
            }
            let link = from * self.problem.devices() + device;
            let mine = taken.iter_mut().find(|(taken, _)| *taken == link);
            let free = mine
                .as_ref()
                .map_or(self.link_free[link], |(_, free)| *free);
            let start = finish.max(free);
            let arrival = start + self.problem.transfer(from, device, bytes);
            match mine {
                Some((_, free)) => *free = arrival,
                None => taken.push((link, arrival)),
            }
            let to = task;
            let used = LinkUse {
                from: before,
                to,
                start,
                finish: arrival,
            };
            note(used, link);
            ready = ready.max(arrival);
        }
        ready
    }

    /// The earliest place of `task` on `device`, given when its data are there.
    pub(crate) fn spot_at(&self, task: usize, device: usize, ready: Time) -> Option<Spot> {
        let length = self.problem.exec(task, device);
        if length == NEVER || !self.room.fits(self.problem, task, device) {
            return None;
        }
        let start = self.lines[device].find(ready, length, self.placing);
        let finish = start + length;
        Some(Spot { start, finish })
    }

    /// The earliest place of `task` on `device`; `None` where it cannot run.
    pub(crate) fn spot(&self, task: usize, device: usize) -> Option<Spot> {
        if self.problem.exec(task, device) == NEVER {
            return None;
        }
        self.spot_at(task, device, self.ready(task, device))
    }

    /// Device and place with the least `key`, the lower device among equals.
    pub(crate) fn best_by<K: PartialOrd>(
        &self,
        task: usize,
        mut key: impl FnMut(usize, Spot) -> K,
    ) -> Result<(usize, Spot), ProblemError> {
        let mut best: Option<(usize, Spot, K)> = None;
        for (device, ready) in self.ready_everywhere(task).into_iter().enumerate() {
            let Some(spot) = self.spot_at(task, device, ready) else {
                continue;
            };
            let key = key(device, spot);
            if best.as_ref().is_none_or(|(_, _, least)| key < *least) {
                best = Some((device, spot, key));
            }
        }
        best.map(|(device, spot, _)| (device, spot))
            .ok_or_else(|| self.full(task))
    }

    /// Device and place where `task` ends first.
    pub(crate) fn earliest_finish(&self, task: usize) -> Result<(usize, Spot), ProblemError> {
        self.best_by(task, |_, spot| spot.finish)
    }

    pub(crate) fn full(&self, task: usize) -> ProblemError {
        let needed = self.problem.memory(task);
        ProblemError::Full { task, needed }
    }

    /// Places `task` on `device` at `spot`.
    pub(crate) fn place(&mut self, task: usize, device: usize, spot: Spot) {
        assert!(!self.is_placed(task), "a task is placed once");
        if self.problem.is_contended() {
            let mut uses = Vec::new();
            self.contended_ready(task, device, |used, link| uses.push((used, link)));
            for (used, link) in uses {
                self.link_free[link] = self.link_free[link].max(used.finish);
                self.transfers.push(used);
            }
        }
        self.lines[device].occupy(spot.start, spot.finish - spot.start);
        self.room.take(self.problem, task, device);
        self.device[task] = device;
        self.start[task] = spot.start;
        self.finish[task] = spot.finish;
        self.makespan = self.makespan.max(spot.finish);
    }

    pub(crate) fn into_schedule(self) -> Schedule {
        Schedule {
            device: self.device,
            start: self.start,
            makespan: self.makespan,
            transfers: self.transfers,
        }
    }
}
