//! Defines the state machine that the replicas of `souk bench consensus` replicate in place of a
//! market. It does almost nothing, so that the benchmark measures the replication: it counts
//! commands, and detects missing or reordered ones.
//!
//! It hashes no commands, because the history of every replica hashes them already.

use ed25519_dalek::Signer as _;
use souk_consensus::{CommandFault, LogTime, Position, RestoreError, StateMachine};
use souk_folder::key::NodeKey;
use souk_market::{AccountKey, Claim, Signature};
use souk_node::validator::AnsweringMachine;

use super::protocol::key;

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 64;

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Returns the key of the driver's network.
pub fn driver_key() -> NodeKey {
    key(0)
}

/// Returns a client's key, which follows the replicas' keys: each client is an account of its own.
pub fn client_key(client: u64) -> NodeKey {
    key(1_000_000 + client)
}

/// Signs a command: returns the signature, the client's key, and the command.
pub fn sign_command(key: &NodeKey, command: &[u8]) -> Vec<u8> {
    let mut signed = key.signing_key().sign(command).to_bytes().to_vec();
    signed.extend_from_slice(&key.public_key());
    signed.extend_from_slice(command);
    signed
}

/// Returns the claim in a command of `sign_command`, or none if the command is too short.
fn parse_claim(command: &[u8]) -> Option<Claim<'_>> {
    let (signature, rest) = command.split_first_chunk::<SIGNATURE_BYTES>()?;
    let (signer, message) = rest.split_first_chunk::<KEY_BYTES>()?;
    Some(Claim {
        signer: AccountKey(*signer),
        message,
        signature: Signature(*signature),
    })
}

/// Returns the number at the beginning of a command, unless its signature is forged.
fn parse_number(command: &[u8], holds: bool) -> Result<Number, CommandFault> {
    let number = command.first_chunk::<8>();
    let number = Number(number.map(|number| u64::from_le_bytes(*number)));
    holds.then_some(number).ok_or_else(|| CommandFault {
        cause: "its client did not sign it".into(),
    })
}

/// Counts commands, mixes their first bytes in order, and tracks one client's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountingMachine<const SIGNED: bool> {
    count: u64,
    /// Depends on the order of the commands, which must be the same on every replica.
    mixed: u64,
    /// The highest number so far. A single client must number its commands from one for the gaps to
    /// mean anything.
    last: u64,
    /// Skipped numbers: each is an acknowledged command that was lost.
    gaps: u64,
}

impl<const SIGNED: bool> CountingMachine<SIGNED> {
    /// Returns the number of commands applied.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the highest number, and how many numbers were skipped.
    pub fn last_and_gaps(&self) -> (u64, u64) {
        (self.last, self.gaps)
    }
}

impl<const SIGNED: bool> AnsweringMachine for CountingMachine<SIGNED> {
    type Question = ();
    /// Commands applied, the highest number, and how many numbers were skipped.
    type Reply = (u64, (u64, u64));

    fn answer_question(&self, (): ()) -> Self::Reply {
        (self.count(), self.last_and_gaps())
    }
}

/// The number at the beginning of a command, if the command is long enough.
#[derive(Clone, Copy, Debug)]
pub struct Number(Option<u64>);

/// Bytes of a snapshot.
const SNAPSHOT_BYTES: usize = 32;

/// An odd number with well-spread bits: 2 to the 64th over the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl<const SIGNED: bool> StateMachine for CountingMachine<SIGNED> {
    type Command = Number;

    fn verify_command(command: &[u8]) -> Result<Number, CommandFault> {
        let holds = !SIGNED || parse_claim(command).is_some_and(|claim| claim.is_valid());
        parse_number(command, holds)
    }

    fn verify_each(commands: &[&[u8]]) -> Vec<Result<Number, CommandFault>> {
        if !SIGNED {
            return commands.iter().map(|it| parse_number(it, true)).collect();
        }
        let claims: Vec<_> = commands.iter().map(|it| parse_claim(it)).collect();
        let readable: Vec<Claim<'_>> = claims.iter().flatten().copied().collect();
        let mut holds = Claim::each_holds(&readable).into_iter();
        let mut judged = |claim: &Option<_>| claim.is_some() && holds.next().unwrap_or(false);
        let judged: Vec<bool> = claims.iter().map(&mut judged).collect();
        let each = commands.iter().zip(judged);
        each.map(|(command, holds)| parse_number(command, holds))
            .collect()
    }

    fn apply_command(&mut self, _at: Position, _now: LogTime, command: &Number) -> Vec<u8> {
        self.count += 1;
        if let Some(number) = command.0 {
            self.mixed = (self.mixed ^ number).wrapping_mul(MIX).rotate_left(29);
            self.gaps += u64::from(number > self.last + 1);
            self.last = self.last.max(number);
        }
        Vec::new()
    }

    fn tick(&mut self, _at: Position, _now: LogTime) -> Vec<u8> {
        Vec::new()
    }

    fn wakes_at(&self) -> Option<LogTime> {
        None
    }

    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.snapshot()).as_bytes()
    }

    fn snapshot(&self) -> Vec<u8> {
        let numbers = [self.count, self.mixed, self.last, self.gaps];
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let Some(bytes) = bytes.first_chunk::<SNAPSHOT_BYTES>() else {
            return Err(RestoreError {
                cause: "not a counter".into(),
            });
        };
        let mut numbers = [0; 4];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            *number = u64::from_le_bytes(eight);
        }
        [self.count, self.mixed, self.last, self.gaps] = numbers;
        Ok(())
    }
}
