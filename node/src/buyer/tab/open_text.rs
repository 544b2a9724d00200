//! Follows the open request of a tab until its answer is whole: passes each piece of text to the
//! reader once and in order, counts its tokens, and delivers the rest with the whole answer.

use souk_folder::clock::unix_ms;
use souk_roles::tokens::counting::{TokenCount, TokenRates};
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{AnswerText, TextAnswer};

use super::{AskedText, FinishedText, TextEvent};
use crate::buyer::text_keys::TextBill;
use crate::endpoint::pieces::Piece;

/// The open request of a tab, and the text of its answer so far.
pub(super) struct OpenText {
    pub asked: AskedText,
    /// When it was asked, in Unix seconds.
    pub at: u64,
    pub number: u32,
    /// The tokens of the request's messages.
    pub prompt: TokenCount,
    /// The text that came in pieces and went to the reader.
    pub streamed: AnswerText,
    /// The number of the next piece.
    next_piece: u32,
    /// The bytes of reasoning and content that the stream repeats, because it began anew.
    repeated: (usize, usize),
    /// Whether a piece is missing, so that the rest comes with the whole answer.
    has_gap: bool,
    pub is_stopped: bool,
    /// The whole answer, once it is here and counted.
    pub answer: Option<(TextAnswer, TokenCount)>,
}

impl OpenText {
    /// Begins a request with its number in the tab, after those in `earlier`.
    pub fn new(asked: AskedText, number: u32, earlier: &PromptHistory) -> OpenText {
        OpenText {
            prompt: earlier.count_prompt(&asked.request),
            asked,
            at: unix_ms() / 1_000,
            number,
            streamed: AnswerText::default(),
            next_piece: 0,
            repeated: (0, 0),
            has_gap: false,
            is_stopped: false,
            answer: None,
        }
    }

    /// Returns the rest of `text` after the pieces that came; none if it does not begin with them.
    pub fn rest_of(&self, text: &AnswerText) -> Option<AnswerText> {
        Some(AnswerText {
            reasoning: text
                .reasoning
                .strip_prefix(&self.streamed.reasoning)?
                .to_owned(),
            content: text
                .content
                .strip_prefix(&self.streamed.content)?
                .to_owned(),
        })
    }

    /// Takes a piece of the answer, and passes it on if it is the next one.
    pub fn take_piece(&mut self, piece: &Piece) {
        if piece.number == 0 {
            // The stream begins, perhaps once more: then with the text so far.
            self.next_piece = 0;
            self.repeated = (self.streamed.reasoning.len(), self.streamed.content.len());
        }
        // What is too long for an answer is none, and the whole one will show it.
        self.has_gap |= piece.number != self.next_piece
            || self.streamed.byte_length() > self.asked.request.answer_bytes_max();
        if self.has_gap {
            return;
        }
        self.next_piece += 1;
        let reasoning = skip_bytes(&piece.text.reasoning, &mut self.repeated.0);
        let content = skip_bytes(&piece.text.content, &mut self.repeated.1);
        let (Some(reasoning), Some(content)) = (reasoning, content) else {
            // It repeats another text.
            self.has_gap = true;
            return;
        };
        let text = AnswerText { reasoning, content };
        if text.is_empty() {
            return;
        }
        match self.asked.events.try_send(TextEvent::Piece(text.clone())) {
            Ok(()) => self.streamed.push(&text),
            // The reader is slow: it gets the rest with the whole answer.
            Err(_) => self.has_gap = true,
        }
    }

    /// Returns the tokens of the text that came in pieces.
    pub fn count_streamed(&self) -> TokenCount {
        self.streamed.count_for(&self.asked.request, self.prompt)
    }

    /// Ends the answer by a failure. The buyer may have to pay for the text that came, at the rates
    /// of the lease, if one was bought.
    pub fn fail(self, failure: TabFailure, rates: Option<TokenRates>) {
        let bill = match rates.filter(|_| !self.streamed.is_empty()) {
            None => TextBill::default(),
            Some(rates) => TextBill::at_rates(rates, self.count_streamed()),
        };
        self.asked.bill.send(bill);
        let failed = TextEvent::Failed(failure);
        let _ = self.asked.events.try_send(failed);
    }

    /// Gives the reader the rest of the answer, and its end.
    pub fn deliver(self, rates: TokenRates) {
        let Some((answer, count)) = &self.answer else {
            return;
        };
        let rest = self.rest_of(&answer.text).unwrap_or_default();
        let bill = TextBill::at_rates(rates, *count);
        let done = TextEvent::Done(Box::new(FinishedText {
            answer: answer.clone(),
            count: *count,
            cost: bill.cost,
        }));
        self.asked.bill.send(bill);
        let events = self.asked.events;
        // A reader that left or sleeps must not hold the tab up.
        tokio::spawn(async move {
            let is_rest = !rest.is_empty();
            if is_rest && events.send(TextEvent::Piece(rest)).await.is_err() {
                return;
            }
            let _ = events.send(done).await;
        });
    }
}

/// Returns a text without the bytes to skip at its beginning; none if they end within
/// a character.
fn skip_bytes(text: &str, left: &mut usize) -> Option<String> {
    let skipped = text.len().min(*left);
    *left -= skipped;
    text.get(skipped..).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use souk_memory::{HeldContent, Store};
    use souk_roles::tokens::text::{Message, Role, TextRequest};
    use tokio::sync::mpsc;

    use super::*;
    use crate::buyer::tab::{AskedAnswer, StoredRequest};

    fn open_text() -> (OpenText, AskedAnswer) {
        let request = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: "what".to_owned(),
            }],
            tokens_max: 40,
            ..TextRequest::default()
        };
        let store = std::sync::Arc::new(Store::in_memory(1 << 20));
        let body = HeldContent::put(&store, request.to_bytes().into()).unwrap();
        let stored = StoredRequest {
            request,
            body: std::sync::Arc::new(body),
        };
        let (asked, answer) = AskedText::new(&stored);
        (OpenText::new(asked, 0, &PromptHistory::default()), answer)
    }

    fn take(open: &mut OpenText, number: u32, reasoning: &str, content: &str) {
        open.take_piece(&Piece {
            request: 0,
            number,
            text: AnswerText {
                reasoning: reasoning.to_owned(),
                content: content.to_owned(),
            },
        });
    }

    /// Returns the text that the reader has got.
    fn read(events: &mut mpsc::Receiver<TextEvent>) -> AnswerText {
        let mut text = AnswerText::default();
        while let Ok(TextEvent::Piece(piece)) = events.try_recv() {
            text.push(&piece);
        }
        text
    }

    #[test]
    fn a_stream_that_begins_anew_goes_on_where_the_former_one_broke() {
        let (mut open, mut answer) = open_text();
        take(&mut open, 0, "hm", "");
        take(&mut open, 1, "", "a märk");
        // It repeats more than was known, in pieces of another length.
        take(&mut open, 0, "hm", "a m");
        take(&mut open, 1, "", "ärket is");
        take(&mut open, 2, "", " where");
        let expected = AnswerText {
            reasoning: "hm".to_owned(),
            content: "a märket is where".to_owned(),
        };
        assert_eq!(read(&mut answer.events), expected);
        assert_eq!(open.streamed, expected);
    }

    #[test]
    fn after_a_missing_piece_the_rest_comes_with_the_whole_answer() {
        let (mut open, mut answer) = open_text();
        take(&mut open, 0, "", "a ");
        take(&mut open, 2, "", "where");
        take(&mut open, 3, "", "!");
        assert_eq!(read(&mut answer.events).content, "a ");
        // A stream that repeats another text is not passed on either.
        let (mut open, mut answer) = open_text();
        take(&mut open, 0, "", "a");
        take(&mut open, 0, "", "ä market");
        assert_eq!(read(&mut answer.events).content, "a");
    }
}
