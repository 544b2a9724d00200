//! The arguments of `souk serve` and `souk dashboard`, which run the gateway (the HTTP API of a
//! folder's account) and print the URL of its page.

use std::net::SocketAddr;
#[cfg(feature = "generate")]
use std::path::PathBuf;

/// How to run the gateway: its address, its language models and what its page can do.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The loopback address to listen on; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:7800", value_name = "ADDRESS")]
    pub http: SocketAddr,
    /// A language model of which programs can open sessions by POST /v1/sessions, besides the
    /// bundled one: a folder with config.json, tokenizer.json and .safetensors, or a GGUF file. Can
    /// be given several times.
    #[cfg(feature = "generate")]
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<PathBuf>,
    #[command(flatten)]
    pub page: PageArgs,
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// What the page in the browser can do.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PageArgs {
    /// Allow the page at the printed address to spend the account's credits, not only to read.
    #[arg(long)]
    pub trade: bool,
    /// Allow the page to spend the account's credits, and to set the prices of the providers in the
    /// gateway's folder.
    #[arg(long, conflicts_with = "trade")]
    pub operate: bool,
}
