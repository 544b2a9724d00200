//! A fixed budget of seeds, and every seeded bug found.

use super::*;

#[test]
fn a_few_seeds_hold_every_promise() {
    for seed in 0..4 {
        let report = run(&Config::new(seed, 1));
        assert!(report.failure.is_none(), "{report:#?}");
        assert!(report.counts.acknowledged > 100, "{:#?}", report.counts);
    }
}

#[test]
fn one_seed_is_one_run() {
    let (one, other) = (run(&Config::new(11, 1)), run(&Config::new(11, 1)));
    assert_eq!(one.history, other.history);
    assert_eq!(one.counts.events, other.counts.events);
}
