//! The arguments of `souk train`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use souk_node::scheduler::planning::Objective;

use super::duration;
use super::job::objective;

/// A run of training, and where its result goes.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainArgs {
    /// The ONNX model, with its weights inside. All its f32 initialisers are trained, except single
    /// numbers and those that --freeze names.
    pub model: PathBuf,
    /// An input of the model for all examples, which are the rows of its first axis: NAME=FILE.npy,
    /// or FILE.safetensors with tensors named like the inputs.
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    pub input: Vec<String>,
    /// The targets, one row for each example: NAME=FILE.npy. For cross-entropy they are integers,
    /// the numbers of classes from 0; for mse they have the shape and the type of the output.
    #[arg(long, value_name = "NAME=FILE")]
    pub target: String,
    /// What training makes small: the mean over the batch. Cross-entropy takes logits, or what a
    /// last Softmax reads.
    #[arg(long, value_enum)]
    pub loss: LossName,
    /// The output of the model of which to take the loss; not necessary if it has only one.
    #[arg(long, value_name = "NAME")]
    pub loss_of: Option<String>,
    /// The number of steps.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub steps: u64,
    /// The number of examples of each step.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub batch: usize,
    /// The learning rate.
    #[arg(
        long = "lr",
        default_value_t = 1e-3,
        value_name = "RATE",
        allow_negative_numbers = true
    )]
    pub learning_rate: f64,
    /// The optimiser, with the meaning and the defaults of PyTorch's.
    #[arg(long, value_enum, default_value_t = OptimizerName::Adamw)]
    pub optimizer: OptimizerName,
    /// The momentum of sgd; by default 0.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// The weight decay; by default 0.01 for adamw and 0 for sgd.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub weight_decay: Option<f64>,
    /// Do not train initialisers whose names begin so. Can be given several times.
    #[arg(long, value_name = "PREFIX",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub freeze: Vec<String>,
    /// The seed of the order of the examples, which differs in each pass over them.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Take the examples in the order of their rows.
    #[arg(long, conflicts_with = "seed")]
    pub in_order: bool,
    /// Show the steps, the parameters, the memory and the price; spends nothing.
    #[arg(long)]
    pub plan: bool,
    /// The file for the trained model. A file with the same name and the ending .json gets the
    /// settings, the digests of model and data, the losses and the receipts.
    #[arg(
        short,
        long = "out",
        value_name = "FILE",
        required_unless_present = "plan"
    )]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub lease: TrainLeaseArgs,
}

/// The lease to buy for training.
#[derive(Clone, Debug, clap::Args)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LossName {
    /// Of logits and the numbers of classes.
    CrossEntropy,
    /// The mean of the squared differences.
    Mse,
}

/// An optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Stochastic gradient descent.
    Sgd,
    /// AdamW.
    Adamw,
}
