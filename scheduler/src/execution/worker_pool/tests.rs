//! Tests the worker pool with real threads: the order of tasks, faults, cancellation, deadlines,
//! and the shares of owners.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

use super::*;
use crate::execution::dispatch::{Results, StrandedCause};
use crate::learning::Speeds;
use crate::planning::problem::{Edge, Problem, ProblemParts};

const MS: Time = 1_000_000_000;

fn problem(tasks: usize, devices: usize, exec: Time, edges: &[(usize, usize)]) -> Arc<Problem> {
    let edge = |&(from, to): &(usize, usize)| Edge { from, to, bytes: 0 };
    let parts = ProblemParts {
        devices,
        exec: vec![exec; tasks * devices],
        edges: edges.iter().map(edge).collect(),
        latency: vec![0; devices * devices],
        time_per_byte: vec![0; devices * devices],
        ..ProblemParts::default()
    };
    Arc::new(Problem::new(parts).unwrap())
}

fn job(
    problem: &Arc<Problem>,
    work: impl Fn(Call) -> Result<TaskTime, Fault> + Send + Sync + 'static,
) -> Job {
    Job {
        problem: problem.clone(),
        plan: None,
        keeps_plan: false,
        kinds: Arc::default(),
        speeds: Speeds::new(1, problem.device_count()),
        work: Arc::new(work),
        host_transfers: Arc::default(),
        results: Results::Survive,
        priority: 0,
        weight: 1.0,
        owner: None,
        deadline: None,
    }
}

fn planned(job: Job) -> Job {
    let plan = crate::planning::planner::find_planner("heft").unwrap();
    let plan = plan(&job.problem, &mut crate::planning::planner::step_pace(0)).unwrap();
    Job {
        plan: Some(plan),
        ..job
    }
}

#[test]
fn tasks_run_after_what_they_need_on_both_devices() {
    // A grid: each task needs its left and its upper neighbour.
    let edges: Vec<(usize, usize)> = (0..400)
        .flat_map(|task| {
            [
                (task, task + 1, task % 20 < 19),
                (task, task + 20, task < 380),
            ]
        })
        .filter_map(|(from, to, there)| there.then_some((from, to)))
        .collect();
    let problem = problem(400, 2, 1000, &edges);
    let pool = WorkerPool::start(2).unwrap();
    for plan in [true, false] {
        let done: Arc<Vec<AtomicUsize>> = Arc::new((0..400).map(|_| AtomicUsize::new(0)).collect());
        let (seen, needs) = (done.clone(), problem.clone());
        let grid = job(&problem, move |call| {
            for (before, _) in needs.inputs_of(call.task) {
                assert_eq!(seen[before].load(Ordering::Acquire), 1);
            }
            seen[call.task].fetch_add(1, Ordering::Release);
            Ok(TaskTime::Measured)
        });
        let execution = pool.run(if plan { planned(grid) } else { grid }).unwrap();
        assert_eq!(execution.ended, JobEnd::Done);
        assert!(done.iter().all(|runs| runs.load(Ordering::Acquire) == 1));
    }
}

#[test]
fn a_device_that_sleeps_is_woken_for_what_another_one_places_there() {
    // Going elsewhere takes as long as 400 tasks: the other device is given some late, and too few
    // to be worth stealing back.
    let parts = ProblemParts {
        devices: 2,
        exec: vec![50_000; 2 * 5_000],
        edges: (1..5_000)
            .map(|to| Edge {
                from: 0,
                to,
                bytes: 0,
            })
            .collect(),
        latency: vec![20_000_000; 4],
        time_per_byte: vec![0; 4],
        ..ProblemParts::default()
    };
    let problem = Arc::new(Problem::new(parts).unwrap());
    let pool = WorkerPool::start(2).unwrap();
    for _ in 0..20 {
        let execution = pool.run(job(&problem, |_| Ok(TaskTime::Measured))).unwrap();
        assert_eq!(execution.ended, JobEnd::Done);
    }
}

#[test]
fn two_devices_work_at_the_same_time() {
    let both = Arc::new(Barrier::new(2));
    let problem = problem(2, 2, MS, &[]);
    let meeting = job(&problem, move |_| {
        // Neither returns before the other has begun.
        both.wait();
        Ok(TaskTime::Measured)
    });
    let execution = WorkerPool::start(2).unwrap().run(meeting).unwrap();
    assert_eq!(
        execution
            .devices
            .iter()
            .map(|used| used.tasks)
            .collect::<Vec<_>>(),
        [1, 1]
    );
}

#[test]
fn a_failed_devices_work_moves_and_the_job_ends() {
    let problem = problem(30, 2, MS, &[]);
    let pool = WorkerPool::start(2).unwrap();
    let failing = || {
        let gone = AtomicBool::new(false);
        job(&problem, move |call| {
            if call.device == 0 {
                gone.store(true, Ordering::Release);
                return Err(Fault::Device("it is gone".to_owned()));
            }
            // The other one ends nothing before, or it might do all of it alone.
            while !gone.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            Ok(TaskTime::Measured)
        })
    };
    let execution = pool.run(failing()).unwrap();
    assert_eq!(execution.ended, JobEnd::Done);
    assert!(execution.places.iter().all(|place| *place == Some(1)));
    assert_eq!(pool.lost_mask(), 0b01);
    assert_eq!(pool.loss_causes(), [(0, "it is gone".to_owned())]);
    // A lost device gets nothing of the next job either, until it is back.
    let next = pool.run(job(&problem, |_| Ok(TaskTime::Measured))).unwrap();
    assert_eq!((next.devices[0].tasks, next.devices[1].tasks), (0, 30));
    pool.restore_device(0);
    assert_eq!((pool.lost_mask(), pool.loss_causes()), (0, Vec::new()));
    let last = pool.run(job(&problem, |_| Ok(TaskTime::Measured))).unwrap();
    assert_eq!(last.ended, JobEnd::Done);
    assert_eq!(last.devices[0].failed, None, "it takes part again");
}

#[test]
fn what_a_device_cannot_do_goes_to_another_and_the_rest_stays() {
    let problem = problem(4, 2, MS, &[(0, 1), (1, 2), (2, 3)]);
    let pool = WorkerPool::start(2).unwrap();
    let refuses = |call: Call| call.task == 1 && call.device == 0;
    let picky = Job {
        plan: Some(Schedule {
            device: vec![0; 4],
            start: vec![0, MS, 2 * MS, 3 * MS],
            makespan: 4 * MS,
        }),
        ..job(&problem, move |call| match refuses(call) {
            true => Err(Fault::Refused("it has no such type".to_owned())),
            false => Ok(TaskTime::Measured),
        })
    };
    let execution = pool.run(picky).unwrap();
    assert_eq!(execution.ended, JobEnd::Done);
    assert_eq!(execution.places[1], Some(1));
    assert_eq!(pool.lost_mask(), 0, "it is none the worse");

    let cannot = job(&problem, |call| match call.task {
        2 => Err(Fault::Refused("none has such a type".to_owned())),
        _ => Ok(TaskTime::Measured),
    });
    let JobEnd::Failed { task, cause } = pool.run(cannot).unwrap().ended else {
        panic!("nobody can do it");
    };
    assert_eq!((task, cause.as_str()), (2, "none has such a type"));
}

#[test]
fn without_a_device_left_the_job_is_stranded() {
    let problem = problem(3, 1, MS, &[]);
    let pool = WorkerPool::start(1).unwrap();
    let dead = job(&problem, |_| Err(Fault::Device("it is gone".to_owned())));
    let execution = pool.run(dead).unwrap();
    assert!(matches!(
        execution.ended,
        JobEnd::Stranded(StrandedCause::Task { .. })
    ));
}

#[test]
fn a_task_that_panics_ends_its_job_by_name_and_no_other() {
    let problem = problem(3, 1, MS, &[(0, 1), (1, 2)]);
    let pool = WorkerPool::start(1).unwrap();
    let panics = job(&problem, |call| {
        assert!(call.task != 1, "one is bad");
        Ok(TaskTime::Measured)
    });
    let execution = pool.run(panics).unwrap();
    let JobEnd::Failed { task, cause } = execution.ended else {
        panic!("{:?}", execution.ended);
    };
    assert_eq!((task, cause.as_str()), (1, "it panicked: one is bad"));
    assert_eq!(
        pool.run(job(&problem, |_| Ok(TaskTime::Measured)))
            .unwrap()
            .ended,
        JobEnd::Done
    );
}

#[test]
fn who_cancels_need_not_wait_for_the_running_task() {
    let (begun, started) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let problem = problem(10, 1, MS, &[]);
    let pool = WorkerPool::start(1).unwrap();
    let stuck = job(&problem, move |_| {
        begun.send(()).expect("the test waits for it");
        // Ends when the test lets go.
        let _ = held.lock().expect("one task at a time").recv();
        Ok(TaskTime::Measured)
    });
    let running = pool.submit_job(stuck).unwrap();
    started.recv().unwrap();
    running.cancel();
    let execution = running.wait();
    assert_eq!(execution.ended, JobEnd::Cancelled);
    assert_eq!(execution.devices[0].tasks, 0, "its task runs still");
    drop(release);
    assert_eq!(
        pool.run(job(&problem, |_| Ok(TaskTime::Measured)))
            .unwrap()
            .ended,
        JobEnd::Done
    );
}

#[test]
fn a_job_past_its_deadline_ends() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let problem = problem(2, 1, MS, &[]);
    let pool = WorkerPool::start(1).unwrap();
    let slow = Job {
        deadline: Some(Moment::now()),
        ..job(&problem, move |_| {
            let _ = held.lock().expect("one task at a time").recv();
            Ok(TaskTime::Measured)
        })
    };
    assert_eq!(pool.run(slow).unwrap().ended, JobEnd::Deadline);
    drop(release);
}

#[test]
fn of_a_job_whose_deadline_is_over_nothing_is_begun() {
    let pool = WorkerPool::start(1).unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let quick = move |_: Call| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(TaskTime::Measured)
    };
    let problem = problem(2, 1, MS, &[]);
    let late = Job {
        deadline: Some(Moment::now()),
        ..job(&problem, quick)
    };
    let running = pool.submit_job(late).unwrap();
    // Who waits comes when the device has long been free for it.
    let other = job(&problem, |_| Ok(TaskTime::Measured));
    assert_eq!(pool.run(other).unwrap().ended, JobEnd::Done);
    assert_eq!(running.wait().ended, JobEnd::Deadline);
    assert_eq!(begun.load(Ordering::Relaxed), 0);
}

/// Submits all jobs to one device before it is free, and returns the names of the jobs in the order
/// in which it ran their tasks.
fn order_of(jobs: Vec<(u8, Job)>) -> Vec<u8> {
    let pool = WorkerPool::start(1).unwrap();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let gate = job(&problem(1, 1, MS, &[]), move |_| {
        let _ = held.lock().expect("one task at a time").recv();
        Ok(TaskTime::Stated(Duration::ZERO))
    });
    let gate = pool.submit_job(gate).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let submit = |(name, mut job): (u8, Job)| {
        let (order, work) = (order.clone(), job.work.clone());
        job.work = Arc::new(move |call| {
            order.lock().expect("nobody panics").push(name);
            work(call)
        });
        pool.submit_job(job).unwrap()
    };
    let running: Vec<RunningJob> = jobs.into_iter().map(submit).collect();
    release.send(()).unwrap();
    assert_eq!(gate.wait().ended, JobEnd::Done);
    for running in running {
        assert_eq!(running.wait().ended, JobEnd::Done);
    }
    let order = order.lock().unwrap();
    order.clone()
}

/// Returns how many of the first `tasks` tasks belonged to a job.
fn among_first(order: &[u8], tasks: usize, name: u8) -> usize {
    let first = order.iter().take(tasks);
    first.filter(|&&taken| taken == name).count()
}

/// Returns a job with a weight, whose tasks each state a time of `ms` milliseconds.
fn stated(problem: &Arc<Problem>, ms: u64, weight: f64) -> Job {
    Job {
        weight,
        ..job(problem, move |_| {
            Ok(TaskTime::Stated(Duration::from_millis(ms)))
        })
    }
}

#[test]
fn the_higher_priority_goes_first() {
    let problem = problem(3, 1, MS, &[]);
    let low = job(&problem, |_| Ok(TaskTime::Measured));
    let high = Job {
        priority: 1,
        ..job(&problem, |_| Ok(TaskTime::Measured))
    };
    assert_eq!(order_of(vec![(0, low), (1, high)]), [1, 1, 1, 0, 0, 0]);
}

#[test]
fn jobs_share_a_device_by_weight() {
    let problem = problem(40, 1, MS, &[]);
    for (weights, first) in [([1.0, 1.0], 20), ([1.0, 3.0], 30), ([4.0, 1.0], 8)] {
        let [light, heavy] = weights.map(|weight| stated(&problem, 1, weight));
        let order = order_of(vec![(0, light), (1, heavy)]);
        // While both have work: then who has it left has the device.
        let had = among_first(&order, 40, 1);
        assert!(had.abs_diff(first) <= 1, "{weights:?}: {had} in {order:?}");
    }
}

#[test]
fn it_is_device_time_that_is_shared_and_not_tasks() {
    let problem = problem(40, 1, MS, &[]);
    let (short, long) = (stated(&problem, 1, 1.0), stated(&problem, 3, 1.0));
    let order = order_of(vec![(0, short), (1, long)]);
    let had = among_first(&order, 40, 1);
    assert!(had.abs_diff(10) <= 1, "{had} in {order:?}");
}

#[test]
fn jobs_of_one_owner_have_one_share_together() {
    // One owner has ten jobs, the other one; each submits more than the device can do.
    let (small, large) = (problem(10, 1, MS, &[]), problem(40, 1, MS, &[]));
    let of = |owner: u64, job: Job| Job {
        owner: Some(owner),
        ..job
    };
    let many = (0..10).map(|_| (0, of(7, stated(&small, 1, 1.0))));
    let mut jobs: Vec<(u8, Job)> = many.collect();
    jobs.push((1, of(8, stated(&large, 1, 3.0))));
    let order = order_of(jobs);
    let had = among_first(&order, 40, 1);
    assert!(had.abs_diff(30) <= 1, "{had} in {order:?}");
}

#[test]
fn what_an_owner_had_counts_for_its_next_job_and_being_away_for_nothing() {
    let problem = problem(4, 1, MS, &[]);
    let pool = WorkerPool::start(1).unwrap();
    let owned = |owner: u64| Job {
        owner: Some(owner),
        ..stated(&problem, 1, 1.0)
    };
    let share = |owner| pool.shared.lock_state().initial_share(Some(owner));
    assert_eq!(pool.run(owned(1)).unwrap().ended, JobEnd::Done);
    let (had, level) = (share(1), pool.shared.lock_state().level);
    assert!((had - 0.004).abs() < 1e-9, "four tasks of a millisecond");
    assert!(
        (level - 0.003).abs() < 1e-9,
        "what it had when it took the last"
    );
    assert_eq!(
        share(2),
        level,
        "who comes is no better off than who was there"
    );
    for _ in 0..3 {
        assert_eq!(pool.run(owned(1)).unwrap().ended, JobEnd::Done);
    }
    let later = share(1);
    assert!((later - 0.016).abs() < 1e-9, "{later}");
    assert!(share(2) >= had, "being away is worth nothing");
    assert!(
        pool.shared.lock_state().owners.len() <= 1,
        "only who is ahead is remembered"
    );
}

#[test]
fn a_job_for_other_devices_is_refused() {
    let problem = problem(1, 3, MS, &[]);
    let refused = WorkerPool::start(2)
        .unwrap()
        .run(job(&problem, |_| Ok(TaskTime::Measured)))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the job is planned for 3 devices, there are 2"
    );
}
