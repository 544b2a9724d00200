//! Runs the requests of a stream on a group, each as a run of its own on a
//! [route](super::stream_routes) of the stream: a fixed way through the devices.
//!
//! Each request is a job of the worker pool. Its fragments are the stages of its route, and each
//! runs on its planned device only. As in a single run, a request has a deadline, a share of the
//! devices and a cost report. The group plans a route again if measurements contradict its basis,
//! or if a device is lost or returns. Requests in progress continue on their old route.

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
use crate::execution::task::{PLANS_MAX, PlanKey, Precedence, RunResult, Task, plan_key};
use crate::execution::timeline::{SpanKind, Timeline};

/// Maximum number of charged periods: far more than concurrent requests leave separate.
const CHARGED_MAX: usize = 64;

/// The state that the requests of one stream share. You must create one for each stream, and run
/// each request with [`Runner::run_in_stream`](crate::execution::Runner::run_in_stream).
#[derive(Default)]
pub struct Stream {
    cache: Mutex<RouteCache>,
    /// Requests on a route hold it for reading, a request that runs alone for writing.
    under_way: RwLock<()>,
    /// The time until which each device worked for the stream.
    pub(super) ends: DeviceEnds,
    /// The group's moved bytes at the last report of a request.
    pub(super) moved: Mutex<Option<MovedBytes>>,
    charged: Mutex<ChargedTime>,
}

/// One request of a stream.
#[derive(Clone, Copy)]
pub(in crate::execution) struct Request<'a> {
    pub stream: &'a Stream,
    /// Called when the devices have the request: later requests run after it.
    pub begun: &'a dyn Fn(),
}

/// A request on its route. While one exists, no request runs alone, and the routes stay in memory.
struct RouteGuard<'a> {
    route: RouteUse,
    _under_way: RwLockReadGuard<'a, ()>,
}

/// The routes of a stream.
#[derive(Default)]
struct RouteCache {
    known: VecDeque<(PlanKey, Arc<StreamRoutes>)>,
    /// Whether there is no room for several requests, so that the remaining ones run one by one.
    given_up: bool,
}

/// The time in which at least one device worked for a stream.
#[derive(Default)]
struct ChargedTime {
    /// Disjoint periods in order.
    intervals: VecDeque<(u64, u64)>,
    /// The end of the earlier time that is charged already, or no longer counted.
    before: u64,
}

impl RouteCache {
    fn find_routes(&self, key: &PlanKey) -> Option<Arc<StreamRoutes>> {
        let known = self.known.iter().find(|(held, _)| held == key);
        known.map(|(_, routes)| routes.clone())
    }

    fn forget_routes(&mut self, key: &PlanKey) {
        self.known.retain(|(held, _)| held != key);
    }
}

impl Stream {
    /// Enters the best of the routes, if there is any. The guard keeps the routes in memory.
    fn enter_route(&self, routes: &Arc<StreamRoutes>) -> Option<RouteGuard<'_>> {
        let route = routes.enter_route()?;
        let under_way = self.under_way.read();
        let _under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        Some(RouteGuard { route, _under_way })
    }

    /// Charges a request for its computing time that no other request of the stream was charged
    /// for. The charges of all requests add up to the time in which any device worked.
    pub(super) fn charge_request(&self, timeline: &Timeline) -> Duration {
        let mut charged = lock(&self.charged);
        let computing = timeline.spans().iter();
        let computing = computing.filter(|span| span.kind == SpanKind::Compute);
        let added = computing.map(|span| charged.add(span.start.0, span.end.0));
        Duration::from_micros(added.sum())
    }
}

impl ChargedTime {
    /// Charges a period and returns the part of it that was not charged before.
    fn add(&mut self, start: u64, end: u64) -> u64 {
        let start = start.max(self.before);
        if start >= end {
            return 0;
        }
        let (mut added, mut whole) = (end - start, (start, end));
        self.intervals.retain(|&(from, to)| {
            let apart = to < start || end < from;
            if !apart {
                added -= to.min(end) - from.max(start);
                whole = (whole.0.min(from), whole.1.max(to));
            }
            apart
        });
        let place = self.intervals.partition_point(|&known| known < whole);
        self.intervals.insert(place, whole);
        if self.intervals.len() > CHARGED_MAX {
            let oldest = self.intervals.pop_front();
            self.before = oldest.map_or(self.before, |(_, to)| to);
        }
        added
    }
}

impl DeviceGroup {
    /// Returns the maximum number of concurrent requests: one more than there are devices, so that
    /// a device that ends one can start the next, or 1 for a single device.
    pub fn stream_ahead(&self) -> usize {
        match self.members.len() {
            1 => 1,
            devices => devices + 1,
        }
    }

    /// Runs a request of a stream: next to other requests if it gets a route, alone otherwise.
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
        // Each attempt can lose a device; the next route will then avoid it.
        for _ in 0..self.members.len() {
            self.take_back();
            let Some(entered) = self.enter_stream_route(stream, task)? else {
                break;
            };
            let plan = entered.route.plan().clone();
            let without = plan.without;
            let ran = self.run_plan(task, plan, precedence, cancel, Some(request));
            // A thread that plans the route again can wait for this guard.
            drop(entered);
            match ran {
                Err(error) if !is_over(&error) && without != self.pool.lost_mask() => {}
                Err(TaskError::Group(GroupRunError::NoDevice { .. })) => break,
                // There is no room for several requests, but a single one may fit.
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

    /// Enters the route for requests like this one, or returns none if it should run alone.
    fn enter_stream_route<'a>(
        &self,
        stream: &'a Stream,
        task: &Task,
    ) -> Result<Option<RouteGuard<'a>>, TaskError> {
        // Requests that arrive during the planning wait for it.
        let cache = RefCell::new(lock(&stream.cache));
        if cache.borrow().given_up {
            return Ok(None);
        }
        let key = plan_key(task);
        let known = cache.borrow().find_routes(&key);
        let speeds = self.lock_speeds().clone();
        let is_fresh = |routes: &&Arc<StreamRoutes>| self.is_fresh(routes.basis_plan(), &speeds);
        if let Some(routes) = known.as_ref().filter(is_fresh) {
            return Ok(stream.enter_route(routes));
        }
        let kept = known.as_ref().map(|routes| routes.pipelines());
        let loaded = known.map(|routes| routes.loaded_bytes(self.members.len()));
        let drop = || {
            cache.borrow_mut().forget_routes(&key);
            // Requests in progress keep their route and its memory until they end.
            let under_way = stream.under_way.write();
            drop(under_way.unwrap_or_else(PoisonError::into_inner));
        };
        let setting = GroupSetting {
            before: loaded.map(|loaded| ReplacedPlan {
                loaded,
                drop: &drop,
            }),
            ..self.group_setting()
        };
        let routes = Arc::new(stream_routes::plan_routes(
            &setting,
            task,
            &speeds,
            &kept.unwrap_or_default(),
            self.stream_ahead(),
        )?);
        let mut cache = cache.borrow_mut();
        cache.forget_routes(&key);
        if cache.known.len() == PLANS_MAX {
            cache.known.pop_front();
        }
        cache.known.push_back((key.clone(), routes.clone()));
        Ok(stream.enter_route(&routes))
    }
}

/// Returns whether a run ended because its caller cancelled it or its deadline passed.
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
        assert_eq!(charged.intervals, [(0, 50)]);
    }

    #[test]
    fn what_is_forgotten_is_not_charged_again() {
        let mut charged = ChargedTime::default();
        for at in 0..1_000 {
            assert_eq!(charged.add(at * 10, at * 10 + 5), 5);
            assert!(charged.intervals.len() <= CHARGED_MAX);
        }
        assert_eq!(charged.add(0, 5), 0, "long ago");
        assert_eq!(charged.add(9_985, 10_000), 10, "beside the last one");
    }
}
