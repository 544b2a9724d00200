//! Drivers that answer and drivers that crash, and power that is asked for where there is none to limit.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{SOUK, souk};

/// A library by the name of Vulkan's that ends whatever process opens it.
fn crashing(folder: &Path) {
    let source = folder.join("crash.c");
    let text =
        "#include <stdlib.h>\n__attribute__((constructor)) static void fail(void) { abort(); }\n";
    std::fs::write(&source, text).expect("a file is written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]);
    let built = compiler.arg(folder.join("libvulkan.so.1")).arg(&source);
    assert!(built.status().expect("there is a compiler").success());
}

/// Runs souk where that library is found first.
fn with_crashing(folder: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    crashing(folder);
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
