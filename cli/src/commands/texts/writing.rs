//! A text as it is written: token by token, told piece by piece, up to what ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use souk_llm::generation::{DrawnToken, Ending, GenerationError, Request, Sequence, generate};
use souk_llm::grammar::Grammar;
use souk_llm::sampling::{LogProbabilities, Sampling};
use souk_llm::stopping::{Stop, StopStrings};
use souk_llm::tokens::{TextStream, TokenError, Tokenizer};

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
    /// What it is to be, if not whatever comes.
    pub grammar: Option<&'a Grammar>,
    /// Tokens at most.
    pub tokens_max: usize,
    /// Tokens that may be drafted for a step at most.
    pub drafts_max: usize,
    /// Where the probability of each token is wanted too: with so many of the likeliest.
    pub likeliest: Option<usize>,
    /// Whether the probabilities of the prompt's tokens are wanted too.
    pub prompt_weights: PromptWeights,
    /// Marks that are part of the text, though the tokeniser leaves them out.
    pub marks: &'a [&'a str],
    /// Whether anybody still wants it.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// Whether the probabilities of a prompt's tokens are wanted: they take all of its logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptWeights {
    #[default]
    Unwanted,
    Wanted,
}

/// What ended a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnding {
    /// A string to stop at.
    Stop,
    /// A token that ends texts.
    Token,
    /// It is whole.
    Grammar,
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
            TextEnding::Grammar => "its JSON being whole",
            TextEnding::Length => "as many tokens as were asked for",
            TextEnding::Room => "no more room",
            TextEnding::Unwanted => "being stopped",
        }
    }
}

/// A token as text, with how likely it was and which were the likeliest: logarithms.
#[derive(Clone, Debug)]
pub struct WeighedToken {
    /// Its bytes: it may end within a character.
    pub bytes: Vec<u8>,
    /// None for the first of a prompt, which nothing comes before.
    pub logarithm: Option<f64>,
    pub likeliest: Vec<(Vec<u8>, f64)>,
}

impl WeighedToken {
    fn new(
        tokenizer: &Tokenizer,
        id: u32,
        probabilities: &LogProbabilities,
    ) -> Result<Self, TokenError> {
        let likeliest = probabilities.likeliest.iter();
        let likeliest = likeliest.map(|(id, it)| Ok((tokenizer.bytes_of(*id)?, *it)));
        Ok(Self {
            bytes: tokenizer.bytes_of(id)?,
            logarithm: Some(probabilities.token),
            likeliest: likeliest.collect::<Result<_, TokenError>>()?,
        })
    }

    /// As text, with what stands for a character that is not whole.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A piece of a text, and the tokens it is made of where their probabilities are wanted.
pub struct Piece<'a> {
    pub text: &'a str,
    pub tokens: &'a [WeighedToken],
}

/// A text that was written.
#[derive(Clone, Debug)]
pub struct WrittenText {
    pub text: String,
    pub tokens: Vec<u32>,
    /// How likely each was, where that is wanted.
    pub weighed: Vec<WeighedToken>,
    /// How likely each of the prompt was, where that is wanted.
    pub prompt_weighed: Vec<WeighedToken>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that the session had already.
    pub kept: usize,
    pub ending: TextEnding,
    /// Tokens that were drafted, and those of them that the text went on with.
    pub drafted: (usize, usize),
    /// How long the first token took.
    pub first: Duration,
    /// How long all took.
    pub whole: Duration,
    /// How long each token after the first took, the shortest first.
    pub gaps: Vec<Duration>,
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

    /// The time between tokens that so many percent of them stay within, in milliseconds.
    pub fn gap(&self, percent: usize) -> f64 {
        let last = self.gaps.len().saturating_sub(1);
        let gap = self.gaps.get(last * percent / 100);
        gap.map_or(0.0, |gap| gap.as_secs_f64() * 1e3)
    }

    /// How it went, in a line.
    pub fn line(&self) -> String {
        let kept = match self.kept {
            0 => String::new(),
            kept => format!(" ({kept} of them kept)"),
        };
        let ending = self.ending.words();
        let drafts = match self.drafted {
            (0, _) => String::new(),
            (drafted, accepted) => format!("; {accepted} of {drafted} drafted ones were right"),
        };
        format!(
            "{}{kept} + {} tokens, the first after {:.3} s, then {:.2} a second; ended by {ending}\
             {drafts}",
            self.prompt,
            self.tokens.len(),
            self.first.as_secs_f64(),
            self.rate(),
        )
    }
}

/// Writes a text, and says each piece of it once it is sure.
pub fn write(
    voice: &Voice,
    sequence: &mut Sequence<'_>,
    wish: &Wish<'_>,
    say: impl FnMut(Piece<'_>),
) -> Result<WrittenText, Failure> {
    let begun = Instant::now();
    let mut telling = Telling {
        tokenizer: &voice.tokenizer,
        stream: Some(voice.tokenizer.stream_with(wish.marks)),
        stops: StopStrings::new(wish.stops.to_vec()),
        text: String::new(),
        tokens: Vec::new(),
        weighed: Vec::new(),
        weighed_told: 0,
        begun,
        times: Vec::new(),
        is_stopped: false,
        failed: None,
        say,
    };
    let request = Request {
        prompt: wish.prompt,
        sampling: wish.sampling,
        ends: &voice.card.ends,
        grammar: wish.grammar,
        tokens_max: wish.tokens_max,
        drafts_max: wish.drafts_max,
        likeliest: wish.likeliest,
        is_wanted: wish.is_wanted,
    };
    let prompt_weighed = match wish.prompt_weights {
        PromptWeights::Unwanted => Vec::new(),
        PromptWeights::Wanted => weigh(voice, sequence, wish)?,
    };
    let kept = sequence.agree(wish.prompt);
    let generated = generate(sequence, &request, |token| telling.take(token));
    let generated = generated.map_err(from_generation)?;
    telling.finish();
    if let Some(error) = telling.failed {
        return Err(Failure::new(Kind::Unexpected, error, ""));
    }
    let ending = match (telling.is_stopped, generated.ending) {
        (true, _) => TextEnding::Stop,
        (false, Ending::Token) => TextEnding::Token,
        (false, Ending::Grammar) => TextEnding::Grammar,
        (false, Ending::Length) => TextEnding::Length,
        (false, Ending::Room) => TextEnding::Room,
        (false, Ending::Taker) => TextEnding::Unwanted,
    };
    let whole = begun.elapsed();
    Ok(WrittenText {
        text: telling.text,
        tokens: telling.tokens,
        weighed: telling.weighed,
        prompt_weighed,
        prompt: wish.prompt.len(),
        kept,
        ending,
        drafted: (generated.drafted, generated.accepted),
        first: telling.times.first().copied().unwrap_or(whole),
        whole,
        gaps: gaps(&telling.times),
    })
}

/// How likely each token of a prompt is after those before it.
fn weigh(
    voice: &Voice,
    sequence: &mut Sequence<'_>,
    wish: &Wish<'_>,
) -> Result<Vec<WeighedToken>, Failure> {
    let unexpected = |error| Failure::new(Kind::Unexpected, error, "");
    let Some((first, rest)) = wish.prompt.split_first() else {
        return Ok(Vec::new());
    };
    let tokenizer = &voice.tokenizer;
    let first = WeighedToken {
        bytes: tokenizer.bytes_of(*first).map_err(unexpected)?,
        logarithm: None,
        likeliest: Vec::new(),
    };
    let weighed = sequence.weigh(wish.prompt, wish.likeliest.unwrap_or_default());
    let weighed = weighed.map_err(from_generation)?;
    let rest = rest.iter().zip(&weighed);
    let rest = rest.map(|(id, it)| WeighedToken::new(tokenizer, *id, it).map_err(unexpected));
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// The vector of a text's tokens.
pub fn embed(
    voice: &Voice,
    sequence: &mut Sequence<'_>,
    tokens: &[u32],
) -> Result<Vec<f32>, Failure> {
    let vector = sequence.embed(tokens, voice.card.pooling);
    vector.map_err(from_generation)
}

/// Times between tokens, the shortest first.
fn gaps(times: &[Duration]) -> Vec<Duration> {
    let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps
}

/// A text as it is told.
struct Telling<'a, S> {
    tokenizer: &'a Tokenizer,
    /// None where the text is over.
    stream: Option<TextStream<'a>>,
    stops: StopStrings,
    /// All of it.
    text: String,
    tokens: Vec<u32>,
    weighed: Vec<WeighedToken>,
    /// Those of them that were told.
    weighed_told: usize,
    begun: Instant,
    /// When each token was there.
    times: Vec<Duration>,
    is_stopped: bool,
    failed: Option<TokenError>,
    say: S,
}

impl<S: FnMut(Piece<'_>)> Telling<'_, S> {
    fn take(&mut self, token: DrawnToken) -> ControlFlow<()> {
        self.times.push(self.begun.elapsed());
        self.tokens.push(token.id);
        let piece = match self.piece(&token) {
            Ok(piece) => piece,
            Err(error) => {
                self.failed = Some(error);
                return ControlFlow::Break(());
            }
        };
        self.push(&piece);
        match self.is_stopped {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Tells what of a piece is sure.
    fn push(&mut self, piece: &str) {
        let (sure, is_stopped) = match self.stops.push(piece) {
            Stop::On(text) => (text, false),
            Stop::Found(text) => (text, true),
        };
        self.tell(&sure);
        self.is_stopped = is_stopped;
    }

    /// Tells what was held back, where no more tokens come.
    fn finish(&mut self) {
        if self.is_stopped {
            return;
        }
        match self.stream.take().map(TextStream::finish) {
            Some(Ok(rest)) => self.push(&rest),
            Some(Err(error)) => self.failed = Some(error),
            None => {}
        }
        if !self.is_stopped {
            let rest = std::mem::take(&mut self.stops).rest();
            self.tell(&rest);
        }
    }

    /// What a token adds to the text.
    fn piece(&mut self, token: &DrawnToken) -> Result<String, TokenError> {
        if let Some(probabilities) = &token.probabilities {
            let weighed = WeighedToken::new(self.tokenizer, token.id, probabilities)?;
            self.weighed.push(weighed);
        }
        let stream = self
            .stream
            .as_mut()
            .expect("tokens come before the text is over");
        stream.push(token.id)
    }

    fn tell(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            let tokens = &self.weighed[self.weighed_told..];
            (self.say)(Piece { text, tokens });
            self.weighed_told = self.weighed.len();
        }
    }
}

fn from_generation(error: GenerationError) -> Failure {
    let (kind, hint) = match error {
        GenerationError::Empty => (Kind::Input, "write a prompt"),
        GenerationError::Room { .. } => (Kind::Input, "give --context more positions"),
        GenerationError::Match(_) => (Kind::Input, "give another schema, or another model"),
        GenerationError::Run(_)
        | GenerationError::Logits(_)
        | GenerationError::Drawn(..)
        | GenerationError::NoNumber(_) => (Kind::Unexpected, ""),
    };
    Failure::new(kind, error, hint)
}
