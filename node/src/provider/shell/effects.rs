//! Carries out the effects that a provider's core (the state machine that makes its decisions)
//! requests of its shell: fetches, runs of parts, commands to the market. An effect that takes time
//! runs in a task of its own.

use std::sync::Arc;

use souk_folder::clock::unix_ms;
use souk_market::{AccountKey, Command, LeaseId, Price, Receipt, Refusal, Side};
use souk_memory::{ContentId, Tensor};
use souk_network::content::inline_contents::{self, TO_PROVIDER_BYTES_MAX};
use souk_network::protocols::lease;
use souk_roles::lease::{Failure, Offer, OfferAnswer, Part, Start};
use souk_roles::provider::{Content, DEVICE, FailedRun, MarketView, NotDone, Report};
use souk_sandbox::device::ask_resources;
use souk_sandbox::device::graph_work::GraphWork;
use souk_sandbox::executor::{LeaseExecutor, NotPrepared, NotRun, TaskRun};
use souk_scheduler::execution::{Moment, Precedence, Task};

use super::fetching::{FetchOrder, fetch_contents};
use super::outcomes::{EffectOutcome, FinishedRun, RunBegun};
use super::*;
use crate::client::trader::TradeError;
use crate::provider::fault;

impl Shell {
    /// Begins an effect of any lease, or of one that runs on devices.
    pub(super) fn begin_lease_action(&mut self, ticket: Ticket, action: Action) {
        let provider = self.provider.clone();
        match action {
            Action::SendMessage { stream, message } => self.send_message(stream, message),
            Action::Reply { stream, taken } => {
                self.queue_frame(stream, Frame::Taken(taken));
            }
            Action::CloseStream { stream } => {
                self.inline_contents.forget_sender(stream);
                self.peers.remove(&stream);
            }
            Action::Offer { to, offer } => {
                self.effects.start(ticket, offer_to(provider, to, offer));
            }
            Action::LookAt { lease } => self.effects.start(ticket, look_at(provider, lease)),
            Action::LookAtMarket { asks } => {
                self.look_at_speed();
                self.effects.start(ticket, look_at_market(provider, asks));
            }
            Action::Command(command) => self
                .effects
                .start(ticket, submit_command(provider, *command)),
            action @ Action::Bring { .. } => self.begin_bringing(ticket, action),
            Action::Hurry { contents } => {
                contents
                    .iter()
                    .for_each(|id| provider.tensors.hurry_content(id));
            }
            Action::Hold { contents } => {
                let store = provider.tensors.store();
                contents.iter().for_each(|id| store.pin(*id));
            }
            Action::Release { contents } => {
                let store = provider.tensors.store();
                contents.iter().for_each(|id| store.unpin(id));
            }
            Action::Learn { buyer, start } => self.add_lease(buyer, &start),
            Action::Check { lease, graphs } => {
                let executor = self.lease_executor(lease);
                self.effects
                    .start(ticket, check_graphs(provider, executor, graphs));
            }
            action @ (Action::Sandbox { .. } | Action::Prepare { .. } | Action::Run { .. }) => {
                self.begin_computing(ticket, action);
            }
            Action::EndSandbox { lease } => {
                if let Some(running) = self.leases.get_mut(&lease) {
                    running.executor = None;
                }
            }
            Action::Record(facts) => self.record_facts(ticket, facts),
            Action::Sign(body) => {
                let receipt = Receipt::new(*body);
                let signed = receipt.sign_as_provider(provider.trader.key().signing_key());
                self.queue_answer(ticket, Answer::Signed(Box::new(signed)));
            }
            Action::Tell(report) => self.log_report(report),
            Action::Stop(stopped) => self.effects.stop(stopped),
            Action::Over => self.is_over = true,
        }
    }

    fn add_lease(&mut self, buyer: AccountKey, start: &Start) {
        let running = RunningLease::new(buyer, start);
        let access = self.provider.tensors.access();
        access.begin_lease(running.readers.scope);
        let before = self.leases.insert(start.lease, running);
        assert!(before.is_none(), "a lease is begun once");
        if self.provider.engine.as_endpoint().is_some() {
            return self.provider.pieces.open_tab(start.lease, buyer);
        }
        let weights = start.parts.iter().flat_map(|part| &part.weights);
        let graphs = start.parts.iter().map(|part| part.graph);
        let contents = graphs.chain(weights.copied()).collect();
        let graph = start.graph_of(start.parts.len());
        self.provider.outlook.on_lease(graph, contents);
    }

    /// Removes a lease that no longer runs.
    pub(super) fn remove_lease(&mut self, lease: LeaseId) -> Option<RunningLease> {
        let running = self.leases.remove(&lease)?;
        self.provider.pieces.close_tab(lease);
        let scope = running.readers.scope;
        self.provider.tensors.access().end_lease(scope);
        Some(running)
    }

    fn begin_bringing(&mut self, ticket: Ticket, action: Action) {
        let Action::Bring {
            lease,
            request,
            contents,
            holders,
            urgency,
        } = action
        else {
            unreachable!("it was looked at");
        };
        let store = self.provider.tensors.store();
        // The pins must come first, so that contents which arrive meanwhile cannot evict these.
        contents.iter().for_each(|content| store.pin(content.id));
        let running = self.leases.get_mut(&lease).expect("it is learned first");
        let inline = &mut self.inline_contents;
        let came = |content: &Content| Some((content.id, inline.take_content(&content.id)?.1));
        let wanted = FetchOrder {
            inline_contents: contents.iter().filter_map(came).collect(),
            scope: running.readers.scope,
            is_session: running.is_session,
            contacts: std::mem::take(&mut running.contacts),
            contents,
            holders,
            urgency,
        };
        let (provider, room) = (self.provider.clone(), self.transfers.clone());
        self.effects.start(ticket, async move {
            // No code closes this semaphore.
            let _room = room.acquire_owned().await;
            match fetch_contents(provider, wanted).await {
                Ok(came) => EffectOutcome::Arrived {
                    lease,
                    request,
                    came,
                },
                Err(why) => EffectOutcome::Is(Answer::NotArrived(why)),
            }
        });
    }

    fn begin_computing(&mut self, ticket: Ticket, action: Action) {
        let (provider, clock) = (self.provider.clone(), self.clock.clone());
        match action {
            Action::Sandbox {
                lease,
                price,
                deadline,
                alone,
            } => self.effects.start(ticket, async move {
                let own = provider.terms.as_written(&provider.home).price();
                let left = || clock.until_log(deadline);
                let executor = provider.engine.as_executor();
                let executor = executor.expect("an endpoint opens no sandbox");
                let place = executor.for_lease(price, left, own).await;
                match place {
                    Ok(executor) if alone => EffectOutcome::Sandboxed { lease, executor },
                    Ok(executor) => {
                        let executor = executor.of_stream();
                        EffectOutcome::Sandboxed { lease, executor }
                    }
                    Err(fault) => EffectOutcome::Is(Answer::NoSandbox(fault)),
                }
            }),
            Action::Prepare {
                lease,
                graph,
                weights,
                ..
            } => {
                let executor = self.lease_executor(lease);
                let prepared = prepare_part(provider, executor, lease, graph, weights);
                self.effects.start(ticket, prepared);
            }
            Action::Run {
                lease,
                request,
                sequence,
                work,
                inputs,
                bytes_max,
                price,
                deadline,
                ..
            } => {
                let executor = self.lease_executor(lease);
                let label = provider.label.clone();
                let running = self.leases.get_mut(&lease).expect("it was learned");
                running.on_run_begin(&label, request);
                let begun = RunBegun {
                    title: running.trace_suffix(Some(request)),
                    promised: running.promised.get(&work.graph).copied(),
                    work,
                    sequence,
                    is_session: running.is_session,
                    inputs,
                    bytes_max,
                };
                let precedence = lease_precedence(lease, price, clock.until_log(deadline));
                self.effects.start(ticket, async move {
                    let ran = run(provider, executor, begun, precedence).await;
                    EffectOutcome::Ran {
                        lease,
                        ran: Box::new(ran),
                    }
                });
            }
            action => unreachable!("{action:?} is none of them"),
        }
    }

    /// Returns the executor of a lease that has one.
    fn lease_executor(&self, lease: LeaseId) -> Arc<LeaseExecutor> {
        let running = self.leases.get(&lease);
        let executor = running.and_then(|running| running.executor.clone());
        executor.expect("a place is found before anything is run in it")
    }

    /// Logs a failed or refused lease for people; counts a finished one.
    fn log_report(&mut self, report: Report) {
        match report {
            Report::Failed { lease, failure } => {
                self.remove_lease(lease);
                tracing::warn!(%lease, %failure, "the work of a lease failed");
            }
            Report::Refused { lease, failure } => {
                tracing::warn!(%lease, %failure, "refused to start a lease");
            }
            Report::Done { body, .. } => self.on_done(body.lease),
            Report::Settled(receipt) => self.provider.keep_receipt(*receipt),
            Report::Unsigned { lease, reason } => {
                tracing::warn!(%lease, ?reason, "the buyer did not sign; the usage is noted");
            }
            Report::NotCommanded { command, why } => {
                tracing::error!(?command, why, "the market did not carry out a command");
            }
            Report::NotPlaced { why } => {
                tracing::warn!(why, "the market has no room for the ask; will try again");
            }
            Report::Placed {
                order,
                resources,
                price,
                quantity,
            } => {
                tracing::info!(%order, %price, leases = quantity.0, "placed the ask");
                let speed = match *resources == self.speed.0 {
                    true => self.speed.1,
                    false => self.provider.pace.advertised_speed(),
                };
                self.provider.pace.set_advertised(speed);
                let device = self.provider.peak.model.as_str();
                self.provider
                    .seen
                    .set_stated_speed(device, speed.stated_speed());
            }
            Report::Withdrawn { order } => tracing::info!(%order, "withdrew the ask"),
            Report::Recovered { lease } => tracing::warn!(%lease, "recovered an earlier lease"),
            Report::GivenBack { lease } => tracing::info!(%lease, "returned a lease"),
            Report::NotWritable { why } => {
                tracing::error!(why, "cannot write the journal; the provider sells nothing");
            }
        }
    }
}

/// Returns the precedence of a lease's runs: leases share the devices by their price, and end when
/// the market ends them. A buyer's own priorities order that buyer's leases only, and never place
/// one before another buyer's.
fn lease_precedence(lease: LeaseId, price: Price, left: Duration) -> Precedence {
    Precedence {
        priority: 0,
        weight: (price.0 as f64).max(1.0),
        owner: Some(lease.0),
        deadline: Some(Moment::now().saturating_add(left)),
    }
}

/// Offers an output to a provider that waits for it.
async fn offer_to(provider: Arc<Provider>, to: AccountKey, offer: Offer) -> EffectOutcome {
    let (lease, name) = (offer.from, offer.name.clone());
    let along = inline_contents::of_request(offer.request, vec![offer.tensor]);
    let along = provider
        .tensors
        .inline_contents(along, TO_PROVIDER_BYTES_MAX);
    let taken = lease::offer_tensor(&provider.network, to, offer, along).await;
    if taken != Ok(OfferAnswer::Yes) {
        tracing::warn!(%lease, name, consumer = %to, ?taken, "the consumer declined the tensor");
    }
    EffectOutcome::Is(Answer::Offered(taken))
}

async fn look_at(provider: Arc<Provider>, lease: LeaseId) -> EffectOutcome {
    EffectOutcome::Is(match provider.trader.broker().fetch_lease(lease).await {
        Ok(lease) => Answer::LeaseSeen(lease.map(Box::new)),
        Err(error) => Answer::NotSeen(error.to_string()),
    })
}

async fn look_at_market(provider: Arc<Provider>, asks: bool) -> EffectOutcome {
    let (broker, me) = (provider.trader.broker(), provider.trader.account());
    let looking = async {
        let leases = broker.fetch_leases(me).await?;
        let account = broker.fetch_account(me).await?;
        let resources = provider.advertised_resources();
        let terms = provider.terms.as_written(&provider.home);
        let probed = provider.clone();
        let has_room = tokio::task::spawn_blocking(move || probed.disk.has_room());
        let due = match has_room.await.expect("writing a file does not panic") {
            true => terms.current_terms(broker, &resources).await?,
            false => None,
        };
        let listed = match asks {
            true => broker.fetch_orders(me).await?,
            false => Vec::new(),
        };
        let mine = listed.iter().filter(|order| order.side == Side::Ask);
        Ok::<_, crate::client::broker::BrokerError>(MarketView {
            leases,
            offered: account
                .as_ref()
                .map(|account| account.offered_units(DEVICE))
                .unwrap_or_default(),
            open_orders: account.map_or(0, |account| account.open_orders),
            asks: mine.map(|order| order.id).collect(),
            due,
            slots: provider.slots_now(),
        })
    };
    EffectOutcome::Is(match looking.await {
        Ok(view) => Answer::MarketSeen(Box::new(view)),
        Err(error) => {
            tracing::warn!(%error, "the provider's account and asks could not be queried");
            Answer::NotSeen(error.to_string())
        }
    })
}

async fn submit_command(provider: Arc<Provider>, command: Command) -> EffectOutcome {
    let mut done = provider.trader.submit_one(command.clone()).await;
    let is_forgotten = matches!(
        done,
        Err(TradeError::Refused(Refusal::AccountUnknown { account }))
            if account == provider.trader.account()
    );
    // The market removed its empty account to make room for another.
    if is_forgotten
        && provider
            .trader
            .register_account(provider.name.clone())
            .await
            .is_ok()
    {
        done = provider.trader.submit_one(command).await;
    }
    EffectOutcome::Is(Answer::Commanded(done.map_err(|error| match error {
        TradeError::Refused(refusal) => NotDone::Refused(refusal),
        error => NotDone::Uncertain(error.to_string()),
    })))
}

/// Checks that graphs are within this provider's limits. A stranger made them, so the lease's own
/// process must read them, and only its findings are checked here.
async fn check_graphs(
    provider: Arc<Provider>,
    executor: Arc<LeaseExecutor>,
    graphs: Vec<ContentId>,
) -> EffectOutcome {
    let limits = &provider.terms.limits;
    let store = provider.tensors.store();
    let checking = async {
        if limits.allows_all_operators() {
            return Ok(());
        }
        for graph in graphs {
            let fault = provider.fault.at_graph();
            let operators = executor.inspect_model(store, graph, fault).await?;
            let checked = operators.check_limits(limits);
            checked.map_err(|refusal| Failure::Limit(refusal.to_string()))?;
        }
        Ok(())
    };
    EffectOutcome::Is(Answer::Checked(checking.await))
}

/// Lets the device prepare a part; if it refuses a node, the failure names the node's digest.
async fn prepare_part(
    provider: Arc<Provider>,
    executor: Arc<LeaseExecutor>,
    lease: LeaseId,
    part: ContentId,
    weights: Vec<ContentId>,
) -> EffectOutcome {
    let store = provider.tensors.store().clone();
    let (prepared, refused) = match executor.prepare_model(&store, part, &weights).await {
        Ok(()) => (Ok(()), None),
        Err(NotPrepared { failure, node }) => (Err(failure), node),
    };
    EffectOutcome::Prepared {
        lease,
        prepared,
        refused,
    }
}

/// Lets the device run a part, and stores its outputs.
async fn run(
    provider: Arc<Provider>,
    executor: Arc<LeaseExecutor>,
    begun: RunBegun,
    precedence: Precedence,
) -> Result<FinishedRun, FailedRun> {
    let RunBegun {
        work,
        sequence,
        is_session,
        title,
        inputs,
        bytes_max,
        promised,
    } = begun;
    let inputs = provider.read_inputs(inputs).await?;
    let fault = provider.fault.next();
    fault::before_run(fault).await;
    let task = Task {
        name: format!("{}{title}", work.name),
        model: work.graph,
        sequence,
        inputs,
    };
    let run = TaskRun {
        task,
        precedence,
        is_weighed: promised.is_none() && work.flops > 0,
        fault,
    };
    let at_work = provider.energy.begin_run(&executor);
    let ran = executor.run(provider.tensors.store(), run).await;
    let promised_for = |takes: Option<&GraphWork>| {
        let stated = || ask_resources::expected_time(&provider.advertised_resources(), takes?);
        promised.unwrap_or_else(stated)
    };
    let (mut ran, takes) = ran.map_err(
        |NotRun {
             failure,
             work: takes,
         }| FailedRun {
            failure,
            promised: provider.believed_time(promised_for(takes.as_ref()), &work),
        },
    )?;
    if let Some(at_work) = at_work {
        at_work.write(&mut ran.report);
    }
    provider
        .seen
        .learn_measurements(&ran.learned, &work.graph, unix_ms());
    provider.fault.after_run(fault, &mut ran.outputs);
    let (outputs, bytes) = store_outputs(&provider, &work, is_session, ran.outputs, bytes_max)?;
    Ok(FinishedRun {
        work,
        promised: promised_for(takes.as_ref()),
        takes,
        outputs,
        bytes,
        busy: ran.busy,
        tokens: None,
        report: ran.report,
        timeline: ran.timeline,
    })
}

/// Stores a part's outputs, if they are within the limit. Returns their ids by name, and their
/// bytes in sum.
pub(super) fn store_outputs(
    provider: &Provider,
    work: &Part,
    is_session: bool,
    mut made: BTreeMap<String, Tensor>,
    bytes_max: u64,
) -> Result<(Vec<(String, ContentId)>, u64), Failure> {
    let mut tensors = Vec::with_capacity(work.outputs.len());
    for output in &work.outputs {
        let missing = || Failure::Run(format!("it gave no {}", output.name));
        tensors.push((&output.name, made.remove(&output.name).ok_or_else(missing)?));
    }
    let lengths = tensors.iter().map(|(_, it)| it.blob_length() as u64);
    let bytes = lengths.fold(0, u64::saturating_add);
    if bytes > bytes_max {
        return Err(Failure::too_much(bytes, bytes_max));
    }
    let store = provider.tensors.store();
    let kept = tensors.iter().map(|(name, tensor)| {
        let id = match is_session {
            true => store.put_passing(None, tensor.to_blob()),
            false => store.put_tensor(tensor),
        };
        Ok((
            (*name).clone(),
            id.map_err(|error| provider.disk.not_kept(&error))?,
        ))
    });
    Ok((kept.collect::<Result<_, Failure>>()?, bytes))
}
