//! Holds the settings of a node's transfers: the limits on length and rate, the use of direct
//! channels, and the files that survive a restart.

use std::path::PathBuf;

use libp2p::Multiaddr;
use souk_folder::config::{DirectChoice, Traffic};

use crate::content::direct::DirectListen;
use crate::socket_of;

/// The settings of a node's transfers.
#[derive(Clone, Debug, Default)]
pub struct TransferConfig {
    /// The length of the longest content that the node will fetch, in bytes.
    pub bytes_max: u64,
    /// How the node uses direct channels.
    pub channel: DirectListen,
    /// The upload limit in bytes a second; none for no limit.
    pub upload: Option<u64>,
    /// The download limit in bytes a second; none for no limit.
    pub download: Option<u64>,
    /// The file that keeps the measurements of links over restarts.
    pub links: Option<PathBuf>,
    /// The file that keeps over restarts which account has provided which content.
    pub shown: Option<PathBuf>,
}

impl TransferConfig {
    /// Returns the settings for a node's traffic options and its listening address.
    pub fn new(
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
