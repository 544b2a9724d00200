//! Tests that no sequence of bytes makes a decoder or the exchange panic: damaged batches and
//! snapshots are refused.

use souk_market::*;

use crate::naive::Naive;
use crate::streams::{Dice, Stream, genesis};
use crate::town::account;

/// A few bytes changed, put in or left out.
fn spoilt(dice: &mut Dice, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() as u64 + 1) as usize;
        match dice.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, dice.next() as u8),
            _ if at < bytes.len() => bytes[at] = dice.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ => {}
        }
    }
    bytes
}

#[test]
fn spoilt_batches_are_refused_or_carried_out_whole() {
    let mut taken = 0;
    for seed in 0..300 {
        let mut stream = Stream::new(seed);
        let genesis = genesis(&mut stream.dice);
        let naive = Naive::new(&genesis);
        let mut exchange = Exchange::new(genesis);
        for _ in 0..30 {
            stream.now += 100;
            let bytes = stream.batch(&exchange, &naive).encode();
            let bytes = spoilt(&mut stream.dice, &bytes);
            let Ok(signed) = SignedBatch::decode(&bytes) else {
                continue;
            };
            assert!(signed.clone().verify().is_err(), "nobody has signed it");
            let Ok(verified) = VerifiedBatch::from_own_log(signed) else {
                continue;
            };
            exchange.apply(Millis(stream.now), &verified);
            taken += 1;
        }
        exchange.audit();
    }
    assert!(
        taken > 1_000,
        "spoiling must leave some that decode: {taken}"
    );
}

#[test]
fn random_bytes_are_no_batch_and_no_snapshot() {
    let mut dice = Dice(3);
    for length in 0..2_000 {
        let bytes: Vec<u8> = (0..length % 300).map(|_| dice.next() as u8).collect();
        assert!(SignedBatch::decode(&bytes).is_err());
        assert!(Exchange::restore(&bytes).is_err());
    }
}

#[test]
fn spoilt_snapshots_restore_or_are_refused_by_name() {
    let mut genesis = Genesis::new("bytes".try_into().unwrap(), account(1));
    genesis
        .accounts
        .push((account(10), Name::default(), Credits(500)));
    let bytes = Exchange::new(genesis).snapshot();
    let mut dice = Dice(5);
    for _ in 0..5_000 {
        // Only that it answers: bytes that decode are the source's to answer for.
        let _ = Exchange::restore(&spoilt(&mut dice, &bytes));
    }
    let mut old = bytes.clone();
    old[8] = 1;
    assert_eq!(
        Exchange::restore(&old),
        Err(SnapshotFault::Version { found: 1 })
    );
    let told = SnapshotFault::Version { found: 1 }.to_string();
    assert_eq!(told, "the snapshot has version 1, this build reads 12");
}
