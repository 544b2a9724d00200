//! Rewrites a chat template's source for the template engine (minijinja): replaces features of
//! Hugging Face's tools that the engine lacks with ones that it has.
//!
//! - `{% generation %}`, which marks the text that a model is trained on, becomes a scope of names.
//! - `'a text' % values` becomes the equivalent filter `format`.
//! - Operands of `+` that may be lists pass a filter that charges fuel for them ([`super::sums`]).

use std::collections::BTreeMap;
use std::ops::Range;

use super::sums::{text_end, wrap_summands};

/// Maximum nesting of formatted texts. Deeper ones keep their `%`, and the engine refuses them.
const DEPTH_MAX: usize = 16;

/// Marks that begin and end a block: a statement, an expression or a comment.
const BLOCKS: [(&str, &str); 3] = [("{%", "%}"), ("{{", "}}"), ("{#", "#}")];

/// Returns the source with the missing features replaced by ones that the engine has.
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
        match (kind, trim_block_code(code)) {
            (2, _) => text.push_str(code),
            (0, "raw") => {
                text.push_str(code);
                at = find_raw_end(source, end);
                text.push_str(&source[end..at]);
                continue;
            }
            (0, "generation") => text.push_str(&code.replacen("generation", "with", 1)),
            (0, "endgeneration") => text.push_str(&code.replacen("endgeneration", "endwith", 1)),
            _ => {
                let block = BlockCode::scan_brackets(code);
                let code = block.replace_format_operators(0..code.len(), DEPTH_MAX);
                text.push_str(&wrap_summands(&code, kind == 0));
            }
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

/// Returns the position of the tag that ends the raw text after `from`. The word alone does not.
fn find_raw_end(source: &str, from: usize) -> usize {
    let mut tags = source[from..].match_indices("{%").map(|(at, _)| from + at);
    let ends_raw = |at: &usize| {
        let tag = source[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let rest = tag.strip_prefix("endraw").map(str::trim_start);
        rest.is_some_and(|rest| rest.trim_start_matches(['-', '+']).starts_with("%}"))
    };
    tags.find(ends_raw).unwrap_or(source.len())
}

/// Returns the code of a block without the marks for whitespace and the spaces at its ends.
fn trim_block_code(code: &str) -> &str {
    code.trim_start_matches(['-', '+'])
        .trim_end_matches(['-', '+'])
        .trim()
}

/// Returns the position of the mark that closes a block. A mark in a string or in brackets does
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

/// The code of a block with the ends of its brackets, which one pass finds: to look for an end from
/// each bracket would take the square of the code's length.
struct BlockCode<'a> {
    code: &'a str,
    /// The position after each closed bracket, by the position at which it opens.
    bracket_ends: BTreeMap<usize, usize>,
}

impl<'a> BlockCode<'a> {
    fn scan_brackets(code: &'a str) -> Self {
        let (mut bracket_ends, mut open, mut at) = (BTreeMap::new(), Vec::new(), 0);
        while let Some(letter) = code[at..].chars().next() {
            let begin = at;
            at = match letter {
                '\'' | '"' => text_end(code, at),
                _ => at + letter.len_utf8(),
            };
            match letter {
                '(' | '[' | '{' => open.push(begin),
                ')' | ']' | '}' => bracket_ends.extend(open.pop().map(|begin| (begin, at))),
                _ => {}
            }
        }
        Self { code, bracket_ends }
    }

    /// Returns this part of the code with `%` on texts replaced by the filter `format`, up to
    /// `depth` levels of nesting.
    fn replace_format_operators(&self, part: Range<usize>, depth: usize) -> String {
        let (mut text, mut at) = (String::with_capacity(part.len()), part.start);
        let code = &self.code[..part.end];
        while let Some(letter) = code[at..].chars().next() {
            if letter != '\'' && letter != '"' {
                text.push(letter);
                at += letter.len_utf8();
                continue;
            }
            let literal = at..text_end(code, at);
            at = literal.end;
            let operand = match depth {
                0 => None,
                _ => self.format_operand_range(literal.end, part.end),
            };
            let literal = &code[literal];
            match operand {
                Some(values) => {
                    at = values.end;
                    let values = self.format_arguments(values);
                    let values = self.replace_format_operators(values, depth - 1);
                    text.push_str(&format!("({literal}|format({values}))"));
                }
                None => text.push_str(literal),
            }
        }
        text
    }

    /// Returns the range of the operand if a `%` follows the text that ends at `from`.
    fn format_operand_range(&self, from: usize, end: usize) -> Option<Range<usize>> {
        let code = &self.code[..end];
        let rest = code[from..].trim_start().strip_prefix('%')?;
        let begin = code.len() - rest.trim_start().len();
        let mut at = self.primary_end(begin, end)?;
        loop {
            let rest = &code[at..];
            let next = at + rest.len() - rest.trim_start().len();
            at = match rest.trim_start().chars().next() {
                Some('.') => name_end(code, next + 1)?,
                Some('[' | '(') => self.bracket_end(next, end),
                Some('|') => {
                    let name = code[next + 1..].trim_start();
                    name_end(code, code.len() - name.len())?
                }
                _ => return Some(begin..at),
            };
        }
    }

    /// Returns the end of a name, a number, a text or a bracketed expression.
    fn primary_end(&self, begin: usize, end: usize) -> Option<usize> {
        let code = &self.code[..end];
        match code[begin..].chars().next()? {
            '\'' | '"' => Some(text_end(code, begin)),
            '(' | '[' | '{' => Some(self.bracket_end(begin, end)),
            _ => name_end(code, begin),
        }
    }

    /// Returns the end of the bracketed expression that opens here: at the latest `end`, if the
    /// bracket is not closed.
    fn bracket_end(&self, begin: usize, end: usize) -> usize {
        let closed = self.bracket_ends.get(&begin).copied();
        closed.map_or(end, |closed| closed.min(end))
    }

    /// Returns the arguments in an operand: a tuple is several, anything else is one.
    fn format_arguments(&self, operand: Range<usize>) -> Range<usize> {
        let is_tuple = self.code[operand.clone()].starts_with('(')
            && self.bracket_ends.get(&operand.start) == Some(&operand.end);
        match is_tuple {
            true => operand.start + 1..operand.end - 1,
            false => operand,
        }
    }
}

fn name_end(code: &str, begin: usize) -> Option<usize> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let rest = code.get(begin..)?;
    let length = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    (length > 0).then_some(begin + length)
}
