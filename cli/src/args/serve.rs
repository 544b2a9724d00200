//! The arguments of `souk serve` and `souk dashboard`.

use std::net::SocketAddr;

/// A gateway.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Where it answers: a loopback address. A port of 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:7800", value_name = "ADDRESS")]
    pub http: SocketAddr,
    #[command(flatten)]
    pub page: PageArgs,
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// What the page may do that is opened in a browser.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PageArgs {
    /// Let the page that the printed address opens spend the account's credits too, not only look.
    #[arg(long)]
    pub trade: bool,
    /// Let it also change what is sold from the gateway's folder.
    #[arg(long, conflicts_with = "trade")]
    pub operate: bool,
}
