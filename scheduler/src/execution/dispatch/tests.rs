//! Tests the dispatch under a simulated clock: real times can differ from estimates, and devices
//! can fail.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;
use crate::planning::planner::{find_planner, step_pace};
use crate::planning::problem::{Edge, ProblemParts};

const MS: Time = 1_000_000_000;

fn problem(exec: &[&[Time]], edges: &[(usize, usize, u64)], time_per_byte: Time) -> Arc<Problem> {
    let devices = exec[0].len();
    let edges = edges
        .iter()
        .map(|&(from, to, bytes)| Edge { from, to, bytes });
    let parts = ProblemParts {
        devices,
        exec: exec.concat(),
        edges: edges.collect(),
        latency: vec![0; devices * devices],
        time_per_byte: vec![time_per_byte; devices * devices],
        ..ProblemParts::default()
    };
    Arc::new(Problem::new(parts).unwrap())
}

fn heft(problem: &Problem) -> Schedule {
    find_planner("heft").unwrap()(problem, &mut step_pace(0)).unwrap()
}

fn dispatch(problem: &Arc<Problem>, placement: Placement<'_>) -> Dispatch {
    let speeds = Speeds::new(1, problem.device_count());
    Dispatch::new(problem.clone(), placement, Arc::default(), speeds)
}

/// The record of a simulated run.
struct Run {
    makespan: Time,
    started: Vec<Time>,
    ended: Vec<Time>,
    runs: Vec<u32>,
    place: Vec<usize>,
}

/// Runs a job to its end. `real` returns the time of a task on a device; `fails` states which
/// device fails, and when.
fn simulate(
    dispatch: &mut Dispatch,
    problem: &Problem,
    real: impl Fn(usize, usize) -> Time,
    fails: Option<(usize, Time, Results)>,
) -> Run {
    let (tasks, devices) = (problem.task_count(), problem.device_count());
    let mut run = Run {
        makespan: 0,
        started: vec![0; tasks],
        ended: vec![0; tasks],
        runs: vec![0; tasks],
        place: vec![0; tasks],
    };
    let mut busy: Vec<Option<(Vec<u32>, Time)>> = vec![None; devices];
    let mut ends: BinaryHeap<Reverse<(Time, usize)>> = BinaryHeap::new();
    let mut dead = vec![false; devices];
    let mut now = 0;
    let mut batch = Vec::new();
    loop {
        for device in 0..devices {
            if busy[device].is_some() || dead[device] {
                continue;
            }
            dispatch.take_batch(device, now, &mut batch);
            if batch.is_empty() {
                continue;
            }
            let mut time = now;
            for &task in &batch {
                let arrivals = problem.inputs_of(task as usize).map(|(before, bytes)| {
                    assert!(run.runs[before] > 0, "{before} comes before {task}");
                    run.ended[before] + problem.transfer_time(run.place[before], device, bytes)
                });
                time = arrivals.max().unwrap_or(0).max(time);
                run.started[task as usize] = time;
                time += real(task as usize, device);
                run.ended[task as usize] = time;
                run.place[task as usize] = device;
                run.runs[task as usize] += 1;
            }
            busy[device] = Some((batch.clone(), now));
            ends.push(Reverse((time, device)));
        }
        let Some(Reverse((time, device))) = ends.pop() else {
            break;
        };
        if let Some((failing, at, results)) = &fails
            && let (failing, at) = (*failing, *at)
            && !dead[failing]
            && time >= at
        {
            ends.push(Reverse((time, device)));
            now = now.max(at);
            dead[failing] = true;
            busy[failing] = None;
            dispatch.remove_lost_device(failing, results, now).unwrap();
            continue;
        }
        now = now.max(time);
        if let Some((tasks, start)) = busy[device].take().filter(|_| !dead[device]) {
            run.makespan = now;
            dispatch.complete_tasks(device, &tasks, now - start, now);
        }
    }
    assert_eq!(dispatch.remaining_tasks(), 0, "the job came to its end");
    run
}

fn as_estimated(problem: &Problem) -> impl Fn(usize, usize) -> Time + '_ {
    |task, device| problem.exec_time(task, device)
}

#[test]
fn a_right_plan_is_run_as_planned() {
    let rows: Vec<Vec<Time>> = (0..12)
        .map(|task| vec![(3 + task % 4) * MS, 5 * MS])
        .collect();
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let edges: Vec<_> = (0..8).map(|task| (task, task + 4, 1000)).collect();
    let problem = problem(&rows, &edges, MS / 1000);
    let schedule = heft(&problem);
    let mut job = dispatch(&problem, Placement::Planned(&schedule));
    let run = simulate(&mut job, &problem, as_estimated(&problem), None);
    assert!(
        run.makespan <= schedule.makespan,
        "{} > {}",
        run.makespan,
        schedule.makespan
    );
    assert_eq!(job.event_counts().replanned, 0);
}

#[test]
fn the_rest_is_planned_anew_when_a_device_is_slower_than_planned() {
    let rows = vec![vec![10 * MS, 10 * MS]; 80];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let problem = problem(&rows, &[], 0);
    let schedule = heft(&problem);
    let mut job = dispatch(&problem, Placement::Planned(&schedule));
    // The second device takes four times what was planned: 400 ms would become 1,600.
    let real = |_: usize, device: usize| if device == 1 { 40 * MS } else { 10 * MS };
    let run = simulate(&mut job, &problem, real, None);
    assert!(
        job.event_counts().replanned >= 1,
        "{:?}",
        job.event_counts()
    );
    assert!(run.makespan <= 680 * MS, "{} ms", run.makespan / MS);
}

#[test]
fn estimates_a_fifth_off_leave_the_plan_alone_and_those_a_third_off_do_not() {
    let rows = vec![vec![10 * MS, 10 * MS]; 80];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let problem = problem(&rows, &[], 0);
    let schedule = heft(&problem);
    for (second, replanned) in [(12, false), (13, true)] {
        let mut job = dispatch(&problem, Placement::Planned(&schedule));
        let real = |_: usize, device: usize| if device == 1 { second * MS } else { 10 * MS };
        simulate(&mut job, &problem, real, None);
        assert_eq!(
            job.event_counts().replanned > 0,
            replanned,
            "{second} ms of 10"
        );
    }
}

#[test]
fn a_task_is_placed_where_it_ends_soonest_with_its_way_from_the_host() {
    let problem = problem(&[&[15 * MS, 11 * MS]], &[], 0);
    for (host_transfers, soonest) in [([0, 0], 1), ([0, 15 * MS], 0), ([15 * MS; 2], 1)] {
        let placed = |device: usize| {
            let job = dispatch(&problem, Placement::Dynamic);
            let mut job = job.with_host_transfers(host_transfers.into());
            let mut batch = Vec::new();
            job.take_batch(device, 0, &mut batch);
            batch.len()
        };
        assert_eq!(
            [placed(soonest), placed(1 - soonest)],
            [1, 0],
            "{host_transfers:?}"
        );
    }
}

#[test]
fn an_idle_device_steals_only_where_the_transfer_leaves_a_gain() {
    // All are planned for the first device, since the second is believed to be slow.
    let rows = vec![vec![10 * MS, 100 * MS]; 20];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let schedule = Schedule {
        device: vec![0; 21],
        start: (0..21).map(|task| task as Time * 10 * MS).collect(),
        makespan: 0,
    };
    let cost = |time_per_byte: Time| {
        let mut rows = rows.clone();
        rows.insert(0, &[MS, NEVER]);
        let edges: Vec<_> = (1..21).map(|task| (0, task, 1_000_000)).collect();
        let problem = problem(&rows, &edges, time_per_byte);
        let mut job = dispatch(&problem, Placement::Planned(&schedule));
        let run = simulate(&mut job, &problem, as_estimated(&problem), None);
        (job.event_counts().stolen, run.makespan)
    };
    let (stolen, makespan) = cost(0);
    assert!(
        stolen >= 1 && makespan < 201 * MS,
        "{stolen} stolen, {} ms",
        makespan / MS
    );
    // A megabyte that takes 200 ms is not worth a task of 100 ms.
    assert_eq!(cost(200 * MS / 1_000_000).0, 0);
}

#[test]
fn a_plan_that_is_to_be_kept_is_left_only_for_a_lost_device() {
    // The second device has nothing to do, and its one task waits for the last of the first's.
    let mut rows: Vec<&[Time]> = vec![&[10 * MS, 10 * MS]; 7];
    rows.push(&[MS, MS]);
    let problem = problem(&rows, &[(6, 7, 1)], 0);
    let schedule = Schedule {
        device: vec![0, 0, 0, 0, 0, 0, 0, 1],
        start: (0..8).map(|task| task as Time * 10 * MS).collect(),
        makespan: 0,
    };
    let taken = |keeps: bool| {
        let mut job = dispatch(&problem, Placement::Planned(&schedule)).with_keep_plan(keeps);
        let mut batch = Vec::new();
        job.take_batch(0, 0, &mut batch);
        assert_eq!(batch, [0]);
        job.take_batch(1, 0, &mut batch);
        (batch, job)
    };
    assert!(!taken(false).0.is_empty(), "it takes what it can have");
    let (batch, mut job) = taken(true);
    assert!(batch.is_empty(), "{batch:?}");
    job.remove_lost_device(0, &Results::Survive, MS).unwrap();
    let mut done = 0;
    while job.remaining_tasks() > 0 {
        let mut batch = Vec::new();
        job.take_batch(1, MS, &mut batch);
        assert!(!batch.is_empty(), "{done} of them are done");
        done += batch.len();
        job.complete_tasks(1, &batch, 10 * MS, MS);
    }
    assert_eq!(done, 8);
}

#[test]
fn an_idle_device_steals_only_where_the_way_from_the_host_leaves_a_gain() {
    // Computed in less time by the second device, to which everything has farther to go.
    let problem = problem(&[&[15 * MS, 11 * MS]], &[], 0);
    let schedule = Schedule {
        device: vec![0],
        start: vec![0],
        makespan: 15 * MS,
    };
    for (host_transfers, steals) in [([0, 0], true), ([0, 15 * MS], false), ([15 * MS; 2], true)] {
        let job = dispatch(&problem, Placement::Planned(&schedule));
        let mut job = job.with_host_transfers(host_transfers.into());
        let mut batch = Vec::new();
        job.take_batch(1, 0, &mut batch);
        assert_eq!(!batch.is_empty(), steals, "{host_transfers:?}");
    }
}

#[test]
fn work_of_a_failed_device_ends_on_the_others() {
    let rows = vec![vec![10 * MS, 10 * MS, 20 * MS]; 40];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let edges: Vec<_> = (0..30).map(|task| (task, task + 10, 10)).collect();
    let problem = problem(&rows, &edges, 0);
    for (results, lost) in [(Results::Survive, false), (Results::Lost, true)] {
        let schedule = heft(&problem);
        for placement in [Placement::Planned(&schedule), Placement::Dynamic] {
            let mut job = dispatch(&problem, placement);
            let fails = Some((0, 35 * MS, results.clone()));
            let run = simulate(&mut job, &problem, as_estimated(&problem), fails);
            let late = (0..40).filter(|&task| run.started[task] > 35 * MS && run.place[task] == 0);
            assert_eq!(late.count(), 0, "nothing begins on a device that is gone");
            assert_eq!(
                job.event_counts().redone > 0,
                lost,
                "{:?}",
                job.event_counts()
            );
        }
    }
}

#[test]
fn what_runs_nowhere_else_is_named_when_its_device_fails() {
    let problem = problem(&[&[MS, MS], &[MS, NEVER]], &[(0, 1, 0)], 0);
    let mut job = dispatch(&problem, Placement::Dynamic);
    let stranded = job.remove_lost_device(0, &Results::Survive, 0).unwrap_err();
    assert_eq!(stranded, StrandedCause::Task { task: 1 });
}

#[test]
fn history_corrects_a_wrong_profile_within_ten_runs() {
    // The second device is believed to be eight times as fast as it is.
    let rows = vec![vec![10 * MS, 2 * MS]; 64];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let problem = problem(&rows, &[], 0);
    let real = |_: usize, device: usize| if device == 1 { 16 * MS } else { 10 * MS };
    // 40 tasks of 10 ms on one and 24 of 16 on the other: 400 ms at best.
    let mut speeds = Speeds::new(1, 2);
    let mut makespans = Vec::new();
    for _ in 0..10 {
        let mut job = Dispatch::new(problem.clone(), Placement::Dynamic, Arc::default(), speeds);
        makespans.push(simulate(&mut job, &problem, real, None).makespan / MS);
        speeds = job.speeds().clone();
    }
    let wrong = (speeds.factor(0, 1) / 8.0 - 1.0).abs();
    assert!(wrong < 0.02, "corrected by {}", speeds.factor(0, 1));
    assert!(*makespans.last().unwrap() <= 416, "{makespans:?} ms");
}

#[test]
fn a_device_more_than_a_fifth_over_the_mean_gives_work_away() {
    let rows = vec![vec![2 * MS, 3 * MS]; 64];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let problem = problem(&rows, &[], 0);
    let mut job = dispatch(&problem, Placement::Dynamic);
    // The second device is through with its queue ten times as fast as was thought.
    let real = |_: usize, device: usize| if device == 1 { 3 * MS / 10 } else { 2 * MS };
    let run = simulate(&mut job, &problem, real, None);
    assert!(job.event_counts().moved > 0, "{:?}", job.event_counts());
    assert!(run.makespan < 24 * MS, "{} ms", run.makespan / MS);
}

#[test]
fn a_device_less_than_a_fifth_over_the_mean_keeps_its_work() {
    let rows = vec![vec![MS, MS]; 20];
    let rows: Vec<&[Time]> = rows.iter().map(Vec::as_slice).collect();
    let problem = problem(&rows, &[], 0);
    let mut job = dispatch(&problem, Placement::Dynamic);
    let mut batch = Vec::new();
    // The first device is stuck at its first task; the second does one after the other.
    job.take_batch(0, 0, &mut batch);
    let mut now = 0;
    while job.event_counts().moved == 0 {
        assert!(
            now < 10 * MS,
            "work moves before the second device has none"
        );
        job.take_batch(1, now, &mut batch);
        now += MS;
        let mean = (job.load[0] + job.load[1]) as f64 / 2.0;
        let over = job.load[0] as f64 / mean;
        job.complete_tasks(1, &batch, MS, now);
        assert_eq!(
            job.event_counts().moved > 0,
            over > 1.2,
            "{over} of the mean"
        );
    }
    assert!(now > 2 * MS, "a little more than the mean is left alone");
}

#[test]
fn small_tasks_are_taken_in_batches_and_large_ones_alone() {
    let small = problem(&[&[1_000_000][..]; 1000], &[], 0);
    let mut batch = Vec::new();
    dispatch(&small, Placement::Dynamic).take_batch(0, 0, &mut batch);
    assert_eq!(batch.len(), 50, "microseconds fill a batch of fifty");
    let large = problem(&[&[MS][..]; 10], &[], 0);
    let schedule = heft(&large);
    dispatch(&large, Placement::Planned(&schedule)).take_batch(0, 0, &mut batch);
    assert_eq!(batch.len(), 1);
}

#[test]
fn what_others_wait_for_is_told_before_something_long_begins() {
    // The first is small, and the last waits for it elsewhere.
    let large: &[Time] = &[MS, NEVER];
    let rows = [&[MS / 100, NEVER], large, large, large, &[NEVER, MS]];
    let problem = problem(&rows, &[(0, 4, 0)], 0);
    let plan = Schedule {
        device: vec![0, 0, 0, 0, 1],
        start: (0..5).map(|task| task * MS).collect(),
        ..Schedule::default()
    };
    for placement in [Placement::Planned(&plan), Placement::Dynamic] {
        let mut batch = Vec::new();
        dispatch(&problem, placement).take_batch(0, 0, &mut batch);
        assert_eq!(batch, [0]);
    }
}

#[test]
fn a_planned_chain_is_one_batch() {
    let rows = vec![&[100_000][..]; 100];
    let edges: Vec<_> = (0..99).map(|task| (task, task + 1, 0)).collect();
    let problem = problem(&rows, &edges, 0);
    let schedule = heft(&problem);
    let mut job = dispatch(&problem, Placement::Planned(&schedule));
    let mut batch = Vec::new();
    job.take_batch(0, 0, &mut batch);
    assert_eq!(batch, (0..100).collect::<Vec<u32>>());
}

fn any_job() -> impl Strategy<Value = (Arc<Problem>, Vec<f64>)> {
    (1usize..40, 1usize..5).prop_flat_map(|(tasks, devices)| {
        let exec = prop::collection::vec(1u64..50, tasks * devices);
        let edges = prop::collection::vec((0..tasks, 0..tasks, 0u64..100), 0..tasks * 2);
        let slowness = prop::collection::vec(0.2f64..5.0, devices);
        (exec, edges, slowness).prop_map(move |(exec, edges, slowness)| {
            let exec: Vec<Time> = exec.into_iter().map(|time| time * MS / 10).collect();
            let rows: Vec<&[Time]> = exec.chunks(devices).collect();
            let forward = edges.into_iter().filter(|(from, to, _)| from < to);
            let forward: Vec<_> = forward.collect();
            (problem(&rows, &forward, MS / 1000), slowness)
        })
    })
}

proptest! {
    /// With any errors of the estimates and any failing device: every task runs after those that it
    /// depends on (the simulation asserts it), only once if nothing is lost, and the job ends.
    #[test]
    fn every_job_ends((problem, slowness) in any_job(), planned: bool, fails: bool, lost: bool) {
        let schedule = heft(&problem);
        let placement = if planned { Placement::Planned(&schedule) } else { Placement::Dynamic };
        let mut job = dispatch(&problem, placement);
        let results = if lost { Results::Lost } else { Results::Survive };
        let fails = (fails && problem.device_count() > 1).then_some((0, 20 * MS, results));
        let real = |task: usize, device: usize| {
            (problem.exec_time(task, device) as f64 * slowness[device]) as Time
        };
        let well = fails.is_none();
        let run = simulate(&mut job, &problem, real, fails);
        if well {
            prop_assert!(run.runs.iter().all(|&runs| runs == 1));
        }
    }
}
