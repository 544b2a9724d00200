//! Rewrites a template's source for the engine: features of Hugging Face's tools that the engine
//! lacks become ones that it has.
//!
//! - `{% generation %}`, which marks the text that a model is trained on, becomes a scope of names.
//! - `'a text' % values` becomes the equivalent filter `format`.
//! - Operands of `+` that may be lists pay fuel ([`super::sums`]).

use std::ops::Range;

use super::sums::{text_end, wrap_summands};

/// Maximum nesting of formatted texts. Deeper ones keep their `%`, and the engine refuses them.
const DEPTH_MAX: usize = 16;

/// Marks that begin and end a block.
const BLOCKS: [(&str, &str); 3] = [("{%", "%}"), ("{{", "}}"), ("{#", "#}")];

/// Returns the source as the engine reads it.
pub(super) fn adapt_source(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut at = 0;
    while let Some((begin, kind)) = next_block(source, at) {
        text.push_str(&source[at..begin]);
        let (open, close) = BLOCKS[kind];
        let inner = begin + open.len();
        let end = match kind {
            2 => source[inner..]
                .find(close)
                .map_or(source.len(), |it| inner + it),
            _ => block_end(source, inner, close),
        };
        let code = &source[inner..end];
        text.push_str(open);
        match (kind, first_word(code)) {
            (2, _) => text.push_str(code),
            (0, "raw") => {
                let rest = &source[end..];
                let raw = rest.find("endraw").unwrap_or(rest.len());
                text.push_str(code);
                text.push_str(&rest[..raw]);
                at = end + raw;
                continue;
            }
            (0, "generation") => text.push_str(&code.replacen("generation", "with", 1)),
            (0, "endgeneration") => text.push_str(&code.replacen("endgeneration", "endwith", 1)),
            _ => text.push_str(&wrap_summands(
                &replace_format_operators(code, DEPTH_MAX),
                kind == 0,
            )),
        }
        at = end;
    }
    text.push_str(&source[at..]);
    text
}

/// Returns the position of the next block and the index of its kind.
fn next_block(source: &str, from: usize) -> Option<(usize, usize)> {
    let mut braces = source[from..].match_indices('{').map(|(at, _)| from + at);
    braces.find_map(|at| {
        let is_open = |(open, _): &(&str, &str)| source[at..].starts_with(open);
        Some((at, BLOCKS.iter().position(is_open)?))
    })
}

/// Returns the first word of a block.
fn first_word(code: &str) -> &str {
    code.trim_start_matches(['-', '+'])
        .trim_end_matches(['-', '+'])
        .trim()
}

/// Returns the end of the block that begins here. A closing mark in a string or in brackets does
/// not end it.
fn block_end(source: &str, from: usize, close: &str) -> usize {
    let (mut at, mut depth) = (from, 0usize);
    while let Some(letter) = source[at..].chars().next() {
        if depth == 0 && source[at..].starts_with(close) {
            return at;
        }
        match letter {
            '\'' | '"' => {
                at = text_end(source, at);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += letter.len_utf8();
    }
    source.len()
}

/// Returns the code with `%` on texts replaced by the filter `format`, up to `depth` levels of
/// nesting.
fn replace_format_operators(code: &str, depth: usize) -> String {
    let (mut text, mut at) = (String::with_capacity(code.len()), 0);
    while let Some(letter) = code[at..].chars().next() {
        if letter != '\'' && letter != '"' {
            text.push(letter);
            at += letter.len_utf8();
            continue;
        }
        let end = text_end(code, at);
        let literal = &code[at..end];
        at = end;
        match (depth > 0)
            .then(|| format_operand_range(code, end))
            .flatten()
        {
            Some(values) => {
                at = values.end;
                let values = replace_format_operators(format_arguments(&code[values]), depth - 1);
                text.push_str(&format!("({literal}|format({values}))"));
            }
            None => text.push_str(literal),
        }
    }
    text
}

/// Returns the range of the formatting expression after the text that ends here, if there is one.
fn format_operand_range(code: &str, from: usize) -> Option<Range<usize>> {
    let rest = code[from..].trim_start().strip_prefix('%')?;
    let begin = code.len() - rest.trim_start().len();
    let mut at = primary_end(code, begin)?;
    loop {
        let rest = &code[at..];
        let next = at + rest.len() - rest.trim_start().len();
        at = match rest.trim_start().chars().next() {
            Some('.') => name_end(code, next + 1)?,
            Some('[' | '(') => bracket_end(code, next),
            Some('|') => {
                let name = code[next + 1..].trim_start();
                name_end(code, code.len() - name.len())?
            }
            _ => return Some(begin..at),
        };
    }
}

/// Returns the end of a name, a number, a text or a bracketed expression.
fn primary_end(code: &str, begin: usize) -> Option<usize> {
    match code[begin..].chars().next()? {
        '\'' | '"' => Some(text_end(code, begin)),
        '(' | '[' | '{' => Some(bracket_end(code, begin)),
        _ => name_end(code, begin),
    }
}

fn name_end(code: &str, begin: usize) -> Option<usize> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let rest = code.get(begin..)?;
    let length = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    (length > 0).then_some(begin + length)
}

/// Returns the end of the bracket that opens here.
fn bracket_end(code: &str, begin: usize) -> usize {
    let close = match code.as_bytes()[begin] {
        b'(' => ")",
        b'[' => "]",
        _ => "}",
    };
    let end = block_end(code, begin + 1, close);
    (end + 1).min(code.len())
}

/// Returns the arguments in a value: a tuple is several, anything else is one.
fn format_arguments(values: &str) -> &str {
    let inner = values.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
    let inner = inner.filter(|_| bracket_end(values, 0) == values.len());
    inner.unwrap_or(values)
}
