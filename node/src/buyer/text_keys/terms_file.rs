//! Issues and revokes the API keys of an organisation, in a file that has one line for each change.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use souk_folder::facts::{FactLog, FactLogError};
use souk_folder::key::NodeKey;
use souk_memory::ContentId;
use souk_roles::tokens::keys::{KeyBudget, KeyId, KeyName, KeyTerms, ModelPattern};

use super::now;

/// The file of the keys, relative to the folder of the market.
pub const TERMS_FILE: &str = "buyer/openai-keys.jsonl";

/// The format of its lines.
const TERMS_FORMAT: &str = "openai-keys-1";

/// The beginning of each key, by which programs that look for leaked keys recognise it.
const KEY_PREFIX: &str = "sk-souk-";

/// The most keys of a folder, revoked ones included.
const KEYS_MAX: usize = 4_096;

/// A change of the keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what", deny_unknown_fields)]
enum TermsFact {
    /// A key was issued.
    Issued { terms: KeyTerms },
    /// A key was revoked.
    Revoked { key: KeyId },
}

/// A key to issue.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its name, which no other key in use may have.
    pub name: KeyName,
    /// How much it can spend; none for no limit of its own.
    pub budget: Option<KeyBudget>,
    /// The models that it can use; empty for all.
    pub models: Vec<ModelPattern>,
    /// The requests a minute; none for no limit.
    pub requests_per_minute: Option<u32>,
    /// The tokens a minute; none for no limit.
    pub tokens_per_minute: Option<u64>,
    /// The requests that can be open at once.
    pub requests_at_once: u32,
}

/// Why a key was not issued or revoked.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The file is damaged, or cannot be used.
    #[error(transparent)]
    File(#[from] FactLogError),
    /// A key in use has the name.
    #[error("there is a key {name} already")]
    NameUsed {
        /// The name that is in use.
        name: KeyName,
    },
    /// No key in use has the name.
    #[error("there is no key {name}")]
    NoSuchKey {
        /// The name that no key has.
        name: KeyName,
    },
    /// The folder has too many keys.
    #[error("the folder has {KEYS_MAX} keys, and no more fit")]
    TooMany,
}

/// The time and the length of a file, by which a server notices that it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileStamp(Option<(SystemTime, u64)>);

impl FileStamp {
    /// Returns the stamp of a folder's keys.
    pub fn of(folder: &Path) -> FileStamp {
        let about = fs::metadata(folder.join(TERMS_FILE)).ok();
        FileStamp(about.and_then(|about| Some((about.modified().ok()?, about.len()))))
    }
}

/// Issues a key. Returns the key itself, which is stored nowhere, and its terms.
///
/// # Errors
/// When the name is in use, or the file cannot be written.
pub fn issue_key(folder: &Path, new: NewKey) -> Result<(String, KeyTerms), IssueError> {
    let (mut log, all) = open_terms(folder)?;
    if all.iter().any(|it| !it.is_revoked && it.name == new.name) {
        return Err(IssueError::NameUsed { name: new.name });
    }
    if all.len() >= KEYS_MAX {
        return Err(IssueError::TooMany);
    }
    let drawn = NodeKey::generate().signing_key().to_bytes();
    let secret = format!("{KEY_PREFIX}{}", hex::encode(drawn));
    let terms = KeyTerms {
        name: new.name,
        hash: ContentId::for_content(secret.as_bytes()),
        issued: now(),
        budget: new.budget,
        models: new.models,
        requests_per_minute: new.requests_per_minute,
        tokens_per_minute: new.tokens_per_minute,
        requests_at_once: new.requests_at_once,
        is_revoked: false,
    };
    let fact = TermsFact::Issued {
        terms: terms.clone(),
    };
    log.append_facts(&[fact])?;
    Ok((secret, terms))
}

/// Revokes the key of a name, and returns its terms.
///
/// # Errors
/// When there is none, or the file cannot be written.
pub fn revoke_key(folder: &Path, name: &KeyName) -> Result<KeyTerms, IssueError> {
    let (mut log, all) = open_terms(folder)?;
    let found = all
        .into_iter()
        .find(|it| !it.is_revoked && it.name == *name);
    let terms = found.ok_or_else(|| IssueError::NoSuchKey { name: name.clone() })?;
    log.append_facts(&[TermsFact::Revoked { key: terms.id() }])?;
    Ok(terms)
}

/// Returns the terms of all keys of a folder, revoked ones included.
///
/// # Errors
/// When the file is damaged or cannot be read.
pub fn read_terms(folder: &Path) -> Result<Vec<KeyTerms>, FactLogError> {
    let path = folder.join(TERMS_FILE);
    match path.exists() {
        true => FactLog::read(&path, TERMS_FORMAT).map(to_terms),
        false => Ok(Vec::new()),
    }
}

fn open_terms(folder: &Path) -> Result<(FactLog, Vec<KeyTerms>), FactLogError> {
    let path = folder.join(TERMS_FILE);
    let (log, facts) = FactLog::open_log(&path, TERMS_FORMAT)?;
    Ok((log, to_terms(facts)))
}

fn to_terms(facts: Vec<TermsFact>) -> Vec<KeyTerms> {
    let mut all: Vec<KeyTerms> = Vec::new();
    for fact in facts {
        match fact {
            TermsFact::Issued { terms } => all.push(terms),
            TermsFact::Revoked { key } => {
                let revoked = all.iter_mut().find(|terms| terms.id() == key);
                if let Some(terms) = revoked {
                    terms.is_revoked = true;
                }
            }
        }
    }
    all
}
