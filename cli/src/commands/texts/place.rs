//! The place that computes a text's steps: this machine, or leased providers.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use souk_cpu::Cpu;
use souk_host::{discover, system};
use souk_llm::decoder::Decoder;
use souk_llm::embedding::embedding;
use souk_llm::generation::{Sequence, Step};
use souk_llm::model::LanguageModel;
use souk_node::buyer::job::{Job, Limits};
use souk_node::market::Receipt;
use souk_onnx::subgraph::Subgraph;
use souk_registry::measure::{self, CpuMeasurement};
use souk_vocabulary::processor::session::{Session, State};
use souk_vocabulary::processor::stepping::{StepError, SteppedSession};
use souk_vocabulary::processor::{Processor, Program, RunError};
use tempfile::TempDir;
use tokio::runtime::Handle;

use super::market_session::{MarketSession, SessionMarket};
use super::panel::Panel;
use super::refused;
use super::steps::Steps;
use super::stop_sign::StopSign;
use crate::args::{Output, PlaceArgs};
use crate::failure::{Failure, Kind};

/// File name of a written language model.
const MODEL_FILE: &str = "model.onnx";

/// A place that computes steps.
pub struct Place {
    backing: Backing,
    room: usize,
    sequences: u32,
}

/// The size of a session.
#[derive(Clone, Copy)]
pub struct SessionSize {
    /// Tokens of all sequences together.
    pub tokens: usize,
    /// Number of texts to write at once.
    pub sequences: u32,
    /// Whether to embed texts instead of continuing them.
    pub is_embedding: bool,
}

/// The implementation of a place.
enum Backing {
    /// This machine's processor.
    Here {
        program: Arc<dyn Program>,
        decoder: Box<Decoder>,
    },
    /// Leased sessions.
    Market {
        seller: Seller,
        /// Folder of the weights, which providers fetch on demand.
        _weights: TempDir,
    },
}

/// The sessions that compute each token.
enum Seller {
    Session(MarketSession),
    /// Two sessions whose steps are compared.
    Panel(Panel),
}

impl Place {
    /// Opens a place for the steps of a model. The first step buys a session, nothing earlier;
    /// `stop` ends it at once.
    pub async fn open(
        (folder, output): (&Path, Output),
        (model, room): (LanguageModel, usize),
        args: &PlaceArgs,
        size: SessionSize,
        stop: StopSign,
    ) -> Result<Self, Failure> {
        if args.here {
            let mut decoder = model.decoder(room).map_err(refused)?;
            let mut subgraph = std::mem::take(&mut decoder.subgraph);
            subgraph.model = prepared(subgraph.model, size)?;
            let program = Arc::from(compiled(subgraph, args.threads)?);
            let sequences = size.sequences.min(fitting(&decoder, room));
            let decoder = Box::new(decoder);
            return Ok(Self {
                backing: Backing::Here { program, decoder },
                room,
                sequences,
            });
        }
        if let Some(out) = &args.lease.out {
            crate::files::prepare(out)?;
        }
        let weights = crate::folder::scratch("souk-text-")?;
        model.write(weights.path(), room).map_err(refused)?;
        let job = job_of(weights.path(), room, size)?;
        let market = SessionMarket::join((folder, output), (job, room), args, stop).await?;
        let backing = Backing::Market {
            seller: match args.verify {
                2.. => Seller::Panel(Panel::of(market)),
                _ => Seller::Session(market.session(0)),
            },
            _weights: weights,
        };
        Ok(Self {
            backing,
            room,
            sequences: size.sequences,
        })
    }

    /// Returns an empty sequence of tokens. Its steps block, so you must call them on a thread that
    /// may.
    pub fn sequence(&self, handle: &Handle) -> Result<Sequence<'static>, Failure> {
        let mut sequences = self.sequences(handle)?;
        Ok(sequences.swap_remove(0))
    }

    /// Returns the empty sequences of one session, each for its own thread: the session batches
    /// their steps.
    pub fn sequences(&self, handle: &Handle) -> Result<Vec<Sequence<'static>>, Failure> {
        let here = match &self.backing {
            Backing::Here { program, decoder } => {
                let states = decoder.states.iter().map(|port| State {
                    port: port.clone(),
                    value: decoder.empty_cache(self.room),
                });
                let session = SteppedSession::open(program.clone(), states.collect());
                let failed = |error| Failure::new(Kind::Unexpected, error, "");
                Some(Arc::new(session.map_err(failed)?))
            }
            Backing::Market { .. } => None,
        };
        let steps = |number| match (&self.backing, &here) {
            (Backing::Market { seller, .. }, _) => match seller {
                Seller::Session(session) => session.steps(number, handle),
                Seller::Panel(panel) => panel.steps(number, handle),
            },
            (Backing::Here { .. }, here) => {
                let here = here.clone().expect("it was opened");
                steps_here(here, number)
            }
        };
        let sequence = |number| {
            let session: Box<dyn Session> = Box::new(steps(number));
            Sequence::new(session, self.room)
        };
        Ok((0..self.sequences).map(sequence).collect())
    }

    /// Ends the leases. Returns the receipts since the last call, and the reason if a session
    /// failed.
    pub async fn close(&self) -> (Vec<Receipt>, Option<Failure>) {
        match &self.backing {
            Backing::Here { .. } => (Vec::new(), None),
            Backing::Market { seller, .. } => match seller {
                Seller::Session(session) => session.finish().await,
                Seller::Panel(panel) => panel.finish().await,
            },
        }
    }

    /// Describes the place.
    pub fn words(&self) -> &'static str {
        match self.backing {
            Backing::Here { .. } => "on this machine, no market",
            Backing::Market { .. } => "in the market",
        }
    }
}

/// Returns the steps of a sequence on this machine.
fn steps_here(session: Arc<SteppedSession>, sequence: u32) -> Steps<'static> {
    Steps(Box::new(move |inputs| {
        let stepped = session.step(sequence, inputs.clone());
        stepped.map_err(|error| match error {
            StepError::Run(error) => error,
            error => RunError::Engine {
                engine: "session",
                reason: error.to_string(),
            },
        })
    }))
}

/// Returns the number of sequences whose caches fit half of this machine's free memory, at least
/// one.
fn fitting(decoder: &Decoder, room: usize) -> u32 {
    let [heads, width] = decoder.cache;
    let floats = (decoder.states.len() * heads * width).saturating_mul(room) as u64;
    let bytes = floats.saturating_mul(size_of::<f32>() as u64).max(1);
    let free = system::memory_free_bytes().unwrap_or(u64::MAX);
    u32::try_from(free / 2 / bytes).unwrap_or(u32::MAX).max(1)
}

/// Returns the job of a written decoder, with one request for each token. A prompt's token takes no
/// longer than a generated one.
fn job_of(folder: &Path, room: usize, size: SessionSize) -> Result<Job, Failure> {
    let decoder = LanguageModel::open(folder).and_then(|model| model.decoder(room));
    let decoder = decoder.map_err(refused)?;
    let mut inputs = Step::last(&[0], 0).inputs();
    let empty = decoder.empty_cache(room);
    let states = decoder.states.iter();
    inputs.extend(states.map(|port| (port.input.clone(), empty.clone())));
    let mut job = Job {
        model: prepared(crate::files::read(&folder.join(MODEL_FILE))?, size)?,
        folder: Some(folder.to_owned()),
        inputs,
        limits: Limits::default(),
    };
    job.limits.requests = u32::try_from(size.tokens).unwrap_or(u32::MAX);
    job.limits.sequences = size.sequences;
    Ok(job)
}

/// Adds to the model the operators that draw tokens or compute embeddings.
fn prepared(model: Bytes, size: SessionSize) -> Result<Bytes, Failure> {
    let model = match size.is_embedding {
        true => embedding(model).map_err(|error| Failure::new(Kind::Input, error, ""))?,
        false => model,
    };
    let drawing = souk_llm::decoder::drawing(model);
    drawing.map_err(|error| Failure::new(Kind::Input, error, ""))
}

fn compiled(subgraph: Subgraph, threads: Option<u32>) -> Result<Box<dyn Program>, Failure> {
    let description = discover::cpu();
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads
        .and_then(|it| NonZeroUsize::new(it as usize))
        .unwrap_or(cores);
    // This plans nothing, so nothing reads these figures.
    let unmeasured = CpuMeasurement {
        threads,
        f32_operations_per_second: 0.0,
        f64_operations_per_second: 0.0,
        bytes_per_second: f64::INFINITY,
        launch_seconds: 0.0,
    };
    let profile = measure::profile(&description, &unmeasured);
    let cpu = Cpu::new(profile, threads);
    let program = cpu.compile_owned(subgraph);
    program.map_err(|error| Failure::new(Kind::NoPlan, error, ""))
}
