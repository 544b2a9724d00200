//! Tests that four unlike processors share a model, with the results of a single one and in less
//! time.

#![expect(clippy::unwrap_used, reason = "a test that fails stops at once")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use souk_memory::Store;
use souk_scheduler::execution::timeline::UnixMicros;
use souk_scheduler::execution::{
    Clock, GroupConfig, GroupDevice, Retrials, RunResult, Runner, Sharing, Task, TaskError,
};
use souk_scheduler_bench::{Workload, emulated_mixes, mix_workloads};

/// Runs a workload once on these devices.
fn ran(members: &[GroupDevice], workload: &Workload) -> Result<RunResult, TaskError> {
    let store = Arc::new(Store::in_memory(1 << 30));
    let ticks = AtomicU64::new(1);
    let clock: Arc<Clock> = Arc::new(move || UnixMicros(ticks.fetch_add(1, Ordering::Relaxed)));
    let task = Task {
        name: workload.name.clone(),
        model: store.put(workload.model.clone()).unwrap(),
        sequence: 0,
        inputs: workload.inputs.clone(),
    };
    let config = GroupConfig {
        host_bytes_max: 1 << 30,
        spill: None,
        sharing: Sharing::WhereItPays,
        retrials: Retrials::new(souk_registry::check::recheck_device),
        objective: Default::default(),
    };
    let runner = Runner::new_group("mix", members.to_vec(), store, clock, config).unwrap();
    runner.run(&task)
}

#[test]
fn four_kinds_of_processor_share_what_all_of_them_compute_in() {
    let mix = emulated_mixes().swap_remove(0).members;
    let all = mix_workloads();
    let bytes = all.iter().find(|it| it.name == "experts of bytes").unwrap();
    let together = ran(&mix, bytes).unwrap();
    let names: Vec<&str> = together.report.devices.keys().map(String::as_str).collect();
    let members = mix.iter();
    let mut expected: Vec<String> = members
        .map(|member| format!("{} (emulated)", member.label))
        .collect();
    expected.sort();
    assert_eq!(names, expected);
    let by = |label: &str| {
        let member = mix.iter().find(|member| member.label == label).unwrap();
        ran(std::slice::from_ref(member), bytes)
    };
    let alone = by("nvidia-h100-sxm").unwrap();
    assert_eq!(together.outputs, alone.outputs);
    assert!(together.makespan < alone.makespan);
    // It is the quickest of all, and has not the room for every weight.
    let refused = by("groq-lpu-1").unwrap_err().to_string();
    assert!(refused.contains("bytes of memory"), "{refused}");
}
