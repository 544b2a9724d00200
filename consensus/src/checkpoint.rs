//! The checkpoint: the digests of a replica's history and of its state at one log index. Replicas
//! compare their checkpoints, because all of them must reach the same one.

use crate::codec::{Reader, TruncationError, Writer};
use crate::ids::Term;
use souk_proof::Digest;
use souk_proof::LogIndex;

/// The state at one index as two digests, which must be equal on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// The number of commands and results in the history.
    pub size: u64,
    /// The root of the history.
    pub history: Digest,
    /// The machine's digest.
    pub state: Digest,
}

impl Checkpoint {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.write_u64(self.index.0);
        writer.write_u64(self.term.0);
        writer.write_u64(self.size);
        writer.write_raw(&self.history.0);
        writer.write_raw(&self.state.0);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Self, TruncationError> {
        Ok(Self {
            index: LogIndex(reader.read_u64()?),
            term: Term(reader.read_u64()?),
            size: reader.read_u64()?,
            history: Digest(reader.read_digest()?),
            state: Digest(reader.read_digest()?),
        })
    }
}
