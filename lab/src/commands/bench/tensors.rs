//! `souk bench tensors`: measures how fast content moves between two processes of this machine over
//! each kind of connection, with bare streams and plain TCP for comparison.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use souk_network::content::direct::DirectListen;
use souk_network::content::links::Carrier;

use crate::content_bench::{
    self as bench, BareStreamNode, BenchError, Card, ContentFetcher, ContentHolder, SMALL_BYTES,
};
use serde::Serialize;
use souk_host::clock;
use souk_node::memory::ContentId;

use crate::args::BenchTensorsArgs;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::program::program_path;
use souk_cli::show::{self, print_line};

/// The results of all rounds.
#[derive(Serialize)]
struct Report {
    bytes: u64,
    rounds: u32,
    ways: Vec<CarrierRow>,
    small: SmallTensorRow,
}

/// The fastest round over one connection.
#[derive(Clone, Serialize)]
struct CarrierRow {
    way: &'static str,
    gb_per_second: f64,
    /// Rate of the first round, in which the process allocates memory for the content.
    first_gb_per_second: f64,
    /// Processor seconds for 10^9 bytes, at each end.
    sender_cpu_seconds_per_gb: f64,
    receiver_cpu_seconds_per_gb: f64,
    /// Rate relative to the bare stream of this run, best round against best round.
    of_bare_stream: f64,
    /// The median over all rounds but the first, each against the bare stream of the same round:
    /// ratios of wall time, and of processor time at both ends.
    paired_of_bare_stream: f64,
    paired_cpu_of_bare_stream: f64,
    /// The same ratios against a stream over a connection that libp2p sets up by itself.
    paired_of_libp2p: f64,
    paired_cpu_of_libp2p: f64,
}

/// The connections in the order of the report; the constants below are indices into it.
const WAYS: [&str; 5] = [
    "plain TCP",
    "libp2p by itself",
    "bare libp2p stream",
    "/souk/tensor/2",
    "direct channel",
];
const TCP: usize = 0;
const LIBP2P: usize = 1;
const BARE: usize = 2;
const STREAM: usize = 3;
const DIRECT: usize = 4;

#[derive(Serialize)]
struct SmallTensorRow {
    count: u32,
    bytes_each: usize,
    per_second: f64,
    sender_cpu_us_each: f64,
    receiver_cpu_us_each: f64,
}

/// The seconds of wall time and of processor time that a round took.
#[derive(Clone, Copy)]
struct RoundTimes {
    seconds: f64,
    sender_cpu: f64,
    receiver_cpu: f64,
}

/// The process at the other end.
struct PeerProcess {
    child: Child,
    // `None` after this process ended the other's input.
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // The other process stops when its input ends.
        self.ask = None;
        let _ = self.child.wait();
    }
}

/// Measures all connections in turn, for the requested number of rounds.
pub async fn run(output: Output, args: &BenchTensorsArgs) -> Outcome {
    let (mut other, card) = start_holder(args)?;
    let report = measure_carriers(args, &card, &mut other).await?;
    match output {
        Output::Json => show::print_json(&report),
        Output::Text => print_report(&report),
    }
    Ok(())
}

/// Runs the process that holds the content, until its input ends.
pub async fn hold_content(args: &BenchTensorsArgs) -> Outcome {
    let bytes = usize::try_from(args.size).map_err(|error| bench_failure(&error))?;
    let holder = ContentHolder::start(bytes, args.small)
        .await
        .map_err(|error| bench_failure(&error))?;
    show::print_json(holder.card());
    let answering = tokio::task::spawn_blocking(|| {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            print_line(&cpu_seconds().to_string());
        }
    });
    answering.await.map_err(|error| bench_failure(&error))
}

fn start_holder(args: &BenchTensorsArgs) -> Result<(PeerProcess, Card), Failure> {
    let mut command = Command::new(program_path()?);
    command
        .args(["bench", "tensor-holder", "--size", &args.size.to_string()])
        .args(["--small", &args.small.to_string()]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| bench_failure(&error))?;
    let ask = child.stdin.take();
    let answers = child.stdout.take().expect("it was asked for");
    let answers = BufReader::new(answers).lines();
    let mut other = PeerProcess {
        child,
        ask,
        answers,
    };
    let card = serde_json::from_str(&other.read_line()?).map_err(|error| bench_failure(&error))?;
    Ok((other, card))
}

impl PeerProcess {
    fn read_line(&mut self) -> Result<String, Failure> {
        match self.answers.next() {
            Some(Ok(line)) => Ok(line),
            _ => Err(bench_failure(&"the process that holds the content ended")),
        }
    }

    fn cpu_seconds(&mut self) -> Result<f64, Failure> {
        let asked = self.ask.as_mut().map(|ask| writeln!(ask));
        asked.transpose().map_err(|error| bench_failure(&error))?;
        self.read_line()?
            .parse()
            .map_err(|error| bench_failure(&error))
    }
}

async fn measure_carriers(
    args: &BenchTensorsArgs,
    card: &Card,
    other: &mut PeerProcess,
) -> Result<Report, Failure> {
    let (bytes, id) = (args.size, card.large);
    let fail = |error: BenchError| bench_failure(&error);
    let stream = ContentFetcher::start(card, DirectListen::Off)
        .await
        .map_err(fail)?;
    let channel = ContentFetcher::start(card, DirectListen::Nowhere)
        .await
        .map_err(fail)?;
    let plain = BareStreamNode::start().await.map_err(fail)?;
    let mut rounds: [Vec<RoundTimes>; WAYS.len()] = Default::default();
    for round in 0..args.rounds {
        for turn in 0..WAYS.len() {
            // Every second round goes backwards, so that no connection always follows the same one.
            let way = match round % 2 {
                0 => turn,
                _ => WAYS.len() - 1 - turn,
            };
            let before = (other.cpu_seconds()?, cpu_seconds());
            let begin = Instant::now();
            let taken = match way {
                TCP => bench::over_tcp(card, bytes)
                    .map(|()| None)
                    .map_err(BenchError::from),
                LIBP2P => plain.read_bare(card, bytes).await.map(|()| None),
                BARE => stream.read_bare(bytes).await.map(|()| None),
                STREAM => stream.fetch_content(id).await,
                _ => channel.fetch_content(id).await,
            };
            let seconds = begin.elapsed().as_secs_f64();
            let came_over = taken.map_err(fail)?;
            check_carrier(way, came_over)?;
            rounds[way].push(RoundTimes {
                seconds,
                sender_cpu: other.cpu_seconds()? - before.0,
                receiver_cpu: cpu_seconds() - before.1,
            });
        }
    }
    let ways = WAYS.into_iter().zip(&rounds);
    let ways = ways.map(|(way, took)| row(way, bytes, took, [&rounds[BARE], &rounds[LIBP2P]]));
    let ways = ways.collect();
    let small = measure_small(args, &stream, other).await?;
    let rounds = args.rounds;
    Ok(Report {
        bytes,
        rounds,
        ways,
        small,
    })
}

fn row(
    way: &'static str,
    bytes: u64,
    rounds: &[RoundTimes],
    [bare, plain]: [&[RoundTimes]; 2],
) -> CarrierRow {
    let gb = bytes as f64 / 1e9;
    let (best, best_bare) = (fastest_round(rounds), fastest_round(bare));
    CarrierRow {
        way,
        gb_per_second: gb / best.seconds,
        first_gb_per_second: gb / rounds[0].seconds,
        sender_cpu_seconds_per_gb: best.sender_cpu / gb,
        receiver_cpu_seconds_per_gb: best.receiver_cpu / gb,
        of_bare_stream: best_bare.seconds / best.seconds,
        paired_of_bare_stream: median_ratio(rounds, bare, RoundTimes::speed_of),
        paired_cpu_of_bare_stream: median_ratio(rounds, bare, RoundTimes::cpu_of),
        paired_of_libp2p: median_ratio(rounds, plain, RoundTimes::speed_of),
        paired_cpu_of_libp2p: median_ratio(rounds, plain, RoundTimes::cpu_of),
    }
}

fn fastest_round(rounds: &[RoundTimes]) -> RoundTimes {
    let fastest = rounds.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    *fastest.expect("there is a round at least")
}

/// Returns the median ratio of all rounds but the first, which allocates memory; or that of the
/// first round if it is the only one.
fn median_ratio(
    rounds: &[RoundTimes],
    bare: &[RoundTimes],
    ratio: fn(&RoundTimes, &RoundTimes) -> f64,
) -> f64 {
    let skipped = usize::from(rounds.len() > 1);
    let pairs = rounds.iter().zip(bare).skip(skipped);
    let mut ratios: Vec<f64> = pairs.map(|(took, bare)| ratio(took, bare)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

impl RoundTimes {
    fn total_cpu(&self) -> f64 {
        self.sender_cpu + self.receiver_cpu
    }

    fn speed_of(&self, other: &RoundTimes) -> f64 {
        other.seconds / self.seconds
    }

    fn cpu_of(&self, other: &RoundTimes) -> f64 {
        self.total_cpu() / other.total_cpu()
    }
}

/// Checks that the content came over the expected connection: a figure under the wrong name would
/// be worse than none.
fn check_carrier(way: usize, came_over: Option<Carrier>) -> Outcome {
    match (way, came_over) {
        (STREAM, Some(Carrier::Stream))
        | (DIRECT, Some(Carrier::Direct))
        | (TCP | LIBP2P | BARE, _) => Ok(()),
        _ if way == DIRECT => Err(bench_failure(
            &"the direct channel was not set up; is the size under 4 MiB?",
        )),
        _ => Err(bench_failure(&"the content did not arrive over the stream")),
    }
}

async fn measure_small(
    args: &BenchTensorsArgs,
    taker: &ContentFetcher,
    other: &mut PeerProcess,
) -> Result<SmallTensorRow, Failure> {
    let ids: Vec<ContentId> = (0..args.small)
        .map(|n| ContentId::for_content(&bench::small_content(n)))
        .collect();
    let mut best: Option<RoundTimes> = None;
    for _ in 0..args.rounds {
        let before = (other.cpu_seconds()?, cpu_seconds());
        let begin = Instant::now();
        taker
            .fetch_small(&ids)
            .await
            .map_err(|error| bench_failure(&error))?;
        let seconds = begin.elapsed().as_secs_f64();
        let took = RoundTimes {
            seconds,
            sender_cpu: other.cpu_seconds()? - before.0,
            receiver_cpu: cpu_seconds() - before.1,
        };
        if best.is_none_or(|best| seconds < best.seconds) {
            best = Some(took);
        }
    }
    let took = best.expect("there is a round at least");
    let count = f64::from(args.small.max(1));
    Ok(SmallTensorRow {
        count: args.small,
        bytes_each: SMALL_BYTES,
        per_second: count / took.seconds,
        sender_cpu_us_each: took.sender_cpu * 1e6 / count,
        receiver_cpu_us_each: took.receiver_cpu * 1e6 / count,
    })
}

/// Returns the processor time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    clock::of_process().as_secs_f64()
}

fn bench_failure(cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(Kind::Unexpected, cause, "see what the other process prints")
}

fn print_report(report: &Report) {
    let gib = report.bytes as f64 / f64::from(1 << 30);
    print_line(&format!(
        "{gib:.2} GiB between two processes, best of {}:",
        report.rounds
    ));
    for row in &report.ways {
        print_line(&format!(
            "  {:18} {:6.3} GB/s ({:.3} at first), {:.2} x the bare stream ({:.2} from round to \
             round, {:.2} x its processor time; {:.2} and {:.2} of libp2p by itself), {:.2} + \
             {:.2} processor seconds a GB",
            row.way,
            row.gb_per_second,
            row.first_gb_per_second,
            row.of_bare_stream,
            row.paired_of_bare_stream,
            row.paired_cpu_of_bare_stream,
            row.paired_of_libp2p,
            row.paired_cpu_of_libp2p,
            row.sender_cpu_seconds_per_gb,
            row.receiver_cpu_seconds_per_gb,
        ));
    }
    let small = &report.small;
    print_line(&format!(
        "{} contents of {} bytes: {:.0} per second, {:.1} + {:.1} us of processor time each",
        small.count,
        small.bytes_each,
        small.per_second,
        small.sender_cpu_us_each,
        small.receiver_cpu_us_each,
    ));
}
