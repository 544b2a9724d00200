//! Tests what four validators certify by their signatures: proofs of receipts and balances hold
//! without the market, a validator that signs two contradictory heads is convicted, and one that
//! signs nothing is named.

use std::fs;
use std::path::Path;

use serde_json::Value;
use souk_folder::key::NodeKey;
use souk_node::client::history::{TreeNote, WitnessedNote};

use crate::common::{Market, Ran, digits, souk};
use crate::members::take_away;

/// The error of a command that failed since too few validators signed; a report can come before it.
fn uncertified(ran: &Ran) -> Value {
    assert_eq!(ran.code, 7, "{} {}", ran.stdout, ran.stderr);
    let error = ran.stdout.lines().last().expect("an error");
    let error: Value = serde_json::from_str(error).expect("it is JSON");
    error["error"].clone()
}

#[test]
fn a_receipt_a_balance_and_a_jobs_chain_are_proven_by_the_genesis_alone() {
    let market = Market::of_four();
    let done = market
        .submit_digits("out", &["--min-providers", "2"])
        .done();
    let receipts = done["receipt_files"].as_array().expect("two receipts");
    let receipts: Vec<&str> = receipts.iter().filter_map(Value::as_str).collect();
    let proofs = ["first.tlog-proof", "second.tlog-proof"].map(|it| market.path(it));
    let certify = |(receipt, proof): (&&str, &String)| {
        market
            .souk(&["receipt", "verify", *receipt, "--certified", "-o", proof])
            .done()
    };
    let certified: Vec<Value> = receipts.iter().zip(&proofs).map(certify).collect();
    let (receipt, payment, balance) = (receipts[0], &proofs[0], market.path("me.account-proof"));
    let proven = market.souk(&["account", "prove", "-o", &balance]).done();
    let checked = market.souk(&["market", "verify"]).done();
    assert_eq!(
        (&checked["needed"], &checked["validators"]),
        (&3.into(), &4.into())
    );
    assert_witness_signs_one_history(&market);
    market.souk(&["testnet", "down"]).done();
    assert!(market.processes("validator-").is_empty());

    // Somebody who has the genesis, and nothing else of the market.
    let alone = tempfile::tempdir().expect("a temporary folder");
    let genesis = market.folder().join("net/market.json");
    fs::copy(genesis, alone.path().join("market.json")).expect("the genesis");
    let check = |arguments: &[&str]| souk(alone.path(), arguments);
    let paid = check(&["receipt", "verify", receipt, "--proof", payment]).done();
    assert_eq!(paid["settled"], certified[0]["settled"]);
    let held = check(&["account", "verify", &balance]).done();
    assert_eq!(held["certified"], proven["certified"]);
    let images = digits("images.npy").to_string_lossy().into_owned();
    let logits = market.path("out/logits.npy");
    let whole = ["receipt", "chain", receipts[0], receipts[1], "-i", &images];
    let proven = [
        "--result", &logits, "--proof", &proofs[0], "--proof", &proofs[1],
    ];
    let chain = check(&[&whole[..], &proven].concat()).done();
    assert_chain_holds(&chain, &done, &certified);
    // A receipt, an input or a proof that is missing breaks it, and so does another output, or an
    // input that no receipt reads.
    let one = [
        "receipt",
        "chain",
        receipts[0],
        "-i",
        &images,
        "--result",
        &logits,
    ];
    let broken = [
        one.to_vec(),
        whole[..4].to_vec(),
        [&whole[..], &["--proof", &proofs[1]]].concat(),
        [&whole[..], &["--result", &images]].concat(),
        [&whole[..], &["-i", &logits]].concat(),
    ];
    for arguments in broken {
        assert_eq!(check(&arguments).code, 7, "{arguments:?}");
    }
    assert_fake_genesis_proves_nothing(alone.path(), receipt, [payment, &balance]);
}

/// A witness signs what validators certify, once, and others can demand that they see the same.
fn assert_witness_signs_one_history(market: &Market) {
    let sign = || market.souk(&["market", "witness", "--once"]);
    let first = sign().done();
    let path = first["checkpoint"].as_str().expect("a file");
    let old = fs::read_to_string(path).expect("a checkpoint");
    assert!(old.contains("\n— souk-witness/"), "{old}");
    market
        .souk(&["account", "transfer", &market.account_of("provider-1"), "1"])
        .done();
    market.until(|| sign().done()["size"].as_u64() > first["size"].as_u64());
    let newest = fs::read_to_string(path).expect("a checkpoint");
    let key = first["key"].as_str().expect("a key");
    let verify_with = |key: &str, text: &str, more: &[&str]| {
        let file = market.path("seen.checkpoint");
        fs::write(&file, text).expect("the folder is ours");
        let named = format!("{key}={file}");
        market.souk(&[&["market", "verify", "--witness", &named], more].concat())
    };
    let verify = |key: &str, text: &str| verify_with(key, text, &[]);
    let folder = market.path("net/validator-1/replica/history");
    for text in [&old, &newest] {
        for more in [&[][..], &["--from", &folder]] {
            let seen = &verify_with(key, text, more).done()["witnesses"][0];
            assert_eq!(seen["is_one_history"], true, "{more:?}: {seen}");
        }
    }
    let changed = old.replacen("\nindex ", "\nindex 1", 1);
    assert_eq!(
        verify(key, &changed).code,
        3,
        "it is not what the witness signed"
    );

    // A history with other steps, which only this witness' key signed.
    let home = Path::new(path).parent().expect("a folder");
    let [secret, state] = ["witness.key", "witness.signed"].map(|name| home.join(name));
    let secret = NodeKey::load(&secret).expect("the witness' key");
    let mut other = TreeNote::decode(old.as_bytes()).expect("a note");
    other.head.root.0[0] ^= 1;
    let other = WitnessedNote::sign(other, secret.signing_key(), 1).encode();
    let refused = uncertified(&verify(key, &other));
    let cause = refused["cause"].as_str().expect("a cause");
    assert!(cause.contains("contradicts the"), "{cause}");
    let refused = verify_with(key, &other, &["--from", &folder]);
    assert_eq!(refused.code, 7, "{} {}", refused.stdout, refused.stderr);
    fs::write(&state, &other).expect("the folder is ours");
    let refused = uncertified(&sign());
    let cause = refused["cause"].as_str().expect("a cause");
    assert!(cause.contains("does not continue the"), "{cause}");
    // Without the head that it signed last, or with a damaged one, it signs nothing.
    fs::write(&state, &changed).expect("the folder is ours");
    assert_eq!(sign().code, 7);
    fs::remove_file(&state).expect("the folder is ours");
    assert_eq!(sign().code, 7);
    fs::write(&state, &old).expect("the folder is ours");
    sign().done();
}

/// The chain leads from the images over what one provider made for the other, and has all prices.
fn assert_chain_holds(chain: &Value, done: &Value, certified: &[Value]) {
    let links = chain["links"].as_array().expect("two links");
    let reads = |place: usize| links[place]["inputs"].as_array().expect("inputs");
    let consumer = (0..2).find(|place| reads(*place).iter().any(|it| !it["lease"].is_null()));
    let consumer = consumer.expect("one reads what the other made");
    let maker = &links[1 - consumer];
    assert!(
        reads(consumer)
            .iter()
            .any(|it| it["lease"] == maker["lease"]),
        "{chain}"
    );
    assert!(
        reads(1 - consumer).iter().any(|it| it["file"].is_string()),
        "{chain}"
    );
    let amounts = done["receipts"].as_array().expect("two receipts").iter();
    let amounts = amounts.map(|it| it["body"]["amount"].as_u64().expect("an amount"));
    assert_eq!(chain["amount"].as_u64(), Some(amounts.sum()));
    for (link, certified) in links.iter().zip(certified) {
        assert_eq!(link["settled_at"], certified["settled"]["step"]);
    }
}

/// The same proofs under a genesis that names another validator.
fn assert_fake_genesis_proves_nothing(folder: &Path, receipt: &str, proofs: [&str; 2]) {
    let path = folder.join("market.json");
    let mut file: Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("the genesis")).expect("it is JSON");
    let validators = file["genesis"]["validators"].as_array_mut().expect("four");
    validators.pop();
    fs::write(&path, file.to_string()).expect("the folder is ours");
    let [payment, balance] = proofs;
    let paid = souk(folder, &["receipt", "verify", receipt, "--proof", payment]);
    assert_eq!(paid.code, 7, "{}", paid.stdout);
    let held = souk(folder, &["account", "verify", balance]);
    assert_eq!(held.code, 7, "{}", held.stdout);
}

/// A liar with a validator's key tells each lie; whoever has the genesis can check whom the files
/// name, and nobody honest is among them.
#[test]
fn a_validator_that_signs_two_heads_of_one_size_is_convicted_by_two_files() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let out = home.path().join("lies");
    let folder = out.to_string_lossy();
    let told = souk(home.path(), &["testnet", "liars", "-o", &folder]).done();
    let lies = told["lies"].as_array().expect("lies");
    let verdicts = lies
        .iter()
        .map(|lie| lie["verdict"].as_str().expect("a verdict"));
    let count = |wanted: &str| verdicts.clone().filter(|it| *it == wanted).count();
    let counts = ["convicted", "suspected", "seen", "outvoted"].map(count);
    assert_eq!(counts, [3, 3, 1, 2], "{told}");
    for lie in lies.iter().filter(|lie| lie["verdict"] == "convicted") {
        let files = lie["evidence"].as_array().expect("files");
        // If a newer head was certified before the lie, a folder shows that the two don't fit.
        let files = files.iter().filter_map(Value::as_str).map(Path::new);
        let files: Vec<&Path> = files.filter(|path| path.is_file()).collect();
        assert_eq!(files.len(), 2, "{lie}");
        let alone = tempfile::tempdir().expect("a temporary folder");
        let copy = |file: &Path| {
            let name = file.file_name().expect("a file's name");
            fs::copy(file, alone.path().join(name)).expect("the folder is ours");
        };
        copy(&files[0].with_file_name("market.json"));
        copy(files[0]);
        let here = alone.path().to_string_lossy();
        let verify = ["market", "verify", "--from", &here];
        // One file convicts nobody.
        let half = souk(alone.path(), &verify);
        assert!(!half.stdout.contains("\"liars\":[4]"), "{}", half.stdout);
        copy(files[1]);
        let error = uncertified(&souk(alone.path(), &verify));
        assert_eq!(error["liars"], serde_json::json!([4]), "{error}");
    }
}

#[test]
fn who_does_not_sign_is_named_when_nothing_newer_is_certified() {
    let market = Market::replicated();
    let certified = market.souk(&["market", "verify"]);
    assert_eq!(
        certified.code, 0,
        "{} {}",
        certified.stdout, certified.stderr
    );
    // The other two go on to commit; a head takes all three.
    let account = market.account_of("validator-3");
    take_away(&market, 3);
    let name = format!("validator 3 ({})", &account[..8]);
    let done = market.submit_digits("out", &[]).done();
    let receipt = done["receipt_files"][0].as_str().expect("a receipt");

    let error = uncertified(&market.souk(&["receipt", "verify", receipt, "--certified"]));
    let cause = error["cause"].as_str().expect("a cause");
    assert!(cause.contains("certified up to "), "{cause}");
    assert!(cause.contains("signed up to "), "{cause}");
    assert!(cause.contains("3 of 3 validators must sign"), "{cause}");
    assert!(
        cause.contains(&format!("{name} does not answer")),
        "{cause}"
    );
    let hint = error["hint"].as_str().expect("a hint");
    assert!(hint.contains("start validator 3 again"), "{hint}");
    let third = &error["validators"][2];
    assert_eq!(third["account"], *account);
    assert!(third["signed_size"].as_u64() < error["validators"][0]["signed_size"].as_u64());

    // A balance is still proven by the last certified state, and what is wrong is said.
    let proven = market.souk(&["account", "prove"]);
    assert_eq!(proven.code, 0, "{} {}", proven.stdout, proven.stderr);
    assert!(proven.stderr.contains(&name), "{}", proven.stderr);
    market.until(|| market.souk(&["market", "verify"]).code == 7);
    let error = uncertified(&market.souk(&["market", "verify"]));
    let cause = error["cause"].as_str().expect("a cause");
    assert!(cause.starts_with("nothing newer is certified"), "{cause}");
    assert!(cause.contains(&name), "{cause}");
}
