//! Measures what the market adds to an engine's answers, and whether answers survive the loss of
//! providers.
//!
//! The test starts a market of real processes whose providers sell one fake engine by the token,
//! and a `souk openai` server that buys. Its two parts:
//! - **Added time.** The same questions go at a fixed rate to the engine directly and through the
//!   market, in turn; the difference is what souk adds. The server and the providers must not use
//!   the processor for more than a part of a millisecond a token, which the report states, too.
//! - **Kills.** Clients ask one question after another, while the test kills one provider after
//!   another in the middle of answers, and restarts it. Every answer must arrive whole.

mod chat_client;
mod engine;
mod scratch_sellers;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use souk_testnet::cluster::ControlError;
use souk_testnet::layout::{self, LayoutError};
use souk_testnet::process::StartError;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::submissions::TimePercentiles;
use chat_client::{AskError, Target, TimedAnswer};
use engine::{Engine, Question};
use scratch_sellers::SellingMarket;

/// How long the market answers questions before each measured phase: it buys its tabs in this time,
/// because it gave them back while the engine alone was measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// The pieces of an answer whose added time is measured, which come without a pause.
const QUICK_PIECES: u32 = 16;

/// The pieces of an answer while providers are killed, and the engine's pause before each.
const LONG_PIECES: u32 = 40;
const LONG_PAUSE_MS: u64 = 10;

/// Configuration of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct TokenBenchConfig {
    /// Number of validators.
    pub validators: u32,
    /// Number of providers, all with the same engine.
    pub providers: u32,
    /// Questions per second while the added time is measured.
    pub rate: u32,
    /// Number of rounds; each asks the engine directly and then through the market.
    pub rounds: u32,
    /// Duration of each half of a round.
    pub phase: Duration,
    /// Questions while providers are killed.
    pub questions: u32,
    /// Number of clients that ask them.
    pub clients: u32,
    /// Number of kills.
    pub kills: u32,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct TokenBenchReport {
    /// The time to the first piece of the first question, which buys the first tab.
    pub first_purchase_ms: f64,
    /// Times of the engine alone.
    pub direct: PathReport,
    /// Times through the market.
    pub through: PathReport,
    /// Processor time of the buyer's server for each token, in milliseconds, where the system
    /// states it.
    pub server_ms_per_token: Option<f64>,
    /// Processor time of all providers for each token, in milliseconds.
    pub providers_ms_per_token: Option<f64>,
    /// The part with kills.
    pub kills: KillReport,
}

/// The answers that came on one path.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathReport {
    /// Whole answers.
    pub whole: usize,
    /// Other questions, by cause.
    pub lost: BTreeMap<String, usize>,
    /// Time from the request to the first piece.
    pub to_first: TimePercentiles,
    /// Time from the request to the end of the answer.
    pub to_end: TimePercentiles,
}

/// The answers that came while providers were killed.
#[derive(Clone, Debug, Serialize)]
pub struct KillReport {
    /// Providers killed.
    pub kills: u32,
    /// Questions asked.
    pub questions: u32,
    /// Answers that are the engine's text, whole.
    pub whole: usize,
    /// Other questions, by cause.
    pub lost: BTreeMap<String, usize>,
    /// Answers that another provider continued.
    pub continued: usize,
    /// The longest pause in each continued answer, the engine's own pause included.
    pub pauses: TimePercentiles,
}

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenBenchError {
    /// The folder could not be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A provider could not be killed or restarted.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The engine could not listen, or a program could not be run.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A command of `souk` failed.
    #[error("`souk {command}` failed: {output}")]
    Command {
        /// The command's words.
        command: String,
        /// Its output and errors.
        output: String,
    },
    /// The market gave no first answer.
    #[error("no first answer through the market: {0}")]
    FirstAnswer(String),
}

/// Starts a market in `folder`, asks the questions, and stops the market.
///
/// # Errors
/// If the market does not start or sells nothing. Lost answers are in the report.
pub async fn run(
    binary: &Path,
    folder: &Path,
    config: TokenBenchConfig,
) -> Result<TokenBenchReport, TokenBenchError> {
    let shape = layout::Config {
        validators: config.validators,
        providers: Vec::new(),
        ..layout::Config::default()
    };
    let _ports = layout::create_testnet(folder, &shape)?;
    let engine = Engine::start().await?;
    let mut market = SellingMarket::start(binary, folder, config.providers, &engine).await?;
    let measured = measure_market(&mut market, &engine, config).await;
    market.stop().await;
    measured
}

async fn measure_market(
    market: &mut SellingMarket,
    engine: &Engine,
    config: TokenBenchConfig,
) -> Result<TokenBenchReport, TokenBenchError> {
    let through = market.server().target();
    let direct = Target::new(engine.address(), None);
    let numbers = AtomicU64::new(0);
    let first = through.ask(next_question(&numbers, QUICK_PIECES, 0)).await;
    let first = first.map_err(|error| TokenBenchError::FirstAnswer(error.to_string()))?;
    let mut measured = AddedTimes::default();
    for _ in 0..config.rounds {
        let answers = ask_at_rate(&direct, &numbers, config.rate, config.phase).await;
        measured.direct.extend(answers);
        ask_at_rate(&through, &numbers, config.rate, WARM_UP).await;
        let before = market.processor_times();
        let answers = ask_at_rate(&through, &numbers, config.rate, config.phase).await;
        measured.note_processor_times(before, market.processor_times());
        measured.through.extend(answers);
    }
    let kills = measure_kills(market, engine, &through, &numbers, config).await?;
    let direct = PathReport::from_answers(measured.direct);
    let through = PathReport::from_answers(measured.through);
    let tokens = through.whole as f64 * f64::from(QUICK_PIECES);
    let [server, providers] = measured
        .processor
        .map(|time| time.map(|time| time.as_secs_f64() * 1e3 / tokens));
    Ok(TokenBenchReport {
        first_purchase_ms: first.to_first.as_secs_f64() * 1e3,
        direct,
        through,
        server_ms_per_token: server,
        providers_ms_per_token: providers,
        kills,
    })
}

/// The answers of both paths so far, and the processor time of the server and of the providers.
struct AddedTimes {
    direct: Vec<Result<TimedAnswer, AskError>>,
    through: Vec<Result<TimedAnswer, AskError>>,
    processor: [Option<Duration>; 2],
}

impl Default for AddedTimes {
    fn default() -> Self {
        AddedTimes {
            direct: Vec::new(),
            through: Vec::new(),
            processor: [Some(Duration::ZERO); 2],
        }
    }
}

impl AddedTimes {
    fn note_processor_times(
        &mut self,
        before: [Option<Duration>; 2],
        after: [Option<Duration>; 2],
    ) {
        for (sum, (before, after)) in self.processor.iter_mut().zip(before.into_iter().zip(after)) {
            let used = after.zip(before).map(|(after, before)| after - before);
            *sum = sum.zip(used).map(|(sum, used)| sum + used);
        }
    }
}

fn next_question(numbers: &AtomicU64, pieces: u32, pause_ms: u64) -> Question {
    Question {
        number: numbers.fetch_add(1, Ordering::Relaxed),
        pieces,
        pause_ms,
    }
}

/// Asks `rate` questions per second for `time`, whether earlier ones are answered or not.
async fn ask_at_rate(
    target: &Target,
    numbers: &AtomicU64,
    rate: u32,
    time: Duration,
) -> Vec<Result<TimedAnswer, AskError>> {
    let begin = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asked = JoinSet::new();
    while begin.elapsed() < time {
        ticks.tick().await;
        let (target, question) = (target.clone(), next_question(numbers, QUICK_PIECES, 0));
        asked.spawn(async move { target.ask(question).await });
    }
    asked.join_all().await
}

/// Asks the questions by several clients, and kills providers at equal shares of the answers.
async fn measure_kills(
    market: &mut SellingMarket,
    engine: &Engine,
    target: &Target,
    numbers: &AtomicU64,
    config: TokenBenchConfig,
) -> Result<KillReport, TokenBenchError> {
    let first_number = numbers.load(Ordering::Relaxed);
    let answered = Arc::new(tokio::sync::watch::Sender::new(0_u32));
    let remaining = Arc::new(AtomicU64::new(u64::from(config.questions)));
    let mut clients = JoinSet::new();
    for _ in 0..config.clients {
        let (target, answered, remaining) = (target.clone(), answered.clone(), remaining.clone());
        clients.spawn(async move {
            let mut answers = Vec::new();
            let take = |remaining: u64| remaining.checked_sub(1);
            while let Ok(before) =
                remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            {
                let question = Question {
                    number: first_number + before,
                    pieces: LONG_PIECES,
                    pause_ms: LONG_PAUSE_MS,
                };
                answers.push((question, target.ask(question).await));
                answered.send_modify(|answered| *answered += 1);
            }
            answers
        });
    }
    let mut progress = answered.subscribe();
    for kill in 0..config.kills {
        let wanted = (kill + 1) * config.questions / (config.kills + 1);
        // Both ends live in this function, so the channel cannot close.
        let _ = progress.wait_for(|answered| *answered >= wanted).await;
        market.kill_provider(kill % config.providers).await?;
    }
    let answers: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    Ok(KillReport::new(config, engine, answers))
}

impl KillReport {
    fn new(
        config: TokenBenchConfig,
        engine: &Engine,
        answers: Vec<(Question, Result<TimedAnswer, AskError>)>,
    ) -> KillReport {
        let continued = engine.continued_answers();
        let (mut whole, mut lost, mut pauses) = (0, BTreeMap::new(), Vec::new());
        for (question, answer) in answers {
            let cause = match answer {
                Ok(answer) if answer.text == question.answer_pieces().concat() => {
                    whole += 1;
                    if continued.contains(&question.number) {
                        pauses.push(answer.pause_max);
                    }
                    continue;
                }
                Ok(_) => "another text".to_owned(),
                Err(error) => error.to_string(),
            };
            *lost.entry(cause).or_default() += 1;
        }
        KillReport {
            kills: config.kills,
            questions: config.questions,
            whole,
            lost,
            continued: pauses.len(),
            pauses: TimePercentiles::from_times(pauses),
        }
    }
}

impl PathReport {
    fn from_answers(answers: Vec<Result<TimedAnswer, AskError>>) -> PathReport {
        let (mut whole, mut lost) = (Vec::new(), BTreeMap::new());
        for answer in answers {
            match answer {
                Ok(answer) => whole.push(answer),
                Err(error) => *lost.entry(error.to_string()).or_default() += 1,
            }
        }
        PathReport {
            whole: whole.len(),
            lost,
            to_first: TimePercentiles::from_times(whole.iter().map(|answer| answer.to_first)),
            to_end: TimePercentiles::from_times(whole.iter().map(|answer| answer.to_end)),
        }
    }
}
