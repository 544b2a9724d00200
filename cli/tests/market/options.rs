//! Tests options that all commands share (`--output`, `--timeout`, the width of tables), `souk
//! debug bundle`, changes of a provider's price, and profiles of a testnet.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::{Market, Ran, SOUK, digits, souk};
use crate::http::Client;

/// Runs a command against a market with no more options than these.
fn plain(market: &Market, arguments: &[&str]) -> Ran {
    let ran = Command::new(SOUK)
        .args(["--dir", &market.path("net")])
        .args(arguments)
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = ran.expect("the binary runs");
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8(stdout).expect("what it prints is UTF-8"),
        stderr: String::from_utf8(stderr).expect("what it prints is UTF-8"),
    }
}

/// The arguments that submit the digits model.
fn submission(market: &Market) -> [String; 6] {
    [
        "submit".to_owned(),
        digits("digits.onnx").display().to_string(),
        "-i".to_owned(),
        format!("images={}", digits("images.npy").display()),
        "-o".to_owned(),
        market.path("out"),
    ]
}

/// Each line as JSON.
fn lines(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    let line = |line: &str| serde_json::from_str(line).expect("a line is a JSON value");
    ran.stdout.lines().map(line).collect()
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_job_is_told_line_by_line_and_a_list_is_a_line_for_each_entry() {
    let market = Market::up();
    let submission = submission(&market);
    let words: Vec<&str> = submission.iter().map(String::as_str).collect();
    let told = lines(&plain(
        &market,
        &[&["--output", "jsonl"], &words[..]].concat(),
    ));
    let (first, last) = (told.first().expect("lines"), told.last().expect("lines"));
    assert_eq!(first["event"], "planned");
    assert_eq!(last["receipts"].as_array().map(Vec::len), Some(1));
    let events = &told[1..told.len() - 1];
    assert!(
        events
            .iter()
            .all(|line| line["at"].is_string() && line["event"].is_string())
    );
    assert_eq!(events[0]["event"], "leased", "{events:?}");
    // What is told as it happens is told alike by whoever looks later.
    let job = first["job"].as_str().expect("a name");
    let logs = lines(&plain(&market, &["--output", "jsonl", "job", "logs", job]));
    assert_eq!(logs, events);

    let jobs = lines(&plain(&market, &["--output", "jsonl", "job", "list"]));
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0]["name"], first["job"]);
    let asks = lines(&plain(&market, &["--output=jsonl", "book"]));
    assert_eq!(asks.len(), 4);

    // What is for no terminal has no escapes, and one that is to be quiet says nothing beside.
    for more in [&[][..], &["--quiet"], &["--verbose", "--no-color"]] {
        let ran = plain(&market, &[more, &words[..]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(
            !(ran.stdout.clone() + &ran.stderr).contains('\x1b'),
            "{ran:?}",
            ran = ran.stdout
        );
        assert!(ran.stdout.contains("credits"), "{}", ran.stdout);
        assert_eq!(ran.stderr.is_empty(), more == ["--quiet"], "{}", ran.stderr);
    }
}

#[test]
fn what_is_not_done_in_time_is_stopped_as_by_hand() {
    let market = Market::with_one_provider();
    let submission = submission(&market);
    let words: Vec<&str> = submission.iter().map(String::as_str).collect();
    let waits = ["--timeout", "3s", "--json"];
    let bid = ["--bid", "0.000001", "--wait", "2m"];
    let begun = Instant::now();
    let late = plain(&market, &[&waits, &words[..], &bid].concat());
    assert_eq!(late.code, 10, "{} {}", late.stdout, late.stderr);
    assert_eq!(late.json()["error"]["kind"], "deadline");
    assert!(begun.elapsed().as_secs() < 60, "it waited for no bid");
    assert_eq!(
        market.souk(&["order", "list"]).done(),
        json!([]),
        "the bid is taken back"
    );
    // What is done before is as without.
    assert_eq!(plain(&market, &["--timeout", "1h", "book"]).code, 0);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn tables_fit_any_terminal_and_cut_nothing_that_has_room() {
    const VIEWS: [&[&str]; 13] = [
        &["book"],
        &["balance"],
        &["top", "--once"],
        &["config", "show"],
        &["job", "list"],
        &["testnet", "status"],
        &["market", "classes"],
        &["market", "price"],
        &["account", "show"],
        &["account", "history"],
        &["order", "list"],
        &["device", "list"],
        &["validator", "list"],
    ];
    let market = Market::up();
    market.submit_digits("out", &[]).done();
    for view in VIEWS {
        let shown = [60, 80, 120].map(|columns: usize| {
            let ran = Command::new(SOUK)
                .args(["--dir", &market.path("net")])
                .args(view)
                .env("COLUMNS", columns.to_string())
                .output();
            let text = ran.expect("the binary runs").stdout;
            let text = String::from_utf8(text).expect("what it prints is UTF-8");
            let table = |line: &&str| line.starts_with("  ");
            for line in text.lines().filter(table) {
                assert!(
                    line.chars().count() <= columns,
                    "{view:?} {columns}: {line}"
                );
            }
            text.chars().count()
        });
        assert!(
            shown.is_sorted(),
            "{view:?}: more room shows no less: {shown:?}"
        );
        assert!(shown[0] > 0, "{view:?} shows something");
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_provider_asks_another_price_while_it_runs() {
    let (market, address) = Market::with_gateway();
    let account = market.account_of("provider-2");
    let price = || {
        let book = market.souk(&["book"]).done();
        let asks = book.as_array().expect("a list").iter();
        let found = asks.clone().find(|ask| ask["provider"] == account.as_str());
        found.map(|ask| ask["price"].clone())
    };
    let home = market.folder().join("net/provider-2");
    let set = souk(&home, &["provider", "price", "0.75"]).done();
    assert_eq!(set, json!({ "price": 750_000, "previous_price": 900_000 }));
    market.until(|| price() == Some(json!(750_000)));
    assert_eq!(souk(&home, &["provider", "price"]).done()["price"], 750_000);
    assert_eq!(souk(&home, &["provider", "price", "nan"]).code, 3);

    let tokens = fs::read(market.path("net/buyer/http-tokens.json")).expect("a file is read");
    let tokens: Value = serde_json::from_slice(&tokens).expect("the tokens are JSON");
    let ask = |scope: &str, account: &str| {
        let client = Client {
            address: address.clone(),
            token: tokens[scope].as_str().expect("a text").to_owned(),
        };
        assert_eq!(client.get("/v1/status").of(200)["scope"], scope);
        let headers = [("content-type", "application/json")];
        let path = format!("/v1/providers/{account}");
        client.ask("PATCH", &path, &headers, br#"{"price":600000}"#)
    };
    assert_eq!(ask("trade", &account).status, 403);
    let stranger = market.account_of("buyer");
    assert_eq!(ask("operate", &stranger).status, 404, "it sells nothing");
    let set = ask("operate", &account).of(200);
    assert_eq!(
        (&set["price"], &set["previous_price"]),
        (&json!(600_000), &json!(750_000))
    );
    market.until(|| price() == Some(json!(600_000)));
}

/// What nobody else may read: the contents of keys and tokens below a folder.
fn secrets(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder is read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            secrets(&path, found);
        } else if path.ends_with("key") {
            found.push(
                fs::read_to_string(&path)
                    .expect("a key is text")
                    .trim()
                    .to_owned(),
            );
        } else if path.ends_with("http-tokens.json") {
            let tokens = fs::read_to_string(&path).expect("tokens are text");
            let tokens: Value = serde_json::from_str(&tokens).expect("tokens are JSON");
            let tokens = tokens.as_object().expect("by name").values();
            found.extend(tokens.map(|token| token.as_str().expect("a text").to_owned()));
        }
    }
}

#[test]
fn a_report_holds_what_helps_and_no_secret() {
    let (market, _) = Market::with_gateway();
    let out = market.path("report.json");
    let written = Command::new(SOUK)
        .args([
            "--dir",
            &market.path("net"),
            "debug",
            "bundle",
            "--out",
            &out,
        ])
        .env("SOUK_PASSPHRASE", "a passphrase that nobody reads")
        .status();
    assert!(written.expect("the binary runs").success());
    let text = fs::read_to_string(&out).expect("a report is written");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let about = |finding: &Value| finding["about"].as_str().map(str::to_owned);
    let findings = report["findings"].as_array().expect("a list").iter();
    let findings: Vec<String> = findings.filter_map(about).collect();
    assert!(
        findings.iter().any(|about| about == "market"),
        "{findings:?}"
    );
    assert_eq!(
        report["logs"].as_array().map(Vec::len),
        Some(7),
        "of each process, and of who started them"
    );
    let settings = report["settings"].as_array().expect("a list").iter();
    assert!(
        settings
            .clone()
            .any(|setting| setting["name"] == "SOUK_PASSPHRASE")
    );

    let mut hidden = vec!["a passphrase that nobody reads".to_owned()];
    secrets(&market.folder().join("net"), &mut hidden);
    assert!(
        hidden.len() > 9,
        "seven keys, three tokens: {}",
        hidden.len()
    );
    for secret in hidden {
        assert!(!text.contains(&secret), "a secret is in it");
    }
}

#[test]
fn a_testnet_is_made_of_what_a_profile_lists() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let listed = home.path().join("providers.toml");
    let text = "[[provider]]\ndevice = \"nvidia-l4\"\nprice = 0.11\ncount = 2\n";
    fs::write(&listed, text).expect("a file is written");
    let net = home.path().join("net");
    let listed = listed.display().to_string();
    let up = [
        "testnet",
        "up",
        "--detach",
        "--no-http",
        "--validators",
        "1",
    ];
    souk(&net, &[&up[..], &["--profile", &listed]].concat()).done();
    let book = souk(&net, &["book"]).done();
    let logs = souk(&net, &["testnet", "logs", "provider-3"]);
    let top = souk(&net, &["top"]).done();
    souk(&net, &["testnet", "down"]).done();
    let prices: Vec<u64> = book
        .as_array()
        .expect("a list")
        .iter()
        .map(|ask| ask["price"].as_u64().unwrap())
        .collect();
    assert_eq!(prices, [110_000, 110_000]);
    assert_eq!(top["asks"].as_array().map(Vec::len), Some(2));
    assert_eq!(logs.code, 3);
    assert_eq!(
        logs.json()["error"]["hint"],
        "its nodes are validator-1, provider-1, provider-2"
    );
    let wrong = souk(
        &home.path().join("other"),
        &["testnet", "up", "--profile", "huge"],
    );
    assert_eq!(wrong.code, 3, "{}", wrong.stdout);
}
