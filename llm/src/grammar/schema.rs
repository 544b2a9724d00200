//! Prepares a JSON schema for a grammar: refuses one that is too large, and removes annotations
//! that do not restrict the text.
//!
//! JSON Schema treats an unknown `format` as an annotation. souk enforces the formats that it
//! supports.

use serde_json::{Map, Value};

/// Maximum bytes of a schema as JSON.
const BYTES_MAX: usize = 256 << 10;
/// Maximum values in a schema: some thousand properties.
const VALUES_MAX: usize = 20_000;
/// Maximum nesting of values.
const DEPTH_MAX: usize = 64;
/// The largest `multipleOf`, in units of its last digit: a matcher needs this many states for the
/// digits of a number.
const MULTIPLE_MAX: f64 = 2000.0;
/// Maximum text constraints, such as patterns, in a schema that joins some: a text must match all
/// joined ones at once, and references join schemas from anywhere.
const JOINED_MAX: usize = 8;
/// Maximum name patterns of one object's properties: each name must match exactly one.
const NAME_PATTERNS_MAX: usize = 16;

/// Keywords that constrain texts.
const OF_TEXTS: [&str; 5] = ["pattern", "format", "multipleOf", "minLength", "maxLength"];
/// Keywords that add constraints to the same value.
const BESIDE: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

/// Formats that souk enforces.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
/// Keywords that hold values of the text, not schemas.
const PLAIN: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords that hold schemas by user-defined names.
const NAMED: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];

/// Returns the schema without unknown formats.
///
/// # Errors
/// The reason for the refusal.
pub(super) fn prepare_schema(schema: &Value) -> Result<Value, String> {
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        return Err(format!(
            "it has {bytes} bytes, at most {BYTES_MAX} are read"
        ));
    }
    let mut left = VALUES_MAX;
    measure_value(schema, DEPTH_MAX, &mut left)?;
    let mut schema = schema.clone();
    let mut joined = Conjunction {
        of_texts: 0,
        has_joined: false,
        states: 1.0,
    };
    joined.prepare_value(&mut schema)?;
    let Conjunction {
        of_texts,
        has_joined,
        states,
    } = joined;
    if has_joined && of_texts > JOINED_MAX {
        return Err(format!(
            "it joins some of {of_texts} patterns and the like, at most {JOINED_MAX} are followed \
             at once"
        ));
    }
    if has_joined && states > MULTIPLE_MAX {
        return Err(format!(
            "it joins some multipleOf of {states} states, at most {MULTIPLE_MAX} are followed"
        ));
    }
    Ok(schema)
}

/// The constraints that a schema joins.
struct Conjunction {
    /// Number of text constraints.
    of_texts: usize,
    /// Whether the schema joins schemas.
    has_joined: bool,
    /// Product of the states of all multiples.
    states: f64,
}

/// Returns the schemas directly in a value that is a schema or a list of them.
pub(super) fn child_schemas(schema: &Value) -> impl Iterator<Item = &Value> {
    let (fields, items) = match schema {
        Value::Object(fields) => (Some(fields), None),
        Value::Array(items) => (None, Some(items)),
        _ => (None, None),
    };
    let of_fields = fields.into_iter().flatten().flat_map(of_field);
    of_fields.chain(items.into_iter().flatten())
}

fn of_field<'a>((name, value): (&String, &'a Value)) -> Vec<&'a Value> {
    match (name.as_str(), value) {
        (name, _) if PLAIN.contains(&name) => Vec::new(),
        (name, Value::Object(schemas)) if NAMED.contains(&name) => schemas.values().collect(),
        (_, value) => vec![value],
    }
}

/// Counts values and checks their nesting.
fn measure_value(value: &Value, depth: usize, left: &mut usize) -> Result<(), String> {
    *left = left
        .checked_sub(1)
        .ok_or_else(|| format!("it has more than {VALUES_MAX} values"))?;
    let deeper = || {
        let within = depth.checked_sub(1);
        within.ok_or_else(|| format!("it is deeper than {DEPTH_MAX} values"))
    };
    match value {
        Value::Array(items) => {
            let depth = deeper()?;
            items
                .iter()
                .try_for_each(|it| measure_value(it, depth, left))
        }
        Value::Object(fields) => {
            let depth = deeper()?;
            fields
                .values()
                .try_for_each(|it| measure_value(it, depth, left))
        }
        _ => Ok(()),
    }
}

impl Conjunction {
    fn prepare_value(&mut self, schema: &mut Value) -> Result<(), String> {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Array(schemas) => {
                return schemas.iter_mut().try_for_each(|it| self.prepare_value(it));
            }
            _ => return Ok(()),
        };
        let is_remark = |format: &Value| match format {
            Value::String(name) => !FORMATS.contains(&name.as_str()),
            _ => false,
        };
        if fields.get("format").is_some_and(is_remark) {
            fields.remove("format");
        }
        self.count_constraints(fields)?;
        for (name, value) in fields {
            match (name.as_str(), value) {
                (name, _) if PLAIN.contains(&name) => {}
                (name, Value::Object(schemas)) if NAMED.contains(&name) => {
                    schemas
                        .values_mut()
                        .try_for_each(|it| self.prepare_value(it))?;
                }
                (_, value) => self.prepare_value(value)?,
            }
        }
        Ok(())
    }

    fn count_constraints(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        if let Some(multiple) = fields.get("multipleOf").and_then(Value::as_f64) {
            self.states *= states_of(multiple)?;
        }
        let of_texts = OF_TEXTS
            .iter()
            .filter(|name| fields.contains_key(**name))
            .count();
        let beside = BESIDE
            .iter()
            .filter(|name| fields.contains_key(**name))
            .count();
        let all = fields.get("allOf").and_then(Value::as_array);
        self.of_texts += of_texts;
        self.has_joined |= all.is_some_and(|all| all.len() > 1);
        self.has_joined |= beside > 1 || (beside > 0 && of_texts > 0);
        let names = fields.get("patternProperties").and_then(Value::as_object);
        match names.map_or(0, Map::len) {
            count if count > NAME_PATTERNS_MAX => Err(format!(
                "patternProperties has {count} patterns, at most {NAME_PATTERNS_MAX} are followed"
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the states that match the digits of a multiple.
fn states_of(multiple: f64) -> Result<f64, String> {
    let mut digits = multiple;
    while digits.fract() != 0.0 && digits <= MULTIPLE_MAX {
        digits *= 10.0;
    }
    match digits <= MULTIPLE_MAX {
        true => Ok(digits.max(1.0)),
        false => Err(format!(
            "multipleOf {multiple} has too many states: at most {MULTIPLE_MAX} units of its last \
             digit are followed"
        )),
    }
}
