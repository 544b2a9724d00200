//! Generates text token by token: runs a decoder's session step by step until the text ends. A step
//! is one run of the decoder, which adds tokens to the caches of the session.

mod drafts;
mod step;

use std::ops::ControlFlow;

use souk_memory::{Tensor, TensorError};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::session::Session;
use thiserror::Error;

use drafts::Drafts;
pub use step::{Step, step_inputs};

use crate::decoder::{LOGITS, SAMPLED_TOKENS};
use crate::grammar::{Grammar, MatchError, TextMatcher};
use crate::sampling::{History, LogProbabilities, Sampling};

/// The most prompt tokens in one step: enough for products to be computed by blocks, few enough to
/// keep the values between layers small.
pub const STEP_TOKENS_MAX: usize = 256;

/// The most prompt tokens in one step that returns the logits of each token, which take some
/// megabytes.
const LOGIT_STEP_TOKENS_MAX: usize = 16;

/// Why the generation of a text failed.
#[derive(Debug, Error)]
pub enum GenerationError {
    /// The prompt has no token.
    #[error("the prompt is empty: generation needs at least one token")]
    Empty,
    /// The session has too little room for the tokens.
    #[error("{wanted} tokens are requested, but the session has room for {room}")]
    Room {
        /// Positions requested.
        wanted: usize,
        /// Positions available.
        room: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The decoder's outputs are not logits.
    #[error("the decoder gave no logits: {0}")]
    Logits(TensorError),
    /// The decoder sampled a wrong number of tokens.
    #[error("the decoder sampled {0} tokens instead of {1}")]
    SampledCount(usize, usize),
    /// The logits contain a value that is not a number.
    #[error("the logits at position {0} are not all numbers")]
    NoNumber(usize),
    /// The grammar allows no continuation of the text.
    #[error(transparent)]
    Match(#[from] MatchError),
}

/// A session of a decoder with the tokens of the text that its caches hold.
pub struct Sequence<'a> {
    session: Box<dyn Session + 'a>,
    /// The tokens in the caches.
    tokens: Vec<u32>,
    room: usize,
}

impl<'a> Sequence<'a> {
    /// Creates an empty sequence in a session whose caches have this much room.
    #[must_use]
    pub fn new(session: Box<dyn Session + 'a>, room: usize) -> Self {
        Self {
            session,
            tokens: Vec::new(),
            room,
        }
    }

    /// Returns the number of tokens so far.
    #[must_use]
    pub fn length(&self) -> usize {
        self.tokens.len()
    }

    /// Returns how many tokens of a prompt the sequence begins with. The prompt's last token never
    /// counts, because its logits are still to come.
    #[must_use]
    pub fn common_prefix_length(&self, prompt: &[u32]) -> usize {
        let most = prompt.len().saturating_sub(1);
        let both = self.tokens.iter().zip(&prompt[..most]);
        both.take_while(|(had, wanted)| had == wanted).count()
    }

    /// Truncates the sequence to its common beginning with a prompt, and returns how many of the
    /// prompt's tokens it then holds.
    pub fn truncate_to_prefix(&mut self, prompt: &[u32]) -> usize {
        let same = self.common_prefix_length(prompt);
        self.truncate(same);
        same
    }

    /// Truncates the sequence to an earlier length. Later steps will overwrite the rest.
    ///
    /// # Panics
    /// If the sequence has fewer tokens.
    pub fn truncate(&mut self, length: usize) {
        assert!(
            length <= self.length(),
            "a sequence cannot be cut to a greater length"
        );
        self.tokens.truncate(length);
    }

    /// Adds tokens and returns the logits of the next one.
    ///
    /// # Errors
    /// [`GenerationError`]. The sequence will keep the tokens of the steps that succeeded.
    pub fn push(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.check_room(tokens)?;
        let mut next = None;
        for chunk in tokens.chunks(STEP_TOKENS_MAX) {
            next = Some(self.run_step(Step::for_last_token(chunk, self.length()).with_logits())?);
        }
        next.map(|next| next.logits).ok_or(GenerationError::Empty)
    }

    fn check_room(&self, tokens: &[u32]) -> Result<(), GenerationError> {
        let (wanted, room) = (self.length() + tokens.len(), self.room);
        match wanted > room {
            true => Err(GenerationError::Room { wanted, room }),
            false => Ok(()),
        }
    }

    /// Adds tokens and returns the logits after each.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.check_room(tokens)?;
        let next = self.run_step(Step::for_all_tokens(tokens, self.length()).with_logits())?;
        Ok(next.logits)
    }

    /// Replaces the sequence with a prompt except its last token. Returns the probability of each
    /// token after the first, and this many of the likeliest tokens.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn score_prompt(
        &mut self,
        prompt: &[u32],
        likeliest: usize,
    ) -> Result<Vec<LogProbabilities>, GenerationError> {
        self.truncate(0);
        self.check_room(prompt)?;
        let before = &prompt[..prompt.len().saturating_sub(1)];
        let mut weighed = Vec::with_capacity(before.len());
        for chunk in before.chunks(LOGIT_STEP_TOKENS_MAX) {
            let next = self.run_step(Step::for_all_tokens(chunk, self.length()).with_logits())?;
            let vocabulary = next.logits.len() / chunk.len();
            for logits in next.logits.chunks_exact(vocabulary.max(1)) {
                let token = prompt[weighed.len() + 1];
                weighed.push(LogProbabilities::from_logits(logits, token, likeliest));
            }
        }
        Ok(weighed)
    }

    /// Adds a step's tokens and returns the result for each of its rows.
    fn run_step(&mut self, step: Step) -> Result<NextTokens, GenerationError> {
        let mut outcome = self.session.step(&step.decoder_inputs())?;
        let mut output = |name: &str| {
            let output = outcome.outputs.remove(name);
            output.unwrap_or_else(|| Tensor::scalar(0i64))
        };
        let (drawn, logits) = (output(SAMPLED_TOKENS), output(LOGITS));
        let drawn = drawn.to_vec::<i64>().map_err(GenerationError::Logits)?;
        let drawn = drawn.into_iter().filter_map(|it| u32::try_from(it).ok());
        let drawn: Vec<u32> = drawn.collect();
        if drawn.len() != step.rows.len() {
            return Err(GenerationError::SampledCount(drawn.len(), step.rows.len()));
        }
        let logits = logits.to_vec::<f32>().map_err(GenerationError::Logits)?;
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(GenerationError::NoNumber(self.length()));
        }
        self.tokens.extend(step.tokens);
        Ok(NextTokens { drawn, logits })
    }
}

/// The results of a step's rows.
struct NextTokens {
    /// The token drawn after each row.
    drawn: Vec<u32>,
    /// The logits after each row, if requested.
    logits: Vec<f32>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model drew a token that ends texts.
    Token,
    /// The text is complete, and its grammar allows no continuation.
    Grammar,
    /// The text has the maximum number of tokens.
    Length,
    /// The sequence has no more room.
    Room,
    /// The receiver of the tokens stopped it.
    Taker,
}

/// A request for text.
#[derive(Clone)]
pub struct Request<'a> {
    /// The tokens before the text.
    pub prompt: &'a [u32],
    /// How the next token is drawn.
    pub sampling: &'a Sampling,
    /// Tokens that end a text.
    pub ends: &'a [u32],
    /// The grammar of the text, if it has one. It must be for the same tokens and ends.
    pub grammar: Option<&'a Grammar>,
    /// Maximum number of tokens.
    pub tokens_max: usize,
    /// Maximum number of drafted tokens in a step. Drafts do not change the text.
    pub drafts_max: usize,
    /// If set, each token comes with its probability and this many of the likeliest tokens.
    pub likeliest: Option<usize>,
    /// Returns whether the text is still wanted. It should be quick, because it is called before
    /// each step.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// A token that the model drew.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnToken {
    /// The token's id.
    pub id: u32,
    /// The token's probability, if requested.
    pub probabilities: Option<LogProbabilities>,
}

/// Statistics of a generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationOutcome {
    /// Why the text ended.
    pub ending: Ending,
    /// Number of drafted tokens.
    pub drafted: usize,
    /// Number of drafted tokens that the text continued with.
    pub accepted: usize,
}

/// Generates a text after a prompt. Computes only the part of the prompt that the sequence does not
/// begin with already, and passes each token to `take` as it comes, except the token that ends the
/// text.
///
/// # Errors
/// [`GenerationError`]; the tokens passed so far stay valid.
pub fn generate(
    sequence: &mut Sequence<'_>,
    request: &Request<'_>,
    take: impl FnMut(DrawnToken) -> ControlFlow<()>,
) -> Result<GenerationOutcome, GenerationError> {
    let (wanted, room) = (request.prompt.len(), sequence.room);
    if wanted > room {
        return Err(GenerationError::Room { wanted, room });
    }
    let mut writing = GenerationRun {
        sequence,
        request,
        text: request.prompt.to_vec(),
        drafts: Drafts::new(request.drafts_max),
        matcher: request.grammar.map(Grammar::matcher),
        take,
    };
    let ending = writing.write()?;
    let (drafted, accepted) = writing.drafts.draft_counts();
    Ok(GenerationOutcome {
        ending,
        drafted,
        accepted,
    })
}

/// The state of a text during its generation.
struct GenerationRun<'a, 'b, T> {
    sequence: &'a mut Sequence<'b>,
    request: &'a Request<'a>,
    /// The prompt and the generated tokens.
    text: Vec<u32>,
    drafts: Drafts,
    /// Matches the drawn tokens, without drafts.
    matcher: Option<TextMatcher>,
    take: T,
}

/// The ending of a text, or its error.
type WritingEnd = Result<Ending, GenerationError>;

impl<T: FnMut(DrawnToken) -> ControlFlow<()>> GenerationRun<'_, '_, T> {
    fn write(&mut self) -> WritingEnd {
        let kept = self.sequence.truncate_to_prefix(self.request.prompt);
        let mut next = None;
        for chunk in self.request.prompt[kept..].chunks(STEP_TOKENS_MAX) {
            if !(self.request.is_wanted)() {
                return Ok(Ending::Taker);
            }
            next = Some(self.run_step(Step::for_last_token(chunk, self.sequence.length()))?);
        }
        let Some(mut next) = next else {
            return Err(GenerationError::Empty);
        };
        let mut draft = Vec::new();
        loop {
            if let ControlFlow::Break(end) = self.accept_tokens(&next, &draft) {
                return end;
            }
            if self.sequence.length() == self.sequence.room {
                return Ok(Ending::Room);
            }
            if !(self.request.is_wanted)() {
                return Ok(Ending::Taker);
            }
            let said = self.text.len() - self.request.prompt.len();
            let free = self.sequence.room - self.sequence.length();
            // A step yields one token more than its draft.
            let most = free.min(self.request.tokens_max - said) - 1;
            draft = self.drafts.draft_tokens(&self.text, most);
            let last = self.text[self.text.len() - 1];
            let tokens = [&[last], &draft[..]].concat();
            next = self.run_step(Step::for_all_tokens(&tokens, self.sequence.length()))?;
        }
    }

    /// Adds tokens and returns the next ones: those that the session draws, or logits if the
    /// request needs them.
    fn run_step(&mut self, step: Step) -> Result<NextTokens, GenerationError> {
        let step = match self.reads_logits() {
            true => step.with_logits(),
            false => step.with_sampling(self.request.sampling),
        };
        self.sequence.run_step(step)
    }

    /// Returns whether drawing needs more than logits, or the request needs the logits.
    fn reads_logits(&self) -> bool {
        let request = self.request;
        self.matcher.is_some() || request.likeliest.is_some() || request.sampling.needs_history()
    }

    /// Takes the next tokens: one after the text, and one more for each drafted token that equals
    /// the drawn one. Truncates the rest of the draft.
    fn accept_tokens(&mut self, next: &NextTokens, draft: &[u32]) -> ControlFlow<WritingEnd> {
        let begin = self.sequence.length() - draft.len();
        let vocabulary = next.logits.len() / (draft.len() + 1);
        for (at, drawn) in next.drawn.iter().enumerate() {
            let logits = &next.logits[at * vocabulary..][..vocabulary];
            let token = self.next(*drawn, logits)?;
            if draft.get(at) != Some(&token) {
                self.sequence.truncate(begin + at);
                self.drafts.record_result(draft.len(), at);
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// Determines the next token and passes it on.
    fn next(&mut self, drawn: u32, logits: &[f32]) -> ControlFlow<WritingEnd, u32> {
        let said = self.text.len() - self.request.prompt.len();
        if said >= self.request.tokens_max {
            return ControlFlow::Break(Ok(Ending::Length));
        }
        let token = match self.reads_logits() {
            true => self.draw_token(logits)?,
            false => drawn,
        };
        if self.request.ends.contains(&token) {
            return ControlFlow::Break(Ok(Ending::Token));
        }
        self.text.push(token);
        let wanted = self.request.likeliest;
        let drawn = DrawnToken {
            id: token,
            probabilities: wanted.map(|most| LogProbabilities::from_logits(logits, token, most)),
        };
        if (self.take)(drawn).is_break() {
            return ControlFlow::Break(Ok(Ending::Taker));
        }
        if self.matcher.as_ref().is_some_and(TextMatcher::is_over) {
            return ControlFlow::Break(Ok(Ending::Grammar));
        }
        match said + 1 == self.request.tokens_max {
            true => ControlFlow::Break(Ok(Ending::Length)),
            false => ControlFlow::Continue(token),
        }
    }

    /// Draws the next token among those that the grammar allows.
    fn draw_token(&mut self, logits: &[f32]) -> ControlFlow<WritingEnd, u32> {
        let (prompt, generated) = self.text.split_at(self.request.prompt.len());
        let (history, sampling) = (History { prompt, generated }, self.request.sampling);
        let Some(matcher) = &mut self.matcher else {
            return ControlFlow::Continue(sampling.draw_token(logits, history));
        };
        let failed = |error: MatchError| ControlFlow::Break(Err(error.into()));
        let allowed = match matcher.allowed_tokens() {
            Ok(allowed) => allowed,
            Err(error) => return failed(error),
        };
        let token = sampling.draw_among(logits, history, |token| allowed.contains(token));
        let Some(token) = token else {
            // A model may have no token that ends texts.
            return match allowed.may_end() {
                true => ControlFlow::Break(Ok(Ending::Grammar)),
                false => failed(MatchError::DeadEnd),
            };
        };
        if self.request.ends.contains(&token) {
            return ControlFlow::Continue(token);
        }
        match matcher.push(token) {
            Ok(()) => ControlFlow::Continue(token),
            Err(error) => failed(error),
        }
    }
}

#[cfg(test)]
mod tests;
