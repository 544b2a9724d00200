//! Tests that small crowds keep their promises, and that equal seeds give equal digests.

use souk_market::{Dtype, KindCode, Name, Price, Resources, Throughput};

use super::*;

fn model(name: &str, gib: u64, share: u64, price: u64) -> DeviceModel {
    DeviceModel {
        resources: Resources {
            kind: KindCode(1),
            kind_name: Name::try_from("gpu").unwrap(),
            model: Name::try_from(name).unwrap(),
            memory_bytes: gib << 30,
            memory_bandwidth: gib << 34,
            throughput: Throughput::default().with(Dtype::F32, gib * 1_000_000),
            ..Resources::default()
        },
        share,
        price: Price(price),
    }
}

fn config(seed: u64) -> CrowdConfig {
    CrowdConfig {
        seed,
        providers: 40,
        buyers: 6,
        minutes: 30,
        churn_us: 1_200_000_000,
        liars_permille: 50,
        replicas: 3,
        models: vec![model("small", 8, 3, 100), model("large", 80, 1, 900)],
    }
}

#[test]
fn a_small_crowd_keeps_its_promises_and_its_seed_determines_it() {
    let mut ghosts = 0;
    let mut digests = Vec::new();
    for seed in [0, 1, 2, 3, 0] {
        let report = run(&config(seed));
        assert_eq!(report.breach, None, "seed {seed}");
        assert!(report.leases > 50 && report.jobs_done > 40, "{report:?}");
        assert_eq!(report.wrong, 0, "seed {seed}");
        assert!(report.busy_percent <= report.ideal_percent + 5.0);
        ghosts += report.counts["ghosts_met"];
        digests.push(report.digest);
    }
    assert!(ghosts > 0, "somebody goes without a word");
    assert_eq!(digests[0], digests[4], "equal seeds give equal digests");
    digests.pop();
    digests.dedup();
    assert_eq!(digests.len(), 4, "others do not");
}
