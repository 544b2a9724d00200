//! `souk key …`: locks the secret key of a node with a passphrase or unlocks it, or creates an
//! operator's key.

use std::path::Path;

use serde_json::json;
use souk_folder::config::{KEY_FILE, OPERATOR_FOLDER};
use souk_folder::key::{KeyError, LockError, NodeKey, Passphrase};
use souk_node::market::AccountKey;

use crate::args::{Key, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::create_folder;
use crate::show;

/// Locks or unlocks the key in a node's folder, or creates an operator's key.
pub fn run(folder: &Path, output: Output, command: &Key) -> Outcome {
    if let Key::New = command {
        return new(folder, output);
    }
    let path = folder.join(KEY_FILE);
    let key = NodeKey::load(&path).map_err(from_key)?;
    let (passphrase, state) = match command {
        Key::Lock => (Some(Passphrase::choose_new().map_err(from_lock)?), "locked"),
        Key::Unlock | Key::New => (None, "bare"),
    };
    key.replace(&path, passphrase.as_ref()).map_err(from_key)?;
    let said = format!("{} is {state}", path.display());
    show::print_result(output, &json!({ "key": path, "state": state }), &said);
    Ok(())
}

/// Creates an operator's key if none exists.
fn new(folder: &Path, output: Output) -> Outcome {
    create_folder(folder)?;
    let path = folder.join(OPERATOR_FOLDER).join(KEY_FILE);
    let key = NodeKey::load_or_create(&path).map_err(from_key)?;
    let account = AccountKey(key.public_key());
    let text = format!(
        "{account}\n  its key is {}: keep a copy elsewhere. The founder of the market gives\n    \
         souk market create --operator {account} --threshold 2",
        path.display()
    );
    show::print_result(output, &json!({ "account": account, "key": path }), &text);
    Ok(())
}

/// Converts a failure to use a node's key.
pub fn from_key(error: KeyError) -> Failure {
    let hint = match &error {
        KeyError::Locked { .. } => "give the passphrase that you gave to `souk key lock`",
        KeyError::Open { .. } => "and consider that others may have read it",
        KeyError::File { .. } => {
            "a node's folder holds its key: is --dir right, and was it set up there?"
        }
        KeyError::Damaged { .. } => "put back a backup of the file",
    };
    Failure::new(Kind::State, error, hint)
}

fn from_lock(error: LockError) -> Failure {
    Failure::new(
        Kind::Input,
        error,
        "choose a passphrase and keep a copy of it elsewhere",
    )
}
