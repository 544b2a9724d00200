//! The shell around souk's pure cores: network, disk, clock and the three roles.
//!
//! A node is one process with one key. As a [`validator`] it replicates the exchange; as a
//! [`provider`] it sells a device; as a [`buyer`] it buys the execution of a model. In each role it
//! reaches other nodes through one [network](souk_network).
//!
//! The roles do not know each other; below them are the [`client`] of the market and the
//! [report](lease_report) of a lease. Lower still are crates: the network, the [devices and the
//! processes](souk_sandbox) that run jobs, and the files of a node's [folder](souk_folder).
//!
//! The programs in `examples` found a market, sell this machine's CPU, and buy a run of a model. In
//! short, you can buy from your own program on the testnet of `souk testnet up`:
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use souk_folder::key::NodeKey;
//! use souk_folder::market_file::MarketFile;
//! use souk_node::buyer::Buyer;
//! use souk_node::buyer::job::{Job, Limits};
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
pub mod effect_tasks;
pub mod endpoint;
mod exact_work;
pub mod lease_report;
pub mod provider;
pub mod validator;

pub use souk_scheduler as scheduler;
/// Re-exports of the crates below, so that you can depend on this one alone.
pub use {souk_market as market, souk_memory as memory};
