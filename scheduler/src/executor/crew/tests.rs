//! Threads that really run: order, faults, ends, shares.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

use super::*;
use crate::executor::{Results, Speeds, Stranded};
use crate::problem::{Edge, Problem, ProblemParts};

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
    work: impl Fn(Call) -> Result<Took, Fault> + Send + Sync + 'static,
) -> Job {
    Job {
        problem: problem.clone(),
        plan: None,
        kinds: Arc::default(),
        speeds: Speeds::new(1, problem.devices()),
        work: Arc::new(work),
        results: Results::Survive,
        priority: 0,
        weight: 1.0,
        deadline: None,
    }
}

fn planned(job: Job) -> Job {
    let plan = crate::planner::planner("heft").unwrap();
    let plan = plan(&job.problem, &mut crate::planner::steps(0)).unwrap();
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
    let crew = Crew::start(2).unwrap();
    for plan in [true, false] {
        let done: Arc<Vec<AtomicUsize>> = Arc::new((0..400).map(|_| AtomicUsize::new(0)).collect());
        let (seen, needs) = (done.clone(), problem.clone());
        let grid = job(&problem, move |call| {
            for (before, _) in needs.before(call.task) {
                assert_eq!(seen[before].load(Ordering::Acquire), 1);
            }
            seen[call.task].fetch_add(1, Ordering::Release);
            Ok(Took::Measured)
        });
        let execution = crew.run(if plan { planned(grid) } else { grid }).unwrap();
        assert_eq!(execution.ended, Ended::Done);
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
    let crew = Crew::start(2).unwrap();
    for _ in 0..20 {
        let execution = crew.run(job(&problem, |_| Ok(Took::Measured))).unwrap();
        assert_eq!(execution.ended, Ended::Done);
    }
}

#[test]
fn two_devices_work_at_the_same_time() {
    let both = Arc::new(Barrier::new(2));
    let problem = problem(2, 2, MS, &[]);
    let meeting = job(&problem, move |_| {
        // Neither returns before the other has begun.
        both.wait();
        Ok(Took::Measured)
    });
    let execution = Crew::start(2).unwrap().run(meeting).unwrap();
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
    let crew = Crew::start(2).unwrap();
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
            Ok(Took::Measured)
        })
    };
    let execution = crew.run(failing()).unwrap();
    assert_eq!(execution.ended, Ended::Done);
    assert!(execution.places.iter().all(|place| *place == Some(1)));
    assert_eq!(crew.lost(), 0b01);
    // A lost device gets nothing of the next job either, until it is back.
    let next = crew.run(job(&problem, |_| Ok(Took::Measured))).unwrap();
    assert_eq!((next.devices[0].tasks, next.devices[1].tasks), (0, 30));
    crew.restore(0);
    assert_eq!(crew.lost(), 0);
}

#[test]
fn without_a_device_left_the_job_is_stranded() {
    let problem = problem(3, 1, MS, &[]);
    let crew = Crew::start(1).unwrap();
    let dead = job(&problem, |_| Err(Fault::Device("it is gone".to_owned())));
    let execution = crew.run(dead).unwrap();
    assert!(matches!(
        execution.ended,
        Ended::Stranded(Stranded::Task { .. })
    ));
}

#[test]
fn a_task_that_panics_ends_its_job_by_name_and_no_other() {
    let problem = problem(3, 1, MS, &[(0, 1), (1, 2)]);
    let crew = Crew::start(1).unwrap();
    let panics = job(&problem, |call| {
        assert!(call.task != 1, "one is bad");
        Ok(Took::Measured)
    });
    let execution = crew.run(panics).unwrap();
    let Ended::Failed { task, cause } = execution.ended else {
        panic!("{:?}", execution.ended);
    };
    assert_eq!((task, cause.as_str()), (1, "it panicked: one is bad"));
    assert_eq!(
        crew.run(job(&problem, |_| Ok(Took::Measured)))
            .unwrap()
            .ended,
        Ended::Done
    );
}

#[test]
fn who_cancels_need_not_wait_for_the_running_task() {
    let (begun, started) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let problem = problem(10, 1, MS, &[]);
    let crew = Crew::start(1).unwrap();
    let stuck = job(&problem, move |_| {
        begun.send(()).expect("the test waits for it");
        // Ends when the test lets go.
        let _ = held.lock().expect("one task at a time").recv();
        Ok(Took::Measured)
    });
    let running = crew.submit(stuck).unwrap();
    started.recv().unwrap();
    running.cancel();
    let execution = running.wait();
    assert_eq!(execution.ended, Ended::Cancelled);
    assert_eq!(execution.devices[0].tasks, 0, "its task runs still");
    drop(release);
    assert_eq!(
        crew.run(job(&problem, |_| Ok(Took::Measured)))
            .unwrap()
            .ended,
        Ended::Done
    );
}

#[test]
fn a_job_past_its_deadline_ends() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let problem = problem(2, 1, MS, &[]);
    let crew = Crew::start(1).unwrap();
    let slow = Job {
        deadline: Some(Moment::now()),
        ..job(&problem, move |_| {
            let _ = held.lock().expect("one task at a time").recv();
            Ok(Took::Measured)
        })
    };
    assert_eq!(crew.run(slow).unwrap().ended, Ended::Deadline);
    drop(release);
}

/// Two jobs and one device that both are submitted before it is free; gives the order it took them.
fn order_of(mut one: Job, mut other: Job) -> Vec<u8> {
    let crew = Crew::start(1).unwrap();
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let gate = job(&problem(1, 1, MS, &[]), move |_| {
        let _ = held.lock().expect("one task at a time").recv();
        Ok(Took::Measured)
    });
    let gate = crew.submit(gate).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (name, job) in [(0u8, &mut one), (1, &mut other)] {
        let (order, work) = (order.clone(), job.work.clone());
        job.work = Arc::new(move |call| {
            order.lock().expect("nobody panics").push(name);
            work(call)
        });
    }
    let (one, other) = (crew.submit(one).unwrap(), crew.submit(other).unwrap());
    release.send(()).unwrap();
    assert_eq!(gate.wait().ended, Ended::Done);
    assert_eq!(
        (one.wait().ended, other.wait().ended),
        (Ended::Done, Ended::Done)
    );
    Arc::try_unwrap(order).unwrap().into_inner().unwrap()
}

#[test]
fn the_higher_priority_goes_first() {
    let problem = problem(3, 1, MS, &[]);
    let low = job(&problem, |_| Ok(Took::Measured));
    let high = Job {
        priority: 1,
        ..job(&problem, |_| Ok(Took::Measured))
    };
    assert_eq!(order_of(low, high), [1, 1, 1, 0, 0, 0]);
}

#[test]
fn jobs_share_a_device_by_weight() {
    let problem = problem(12, 1, MS, &[]);
    let light = job(&problem, |_| Ok(Took::Measured));
    let heavy = Job {
        weight: 1e12,
        ..job(&problem, |_| Ok(Took::Measured))
    };
    let order = order_of(light, heavy);
    let first = order.iter().take(13).filter(|&&name| name == 1).count();
    assert!(first >= 12, "who paid so much more comes first: {order:?}");
}

#[test]
fn a_job_for_other_devices_is_refused() {
    let problem = problem(1, 3, MS, &[]);
    let refused = Crew::start(2)
        .unwrap()
        .run(job(&problem, |_| Ok(Took::Measured)))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the job is planned for 3 devices, there are 2"
    );
}
