//! Converts between the texts and maps that users read and write and the numbers that represent
//! them in a model's graph. `souk submit` uses it for the input and output files of a job.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value};
use souk_memory::Tensor;
use souk_memory::npy::{self, NpyError};
use souk_scheduler::graph::{Graph, Label, Meanings, PreparationError};
use thiserror::Error;

/// The labels of one model. Texts of inputs that the model does not contain are added when they are
/// read.
#[derive(Default)]
pub struct ValueLabels {
    meanings: Mutex<Meanings>,
    /// Whether the model could be read; if not, the import reports the error.
    is_known: bool,
}

/// The type of values that the numbers of an output represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// Texts.
    Texts,
    /// Maps from classes to numbers, one per row.
    Maps,
}

/// The error for an input with texts instead of numbers, or the reverse. Both travel as numbers, so
/// without this check the model would silently give a wrong answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the input {name} takes {wanted}, but {found} were given")]
pub struct LabelError {
    name: String,
    wanted: &'static str,
    found: &'static str,
}

impl ValueLabels {
    /// Returns the labels of a model.
    #[must_use]
    pub fn from_model(model: Bytes) -> Self {
        let meanings = Graph::read_meanings(model);
        Self {
            is_known: meanings.is_ok(),
            meanings: Mutex::new(meanings.unwrap_or_default()),
        }
    }

    /// Checks that an input has texts if the model expects texts, and numbers otherwise; accepts
    /// both if the model could not be read.
    ///
    /// # Errors
    /// [`LabelError`] if it does not.
    pub fn check_input(&self, input: &str, is_text: bool) -> Result<(), LabelError> {
        let meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_known || meanings.texts.inputs.contains(input) == is_text {
            return Ok(());
        }
        let (wanted, found) = match is_text {
            true => ("numbers", "texts"),
            false => ("texts", "numbers"),
        };
        let name = input.to_owned();
        Err(LabelError {
            name,
            wanted,
            found,
        })
    }

    /// Reads the tensor of a NumPy file, with texts as numbers, and returns whether it holds texts.
    ///
    /// # Errors
    /// When the bytes are no such file.
    pub fn read_tensor(&self, file: &Bytes) -> Result<(Tensor, bool), NpyError> {
        let Some(given) = npy::read_texts(file)? else {
            return Ok((npy::read(file)?, false));
        };
        let mut meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        let words = &mut meanings.texts.words;
        let numbers: Vec<i64> = given
            .texts
            .iter()
            .map(|text| words.intern_string(text))
            .collect();
        Ok((Tensor::from_vec(given.dims, numbers)?, true))
    }

    /// Computes the steps of the model that work on texts. You must call this before the model
    /// runs.
    ///
    /// # Errors
    /// When an input is missing or unsuitable for these steps.
    pub fn prepare_inputs(
        &self,
        inputs: &mut BTreeMap<String, Tensor>,
    ) -> Result<(), PreparationError> {
        let mut meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        let Meanings {
            texts, preparation, ..
        } = &mut *meanings;
        preparation.run(&mut texts.words, inputs)
    }

    /// Returns the type of values that the numbers of this output represent; none for plain
    /// numbers.
    #[must_use]
    pub fn output_kind(&self, output: &str) -> Option<Meaning> {
        let meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        if meanings.texts.outputs.contains(output) {
            return Some(Meaning::Texts);
        }
        meanings
            .columns
            .contains_key(output)
            .then_some(Meaning::Maps)
    }

    /// Converts the numbers of outputs to the values that they represent: texts as lists, maps as
    /// lists of objects.
    #[must_use]
    pub fn output_values(&self, outputs: &BTreeMap<String, Tensor>) -> BTreeMap<String, Value> {
        let meaning = |(name, tensor): (&String, &Tensor)| {
            let value = self.output_value(name, tensor)?;
            Some((name.clone(), value))
        };
        outputs.iter().filter_map(meaning).collect()
    }

    fn output_value(&self, name: &str, tensor: &Tensor) -> Option<Value> {
        let meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        if meanings.texts.outputs.contains(name) {
            let words = &meanings.texts.words;
            let numbers = tensor.to_vec::<i64>().ok()?.into_iter();
            let texts =
                numbers.map(|number| words.find_string(number).map_or(Value::Null, Value::from));
            return Some(nest_elements(&texts.collect::<Vec<_>>(), tensor.dims()));
        }
        let labels = meanings.columns.get(name)?;
        let scores = tensor.to_f64s().ok()?;
        let map = |row: &[f64]| {
            let pairs = labels.iter().zip(row);
            let pairs = pairs.map(|(label, score)| (key(label), Value::from(*score)));
            Value::Object(pairs.collect::<Map<_, _>>())
        };
        Some(scores.chunks(labels.len().max(1)).map(map).collect())
    }
}

fn key(label: &Label) -> String {
    match label {
        Label::Number(number) => number.to_string(),
        Label::Text(text) => text.clone(),
    }
}

/// Nests elements into lists of lists.
fn nest_elements(elements: &[Value], dims: &[usize]) -> Value {
    let Some((_, rest)) = dims.split_first() else {
        return elements.first().cloned().unwrap_or(Value::Null);
    };
    if rest.is_empty() {
        return elements.into();
    }
    let size = rest.iter().product::<usize>().max(1);
    elements
        .chunks(size)
        .map(|part| nest_elements(part, rest))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_maps_are_written_as_people_read_them() {
        let mut meanings = Meanings::default();
        let numbers = ["cat", "dog"].map(|text| meanings.texts.words.intern_string(text));
        meanings.texts.outputs.insert("label".to_owned());
        let labels = vec![Label::Text("cat".to_owned()), Label::Number(7)];
        meanings.columns.insert("scores".to_owned(), labels);
        let legend = ValueLabels {
            meanings: Mutex::new(meanings),
            is_known: true,
        };
        let label = Tensor::from_vec([2, 1], vec![numbers[1], numbers[0]]).unwrap();
        let scores = Tensor::from_vec([2, 2], vec![0.25f32, 0.75, 1.0, 0.0]).unwrap();
        let told = |name: &str, tensor| legend.output_value(name, tensor);
        assert_eq!(told("label", &label), Some(json!([["dog"], ["cat"]])));
        let maps = json!([{"cat": 0.25, "7": 0.75}, {"cat": 1.0, "7": 0.0}]);
        assert_eq!(told("scores", &scores), Some(maps));
        assert_eq!(told("other", &scores), None);
        let kinds = ["label", "scores", "other"].map(|name| legend.output_kind(name));
        assert_eq!(kinds, [Some(Meaning::Texts), Some(Meaning::Maps), None]);
    }
}
