//! Runs one tab (a lease of a language model by the token): a task that passes events to the tab's
//! core and carries out the actions that the core returns. The task awaits nothing else; an action
//! that takes time runs in a task of its own.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use souk_market::{AccountKey, Command, Lease};
use souk_memory::{ContentId, HeldContent};
use souk_roles::access::{Readers, Scope};
use souk_roles::effect::{Effect, Ticket};
use souk_roles::job::facts::Terms;
use souk_roles::lease::{BuyerMessage, ProviderMessage, Start, truncate_text};
use souk_roles::tokens::counting::{TokenCount, TokenRates};
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::tab::{
    TabAction, TabAnswer, TabCore, TabEvent, TabFailure, TabOutcome, TabSpec,
};
use souk_roles::tokens::text::{Finish, TextAnswer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::effects::{
    AnswerLack, StreamMessage, buy, exchange_messages, fetch_answer, find_provider, sign_receipt,
    submit,
};
use super::follower::follow_lease;
use super::open_text::OpenText;
use super::{AskedText, BusyFlag, TabHandles, TextEvent};
use crate::buyer::Buyer;
use crate::buyer::lease_follower::FollowedLease;
use crate::buyer::transcripts::TabLog;
use crate::endpoint::pieces::Piece;
use souk_folder::clock::CoreClock;
use souk_folder::key;
use souk_network::content::inline_contents::{MessageWithContents, TO_PROVIDER_BYTES_MAX};

/// Messages that can wait on the stream, each way.
const MESSAGES_MAX: usize = 64;

/// How long after the stream of an answer's pieces broke the tab follows them again.
const FOLLOW_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// How long the last messages of a tab can take.
const PARTING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// An input of the task, which it converts into events for the core.
enum TabInput {
    Event(TabEvent),
    Asked(Option<AskedText>),
    Incoming(StreamMessage),
    Piece(Option<Piece>),
    FollowAgain,
    ReaderGone,
    EffectEnded(Ticket, TabAnswer),
    Counted(Ticket, Result<(TextAnswer, ContentId), AnswerLack>),
    Nothing,
}

/// The result of a task.
enum Outcome {
    Answer(Ticket, TabAnswer),
    Fetched(Ticket, Result<(TextAnswer, ContentId), AnswerLack>),
    FollowAgain,
}

/// The task of one tab.
pub(super) struct TabShell {
    buyer: Buyer,
    spec: TabSpec,
    /// The model's card, which the provider fetches.
    _card: HeldContent,
    /// The contents that came with a message, until it is handled.
    arrived: Vec<HeldContent>,
    core: TabCore,
    clock: CoreClock,
    ready: VecDeque<TabEvent>,
    requests: mpsc::Receiver<AskedText>,
    are_requests_over: bool,
    busy: Arc<BusyFlag>,
    open: Option<OpenText>,
    /// The request whose answer is whole, until its reader gets the end.
    answered: Option<OpenText>,
    /// The billed requests, by which cached messages are counted.
    prompts: PromptHistory,
    next_request: u32,
    terms: Option<Terms>,
    /// The provider, once the lease is bought.
    provider: Arc<OnceLock<AccountKey>>,
    /// Records the texts of the tab, if its owner keeps them.
    log: Option<TabLog>,
    /// The lease in the log, once it is bought.
    lease: Option<FollowedLease>,
    effects: JoinSet<Outcome>,
    streams: JoinSet<()>,
    say: Option<mpsc::Sender<MessageWithContents<BuyerMessage>>>,
    incoming: Option<mpsc::Receiver<StreamMessage>>,
    pieces: Option<mpsc::Receiver<Piece>>,
    stops: Option<mpsc::Sender<u32>>,
    outcome: Option<TabOutcome>,
}

impl TabShell {
    /// Creates the task of a tab with its first request.
    pub(super) fn new(
        buyer: &Buyer,
        spec: TabSpec,
        card: HeldContent,
        requests: mpsc::Receiver<AskedText>,
        first: AskedText,
        handles: TabHandles,
    ) -> TabShell {
        let clock = CoreClock::new(buyer.broker().log_clock());
        let scope = Scope {
            buyer: buyer.account(),
            job: spec.job,
        };
        buyer.tensors().access().begin_lease(scope);
        let body = first.body.id();
        let (core, effects) = TabCore::begin(spec.clone(), body, clock.now());
        let mut shell = TabShell {
            buyer: buyer.clone(),
            _card: card,
            arrived: Vec::new(),
            core,
            clock,
            ready: VecDeque::new(),
            requests,
            are_requests_over: false,
            busy: handles.busy,
            open: Some(OpenText::new(first, 0, &PromptHistory::default())),
            answered: None,
            prompts: PromptHistory::default(),
            next_request: 1,
            terms: None,
            provider: handles.provider,
            log: handles.log,
            lease: None,
            effects: JoinSet::new(),
            streams: JoinSet::new(),
            say: None,
            incoming: None,
            pieces: None,
            stops: None,
            outcome: None,
            spec,
        };
        shell.carry_out(effects);
        shell
    }

    /// Runs the tab to its end.
    pub(super) async fn run(mut self) -> TabOutcome {
        let outcome = loop {
            if let Some(outcome) = self.outcome.take() {
                break outcome;
            }
            let event = match self.ready.pop_front() {
                Some(event) => Some(event),
                None => {
                    let next = self.next().await;
                    self.on_next(next)
                }
            };
            if let Some(event) = event {
                let had_request = self.open.is_some();
                let effects = self.core.apply(self.clock.now(), event);
                self.carry_out(effects);
                self.arrived.clear();
                // A tab that closes takes no request, so it stays busy.
                if had_request && self.ready.is_empty() && self.core.is_free() {
                    self.busy.set_free();
                } else if self.open.is_none() && !self.core.is_free() {
                    self.busy.set_busy();
                }
                // Whoever reads the end of an answer finds the tab free for the next request.
                if let Some(answered) = self.answered.take() {
                    answered.deliver(rates_of(self.bought()));
                }
            }
        };
        self.requests.close();
        self.busy.set_free();
        // A request that came too late must not wait for an answer.
        while let Ok(late) = self.requests.try_recv() {
            OpenText::new(late, 0, &self.prompts).fail(TabFailure::Closing, None);
        }
        self.say = None;
        let parting = async { while self.streams.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(PARTING_TIMEOUT, parting).await;
        self.buyer.tensors().access().end_lease(self.scope());
        outcome
    }

    fn scope(&self) -> Scope {
        Scope {
            buyer: self.buyer.account(),
            job: self.spec.job,
        }
    }

    /// Returns the terms of the lease, which must be bought.
    fn bought(&self) -> &Terms {
        self.terms.as_ref().expect("the core bought it first")
    }

    /// Waits until something happens.
    async fn next(&mut self) -> TabInput {
        let wakes_at = self.core.wakes_at();
        let is_free = self.open.is_none() && !self.are_requests_over;
        let reader = self.open.as_ref().filter(|open| !open.is_stopped);
        let reader = reader.map(|open| open.asked.events.clone());
        tokio::select! {
            Some(done) = self.effects.join_next() => match done {
                Ok(Outcome::Answer(ticket, answer)) => TabInput::EffectEnded(ticket, answer),
                Ok(Outcome::Fetched(ticket, fetched)) => TabInput::Counted(ticket, fetched),
                Ok(Outcome::FollowAgain) => TabInput::FollowAgain,
                Err(error) if error.is_panic() => {
                    std::panic::resume_unwind(error.into_panic())
                }
                Err(_) => TabInput::Nothing,
            },
            asked = self.requests.recv(), if is_free => TabInput::Asked(asked),
            Some(message) = receive(&mut self.incoming) => TabInput::Incoming(message),
            piece = receive(&mut self.pieces) => TabInput::Piece(piece),
            lease = next_change(&mut self.lease) => {
                TabInput::Event(TabEvent::Changed { lease: Box::new(lease) })
            }
            () = wait_for_reader_to_leave(reader) => TabInput::ReaderGone,
            () = self.clock.wait_until(wakes_at) => TabInput::Event(TabEvent::TimerFired),
        }
    }

    fn on_next(&mut self, next: TabInput) -> Option<TabEvent> {
        match next {
            TabInput::Event(event) => Some(event),
            TabInput::EffectEnded(ticket, answer) => {
                Some(TabEvent::EffectAnswered { ticket, answer })
            }
            TabInput::Asked(Some(asked)) => {
                let body = asked.body.id();
                let open = OpenText::new(asked, self.next_request, &self.prompts);
                let most = open.asked.request.count_max_after(open.prompt);
                self.open = Some(open);
                self.next_request += 1;
                Some(TabEvent::NewRequest { body, most })
            }
            TabInput::Asked(None) => {
                self.are_requests_over = true;
                Some(TabEvent::Close)
            }
            TabInput::Incoming(Ok(message)) => self.on_message(message),
            TabInput::Incoming(Err(why)) => {
                self.incoming = None;
                Some(TabEvent::StreamClosed { why })
            }
            TabInput::Piece(Some(piece)) => self.on_piece(piece),
            TabInput::Piece(None) => {
                (self.pieces, self.stops) = (None, None);
                self.effects.spawn(async {
                    tokio::time::sleep(FOLLOW_AGAIN_AFTER).await;
                    Outcome::FollowAgain
                });
                None
            }
            TabInput::FollowAgain => {
                // Whoever talks on the lease's own stream has text to show.
                if self.say.is_some() && self.incoming.is_some() {
                    self.follow_pieces();
                }
                None
            }
            TabInput::ReaderGone => {
                self.stop_answer();
                None
            }
            TabInput::Counted(ticket, fetched) => Some(self.on_fetched(ticket, fetched)),
            TabInput::Nothing => None,
        }
    }

    fn on_message(&mut self, message: MessageWithContents<ProviderMessage>) -> Option<TabEvent> {
        let MessageWithContents { message, contents } = message;
        let provider = self.terms.as_ref().map(|terms| terms.provider);
        let peer = provider.and_then(|provider| key::peer_of(&provider.0).ok());
        match (&message, peer) {
            (ProviderMessage::Accepted, _) => self.follow_pieces(),
            (ProviderMessage::Made { outputs, .. }, Some(peer)) => {
                for (id, bytes) in contents {
                    if outputs.iter().any(|(_, named)| *named == id) {
                        let came = (self.scope(), peer);
                        let tensors = self.buyer.tensors();
                        self.arrived.push(HeldContent::for_id(tensors.store(), id));
                        let taken = tensors.take_in(came, (id, bytes), true);
                        if let Err(error) = taken {
                            tracing::debug!(%error, "an inline answer was refused; fetching it");
                        }
                    }
                }
            }
            _ => {}
        }
        Some(TabEvent::MessageReceived(message))
    }

    fn follow_pieces(&mut self) {
        if let Some(terms) = &self.terms {
            let network = self.buyer.broker().network();
            let (pieces, stops) = follow_lease(network, terms.provider, terms.lease);
            (self.pieces, self.stops) = (Some(pieces), Some(stops));
            // Its reader may have left before.
            if self.open.as_ref().is_some_and(|open| open.is_stopped) {
                self.stop_answer();
            }
        }
    }

    /// Passes a piece on, if it is the next one of the open answer.
    fn on_piece(&mut self, piece: Piece) -> Option<TabEvent> {
        let open = self.open.as_mut()?;
        let is_of_it = piece.request == open.number && open.answer.is_none();
        if !is_of_it || piece.text.is_empty() {
            return None;
        }
        open.take_piece(&piece);
        // A piece after a gap shows too that the provider is not silent.
        let streamed = open.count_streamed();
        Some(TabEvent::TextArrived { streamed })
    }

    /// Tells the provider to end an answer that nobody reads.
    fn stop_answer(&mut self) {
        let Some(open) = &mut self.open else {
            return;
        };
        open.is_stopped = true;
        if let Some(stops) = &self.stops {
            // Without it, the answer goes on to its end.
            let _ = stops.try_send(open.number);
        }
    }

    /// Counts an answer that arrived.
    fn on_fetched(
        &mut self,
        ticket: Ticket,
        fetched: Result<(TextAnswer, ContentId), AnswerLack>,
    ) -> TabEvent {
        let answer = match (fetched, &mut self.open) {
            (Ok((mut answer, id)), Some(open)) => {
                if let Some(log) = &self.log {
                    // The provider's hash is that of the whole message.
                    log.on_answer(id, answer.message.clone());
                }
                answer.message = truncate_text(answer.message);
                let count = answer.count_for(&open.asked.request, open.prompt);
                let is_wanted = answer.finish != Finish::Cancelled || open.is_stopped;
                let has_nothing = matches!(answer.finish, Finish::Refused | Finish::Busy);
                let is_right = is_wanted
                    && !(has_nothing && answer.text.byte_length() > 0)
                    && open.rest_of(&answer.text).is_some()
                    && answer.text.byte_length() <= open.asked.request.answer_bytes_max();
                open.answer = Some((answer, count));
                match is_right {
                    true => {
                        self.prompts.on_counted(&open.asked.request, count);
                        TabAnswer::Counted(count)
                    }
                    false => {
                        let why = "it is too long, was not stopped, is no refusal, or begins \
                                   otherwise than its pieces";
                        TabAnswer::NotCounted(why.to_owned())
                    }
                }
            }
            (Err(AnswerLack::NoMemory(why)), _) => TabAnswer::NotStored(why),
            (Err(AnswerLack::Wrong(why)), _) => TabAnswer::NotCounted(why),
            (Ok(_), None) => TabAnswer::Counted(TokenCount::default()),
        };
        TabEvent::EffectAnswered { ticket, answer }
    }

    fn carry_out(&mut self, effects: Vec<Effect<TabAction>>) {
        for Effect { ticket, action } in effects {
            self.begin_action(ticket, action);
        }
    }

    fn begin_action(&mut self, ticket: Ticket, action: TabAction) {
        let buyer = self.buyer.clone();
        match action {
            TabAction::Buy(bid) => self.spawn_answer(ticket, buy(buyer, Command::PlaceBid(bid))),
            TabAction::Look => {
                let job = self.spec.job;
                self.spawn_answer(ticket, async move {
                    match buyer.broker().job_leases(buyer.account(), &[job]).await {
                        Ok(leases) => TabAnswer::Leases(leases),
                        Err(error) => TabAnswer::Uncertain(error.to_string()),
                    }
                });
            }
            TabAction::Find(provider) => {
                self.spawn_answer(ticket, async move {
                    match find_provider(&buyer, provider).await {
                        Ok(()) => TabAnswer::Found,
                        Err(why) => TabAnswer::NotFound(why),
                    }
                });
            }
            TabAction::Open(start) => self.open_stream(start),
            TabAction::SendMessage(message) => self.send_message(message),
            TabAction::CloseStream => self.say = None,
            TabAction::Follow(terms) => {
                // It is bought once.
                let _ = self.provider.set(terms.provider);
                if let Some(log) = &self.log {
                    log.on_bought(terms.lease);
                }
                let (broker, account) = (buyer.broker(), buyer.account());
                let lease = buyer
                    .lease_follower
                    .follow_lease(broker, account, terms.lease);
                self.lease = Some(lease);
                self.terms = Some(*terms);
            }
            TabAction::Count { answer, .. } => {
                let (scope, provider) = (self.scope(), self.bought().provider);
                let open = self.open.as_ref();
                let bytes_max = open.map_or(0, |open| open.asked.request.answer_bytes_max());
                // The hold comes before that of its message ends.
                let held = HeldContent::for_id(buyer.tensors().store(), answer);
                self.effects.spawn(async move {
                    let fetched = fetch_answer(&buyer, scope, provider, held, bytes_max).await;
                    Outcome::Fetched(ticket, fetched.map(|text| (text, answer)))
                });
            }
            TabAction::Deliver => self.end_request(),
            TabAction::Fail(failure) => {
                if let Some(open) = self.open.take() {
                    open.fail(failure, self.terms.as_ref().map(rates_of));
                }
            }
            TabAction::Sign(receipt) => {
                let answer = sign_receipt(&buyer, *receipt);
                self.ready
                    .push_back(TabEvent::EffectAnswered { ticket, answer });
            }
            TabAction::Command(command) => self.spawn_answer(ticket, async move {
                TabAnswer::Commanded(submit(&buyer, *command).await)
            }),
            TabAction::Over(outcome) => self.outcome = Some(outcome),
        }
    }

    fn spawn_answer(
        &mut self,
        ticket: Ticket,
        answer: impl Future<Output = TabAnswer> + Send + 'static,
    ) {
        self.effects
            .spawn(async move { Outcome::Answer(ticket, answer.await) });
    }

    /// Ends the open request, whose answer is whole.
    fn end_request(&mut self) {
        if let Some(open) = self.open.take() {
            let finish = open.answer.as_ref().map(|(answer, _)| answer.finish);
            if matches!(
                finish,
                Some(Finish::Interrupted | Finish::Busy | Finish::Refused)
            ) {
                // The next request goes to another engine, if there is one.
                self.ready.push_back(TabEvent::Close);
            }
            if let (Some(log), Some((answer, _))) = (&self.log, &open.answer) {
                log.on_delivered(open.at, &open.asked.request, answer);
            }
            self.answered = Some(open);
        }
    }

    fn open_stream(&mut self, start: Box<Start>) {
        let given = start.first.inputs.iter().map(|(_, id)| *id);
        self.grant_contents(given.chain([self.spec.card]).collect());
        let (say, messages) = mpsc::channel(MESSAGES_MAX);
        let (told, incoming) = mpsc::channel(MESSAGES_MAX);
        (self.say, self.incoming) = (Some(say), Some(incoming));
        let (buyer, provider) = (self.buyer.clone(), self.bought().provider);
        self.streams.spawn(async move {
            if let Err(why) = exchange_messages(&buyer, provider, start, messages, &told).await {
                let _ = told.send(Err(why)).await;
            }
        });
    }

    fn grant_contents(&self, contents: Vec<ContentId>) {
        let readers = Readers::new([self.bought().provider].into());
        let access = self.buyer.tensors().access();
        access.grant_contents(self.scope(), &readers, &contents);
    }

    fn send_message(&mut self, message: BuyerMessage) {
        let mut contents = Vec::new();
        if let BuyerMessage::Next(request) = &message {
            let given: Vec<ContentId> = request.inputs.iter().map(|(_, id)| *id).collect();
            self.grant_contents(given.clone());
            let tensors = self.buyer.tensors();
            contents = tensors.inline_contents(given, TO_PROVIDER_BYTES_MAX);
        }
        let message = MessageWithContents { message, contents };
        let is_sent = self.say.as_ref().map(|say| say.try_send(message).is_ok());
        if is_sent == Some(false) {
            self.say = None;
            let why = "it does not read its stream".to_owned();
            self.ready.push_back(TabEvent::StreamClosed { why });
        }
    }
}

/// Returns the prices of tokens in a lease.
fn rates_of(terms: &Terms) -> TokenRates {
    TokenRates::new(terms.price, terms.tokens)
}

/// Receives from a channel; if there is none, waits forever.
async fn receive<T>(channel: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match channel {
        Some(channel) => channel.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change of the lease; if none is bought, waits forever.
async fn next_change(lease: &mut Option<FollowedLease>) -> Lease {
    match lease {
        Some(lease) => lease.next_change().await,
        None => std::future::pending().await,
    }
}

async fn wait_for_reader_to_leave(reader: Option<mpsc::Sender<TextEvent>>) {
    match reader {
        Some(reader) => reader.closed().await,
        None => std::future::pending().await,
    }
}
