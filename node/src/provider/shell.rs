//! Runs a provider's *shell*: the one task that passes events to the provider's *core* (the state
//! machine that makes its decisions) and carries out the effects that the core requests.
//!
//! The task must await nothing else. Work that takes time is a separate effect whose answer returns
//! as an event. The messages of one stream, and the facts of the journal, keep their order in their
//! own queues.

mod effects;
mod fetching;
mod outcomes;
mod streams;
mod tabs;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use souk_folder::clock::CoreClock;
use souk_folder::fact_writer::WriterEnded;
use souk_market::{LeaseId, Resources};
use souk_network::content::inline_contents::InlineContents;
use souk_roles::access::Readers;
use souk_roles::clock::Micros;
use souk_roles::effect::{Effect, Ticket};
use souk_roles::provider::{
    Action, Answer, Config, Event, Fact, Past, ProviderCore, ProviderStatus, StreamId,
};
use tokio::sync::{Semaphore, mpsc, watch};

use super::Provider;
use super::journal::JournalWriter;
use super::pace::Speed;
use super::running_lease::RunningLease;
use crate::client::broker::AccountWatch;
use crate::effect_tasks::EffectTasks;
use crate::lease_report::LeaseReport;
use outcomes::EffectOutcome;
pub(super) use streams::{Frame, Incoming};

/// Messages of peers that can wait for the core. A task that reads a stream waits for a place,
/// which slows that peer and no other.
pub(super) const INBOX: usize = 4_096;

/// Transfers of content at a time.
const TRANSFERS_MAX: usize = 256;

/// The provider keeps the reports of this many leases for buyers that come back.
const SHOWN_MAX: usize = 256;

/// The signals of a provider's machine and owner to its shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Stop,
    Hurry,
    TermsChanged,
}

/// The state of the task that runs a provider.
pub(super) struct Shell {
    provider: Arc<Provider>,
    core: ProviderCore,
    clock: CoreClock,
    inbox: mpsc::Receiver<Incoming>,
    /// Answers that are available already.
    ready: VecDeque<Event>,
    /// The open streams.
    peers: BTreeMap<StreamId, mpsc::Sender<Frame>>,
    leases: BTreeMap<LeaseId, RunningLease>,
    reports: BTreeMap<LeaseId, LeaseReport>,
    effects: EffectTasks<EffectOutcome>,
    transfers: Arc<Semaphore>,
    /// Contents that arrived inline with messages.
    inline_contents: InlineContents<StreamId>,
    journal: JournalWriter,
    /// The figures that the core last received, and the speed behind them.
    speed: (Resources, Speed),
    status: watch::Sender<ProviderStatus>,
    is_over: bool,
}

impl Shell {
    /// Creates a provider that continues from its past; once it must stop, running leases have
    /// `patience` to finish.
    pub(super) fn new(
        provider: Arc<Provider>,
        inbox: mpsc::Receiver<Incoming>,
        (journal, past): (JournalWriter, Past),
        patience: Duration,
    ) -> (Shell, watch::Receiver<ProviderStatus>) {
        let speed = provider.pace.next_speed(provider.known_times());
        let resources = speed.scale_resources(&provider.peak_resources());
        let config = Config {
            account: provider.trader.account(),
            market: provider.trader.market(),
            resources: resources.clone(),
            capacity: provider.terms.lease_count(),
            price_min: provider.terms.price_min(),
            memory_bytes_max: provider.terms.limits.memory_bytes_each(),
            made_bytes_max: provider.terms.limits.outputs_bytes(),
            patience: Micros::from(patience),
        };
        let access = provider.tensors.access();
        for (scope, made) in past.open_lease_outputs() {
            access.begin_lease(scope);
            access.grant_contents(scope, &Readers::new([scope.buyer].into()), &made);
            access.end_lease(scope);
        }
        let clock = CoreClock::new(provider.trader.broker().log_clock());
        let (core, effects) = ProviderCore::resume(config, past, clock.now());
        let (status, status_receiver) = watch::channel(core.status());
        let mut shell = Shell {
            provider,
            core,
            clock,
            inbox,
            ready: VecDeque::new(),
            peers: BTreeMap::new(),
            leases: BTreeMap::new(),
            reports: BTreeMap::new(),
            effects: EffectTasks::default(),
            transfers: Arc::new(Semaphore::new(TRANSFERS_MAX)),
            inline_contents: InlineContents::default(),
            journal,
            speed: (resources, speed),
            status,
            is_over: false,
        };
        shell.carry_out(effects);
        (shell, status_receiver)
    }

    /// Runs until the core has stopped.
    ///
    /// # Errors
    /// If the journal can no longer be written. The provider's next run continues from its last
    /// fact.
    pub(super) async fn run(
        mut self,
        mut signals: mpsc::Receiver<Signal>,
    ) -> Result<(), WriterEnded> {
        let account = self.provider.trader.account();
        let mut changes = self.provider.trader.broker().watch_account(account);
        while !self.is_over {
            let event = match self.ready.pop_front() {
                Some(event) => event,
                None => self.next(&mut signals, &mut changes).await?,
            };
            let effects = self.core.apply(self.clock.now(), event);
            self.carry_out(effects);
            if self.ready.is_empty() {
                self.status.send_replace(self.core.status());
            }
        }
        self.status.send_replace(self.core.status());
        Ok(())
    }

    /// Waits for the next event.
    async fn next(
        &mut self,
        signals: &mut mpsc::Receiver<Signal>,
        changes: &mut watch::Receiver<AccountWatch>,
    ) -> Result<Event, WriterEnded> {
        loop {
            let wakes_at = self.core.wakes_at();
            tokio::select! {
                ended = self.effects.next_outcome() => match ended {
                    Ok((ticket, outcome)) => {
                        let answer = self.on_outcome(outcome);
                        return Ok(Event::EffectAnswered { ticket, answer });
                    }
                    // The lease of the effect ends at its deadline.
                    Err(error) => tracing::error!(%error, "an effect task panicked"),
                },
                (ticket, written) = self.journal.next_answer() => {
                    let answer = match written? {
                        Ok(()) => Answer::Recorded,
                        Err(why) => Answer::NotWritten(why),
                    };
                    return Ok(Event::EffectAnswered { ticket, answer });
                }
                Some(incoming) = self.inbox.recv() => {
                    if let Some(event) = self.on_incoming(incoming) {
                        return Ok(event);
                    }
                }
                Ok(()) = changes.changed() => {
                    let is_alive = changes.borrow_and_update().is_alive;
                    return Ok(match is_alive {
                        true => Event::Changed,
                        false => Event::WatchLost,
                    });
                }
                Some(signal) = signals.recv() => return Ok(match signal {
                    Signal::Stop => Event::Stop,
                    Signal::Hurry => Event::Hurry,
                    Signal::TermsChanged => Event::TermsChanged,
                }),
                () = self.clock.wait_until(wakes_at) => return Ok(Event::TimerFired),
            }
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Action>>) {
        for Effect { ticket, action } in effects {
            self.begin_action(ticket, action);
        }
    }

    /// Answers an effect at once.
    fn queue_answer(&mut self, ticket: Ticket, answer: Answer) {
        self.ready
            .push_back(Event::EffectAnswered { ticket, answer });
    }

    fn record_facts(&mut self, ticket: Ticket, facts: Vec<Fact>) {
        if let Err(behind) = self.journal.submit_write(ticket, facts) {
            self.queue_answer(ticket, Answer::NotWritten(behind.to_string()));
        }
    }

    /// Updates the figures if they have changed enough.
    fn look_at_speed(&mut self) {
        let known = self.provider.known_times();
        if !self.provider.pace.has_changed(known) {
            return;
        }
        self.advertise_speed(self.provider.pace.next_speed(known));
    }

    /// Notes that the device refuses the node with this digest; its asks state so from now on.
    fn on_refused(&mut self, digest: u64) {
        self.provider
            .refusals
            .add_refusal(&self.provider.home, digest);
        self.advertise_speed(self.speed.1);
    }

    /// Advertises the device at this speed, with the present knowledge of its operators.
    fn advertise_speed(&mut self, speed: Speed) {
        let resources = speed.scale_resources(&self.provider.peak_resources());
        if resources != self.speed.0 {
            self.speed = (resources.clone(), speed);
            self.ready.push_back(Event::SpeedDue(Box::new(resources)));
        }
    }
}
