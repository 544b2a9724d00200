//! Runs a test in a separate process with simulated CUDA libraries, so that the CUDA backend can be
//! tested without a card. `fake.cpp` simulates the libraries; the process finds them before any
//! others.

use std::path::Path;
use std::process::Command;

use crate::host;

/// Path of the libraries' log, set in the process that uses them.
pub const LOG: &str = "SOUK_FAKE_LOG";

fn compile_library(folder: &Path) {
    let source = folder.join("fake.cpp");
    std::fs::write(&source, include_str!("fake.cpp")).expect("a test is built from what holds");
    std::fs::write(folder.join("host.cpp"), include_str!("host.cpp"))
        .expect("a test is built from what holds");
    let made = folder.join("libcuda.so");
    let options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-o"];
    let mut compiler = Command::new("c++");
    let ended = compiler.args(options).arg(&made).arg(&source).output();
    let ended = ended.expect("a test is built from what holds");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    for other in ["libnvrtc.so", "libcublasLt.so"] {
        std::os::unix::fs::symlink(&made, folder.join(other))
            .expect("a test is built from what holds");
    }
}

/// Runs a test in a process with the libraries, and returns their log; `None` without a C++
/// compiler.
#[must_use]
pub fn run_with_log(test: &str) -> Option<Vec<String>> {
    if !host::has_compiler() {
        eprintln!("SKIPPED: no C++ compiler for libraries in the place of CUDA's");
        return None;
    }
    let folder = tempfile::tempdir().expect("a test is built from what holds");
    compile_library(folder.path());
    let log = folder.path().join("log");
    let mut child = Command::new(std::env::current_exe().expect("a test is built from what holds"));
    child
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SOUK_FAKE_FOLDER", folder.path())
        .env("SOUK_FAKE_HOST", folder.path().join("host.cpp"))
        .env(LOG, &log);
    let ended = child.output().expect("a test is built from what holds");
    let said = String::from_utf8_lossy(&ended.stdout);
    let failed = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{failed}");
    assert!(said.contains("the card has run"), "{said}\n{failed}");
    let log = std::fs::read_to_string(log).expect("a test is built from what holds");
    Some(log.lines().map(str::to_owned).collect())
}
