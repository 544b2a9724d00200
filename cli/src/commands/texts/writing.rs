//! A text as it is written: token by token, told piece by piece, up to what ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use souk_llm::generation::{Ending, GenerationError, Request, Sequence, generate};
use souk_llm::sampling::Sampling;
use souk_llm::stopping::{Stop, StopStrings};
use souk_llm::tokens::{TextStream, TokenError};

use super::Voice;
use crate::failure::{Failure, Kind};

/// What is wished for.
pub struct Wish<'a> {
    /// The tokens to go on after.
    pub prompt: &'a [u32],
    /// How the next is drawn.
    pub sampling: &'a Sampling,
    /// Strings at which it ends.
    pub stops: &'a [String],
    /// Tokens at most.
    pub tokens_max: usize,
    /// Whether anybody still wants it.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// What ended a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnding {
    /// A string to stop at.
    Stop,
    /// A token that ends texts.
    Token,
    /// As many tokens as were asked for.
    Length,
    /// No more room.
    Room,
    /// Nobody wanted more.
    Unwanted,
}

impl TextEnding {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            TextEnding::Stop => "a string to stop at",
            TextEnding::Token => "a token that ends texts",
            TextEnding::Length => "as many tokens as were asked for",
            TextEnding::Room => "no more room",
            TextEnding::Unwanted => "being stopped",
        }
    }
}

/// A text that was written.
#[derive(Clone, Debug)]
pub struct WrittenText {
    pub text: String,
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that the session had already.
    pub kept: usize,
    pub ending: TextEnding,
    /// How long the first token took.
    pub first: Duration,
    /// How long all took.
    pub whole: Duration,
}

impl WrittenText {
    /// Tokens a second after the first.
    pub fn rate(&self) -> f64 {
        let after = self.tokens.len().saturating_sub(1);
        let rest = (self.whole - self.first).as_secs_f64();
        match after > 0 && rest > 0.0 {
            true => after as f64 / rest,
            false => 0.0,
        }
    }

    /// How it went, in a line.
    pub fn line(&self) -> String {
        let kept = match self.kept {
            0 => String::new(),
            kept => format!(" ({kept} of them kept)"),
        };
        format!(
            "{}{kept} + {} tokens, the first after {:.3} s, then {:.2} a second; ended by {}",
            self.prompt,
            self.tokens.len(),
            self.first.as_secs_f64(),
            self.rate(),
            self.ending.words(),
        )
    }
}

/// Writes a text, and says each piece of it once it is sure.
pub fn write(
    voice: &Voice,
    sequence: &mut Sequence<'_>,
    wish: &Wish<'_>,
    say: impl FnMut(&str),
) -> Result<WrittenText, Failure> {
    let begun = Instant::now();
    let mut telling = Telling {
        stream: voice.tokenizer.stream(),
        stops: StopStrings::new(wish.stops.to_vec()),
        text: String::new(),
        tokens: Vec::new(),
        begun,
        first: None,
        is_stopped: false,
        failed: None,
        say,
    };
    let request = Request {
        prompt: wish.prompt,
        sampling: wish.sampling,
        ends: &voice.card.ends,
        tokens_max: wish.tokens_max,
        is_wanted: wish.is_wanted,
    };
    let kept = sequence.agree(wish.prompt);
    let ending = generate(sequence, &request, |token| telling.take(token));
    let ending = ending.map_err(from_generation)?;
    if let Some(error) = telling.failed {
        return Err(Failure::new(Kind::Unexpected, error, ""));
    }
    let ending = match (telling.is_stopped, ending) {
        (true, _) => TextEnding::Stop,
        (false, Ending::Token) => TextEnding::Token,
        (false, Ending::Length) => TextEnding::Length,
        (false, Ending::Room) => TextEnding::Room,
        (false, Ending::Taker) => TextEnding::Unwanted,
    };
    if ending != TextEnding::Stop {
        let rest = std::mem::take(&mut telling.stops).rest();
        telling.tell(&rest);
    }
    let whole = begun.elapsed();
    Ok(WrittenText {
        text: telling.text,
        tokens: telling.tokens,
        prompt: wish.prompt.len(),
        kept,
        ending,
        first: telling.first.unwrap_or(whole),
        whole,
    })
}

/// A text as it is told.
struct Telling<'a, S> {
    stream: TextStream<'a>,
    stops: StopStrings,
    /// All of it.
    text: String,
    tokens: Vec<u32>,
    begun: Instant,
    /// When the first token was there.
    first: Option<Duration>,
    is_stopped: bool,
    failed: Option<TokenError>,
    say: S,
}

impl<S: FnMut(&str)> Telling<'_, S> {
    fn take(&mut self, token: u32) -> ControlFlow<()> {
        self.first.get_or_insert_with(|| self.begun.elapsed());
        self.tokens.push(token);
        let piece = match self.stream.push(token) {
            Ok(piece) => piece,
            Err(error) => {
                self.failed = Some(error);
                return ControlFlow::Break(());
            }
        };
        let (sure, is_stopped) = match self.stops.push(&piece) {
            Stop::On(text) => (text, false),
            Stop::Found(text) => (text, true),
        };
        self.tell(&sure);
        self.is_stopped = is_stopped;
        match is_stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn tell(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            (self.say)(text);
        }
    }
}

fn from_generation(error: GenerationError) -> Failure {
    let (kind, hint) = match error {
        GenerationError::Empty => (Kind::Input, "write a prompt"),
        GenerationError::Room { .. } => (Kind::Input, "give --context more positions"),
        GenerationError::Run(_) | GenerationError::Logits(_) | GenerationError::NoNumber(_) => {
            (Kind::Unexpected, "")
        }
    };
    Failure::new(kind, error, hint)
}
