//! Tests objectives other than the makespan, deadlines, and tight memory: which plans the searches
//! find, and which they refuse.

use proptest::prelude::*;
use souk_scheduler::planning::planner::{PLANNERS, find_planner, prove_optimal, step_pace};
use souk_scheduler::planning::problem::{Edge, Problem, ProblemError, ProblemParts};
use souk_scheduler::planning::schedule::Schedule;
use souk_scheduler::planning::{Objective, Time};

/// Planners that honour objectives.
const SEARCHES: [&str; 4] = ["auto", "portfolio", "anneal", "exact"];

fn plan(name: &str, problem: &Problem, limit: u64) -> Result<Schedule, ProblemError> {
    let schedule = find_planner(name).expect("the planner exists")(problem, &mut step_pace(limit))?;
    assert_eq!(schedule.validate(problem), Ok(()), "{name}");
    Ok(schedule)
}

/// Draws random tasks on devices of unlike price and power, without an objective.
fn any_parts(tasks_end: usize) -> impl Strategy<Value = ProblemParts> {
    let sizes = (1usize..tasks_end, 1usize..5, any::<u64>());
    sizes.prop_map(|(tasks, devices, seed)| {
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
            ..ProblemParts::default()
        }
    })
}

fn objectives(deadline: Time) -> [(Objective, Option<Time>); 4] {
    let weighted = Objective::Weighted {
        time: 3.0,
        cost: 2.0,
    };
    [
        (Objective::Fastest, None),
        (Objective::Cheapest, Some(deadline)),
        (Objective::Greenest, Some(deadline)),
        (weighted, None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_search_loses_to_a_trivial_plan(parts in any_parts(16)) {
        let problem = Problem::new(parts).unwrap();
        let trivial: Vec<Schedule> = ["heft", "single", "min-min"]
            .iter()
            .map(|name| plan(name, &problem, 0).unwrap())
            .collect();
        let slowest = trivial.iter().map(|plan| plan.makespan).max().unwrap();
        for (objective, deadline) in objectives(slowest) {
            let problem = problem.with_objective(objective, deadline);
            let heft = plan("heft", &problem, 0).unwrap().score(&problem);
            let single = plan("single", &problem, 0).unwrap().score(&problem);
            for name in SEARCHES {
                let found = plan(name, &problem, 2_000).unwrap();
                let score = found.score(&problem);
                prop_assert!(score <= heft.min(single), "{} {} {:?}", name, objective, score);
                prop_assert_eq!(found, plan(name, &problem, 2_000).unwrap());
            }
        }
    }

    #[test]
    fn nothing_beats_what_is_proved_by_its_objective(parts in any_parts(6)) {
        let problem = Problem::new(parts).unwrap();
        let deadline = plan("heft", &problem, 0).unwrap().makespan;
        for (objective, deadline) in objectives(deadline) {
            let problem = problem.with_objective(objective, deadline);
            let proof = prove_optimal(&problem, &mut step_pace(50_000)).unwrap();
            if !proof.proved {
                continue;
            }
            let least = proof.schedule.score(&problem);
            for (name, _) in PLANNERS {
                let score = plan(name, &problem, 1_000).unwrap().score(&problem);
                prop_assert!(least <= score, "{} {} {:?} {:?}", name, objective, least, score);
            }
        }
    }

    #[test]
    fn a_deadline_is_kept_or_named(parts in any_parts(10)) {
        let problem = Problem::new(parts).unwrap();
        let shortest = prove_optimal(&problem, &mut step_pace(100_000)).unwrap();
        let reachable = shortest.schedule.makespan;
        if shortest.proved && reachable > 0 {
            let late = problem.with_objective(Objective::Cheapest, Some(reachable - 1));
            for name in SEARCHES {
                let refused = plan(name, &late, 3_000).unwrap_err();
                let ProblemError::Deadline { deadline, reachable: found } = refused else {
                    panic!("{name}: {refused}");
                };
                prop_assert!(deadline == reachable - 1 && found >= reachable);
            }
            let kept = problem.with_objective(Objective::Cheapest, Some(reachable));
            let found = prove_optimal(&kept, &mut step_pace(200_000));
            prop_assert!(found.is_ok_and(|found| found.schedule.makespan <= reachable));
        }
    }
}

/// Returns two tasks in a row, and two devices: device 0 is twice as fast, device 1 has a tenth of
/// the price.
fn dear_and_cheap(objective: Objective, deadline: Option<Time>) -> Problem {
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
        objective,
        deadline,
        ..ProblemParts::default()
    })
    .expect("it is valid")
}

#[test]
fn the_price_falls_as_the_deadline_allows() {
    let price = |deadline: Time| {
        let problem = dear_and_cheap(Objective::Cheapest, Some(deadline));
        let found = plan("auto", &problem, 2_000);
        found.map(|found| found.figures(&problem).cost)
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
    let figures = |objective: Objective| {
        let problem = dear_and_cheap(objective, Some(100));
        plan("auto", &problem, 2_000).unwrap().figures(&problem)
    };
    assert_eq!(figures(Objective::Greenest).energy, 40);
    let weighted = |time: f64| Objective::Weighted { time, cost: 1.0 };
    assert_eq!(figures(weighted(1.0)).makespan, 40);
    assert_eq!(figures(weighted(100.0)).makespan, 20);
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
