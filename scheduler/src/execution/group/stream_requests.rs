//! Requests of a stream, each a run of its own on the [route](super::routes) of the stream.
//!
//! Each request is a job of the worker pool's whose fragments are the stages of its route, and no
//! device runs them but the one they were planned on. What a run by itself has, such a one has too:
//! its deadline, its part of the devices, what it took. A route is planned anew when what was
//! measured leaves what it stands on, as any plan is, and when a device is lost or back. Requests
//! that are under way go on as they began.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use super::DeviceGroup;
use super::group_problem::{GroupSetting, ReplacedPlan};
use super::memory_report::MovedBytes;
use super::run_state::DeviceEnds;
use super::stream_routes::{self, RouteUse, StreamRoutes};
use crate::execution::cancel::Cancel;
use crate::execution::error::{GroupRunError, TaskError};
use crate::execution::lock::lock;
use crate::execution::task::{PLANS_MAX, PlanKey, Precedence, RunResult, Task, key};
use crate::execution::timeline::{SpanKind, Timeline};

/// Stretches of time that are remembered as charged: far more than requests under way leave open.
const CHARGED_MAX: usize = 64;

/// What the requests of one stream share. Whoever has requests to run makes one, and runs each with
/// [`Runner::run_in_stream`](crate::execution::Runner::run_in_stream).
#[derive(Default)]
pub struct Stream {
    cache: Mutex<RouteCache>,
    /// FragmentInput by requests that are on a route, written by one that is run by itself.
    under_way: RwLock<()>,
    /// Until when each device was at work for it.
    pub(super) ends: DeviceEnds,
    /// What had been moved when a request was last told what it moved.
    pub(super) moved: Mutex<Option<MovedBytes>>,
    charged: Mutex<ChargedTime>,
}

/// One request of a stream.
#[derive(Clone, Copy)]
pub(in crate::execution) struct Request<'a> {
    pub stream: &'a Stream,
    /// Called when the devices have it: those that come then are behind it.
    pub begun: &'a dyn Fn(),
}

/// A request on its route. While there are some nothing is run by itself, and what they need is not
/// let go of.
struct RouteGuard<'a> {
    route: RouteUse,
    _under_way: RwLockReadGuard<'a, ()>,
}

/// The routes of a stream.
#[derive(Default)]
struct RouteCache {
    known: VecDeque<(PlanKey, Arc<StreamRoutes>)>,
    /// There is no room for several requests: what is left goes one by one.
    given_up: bool,
}

/// Time in which at least one device was at work for a stream.
#[derive(Default)]
struct ChargedTime {
    /// Stretches in order, none of which touch.
    stretches: VecDeque<(u64, u64)>,
    /// All before this was charged, or is not any more.
    before: u64,
}

impl RouteCache {
    fn routes(&self, key: &PlanKey) -> Option<Arc<StreamRoutes>> {
        let known = self.known.iter().find(|(held, _)| held == key);
        known.map(|(_, routes)| routes.clone())
    }

    fn forget(&mut self, key: &PlanKey) {
        self.known.retain(|(held, _)| held != key);
    }
}

impl Stream {
    /// Takes a route of a route, if it has one. Whoever does holds the routes, so that none is let
    /// go of meanwhile.
    fn enter(&self, routes: &Arc<StreamRoutes>) -> Option<RouteGuard<'_>> {
        let route = routes.enter()?;
        let under_way = self.under_way.read();
        let _under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        Some(RouteGuard { route, _under_way })
    }

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

impl ChargedTime {
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

impl DeviceGroup {
    /// Requests of a stream that are under way at a time: one more than there are devices, so that
    /// who ends one has the next.
    pub fn stream_ahead(&self) -> usize {
        match self.members.len() {
            1 => 1,
            devices => devices + 1,
        }
    }

    /// Runs a request of a stream: beside others that are under way, if its route has a route.
    ///
    /// # Errors
    /// As [`DeviceGroup::run`].
    pub fn run_in_stream(
        &self,
        request: Request<'_>,
        task: &Task,
        precedence: Precedence,
        cancel: Option<&Cancel>,
    ) -> Result<RunResult, TaskError> {
        let stream = request.stream;
        // A device may be lost at a time, and the route is then planned without it.
        for _ in 0..self.members.len() {
            self.take_back();
            let Some(entered) = self.route(stream, task)? else {
                break;
            };
            let plan = entered.route.plan().clone();
            let without = plan.without;
            let ran = self.run_plan(task, plan, (precedence, cancel), Some(request));
            // Who lays the route anew may wait for it.
            drop(entered);
            match ran {
                Err(error) if !is_over(&error) && without != self.pool.lost() => {}
                Err(TaskError::Group(GroupRunError::NoDevice { .. })) => break,
                // There is no room for several: one by one they may fit.
                Err(error) if !is_over(&error) => {
                    lock(&stream.cache).given_up = true;
                    break;
                }
                ran => return ran,
            }
        }
        let alone = stream.under_way.write();
        let _alone = alone.unwrap_or_else(PoisonError::into_inner);
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(GroupRunError::Cancelled.into());
        }
        self.run_with(task, (precedence, cancel), Some(request))
    }

    /// The route of a request like this one, if it goes beside others.
    fn route<'a>(
        &self,
        stream: &'a Stream,
        task: &Task,
    ) -> Result<Option<RouteGuard<'a>>, TaskError> {
        // Those that come while it is planned wait for it.
        let cache = RefCell::new(lock(&stream.cache));
        if cache.borrow().given_up {
            return Ok(None);
        }
        let key = key(task);
        let known = cache.borrow().routes(&key);
        let speeds = self.speeds().clone();
        let is_fresh = |routes: &&Arc<StreamRoutes>| self.is_fresh(routes.basis(), &speeds);
        if let Some(routes) = known.as_ref().filter(is_fresh) {
            return Ok(stream.enter(routes));
        }
        let kept = known.as_ref().map(|routes| routes.pipelines());
        let loaded = known.map(|routes| routes.loaded(self.members.len()));
        let drop = || {
            cache.borrow_mut().forget(&key);
            // Those under way go on as they began, and have what they need until they end.
            let under_way = stream.under_way.write();
            drop(under_way.unwrap_or_else(PoisonError::into_inner));
        };
        let setting = GroupSetting {
            before: loaded.map(|loaded| ReplacedPlan {
                loaded,
                drop: &drop,
            }),
            ..self.setting()
        };
        let before = (&*kept.unwrap_or_default(), self.stream_ahead());
        let routes = Arc::new(stream_routes::plan_routes(&setting, task, &speeds, before)?);
        let mut cache = cache.borrow_mut();
        cache.forget(&key);
        if cache.known.len() == PLANS_MAX {
            cache.known.pop_front();
        }
        cache.known.push_back((key.clone(), routes.clone()));
        Ok(stream.enter(&routes))
    }
}

/// Whether a run ended because nobody wants it any more.
fn is_over(error: &TaskError) -> bool {
    let TaskError::Group(error) = error else {
        return false;
    };
    matches!(error, GroupRunError::Cancelled | GroupRunError::Deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_moment_is_charged_once() {
        let mut charged = ChargedTime::default();
        let mut add = |start, end| charged.add(start, end);
        assert_eq!([add(0, 10), add(5, 20), add(30, 40)], [10, 10, 10]);
        assert_eq!([add(0, 50), add(0, 50), add(60, 60)], [20, 0, 0]);
        assert_eq!(charged.stretches, [(0, 50)]);
    }

    #[test]
    fn what_is_forgotten_is_not_charged_again() {
        let mut charged = ChargedTime::default();
        for at in 0..1_000 {
            assert_eq!(charged.add(at * 10, at * 10 + 5), 5);
            assert!(charged.stretches.len() <= CHARGED_MAX);
        }
        assert_eq!(charged.add(0, 5), 0, "long ago");
        assert_eq!(charged.add(9_985, 10_000), 10, "beside the last one");
    }
}
