//! What goes wrong and when: a schedule drawn from the seed before the run, so that it can be
//! shortened without changing anything else.

use serde::Serialize;

use super::random::Random;
use super::rows::{HARMS, Harm};

/// Where in a round a replica dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    /// Before anything of the round was sent.
    Begin,
    /// After the first messages left.
    SentFirst,
    /// Between the write and its sync.
    Unsynced,
    /// After the sync.
    Persisted,
    /// After the acknowledgements left.
    SentAfter,
    /// After entries were applied, before anyone was told.
    Applied,
    /// While a snapshot is being written.
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

/// One thing that goes wrong. Nodes are counted from zero; times are in simulated milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fault")]
pub enum Fault {
    /// Power is lost at a boundary, and comes back.
    Crash {
        /// The node.
        node: usize,
        /// Where in its round.
        boundary: Boundary,
        /// How long it stays off.
        down_ms: u64,
    },
    /// The process is killed at a boundary, and what it wrote is kept, synced or not.
    Kill {
        /// The node.
        node: usize,
        /// Where in its round.
        boundary: Boundary,
        /// How long it stays off.
        down_ms: u64,
    },
    /// Power is lost everywhere at once.
    Blackout {
        /// How long it stays off.
        down_ms: u64,
    },
    /// The process stands still, its clock does not.
    Pause {
        /// The node.
        node: usize,
        /// How long, or how far.
        ms: u64,
    },
    /// The clock jumps and stays there.
    ClockJump {
        /// The node.
        node: usize,
        /// How long, or how far.
        ms: i64,
    },
    /// The nodes of the mask and the others don't hear each other.
    Partition {
        /// One bit for each node of one side.
        mask: u64,
        /// How long, or how far.
        ms: u64,
    },
    /// One node no longer reaches another, which still reaches it.
    OneWay {
        /// Who is not heard.
        from: usize,
        /// Who does not hear, or who is to lead.
        to: usize,
        /// How long, or how far.
        ms: u64,
    },
    /// Two nodes don't hear each other, all others hear both.
    Cut {
        /// One node.
        one: usize,
        /// The other.
        other: usize,
        /// How long, or how far.
        ms: u64,
    },
    /// All messages of a node are slow.
    SlowLink {
        /// The node.
        node: usize,
        /// By how much.
        delay_ms: u64,
        /// How long, or how far.
        ms: u64,
    },
    /// Messages are lost, doubled, delayed out of order and damaged.
    Storm {
        /// Of a thousand messages, how many are lost.
        lost: u64,
        /// Of a thousand, how many come twice.
        doubled: u64,
        /// Of a thousand, in how many a bit is flipped.
        damaged: u64,
        /// The most a message is late.
        spread_ms: u64,
        /// How long, or how far.
        ms: u64,
    },
    /// One of the next syncs fails with EIO.
    SyncFails {
        /// The node.
        node: usize,
        /// How many go well before it.
        after: u32,
    },
    /// The disk has no room.
    Full {
        /// The node.
        node: usize,
        /// How long, or how far.
        ms: u64,
    },
    /// No disk has room, those of buyers and providers neither.
    AllFull {
        /// How long, or how far.
        ms: u64,
    },
    /// A write of the log lands elsewhere in its file, and some writes later power is lost.
    Misdirect {
        /// The node.
        node: usize,
        /// How long it stays off.
        down_ms: u64,
    },
    /// Syncs take long.
    SlowDisk {
        /// The node.
        node: usize,
        /// How long a sync takes.
        sync_ms: u64,
        /// How long, or how far.
        ms: u64,
    },
    /// The next start reads short.
    ShortRead {
        /// The node.
        node: usize,
    },
    /// One durable bit flips while the node is down.
    FlipBit {
        /// The node.
        node: usize,
        /// How long it stays off.
        down_ms: u64,
    },
    /// The folder of the views is harmed while the node is down.
    Views {
        /// The node.
        node: usize,
        /// How.
        harm: Harm,
        /// How long it stays off.
        down_ms: u64,
    },
    /// The disk is gone: the replica is removed and a new one joins.
    Replace {
        /// The node.
        node: usize,
    },
    /// The same while some of the nodes don't hear the others.
    ReplaceApart {
        /// The node.
        node: usize,
        /// One bit for each node of one side.
        mask: u64,
        /// How long, or how far.
        ms: u64,
    },
    /// The leader hands over.
    Transfer {
        /// Who does not hear, or who is to lead.
        to: usize,
    },
    /// A validator lies: it takes in what is forged, and forges what it sends while it leads. Then
    /// an honest one takes its place, on the disk it left.
    Forge {
        /// The node.
        node: usize,
        /// How long, or how far.
        ms: u64,
    },
    /// A validator lies: it offers the others a state that it made up, and tells them, as a leader
    /// of a later term would, that the members changed.
    Lie {
        /// The node.
        node: usize,
        /// For how long it gives out the parts of the state.
        ms: u64,
    },
    /// A validator's memory goes wrong: its state is another, and its quick digests are right.
    WrongState {
        /// The node.
        node: usize,
    },
    /// A leader reorders the commands of batches it takes in.
    Reorder {
        /// How long, or how far.
        ms: u64,
    },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimedFault {
    /// Simulated milliseconds since the start.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
}

/// The mean time between two faults.
const MEAN_MS: u64 = 1_500;

/// Draws what goes wrong before `until_ms`.
pub fn schedule(seed: u64, nodes: usize, until_ms: u64) -> Vec<TimedFault> {
    let mut random = Random::new(seed, "faults");
    let mut faults = Vec::new();
    let mut at_ms = 1_000;
    while at_ms < until_ms {
        faults.push(TimedFault {
            at_ms,
            fault: draw(&mut random, nodes),
        });
        at_ms += random.between(1, 2 * MEAN_MS);
    }
    faults
}

fn draw(random: &mut Random, nodes: usize) -> Fault {
    let node = random.place(nodes);
    let other = (node + 1 + random.place(nodes - 1)) % nodes;
    let ms = random.between(100, 6_000);
    match random.below(100) {
        0..23 => crash(random, node),
        23..30 => kill(random, node),
        30..33 => Fault::Blackout {
            down_ms: random.between(50, 2_000),
        },
        33..40 => Fault::Pause {
            node,
            ms: random.between(50, 3_000),
        },
        40..45 => Fault::ClockJump {
            node,
            ms: jump(random),
        },
        45..55 => Fault::Partition {
            mask: random.between(1, (1 << nodes) - 2),
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
            delay_ms: random.between(50, 800),
            ms,
        },
        68..78 => storm(random, ms),
        78..81 => Fault::SyncFails {
            node,
            after: u32::try_from(random.below(6)).expect("a small number"),
        },
        81..83 => full(random, node, ms),
        83..84 => Fault::WrongState { node },
        84..86 => Fault::SlowDisk {
            node,
            sync_ms: random.between(20, 400),
            ms,
        },
        86..88 => Fault::ShortRead { node },
        88..90 => harm(random, node),
        90..92 => Fault::Replace { node },
        92..94 => Fault::ReplaceApart {
            node,
            mask: random.between(1, (1 << nodes) - 2),
            ms,
        },
        94..95 => Fault::Transfer { to: node },
        95..96 => Fault::Lie { node, ms },
        96..97 => Fault::Views {
            node,
            harm: HARMS[random.place(HARMS.len())],
            down_ms: random.between(50, 1_000),
        },
        97..98 => Fault::Reorder { ms },
        _ => Fault::Forge { node, ms },
    }
}

fn harm(random: &mut Random, node: usize) -> Fault {
    let down_ms = random.between(50, 1_000);
    match random.chance(500) {
        true => Fault::FlipBit { node, down_ms },
        false => Fault::Misdirect { node, down_ms },
    }
}

fn full(random: &mut Random, node: usize, ms: u64) -> Fault {
    match random.chance(300) {
        true => Fault::AllFull { ms },
        false => Fault::Full { node, ms },
    }
}

fn crash(random: &mut Random, node: usize) -> Fault {
    let boundary = BOUNDARIES[random.place(BOUNDARIES.len())];
    Fault::Crash {
        node,
        boundary,
        down_ms: random.between(20, 4_000),
    }
}

fn kill(random: &mut Random, node: usize) -> Fault {
    let boundary = BOUNDARIES[random.place(BOUNDARIES.len())];
    Fault::Kill {
        node,
        boundary,
        down_ms: random.between(20, 1_000),
    }
}

fn jump(random: &mut Random) -> i64 {
    let size = i64::try_from(random.between(10, 20_000)).expect("a small number");
    if random.chance(500) { size } else { -size }
}

fn storm(random: &mut Random, ms: u64) -> Fault {
    Fault::Storm {
        lost: random.below(400),
        doubled: random.below(300),
        damaged: random.below(100),
        spread_ms: random.between(1, 600),
        ms,
    }
}
