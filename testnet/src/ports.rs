//! Reserves loopback ports for nodes, so that no other process takes them before the nodes listen.
//!
//! The kernel can give a port that it chose to the next outgoing connection while no process
//! listens there. So this module chooses ports below that range, in blocks: the process that
//! listens at the first port of a block owns the others.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Ports of a block; the first one marks it as taken.
const BLOCK: u16 = 32;
/// Range of the blocks. Ephemeral ports begin at 32768 on Linux, and higher elsewhere.
const FIRST: u16 = 10_240;
const END: u16 = 32_768;

/// Free ports, reserved among the users of this module while this value lives. You must keep it
/// until the nodes listen.
#[derive(Debug, Default)]
#[must_use = "the ports are free for others once this is dropped"]
pub struct Ports {
    numbers: Vec<u16>,
    _blocks: Vec<TcpListener>,
}

impl Ports {
    /// Reserves this many ports.
    ///
    /// # Errors
    /// `AddrInUse` if there are not enough free ports.
    pub fn reserve_free(count: usize) -> io::Result<Self> {
        let mut ports = Self::default();
        let blocks = (END - FIRST) / BLOCK;
        // Any start works; a random one avoids the ports of other testnets.
        let begin = RandomState::new().hash_one(std::process::id()) % u64::from(blocks);
        let begin = u16::try_from(begin).unwrap_or(0);
        for block in (begin..blocks).chain(0..begin) {
            if ports.numbers.len() >= count {
                break;
            }
            let first = FIRST + block * BLOCK;
            let Ok(held) = bind_port(first) else {
                continue;
            };
            let free = (first + 1..first + BLOCK).filter(|port| bind_port(*port).is_ok());
            ports.numbers.extend(free.take(count - ports.numbers.len()));
            ports._blocks.push(held);
        }
        if ports.numbers.len() < count {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(ports)
    }

    /// Returns the port numbers.
    pub fn numbers(&self) -> &[u16] {
        &self.numbers
    }
}

fn bind_port(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_taken_at_once_differ_and_are_free() {
        // More than a block has, by four at once.
        let taken: Vec<Ports> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| Ports::reserve_free(40)))
                .collect();
            let taken = takers.into_iter().map(|taker| taker.join().unwrap());
            taken.collect::<io::Result<_>>().unwrap()
        });
        let all: Vec<u16> = taken
            .iter()
            .flat_map(|ports| ports.numbers.clone())
            .collect();
        assert_eq!(all.len(), 160);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 160, "{all:?}");
        for port in &all {
            assert!((FIRST..END).contains(port));
            bind_port(*port).expect("nobody listens there");
        }
    }

    #[test]
    fn more_ports_than_there_are_is_refused() {
        let error = Ports::reserve_free(usize::from(END - FIRST)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
