//! The arguments of `souk generate`, `souk chat` and `souk openai`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use souk_node::scheduler::planning::Objective;

use super::duration;
use super::job::objective;
use super::openai_key::OpenaiCommand;

/// A text to continue.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// A language model: a folder in the format of Hugging Face's tools, a GGUF file, a folder that
    /// `souk model import` wrote, or `bundled`, the small model that comes with souk.
    pub model: PathBuf,
    /// The text to continue.
    pub prompt: String,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub place: PlacementArgs,
    /// The maximum number of tokens to generate.
    #[arg(
        short,
        long = "max-tokens",
        default_value_t = 128,
        value_name = "TOKENS"
    )]
    pub tokens: usize,
    /// Send the text to the model as a message, in the format of its chat template.
    #[arg(long)]
    pub chat: bool,
    /// The system message, which comes before the message.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Generate JSON that conforms to the JSON schema in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "json_object")]
    pub json_schema: Option<PathBuf>,
    /// Generate a JSON object.
    #[arg(long)]
    pub json_object: bool,
    /// Stop the text at this string. Can be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// A conversation.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    /// A language model with a chat template, in a form that `souk generate` takes.
    pub model: PathBuf,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub place: PlacementArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    /// The maximum number of tokens of an answer.
    #[arg(
        short,
        long = "max-tokens",
        default_value_t = 512,
        value_name = "TOKENS"
    )]
    pub tokens: usize,
    /// The system message, which comes before the first message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Stop an answer at this string. Can be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Largest number of sequences of a session, and so of concurrent requests.
const SEQUENCES_MAX: i64 = 32;

/// The most transcripts that a folder has.
const TRANSCRIPTS_MAX: i64 = 10_000;

/// A language model for programs that speak OpenAI's HTTP.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct OpenaiArgs {
    /// A command on the keys of the server.
    #[command(subcommand)]
    pub command: Option<OpenaiCommand>,
    /// A language model, in a form that `souk generate` takes. Without one, souk serves every model
    /// that providers sell by the token; most options below then do not apply.
    pub model: Option<PathBuf>,
    /// The loopback address to listen on; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// How long to keep a session without a request, such as 30s, 10m or 2h.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub keep_alive: Duration,
    /// How many requests to answer at once, over one session; each has its own caches. With
    /// --local, at most as many as the machine's memory can hold.
    #[arg(long, default_value_t = 8, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=SEQUENCES_MAX))]
    pub sequences: u32,
    /// Accept this name for the model too. Can be given several times.
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Allow requests from pages of this origin, such as http://localhost:3000, or of any origin
    /// with `*`; they still need the key. Can be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Serve embeddings (/v1/embeddings) instead of text.
    #[arg(long)]
    pub embeddings: bool,
    /// Stop when standard input closes, as it does when the process that started this one ends.
    /// Such a server takes no keys of `souk openai key`, only its own.
    #[arg(long)]
    pub until_stdin_closes: bool,
    /// Without a model: keep the texts of the newest so many tabs in buyer/transcripts, in files
    /// that only you can read, for `souk audit run`. They have what all users of the server wrote.
    #[arg(long, value_name = "TABS",
        value_parser = clap::value_parser!(u32).range(1..=TRANSCRIPTS_MAX))]
    pub keep_transcripts: Option<u32>,
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub place: PlacementArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

/// The adapter of a model.
#[derive(Clone, Debug, clap::Args)]
pub struct AdapterArgs {
    /// Use the model with this adapter: the folder that `souk train` or PEFT wrote.
    #[arg(long, value_name = "FOLDER", requires = "model")]
    adapter: Option<PathBuf>,
}

impl AdapterArgs {
    /// Returns the folder of the adapter, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.adapter.as_deref()
    }
}

/// The length of a session that serves several texts.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SessionArgs {
    /// Buy sessions for this many tokens; souk buys another if they were not enough. You do not pay
    /// for unused tokens, but their price is held while the session lasts.
    #[arg(long, default_value_t = 1024, value_name = "TOKENS",
        value_parser = positions)]
    pub session: usize,
}

/// Where to run the model.
#[derive(Debug, clap::Args)]
pub struct PlacementArgs {
    /// Run the model on this machine's processor, without a market.
    #[arg(long, conflicts_with_all = ["budget", "min_providers", "device", "out"])]
    pub local: bool,
    #[command(flatten)]
    pub lease: LeaseArgs,
    /// The number of positions, including the prompt; by default as many as the model was made for,
    /// and at most 4096.
    #[arg(long, value_name = "POSITIONS", value_parser = positions)]
    pub context: Option<usize>,
    /// Draft up to this many tokens per step, from the earlier text: each correct one saves a round
    /// trip to the providers, each costs its logits on the way back. The text stays the same.
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    pub draft: usize,
    /// Let this many sessions generate each token, none with a provider of another, and compare; if
    /// two differ, a third decides. Each costs at most a third of the budget.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "local",
        value_parser = clap::value_parser!(u8).range(1..=2))]
    pub verify: u8,
    /// The number of threads of this machine; by default one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
}

/// The lease to buy for a text.
#[derive(Debug, clap::Args)]
pub struct LeaseArgs {
    /// The maximum cost, in credits, including failed sessions. A hard limit.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// Cut the model over at least this many providers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub min_providers: usize,
    /// Use at most this many providers; each additional one adds a hop to every token.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub max_providers: usize,
    /// Use only devices of this kind (cpu, gpu, ...) or with this in their model's name. Can be
    /// given several times; one match suffices.
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub device: Vec<String>,
    /// Also use emulated devices. Only buyers in a testnet use them by default.
    #[arg(long)]
    pub emulated: bool,
    /// The objective, as in `souk submit`.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Fastest)]
    pub prefer: Objective,
    /// How long to wait for devices that others have leased, such as 30s, 10m or 2h.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub wait: Duration,
    /// The folder for receipts.
    #[arg(short, long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// How to sample the next token.
#[derive(Debug, clap::Args)]
pub struct SamplingArgs {
    /// The divisor of the logits; 0 selects the most likely token.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    pub temperature: f64,
    /// Sample from this many of the most likely tokens; 0 means all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub top_k: usize,
    /// Sample from the most likely tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub top_p: f64,
    /// Sample from the tokens with at least this fraction of the highest probability.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub min_p: f64,
    /// Divide the logits of tokens that already occurred.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub repetition_penalty: f64,
    /// Subtract from a token's logit for each time it was generated.
    #[arg(long, default_value_t = 0.0, value_name = "LOGIT")]
    pub frequency_penalty: f64,
    /// Subtract from the logit of each token that was generated.
    #[arg(long, default_value_t = 0.0, value_name = "LOGIT")]
    pub presence_penalty: f64,
    /// Add to the logit of a token, such as 50256=-100. Can be given several times.
    #[arg(long, value_name = "TOKEN=LOGIT", value_parser = bias)]
    pub logit_bias: Vec<(u32, f64)>,
    /// The seed; the same seed repeats the same samples.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

/// Parses a number of positions, at least one.
pub(super) fn positions(text: &str) -> Result<usize, String> {
    let parsed = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match parsed {
        0 => Err("there is at least one position".to_owned()),
        positions => Ok(positions),
    }
}

fn bias(text: &str) -> Result<(u32, f64), String> {
    let parsed = text.split_once('=');
    let parsed = parsed.and_then(|(id, by)| Some((id.parse().ok()?, by.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text:?} is not TOKEN=LOGIT"))
}
