//! Reads the tools that a model may or must call, in the format of OpenAI's API.

use serde::Deserialize;
use serde_json::{Value, json};
use souk_llm::tools::Tool;

use super::Fields;
use crate::refusal::Refusal;

/// Largest length of a function's name, as in OpenAI's API.
const NAME_LETTERS_MAX: usize = 64;

/// The tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUse {
    /// All tools that the prompt describes.
    pub tools: Vec<Tool>,
    /// Tools of which the model must call one; empty if it can choose.
    pub forced: Vec<Tool>,
    /// Whether the model may call several.
    pub is_parallel: bool,
}

/// A tool.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ToolDefinition {
    Function { function: FunctionDefinition },
}

/// A function. Its arguments must fulfil its schema only in a forced call, and then always.
#[derive(Deserialize)]
struct FunctionDefinition {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

/// The choice whether the model calls tools.
#[derive(Deserialize)]
#[serde(untagged)]
enum ToolChoice {
    Word(ChoiceWord),
    One(NamedTool),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChoiceWord {
    None,
    Auto,
    Required,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum NamedTool {
    Function { function: FunctionName },
}

#[derive(Deserialize)]
struct FunctionName {
    name: String,
}

impl Fields {
    /// Reads the tools of a conversation; returns `None` if the model must not call any.
    pub fn tool_use(&mut self) -> Result<Option<ToolUse>, Refusal> {
        let what = "none, auto, required, or a function by its name";
        let choice: Option<ToolChoice> = self.take_field("tool_choice", what)?;
        let is_parallel = self.take_field("parallel_tool_calls", "true or false")?;
        let given: Vec<Value> = self
            .take_field("tools", "a list of functions")?
            .unwrap_or_default();
        let tools = given.into_iter().enumerate();
        let tools: Vec<Tool> = tools
            .map(|(at, it)| read_tool(at, it))
            .collect::<Result<_, _>>()?;
        let refused = |message: String| Err(Refusal::invalid_field("tool_choice", message));
        let forced = match choice {
            Some(ToolChoice::Word(ChoiceWord::None)) => return Ok(None),
            None | Some(ToolChoice::Word(ChoiceWord::Auto)) => Vec::new(),
            Some(_) if tools.is_empty() => return refused("there are no tools".to_owned()),
            Some(ToolChoice::Word(ChoiceWord::Required)) => tools.clone(),
            Some(ToolChoice::One(NamedTool::Function { function })) => {
                match tools.iter().find(|tool| tool.name == function.name) {
                    Some(tool) => vec![tool.clone()],
                    None => return refused(format!("{:?} is none of the tools", function.name)),
                }
            }
        };
        Ok((!tools.is_empty()).then_some(ToolUse {
            tools,
            forced,
            is_parallel: is_parallel.unwrap_or(true),
        }))
    }
}

fn read_tool(at: usize, given: Value) -> Result<Tool, Refusal> {
    let place = format!("tools[{at}]");
    let wrong = |field: &str, what: &str| {
        let name = format!("{place}{field}");
        Refusal::invalid_field(&name, format!("{name} should be {what}"))
    };
    let Ok(ToolDefinition::Function { function }) = serde_json::from_value(given) else {
        return Err(wrong("", "of type function, and have one with a name"));
    };
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    let is_name = (1..=NAME_LETTERS_MAX).contains(&function.name.len());
    if !is_name || !function.name.chars().all(is_letter) {
        return Err(wrong(".function.name", "1 to 64 of a-z, A-Z, 0-9, _ and -"));
    }
    let parameters = function.parameters.unwrap_or_else(empty_schema);
    if !parameters.is_object() {
        return Err(wrong(".function.parameters", "a JSON schema"));
    }
    Ok(Tool {
        name: function.name,
        description: function.description,
        parameters,
    })
}

/// Returns the schema of a function without arguments.
fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}
