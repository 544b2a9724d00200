//! What a lease's work has come to so far: what its receipt will say.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use souk_market::Resources;
use souk_memory::{ContentId, Tensor};
use souk_scheduler::execution::RunResult;
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;

use super::values::{Values, count};
use crate::device::stated::{self, Shape};
use crate::protocols::lease::{Failure, Moved, Output, Part};

/// The share by which the buyer's figure may be off what the graph says.
const DOUBT: f64 = 0.05;

/// The sum over everything that was run and moved for a lease.
#[derive(Default)]
pub(super) struct Done {
    /// Parts that were run, of a lease that runs them once.
    pub(super) parts: usize,
    /// Time the device computed.
    pub(super) busy: Duration,
    /// What its speed is judged by.
    pub(super) judged: Judged,
    /// None until something was run.
    pub(super) report: Option<Report>,
    pub(super) timeline: Timeline,
    /// The outputs, in the order they were made.
    pub(super) outputs: Vec<(String, ContentId)>,
    /// The tensors that came from outside, each once, in the order they came.
    pub(super) inputs: Vec<ContentId>,
    /// What came over the network, by sender.
    pub(super) moved: Vec<Moved>,
    /// Bytes of the tensors made here.
    pub(super) kept_bytes: u64,
}

/// Runs whose work is known before they are run.
#[derive(Default)]
pub(super) struct Judged {
    /// Time the device computed.
    pub(super) busy: Duration,
    /// Operations, by the plan.
    pub(super) flops: u64,
    /// Of each graph.
    runs: BTreeMap<ContentId, Runs>,
}

/// Runs of one graph.
struct Runs {
    count: u32,
    /// Device time of one, as the buyer says.
    told: Duration,
    /// Of the inputs of the first.
    shapes: Vec<Shape>,
}

impl Judged {
    /// A part is about to be run with these inputs.
    fn begins(&mut self, part: &Part, inputs: &BTreeMap<String, Tensor>) {
        let shape = |(name, tensor): (&String, &Tensor)| {
            (name.clone(), tensor.dtype(), tensor.dims().to_vec())
        };
        self.runs.entry(part.graph).or_insert_with(|| Runs {
            count: 0,
            told: part.expected,
            shapes: inputs.iter().map(shape).collect(),
        });
    }

    fn ran(&mut self, part: &Part, busy: Duration) {
        let Some(runs) = self.runs.get_mut(&part.graph).filter(|_| part.flops > 0) else {
            return;
        };
        runs.count += 1;
        self.busy += busy;
        self.flops = self.flops.saturating_add(part.flops);
    }

    /// Device time that was promised for all of it, as the buyer says.
    pub(super) fn told(&self) -> Duration {
        let runs = self.runs.values();
        let times = runs.map(|runs| runs.told.saturating_mul(runs.count));
        times.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Device time that an ask with these figures promised for all of it: what the buyer says,
    /// unless the graph says otherwise. A buyer that names less than there was would have an honest
    /// provider sign that it is slow. None where a graph does not say.
    pub(super) fn promised(
        &self,
        stated: &Resources,
        model: impl Fn(&ContentId) -> Option<Bytes>,
    ) -> Option<Duration> {
        let runs = self.runs.iter().filter(|(_, runs)| runs.count > 0);
        runs.map(|(graph, runs)| {
            let own = stated::expected(stated, model(graph)?, &runs.shapes)?;
            let told = (own.mul_f64(1.0 - DOUBT)..=own.mul_f64(1.0 + DOUBT)).contains(&runs.told);
            Some(if told { runs.told } else { own }.saturating_mul(runs.count))
        })
        .sum()
    }
}

impl Done {
    /// A part is about to be run.
    pub(super) fn begins(&mut self, part: &Part, inputs: &BTreeMap<String, Tensor>) {
        self.judged.begins(part, inputs);
    }

    /// Adds one run of a part and keeps what it gave; which others may wait for it.
    pub(super) fn ran<'p>(
        &mut self,
        part: &'p Part,
        mut ran: RunResult,
        values: &mut Values<'_>,
    ) -> Result<Vec<(&'p Output, ContentId)>, Failure> {
        self.busy += ran.busy;
        self.judged.ran(part, ran.busy);
        self.timeline.merge(ran.timeline);
        self.report = match self.report.take() {
            None => Some(ran.report),
            Some(mut report) => {
                report.merge(ran.report, &self.timeline);
                Some(report)
            }
        };
        let mut made = Vec::with_capacity(part.outputs.len());
        for output in &part.outputs {
            let tensor = ran.outputs.remove(&output.name);
            let missing = || Failure::Run(format!("it gave no {}", output.name));
            let id = values.keep(&output.name, tensor.ok_or_else(missing)?)?;
            self.outputs.push((output.name.clone(), id));
            made.push((output, id));
        }
        Ok(made)
    }

    /// A request is over: what came for it counts, and what it held is let go.
    pub(super) fn over(&mut self, values: Values<'_>) {
        for id in &values.input_ids {
            if !self.inputs.contains(id) {
                self.inputs.push(*id);
            }
        }
        for moved in values.moved {
            count(&mut self.moved, moved);
        }
        self.kept_bytes += values.kept_bytes;
        self.timeline.merge(values.timeline);
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::npy;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");

    /// What was promised for three runs of the bundled model whose buyer says so much of one.
    fn promised(told: Duration, flops: u64) -> (Judged, Option<Duration>) {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let part = Part {
            name: "part 1 of 1".to_owned(),
            graph: ContentId::of(MODEL),
            weights: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            flops,
            expected: told,
        };
        let mut judged = Judged::default();
        for _ in 0..3 {
            judged.begins(&part, &[("images".to_owned(), images.clone())].into());
            judged.ran(&part, Duration::from_millis(10));
        }
        let stated = crate::provider::tests::resources();
        let model = |_: &ContentId| Some(Bytes::from_static(MODEL));
        let promised = judged.promised(&stated, model);
        (judged, promised)
    }

    #[test]
    fn a_buyer_that_names_another_time_than_the_graph_is_not_believed() {
        let own = promised(Duration::ZERO, 1).1.unwrap() / 3;
        assert!(own > Duration::from_micros(100), "{own:?}");
        let near = own.mul_f64(1.02);
        assert_eq!(promised(near, 1).1, Some(near * 3));
        for wrong in [own / 1_000, own.mul_f64(0.8), own * 2] {
            assert_eq!(promised(wrong, 1).1, Some(own * 3));
        }
    }

    #[test]
    fn work_that_is_not_known_beforehand_is_not_judged() {
        let (judged, promised) = promised(Duration::from_millis(1), 0);
        assert_eq!((judged.busy, judged.flops), (Duration::ZERO, 0));
        assert_eq!(promised, Some(Duration::ZERO));
    }
}
