//! Tests operators that devices with their own memory share: the inputs and outputs of each part
//! stay in that memory if no other device needs them.

use super::card::{Card, Gate, PCIE, Traits};
use super::own_memory::{
    TENSOR, assert_nothing_is_held, group_of, model, node, processor, sharing,
};
use super::*;
use crate::planning::time::NEVER;

/// The bytes of host memory that a group can use, and no disk.
const HOST: (u64, Option<(PathBuf, u64)>) = (1 << 24, None);

fn linked(label: &str, group: Option<u8>) -> Card {
    let traits = Traits {
        group,
        ..Traits::default()
    };
    Card::new(label, traits)
}

/// Returns a product that one device computes, one that all share, and one that reads both results.
fn between() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "x"], "h"),
        node("MatMul", &["h", "a"], "y"),
        node("MatMul", &["y", "h"], "z"),
    ];
    model(nodes, &["z"])
}

fn halves() -> Sharing {
    Sharing::Given(vec![1.0, 1.0])
}

/// Returns the outputs of a model on one device, for the inputs of a task.
fn alone(model: &ModelProto, task: &Task) -> BTreeMap<String, Tensor> {
    let host = processor("host", &[]);
    let (runner, whole) = sharing(&[&host], model, Sharing::Never, HOST);
    let inputs = task.inputs.clone();
    runner.run(&Task { inputs, ..whole }).unwrap().outputs
}

/// Runs a task in which the first card runs `before` fragments before the two cards share one. Each
/// card waits until the other has begun its part; otherwise it could take both parts.
fn side_by_side(cards: [&Card; 2], before: u64, runner: &Runner, task: &Task) -> RunResult {
    let gates = cards.map(Card::running);
    let came = gates.map(Gate::came);
    gates[0].let_pass(came[0] + before);
    gates[1].let_pass(came[1]);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| runner.run(task));
        gates[0].until_came(came[0] + before + 1);
        gates[1].until_came(came[1] + 1);
        gates.iter().for_each(|gate| gate.let_pass(u64::MAX));
        running.join().unwrap().unwrap()
    })
}

#[test]
fn only_what_another_card_lacks_or_made_leaves_a_card() {
    let model = between();
    for group in [Some(1), None] {
        let (one, other) = (linked("one", group), linked("other", group));
        let (runner, task) = sharing(&[&one, &other], &model, halves(), HOST);
        let ran = side_by_side([&one, &other], 2, &runner, &task);
        assert_eq!(ran.outputs, alone(&model, &task));
        assert_eq!(ran.report.partitioned_tasks, 1);
        assert_eq!(ran.report.joined_bytes, TENSOR);
        let (lead, led) = (one.seen(), other.seen());
        assert_eq!((lead.read, led.read), (0, 0));
        let moved = runner.memory_stats().unwrap().0.over;
        // x comes and z goes; half of the rows go to the other card, and half of y comes back.
        match group {
            Some(_) => {
                assert_eq!((moved.nvlink, moved.pcie), (TENSOR, 2 * TENSOR));
                assert_eq!((lead.put, lead.with_runs), (TENSOR, (0, TENSOR)));
                assert_eq!((led.put, led.with_runs), (0, (0, 0)));
                assert_eq!((lead.taken, led.taken), (TENSOR / 2, TENSOR / 2));
            }
            None => {
                assert_eq!((moved.nvlink, moved.pcie), (0, 4 * TENSOR));
                assert_eq!(lead.with_runs, (0, TENSOR + TENSOR / 2));
                assert_eq!(led.with_runs, (0, TENSOR / 2));
            }
        }
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

#[test]
fn what_the_job_alone_reads_is_put_together_on_the_host() {
    let nodes = vec![
        node("MatMul", &["x", "x"], "h"),
        node("MatMul", &["h", "a"], "y"),
    ];
    let model = model(nodes, &["y"]);
    let (one, other) = (linked("one", Some(1)), linked("other", Some(1)));
    let (runner, task) = sharing(&[&one, &other], &model, halves(), HOST);
    let ran = side_by_side([&one, &other], 2, &runner, &task);
    assert_eq!(ran.outputs, alone(&model, &task));
    assert_eq!(ran.report.joined_bytes, TENSOR);
    let moved = runner.memory_stats().unwrap().0.over;
    assert_eq!((moved.nvlink, moved.pcie), (TENSOR / 2, 2 * TENSOR));
    assert_nothing_is_held(&runner, &[&one, &other]);
}

#[test]
fn rows_of_the_jobs_input_come_from_the_host_once() {
    let nodes = vec![
        node("MatMul", &["x", "a"], "y"),
        node("MatMul", &["y", "y"], "z"),
    ];
    let model = model(nodes, &["z"]);
    let (one, other) = (linked("one", Some(1)), linked("other", Some(1)));
    let (runner, task) = sharing(&[&one, &other], &model, halves(), HOST);
    let ran = side_by_side([&one, &other], 0, &runner, &task);
    assert_eq!(ran.outputs, alone(&model, &task));
    let moved = runner.memory_stats().unwrap().0.over;
    // Half of x to each, z back; half of y goes where the other half is.
    assert_eq!((moved.nvlink, moved.pcie), (TENSOR / 2, 2 * TENSOR));
    assert_nothing_is_held(&runner, &[&one, &other]);
}

/// Returns the time of a transfer between the host and a card.
fn way(bytes: u64) -> Duration {
    PCIE.latency + Duration::from_secs_f64(bytes as f64 / PCIE.bytes_per_second)
}

/// Returns the busy time of the busiest device.
fn busiest(ran: &RunResult) -> Duration {
    let devices = ran.report.devices.values();
    Duration::from_micros(devices.map(|device| device.busy_micros).max().unwrap())
}

#[test]
fn each_way_of_what_parts_read_and_make_is_in_the_devices_time_once() {
    let (half, rate) = (TENSOR / 2, profile().memory.bytes_per_second);
    let joining = Duration::from_secs_f64(2.0 * TENSOR as f64 / rate);
    let hop = links::HAND_OVER + 2 * way(half);
    let nodes = vec![node("MatMul", &["x", "a"], "y")];
    let cases = [
        // Rows come from the host to both, and the parts are put together there.
        (model(nodes, &["y"]), 0, 2 * way(half) + joining),
        // x comes to the leader and z leaves it; the other card's rows come from there and go back.
        (between(), 2, 2 * way(TENSOR) + 2 * hop),
    ];
    for (model, before, ways) in cases {
        let (one, other) = (linked("one", None), linked("other", None));
        let (runner, task) = sharing(&[&one, &other], &model, halves(), HOST);
        let ran = side_by_side([&one, &other], before, &runner, &task);
        let counted = ran.makespan.saturating_sub(busiest(&ran));
        // Of each fragment reports have whole microseconds.
        let whole = Duration::from_micros(4);
        assert!(counted.abs_diff(ways) < whole, "{counted:?} of {ways:?}");
        let expected = ran.report.against.as_ref().unwrap().expected_micros;
        let expected = Duration::from_micros(expected);
        assert!(
            expected.abs_diff(ran.makespan) < whole,
            "{expected:?} {ran:?}"
        );
    }
}

/// Returns the duration of a shared run that the decision to share expects.
fn price(runner: &Runner, task: &Task) -> Duration {
    let device_group = group_of(runner);
    let (setting, speeds) = (
        device_group.group_setting(),
        device_group.lock_speeds().clone(),
    );
    let offers = group_problem::load_offers(&setting, task.model, &task.inputs, &speeds).unwrap();
    let led = sharing_choice::propose_sharing(&offers[0], &setting, NEVER).unwrap();
    Duration::from_secs_f64(led.unwrap().seconds)
}

#[test]
fn what_sharing_is_decided_by_is_what_the_run_takes_wherever_it_is_cut_and_joined() {
    // So quick that the ways are a good part of the run.
    let like = |operators: &[&'static str], own| Traits {
        operators: operators.to_vec(),
        own,
        speed: 5e8,
        ..Traits::default()
    };
    for (operators, own) in [(&[][..], true), (&["MatMul"], true), (&[], false)] {
        let cards = ["one", "other"].map(|label| Card::new(label, like(operators, own)));
        let (runner, task) = sharing(&[&cards[0], &cards[1]], &between(), halves(), HOST);
        let price = price(&runner, &task);
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.report.partitioned_tasks, 1);
        let took = ran.makespan;
        let off = price.abs_diff(took);
        assert!(
            off < Duration::from_micros(1),
            "{price:?} for {took:?}, {operators:?}"
        );
    }
}

#[test]
fn batches_and_channels_are_put_together_as_they_were() {
    let rows = between();
    let nodes = vec![
        node("Neg", &["x"], "h"),
        node("MatMul", &["h", "a"], "y"),
        node("Softmax", &["y"], "z"),
    ];
    let channels = model(nodes, &["z"]);
    for (model, dims) in [(rows, vec![2, SIZE, SIZE]), (channels, vec![1, SIZE])] {
        let (one, other) = (linked("one", Some(1)), linked("other", Some(1)));
        let parts = Sharing::Given(vec![3.0, 5.0]);
        let (runner, mut task) = sharing(&[&one, &other], &model, parts, HOST);
        let count = dims.iter().product::<usize>();
        let values = (0..count).map(|at| (at % 7) as f32 - 3.0).collect();
        let x = Tensor::from_vec(dims, values).unwrap();
        task.inputs.insert("x".to_owned(), x);
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.outputs, alone(&model, &task));
        assert_eq!(ran.report.partitioned_tasks, 1);
        assert_eq!((one.seen().read, other.seen().read), (0, 0));
        assert_nothing_is_held(&runner, &[&one, &other]);
    }
}

#[test]
fn a_card_that_cannot_cut_or_join_has_it_done_on_the_host() {
    let traits = Traits {
        operators: vec!["MatMul"],
        ..Traits::default()
    };
    let cards = ["one", "other"].map(|label| Card::new(label, traits.clone()));
    let (runner, task) = sharing(&[&cards[0], &cards[1]], &between(), halves(), HOST);
    let ran = runner.run(&task).unwrap();
    assert_eq!(ran.outputs, alone(&between(), &task));
    assert_eq!(
        (ran.report.partitioned_tasks, ran.report.joined_bytes),
        (1, TENSOR)
    );
    assert_nothing_is_held(&runner, &[&cards[0], &cards[1]]);
}

#[test]
fn parts_that_went_with_a_card_are_made_again() {
    for (failing, fails_at) in (0..2).flat_map(|card| (0..5).map(move |run| (card, run))) {
        let like = |index: usize| Traits {
            group: Some(1),
            fails_at: (index == failing).then_some(fails_at),
            ..Traits::default()
        };
        let cards = [0, 1].map(|index| Card::new(&format!("card {index}"), like(index)));
        let spare = processor("spare", &[]);
        let all = [&cards[0], &cards[1], &spare];
        let parts = Sharing::Given(vec![1.0, 1.0, 1.0]);
        let (runner, task) = sharing(&all, &between(), parts, HOST);
        for _ in 0..2 {
            let ran = runner.run(&task).unwrap();
            let expected = alone(&between(), &task);
            assert_eq!(
                ran.outputs, expected,
                "card {failing} lost in run {fails_at}"
            );
        }
        assert_nothing_is_held(&runner, &all);
    }
}

#[test]
fn shares_that_move_load_nothing_that_a_card_has() {
    let like = |really: f64| Traits {
        really,
        ..Traits::default()
    };
    // The profile of the second one promises twice what it does.
    let cards = [Card::new("one", like(1.0)), Card::new("other", like(0.5))];
    let nodes = vec![node("MatMul", &["x", "a"], "y")];
    let all = [&cards[0], &cards[1]];
    let (runner, task) = sharing(&all, &model(nodes, &["y"]), Sharing::WhereItPays, HOST);
    let rows = |ran: &RunResult| {
        let devices = ran.report.devices.values();
        devices.map(|device| device.bytes_out).collect::<Vec<u64>>()
    };
    let first = side_by_side(all, 0, &runner, &task);
    let loaded = cards.each_ref().map(|card| card.seen().compiled);
    assert_eq!(rows(&first), [TENSOR / 2; 2]);
    for _ in 0..9 {
        runner.run(&task).unwrap();
    }
    let last = rows(&side_by_side(all, 0, &runner, &task));
    assert!(last[0] > last[1], "more for the quicker: {last:?}");
    let since = cards.each_ref().map(|card| card.seen().compiled);
    assert_eq!((loaded, since), ([1, 1], [1, 1]));
}

#[test]
fn what_comes_out_of_a_run_is_counted_whoever_wants_it() {
    let names: Vec<String> = (0..8).map(|at| format!("v{at}")).collect();
    let reads = |at: usize| match at {
        0 => "x",
        // The last two read the same value.
        7 => &names[5],
        _ => &names[at - 1],
    };
    let product = |at: usize| node("MatMul", &[reads(at), "a"], &names[at]);
    let chain = model((0..8).map(product).collect(), &["v6", "v7"]);
    let narrow = Traits {
        room: 3 * TENSOR,
        emulated: false,
        ..Traits::default()
    };
    let (card, host) = (Card::new("card", narrow), processor("host", &[]));
    let (runner, task) = sharing(&[&card, &host], &chain, halves(), HOST);
    for _ in 0..3 {
        assert_eq!(runner.run(&task).unwrap().outputs, alone(&chain, &task));
        assert_nothing_is_held(&runner, &[&card]);
        let seen = card.seen();
        let (came, went) = seen.with_runs;
        let over = runner.memory_stats().unwrap().0.over;
        assert_eq!(over.pcie, seen.put + seen.read + came + went, "{seen:?}");
    }
}
