//! Drives `souk bench consensus`: starts the processes of the replicas, sends commands as many
//! clients would, and measures the rate and the delay of the answers and the processor time of each
//! replica. The tests of failover and restart use its parts.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt};
use libp2p::swarm::Stream;
use souk_consensus::codec::TruncationError;
use souk_network::wire::{self, WireError};
use souk_network::{Network, OpenError};

use super::machine::{client_key, driver_key, sign_command};
use super::protocol::{PUT, PutRequest, PutResult, ReplicaProgress, STATUS, key, replica_contact};
use super::{Bench, Measurement, Signing};
use souk_testnet::ports::Ports;

/// A group must elect a leader within this time.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Answers in this time are not counted.
const WARM_UP: Duration = Duration::from_secs(1);

/// Number of payloads made beforehand, so that the measurement does not include making them.
const PAYLOADS: usize = 1_024;

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The system refused an operation.
    #[error("cannot run the benchmark: {0}")]
    System(#[from] std::io::Error),
    /// The driver's own network failed.
    #[error(transparent)]
    Network(#[from] souk_network::StartError),
    /// A replica is unreachable.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream to a replica failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A replica's answer is malformed.
    #[error("a replica's answer is cut short: {0}")]
    Answer(#[from] TruncationError),
    /// The replicas elected no leader.
    #[error("no leader after {START_PATIENCE:?}; the replicas' logs are in {}", .0.display())]
    NoLeader(PathBuf),
    /// The leader refused a command.
    #[error("the leader refused command {0}")]
    Refused(u64),
    /// A replica does not catch up.
    #[error("replica {0} still lags behind the leader")]
    Lags(u64),
}

/// The replicas' processes. Dropping this value kills them.
pub(super) struct Group {
    pub nodes: Vec<Option<Child>>,
    pub ports: Ports,
    pub network: Network,
    bench: Bench,
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().flatten() {
            // The process can have ended already.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

/// Runs the benchmark. The replicas' logs will stay in its folder.
///
/// # Errors
/// If the replicas do not start, or fail.
pub async fn run(bench: &Bench) -> Result<Measurement, BenchError> {
    let group = Group::start(bench).await?;
    let leader = group.await_leader().await?;
    let stream = group
        .network
        .open_stream(key(leader).peer_id(), PUT)
        .await?;
    let clients = Clients::new(bench);
    let cpu = group.cpu_times();
    // The clients share the connection's thread. On another thread, they would also measure how
    // long the two threads take to wake each other.
    let running = tokio::spawn(clients.run(stream, StopCondition::Seconds(bench.seconds)));
    let answered = running.await.map_err(std::io::Error::other)??;
    let operations = answered.operations + answered.warm_up_operations;
    let spent = group.cpu_times();
    let per_operation = |part: fn(&Cpu) -> f64| {
        let each = spent.iter().zip(&cpu);
        let each = each.map(|(after, before)| part(after) - part(before));
        let mut each: Vec<f64> = each.map(|spent| spent * 1e6 / operations as f64).collect();
        each.swap(0, usize::try_from(leader - 1).unwrap_or(0));
        each
    };
    Ok(Measurement {
        cpu_us_per_operation: per_operation(|cpu| cpu.all_seconds),
        verifier_us_per_operation: per_operation(|cpu| cpu.verifier_seconds),
        ..to_measurement(bench, answered)
    })
}

impl Group {
    pub(super) async fn start(bench: &Bench) -> Result<Self, BenchError> {
        let ports = Ports::reserve_free(bench.nodes as usize)?;
        let network = Network::start(&driver_key(), souk_network::NetworkConfig::default()).await?;
        let mut group = Self {
            nodes: Vec::new(),
            ports,
            network,
            bench: bench.clone(),
        };
        for id in 1..=bench.nodes {
            let child = group.spawn_replica(id)?;
            group.nodes.push(Some(child));
            let port = group.ports.numbers()[replica_index(id)];
            // The network has just started, so it has not stopped.
            let _ = group.network.add_contact(&replica_contact(id, port)).await;
        }
        Ok(group)
    }

    pub(super) fn spawn_replica(&self, id: u64) -> std::io::Result<Child> {
        let (program, before) = &self.bench.program;
        let ports: Vec<String> = self
            .ports
            .numbers()
            .iter()
            .map(ToString::to_string)
            .collect();
        let signed = match self.bench.signed {
            Signing::None => "none",
            Signing::Each => "each",
            Signing::Batch64 => "batch64",
        };
        let cosigned: &[&str] = match self.bench.is_cosigned {
            true => &["--cosigned"],
            false => &[],
        };
        Command::new(program)
            .args(before)
            .args(cosigned)
            .args([
                "--id",
                &id.to_string(),
                "--ports",
                &ports.join(","),
                "--signed",
                signed,
            ])
            .arg("--dir")
            .arg(self.bench.folder.join(id.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
    }

    /// Kills a replica with SIGKILL.
    pub(super) fn kill_replica(&mut self, id: u64) -> std::io::Result<()> {
        match self.nodes[replica_index(id)].take() {
            Some(mut child) => child.kill().and_then(|()| child.wait()).map(drop),
            None => Ok(()),
        }
    }

    /// Restarts a killed replica.
    pub(super) fn restart_replica(&mut self, id: u64) -> std::io::Result<()> {
        self.nodes[replica_index(id)] = Some(self.spawn_replica(id)?);
        Ok(())
    }

    /// Waits until the replicas agree on a leader.
    pub(super) async fn await_leader(&self) -> Result<u64, BenchError> {
        let until = Instant::now() + START_PATIENCE;
        while Instant::now() < until {
            for id in 1..=self.bench.nodes {
                if let Ok(standing) = self.fetch_status(id).await
                    && standing.leader == id
                {
                    return Ok(id);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(BenchError::NoLeader(self.bench.folder.clone()))
    }

    pub(super) async fn fetch_status(&self, id: u64) -> Result<ReplicaProgress, BenchError> {
        let mut stream = self.network.open_stream(key(id).peer_id(), STATUS).await?;
        Ok(wire::receive(&mut stream).await?)
    }

    /// Returns the processor time of each replica so far.
    fn cpu_times(&self) -> Vec<Cpu> {
        let nodes = self.nodes.iter();
        nodes
            .map(|child| {
                child
                    .as_ref()
                    .map(|child| Cpu::for_process(child.id()))
                    .unwrap_or_default()
            })
            .collect()
    }
}

/// When the clients stop.
#[derive(Clone, Copy, Debug)]
pub(super) enum StopCondition {
    /// After this many measured seconds, which follow one second of warm-up.
    Seconds(u64),
    /// After this many answered commands; all count.
    Operations(u64),
}

impl StopCondition {
    /// Returns how long answers do not count.
    fn warm_up(self) -> Duration {
        match self {
            Self::Seconds(_) => WARM_UP,
            Self::Operations(_) => Duration::ZERO,
        }
    }

    fn is_over(self, elapsed: Duration, operations: u64) -> bool {
        match self {
            Self::Seconds(seconds) => elapsed >= WARM_UP + Duration::from_secs(seconds),
            Self::Operations(wanted) => operations >= wanted,
        }
    }

    /// Returns whether the client should send another command after `sent` ones.
    fn wants_more(self, sent: u64) -> bool {
        match self {
            Self::Seconds(_) => true,
            Self::Operations(wanted) => sent < wanted,
        }
    }
}

/// The results of the clients.
pub(super) struct ClientResults {
    pub operations: u64,
    /// Answers during warm-up, which also cost processor time.
    warm_up_operations: u64,
    pub seconds: f64,
    latencies: Vec<Duration>,
}

/// The clients. Each has one request in flight.
pub(super) struct Clients {
    bench: Bench,
    payloads: Vec<Bytes>,
    started: Vec<Instant>,
    latencies: Vec<Duration>,
}

impl Clients {
    pub(super) fn new(bench: &Bench) -> Self {
        Self {
            bench: bench.clone(),
            payloads: make_payloads(bench),
            started: Vec::new(),
            latencies: Vec::new(),
        }
    }

    /// Sends requests until `until`. Every request must be applied: the first refused one ends the
    /// measurement with an error.
    pub(super) async fn run(
        mut self,
        stream: Stream,
        until: StopCondition,
    ) -> Result<ClientResults, BenchError> {
        let (mut from, mut to) = stream.split();
        let begun = Instant::now();
        self.started = vec![begun; usize::try_from(self.bench.clients).unwrap_or(usize::MAX)];
        let first: Vec<PutRequest> = (0..self.bench.clients)
            .map(|client| self.next_put(client))
            .collect();
        wire::send_bytes(&mut to, &PutRequest::encode(&first)).await?;
        let (mut operations, mut warm_up_operations) = (0, 0);
        let mut sent = self.bench.clients * self.bench.signed.commands_per_request();
        while !until.is_over(begun.elapsed(), operations) {
            let done = receive_done(&mut from).await?;
            let now = Instant::now();
            let counts = now.duration_since(begun) >= until.warm_up();
            let mut next = Vec::with_capacity(done.len());
            for PutResult { number, applied } in done {
                if !applied {
                    return Err(BenchError::Refused(number));
                }
                if counts {
                    operations += self.bench.signed.commands_per_request();
                    let place = usize::try_from(number).unwrap_or(usize::MAX);
                    self.latencies.push(now.duration_since(self.started[place]));
                } else {
                    warm_up_operations += self.bench.signed.commands_per_request();
                }
                if until.wants_more(sent) {
                    sent += self.bench.signed.commands_per_request();
                    next.push(self.next_put(number));
                }
            }
            wire::send_bytes(&mut to, &PutRequest::encode(&next)).await?;
        }
        Ok(ClientResults {
            operations,
            warm_up_operations,
            seconds: (begun.elapsed() - until.warm_up()).as_secs_f64(),
            latencies: self.latencies,
        })
    }

    fn next_put(&mut self, client: u64) -> PutRequest {
        let place = usize::try_from(client).unwrap_or(usize::MAX);
        self.started[place] = Instant::now();
        let payload = self.payloads[place % self.payloads.len()].clone();
        PutRequest {
            number: client,
            payload,
        }
    }
}

/// Returns a replica's index in lists.
fn replica_index(id: u64) -> usize {
    usize::try_from(id - 1).unwrap_or(usize::MAX)
}

/// Receives the next answers.
pub(super) async fn receive_done(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Vec<PutResult>, BenchError> {
    let frame = wire::receive_bytes(from).await?.ok_or(WireError::Closed)?;
    Ok(PutResult::decode(frame.into())?)
}

/// Makes payloads of the configured size and signing.
fn make_payloads(bench: &Bench) -> Vec<Bytes> {
    let size = bench.size_bytes * usize::try_from(bench.signed.commands_per_request()).unwrap_or(1);
    (0..PAYLOADS)
        .map(|number| {
            let filler = u8::try_from(number % 251).unwrap_or(0);
            let mut commands = vec![filler; size];
            let name = (number as u64).to_le_bytes();
            let named = commands.len().min(name.len());
            commands[..named].copy_from_slice(&name[..named]);
            if bench.signed == Signing::None {
                return Bytes::from(commands);
            }
            Bytes::from(sign_command(&client_key(number as u64), &commands))
        })
        .collect()
}

fn to_measurement(bench: &Bench, answered: ClientResults) -> Measurement {
    let ClientResults {
        operations,
        seconds,
        mut latencies,
        ..
    } = answered;
    latencies.sort_unstable();
    let at = |permille: usize| {
        let place = (latencies.len() * permille / 1_000).min(latencies.len().saturating_sub(1));
        latencies
            .get(place)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    Measurement {
        nodes: bench.nodes,
        clients: bench.clients,
        size_bytes: bench.size_bytes,
        signed: bench.signed,
        cosigned: bench.is_cosigned,
        seconds,
        operations,
        operations_per_second: operations as f64 / seconds,
        p50_ms: at(500),
        p99_ms: at(990),
        max_ms: at(1_000),
        cpu_us_per_operation: Vec::new(),
        verifier_us_per_operation: Vec::new(),
    }
}

/// Processor time of a process so far.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    /// Seconds of all threads.
    all_seconds: f64,
    /// Seconds of the thread that verifies other replicas' input.
    verifier_seconds: f64,
}

impl Cpu {
    /// Reads the time of each thread, which Linux counts in nanoseconds. On other systems, it will
    /// be zero.
    fn for_process(process: u32) -> Self {
        let mut cpu = Self::default();
        let threads = std::fs::read_dir(format!("/proc/{process}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let nanoseconds = read("schedstat");
            let nanoseconds = nanoseconds.split_whitespace().next();
            let seconds = nanoseconds.and_then(|field| field.parse::<f64>().ok());
            let seconds = seconds.unwrap_or_default() / 1e9;
            cpu.all_seconds += seconds;
            if read("comm").starts_with("verify-") {
                cpu.verifier_seconds += seconds;
            }
        }
        cpu
    }
}
