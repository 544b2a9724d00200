//! What a lease's work has come to so far: what its receipt will say.

use std::time::Duration;

use souk_memory::ContentId;
use souk_scheduler::report::Report;
use souk_scheduler::run::Ran;
use souk_scheduler::timeline::Timeline;

use super::values::{Values, count};
use crate::lease_protocol::{Failure, Moved, Output, Part};

/// The sum over everything that was run and moved for a lease.
#[derive(Default)]
pub(super) struct Done {
    /// Parts that were run, of a lease that runs them once.
    pub(super) parts: usize,
    /// Time the device computed.
    pub(super) busy: Duration,
    /// Operations of the parts that were run, by the plan.
    pub(super) flops: u64,
    /// Device time of the same, by the figures the provider advertises.
    pub(super) expected: Duration,
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

impl Done {
    /// Adds one run of a part and keeps what it gave; which others may wait for it.
    pub(super) fn ran<'p>(
        &mut self,
        part: &'p Part,
        mut ran: Ran,
        values: &mut Values<'_>,
    ) -> Result<Vec<(&'p Output, ContentId)>, Failure> {
        self.busy += ran.busy;
        self.flops = self.flops.saturating_add(part.flops);
        self.expected += part.expected;
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
