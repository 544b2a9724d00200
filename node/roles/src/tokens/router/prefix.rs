//! Compares the beginnings of two conversations by whole messages, so that the router finds the tab
//! whose engine has already read most of a request.

use souk_memory::ContentId;

use crate::tokens::text::{Message, Role};

/// The messages of a conversation: for each one, a hash of it and all before it, and their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix(Vec<(u64, u64)>);

impl Prefix {
    pub(super) fn of_messages(messages: &[Message]) -> Prefix {
        let (mut hash, mut bytes) = (0_u64, 0_u64);
        let message = |message: &Message| {
            let role: u8 = match message.role {
                Role::System => 0,
                Role::User => 1,
                Role::Assistant => 2,
            };
            let content = ContentId::for_content(message.content.as_bytes());
            let parts = [&hash.to_le_bytes()[..], &[role], content.as_bytes()].concat();
            let chained = ContentId::for_content(&parts);
            let first = chained.as_bytes().first_chunk().expect("an id is longer");
            hash = u64::from_le_bytes(*first);
            bytes = bytes.saturating_add(message.content.len() as u64);
            (hash, bytes)
        };
        Prefix(messages.iter().map(message).collect())
    }

    /// Returns the bytes of the messages with which both conversations begin.
    pub(super) fn shared_bytes(&self, other: &Prefix) -> u64 {
        let both = self.0.iter().zip(&other.0);
        let shared = both.take_while(|(one, other)| one == other);
        shared.last().map_or(0, |((_, bytes), _)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_share_whole_messages_from_their_beginning() {
        let prefix = |contents: &[&str]| {
            let message = |content: &&str| Message {
                role: Role::User,
                content: (*content).to_owned(),
            };
            Prefix::of_messages(&contents.iter().map(message).collect::<Vec<_>>())
        };
        let one = prefix(&["be short", "hello"]);
        assert_eq!(
            one.shared_bytes(&prefix(&["be short", "hello", "more"])),
            13
        );
        assert_eq!(one.shared_bytes(&prefix(&["be short", "hell"])), 8);
        assert_eq!(one.shared_bytes(&prefix(&["", "hello"])), 0);
        assert_eq!(one.shared_bytes(&Prefix::default()), 0);
    }
}
