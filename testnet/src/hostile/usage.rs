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
    /// Mebibytes of memory it held before.
    pub memory_mib_before: u64,
    /// The most it held.
    pub memory_mib_max: u64,
    /// What it held in the end, some time after the attacks.
    pub memory_mib_after: u64,
    /// Processors it kept busy under attack, on average.
    pub processors: f64,
}

/// A look at processes, again and again.
pub(super) struct Watch {
    begin: Instant,
    end: Instant,
    seen: Vec<Seen>,
}

struct Seen {
    name: String,
    process: u32,
    before_mib: u64,
    most_mib: u64,
    ticks_begin: u64,
    ticks_end: u64,
}

impl Watch {
    pub(super) fn begin<'a>(running: impl Iterator<Item = (&'a str, Option<u32>)>) -> Watch {
        let seen = |(name, process): (&str, Option<u32>)| {
            let process = process?;
            let memory = memory_mib(process)?;
            let ticks = ticks(process)?;
            Some(Seen {
                name: name.to_owned(),
                process,
                before_mib: memory,
                most_mib: memory,
                ticks_begin: ticks,
                ticks_end: ticks,
            })
        };
        let now = Instant::now();
        Watch {
            begin: now,
            end: now,
            seen: running.filter_map(seen).collect(),
        }
    }

    /// Looks until it is dropped.
    pub(super) async fn keep(&mut self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            self.end = Instant::now();
            for seen in &mut self.seen {
                let memory = memory_mib(seen.process).unwrap_or(0);
                seen.most_mib = seen.most_mib.max(memory);
                seen.ticks_end = ticks(seen.process).unwrap_or(seen.ticks_end);
            }
        }
    }

    pub(super) fn end(self) -> Vec<Usage> {
        let seconds = (self.end - self.begin).as_secs_f64().max(1.0);
        let usage = |seen: Seen| Usage {
            memory_mib_after: memory_mib(seen.process).unwrap_or(0),
            node: seen.name,
            memory_mib_before: seen.before_mib,
            memory_mib_max: seen.most_mib,
            processors: (seen.ticks_end - seen.ticks_begin) as f64 / TICKS_PER_SECOND / seconds,
        };
        self.seen.into_iter().map(usage).collect()
    }
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
