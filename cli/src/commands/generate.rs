//! `souk generate`: a text goes on, token by token.
//!
//! What steps it is a session: that of a lease, or of a program on this machine.

mod market_session;

use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use souk_cpu::Cpu;
use souk_host::discover;
use souk_llm::chat::Message;
use souk_llm::decoder::Decoder;
use souk_llm::generation::{self, Ending, GenerationError, Request, Sequence, generate};
use souk_llm::model::{Card, LanguageModel, ModelError};
use souk_llm::sampling::Sampling;
use souk_llm::stopping::{Stop, StopStrings};
use souk_llm::tokens::{Marks, TextStream, Tokenizer};
use souk_node::buyer::job::{Job, Limits};
use souk_node::market::Receipt;
use souk_onnx::subgraph::Subgraph;
use souk_registry::measure::{self, CpuMeasurement};
use souk_vocabulary::processor::session::State;
use souk_vocabulary::processor::{Processor, Program};

use crate::args::{GenerateArgs, Output, SamplingArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::show;
use market_session::{MarketSession, Steps};

/// What the ONNX model of a written language model is called.
const MODEL_FILE: &str = "model.onnx";

/// Positions unless others are asked for: a cache of more is most of a small machine's memory.
const POSITIONS_DEFAULT: usize = 4096;

/// Runs the command.
pub async fn run(folder: &Path, output: Output, args: &GenerateArgs) -> Outcome {
    let sampling = sampling(&args.sampling)?;
    let model = LanguageModel::open(&args.model).map_err(refused)?;
    let prompt = prompt(&model, args)?;
    let (card, tokenizer) = (model.card.clone(), model.tokenizer.clone());
    let room = room(&model, args.context);
    let text = Text::new(output, &card, &tokenizer, args);
    if args.here {
        let mut decoder = model.decoder(room).map_err(refused)?;
        let subgraph = std::mem::take(&mut decoder.subgraph);
        let program = compiled(subgraph, args.threads)?;
        let mut sequence = sequence(&*program, &decoder, room)?;
        let told = text.told(&mut sequence, &prompt, &sampling)?;
        told.finish("on this machine, no market", &[]);
        return Ok(());
    }
    if let Some(out) = &args.lease.out {
        crate::files::prepare(out)?;
    }
    // Weights are read from here as providers ask for them.
    let unwritten = |error| Failure::new(Kind::State, error, "");
    let written = tempfile::tempdir().map_err(|error| unwritten(error.to_string()))?;
    model.write(written.path(), room).map_err(refused)?;
    let requests = prompt.len() + args.tokens;
    let job = job_of(written.path(), room, requests)?;
    let mut session = MarketSession::open((folder, output), job, &args.lease).await?;
    let told = tokio::task::block_in_place(|| {
        let handle = tokio::runtime::Handle::current();
        let session = &mut session;
        let mut sequence = Sequence::new(Box::new(Steps { session, handle }), room);
        text.told(&mut sequence, &prompt, &sampling)
    });
    let receipts = session.finish().await?;
    let told = told?;
    if let Some(out) = &args.lease.out {
        super::job::write_each(out, &receipts)?;
    }
    told.finish("in the market", &receipts);
    Ok(())
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

/// Positions to have room for.
fn room(model: &LanguageModel, wanted: Option<usize>) -> usize {
    wanted.unwrap_or(model.positions().min(POSITIONS_DEFAULT))
}

/// A model that cannot be used.
fn refused(error: ModelError) -> Failure {
    let hint = "a folder with config.json, tokenizer.json and .safetensors, or a GGUF file";
    Failure::new(Kind::Input, error, hint)
}

fn sampling(args: &SamplingArgs) -> Result<Sampling, Failure> {
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repetition: args.repetition_penalty,
        frequency: args.frequency_penalty,
        presence: args.presence_penalty,
        bias: args.logit_bias.iter().copied().collect(),
        seed: args.seed,
    };
    sampling
        .checked()
        .map_err(|error| Failure::new(Kind::Usage, error, ""))
}

fn prompt(model: &LanguageModel, args: &GenerateArgs) -> Result<Vec<u32>, Failure> {
    let wrong = |cause: &dyn std::fmt::Display| Failure::new(Kind::Input, cause, "");
    let encode = |text: &str, marks| model.tokenizer.encode(text, marks).map_err(|it| wrong(&it));
    if !args.chat {
        return encode(&args.prompt, Marks::Added);
    }
    let Some(template) = &model.card.template else {
        let cause = "the model has no chat template";
        return Err(Failure::new(
            Kind::Input,
            cause,
            "leave out --chat: the text is gone on with",
        ));
    };
    let message = |role: &str, content: &str| Message {
        role: role.to_owned(),
        content: content.to_owned(),
    };
    let system = args.system.iter().map(|text| message("system", text));
    let messages: Vec<Message> = system.chain([message("user", &args.prompt)]).collect();
    let text = template.render(&messages).map_err(|it| wrong(&it))?;
    encode(&text, Marks::Own)
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

fn sequence<'a>(
    program: &'a dyn Program,
    decoder: &Decoder,
    room: usize,
) -> Result<Sequence<'a>, Failure> {
    let states = decoder.states.iter().map(|port| State {
        port: port.clone(),
        value: decoder.empty_cache(room),
    });
    let session = program.session(states.collect());
    let session = session.map_err(|error| Failure::new(Kind::Unexpected, error, ""))?;
    Ok(Sequence::new(session, room))
}

/// A text as it is told.
struct Text<'a> {
    output: Output,
    card: &'a Card,
    stream: TextStream<'a>,
    stops: StopStrings,
    tokens_max: usize,
    /// All of it.
    text: String,
    tokens: Vec<u32>,
    begun: Instant,
    /// When the first token was there.
    first: Option<Duration>,
    stopped: bool,
    failed: Option<Failure>,
}

impl<'a> Text<'a> {
    fn new(output: Output, card: &'a Card, tokenizer: &'a Tokenizer, args: &GenerateArgs) -> Self {
        Self {
            output,
            card,
            stream: tokenizer.stream(),
            stops: StopStrings::new(args.stop.clone()),
            tokens_max: args.tokens,
            text: String::new(),
            tokens: Vec::new(),
            begun: Instant::now(),
            first: None,
            stopped: false,
            failed: None,
        }
    }

    fn told(
        mut self,
        sequence: &mut Sequence<'_>,
        prompt: &[u32],
        sampling: &Sampling,
    ) -> Result<TextResult<'a>, Failure> {
        let request = Request {
            prompt,
            sampling,
            ends: &self.card.ends.clone(),
            tokens_max: self.tokens_max,
        };
        let ending = generate(sequence, &request, |token| self.take(token));
        let ending = ending.map_err(from_generation)?;
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        if !self.stopped {
            let rest = std::mem::take(&mut self.stops).rest();
            self.say(&rest);
        }
        let whole = self.begun.elapsed();
        Ok(TextResult {
            text: self,
            prompt: prompt.len(),
            ending,
            whole,
        })
    }

    fn take(&mut self, token: u32) -> ControlFlow<()> {
        self.first.get_or_insert_with(|| self.begun.elapsed());
        self.tokens.push(token);
        let piece = match self.stream.push(token) {
            Ok(piece) => piece,
            Err(error) => {
                self.failed = Some(Failure::new(Kind::Unexpected, error, ""));
                return ControlFlow::Break(());
            }
        };
        let (sure, stopped) = match self.stops.push(&piece) {
            Stop::On(text) => (text, false),
            Stop::Found(text) => (text, true),
        };
        self.say(&sure);
        self.stopped = stopped;
        match stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn say(&mut self, text: &str) {
        self.text.push_str(text);
        if self.output == Output::Text {
            let mut stdout = std::io::stdout();
            // Whoever closed standard output sees nothing; the figures are still told.
            let _ = stdout
                .write_all(text.as_bytes())
                .and_then(|()| stdout.flush());
        }
    }
}

/// A text that was told.
struct TextResult<'a> {
    text: Text<'a>,
    /// Tokens of the prompt.
    prompt: usize,
    ending: Ending,
    /// How long it took.
    whole: Duration,
}

impl TextResult<'_> {
    /// Tells how it went, and what was paid.
    fn finish(self, place: &str, receipts: &[Receipt]) {
        let (text, prompt, whole) = (self.text, self.prompt, self.whole);
        let first = text.first.unwrap_or(whole);
        let after = text.tokens.len().saturating_sub(1);
        let rest = (whole - first).as_secs_f64();
        let rate = if after > 0 && rest > 0.0 {
            after as f64 / rest
        } else {
            0.0
        };
        let ended = match (text.stopped, self.ending) {
            (true, _) => "a string to stop at",
            (false, Ending::Token) => "a token that ends texts",
            (false, Ending::Length) => "as many tokens as were asked for",
            (false, Ending::Room | Ending::Taker) => "no more room",
        };
        let seconds = first.as_secs_f64();
        if text.output == Output::Json {
            show::json(&json!({
                "model": text.card.name, "text": text.text, "tokens": text.tokens,
                "prompt_tokens": prompt, "seconds_to_first_token": seconds,
                "tokens_per_second": rate, "ended_by": ended, "market": !receipts.is_empty(),
                "receipts": receipts,
            }));
            return;
        }
        show::say("");
        show::tell(&format!(
            "{} {place}: {prompt} + {} tokens, the first after {seconds:.3} s, \
             then {rate:.2} a second; ended by {ended}",
            text.card.name,
            text.tokens.len(),
        ));
        for receipt in receipts {
            let body = &receipt.body;
            let (lease, amount) = (body.lease, show::credits(body.amount.0));
            show::tell(&format!(
                "  lease {lease}: {amount} credits, signed by both sides"
            ));
        }
    }
}

fn from_generation(error: GenerationError) -> Failure {
    let (kind, hint) = match error {
        GenerationError::Empty => (Kind::Input, "write a prompt"),
        GenerationError::Room { .. } => (Kind::Input, "give --context more positions"),
        GenerationError::Run(_) | GenerationError::Logits(_) | GenerationError::NoNumber(_) => {
            (Kind::Unexpected, "")
        }
    };
    Failure::new(kind, error, hint)
}

/// Writes a language model in souk's form.
pub fn import(output: Output, from: &Path, to: &Path, context: Option<usize>) -> Outcome {
    let model = LanguageModel::open(from).map_err(refused)?;
    let (card, room) = (model.card.clone(), room(&model, context));
    model.write(to, room).map_err(refused)?;
    let licence = card.licence.as_deref().unwrap_or("not stated");
    let facts = json!({
        "name": card.name, "folder": to, "positions": room, "licence": card.licence,
        "chat_template": card.template.is_some(),
    });
    let text = format!(
        "{} is in {}: {room} positions, licence {licence}",
        card.name,
        to.display()
    );
    show::line(output, &facts, &text);
    Ok(())
}
