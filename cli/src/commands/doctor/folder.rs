//! Checks the folder for `souk doctor`: its contents, whether souk can write to it, and who else
//! can read its keys.

use std::fs;
use std::path::{Path, PathBuf};

use souk_folder::config::{ConfigError, KEY_FILE, ProviderFile};
use souk_folder::key::{KeyError, NodeKey};
use souk_folder::market_file::MarketFile;
use souk_node::provider;
use souk_sandbox::executor::IsolationFile;

use super::Finding;
use crate::suggested_command;

/// Checks a folder.
pub fn check_folder(dir: &Path) -> Vec<Finding> {
    if !dir.exists() {
        let found = format!("there is no folder {}", dir.display());
        let fix = "`souk testnet up` makes one to try things, `souk market join INVITATION` one \
                   of a market; or give --dir";
        return vec![Finding::warning("folder", found, fix)];
    }
    let mut findings = vec![check_writable(dir)];
    findings.extend(check_keys(dir));
    findings.extend(check_provider(dir));
    findings
}

fn check_writable(dir: &Path) -> Finding {
    let place = dir.display();
    match tempfile::tempfile_in(dir) {
        Ok(_) => Finding::good("folder", format!("{place} can be written")),
        Err(error) => {
            let found = format!("{place} cannot be written: {error}");
            Finding::problem(
                "folder",
                found,
                "give it to the user who runs souk: chown, chmod",
            )
        }
    }
}

/// Checks every key of the folder and of the nodes directly below it.
fn check_keys(dir: &Path) -> Vec<Finding> {
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
    places.push(dir.to_owned());
    places.sort();
    let files = places.iter().map(|place| place.join(KEY_FILE));
    let files: Vec<PathBuf> = files.filter(|file| file.is_file()).collect();
    let faults: Vec<Finding> = files.iter().filter_map(|file| key_fault(file)).collect();
    match (files.len(), faults.is_empty()) {
        (0, _) => Vec::new(),
        (many, true) => vec![Finding::good(
            "keys",
            format!("{many} found, read by their owner"),
        )],
        _ => faults,
    }
}

fn key_fault(file: &Path) -> Option<Finding> {
    if NodeKey::is_locked(file) {
        return None;
    }
    let error = NodeKey::load(file).err()?;
    let fix = match &error {
        KeyError::Open { path, .. } => format!("chmod 600 {}", path.display()),
        _ => "restore it from your backup: nothing else brings the account back".to_owned(),
    };
    Some(Finding::problem("keys", error.to_string(), fix))
}

/// Checks the folder's provider, if it has one: its offers and its sandbox.
fn check_provider(dir: &Path) -> Vec<Finding> {
    let file = match ProviderFile::read_folder(dir) {
        Ok(file) => file,
        Err(ConfigError::Missing { .. }) => return check_market_file(dir).into_iter().collect(),
        Err(error) => {
            let fix = "correct that file, or write a new one with `souk provider init`";
            return vec![Finding::problem("provider", error.to_string(), fix)];
        }
    };
    let mut findings = vec![match provider::is_running(dir) {
        true => Finding::good("provider", format!("{} runs", file.name)),
        false => {
            let found = format!("{} does not run", file.name);
            Finding::warning(
                "provider",
                found,
                suggested_command::market_command("provider run"),
            )
        }
    }];
    let kept = IsolationFile::read(dir);
    let missing = kept.map(|kept| kept.policy.missing).unwrap_or_default();
    for rule in missing {
        let found = format!("missing in the sandbox: {rule}");
        findings.push(match rule.wall {
            true => {
                let fix = "use a kernel that has it; `isolation = \"partial\"` sells without it";
                Finding::problem("walls", found, fix)
            }
            false => {
                let fix = "run it where the system gives out control groups, such as under systemd";
                Finding::warning("walls", found, fix)
            }
        });
    }
    findings
}

/// Returns a finding if the market's file exists but cannot be read.
fn check_market_file(dir: &Path) -> Option<Finding> {
    match MarketFile::read_nearest(dir) {
        Ok(_) | Err(ConfigError::Missing { .. }) => None,
        Err(error) => {
            let fix = "join anew in another folder: `souk --dir FOLDER market join INVITATION`";
            Some(Finding::problem("market", error.to_string(), fix))
        }
    }
}
