//! Tests providers that resell the answers of a remote engine over TLS, with an API key that no one
//! else can see.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::chats::Server;
use crate::common::{Market, souk};
use crate::endpoints::{Engine, KEY, MODEL, Manner, PIECES, ask, write_key};
use crate::seller::{Seller, until};

/// The certificate of `localhost`, its key, and the authority of this test alone.
const CERTIFICATE: &str = include_str!("tls/engine.pem");
const CERTIFICATE_KEY: &str = include_str!("tls/engine-key.pem");
const AUTHORITY: &str = include_str!("tls/authority.pem");

/// An engine behind TLS.
fn start_engine(manner: Manner) -> Engine {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).expect("in PEM");
    let key = PrivateKeyDer::from_pem_slice(CERTIFICATE_KEY.as_bytes()).expect("in PEM");
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.expect("TLS 1.3").with_no_client_auth();
    let config = builder.with_single_cert(vec![certificate], key);
    let config = Arc::new(config.expect("they belong together"));
    Engine::start_behind("https", manner, move |stream: TcpStream| {
        let connection = ServerConnection::new(config.clone()).expect("a valid setting");
        StreamOwned::new(connection, stream)
    })
}

/// Whether an ask of the model is in the book.
fn is_offered(market: &Market) -> bool {
    market.souk(&["model", "show", MODEL]).code == 0
}

/// Sells what an engine behind TLS answers.
fn resell(market: &Market, engine: &Engine) -> Seller {
    let (key, authority) = (write_key(market), market.path("authority.pem"));
    std::fs::write(&authority, AUTHORITY).expect("a file is written");
    let options = [
        ["--out", "0.2"],
        ["--key-file", &key],
        ["--ca-file", &authority],
        ["--resold", "--slots=4"],
    ];
    let mut seller = Seller::of_engine(market, "kim", &engine.url, &options.concat());
    seller.start();
    until("its ask is in the book", || is_offered(market));
    seller
}

/// Checks that a provider's files and status do not show its key.
fn assert_key_is_hidden(seller: &Seller) {
    let log = std::fs::read_to_string(seller.log()).expect("a log");
    assert!(!log.contains(KEY), "{log}");
    assert!(!seller.status().to_string().contains(KEY));
    let file = format!("{}/provider.toml", seller.folder);
    let file = std::fs::read_to_string(file).expect("a provider's file");
    assert!(!file.contains(KEY), "{file}");
}

#[test]
fn an_engine_behind_tls_is_resold_with_a_key_that_no_buyer_sees() {
    let market = Market::with_one_provider();
    let engine = start_engine(Manner::Well);
    let key = write_key(&market);
    let init = |more: &[&str]| {
        let first = ["provider", "init", "--endpoint", &engine.url];
        let rest = ["--model", MODEL, "--out", "1", "--key-file", &key];
        let folder = market.folder().join("net/untrusted");
        souk(&folder, &[&first[..], &rest, more].concat())
    };
    // No authority of the system vouches for it.
    let unknown = init(&[]);
    let cause = unknown.stdout + &unknown.stderr;
    assert_ne!(unknown.code, 0, "{cause}");
    assert!(cause.contains("certificate"), "{cause}");
    // Others can read the key.
    let mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode));
    mode(0o644).expect("a mode is set");
    let open = init(&[]);
    let cause = open.stdout + &open.stderr;
    assert!(cause.contains("chmod 600"), "{cause}");

    let seller = resell(&market, &engine);
    let offers = market.souk(&["model", "show", MODEL]).done();
    assert_eq!(offers[0]["resold"], json!(true), "{offers}");
    {
        let server = Server::run(&market, &[]);
        let whole = ask(&server, &json!({})).of(200);
        assert_eq!(whole["choices"][0]["message"]["content"], PIECES.concat());
        let path = format!("/v1/models/{MODEL}/endpoints");
        let offers = server.client.get(&path).of(200);
        assert_eq!(offers["data"]["endpoints"][0]["resold"], json!(true));
    }
    assert_eq!(engine.requests().len(), 1);
    assert_key_is_hidden(&seller);
    market.assert_escrow_returns();
}

#[test]
fn a_refused_key_is_told_to_its_owner_and_to_no_buyer() {
    let market = Market::with_one_provider();
    let engine = start_engine(Manner::Revoked);
    let seller = resell(&market, &engine);
    let server = Server::run(&market, &[]);
    let failed = ask(&server, &json!({}));
    let told = String::from_utf8_lossy(&failed.body).into_owned();
    assert_eq!(failed.status, 502, "{told}");
    for secret in [KEY, "revoked", "401"] {
        assert!(!told.contains(secret), "{told}");
    }
    // Nobody is to wait for it in vain.
    until("its ask is withdrawn", || !is_offered(&market));
    let log = std::fs::read_to_string(seller.log()).expect("a log");
    assert!(log.contains("refuses this provider's key"), "{log}");
    assert_key_is_hidden(&seller);
    // After a pause, it is tried again.
    until("its ask is back", || is_offered(&market));
}

#[test]
fn a_redirect_is_not_followed_and_the_key_stays() {
    let market = Market::with_one_provider();
    let engine = start_engine(Manner::Moved);
    let _seller = resell(&market, &engine);
    let server = Server::run(&market, &[]);
    ask(&server, &json!({})).of(502);
    assert_eq!(engine.requests().len(), 1, "only the first path is called");
}
