//! The arguments of `souk generate`, `souk chat` and `souk openai`.

use std::net::SocketAddr;
use std::path::PathBuf;

use souk_node::scheduler::planning::Objective;

use super::job::objective;

/// A text to go on with.
#[derive(Debug, clap::Args)]
pub struct GenerateArgs {
    /// A language model: a folder as Hugging Face's tools leave it, a GGUF file, a folder that
    /// `souk model import` wrote, or `bundled`, the small one that comes with souk.
    pub model: PathBuf,
    /// The text.
    pub prompt: String,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Tokens at most.
    #[arg(short, long = "max", default_value_t = 128, value_name = "TOKENS")]
    pub tokens: usize,
    /// Take the text for a message to the model, written as its chat template says.
    #[arg(long)]
    pub chat: bool,
    /// What the model is told before the message.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Write JSON that fulfils the JSON schema in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "json_object")]
    pub json_schema: Option<PathBuf>,
    /// Write a JSON object.
    #[arg(long)]
    pub json_object: bool,
    /// End the text where this comes. May be given again.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// A conversation.
#[derive(Debug, clap::Args)]
pub struct ChatArgs {
    /// A language model with a chat template, as `souk generate` takes it.
    pub model: PathBuf,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub session: SessionArgs,
    /// Tokens of an answer at most.
    #[arg(short, long = "max", default_value_t = 512, value_name = "TOKENS")]
    pub tokens: usize,
    /// What the model is told before the first message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// End an answer where this comes. May be given again.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Largest number of sequences of a session, and so of concurrent requests.
const SEQUENCES_MAX: i64 = 32;

/// A language model for programs that speak OpenAI's HTTP.
#[derive(Debug, clap::Args)]
pub struct OpenaiArgs {
    /// A language model, as `souk generate` takes it.
    pub model: PathBuf,
    /// Where it answers: a loopback address. A port of 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Keep a session for so many seconds without a question.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub keep: u64,
    /// Answer so many questions at once, over one session: each has caches of its own. On this
    /// machine as many as its memory has room for.
    #[arg(long, default_value_t = 8, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=SEQUENCES_MAX))]
    pub sequences: u32,
    /// Answer to this name of the model too. May be given again.
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Let pages of this origin ask, such as http://localhost:3000, or of any by `*`: they need
    /// the key all the same. May be given again.
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Make vectors of texts (/v1/embeddings), and do not go on with them.
    #[arg(long)]
    pub embeddings: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub session: SessionArgs,
}

/// How long a session is that serves several texts.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SessionArgs {
    /// Buy sessions for so many tokens; another follows where they were not enough. What is not
    /// used is not paid, but is held while the session lasts.
    #[arg(long, default_value_t = 1024, value_name = "TOKENS",
        value_parser = positions)]
    pub session: usize,
}

/// Where a text is written.
#[derive(Debug, clap::Args)]
pub struct PlaceArgs {
    /// Run it on this machine's processor, without a market.
    #[arg(long, conflicts_with_all = ["budget", "min_providers", "device", "out"])]
    pub here: bool,
    #[command(flatten)]
    pub lease: LeaseArgs,
    /// Positions to have room for, the prompt's among them; as many as the model was made for, and
    /// 4096 at most, unless given.
    #[arg(long, value_name = "POSITIONS", value_parser = positions)]
    pub context: Option<usize>,
    /// Draft up to so many tokens a step, from what the text said before: each that is right saves
    /// a round to the providers, each costs its logits on the way back. The text is the same.
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    pub draft: usize,
    /// Have so many sessions make each token, none with a provider of another's, and compare; where
    /// two differ, a third decides. Each costs a third of the budget at most.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "here",
        value_parser = clap::value_parser!(u8).range(1..=2))]
    pub verify: u8,
    /// Threads of this machine; as many as there are cores unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
}

/// What is bought for a text.
#[derive(Debug, clap::Args)]
pub struct LeaseArgs {
    /// The most that may be paid, in credits, sessions that failed included. A hard stop.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// Cut the model over at least so many providers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub min_providers: usize,
    /// Use at most so many providers: each more is one more hop for every token.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub max_providers: usize,
    /// Only devices of this kind (cpu, gpu, ...) or with this in their model's name. May be given
    /// again: any of them will do.
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub device: Vec<String>,
    /// Take emulated devices too. Only a testnet's buyers take them unasked.
    #[arg(long)]
    pub emulated: bool,
    /// What matters most, as `souk submit` has it.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Fastest)]
    pub prefer: Objective,
    /// Wait so many seconds for devices that others have leased.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub wait: u64,
    /// Write receipts into this folder.
    #[arg(short, long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// How the next token is drawn.
#[derive(Debug, clap::Args)]
pub struct SamplingArgs {
    /// What logits are divided by; at 0 the likeliest token is taken.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    pub temperature: f64,
    /// Draw among so many of the likeliest; among all at 0.
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub top_k: usize,
    /// Draw among the likeliest that have this probability together.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub top_p: f64,
    /// Draw among those that have this part of the likeliest one's probability.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub min_p: f64,
    /// Divide the logits of tokens that were seen.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub repetition_penalty: f64,
    /// Take from a token's logit for each time it was generated.
    #[arg(long, default_value_t = 0.0, value_name = "LOGIT")]
    pub frequency_penalty: f64,
    /// Take from the logit of each token that was generated.
    #[arg(long, default_value_t = 0.0, value_name = "LOGIT")]
    pub presence_penalty: f64,
    /// Add to the logit of a token, such as 50256=-100. May be given again.
    #[arg(long, value_name = "TOKEN=LOGIT", value_parser = bias)]
    pub logit_bias: Vec<(u32, f64)>,
    /// Draws of one seed repeat.
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
