//! Names the protocol by which a peer asks a validator (a node that runs the market), and tests its
//! decoders. [`souk_roles::market::market_protocol`] defines its messages.

use libp2p::swarm::StreamProtocol;
use souk_roles::market::market_protocol;
pub use souk_roles::market::market_protocol::{
    Age, Answer, BACKUP_FRAME_BYTES, Governance, MONEY_REQUESTS_MAX, Member, Members, NAMED_MAX,
    OrderRefusal, REQUEST_BYTES_MAX, Request, Standing, Status, TimedAnswer, TreeHeads,
};

/// The protocol's name.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new(market_protocol::PROTOCOL);

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use souk_market::{
        AccountKey, Batch, Command, JobId, LeaseId, MarketId, Millis, Nonce, Signature,
    };
    use souk_node_testing::fuzzed;

    use super::*;
    use crate::protocols::roster::{Body, MembershipOrder, SignedMembershipOrder};

    #[test]
    fn damaged_questions_and_answers_do_no_harm() {
        let account = AccountKey([7; 32]);
        let jobs = Request::JobLeases(account, vec![JobId([1; 32]); 3]);
        let batch = Batch {
            market: MarketId([2; 32]),
            account,
            nonce: Nonce(1),
            expires: Millis(2),
            commands: vec![Command::GiveUp { lease: LeaseId(3) }; 2],
        };
        let submit = Request::Submit(batch.sign(&SigningKey::from_bytes(&[4; 32])));
        fuzzed::fuzz_decoder(6, &[Request::Find(vec![account; 2]), jobs, submit]);
        fuzzed::fuzz_decoder::<Answer>(7, &[]);
        let (time, age) = (Millis(3), None);
        let answer = Answer::Changed;
        fuzzed::fuzz_decoder(8, &[TimedAnswer { time, age, answer }]);
    }

    #[test]
    fn damaged_orders_do_no_harm() {
        let body = Body {
            market: MarketId([7; 32]),
            signer: AccountKey([1; 32]),
            number: 1,
            expires: Millis(1_000),
            order: MembershipOrder::Admit {
                account: AccountKey([2; 32]),
                address: "/ip4/127.0.0.1/tcp/4001".to_owned(),
            },
        };
        let signature = Signature([3; 64]);
        fuzzed::fuzz_decoder(18, &[SignedMembershipOrder { body, signature }]);
    }

    #[test]
    fn who_names_more_than_is_looked_for_is_told() {
        let find = |count| Request::Find(vec![AccountKey([7; 32]); count]);
        assert_eq!(find(NAMED_MAX).excess_reason(), None);
        let told = find(NAMED_MAX + 1).excess_reason().unwrap();
        assert_eq!(told, "1025 are named, at most 1024 may be");
        let jobs = Request::JobLeases(AccountKey([7; 32]), vec![JobId([0; 32]); 5_000]);
        assert!(jobs.excess_reason().is_some());
    }
}
