//! Computes the operators that split, join and parse texts. They are part of the preparation, which
//! runs on the buyer's machine before the rest of the model, because a provider gets no texts.

use regex_lite::Regex;
use souk_memory::{DType, Tensor};

use super::super::text_numbers::Words;
use super::{NodeFault, ngrams};
use crate::NodeProto;

/// Marks at the ends of a text's tokens, if the node requests them.
const MARKS: [&str; 2] = ["\u{2}", "\u{3}"];

/// Texts with their shape.
struct TextTensor {
    dims: Vec<usize>,
    texts: Vec<String>,
}

/// Computes the outputs of a node.
pub fn compute_outputs<'a>(
    node: &NodeProto,
    input: &impl Fn(usize) -> Option<&'a Tensor>,
    words: &mut Words,
) -> Result<Vec<Tensor>, NodeFault> {
    let given = TextTensor::from_tensor(input(0).ok_or(NodeFault::Missing(0))?, words)?;
    match node.op_type() {
        "StringNormalizer" => Ok(vec![normalise_texts(node, given)?.into_numbers(words)?]),
        "Tokenizer" => Ok(vec![tokenise_texts(node, &given)?.into_numbers(words)?]),
        "TfIdfVectorizer" => Ok(vec![ngrams::of_texts(node, &given.texts, &given.dims)?]),
        "StringConcat" => {
            let other = TextTensor::from_tensor(input(1).ok_or(NodeFault::Missing(1))?, words)?;
            Ok(vec![concat_texts(&given, &other)?.into_numbers(words)?])
        }
        "StringSplit" => split_texts(node, &given, words),
        "RegexFullMatch" => {
            let pattern = compile_pattern(
                "pattern",
                &format!(r"\A(?:{})\z", text_attribute(node, "pattern")),
            )?;
            let found = given.texts.iter().map(|text| pattern.is_match(text));
            Ok(vec![Tensor::from_bools(
                given.dims.clone(),
                &found.collect::<Vec<_>>(),
            )?])
        }
        _ => Ok(vec![read(node, &given)?]),
    }
}

impl TextTensor {
    fn from_tensor(tensor: &Tensor, words: &Words) -> Result<Self, NodeFault> {
        let numbers = match tensor.dtype() {
            DType::I64 => tensor.to_vec::<i64>()?,
            _ => return Err(NodeFault::NotText),
        };
        let texts = numbers.into_iter().map(|number| words.find_text(number));
        let texts = texts.map(|text| text.map(str::to_owned).ok_or(NodeFault::NotText));
        Ok(Self {
            dims: tensor.dims().to_vec(),
            texts: texts.collect::<Result<_, _>>()?,
        })
    }

    fn into_numbers(self, words: &mut Words) -> Result<Tensor, NodeFault> {
        let numbers: Vec<i64> = self
            .texts
            .iter()
            .map(|text| words.intern_text(text))
            .collect();
        Ok(Tensor::from_vec(self.dims, numbers)?)
    }
}

fn text_attribute<'a>(node: &'a NodeProto, name: &str) -> &'a str {
    node.string(name).unwrap_or_default()
}

fn compile_pattern(name: &'static str, pattern: &str) -> Result<Regex, NodeFault> {
    Regex::new(pattern).map_err(|_| {
        let found = pattern.to_owned();
        NodeFault::Attribute { name, found }
    })
}

/// Removes stop words from texts, and changes their case. The texts must be a vector or one row.
fn normalise_texts(node: &NodeProto, given: TextTensor) -> Result<TextTensor, NodeFault> {
    let exact = node.int("is_case_sensitive").unwrap_or(0) != 0;
    let alike = |text: &str| {
        if exact {
            text.to_owned()
        } else {
            text.to_lowercase()
        }
    };
    let stops = node.strings("stopwords").unwrap_or_default();
    let stops: Vec<String> = stops
        .iter()
        .map(|it| alike(&String::from_utf8_lossy(it)))
        .collect();
    let action = match text_attribute(node, "case_change_action") {
        "" | "NONE" => str::to_owned,
        "LOWER" => str::to_lowercase,
        "UPPER" => str::to_uppercase,
        other => {
            let (name, found) = ("case_change_action", other.to_owned());
            return Err(NodeFault::Attribute { name, found });
        }
    };
    let mut dims = match *given.dims {
        [_] | [1, _] => given.dims.clone(),
        _ => return Err(NodeFault::Shape(given.dims)),
    };
    let kept = given
        .texts
        .iter()
        .filter(|text| !stops.contains(&alike(text)));
    let mut texts: Vec<String> = kept.map(|text| action(text)).collect();
    if texts.is_empty() {
        texts.push(String::new());
    }
    if let Some(last) = dims.last_mut() {
        *last = texts.len();
    }
    Ok(TextTensor { dims, texts })
}

/// Splits each text into tokens, padded to the longest row.
fn tokenise_texts(node: &NodeProto, given: &TextTensor) -> Result<TextTensor, NodeFault> {
    let least = usize::try_from(node.int("mincharnum").unwrap_or(1)).unwrap_or(0);
    let marked = node.int("mark").unwrap_or(0) != 0;
    let cut = match node.string("tokenexp") {
        Some(tokens) => Cut::At(compile_pattern("tokenexp", tokens)?),
        None => Cut::from_separators(node)?,
    };
    let of = |text: &String| {
        let found = cut.split_tokens(text).into_iter();
        let mut found: Vec<String> = found.filter(|it| it.chars().count() >= least).collect();
        if marked {
            found.insert(0, MARKS[0].to_owned());
            found.push(MARKS[1].to_owned());
        }
        found
    };
    let rows = given.texts.iter().map(of).collect();
    Ok(pad_rows(
        &given.dims,
        rows,
        text_attribute(node, "pad_value"),
    ))
}

/// Makes a tensor of rows of texts, padded to the longest row.
fn pad_rows(dims: &[usize], rows: Vec<Vec<String>>, filler: &str) -> TextTensor {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut texts = Vec::with_capacity(rows.len() * longest);
    for mut row in rows {
        row.resize(longest, filler.to_owned());
        texts.append(&mut row);
    }
    let dims = [dims, &[longest]].concat();
    TextTensor { dims, texts }
}

/// The way to split a text into tokens.
enum Cut {
    /// Each match is a token.
    At(Regex),
    /// Tokens lie between the matches of these patterns, applied one after the other.
    Between(Vec<Regex>),
    /// Each character is a token.
    Characters,
}

impl Cut {
    fn from_separators(node: &NodeProto) -> Result<Self, NodeFault> {
        let separators = node.strings("separators").unwrap_or_default();
        if separators.iter().all(|it| it.is_empty()) {
            return Ok(Self::Characters);
        }
        let patterns = separators
            .iter()
            .map(|it| compile_pattern("separators", &String::from_utf8_lossy(it)));
        Ok(Self::Between(patterns.collect::<Result<_, _>>()?))
    }

    fn split_tokens(&self, text: &str) -> Vec<String> {
        match self {
            Self::At(pattern) => pattern
                .find_iter(text)
                .map(|it| it.as_str().to_owned())
                .collect(),
            Self::Characters => text.chars().map(String::from).collect(),
            Self::Between(patterns) => {
                let mut parts = vec![text];
                for pattern in patterns {
                    parts = parts.iter().flat_map(|part| pattern.split(part)).collect();
                }
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                parts.map(str::to_owned).collect()
            }
        }
    }
}

/// Concatenates texts, whose shapes must broadcast to a common one.
fn concat_texts(left: &TextTensor, right: &TextTensor) -> Result<TextTensor, NodeFault> {
    let rank = left.dims.len().max(right.dims.len());
    let aligned =
        |given: &TextTensor| [&vec![1; rank - given.dims.len()][..], &given.dims].concat();
    let (one, two) = (aligned(left), aligned(right));
    let mut dims = Vec::with_capacity(rank);
    for (&one, &two) in one.iter().zip(&two) {
        dims.push(match (one, two) {
            (1, size) | (size, 1) => size,
            (size, other) if size == other => size,
            _ => return Err(NodeFault::Shape(right.dims.clone())),
        });
    }
    let place = |of: &[usize], mut index: usize| {
        let (mut at, mut step) = (0, 1);
        for axis in (0..rank).rev() {
            let here = index % dims[axis];
            index /= dims[axis];
            at += if of[axis] == 1 { 0 } else { here * step };
            step *= of[axis];
        }
        at
    };
    let count: usize = dims.iter().product();
    let text = |index| {
        let (first, second) = (
            &left.texts[place(&one, index)],
            &right.texts[place(&two, index)],
        );
        format!("{first}{second}")
    };
    let texts = (0..count).map(text).collect();
    Ok(TextTensor { dims, texts })
}

/// Splits each text, and returns the parts and their counts.
fn split_texts(
    node: &NodeProto,
    given: &TextTensor,
    words: &mut Words,
) -> Result<Vec<Tensor>, NodeFault> {
    let at = text_attribute(node, "delimiter");
    let most = node
        .int("maxsplit")
        .and_then(|most| usize::try_from(most).ok());
    let parts = |text: &String| -> Vec<String> {
        let most = most.unwrap_or(usize::MAX - 1);
        if text.is_empty() {
            return Vec::new();
        }
        if !at.is_empty() {
            return text.splitn(most + 1, at).map(str::to_owned).collect();
        }
        let (mut found, mut rest) = (Vec::new(), text.trim());
        while let Some((part, after)) = rest.split_once(char::is_whitespace) {
            if found.len() == most {
                break;
            }
            found.push(part.to_owned());
            rest = after.trim_start();
        }
        if !rest.is_empty() {
            found.push(rest.to_owned());
        }
        found
    };
    let rows: Vec<Vec<String>> = given.texts.iter().map(parts).collect();
    let counts: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
    let counts = Tensor::from_vec(given.dims.clone(), counts)?;
    Ok(vec![
        pad_rows(&given.dims, rows, "").into_numbers(words)?,
        counts,
    ])
}

/// Parses texts as numbers.
fn read(node: &NodeProto, given: &TextTensor) -> Result<Tensor, NodeFault> {
    fn parse_all<T: std::str::FromStr>(texts: &[String]) -> Result<Vec<T>, NodeFault> {
        let read = |text: &String| {
            let number = text.trim().parse();
            number.map_err(|_| NodeFault::NoNumber(text.clone()))
        };
        texts.iter().map(read).collect()
    }
    let (dims, texts) = (given.dims.clone(), &given.texts);
    let code = node.int("to").unwrap_or_default();
    let dtype = i32::try_from(code)
        .ok()
        .and_then(|code| DType::from_onnx_code(code).ok());
    Ok(match dtype {
        Some(DType::F32) => Tensor::from_vec(dims, parse_all::<f32>(texts)?)?,
        Some(DType::F64) => Tensor::from_vec(dims, parse_all::<f64>(texts)?)?,
        Some(DType::I32) => Tensor::from_vec(dims, parse_all::<i32>(texts)?)?,
        Some(DType::I64) => Tensor::from_vec(dims, parse_all::<i64>(texts)?)?,
        _ => {
            let found = code.to_string();
            return Err(NodeFault::Attribute { name: "to", found });
        }
    })
}
