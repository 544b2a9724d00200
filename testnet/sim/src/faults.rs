//! Draws the schedule of faults of a run from the seed. It draws the whole schedule before the run,
//! so that the simulator can leave out single faults without other changes when it shortens a
//! schedule.

use serde::Serialize;

use super::fake_store::{HARMS, Harm};
use super::random::Random;

/// The point in a round at which a replica dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Before the replica sends anything.
    Begin,
    /// After the first messages left.
    SentFirst,
    /// Between the write and its sync.
    Unsynced,
    /// After the sync.
    Persisted,
    /// After the acknowledgements left.
    SentAfter,
    /// After applying entries, before any reply.
    Applied,
    /// During the write of a snapshot.
    Snapshot,
}

const BOUNDARIES: [Boundary; 7] = [
    Boundary::Begin,
    Boundary::SentFirst,
    Boundary::Unsynced,
    Boundary::Persisted,
    Boundary::SentAfter,
    Boundary::Applied,
    Boundary::Snapshot,
];

/// A fault. Node numbers start at zero; times are in simulated milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
pub enum Fault {
    /// A machine loses power at a boundary, and restarts later.
    Crash {
        /// The node's number.
        node: usize,
        /// The point in its round.
        boundary: Boundary,
        /// How long the machine stays off.
        down_ms: u64,
    },
    /// A process is killed at a boundary; its writes survive, synced or not.
    Kill {
        /// The node's number.
        node: usize,
        /// The point in its round.
        boundary: Boundary,
        /// How long the process stays off.
        down_ms: u64,
    },
    /// All machines lose power at once.
    Blackout {
        /// How long they stay off.
        down_ms: u64,
    },
    /// A process is suspended while its clock continues.
    Pause {
        /// The node's number.
        node: usize,
        /// Duration of the pause.
        ms: u64,
    },
    /// A clock jumps and keeps the offset.
    ClockJump {
        /// The node's number.
        node: usize,
        /// Size of the jump; negative if back.
        ms: i64,
    },
    /// The nodes of the mask and the others cannot hear each other.
    Partition {
        /// The nodes of one side, one bit each.
        mask: u64,
        /// Duration of the partition.
        ms: u64,
    },
    /// One node cannot reach another, which can still reach it.
    OneWay {
        /// The node that is not heard.
        from: usize,
        /// The node that does not hear.
        to: usize,
        /// Duration of the fault.
        ms: u64,
    },
    /// Two nodes cannot hear each other; all others hear both.
    Cut {
        /// The first node's number.
        one: usize,
        /// The second node's number.
        other: usize,
        /// Duration of the cut.
        ms: u64,
    },
    /// All messages of a node are slow.
    SlowLink {
        /// The node's number.
        node: usize,
        /// Additional delay.
        delay_ms: u64,
        /// Duration of the fault.
        ms: u64,
    },
    /// The network loses, duplicates, reorders and damages messages.
    Storm {
        /// Lost messages per thousand.
        lost: u64,
        /// Duplicated messages per thousand.
        doubled: u64,
        /// Messages with a flipped bit per thousand.
        damaged: u64,
        /// Maximum additional delay of a message.
        spread_ms: u64,
        /// Duration of the storm.
        ms: u64,
    },
    /// One of the next syncs fails with EIO.
    SyncFails {
        /// The node's number.
        node: usize,
        /// Successful syncs before it.
        after: u32,
    },
    /// A disk has no room.
    Full {
        /// The node's number.
        node: usize,
        /// Duration of the fault.
        ms: u64,
    },
    /// No disk has room, including those of buyers and providers.
    AllFull {
        /// Duration of the fault.
        ms: u64,
    },
    /// A log write goes to a wrong offset in its file; the machine loses power some writes later.
    Misdirect {
        /// The node's number.
        node: usize,
        /// How long the machine stays off.
        down_ms: u64,
    },
    /// Syncs are slow.
    SlowDisk {
        /// The node's number.
        node: usize,
        /// Duration of a sync.
        sync_ms: u64,
        /// Duration of the fault.
        ms: u64,
    },
    /// The next start gets a short read.
    ShortRead {
        /// The node's number.
        node: usize,
    },
    /// One durable bit flips while the node is down.
    FlipBit {
        /// The node's number.
        node: usize,
        /// How long the machine stays off.
        down_ms: u64,
    },
    /// The folder of the views is harmed while the node is down.
    Views {
        /// The node's number.
        node: usize,
        /// The kind of harm.
        harm: Harm,
        /// How long the machine stays off.
        down_ms: u64,
    },
    /// The disk is lost: operators remove the replica, and a new one joins.
    Replace {
        /// The node's number.
        node: usize,
    },
    /// A disk is lost during a partition.
    ReplaceApart {
        /// The node's number.
        node: usize,
        /// The nodes of one side, one bit each.
        mask: u64,
        /// Duration of the partition.
        ms: u64,
    },
    /// The leader transfers its leadership.
    Transfer {
        /// The node that should lead.
        to: usize,
    },
    /// A validator lies: it accepts forgeries, and forges its messages while it leads. Then an
    /// honest one takes over its disk.
    Forge {
        /// The node's number.
        node: usize,
        /// How long it lies.
        ms: u64,
    },
    /// A validator lies: it offers the others an invented state, and announces membership changes
    /// like a leader of a later term.
    Lie {
        /// The node's number.
        node: usize,
        /// How long it serves the parts of the state.
        ms: u64,
    },
    /// A validator's memory goes wrong: its state differs while its quick digests stay right.
    WrongState {
        /// The node's number.
        node: usize,
    },
    /// A leader reorders the commands of incoming batches.
    Reorder {
        /// How long it does so.
        ms: u64,
    },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimedFault {
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    /// The fault and its parameters.
    #[serde(flatten)]
    pub fault: Fault,
}

/// Mean milliseconds between two faults.
const MEAN_MS: u64 = 1_500;

/// Draws the faults before `until_ms`.
pub fn draw_schedule(seed: u64, nodes: usize, until_ms: u64) -> Vec<TimedFault> {
    let mut random = Random::new(seed, "faults");
    let mut faults = Vec::new();
    let mut at_ms = 1_000;
    while at_ms < until_ms {
        faults.push(TimedFault {
            at_ms,
            fault: draw_fault(&mut random, nodes),
        });
        at_ms += random.draw_between(1, 2 * MEAN_MS);
    }
    faults
}

fn draw_fault(random: &mut Random, nodes: usize) -> Fault {
    let node = random.draw_index(nodes);
    let other = (node + 1 + random.draw_index(nodes - 1)) % nodes;
    let ms = random.draw_between(100, 6_000);
    match random.draw_below(100) {
        0..23 => draw_crash(random, node),
        23..30 => draw_kill(random, node),
        30..33 => Fault::Blackout {
            down_ms: random.draw_between(50, 2_000),
        },
        33..40 => Fault::Pause {
            node,
            ms: random.draw_between(50, 3_000),
        },
        40..45 => Fault::ClockJump {
            node,
            ms: draw_jump(random),
        },
        45..55 => Fault::Partition {
            mask: random.draw_between(1, (1 << nodes) - 2),
            ms,
        },
        55..60 => Fault::OneWay {
            from: node,
            to: other,
            ms,
        },
        60..65 => Fault::Cut {
            one: node,
            other,
            ms,
        },
        65..68 => Fault::SlowLink {
            node,
            delay_ms: random.draw_between(50, 800),
            ms,
        },
        68..78 => draw_storm(random, ms),
        78..81 => Fault::SyncFails {
            node,
            after: u32::try_from(random.draw_below(6)).expect("a small number"),
        },
        81..83 => draw_full(random, node, ms),
        83..84 => Fault::WrongState { node },
        84..86 => Fault::SlowDisk {
            node,
            sync_ms: random.draw_between(20, 400),
            ms,
        },
        86..88 => Fault::ShortRead { node },
        88..90 => draw_harm(random, node),
        90..92 => Fault::Replace { node },
        92..94 => Fault::ReplaceApart {
            node,
            mask: random.draw_between(1, (1 << nodes) - 2),
            ms,
        },
        94..95 => Fault::Transfer { to: node },
        95..96 => Fault::Lie { node, ms },
        96..97 => Fault::Views {
            node,
            harm: HARMS[random.draw_index(HARMS.len())],
            down_ms: random.draw_between(50, 1_000),
        },
        97..98 => Fault::Reorder { ms },
        _ => Fault::Forge { node, ms },
    }
}

fn draw_harm(random: &mut Random, node: usize) -> Fault {
    let down_ms = random.draw_between(50, 1_000);
    match random.chance(500) {
        true => Fault::FlipBit { node, down_ms },
        false => Fault::Misdirect { node, down_ms },
    }
}

fn draw_full(random: &mut Random, node: usize, ms: u64) -> Fault {
    match random.chance(300) {
        true => Fault::AllFull { ms },
        false => Fault::Full { node, ms },
    }
}

fn draw_crash(random: &mut Random, node: usize) -> Fault {
    let boundary = BOUNDARIES[random.draw_index(BOUNDARIES.len())];
    Fault::Crash {
        node,
        boundary,
        down_ms: random.draw_between(20, 4_000),
    }
}

fn draw_kill(random: &mut Random, node: usize) -> Fault {
    let boundary = BOUNDARIES[random.draw_index(BOUNDARIES.len())];
    Fault::Kill {
        node,
        boundary,
        down_ms: random.draw_between(20, 1_000),
    }
}

fn draw_jump(random: &mut Random) -> i64 {
    let size = i64::try_from(random.draw_between(10, 20_000)).expect("a small number");
    if random.chance(500) { size } else { -size }
}

fn draw_storm(random: &mut Random, ms: u64) -> Fault {
    Fault::Storm {
        lost: random.draw_below(400),
        doubled: random.draw_below(300),
        damaged: random.draw_below(100),
        spread_ms: random.draw_between(1, 600),
        ms,
    }
}
