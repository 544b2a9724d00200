//! Checks the batches of commands that peers submit, and proposes them for the log.
//!
//! Anyone can create keys without cost, so the server must bound everything that a key can do
//! before it has credits: each entry of the log is on the disk of every validator. The state
//! machine keeps out batches of unknown accounts, replays, and expired batches
//! ([`souk_market::Exchange::foresee_refusal`]). Registrations must enter the log, so this module
//! limits their rate. A batch whose commands were all refused still took a place in the log, so it
//! counts as many questions against its sender's limit.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use libp2p::PeerId;
use souk_consensus::replica::COMMAND_BYTES_MAX;
use souk_folder::clock::unix_ms;
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

/// The same for all peers of this validator: some 16 KiB of the log a second.
const OF_ALL: (u32, u32) = (2_048, 64);

/// The bytes of a batch that count as one registration, and the most that it can have: a plain one
/// has fewer than the first.
const BYTES_OF_ONE: usize = 256;
const BYTES_MAX: usize = 4_096;

/// The longest time for which a registration can be valid. An account keeps its place until its
/// batch expires, so a longer one would let strangers pin all places of the market. souk's batches
/// are valid for a minute; the rest is for clocks that differ.
const VALID_MAX: Duration = Duration::from_secs(600);

/// The questions for which a refused batch counts, in addition to its own cost
/// ([`Request::cost`](souk_network::protocols::market::Request::cost)).
const REFUSED_COST: u32 = 32;

/// The rate limits of registrations, each of which adds a row to the state at no cost for the
/// sender.
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
    /// Counts a registration of this many bytes by a peer at this address, or returns how long the
    /// peer must wait. Peers without an address of their own, such as those behind a relay, share
    /// one limit.
    fn count_registration(
        &self,
        peer: PeerId,
        address: Option<IpAddr>,
        bytes: usize,
        now: Instant,
    ) -> Result<(), Duration> {
        let count = bytes.min(BYTES_MAX).div_ceil(BYTES_OF_ONE);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.of_peer.take_tokens(peer, count, now)?;
        let network = address.map(to_network);
        self.of_address.take_tokens(network, count, now)?;
        self.of_all.take_tokens((), count, now)
    }
}

/// Returns the network of an address, which stands for all addresses that one machine can have: of
/// an IPv6 address the first half.
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
        let answer = self.propose_batch(peer, batch).await;
        if let Answer::Applied(results) = &answer
            && results.iter().all(Result::is_err)
        {
            self.rate_limit.wait_for_tokens(peer, REFUSED_COST).await;
        }
        answer
    }

    /// Refuses a registration that is too large or valid for too long, or one of too many.
    async fn admit_registration(
        &self,
        peer: PeerId,
        batch: &SignedBatch,
        bytes: usize,
    ) -> Result<(), Answer> {
        if bytes > BYTES_MAX {
            return Err(Answer::TooLarge {
                bytes: bytes as u64,
                bytes_max: BYTES_MAX as u64,
            });
        }
        let valid_max = u64::try_from(VALID_MAX.as_millis()).unwrap_or(u64::MAX);
        if batch.batch.expires.0 > unix_ms().saturating_add(valid_max) {
            let seconds = VALID_MAX.as_secs();
            let cause = format!("a registration must expire within {seconds} s");
            return Err(Answer::Invalid(cause));
        }
        let address = self.network.peer_ip(peer).await;
        let counted = self
            .registrations
            .count_registration(peer, address, bytes, Instant::now());
        counted.map_err(|wait| Answer::Busy {
            retry_after_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1),
        })
    }

    async fn propose_batch(&self, peer: PeerId, batch: SignedBatch) -> Answer {
        let bytes = batch.encode();
        let size = bytes.len();
        // This check keeps invalid commands from taking the place of valid ones in the log.
        let verified = self.validator.verify_each(vec![bytes.into()]).await;
        let verified = verified.map(|each| each.into_iter().next());
        if let Ok(Some(Ok(_))) = &verified
            && let Some(Command::Register { .. }) = batch.batch.commands.first()
            && let Err(refused) = self.admit_registration(peer, &batch, size).await
        {
            return refused;
        }
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
            Ok(BatchResult::Judged(_)) => Answer::Invalid("it is a verdict".to_owned()),
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
            limits.count_registration(peer, Some(address(number)), 200, now)
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
        let again = |bytes: usize| {
            let again = |_: &i32| limits.count_registration(peer, None, bytes, now).is_ok();
            (0..100).filter(again).count()
        };
        assert_eq!(
            again(4 * BYTES_OF_ONE),
            4,
            "a large batch counts as several"
        );
        assert_eq!(again(1), 0);
        let machines: Vec<String> = (1..=100).map(|it| format!("192.0.2.{it}")).collect();
        let machines: Vec<&str> = machines.iter().map(String::as_str).collect();
        assert_eq!(count(&limits, &machines, now), 2_048 - 16);
    }
}
