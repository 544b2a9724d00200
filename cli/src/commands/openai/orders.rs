//! Turns a request into orders, one for each of its answers, and checks them before anything is
//! bought.

use souk_llm::answer::{AnswerForm, AnswerReader};
use souk_llm::chat::{Conversation, Message};
use souk_llm::grammar::Grammar;
use souk_llm::sampling::Sampling;
use souk_llm::tokens::Marks;

use super::choice::{ChatChoice, Choice};
use super::question::{Input, Question, REASONING_EFFORT};
use super::refusal::Refusal;
use super::request_queue::CompletionRequest;
use super::tool_calls::Calling;
use crate::commands::texts::{PromptWeights, TextModel};

/// A prompt as tokens.
struct ReadPrompt {
    tokens: Vec<u32>,
    /// The text, for a conversation or an echoed prompt.
    text: String,
    /// The field of the request that holds it.
    field: &'static str,
}

/// Returns an order for each answer, with the choice that formats it.
pub fn prepare_orders(
    voice: &TextModel,
    question: &Question,
    calls: Option<&Calling<'_>>,
    grammar: Option<Grammar>,
) -> Result<Vec<(CompletionRequest, Choice)>, Refusal> {
    check_bias(voice, &question.sampling)?;
    let mut prepared = Vec::with_capacity(question.inputs.len() * question.choices);
    for input in &question.inputs {
        let prompt = read(voice, question, input, calls)?;
        let left = left_after(voice, &prompt)?;
        for nth in 0..question.choices {
            let seed = question.sampling.seed.wrapping_add(nth as u64);
            let order = CompletionRequest {
                prompt: prompt.tokens.clone(),
                sampling: Sampling {
                    seed,
                    ..question.sampling.clone()
                },
                stops: question.stops.clone(),
                grammar: grammar.clone(),
                tokens_max: question.tokens_max.unwrap_or(left),
                likeliest: question.likeliest,
                prompt_weights: match question.is_echoed && question.likeliest.is_some() {
                    true => PromptWeights::Wanted,
                    false => PromptWeights::Unwanted,
                },
                marks: &[],
            };
            let index = prepared.len();
            prepared.push(with_choice(voice, question, calls, &prompt, index, order)?);
        }
    }
    Ok(prepared)
}

/// Returns the choice that formats an answer, and adds to the order the marks that it reads.
fn with_choice(
    voice: &TextModel,
    question: &Question,
    calls: Option<&Calling<'_>>,
    prompt: &ReadPrompt,
    index: usize,
    mut order: CompletionRequest,
) -> Result<(CompletionRequest, Choice), Refusal> {
    let (siblings, is_weighed) = (question.choices, question.likeliest.is_some());
    let Input::Messages(_) = question.inputs[index / siblings] else {
        let echo = question.is_echoed.then(|| prompt.text.clone());
        return Ok((order, Choice::for_text(index, siblings, is_weighed, echo)));
    };
    let form = AnswerForm::from_template(source(voice, calls)?);
    let call_form = calls.map(|calls| calls.form);
    order.marks = form.marks_to_keep(call_form);
    let tools = calls.map(|calls| (calls.form, calls.tools()));
    let opening = calls.map_or(Ok(String::new()), Calling::answer_opening)?;
    let before = prompt.text.strip_suffix(&opening).unwrap_or(&prompt.text);
    let mut reader = AnswerReader::new(form, before, tools);
    reader.push(&opening);
    let chat = ChatChoice {
        reader,
        calls: call_form,
        calls_max: calls.map_or(0, Calling::calls_max),
    };
    Ok((order, Choice::for_chat(index, siblings, is_weighed, chat)))
}

fn source<'a>(voice: &'a TextModel, calls: Option<&Calling<'_>>) -> Result<&'a str, Refusal> {
    let template = voice.chat_template()?;
    Ok(match calls {
        Some(_) => template.source_with_tools(),
        None => &template.source,
    })
}

/// Returns the tokens of a prompt. The model must know all of them.
fn read(
    voice: &TextModel,
    question: &Question,
    input: &Input,
    calls: Option<&Calling<'_>>,
) -> Result<ReadPrompt, Refusal> {
    let at = |field| move |failure| Refusal::from(failure).with_field(field);
    match input {
        Input::Messages(messages) => read_conversation(voice, question, messages, calls),
        Input::Text(text) => Ok(ReadPrompt {
            tokens: voice.encode_text(text).map_err(at("prompt"))?,
            text: text.clone(),
            field: "prompt",
        }),
        Input::Tokens(tokens) => {
            voice.check_tokens(tokens).map_err(at("prompt"))?;
            let refused = |error: souk_llm::tokens::TokenError| {
                Refusal::invalid_field("prompt", error.to_string())
            };
            let mut stream = voice.tokenizer.stream();
            let pieces = tokens.iter().map(|token| stream.push(*token));
            let mut text = pieces.collect::<Result<String, _>>().map_err(refused)?;
            text.push_str(&stream.finish().map_err(refused)?);
            Ok(ReadPrompt {
                tokens: tokens.clone(),
                text,
                field: "prompt",
            })
        }
    }
}

fn read_conversation(
    voice: &TextModel,
    question: &Question,
    messages: &[Message],
    calls: Option<&Calling<'_>>,
) -> Result<ReadPrompt, Refusal> {
    let values = &question.template_values;
    let knows_effort = source(voice, calls)?.contains(REASONING_EFFORT);
    if values.contains_key(REASONING_EFFORT) && !knows_effort {
        return Err(Refusal::unsupported_field(REASONING_EFFORT));
    }
    let field = |failure| Refusal::from(failure).with_field("messages");
    let mut text = voice
        .render_conversation(&Conversation {
            messages,
            tools: calls.map_or(&[], Calling::tools),
            documents: &question.documents,
            values: Some(values),
            now: 0,
        })
        .map_err(field)?;
    if let Some(calls) = calls {
        text.push_str(&calls.answer_opening()?);
    }
    Ok(ReadPrompt {
        tokens: voice.encode(&text, Marks::Own).map_err(field)?,
        text,
        field: "messages",
    })
}

/// Returns the positions that a prompt leaves for an answer. It must not be empty, and must leave
/// at least one.
fn left_after(voice: &TextModel, prompt: &ReadPrompt) -> Result<usize, Refusal> {
    let length = prompt.tokens.len();
    if length == 0 {
        return Err(Refusal::invalid_field(prompt.field, "the prompt is empty"));
    }
    match voice.room.saturating_sub(length) {
        0 => Err(Refusal::too_long(prompt.field, length, voice.room)),
        left => Ok(left),
    }
}

fn check_bias(voice: &TextModel, sampling: &Sampling) -> Result<(), Refusal> {
    let tokens: Vec<u32> = sampling.bias.keys().copied().collect();
    let field = |failure| Refusal::from(failure).with_field("logit_bias");
    voice.check_tokens(&tokens).map_err(field)
}

#[cfg(test)]
mod tests;
