//! Tests that the benchmark predicts an operator's time without the measurements that it compares
//! it with.

use souk_host::discover;
use souk_memory::DType;
use souk_registry::measure::{self, CpuMeasurement};
use souk_testing::{matmul_subgraph, product_inputs};

use super::*;

/// A clock that every look moves on: each run takes as long as the one before.
fn steady() -> impl Fn() -> Duration {
    let looks = std::cell::Cell::new(0);
    move || {
        looks.set(looks.get() + 1);
        Duration::from_millis(looks.get())
    }
}

fn figured() -> Cpu {
    let one = std::num::NonZeroUsize::MIN;
    let figures = CpuMeasurement {
        threads: one,
        f32_operations_per_second: 1e9,
        f64_operations_per_second: 1e9,
        bytes_per_second: 1e9,
        launch_seconds: 1e-6,
    };
    Cpu::new(
        measure::cpu_profile(&discover::describe_cpu(), &figures),
        one,
    )
}

/// A product that took as long for both hands.
fn trial(what: &str, batch: usize, seconds: f64) -> Trial {
    let work = Work {
        operations: (1 << 20) * batch as u64,
        bytes_read: (1 << 12) * batch as u64,
        bytes_written: (1 << 12) * batch as u64,
        launches: 1,
        dtype: Some(DType::F32),
    };
    let key = Key::for_work("MatMul", "", &work);
    Trial {
        calibrates: seconds,
        foretold: seconds,
        ..Trial::new(key, what.to_owned(), batch, work, Duration::from_secs(1))
    }
}

#[test]
fn what_always_takes_as_long_is_foretold_exactly() {
    let cpu = figured();
    let found =
        measure_accuracy(&cpu, &matmul_subgraph(), &product_inputs(), 30, &steady()).unwrap();
    assert_eq!((found.operators, found.different, found.keys), (1, 1, 1));
    assert!(found.calibrated.p90 < 1e-6, "{found:?}");
    assert!(found.transfers.p90 < 1e-6, "{found:?}");
    assert_eq!(found.unseen_batch.count, 1, "it takes larger batches");
    assert_eq!(
        found.each.len(),
        6,
        "an operator and a transfer at three batches"
    );
}

#[test]
fn what_shares_a_key_and_not_a_speed_is_foretold_wrong() {
    let found = assess_trials(&[trial("a", 1, 1.0), trial("b", 1, 4.0)], &[]);
    assert_eq!((found.keys, found.different), (1, 2));
    assert!((found.calibrated.p90 - 1.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn a_batch_never_seen_is_foretold_without_what_was_measured_of_it() {
    let seen = [trial("a", 1, 1.0), trial("a four times", 4, 4.0)];
    let between = trial("a twice", 2, 9.0);
    let all = [&seen[..], std::slice::from_ref(&between)].concat();
    let found = assess_trials(&all, &[]);
    // The mean of 1 and 4, by their logarithms, against 9.
    assert!(
        (found.unseen_batch.median - 7.0 / 9.0).abs() < 1e-3,
        "{found:?}"
    );
    // The very same at another batch is not asked about either.
    let same = Trial {
        batch: 1,
        ..between
    };
    let found = assess_trials(&[&all[..], &[same]].concat(), &[]);
    assert!(
        (found.unseen_batch.median - 7.0 / 9.0).abs() < 1e-3,
        "{found:?}"
    );
}

#[test]
fn an_operator_never_seen_is_foretold_by_the_others_alone() {
    let found = assess_trials(
        &[trial("a", 1, 1.0), trial("a", 1, 1.0), trial("b", 1, 4.0)],
        &[],
    );
    assert_eq!(found.unseen_operator.count, 3);
    assert!(
        (found.unseen_operator.median - 3.0).abs() < 1e-6,
        "{found:?}"
    );
}

#[test]
fn quantiles_are_of_the_values_there_are() {
    assert_eq!(quantile(&[], 0.5), 0.0);
    assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
    assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.9), 3.0);
}
