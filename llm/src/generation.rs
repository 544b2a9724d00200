//! Text token by token: a session of a decoder stepped until something ends it.

mod drafts;
mod step;

use std::ops::ControlFlow;

use souk_memory::{Tensor, TensorError};
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::session::Session;
use thiserror::Error;

use drafts::Drafts;
pub use step::{Step, inputs};

use crate::decoder::{DRAWN, LOGITS};
use crate::grammar::{Grammar, MatchError, TextMatcher};
use crate::sampling::{History, LogProbabilities, Sampling};

/// Tokens of a prompt that are given at once: enough for products to be computed by blocks, few
/// enough that what lies between layers stays small.
pub const CHUNK: usize = 256;

/// Tokens of a prompt whose logits are told at once: some megabytes of them.
const WEIGHED_CHUNK: usize = 16;

/// Why a text went no further.
#[derive(Debug, Error)]
pub enum GenerationError {
    /// The prompt has no token.
    #[error("the prompt is empty: a text is generated after at least one token")]
    Empty,
    /// More tokens than the session has room for.
    #[error("{wanted} tokens are wanted, and the session has room for {room}")]
    Room {
        /// Positions wanted.
        wanted: usize,
        /// Positions there are.
        room: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The logits are not what a decoder gives.
    #[error("the decoder gave no logits: {0}")]
    Logits(TensorError),
    /// It drew no token, or not as many as it was to.
    #[error("the decoder drew {0} tokens where {1} were wanted")]
    Drawn(usize, usize),
    /// A number among the logits is none.
    #[error("the logits at position {0} are not all numbers")]
    NoNumber(usize),
    /// The text cannot go on as its grammar wants it.
    #[error(transparent)]
    Match(#[from] MatchError),
}

/// A sequence of tokens in a session.
pub struct Sequence<'a> {
    session: Box<dyn Session + 'a>,
    /// What the caches hold.
    tokens: Vec<u32>,
    room: usize,
}

impl<'a> Sequence<'a> {
    /// An empty one, in a session whose caches have so much room.
    #[must_use]
    pub fn new(session: Box<dyn Session + 'a>, room: usize) -> Self {
        Self {
            session,
            tokens: Vec::new(),
            room,
        }
    }

    /// Tokens so far.
    #[must_use]
    pub fn length(&self) -> usize {
        self.tokens.len()
    }

    /// How many of a prompt's tokens it begins with. The last is never among them: its logits are
    /// still to come.
    #[must_use]
    pub fn agreement(&self, prompt: &[u32]) -> usize {
        let most = prompt.len().saturating_sub(1);
        let both = self.tokens.iter().zip(&prompt[..most]);
        both.take_while(|(had, wanted)| had == wanted).count()
    }

    /// Goes back to where it agrees with a prompt; gives how many of the prompt's tokens it then
    /// has.
    pub fn agree(&mut self, prompt: &[u32]) -> usize {
        let same = self.agreement(prompt);
        self.truncate(same);
        same
    }

    /// Goes back to an earlier length; what came after it no longer counts, and is written over.
    ///
    /// # Panics
    /// If there are not so many tokens.
    pub fn truncate(&mut self, length: usize) {
        assert!(length <= self.length(), "a sequence goes back, not forth");
        self.tokens.truncate(length);
    }

    /// Adds tokens; gives the logits of the one to come.
    ///
    /// # Errors
    /// [`GenerationError`]. The sequence then is as long as what was added before it.
    pub fn push(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.fits(tokens)?;
        let mut next = None;
        for chunk in tokens.chunks(CHUNK) {
            next = Some(self.step(Step::last(chunk, self.length()).told())?);
        }
        next.map(|next| next.logits).ok_or(GenerationError::Empty)
    }

    fn fits(&self, tokens: &[u32]) -> Result<(), GenerationError> {
        let (wanted, room) = (self.length() + tokens.len(), self.room);
        match wanted > room {
            true => Err(GenerationError::Room { wanted, room }),
            false => Ok(()),
        }
    }

    /// Adds tokens; gives the logits after each.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.fits(tokens)?;
        let next = self.step(Step::all(tokens, self.length()).told())?;
        Ok(next.logits)
    }

    /// Becomes a prompt but for its last token; gives how likely each token after the first was,
    /// with so many of the likeliest.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn weigh(
        &mut self,
        prompt: &[u32],
        likeliest: usize,
    ) -> Result<Vec<LogProbabilities>, GenerationError> {
        self.truncate(0);
        self.fits(prompt)?;
        let before = &prompt[..prompt.len().saturating_sub(1)];
        let mut weighed = Vec::with_capacity(before.len());
        for chunk in before.chunks(WEIGHED_CHUNK) {
            let next = self.step(Step::all(chunk, self.length()).told())?;
            let vocabulary = next.logits.len() / chunk.len();
            for logits in next.logits.chunks_exact(vocabulary.max(1)) {
                let token = prompt[weighed.len() + 1];
                weighed.push(LogProbabilities::of(logits, token, likeliest));
            }
        }
        Ok(weighed)
    }

    /// Adds a step's tokens; gives what follows each of its rows.
    fn step(&mut self, step: Step) -> Result<NextTokens, GenerationError> {
        let mut outcome = self.session.step(&step.inputs())?;
        let mut output = |name: &str| {
            let output = outcome.outputs.remove(name);
            output.unwrap_or_else(|| Tensor::scalar(0i64))
        };
        let (drawn, logits) = (output(DRAWN), output(LOGITS));
        let drawn = drawn.to_vec::<i64>().map_err(GenerationError::Logits)?;
        let drawn = drawn.into_iter().filter_map(|it| u32::try_from(it).ok());
        let drawn: Vec<u32> = drawn.collect();
        if drawn.len() != step.rows.len() {
            return Err(GenerationError::Drawn(drawn.len(), step.rows.len()));
        }
        let logits = logits.to_vec::<f32>().map_err(GenerationError::Logits)?;
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(GenerationError::NoNumber(self.length()));
        }
        self.tokens.extend(step.tokens);
        Ok(NextTokens { drawn, logits })
    }
}

/// What follows the rows of a step.
struct NextTokens {
    /// The token that was drawn after each.
    drawn: Vec<u32>,
    /// The logits of each, where they were told.
    logits: Vec<f32>,
}

/// What ended a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A token that ends texts.
    Token,
    /// It is whole, and its grammar lets nothing follow.
    Grammar,
    /// As many tokens as were asked for.
    Length,
    /// The sequence has no more room.
    Room,
    /// Whoever takes the tokens.
    Taker,
}

/// What is asked for.
#[derive(Clone)]
pub struct Request<'a> {
    /// The tokens to go on after.
    pub prompt: &'a [u32],
    /// How the next is drawn.
    pub sampling: &'a Sampling,
    /// Tokens that end a text.
    pub ends: &'a [u32],
    /// What the text is to be, if not whatever comes. It was made for the same tokens and ends.
    pub grammar: Option<&'a Grammar>,
    /// Tokens at most.
    pub tokens_max: usize,
    /// Tokens that may be drafted for a step at most. The text is the same with and without.
    pub drafts_max: usize,
    /// Where the probability of each token is wanted too: with so many of the likeliest.
    pub likeliest: Option<usize>,
    /// Whether anybody still wants it: asked before each step.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnToken {
    /// Which.
    pub id: u32,
    /// How likely it was, where that is wanted.
    pub probabilities: Option<LogProbabilities>,
}

/// How a text was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationOutcome {
    /// What ended it.
    pub ending: Ending,
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Those of them that the text went on with.
    pub accepted: usize,
}

/// Makes a sequence the prompt, of which only what it does not begin with is computed, and
/// generates after it, handing each token on as it comes. The token that ends the text is not
/// handed on.
///
/// # Errors
/// [`GenerationError`]; what was handed on stands.
pub fn generate(
    sequence: &mut Sequence<'_>,
    request: &Request<'_>,
    take: impl FnMut(DrawnToken) -> ControlFlow<()>,
) -> Result<GenerationOutcome, GenerationError> {
    let (wanted, room) = (request.prompt.len(), sequence.room);
    if wanted > room {
        return Err(GenerationError::Room { wanted, room });
    }
    let mut writing = Writing {
        sequence,
        request,
        text: request.prompt.to_vec(),
        drafts: Drafts::new(request.drafts_max),
        matcher: request.grammar.map(Grammar::matcher),
        take,
    };
    let ending = writing.write()?;
    let (drafted, accepted) = writing.drafts.counts();
    Ok(GenerationOutcome {
        ending,
        drafted,
        accepted,
    })
}

/// A text as it is generated.
struct Writing<'a, 'b, T> {
    sequence: &'a mut Sequence<'b>,
    request: &'a Request<'a>,
    /// The prompt, and what was generated.
    text: Vec<u32>,
    drafts: Drafts,
    /// What follows the tokens that were drawn, and no draft.
    matcher: Option<TextMatcher>,
    take: T,
}

/// What ends a text, or why it goes no further.
type WritingEnd = Result<Ending, GenerationError>;

impl<T: FnMut(DrawnToken) -> ControlFlow<()>> Writing<'_, '_, T> {
    fn write(&mut self) -> WritingEnd {
        let kept = self.sequence.agree(self.request.prompt);
        let mut next = None;
        for chunk in self.request.prompt[kept..].chunks(CHUNK) {
            if !(self.request.is_wanted)() {
                return Ok(Ending::Taker);
            }
            next = Some(self.step(Step::last(chunk, self.sequence.length()))?);
        }
        let Some(mut next) = next else {
            return Err(GenerationError::Empty);
        };
        let mut draft = Vec::new();
        loop {
            if let ControlFlow::Break(end) = self.draw(&next, &draft) {
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
            // A step gives one token more than are drafted.
            let most = free.min(self.request.tokens_max - said) - 1;
            draft = self.drafts.draft(&self.text, most);
            let last = self.text[self.text.len() - 1];
            let tokens = [&[last], &draft[..]].concat();
            next = self.step(Step::all(&tokens, self.sequence.length()))?;
        }
    }

    /// Adds tokens, for what follows them: the tokens as the session draws them, or logits where
    /// more than that is wanted.
    fn step(&mut self, step: Step) -> Result<NextTokens, GenerationError> {
        let step = match self.reads_logits() {
            true => step.told(),
            false => step.drawn(self.request.sampling),
        };
        self.sequence.step(step)
    }

    /// Whether what is drawn depends on more than logits, or they are wanted themselves.
    fn reads_logits(&self) -> bool {
        let request = self.request;
        self.matcher.is_some() || request.likeliest.is_some() || request.sampling.looks_back()
    }

    /// Takes the next tokens: what follows what was said, and each drafted token for as long as it
    /// is the one that is drawn. The rest of a draft is taken back.
    fn draw(&mut self, next: &NextTokens, draft: &[u32]) -> ControlFlow<WritingEnd> {
        let begin = self.sequence.length() - draft.len();
        let vocabulary = next.logits.len() / (draft.len() + 1);
        for (at, drawn) in next.drawn.iter().enumerate() {
            let logits = &next.logits[at * vocabulary..][..vocabulary];
            let token = self.next(*drawn, logits)?;
            if draft.get(at) != Some(&token) {
                self.sequence.truncate(begin + at);
                self.drafts.learn(draft.len(), at);
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// The next token, handed on.
    fn next(&mut self, drawn: u32, logits: &[f32]) -> ControlFlow<WritingEnd, u32> {
        let said = self.text.len() - self.request.prompt.len();
        if said >= self.request.tokens_max {
            return ControlFlow::Break(Ok(Ending::Length));
        }
        let token = match self.reads_logits() {
            true => self.drawn(logits)?,
            false => drawn,
        };
        if self.request.ends.contains(&token) {
            return ControlFlow::Break(Ok(Ending::Token));
        }
        self.text.push(token);
        let wanted = self.request.likeliest;
        let drawn = DrawnToken {
            id: token,
            probabilities: wanted.map(|most| LogProbabilities::of(logits, token, most)),
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

    /// The next token, which the grammar allows.
    fn drawn(&mut self, logits: &[f32]) -> ControlFlow<WritingEnd, u32> {
        let (prompt, generated) = self.text.split_at(self.request.prompt.len());
        let (history, sampling) = (History { prompt, generated }, self.request.sampling);
        let Some(matcher) = &mut self.matcher else {
            return ControlFlow::Continue(sampling.draw(logits, history));
        };
        let failed = |error: MatchError| ControlFlow::Break(Err(error.into()));
        let allowed = match matcher.allowed() {
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
