//! Tests every planner on random problems, on the examples of the planners' papers, and on invalid
//! problems.

use proptest::prelude::*;
use souk_scheduler::planning::planner::{PLANNERS, find_planner, prove_optimal, step_pace};
use souk_scheduler::planning::problem::{Edge, Problem, ProblemError, ProblemParts};
use souk_scheduler::planning::{NEVER, Time};

/// Builds a problem from plain lists: execution times by task, edges, and one link for all pairs.
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
    let plan = find_planner(name).expect("the planner exists");
    let schedule = plan(problem, &mut step_pace(limit)).expect("there is a plan");
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
fn heft_gives_its_papers_lengths() {
    let example = heft_example();
    assert_eq!(makespan("heft", &example, 0), 80);
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
        let found = prove_optimal(&example, &mut step_pace(5_000_000)).unwrap();
        assert!(found.proved, "{} branches", found.branches);
        assert_eq!(
            (found.schedule.makespan, found.lower_bound),
            (length, length)
        );
    }
}

/// A random problem: up to 24 tasks on up to 5 devices, some never, some with memory or pins.
fn any_problem(tasks_end: usize) -> impl Strategy<Value = Problem> {
    let sizes = (1usize..tasks_end, 1usize..5, any::<u64>(), 0u8..4);
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
        Problem::new(ProblemParts {
            devices,
            exec,
            edges,
            latency: (0..devices * devices).map(|_| random(5)).collect(),
            time_per_byte: (0..devices * devices).map(|_| random(3)).collect(),
            memory: (0..when(1, tasks)).map(|_| random(10)).collect(),
            // Device 0 runs everything and holds everything.
            capacity: (0..when(1, devices))
                .map(|d| if d == 0 { 1000 } else { 20 })
                .collect(),
            pinned: (0..when(2, tasks)).map(|_| pin(random(5))).collect(),
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
            let schedule = plan(&problem, &mut step_pace(3_000)).unwrap();
            prop_assert_eq!(schedule.validate(&problem), Ok(()), "{}", name);
            let again = plan(&problem, &mut step_pace(3_000)).unwrap();
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
        let found = prove_optimal(&problem, &mut step_pace(30_000)).unwrap();
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
