//! Buys one run of an ONNX model in the market of a folder, and prints the outputs and the price.
//!
//! ```text
//! cargo run --release -p souk-node --example buy -- \
//!     /tmp/market devices/testing/models/digits.onnx images=images.npy
//! ```
//!
//! Each input is `NAME=FILE.npy`. Run the examples `found_market` and `sell` on the folder first.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

use souk_folder::config::KEY_FILE;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_node::buyer::Buyer;
use souk_node::buyer::job::{Job, Limits};
use souk_node::market::Credits;
use souk_node::memory::{Tensor, npy};
use tokio::sync::mpsc;

/// The most to pay, in micro-credits: one credit.
const BUDGET: Credits = Credits(1_000_000);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: buy FOLDER MODEL.onnx [NAME=FILE.npy]…";
    let (Some(folder), Some(model)) = (arguments.next(), arguments.next()) else {
        return Err(usage.into());
    };
    let inputs: Result<BTreeMap<_, _>, _> = arguments.map(|text| read_input(&text)).collect();
    let folder = PathBuf::from(folder);
    let key = NodeKey::load(&folder.join("buyer").join(KEY_FILE))?;
    let buyer = Buyer::join(key, &MarketFile::read_nearest(&folder)?).await?;
    let job = Job {
        model: std::fs::read(model)?.into(),
        folder: None,
        inputs: inputs?,
        limits: Limits {
            budget: Some(BUDGET),
            ..Limits::default()
        },
    };
    let quote = buyer.quote_job(&job).await?;
    // This example shows no progress: the job continues without a receiver.
    let (progress, _) = mpsc::channel(1);
    let done = buyer.run(&job, quote, progress).await?;
    for (name, tensor) in &done.outputs {
        println!("{name}: {} {:?}", tensor.dtype(), tensor.shape());
    }
    for receipt in &done.receipts {
        println!(
            "paid {} micro-credits for {} us to {}",
            receipt.body.amount.0, receipt.body.usage.0, receipt.body.provider
        );
    }
    Ok(())
}

/// Reads an input from `NAME=FILE.npy`.
fn read_input(text: &str) -> Result<(String, Tensor), Box<dyn Error>> {
    let (name, file) = text.split_once('=').ok_or("an input is NAME=FILE.npy")?;
    Ok((name.to_owned(), npy::read(&std::fs::read(file)?.into())?))
}
