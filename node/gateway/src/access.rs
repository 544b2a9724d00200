//! Decides which requests the gateway answers: a request must name this machine as its host, must
//! not come from another origin, must carry a token of sufficient scope, and must stay within its
//! token's rate. Only the page's files, `/healthz`, `/metrics` and the OpenAPI document need no
//! token.
//!
//! A web page in a browser can send requests to this machine, and the owner of a domain can point
//! its name at this machine. So for every method the host must be a name of this machine, the
//! origin must be the gateway's own, and the request must carry a token, which no page can guess.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, io};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method};
use serde::{Deserialize, Serialize};
use souk_folder::key::NodeKey;

use crate::problem::{Code, Problem};
use crate::web;

/// The token file, relative to the folder of the market.
pub const TOKENS_FILE: &str = "buyer/http-tokens.json";

/// Requests a second that one token can send, and the size of its burst.
const RATE: f64 = 200.0;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The rights of a token; each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Reads, and plans jobs.
    Read,
    /// Uploads contents, and spends the account's credits.
    Trade,
    /// Changes the offers of the gateway's owner.
    Operate,
}

impl Scope {
    /// Returns the scope's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Trade => "trade",
            Scope::Operate => "operate",
        }
    }
}

/// The tokens in their file: 32 bytes each, in hexadecimal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenFile {
    /// The token with [`Scope::Read`].
    pub read: String,
    /// The token with [`Scope::Trade`].
    pub trade: String,
    /// The token with [`Scope::Operate`].
    pub operate: String,
}

/// An error that leaves the gateway without tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file system failed.
    #[error("cannot use the tokens in {path}: {source}")]
    File {
        /// Path of the token file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// The file does not hold valid tokens.
    #[error("{path} holds no tokens: remove it, and new ones are made")]
    Damaged {
        /// Path of the token file.
        path: PathBuf,
    },
}

impl TokenFile {
    /// Reads the tokens of a market's folder; creates them if the file does not exist.
    ///
    /// # Errors
    /// [`TokenError`]
    pub fn load_or_create(folder: &Path) -> Result<TokenFile, TokenError> {
        let path = folder.join(TOKENS_FILE);
        let failed = |source| TokenError::File {
            path: path.clone(),
            source,
        };
        match fs::read(&path) {
            Ok(bytes) => {
                let read: Option<TokenFile> = serde_json::from_slice(&bytes).ok();
                let read =
                    read.filter(|file| file.all_tokens().iter().all(|token| is_token(token)));
                read.ok_or(TokenError::Damaged { path })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = TokenFile {
                    read: generate_key(),
                    trade: generate_key(),
                    operate: generate_key(),
                };
                let text = serde_json::to_vec_pretty(&file).map_err(io::Error::from);
                text.and_then(|text| write(&path, &text)).map_err(failed)?;
                Ok(file)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the token of a scope.
    pub fn token_for(&self, scope: Scope) -> &str {
        self.all_tokens()[scope as usize]
    }

    fn all_tokens(&self) -> [&str; 3] {
        [&self.read, &self.trade, &self.operate]
    }
}

/// Writes a file that only its owner can read.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    // A killed process may have left the draft, with permissions of any kind.
    let _ = fs::remove_file(&draft);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&draft)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&draft, path)
}

/// The only key of a listener that does not belong to the gateway.
#[derive(Debug)]
pub struct LocalKey(blake3::Hash);

impl LocalKey {
    /// Reads the key from a file, where it is a line of its own; creates the file if it does not
    /// exist.
    ///
    /// # Errors
    /// [`TokenError`]
    pub fn load_or_create(path: &Path) -> Result<LocalKey, TokenError> {
        let failed = |source| TokenError::File {
            path: path.to_owned(),
            source,
        };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = generate_key();
                write(path, format!("{text}\n").as_bytes()).map_err(failed)?;
                text
            }
            Err(error) => return Err(failed(error)),
        };
        let path = path.to_owned();
        match text.trim() {
            text if is_token(text) => Ok(LocalKey(blake3::hash(text.as_bytes()))),
            _ => Err(TokenError::Damaged { path }),
        }
    }

    /// Returns whether a request carries this key.
    #[must_use]
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown = find_bearer_token(headers);
        // Comparing hashes takes constant time.
        shown.is_some_and(|token| blake3::hash(token.as_bytes()) == self.0)
    }
}

/// Returns the token that a request carries; none if it carries none or several.
#[must_use]
pub fn find_bearer_token(headers: &HeaderMap) -> Option<&str> {
    let shown = single_header(headers, &AUTHORIZATION).ok().flatten();
    shown.and_then(bearer_token)
}

/// Returns the token after `Bearer`.
fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// Draws the 32 bytes of a new key, which no one can guess.
fn generate_key() -> String {
    hex::encode(NodeKey::generate().signing_key().to_bytes())
}

fn is_token(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Checks the token and the rate of each request.
#[derive(Debug)]
pub struct Access {
    /// Hashes of the tokens; comparing hashes takes constant time.
    tokens: [(Scope, blake3::Hash); 3],
    /// Requests that each token can still send, and the time of that count.
    rates: Mutex<[(f64, Instant); 3]>,
}

impl Access {
    /// Creates the check for these tokens.
    pub fn new(file: &TokenFile) -> Access {
        let hash = |text: &str| blake3::hash(text.as_bytes());
        let [read, trade, operate] = file.all_tokens().map(hash);
        Access {
            tokens: [
                (Scope::Read, read),
                (Scope::Trade, trade),
                (Scope::Operate, operate),
            ],
            rates: Mutex::new([(RATE, Instant::now()); 3]),
        }
    }

    /// Checks a request and returns the scope of its token, or `None` for a path without a token.
    ///
    /// # Errors
    /// Fails if the origin, the token or the rate forbids the request.
    pub fn check_request(&self, asked: &Parts, now: Instant) -> Result<Option<Scope>, Problem> {
        check_host_and_origin(asked)?;
        let Some(needed) = required_scope(&asked.method, asked.uri.path()) else {
            return Ok(None);
        };
        let has = self.token_scope(&asked.headers)?;
        if has < needed {
            let (has, needed) = (has.name(), needed.name());
            let detail = format!("the token may {has}, and this takes one that may {needed}");
            let hint = format!("{TOKENS_FILE} has one");
            return Err(Problem::new(Code::Forbidden, detail, &hint));
        }
        self.count_request(has, now)?;
        Ok(Some(has))
    }

    fn token_scope(&self, headers: &HeaderMap) -> Result<Scope, Problem> {
        let hint = format!("send `Authorization: Bearer TOKEN`; {TOKENS_FILE} has them");
        let refused = |detail| Problem::new(Code::Unauthorized, detail, &hint);
        let given =
            single_header(headers, &AUTHORIZATION).map_err(|()| refused("several tokens came"))?;
        let given = given.ok_or_else(|| refused("no token came"))?;
        let hash = bearer_token(given).map(|token| blake3::hash(token.as_bytes()));
        let mut all = self.tokens.iter();
        match all.find(|(_, known)| Some(*known) == hash) {
            Some((scope, _)) => Ok(*scope),
            None => Err(refused("the token is none of this gateway's")),
        }
    }

    /// Counts one request of a token, and refuses it if the token exceeds its rate.
    fn count_request(&self, scope: Scope, now: Instant) -> Result<(), Problem> {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = &mut rates[scope as usize];
        let since = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + since * RATE).min(RATE);
        *at = now;
        if *left < 1.0 {
            let detail = format!("more than {RATE} questions a second came with this token");
            return Err(Problem::new(Code::TooMany, detail, "ask again in a moment"));
        }
        *left -= 1.0;
        Ok(())
    }
}

/// Checks that a request names this machine as its host and comes from no other origin.
///
/// # Errors
/// Fails if either does not hold.
pub fn check_host_and_origin(request: &Parts) -> Result<(), Problem> {
    check_host(request)?;
    check_origin(&request.headers)
}

/// Returns the scope that a request needs, or `None` if any process on this machine can send it.
pub fn required_scope(method: &Method, path: &str) -> Option<Scope> {
    let is_looking = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/healthz" | "/metrics" | "/v1/openapi.json" if is_looking => None,
        _ if is_looking && web::has_file(path) => None,
        // These methods change nothing.
        "/v1/plans" | "/v1/receipts/verify" => Some(Scope::Read),
        _ if is_looking => Some(Scope::Read),
        _ if path.starts_with("/v1/providers/") => Some(Scope::Operate),
        _ => Some(Scope::Trade),
    }
}

/// Returns the only value of a header, `None` if the header is absent, or an error if it repeats.
fn single_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

fn check_host(asked: &Parts) -> Result<(), Problem> {
    let named = asked.uri.authority().map(|authority| authority.as_str());
    let host = single_header(&asked.headers, &HOST);
    let is_fine = matches!(host, Ok(Some(host)) if is_own(host)) && named.is_none_or(is_own);
    if is_fine {
        return Ok(());
    }
    let detail = "the question is for another host";
    let hint = "ask by a name of this machine: 127.0.0.1 or localhost";
    Err(Problem::new(Code::Misdirected, detail, hint))
}

fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let host = single_header(headers, &HOST)
        .ok()
        .flatten()
        .unwrap_or_default();
    let is_own_origin = match single_header(headers, &ORIGIN) {
        Ok(None) => true,
        Ok(Some(origin)) => origin.strip_prefix("http://") == Some(host),
        Err(()) => false,
    };
    let is_own_site = matches!(
        single_header(headers, &FETCH_SITE),
        Ok(None | Some("same-origin" | "none"))
    );
    if is_own_origin && is_own_site {
        return Ok(());
    }
    let detail = "a page of another origin asks";
    Err(Problem::new(
        Code::Forbidden,
        detail,
        "ask from a program, or from the gateway's own page",
    ))
}

/// Returns whether a host, with or without a port, names this machine.
fn is_own(host: &str) -> bool {
    let bare = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let address = bare.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.is_loopback();
    bare.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_are_made_once_and_only_their_owner_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("buyer")).unwrap();
        let made = TokenFile::load_or_create(folder.path()).unwrap();
        let found = TokenFile::load_or_create(folder.path()).unwrap();
        assert_eq!(made.all_tokens(), found.all_tokens());
        assert!(made.all_tokens().iter().all(|token| is_token(token)));
        let path = folder.path().join(TOKENS_FILE);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&path, "{}").unwrap();
        let damaged = TokenFile::load_or_create(folder.path());
        assert!(matches!(damaged, Err(TokenError::Damaged { .. })));
    }

    #[test]
    fn a_door_has_one_key_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        LocalKey::load_or_create(&path).unwrap();
        let key = LocalKey::load_or_create(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let shown = |value: String| {
            let value = value.trim_end().parse().unwrap();
            key.is_shown(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        let text = fs::read_to_string(&path).unwrap();
        assert!(shown(format!("Bearer {text}")));
        assert!(!shown(text));
        assert!(!shown(format!("Bearer {}", generate_key())));
        assert!(!key.is_shown(&HeaderMap::new()));
        fs::write(&path, "short").unwrap();
        let damaged = LocalKey::load_or_create(&path);
        assert!(matches!(damaged, Err(TokenError::Damaged { .. })));
    }

    #[test]
    fn a_token_that_asks_too_fast_waits_and_the_others_do_not() {
        let file = TokenFile {
            read: generate_key(),
            trade: generate_key(),
            operate: generate_key(),
        };
        let access = Access::new(&file);
        let begin = Instant::now() + Duration::from_secs(1);
        let taken = (0..400).filter(|_| access.count_request(Scope::Read, begin).is_ok());
        assert_eq!(taken.count(), 200);
        access.count_request(Scope::Trade, begin).unwrap();
        let later = begin + Duration::from_millis(100);
        let taken = (0..400).filter(|_| access.count_request(Scope::Read, later).is_ok());
        assert_eq!(taken.count(), 20);
    }

    #[test]
    fn only_loopback_names_are_this_machines() {
        let own = [
            "127.0.0.1:7800",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7800",
            "127.9.9.9",
        ];
        assert!(own.iter().all(|host| is_own(host)));
        let others = [
            "evil.example",
            "evil.example:7800",
            "localhost.evil.example",
            "10.0.0.1",
            "",
        ];
        assert!(!others.iter().any(|host| is_own(host)));
    }
}
