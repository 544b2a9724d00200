//! The request of a tab that has no whole answer yet.

use souk_folder::clock::unix_ms;
use souk_roles::tokens::counting::{TokenCount, TokenRates};
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{AnswerText, TextAnswer};

use super::{AskedText, FinishedText, TextEvent};
use crate::buyer::text_keys::TextBill;

/// The request without an answer.
pub(super) struct OpenText {
    pub asked: AskedText,
    /// When it was asked, in Unix seconds.
    pub at: u64,
    pub number: u32,
    /// The tokens of the request's messages.
    pub prompt: TokenCount,
    /// The text that came in pieces, and the number of the next piece.
    pub streamed: AnswerText,
    pub next_piece: u32,
    /// Whether a piece is missing, so that the rest comes with the whole answer.
    pub has_gap: bool,
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
            has_gap: false,
            is_stopped: false,
            answer: None,
        }
    }

    /// Returns what follows the pieces that came; none if the text is another one.
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

    /// Returns the tokens of the text that came in pieces.
    pub fn count_streamed(&self) -> TokenCount {
        self.streamed.count_for(&self.asked.request, self.prompt)
    }

    /// Ends the answer by a failure. The text that came may have to be paid, at the rates of a
    /// lease that was bought.
    pub fn fail(self, failure: TabFailure, rates: Option<TokenRates>) {
        let bill = match rates.filter(|_| !self.streamed.is_empty()) {
            None => TextBill::default(),
            Some(rates) => TextBill::at_rates(rates, self.count_streamed()),
        };
        let _ = self.asked.bill.send(bill);
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
        let _ = self.asked.bill.send(bill);
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
