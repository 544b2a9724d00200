//! Tests the records of settlements: how they are found by lease, which are removed first, and what
//! is there after a restart.

use souk_consensus::{LogIndex, LogTime, Position};
use souk_market::{
    Acceptance, AccountKey, Batch, Class, Command, ContentId, Credits, DeviceMicros, Dtype, JobId,
    MarketId, Millis, Name, Nonce, Permille, Price, Receipt, ReceiptBody, Refusal, SigningKey,
};
use souk_proof::digest::Digest;

use super::*;

const MARKET: MarketId = MarketId([5; 32]);

fn key(by: u8) -> SigningKey {
    SigningKey::from_bytes(&[by; 32])
}

fn receipt(lease: u64) -> Receipt {
    let usage = DeviceMicros(1_000_000);
    let body = ReceiptBody {
        market: MARKET,
        lease: LeaseId(lease),
        job: JobId::default(),
        buyer: AccountKey::from(&key(8)),
        provider: AccountKey::from(&key(9)),
        graph: ContentId([1; 32]),
        inputs: vec![ContentId([2; 32])],
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
        amount: Credits(2_000),
        bytes_in: 1,
        bytes_out: 2,
        started: Millis(10),
        finished: Millis(20),
    };
    Receipt::new(body)
}

/// A leaf that settled the receipts of some leases.
fn settle(leases: &[u64], number: u64) -> SealedLeaf {
    let commands = leases.iter();
    let commands = commands.map(|lease| Command::Settle(Box::new(receipt(*lease))));
    let batch = Batch {
        market: MARKET,
        account: AccountKey::from(&key(9)),
        nonce: Nonce(1),
        expires: Millis(60_000),
        commands: commands.collect(),
    };
    let closed = Acceptance::Closed {
        paid: Credits(1_960),
        fee: Credits(40),
        refunded: Credits(0),
    };
    let results = vec![Ok::<_, Refusal>(closed); leases.len()];
    let results = postcard::to_allocvec(&results).expect("plain data");
    SealedLeaf {
        number,
        at: Position {
            index: LogIndex(number),
            offset: 0,
        },
        time: LogTime(number),
        command: batch.sign(&key(9)).encode(),
        result: [vec![0], results].concat(),
        events: Digest([6; 32]),
    }
}

fn open_rows(folder: &Path) -> Rows {
    Rows::open(&views::open_database(folder).unwrap()).unwrap()
}

fn leaf_of(rows: &Rows, lease: u64) -> Option<u64> {
    let record = rows.read_record(LeaseId(lease)).unwrap();
    record.map(|record| record.leaf)
}

#[test]
fn a_leaf_is_stored_once_and_found_by_each_lease_also_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let rows = open_rows(folder.path());
    let mut records = Records::new(rows.clone(), u64::MAX);
    records.insert(settle(&[7, 3, 9], 40)).unwrap();
    let bytes = records.bytes;
    // The log is applied again after a start.
    records.insert(settle(&[7, 3, 9], 40)).unwrap();
    assert_eq!((rows.leaves.len(), records.bytes), (1, bytes));
    assert_eq!([3, 7, 9].map(|lease| leaf_of(&rows, lease)), [Some(40); 3]);
    assert_eq!(leaf_of(&rows, 8), None);
    assert_eq!(Records::new(rows, u64::MAX).bytes, bytes);
}

#[test]
fn the_oldest_leaves_go_first_with_their_leases() {
    let folder = tempfile::tempdir().unwrap();
    let rows = open_rows(folder.path());
    let one = Records::new(rows.clone(), u64::MAX);
    let mut records = Records {
        bytes_max: 0,
        ..one
    };
    records.insert(settle(&[1], 1)).unwrap();
    assert_eq!(
        (rows.leaves.len(), rows.leases.len(), records.bytes),
        (0, 0, 0)
    );
    let row = postcard::to_allocvec(&SettlementRecord::new(settle(&[1], 1))).unwrap();
    records.bytes_max = 3 * row.len() as u64;
    // An old lease that is settled late is not the first to go.
    for (lease, number) in [(90, 1), (80, 2), (1, 3), (70, 4)] {
        records.insert(settle(&[lease], number)).unwrap();
    }
    assert_eq!(leaf_of(&rows, 90), None);
    assert_eq!(
        [80, 1, 70].map(|lease| leaf_of(&rows, lease)),
        [2, 3, 4].map(Some)
    );
    assert_eq!(rows.leases.len(), 3);
}

#[test]
fn what_was_submitted_is_there_after_the_process_and_a_second_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settlements");
    let settlements = Settlements::open_folder(&path).unwrap();
    settlements.submit_leaves(vec![settle(&[5], 2)]);
    // The thread ends once the last sender is gone, and has then written all.
    let rows = settlements.rows.clone();
    while settlements.waiting_bytes.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(leaf_of(&rows, 5), Some(2));
    assert!(Settlements::open_folder(&path).is_err(), "it is in use");
    assert_eq!(leaf_of(&rows, 5), Some(2));
}
