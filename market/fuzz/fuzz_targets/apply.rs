//! Any sequence of commands: outcomes and events, never a panic, and the books balance.
//!
//! The bytes are a list of (who, how long since the last, commands), with the nonces filled in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use souk_market::{
    AccountKey, Batch, Command, Credits, Exchange, Genesis, Millis, Name, Nonce, Signature,
    SignedBatch, SigningKey, VerifiedBatch,
};

fn account(number: u8) -> AccountKey {
    AccountKey::from(&SigningKey::from_bytes(&[number % 4; 32]))
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(steps) = postcard::from_bytes::<Vec<(u8, u16, Vec<Command>)>>(bytes) else {
        return;
    };
    let mut genesis = Genesis::new(Name::default(), account(0));
    for number in 0..3 {
        genesis.accounts.push((account(number), Name::default(), Credits(1_000_000)));
    }
    let mut exchange = Exchange::new(genesis);
    let mut now = Millis(0);
    for (nonce, (who, later, commands)) in (1..).zip(steps) {
        now = now.saturating_add(Millis(later.into()));
        let batch = Batch {
            market: exchange.market(),
            account: account(who),
            nonce: Nonce(nonce),
            expires: now.saturating_add(Millis(60_000)),
            commands,
        };
        let signed = SignedBatch { batch, signature: Signature([0; 64]) };
        if let Ok(verified) = VerifiedBatch::from_own_log(signed) {
            exchange.apply(now, &verified);
        }
    }
    exchange.audit();
});
