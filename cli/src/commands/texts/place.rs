//! Where a text's steps are computed: on this machine, or by providers whose time is bought.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use souk_cpu::Cpu;
use souk_host::discover;
use souk_llm::decoder::Decoder;
use souk_llm::generation::{self, Sequence};
use souk_llm::model::LanguageModel;
use souk_node::buyer::job::{Job, Limits};
use souk_node::market::Receipt;
use souk_onnx::subgraph::Subgraph;
use souk_registry::measure::{self, CpuMeasurement};
use souk_vocabulary::processor::session::State;
use souk_vocabulary::processor::{Processor, Program};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::market_session::{MarketSession, Steps};
use super::refused;
use crate::args::{Output, PlaceArgs};
use crate::failure::{Failure, Kind};

/// What the ONNX model of a written language model is called.
const MODEL_FILE: &str = "model.onnx";

/// Where a text is written.
pub struct Place {
    backing: Backing,
    room: usize,
}

/// What computes its steps.
enum Backing {
    /// This machine's processor.
    Here {
        program: Box<dyn Program>,
        decoder: Box<Decoder>,
    },
    /// Sessions that are bought.
    Market {
        session: Box<MarketSession>,
        /// Weights are read from here as providers ask for them.
        _weights: TempDir,
    },
}

impl Place {
    /// A place for the steps of a model. Nothing is bought before the first of them. `requests` is
    /// how many tokens a session is bought for, `stop` what ends one at once.
    pub async fn open(
        (folder, output): (&Path, Output),
        (model, room): (LanguageModel, usize),
        args: &PlaceArgs,
        requests: usize,
        stop: Arc<Notify>,
    ) -> Result<Self, Failure> {
        if args.here {
            let mut decoder = model.decoder(room).map_err(refused)?;
            let subgraph = std::mem::take(&mut decoder.subgraph);
            let program = compiled(subgraph, args.threads)?;
            let decoder = Box::new(decoder);
            let backing = Backing::Here { program, decoder };
            return Ok(Self { backing, room });
        }
        if let Some(out) = &args.lease.out {
            crate::files::prepare(out)?;
        }
        let weights = crate::folder::scratch("souk-text-")?;
        model.write(weights.path(), room).map_err(refused)?;
        let job = job_of(weights.path(), room, requests)?;
        let session = MarketSession::join((folder, output), job, &args.lease, stop).await?;
        let backing = Backing::Market {
            session: Box::new(session),
            _weights: weights,
        };
        Ok(Self { backing, room })
    }

    /// An empty sequence of tokens. Its steps wait, so they are for a thread that may.
    pub fn sequence(&mut self, handle: &Handle) -> Result<Sequence<'_>, Failure> {
        let session: Box<dyn souk_vocabulary::processor::session::Session> = match &mut self.backing
        {
            Backing::Here { program, decoder } => {
                let states = decoder.states.iter().map(|port| State {
                    port: port.clone(),
                    value: decoder.empty_cache(self.room),
                });
                let session = program.session(states.collect());
                session.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?
            }
            Backing::Market { session, .. } => Box::new(Steps {
                session,
                handle: handle.clone(),
            }),
        };
        Ok(Sequence::new(session, self.room))
    }

    /// Gives up what is bought: the receipts of all that was paid since it was last given up, and
    /// why a session failed, if one did.
    pub async fn close(&mut self) -> (Vec<Receipt>, Option<Failure>) {
        match &mut self.backing {
            Backing::Here { .. } => (Vec::new(), None),
            Backing::Market { session, .. } => session.finish().await,
        }
    }

    /// In words.
    pub fn words(&self) -> &'static str {
        match self.backing {
            Backing::Here { .. } => "on this machine, no market",
            Backing::Market { .. } => "in the market",
        }
    }
}

/// The job of a decoder that was written: as many requests, of a token each. A token of the prompt
/// takes no longer than one that is generated.
fn job_of(folder: &Path, room: usize, requests: usize) -> Result<Job, Failure> {
    let decoder = LanguageModel::open(folder).and_then(|model| model.decoder(room));
    let decoder = decoder.map_err(refused)?;
    let mut inputs = generation::inputs(&[0], 0, &[0]);
    let empty = decoder.empty_cache(room);
    let states = decoder.states.iter();
    inputs.extend(states.map(|port| (port.input.clone(), empty.clone())));
    let mut job = Job {
        model: crate::files::read(&folder.join(MODEL_FILE))?,
        folder: Some(folder.to_owned()),
        inputs,
        limits: Limits::default(),
    };
    job.limits.requests = u32::try_from(requests).unwrap_or(u32::MAX);
    Ok(job)
}

fn compiled(subgraph: Subgraph, threads: Option<u32>) -> Result<Box<dyn Program>, Failure> {
    let description = discover::cpu();
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads
        .and_then(|it| NonZeroUsize::new(it as usize))
        .unwrap_or(cores);
    // Nothing is planned, so no figure of it is read.
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
