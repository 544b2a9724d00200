//! Charges fuel for list sums, which the engine computes for free.
//!
//! The engine charges for strings, filters and loops, but not for `list + list`, which copies any
//! number of values. So this module passes the operands of `+` in a template's source through a
//! filter that charges fuel for the values of lists and returns the operand unchanged.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

/// The filter for operands; no template should use this name itself.
const FILTER: &str = "souk_summand";

/// Values of a list that one unit of fuel pays for; it also pays for 64 bytes.
const VALUES_PER_FUEL: usize = 2;

/// Maximum nesting of brackets: the engine refuses templates with more.
const DEPTH_MAX: usize = 150;

/// Words between two expressions: they follow an operand. In the place of an operand they are
/// names.
const BETWEEN: [&str; 7] = ["and", "else", "if", "in", "not", "or", "recursive"];

/// Makes an environment charge fuel for sums of lists.
pub(super) fn charge_list_sums(environment: &mut Environment<'_>) {
    environment.add_filter(FILTER, charge_operand);
    environment.add_filter("sum", sum);
    // This filter also joins lists, lazily and without end; Jinja does not have it.
    environment.remove_filter("chain");
}

/// Returns an operand of a sum after paying for it if it is a list.
fn charge_operand(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if !is_list(&value) {
        return Ok(value);
    }
    let pay = |values: usize| state.consume_fuel(values.div_ceil(VALUES_PER_FUEL) as u64);
    if let Some(values) = value.len() {
        pay(values)?;
        return Ok(value);
    }
    // Only an iteration shows the length of an iterator.
    let mut values = Vec::new();
    for item in value.try_iter()? {
        pay(1)?;
        values.push(item);
    }
    Ok(values.into())
}

/// The filter `sum`, for numbers and strings only.
fn sum(
    state: &State<'_, '_>,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named: Option<Value> = options.get("start")?;
    if start.iter().chain(&named).any(is_list) {
        let message = "lists are joined by +, the filter sum adds numbers";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    filters::sum(state, values, attribute, start, options)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Returns a block's code with the operands of possible list sums wrapped in the filter. The first
/// word of a statement is its keyword.
pub(super) fn wrap_summands(block: &str, is_statement: bool) -> String {
    let is_mark = |letter: char| matches!(letter, '-' | '+');
    let begin = usize::from(block.starts_with(is_mark));
    let end = block.len() - usize::from(block.len() > begin && block.ends_with(is_mark));
    let code = &block[begin..end];
    let first = code.len() - code.trim_start().len();
    let first = match is_statement {
        true => word_end(code, first),
        false => 0,
    };
    let Some(sums) = SumScan::wrap_operands(&code[first..]) else {
        return block.to_owned();
    };
    format!("{}{sums}{}", &block[..begin + first], &block[end..])
}

/// The sums between two brackets during the scan.
#[derive(Default)]
struct SumScan {
    /// Finished text.
    text: String,
    /// Earlier operands of this sum, each with the sign after it.
    chain: Vec<(String, char)>,
    /// The current operand.
    operand: String,
}

impl SumScan {
    /// Wraps the operands in the code. Returns none if the engine refuses the code for its depth.
    fn wrap_operands(code: &str) -> Option<String> {
        let (mut outer, mut sums, mut at) = (Vec::new(), Self::default(), 0);
        while let Some(letter) = code[at..].chars().next() {
            let end = match letter {
                '\'' | '"' => text_end(code, at),
                _ if is_part(letter) => word_end(code, at),
                _ => at + letter.len_utf8(),
            };
            let token = &code[at..end];
            match letter {
                '(' | '[' | '{' if outer.len() == DEPTH_MAX => return None,
                '(' | '[' | '{' => {
                    sums.operand.push(letter);
                    outer.push(std::mem::take(&mut sums));
                }
                ')' | ']' | '}' => {
                    sums.end_sum(token);
                    let inner = std::mem::replace(&mut sums, outer.pop().unwrap_or_default());
                    sums.operand.push_str(&inner.text);
                }
                '+' | '-' if sums.has_operand() => sums.add(letter),
                ',' | ':' | '=' | '<' | '>' | '!' => sums.end_sum(token),
                _ if sums.is_between(token) => sums.end_sum(token),
                _ => sums.operand.push_str(token),
            }
            at = end;
        }
        // Code with an unclosed bracket is no valid template.
        while let Some(mut before) = outer.pop() {
            sums.end_sum("");
            before.operand.push_str(&sums.text);
            sums = before;
        }
        sums.end_sum("");
        Some(sums.text)
    }

    /// Returns whether an operand precedes a sign or a word, so that the sign or word is not part
    /// of one.
    fn has_operand(&self) -> bool {
        let last = self.operand.trim_end().chars().next_back();
        last.is_some_and(|last| is_part(last) || matches!(last, ')' | ']' | '}' | '\'' | '"'))
    }

    /// Returns whether a word is between two expressions, or before one.
    fn is_between(&self, word: &str) -> bool {
        // This check comes first because the code below looks back over all spaces.
        if !BETWEEN.contains(&word) {
            return false;
        }
        let before = self.operand.trim_end();
        let before = before.strip_suffix(" not").unwrap_or(before);
        let is_test = before.ends_with(" is");
        (self.has_operand() || word == "not") && !is_test
    }

    fn add(&mut self, sign: char) {
        self.chain.push((std::mem::take(&mut self.operand), sign));
    }

    /// Ends the sum and appends the token that follows it.
    fn end_sum(&mut self, token: &str) {
        let signs: Vec<char> = self.chain.iter().map(|(_, sign)| *sign).collect();
        let operands = self.chain.drain(..).map(|(operand, _)| operand);
        let last = std::mem::take(&mut self.operand);
        let operands: Vec<String> = operands.chain([last]).collect();
        // Only texts and numbers can be added to a text or a number.
        let may_be_lists = !operands.iter().take(2).any(|operand| is_plain(operand));
        let is_counted = signs.first() == Some(&'+') && may_be_lists;
        for (at, operand) in operands.iter().enumerate() {
            match is_counted {
                true => self.text.push_str(&counted_operand(operand)),
                false => self.text.push_str(operand),
            }
            self.text.extend(signs.get(at));
        }
        self.text.push_str(token);
    }
}

/// Returns the operand wrapped in the filter.
fn counted_operand(operand: &str) -> String {
    let begin = operand.len() - operand.trim_start().len();
    let end = operand.trim_end().len().max(begin);
    let (before, after) = (&operand[..begin], &operand[end..]);
    format!("{before}(({})|{FILTER}){after}", &operand[begin..end])
}

/// Returns whether an operand is a literal text or number.
fn is_plain(operand: &str) -> bool {
    let operand = operand.trim();
    match operand.chars().next() {
        Some('\'' | '"') => text_end(operand, 0) == operand.len(),
        Some(first) if first.is_ascii_digit() => {
            operand.chars().all(is_number_part) || word_end(operand, 0) == operand.len()
        }
        Some(_) => false,
        None => true,
    }
}

fn is_part(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn is_number_part(letter: char) -> bool {
    is_part(letter) || letter == '.'
}

/// Returns the end of the word or number that begins here. The sign of an exponent is part of it.
fn word_end(code: &str, begin: usize) -> usize {
    let rest = &code[begin..];
    let length = |rest: &str| rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    let end = length(rest);
    let word = &rest[..end];
    let is_exponent = word.starts_with(|letter: char| letter.is_ascii_digit())
        && word.ends_with(['e', 'E'])
        && !word.starts_with("0x");
    let signed = rest[end..].strip_prefix(['+', '-']);
    match signed.filter(|digits| is_exponent && digits.starts_with(|it: char| it.is_ascii_digit()))
    {
        Some(digits) => begin + end + 1 + length(digits),
        None => begin + end,
    }
}

/// Returns the end of the text whose quote is here.
pub(super) fn text_end(code: &str, begin: usize) -> usize {
    let quote = code.as_bytes()[begin];
    let mut bytes = code.bytes().enumerate().skip(begin + 1);
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' {
            bytes.next();
        } else if byte == quote {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_sums_are_counted_and_nothing_else() {
        let cases = [
            ("a + b", "((a)|F) + ((b)|F)"),
            (
                "set x = a.b + [c[0], d + 1] ",
                "set x = ((a.b)|F) + (([c[0], d + 1])|F) ",
            ),
            ("if in + in ", "if ((in)|F) + ((in)|F)"),
            ("a + 'x' + b", "a + 'x' + b"),
            ("'x' + a + b", "'x' + a + b"),
            ("a - b + c", "a - b + c"),
            ("a + b - c", "((a)|F) + ((b)|F)-((c)|F)"),
            ("-1 + a", "-1 + a"),
            (
                "x if a + b else c + d",
                "x if ((a)|F) + ((b)|F) else ((c)|F) + ((d)|F)",
            ),
            ("a|f(b + c) + d", "((a|f(((b)|F) + ((c)|F)))|F) + ((d)|F)"),
            ("a.in + b is not none", "((a.in)|F) + ((b is not none)|F)"),
            (
                "not a + b == c + d",
                "not ((a)|F) + ((b)|F) == ((c)|F) + ((d)|F)",
            ),
            ("for x in a + b if x", "for x in ((a)|F) + ((b)|F) if x"),
            (
                "{'k': a + b, 'l': '+'}",
                "{'k': ((a)|F) + ((b)|F), 'l': '+'}",
            ),
            ("x[1:a + b]", "x[1:((a)|F) + ((b)|F)]"),
            ("f(k=a + b, l='x' ~ c)", "f(k=((a)|F) + ((b)|F), l='x' ~ c)"),
            ("a * b + c // 2", "((a * b)|F) + ((c // 2)|F)"),
            ("1e+5 + a", "1e+5 + a"),
            ("- a + b -", "- ((a)|F) + ((b)|F) -"),
            ("-1", "-1"),
        ];
        for (code, counted) in cases {
            let is_statement = ["set ", "for ", "if "]
                .iter()
                .any(|it| code.starts_with(it));
            let own = wrap_summands(code, is_statement).replace(FILTER, "F");
            let squeezed = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(squeezed(&own), squeezed(counted), "{code}");
        }
        let deep = "(".repeat(DEPTH_MAX + 1) + "a + b";
        assert_eq!(wrap_summands(&deep, false), deep);
    }
}
