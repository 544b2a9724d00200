//! Limits how many incoming connections one IP address can have. It is one of the libp2p behaviours
//! of the swarm.
//!
//! Without these limits, one machine with a thousand keys would take every connection: keys are
//! free, addresses less so. Many honest nodes can share an address, so its share must be generous.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenFailure, NetworkBehaviour,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};

/// Connections from one address at a time, including those still being negotiated.
pub(super) const FROM_ADDRESS_MAX: usize = 256;

/// Connections from one address that are still being negotiated: a quarter of all that can be.
pub(super) const PENDING_FROM_ADDRESS_MAX: usize = 32;

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {most} connections from {address} already")]
pub(super) struct AddressFull {
    address: IpAddr,
    most: usize,
}

/// Counts incoming connections by address, and refuses those over the limit.
#[derive(Debug, Default)]
pub(super) struct AddressLimits {
    from: HashMap<IpAddr, Count>,
    connections: HashMap<ConnectionId, (IpAddr, Stage)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    pending: usize,
    established: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Pending,
    Established,
}

impl AddressLimits {
    fn on_pending(&mut self, id: ConnectionId, address: IpAddr) -> Result<(), AddressFull> {
        let count = self.from.entry(address).or_default();
        let over = |most| AddressFull { address, most };
        if count.pending >= PENDING_FROM_ADDRESS_MAX {
            return Err(over(PENDING_FROM_ADDRESS_MAX));
        }
        if count.pending + count.established >= FROM_ADDRESS_MAX {
            return Err(over(FROM_ADDRESS_MAX));
        }
        count.pending += 1;
        self.connections.insert(id, (address, Stage::Pending));
        Ok(())
    }

    fn on_established(&mut self, id: ConnectionId) {
        if let Some((address, stage)) = self.connections.get_mut(&id)
            && *stage == Stage::Pending
        {
            *stage = Stage::Established;
            let count = self.from.entry(*address).or_default();
            count.pending = count.pending.saturating_sub(1);
            count.established += 1;
        }
    }

    fn on_closed(&mut self, id: ConnectionId) {
        let Some((address, stage)) = self.connections.remove(&id) else {
            return;
        };
        let count = self.from.entry(address).or_default();
        match stage {
            Stage::Pending => count.pending = count.pending.saturating_sub(1),
            Stage::Established => count.established = count.established.saturating_sub(1),
        }
        if count.pending + count.established == 0 {
            self.from.remove(&address);
        }
    }
}

impl NetworkBehaviour for AddressLimits {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        match ip_of(remote) {
            Some(address) => self.on_pending(id, address).map_err(ConnectionDenied::new),
            // A relay counts the connections that come through it.
            None => Ok(()),
        }
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.on_established(id);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
            | FromSwarm::ListenFailure(ListenFailure { connection_id, .. }) => {
                self.on_closed(connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

/// Returns the IP address of a multiaddress that begins with one and does not go through a relay.
pub(super) fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    if address.iter().any(|part| part == Protocol::P2pCircuit) {
        return None;
    }
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    #[test]
    fn one_address_does_not_take_every_connection() {
        let mut address_limits = AddressLimits::default();
        let greedy = IpAddr::from([10, 0, 0, 1]);
        for number in 0..FROM_ADDRESS_MAX {
            assert_eq!(address_limits.on_pending(id(number), greedy), Ok(()));
            address_limits.on_established(id(number));
        }
        let most = FROM_ADDRESS_MAX;
        let refused = address_limits.on_pending(id(most), greedy);
        let address = greedy;
        assert_eq!(refused, Err(AddressFull { address, most }));
        assert_eq!(
            address_limits.on_pending(id(most + 1), [10, 0, 0, 2].into()),
            Ok(())
        );
        address_limits.on_closed(id(0));
        assert_eq!(address_limits.on_pending(id(most + 2), greedy), Ok(()));
    }

    #[test]
    fn half_open_connections_are_few_and_forgotten_when_they_end() {
        let mut address_limits = AddressLimits::default();
        let slow = IpAddr::from([10, 0, 0, 1]);
        for number in 0..PENDING_FROM_ADDRESS_MAX {
            assert_eq!(address_limits.on_pending(id(number), slow), Ok(()));
        }
        assert!(address_limits.on_pending(id(1_000), slow).is_err());
        for number in 0..PENDING_FROM_ADDRESS_MAX {
            address_limits.on_closed(id(number));
        }
        assert!(address_limits.from.is_empty() && address_limits.connections.is_empty());
    }
}
