//! Supplies methods of Python's strings (such as `removeprefix` and `partition`) and filters of
//! Jinja to chat templates, because the template engine lacks them.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Maximum letters to which a template can pad a text.
const WIDTH_MAX: usize = 10_000;

/// Calls a method of a value.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if value.kind() != ValueKind::String {
        return unknown_method_callback(state, value, method, args);
    }
    let text = value.as_str().unwrap_or_default();
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" | "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            Ok(Value::from(Tuple::from(partition_text(
                text,
                mark,
                method == "rpartition",
            ))))
        }
        "rsplit" => {
            let (mark, most): (Option<&str>, Option<i64>) = from_args(args)?;
            Ok(split_from_end(text, mark, most).into())
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = match method {
                "index" => text.find(part),
                _ => text.rfind(part),
            };
            let at = found.ok_or_else(|| invalid_operation("a part is not in its text"))?;
            Ok(text[..at].chars().count().into())
        }
        "casefold" => Ok(text.to_lowercase().into()),
        "swapcase" => Ok(text.chars().map(swap_case).collect::<String>().into()),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            let zeros = "0".repeat(padding_width(text, width)?);
            Ok(format!("{sign}{zeros}{digits}").into())
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            Ok(pad_text(
                text,
                method,
                padding_width(text, width)?,
                fill.unwrap_or(' '),
            )
            .into())
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// Counts words: the filter `wordcount`.
pub(super) fn count_words(text: &str) -> usize {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter))
        .filter(|word| !word.is_empty())
        .count()
}

fn invalid_operation(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Splits a text into the parts before the mark, the mark, and the part after it.
fn partition_text(text: &str, mark: &str, is_last: bool) -> [Value; 3] {
    let found = match is_last {
        true => text.rsplit_once(mark),
        false => text.split_once(mark),
    };
    match (found, is_last) {
        (Some((before, after)), _) => [before, mark, after].map(Value::from),
        (None, true) => ["", "", text].map(Value::from),
        (None, false) => [text, "", ""].map(Value::from),
    }
}

/// Splits a text at marks, or at spaces, starting from its end and at most this many times.
fn split_from_end(text: &str, mark: Option<&str>, most: Option<i64>) -> Vec<Value> {
    let most = most
        .and_then(|it| usize::try_from(it).ok())
        .unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match mark {
        Some(mark) => text.rsplitn(most + 1, mark).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while parts.len() < most {
                let Some((before, last)) = rest.rsplit_once(char::is_whitespace) else {
                    break;
                };
                parts.push(last);
                rest = before.trim_end();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
    };
    parts.reverse();
    parts.into_iter().map(Value::from).collect()
}

fn swap_case(letter: char) -> char {
    let mut lower = letter.to_lowercase();
    let mut upper = letter.to_uppercase();
    let other = if letter.is_uppercase() {
        lower.next()
    } else {
        upper.next()
    };
    other.unwrap_or(letter)
}

/// Returns the number of letters missing to a width.
fn padding_width(text: &str, width: usize) -> Result<usize, Error> {
    match width <= WIDTH_MAX {
        true => Ok(width.saturating_sub(text.chars().count())),
        false => Err(invalid_operation("a text is filled up to too many letters")),
    }
}

fn pad_text(text: &str, method: &str, missing: usize, fill: char) -> String {
    let fill = |count: usize| fill.to_string().repeat(count);
    match method {
        "ljust" => text.to_owned() + &fill(missing),
        "rjust" => fill(missing) + text,
        _ => {
            // As in Python: the parity of the width decides which side gets the extra letter.
            let width = missing + text.chars().count();
            let before = missing / 2 + (missing & width & 1);
            fill(before) + text + &fill(missing - before)
        }
    }
}
