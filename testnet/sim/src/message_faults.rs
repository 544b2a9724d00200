//! Changes messages of replicas in flight, as faulty leaders would: reorders the commands of a
//! proposal, and forges entries.

use bytes::Bytes;
use raft::eraftpb::ConfChangeType;
use souk_consensus::batch::Batch;
use souk_consensus::wire::PeerMessage;

use super::forged_messages;
use super::random::Random;

/// raft's message type of a forwarded proposal.
const PROPOSE: i32 = 2;

/// raft's message type of entries from the leader.
const APPEND: i32 = 3;

/// Reorders the commands in a forwarded proposal, as a leader can do.
pub fn reorder_commands(bytes: &Bytes, random: &mut Random) -> Option<Bytes> {
    let PeerMessage::Raft(mut message) = PeerMessage::decode(bytes.clone()).ok()? else {
        return None;
    };
    if message.msg_type as i32 != PROPOSE {
        return None;
    }
    for entry in message.mut_entries().iter_mut() {
        let mut batch = Batch::decode(entry.data.clone()).ok()?;
        random.shuffle(&mut batch.commands);
        entry.data = batch.encode().into();
    }
    Some(PeerMessage::Raft(message).encode())
}

/// Forges a leader's message to some of the others: the last signature of its entries is invalid,
/// or one entry gives a stranger a vote. The checksum stays right.
pub fn forge_message(bytes: Bytes, random: &mut Random) -> Bytes {
    if !random.chance(300) {
        return bytes;
    }
    let Ok(PeerMessage::Raft(mut message)) = PeerMessage::decode(bytes.clone()) else {
        return bytes;
    };
    if message.msg_type as i32 != APPEND || message.entries.is_empty() {
        return bytes;
    }
    if random.chance(200) {
        let stranger = forged_messages::membership_change(&[(
            ConfChangeType::AddNode,
            forged_messages::STRANGER,
        )]);
        let place = random.draw_index(message.entries.len());
        forged_messages::change_members(&mut message.mut_entries()[place], stranger);
        return PeerMessage::Raft(message).encode();
    }
    for entry in message.mut_entries().iter_mut() {
        if Batch::decode(entry.data.clone()).is_err() {
            continue;
        }
        let mut data = entry.data.to_vec();
        if let Some(byte) = data.last_mut() {
            *byte ^= 1;
        }
        entry.data = data.into();
    }
    PeerMessage::Raft(message).encode()
}
