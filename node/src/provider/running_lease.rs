//! Holds the state of a running lease at its provider: its traffic, report and trace, which the
//! buyer and the owner can see, and its runs, by which the provider judges its own speed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use souk_folder::clock::unix_us;
use souk_folder::contact::Contact;
use souk_market::{AccountKey, Resources};
use souk_memory::ContentId;
use souk_roles::lease::Start;
use souk_roles::provider::LeaseReaders;
use souk_roles::tokens::prompts::PromptHistory;
use souk_sandbox::device::ask_resources;
use souk_sandbox::device::graph_work::GraphWork;
use souk_sandbox::executor::LeaseExecutor;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::{Span, SpanKind, Timeline, UnixMicros};

use crate::lease_report::{LeaseReport, PeerTraffic};

/// The part by which the buyer's figure of a run's time can differ from the graph's.
const TIME_TOLERANCE: f64 = 0.05;

/// A running lease in its provider's shell.
pub(super) struct RunningLease {
    /// Whether it has a single request.
    pub(super) has_single_request: bool,
    /// Whether it is a session: then the inputs and outputs of a step are useless after a restart.
    pub(super) is_session: bool,
    /// The lease's executor, while it has one.
    pub(super) executor: Option<Arc<LeaseExecutor>>,
    /// The addresses of the job's other peers, until the network has learned them.
    pub(super) contacts: Vec<Contact>,
    /// The access lists of its contents at this provider.
    pub(super) readers: LeaseReaders,
    pub(super) judged: JudgedRuns,
    /// Outputs for its buyer that no message has named yet: they will go inline. If the buyer
    /// leaves, no message ever does.
    pub(super) for_buyer: BTreeSet<ContentId>,
    /// The billed requests of a tab.
    pub(super) prompts: Arc<Mutex<PromptHistory>>,
    /// Device time of one run of each graph, by the figures of the ask.
    pub(super) promised: BTreeMap<ContentId, Option<Duration>>,
    /// Runs in progress, and the moment since which there is none.
    runs_in_progress: u32,
    idle_since: Option<u64>,
    moved: Vec<PeerTraffic>,
    report: Option<Report>,
    timeline: Timeline,
    output_bytes: u64,
}

impl RunningLease {
    pub(super) fn new(buyer: AccountKey, start: &Start) -> RunningLease {
        RunningLease {
            has_single_request: start.last,
            is_session: start.sequences > 0,
            executor: None,
            contacts: start.peers.iter().map(Contact::from).collect(),
            readers: LeaseReaders::new(buyer, start),
            judged: JudgedRuns::default(),
            for_buyer: BTreeSet::new(),
            prompts: Arc::default(),
            promised: BTreeMap::new(),
            runs_in_progress: 0,
            idle_since: None,
            moved: Vec::new(),
            report: None,
            timeline: Timeline::default(),
            output_bytes: 0,
        }
    }

    /// Returns the suffix of a name in a trace, which distinguishes requests.
    pub(super) fn trace_suffix(&self, request: Option<u32>) -> String {
        match request.filter(|_| !self.has_single_request) {
            Some(request) => format!(", request {request}"),
            None => String::new(),
        }
    }

    /// Notes that everything but its inputs is ready for the first run.
    pub(super) fn on_ready(&mut self) {
        self.idle_since = Some(unix_us());
    }

    /// Notes that a run begins: until then the device waited for its inputs.
    pub(super) fn on_run_begin(&mut self, label: &str, request: u32) {
        self.runs_in_progress += 1;
        if let Some(since) = self.idle_since.take() {
            let name = format!("inputs{}", self.trace_suffix(Some(request)));
            self.timeline
                .push(network_span(label, name, SpanKind::Wait, since, unix_us()));
        }
    }

    /// Notes that a run has ended, with its report if it succeeded.
    pub(super) fn on_run_end(&mut self, ran: Option<(Report, Timeline, u64)>) {
        self.runs_in_progress = self.runs_in_progress.saturating_sub(1);
        if self.runs_in_progress == 0 {
            self.idle_since = Some(unix_us());
        }
        let Some((run_report, timeline, bytes)) = ran else {
            return;
        };
        self.output_bytes += bytes;
        self.timeline.merge(timeline);
        match &mut self.report {
            None => self.report = Some(run_report),
            Some(report) => report.add(run_report),
        }
    }

    /// Adds traffic that arrived over the network.
    pub(super) fn add_traffic(&mut self, moved: PeerTraffic) {
        let same = |known: &&mut PeerTraffic| known.from == moved.from && known.what == moved.what;
        match self.moved.iter_mut().find(same) {
            Some(known) => {
                known.bytes += moved.bytes;
                let links = known.link.into_iter().chain(moved.link);
                known.link = links.max_by_key(|sample| sample.bytes);
            }
            None => self.moved.push(moved),
        }
    }

    /// Adds a span to the trace.
    pub(super) fn push_span(&mut self, span: Span) {
        self.timeline.push(span);
    }

    /// Returns the report of the whole lease, and the bytes of its outputs.
    pub(super) fn into_report(self) -> (LeaseReport, u64) {
        let mut report = self.report.unwrap_or_default();
        // The timeline includes the transfers over the network.
        report.read_times(&self.timeline);
        let shown = LeaseReport {
            moved: self.moved,
            report,
            timeline: self.timeline,
        };
        (shown, self.output_bytes)
    }
}

/// Returns the span of something that the network did.
pub(super) fn network_span(
    label: &str,
    name: String,
    kind: SpanKind,
    start: u64,
    end: u64,
) -> Span {
    Span {
        device: label.to_owned(),
        lane: "network".to_owned(),
        name,
        kind,
        start: UnixMicros(start),
        end: UnixMicros(end),
    }
}

/// The runs of a lease whose amount of work was known before they began. The provider's speed is
/// judged by them.
#[derive(Default)]
pub(super) struct JudgedRuns {
    /// The time for which the device computed.
    pub(super) busy: Duration,
    runs: BTreeMap<ContentId, Runs>,
}

/// Runs of one graph.
struct Runs {
    count: u32,
    /// The work of the first run; none if the graph does not state it.
    takes: Option<GraphWork>,
}

impl JudgedRuns {
    /// Adds a run of a graph: its work, if known, and the time that it took.
    pub(super) fn add_run(&mut self, graph: ContentId, takes: Option<GraphWork>, busy: Duration) {
        let runs = self.runs.entry(graph);
        runs.or_insert(Runs { count: 0, takes }).count += 1;
        self.busy += busy;
    }

    /// Returns the device time of all runs by other figures; none if a graph does not state its
    /// work.
    pub(super) fn expected_time(&self, stated: &Resources) -> Option<Duration> {
        let runs = self.runs.values();
        runs.map(|runs| {
            let one = ask_resources::expected_time(stated, runs.takes.as_ref()?)?;
            Some(one.saturating_mul(runs.count))
        })
        .sum()
    }
}

/// Returns the device time of one run by the figures of an ask: the buyer's figure, unless it
/// contradicts the graph. A buyer that states too little work could otherwise make an honest
/// provider certify that it is slow.
pub(super) fn plausible_time(own: Duration, stated: Duration) -> Duration {
    let near = own.mul_f64(1.0 - TIME_TOLERANCE)..=own.mul_f64(1.0 + TIME_TOLERANCE);
    if near.contains(&stated) { stated } else { own }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::npy;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");

    #[test]
    fn a_buyer_that_names_another_time_than_the_graph_is_not_believed() {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let shape = ("images".to_owned(), images.dtype(), images.dims().to_vec());
        let stated = crate::provider::tests::resources();
        let graph = ContentId::for_content(MODEL);
        let takes = GraphWork::from_model(Bytes::from_static(MODEL), &[shape]);
        assert!(takes.is_some());
        let mut judged = JudgedRuns::default();
        for takes in [takes, None, None] {
            judged.add_run(graph, takes, Duration::from_millis(10));
        }
        let all = judged.expected_time(&stated);
        let own = all.unwrap() / 3;
        assert!(own > Duration::from_micros(100), "{own:?}");
        assert_eq!(plausible_time(own, own.mul_f64(1.02)), own.mul_f64(1.02));
        for wrong in [Duration::ZERO, own / 1_000, own.mul_f64(0.8), own * 2] {
            assert_eq!(plausible_time(own, wrong), own);
        }
    }
}
