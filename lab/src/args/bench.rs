//! The arguments of `souk bench …`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use souk_cli::options::{Backend, bytes};

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Run the ONNX project's operator tests, one folder a case.
    Conformance {
        /// The folder of cases.
        folder: PathBuf,
        /// What runs them.
        #[arg(long, value_enum, default_value_t = Backend::Cpu)]
        backend: Backend,
        /// A part of the GPU's name, where there are several.
        #[arg(long, default_value = "")]
        device: String,
    },
    /// Time whole models, on inputs made up by a rule that other engines can follow.
    Models(ModelsArgs),
    /// The peak of memory of whole models beside rten alone on the same files, a process each.
    Memory(ModelSetArgs),
    /// How well the cost model of the CPU foretells the largest operators of models.
    Cost(CostArgs),
    /// Drive the bare book and the full exchange with a flow of orders.
    Market(MarketBenchArgs),
    /// Plan published scheduling instances.
    Plan {
        /// The instances, .json.gz.
        file: PathBuf,
        /// The planner; a wrong name lists them.
        #[arg(long, default_value = "auto")]
        planner: String,
        /// Time for each instance, in milliseconds.
        #[arg(long, default_value_t = 10)]
        budget_ms: u64,
        /// Where the schedules go, one line an instance.
        #[arg(long, default_value = "schedules.jsonl")]
        out: PathBuf,
    },
    /// Divide published graphs over accelerators for throughput.
    Partition {
        /// The graphs, .json.gz.
        file: PathBuf,
        /// Where the placements go, one line a graph.
        #[arg(long, default_value = "placements.jsonl")]
        out: PathBuf,
    },
    /// Run empty and small tasks on workers of this machine: what the executor costs for each.
    Tasks {
        /// Workers.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        devices: u8,
    },
    /// Share single operators between two unlike devices, beside the best shares an exhaustive
    /// search finds.
    Split {
        /// The devices of this machine.
        #[command(flatten)]
        machine: MachineArgs,
        /// Measure this pair and no other; may be given several times. A wrong name lists them.
        #[arg(long = "pair", value_name = "NAME")]
        pairs: Vec<String>,
    },
    /// Run models on mixes of unlike devices, beside the best single device and the plan.
    Mixes {
        /// The devices of this machine.
        #[command(flatten)]
        machine: MachineArgs,
        /// A model to run beside the bundled ones.
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Run a model on the CPU bare and through the scheduler, in turn.
    Overhead {
        /// The model.
        #[command(flatten)]
        model: ModelArgs,
        /// Threads of the CPU; 0 for all.
        #[arg(long, default_value_t = 0)]
        threads: u32,
        /// Runs of each.
        #[arg(long, default_value_t = 60)]
        rounds: usize,
    },
    /// Move content between two processes: bare libp2p, plain TCP, the tensor protocol, its direct
    /// channel.
    Tensors(BenchTensorsArgs),
    /// The process that holds the content of `souk bench tensors`.
    #[command(hide = true)]
    TensorHolder(BenchTensorsArgs),
    /// Have jobs run through a market of real processes, and time each step.
    Submit(SubmitBenchArgs),
    /// Replicate commands over processes of their own and measure.
    Consensus(ConsensusArgs),
    /// The device in another process of `souk bench tasks`.
    #[command(hide = true)]
    Serve,
    /// One replica of `souk bench consensus`.
    #[command(hide = true)]
    Node(BenchNodeArgs),
}

/// Devices of this machine beside the emulated ones.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Threads of the CPU; 0 for all, which a software GPU then competes with.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// A part of the name of a GPU that runs beside the CPU, such as llvmpipe.
    #[arg(long)]
    pub gpu: Option<String>,
    /// Leave the emulated devices out.
    #[arg(long)]
    pub real_only: bool,
}

/// What is done to a market.
#[derive(Debug, clap::Args)]
pub struct MarketBenchArgs {
    /// a: deep, 100,000 orders rest; b: hot, most operations move an order.
    #[arg(long, value_enum, default_value_t = FlowName::A)]
    pub flow: FlowName,
    /// How many operations.
    #[arg(long, default_value_t = 1_000_000)]
    pub operations: usize,
    /// Instead, time commits in a market of processes with and without so many readers, each of
    /// whom asks every two seconds for what a dashboard shows.
    #[arg(long, default_value_t = 0)]
    pub readers: u32,
    /// Closed leases that the market holds then.
    #[arg(long, default_value_t = 100_000)]
    pub closed_leases: u32,
    /// Validators of that market.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// Rounds with readers, and as many without, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each round.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
}

/// A model and the sizes of its inputs.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// The model, .onnx with its weights inside.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Sizes of the dimensions it leaves open, input by input.
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
}

/// What to move.
#[derive(Debug, clap::Args)]
pub struct BenchTensorsArgs {
    /// Bytes of the large content, such as 1GiB.
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    pub size: u64,
    /// How many small contents.
    #[arg(long, default_value_t = 10_000)]
    pub small: u32,
    /// Rounds of which the best counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
}

/// Which models to time, and on what.
#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    /// A model, or a folder of them.
    pub path: PathBuf,
    /// What runs them.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    /// A part of the GPU's name, where there are several.
    #[arg(long, default_value = "")]
    pub device: String,
    /// Threads of the CPU; 0 for all.
    #[arg(long, default_value_t = 0)]
    pub threads: u32,
    /// Sizes for what an input leaves open, such as 8,128; 1 where there are none left.
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// How many runs of each.
    #[arg(long, default_value_t = 20)]
    pub runs: usize,
    /// Run them on rten with nothing of souk around it, to compare.
    #[arg(long)]
    pub alone: bool,
}

/// Models for the CPU.
#[derive(Debug, clap::Args)]
pub struct ModelSetArgs {
    /// Models, each with the sizes its inputs leave open, if there are any: minilm.onnx:8,128.
    #[arg(required = true, value_name = "FILE[:SIZES]")]
    pub models: Vec<String>,
    /// Threads of the CPU. With one, `cost` counts processor time, which other work on the machine
    /// disturbs less.
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub threads: NonZeroUsize,
    /// Largest operators of each model.
    #[arg(long, default_value_t = 30)]
    pub operators: usize,
}

/// Models whose operators are foretold.
#[derive(Debug, clap::Args)]
pub struct CostArgs {
    #[command(flatten)]
    pub set: ModelSetArgs,
    /// Print each operator and transfer too, foretold and measured.
    #[arg(long)]
    pub each: bool,
}

/// Which jobs through which market.
#[derive(Debug, clap::Args)]
pub struct SubmitBenchArgs {
    /// Jobs of all buyers together.
    #[arg(long, default_value_t = 200)]
    pub jobs: u32,
    /// Buyers, each submitting one job after another.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub buyers: u32,
    /// Providers, each a process with one emulated device.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub providers: u32,
    /// Validators.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// Run jobs in the providers' own processes, to see what isolation costs.
    #[arg(long)]
    pub no_isolation: bool,
}

/// What to replicate.
#[derive(Debug, clap::Args)]
pub struct ConsensusArgs {
    /// Replicas.
    #[arg(long, default_value_t = 3)]
    pub nodes: u64,
    /// Clients, each waiting for its answer before it asks again.
    #[arg(long, default_value_t = 64)]
    pub clients: u64,
    /// Bytes of a command.
    #[arg(long, default_value_t = 256)]
    pub size: usize,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Who signs what: none, each or batch64.
    #[arg(long, default_value = "none")]
    pub signed: String,
    /// Kill the leader so many times instead, and measure how long the next commit takes.
    #[arg(long, value_name = "N")]
    pub kills: Option<u64>,
    /// Replicate so many commands instead, then kill validators, start them again, and measure how
    /// long they take to serve.
    #[arg(long, value_name = "N", conflicts_with = "kills")]
    pub restart: Option<u64>,
    /// A folder on the disk to measure.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub disk: PathBuf,
}

/// One replica of a benchmark.
#[derive(Debug, clap::Args)]
pub struct BenchNodeArgs {
    /// Its id, from 1.
    #[arg(long)]
    pub id: u64,
    /// The ports of all replicas.
    #[arg(long, value_delimiter = ',')]
    pub ports: Vec<u16>,
    /// Who signs what.
    #[arg(long)]
    pub signed: String,
}

/// A flow of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlowName {
    /// Deep.
    A,
    /// Hot.
    B,
}
