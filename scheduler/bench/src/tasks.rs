//! Measures how much time the executor needs for each task, with empty tasks in the graph shapes of
//! other benchmarks, and how much of the devices' time remains for the work of small tasks.
//!
//! Wall time is the duration of a run, processor time the time that this process used for it; on a
//! busy machine you should compare the second.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use souk_host::system;
use souk_scheduler::execution::Moment;
use souk_scheduler::execution::dispatch::Results;
use souk_scheduler::execution::worker_pool::{Job, JobEnd, TaskTime, WorkerPool};
use souk_scheduler::learning::Speeds;
use souk_scheduler::planning::Time;
use souk_scheduler::planning::planner::{find_planner, step_pace};
use souk_scheduler::planning::problem::{Edge, Problem, ProblemParts};
use souk_scheduler::planning::schedule::Schedule;

/// Estimated time of an empty task: 50 ns.
const EMPTY: Time = 50_000;
/// Picoseconds in a microsecond.
const MICRO: Time = 1_000_000;
/// Rounds of each measurement; the least counts, because other load can only increase it.
const ROUNDS: usize = 5;

/// A graph: its name, its number of tasks and its dependencies.
type GraphShape = (&'static str, usize, Vec<(usize, usize)>);

/// The report of a measurement of the executor.
#[derive(Clone, Debug, Serialize)]
pub struct TaskReport {
    /// Number of workers.
    pub devices: usize,
    /// Microseconds from the end of a task on one worker to the start of the next on another,
    /// measured in advance; plans include it.
    pub hand_over_us: f64,
    /// Results with empty tasks.
    pub overhead: Vec<Overhead>,
    /// Results with tasks that compute for a while.
    pub efficiency: Vec<Efficiency>,
}

/// The time and memory that the executor needs for empty tasks.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// Name of the graph's shape.
    pub graph: &'static str,
    /// `planned` or `dynamic`.
    pub placement: &'static str,
    /// Number of tasks.
    pub tasks: usize,
    /// Microseconds of wall time for each task, the least of the rounds.
    pub wall_us: f64,
    /// Microseconds of processor time for each task in the same round.
    pub cpu_us: f64,
    /// Largest growth of resident memory in bytes during the first run, when the graph and its plan
    /// already exist: the bookkeeping of the tasks.
    pub first_bytes: u64,
    /// The same growth in later rounds.
    pub grown_bytes: u64,
}

/// The part of the processors that remains for the work of small tasks.
#[derive(Clone, Debug, Serialize)]
pub struct Efficiency {
    /// Microseconds that a task computes.
    pub task_us: f64,
    /// `planned` or `dynamic`.
    pub placement: &'static str,
    /// Processor time of the bare work divided by that of the run.
    pub efficiency: f64,
    /// Bare work, spread evenly over the devices, divided by the wall time of the run. Other load
    /// on the machine affects it.
    pub wall_efficiency: f64,
}

/// Measures with `devices` workers.
///
/// # Errors
/// The system's error if it cannot start a thread.
pub fn measure_tasks(devices: usize) -> std::io::Result<TaskReport> {
    let pool = WorkerPool::start(devices)?;
    let hand_over = pool
        .measure_hand_over()
        .expect("the pool has nothing else to do");
    let hand_over = hand_over.unwrap_or_default();
    let latency = (hand_over.as_nanos() as Time).saturating_mul(1000);
    let fan = |tasks: usize| (1..tasks).map(|task| (0, task)).collect::<Vec<_>>();
    let chain = |tasks: usize| (1..tasks).map(|task| (task - 1, task)).collect::<Vec<_>>();
    // Each task waits for three tasks of the previous row.
    let rows = |tasks: usize| {
        let width = 100;
        let row = |task: usize| task - task % width - width;
        let needs =
            |task: usize| [0, 31, 62].map(|shift| (row(task) + (task + shift) % width, task));
        (width..tasks).flat_map(needs).collect::<Vec<_>>()
    };
    let shapes: [GraphShape; 4] = [
        ("fan-out", 100_000, fan(100_000)),
        ("chain", 10_000, chain(10_000)),
        ("three dependencies each", 10_000, rows(10_000)),
        ("independent", 1_000_000, Vec::new()),
    ];
    let mut overhead = Vec::new();
    for (graph, tasks, edges) in &shapes {
        let problem = build_problem(*tasks, devices, EMPTY, latency, edges);
        for placement in ["planned", "dynamic"] {
            overhead.push(measure_empty_tasks(&pool, graph, placement, &problem));
        }
    }
    let mut efficiency = Vec::new();
    for task_us in [1.0, 4.0, 16.0, 64.0] {
        for placement in ["planned", "dynamic"] {
            efficiency.push(measure_busy_tasks(&pool, placement, task_us, latency));
        }
    }
    Ok(TaskReport {
        devices,
        hand_over_us: hand_over.as_secs_f64() * 1e6,
        overhead,
        efficiency,
    })
}

fn build_problem(
    tasks: usize,
    devices: usize,
    exec: Time,
    latency: Time,
    edges: &[(usize, usize)],
) -> Arc<Problem> {
    let edge = |&(from, to): &(usize, usize)| Edge {
        from,
        to,
        bytes: 64,
    };
    let parts = ProblemParts {
        devices,
        exec: vec![exec; tasks * devices],
        edges: edges.iter().map(edge).collect(),
        // Shared memory: a fixed time for the signal that data is ready, and none for each byte.
        latency: vec![latency; devices * devices],
        time_per_byte: vec![0; devices * devices],
        ..ProblemParts::default()
    };
    Arc::new(Problem::new(parts).expect("the shapes have no circles"))
}

/// Returns a plan: by the planner if that is quick, else in even shares of independent tasks.
fn plan_problem(problem: &Problem) -> Schedule {
    if problem.task_count() <= 20_000 {
        // Takes the better of many devices and one, because handovers can take longer than they
        // gain.
        let plans = ["heft", "single"].map(|name| {
            let plan = find_planner(name).expect("the planner is among those there are");
            plan(problem, &mut step_pace(0)).expect("every task runs everywhere")
        });
        let [spread, single] = plans;
        return if single.makespan <= spread.makespan {
            single
        } else {
            spread
        };
    }
    let devices = problem.device_count();
    let start = |task: usize| (task / devices) as Time * problem.exec_time(task, 0);
    Schedule {
        device: (0..problem.task_count())
            .map(|task| task % devices)
            .collect(),
        start: (0..problem.task_count()).map(start).collect(),
        ..Schedule::default()
    }
}

fn build_job(problem: &Arc<Problem>, plan: Option<Schedule>, speeds: Speeds, turns: u64) -> Job {
    Job {
        problem: problem.clone(),
        plan,
        keeps_plan: false,
        kinds: Arc::default(),
        speeds,
        work: Arc::new(move |_| {
            burn_cpu(turns);
            Ok(TaskTime::Measured)
        }),
        host_transfers: Arc::default(),
        results: Results::Survive,
        priority: 0,
        weight: 1.0,
        owner: None,
        deadline: None,
    }
}

fn measure_empty_tasks(
    pool: &WorkerPool,
    graph: &'static str,
    placement: &'static str,
    problem: &Arc<Problem>,
) -> Overhead {
    let plan = (placement == "planned").then(|| plan_problem(problem));
    let tasks = problem.task_count();
    let mut best = (f64::INFINITY, 0.0);
    let mut speeds = Speeds::new(1, pool.device_count());
    let (mut first_bytes, mut grown_bytes) = (0, 0);
    for round in 0..ROUNDS {
        let job = build_job(problem, plan.clone(), speeds, 0);
        let resident = resident_bytes();
        system::memory_peak_restart();
        let (wall, cpu, learned) = measure_job(pool, job);
        speeds = learned;
        let peak = system::memory_peak_bytes().unwrap_or(0);
        let grown = peak.saturating_sub(resident);
        // The first round touches memory that later rounds use again.
        match round {
            0 => first_bytes = grown,
            _ => grown_bytes = grown_bytes.max(grown),
        }
        if wall < best.0 {
            best = (wall, cpu);
        }
    }
    Overhead {
        graph,
        placement,
        tasks,
        wall_us: best.0 * 1e6 / tasks as f64,
        cpu_us: best.1 * 1e6 / tasks as f64,
        first_bytes,
        grown_bytes,
    }
}

fn measure_busy_tasks(
    pool: &WorkerPool,
    placement: &'static str,
    task_us: f64,
    latency: Time,
) -> Efficiency {
    let devices = pool.device_count();
    let tasks = (400_000.0 / task_us) as usize;
    let exec = (task_us * MICRO as f64) as Time;
    let problem = build_problem(tasks, devices, exec, latency, &[]);
    let plan = (placement == "planned").then(|| plan_problem(&problem));
    let mut best = (0.0f64, 0.0f64);
    let mut speeds = Speeds::new(1, devices);
    for _ in 0..ROUNDS {
        let turns = turns_of(task_us);
        let (bare, _) = cpu_of(|| (0..tasks).for_each(|_| burn_cpu(turns)));
        let (wall, cpu, learned) =
            measure_job(pool, build_job(&problem, plan.clone(), speeds, turns));
        speeds = learned;
        best.0 = best.0.max(bare / cpu);
        best.1 = best.1.max(bare / devices as f64 / wall);
    }
    Efficiency {
        task_us,
        placement,
        efficiency: best.0,
        wall_efficiency: best.1,
    }
}

/// Returns the wall and processor seconds of a job, and the corrections that it learned.
fn measure_job(pool: &WorkerPool, job: Job) -> (f64, f64, Speeds) {
    let began = Moment::now();
    let (cpu, execution) = cpu_of(|| pool.run(job).expect("the pool has nothing else to do"));
    let wall = Moment::now().duration_since(began).as_secs_f64();
    assert_eq!(execution.ended, JobEnd::Done, "nothing in it can fail");
    (wall, cpu, execution.speeds)
}

/// Computes something that the compiler cannot remove.
fn burn_cpu(turns: u64) {
    let mut word = turns;
    for _ in 0..turns {
        word = std::hint::black_box(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word >> 29));
    }
}

/// Returns the number of turns that take this many microseconds of processor time.
fn turns_of(task_us: f64) -> u64 {
    const TURNS: u64 = 20_000_000;
    let (seconds, ()) = cpu_of(|| burn_cpu(TURNS));
    (TURNS as f64 * task_us / (seconds * 1e6)).max(1.0) as u64
}

/// Returns the processor seconds that all threads of this process used for some work.
fn cpu_of<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let before = cpu_time();
    let given = work();
    ((cpu_time() - before).as_secs_f64(), given)
}

/// Returns the run time of this process's threads by the kernel's scheduler; zero on systems other
/// than Linux.
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let ran = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ran.sum())
}

/// Returns the resident bytes of this process; zero on systems other than Linux.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
