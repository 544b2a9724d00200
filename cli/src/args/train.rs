//! The arguments of `souk train`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use souk_node::buyer::training::Workers;
use souk_node::market::Permille;
use souk_node::scheduler::planning::Objective;

use super::job::objective;
use super::{duration, share};

/// The most workers of a run.
const WORKERS_MAX: i64 = souk_node::buyer::training::WORKERS_MAX as i64;

/// The steps of a round, if the user states none.
const ROUND_STEPS: u64 = 32;

/// The steps from one kept state to the next of one worker, if the user states none.
const KEEP_STEPS: u64 = 8;

/// A run of training, or a command on runs.
#[derive(Clone, Debug)]
pub enum Train {
    Run(Box<TrainArgs>),
    Command(TrainCommand),
}

// clap derives no command that has either arguments or a subcommand.
impl FromArgMatches for Train {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand_name() {
            Some(_) => TrainCommand::from_arg_matches(matches).map(Train::Command),
            None => TrainArgs::from_arg_matches(matches).map(|args| Train::Run(Box::new(args))),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Train {
    fn augment_args(command: Command) -> Command {
        let command = TrainCommand::augment_subcommands(TrainArgs::augment_args(command));
        command
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_required(false)
            .disable_help_subcommand(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A command on runs of training.
#[derive(Clone, Debug, Subcommand)]
pub enum TrainCommand {
    /// Go on with a run whose souk was stopped or killed, from the last kept states.
    Resume(TrainResumeArgs),
    /// List the runs that were begun from --dir: their steps, losses and cost.
    List,
}

/// The run to go on with.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainResumeArgs {
    /// The PATH that --out of the run named.
    pub out: PathBuf,
    /// Another maximum cost, in credits. It also covers what the run has cost so far.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// A run of training, and where its result goes.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct TrainArgs {
    /// An ONNX model with its weights inside: all its f32 initialisers are trained, except single
    /// numbers and those that --freeze names. Or, with DATA, a language model: a folder in the
    /// format of Hugging Face's tools, `bundled`, or without --full a GGUF file in f32, f16 or
    /// bf16.
    pub model: PathBuf,
    /// The examples for a language model, which gets an adapter (LoRA) unless you add --full. Each
    /// line is a JSON object with `text`, with `prompt` and `completion`, or with `messages`.
    #[arg(conflicts_with_all = ["input", "target", "loss", "loss_of"])]
    pub data: Option<PathBuf>,
    /// An input of the model for all examples, which are the rows of its first axis: NAME=FILE.npy,
    /// or FILE.safetensors with tensors named like the inputs.
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    pub input: Vec<String>,
    /// The targets, one row for each example: NAME=FILE.npy. For cross-entropy they are integers,
    /// the numbers of classes from 0; for mse they have the shape and the type of the output.
    #[arg(long, value_name = "NAME=FILE", required_unless_present = "data")]
    pub target: Option<String>,
    /// What training makes small: the mean over the batch. Cross-entropy takes logits, or what a
    /// last Softmax reads. For a language model it is the cross-entropy of the answers' tokens.
    #[arg(long, value_enum, required_unless_present = "data")]
    pub loss: Option<LossName>,
    /// The output of the model of which to take the loss; not necessary if it has only one.
    #[arg(long, value_name = "NAME")]
    pub loss_of: Option<String>,
    /// Train all weights of the language model instead of an adapter. The result is a folder like
    /// that of the model, with the weights in their types.
    #[arg(long, requires = "data", conflicts_with_all = ["rank", "alpha", "targets"])]
    #[serde(default)]
    pub full: bool,
    #[command(flatten)]
    pub adapter: LoraArgs,
    /// The number of steps; by default 100, or with DATA as many as three epochs have.
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// The number of passes over the examples, instead of --steps.
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    pub epochs: Option<u64>,
    /// The number of examples of each step; by default 32, or with DATA 8, or all if there are
    /// fewer.
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// The learning rate; by default 0.001, with DATA 0.0002, with --full 0.00002.
    #[arg(long = "lr", value_name = "RATE", allow_negative_numbers = true)]
    #[serde(with = "exact_number")]
    pub learning_rate: Option<f64>,
    /// The learning rate rises over the first N steps: the first of them has 1/N of it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[serde(default)]
    pub warmup: u64,
    /// How the learning rate falls after the warm-up, until the last step.
    #[arg(long, value_enum, default_value_t = DecayName::Constant)]
    #[serde(default)]
    pub decay: DecayName,
    /// The largest norm of the gradient, as in PyTorch's clip_grad_norm_: a longer gradient is
    /// scaled down to it.
    #[arg(long, value_name = "NORM", allow_negative_numbers = true)]
    #[serde(default, with = "exact_number")]
    pub clip: Option<f64>,
    /// The optimiser, with the meaning and the defaults of PyTorch's.
    #[arg(long, value_enum, default_value_t = OptimizerName::Adamw)]
    pub optimizer: OptimizerName,
    /// The momentum of sgd; by default 0.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    #[serde(with = "exact_number")]
    pub momentum: Option<f64>,
    /// The weight decay; by default 0.01 for adamw and 0 for sgd.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    #[serde(with = "exact_number")]
    pub weight_decay: Option<f64>,
    /// Do not train initialisers whose names begin so, or with --full weights. Can be given several
    /// times.
    #[arg(long, value_name = "PREFIX",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub freeze: Vec<String>,
    /// The seed of the order of the examples, which differs in each pass over them, and of the
    /// first numbers of an adapter.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Take the examples in the order of their rows.
    #[arg(long, conflicts_with = "seed")]
    pub in_order: bool,
    /// Train on W workers side by side, each on its own share of the batches and on a lease of its
    /// own (DiLoCo). --steps are those of each worker. The result depends on W and --round, and not
    /// on the number of providers.
    #[arg(long, value_name = "W",
          value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    #[serde(default)]
    pub workers: Option<u16>,
    /// The steps of each worker after which the parameters of all are averaged; by default 32.
    #[arg(long, value_name = "H", requires = "workers",
          value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(default)]
    pub round: Option<u64>,
    /// The parameters and the optimiser's states come back after so many steps, and at the end; by
    /// default after 8, or with --workers after a round. A lost provider costs at most the steps
    /// since then. The result is the same for all N.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(default)]
    pub keep: Option<u64>,
    /// Held-out examples, on which the model is not trained. Their loss is computed before the
    /// first step, after each --eval-every steps and after the last, and changes no bit of the
    /// result. With DATA a file in its format; without, each input and the target again:
    /// NAME=FILE.npy.
    #[arg(long = "eval", value_name = "FILE")]
    #[serde(default)]
    pub eval: Vec<String>,
    /// The steps from one evaluation to the next; by default those of a pass over the examples,
    /// rounded up to a multiple of --keep. The parameters also come back at each evaluation. With
    /// --workers, an evaluation is at the end of the round in which it falls.
    #[arg(long, value_name = "N", requires = "eval",
          value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(default)]
    pub eval_every: Option<u64>,
    /// Have other providers run this share of the steps again, such as 10%; you pay for these steps
    /// too. No provider can know before its answer which ones. If two make different parameters, a
    /// third one decides, and the run goes back to the states before the liar's first step.
    #[arg(long, value_name = "PERCENT", value_parser = share, conflicts_with = "workers")]
    #[serde(default)]
    pub audit: Option<Permille>,
    /// Show the steps, the parameters, the memory and the price; spends nothing.
    #[arg(long)]
    pub plan: bool,
    /// The file for the trained model. A file with the same name and the ending .json gets the
    /// settings, the digests of model and data, the losses and the receipts. With DATA it is a
    /// folder, for an adapter in the form of PEFT, or with --full for a model, and `train.json`.
    #[arg(
        short,
        long = "out",
        value_name = "PATH",
        required_unless_present = "plan"
    )]
    pub out: Option<PathBuf>,
    /// Stop when standard input closes, as it does when the process that started this one ends.
    #[arg(long)]
    #[serde(skip)]
    pub until_stdin_closes: bool,
    #[command(flatten)]
    pub lease: TrainLeaseArgs,
}

impl TrainArgs {
    /// Returns the workers that the run trains side by side.
    pub fn workers(&self) -> Option<Workers> {
        self.workers.map(|count| Workers {
            count: count.into(),
            round_steps: self.round.unwrap_or(ROUND_STEPS),
        })
    }

    /// Returns the share of the steps that another provider runs again.
    pub fn audit_share(&self) -> Permille {
        self.audit.unwrap_or_default()
    }

    /// Returns the files that the run reads.
    pub fn source_paths(&self) -> Vec<PathBuf> {
        let named = self.input.iter().chain(&self.target).chain(&self.eval);
        let named = named.map(|it| it.split_once('=').map_or(&it[..], |(_, path)| path));
        let models = [&self.model].into_iter().chain(&self.data).cloned();
        models.chain(named.map(PathBuf::from)).collect()
    }

    /// Returns the steps from one kept state to the next.
    pub fn keep_steps(&self) -> u64 {
        let round = self.workers().map(|workers| workers.round_steps);
        self.keep.or(round).unwrap_or(KEEP_STEPS)
    }
}

/// The adapter that a language model gets.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct LoraArgs {
    /// The rank of the adapter; by default 16.
    #[arg(long, value_name = "N", requires = "data", conflicts_with = "target")]
    pub rank: Option<usize>,
    /// The factor of the adapter, which is divided by the rank; by default twice the rank.
    #[arg(
        long,
        value_name = "FACTOR",
        requires = "data",
        conflicts_with = "target",
        allow_negative_numbers = true
    )]
    #[serde(with = "exact_number")]
    pub alpha: Option<f64>,
    /// The matrices of each layer that get an adapter, such as q_proj,v_proj; by default all seven.
    #[arg(
        long,
        value_name = "NAMES",
        requires = "data",
        conflicts_with = "target",
        value_delimiter = ','
    )]
    pub targets: Vec<String>,
    /// The most tokens of an example; by default as many positions as the model was made for. souk
    /// refuses longer examples, and cuts none.
    #[arg(
        long,
        value_name = "TOKENS",
        requires = "data",
        conflicts_with = "target"
    )]
    pub length: Option<usize>,
}

/// The lease to buy for training.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub struct TrainLeaseArgs {
    /// The maximum cost, in credits, including failed leases. A hard limit.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub budget: Option<f64>,
    /// The maximum price of a device-second, in credits.
    #[arg(long, value_name = "CREDITS", allow_negative_numbers = true)]
    pub max_price: Option<f64>,
    /// Use only devices of this kind (cpu, gpu, ...) or with this in their model's name. Can be
    /// given several times; one match suffices.
    #[arg(long, value_name = "NAME",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub device: Vec<String>,
    /// Also use emulated devices. Only buyers in a testnet use them by default.
    #[arg(long, conflicts_with = "real")]
    pub emulated: bool,
    /// Use only real devices, no emulated ones, even in a testnet.
    #[arg(long)]
    pub real: bool,
    /// The objective, as in `souk submit`.
    #[arg(long, value_parser = objective(), default_value_t = Objective::Balanced)]
    pub prefer: Objective,
    /// How long to wait for devices that others have leased, such as 30s, 10m or 2h.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration)]
    pub wait: Duration,
}

/// A loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum LossName {
    /// Of logits and the numbers of classes.
    CrossEntropy,
    /// The mean of the squared differences.
    Mse,
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum DecayName {
    /// Not at all.
    #[default]
    Constant,
    /// By the same amount after each step.
    Linear,
    /// As the first half of a cosine.
    Cosine,
}

/// An optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum OptimizerName {
    /// Stochastic gradient descent.
    Sgd,
    /// AdamW.
    Adamw,
}

/// Stores a number by its bits: as decimal digits it might come back as another one, and a run with
/// another number is another run.
mod exact_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        number.map(f64::to_bits).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(f64::from_bits))
    }
}
