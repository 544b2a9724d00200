//! A stream of requests through a team: stages on devices, each at work on another request.
//!
//! What a stage makes stays where it was made if a later stage reads it there, or on a device that
//! is reached from there without the host; what the next stage reads is brought to it while it is
//! at the request before. So the host's memory is touched where requests come in and answers leave,
//! and by devices that work in it. What each stage takes teaches the histories that plans go by.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use souk_devices::held::Held;
use souk_memory::holdings::Handle;
use souk_memory::place::Place;
use souk_memory::{ContentId, Tensor};

use super::costs::{self, Share};
use super::flow::failed_run;
use super::laid::{self, Offered, Piece};
use super::line::{Line, line};
use super::log::Log;
use super::memories::{self, Kept, Memories, MemoryError};
use super::{LayError, Team, TeamRunError, cores};
use crate::pipeline::{self, PipelineError, Stage};
use crate::problem::ProblemError;
use crate::run::TaskError;
use crate::timeline::Timeline;

/// Requests that may wait before a stage: one evens out what varies, more would only wait longer.
const BUFFER: NonZeroUsize = NonZeroUsize::MIN;

/// Tensors by name: a request or an answer.
type Tensors = BTreeMap<String, Tensor>;

/// The stages of a stream, and what they share.
pub(super) struct Streaming<'a> {
    team: &'a Team,
    pub stops: Vec<Stop>,
    /// Inputs that a stage reads or the answer has.
    inputs: BTreeSet<String>,
    /// What an answer has.
    wanted: BTreeSet<String>,
    log: Arc<Log>,
}

/// One stage.
pub(super) struct Stop {
    pub piece: Piece,
    pub device: usize,
    works: Vec<Share>,
    /// What it makes that stays in its device's own memory.
    stays: BTreeSet<String>,
    /// What later stages or the answer want.
    later: BTreeSet<String>,
}

/// A request on its way; dropping it gives back all room it holds.
struct Request<'a> {
    streaming: &'a Streaming<'a>,
    values: BTreeMap<String, Kept>,
    /// Why there was no room for it.
    refused: Option<MemoryError>,
    answer: Tensors,
}

/// Copies that a stage reads, kept where they are until this is dropped.
struct Pins<'a> {
    memories: &'a Memories,
    place: Place,
    handles: Vec<Handle>,
}

impl Team {
    /// Sends requests through the devices as a line of stages, planned for the first one's shapes.
    pub fn stream(
        &self,
        model: ContentId,
        requests: impl Iterator<Item = Tensors> + Send,
        mut take: impl FnMut(Tensors),
    ) -> Result<Timeline, TaskError> {
        let mut requests = requests.peekable();
        let Some(first) = requests.peek() else {
            return Ok(Timeline::default());
        };
        let streaming = self.streaming(model, first)?;
        let stage = |(index, stop): (usize, &Stop)| Stage {
            device: self.members[stop.device].label.clone(),
            work: {
                let streaming = &streaming;
                Box::new(move |request| streaming.step(index, request))
            },
        };
        let stages = streaming.stops.iter().enumerate().map(stage).collect();
        let requests = requests.map(|inputs| streaming.open(inputs));
        let answered = |mut request: Request<'_>| take(std::mem::take(&mut request.answer));
        let streamed = pipeline::stream(stages, BUFFER, requests, answered, &*self.clock);
        let failed = |error: PipelineError<String>| TeamRunError::Piece {
            piece: format!("request {} in stage {}", error.request, error.stage),
            cause: error.cause,
        };
        let mut timeline = streamed.map_err(failed)?;
        timeline.merge(streaming.log.take());
        Ok(timeline)
    }

    /// The best line of stages for requests like this one, compiled.
    pub(super) fn streaming(
        &self,
        model: ContentId,
        first: &Tensors,
    ) -> Result<Streaming<'_>, TaskError> {
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
        let wanted: BTreeSet<String> = laid::outputs(&offered.graph).into_iter().collect();
        let stops = self.stops(model, &offered, &line, &wanted)?;
        let reads = stops.iter().flat_map(|stop| &stop.piece.reads);
        let reads = reads.map(|read| read.value.clone());
        let emulated = |stop: &Stop| self.is_emulated(stop.device);
        let tells_moves = !stops.iter().all(emulated);
        Ok(Streaming {
            team: self,
            inputs: reads.chain(wanted.iter().cloned()).collect(),
            wanted,
            log: Arc::new(Log::new(&self.members, self.clock.clone(), tells_moves)),
            stops,
        })
    }

    fn is_emulated(&self, device: usize) -> bool {
        self.members[device].processor.profile().emulated
    }

    fn stops(
        &self,
        model: ContentId,
        offered: &Offered,
        line: &Line,
        wanted: &BTreeSet<String>,
    ) -> Result<Vec<Stop>, TaskError> {
        let graph = &offered.graph;
        let parts = laid::parts(graph, line.devices.len(), &line.of_node)?;
        let name = model.short().to_string();
        let pieces = laid::pieces(&name, graph, &parts, (&self.store, &self.loaded))?;
        let mut stops = Vec::with_capacity(pieces.len());
        // From the last one on: what a stage hands on is what those behind it read.
        let mut later = wanted.clone();
        let mut readers: Vec<(String, usize)> = Vec::new();
        for (piece, part) in pieces.into_iter().zip(&parts).rev() {
            let device = line.devices[part.part.min(line.devices.len() - 1)];
            piece.program(device, &*self.members[device].processor)?;
            let makes = piece.makes.iter().filter(|made| {
                let mut reading = readers.iter().filter(|(value, _)| *value == made.held);
                reading.any(|&(_, to)| self.memories.reaches(device, to))
            });
            let stays = makes.map(|made| made.name.clone()).collect();
            let reads: Vec<String> = piece.reads.iter().map(|read| read.value.clone()).collect();
            stops.push(Stop {
                works: offered.known.shares(&part.nodes),
                piece,
                device,
                stays,
                later: later.clone(),
            });
            readers.extend(reads.iter().map(|value| (value.clone(), device)));
            later.extend(reads);
        }
        stops.reverse();
        Ok(stops)
    }
}

impl Streaming<'_> {
    /// A request as it comes in.
    fn open(&self, inputs: Tensors) -> Request<'_> {
        let mut request = Request {
            streaming: self,
            values: BTreeMap::new(),
            refused: None,
            answer: Tensors::new(),
        };
        let memories = &self.team.memories;
        memories.refresh(self.team.crew.lost());
        for (name, tensor) in inputs {
            if !self.inputs.contains(&name) {
                continue;
            }
            match memories.adopt_host(&name, &tensor, Place::Host, Some(&self.log)) {
                Ok(kept) => drop(request.values.insert(name, kept)),
                Err(error) => request.refused = Some(error),
            }
        }
        self.send_on(0, &request);
        request
    }

    /// One request through one stage.
    fn step<'a>(&self, index: usize, mut request: Request<'a>) -> Result<Request<'a>, String> {
        if let Some(error) = request.refused.take() {
            return Err(failed_run(error).to_string());
        }
        let stop = &self.stops[index];
        let team = self.team;
        let program = stop
            .piece
            .program(stop.device, &*team.members[stop.device].processor)
            .map_err(|error| error.to_string())?;
        let (inputs, pins) = self.bring(stop, &request)?;
        let (outcome, watched) = cores::watched(&team.watch, stop.device, &*team.clock, || {
            team.memories
                .run(stop.device, &*program, &inputs, &stop.stays, &self.log)
        });
        drop(pins);
        drop(inputs);
        let outcome = outcome.map_err(|error| error.to_string())?;
        let (busy, energy) = (outcome.busy, outcome.energy);
        if let Some(measured) = costs::measured(&stop.works, stop.device, busy, energy) {
            laid::lock(&team.costs).learn(stop.device, measured, watched.beside);
        }
        for made in &stop.piece.makes {
            let given = outcome.outputs.get(&made.name);
            let given = given.ok_or_else(|| format!("it gave no {}", made.name))?;
            if stop.later.contains(&made.held) {
                let kept = team
                    .memories
                    .adopt(&made.held, given, stop.device, Some(&self.log));
                let kept = kept.map_err(|error| failed_run(error).to_string())?;
                request.values.insert(made.held.clone(), kept);
            }
        }
        drop(outcome);
        request.keep(&stop.later);
        match index + 1 == self.stops.len() {
            true => self.answer(&mut request)?,
            false => self.send_on(index + 1, &request),
        }
        Ok(request)
    }

    /// What a stage reads, brought to its device and kept there.
    fn bring(
        &self,
        stop: &Stop,
        request: &Request<'_>,
    ) -> Result<(BTreeMap<String, Held>, Pins<'_>), String> {
        let mut pins = Pins {
            memories: &self.team.memories,
            place: memories::place(stop.device),
            handles: Vec::with_capacity(stop.piece.reads.len()),
        };
        let mut inputs = BTreeMap::new();
        for read in &stop.piece.reads {
            let name = &read.value;
            let kept = request.values.get(name);
            let kept = kept.ok_or_else(|| format!("there is no input {name:?}"))?;
            let held = pins.memories.pinned(kept, pins.place, Some(&self.log));
            let held = held.map_err(|error| failed_run(error).to_string())?;
            pins.handles.push(kept.handle);
            inputs.insert(read.name.clone(), held);
        }
        Ok((inputs, pins))
    }

    /// Asks for what a stage will read of a request to be brought to its device.
    fn send_on(&self, index: usize, request: &Request<'_>) {
        let Stop { piece, device, .. } = &self.stops[index];
        let asking = self.team.mover.asking();
        let place = memories::place(*device);
        let reads = piece.reads.iter();
        for kept in reads.filter_map(|read| request.values.get(&read.value)) {
            asking.want_at(kept, place, *device, &self.log);
        }
    }

    /// Takes the answer to the host.
    fn answer(&self, request: &mut Request<'_>) -> Result<(), String> {
        for name in &self.wanted {
            let kept = request.values.get(name);
            let kept = kept.ok_or_else(|| format!("nothing made {name}"))?;
            let brought = self.team.memories.on_host(kept, &self.log);
            let tensor = brought.map_err(|error| failed_run(error).to_string())?;
            request.answer.insert(name.clone(), tensor);
        }
        request.keep(&BTreeSet::new());
        Ok(())
    }
}

impl Request<'_> {
    /// Lets go of all but these.
    fn keep(&mut self, names: &BTreeSet<String>) {
        let team = self.streaming.team;
        self.values.retain(|name, kept| {
            let stays = names.contains(name);
            if !stays {
                team.mover.asking().forget(kept.handle);
                let released = team.memories.lock().release(kept.handle);
                assert!(released.is_ok(), "no stage is at what it lets go of");
            }
            stays
        });
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.keep(&BTreeSet::new());
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut space = self.memories.lock();
        for &handle in &self.handles {
            // What went with a device that another run lost is not there any more.
            drop(space.unpin(handle, self.place));
        }
    }
}
