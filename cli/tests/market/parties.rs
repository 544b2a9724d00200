//! Tests who can fetch the contents of a job (inputs, weights, results) from its provider: the
//! job's parties can, strangers cannot.

use std::sync::Arc;

use serde_json::Value;
use souk_folder::key::{NodeKey, peer_of};
use souk_folder::market_file::MarketFile;
use souk_network::content::transfers::{FetchError, Scope, Tensors, TransferConfig};
use souk_network::protocols::lease::{Failure, ProviderMessage};
use souk_network::{Network, NetworkConfig};
use souk_node::client::broker::Broker;
use souk_node::market::{AccountKey, Credits, JobId, Lease};
use souk_node::memory::{ContentId, Store};

use crate::common::Market;
use crate::hand::Hand;
use crate::shares::{other_buyer, receipt, seller_of_two, single, stream};

/// Bytes of a content at most.
const BYTES_MAX: u64 = 1 << 30;

/// What a job's provider gives to whoever has this key and asks for a content of the job.
fn fetch(market: &Market, key: &NodeKey, body: &Value, id: &str) -> Result<usize, Box<FetchError>> {
    let text = |name: &str| body[name].as_str().expect("it is a text");
    let account = |name: &str| text(name).parse::<AccountKey>().expect("an account");
    let scope = Scope {
        buyer: account("buyer"),
        job: text("job").parse::<JobId>().expect("a job"),
    };
    let (provider, id) = (account("provider"), id.parse::<ContentId>().expect("an id"));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let network = Network::start(key, NetworkConfig::default()).await;
        let network = network.expect("it listens nowhere");
        let file = MarketFile::read_nearest(&market.folder().join("net")).expect("a market");
        let contacts = file.contacts().expect("its validators have addresses");
        let broker = Broker::new(network.clone(), &contacts).await;
        let found = broker
            .expect("there are validators")
            .find_contacts(&[provider])
            .await;
        for contact in found.expect("the market answers") {
            network
                .add_contact(&contact)
                .await
                .expect("it has addresses");
        }
        let config = TransferConfig {
            bytes_max: BYTES_MAX,
            ..TransferConfig::default()
        };
        let store = Arc::new(Store::in_memory(BYTES_MAX));
        let tensors = Tensors::start(network, key, store, config).await;
        let tensors = tensors.expect("it listens nowhere");
        let peer = peer_of(&provider.0).expect("a key");
        let fetched = tensors
            .fetch_content(scope, peer, id)
            .await
            .map_err(Box::new)?;
        Ok(fetched.bytes.len())
    })
}

/// All contents that a receipt names.
fn named(body: &Value) -> Vec<String> {
    let lists = ["inputs", "outputs"].map(|name| body[name].as_array().expect("a list").clone());
    let ids = lists.into_iter().flatten().chain([body["graph"].clone()]);
    ids.map(|id| id.as_str().expect("an id").to_owned())
        .collect()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn what_a_receipt_names_its_buyer_may_have_and_nobody_else() {
    let market = Market::up();
    let job = market.submit_few("out", &["--max-providers", "1"]).done();
    let body = &job["receipts"][0]["body"];
    let buyer = NodeKey::load(market.path("net/buyer/key").as_ref()).expect("a buyer");
    let others = [
        NodeKey::generate(),
        NodeKey::load(market.path("net/provider-4/key").as_ref()).expect("a provider"),
    ];
    let ids = named(body);
    assert_eq!(ids.len(), 3, "an input, an output and a graph: {body}");
    for id in &ids {
        for other in &others {
            let refused = fetch(&market, other, body, id);
            let is_missing = |error: &FetchError| matches!(error, FetchError::Missing { .. });
            assert!(
                refused.as_ref().is_err_and(|it| is_missing(it)),
                "{refused:?}"
            );
        }
        let fetched = fetch(&market, &buyer, body, id);
        assert!(
            fetched.as_ref().is_ok_and(|bytes| *bytes > 0),
            "{fetched:?}"
        );
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn weights_that_are_here_are_used_for_who_sent_them() {
    let market = Market::up();
    // The testnet's buyer has had it run the model.
    let (_seller, _hand) = seller_of_two(&market);
    let (net, other) = (market.folder().join("net"), other_buyer(&market));
    let came = |folder, out| {
        let body = receipt(single(&market, folder, out));
        body["bytes_in"].as_u64().expect("a number")
    };
    assert_eq!(came(&net, "again"), 0, "all is here already");
    let first = came(&other, "other");
    assert!(first > 1_000, "nothing is here for another: {first} bytes");
    assert_eq!(came(&other, "more"), 0);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_stranger_that_starts_a_lease_at_work_ends_nothing() {
    let market = Market::up();
    let (seller, hand) = seller_of_two(&market);
    let streaming = stream(&market, &market.folder().join("net"), "stream");
    let mut leases = hand.leases_of(seller.account()).into_iter();
    let lease = leases.find(Lease::is_running).expect("it runs");
    let stranger = Hand::stranger(&market, "stranger", Credits(1_000));
    for _ in 0..3 {
        let refused = stranger.start(&lease);
        let is_refused = matches!(refused, Some(ProviderMessage::Failed(Failure::Lease(_))));
        assert!(is_refused, "{refused:?}");
    }
    receipt(streaming);
}
