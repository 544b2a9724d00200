//! Implements the filter `tojson` of chat templates, as Hugging Face's tools do: with the output of
//! Python's `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Maximum nesting of values: close to Python's own recursion limit.
const DEPTH_MAX: usize = 200;
/// Maximum spaces of one indentation step.
const INDENT_MAX: usize = 64;

/// Format options of the JSON.
struct JsonFormat {
    /// Indentation for each level; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    escapes_non_ascii: bool,
    is_sorted: bool,
}

/// Converts a value to JSON. A template can pass these arguments in this order or by name:
/// `ensure_ascii`, `indent`, `separators`, `sort_keys`.
pub(super) fn format_json(
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut positional = positional.0.into_iter();
    let mut given = |name: &str| -> Result<Option<Value>, Error> {
        let value = positional
            .next()
            .map_or_else(|| named.get(name), |it| Ok(Some(it)))?;
        Ok(value.filter(|it: &Value| !it.is_none() && !it.is_undefined()))
    };
    let escapes_non_ascii = given("ensure_ascii")?.is_some_and(|it| it.is_true());
    let indent = given("indent")?.map(|it| parse_indent(&it)).transpose()?;
    let separators = given("separators")?;
    let is_sorted = given("sort_keys")?.is_some_and(|it| it.is_true());
    named.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => (parse_separator(&pair, 0)?, parse_separator(&pair, 1)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let format = JsonFormat {
        indent,
        item_separator,
        key_separator,
        escapes_non_ascii,
        is_sorted,
    };
    let mut text = String::new();
    format.write(&mut text, value, 0)?;
    Ok(text)
}

/// Returns the indentation for each level.
fn parse_indent(given: &Value) -> Result<String, Error> {
    if let Some(text) = given.as_str() {
        return Ok(text.to_owned());
    }
    let width = usize::try_from(given.clone())?;
    match width <= INDENT_MAX {
        true => Ok(" ".repeat(width)),
        false => Err(invalid_operation("indent of tojson is too large")),
    }
}

fn parse_separator(pair: &Value, at: usize) -> Result<String, Error> {
    let part = pair.get_item_by_index(at)?;
    let text = part.as_str().map(str::to_owned);
    text.ok_or_else(|| invalid_operation("`separators` must be two strings"))
}

fn invalid_operation(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl JsonFormat {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid_operation("a value is too deep for JSON"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(out, value),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort();
                }
                self.write_all(out, ['{', '}'], depth, keys, |out, key| {
                    self.write_text(out, &key_text(key));
                    out.push_str(&self.key_separator);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                let write = |out: &mut String, item: &Value| self.write(out, item, depth + 1);
                self.write_all(out, ['[', ']'], depth, items, write)?;
            }
            kind => {
                let message = format!("a value of kind {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn write_all(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        depth: usize,
        items: Vec<Value>,
        mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for letter in text.chars() {
            match letter {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                letter if letter < ' ' || self.escapes_non_ascii && !letter.is_ascii() => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                letter => out.push(letter),
            }
        }
        out.push('"');
    }
}

/// Returns the key of an object as text: numbers and the like as JSON writes them.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number => {
            let mut text = String::new();
            write_number(&mut text, key);
            text
        }
        _ => key.to_string(),
    }
}

/// Writes a number as Python does: the shortest digits, with an exponent if it is large or small.
fn write_number(out: &mut String, value: &Value) {
    let float = match value.is_integer() {
        true => None,
        false => f64::try_from(value.clone()).ok(),
    };
    let Some(float) = float else {
        let _ = write!(out, "{value}");
        return;
    };
    if !float.is_finite() {
        let sign = if float < 0.0 { "-" } else { "" };
        let name = if float.is_nan() { "NaN" } else { "Infinity" };
        let _ = write!(out, "{sign}{name}");
        return;
    }
    let digits = format!("{float:e}");
    let (digits, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..16 => {
            let whole = if float.fract() == 0.0 { ".0" } else { "" };
            let _ = write!(out, "{float}{whole}");
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
        }
    }
}
