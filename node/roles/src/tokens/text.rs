//! Defines the request and the answer of a tab (a lease of a language model by the token), and
//! their limits. A request has a fixed list of fields, so a buyer can use nothing else of the
//! provider's engine: no URLs, no media, no options of a particular engine.

use serde::{Deserialize, Serialize};

use super::counting::{TokenCount, count_tokens};

/// The most bytes of all messages of a request.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The most messages of a request.
pub const MESSAGES_MAX: usize = 1_024;

/// The most strings that end an answer, and the most bytes of each.
pub const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = 256;

/// The most tokens of an answer.
pub const ANSWER_TOKENS_MAX: u32 = 32_768;

/// An answer is billed as at most this many times the tokens that its request allows: engines count
/// tokens of other lengths, and padding must not pay.
const BILLED_TOKENS_MAX: u64 = 2;

/// The most bytes of an answer's text for each token that its request allows; more is no answer.
const BYTES_PER_TOKEN_MAX: usize = 64;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The instructions that come before a conversation.
    System,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its author.
    pub role: Role,
    /// Its text.
    pub content: String,
}

/// A request for one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TextRequest {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The most tokens of the answer, by the engine's own count; at most [`ANSWER_TOKENS_MAX`].
    pub tokens_max: u32,
    /// The sampling temperature; none for the engine's default.
    pub temperature: Option<f64>,
    /// The probability mass to sample from; none for the engine's default.
    pub top_p: Option<f64>,
    /// The penalty of tokens by their number in the text; none for the engine's default.
    pub frequency_penalty: Option<f64>,
    /// The penalty of tokens that are in the text; none for the engine's default.
    pub presence_penalty: Option<f64>,
    /// The seed of sampling, not negative; none for a new one.
    pub seed: Option<i64>,
    /// The strings that end the answer.
    pub stop: Vec<String>,
    /// Whether the answer continues the last message, which is the beginning of an answer that
    /// another provider did not end.
    pub continues: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// It has the most tokens that its request allows.
    Length,
    /// The engine's filter ended it.
    ContentFilter,
    /// The buyer stopped it.
    Cancelled,
    /// The engine failed before the answer was whole.
    Interrupted,
    /// The engine refused the request, and there is no text.
    Refused,
    /// The engine has no room now, and there is no text.
    Busy,
    /// The time of the tab was over before the answer was whole.
    Expired,
}

/// The text of an answer, or a piece of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerText {
    /// The reasoning that the engine shows apart from the answer.
    pub reasoning: String,
    /// The answer.
    pub content: String,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextAnswer {
    /// Its text.
    pub text: AnswerText,
    /// Why it ended.
    pub finish: Finish,
    /// What the engine says of a failure; empty for a whole answer.
    pub message: String,
}

/// Why a request cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// It has no message, or too many.
    #[error("a request has 1 to {MESSAGES_MAX} messages, and this one has {0}")]
    Messages(usize),
    /// Its messages are too long.
    #[error("the messages have {0} bytes, and at most {MESSAGE_BYTES_MAX} fit: send fewer or less")]
    Long(usize),
    /// It asks for no token, or too many.
    #[error("an answer has 1 to {ANSWER_TOKENS_MAX} tokens, and {0} are asked for")]
    Tokens(u32),
    /// It has too many stop strings, or an empty or long one.
    #[error("at most {STOPS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes can stop an answer")]
    Stops,
    /// It continues a message that is no answer, or an empty one.
    #[error("only the text of an assistant, as the last message, can be continued")]
    Continued,
    /// Its seed is negative.
    #[error("a seed is not negative, and this one is {0}")]
    Seed(i64),
    /// A number of the sampling is out of its range.
    #[error("{name} is from {from} to {to}")]
    Sampling {
        /// The field.
        name: &'static str,
        /// The least value.
        from: i32,
        /// The greatest value.
        to: i32,
    },
}

impl RequestFault {
    /// Returns the field at fault, as OpenAI's API names it.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            RequestFault::Messages(_) | RequestFault::Long(_) | RequestFault::Continued => {
                "messages"
            }
            RequestFault::Tokens(_) => "max_tokens",
            RequestFault::Stops => "stop",
            RequestFault::Seed(_) => "seed",
            RequestFault::Sampling { name, .. } => name,
        }
    }
}

impl TextRequest {
    /// Checks the limits that both sides hold a request to.
    ///
    /// # Errors
    /// The first limit that it exceeds.
    pub fn check_limits(&self) -> Result<(), RequestFault> {
        let count = self.messages.len();
        if count == 0 || count > MESSAGES_MAX {
            return Err(RequestFault::Messages(count));
        }
        let bytes = self.messages.iter().map(|message| message.content.len());
        let bytes = bytes.fold(0, usize::saturating_add);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(RequestFault::Long(bytes));
        }
        if !(1..=ANSWER_TOKENS_MAX).contains(&self.tokens_max) {
            return Err(RequestFault::Tokens(self.tokens_max));
        }
        let is_short = |stop: &String| (1..=STOP_BYTES_MAX).contains(&stop.len());
        if self.stop.len() > STOPS_MAX || !self.stop.iter().all(is_short) {
            return Err(RequestFault::Stops);
        }
        let is_answer = |it: &Message| it.role == Role::Assistant && !it.content.is_empty();
        if self.continues && !self.messages.last().is_some_and(is_answer) {
            return Err(RequestFault::Continued);
        }
        // Engines refuse negative seeds, and a provider sends no seed to one that refuses them.
        if let Some(seed) = self.seed.filter(|seed| *seed < 0) {
            return Err(RequestFault::Seed(seed));
        }
        let numbers = [
            ("temperature", self.temperature, 0, 2),
            ("top_p", self.top_p, 0, 1),
            ("frequency_penalty", self.frequency_penalty, -2, 2),
            ("presence_penalty", self.presence_penalty, -2, 2),
        ];
        for (name, value, from, to) in numbers {
            let range = f64::from(from)..=f64::from(to);
            if value.is_some_and(|value| !range.contains(&value)) {
                return Err(RequestFault::Sampling { name, from, to });
            }
        }
        Ok(())
    }

    /// Returns the tokens of the messages, each counted by itself, cached or not.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        let messages = self.messages.iter();
        messages.map(|message| count_tokens(&message.content)).sum()
    }

    /// Returns the most tokens that the request is billed as: none of its messages is cached.
    #[must_use]
    pub fn count_max(&self) -> TokenCount {
        TokenCount {
            input: self.input_tokens(),
            cached: 0,
            output: self.output_tokens_max(),
        }
    }

    /// Returns the most tokens that the request is billed as, with those of its messages in
    /// `prompt`.
    #[must_use]
    pub fn count_max_after(&self, prompt: TokenCount) -> TokenCount {
        TokenCount {
            output: self.output_tokens_max(),
            ..prompt
        }
    }

    /// Returns the most tokens that an answer is billed as.
    fn output_tokens_max(&self) -> u64 {
        u64::from(self.tokens_max) * BILLED_TOKENS_MAX
    }

    /// Returns the most bytes of the answer's text; a longer one is no answer.
    #[must_use]
    pub fn answer_bytes_max(&self) -> usize {
        (self.tokens_max as usize).saturating_mul(BYTES_PER_TOKEN_MAX)
    }

    /// Returns the request for the rest of an answer that broke off after `text`; none if the text
    /// has all the tokens that the answer may have. White space at the end of the text is left out,
    /// because chat templates drop it. Without content, the answer begins anew.
    ///
    /// # Errors
    /// When the messages and the text are longer than a request can be.
    pub fn to_rest(&self, text: &AnswerText) -> Result<Option<TextRequest>, RequestFault> {
        let delivered = u32::try_from(text.output_tokens()).unwrap_or(u32::MAX);
        let left = self.tokens_max.saturating_sub(delivered);
        if left == 0 {
            return Ok(None);
        }
        let mut rest = self.clone();
        rest.tokens_max = left;
        let content = text.content.trim_end();
        if !content.is_empty() {
            rest.messages.push(Message {
                role: Role::Assistant,
                content: content.to_owned(),
            });
            rest.continues = true;
        }
        rest.check_limits().map(|()| Some(rest))
    }

    /// Returns the request's bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data in memory always encodes")
    }

    /// Reads a request that a peer sent; none if it is no request or exceeds a limit.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<TextRequest> {
        let read: TextRequest = postcard::from_bytes(bytes).ok()?;
        read.check_limits().is_ok().then_some(read)
    }
}

impl AnswerText {
    /// Returns the tokens of the text, reasoning included.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        count_tokens(&self.reasoning).saturating_add(count_tokens(&self.content))
    }

    /// Adds the piece that follows.
    pub fn push(&mut self, piece: &AnswerText) {
        self.reasoning.push_str(&piece.reasoning);
        self.content.push_str(&piece.content);
    }

    /// Returns whether there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty()
    }

    /// Returns the tokens that this text, as an answer to `request`, is billed as. `prompt` has the
    /// tokens of its messages.
    #[must_use]
    pub fn count_for(&self, request: &TextRequest, prompt: TokenCount) -> TokenCount {
        TokenCount {
            output: self.output_tokens().min(request.output_tokens_max()),
            ..prompt
        }
    }

    /// Returns the bytes of the text, reasoning included.
    #[must_use]
    pub fn byte_length(&self) -> usize {
        self.reasoning.len().saturating_add(self.content.len())
    }
}

impl TextAnswer {
    /// Returns the tokens that it is billed as. `prompt` has the tokens of the request's messages.
    /// An answer without text costs nothing, unless the buyer itself ended it.
    #[must_use]
    pub fn count_for(&self, request: &TextRequest, prompt: TokenCount) -> TokenCount {
        match self.text.is_empty() && self.finish != Finish::Cancelled {
            true => TokenCount::default(),
            false => self.text.count_for(request, prompt),
        }
    }

    /// Returns an answer without text.
    #[must_use]
    pub fn without_text(finish: Finish, message: String) -> TextAnswer {
        TextAnswer {
            text: AnswerText::default(),
            finish,
            message,
        }
    }

    /// Returns the answer's bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data in memory always encodes")
    }

    /// Reads an answer that a peer sent; none if it is no answer, or is written in another way than
    /// [`TextAnswer::to_bytes`] writes it. So an answer has one hash only.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<TextAnswer> {
        let read: TextAnswer = postcard::from_bytes(bytes).ok()?;
        (read.to_bytes() == bytes).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::prompts::PromptHistory;

    fn request(content: &str) -> TextRequest {
        TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: content.to_owned(),
            }],
            tokens_max: 16,
            ..TextRequest::default()
        }
    }

    #[test]
    fn an_answer_is_read_in_one_form_only() {
        let answer = TextAnswer {
            text: AnswerText::default(),
            finish: Finish::Stop,
            message: "no".to_owned(),
        };
        let mut bytes = answer.to_bytes();
        assert_eq!(TextAnswer::read(&bytes), Some(answer));
        bytes.push(0);
        assert_eq!(TextAnswer::read(&bytes), None);
    }

    #[test]
    fn a_request_is_read_as_it_was_sent_and_refused_beyond_its_limits() {
        let sent = TextRequest {
            temperature: Some(0.5),
            seed: Some(i64::MAX),
            stop: vec!["\n".to_owned()],
            ..request("what is a market?")
        };
        assert_eq!(TextRequest::read(&sent.to_bytes()), Some(sent.clone()));
        let refused = |change: &dyn Fn(&mut TextRequest)| {
            let mut wrong = sent.clone();
            change(&mut wrong);
            assert_eq!(TextRequest::read(&wrong.to_bytes()), None);
            wrong.check_limits().unwrap_err()
        };
        let many = refused(&|it| it.messages.clear());
        assert_eq!(many, RequestFault::Messages(0));
        let long = refused(&|it| it.messages[0].content = "x".repeat(MESSAGE_BYTES_MAX + 1));
        assert_eq!(long, RequestFault::Long(MESSAGE_BYTES_MAX + 1));
        assert_eq!(refused(&|it| it.tokens_max = 0), RequestFault::Tokens(0));
        assert_eq!(
            refused(&|it| it.stop.push(String::new())),
            RequestFault::Stops
        );
        assert_eq!(refused(&|it| it.seed = Some(-1)), RequestFault::Seed(-1));
        let cold = refused(&|it| it.temperature = Some(f64::NAN));
        assert_eq!(cold.to_string(), "temperature is from 0 to 2");
    }

    #[test]
    fn bytes_that_are_no_request_or_answer_are_none() {
        let sent = request("hello").to_bytes();
        for end in 0..sent.len() {
            assert_eq!(TextRequest::read(&sent[..end]), None, "{end}");
        }
        assert_eq!(TextAnswer::read(&[9; 40]), None);
    }

    #[test]
    fn neither_padding_nor_an_empty_answer_pays() {
        let asked = request("12345678");
        let text = |content: String| AnswerText {
            content,
            ..AnswerText::default()
        };
        let prompt = PromptHistory::default().count_prompt(&asked);
        let empty = |finish| {
            let answer = TextAnswer::without_text(finish, String::new());
            answer.count_for(&asked, prompt)
        };
        assert_eq!(empty(Finish::Stop), TokenCount::default());
        assert_eq!(empty(Finish::Cancelled).input, 2);
        // The request allows 16 tokens.
        let padded = text("x".repeat(1_000));
        assert_eq!(padded.count_for(&asked, prompt).output, 32);
        assert_eq!(asked.answer_bytes_max(), 1_024);
    }

    #[test]
    fn the_rest_of_an_answer_has_the_tokens_that_are_left() {
        let asked = request("12345678");
        let text = |content: &str| AnswerText {
            reasoning: "hm, hm".to_owned(),
            content: content.to_owned(),
        };
        let rest = asked.to_rest(&text("a market is\n")).unwrap().unwrap();
        assert_eq!(rest.tokens_max, 16 - 2 - 3);
        assert!(rest.continues);
        assert_eq!(rest.messages[1].role, Role::Assistant);
        assert_eq!(rest.messages[1].content, "a market is");
        assert_eq!(TextRequest::read(&rest.to_bytes()), Some(rest.clone()));
        // Both bills together are at most twice the tokens of the request.
        let none = TokenCount::default();
        let padded = text(&"x".repeat(10_000));
        assert_eq!(asked.to_rest(&padded), Ok(None));
        for length in 0..200 {
            let first = text(&"x".repeat(length));
            let rest = asked.to_rest(&first).unwrap();
            let second = rest.map_or(0, |rest| padded.count_for(&rest, none).output);
            assert!(
                first.count_for(&asked, none).output + second <= 32,
                "{length}"
            );
        }
        // Thoughts alone cannot be continued, so the answer begins anew.
        let anew = asked.to_rest(&text(" \n")).unwrap().unwrap();
        assert!(!anew.continues && anew.messages == asked.messages);
        let mut wrong = rest;
        wrong.messages[1].role = Role::User;
        assert_eq!(wrong.check_limits(), Err(RequestFault::Continued));
        let long = request(&"x".repeat(MESSAGE_BYTES_MAX - 4));
        let long = long.to_rest(&text("a market"));
        assert!(matches!(long, Err(RequestFault::Long(_))), "{long:?}");
    }

    #[test]
    fn both_sides_count_the_same_of_a_whole_answer_and_of_its_pieces() {
        let asked = request("12345678");
        let mut whole = AnswerText::default();
        for content in ["a ma", "rket", " is", ""] {
            whole.push(&AnswerText {
                content: content.to_owned(),
                ..AnswerText::default()
            });
        }
        let count = whole.count_for(&asked, PromptHistory::default().count_prompt(&asked));
        assert_eq!((count.input, count.output), (2, 3));
        let answer = TextAnswer {
            text: whole,
            finish: Finish::Stop,
            message: String::new(),
        };
        assert_eq!(TextAnswer::read(&answer.to_bytes()), Some(answer));
    }
}
