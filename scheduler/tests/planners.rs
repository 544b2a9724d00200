//! Every planner on random problems, on the papers' examples and on what is no problem at all.

use proptest::prelude::*;
use souk_scheduler::explain::{Explanation, Wait};
use souk_scheduler::planner::{PLANNERS, planner, prove, steps};
use souk_scheduler::problem::{Contention, Edge, NEVER, Problem, ProblemError, ProblemParts, Time};
use souk_scheduler::transform::{duplicate, micro_batches, rest, stream};

/// A problem from plain lists: execution times by task, edges, and one link for all pairs.
fn problem(exec: &[&[Time]], edges: &[(usize, usize, u64)]) -> Problem {
    let devices = exec[0].len();
    let pair = |at: usize| Time::from(at / devices != at % devices);
    Problem::new(ProblemParts {
        devices,
        exec: exec.iter().flat_map(|row| row.iter().copied()).collect(),
        edges: edges
            .iter()
            .map(|&(from, to, bytes)| Edge { from, to, bytes })
            .collect(),
        latency: vec![0; devices * devices],
        time_per_byte: (0..devices * devices).map(pair).collect(),
        ..ProblemParts::default()
    })
    .expect("the example is valid")
}

fn makespan(name: &str, problem: &Problem, limit: u64) -> Time {
    let plan = planner(name).expect("the planner exists");
    let schedule = plan(problem, &mut steps(limit)).expect("there is a plan");
    assert_eq!(schedule.validate(problem), Ok(()));
    schedule.makespan
}

/// Figure 2 of Topcuoglu, Hariri and Wu, 2002.
fn heft_example() -> Problem {
    problem(
        &[
            &[14, 16, 9],
            &[13, 19, 18],
            &[11, 13, 19],
            &[13, 8, 17],
            &[12, 13, 10],
            &[13, 16, 9],
            &[7, 15, 11],
            &[5, 11, 14],
            &[18, 12, 20],
            &[21, 7, 16],
        ],
        &[
            (0, 1, 18),
            (0, 2, 12),
            (0, 3, 9),
            (0, 4, 11),
            (0, 5, 14),
            (1, 7, 19),
            (1, 8, 16),
            (2, 6, 23),
            (3, 7, 27),
            (3, 8, 23),
            (4, 8, 13),
            (5, 7, 15),
            (6, 9, 17),
            (7, 9, 11),
            (8, 9, 13),
        ],
    )
}

/// Figure 1 of Arabnejad and Barbosa, 2014.
fn peft_example() -> Problem {
    problem(PEFT_EXEC, PEFT_EDGES)
}

const PEFT_EXEC: &[&[Time]] = &[
    &[22, 21, 36],
    &[22, 18, 18],
    &[32, 27, 43],
    &[7, 10, 4],
    &[29, 27, 35],
    &[26, 17, 24],
    &[14, 25, 30],
    &[29, 23, 36],
    &[15, 21, 8],
    &[13, 16, 33],
];

const PEFT_EDGES: &[(usize, usize, u64)] = &[
    (0, 1, 17),
    (0, 2, 31),
    (0, 3, 29),
    (0, 4, 13),
    (0, 5, 7),
    (1, 7, 3),
    (1, 8, 30),
    (2, 6, 16),
    (3, 7, 11),
    (3, 8, 7),
    (4, 8, 57),
    (5, 7, 5),
    (6, 9, 9),
    (7, 9, 42),
    (8, 9, 7),
];

#[test]
fn heft_and_cpop_give_their_papers_lengths() {
    let example = heft_example();
    assert_eq!(makespan("heft", &example, 0), 80);
    assert_eq!(makespan("cpop", &example, 0), 86);
    assert_eq!(makespan("auto", &example, 50_000), 73);
}

#[test]
fn peft_gives_its_papers_lengths() {
    let example = peft_example();
    assert_eq!(makespan("heft", &example, 0), 133);
    assert_eq!(makespan("peft", &example, 0), 122);
    assert_eq!(makespan("auto", &example, 50_000), 113);
}

#[test]
fn the_papers_examples_are_proved() {
    for (example, length) in [(heft_example(), 73), (peft_example(), 113)] {
        let found = prove(&example, &mut steps(5_000_000)).unwrap();
        assert!(found.proved, "{} branches", found.branches);
        assert_eq!(
            (found.schedule.makespan, found.lower_bound),
            (length, length)
        );
    }
}

/// A random problem: up to 24 tasks on up to 5 devices, some never, some with memory, of its own
/// or shared, pins, releases and contention.
fn any_problem(tasks_end: usize) -> impl Strategy<Value = Problem> {
    let sizes = (1usize..tasks_end, 1usize..5, any::<u64>(), 0u8..32);
    sizes.prop_map(|(tasks, devices, seed, features)| {
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut exec: Vec<Time> = (0..tasks * devices).map(|_| random(50)).collect();
        for (at, time) in exec.iter_mut().enumerate() {
            if at % devices != 0 && random(6) == 0 {
                *time = NEVER;
            }
        }
        let mut edges = Vec::new();
        for to in 1..tasks {
            for _ in 0..random(4) {
                let from = random(to as u64) as usize;
                edges.push(Edge {
                    from,
                    to,
                    bytes: random(30),
                });
            }
        }
        let when = |bit: u8, length: usize| if features & bit == 0 { 0 } else { length };
        let pin = |at: u64| if at == 0 { Some(0) } else { None };
        // Weights are shared by several tasks, or each has its own.
        let sets = if features & 16 == 0 {
            tasks
        } else {
            tasks.div_ceil(3)
        };
        let weights: Vec<usize> = (0..tasks).map(|task| task % sets).collect();
        let memory: Vec<u64> = (0..sets).map(|_| random(10)).collect();
        Problem::new(ProblemParts {
            devices,
            exec,
            edges,
            latency: (0..devices * devices).map(|_| random(5)).collect(),
            time_per_byte: (0..devices * devices).map(|_| random(3)).collect(),
            memory: (0..when(1, tasks))
                .map(|task| memory[weights[task]])
                .collect(),
            weights: if features & 16 == 0 {
                Vec::new()
            } else {
                weights[..when(1, tasks)].to_vec()
            },
            // Device 0 runs everything and holds everything.
            capacity: (0..when(1, devices))
                .map(|d| if d == 0 { 1000 } else { 20 })
                .collect(),
            release: (0..when(2, tasks)).map(|_| random(40)).collect(),
            pinned: (0..when(4, tasks)).map(|_| pin(random(5))).collect(),
            contention: if features & 8 == 0 {
                Contention::Free
            } else {
                Contention::Serial
            },
            ..ProblemParts::default()
        })
        .expect("device 0 runs every task")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_plan_is_valid_and_repeats(problem in any_problem(24)) {
        for (name, plan) in PLANNERS {
            let schedule = plan(&problem, &mut steps(3_000)).unwrap();
            prop_assert_eq!(schedule.validate(&problem), Ok(()), "{}", name);
            let again = plan(&problem, &mut steps(3_000)).unwrap();
            prop_assert_eq!(schedule, again, "{} differs from run to run", name);
        }
    }

    #[test]
    fn searches_never_lose_to_heft_or_a_single_device(problem in any_problem(24)) {
        let heft = makespan("heft", &problem, 0);
        let single = makespan("single", &problem, 0);
        for name in ["auto", "portfolio", "anneal", "exact"] {
            let found = makespan(name, &problem, 5_000);
            prop_assert!(found <= heft.min(single), "{} {} {} {}", name, found, heft, single);
        }
    }

    #[test]
    fn nothing_beats_what_is_proved(problem in any_problem(7)) {
        let found = prove(&problem, &mut steps(30_000)).unwrap();
        prop_assert!(found.lower_bound <= found.schedule.makespan);
        if found.proved {
            let searched = makespan("anneal", &problem, 3_000);
            prop_assert!(found.schedule.makespan <= searched);
        }
    }
}

fn parts(devices: usize, exec: &[Time], edges: &[(usize, usize, u64)]) -> ProblemParts {
    ProblemParts {
        devices,
        exec: exec.to_vec(),
        edges: edges
            .iter()
            .map(|&(from, to, bytes)| Edge { from, to, bytes })
            .collect(),
        latency: vec![0; devices * devices],
        time_per_byte: vec![1; devices * devices],
        ..ProblemParts::default()
    }
}

#[test]
fn what_is_no_problem_is_named() {
    let of = |parts: ProblemParts| Problem::new(parts).unwrap_err();
    assert_eq!(of(ProblemParts::default()), ProblemError::NoDevice);
    let circle = parts(1, &[1, 1], &[(0, 1, 0), (1, 0, 0)]);
    assert_eq!(of(circle), ProblemError::Cycle { task: 0 });
    let nowhere = parts(2, &[1, 1, NEVER, NEVER], &[]);
    assert_eq!(of(nowhere), ProblemError::Nowhere { task: 1 });
    let long = parts(1, &[Time::MAX / 2, Time::MAX / 2], &[]);
    assert!(matches!(of(long), ProblemError::Overflow { .. }));
    let heavy = parts(2, &[1, 1, 1, 1], &[(0, 1, u64::MAX)]);
    assert!(matches!(of(heavy), ProblemError::Overflow { .. }));
    let stray = parts(1, &[1], &[(0, 7, 0)]);
    assert!(matches!(of(stray), ProblemError::Edge { to: 7, .. }));
}

#[test]
fn small_and_strange_problems_have_plans() {
    let empty = Problem::new(parts(2, &[], &[])).unwrap();
    let one = Problem::new(parts(1, &[5], &[])).unwrap();
    let nothing = Problem::new(parts(2, &[0; 12], &[(0, 5, 9), (1, 5, 9)])).unwrap();
    for (name, _) in PLANNERS {
        assert_eq!(makespan(name, &empty, 1000), 0, "{name}");
        assert_eq!(makespan(name, &one, 1000), 5, "{name}");
        assert_eq!(makespan(name, &nothing, 1000), 0, "{name}");
    }
}

/// Four tasks in a chain on two devices, the second half as fast.
fn chain() -> Problem {
    problem(
        &[&[4, 8], &[4, 8], &[4, 8], &[4, 8]],
        &[(0, 1, 1), (1, 2, 1), (2, 3, 1)],
    )
}

#[test]
fn a_lost_device_takes_its_results_with_it() {
    let chain = chain();
    let heft = planner("heft").unwrap();
    let schedule = heft(&chain, &mut steps(0)).unwrap();
    assert_eq!(schedule.device, vec![0; 4]);
    let kept = rest(&chain, &schedule, 8, &[]).unwrap();
    assert_eq!(
        (makespan("auto", &kept.problem, 1_000), kept.again.len()),
        (8, 0)
    );
    let lost = rest(&chain, &schedule, 8, &[0]).unwrap();
    // Task 1's result is needed, and task 0's to make it again.
    assert_eq!(lost.again, vec![0, 1]);
    assert_eq!(makespan("auto", &lost.problem, 1_000), 32);
    let none = rest(&chain, &schedule, 8, &[0, 1]).unwrap_err();
    assert!(matches!(none, ProblemError::Nowhere { .. }), "{none}");
}

#[test]
fn what_runs_goes_on_where_it_is() {
    let chain = chain();
    let schedule = planner("heft").unwrap()(&chain, &mut steps(0)).unwrap();
    let left = rest(&chain, &schedule, 6, &[]).unwrap();
    assert_eq!(makespan("auto", &left.problem, 1_000), 10);
}

#[test]
fn streams_and_micro_batches_use_both_devices() {
    let example = problem(&[&[6, 6], &[6, 6]], &[(0, 1, 1)]);
    let alone = makespan("auto", &example, 1_000);
    let four = makespan("auto", &stream(&example, 4).unwrap(), 5_000);
    assert_eq!((alone, four), (12, 24));
    let pieces = makespan("auto", &micro_batches(&example, 2, 0).unwrap(), 5_000);
    assert_eq!(pieces, 6);
}

#[test]
fn copies_share_the_weights_of_a_device() {
    // Device 0 holds both tasks, device 1 only the first: replicas of it there help.
    let parts = ProblemParts {
        memory: vec![4, 3],
        capacity: vec![7, 4],
        ..parts(2, &[6, 6, 6, 6], &[(0, 1, 0)])
    };
    let example = Problem::new(parts).unwrap();
    let two = stream(&example, 2).unwrap();
    // Task 0 on each device, then both tasks 1 on device 0.
    assert_eq!(makespan("exact", &two, 10_000), 18);
    let pieces = micro_batches(&example, 2, 0).unwrap();
    assert_eq!(makespan("exact", &pieces, 10_000), 9);
    // With weights for each copy they do not fit at all.
    let apart = ProblemParts {
        weights: Vec::new(),
        ..two.parts().clone()
    };
    let error = Problem::new(apart).unwrap_err();
    let (needed, capacity) = (14, 11);
    assert_eq!(error, ProblemError::Memory { needed, capacity });
}

#[test]
fn shared_weights_have_one_size() {
    let parts = ProblemParts {
        memory: vec![4, 3],
        weights: vec![7, 7],
        ..parts(1, &[1, 1], &[])
    };
    let error = Problem::new(parts).unwrap_err();
    let (task, expected, found) = (1, 4, 3);
    assert_eq!(
        error,
        ProblemError::Weights {
            task,
            expected,
            found
        }
    );
}

#[test]
fn a_schedule_explains_itself() {
    // HEFT's example: task 0 first, the last task waits for data, the whole chain leads there.
    let example = heft_example();
    let schedule = planner("heft").unwrap()(&example, &mut steps(0)).unwrap();
    let explained = Explanation::new(&example, &schedule);
    let path = explained.critical_path();
    assert_eq!((path[0], path[path.len() - 1]), (0, 9));
    assert_eq!(explained.task(0).wait, Wait::Nothing);
    // The device changed must cost something, or HEFT's choice would not be the best of its kind.
    let next = explained.task(0).next_best.expect("other devices run it");
    assert!(next.makespan > schedule.makespan, "{next:?}");
    let busy = explained.utilisation();
    let sum: Time = schedule.busy(&example).iter().sum();
    let shares: f64 = busy.iter().sum();
    assert!((shares - sum as f64 / 80.0).abs() < 1e-9);
    // One device alone takes 127 (of the three: 127, 130, 143).
    assert_eq!(explained.speedup(), Some(127.0 / 80.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_critical_path_is_a_chain_of_waits(problem in any_problem(24)) {
        let schedule = planner("auto").unwrap()(&problem, &mut steps(500)).unwrap();
        let explained = Explanation::new(&problem, &schedule);
        let path = explained.critical_path();
        let end = schedule.finish(&problem, path[path.len() - 1]);
        prop_assert_eq!(end, schedule.makespan);
        for pair in path.windows(2) {
            prop_assert!(schedule.finish(&problem, pair[0]) <= schedule.start[pair[1]]);
        }
        for task in 0..problem.tasks() {
            let why = explained.task(task);
            prop_assert_eq!(why.device, schedule.device[task]);
            if let Some(next) = why.next_best {
                prop_assert!(next.device != why.device && next.finish <= next.makespan);
            }
        }
    }
}

#[test]
fn a_cheap_task_runs_twice_where_that_saves_a_transfer() {
    // One task of 1 feeds two of 20; sending its result takes 15.
    let fork = problem(&[&[1, 1], &[20, 20], &[20, 20]], &[(0, 1, 15), (0, 2, 15)]);
    let alone = planner("auto").unwrap()(&fork, &mut steps(5_000)).unwrap();
    let twice = duplicate(&fork, &alone);
    assert_eq!(twice.schedule.validate(&twice.problem), Ok(()));
    assert_eq!((alone.makespan, twice.schedule.makespan), (36, 21));
    assert_eq!(twice.origin, [0, 1, 2, 0]);
}

#[test]
fn a_copy_needs_its_memory_once_more() {
    let mut parts = parts(2, &[1, 1, 20, 20, 20, 20], &[(0, 1, 15), (0, 2, 15)]);
    parts.memory = vec![5, 1, 1];
    parts.capacity = vec![6, 5];
    let tight = Problem::new(parts).unwrap();
    let alone = planner("auto").unwrap()(&tight, &mut steps(5_000)).unwrap();
    assert_eq!(duplicate(&tight, &alone).origin.len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn copies_never_make_a_plan_longer_or_wrong(problem in any_problem(20)) {
        let schedule = planner("heft").unwrap()(&problem, &mut steps(0)).unwrap();
        let twice = duplicate(&problem, &schedule);
        prop_assert_eq!(twice.schedule.validate(&twice.problem), Ok(()));
        prop_assert!(twice.schedule.makespan <= schedule.makespan);
        for (task, &origin) in twice.origin.iter().enumerate() {
            let device = twice.schedule.device[task];
            prop_assert_eq!(twice.problem.exec(task, device), problem.exec(origin, device));
            prop_assert_eq!(twice.problem.before(task).len(), problem.before(origin).len());
        }
    }
}
