//! What a market says that certifies nothing newer.

use serde_json::Value;

use crate::common::{Market, Ran};
use crate::members::take_away;

/// The error of a command that failed since too few validators signed; a report can come before it.
fn uncertified(ran: &Ran) -> Value {
    assert_eq!(ran.code, 7, "{} {}", ran.stdout, ran.stderr);
    let error = ran.stdout.lines().last().expect("an error");
    let error: Value = serde_json::from_str(error).expect("it is JSON");
    error["error"].clone()
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
