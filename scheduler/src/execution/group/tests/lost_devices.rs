//! Tests devices that a group lost in a run: they get work again once they pass a trial, and stay
//! out if they never do.

use super::card::{Card, Traits};
use super::own_memory::{alone, assert_nothing_is_held, beside, configured};
use super::*;

/// Returns a configuration in which a lost device is tried at once, and `most` times in all.
fn tried(most: u32) -> GroupConfig {
    GroupConfig {
        host_bytes_max: 1 << 24,
        spill: None,
        sharing: Sharing::Never,
        retrials: Retrials {
            trial: souk_registry::check::recheck_device,
            first: Duration::ZERO,
            longest: Duration::ZERO,
            most,
        },
        objective: Objective::Fastest,
    }
}

/// Returns a card that is lost in its first run, and a far slower processor that can do the same
/// work.
fn devices(own: bool) -> [Card; 2] {
    let first = Traits {
        own,
        fails_at: Some(0),
        ..Traits::default()
    };
    let slow = Traits {
        own: false,
        speed: slow().operations_per_second / 100.0,
        ..Traits::default()
    };
    [Card::new("first", first), Card::new("slow", slow)]
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

fn devices_of(ran: &RunResult) -> Vec<&str> {
    ran.report.devices.keys().map(String::as_str).collect()
}

#[test]
fn a_lost_device_that_works_again_is_given_work_again() {
    for own in [true, false] {
        let [first, slow] = devices(own);
        let (runner, task) = configured(&[&first, &slow], &beside(), tried(u32::MAX));
        let right = alone(&beside());
        let ran = runner.run(&task).unwrap();
        assert_eq!(
            (devices_of(&ran), &ran.outputs),
            (vec!["slow (emulated)"], &right)
        );
        until(|| runner.lost_devices().iter().any(|lost| lost.trials > 2));
        let lost = runner.lost_devices().remove(0);
        assert_eq!((&*lost.device, lost.is_out), ("first (emulated)", false));
        assert!(lost.cause.contains("fails when it is tried"), "{lost:?}");
        let without = runner.run(&task).unwrap();
        assert_eq!(devices_of(&without), ["slow (emulated)"]);

        first.mend();
        until(|| runner.lost_devices().is_empty());
        let compiled = first.seen().compiled;
        let back = runner.run(&task).unwrap();
        assert_eq!(
            (devices_of(&back), &back.outputs),
            (vec!["first (emulated)"], &right)
        );
        assert!(
            first.seen().compiled > compiled,
            "what it had loaded is gone"
        );
        assert_nothing_is_held(&runner, &[&first, &slow]);
    }
}

#[test]
fn a_device_that_never_works_again_stays_out_and_says_so() {
    let [first, slow] = devices(true);
    let (runner, task) = configured(&[&first, &slow], &beside(), tried(3));
    runner.run(&task).unwrap();
    until(|| runner.lost_devices().iter().any(|lost| lost.is_out));
    let lost = runner.lost_devices();
    assert_eq!((lost.len(), lost[0].trials), (1, 3));
    first.mend();
    let ran = runner.run(&task).unwrap();
    assert_eq!(devices_of(&ran), ["slow (emulated)"]);
    assert_eq!(runner.lost_devices(), lost, "it is not tried any more");
}

#[test]
fn what_is_left_is_planned_without_a_lost_device() {
    let [first, slow] = devices(true);
    let (runner, task) = configured(&[&first, &slow], &beside(), tried(0));
    runner.run(&task).unwrap();
    let ran = runner.run(&task).unwrap();
    let against = ran.report.against.as_ref().unwrap();
    assert_eq!(against.single.as_ref().unwrap().device, "slow (emulated)");
    assert_eq!(
        ran.report.fallbacks,
        [],
        "nothing of it was given to the other one"
    );
}
