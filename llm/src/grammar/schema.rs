//! A schema before it becomes a grammar: of a size that is read in no time, and without what is a
//! remark only.
//!
//! JSON Schema says of `format` that what is not known is a remark. What is known here is held.

use serde_json::Value;

/// Bytes of a schema as JSON at most.
const BYTES_MAX: usize = 256 << 10;
/// Values in it at most: a schema of some thousand properties.
const VALUES_MAX: usize = 20_000;
/// Values within values at most.
const DEPTH_MAX: usize = 64;
/// The largest `multipleOf`, in units of its last digit: so many states follow the digits of a
/// number.
const MULTIPLE_MAX: f64 = 2000.0;
/// Patterns, `format`s and bounds of numbers that one `allOf` may join at most: each text has to
/// be in all of them at once.
const JOINED_MAX: usize = 8;

/// Formats whose texts are held to them.
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
/// What holds values of the text, not schemas.
const PLAIN: [&str; 4] = ["const", "enum", "default", "examples"];
/// What holds schemas by names of people's own.
const NAMED: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];

/// The schema without formats that are not known.
///
/// # Errors
/// Why it is refused.
pub(super) fn prepared(schema: &Value) -> Result<Value, String> {
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        return Err(format!(
            "it has {bytes} bytes, at most {BYTES_MAX} are read"
        ));
    }
    let mut left = VALUES_MAX;
    measure(schema, DEPTH_MAX, &mut left)?;
    let mut schema = schema.clone();
    prepare(&mut schema)?;
    Ok(schema)
}

/// Counts values, and how deep they are.
fn measure(value: &Value, depth: usize, left: &mut usize) -> Result<(), String> {
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
            items.iter().try_for_each(|it| measure(it, depth, left))
        }
        Value::Object(fields) => {
            let depth = deeper()?;
            fields.values().try_for_each(|it| measure(it, depth, left))
        }
        _ => Ok(()),
    }
}

fn prepare(schema: &mut Value) -> Result<(), String> {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(schemas) => return schemas.iter_mut().try_for_each(prepare),
        _ => return Ok(()),
    };
    let is_remark = |format: &Value| match format {
        Value::String(name) => !FORMATS.contains(&name.as_str()),
        _ => false,
    };
    if fields.get("format").is_some_and(is_remark) {
        fields.remove("format");
    }
    if let Some(multiple) = fields.get("multipleOf").and_then(Value::as_f64) {
        check_multiple(multiple)?;
    }
    if let Some(Value::Array(schemas)) = fields.get("allOf") {
        check_joined(schemas)?;
    }
    for (name, value) in fields {
        match (name.as_str(), value) {
            (name, _) if PLAIN.contains(&name) => {}
            (name, Value::Object(schemas)) if NAMED.contains(&name) => {
                schemas.values_mut().try_for_each(prepare)?;
            }
            (_, value) => prepare(value)?,
        }
    }
    Ok(())
}

fn check_multiple(multiple: f64) -> Result<(), String> {
    let mut digits = multiple;
    while digits.fract() != 0.0 && digits <= MULTIPLE_MAX {
        digits *= 10.0;
    }
    match digits <= MULTIPLE_MAX {
        true => Ok(()),
        false => Err(format!(
            "multipleOf {multiple} has too many states: at most {MULTIPLE_MAX} units of its last \
             digit are followed"
        )),
    }
}

fn check_joined(schemas: &[Value]) -> Result<(), String> {
    let is_of_text = |schema: &&Value| {
        let names = ["pattern", "format", "multipleOf", "minLength", "maxLength"];
        names.iter().any(|name| schema.get(name).is_some())
    };
    let joined = schemas.iter().filter(is_of_text).count();
    match joined <= JOINED_MAX {
        true => Ok(()),
        false => Err(format!(
            "an allOf joins {joined} patterns or the like, at most {JOINED_MAX} are"
        )),
    }
}
