//! Defines the subcommands of `souk bench` and their arguments. Their doc comments are the text of
//! `--help`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use souk_cli::options::{Backend, bytes};

/// A benchmark, by the part of souk that it measures.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Run the ONNX project's operator tests, one folder per case.
    Conformance {
        /// The folder with the cases.
        folder: PathBuf,
        /// The backend to use.
        #[arg(long, value_enum, default_value_t = Backend::Cpu)]
        backend: Backend,
        /// A part of the GPU's name, if there are several.
        #[arg(long, default_value = "")]
        device: String,
    },
    /// Time whole models, on generated inputs that other engines can reproduce.
    Models(ModelsArgs),
    /// Compare the peak memory of whole models with that of rten alone on the same files, one
    /// process each.
    Memory(ModelSetArgs),
    /// Measure how well the CPU's cost model predicts the largest operators of models.
    Cost(CostArgs),
    /// Run a flow of orders through the bare order book and the full exchange.
    Market(MarketBenchArgs),
    /// Plan published scheduling instances.
    Plan {
        /// The instances (.json.gz).
        file: PathBuf,
        /// The planner; an unknown name lists all planners.
        #[arg(long, default_value = "auto")]
        planner: String,
        /// The time for each instance, in milliseconds.
        #[arg(long, default_value_t = 10)]
        budget_ms: u64,
        /// The output file for the schedules, one line per instance.
        #[arg(long, default_value = "schedules.jsonl")]
        out: PathBuf,
    },
    /// Partition published graphs over accelerators for throughput.
    Partition {
        /// The graphs (.json.gz).
        file: PathBuf,
        /// The output file for the placements, one line per graph.
        #[arg(long, default_value = "placements.jsonl")]
        out: PathBuf,
    },
    /// Run empty and small tasks on workers of this machine, to measure the executor's cost for
    /// each.
    Tasks {
        /// The number of workers.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        devices: u8,
    },
    /// Split single operators between two different devices, and compare with the best splits that
    /// an exhaustive search finds.
    Split {
        /// The devices of this machine.
        #[command(flatten)]
        machine: MachineArgs,
        /// Measure only this pair. Can be given several times; an unknown name lists all pairs.
        #[arg(long = "pair", value_name = "NAME")]
        pairs: Vec<String>,
    },
    /// Run models on mixes of different devices, and compare with the best single device and the
    /// plan.
    Mixes {
        /// The devices of this machine.
        #[command(flatten)]
        machine: MachineArgs,
        /// A model to run in addition to the bundled ones.
        #[command(flatten)]
        model: ModelArgs,
    },
    /// Run a model on the CPU directly and through the scheduler, in turn.
    Overhead {
        /// The model to run.
        #[command(flatten)]
        model: ModelArgs,
        /// The number of CPU threads; 0 uses all.
        #[arg(long, default_value_t = 0)]
        threads: u32,
        /// The number of runs of each.
        #[arg(long, default_value_t = 60)]
        rounds: usize,
    },
    /// Transfer content between two processes by bare libp2p, plain TCP, the tensor protocol and
    /// its direct channel.
    Tensors(BenchTensorsArgs),
    /// Hold the content of `souk bench tensors` in a process of its own.
    #[command(hide = true)]
    TensorHolder(BenchTensorsArgs),
    /// Run jobs through a market of real processes, and time each step.
    Submit(SubmitBenchArgs),
    /// Open and settle leases in a market of real validators, without any work, and count them.
    Leases(LeaseBenchArgs),
    /// Measure how soon validators certify what they committed, how fast a log is audited, and what
    /// cosigning costs.
    Certificates(CertificatesArgs),
    /// Measure the proofs of receipts and accounts, and what the state root costs.
    Proofs(ProofsArgs),
    /// Time a validator's answer to a buyer that asks for suitable offers, by the size of the book.
    Choose {
        /// The numbers of asks in the book.
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000",
            value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        asks: Vec<u32>,
    },
    /// Ask a fake engine directly and through a market of real processes, in turn, and compare the
    /// times; then kill providers in the middle of answers.
    Tokens(TokensBenchArgs),
    /// Measure the replication of commands over separate processes.
    Consensus(ConsensusArgs),
    /// Run one replica of `souk bench consensus`.
    #[command(hide = true)]
    Node(BenchNodeArgs),
}

/// Devices of this machine, in addition to the emulated ones.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// The number of CPU threads; 0 uses all, and a software GPU then competes with them.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// A part of the name of a GPU to use with the CPU, such as llvmpipe.
    #[arg(long)]
    pub gpu: Option<String>,
    /// Leave the emulated devices out.
    #[arg(long)]
    pub real_only: bool,
}

/// The load on a market.
#[derive(Debug, clap::Args)]
pub struct MarketBenchArgs {
    /// The flow of orders: a is deep (100,000 orders rest), b is hot (most operations move an
    /// order).
    #[arg(long, value_enum, default_value_t = FlowName::A)]
    pub flow: FlowName,
    /// The number of operations.
    #[arg(long, default_value_t = 1_000_000)]
    pub operations: usize,
    /// Instead, time commits in a market of processes with and without this many readers; each
    /// reader asks every two seconds for what a dashboard shows.
    #[arg(long, default_value_t = 0)]
    pub readers: u32,
    /// The number of closed leases in that market.
    #[arg(long, default_value_t = 100_000)]
    pub closed_leases: u32,
    /// The number of validators of that market.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// The number of rounds with readers, which alternate with as many rounds without.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// The duration of each round, in seconds.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
}

/// A model and the sizes of its inputs.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// The model (.onnx, with its weights inside).
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// The sizes of the dimensions that the model leaves open, input by input.
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
}

/// The content to transfer.
#[derive(Debug, clap::Args)]
pub struct BenchTensorsArgs {
    /// The size of the large content, such as 1GiB.
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    pub size: u64,
    /// The number of small contents.
    #[arg(long, default_value_t = 10_000)]
    pub small: u32,
    /// The number of rounds; the best one counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
}

/// The models to time, and the device.
#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    /// A model, or a folder of models.
    pub path: PathBuf,
    /// The backend to use.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    /// A part of the GPU's name, if there are several.
    #[arg(long, default_value = "")]
    pub device: String,
    /// The number of CPU threads; 0 uses all.
    #[arg(long, default_value_t = 0)]
    pub threads: u32,
    /// The sizes of the dimensions that an input leaves open, such as 8,128; 1 for those that
    /// remain.
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<usize>,
    /// The number of runs of each model.
    #[arg(long, default_value_t = 20)]
    pub runs: usize,
    /// Run the models on rten alone, without souk, to compare.
    #[arg(long)]
    pub rten_only: bool,
    /// Run the models on the CPU's quickest kernels and on the exact ones (exact-1) in turn, and
    /// print the ratio of the times.
    #[arg(long, conflicts_with_all = ["rten_only", "backend", "device"])]
    pub exact: bool,
}

/// Models for the CPU.
#[derive(Debug, clap::Args)]
pub struct ModelSetArgs {
    /// The models, each with the sizes that its inputs leave open, if any: minilm.onnx:8,128.
    #[arg(required = true, value_name = "FILE[:SIZES]")]
    pub models: Vec<String>,
    /// The number of CPU threads. With one, `cost` counts processor time, which other work on the
    /// machine disturbs less.
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub threads: NonZeroUsize,
    /// The number of operators of each model, the largest first.
    #[arg(long, default_value_t = 30)]
    pub operators: usize,
}

/// Models whose operator times the cost model predicts.
#[derive(Debug, clap::Args)]
pub struct CostArgs {
    #[command(flatten)]
    pub set: ModelSetArgs,
    /// Also print each operator and transfer, predicted and measured.
    #[arg(long)]
    pub each: bool,
}

/// The jobs, and the market that runs them.
#[derive(Debug, clap::Args)]
pub struct SubmitBenchArgs {
    /// The number of jobs of all buyers together.
    #[arg(long, default_value_t = 200)]
    pub jobs: u32,
    /// The number of buyers; each submits one job after another.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub buyers: u32,
    /// The number of providers, each a process with one emulated device.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub providers: u32,
    /// The number of validators, 1 to 15.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// Run jobs in the providers' own processes, to measure the cost of isolation.
    #[arg(long)]
    pub no_isolation: bool,
}

/// The leases, and the market that carries them.
#[derive(Debug, clap::Args)]
pub struct LeaseBenchArgs {
    /// The number of validators, 1 to 15.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
    /// The pairs of a buyer and a provider that trade with each other.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pairs: u32,
    /// The leases that each pair has open at once. Validators close a connection with many more.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub streams: u32,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
}

/// The market that certifies its history, and the replicas of the bare log.
#[derive(Debug, clap::Args)]
pub struct CertificatesArgs {
    /// The number of validators, and of replicas of the bare log.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=15))]
    pub validators: u32,
    /// The pairs of a buyer and a provider that settle leases.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pairs: u32,
    /// The leases that each pair has open at once.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub streams: u32,
    /// The clients of the bare log; each signs its commands and waits for its answer.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4_096))]
    pub clients: u64,
    /// How long to trade, and to measure the bare log each time, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// The rounds of the bare log; each runs it without and then with cosigning.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
}

/// The histories and states to prove something of.
#[derive(Debug, clap::Args)]
pub struct ProofsArgs {
    /// The number of leaves of the history.
    #[arg(long, default_value_t = 100_000_000,
        value_parser = clap::value_parser!(u64).range(1_000_000..=1_000_000_000_000))]
    pub leaves: u64,
    /// The number of accounts of the state.
    #[arg(long, default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub accounts: u32,
    /// The operations of each order flow whose state roots are timed.
    #[arg(long, default_value_t = 400_000,
        value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub operations: u32,
    /// The signed commands per second, of which a quarter comes between two roots.
    #[arg(long, default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(4..))]
    pub rate: u32,
}

/// The questions, and the market that answers them.
#[derive(Debug, clap::Args)]
pub struct TokensBenchArgs {
    /// The questions per second while the added time is measured.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// The number of rounds; each asks the engine alone and then through the market.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// The duration of each half of a round, in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub seconds: u64,
    /// The number of questions while providers are killed.
    #[arg(long, default_value_t = 1_000)]
    pub questions: u32,
    /// The number of clients that ask them, one after another.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub clients: u32,
    /// The number of kills; each killed provider restarts at once.
    #[arg(long, default_value_t = 20)]
    pub kills: u32,
    /// The number of providers, all of the same engine.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=32))]
    pub providers: u32,
    /// The number of validators.
    #[arg(long, default_value_t = 3)]
    pub validators: u32,
}

/// The commands to replicate, and the replicas.
#[derive(Debug, clap::Args)]
pub struct ConsensusArgs {
    /// The number of replicas.
    #[arg(long, default_value_t = 3)]
    pub nodes: u64,
    /// The number of clients; each waits for its answer before it asks again.
    #[arg(long, default_value_t = 64)]
    pub clients: u64,
    /// The size of a command, in bytes.
    #[arg(long, default_value_t = 256)]
    pub size: usize,
    /// How long to measure, in seconds.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// The signatures on commands: none, each or batch64.
    #[arg(long, default_value = "none")]
    pub signed: String,
    /// Have the replicas cosign the history four times a second, as a market's validators do.
    #[arg(long)]
    pub cosigned: bool,
    /// Instead, kill the leader this many times, and measure the time until the next commit.
    #[arg(long, value_name = "N")]
    pub kills: Option<u64>,
    /// Instead, replicate this many commands, then kill and restart validators, and measure the
    /// time until they serve.
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
    /// The signatures on commands.
    #[arg(long)]
    pub signed: String,
    /// Whether it cosigns the history.
    #[arg(long)]
    pub cosigned: bool,
}

/// A flow of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlowName {
    /// Deep.
    A,
    /// Hot.
    B,
}
