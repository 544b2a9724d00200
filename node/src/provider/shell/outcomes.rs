//! Handles the outcomes of effects in a provider's shell. It stores what people see of them
//! (traffic, reports, traces, statistics) and returns to the core only the answer that the core
//! needs.

use std::sync::Arc;

use souk_folder::key;
use souk_market::AccountKey;
use souk_memory::{ContentId, Tensor};
use souk_network::content::transfers::FetchedContent;
use souk_roles::lease::{Failure, Part, TELLING_RUN};
use souk_roles::provider::{Arrival, Content, FailedRun, RunResult};
use souk_roles::tokens::counting::TokenCount;
use souk_sandbox::device::graph_work::GraphWork;
use souk_sandbox::executor::LeaseExecutor;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::{SpanKind, Timeline};

use super::*;
use crate::lease_report::PeerTraffic;
use crate::provider::running_lease::{JudgedRuns, network_span, plausible_time};
use crate::provider::statistics::{self, DoneLease};

/// The outcome of an effect: the answer for the core, or the facts from which the shell makes the
/// answer.
pub(super) enum EffectOutcome {
    /// The answer for the core.
    Is(Answer),
    Arrived {
        lease: LeaseId,
        request: Option<u32>,
        came: Vec<ArrivedContent>,
    },
    Sandboxed {
        lease: LeaseId,
        executor: LeaseExecutor,
    },
    Prepared {
        lease: LeaseId,
        prepared: Result<(), Failure>,
        /// The digest of a node that the device refuses.
        refused: Option<u64>,
    },
    Ran {
        lease: LeaseId,
        ran: Box<Result<FinishedRun, FailedRun>>,
    },
}

/// A content that a fetch has brought.
pub(super) struct ArrivedContent {
    pub(super) content: Content,
    pub(super) fetched: FetchedContent,
    /// The account that should have the content.
    pub(super) from: AccountKey,
    /// The label and the times of its transfer in a trace.
    pub(super) span: Option<(String, (u64, u64))>,
}

/// The facts that the shell needs to begin a run.
pub(super) struct RunBegun {
    /// The sequence of a session that it is a step of.
    pub(super) sequence: u32,
    pub(super) is_session: bool,
    pub(super) work: Box<Part>,
    /// The suffix of its name in a trace.
    pub(super) title: String,
    pub(super) inputs: Vec<(String, ContentId)>,
    /// The most bytes that its outputs can take.
    pub(super) bytes_max: u64,
    /// Device time by the figures of the ask, if it was computed before.
    pub(super) promised: Option<Option<Duration>>,
}

/// The results and the measurements of a successful run.
pub(super) struct FinishedRun {
    pub(super) work: Box<Part>,
    pub(super) promised: Option<Duration>,
    /// The work of the run, if the provider measured it and its graph states it.
    pub(super) takes: Option<GraphWork>,
    pub(super) outputs: Vec<(String, ContentId)>,
    pub(super) bytes: u64,
    pub(super) busy: Duration,
    /// The tokens of a request of a tab.
    pub(super) tokens: Option<TokenCount>,
    pub(super) report: Report,
    pub(super) timeline: Timeline,
}

impl Shell {
    /// Keeps the part of an outcome that people see, and returns the answer for the core.
    pub(super) fn on_outcome(&mut self, outcome: EffectOutcome) -> Answer {
        match outcome {
            EffectOutcome::Is(answer) => answer,
            EffectOutcome::Arrived {
                lease,
                request,
                came,
            } => self.on_contents_arrived(lease, request, came),
            EffectOutcome::Sandboxed { lease, executor } => {
                let slots = u32::try_from(executor.runs_ahead()).unwrap_or(u32::MAX);
                let executor = Arc::new(executor);
                self.watch_process(lease, &executor);
                if let Some(running) = self.leases.get_mut(&lease) {
                    running.executor = Some(executor);
                }
                Answer::Sandboxed { slots }
            }
            EffectOutcome::Prepared {
                lease,
                prepared,
                refused,
            } => {
                if let Some(digest) = refused {
                    self.on_refused(digest);
                }
                if let Some(running) = self.leases.get_mut(&lease) {
                    running.on_ready();
                }
                Answer::Prepared(prepared)
            }
            EffectOutcome::Ran { lease, ran } => Answer::Ran(self.on_ran(lease, *ran)),
        }
    }

    /// Notifies the core if the process of a lease ends by itself, even while the lease is idle. If
    /// its CPU time ran out, the run that used it up reports that.
    fn watch_process(&self, lease: LeaseId, executor: &Arc<LeaseExecutor>) {
        let lost = LeaseExecutor::wait_for_loss(Arc::downgrade(executor));
        let inbox = self.provider.inbox.clone();
        tokio::spawn(async move {
            if let Some(fault) = lost.await.filter(|fault| *fault != Failure::Expired) {
                let _ = inbox.send(Incoming::SandboxLost { lease, fault }).await;
            }
        });
    }

    fn on_contents_arrived(
        &mut self,
        lease: LeaseId,
        request: Option<u32>,
        came: Vec<ArrivedContent>,
    ) -> Answer {
        let label = self.provider.label.clone();
        let access = self.provider.tensors.access();
        let mut running = self.leases.get_mut(&lease);
        let arrivals = came.into_iter().map(|came| {
            let ArrivedContent {
                content,
                fetched,
                from,
                span: shown,
            } = came;
            let sender = fetched.from.and_then(|(peer, _)| key::account_of(&peer));
            if let Some(running) = &mut running {
                let readers = running.readers.of_content(content.kind);
                access.grant_contents(running.readers.scope, readers, &[content.id]);
                running.add_traffic(PeerTraffic {
                    from: sender.map_or(from, AccountKey),
                    what: content.what,
                    bytes: fetched.moved,
                    link: fetched.took,
                });
                if let Some((name, times)) = shown.filter(|_| fetched.moved > 0) {
                    let name = format!("{name}{}", running.trace_suffix(request));
                    running.push_span(network_span(
                        &label,
                        name,
                        SpanKind::TransferIn,
                        times.0,
                        times.1,
                    ));
                }
            }
            Arrival {
                id: content.id,
                bytes: fetched.bytes.len() as u64,
                moved: fetched.moved,
            }
        });
        Answer::Arrived(arrivals.collect())
    }

    fn on_ran(
        &mut self,
        lease: LeaseId,
        ran: Result<FinishedRun, FailedRun>,
    ) -> Result<RunResult, FailedRun> {
        let running = self.leases.get_mut(&lease);
        let ran = match ran {
            Ok(ran) => ran,
            Err(failure) => {
                if let Some(running) = running {
                    running.on_run_end(None);
                }
                return Err(failure);
            }
        };
        if let Some(running) = running {
            // The grants must come before any peer learns that the outputs exist.
            let access = self.provider.tensors.access();
            for (name, id) in &ran.outputs {
                let readers = running.readers.of_output(name);
                access.grant_contents(running.readers.scope, readers, &[*id]);
            }
            for output in ran.work.outputs.iter().filter(|it| it.is_wanted) {
                let made = ran.outputs.iter().filter(|(name, _)| *name == output.name);
                running.for_buyer.extend(made.map(|(_, id)| *id));
            }
            running.on_run_end(Some((ran.report, ran.timeline, ran.bytes)));
            if ran.work.flops > 0 {
                running.judged.add_run(ran.work.graph, ran.takes, ran.busy);
                running.promised.insert(ran.work.graph, ran.promised);
            }
        }
        let believed = self.provider.believed_time(ran.promised, &ran.work);
        Ok(RunResult {
            outputs: ran.outputs,
            bytes: ran.bytes,
            busy: Micros::from(ran.busy),
            promised: believed,
            tokens: ran.tokens,
        })
    }

    /// Ends the work of a lease: counts it and examines its speed.
    pub(super) fn on_done(&mut self, lease: LeaseId) {
        let Some(mut running) = self.remove_lease(lease) else {
            return;
        };
        let judged = std::mem::take(&mut running.judged);
        let (shown, made_bytes) = running.into_report();
        let counted = DoneLease {
            received_bytes: shown.moved.iter().map(|moved| moved.bytes).sum(),
            made_bytes,
            report: shown.report.clone(),
        };
        statistics::count_aside(&self.provider.home, counted);
        self.reports.insert(lease, shown);
        if self.reports.len() > SHOWN_MAX {
            self.reports.pop_first();
        }
        self.provider.clone().note_pace(judged);
    }
}

impl Provider {
    /// Returns the device time of a run of a part by the ask: `own`, or the buyer's figure if it is
    /// near that.
    pub(super) fn believed_time(&self, own: Option<Duration>, part: &Part) -> Option<Micros> {
        let stated = Duration::from_micros(part.expected.0);
        let believed = match self.pace.is_placed() {
            true => own.map(|own| plausible_time(own, stated)),
            // A lease that a buyer bought in an earlier run was bought by other figures.
            false => Some(stated),
        };
        believed.map(Micros::from)
    }

    /// Compares, on a separate thread, the time of a lease with the known times of its kinds of
    /// work.
    fn note_pace(self: Arc<Self>, judged: JudgedRuns) {
        self.pace.on_job();
        if !self.is_paced() || Micros::from(judged.busy) < TELLING_RUN {
            return;
        }
        tokio::task::spawn_blocking(move || {
            // The known times include those of its own operators.
            let usual = Speed::from_times(self.known_times()).scale_resources(&self.peak);
            let usual = judged.expected_time(&usual);
            if let Some(usual) = usual.filter(|usual| !usual.is_zero()) {
                self.pace.record_job(usual, judged.busy);
            }
        });
    }

    /// Returns the tensors of these names.
    pub(super) async fn read_inputs(
        self: &Arc<Self>,
        inputs: Vec<(String, ContentId)>,
    ) -> Result<BTreeMap<String, Tensor>, Failure> {
        let read = |provider: &Provider, inputs: Vec<(String, ContentId)>| {
            let store = provider.tensors.store();
            let each = inputs
                .into_iter()
                .map(|(name, id)| match store.get_tensor(&id) {
                    Ok(Some(tensor)) => Ok((name, tensor)),
                    Ok(None) => Err(Failure::Input(format!("{name} is not here any more"))),
                    Err(error) => Err(Failure::Input(format!("{name}: {error}"))),
                });
            each.collect()
        };
        let store = self.tensors.store();
        if inputs.iter().all(|(_, id)| store.in_reach(id).is_some()) {
            return read(self, inputs);
        }
        let provider = self.clone();
        let reading = tokio::task::spawn_blocking(move || read(&provider, inputs));
        reading.await.expect("reading a store does not panic")
    }
}
