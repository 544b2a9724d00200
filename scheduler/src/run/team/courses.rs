//! The courses that requests of a stream take through the devices.
//!
//! A request by itself is planned to end soon; of many it is the time between two answers that
//! counts. Either the graph is cut as for a line, one stage a device, and while one request is on
//! the last device the next is on the first. Or each request is whole on one device, and different
//! ones are on different devices: what cannot be cut evenly, or at all, keeps all of them at work
//! so, at the price of its weights on each. Where neither comes sooner than requests one by one,
//! they are run one by one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::choose::{compile, is_full, lay_without};
use super::flow::values;
use super::frugal::TeamGoal;
use super::laid::{self, Before, Laid, Offered, Setting};
use super::line::{Line, Loads};
use super::place::{GAIN_MIN, Placed, wins};
use super::{Task, TaskError, wishes};
use crate::executor::Speeds;
use crate::tasks::time_of;

/// How requests like one go.
pub(super) struct Course {
    /// None where they go one by one.
    ways: Vec<Way>,
    /// The plan by which that was decided, where there is no way.
    alone: Option<Laid>,
}

/// A way that requests take beside others.
struct Way {
    laid: Arc<Laid>,
    line: Line,
    under_way: AtomicUsize,
}

/// A request on its way; dropping it makes room for another one.
pub(super) struct OnWay {
    course: Arc<Course>,
    way: usize,
}

/// Ways that requests might take.
struct Draft {
    offered: usize,
    lines: Vec<Line>,
    /// The time between two answers, by which it is compared: what is there already is kept
    /// unless another one gains enough, and loading weights several times has to gain so much too.
    rank: f64,
}

impl Course {
    /// The plan whose assumptions it stands on.
    pub fn basis(&self) -> &Laid {
        let own = self.ways.first().map(|way| &*way.laid);
        own.or(self.alone.as_ref())
            .expect("a course without ways was planned by itself")
    }

    /// The way on which one more request ends soonest.
    pub fn enter(self: &Arc<Self>) -> Option<OnWay> {
        let ends = |way: &Way| {
            let under_way = way.under_way.load(Ordering::SeqCst);
            (under_way + 1) as f64 * way.line.longest_seconds
        };
        let ways = self.ways.iter().enumerate();
        let (way, taken) = ways.min_by(|(_, one), (_, other)| ends(one).total_cmp(&ends(other)))?;
        taken.under_way.fetch_add(1, Ordering::SeqCst);
        let course = self.clone();
        Some(OnWay { course, way })
    }

    pub fn lines(&self) -> Vec<Line> {
        self.ways.iter().map(|way| way.line.clone()).collect()
    }

    /// Bytes that each of so many devices has loaded for its ways.
    pub fn loaded(&self, devices: usize) -> Vec<u64> {
        let mut loaded = vec![0; devices];
        for way in &self.ways {
            let own = way.laid.loaded();
            loaded
                .iter_mut()
                .zip(own)
                .for_each(|(sum, own)| *sum += own);
        }
        loaded
    }
}

impl OnWay {
    pub fn laid(&self) -> &Arc<Laid> {
        &self.course.ways[self.way].laid
    }
}

impl Drop for OnWay {
    fn drop(&mut self) {
        let way = &self.course.ways[self.way];
        way.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Seconds between two answers of requests that take several ways at once. Answers come in order:
/// while the slowest way is at one, no more than all others that may be under way are done.
fn period(lines: &[Line], ahead: usize) -> f64 {
    let seconds = || lines.iter().map(|line| line.longest_seconds);
    let together = 1.0 / seconds().map(|seconds| 1.0 / seconds).sum::<f64>();
    let slowest = seconds().fold(0.0, f64::max);
    together.max(slowest / ahead as f64)
}

/// Lays the course of requests like this one, `ahead` of which are under way at most. The lines
/// that those before it took are kept unless others gain enough.
pub(super) fn lay(
    setting: &Setting<'_>,
    task: &Task,
    speeds: &Speeds,
    (kept, ahead): (&[Line], usize),
) -> Result<Course, TaskError> {
    let nothing = BTreeSet::new();
    // What no plan has room for may go through all the same, piece by piece.
    let alone = lay_without(setting, task, speeds.clone(), &nothing);
    if setting.goal == TeamGoal::Energy {
        // Ways keep every device at work, whatever it draws.
        return Ok(Course {
            ways: Vec::new(),
            alone: Some(alone?),
        });
    }
    let mut offers = laid::offers(setting, task.model, &task.inputs, speeds)?;
    for offered in &mut offers {
        wishes::heed(offered, setting.members, &nothing, setting.lost);
    }
    let mut drafts = drafts(&offers, kept, ahead);
    drafts.sort_by(|one, other| one.rank.total_cmp(&other.rank));
    // One by one devices wait between requests, so that several ways may lose a little.
    let soonest = alone.as_ref().map_or(Duration::MAX, |alone| alone.expected);
    let soonest = time_of(soonest.as_secs_f64());
    let single = alone.as_ref().ok().and_then(|alone| alone.single);
    let gains = |lines: &[Line]| {
        let devices: usize = lines.iter().map(|line| line.devices.len()).sum();
        devices > 1 && !wins(soonest, time_of(period(lines, ahead)))
    };
    let mut before = setting.before.as_ref();
    for draft in drafts.into_iter().filter(|draft| gains(&draft.lines)) {
        let offered = &offers[draft.offered];
        let is_kept = |line: &Line| kept.iter().any(|kept| kept.devices == line.devices);
        let (mut lines, mut laids) = (Vec::new(), Vec::new());
        for line in draft.lines {
            let lay = || along(&line, offered, (task, setting), speeds);
            let has_room =
                |laid: &Laid| line.devices.len() > 1 || is_kept(&line) || fits(laid, offered);
            // What a device does not take there goes to others, or another draft gives it to them.
            if let Some(laid) = ready(setting, lay, has_room, &mut before)? {
                lines.push(line);
                laids.push(laid);
            }
        }
        if !gains(&lines) {
            continue;
        }
        // Told by one of them, for all were made by it.
        let knowns = offers.into_iter().map(|offered| offered.known);
        let mut knowns: Vec<_> = knowns.collect();
        laids[0].known = Some(knowns.remove(draft.offered));
        laids[0].rivals = knowns;
        let way = |(line, laid)| Way {
            laid: Arc::new(Laid { single, ..laid }),
            line,
            under_way: AtomicUsize::new(0),
        };
        return Ok(Course {
            ways: lines.into_iter().zip(laids).map(way).collect(),
            alone: None,
        });
    }
    Ok(Course {
        ways: Vec::new(),
        alone: Some(alone?),
    })
}

/// What there is to choose from: for each way to take part the best line, all devices that run the
/// whole, and what is kept.
fn drafts(offers: &[Offered], kept: &[Line], ahead: usize) -> Vec<Draft> {
    let mut drafts = Vec::new();
    for (index, offered) in offers.iter().enumerate() {
        let loads = Loads::new(&offered.graph, &offered.known.seconds, &offered.links);
        let mut draft = |lines: Vec<Line>, weight: f64| {
            let period = period(&lines, ahead);
            if period.is_finite() && period > 0.0 {
                let rank = period * weight;
                drafts.push(Draft {
                    offered: index,
                    lines,
                    rank,
                });
            }
        };
        draft(loads.line().into_iter().collect(), 1.0);
        let nodes = offered.graph.nodes().len();
        draft(
            each_whole(&loads, offered.stated.len(), nodes, ahead),
            1.0 / (1.0 - GAIN_MIN),
        );
        let again = |line: &Line| Line {
            longest_seconds: loads.longest(line),
            ..line.clone()
        };
        draft(kept.iter().map(again).collect(), 1.0 - GAIN_MIN);
    }
    drafts
}

/// The devices that run the whole: as many of the fastest as together have the least time between
/// two answers.
fn each_whole(loads: &Loads<'_>, devices: usize, nodes: usize, ahead: usize) -> Vec<Line> {
    let whole = |device: usize| Line {
        devices: vec![device],
        of_node: vec![0; nodes],
        longest_seconds: loads.whole(device),
    };
    let lines = (0..devices).map(whole);
    let mut lines: Vec<Line> = lines
        .filter(|line| line.longest_seconds.is_finite())
        .collect();
    lines.sort_by(|one, other| one.longest_seconds.total_cmp(&other.longest_seconds));
    let of_first = |count: &usize| period(&lines[..*count], ahead);
    let best = (1..=lines.len()).min_by(|one, other| of_first(one).total_cmp(&of_first(other)));
    lines.truncate(best.unwrap_or(0));
    lines
}

/// Whether a device has room for all weights and what a request holds beside them.
fn fits(laid: &Laid, offered: &Offered) -> bool {
    let held = offered.graph.activation_bytes().into_iter().max();
    let weights: u64 = laid.pieces.iter().map(laid::Piece::bytes).sum();
    let mut rooms = laid.schedule.device.iter();
    let room = |&device: &usize| offered.stated[device].memory_bytes;
    rooms.all(|device| weights.saturating_add(held.unwrap_or(0)) <= room(device))
}

/// A layout whose pieces are compiled, if it has room and its devices take them. Where a device
/// has no room, what was there before is let go of.
fn ready(
    setting: &Setting<'_>,
    lay: impl Fn() -> Result<Laid, TaskError>,
    has_room: impl Fn(&Laid) -> bool,
    before: &mut Option<&Before<'_>>,
) -> Result<Option<Laid>, TaskError> {
    loop {
        let laid = lay()?;
        if !has_room(&laid) {
            return Ok(None);
        }
        let Some(refusal) = compile(setting.members, &laid)? else {
            return Ok(Some(laid));
        };
        let Some(before) = before.take_if(|_| is_full(&refusal.why)) else {
            return Ok(None);
        };
        drop(laid);
        (before.drop)();
    }
}

/// The layout of a line.
fn along(
    line: &Line,
    offered: &Offered,
    (task, setting): (&Task, &Setting<'_>),
    speeds: &Speeds,
) -> Result<Laid, TaskError> {
    let placed = Placed {
        // In the order of the line: when each begins is not known before there are requests.
        pieces: line.devices.iter().copied().zip(0..).collect(),
        of_node: line.of_node.clone(),
        makespan: time_of(line.longest_seconds),
        single: None,
    };
    let laid = laid::pieced(&task.name, offered, &placed, setting, speeds.clone())?;
    Ok(Laid {
        readers: Arc::new(values::readers(&laid)),
        problem: Arc::new(laid::pinned(&laid)?),
        ..laid
    })
}
