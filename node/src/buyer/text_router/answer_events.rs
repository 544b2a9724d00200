//! Streams one answer to its reader: if its provider fails, another one continues it, and the
//! reader sees one text with one price.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use souk_market::{AccountKey, Credits};
use souk_roles::clock::Micros;
use souk_roles::tokens::counting::TokenCount;
use souk_roles::tokens::router::{Route, RouteFailure};
use souk_roles::tokens::seam::{Seam, SeamStep};
use souk_roles::tokens::tab::TabFailure;
use souk_roles::tokens::text::{AnswerText, Finish, TextAnswer, TextRequest};
use tokio::time::Instant;

use super::error::{AnswerFault, TextRouterError};
use super::key_cover::WantedPart;
use super::{OpenRequest, REST_WAIT, SLOT_WAIT, TextRouter};
use crate::buyer::tab::{FinishedText, StoredRequest, TextEvent};
use crate::buyer::text_keys::{KeyedRequest, PendingBill};

/// An event of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerEvent {
    /// The text that follows.
    Piece(AnswerText),
    /// The answer is whole. Its text is that of all pieces, and its cost that of all providers.
    Done(Box<FinishedText>),
}

/// How long the end of an answer waits for the bills of providers that did not finish it. A
/// provider that was stopped sends its bill only after it has received the stop message.
const BILL_WAIT: Duration = Duration::from_millis(200);

/// The part of a provider that did not end the answer.
struct LeftPart {
    bill: PendingBill,
    /// What it costs if the bill does not come in time.
    estimate: Credits,
}

/// The receiving end of an answer. Dropping it stops the provider.
pub struct AnswerEvents {
    router: TextRouter,
    route: Route,
    request: TextRequest,
    /// The key that pays for it.
    key: Option<Arc<KeyedRequest>>,
    open: OpenRequest,
    /// The text that came over the open tab.
    own: AnswerText,
    first_text: Option<Micros>,
    /// Checks the first text after another provider's; none once it has.
    seam: Option<Seam>,
    /// The events that were received and not returned.
    ready: VecDeque<AnswerEvent>,
    /// All text that was returned or is ready.
    text: AnswerText,
    /// The parts of the providers that did not end the answer.
    left: Vec<LeftPart>,
    first_provider: Option<AccountKey>,
    /// The last refusal or empty answer, which is the answer if nobody gives another one.
    without_text: Option<Box<FinishedText>>,
}

impl AnswerEvents {
    /// Waits for the first event of an answer.
    pub(super) async fn begin(
        router: TextRouter,
        route: Route,
        (request, key): (TextRequest, Option<Arc<KeyedRequest>>),
        open: OpenRequest,
    ) -> Result<AnswerEvents, TextRouterError> {
        let mut events = AnswerEvents {
            router,
            route,
            request,
            key,
            open,
            own: AnswerText::default(),
            first_text: None,
            seam: None,
            ready: VecDeque::new(),
            text: AnswerText::default(),
            left: Vec::new(),
            first_provider: None,
            without_text: None,
        };
        let first = events.next().await?;
        events.first_provider = events.open.provider.get().copied();
        events.ready.push_front(first);
        Ok(events)
    }

    /// Returns the provider of the first text.
    #[must_use]
    pub fn provider(&self) -> AccountKey {
        self.first_provider.unwrap_or_default()
    }

    /// Waits for the next event. After `Done` or an error, there is none.
    ///
    /// # Errors
    /// When the answer broke off, and no other provider could go on with it.
    pub async fn next(&mut self) -> Result<AnswerEvent, TextRouterError> {
        loop {
            if let Some(AnswerEvent::Done(_)) = self.ready.front() {
                self.add_left_parts().await;
            }
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let taken = match self.open.answer.events.recv().await {
                Some(TextEvent::Piece(piece)) => self.take_piece(piece),
                Some(TextEvent::Done(done)) => self.take_end(&done),
                Some(TextEvent::Failed(failure)) => Err(failure.into()),
                None if self.own.is_empty() => Err(TabFailure::Closing.into()),
                None => {
                    let why = "the end of the answer was lost".to_owned();
                    Err(AnswerFault::Engine(why))
                }
            };
            if let Err(fault) = taken {
                self.go_on(fault).await?;
            }
        }
    }

    /// Returns the answer, if it ended before any text came.
    #[must_use]
    pub fn ended_without_text(&self) -> Option<&FinishedText> {
        match self.ready.front() {
            Some(AnswerEvent::Done(done)) => Some(done),
            _ => None,
        }
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// When it broke off.
    pub async fn collect(mut self) -> Result<FinishedText, TextRouterError> {
        loop {
            if let AnswerEvent::Done(done) = self.next().await? {
                return Ok(*done);
            }
        }
    }

    /// Passes on a piece from the open tab once it is certain that the piece belongs to the answer.
    fn take_piece(&mut self, piece: AnswerText) -> Result<(), AnswerFault> {
        let now = self.router.clock.now().tick;
        if self.first_text.is_none() {
            self.first_text = Some(now);
            if let Some(provider) = self.open.provider.get() {
                let after = Micros(now.since(self.open.began).0);
                let mut state = self.router.lock_state();
                state.core.on_first_text(now, *provider, after);
            }
        }
        self.own.push(&piece);
        let Some(seam) = &mut self.seam else {
            self.pass_piece(piece);
            return Ok(());
        };
        match seam.push(piece) {
            SeamStep::Hold => Ok(()),
            SeamStep::Pass(piece) => {
                self.seam = None;
                self.pass_piece(piece);
                Ok(())
            }
            SeamStep::Refuse(fault) => Err(fault.into()),
        }
    }

    fn pass_piece(&mut self, piece: AnswerText) {
        if !piece.is_empty() {
            self.route.on_text();
            self.text.push(&piece);
            self.ready.push_back(AnswerEvent::Piece(piece));
        }
    }

    /// Takes the end of the open tab's answer: that of the whole answer, or a fault.
    fn take_end(&mut self, done: &FinishedText) -> Result<(), AnswerFault> {
        let fault = AnswerFault::of_end(&self.route, &done.answer, &self.own, &self.text);
        if let Some(fault) = fault {
            if fault.to_failure() == Some(RouteFailure::Refused) {
                self.without_text = Some(Box::new(done.clone()));
            }
            return Err(fault);
        }
        if let Some(mut seam) = self.seam.take() {
            self.pass_piece(AnswerText {
                content: seam.take_held(),
                ..AnswerText::default()
            });
        }
        // An answer without text says nothing good about the provider.
        let is_answered = !self.text.is_empty();
        if let Some(provider) = self.open.provider.get().filter(|_| is_answered) {
            let now = self.router.clock.now().tick;
            let took = Micros(now.since(self.first_text.unwrap_or(now)).0);
            let mut state = self.router.lock_state();
            let core = &mut state.core;
            core.on_answered(now, &self.route, *provider, done.count.output, took);
        }
        let message = done.answer.message.clone();
        self.end_with(done.answer.finish, message, (done.count, done.cost));
        Ok(())
    }

    /// Adds what the parts cost that other providers delivered, also if they were not shown, to the
    /// end of the answer.
    async fn add_left_parts(&mut self) {
        let until = Instant::now() + BILL_WAIT;
        let mut left = Credits(0);
        for part in &mut self.left {
            let bill = tokio::time::timeout_at(until, part.bill.wait()).await;
            let cost = bill.ok().flatten().map_or(part.estimate, |bill| bill.cost);
            left = Credits(left.0.saturating_add(cost.0));
        }
        self.left.clear();
        if let Some(AnswerEvent::Done(done)) = self.ready.front_mut() {
            done.cost = Credits(done.cost.0.saturating_add(left.0));
        }
    }

    /// Ends the answer. `last` has the tokens and the cost of the part that ended it.
    fn end_with(&mut self, finish: Finish, message: String, (last, cost): (TokenCount, Credits)) {
        // The input of the other providers is in the cost alone.
        let (input, cached) = match self.text.is_empty() {
            true => (last.input, last.cached),
            false => {
                let all = self.request.input_tokens();
                let cached = last.cached.min(all);
                (all.saturating_sub(cached), cached)
            }
        };
        let done = FinishedText {
            answer: TextAnswer {
                text: self.text.clone(),
                finish,
                message,
            },
            // Text that was not shown is in the cost alone, too.
            count: TokenCount {
                input,
                cached,
                ..self.text.count_for(&self.request, last)
            },
            cost,
        };
        self.ready.push_back(AnswerEvent::Done(Box::new(done)));
    }

    /// Sends the request, or the request for the rest of the answer, to another provider.
    async fn go_on(&mut self, fault: AnswerFault) -> Result<(), TextRouterError> {
        let Some(failure) = fault.to_failure() else {
            return self.give_up(fault, None);
        };
        let mut can_try = self.router.on_failed(&mut self.route, &self.open, failure);
        self.left.push(LeftPart {
            estimate: self.estimate_delivered(),
            bill: self.open.answer.bill.clone(),
        });
        tracing::info!(%fault, can_try, "an answer goes to another provider");
        let mut request = self.request.clone();
        if !self.text.is_empty() {
            request = match self.request.to_rest(&self.text) {
                Ok(Some(rest)) => rest,
                Ok(None) => {
                    // The text has as many tokens as the answer may have.
                    self.end_with(Finish::Length, String::new(), Default::default());
                    return Ok(());
                }
                Err(_) => return self.give_up(AnswerFault::Long, None),
            };
            if !self.own.is_empty() || !self.route.is_rest() {
                can_try &= self.route.begin_rest(request.continues);
            }
        }
        if !can_try {
            return self.give_up(fault, None);
        }
        let patience = match self.text.is_empty() {
            true => SLOT_WAIT,
            false => REST_WAIT,
        };
        let stored = match StoredRequest::store(&self.router.buyer, &request) {
            Ok(stored) => stored,
            Err(error) => return self.give_up(fault, Some(error.into())),
        };
        let wanted = WantedPart {
            stored: &stored,
            key: self.key.as_deref(),
        };
        let found = self
            .router
            .find_tab(&mut self.route, wanted, patience)
            .await;
        self.open = match found {
            Ok(open) => open,
            Err(error) => return self.give_up(fault, Some(error)),
        };
        self.own = AnswerText::default();
        self.first_text = None;
        let is_rest = !self.text.is_empty();
        self.seam = is_rest.then(|| Seam::after(&self.text));
        Ok(())
    }

    /// Returns what the text of a provider costs that did not end its answer, if it is paid.
    fn estimate_delivered(&self) -> Credits {
        if self.own.is_empty() {
            return Credits(0);
        }
        // Perhaps some messages are cached, which only the tab knows.
        let most = self.open.request.count_max();
        let count = self.own.count_for(&self.open.request, most);
        self.open.rates.cost_of(count)
    }

    /// Ends an answer that no provider continues: with the last refusal or empty answer if there
    /// was one and no other provider can answer the request, or with an error.
    fn give_up(
        &mut self,
        fault: AnswerFault,
        rest: Option<TextRouterError>,
    ) -> Result<(), TextRouterError> {
        let kept = self.without_text.as_ref();
        let is_refused = kept.is_some_and(|done| done.answer.finish == Finish::Refused);
        let is_last = match &fault {
            AnswerFault::Empty => true,
            // In a moment this provider or another one can have a slot.
            AnswerFault::Busy(_) => false,
            // A refusal says more than the failure of another provider after it.
            _ if is_refused && self.text.is_empty() => {
                !matches!(rest, Some(TextRouterError::SoldOut { .. }))
            }
            _ => false,
        };
        let is_reason = rest.as_ref().is_none_or(|rest| !rest.is_of_buyer());
        match self.without_text.take().filter(|_| is_last && is_reason) {
            Some(done) => {
                let FinishedText { answer, count, .. } = *done;
                self.end_with(answer.finish, answer.message, (count, Credits(0)));
                Ok(())
            }
            None => Err(self.to_error(fault, rest)),
        }
    }

    /// Returns the error of an answer that no provider continues.
    fn to_error(&self, fault: AnswerFault, rest: Option<TextRouterError>) -> TextRouterError {
        if !self.text.is_empty() {
            let rest = rest.map(Box::new);
            return TextRouterError::Broken { cause: fault, rest };
        }
        match rest {
            // Whoever was not tried is not the reason.
            Some(error) if error.is_of_buyer() => error,
            Some(error @ TextRouterError::SoldOut { .. })
                if matches!(fault, AnswerFault::RequestRefused(_)) =>
            {
                error
            }
            _ => TextRouterError::Failed { last: fault },
        }
    }
}
