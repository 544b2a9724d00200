//! Proposes peers' batches for the log.
//!
//! Keys are free, so everything that a key can do before it has credits must be bounded: the log is
//! on the disk of every validator. The state keeps out batches of unknown accounts, replays, and
//! expired batches ([`souk_market::Exchange::foresee_refusal`]). Registrations must enter the log,
//! so this module limits how many do. A batch whose commands were all refused has taken a place in
//! the log for nothing, so its sender pays for many questions.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use libp2p::PeerId;
use souk_consensus::replica::COMMAND_BYTES_MAX;
use souk_market::{Command, SignedBatch};
use souk_network::RateLimit;
use souk_network::protocols::market::Answer;
use tokio::time::Instant;

use super::SharedState;
use crate::validator::ProposeError;
use crate::validator::exchange_machine::BatchResult;

/// The registrations that one peer can submit in a burst, and per second after that. A peer
/// normally registers its own account, once.
const OF_PEER: (u32, u32) = (16, 1);

/// The same for all peers of one address: a machine with a testnet has some dozens.
const OF_ADDRESS: (u32, u32) = (512, 16);

/// The same for all peers of this validator: some 10 KiB of the log a second.
const OF_ALL: (u32, u32) = (2_048, 64);

/// The questions for which a refused batch counts, in addition to its own cost
/// ([`Request::cost`](souk_network::protocols::market::Request::cost)).
const REFUSED_COST: u32 = 32;

/// The rates of registrations, each of which takes a row of the state for a key that is free.
pub(super) struct RegistrationLimits {
    of_peer: RateLimit,
    of_address: RateLimit<Option<IpAddr>>,
    of_all: RateLimit<()>,
}

impl Default for RegistrationLimits {
    fn default() -> Self {
        Self {
            of_peer: RateLimit::new(OF_PEER.0, OF_PEER.1),
            of_address: RateLimit::new(OF_ADDRESS.0, OF_ADDRESS.1),
            of_all: RateLimit::new(OF_ALL.0, OF_ALL.1),
        }
    }
}

impl RegistrationLimits {
    /// Counts a registration by a peer at this address, or returns how long the peer must wait.
    /// Peers without an address of their own, such as those behind a relay, count together.
    fn count_registration(
        &self,
        peer: PeerId,
        address: Option<IpAddr>,
        now: Instant,
    ) -> Result<(), Duration> {
        self.of_peer.take_tokens(peer, 1, now)?;
        let network = address.map(to_network);
        self.of_address.take_tokens(network, 1, now)?;
        self.of_all.take_tokens((), 1, now)
    }
}

/// Returns the address that stands for all that one machine can have: of an IPv6 address the first
/// half.
fn to_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let half = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(half))
        }
        address => address,
    }
}

impl SharedState {
    /// Proposes a batch, and returns the results of its commands.
    pub(super) async fn submit_batch(&self, peer: PeerId, batch: SignedBatch) -> Answer {
        if let Some(Command::Register { .. }) = batch.batch.commands.first() {
            let address = self.network.peer_ip(peer).await;
            let limits = &self.registrations;
            if let Err(wait) = limits.count_registration(peer, address, Instant::now()) {
                let retry_after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
                return Answer::Busy { retry_after_ms };
            }
        }
        let answer = self.propose_batch(batch).await;
        if let Answer::Applied(results) = &answer
            && results.iter().all(Result::is_err)
        {
            self.rate_limit.wait_for_tokens(peer, REFUSED_COST).await;
        }
        answer
    }

    async fn propose_batch(&self, batch: SignedBatch) -> Answer {
        // This check keeps invalid commands from taking the place of valid ones in the log.
        let verified = self
            .validator
            .verify_each(vec![batch.encode().into()])
            .await;
        let verified = verified.map(|each| each.into_iter().next());
        let proposed = match verified {
            Ok(Some(Ok(proposal))) => self.validator.propose(proposal).await,
            Ok(Some(Err(forged))) => return Answer::Invalid(forged.to_string()),
            Ok(None) => Err(ProposeError::Stopped),
            Err(error) => Err(error),
        };
        let result = match proposed {
            Ok(result) => result,
            Err(ProposeError::Busy { retry_after_ms }) => return Answer::Busy { retry_after_ms },
            Err(ProposeError::TooLarge { bytes }) => {
                return Answer::TooLarge {
                    bytes: bytes as u64,
                    bytes_max: COMMAND_BYTES_MAX as u64,
                };
            }
            Err(error) => return Answer::Unavailable(error.to_string()),
        };
        match postcard::from_bytes(&result) {
            Ok(BatchResult::Applied(results)) => Answer::Applied(results),
            Ok(BatchResult::Ordered(_)) => Answer::Invalid("it is an order".to_owned()),
            Err(error) => Answer::Unavailable(format!("the result does not decode: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(limits: &RegistrationLimits, addresses: &[&str], now: Instant) -> usize {
        let address = |number: usize| addresses[number % addresses.len()].parse().unwrap();
        let count = |number| {
            let peer = PeerId::random();
            limits.count_registration(peer, Some(address(number)), now)
        };
        (0..10_000).filter(|it| count(*it).is_ok()).count()
    }

    #[test]
    fn new_keys_of_one_machine_register_no_faster_than_it() {
        let (limits, now) = (RegistrationLimits::default(), Instant::now());
        let machine = ["2001:db8::1", "2001:db8::ffff:1"];
        assert_eq!(count(&limits, &machine, now), 512);
        assert_eq!(count(&limits, &["192.0.2.1"], now), 512, "another one");
        let later = now + Duration::from_secs(2);
        assert_eq!(count(&limits, &machine, later), 32);
    }

    #[test]
    fn one_key_registers_a_few_times_and_all_machines_together_at_a_rate() {
        let (limits, now) = (RegistrationLimits::default(), Instant::now());
        let peer = PeerId::random();
        let again = |_: &i32| limits.count_registration(peer, None, now).is_ok();
        assert_eq!((0..100).filter(again).count(), 16);
        let machines: Vec<String> = (1..=100).map(|it| format!("192.0.2.{it}")).collect();
        let machines: Vec<&str> = machines.iter().map(String::as_str).collect();
        assert_eq!(count(&limits, &machines, now), 2_048 - 16);
    }
}
