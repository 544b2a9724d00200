//! What processes take, from `/proc`: memory and processor time.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// How often it is looked at.
const PERIOD: Duration = Duration::from_millis(500);

/// Clock ticks of the kernel's statistics in a second, the same on every Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a node took.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// Its name.
    pub node: String,
    /// Before the attacks.
    pub before: Took,
    /// Under them.
    pub under: Took,
    /// After them.
    pub after: Took,
}

/// What a node took in one of the runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Took {
    /// The most memory it held, in mebibytes.
    pub memory_mib_max: u64,
    /// Processors it kept busy, on average. Cells are processes of their own and not counted.
    pub processors: f64,
}

/// A process that is looked at.
pub(super) struct WatchedNode {
    name: String,
    process: u32,
}

/// The processes that run.
pub(super) fn nodes<'a>(running: impl Iterator<Item = (&'a str, Option<u32>)>) -> Vec<WatchedNode> {
    let node = |(name, process): (&str, Option<u32>)| {
        let name = name.to_owned();
        process.map(|process| WatchedNode { name, process })
    };
    running.filter_map(node).collect()
}

/// What each node took while something was done.
pub(super) async fn during<T>(
    nodes: &[WatchedNode],
    work: impl Future<Output = T>,
) -> (T, Vec<Took>) {
    let begin = Instant::now();
    let spent = |node: &WatchedNode| ticks(node.process).unwrap_or(0);
    let ticks_begin: Vec<u64> = nodes.iter().map(spent).collect();
    let mut took = vec![Took::default(); nodes.len()];
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
        // Of one that has ended nothing is known: that it did is told elsewhere.
        let ticks = spent(node).saturating_sub(before);
        took.processors = ticks as f64 / TICKS_PER_SECOND / seconds;
    }
    (done, took)
}

/// The three runs, node by node.
pub(super) fn together(nodes: Vec<WatchedNode>, runs: [Vec<Took>; 3]) -> Vec<Usage> {
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

/// The memory a process holds; none where it has ended.
fn memory_mib(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// The processor time a process has taken.
fn ticks(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may have spaces; user and system time are the 12th and 13th after it.
    let mut after = text.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = after.nth(11)?.parse().ok()?;
    let system: u64 = after.next()?.parse().ok()?;
    Some(user + system)
}
