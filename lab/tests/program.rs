//! Tests the built `souk-lab` program: it prints the results of the attacks, and its help names the
//! commands as `souk …`.

use std::process::Command;

#[test]
fn attacks_are_played_and_printed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-lab"));
    let ended = command.args(["--json", "testnet", "attacks"]).output();
    let ended = ended.expect("the binary runs");
    assert!(ended.status.success());
    let findings: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    let findings = findings.as_array().expect("a list");
    assert!(findings.len() >= 10, "{} attacks", findings.len());
}

#[test]
fn help_names_the_commands_of_souk() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-lab"));
    let ended = command.args(["testnet", "--help"]).output();
    let ended = ended.expect("the binary runs");
    let help = String::from_utf8_lossy(&ended.stdout);
    for word in [
        "Usage: souk testnet",
        "sim",
        "attacks",
        "chaos",
        "hostile",
        "liars",
        "gossip",
    ] {
        assert!(help.contains(word), "{word} is missing:\n{help}");
    }
}
