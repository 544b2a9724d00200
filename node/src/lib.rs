//! The shell around souk's pure cores: network, disk, clock and the three roles.
//!
//! A node is one process with one key. As a [`validator`] it replicates the exchange; as a
//! [`provider`] it sells a device; as a [`buyer`] it buys the execution of a model. In each role it
//! reaches other nodes through one [`network`].
//!
//! Its modules form layers, and each must import only from layers below it: [`clock`] and
//! [`folder`]; then [`network`]; then [`metrics`], [`content`] and [`device`]; then [`sandbox`] and
//! [`protocols`]; then [`executor`] and [`client`]; and on top the independent roles.
//!
//! The programs in `examples` found a market, sell this machine's CPU, and buy a run of a model. In
//! short, you can buy from your own program on the testnet of `souk testnet up`:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use souk_node::buyer::Buyer;
//! use souk_node::buyer::job::{Job, Limits};
//! use souk_node::folder::key::NodeKey;
//! use souk_node::folder::market_file::MarketFile;
//! use souk_node::memory::npy;
//!
//! # async fn buy() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = Path::new("souk-testnet");
//! let key = NodeKey::load(&folder.join("buyer/key"))?;
//! let buyer = Buyer::join(key, &MarketFile::read_nearest(folder)?).await?;
//!
//! let images = npy::read(&std::fs::read("images.npy")?.into())?;
//! let job = Job {
//!     model: std::fs::read("digits.onnx")?.into(),
//!     folder: None,
//!     inputs: BTreeMap::from([("images".to_owned(), images)]),
//!     limits: Limits::default(),
//! };
//! let quote = buyer.quote_job(&job).await?;
//! let (progress, _) = tokio::sync::mpsc::channel(64);
//! let done = buyer.run(&job, quote, progress).await?;
//! println!("{:?}, by {} receipts", done.outputs["logits"], done.receipts.len());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod buyer;
pub mod client;
pub mod clock;
pub mod content;
pub mod device;
pub mod endpoint;
pub mod executor;
pub mod folder;
pub mod metrics;
pub mod network;
pub mod protocols;
pub mod provider;
pub mod sandbox;
pub mod validator;

pub use souk_scheduler as scheduler;
/// Re-exports of the crates below, so that you can depend on this one alone.
pub use {souk_market as market, souk_memory as memory};
