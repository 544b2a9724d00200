//! Where bytes can be: a device's memory, this host's, its disk, another peer.
//!
//! Places are numbers here. What a number stands for, a GPU or a peer's key, is known to whoever
//! handed it out.

use std::fmt;

/// A device of this machine, numbered by the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

/// Another peer of the network, numbered by the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// Where a copy can lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Memory of a device.
    Device(DeviceIndex),
    /// Memory of this process.
    Host,
    /// A folder of this machine.
    Disk,
    /// Another peer, which serves it by content id.
    Peer(PeerIndex),
}

impl Place {
    /// The device with this number.
    #[must_use]
    pub fn device(index: u16) -> Self {
        Self::Device(DeviceIndex(index))
    }

    /// Where the last copy goes when there is no room here; nowhere from disk, and what a peer
    /// keeps is not ours to move.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        match self {
            Self::Device(_) => Some(Self::Host),
            Self::Host => Some(Self::Disk),
            Self::Disk | Self::Peer(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(DeviceIndex(index)) => write!(formatter, "device {index}"),
            Self::Host => formatter.write_str("host memory"),
            Self::Disk => formatter.write_str("disk"),
            Self::Peer(PeerIndex(index)) => write!(formatter, "peer {index}"),
        }
    }
}
