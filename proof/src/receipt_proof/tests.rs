//! Tests proofs of settled receipts: valid ones, and ones with another receipt, another market, too
//! few signatures or a flipped bit.

use souk_market::{
    AccountKey, Batch, Class, ContentId, DeviceMicros, Dtype, JobId, Millis, Name, Nonce, Permille,
    Price, ReceiptBody, SigningKey,
};

use super::*;
use crate::consistency::tests::{leaves, tiles_of};
use crate::history::tests::naive_root;
use crate::inclusion::Inclusion;
use crate::note::Cosigners;
use crate::place::TreeHead;

const MARKET: MarketId = MarketId([5; 32]);

fn key(by: u64) -> SigningKey {
    SigningKey::from_bytes(&[by as u8; 32])
}

fn members() -> CosigningRoster {
    Cosigners::from_iter((1..=4).map(|by| (by, AccountKey::from(&key(by))))).into()
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
        amount: ReceiptBody::amount_due(Price(2_000), usage).unwrap(),
        bytes_in: 1,
        bytes_out: 2,
        started: Millis(10),
        finished: Millis(20),
    };
    let unsigned = Receipt::new(body);
    unsigned.sign_as_provider(&key(9)).sign_as_buyer(&key(8))
}

/// A leaf that settled some receipts, at this place in the tree.
fn settle(receipts: &[Receipt], leaf: u64) -> SealedLeaf {
    let commands = receipts
        .iter()
        .map(|it| Command::Settle(Box::new(it.clone())));
    let batch = Batch {
        market: MARKET,
        account: AccountKey::from(&key(9)),
        nonce: Nonce(1 << 40),
        expires: Millis(1_764_428_531_250),
        commands: commands.collect(),
    };
    let closed = Acceptance::Closed {
        paid: Credits(1_960),
        fee: Credits(40),
        refunded: Credits(900_000),
    };
    let results = vec![Ok::<_, Refusal>(closed); receipts.len()];
    SealedLeaf {
        number: leaf,
        at: Position {
            index: LogIndex(99_000_000),
            offset: 3,
        },
        time: LogTime(1_764_428_531_250),
        command: batch.sign(&key(9)).encode(),
        result: [vec![0], encode(&results)].concat(),
        events: Digest([6; 32]),
    }
}

fn cosigned(size: u64, root: Digest, signers: u64) -> TreeNote {
    let head = TreeHead {
        index: LogIndex(99_000_001),
        time: LogTime(1_764_428_531_500),
        size,
        root,
        state: Some(Digest([4; 32])),
    };
    let mut note = TreeNote::new(MARKET, head);
    for by in 1..=signers {
        note.insert(note.cosign(by, 1_764_428_530 + by, &key(by)));
    }
    note
}

/// The proof of the first of some receipts, in a tree of 300 leaves.
fn prove(receipts: &[Receipt], signers: u64) -> ReceiptProof {
    let sealed = settle(receipts, 123);
    let mut leaves = leaves(300);
    leaves[123] = sealed.to_leaf().hash();
    let path = Inclusion::of_leaf(123, 300)
        .build(&tiles_of(&leaves))
        .unwrap();
    let note = cosigned(300, naive_root(&leaves), signers);
    ReceiptProof::new(SettlementRecord::new(sealed), &receipts[0], path, note).unwrap()
}

#[test]
fn a_settled_receipt_is_proven_with_what_it_paid_and_when_it_was_certified() {
    let receipts = [receipt(7), receipt(8)];
    let proof = prove(&receipts, 4);
    let read = ReceiptProof::decode(proof.encode().as_bytes()).unwrap();
    assert_eq!(read, proof);
    let found = read.verify(&receipts[0], MARKET, &members()).unwrap();
    assert_eq!((found.step, found.signers), (124, vec![1, 2, 3, 4]));
    assert_eq!(found.payment.paid, Credits(1_960));
    // The third signature certified it.
    assert_eq!(found.certified_s, 1_764_428_533);
    let record = SettlementRecord::new(settle(&receipts, 123));
    assert_eq!(record.list_leases(), [LeaseId(7), LeaseId(8)]);
    assert_eq!(record.find_receipt(LeaseId(8)).as_ref(), Some(&receipts[1]));
}

#[test]
fn a_proof_carries_orders_behind_the_leaf_and_is_the_same_without() {
    let receipt = receipt(7);
    let plain = prove(std::slice::from_ref(&receipt), 3);
    assert!(plain.orders().is_empty(), "as an earlier release wrote it");
    let carrying = plain.clone().with_orders(b"orders".to_vec());
    let read = ReceiptProof::decode(carrying.encode().as_bytes()).unwrap();
    assert_eq!((read.orders(), &read), (&b"orders"[..], &carrying));
    let verify = |proof: &ReceiptProof| proof.verify(&receipt, MARKET, &members());
    assert_eq!(verify(&read), verify(&plain));
    assert!(verify(&read).is_ok());
    // Who is known to be removed signs no more, and the others do not need fewer for it.
    let mut roster = members();
    roster.cosigners.remove(&1);
    let fault = plain.verify(&receipt, MARKET, &roster);
    let (signed, members, needed) = (2, 4, 3);
    let few = ProofFault::Signers {
        signed,
        members,
        needed,
    };
    assert_eq!(fault, Err(few));
}

#[test]
fn another_receipt_market_or_too_few_signatures_prove_nothing() {
    let receipt = receipt(7);
    let proof = prove(std::slice::from_ref(&receipt), 3);
    let verify = |receipt: &Receipt, market| proof.verify(receipt, market, &members());
    let mut other = receipt.clone();
    other.body.outputs[0] = ContentId([4; 32]);
    assert_eq!(verify(&other, MARKET), Err(ProofFault::Path));
    let market = MarketId([6; 32]);
    assert_eq!(
        verify(&receipt, market),
        Err(ProofFault::ReceiptMarket(MARKET))
    );
    other = receipt.clone();
    other.body.market = market;
    assert_eq!(verify(&other, market), Err(ProofFault::Market(MARKET)));
    let few = prove(std::slice::from_ref(&receipt), 2).verify(&receipt, MARKET, &members());
    let (signed, members, needed) = (2, 4, 3);
    let fault = ProofFault::Signers {
        signed,
        members,
        needed,
    };
    assert_eq!(few, Err(fault));
}

#[test]
fn a_command_that_the_market_refused_settles_nothing() {
    let receipt = receipt(7);
    let mut sealed = settle(std::slice::from_ref(&receipt), 123);
    let refused = vec![Err::<Acceptance, _>(Refusal::ReceiptMarket {
        market: MARKET,
        receipt: MARKET,
    })];
    sealed.result = [vec![0], encode(&refused)].concat();
    assert!(
        SettlementRecord::new(sealed.clone())
            .list_leases()
            .is_empty()
    );
    let root = sealed.to_leaf().hash();
    let record = SettlementRecord {
        leaf: 0,
        ..SettlementRecord::new(sealed)
    };
    let proof = ReceiptProof::new(record, &receipt, Vec::new(), cosigned(1, root, 3)).unwrap();
    let found = proof.verify(&receipt, MARKET, &members());
    assert_eq!(found, Err(ProofFault::Receipt));
}

#[test]
fn a_proof_with_any_bit_flipped_proves_nothing() {
    let receipt = receipt(7);
    let text = prove(std::slice::from_ref(&receipt), 3)
        .encode()
        .into_bytes();
    for place in 0..text.len() {
        for bit in 0..8 {
            let mut bytes = text.clone();
            bytes[place] ^= 1 << bit;
            let found = ReceiptProof::decode(&bytes);
            let found = found.and_then(|proof| proof.verify(&receipt, MARKET, &members()));
            assert!(found.is_err(), "bit {bit} of byte {place}");
        }
    }
}

#[test]
fn a_proof_of_100_million_leaves_has_2_283_bytes_of_text() {
    let size = 100_000_000_u64;
    let receipt = receipt(7);
    let record = SettlementRecord::new(settle(std::slice::from_ref(&receipt), 12_345_678));
    let path = vec![Digest([7; 32]); size.next_power_of_two().ilog2() as usize];
    let note = cosigned(size, Digest([8; 32]), 3);
    let proof = ReceiptProof::new(record, &receipt, path, note).unwrap();
    let text = proof.encode().len();
    assert_eq!(proof.path.len(), 27);
    assert_eq!(text, 2_283);
    // Without base64 and the names of signers it is what a binary form would have.
    let bytes = 27 * 32 + 3 * 76 + encode(&proof.extra).len() + proof.note.to_body().len();
    assert_eq!(bytes, 1_503);
}
