//! `souk config show`: shows the effective settings of a folder, each with its source.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use souk_folder::config::{PROVIDER_FILE, PROVIDER_TOML, ProviderFile, VALIDATOR_FILE};
use souk_folder::market_file::{MARKET_FILE, MarketFile};

use crate::args::{GlobalArgs, Output};
use crate::failure::{Failure, Outcome};
use crate::folder::{from_config, own_account};
use crate::show::{self, Table};

/// An effective value and its source.
#[derive(Serialize)]
pub struct Setting {
    name: String,
    value: Value,
    from: String,
}

/// The default folder.
const DIR: &str = "souk-testnet";

/// Environment variables that affect souk, and whether each holds a secret.
const VARIABLES: &[(&str, bool)] = &[
    ("SOUK_LOG", false),
    ("SOUK_ONNXRUNTIME", false),
    ("SOUK_PASSPHRASE_FILE", false),
    ("SOUK_PASSPHRASE", true),
    ("NO_COLOR", false),
];

/// Shows all settings.
pub fn show_settings(global: &GlobalArgs, folder: &Path) -> Outcome {
    let settings = collect_settings(global, folder)?;
    if global.output() == Output::Json {
        show::print_json(&json!({ "settings": settings }));
        return Ok(());
    }
    let mut table = Table::new(&["what", "value", "from"]);
    for setting in settings {
        let value = match setting.value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        table.add_row([setting.name, value, setting.from]);
    }
    table.print();
    Ok(())
}

/// Returns all settings.
///
/// # Errors
/// Fails if a file of the folder cannot be read.
pub fn collect_settings(global: &GlobalArgs, folder: &Path) -> Result<Vec<Setting>, Failure> {
    let mut found = vec![dir_setting(global)];
    let mut say = |name: &str, value: Value, from: String| {
        let name = name.to_owned();
        found.push(Setting { name, value, from });
    };
    if let Some(name) = &global.market {
        say("market", json!(name), "--market".to_owned());
    }
    if folder.join(MARKET_FILE).exists() {
        let market = MarketFile::read(&folder.join(MARKET_FILE)).map_err(from_config)?;
        let (name, id) = (market.genesis.chain.clone(), market.genesis.market_id());
        say("market.name", json!(name), MARKET_FILE.to_owned());
        say("market.id", json!(id), MARKET_FILE.to_owned());
    }
    if let Some(account) = own_account(folder) {
        say("account", json!(account), "buyer/key".to_owned());
    }
    for (name, is_secret) in VARIABLES {
        if let Some(value) = env::var_os(name) {
            let value = match is_secret {
                true => "(set, not shown)".to_owned(),
                false => value.to_string_lossy().into_owned(),
            };
            say(name, json!(value), "variable".to_owned());
        }
    }
    if env::var_os("SOUK_LOG").is_none() {
        let from = match (global.quiet, global.verbose) {
            (true, _) => "--quiet",
            (_, 0) => "default",
            _ => "--verbose",
        };
        say("log", json!(global.log_filter()), from.to_owned());
    }
    found.extend(provider_settings(folder)?);
    found.extend(validator_settings(folder));
    Ok(found)
}

fn dir_setting(global: &GlobalArgs) -> Setting {
    let is_variable = env::var_os("SOUK_DIR").is_some_and(|dir| Path::new(&dir) == global.dir);
    let from = match is_variable {
        true => "SOUK_DIR",
        false if global.dir == Path::new(DIR) => "default",
        false => "--dir",
    };
    Setting {
        name: "dir".to_owned(),
        value: json!(global.dir),
        from: from.to_owned(),
    }
}

/// Returns the settings of the folder's provider: those of its file, and the defaults.
fn provider_settings(folder: &Path) -> Result<Vec<Setting>, Failure> {
    let (toml, json) = (folder.join(PROVIDER_TOML), folder.join(PROVIDER_FILE));
    if !toml.exists() && !json.exists() {
        return Ok(Vec::new());
    }
    let holds = ProviderFile::read_folder(folder).map_err(from_config)?;
    let holds = serde_json::to_value(holds).unwrap_or_default();
    let (file, written) = match toml.exists() {
        true => {
            let text = fs::read_to_string(&toml).unwrap_or_default();
            (PROVIDER_TOML, toml::from_str(&text).unwrap_or_default())
        }
        false => {
            let text = fs::read(&json).unwrap_or_default();
            (
                PROVIDER_FILE,
                serde_json::from_slice(&text).unwrap_or_default(),
            )
        }
    };
    let mut found = Vec::new();
    flatten_settings("provider", &holds, Some(&written), file, &mut found);
    Ok(found)
}

fn validator_settings(folder: &Path) -> Vec<Setting> {
    let path = folder.join(VALIDATOR_FILE);
    let text = fs::read(&path).unwrap_or_default();
    let Ok(holds) = serde_json::from_slice::<Value>(&text) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    flatten_settings(
        "validator",
        &holds,
        Some(&holds),
        VALIDATOR_FILE,
        &mut found,
    );
    found
}

/// Collects each value of a tree with its path, and whether the file sets it.
fn flatten_settings(
    name: &str,
    holds: &Value,
    written: Option<&Value>,
    file: &str,
    found: &mut Vec<Setting>,
) {
    if let Value::Object(fields) = holds {
        // A build with language models keeps the fields in their written order.
        let fields: BTreeMap<&String, &Value> = fields.iter().collect();
        for (field, value) in fields {
            let written = written.and_then(|written| written.get(field));
            flatten_settings(&format!("{name}.{field}"), value, written, file, found);
        }
        return;
    }
    let from = match written {
        Some(_) => file,
        None => "default",
    };
    found.push(Setting {
        name: name.to_owned(),
        value: holds.clone(),
        from: from.to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_a_file_is_told_apart_from_what_holds_without_it() {
        let holds = json!({ "price": 5, "limits": { "leases": 2, "hours": [] } });
        let written = json!({ "price": 5, "limits": { "leases": 2 } });
        let mut found = Vec::new();
        flatten_settings("provider", &holds, Some(&written), "its file", &mut found);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|setting| (setting.name.as_str(), setting.from.as_str()))
            .collect();
        let expected = [
            ("provider.limits.hours", "default"),
            ("provider.limits.leases", "its file"),
            ("provider.price", "its file"),
        ];
        assert_eq!(found, expected);
    }
}
