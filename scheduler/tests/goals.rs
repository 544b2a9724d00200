//! Goals other than the makespan, contention and tight memory: what searches reach and refuse.

use proptest::prelude::*;
use souk_scheduler::goal::Goal;
use souk_scheduler::planner::{PLANNERS, planner, prove, steps};
use souk_scheduler::problem::{Contention, Edge, Problem, ProblemError, ProblemParts, Time};
use souk_scheduler::schedule::Schedule;

/// Planners that honour goals.
const SEARCHES: [&str; 4] = ["auto", "portfolio", "anneal", "exact"];

fn plan(name: &str, problem: &Problem, limit: u64) -> Result<Schedule, ProblemError> {
    let schedule = planner(name).expect("the planner exists")(problem, &mut steps(limit))?;
    assert_eq!(schedule.validate(problem), Ok(()), "{name}");
    Ok(schedule)
}

/// Random tasks on devices of unlike price and power; the goal is left to the caller.
fn any_parts(tasks_end: usize) -> impl Strategy<Value = ProblemParts> {
    let sizes = (1usize..tasks_end, 1usize..5, any::<u64>(), any::<bool>());
    sizes.prop_map(|(tasks, devices, seed, contended)| {
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut edges = Vec::new();
        for to in 1..tasks {
            for _ in 0..random(3) {
                let from = random(to as u64) as usize;
                let bytes = random(30);
                edges.push(Edge { from, to, bytes });
            }
        }
        ProblemParts {
            devices,
            exec: (0..tasks * devices).map(|_| random(50)).collect(),
            edges,
            latency: (0..devices * devices).map(|_| random(5)).collect(),
            time_per_byte: (0..devices * devices).map(|_| random(3)).collect(),
            price: (0..devices).map(|_| random(20)).collect(),
            power: (0..devices).map(|_| 5 + random(20)).collect(),
            idle_power: (0..devices).map(|_| random(5)).collect(),
            contention: if contended {
                Contention::Serial
            } else {
                Contention::Free
            },
            ..ProblemParts::default()
        }
    })
}

fn goals(deadline: Time) -> [Goal; 5] {
    [
        Goal::Makespan,
        Goal::Price { deadline },
        Goal::Energy { deadline },
        Goal::FirstOutput,
        Goal::Weighted {
            time: 3,
            price: 2,
            energy: 1,
        },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_search_loses_to_a_trivial_plan(parts in any_parts(16)) {
        let problem = Problem::new(parts).unwrap();
        let trivial: Vec<Schedule> = ["heft", "single", "earliest", "min-min"]
            .iter()
            .map(|name| plan(name, &problem, 0).unwrap())
            .collect();
        let slowest = trivial.iter().map(|plan| plan.makespan).max().unwrap();
        for goal in goals(slowest) {
            let problem = problem.with_goal(goal);
            let heft = plan("heft", &problem, 0).unwrap().score(&problem);
            let single = plan("single", &problem, 0).unwrap().score(&problem);
            for name in SEARCHES {
                let found = plan(name, &problem, 2_000).unwrap();
                let score = found.score(&problem);
                prop_assert!(score <= heft.min(single), "{} {:?} {:?}", name, goal, score);
                prop_assert_eq!(found, plan(name, &problem, 2_000).unwrap());
            }
        }
    }

    #[test]
    fn nothing_beats_what_is_proved_by_its_goal(parts in any_parts(6)) {
        let parts = ProblemParts { contention: Contention::Free, ..parts };
        let problem = Problem::new(parts).unwrap();
        let deadline = plan("heft", &problem, 0).unwrap().makespan;
        for goal in goals(deadline) {
            let problem = problem.with_goal(goal);
            let proof = prove(&problem, &mut steps(50_000)).unwrap();
            if !proof.proved {
                continue;
            }
            let least = proof.schedule.score(&problem);
            for (name, _) in PLANNERS {
                let score = plan(name, &problem, 1_000).unwrap().score(&problem);
                prop_assert!(least <= score, "{} {:?} {:?} {:?}", name, goal, least, score);
            }
        }
    }

    #[test]
    fn a_deadline_is_kept_or_named(parts in any_parts(10)) {
        let parts = ProblemParts { contention: Contention::Free, ..parts };
        let problem = Problem::new(parts).unwrap();
        let shortest = prove(&problem, &mut steps(100_000)).unwrap();
        let reachable = shortest.schedule.makespan;
        if shortest.proved && reachable > 0 {
            let late = problem.with_goal(Goal::Price { deadline: reachable - 1 });
            for name in SEARCHES {
                let refused = plan(name, &late, 3_000).unwrap_err();
                let ProblemError::Deadline { deadline, reachable: found } = refused else {
                    panic!("{name}: {refused}");
                };
                prop_assert!(deadline == reachable - 1 && found >= reachable);
            }
            let kept = problem.with_goal(Goal::Price { deadline: reachable });
            let found = prove(&kept, &mut steps(200_000));
            prop_assert!(found.is_ok_and(|found| found.schedule.makespan <= reachable));
        }
    }
}

/// Two tasks in a row; device 0 is twice as fast, device 1 a tenth of the price.
fn dear_and_cheap(goal: Goal) -> Problem {
    Problem::new(ProblemParts {
        devices: 2,
        exec: vec![10, 20, 10, 20],
        edges: vec![Edge {
            from: 0,
            to: 1,
            bytes: 1,
        }],
        latency: vec![0; 4],
        time_per_byte: vec![1; 4],
        price: vec![20, 1],
        power: vec![3, 1],
        goal,
        ..ProblemParts::default()
    })
    .expect("it is valid")
}

#[test]
fn the_price_falls_as_the_deadline_allows() {
    let price = |deadline: Time| {
        let problem = dear_and_cheap(Goal::Price { deadline });
        let found = plan("auto", &problem, 2_000);
        found.map(|found| found.figures(&problem).price)
    };
    assert_eq!(price(20), Ok(400));
    assert_eq!(price(31), Ok(220));
    assert_eq!(price(40), Ok(40));
    let refused = ProblemError::Deadline {
        deadline: 19,
        reachable: 20,
    };
    assert_eq!(price(19), Err(refused));
}

#[test]
fn energy_and_weights_choose_by_their_figures() {
    let figures = |goal: Goal| {
        let problem = dear_and_cheap(goal);
        plan("auto", &problem, 2_000).unwrap().figures(&problem)
    };
    assert_eq!(figures(Goal::Energy { deadline: 100 }).energy, 40);
    let weighted = |time: u64| Goal::Weighted {
        time,
        price: 1,
        energy: 0,
    };
    assert_eq!(figures(weighted(1)).makespan, 40);
    assert_eq!(figures(weighted(100)).makespan, 20);
}

#[test]
fn the_first_output_goes_first() {
    // Four requests of one task each on one device, the last the shortest.
    let problem = Problem::new(ProblemParts {
        devices: 1,
        exec: vec![9, 9, 9, 2],
        latency: vec![0],
        time_per_byte: vec![0],
        goal: Goal::FirstOutput,
        ..ProblemParts::default()
    })
    .unwrap();
    let found = plan("auto", &problem, 2_000).unwrap();
    assert_eq!((found.start[3], found.makespan), (0, 29));
}

/// Layers of three tasks that all feed the next three, over links that carry one transfer at a time.
fn busy_links(seed: u64) -> Problem {
    let random = |at: usize| {
        seed.wrapping_add(at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 59
    };
    let (tasks, devices) = (15, 3);
    let feeds = |to: usize| (to / 3 * 3 - 3..to / 3 * 3).map(move |from| (from, to));
    let edge = |(from, to): (usize, usize)| Edge {
        from,
        to,
        bytes: random(from * 31 + to),
    };
    let parts = ProblemParts {
        devices,
        exec: (0..tasks * devices).map(|at| 10 + random(at)).collect(),
        edges: (3..tasks).flat_map(feeds).map(edge).collect(),
        latency: vec![1; devices * devices],
        time_per_byte: vec![1; devices * devices],
        contention: Contention::Serial,
        ..ProblemParts::default()
    };
    Problem::new(parts).expect("it is valid")
}

#[test]
fn searches_shorten_what_busy_links_delay() {
    let total = |name: &str| -> Time {
        let all = (0..10).map(|seed| plan(name, &busy_links(seed), 5_000).unwrap().makespan);
        all.sum()
    };
    let (list, searched) = (total("portfolio"), total("anneal"));
    assert!(searched < list, "{searched} of {list}");
}

#[test]
fn memory_so_tight_that_order_matters_is_packed() {
    // By urgency the small ones go first, and leave no room for the large ones.
    let parts = ProblemParts {
        devices: 2,
        exec: vec![9, 9, 8, 8, 1, 1, 1, 1],
        latency: vec![0; 4],
        time_per_byte: vec![0; 4],
        memory: vec![2, 2, 4, 4],
        capacity: vec![6, 6],
        ..ProblemParts::default()
    };
    let problem = Problem::new(parts).unwrap();
    for name in SEARCHES {
        assert_eq!(plan(name, &problem, 1_000).unwrap().makespan, 10, "{name}");
    }
}
