//! Converts a request of OpenAI's API into completions (a prompt as tokens, with the sampling and
//! the limits of its answer), one for each answer that the request asks for. It refuses an invalid
//! request before souk buys anything.

use souk_llm::answer::{AnswerForm, AnswerReader};
use souk_llm::chat::{Conversation, Message};
use souk_llm::grammar::Grammar;
use souk_llm::sampling::Sampling;
use souk_llm::tokens::Marks;

use crate::api_request::{ApiRequest, Input, REASONING_EFFORT};
use crate::choice::{ChatChoice, Choice};
use crate::refusal::Refusal;
use crate::request_queue::CompletionRequest;
use crate::tool_calls::AllowedToolCalls;
use souk_texts::{PromptLogprobs, TextModel};

/// A prompt as tokens.
struct EncodedPrompt {
    tokens: Vec<u32>,
    /// The text, for a conversation or an echoed prompt.
    text: String,
    /// The field of the request that holds it.
    field: &'static str,
}

/// Returns a request for each answer, with the choice that formats it.
pub fn prepare_completions(
    text_model: &TextModel,
    request: &ApiRequest,
    calls: Option<&AllowedToolCalls<'_>>,
    grammar: Option<Grammar>,
) -> Result<Vec<(CompletionRequest, Choice)>, Refusal> {
    check_bias(text_model, &request.sampling)?;
    let mut prepared = Vec::with_capacity(request.inputs.len() * request.choices);
    for input in &request.inputs {
        let prompt = tokenize_prompt(text_model, request, input, calls)?;
        let left = remaining_context(text_model, &prompt)?;
        for nth in 0..request.choices {
            let seed = request.sampling.seed.wrapping_add(nth as u64);
            let completion = CompletionRequest {
                prompt: prompt.tokens.clone(),
                sampling: Sampling {
                    seed,
                    ..request.sampling.clone()
                },
                stops: request.stops.clone(),
                grammar: grammar.clone(),
                tokens_max: request.tokens_max.unwrap_or(left),
                top_logprobs: request.top_logprobs,
                prompt_logprobs: match request.is_echoed && request.top_logprobs.is_some() {
                    true => PromptLogprobs::Wanted,
                    false => PromptLogprobs::Unwanted,
                },
                marks: &[],
            };
            let index = prepared.len();
            prepared.push(with_choice(
                text_model, request, calls, &prompt, index, completion,
            )?);
        }
    }
    Ok(prepared)
}

/// Returns the choice that formats an answer, and adds to the completion the marks that it reads.
fn with_choice(
    text_model: &TextModel,
    request: &ApiRequest,
    calls: Option<&AllowedToolCalls<'_>>,
    prompt: &EncodedPrompt,
    index: usize,
    mut completion: CompletionRequest,
) -> Result<(CompletionRequest, Choice), Refusal> {
    let (siblings, has_logprobs) = (request.choices, request.top_logprobs.is_some());
    let Input::Messages(_) = request.inputs[index / siblings] else {
        let echo = request.is_echoed.then(|| prompt.text.clone());
        return Ok((
            completion,
            Choice::for_text(index, siblings, has_logprobs, echo),
        ));
    };
    let form = AnswerForm::from_template(source(text_model, calls)?);
    let call_form = calls.map(|calls| calls.form);
    completion.marks = form.marks_to_keep(call_form);
    let tools = calls.map(|calls| (calls.form, calls.tools()));
    let opening = calls.map_or(Ok(String::new()), AllowedToolCalls::answer_opening)?;
    let before = prompt.text.strip_suffix(&opening).unwrap_or(&prompt.text);
    let mut reader = AnswerReader::new(form, before, tools);
    reader.push(&opening);
    let chat = ChatChoice {
        reader,
        calls: call_form,
        calls_max: calls.map_or(0, AllowedToolCalls::calls_max),
    };
    Ok((
        completion,
        Choice::for_chat(index, siblings, has_logprobs, chat),
    ))
}

fn source<'a>(
    text_model: &'a TextModel,
    calls: Option<&AllowedToolCalls<'_>>,
) -> Result<&'a str, Refusal> {
    let template = text_model.chat_template()?;
    Ok(match calls {
        Some(_) => template.source_with_tools(),
        None => &template.source,
    })
}

/// Returns the tokens of a prompt. The model must know all of them.
fn tokenize_prompt(
    text_model: &TextModel,
    request: &ApiRequest,
    input: &Input,
    calls: Option<&AllowedToolCalls<'_>>,
) -> Result<EncodedPrompt, Refusal> {
    let at = |field| move |failure| Refusal::from(failure).with_field(field);
    match input {
        Input::Messages(messages) => read_conversation(text_model, request, messages, calls),
        Input::Text(text) => Ok(EncodedPrompt {
            tokens: text_model.encode_text(text).map_err(at("prompt"))?,
            text: text.clone(),
            field: "prompt",
        }),
        Input::Tokens(tokens) => {
            text_model.check_tokens(tokens).map_err(at("prompt"))?;
            let refused = |error: souk_llm::tokens::TokenError| {
                Refusal::invalid_field("prompt", error.to_string())
            };
            let mut stream = text_model.tokenizer.stream();
            let pieces = tokens.iter().map(|token| stream.push(*token));
            let mut text = pieces.collect::<Result<String, _>>().map_err(refused)?;
            text.push_str(&stream.finish().map_err(refused)?);
            Ok(EncodedPrompt {
                tokens: tokens.clone(),
                text,
                field: "prompt",
            })
        }
    }
}

fn read_conversation(
    text_model: &TextModel,
    request: &ApiRequest,
    messages: &[Message],
    calls: Option<&AllowedToolCalls<'_>>,
) -> Result<EncodedPrompt, Refusal> {
    let values = &request.template_values;
    let knows_effort = source(text_model, calls)?.contains(REASONING_EFFORT);
    if values.contains_key(REASONING_EFFORT) && !knows_effort {
        return Err(Refusal::unsupported_field(REASONING_EFFORT));
    }
    let field = |failure| Refusal::from(failure).with_field("messages");
    let mut text = text_model
        .render_conversation(&Conversation {
            messages,
            tools: calls.map_or(&[], AllowedToolCalls::tools),
            documents: &request.documents,
            values: Some(values),
            now: 0,
        })
        .map_err(field)?;
    if let Some(calls) = calls {
        text.push_str(&calls.answer_opening()?);
    }
    Ok(EncodedPrompt {
        tokens: text_model.encode(&text, Marks::Own).map_err(field)?,
        text,
        field: "messages",
    })
}

/// Returns the positions that a prompt leaves for an answer. It must not be empty, and must leave
/// at least one.
fn remaining_context(text_model: &TextModel, prompt: &EncodedPrompt) -> Result<usize, Refusal> {
    let length = prompt.tokens.len();
    if length == 0 {
        return Err(Refusal::invalid_field(prompt.field, "the prompt is empty"));
    }
    match text_model.context_length.saturating_sub(length) {
        0 => Err(Refusal::too_long(
            prompt.field,
            length,
            text_model.context_length,
        )),
        left => Ok(left),
    }
}

fn check_bias(text_model: &TextModel, sampling: &Sampling) -> Result<(), Refusal> {
    let tokens: Vec<u32> = sampling.bias.keys().copied().collect();
    let field = |failure| Refusal::from(failure).with_field("logit_bias");
    text_model.check_tokens(&tokens).map_err(field)
}

#[cfg(test)]
mod tests;
