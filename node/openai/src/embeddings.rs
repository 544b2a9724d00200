//! Reads requests for embeddings (vectors that represent texts) and formats the answers, as
//! OpenAI's API does.

use axum::Json;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api_request::Fields;
use crate::refusal::Refusal;
use crate::request_queue::{EmbeddingRequest, Event};
use souk_texts::TextModel;

/// Largest number of texts in a request, as in OpenAI's API.
const TEXTS_MAX: usize = 2048;

/// A request for embeddings.
#[derive(Debug)]
pub struct EmbeddingApiRequest {
    pub model: String,
    input: EmbeddingInput,
    /// Number of dimensions to which to cut each vector.
    width: Option<usize>,
    is_base64: bool,
}

/// Texts, or the tokens of texts.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum EmbeddingInput {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// Format of the numbers.
#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NumberForm {
    #[default]
    Float,
    Base64,
}

impl EmbeddingApiRequest {
    /// Reads the body of `POST /v1/embeddings`.
    pub fn read(body: Map<String, Value>) -> Result<Self, Refusal> {
        let mut fields = Fields::new(body);
        let what = "a text, tokens, or a list of either";
        let input = fields.take_field("input", what)?;
        let input = input.ok_or_else(|| Refusal::invalid_field("input", "there is no input"))?;
        let width = fields.take_field("dimensions", "a number of dimensions")?;
        if width == Some(0) {
            let message = "a vector has at least one dimension";
            return Err(Refusal::invalid_field("dimensions", message));
        }
        let form: Option<NumberForm> =
            fields.take_field("encoding_format", "\"float\" or \"base64\"")?;
        Ok(Self {
            model: fields.finish_with_model()?,
            input,
            width,
            is_base64: matches!(form, Some(NumberForm::Base64)),
        })
    }

    /// Returns the texts to embed.
    pub fn to_request(&self, text_model: &TextModel) -> Result<EmbeddingRequest, Refusal> {
        let field = |failure| Refusal::from(failure).with_field("input");
        let read = |text: &String| text_model.encode_text(text).map_err(field);
        let texts = match &self.input {
            EmbeddingInput::Text(text) => vec![read(text)?],
            EmbeddingInput::Texts(texts) => {
                let texts = texts.iter().take(TEXTS_MAX + 1);
                texts.map(read).collect::<Result<_, _>>()?
            }
            EmbeddingInput::Tokens(tokens) => vec![tokens.clone()],
            EmbeddingInput::TokenLists(lists) => lists.clone(),
        };
        if texts.is_empty() || texts.len() > TEXTS_MAX {
            let message = format!("1 to {TEXTS_MAX} texts are taken at a time");
            return Err(Refusal::invalid_field("input", message));
        }
        for (at, text) in texts.iter().enumerate() {
            text_model.check_tokens(text).map_err(field)?;
            if text.is_empty() {
                return Err(Refusal::invalid_field(
                    "input",
                    format!("text {at} is empty"),
                ));
            }
            if text.len() > text_model.context_length {
                return Err(Refusal::too_long(
                    "input",
                    text.len(),
                    text_model.context_length,
                ));
            }
        }
        Ok(EmbeddingRequest { texts })
    }

    /// Returns the answer once the vectors arrive.
    pub async fn collect_answer(
        &self,
        tokens: usize,
        mut events: tokio::sync::mpsc::Receiver<Event>,
    ) -> Result<Response, Refusal> {
        let vectors = loop {
            match events.recv().await {
                Some(Event::Vectors(vectors)) => break vectors,
                Some(Event::Failed(refusal)) => return Err(refusal),
                Some(Event::Piece(..) | Event::Done(_)) => {}
                None => return Err(Refusal::server_stopping()),
            }
        };
        let mut data = Vec::with_capacity(vectors.len());
        for (index, vector) in vectors.into_iter().enumerate() {
            let embedding = self.format_vector(vector)?;
            data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
        }
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        let answer = json!({
            "object": "list", "data": data, "model": self.model, "usage": usage,
        });
        Ok(Json(answer).into_response())
    }

    /// Formats a vector; if it is cut, scales it to length 1 again.
    fn format_vector(&self, mut vector: Vec<f32>) -> Result<Value, Refusal> {
        if let Some(width) = self.width {
            if width > vector.len() {
                let message = format!("the model's vectors have {} dimensions", vector.len());
                return Err(Refusal::invalid_field("dimensions", message));
            }
            vector.truncate(width);
            souk_llm::embedding::normalise(&mut vector);
        }
        Ok(match self.is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|it| it.to_le_bytes()).collect();
                json!(BASE64_STANDARD.encode(bytes))
            }
            false => json!(vector),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<EmbeddingApiRequest, Refusal> {
        let Value::Object(body) = body else {
            unreachable!("a body is an object");
        };
        EmbeddingApiRequest::read(body)
    }

    #[test]
    fn texts_and_tokens_are_read_in_all_their_forms() {
        let forms = [
            (json!("a"), EmbeddingInput::Text("a".to_owned())),
            (json!(["a"]), EmbeddingInput::Texts(vec!["a".to_owned()])),
            (json!([1, 2]), EmbeddingInput::Tokens(vec![1, 2])),
            (
                json!([[1], [2]]),
                EmbeddingInput::TokenLists(vec![vec![1], vec![2]]),
            ),
        ];
        for (given, expected) in forms {
            let request = read(json!({ "model": "m", "input": given })).unwrap();
            assert_eq!(request.input, expected);
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_name() {
        let refused = [
            (json!({ "model": "m" }), "input"),
            (json!({ "model": "m", "input": 5 }), "input"),
            (json!({ "input": "a" }), "model"),
            (
                json!({ "model": "m", "input": "a", "dimensions": 0 }),
                "dimensions",
            ),
            (
                json!({ "model": "m", "input": "a", "encoding_format": "hex" }),
                "encoding_format",
            ),
            (json!({ "model": "m", "input": "a", "seed": 1 }), "seed"),
        ];
        for (body, field) in refused {
            let refusal = read(body).unwrap_err().to_object();
            assert_eq!(refusal["error"]["param"], field);
        }
    }

    #[test]
    fn a_vector_is_cut_to_length_one_and_told_as_it_is_wanted() {
        let request = |more: Value| {
            let mut body = json!({ "model": "m", "input": "a" });
            let more = more.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(more);
            read(body).unwrap()
        };
        let vector = vec![0.6, 0.0, 0.8];
        let told = request(json!({ "dimensions": 2 })).format_vector(vector.clone());
        assert_eq!(told.unwrap(), json!([1.0, 0.0]));
        let told = request(json!({ "encoding_format": "base64" })).format_vector(vec![1.0]);
        assert_eq!(told.unwrap(), json!("AACAPw=="));
        let refused = request(json!({ "dimensions": 4 })).format_vector(vector);
        assert!(refused.is_err());
    }
}
