//! Tests that keys without an account cannot fill a validator's log with what they send.

use souk_folder::clock::{unix_ms, unix_us};
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::protocols::market::{Answer, Request};
use souk_network::{Network, NetworkConfig};
use souk_node::client::broker::{AttemptError, Broker};
use souk_node::market::{
    AccountKey, Batch, Command, Credits, MarketId, Millis, Name, Nonce, Refusal, SignedBatch,
};

use tokio::runtime::Runtime;

use crate::common::Market;

/// A batch of a new key, signed, that is valid for so long.
fn sign_with_new_key(market: MarketId, commands: Vec<Command>, valid_ms: u64) -> SignedBatch {
    let key = NodeKey::generate();
    let batch = Batch {
        market,
        account: AccountKey(key.public_key()),
        nonce: Nonce(unix_us()),
        expires: Millis(unix_ms() + valid_ms),
        commands,
    };
    batch.sign(key.signing_key())
}

/// A peer without an account, and the first validator of a testnet.
struct Stranger {
    market: MarketId,
    broker: Broker,
    runtime: Runtime,
}

impl Stranger {
    fn join(market: &Market) -> Stranger {
        let runtime = Runtime::new().expect("threads");
        let file = MarketFile::read_nearest(&market.folder().join("net")).expect("a market");
        let contacts = file.contacts().expect("addresses");
        let broker = runtime.block_on(async {
            let network = Network::start(&NodeKey::generate(), NetworkConfig::default()).await;
            Broker::new(network.expect("it listens nowhere"), &contacts).await
        });
        Stranger {
            market: file.genesis.market_id(),
            broker: broker.expect("there are validators"),
            runtime,
        }
    }

    fn ask(&self, request: &Request) -> Result<Answer, AttemptError> {
        let validator = self.broker.validators()[0];
        self.runtime
            .block_on(self.broker.ask_one(validator, request))
    }

    fn submit(&self, command: Command) -> Result<Answer, AttemptError> {
        self.submit_all(vec![command], 30_000)
    }

    fn submit_all(&self, commands: Vec<Command>, valid_ms: u64) -> Result<Answer, AttemptError> {
        let batch = sign_with_new_key(self.market, commands, valid_ms);
        self.ask(&Request::Submit(batch))
    }

    fn committed(&self) -> u64 {
        match self.ask(&Request::Status) {
            Ok(Answer::Status(status)) => status.committed,
            other => panic!("not a status: {other:?}"),
        }
    }
}

#[test]
fn keys_without_an_account_do_not_fill_the_log() {
    let market = Market::up();
    let stranger = Stranger::join(&market);
    let before = stranger.committed();
    for _ in 0..128 {
        let answer = stranger.submit(Command::Stake { amount: Credits(1) });
        let refused = matches!(&answer, Ok(Answer::Applied(results))
            if matches!(results[..], [Err(Refusal::AccountUnknown { .. })]));
        assert!(refused, "{answer:?}");
    }
    let grown = stranger.committed() - before;
    assert!(grown < 64, "the log grew by {grown} entries");

    // A peer registers a few accounts, and then waits.
    let (mut registered, mut busy) = (0, 0);
    for _ in 0..64 {
        let name = Name::default();
        match stranger.submit(Command::Register { name }) {
            Ok(Answer::Applied(results)) if results.iter().all(Result::is_ok) => registered += 1,
            Err(AttemptError::Busy) => busy += 1,
            other => panic!("neither registered nor busy: {other:?}"),
        }
    }
    assert!(registered >= 16 && busy > 0, "{registered} and {busy}");
    assert_large_and_lasting_registrations_stay_out(&stranger);
}

/// They are refused for what they are, before any count.
fn assert_large_and_lasting_registrations_stay_out(stranger: &Stranger) {
    let register = || {
        let name = Name::default();
        Command::Register { name }
    };
    let before = stranger.committed();
    let transfer = Command::Transfer {
        to: AccountKey([7; 32]),
        amount: Credits(u64::MAX),
        reference: Name::try_from("a reference of thirty-two letters").expect("it is short"),
    };
    let mut commands = vec![register()];
    commands.resize(64, transfer);
    let large = stranger.submit_all(commands, 30_000);
    let is_large = matches!(
        large,
        Ok(Answer::TooLarge {
            bytes: 4_097..,
            bytes_max: 4_096
        })
    );
    assert!(is_large, "{large:?}");
    let lasting = stranger.submit_all(vec![register()], 660_000);
    assert!(matches!(lasting, Ok(Answer::Invalid(_))), "{lasting:?}");
    let grown = stranger.committed() - before;
    assert!(grown < 8, "the log grew by {grown} entries");
}
