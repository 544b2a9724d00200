//! Tests the questions of `souk provider init`, and how it treats wrong answers.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Market, SOUK, souk};

/// Answers the questions of `provider init` with these lines: its exit code, and what it said.
fn answer(folder: &Path, lines: &[&str]) -> (i32, String) {
    let mut wizard = Command::new(SOUK)
        .arg("--dir")
        .arg(folder)
        .args(["provider", "init"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = wizard.stdin.take().expect("it is piped");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    input
        .write_all(text.as_bytes())
        .expect("there is room for few lines");
    drop(input);
    let ended = wizard.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.code().unwrap_or(-1), said)
}

#[test]
fn a_wrong_answer_is_named_and_asked_for_again() {
    let market = Market::up();
    let long = "n".repeat(200);
    let folder = market.folder().join("net/asked");
    let (code, said) = answer(
        &folder,
        &[
            &long,
            "asked",
            "h1000",
            "cuda:first",
            "nvidia-h100-sxm",
            "0",
            "two",
            "2",
            "-5",
            "500",
            "7-99",
            "20:00-08:00",
            "free",
            "-1",
            "0.25",
        ],
    );
    assert_eq!(code, 0, "{said}");
    for wrong in [
        "there is no device \"h1000\"",
        "\"first\" is not the number of a CUDA device",
        "\"0\" is not a number above 0",
        "\"two\" is not a number above 0",
        "\"-5\" is not a number above 0",
        "\"7-99\" is not a span of the day",
        "\"free\" is not a price",
        "the price: -1 is not an amount of credits",
    ] {
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    assert!(said.contains(&long), "{said}");
    let file = fs::read_to_string(folder.join("provider.toml")).expect("it is written");
    let stated = [
        "name = \"asked\"",
        "profile = \"nvidia-h100-sxm\"",
        "cores = 2",
        "memory_mib = 500",
        "20:00-08:00",
        "price = 250000",
    ];
    for line in stated {
        assert!(file.contains(line), "{line}: {file}");
    }

    // Who stops answering has accepted nothing.
    let folder = market.folder().join("net/left");
    let (code, said) = answer(&folder, &["left", "cpu"]);
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("ended before all questions were answered"),
        "{said}"
    );
    assert!(!folder.exists(), "nothing is written");
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn limits_that_leave_jobs_nothing_are_refused() {
    let market = Market::up();
    let folder = market.folder().join("net/none");
    let init = [
        "provider",
        "init",
        "--yes",
        "--device",
        "nvidia-h100-sxm",
        "--price",
        "0.1",
    ];
    for option in ["--cores", "--memory"] {
        let refused = souk(&folder, &[&init[..], &[option, "0"]].concat());
        assert_eq!(refused.code, 2, "{}", refused.stdout);
        assert!(
            refused.stdout.contains("0 is not in 1.."),
            "{}",
            refused.stdout
        );
        assert!(!folder.exists(), "nothing is written");
    }
    let missing = souk(&folder, &["provider", "status"]);
    assert_eq!(missing.code, 8);
    assert!(
        missing.stdout.contains("souk provider init"),
        "{}",
        missing.stdout
    );

    souk(&folder, &[&init[..], &["--cores", "1"]].concat()).done();
    let path = folder.join("provider.toml");
    let file = fs::read_to_string(&path).expect("it is written");
    fs::write(&path, file.replace("cores = 1", "cores = 0")).expect("it is written");
    let refused = souk(&folder, &["provider", "run"]);
    assert_eq!(refused.code, 8);
    assert!(
        refused.stdout.contains("limits.cores is 0"),
        "{}",
        refused.stdout
    );
}
