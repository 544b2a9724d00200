//! Reads bought answers with the buyer's own copy of a model, the *reference*, so that an audit can
//! find out whether the provider used the model that the buyer paid for. For each token it measures
//! how far the logits of the reference are from drawing the same token. The test that judges these
//! readings is [`souk_roles::tokens::audit`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use souk_llm::answer::AnswerForm;
use souk_llm::answer_scoring::{
    Difference, LIKELIEST, ScoringError, TokenScore, measure_differences, read_likeliest,
    score_answer,
};
use souk_llm::generation::Sequence;
use souk_llm::model::LanguageModel;
use souk_llm::tokens::Marks;
use souk_node::endpoint::own_engine::OwnFault;
use souk_node::memory::ContentId;
use souk_roles::tokens::audit::TokenReading;
use souk_roles::tokens::text::{Finish, TextAnswer, TextRequest};
use tokio::runtime::Handle;

use crate::served_decoder::prompt::PreparedRequest;
use crate::{SessionSize, TextEngine, TextError, TextModel, open_model};

/// The tokens from which the noise of an honest engine is measured: a thousand differences.
const NOISE_TOKENS: usize = 256;

/// The noise that an honest engine may have, in parts of the measured one, which is that of an
/// engine with the coarsest rounding: of each weight, and of the logits.
const NOISE_FACTOR: f64 = 1.25;

/// The same for the noise of one position, which is measured by few differences.
const NOISE_FACTOR_OF_ONE: f64 = 2.0;

/// The most places of an answer at which souk takes the reference's tokens for the same text. Each
/// takes another pass.
const RESPELLINGS_MAX: usize = 24;

/// The most tokens that the passes over one answer read together.
const PASS_TOKENS_MAX: usize = 1 << 16;

/// A penalty on repetitions must explain why a likelier token was not drawn, unless the difference
/// is below this value, in logits: the logits of an honest engine can be off by this much.
const PENALTY_TIE: f64 = 0.5;

/// Above this shift, in logits, the noise is measured for each position of the answer.
const SUSPICIOUS: f64 = 0.02;

/// A model that reads answers again for audits.
pub struct AuditReference {
    text_model: TextModel,
    sequence: Sequence<'static>,
    /// A copy whose weights differ as much as another honest one's may.
    copy: Sequence<'static>,
    id: ContentId,
    /// The penalty on repeated tokens that engines take from the model's folder; 1 means no
    /// penalty.
    repetition_penalty: f64,
    /// The contexts of the tokens that were read: the same one again is no news.
    seen: BTreeSet<[u8; 16]>,
}

/// Why an answer could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFault {
    /// The answer has no text, or one token.
    #[error("too short")]
    Short,
    /// A part of the answer is reasoning, whose marks the buyer does not see.
    #[error("with reasoning")]
    Reasoning,
    /// The draws depend on penalties or filters.
    #[error("drawn with penalties, top_p, or filters")]
    Sampling,
    /// The reference's chat template refuses the messages, or its context is too small.
    #[error("not for this reference: {0}")]
    Refused(String),
    /// The reference's tokeniser has no tokens for the answer's text alone.
    #[error("whose text the tokeniser does not keep")]
    Seam,
    /// A filter of the engine changed or cut the text.
    #[error("ended by a content filter")]
    Filtered,
    /// The reference failed.
    #[error("not readable: {0}")]
    Failed(String),
}

/// An answer in the reference's tokens.
struct ReadableAnswer {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    /// Whether the first letters of the answer would belong to the prompt's last token.
    is_merged: bool,
    sampling: souk_llm::sampling::Sampling,
}

impl ReadFault {
    /// Returns whether the provider chose the form of the answer because of which it is not read.
    /// Otherwise the request or the reference is the cause.
    #[must_use]
    pub fn is_evasive(&self) -> bool {
        match self {
            ReadFault::Short
            | ReadFault::Reasoning
            | ReadFault::Seam
            | ReadFault::Filtered
            | ReadFault::Failed(_) => true,
            ReadFault::Sampling | ReadFault::Refused(_) => false,
        }
    }
}

impl AuditReference {
    /// Opens a reference as `souk generate` takes a model: with a chat template, and weights in
    /// f32, f16 or bf16. It takes the memory of two models.
    ///
    /// # Errors
    /// [`TextError`] if it cannot be used.
    pub fn open(
        path: &Path,
        context: Option<usize>,
        threads: Option<u32>,
        handle: &Handle,
    ) -> Result<AuditReference, TextError> {
        let (model, text_model) = open_model(path, context)?;
        let id = identify(&model, &text_model)?;
        let (mut copy, _) = open_model(path, Some(text_model.context_length))?;
        copy.jitter_weights().map_err(|error| {
            let hint = "a reference of few bits is a cheaper version itself: give the model in \
                        f32, f16 or bf16";
            TextError::input(error, hint)
        })?;
        let sequence = open_sequence(model, &text_model, threads, handle)?;
        let copy = open_sequence(copy, &text_model, threads, handle)?;
        Ok(AuditReference {
            text_model,
            sequence,
            copy,
            id,
            repetition_penalty: read_repetition_penalty(path),
            seen: BTreeSet::new(),
        })
    }

    /// Forgets the answers read so far, before those of another provider.
    pub fn begin_provider(&mut self) {
        self.seen.clear();
    }

    /// Returns the hash of its weights, its tokeniser and its chat template.
    #[must_use]
    pub fn id(&self) -> ContentId {
        self.id
    }

    /// Returns the penalty on repeated tokens that `generation_config.json` in the reference's
    /// folder states, which some engines apply to all requests; 1 is none.
    #[must_use]
    pub fn repetition_penalty(&self) -> f64 {
        self.repetition_penalty
    }

    /// Reads an answer again that was given at a moment, in Unix seconds. Leaves out its last
    /// token, which a stop string or an end can cut, and tokens whose whole context was read
    /// before.
    ///
    /// # Errors
    /// Why it is not read.
    pub fn read_answer(
        &mut self,
        request: &TextRequest,
        answer: &TextAnswer,
        at: u64,
    ) -> Result<Vec<TokenReading>, ReadFault> {
        let ReadableAnswer {
            prompt,
            mut answer,
            is_merged,
            sampling,
        } = self.prepare(request, answer, at)?;
        let mut scores = score_answer(&mut self.sequence, &prompt, &answer, &sampling)?;
        let mut from = 0;
        let passes = PASS_TOKENS_MAX / (prompt.len() + answer.len());
        for _ in 0..passes.min(RESPELLINGS_MAX) {
            let Some((at, respelled)) = self.respell(&scores, &answer, from)? else {
                break;
            };
            (answer, from) = (respelled, at + 1);
            answer.truncate(self.text_model.context_length - prompt.len());
            scores = score_answer(&mut self.sequence, &prompt, &answer, &sampling)?;
        }
        let noises = match scores.iter().any(|score| score.margin > SUSPICIOUS) {
            true => self.measure_each(&prompt, &answer)?,
            false => Vec::new(),
        };
        let mut context = Context::new(&prompt);
        let mut readings = Vec::with_capacity(scores.len());
        for (at, score) in scores.iter().enumerate() {
            if self.seen.insert(context.hash) {
                let is_seam = is_merged && at == 0;
                readings.push(TokenReading {
                    noise: noises
                        .get(at)
                        .map(|it| it.root_mean_square() * NOISE_FACTOR_OF_ONE),
                    is_respelled: is_seam || self.is_respelled(score, &answer[at..])?,
                    is_penalised: context.explains_by_penalty(score),
                    ..to_reading(score)
                });
            }
            context.push(score.token);
        }
        Ok(readings)
    }

    /// Handles an answer whose text continues with the reference's own draw after some token, but
    /// is split into other tokens. Returns the tokens that the reference would have drawn with
    /// those of the rest of the text, and their place; none if there is no such place.
    fn respell(
        &self,
        scores: &[TokenScore],
        answer: &[u32],
        from: usize,
    ) -> Result<Option<(usize, Vec<u32>)>, ReadFault> {
        for (at, score) in scores.iter().enumerate().skip(from) {
            if !self.is_respelled(score, &answer[at..])? {
                continue;
            }
            let drawn = self.bytes_of(&[score.drawn])?;
            let rest = self.bytes_of(&answer[at..])?;
            let rest = rest.get(drawn.len()..).unwrap_or_default();
            let Ok(rest) = std::str::from_utf8(rest) else {
                continue;
            };
            let encoded = self.text_model.encode(rest, Marks::Own);
            let encoded = encoded.map_err(|error| ReadFault::Failed(error.to_string()))?;
            // Some tokenisers add a space before a text.
            if self.bytes_of(&encoded)? == rest.as_bytes() {
                let tokens = [&answer[..at], &[score.drawn], &encoded].concat();
                return Ok(Some((at, tokens)));
            }
        }
        Ok(None)
    }

    fn bytes_of(&self, tokens: &[u32]) -> Result<Vec<u8>, ReadFault> {
        let mut bytes = Vec::new();
        for token in tokens {
            let own = self.text_model.tokenizer.bytes_of(*token);
            bytes.extend(own.map_err(|error| ReadFault::Failed(error.to_string()))?);
        }
        Ok(bytes)
    }

    /// Returns whether the text continues with the reference's own draw, but split into other
    /// tokens.
    fn is_respelled(&self, score: &TokenScore, rest: &[u32]) -> Result<bool, ReadFault> {
        if score.rank == 0 {
            return Ok(false);
        }
        let drawn = self.bytes_of(&[score.drawn])?;
        let mut text = Vec::new();
        for token in rest {
            text.extend(self.bytes_of(&[*token])?);
            if text.len() >= drawn.len() {
                break;
            }
        }
        // At the end, the text can be cut within a token.
        Ok(!drawn.is_empty() && (text.starts_with(&drawn) || drawn.starts_with(&text)))
    }

    /// Measures the noise before each token of an answer.
    fn measure_each(
        &mut self,
        prompt: &[u32],
        answer: &[u32],
    ) -> Result<Vec<Difference>, ScoringError> {
        let likeliest = read_likeliest(&mut self.sequence, prompt, answer)?;
        measure_differences(&mut self.copy, (prompt, answer), &likeliest)
    }

    /// Measures the noise of an honest engine on these answers, in logits: the difference that a
    /// copy of the reference makes whose weights differ by a rounding, and whose logits are in
    /// bf16. Some tokens are enough. None if no answer can be read.
    ///
    /// # Errors
    /// [`TextError`] if a model fails.
    pub fn measure_noise<'a>(
        &mut self,
        answers: impl IntoIterator<Item = (&'a TextRequest, &'a TextAnswer, u64)>,
    ) -> Result<Option<f64>, TextError> {
        let (mut sum, mut tokens) = (Difference::default(), 0);
        for (request, answer, at) in answers {
            let Ok(readable) = self.prepare(request, answer, at) else {
                continue;
            };
            let measured = self.measure_each(&readable.prompt, &readable.answer);
            let measured = measured.map_err(TextError::unexpected)?;
            measured.into_iter().for_each(|it| sum.add(it));
            tokens += readable.answer.len();
            if tokens >= NOISE_TOKENS {
                break;
            }
        }
        Ok((tokens > 0).then(|| sum.root_mean_square() * NOISE_FACTOR))
    }

    fn prepare(
        &self,
        request: &TextRequest,
        answer: &TextAnswer,
        at: u64,
    ) -> Result<ReadableAnswer, ReadFault> {
        if answer.finish == Finish::ContentFilter {
            return Err(ReadFault::Filtered);
        }
        // A thought of a model that has none is a provider's invention, and so are spaces.
        let template = &self.text_model.chat_template();
        let template = template
            .as_ref()
            .map_err(|error| ReadFault::Failed(error.to_string()))?;
        let thinks = AnswerForm::from_template(&template.source) != AnswerForm::Plain;
        if thinks && !answer.text.reasoning.trim().is_empty() {
            return Err(ReadFault::Reasoning);
        }
        let prepared = PreparedRequest::new_at(&self.text_model, request, at);
        let prepared = prepared.map_err(|fault| match fault {
            OwnFault::Refused(why) | OwnFault::Failed(why) => ReadFault::Refused(why),
            OwnFault::Busy => ReadFault::Refused(String::new()),
        })?;
        souk_llm::answer_scoring::check_sampling(&prepared.sampling)?;
        let content = &answer.text.content;
        let prompt = prepared.tokens;
        let whole = self.encode(&format!("{}{content}", prepared.text))?;
        let is_merged = !whole.starts_with(&prompt);
        let mut own = match is_merged {
            true => self.encode_alone(content)?,
            false => whole[prompt.len()..].to_vec(),
        };
        own.pop();
        own.truncate(self.text_model.context_length - prompt.len());
        match own.is_empty() {
            true => Err(ReadFault::Short),
            false => Ok(ReadableAnswer {
                prompt,
                answer: own,
                is_merged,
                sampling: prepared.sampling,
            }),
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, ReadFault> {
        let tokens = self.text_model.encode(text, Marks::Own);
        tokens.map_err(|error| ReadFault::Refused(error.to_string()))
    }

    /// Returns the tokens of an answer whose first letters would belong to the prompt's last token.
    fn encode_alone(&self, content: &str) -> Result<Vec<u32>, ReadFault> {
        let tokens = self.encode(content)?;
        // Some tokenisers add a space before a text.
        match self.bytes_of(&tokens)? == content.as_bytes() {
            true => Ok(tokens),
            false => Err(ReadFault::Seam),
        }
    }
}

impl From<ScoringError> for ReadFault {
    fn from(error: ScoringError) -> ReadFault {
        match error {
            ScoringError::Penalties | ScoringError::Filters => ReadFault::Sampling,
            ScoringError::Generation(error) => ReadFault::Failed(error.to_string()),
        }
    }
}

fn open_sequence(
    model: LanguageModel,
    text_model: &TextModel,
    threads: Option<u32>,
    handle: &Handle,
) -> Result<Sequence<'static>, TextError> {
    text_model.chat_template()?;
    let size = SessionSize {
        tokens: text_model.context_length,
        sequences: 1,
        is_embedding: false,
    };
    let engine = TextEngine::open_local(model, text_model.context_length, size, threads)?;
    engine.open_sequence(handle)
}

fn identify(model: &LanguageModel, text_model: &TextModel) -> Result<ContentId, TextError> {
    let weights = model.weights_id().map_err(|error| {
        let hint = "give the model as it was before `souk model import`";
        TextError::input(error, hint)
    })?;
    let tokenizer = text_model.tokenizer.to_json();
    let tokenizer = tokenizer.map_err(TextError::unexpected)?;
    let template = &text_model.chat_template()?.source;
    let parts = [
        weights.as_bytes(),
        tokenizer.as_bytes(),
        template.as_bytes(),
    ];
    let hashes = parts.map(|part| *ContentId::for_content(part).as_bytes());
    Ok(ContentId::for_content(&hashes.concat()))
}

/// The tokens before the one to read.
struct Context {
    /// The hash of all, each token with the hash of those before.
    hash: [u8; 16],
    /// The last position of each token.
    last: BTreeMap<u32, usize>,
    length: usize,
}

impl Context {
    fn new(tokens: &[u32]) -> Context {
        let mut context = Context {
            hash: [0; 16],
            last: BTreeMap::new(),
            length: 0,
        };
        tokens.iter().for_each(|token| context.push(*token));
        context
    }

    fn push(&mut self, token: u32) {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.hash);
        bytes[16..].copy_from_slice(&token.to_le_bytes());
        let id = ContentId::for_content(&bytes);
        self.hash = *id.as_bytes().first_chunk().expect("a hash has 32 bytes");
        self.last.insert(token, self.length);
        self.length += 1;
    }

    /// Returns whether an engine that makes the tokens of some last part of the context less likely
    /// can have preferred the given token to all that the reference holds for likelier.
    fn explains_by_penalty(&self, score: &TokenScore) -> bool {
        let rank = score.rank as usize;
        let last = self.last.get(&score.token);
        let is_later = |token: &u32| self.last.get(token) > last;
        if rank == 0 || !is_later(&score.drawn) {
            return false;
        }
        let mut likelier = score.rivals.iter().take(rank - 1);
        let is_free =
            |(token, shift): &(u32, f64)| score.margin - shift > PENALTY_TIE && !is_later(token);
        // Of the tokens beyond the likeliest ones, only the number is known.
        let later = || self.last.values().filter(|at| Some(*at) > last).count();
        !likelier.any(is_free) && (score.share.is_some() || rank < LIKELIEST || rank <= later())
    }
}

/// Returns the penalty on repetitions that engines take from a model's folder; 1 if it states none.
fn read_repetition_penalty(path: &Path) -> f64 {
    let text = std::fs::read(path.join("generation_config.json")).unwrap_or_default();
    let stated: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    let penalty = stated.and_then(|it| it.get("repetition_penalty")?.as_f64());
    penalty.unwrap_or(1.0)
}

fn to_reading(score: &TokenScore) -> TokenReading {
    let reading = TokenReading {
        token: score.token,
        drawn: score.drawn,
        rank: score.rank,
        margin: score.margin,
        margin_end: score.margin_end,
        nearest: score.nearest,
        share: score.share,
        rarity: score.rarity,
        rivals: score.rivals.iter().map(|(_, shift)| *shift).collect(),
        noise: None,
        is_respelled: false,
        is_penalised: false,
    };
    reading.bounded()
}

#[cfg(test)]
mod tests;
