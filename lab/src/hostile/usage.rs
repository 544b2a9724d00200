//! Measures the memory and the processor time of nodes during the three runs of the test with
//! hostile peers. It reads them from Linux's `/proc`.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// Interval of the readings; the maximum can miss a shorter peak.
const PERIOD: Duration = Duration::from_millis(500);

/// Clock ticks per second in the kernel's statistics, the same on every Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// A node's usage.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// The node's name.
    pub node: String,
    /// Usage before the attacks.
    pub before: ProcessUsage,
    /// Usage during the attacks.
    pub under: ProcessUsage,
    /// Usage after the attacks.
    pub after: ProcessUsage,
}

/// A node's usage in one run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ProcessUsage {
    /// Maximum memory, in mebibytes.
    pub memory_mib_max: u64,
    /// Average number of busy processors. Sandboxes are separate processes and do not count.
    pub processors: f64,
}

/// A process under observation.
pub(super) struct WatchedNode {
    name: String,
    process: u32,
}

/// Returns the running processes.
pub(super) fn watch_nodes<'a>(
    running: impl Iterator<Item = (&'a str, Option<u32>)>,
) -> Vec<WatchedNode> {
    let node = |(name, process): (&str, Option<u32>)| {
        let name = name.to_owned();
        process.map(|process| WatchedNode { name, process })
    };
    running.filter_map(node).collect()
}

/// Returns each node's usage during a future.
pub(super) async fn measure_during<T>(
    nodes: &[WatchedNode],
    work: impl Future<Output = T>,
) -> (T, Vec<ProcessUsage>) {
    let begin = Instant::now();
    let spent = |node: &WatchedNode| processor_ticks(node.process).unwrap_or(0);
    let ticks_begin: Vec<u64> = nodes.iter().map(spent).collect();
    let mut took = vec![ProcessUsage::default(); nodes.len()];
    tokio::pin!(work);
    let done = loop {
        for (node, took) in nodes.iter().zip(&mut took) {
            let memory = memory_mib(node.process).unwrap_or(0);
            took.memory_mib_max = took.memory_mib_max.max(memory);
        }
        tokio::select! {
            done = &mut work => break done,
            () = tokio::time::sleep(PERIOD) => {}
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    for ((node, took), before) in nodes.iter().zip(&mut took).zip(ticks_begin) {
        // Nothing is known of an ended process; other checks report its end.
        let ticks = spent(node).saturating_sub(before);
        took.processors = ticks as f64 / TICKS_PER_SECOND / seconds;
    }
    (done, took)
}

/// Combines the three runs of each node.
pub(super) fn combine_runs(nodes: Vec<WatchedNode>, runs: [Vec<ProcessUsage>; 3]) -> Vec<Usage> {
    let of = |(place, node): (usize, WatchedNode)| {
        let [before, under, after] = [0, 1, 2].map(|run: usize| runs[run][place]);
        let node = node.name;
        Usage {
            node,
            before,
            under,
            after,
        }
    };
    nodes.into_iter().enumerate().map(of).collect()
}

/// Returns the memory of a process, or none if it has ended.
fn memory_mib(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// Returns the processor time of a process so far.
fn processor_ticks(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets can have spaces; user and system time are the 12th and 13th fields after
    // it.
    let mut after = text.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = after.nth(11)?.parse().ok()?;
    let system: u64 = after.next()?.parse().ok()?;
    Some(user + system)
}
