//! How a node takes part in transfers.

use std::path::PathBuf;

use libp2p::Multiaddr;

use crate::content::direct::DirectListen;
use crate::folder::config::{DirectChoice, Traffic};
use crate::network::socket_of;

/// How a node takes part.
#[derive(Clone, Debug, Default)]
pub struct TransferConfig {
    /// The largest single content fetched, in bytes.
    pub bytes_max: u64,
    /// Its end of the faster way.
    pub channel: DirectListen,
    /// The most that is sent, in bytes a second; none for no limit.
    pub upload: Option<u64>,
    /// The most that is received, in bytes a second; none for no limit.
    pub download: Option<u64>,
    /// Where what is known of links is kept over restarts.
    pub links: Option<PathBuf>,
    /// Where it is kept over restarts who has shown which content.
    pub shown: Option<PathBuf>,
}

impl TransferConfig {
    /// What a node is told of its traffic, for one that listens on `listen`.
    pub(crate) fn new(
        traffic: &Traffic,
        listen: Option<&Multiaddr>,
        bytes_max: u64,
        links: Option<PathBuf>,
    ) -> TransferConfig {
        let auto = listen.and_then(socket_of).map(|socket| (socket.ip(), 0));
        let channel = match (traffic.direct, auto) {
            (DirectChoice::Off, _) => DirectListen::Off,
            (DirectChoice::At(address), _) => DirectListen::At(address),
            (DirectChoice::Auto, Some(address)) => DirectListen::At(address.into()),
            (DirectChoice::Auto, None) => DirectListen::Nowhere,
        };
        TransferConfig {
            bytes_max,
            channel,
            upload: traffic.upload_bytes_per_second,
            download: traffic.download_bytes_per_second,
            links,
            shown: None,
        }
    }
}
