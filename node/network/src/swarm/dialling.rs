//! Describes in words why a peer could not be reached, for the error that the swarm's task returns
//! to its caller.

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::DialError;

use super::is_loopback;

/// Describes the failure at each address, without the layers of transports in between.
pub(super) fn describe_error(error: &DialError) -> String {
    match error {
        DialError::Transport(attempts) => {
            // A failure on loopback says nothing if other addresses were tried.
            let is_far = |(address, _): &&(Multiaddr, _)| !is_loopback(address);
            let has_far = attempts.iter().any(|attempt| is_far(&attempt));
            let told = attempts.iter().filter(|it| is_far(it) || !has_far);
            let each = told.map(|(address, cause)| {
                format!("{}: {}", without_peer_id(address), root_cause(cause))
            });
            each.collect::<Vec<_>>().join("; ")
        }
        DialError::WrongPeerId { obtained, address } => {
            format!("{address}: another peer answers there, {obtained}")
        }
        other => other.to_string(),
    }
}

/// Returns an address without the peer id at its end, which the caller knows.
fn without_peer_id(address: &Multiaddr) -> Multiaddr {
    let is_relayed = address.iter().any(|it| matches!(it, Protocol::P2pCircuit));
    let parts = address.iter();
    let kept = parts.filter(|it| is_relayed || !matches!(it, Protocol::P2p(_)));
    kept.collect()
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_the_peer_it_ends_with() {
        let peer = "12D3KooWEaRkVt4Hekh22NaddsDzLKonmfBP3sfRakpMk4731Dcx";
        let plain: Multiaddr = format!("/ip4/192.0.2.7/tcp/1/p2p/{peer}").parse().unwrap();
        assert_eq!(without_peer_id(&plain).to_string(), "/ip4/192.0.2.7/tcp/1");
        let relayed = format!("/ip4/192.0.2.7/tcp/1/p2p/{peer}/p2p-circuit/p2p/{peer}");
        assert_eq!(
            without_peer_id(&relayed.parse().unwrap()).to_string(),
            relayed
        );
    }

    #[test]
    fn attempts_at_this_machine_are_told_only_where_there_were_no_others() {
        let attempt = |address: &str, why: &str| {
            let error = libp2p::TransportError::Other(std::io::Error::other(why.to_owned()));
            (address.parse::<Multiaddr>().unwrap(), error)
        };
        let own = || attempt("/ip4/127.0.0.1/tcp/1", "refused");
        let far = attempt("/ip4/192.0.2.7/tcp/1", "timed out");
        let both = describe_error(&DialError::Transport(vec![own(), far]));
        assert_eq!(both, "/ip4/192.0.2.7/tcp/1: timed out");
        let one = describe_error(&DialError::Transport(vec![own()]));
        assert_eq!(one, "/ip4/127.0.0.1/tcp/1: refused");
    }
}
