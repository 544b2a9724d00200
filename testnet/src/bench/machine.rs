//! A state machine that costs almost nothing: a hash chain that also notices gaps.

use souk_consensus::{LogTime, Position, RestoreError, StateMachine};

/// Counts commands, chains their hashes, and follows one client's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    count: u64,
    head: [u8; 32],
    /// The highest number seen, if a single client counts its commands from one.
    last: u64,
    /// Numbers that were skipped: something acknowledged was lost.
    gaps: u64,
}

impl Chain {
    /// The highest number seen, and how many were skipped.
    pub fn numbers(&self) -> (u64, u64) {
        (self.last, self.gaps)
    }
}

/// Bytes of a snapshot.
const SNAPSHOT_BYTES: usize = 56;

impl StateMachine for Chain {
    fn apply(&mut self, _at: Position, _now: LogTime, command: &[u8]) -> Vec<u8> {
        self.count += 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.head);
        hasher.update(command);
        self.head = *hasher.finalize().as_bytes();
        if let Some(number) = command.first_chunk::<8>() {
            let number = u64::from_le_bytes(*number);
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
        let mut bytes = self.head.to_vec();
        for number in [self.count, self.last, self.gaps] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let Some(bytes) = bytes.first_chunk::<SNAPSHOT_BYTES>() else {
            return Err(RestoreError {
                cause: "not a chain".into(),
            });
        };
        let number = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        self.head.copy_from_slice(&bytes[..32]);
        (self.count, self.last, self.gaps) = (number(32), number(40), number(48));
        Ok(())
    }
}
