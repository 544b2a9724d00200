//! Writes a text token by token, reports it piece by piece, and finds its end.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use souk_llm::generation::{DrawnToken, Ending, Request, Sequence, generate};
use souk_llm::grammar::Grammar;
use souk_llm::sampling::{LogProbabilities, Sampling};
use souk_llm::stop_strings::{Stop, StopStrings};
use souk_llm::tokens::{TextStream, TokenError, Tokenizer};

use crate::TextModel;
use crate::text_error::TextError;

/// The request for a text.
#[derive(Clone, Copy)]
pub struct TextRequest<'a> {
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// The way to draw tokens.
    pub sampling: &'a Sampling,
    /// Strings that end the text.
    pub stops: &'a [String],
    /// Grammar that the text must follow, if any.
    pub grammar: Option<&'a Grammar>,
    /// Largest number of tokens.
    pub tokens_max: usize,
    /// Largest number of tokens to draft for a step.
    pub drafts_max: usize,
    /// Number of the most likely tokens to report with each token's probability; `None` reports
    /// none.
    pub top_logprobs: Option<usize>,
    /// Whether to report the probabilities of the prompt's tokens too.
    pub prompt_logprobs: PromptLogprobs,
    /// Marks that belong to the text although the tokeniser leaves them out.
    pub marks: &'a [&'a str],
    /// Returns whether the caller still wants the text.
    pub is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> TextRequest<'a> {
    /// Creates the request of a text that may be as long as the session allows.
    #[must_use]
    pub fn new(prompt: &'a [u32], sampling: &'a Sampling) -> Self {
        Self {
            prompt,
            sampling,
            stops: &[],
            grammar: None,
            tokens_max: usize::MAX,
            drafts_max: 0,
            top_logprobs: None,
            prompt_logprobs: PromptLogprobs::Unwanted,
            marks: &[],
            is_wanted: &|| true,
        }
    }
}

/// Whether to report the probabilities of a prompt's tokens, which takes all of its logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptLogprobs {
    /// Only the tokens of the answer, if any.
    #[default]
    Unwanted,
    /// The prompt's tokens too.
    Wanted,
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnding {
    /// A stop string.
    Stop,
    /// An end-of-text token.
    Token,
    /// The grammar is complete.
    Grammar,
    /// The text has the largest number of tokens.
    Length,
    /// The session has no more positions.
    Room,
    /// The caller stopped it.
    Unwanted,
}

impl TextEnding {
    /// Describes the reason.
    pub fn describe_ending(self) -> &'static str {
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

/// A token as text, with the logarithms of its probability and of the most likely tokens.
#[derive(Clone, Debug)]
pub struct TokenLogprobs {
    /// The token's bytes, which can end within a character.
    pub bytes: Vec<u8>,
    /// `None` for the first token of a prompt, which has no predecessor.
    pub logarithm: Option<f64>,
    /// The most likely tokens in its position, as bytes and logarithms.
    pub top_logprobs: Vec<(Vec<u8>, f64)>,
}

impl TokenLogprobs {
    fn new(
        tokenizer: &Tokenizer,
        id: u32,
        probabilities: &LogProbabilities,
    ) -> Result<Self, TokenError> {
        let top_logprobs = probabilities.likeliest.iter();
        let top_logprobs = top_logprobs.map(|(id, it)| Ok((tokenizer.bytes_of(*id)?, *it)));
        Ok(Self {
            bytes: tokenizer.bytes_of(id)?,
            logarithm: Some(probabilities.token),
            top_logprobs: top_logprobs.collect::<Result<_, TokenError>>()?,
        })
    }

    /// Returns the text, with replacement characters for incomplete ones.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A piece of a text, with its tokens if their probabilities are wanted.
pub struct Piece<'a> {
    /// The text.
    pub text: &'a str,
    /// Its tokens; empty if their probabilities are not wanted.
    pub tokens: &'a [TokenLogprobs],
}

/// A written text.
#[derive(Clone, Debug)]
pub struct WrittenText {
    /// The text.
    pub text: String,
    /// Its tokens, including one that ends texts.
    pub tokens: Vec<u32>,
    /// Probability of each token, if wanted.
    pub logprobs: Vec<TokenLogprobs>,
    /// Probability of each token of the prompt, if wanted.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// Number of the prompt's tokens that the session already had.
    pub kept: usize,
    /// The reason why it ended.
    pub ending: TextEnding,
    /// Number of drafted tokens, and of those that the text accepted.
    pub drafted: (usize, usize),
    /// Time to the first token.
    pub first: Duration,
    /// Time to the last token.
    pub whole: Duration,
    /// Times between consecutive tokens, the shortest first.
    pub gaps: Vec<Duration>,
}

impl WrittenText {
    /// Returns the tokens a second after the first token.
    pub fn tokens_per_second(&self) -> f64 {
        let after = self.tokens.len().saturating_sub(1);
        let rest = (self.whole - self.first).as_secs_f64();
        match after > 0 && rest > 0.0 {
            true => after as f64 / rest,
            false => 0.0,
        }
    }

    /// Returns a percentile of the times between tokens, in milliseconds.
    pub fn gap_percentile(&self, percent: usize) -> f64 {
        let last = self.gaps.len().saturating_sub(1);
        let gap = self.gaps.get(last * percent / 100);
        gap.map_or(0.0, |gap| gap.as_secs_f64() * 1e3)
    }

    /// Describes the text's figures in a line.
    pub fn summary_line(&self) -> String {
        let kept = match self.kept {
            0 => String::new(),
            kept => format!(" ({kept} of them kept)"),
        };
        let ending = self.ending.describe_ending();
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
            self.tokens_per_second(),
        )
    }
}

/// Writes a text and reports each piece once it is final.
pub fn write(
    text_model: &TextModel,
    sequence: &mut Sequence<'_>,
    request: &TextRequest<'_>,
    say: impl FnMut(Piece<'_>),
) -> Result<WrittenText, TextError> {
    let begun = Instant::now();
    let mut telling = TextWriter {
        tokenizer: &text_model.tokenizer,
        stream: Some(text_model.tokenizer.stream_with(request.marks)),
        stops: StopStrings::new(request.stops.to_vec()),
        text: String::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        reported_count: 0,
        begun,
        times: Vec::new(),
        is_stopped: false,
        failed: None,
        say,
    };
    let generation = Request {
        prompt: request.prompt,
        sampling: request.sampling,
        ends: &text_model.card.ends,
        grammar: request.grammar,
        tokens_max: request.tokens_max,
        drafts_max: request.drafts_max,
        likeliest: request.top_logprobs,
        is_wanted: request.is_wanted,
    };
    let prompt_logprobs = match request.prompt_logprobs {
        PromptLogprobs::Unwanted => Vec::new(),
        PromptLogprobs::Wanted => weigh_prompt(text_model, sequence, request)?,
    };
    let kept = sequence.truncate_to_prefix(request.prompt);
    let generated = generate(sequence, &generation, |token| telling.push_token(token));
    let generated = generated?;
    telling.flush_text();
    if let Some(error) = telling.failed {
        return Err(TextError::unexpected(error));
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
        logprobs: telling.logprobs,
        prompt_logprobs,
        prompt: request.prompt.len(),
        kept,
        ending,
        drafted: (generated.drafted, generated.accepted),
        first: telling.times.first().copied().unwrap_or(whole),
        whole,
        gaps: token_gaps(&telling.times),
    })
}

/// Returns the probability of each token of a prompt, given those before it.
fn weigh_prompt(
    text_model: &TextModel,
    sequence: &mut Sequence<'_>,
    request: &TextRequest<'_>,
) -> Result<Vec<TokenLogprobs>, TextError> {
    let Some((first, rest)) = request.prompt.split_first() else {
        return Ok(Vec::new());
    };
    let tokenizer = &text_model.tokenizer;
    let first = TokenLogprobs {
        bytes: tokenizer.bytes_of(*first).map_err(TextError::unexpected)?,
        logarithm: None,
        top_logprobs: Vec::new(),
    };
    let logprobs = sequence.score_prompt(request.prompt, request.top_logprobs.unwrap_or_default());
    let logprobs = logprobs?;
    let rest = rest.iter().zip(&logprobs);
    let rest =
        rest.map(|(id, it)| TokenLogprobs::new(tokenizer, *id, it).map_err(TextError::unexpected));
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// Returns the embedding of a text's tokens.
pub fn embed_tokens(
    text_model: &TextModel,
    sequence: &mut Sequence<'_>,
    tokens: &[u32],
) -> Result<Vec<f32>, TextError> {
    Ok(sequence.embed_tokens(tokens, text_model.card.pooling)?)
}

/// Returns the times between tokens, the shortest first.
fn token_gaps(times: &[Duration]) -> Vec<Duration> {
    let mut gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps
}

/// The state of a text while it is written.
struct TextWriter<'a, S> {
    tokenizer: &'a Tokenizer,
    /// `None` once the text is over.
    stream: Option<TextStream<'a>>,
    stops: StopStrings,
    /// The whole text so far.
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    /// Number of these tokens that are reported.
    reported_count: usize,
    begun: Instant,
    /// Time at which each token was drawn.
    times: Vec<Duration>,
    is_stopped: bool,
    failed: Option<TokenError>,
    say: S,
}

impl<S: FnMut(Piece<'_>)> TextWriter<'_, S> {
    fn push_token(&mut self, token: DrawnToken) -> ControlFlow<()> {
        self.times.push(self.begun.elapsed());
        self.tokens.push(token.id);
        let piece = match self.decode_token(&token) {
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

    /// Reports the final part of a piece.
    fn push(&mut self, piece: &str) {
        let (sure, is_stopped) = match self.stops.push(piece) {
            Stop::On(text) => (text, false),
            Stop::Found(text) => (text, true),
        };
        self.emit_text(&sure);
        self.is_stopped = is_stopped;
    }

    /// Reports the text that was held back, once no more tokens come.
    fn flush_text(&mut self) {
        if self.is_stopped {
            return;
        }
        match self.stream.take().map(TextStream::finish) {
            Some(Ok(rest)) => self.push(&rest),
            Some(Err(error)) => self.failed = Some(error),
            None => {}
        }
        if !self.is_stopped {
            let rest = std::mem::take(&mut self.stops).into_rest();
            self.emit_text(&rest);
        }
    }

    /// Returns the text that a token adds.
    fn decode_token(&mut self, token: &DrawnToken) -> Result<String, TokenError> {
        if let Some(probabilities) = &token.probabilities {
            let logprobs = TokenLogprobs::new(self.tokenizer, token.id, probabilities)?;
            self.logprobs.push(logprobs);
        }
        let stream = self
            .stream
            .as_mut()
            .expect("tokens come before the text is over");
        stream.push(token.id)
    }

    fn emit_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            let tokens = &self.logprobs[self.reported_count..];
            (self.say)(Piece { text, tokens });
            self.reported_count = self.logprobs.len();
        }
    }
}
