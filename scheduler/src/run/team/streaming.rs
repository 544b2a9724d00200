//! A stream of requests through a team: stages on devices, each at work on another request.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_devices::processor::Program;
use souk_memory::{ContentId, Tensor};

use super::laid::{self, Piece, Read};
use super::line::line;
use super::{LayError, Team, TeamRunError};
use crate::pipeline::{self, Stage};
use crate::problem::ProblemError;
use crate::run::TaskError;
use crate::timeline::Timeline;

/// Requests that may wait before a stage: one evens out what varies, more would only wait longer.
const BUFFER: NonZeroUsize = NonZeroUsize::MIN;

/// Tensors by name: a request, an answer, or what is between.
type Tensors = BTreeMap<String, Tensor>;

impl Team {
    /// Sends requests through the devices as a line of stages, planned for the first one's shapes.
    pub fn stream(
        &self,
        model: ContentId,
        requests: impl Iterator<Item = Tensors> + Send,
        take: impl FnMut(Tensors),
    ) -> Result<Timeline, TaskError> {
        let mut requests = requests.peekable();
        let Some(first) = requests.peek() else {
            return Ok(Timeline::default());
        };
        let speeds = self.speeds().clone();
        let offers = laid::offers(&self.setting(), model, first, &speeds)?;
        let lines = offers.into_iter().filter_map(|offered| {
            let line = line(&offered.graph, &offered.known.seconds, &offered.links)?;
            Some((offered, line))
        });
        let shorter = |one: &f64, other: &f64| one.total_cmp(other);
        let best = lines
            .min_by(|(_, one), (_, other)| shorter(&one.longest_seconds, &other.longest_seconds));
        let (offered, line) = best.ok_or(LayError::Problem(ProblemError::NoDevice))?;
        let parts = laid::parts(&offered.graph, line.devices.len(), &line.of_node)?;
        let name = model.short().to_string();
        let devices = self.members.len();
        let pieces = laid::pieces(&name, &offered.graph, &parts, &self.store, devices)?;
        let values = offered.graph.outputs().iter();
        let wanted: BTreeSet<String> = values
            .map(|&id| offered.graph.value(id).name.clone())
            .collect();
        let mut stages = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.iter().enumerate() {
            let device = line.devices[parts[index].part.min(line.devices.len() - 1)];
            let member = &self.members[device];
            let program = piece.program(device, &*member.processor)?;
            let later = pieces[index + 1..]
                .iter()
                .flat_map(|later| later.reads.iter().map(|read| read.value.clone()));
            let kept: BTreeSet<String> = later.chain(wanted.iter().cloned()).collect();
            stages.push(Stage {
                device: member.label.clone(),
                work: Box::new(move |request| step(&program, piece, &kept, request)),
            });
        }
        let streamed = pipeline::stream(stages, BUFFER, requests, take, &*self.clock);
        let failed = |error: pipeline::PipelineError<String>| TeamRunError::Piece {
            piece: format!("request {} in stage {}", error.request, error.stage),
            cause: error.cause,
        };
        Ok(streamed.map_err(failed)?)
    }
}

/// One request through one stage: what later stages or the answer want goes on, by reference.
fn step(
    program: &Arc<dyn Program>,
    piece: &Piece,
    kept: &BTreeSet<String>,
    mut request: Tensors,
) -> Result<Tensors, String> {
    let input = |read: &Read| {
        let name = &read.value;
        let tensor = request.get(name).cloned();
        Ok((
            name.clone(),
            tensor.ok_or_else(|| format!("there is no input {name:?}"))?,
        ))
    };
    let inputs: Result<Tensors, String> = piece.reads.iter().map(input).collect();
    let outcome = program.run(&inputs?).map_err(|error| error.to_string())?;
    request.extend(outcome.outputs);
    request.retain(|name, _| kept.contains(name));
    Ok(request)
}
