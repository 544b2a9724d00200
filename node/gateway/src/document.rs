//! Completes the OpenAPI document of the gateway's paths with the parts that all paths share: the
//! error answer, and the largest whole number (2^53 - 1), which every program can read exactly.

use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use crate::parse::WHOLE_MAX;

/// Returns the document as the gateway serves it.
pub fn complete_document(document: &OpenApi) -> Value {
    let mut document = serde_json::to_value(document).unwrap_or_default();
    limit_whole_numbers(&mut document);
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, path) in paths {
        for (_, operation) in path.as_object_mut().into_iter().flatten() {
            operation["responses"]["default"] = refusal_response();
        }
    }
    open_alternatives(&mut document["components"]["schemas"]);
    // The document must be the same in every build: a build with language models keeps the order of
    // fields.
    document.sort_all_objects();
    document
}

/// Returns the refusal with which every path can answer.
fn refusal_response() -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    json!({
        "description": "A refusal: a problem of RFC 9457",
        "content": { "application/problem+json": { "schema": schema } },
    })
}

/// Limits whole numbers of 64 bits to the range that every program can read exactly.
fn limit_whole_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let is_whole = match &fields.get("type") {
                Some(Value::Array(types)) => types.iter().any(|one| one == "integer"),
                Some(one) => *one == "integer",
                None => false,
            };
            let is_long = fields.get("format").is_none_or(|format| format == "int64");
            if is_whole && is_long && !fields.contains_key("maximum") {
                fields.insert("maximum".to_owned(), WHOLE_MAX.into());
            }
            fields.values_mut().for_each(limit_whole_numbers);
        }
        Value::Array(all) => all.iter_mut().for_each(limit_whole_numbers),
        _ => {}
    }
}

/// Opens the schemas of alternatives: each consists of its own fields and the tag, and neither part
/// may exclude the other.
fn open_alternatives(schemas: &mut Value) {
    let mut named = Vec::new();
    for schema in schemas
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, schema)| schema)
    {
        let kinds = schema["oneOf"].as_array().into_iter().flatten();
        let parts = kinds.flat_map(|kind| kind["allOf"].as_array().into_iter().flatten());
        named.extend(parts.filter_map(|part| Some(part["$ref"].as_str()?.to_owned())));
    }
    for name in named {
        let name = name.rsplit('/').next().unwrap_or_default();
        if let Some(schema) = schemas[name].as_object_mut() {
            schema.remove("additionalProperties");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_an_end_and_those_that_have_one_keep_it() {
        let mut schema = json!([
            { "type": ["integer", "null"] },
            { "type": "integer", "format": "int64", "maximum": 7 },
            { "type": "integer", "format": "int32" },
        ]);
        limit_whole_numbers(&mut schema);
        let ends = [0, 1, 2].map(|place| schema[place]["maximum"].as_u64());
        assert_eq!(ends, [Some(WHOLE_MAX), Some(7), None]);
    }
}
