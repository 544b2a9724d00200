//! Computes the steps of a language model, for generation and for embeddings: on this machine's
//! processor, or through sessions with leased providers.
//!
//! A caller gets sequences, which look the same in both cases.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use souk_cpu::Cpu;
use souk_host::{discover, system};
use souk_llm::decoder::Decoder;
use souk_llm::embedding::to_embedding_model;
use souk_llm::generation::{Sequence, Step};
use souk_llm::model::LanguageModel;
use souk_node::buyer::Buyer;
use souk_node::buyer::job::{Job, Limits};
use souk_node::market::{AccountKey, Receipt};
use souk_onnx::subgraph::Subgraph;
use souk_registry::measure::{self, CpuMeasurement};
use souk_vocabulary::processor::session::{Session, State};
use souk_vocabulary::processor::stepped_session::{StepError, SteppedSession};
use souk_vocabulary::processor::{Processor, Program, RunError};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::TextObserver;
use crate::session_journal::SessionJournals;
use crate::session_shell::SessionMarket;
use crate::steps::Steps;
use crate::stop_signal::StopSignal;
use crate::text_error::TextError;
use crate::text_sessions::{SessionTerms, TextSessions};

/// File name of a written language model.
const MODEL_FILE: &str = "model.onnx";

/// Computes the steps of a language model, on this machine or on leased providers.
pub struct TextEngine {
    backing: ComputePlace,
    room: usize,
    sequences: u32,
}

/// The market in which an engine leases providers.
pub struct TextMarket<'a> {
    /// The buyer that pays.
    pub buyer: Buyer,
    /// The market's folder, which holds the journals of sessions.
    pub folder: &'a Path,
    /// Receives the plans and notices.
    pub observer: Arc<dyn TextObserver>,
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

/// The place where an engine computes: this machine, or leased providers.
enum ComputePlace {
    /// This machine's processor.
    Here {
        program: Arc<dyn Program>,
        decoder: Box<Decoder>,
        weight_bytes: u64,
    },
    /// Leased sessions.
    Market {
        sessions: TextSessions,
        /// Folder of the weights. It must outlive the sessions, whose providers fetch from it on
        /// demand.
        _weights: TempDir,
    },
}

impl TextEngine {
    /// Opens an engine on this machine's processor; by default, it uses one thread per core.
    ///
    /// # Errors
    /// [`TextError::Input`] if the model is not usable, [`TextError::NotRunnable`] if the processor
    /// does not run it.
    pub fn open_local(
        model: LanguageModel,
        room: usize,
        size: SessionSize,
        threads: Option<u32>,
    ) -> Result<Self, TextError> {
        let mut decoder = model.into_decoder(room)?;
        let mut subgraph = std::mem::take(&mut decoder.subgraph);
        let weights = subgraph.weights.values().map(|it| it.len() as u64);
        let weight_bytes = weights.sum::<u64>() + subgraph.model.len() as u64;
        subgraph.model = add_output_operators(subgraph.model, size)?;
        let program = Arc::from(compile_subgraph(subgraph, threads)?);
        let sequences = size.sequences.min(max_local_sequences(&decoder, room));
        let decoder = Box::new(decoder);
        Ok(Self {
            backing: ComputePlace::Here {
                program,
                decoder,
                weight_bytes,
            },
            room,
            sequences,
        })
    }

    /// Opens an engine that leases providers of `market`. The first step buys a session, nothing
    /// earlier; `stop` ends it at once.
    ///
    /// # Errors
    /// [`TextError::Input`] if the model is not usable, [`TextError::Unexpected`] if its weights
    /// cannot be written.
    pub fn open_market(
        market: TextMarket<'_>,
        model: LanguageModel,
        room: usize,
        size: SessionSize,
        terms: SessionTerms,
        stop: StopSignal,
    ) -> Result<Self, TextError> {
        let weights = tempfile::Builder::new().prefix("souk-text-").tempdir();
        let weights = weights.map_err(TextError::unexpected)?;
        let journals = SessionJournals::new(market.folder, model.card.name.clone());
        let vocabulary = u32::try_from(model.card.vocabulary).unwrap_or(u32::MAX);
        model.write(weights.path(), room)?;
        let job = build_session_job(weights.path(), room, size)?;
        let market = SessionMarket {
            buyer: market.buyer,
            job,
            positions: room,
            vocabulary,
            journals,
            observer: market.observer,
            stop,
        };
        let backing = ComputePlace::Market {
            sessions: TextSessions::start(market, terms),
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
    pub fn open_sequence(&self, handle: &Handle) -> Result<Sequence<'static>, TextError> {
        let mut sequences = self.open_sequences(handle)?;
        Ok(sequences.swap_remove(0))
    }

    /// Returns the empty sequences of one session. You should step each on its own thread, so that
    /// the session can batch their steps.
    pub fn open_sequences(&self, handle: &Handle) -> Result<Vec<Sequence<'static>>, TextError> {
        let here = match &self.backing {
            ComputePlace::Here {
                program, decoder, ..
            } => {
                let states = decoder.states.iter().map(|port| State {
                    port: port.clone(),
                    value: decoder.empty_cache(self.room),
                });
                let session = SteppedSession::open(program.clone(), states.collect());
                Some(Arc::new(session.map_err(TextError::unexpected)?))
            }
            ComputePlace::Market { .. } => None,
        };
        let steps = |number| match (&self.backing, &here) {
            (ComputePlace::Market { sessions, .. }, _) => sessions.sequence_steps(number, handle),
            (ComputePlace::Here { .. }, here) => {
                let here = here.clone().expect("it was opened");
                build_local_steps(here, number)
            }
        };
        let sequence = |number| {
            let session: Box<dyn Session> = Box::new(steps(number));
            Sequence::new(session, self.room)
        };
        Ok((0..self.sequences).map(sequence).collect())
    }

    /// Returns the number of its sequences.
    #[must_use]
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// Returns the bytes of the caches of one sequence on this machine; none in the market.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        match &self.backing {
            ComputePlace::Here { decoder, .. } => cache_bytes(decoder, self.room),
            ComputePlace::Market { .. } => 0,
        }
    }

    /// Returns the bytes of the weights on this machine; none in the market.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        match self.backing {
            ComputePlace::Here { weight_bytes, .. } => weight_bytes,
            ComputePlace::Market { .. } => 0,
        }
    }

    /// Ends the leases. Returns the receipts since the last call, and the reason if a session
    /// failed.
    pub async fn end_leases(&self) -> (Vec<Receipt>, Option<TextError>) {
        match &self.backing {
            ComputePlace::Here { .. } => (Vec::new(), None),
            ComputePlace::Market { sessions, .. } => sessions.finish_sessions().await,
        }
    }

    /// Returns the providers of the latest session of a text in the market.
    pub async fn session_providers(&self) -> Vec<AccountKey> {
        match &self.backing {
            ComputePlace::Here { .. } => Vec::new(),
            ComputePlace::Market { sessions, .. } => sessions.provider_accounts().await,
        }
    }

    /// Describes where the engine computes.
    pub fn describe_location(&self) -> &'static str {
        match self.backing {
            ComputePlace::Here { .. } => "on this machine, no market",
            ComputePlace::Market { .. } => "in the market",
        }
    }
}

/// Returns the steps of a sequence on this machine.
fn build_local_steps(session: Arc<SteppedSession>, sequence: u32) -> Steps<'static> {
    Steps(Box::new(move |inputs| {
        let stepped = session.step_sequence(sequence, inputs.clone());
        stepped.map_err(|error| match error {
            StepError::Run(error) => error,
            error => RunError::Engine {
                engine: "session",
                reason: error.to_string(),
            },
        })
    }))
}

/// Returns the bytes of the caches of one sequence.
fn cache_bytes(decoder: &Decoder, room: usize) -> u64 {
    let [heads, width] = decoder.cache;
    let floats = (decoder.states.len() * heads * width).saturating_mul(room) as u64;
    floats.saturating_mul(size_of::<f32>() as u64)
}

/// Returns the number of sequences whose caches fit half of this machine's free memory, at least
/// one.
fn max_local_sequences(decoder: &Decoder, room: usize) -> u32 {
    let bytes = cache_bytes(decoder, room).max(1);
    let free = system::memory_free_bytes().unwrap_or(u64::MAX);
    u32::try_from(free / 2 / bytes).unwrap_or(u32::MAX).max(1)
}

fn read_model(folder: &Path) -> Result<Bytes, TextError> {
    let read = std::fs::read(folder.join(MODEL_FILE));
    read.map(Bytes::from).map_err(TextError::unexpected)
}

/// Returns the job of a written decoder, with one request for each token. A prompt's token takes no
/// longer than a generated one.
fn build_session_job(folder: &Path, room: usize, size: SessionSize) -> Result<Job, TextError> {
    let decoder = LanguageModel::open(folder).and_then(|model| model.into_decoder(room));
    let decoder = decoder?;
    let mut inputs = Step::for_last_token(&[0], 0).decoder_inputs();
    let empty = decoder.empty_cache(room);
    let states = decoder.states.iter();
    inputs.extend(states.map(|port| (port.input.clone(), empty.clone())));
    let mut job = Job {
        model: add_output_operators(read_model(folder)?, size)?,
        folder: Some(folder.to_owned()),
        inputs,
        limits: Limits::default(),
    };
    job.limits.requests = u32::try_from(size.tokens).unwrap_or(u32::MAX);
    job.limits.sequences = size.sequences;
    Ok(job)
}

/// Adds to the model the operators that draw tokens or compute embeddings.
fn add_output_operators(model: Bytes, size: SessionSize) -> Result<Bytes, TextError> {
    let model = match size.is_embedding {
        true => to_embedding_model(model).map_err(|error| TextError::input(error, ""))?,
        false => model,
    };
    let drawing = souk_llm::decoder::to_sampling_model(model);
    drawing.map_err(|error| TextError::input(error, ""))
}

fn compile_subgraph(
    subgraph: Subgraph,
    threads: Option<u32>,
) -> Result<Box<dyn Program>, TextError> {
    let description = discover::describe_cpu();
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
    let profile = measure::cpu_profile(&description, &unmeasured);
    let cpu = Cpu::new(profile, threads);
    let program = cpu.compile_owned(subgraph);
    program.map_err(|error| TextError::NotRunnable(error.to_string()))
}
