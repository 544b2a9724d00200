//! Tests that a key which is locked with a passphrase can be used only with it, and that only their
//! owner can read the files of jobs.

use std::fs;
use std::path::Path;
use std::process::Command;

use souk_folder::key::NodeKey;

use crate::common::{Market, Ran, SOUK};

fn souk(folder: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let ran = Command::new(SOUK)
        .arg("--dir")
        .arg(folder)
        .arg("--json")
        .args(arguments)
        .env_remove("SOUK_PASSPHRASE")
        .env_remove("SOUK_PASSPHRASE_FILE")
        .envs(environment.iter().copied())
        .output()
        .expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("what it prints is UTF-8");
    Ran {
        code: ran.status.code().unwrap_or(-1),
        stdout: text(ran.stdout),
        stderr: text(ran.stderr),
    }
}

#[test]
fn a_locked_key_is_used_with_its_passphrase_and_refused_without() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (folder, file) = (home.path(), home.path().join("key"));
    let key = NodeKey::generate();
    key.store(&file).expect("a key is written");
    let bare = fs::read_to_string(&file).expect("it is there");

    let without = souk(folder, &[], &["key", "lock"]);
    assert_eq!(without.code, 3, "{}", without.stdout);
    assert!(
        without.stdout.contains("SOUK_PASSPHRASE_FILE"),
        "{}",
        without.stdout
    );
    assert_eq!(
        fs::read_to_string(&file).expect("it is there"),
        bare,
        "nothing was changed"
    );

    let secret = folder.join("passphrase");
    fs::write(&secret, "correct horse\n").expect("a file is written");
    let named = [(
        "SOUK_PASSPHRASE_FILE",
        secret.to_str().expect("a plain path"),
    )];
    souk(folder, &named, &["key", "lock"]).done();
    let locked = fs::read_to_string(&file).expect("it is there");
    assert!(locked.starts_with("souk-key 1") && !locked.contains(bare.trim()));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&file).expect("it is there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);

    let refused = souk(folder, &[], &["key", "unlock"]);
    assert_eq!(refused.code, 8, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("it is locked"),
        "{}",
        refused.stdout
    );
    let wrong = souk(
        folder,
        &[("SOUK_PASSPHRASE", "battery")],
        &["key", "unlock"],
    );
    assert_eq!(wrong.code, 8);
    assert!(
        wrong.stdout.contains("does not open it"),
        "{}",
        wrong.stdout
    );

    souk(
        folder,
        &[("SOUK_PASSPHRASE", "correct horse")],
        &["key", "unlock"],
    )
    .done();
    assert_eq!(
        fs::read_to_string(&file).expect("it is there").trim(),
        bare.trim()
    );
}

#[test]
fn files_of_jobs_are_their_owners_alone() {
    let market = Market::up();
    market.submit_digits("out", &[]).done();
    let mut folders = vec![market.folder().join("out"), market.folder().join("net")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(mode_of(&folder), 0o700, "{}", folder.display());
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = entry.path();
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                assert_eq!(mode_of(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 20, "{files} files were looked at");
}

fn mode_of(path: &Path) -> u32 {
    let found = fs::metadata(path).expect("it is there");
    std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777
}
