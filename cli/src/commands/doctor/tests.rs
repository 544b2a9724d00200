//! Tests the checks of `souk doctor`: a healthy machine, a missing folder, keys that others can
//! read, wrong files.

use std::fs;

use super::{Severity, folder, machine, market};

#[test]
fn a_machine_that_tests_run_on_has_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let findings = machine::check_machine(dir.path());
    assert!(
        findings
            .iter()
            .any(|it| it.about == "devices" && it.found.contains("cpu"))
    );
    let problems = findings
        .iter()
        .filter(|it| it.severity == Severity::Problem);
    let problems: Vec<&str> = problems.map(|it| it.found.as_str()).collect();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_folder_that_is_not_there_is_told_with_what_makes_one() {
    let dir = tempfile::tempdir().unwrap();
    let findings = folder::check_folder(&dir.path().join("nothing"));
    assert_eq!(findings.len(), 1);
    let fix = findings[0].fix.as_deref().unwrap();
    assert!(
        fix.contains("testnet up") && fix.contains("market join"),
        "{fix}"
    );
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_and_one_that_is_none_are_problems() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    for (node, mode) in [("buyer", 0o644), ("provider-1", 0o600)] {
        let place = dir.path().join(node);
        fs::create_dir(&place).unwrap();
        fs::write(place.join("key"), "no key").unwrap();
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(place.join("key"), mode).unwrap();
    }
    let findings = folder::check_folder(dir.path());
    let of_keys: Vec<_> = findings.iter().filter(|it| it.about == "keys").collect();
    assert_eq!(of_keys.len(), 2);
    assert!(of_keys.iter().all(|it| it.severity == Severity::Problem));
    assert!(of_keys[0].fix.as_deref().unwrap().contains("chmod 600"));
    assert!(of_keys[1].fix.as_deref().unwrap().contains("backup"));
}

#[test]
fn a_file_that_does_not_parse_is_told_by_its_place() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("provider.toml"), "format = ").unwrap();
    let findings = folder::check_folder(dir.path());
    let file = findings.iter().find(|it| it.about == "provider").unwrap();
    assert!(file.severity == Severity::Problem && file.found.contains("provider.toml"));
}

#[tokio::test]
async fn a_folder_without_a_market_has_none_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    assert!(market::check_market(dir.path()).await.is_empty());
}
