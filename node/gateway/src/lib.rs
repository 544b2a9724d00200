//! Serves a buyer and its market over HTTP, for programs and web pages on the same machine.
//!
//! A gateway is a long-running buyer, with its key, its jobs and its connection to the
//! market. `routes` defines every path, and `access` alone authorises requests. An
//! accepted job is on disk before the gateway buys anything for it, and the gateway will resume it
//! after a crash.
//!
//! ```no_run
//! use std::path::PathBuf;
//!
//! use souk_gateway::{Config, Gateway};
//! use souk_node::buyer::Buyer;
//! use souk_folder::key::NodeKey;
//! use souk_folder::market_file::MarketFile;
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = PathBuf::from("/srv/bazaar");
//! let key = NodeKey::load(&folder.join("buyer/key"))?;
//! let buyer = Buyer::join(key, &MarketFile::read_nearest(&folder)?).await?;
//! let address = "127.0.0.1:7800".parse()?;
//! let config = Config { folder, name: "bazaar".to_owned(), address, sessions: None };
//! Gateway::start(buyer, config).await?.run().await;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![allow(unused_qualifications, reason = "utoipa's macros emit qualified paths")]

mod access;
mod address;
mod byte_range;
mod closed_leases;
mod contents;
mod document;
mod extract;
mod figures;
mod file_stream;
mod follow;
mod headers;
mod hub;
mod job_body;
mod job_folder;
mod job_runner;
mod job_slots;
mod job_view;
mod keys;
mod large_work;
mod listener;
mod metrics_server;
mod network_view;
mod order_body;
mod orders;
mod output_view;
mod page;
mod parse;
mod parties_view;
mod planning;
mod plans;
mod problem;
mod routes;
mod sessions;
mod state;
mod statement_place;
mod topic;
mod training_view;
mod web;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use souk_node::buyer::Buyer;

use access::{Access, TokenFile};
use address::PublishedAddress;
use contents::Contents;
use keys::Keys;
use state::State;

pub use access::{
    LocalKey, Scope, TOKENS_FILE, TokenError, check_host_and_origin, find_bearer_token,
};
pub use address::{page_at, page_of};
pub use extract::{Body, JSON_BYTES_MAX};
pub use listener::{HttpListener, ListenerError};
pub use metrics_server::serve_metrics;
pub use problem::{Code, Problem};
pub use routes::api_document;
pub use sessions::{HostAnswer, SessionHost, SessionOrder, SessionView};

/// A listening gateway.
pub struct Gateway {
    listener: HttpListener,
    state: state::SharedState,
    /// Holds the lock on the published address until the gateway is dropped.
    _published_address: Option<PublishedAddress>,
}

/// The settings of a gateway.
pub struct Config {
    /// The market's folder. The path must be valid from any working directory.
    pub folder: PathBuf,
    /// The market's name.
    pub name: String,
    /// The address to listen on. If you set port 0, the system selects a free port.
    pub address: SocketAddr,
    /// The host of sessions of language models, if the gateway offers them.
    pub sessions: Option<Arc<dyn SessionHost>>,
}

/// A failure to start the gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The gateway cannot listen on its address.
    #[error(transparent)]
    HttpListener(#[from] ListenerError),
    /// The tokens cannot be read or created.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The folder of contents cannot be opened.
    #[error("cannot use the folder of contents: {0}")]
    Contents(io::Error),
    /// The folder of idempotency keys cannot be opened.
    #[error("cannot use the folder of idempotency keys: {0}")]
    Keys(io::Error),
    /// The file with the gateway's address cannot be written.
    #[error("cannot write the HTTP address to the folder: {0}")]
    Address(io::Error),
}

impl Gateway {
    /// Binds the gateway's address. The gateway answers no request before you call
    /// [`Gateway::run`].
    ///
    /// # Errors
    /// [`GatewayError`]
    pub async fn start(buyer: Buyer, config: Config) -> Result<Gateway, GatewayError> {
        let Config {
            folder,
            name,
            address,
            sessions,
        } = config;
        let listener = HttpListener::bind_loopback(address).await?;
        let access = Access::new(&TokenFile::load_or_create(&folder)?);
        let contents = Contents::open(&folder).map_err(GatewayError::Contents)?;
        let keys = Keys::open(&folder).map_err(GatewayError::Keys)?;
        let published_address = PublishedAddress::publish_address(&folder, listener.address())
            .await
            .map_err(GatewayError::Address)?;
        let market = (folder, name, listener.address());
        let state = State::new(buyer, market, sessions, (access, contents, keys));
        let state = Arc::new(state);
        Ok(Gateway {
            listener,
            state,
            _published_address: published_address,
        })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Answers requests and resumes the jobs of an earlier process, for as long as you await it. If
    /// jobs still run when you stop, the next process will resume them.
    pub async fn run(self) {
        let router = routes::router(self.state.clone());
        let serving = self.listener.serve(router);
        let following = follow::follow_market(self.state.clone());
        let recovering = job_runner::recover_jobs(self.state);
        tokio::join!(serving, following, recovering);
    }
}
