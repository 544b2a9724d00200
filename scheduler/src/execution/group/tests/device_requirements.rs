//! Tests nodes that require a device: they run there if it exists and can run them, and the report
//! says if it does not exist.

use souk_onnx::StringStringEntryProto;

use super::card::{Card, Traits};
use super::own_memory::{alone, beside, runner};
use super::*;

/// Returns two devices that can run all operators, of which one is ten times as fast.
fn device_group(traits: Traits) -> (Card, Card) {
    let slow = Traits {
        speed: Traits::default().speed / 10.0,
        ..traits
    };
    (
        Card::new("swift", Traits::default()),
        Card::new("patient", slow),
    )
}

/// Returns the graph with a requirement for these devices on each node.
fn asking(words: &str) -> ModelProto {
    with("souk.device", words)
}

/// Returns the graph with this metadata on each node.
fn with(key: &str, words: &str) -> ModelProto {
    let mut model = beside();
    for node in &mut model.graph.as_mut().unwrap().node {
        node.metadata_props.push(StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(words.to_owned()),
        });
    }
    model
}

fn devices(ran: &RunResult) -> Vec<&str> {
    ran.report.devices.keys().map(String::as_str).collect()
}

#[test]
fn a_node_runs_where_it_asks_to_however_slow_that_is() {
    let (swift, patient) = device_group(Traits::default());
    let (any, task) = runner(&[&swift, &patient], &beside(), 1 << 24);
    assert_eq!(devices(&any.run(&task).unwrap()), ["swift (emulated)"]);

    let (asked, task) = runner(&[&swift, &patient], &asking("npu, Patient"), 1 << 24);
    let ran = asked.run(&task).unwrap();
    assert_eq!(ran.outputs, alone(&beside()));
    assert_eq!(devices(&ran), ["patient (emulated)"]);
    assert_eq!(ran.report.fallbacks, []);
}

#[test]
fn what_is_asked_for_and_not_there_is_told_and_any_other_does() {
    let (swift, patient) = device_group(Traits::default());
    let (runner, task) = runner(&[&swift, &patient], &asking("npu"), 1 << 24);
    let ran = runner.run(&task).unwrap();
    assert_eq!(devices(&ran), ["swift (emulated)"]);
    let told = ran.report.fallbacks.iter();
    let told: Vec<_> = told
        .map(|it| (it.device.as_str(), it.nodes, &it.by))
        .collect();
    let by = vec!["swift (emulated)".to_owned()];
    assert_eq!(told, [("npu", 4, &by), ("npu", 1, &by)]);
}

#[test]
fn a_node_runs_through_what_it_asks_for_where_that_is_there() {
    let (swift, patient) = device_group(Traits::default());
    for (asked, told) in [
        ("emulated", vec![]),
        ("cuda", vec!["any device through cuda"; 2]),
    ] {
        let model = with("souk.backend", asked);
        let (runner, task) = runner(&[&swift, &patient], &model, 1 << 24);
        let ran = runner.run(&task).unwrap();
        assert_eq!(ran.outputs, alone(&beside()));
        let lacks = ran.report.fallbacks.iter();
        let lacks: Vec<_> = lacks.map(|it| it.device.as_str()).collect();
        assert_eq!(lacks, told);
    }
}

#[test]
fn when_what_was_asked_for_lacks_a_node_or_fails_another_one_goes_on() {
    let lacks = Traits {
        operators: vec!["MatMul"],
        ..Traits::default()
    };
    let fails = Traits {
        fails_at: Some(0),
        ..Traits::default()
    };
    for (traits, both) in [(lacks, true), (fails, false)] {
        let (swift, patient) = device_group(traits);
        let (runner, task) = runner(&[&swift, &patient], &asking("patient"), 1 << 24);
        for _ in 0..2 {
            let ran = runner.run(&task).unwrap();
            assert_eq!(ran.outputs, alone(&beside()));
            assert!(devices(&ran).contains(&"swift (emulated)"));
            assert_eq!(devices(&ran).contains(&"patient (emulated)"), both);
        }
    }
}
