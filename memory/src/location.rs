//! Defines [`Location`], a place that can hold content: the memory of a device or of this host, its
//! disk, or another peer.
//!
//! Places are numbers here. Only the code that assigned a number knows which GPU or which peer's
//! key it stands for.

use std::fmt;

/// A device of this machine, as numbered by the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

/// A peer in the network, as numbered by the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub u32);

/// A location of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// The memory of a device.
    Device(DeviceIndex),
    /// The memory of this process.
    Host,
    /// A folder of this machine.
    Disk,
    /// Another peer, which can serve content by its id.
    Peer(PeerIndex),
}

impl Location {
    /// Returns the place of the device with this number.
    #[must_use]
    pub fn device(index: u16) -> Self {
        Self::Device(DeviceIndex(index))
    }

    /// Returns the place to which the last copy moves if this one is full: none below the disk, and
    /// none below a peer, whose content this process does not move.
    #[must_use]
    pub fn eviction_target(self) -> Option<Self> {
        match self {
            Self::Device(_) => Some(Self::Host),
            Self::Host => Some(Self::Disk),
            Self::Disk | Self::Peer(_) => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(DeviceIndex(index)) => write!(formatter, "device {index}"),
            Self::Host => formatter.write_str("host memory"),
            Self::Disk => formatter.write_str("disk"),
            Self::Peer(PeerIndex(index)) => write!(formatter, "peer {index}"),
        }
    }
}
