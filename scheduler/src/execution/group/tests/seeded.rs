//! Tests random graphs on random groups with random failures: the results must equal those of a
//! single processor.

use proptest::prelude::*;

use super::card::{Card, Traits};
use super::own_memory::{TENSOR, assert_nothing_is_held, model, node, processor, runner, sharing};
use super::*;

/// A node of a random graph: its operator, and which of the earlier values it reads.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub operator: &'static str,
    pub reads: [usize; 2],
}

pub fn drawn() -> impl Strategy<Value = Drawn> {
    let operators = prop::sample::select(vec!["MatMul", "Relu", "Add", "Neg"]);
    (operators, [0usize..100, 0..100]).prop_map(|(operator, reads)| Drawn { operator, reads })
}

/// Builds a graph over `x` whose numbers stay exact: its products multiply by a half.
pub fn graph(drawn: &[Drawn], outputs: usize) -> ModelProto {
    let mut values = vec!["x".to_owned()];
    let mut nodes = Vec::new();
    for (index, own) in drawn.iter().enumerate() {
        // The values last made are read most.
        let reach = values.len().min(4);
        let read = |at: usize| values[values.len() - 1 - at % reach].clone();
        let (one, other) = (read(own.reads[0]), read(own.reads[1]));
        let name = format!("v{index}");
        nodes.push(match own.operator {
            "MatMul" => node("MatMul", &[&one, "a"], &name),
            "Add" => node("Add", &[&one, &other], &name),
            operator => node(operator, &[&one], &name),
        });
        values.push(name);
    }
    let wanted: Vec<&str> = values
        .iter()
        .rev()
        .take(outputs)
        .map(String::as_str)
        .collect();
    let made = wanted.into_iter().filter(|name| *name != "x");
    let made: Vec<&str> = made.collect();
    model(nodes, &made)
}

pub fn traits() -> impl Strategy<Value = Traits> {
    let some = vec![
        vec![],
        vec!["MatMul", "Add"],
        vec!["Relu", "Neg"],
        vec!["MatMul"],
    ];
    let room = prop::sample::select(vec![3 * TENSOR, 5 * TENSOR, 1 << 30]);
    let group = prop::option::of(0u8..2);
    let fails = prop::option::weighted(0.4, 0u64..4);
    (
        prop::sample::select(some),
        any::<bool>(),
        group,
        room,
        fails,
    )
        .prop_map(|(operators, own, group, room, fails_at)| Traits {
            operators,
            own,
            group,
            room,
            fails_at,
            ..Traits::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// On any group, with any paths, rooms and failing devices: the results are those of one
    /// processor, no memory holds a tensor afterwards, and each transferred byte is counted once.
    #[test]
    fn any_group_gives_what_one_processor_gives(
        drawn in prop::collection::vec(drawn(), 2..14),
        outputs in 1usize..3,
        traits in prop::collection::vec(traits(), 1..4),
        emulated: bool,
        together: bool,
        shared: bool,
    ) {
        let model = graph(&drawn, outputs);
        let host = processor("host", &[]);
        let (alone, task) = runner(&[&host], &model, 1 << 24);
        let expected = alone.run(&task).unwrap().outputs;
        let named = (0..).zip(&traits).map(|(index, traits): (usize, _)| {
            let traits = Traits { emulated, ..traits.clone() };
            Card::new(&format!("card {index}"), traits)
        });
        // One that runs all and stays.
        let mut cards: Vec<Card> = named.collect();
        cards.push(processor("last", &[]));
        let all: Vec<&Card> = cards.iter().collect();
        let parts = match shared {
            true => Sharing::Given(vec![1.0; all.len()]),
            false => Sharing::Never,
        };
        let (device_group, task) = sharing(&all, &model, parts, (1 << 24, None));
        let right = || device_group.run(&task).unwrap().outputs == expected;
        if together {
            std::thread::scope(|scope| {
                let runs: Vec<_> = (0..3).map(|_| scope.spawn(right)).collect();
                runs.into_iter().for_each(|run| assert!(run.join().unwrap()));
            });
        }
        for _ in 0..3 {
            prop_assert!(right());
        }
        assert_nothing_is_held(&device_group, &all);
        let over = device_group.memory_stats().unwrap().0.over;
        if traits.iter().all(|traits| traits.fails_at.is_none()) {
            let seen: Vec<_> = cards.iter().map(Card::seen).collect();
            let taken: u64 = seen.iter().map(|seen| seen.taken).sum();
            let passed = seen.iter().map(|seen| {
                let (came, went) = seen.with_runs;
                seen.put + seen.read + came + went
            });
            prop_assert_eq!((over.nvlink, over.pcie), (taken, passed.sum()));
            let came = seen.iter().any(|seen| seen.with_runs.0 > 0);
            prop_assert!(shared || !came, "inputs are there before");
        }
    }
}
