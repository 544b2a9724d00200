//! Measures the proofs that anyone checks offline, and the state root that some of them lead to.
//!
//! The history is as large as wanted, and only the tiles that a proof needs exist: the one with the
//! proven leaf is real, the hashes beside its path are drawn. Proof and check are those of `souk
//! receipt verify`. State roots are computed over the order flows of `souk bench market`, as often
//! as validators do, and compared with the time to check and to apply the same number of commands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use souk_consensus::{
    Digest, History, LogIndex, LogTime, Position, SealedLeaf, Tile, TileId, TreeHead,
};
use souk_host::clock;
use souk_market::SigningKey;
use souk_market_bench::{ExchangeEngine, Flow, Script};
use souk_node::client::account_proof::AccountProof;
use souk_node::client::history::TreeNote;
use souk_node::client::settlement::{Inclusion, ReceiptProof, SettlementRecord};
use souk_node::market::{
    Acceptance, AccountKey, Batch, BatchOutcome, Class, Command, ContentId, Credits, DeviceMicros,
    Dtype, Exchange, Genesis, JobId, LeaseId, MarketId, Millis, Name, Nonce, OrderId, Permille,
    Price, Receipt, ReceiptBody, Refusal, SignedBatch,
};

/// The validators, of whom as many sign a head as must.
const VALIDATORS: u64 = 4;
const SIGNERS: u64 = 3;

/// How often each check is timed; the median counts.
const CHECKS: usize = 301;

/// The hashes of a full tile, as a power of two.
const TILE_BITS: u32 = 8;

/// The roots per second that validators compute.
const ROOTS_PER_SECOND: u32 = 4;

/// The batches whose signatures are checked together, as a validator does.
const TOGETHER: usize = 48;

/// The accounts that sign them.
const SIGNING_ACCOUNTS: u64 = 256;

/// The size and the cost of a proof.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProofCost {
    /// The leaves of the history, or the accounts of the state.
    pub of: u64,
    /// The bytes of the file.
    pub bytes: usize,
    /// The tiles that a client fetches to make it; none for an account, which a validator proves.
    pub tiles: usize,
    /// The median time to read and check the file, in microseconds.
    pub check_us: f64,
}

/// The time of state roots, and that of the commands between them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RootCost {
    /// The name of the order flow.
    pub flow: &'static str,
    /// The commands between two roots.
    pub commands_per_root: usize,
    /// The rows that a root hashed again, on average.
    pub rows_per_root: f64,
    /// The time of a root for each of these rows, in microseconds.
    pub root_us_per_row: f64,
    /// The time of roots for each command, in microseconds.
    pub root_us_per_command: f64,
    /// The time to apply a command, in microseconds.
    pub apply_us_per_command: f64,
    /// The time to check the signature of a command, in microseconds.
    pub check_us_per_command: f64,
    /// The part of roots in the time of all three.
    pub part: f64,
}

fn key_of(number: u64) -> SigningKey {
    let hash = blake3::hash(format!("souk bench proofs {number}").as_bytes());
    SigningKey::from_bytes(hash.as_bytes())
}

fn account_of(number: u64) -> AccountKey {
    AccountKey::from(&key_of(number))
}

fn cosigners() -> BTreeMap<u64, AccountKey> {
    (1..=VALIDATORS).map(|by| (by, account_of(by))).collect()
}

/// Measures the proof of a receipt that was settled in a history of `leaves` leaves.
///
/// # Panics
/// If the proof does not hold, which would be a fault of souk.
#[must_use]
pub fn measure_receipt_proof(leaves: u64) -> ProofCost {
    let market = MarketId([5; 32]);
    let receipt = make_receipt(market);
    // An eighth of the way, where the path has its full length.
    let sealed = settle_receipt(market, &receipt, leaves / 8 + 1);
    let number = sealed.number;
    let tree = DrawnTree::around_leaf(leaves, number, sealed.to_leaf().hash());
    let inclusion = Inclusion::of_leaf(number, leaves);
    let path = inclusion.build(&tree.tiles).expect("its tiles are drawn");
    let note = sign_head(market, leaves, tree.root, Digest::default());
    let record = SettlementRecord::new(sealed);
    let proof = ReceiptProof::new(record, &receipt, path, note);
    let text = proof.expect("the record has the receipt").encode();
    let members = cosigners().into();
    let check_us = time_check(|| {
        let read = ReceiptProof::decode(text.as_bytes());
        let shown = read.and_then(|proof| proof.verify(&receipt, market, &members));
        assert_eq!(shown.expect("the proof holds").step, number + 1);
    });
    ProofCost {
        of: leaves,
        bytes: text.len(),
        tiles: inclusion.needed_tiles().len(),
        check_us,
    }
}

/// Measures the proof of a balance in a state of `accounts` accounts.
///
/// # Panics
/// If the proof does not hold, which would be a fault of souk.
#[must_use]
pub fn measure_account_proof(accounts: u32) -> ProofCost {
    let name = Name::try_from("proofs").expect("a short name");
    let mut genesis = Genesis::new(name, account_of(0));
    let key = |number: u32| AccountKey(*blake3::hash(&number.to_le_bytes()).as_bytes());
    genesis.accounts = (0..accounts)
        .map(|number| (key(number), Name::default(), Credits(1_000_000)))
        .collect();
    let mut exchange = Exchange::new(genesis);
    let root = exchange.state_root(souk_market::Digest::default());
    let path = exchange.prove_account(key(accounts / 3), root);
    let market = exchange.market();
    let note = sign_head(market, 1, Digest::default(), Digest(root.0));
    let path = path.expect("it is the last root");
    let text = AccountProof::new(path, note).encode();
    let members = cosigners().into();
    let check_us = time_check(|| {
        let read = AccountProof::decode(text.as_bytes());
        let shown = read.and_then(|proof| proof.verify(market, &members));
        assert!(shown.expect("the proof holds").balances.is_some());
    });
    ProofCost {
        of: u64::from(accounts),
        bytes: text.len(),
        tiles: 0,
        check_us,
    }
}

/// Returns the median time of a check, in microseconds.
fn time_check(check: impl Fn()) -> f64 {
    let time = |_| {
        let begin = Instant::now();
        check();
        begin.elapsed()
    };
    let mut times: Vec<Duration> = (0..CHECKS).map(time).collect();
    times.sort_unstable();
    times[CHECKS / 2].as_secs_f64() * 1e6
}

/// The part of a large tree that the proof of one leaf needs.
struct DrawnTree {
    tiles: BTreeMap<TileId, Tile>,
    root: Digest,
}

impl DrawnTree {
    /// Draws all hashes that are not above the leaf, and computes the others.
    fn around_leaf(size: u64, leaf: u64, hash: Digest) -> Self {
        assert!(leaf < size, "the leaf is in the tree");
        let mut drawn = 0_u64;
        let mut draw = || {
            drawn += 1;
            Digest::for_content(&drawn.to_le_bytes())
        };
        let (mut tiles, mut open_tiles) = (BTreeMap::new(), Vec::new());
        let mut above = Some(hash);
        for (level, width) in (0..).zip(History::open_widths(size)) {
            let bits = TILE_BITS * level;
            let mut open: Vec<Digest> = (0..width).map(|_| draw()).collect();
            let (place, open_index) = (leaf >> bits, (size >> bits) >> TILE_BITS);
            let id = TileId {
                level,
                index: place >> TILE_BITS,
            };
            let within = (place % (1 << TILE_BITS)) as usize;
            if let Some(hash) = above {
                if id.index == open_index {
                    open[within] = hash;
                    above = None;
                } else {
                    let mut hashes: Vec<Digest> = (0..1 << TILE_BITS).map(|_| draw()).collect();
                    hashes[within] = hash;
                    above = Some(root_of_tile(&hashes));
                    tiles.insert(id, Tile { id, hashes });
                }
            }
            let id = TileId {
                level,
                index: open_index,
            };
            let hashes = open.clone();
            if !hashes.is_empty() {
                tiles.insert(id, Tile { id, hashes });
            }
            open_tiles.push(open);
        }
        let root = History::from_open_tiles(size, open_tiles).root();
        Self { tiles, root }
    }
}

fn root_of_tile(hashes: &[Digest]) -> Digest {
    let (mut tree, mut full) = (History::default(), Vec::new());
    hashes.iter().for_each(|hash| tree.push(*hash, &mut full));
    tree.root()
}

fn sign_head(market: MarketId, size: u64, root: Digest, state: Digest) -> TreeNote {
    let head = TreeHead {
        index: LogIndex(size + 1),
        time: LogTime(1_764_428_531_500),
        size,
        root,
        state: Some(state),
    };
    let mut note = TreeNote::new(market, head);
    for by in 1..=SIGNERS {
        note.insert(note.cosign(by, 1_764_428_530 + by, &key_of(by)));
    }
    note
}

/// Returns the receipt of a small job: two inputs and an output.
fn make_receipt(market: MarketId) -> Receipt {
    let (buyer, provider) = (key_of(8), key_of(9));
    let usage = DeviceMicros(1_000_000);
    let body = ReceiptBody {
        market,
        lease: LeaseId(7),
        job: JobId::default(),
        buyer: AccountKey::from(&buyer),
        provider: AccountKey::from(&provider),
        graph: ContentId([1; 32]),
        inputs: vec![ContentId([2; 32]); 2],
        outputs: vec![ContentId([3; 32])],
        class: Class::default(),
        model: Name::default(),
        emulated: false,
        dtype: Dtype::F32,
        declared_mega_ops: 7,
        delivered_mega_ops: 7,
        usage,
        metered: None,
        idle: DeviceMicros(0),
        idle_part: Permille(0),
        price: Price(2_000),
        amount: ReceiptBody::amount_due(Price(2_000), usage).expect("the price is low"),
        bytes_in: 1,
        bytes_out: 2,
        started: Millis(10),
        finished: Millis(20),
    };
    Receipt::new(body)
        .sign_as_provider(&provider)
        .sign_as_buyer(&buyer)
}

/// Returns the leaf of the batch that settles a receipt.
fn settle_receipt(market: MarketId, receipt: &Receipt, number: u64) -> SealedLeaf {
    let batch = Batch {
        market,
        account: account_of(9),
        nonce: Nonce(1 << 40),
        expires: Millis(1_764_428_531_250),
        commands: vec![Command::Settle(Box::new(receipt.clone()))],
    };
    let closed = Acceptance::Closed {
        paid: Credits(1_960),
        fee: Credits(40),
        refunded: Credits(900_000),
    };
    let results = vec![Ok::<_, Refusal>(closed)];
    let results = postcard::to_allocvec(&results).expect("plain data in memory always encodes");
    SealedLeaf {
        number,
        at: Position {
            index: LogIndex(number + 1),
            offset: 3,
        },
        time: LogTime(1_764_428_531_250),
        command: batch.sign(&key_of(9)).encode(),
        result: [vec![0], results].concat(),
        events: Digest([6; 32]),
    }
}

/// Measures the state roots of both order flows, each after as many commands as a validator applies
/// between two of them at `rate` signed commands a second.
#[must_use]
pub fn measure_roots(operations: usize, rate: u32) -> Vec<RootCost> {
    let check_us = time_signatures();
    let commands_per_root = (rate / ROOTS_PER_SECOND).max(1) as usize;
    let flows = [("deep", Flow::Deep), ("hot", Flow::Hot)];
    let measure = |(name, flow)| {
        let script = Script::draw_operations(flow, operations);
        measure_flow(name, &script, commands_per_root, check_us)
    };
    flows.into_iter().map(measure).collect()
}

/// Applies a flow's operations, of which each is a signed batch, with a root after each part.
fn measure_flow(
    flow: &'static str,
    script: &Script,
    commands_per_root: usize,
    check_us: f64,
) -> RootCost {
    let mut engine = ExchangeEngine::new(script);
    let mut applied = BatchOutcome::default();
    for batch in engine.prepare_batches(&script.prefill) {
        engine.apply_batch(&batch, &mut applied);
    }
    // The first one hashes everything.
    engine.state_root();
    let (mut apply, mut hash) = (Duration::ZERO, Duration::ZERO);
    let (mut rows, mut roots) = (0, 0);
    for part in script.operations.chunks(commands_per_root) {
        let batches = engine.prepare_batches(part);
        let begin = clock::of_thread();
        batches
            .iter()
            .for_each(|batch| engine.apply_batch(batch, &mut applied));
        let middle = clock::of_thread();
        rows += engine.exchange().count_touched_rows().unwrap_or_default();
        let counted = clock::of_thread();
        engine.state_root();
        apply += middle.saturating_sub(begin);
        hash += clock::of_thread().saturating_sub(counted);
        roots += 1;
    }
    let micros = |time: Duration, count: usize| time.as_secs_f64() * 1e6 / count.max(1) as f64;
    let commands = script.operations.len();
    let root_us_per_command = micros(hash, commands);
    let apply_us_per_command = micros(apply, commands);
    RootCost {
        flow,
        commands_per_root,
        rows_per_root: rows as f64 / f64::from(roots),
        root_us_per_row: micros(hash, rows),
        root_us_per_command,
        apply_us_per_command,
        check_us_per_command: check_us,
        part: root_us_per_command / (root_us_per_command + apply_us_per_command + check_us),
    }
}

/// Returns the time to decode a batch of one command and to check its signature together with those
/// of others, in microseconds.
fn time_signatures() -> f64 {
    let sign = |number: u64| {
        let batch = Batch {
            market: MarketId([5; 32]),
            account: account_of(number),
            nonce: Nonce(1),
            expires: Millis(1),
            commands: vec![Command::Cancel { order: OrderId(7) }],
        };
        batch.sign(&key_of(number)).encode()
    };
    let batches: Vec<Vec<u8>> = (0..SIGNING_ACCOUNTS).map(sign).collect();
    let check = |bytes: &[Vec<u8>]| {
        let decoded = bytes.iter().map(|bytes| SignedBatch::decode(bytes));
        let decoded = decoded.collect::<Result<Vec<_>, _>>();
        let checked = SignedBatch::verify_each(decoded.expect("they were encoded"));
        assert!(checked.iter().all(Result::is_ok), "each is signed");
    };
    // The first pass unpacks the keys of the accounts.
    batches.chunks(TOGETHER).for_each(check);
    let begin = clock::of_thread();
    for _ in 0..8 {
        batches.chunks(TOGETHER).for_each(check);
    }
    let spent = clock::of_thread().saturating_sub(begin);
    spent.as_secs_f64() * 1e6 / (8 * batches.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_tree_proves_its_leaf_wherever_it_is() {
        let hash = Digest([9; 32]);
        for (size, leaf) in [
            (70_000, 0),
            (70_000, 69_999),
            (1_000_000, 123_456),
            (256, 255),
        ] {
            let tree = DrawnTree::around_leaf(size, leaf, hash);
            let path = Inclusion::of_leaf(leaf, size).build(&tree.tiles);
            let (path, mut reached) = (path.unwrap(), hash);
            // Each hash of the path is on one side of what was reached, as RFC 6962 says.
            let (mut node, mut last) = (leaf, size - 1);
            for beside in path {
                let mut tree = History::default();
                let is_right = node % 2 == 1 || node == last;
                let pair = if is_right {
                    [beside, reached]
                } else {
                    [reached, beside]
                };
                let push = |hash| tree.push(hash, &mut Vec::new());
                pair.into_iter().for_each(push);
                reached = tree.root();
                while is_right && node % 2 == 0 && node != 0 {
                    (node, last) = (node >> 1, last >> 1);
                }
                (node, last) = (node >> 1, last >> 1);
            }
            assert_eq!(reached, tree.root, "{leaf} of {size}");
        }
    }

    #[test]
    fn proofs_hold_and_roots_hash_what_was_touched() {
        let receipt = measure_receipt_proof(1_000_000);
        assert!(receipt.bytes > 1_000 && receipt.tiles >= 3, "{receipt:?}");
        let account = measure_account_proof(1_000);
        assert!(account.bytes > 500, "{account:?}");
        let roots = measure_roots(3_000, 4_000);
        for root in &roots {
            assert!(root.rows_per_root > 100.0, "{root:?}");
            assert!(root.part > 0.0 && root.part < 1.0, "{root:?}");
        }
    }
}
