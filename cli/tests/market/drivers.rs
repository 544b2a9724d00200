//! Tests that a driver or a library which crashes is reported by name and does no harm to the
//! command, and that power limits are refused where a machine has none.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Market, SOUK, souk};
use crate::hand::Hand;
use crate::seller::{Seller, until};

/// A library that ends whatever process opens it.
const CRASHES: &str =
    "#include <stdlib.h>\n__attribute__((constructor)) static void fail(void) { abort(); }\n";

/// A library that has nothing of use.
const HAS_NOTHING: &str = "int nothing(void) { return 0; }\n";

/// Makes a library of this text.
fn library(folder: &Path, name: &str, text: &str) {
    let source = folder.join("source.c");
    std::fs::write(&source, text).expect("a file is written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]);
    let built = compiler.arg(folder.join(name)).arg(&source);
    assert!(built.status().expect("there is a compiler").success());
}

/// Runs souk where that library is found first.
fn with_crashing(folder: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    library(folder, "libvulkan.so.1", CRASHES);
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(folder).args(["--output", "json"]);
    command.args(arguments).env("LD_LIBRARY_PATH", folder);
    let ran = command.output().expect("the binary runs");
    let said = serde_json::from_slice(&ran.stdout);
    (ran.status.code(), said.expect("it prints JSON"))
}

#[test]
fn a_driver_that_crashes_is_named_and_the_rest_is_listed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, listed) = with_crashing(folder.path(), &["device", "list"]);
    assert_eq!(code, Some(0));
    let absent = listed["gpus_absent"].as_str().expect("a reason");
    assert!(
        absent.contains("crashed") && absent.contains("SIGABRT"),
        "{absent}"
    );
    assert!(listed["cpu"]["threads"].as_u64() >= Some(1));
}

/// A provider's folder with a CPU and this library of ONNX Runtime beside its file.
fn with_library(folder: &Path, name: &str) {
    let file = json!({
        "format": 1, "name": "p", "listen": "/ip4/127.0.0.1/tcp/0", "price": 1000,
        "device": { "cpu": { "threads": 1 } }, "onnxruntime": name,
    });
    std::fs::write(folder.join("provider.json"), file.to_string()).expect("a file is written");
}

#[test]
fn a_library_that_is_named_and_not_usable_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    library(folder, "crashes.so", CRASHES);
    library(folder, "another.so", HAS_NOTHING);
    std::fs::write(folder.join("text.so"), "text").expect("a file is written");
    let causes = [
        ("nowhere.so", "does not exist"),
        ("text.so", "is not a library that this system can load"),
        ("another.so", "not ONNX Runtime's"),
        (
            "crashes.so",
            "crashed when it was opened (signal: 6 (SIGABRT)",
        ),
    ];
    for (name, cause) in causes {
        with_library(folder, name);
        let listed = souk(folder, &["device", "list"]).done();
        let absent = listed["onnxruntime_absent"].as_str().expect("a reason");
        let path = folder.join(name).display().to_string();
        assert!(absent.contains(&path) && absent.contains(cause), "{absent}");
        assert!(
            absent.contains("correct `onnxruntime` in provider.toml"),
            "{absent}"
        );
        assert_eq!(listed["onnxruntime_library"], Value::Null);
        let refused = souk(folder, &["device", "bench", "--quick"]);
        assert_eq!(refused.code, 3, "{}", refused.stdout);
        assert!(refused.stdout.contains(cause), "{}", refused.stdout);
    }
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn a_cpu_does_without_a_library_that_crashes_and_its_provider_says_so() {
    let market = Market::up();
    // The testnet's own real device: whatever is asked for real ones goes to the seller.
    let emulated = json!({ "emulated": { "profile": "amd-epyc-9654" } });
    market.set_in_provider("provider-1", &[("device", emulated)]);
    let mut seller = Seller::init(&market, "crashes");
    library(seller.folder.as_ref(), "crashes.so", CRASHES);
    seller.sell_cpu_beside("crashes.so");
    seller.start();
    let hand = Hand::join(&market);
    until("its ask is there", || {
        hand.listing(seller.account()).is_some()
    });
    let out = market.path("out");
    market.submit_digits(&out, &["--real"]).done();
    assert!(seller.is_alive());
    until("it ran there", || {
        seller.status()["closed_lease_count"] == 1
    });
    let status = seller.status();
    let found = &status["onnxruntime"];
    let cause = found["refused"].as_str().expect("why it is not used");
    assert!(
        cause.contains("crashes.so crashed when it was opened"),
        "{cause}"
    );
    assert_eq!(found["named"], true);
    let log = std::fs::read_to_string(seller.log()).expect("it writes a log");
    assert!(log.contains("the CPU runs without it"), "{log}");
}

#[test]
fn what_a_library_reaches_is_not_sold_by_one_that_is_nowhere() {
    let market = Market::with_one_provider();
    let mut seller = Seller::init(&market, "nowhere");
    seller.sell_runtime_by("nowhere.so", "cpu");
    seller.start();
    assert_eq!(seller.ended(), 3);
    let log = std::fs::read_to_string(seller.log()).expect("it writes a log");
    assert!(log.contains("nowhere.so does not exist"), "{log}");
    assert!(
        log.contains("correct `onnxruntime` in provider.toml"),
        "{log}"
    );
}

#[test]
fn a_processor_of_this_machine_is_shown_with_how_it_stands() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shown = souk(folder.path(), &["device", "show", "cpu"]).done();
    assert_eq!(shown["profile"]["kind"], "cpu", "{shown}");
    assert_eq!(shown["sheet"], Value::Null, "nobody measured it");
    let live = &shown["live"];
    let busy = live["utilisation"].as_f64().expect("a part");
    assert!((0.0..=1.0).contains(&busy), "{live}");
    assert!(live["memory_free_bytes"].as_u64() > Some(0), "{live}");
    let mut command = Command::new(SOUK);
    command.arg("--dir").arg(folder.path());
    let said = command.args(["device", "show", "cpu"]).output();
    let said = String::from_utf8(said.expect("the binary runs").stdout).expect("it is text");
    assert!(said.contains("% at work, memory free "), "{said}");
    let refused = souk(folder.path(), &["device", "show", "abacus"]).json();
    let cause = refused["error"]["cause"].as_str().expect("a cause");
    assert!(cause.contains("abacus"), "{cause}");
}

#[test]
fn what_drivers_have_is_listed_with_what_nobody_measured_left_open() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let listed = souk(folder.path(), &["device", "list"]).done();
    assert_eq!(listed["gpus_absent"], Value::Null, "each driver answered");
    let gpus = listed["gpus"].as_array().expect("a list");
    if gpus.is_empty() {
        eprintln!("SKIPPED: no Vulkan driver is installed, not even a software one");
    }
    for gpu in gpus {
        assert!(gpu["memory"]["bytes"].as_u64() > Some(0), "{gpu}");
        assert_eq!(gpu["memory"]["bytes_per_second"], Value::Null, "{gpu}");
    }
}

#[test]
fn a_device_whose_driver_crashes_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = ["device", "bench", "--backend", "wgpu", "--quick"];
    let (code, refused) = with_crashing(folder.path(), &bench);
    assert!(
        code.is_some_and(|code| code != 0),
        "by itself, and by no signal"
    );
    let cause = refused["error"]["cause"].as_str().expect("a cause");
    assert!(cause.contains("crashed"), "{cause}");
}

#[test]
fn a_power_domain_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = souk(
        folder.path(),
        &["device", "power", "nowhere:7", "--watts", "60"],
    );
    assert_eq!(refused.code, 3);
    assert!(
        refused.stdout.contains("no power domain is called"),
        "{}",
        refused.stdout
    );
    let shown = souk(folder.path(), &["device", "power"]).done();
    assert!(shown.is_array(), "{shown}");
}
