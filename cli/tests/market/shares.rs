//! Tests a provider that sells several leases of its device at once, to two buyers, each of whom
//! pays for what it used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use souk_folder::key::NodeKey;
use souk_node::market::{Credits, Units};

use crate::common::{IMAGES, Market, SOUK, digits, images, kill};
use crate::hand::Hand;
use crate::seller::{Seller, until};

/// Requests of a stream.
const COUNT: usize = 16;

/// What a stream may send in a second: a request of a kilobyte takes half a second.
const UPLOAD: &str = "2000";

/// A provider that sells two leases at once and holds the model, and what sees the book.
pub fn seller_of_two(market: &Market) -> (Seller, Hand) {
    let mut seller = Seller::init(market, "shared");
    seller.sell_leases(2);
    seller.start();
    let hand = Hand::join(market);
    until("it is on offer", || free(&hand, &seller) == 2);
    receipt(single(market, &market.folder().join("net"), "before"));
    until("all is on offer again", || free(&hand, &seller) == 2);
    (seller, hand)
}

/// Leases of it that are on offer.
fn free(hand: &Hand, seller: &Seller) -> u32 {
    let listing = hand.listing(seller.account());
    listing.map_or(0, |listing| listing.quantity.0)
}

/// The folder of another buyer in the same market, with credits of its own.
pub fn other_buyer(market: &Market) -> PathBuf {
    let (net, folder) = (market.folder().join("net"), market.folder().join("other"));
    let key = NodeKey::generate();
    fs::create_dir_all(folder.join("buyer")).expect("a folder is made");
    fs::copy(net.join("market.json"), folder.join("market.json")).expect("a market");
    let path = folder.join("buyer/key");
    key.store(&path).expect("a key is written");
    drop(Hand::funded(market, key, "other", Credits(1_000_000_000)));
    folder
}

/// A submission to nobody but the seller, that may not wait for it.
fn submission(market: &Market, folder: &Path, out: &str) -> Command {
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(folder).args(["--json", "submit"]);
    command.arg(digits("digits.onnx"));
    command.args(["-o", &market.path(out)]);
    for number in 1..=4 {
        let other = market.account_of(&format!("provider-{number}"));
        command.args(["--exclude", &other]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A stream that takes seconds, since what it sends is held back.
pub fn stream(market: &Market, folder: &Path, out: &str) -> Child {
    let requests = market.path("requests");
    fs::create_dir_all(&requests).expect("a folder is made");
    for number in 0..COUNT {
        market.write(
            &format!("requests/{number:03}.npy"),
            &images(number * 5, IMAGES),
        );
    }
    let mut command = submission(market, folder, out);
    command.args(["--stream", &format!("images={requests}"), "--window", "1"]);
    command.args(["--upload-limit", UPLOAD, "--no-direct"]);
    let streaming = command.spawn().expect("the binary runs");
    // Before anything is bought a hidden file is written there, and removed.
    let is_answer = |entry: &fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let answered = || {
        let entries = fs::read_dir(market.path(out)).into_iter().flatten();
        entries.flatten().any(|entry| is_answer(&entry))
    };
    until("it is answered", answered);
    streaming
}

/// One run by itself.
pub fn single(market: &Market, folder: &Path, out: &str) -> Child {
    let images = format!("images={}", market.write("few.npy", &images(0, IMAGES)));
    let mut command = submission(market, folder, out);
    command
        .args(["-i", &images])
        .spawn()
        .expect("the binary runs")
}

/// The one receipt of a submission that ended well.
pub fn receipt(job: Child) -> Value {
    let ended = job.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}");
    let done: Value = serde_json::from_slice(&ended.stdout).expect("it prints JSON");
    let receipts = done["receipts"].as_array().expect("a list");
    assert_eq!(receipts.len(), 1, "all was done under one lease: {done}");
    receipts[0]["body"].clone()
}

fn number(body: &Value, name: &str) -> u64 {
    body[name].as_u64().expect("a number")
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn two_buyers_have_a_part_of_one_provider_each_and_pay_for_what_they_used() {
    let market = Market::up();
    let (seller, hand) = seller_of_two(&market);
    let whole = hand.listing(market.account_key("provider-1"));
    assert_eq!(whole.expect("it is on offer").quantity, Units(1));
    let (net, other) = (market.folder().join("net"), other_buyer(&market));
    let earned = || market.available(&seller.account().to_string());
    let before = earned();

    let streaming = stream(&market, &net, "first");
    assert_eq!(free(&hand, &seller), 1, "one of two is sold");
    let single = receipt(single(&market, &other, "second"));
    let streamed = receipt(streaming);
    assert_ne!(single["buyer"], streamed["buyer"]);
    for body in [&single, &streamed] {
        assert_eq!(body["provider"], seller.account().to_string());
        assert!(number(body, "usage") > 0 && number(body, "amount") > 0);
    }
    assert!(
        number(&streamed, "started") < number(&single, "started")
            && number(&single, "started") < number(&streamed, "finished"),
        "the one was done while the other was: {single} {streamed}"
    );
    market.assert_escrow_returns();
    let paid = number(&single, "amount") + number(&streamed, "amount");
    assert!(
        earned() > before && earned() <= before + paid,
        "what was used, less the fee"
    );
    until("both are on offer again", || free(&hand, &seller) == 2);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn of_two_leases_of_one_provider_the_end_of_one_is_nothing_to_the_other() {
    let market = Market::up();
    let (seller, hand) = seller_of_two(&market);
    let (net, other) = (market.folder().join("net"), other_buyer(&market));
    // What it sends as slowly later are its requests alone.
    receipt(single(&market, &other, "model"));
    until("all is on offer again", || free(&hand, &seller) == 2);
    let mut ended = stream(&market, &net, "first");
    let kept = stream(&market, &other, "second");
    assert_eq!(free(&hand, &seller), 0, "both are sold");
    kill(ended.id(), "-INT");
    assert_eq!(ended.wait().expect("it ends").code(), Some(130));
    until("what it had is on offer again", || {
        free(&hand, &seller) == 1
    });
    let kept = receipt(kept);
    let outputs = kept["outputs"].as_array().expect("a list");
    assert_eq!(
        outputs.len(),
        COUNT,
        "every request was answered under one lease"
    );
    market.assert_escrow_returns();
}
