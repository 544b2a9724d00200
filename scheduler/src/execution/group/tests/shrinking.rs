//! Tests runs whose memory limit shrinks and grows while they are in progress.

use super::card::{Card, Gate, Traits};
use super::own_memory::{
    TENSOR, alone, assert_nothing_is_held, beside, card, group_of, model, node, processor, runner,
    runner_with,
};
use super::*;

/// Returns two processors that share the host's memory, and a folder for tensors that do not fit
/// there.
fn sharing(spill: &std::path::Path) -> ([Card; 2], Runner, Task) {
    let cards = [processor("one", &["MatMul"]), processor("other", &["Relu"])];
    let spill = Some((spill.to_owned(), 1 << 20));
    let (runner, task) = runner_with(&[&cards[0], &cards[1]], &beside(), 1 << 20, spill);
    (cards, runner, task)
}

/// Lets a device continue when it is dropped, even after a panic.
struct Released<'a>(&'a Gate);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.let_pass(u64::MAX);
    }
}

/// Runs a task, and calls `meanwhile` while the first device's second run waits.
fn held_up(
    cards: &[Card; 2],
    runner: &Runner,
    task: &Task,
    meanwhile: impl FnOnce(),
) -> Result<RunResult, TaskError> {
    let running = cards[0].running();
    let before = running.came();
    running.let_pass(before + 1);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| runner.run(task));
        let released = Released(running);
        running.until_came(before + 2);
        meanwhile();
        drop(released);
        run.join().unwrap()
    })
}

#[test]
fn a_group_that_shrinks_under_a_run_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (cards, runner, task) = sharing(folder.path());
    let ran = held_up(&cards, &runner, &task, || {
        // What the fragment that computes reads is pinned; all else may go.
        runner.set_host_limit(4 * TENSOR).unwrap();
        let (_, host) = runner.memory_stats().unwrap();
        assert!(host.used <= 4 * TENSOR, "{host:?}");
        runner.set_host_limit(1 << 20).unwrap();
    });
    assert_eq!(ran.unwrap().outputs, alone(&beside()));
    // And so it does where it stays small.
    let ran = held_up(&cards, &runner, &task, || {
        runner.set_host_limit(4 * TENSOR).unwrap();
    });
    assert_eq!(ran.unwrap().outputs, alone(&beside()));
    assert_nothing_is_held(&runner, &[]);
}

#[test]
fn what_is_in_use_outlasts_a_limit_below_it_and_the_run_ends_right_if_there_is_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let (cards, runner, task) = sharing(folder.path());
    let ran = held_up(&cards, &runner, &task, || {
        let refused = runner.set_host_limit(TENSOR / 2).unwrap_err().to_string();
        assert!(
            refused.contains("are held and cannot be moved"),
            "{refused}"
        );
        runner.set_host_limit(1 << 20).unwrap();
    });
    assert_eq!(ran.unwrap().outputs, alone(&beside()));
    assert_nothing_is_held(&runner, &[]);
}

#[test]
fn a_run_that_has_no_room_left_says_so_and_the_next_one_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let (cards, runner, task) = sharing(folder.path());
    let failed = held_up(&cards, &runner, &task, || {
        assert!(runner.set_host_limit(TENSOR / 2).is_err());
    });
    let cause = failed.unwrap_err().to_string();
    let named = format!("has no room for {TENSOR} bytes");
    assert!(cause.contains(&named), "{cause}");
    runner.set_host_limit(1 << 20).unwrap();
    assert_eq!(runner.run(&task).unwrap().outputs, alone(&beside()));
    assert_nothing_is_held(&runner, &[]);
}

#[test]
fn a_card_keeps_what_it_has_when_the_hosts_memory_shrinks() {
    let gpu = card("gpu", &["MatMul"]);
    let cpu = processor("cpu", &["Relu"]);
    let folder = tempfile::tempdir().unwrap();
    let spill = Some((folder.path().to_owned(), 1 << 20));
    let (runner, task) = runner_with(&[&gpu, &cpu], &beside(), 1 << 20, spill);
    let cards = [gpu.clone(), cpu];
    let ran = held_up(&cards, &runner, &task, || {
        // What the processor makes meanwhile comes to the card as well.
        while gpu.seen().put < 2 * TENSOR {
            std::thread::yield_now();
        }
        let on_card = gpu.used();
        assert!(on_card > 0);
        runner.set_host_limit(2 * TENSOR).unwrap();
        assert_eq!(gpu.used(), on_card);
    });
    assert_eq!(ran.unwrap().outputs, alone(&beside()));
    assert!(group_of(&runner).memories.has_device_memory());
    assert_nothing_is_held(&runner, &[&gpu]);
}

#[test]
fn what_a_part_of_the_hosts_memory_has_no_room_for_goes_to_another_device() {
    let narrow = Traits {
        operators: vec!["Add"],
        own: false,
        room: 3 * TENSOR,
        ..Traits::default()
    };
    let slower = Traits {
        own: false,
        speed: Traits::default().speed / 8.0,
        ..Traits::default()
    };
    let (narrow, last) = (Card::new("narrow", narrow), Card::new("last", slower));
    let wide = Card::new(
        "wide",
        Traits {
            operators: vec!["Relu", "Neg", "MatMul"],
            own: false,
            ..Traits::default()
        },
    );
    // The sum reads three tensors and makes a fourth.
    let sum = model(
        vec![
            node("MatMul", &["x", "a"], "p"),
            node("Relu", &["p"], "q"),
            node("Neg", &["p"], "r"),
            node("Add", &["p", "q"], "s"),
            node("Add", &["s", "r"], "y"),
        ],
        &["y"],
    );
    let (runner, task) = runner(&[&narrow, &wide, &last], &sum, 1 << 24);
    for _ in 0..3 {
        assert_eq!(runner.run(&task).unwrap().outputs, alone(&sum));
    }
    assert_nothing_is_held(&runner, &[]);
}
