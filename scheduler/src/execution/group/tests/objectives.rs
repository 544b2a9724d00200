//! Tests the objectives of a group: the shortest time of a run, or the fewest joules within a
//! deadline.

use souk_vocabulary::profile::Power;

use super::*;

/// Returns two devices: a fast one that draws much power, and a slow one that needs less energy for
/// the same work.
fn unlike(objective: Objective, failures: f64) -> (Runner, Task) {
    let (_, task) = device_group(&[0.0]);
    let store = Arc::new(Store::in_memory(1 << 20));
    store.put(encode_model(&branches())).unwrap();
    let member = |label: &str, rate: f64, busy_watts: f64, failures: f64| {
        let mut profile = profile();
        let speed = Throughput {
            operations_per_second: rate,
            ..slow()
        };
        profile.throughput.insert(DType::F32, speed);
        profile.power = Some(Power {
            idle_watts: None,
            busy_watts,
        });
        let cpu = Arc::new(Cpu::new(profile.clone(), NonZeroUsize::MIN));
        let config = EmulatedConfig {
            pace: Pace::Virtual,
            failures,
            ..EmulatedConfig::default()
        };
        GroupDevice {
            label: label.to_owned(),
            processor: Arc::new(EmulatedDevice::new(profile, cpu, config).unwrap()),
        }
    };
    // A tenth of the speed and a hundredth of the power: a tenth of the joules.
    let members = vec![
        member("quick", 1e5, 500.0, 0.0),
        member("mode", 1e4, 5.0, failures),
    ];
    let config = GroupConfig {
        host_bytes_max: 1 << 20,
        spill: None,
        sharing: Sharing::WhereItPays,
        objective,
        retrials: Retrials::new(souk_registry::check::recheck_device),
    };
    let ticks = AtomicU64::new(1_000_000);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(10, Ordering::Relaxed)));
    let runner = Runner::new_group("both", members, store, clock, config).unwrap();
    (runner, task)
}

/// Operators that a device of the group ran.
fn operators(ran: &RunResult, device: &str) -> u64 {
    let found = ran.report.devices.get(&format!("{device} (emulated)"));
    found.map_or(0, |device| device.operators)
}

fn expected_joules(ran: &RunResult) -> f64 {
    let against = ran.report.against.as_ref().unwrap();
    against.expected_joules.unwrap()
}

#[test]
fn work_goes_to_the_quick_for_time_and_to_the_frugal_for_joules() {
    let (quick, task) = unlike(Objective::Fastest, 0.0);
    let (mode, _) = unlike(Objective::Greenest, 0.0);
    for run in 0..3 {
        let (soon, few) = (quick.run(&task).unwrap(), mode.run(&task).unwrap());
        assert_right(&soon);
        assert_right(&few);
        assert!(
            operators(&soon, "quick") > operators(&soon, "mode"),
            "{run}"
        );
        assert_eq!(
            [operators(&few, "quick"), operators(&few, "mode")],
            [0, 5],
            "{run}"
        );
        assert!(soon.makespan < few.makespan, "{run}");
        let joules = [&soon, &few].map(|ran| ran.report.total_joules());
        assert!(joules[1] < 0.2 * joules[0], "{run}: {joules:?}");
        let off = (expected_joules(&few) / joules[1] - 1.0).abs();
        assert!(
            off < 0.05,
            "{run}: {} J of {}",
            expected_joules(&few),
            joules[1]
        );
    }
}

#[test]
fn a_deadline_that_the_frugal_would_miss_is_kept_by_the_quick() {
    let (runner, task) = unlike(Objective::Greenest, 0.0);
    let mode = runner.run(&task).unwrap();
    let run = |seconds: f64| {
        let deadline = Some(Moment::now().saturating_add(Duration::from_secs_f64(seconds)));
        let precedence = Precedence {
            deadline,
            ..Precedence::default()
        };
        runner.run_as(&task, precedence).unwrap()
    };
    let takes = mode.makespan.as_secs_f64();
    assert!(takes > 20.0, "there is time to plan in: {takes}");
    let hurried = run(0.5 * takes);
    assert!(
        hurried.makespan.as_secs_f64() < 0.5 * takes,
        "{:?}",
        hurried.makespan
    );
    assert!(operators(&hurried, "quick") > 0);
    assert!(hurried.report.total_joules() > mode.report.total_joules());
    let with_time = run(10.0 * takes);
    assert_eq!(
        operators(&with_time, "quick"),
        0,
        "the next one has time again"
    );
}

#[test]
fn a_group_that_saves_joules_does_without_a_device_that_fails() {
    let (runner, task) = unlike(Objective::Greenest, 1.0);
    for _ in 0..2 {
        let ran = runner.run(&task).unwrap();
        assert_right(&ran);
        assert_eq!([operators(&ran, "quick"), operators(&ran, "mode")], [5, 0]);
    }
}
