//! Remembers the requests that a tab has billed, and counts which messages of its next request are
//! cached, because these cost less.
//!
//! A message counts as cached if it belongs to a common beginning of the request and an earlier one
//! of the tab, even if the engine read it again: both sides know the requests, so both count alike.
//! A tab lasts at most some minutes, so the rule needs no clock.

use std::collections::VecDeque;

use souk_memory::ContentId;

use super::counting::{TokenCount, count_tokens};
use super::text::{Message, Role, TextRequest};

/// The requests that a tab remembers. A provider must hold their hashes for each tab.
const REQUESTS_MAX: usize = 8;

/// The billed requests of one tab, the last ones.
#[derive(Clone, Debug, Default)]
pub struct PromptHistory(VecDeque<Vec<ContentId>>);

impl PromptHistory {
    /// Returns the tokens of a request's messages, cached and not, each message counted by itself.
    #[must_use]
    pub fn count_prompt(&self, request: &TextRequest) -> TokenCount {
        let chain = chain_messages(&request.messages);
        let shared = |earlier: &Vec<ContentId>| {
            let both = earlier.iter().zip(&chain);
            both.take_while(|(one, other)| one == other).count()
        };
        let shared = self.0.iter().map(shared).max().unwrap_or(0);
        let (cached, other) = request.messages.split_at(shared);
        let count = |messages: &[Message]| {
            let each = messages.iter().map(|it| count_tokens(&it.content));
            each.fold(0, u64::saturating_add)
        };
        TokenCount {
            input: count(other),
            cached: count(cached),
            output: 0,
        }
    }

    /// Remembers a request, if it was billed. One that the engine did not answer is not cached.
    pub fn on_counted(&mut self, request: &TextRequest, count: TokenCount) {
        if count == TokenCount::default() {
            return;
        }
        self.0.push_back(chain_messages(&request.messages));
        if self.0.len() > REQUESTS_MAX {
            self.0.pop_front();
        }
    }
}

/// Returns for each message a hash of it and all before it. The whole hash counts, because a buyer
/// could look for messages with an equal part.
fn chain_messages(messages: &[Message]) -> Vec<ContentId> {
    let mut last = ContentId::from_bytes([0; 32]);
    let link = |message: &Message| {
        let role: u8 = match message.role {
            Role::System => 0,
            Role::User => 1,
            Role::Assistant => 2,
        };
        let content = ContentId::for_content(message.content.as_bytes());
        let parts = [&last.as_bytes()[..], &[role], content.as_bytes()].concat();
        last = ContentId::for_content(&parts);
        last
    };
    messages.iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(messages: &[(Role, &str)]) -> TextRequest {
        let message = |(role, content): &(Role, &str)| Message {
            role: *role,
            content: (*content).to_owned(),
        };
        TextRequest {
            messages: messages.iter().map(message).collect(),
            tokens_max: 16,
            ..TextRequest::default()
        }
    }

    /// Returns the tokens of a request that are not cached and that are.
    fn split(history: &PromptHistory, messages: &[(Role, &str)]) -> (u64, u64) {
        let count = history.count_prompt(&request(messages));
        assert_eq!(count.prompt(), request(messages).input_tokens());
        (count.input, count.cached)
    }

    const BILLED: TokenCount = TokenCount {
        input: 1,
        cached: 0,
        output: 1,
    };

    #[test]
    fn whole_messages_with_which_an_earlier_request_began_are_cached() {
        use Role::{Assistant, System, User};
        let mut history = PromptHistory::default();
        let first = [(System, "be short"), (User, "a question of 24 byte")];
        assert_eq!(split(&history, &first), (2 + 6, 0));
        history.on_counted(&request(&first), BILLED);
        assert_eq!(split(&history, &first), (0, 8));
        // The answer was no part of a request, so it is read for the first time.
        let next = [first[0], first[1], (Assistant, "yes"), (User, "why?")];
        assert_eq!(split(&history, &next), (2, 8));
        // A message that differs ends it, and so does another role.
        assert_eq!(split(&history, &[first[0], (User, "a question")]), (3, 2));
        assert_eq!(split(&history, &[(User, "be short"), first[1]]), (8, 0));
        assert_eq!(split(&history, &[first[1], first[0]]), (8, 0));
        // The longest of all earlier requests counts.
        history.on_counted(&request(&[(System, "be long")]), BILLED);
        assert_eq!(split(&history, &next), (2, 8));
    }

    #[test]
    fn an_unbilled_request_is_not_cached_and_old_ones_are_forgotten() {
        let mut history = PromptHistory::default();
        let first = [(Role::User, "first")];
        history.on_counted(&request(&first), TokenCount::default());
        assert_eq!(split(&history, &first), (2, 0));
        history.on_counted(&request(&first), BILLED);
        for number in 0..REQUESTS_MAX {
            assert_eq!(split(&history, &first), (0, 2), "{number}");
            history.on_counted(&request(&[(Role::User, &number.to_string())]), BILLED);
        }
        assert_eq!(split(&history, &first), (2, 0));
    }
}
