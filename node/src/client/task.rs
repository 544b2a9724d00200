//! Runs the client of a market as one task, to which a broker, its clones and its traders send
//! their requests. A core without I/O (`souk_roles::market::client`) decides which validator to
//! ask, how long to wait and what to sign; the task carries this out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libp2p::PeerId;
use souk_folder::clock::{CoreClock, LogClock, unix_us};
use souk_folder::key::{self, NodeKey};
use souk_market::{AccountKey, Command, MarketId, Millis};
use souk_network::protocols::market::{Age, Answer, PROTOCOL, Request, TimedAnswer};
use souk_network::wire::WireError;
use souk_network::{Network, OpenError, wire};
use souk_roles::clock::Micros;
use souk_roles::market::client::{
    ANSWER_PATIENCE, Action, CallId, Event, MarketClient, NoReply, Reply, RequestAttempt,
    ValidatorAnswer, ValidatorIndex, WatchId,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

/// A validator must give an answer within this time.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_micros(ANSWER_PATIENCE.0);

/// Messages that the task has not yet received; if there are this many, callers wait.
const INBOX: usize = 1_024;

/// Why one validator did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The connection did not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The validator sent nothing in time.
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// The validator serves as many requests as it can.
    #[error("it is busy")]
    Busy,
    /// The validator cannot answer now.
    #[error("{0}")]
    Unavailable(String),
}

enum Message {
    Ask {
        asked: CallId,
        question: Box<Request>,
        reply: oneshot::Sender<ClientReply>,
    },
    Carry {
        asked: CallId,
        commands: Vec<Command>,
        reply: oneshot::Sender<ClientReply>,
    },
    /// The caller no longer waits.
    Forget(CallId),
    /// The task signs commands with this key from now on.
    SignFor(Box<(NodeKey, MarketId)>),
    Watch {
        account: AccountKey,
        reply: oneshot::Sender<watch::Receiver<AccountWatch>>,
    },
    Validators(Arc<[PeerId]>),
}

/// The present state of a watch over an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountWatch {
    /// Rises whenever the account changed, or may have.
    pub changes: u64,
    /// Rises whenever a validator begins to report changes.
    pub begun: u64,
    /// Whether a validator reports changes now.
    pub is_alive: bool,
}

/// The reply to a question or to commands, and the last validator's error, if there was one.
pub(super) struct ClientReply {
    pub(super) reply: Reply,
    pub(super) last: Option<AttemptError>,
}

/// The handle of the task. The task ends when its last clone is dropped.
#[derive(Clone)]
pub(super) struct Client {
    tell: mpsc::Sender<Message>,
    next: Arc<AtomicU64>,
    /// The account whose commands it carries, once there is a trader.
    trades_for: Arc<OnceLock<AccountKey>>,
    /// The age of the oldest answer so far, if the client accepts stale ones.
    oldest: watch::Receiver<Option<Age>>,
    log_clock: LogClock,
}

/// Withdraws a request if its caller goes away before the reply.
struct ReplyWait<'c> {
    client: &'c Client,
    asked: Option<CallId>,
}

impl Drop for ReplyWait<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.asked {
            // If the inbox is full, the task notices when it replies.
            let _ = self.client.tell.try_send(Message::Forget(asked));
        }
    }
}

impl Client {
    /// Starts the task over these validators. With `takes_stale`, it accepts an answer from the
    /// stored state of a single validator, which can be old.
    pub(super) fn start_task(
        network: Network,
        validators: Arc<[PeerId]>,
        takes_stale: bool,
    ) -> Client {
        let (tell, inbox) = mpsc::channel(INBOX);
        let (age, oldest) = watch::channel(None);
        let (told, changes) = mpsc::channel(INBOX);
        let log_clock = LogClock::default();
        // Until somebody signs, the node's own key determines where its questions go.
        let own = AccountKey(key::account_of(&network.peer()).unwrap_or_default());
        let task = Task {
            core: MarketClient::new(own, MarketId::default(), validators.len()),
            clock: CoreClock::new(log_clock.clone()),
            network,
            validators,
            takes_stale,
            age,
            log_clock: log_clock.clone(),
            key: None,
            inbox,
            effects: JoinSet::new(),
            handles: BTreeMap::new(),
            watching: BTreeMap::new(),
            replies: BTreeMap::new(),
            last: BTreeMap::new(),
            watchers: BTreeMap::new(),
            told,
            changes,
        };
        tokio::spawn(task.run());
        Client {
            tell,
            next: Arc::default(),
            trades_for: Arc::default(),
            oldest,
            log_clock,
        }
    }

    /// Returns the log's clock, estimated from the validators' answers.
    pub(super) fn log_clock(&self) -> LogClock {
        self.log_clock.clone()
    }

    /// Returns the age of the oldest accepted answer.
    pub(super) fn oldest_age(&self) -> Option<Age> {
        *self.oldest.borrow()
    }

    /// Asks the market a question.
    pub(super) async fn ask_market(&self, question: Request) -> ClientReply {
        let question = Box::new(question);
        self.send_and_wait(|asked, reply| Message::Ask {
            asked,
            question,
            reply,
        })
        .await
    }

    /// Submits commands to the market, under one signature.
    pub(super) async fn submit_commands(&self, commands: Vec<Command>) -> ClientReply {
        self.send_and_wait(|asked, reply| Message::Carry {
            asked,
            commands,
            reply,
        })
        .await
    }

    async fn send_and_wait(
        &self,
        message: impl FnOnce(CallId, oneshot::Sender<ClientReply>) -> Message,
    ) -> ClientReply {
        let drawn = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, came) = oneshot::channel();
        let mut waiting = ReplyWait {
            client: self,
            asked: Some(CallId(drawn)),
        };
        let gone = ClientReply {
            reply: Reply::Unreached(NoReply::Broken),
            last: None,
        };
        if self.tell.send(message(CallId(drawn), reply)).await.is_err() {
            return gone;
        }
        let came = came.await.unwrap_or(gone);
        waiting.asked = None;
        came
    }

    /// Returns whether this client carries commands of an account. It can serve only one: the first
    /// that asked.
    pub(super) fn is_for(&self, account: AccountKey) -> bool {
        *self.trades_for.get_or_init(|| account) == account
    }

    /// Sets the key that signs commands from now on. You must do this before the first command.
    pub(super) fn sign_for(&self, key: NodeKey, market: MarketId) {
        let message = Message::SignFor(Box::new((key, market)));
        let tell = self.tell.clone();
        if let Err(mpsc::error::TrySendError::Full(message)) = self.tell.try_send(message) {
            tokio::spawn(async move { tell.send(message).await });
        }
    }

    /// Watches an account: the receiver gets a new state whenever the account changed, or may have,
    /// and when the watch breaks.
    pub(super) fn watch_account(&self, account: AccountKey) -> watch::Receiver<AccountWatch> {
        let (changes, receiver) = watch::channel(AccountWatch::default());
        let tell = self.tell.clone();
        tokio::spawn(async move {
            let (reply, told) = oneshot::channel();
            let asked = Message::Watch { account, reply };
            // A task that has ended reports no change.
            let (Ok(()), Ok(mut told)) = (tell.send(asked).await, told.await) else {
                return;
            };
            drop(tell);
            loop {
                tokio::select! {
                    Ok(()) = told.changed() => {
                        let now = *told.borrow_and_update();
                        changes.send_replace(now);
                    }
                    () = changes.closed() => return,
                    else => return,
                }
            }
        });
        receiver
    }

    /// Replaces the list of validators.
    pub(super) async fn set_validators(&self, validators: Arc<[PeerId]>) {
        let _ = self.tell.send(Message::Validators(validators)).await;
    }
}

/// The result of an effect.
enum EffectEnd {
    Put(CallId, RequestAttempt, Result<TimedAnswer, AttemptError>),
    /// A watch ended.
    Watched(WatchId),
    /// The time on a validator's clock, if it answered.
    Time(PeerId, Option<Millis>),
}

struct Task {
    core: MarketClient,
    clock: CoreClock,
    network: Network,
    validators: Arc<[PeerId]>,
    takes_stale: bool,
    age: watch::Sender<Option<Age>>,
    log_clock: LogClock,
    key: Option<NodeKey>,
    inbox: mpsc::Receiver<Message>,
    effects: JoinSet<EffectEnd>,
    handles: BTreeMap<RequestAttempt, AbortHandle>,
    watching: BTreeMap<WatchId, AbortHandle>,
    replies: BTreeMap<CallId, oneshot::Sender<ClientReply>>,
    /// The last validator's error, by request.
    last: BTreeMap<CallId, AttemptError>,
    watchers: BTreeMap<AccountKey, watch::Sender<AccountWatch>>,
    /// The channel by which the watches report changes.
    told: mpsc::Sender<WatchId>,
    changes: mpsc::Receiver<WatchId>,
}

impl Task {
    /// Runs until all clients are dropped.
    async fn run(mut self) {
        loop {
            let wakes_at = self.core.wakes_at();
            let event = tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(message) => self.on_message(message),
                    None => return,
                },
                Some(done) = self.effects.join_next() => match done {
                    Ok(done) => self.on_done(done),
                    // An aborted effect needs no answer.
                    Err(_) => None,
                },
                Some(watch) = self.changes.recv() => Some(Event::Watched { watch, goes_on: true }),
                () = self.clock.wait_until(wakes_at) => Some(Event::TimerFired),
            };
            if let Some(event) = event {
                self.apply_event(event);
            }
            self.end_watches();
        }
    }

    fn on_message(&mut self, message: Message) -> Option<Event> {
        match message {
            Message::Ask {
                asked,
                question,
                reply,
            } => {
                self.replies.insert(asked, reply);
                Some(Event::Ask { asked, question })
            }
            Message::Carry {
                asked,
                commands,
                reply,
            } => {
                self.replies.insert(asked, reply);
                Some(Event::Carry { asked, commands })
            }
            Message::Forget(asked) => {
                self.last.remove(&asked);
                self.replies.remove(&asked)?;
                Some(Event::Forget(asked))
            }
            Message::SignFor(signer) => {
                let (key, market) = *signer;
                self.core.sign_for(AccountKey(key.public_key()), market);
                self.key = Some(key);
                None
            }
            Message::Watch { account, reply } => {
                let known = self.watchers.get(&account);
                let is_new = known.is_none();
                let changes = self.watchers.entry(account).or_default();
                let mut told = changes.subscribe();
                if !is_new {
                    // A change of before the subscription may be one that the caller awaits.
                    told.mark_changed();
                }
                // The caller may have gone away.
                let _ = reply.send(told);
                is_new.then_some(Event::Watch(account))
            }
            Message::Validators(validators) => {
                self.validators = validators;
                Some(Event::Validators(self.validators.len()))
            }
        }
    }

    fn on_done(&mut self, done: EffectEnd) -> Option<Event> {
        match done {
            EffectEnd::Put(asked, putting, answer) => {
                self.handles.remove(&putting)?;
                let heard = match answer {
                    Ok(TimedAnswer { time, answer, .. }) => Ok(ValidatorAnswer {
                        time: Some(time),
                        answer,
                    }),
                    Err(error) => {
                        tracing::debug!(%error, "a validator gave no answer");
                        let silence = match &error {
                            AttemptError::Timeout => NoReply::Slow,
                            _ => NoReply::Broken,
                        };
                        self.last.insert(asked, error);
                        Err(silence)
                    }
                };
                // If no validator can answer, the caller gets the last one's reason.
                if let Ok(heard) = &heard {
                    match &heard.answer {
                        Answer::Busy { .. } => drop(self.last.insert(asked, AttemptError::Busy)),
                        Answer::Unavailable(why) => {
                            let why = AttemptError::Unavailable(why.clone());
                            self.last.insert(asked, why);
                        }
                        _ => {}
                    }
                }
                Some(Event::Heard { putting, heard })
            }
            EffectEnd::Time(validator, time) => {
                let place = self.validators.iter().position(|peer| *peer == validator)?;
                let validator = ValidatorIndex(place);
                time.map(|time| Event::Time { validator, time })
            }
            EffectEnd::Watched(watch) => {
                self.watching.remove(&watch)?;
                let goes_on = false;
                Some(Event::Watched { watch, goes_on })
            }
        }
    }

    fn apply_event(&mut self, event: Event) {
        let own = Micros(unix_us());
        let actions = self.core.apply(self.clock.now(), own, event);
        let shown = Millis(own.0 / 1_000);
        self.log_clock.set_time(self.core.log_time(shown), shown);
        for action in actions {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Sign { asked, batch } => {
                let key = self
                    .key
                    .as_ref()
                    .expect("who commands has said with which key");
                let batch = Box::new(batch.sign(key.signing_key()));
                self.apply_event(Event::Signed { asked, batch });
            }
            Action::Put {
                asked,
                putting,
                validator,
                question,
            } => {
                let validator = self.validators[validator.0 % self.validators.len()];
                let (network, takes_stale) = (self.network.clone(), self.takes_stale);
                let age = self.age.clone();
                let begun = self.effects.spawn(async move {
                    let heard = ask_validator(&network, validator, takes_stale, &question).await;
                    if let Ok(told) = &heard {
                        age.send_if_modified(|oldest| is_older(oldest, told.age));
                    }
                    EffectEnd::Put(asked, putting, heard)
                });
                self.handles.insert(putting, begun);
            }
            Action::AskTime(validator) => self.ask_time(validator),
            Action::Stop(putting) => {
                if let Some(handle) = self.handles.remove(&putting) {
                    handle.abort();
                }
            }
            Action::Reply { asked, reply } => {
                let last = self.last.remove(&asked);
                if let Some(caller) = self.replies.remove(&asked) {
                    // A caller that no longer waits is no error.
                    let _ = caller.send(ClientReply { reply, last });
                }
            }
            Action::Watch {
                watch,
                validator,
                account,
            } => self.forward_notices(watch, validator.0, account),
            Action::Unwatch(watch) => {
                if let Some(handle) = self.watching.remove(&watch) {
                    handle.abort();
                }
            }
            Action::Changed(account) => {
                if let Some(changes) = self.watchers.get(&account) {
                    changes.send_modify(|watch| {
                        watch.changes += 1;
                        watch.begun += u64::from(!watch.is_alive);
                        watch.is_alive = true;
                    });
                }
            }
            Action::WatchLost(account) => {
                if let Some(changes) = self.watchers.get(&account) {
                    changes.send_modify(|watch| watch.is_alive = false);
                }
            }
        }
    }

    /// Asks one validator for the time on its clock. The core asks a silent one again later.
    fn ask_time(&mut self, validator: ValidatorIndex) {
        let validator = self.validators[validator.0 % self.validators.len()];
        let network = self.network.clone();
        self.effects.spawn(async move {
            let asking = ask_validator(&network, validator, false, &Request::Time);
            let told = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
            let time = told.ok().and_then(Result::ok).map(|told| told.time);
            EffectEnd::Time(validator, time)
        });
    }

    /// Forwards one validator's notices of changes until its stream ends.
    fn forward_notices(&mut self, watch: WatchId, index: usize, account: AccountKey) {
        let validator = self.validators[index % self.validators.len()];
        let (network, told) = (self.network.clone(), self.told.clone());
        let begun = self.effects.spawn(async move {
            let hearing = async {
                let mut stream = network.open_stream(validator, PROTOCOL).await.ok()?;
                let asked = wire::send(&mut stream, &Request::Watch(account)).await;
                asked.ok()?;
                while let Ok(Answer::Changed) = wire::receive(&mut stream).await {
                    told.send(watch).await.ok()?;
                }
                None::<()>
            };
            hearing.await;
            EffectEnd::Watched(watch)
        });
        self.watching.insert(watch, begun);
    }

    /// Ends the watches that have no listener.
    fn end_watches(&mut self) {
        let unheard = self.watchers.iter();
        let unheard = unheard.filter(|(_, changes)| changes.is_closed());
        let unheard: Vec<AccountKey> = unheard.map(|(account, _)| *account).collect();
        for account in unheard {
            self.watchers.remove(&account);
            self.apply_event(Event::Unwatch(account));
        }
    }
}

/// Keeps the greater of two answers' ages; returns whether it is the new answer's.
fn is_older(oldest: &mut Option<Age>, told: Option<Age>) -> bool {
    let Some(told) = told else {
        return false;
    };
    let is_older = oldest.is_none_or(|oldest| oldest.applied > told.applied);
    if is_older {
        *oldest = Some(told);
    }
    is_older
}

/// Sends a question to one validator and receives the answer.
pub(super) async fn ask_validator(
    network: &Network,
    validator: PeerId,
    takes_stale: bool,
    question: &Request,
) -> Result<TimedAnswer, AttemptError> {
    let mut stream = network.open_stream(validator, PROTOCOL).await?;
    if takes_stale {
        wire::send(&mut stream, &Request::Stale).await?;
    }
    wire::send(&mut stream, question).await?;
    Ok(wire::receive(&mut stream).await?)
}
