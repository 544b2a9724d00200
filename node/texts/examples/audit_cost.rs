//! Measures what it costs to audit texts, compared with writing them: `cargo run --release -p
//! souk-texts --example audit_cost [ANSWERS] [MODEL]`. MODEL is a folder or a GGUF file, for example
//! one that `llm/examples/shapes.py` writes; without it, the bundled model is measured.
//!
//! The model answers questions on one thread. Then an audit of it, as `souk audit run`
//! makes it, reads all answers again, and an audit of every twentieth answer reads those. Processor
//! time counts. Opening the models is not part of it.

use std::path::Path;
use std::time::Duration;

use souk_host::clock;
use souk_llm::sampling::Sampling;
use souk_roles::tokens::audit::{AuditCore, Verdict};
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role, TextAnswer, TextRequest};
use souk_texts::{AuditReference, SessionSize, TextEngine, open_model, write};
use tokio::runtime::Handle;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const BUNDLED: &str = "bundled";
const ROOM: usize = 512;
const ANSWER_TOKENS: usize = 128;
const THREADS: u32 = 1;

/// One answer in this many is read in an audit of a part.
const PART: usize = 20;

const WORDS: [&str; 8] = [
    "a lease",
    "escrow",
    "a market",
    "a provider",
    "a validator",
    "a receipt",
    "a stake",
    "the log",
];
const FORMS: [&str; 5] = [
    "What is {}?",
    "Explain {} to a child.",
    "Why does souk have {}?",
    "Write a story about {}.",
    "When does {} end?",
];

#[tokio::main]
async fn main() -> Fallible<()> {
    let answers = std::env::args().nth(1).map_or(Ok(80), |it| it.parse())?;
    let model = std::env::args().nth(2).unwrap_or(BUNDLED.to_owned());
    tokio::task::spawn_blocking(move || measure(answers, Path::new(&model))).await?
}

/// Answers of the model, and what it took to write them.
struct WrittenAnswers {
    answers: Vec<(TextRequest, TextAnswer)>,
    tokens: usize,
    /// The processor time.
    spent: Duration,
}

fn measure(count: usize, model: &Path) -> Fallible<()> {
    let written = write_answers(count, model)?;
    let answers = written.answers;
    println!(
        "written        {count} answers, {} tokens in {:.2} s of a core",
        written.tokens,
        written.spent.as_secs_f64()
    );
    let mut reference = AuditReference::open(model, Some(ROOM), Some(THREADS), &Handle::current())?;
    let whole: Vec<_> = answers.iter().collect();
    let part: Vec<_> = answers.iter().step_by(PART).collect();
    let name = format!("every {PART}th");
    for (name, answers, goal) in [("audited whole", whole, 25.0), (&*name, part, 1.5)] {
        let (read, verdict, spent) = audit_answers(&mut reference, &answers)?;
        println!(
            "{name:14} {} answers, {read} tokens in {:.2} s of a core, {verdict:?}: {:.1} % of \
             writing; goal {goal} %",
            answers.len(),
            spent.as_secs_f64(),
            100.0 * spent.as_secs_f64() / written.spent.as_secs_f64(),
        );
    }
    Ok(())
}

/// Audits answers. Returns the tokens that were judged, the verdict and the processor time.
fn audit_answers(
    reference: &mut AuditReference,
    answers: &[&(TextRequest, TextAnswer)],
) -> Fallible<(usize, Verdict, Duration)> {
    let begin = clock::of_process();
    reference.begin_provider();
    let each = answers.iter().map(|(request, answer)| (request, answer, 0));
    let noise = reference.measure_noise(each)?;
    let mut core = AuditCore::new(noise.ok_or("no answer can be read")?)?;
    let mut tokens = 0;
    for (request, answer) in answers {
        // As in an audit, what cannot be read says nothing.
        let Ok(readings) = reference.read_answer(request, answer, 0) else {
            continue;
        };
        core.begin_answer();
        readings.iter().for_each(|reading| core.push(reading));
        tokens += readings.len();
    }
    let spent = clock::of_process().saturating_sub(begin);
    Ok((tokens, core.verdict(), spent))
}

/// Answers questions.
fn write_answers(count: usize, path: &Path) -> Fallible<WrittenAnswers> {
    let (model, text_model) = open_model(path, Some(ROOM))?;
    let size = SessionSize {
        tokens: ROOM,
        sequences: 1,
        is_embedding: false,
    };
    let engine = TextEngine::open_local(model, ROOM, size, Some(THREADS))?;
    let mut sequence = engine.open_sequence(&Handle::current())?;
    let (mut answers, mut tokens) = (Vec::new(), 0);
    let begin = clock::of_process();
    for number in 0..count {
        let word = WORDS[number % WORDS.len()];
        let question = FORMS[number / WORDS.len() % FORMS.len()].replace("{}", word);
        let request = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: question,
            }],
            tokens_max: ANSWER_TOKENS as u32,
            temperature: Some(1.0),
            seed: Some(number as i64),
            ..TextRequest::default()
        };
        let message = souk_texts::new_message("user", &request.messages[0].content);
        let prompt = text_model.encode_conversation(&[message])?;
        let sampling = Sampling {
            temperature: 1.0,
            seed: number as u64,
            ..Sampling::default()
        };
        let wanted = souk_texts::TextRequest {
            tokens_max: ANSWER_TOKENS,
            ..souk_texts::TextRequest::new(&prompt, &sampling)
        };
        let mut content = String::new();
        let written = write(&text_model, &mut sequence, &wanted, |piece| {
            content.push_str(piece.text)
        })?;
        tokens += written.tokens.len();
        let text = AnswerText {
            content,
            ..AnswerText::default()
        };
        let answer = TextAnswer {
            text,
            finish: Finish::Length,
            message: String::new(),
        };
        answers.push((request, answer));
    }
    Ok(WrittenAnswers {
        answers,
        tokens,
        spent: clock::of_process().saturating_sub(begin),
    })
}
