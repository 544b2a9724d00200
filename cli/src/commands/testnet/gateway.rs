//! Starts the gateway of a testnet for `souk testnet up`: a `souk serve` process with an HTTP API
//! and a page, which the testnet's supervisor runs and which spends as the testnet's buyer.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use souk_gateway::page_of;
use souk_testnet::ports::Ports;
use souk_testnet::supervisor::{GATEWAY, GATEWAY_HOME, Supervisor};

use super::from_supervisor;
use crate::args::UpArgs;
use crate::commands::serve::{from_tokens, page_scope};
use crate::failure::{Failure, Kind};
use crate::program::program_path;

/// Default port of the gateway.
const PORT: u16 = 7_800;

/// Starts the gateway of a testnet, whose nodes must already serve; returns the URL of its page, or
/// `None` without a gateway.
pub async fn start_gateway(
    folder: &Path,
    supervisor: &mut Supervisor,
    args: &UpArgs,
) -> Result<Option<String>, Failure> {
    if args.no_http {
        return Ok(None);
    }
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // This reserves the port until the gateway listens on it.
    let ports = Ports::reserve_free(1).map_err(|error| {
        let cause = format!("cannot find a free port on loopback: {error}");
        Failure::new(Kind::Network, cause, "give --http ADDRESS, or --no-http")
    })?;
    let is_free = TcpListener::bind(at(PORT)).is_ok();
    let usual = at(if is_free { PORT } else { ports.numbers()[0] });
    let address = args.http.unwrap_or(usual);
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let dir = folder.to_string_lossy().into_owned();
    let arguments = [
        "--dir",
        &dir,
        "serve",
        "--http",
        &address.to_string(),
        "--until-stdin-closes",
    ];
    let binary = program_path()?;
    let added = supervisor.add(&binary, GATEWAY, &arguments, GATEWAY_HOME);
    added.await.map_err(from_supervisor)?;
    let page = page_of(&folder, page_scope(args.page)).map_err(from_tokens)?;
    let lost = || {
        Failure::new(
            Kind::Unexpected,
            "the gateway does not say where it answers",
            "",
        )
    };
    page.map(Some).ok_or_else(lost)
}
