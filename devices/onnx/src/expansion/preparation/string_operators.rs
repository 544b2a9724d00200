//! Computes ONNX operators on strings, such as `StringSplit`, on the buyer's machine before the
//! rest of the model runs elsewhere.
//!
//! Strings travel as i64 ids of the string table ([`StringTable`]).

use regex_lite::Regex;
use souk_memory::{DType, Tensor};

use super::super::string_table::StringTable;
use super::{NodeFault, ngrams};
use crate::NodeProto;

/// Start and end marks that `Tokenizer` adds if `mark` is set.
const START_MARK: &str = "\u{2}";
const END_MARK: &str = "\u{3}";

/// A tensor of strings.
struct StringTensor {
    dims: Vec<usize>,
    /// The elements in row-major order.
    elements: Vec<String>,
}

/// Computes the outputs of a node.
pub fn compute_outputs<'a>(
    node: &NodeProto,
    input: &impl Fn(usize) -> Option<&'a Tensor>,
    table: &mut StringTable,
) -> Result<Vec<Tensor>, NodeFault> {
    let strings = StringTensor::from_tensor(input(0).ok_or(NodeFault::Missing(0))?, table)?;
    match node.op_type() {
        "StringNormalizer" => Ok(vec![normalise_strings(node, strings)?.into_ids(table)?]),
        "Tokenizer" => Ok(vec![tokenise_strings(node, &strings)?.into_ids(table)?]),
        "TfIdfVectorizer" => Ok(vec![ngrams::from_strings(
            node,
            &strings.elements,
            &strings.dims,
        )?]),
        "StringConcat" => {
            let other = StringTensor::from_tensor(input(1).ok_or(NodeFault::Missing(1))?, table)?;
            Ok(vec![concat_strings(&strings, &other)?.into_ids(table)?])
        }
        "StringSplit" => split_strings(node, &strings, table),
        "RegexFullMatch" => {
            let pattern = compile_pattern(
                "pattern",
                &format!(r"\A(?:{})\z", string_attribute(node, "pattern")),
            )?;
            let matches = strings.elements.iter().map(|text| pattern.is_match(text));
            Ok(vec![Tensor::from_bools(
                strings.dims.clone(),
                &matches.collect::<Vec<_>>(),
            )?])
        }
        "Cast" => Ok(vec![parse_numbers(node, &strings)?]),
        _ => Err(NodeFault::Operator),
    }
}

impl StringTensor {
    fn from_tensor(tensor: &Tensor, table: &StringTable) -> Result<Self, NodeFault> {
        let ids = match tensor.dtype() {
            DType::I64 => tensor.to_vec::<i64>()?,
            _ => return Err(NodeFault::NotText),
        };
        let element = |id| match table.find_string(id) {
            Some(element) => Ok(element.to_owned()),
            None => Err(NodeFault::NotText),
        };
        let elements = ids.into_iter().map(element);
        Ok(Self {
            dims: tensor.dims().to_vec(),
            elements: elements.collect::<Result<_, _>>()?,
        })
    }

    fn into_ids(self, table: &mut StringTable) -> Result<Tensor, NodeFault> {
        let ids = self
            .elements
            .iter()
            .map(|element| table.intern_string(element));
        Ok(Tensor::from_vec(self.dims, ids.collect())?)
    }
}

fn string_attribute<'a>(node: &'a NodeProto, name: &str) -> &'a str {
    node.string(name).unwrap_or_default()
}

fn compile_pattern(name: &'static str, pattern: &str) -> Result<Regex, NodeFault> {
    Regex::new(pattern).map_err(|_| {
        let found = pattern.to_owned();
        NodeFault::Attribute { name, found }
    })
}

/// Computes `StringNormalizer`: removes stop words and changes the case of the others. The strings
/// must be a vector or one row.
fn normalise_strings(node: &NodeProto, strings: StringTensor) -> Result<StringTensor, NodeFault> {
    let case_sensitive = node.int("is_case_sensitive").unwrap_or(0) != 0;
    let fold_case = |word: &str| {
        if case_sensitive {
            word.to_owned()
        } else {
            word.to_lowercase()
        }
    };
    let stop_words = node.strings("stopwords").unwrap_or_default();
    let stop_words: Vec<String> = stop_words
        .iter()
        .map(|bytes| fold_case(&String::from_utf8_lossy(bytes)))
        .collect();
    let change_case = match string_attribute(node, "case_change_action") {
        "" | "NONE" => str::to_owned,
        "LOWER" => str::to_lowercase,
        "UPPER" => str::to_uppercase,
        other => {
            let (name, found) = ("case_change_action", other.to_owned());
            return Err(NodeFault::Attribute { name, found });
        }
    };
    let mut dims = match *strings.dims {
        [_] | [1, _] => strings.dims.clone(),
        _ => return Err(NodeFault::Shape(strings.dims)),
    };
    let words = strings
        .elements
        .iter()
        .filter(|word| !stop_words.contains(&fold_case(word)));
    let mut elements: Vec<String> = words.map(|word| change_case(word)).collect();
    // ONNX requires one empty string if no word remains.
    if elements.is_empty() {
        elements.push(String::new());
    }
    if let Some(last) = dims.last_mut() {
        *last = elements.len();
    }
    Ok(StringTensor { dims, elements })
}

/// Computes `Tokenizer`: splits each string into tokens, padded to the longest row.
fn tokenise_strings(node: &NodeProto, strings: &StringTensor) -> Result<StringTensor, NodeFault> {
    let min_chars = usize::try_from(node.int("mincharnum").unwrap_or(1)).unwrap_or(0);
    let adds_marks = node.int("mark").unwrap_or(0) != 0;
    let splitter = match node.string("tokenexp") {
        Some(pattern) => TokenSplitter::Matches(compile_pattern("tokenexp", pattern)?),
        None => TokenSplitter::from_separators(node)?,
    };
    let tokenise = |text: &String| {
        let tokens = splitter.split_tokens(text).into_iter();
        let is_long_enough = |token: &String| token.chars().count() >= min_chars;
        let mut tokens: Vec<String> = tokens.filter(is_long_enough).collect();
        if adds_marks {
            tokens.insert(0, START_MARK.to_owned());
            tokens.push(END_MARK.to_owned());
        }
        tokens
    };
    let rows = strings.elements.iter().map(tokenise).collect();
    Ok(pad_rows(
        &strings.dims,
        rows,
        string_attribute(node, "pad_value"),
    ))
}

/// Creates a tensor of the shape `[..dims, longest row]`. Each row is padded with `padding`.
fn pad_rows(dims: &[usize], rows: Vec<Vec<String>>, padding: &str) -> StringTensor {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut elements = Vec::with_capacity(rows.len() * longest);
    for mut row in rows {
        row.resize(longest, padding.to_owned());
        elements.append(&mut row);
    }
    let dims = [dims, &[longest]].concat();
    StringTensor { dims, elements }
}

/// The way in which `Tokenizer` splits a string into tokens.
enum TokenSplitter {
    /// Each match is a token.
    Matches(Regex),
    /// Each match separates two tokens. The patterns apply one after the other.
    Separators(Vec<Regex>),
    /// Each character is a token.
    Characters,
}

impl TokenSplitter {
    fn from_separators(node: &NodeProto) -> Result<Self, NodeFault> {
        let separators = node.strings("separators").unwrap_or_default();
        if separators.iter().all(|it| it.is_empty()) {
            return Ok(Self::Characters);
        }
        let patterns = separators
            .iter()
            .map(|it| compile_pattern("separators", &String::from_utf8_lossy(it)));
        Ok(Self::Separators(patterns.collect::<Result<_, _>>()?))
    }

    fn split_tokens(&self, text: &str) -> Vec<String> {
        match self {
            Self::Matches(pattern) => pattern
                .find_iter(text)
                .map(|it| it.as_str().to_owned())
                .collect(),
            Self::Characters => text.chars().map(String::from).collect(),
            Self::Separators(patterns) => {
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

/// Computes `StringConcat`: joins pairs of strings. The shapes must broadcast to a common one.
fn concat_strings(left: &StringTensor, right: &StringTensor) -> Result<StringTensor, NodeFault> {
    let rank = left.dims.len().max(right.dims.len());
    let pad_rank = |dims: &[usize]| [&vec![1; rank - dims.len()][..], dims].concat();
    let (left_dims, right_dims) = (pad_rank(&left.dims), pad_rank(&right.dims));
    let mut dims = Vec::with_capacity(rank);
    for (&left_size, &right_size) in left_dims.iter().zip(&right_dims) {
        dims.push(match (left_size, right_size) {
            (1, size) | (size, 1) => size,
            (size, other) if size == other => size,
            _ => return Err(NodeFault::Shape(right.dims.clone())),
        });
    }
    // The index in an operand of the element at `output_index` of the output.
    let flat_index = |operand_dims: &[usize], output_index: usize| {
        let (mut rest, mut flat_index, mut stride) = (output_index, 0, 1);
        for axis in (0..rank).rev() {
            let coordinate = rest % dims[axis];
            rest /= dims[axis];
            if operand_dims[axis] != 1 {
                flat_index += coordinate * stride;
            }
            stride *= operand_dims[axis];
        }
        flat_index
    };
    let count: usize = dims.iter().product();
    let join = |index| {
        let first = &left.elements[flat_index(&left_dims, index)];
        let second = &right.elements[flat_index(&right_dims, index)];
        format!("{first}{second}")
    };
    let elements = (0..count).map(join).collect();
    Ok(StringTensor { dims, elements })
}

/// Computes `StringSplit`: returns the parts of each string, padded to the longest row, and the
/// number of parts of each.
fn split_strings(
    node: &NodeProto,
    strings: &StringTensor,
    table: &mut StringTable,
) -> Result<Vec<Tensor>, NodeFault> {
    let delimiter = string_attribute(node, "delimiter");
    let max_splits = node
        .int("maxsplit")
        .and_then(|splits| usize::try_from(splits).ok())
        // Without a limit. There is one part more than splits, so one less than the largest number
        // does not overflow below.
        .unwrap_or(usize::MAX - 1);
    let split = |text: &String| -> Vec<String> {
        if text.is_empty() {
            return Vec::new();
        }
        if !delimiter.is_empty() {
            let parts = text.splitn(max_splits + 1, delimiter);
            return parts.map(str::to_owned).collect();
        }
        // Without a delimiter, runs of white space separate the parts.
        let (mut parts, mut rest) = (Vec::new(), text.trim());
        while let Some((part, after)) = rest.split_once(char::is_whitespace) {
            if parts.len() == max_splits {
                break;
            }
            parts.push(part.to_owned());
            rest = after.trim_start();
        }
        if !rest.is_empty() {
            parts.push(rest.to_owned());
        }
        parts
    };
    let rows: Vec<Vec<String>> = strings.elements.iter().map(split).collect();
    let counts: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
    let counts = Tensor::from_vec(strings.dims.clone(), counts)?;
    Ok(vec![
        pad_rows(&strings.dims, rows, "").into_ids(table)?,
        counts,
    ])
}

/// Computes `Cast` from strings: parses them as numbers.
fn parse_numbers(node: &NodeProto, strings: &StringTensor) -> Result<Tensor, NodeFault> {
    fn parse_all<T: std::str::FromStr>(texts: &[String]) -> Result<Vec<T>, NodeFault> {
        let parse = |text: &String| {
            let number = text.trim().parse();
            number.map_err(|_| NodeFault::NoNumber(text.clone()))
        };
        texts.iter().map(parse).collect()
    }
    let (dims, texts) = (strings.dims.clone(), &strings.elements);
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
