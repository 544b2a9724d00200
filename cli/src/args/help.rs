//! Tests the `--help` text of every command against golden files.
//!
//! If you change a help text on purpose, run `SOUK_BLESS=1 cargo test -p souk-cli --lib help`, and
//! review the changed files in `cli/tests/help`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use super::Args;
use super::examples::COLUMNS;

/// The variable that makes the test write the files anew.
const BLESS: &str = "SOUK_BLESS";

/// Collects the long help of a command and of all its visible subcommands, each with its path.
fn collect_helps(command: &mut Command, path: &str, found: &mut Vec<(String, String)>) {
    found.push((path.to_owned(), command.render_long_help().to_string()));
    let is_shown = |sub: &&mut Command| !sub.is_hide_set() && sub.get_name() != "help";
    for sub in command.get_subcommands_mut().filter(is_shown) {
        let path = format!("{path} {}", sub.get_name());
        collect_helps(sub, &path, found);
    }
}

/// Returns all help texts at a width.
fn at_width(columns: usize) -> Vec<(String, String)> {
    let mut command = Args::build_command().term_width(columns);
    command.build();
    let mut found = Vec::new();
    collect_helps(&mut command, "souk", &mut found);
    found
}

fn help_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help")
}

/// Returns the expected files: one for each first word.
fn expected_files() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::<PathBuf, String>::new();
    for (path, help) in at_width(COLUMNS) {
        let first = path.split(' ').nth(1).unwrap_or("souk");
        let file = files.entry(help_folder().join(format!("{first}.txt")));
        let lines = help.lines().map(str::trim_end);
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        file.or_default()
            .push_str(&format!("==== {path} --help\n{text}\n"));
    }
    files
}

#[test]
fn help_of_every_command_is_as_the_files_in_git_say() {
    let files = expected_files();
    if std::env::var_os(BLESS).is_some() {
        fs::create_dir_all(help_folder()).unwrap();
        for (path, text) in &files {
            fs::write(path, text).unwrap();
        }
    }
    let known = fs::read_dir(help_folder()).unwrap();
    let mut known: Vec<PathBuf> = known.map(|entry| entry.unwrap().path()).collect();
    known.sort();
    let wanted: Vec<&PathBuf> = files.keys().collect();
    assert!(
        known.iter().eq(wanted),
        "a file for each command: {known:?}"
    );
    for (path, text) in &files {
        let kept = fs::read_to_string(path).unwrap();
        let mut lines = text.lines().zip(kept.lines()).enumerate();
        if let Some((place, (now, kept))) = lines.find(|(_, (now, kept))| now != kept) {
            let (path, line) = (path.display(), place + 1);
            panic!("{path}:{line} has\n  {kept}\nand is\n  {now}\n{BLESS}=1 writes it anew");
        }
        assert_eq!(text.len(), kept.len(), "{} ends elsewhere", path.display());
    }
}

#[test]
fn help_fits_a_terminal_and_breaks_no_word() {
    let unbroken = at_width(usize::from(u16::MAX));
    for ((path, help), (_, whole)) in at_width(COLUMNS).iter().zip(&unbroken) {
        for line in help.lines() {
            assert!(line.chars().count() <= COLUMNS, "{path}: {line}");
        }
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(help), words(whole), "{path} breaks a word");
    }
}
