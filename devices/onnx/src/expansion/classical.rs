//! Rewrites the operators of classical machine learning (domain `ai.onnx.ml`) except trees, such as
//! scalers, encoders and linear models, as standard ONNX operators.

use bytes::Bytes;
use souk_memory::{DType, Tensor};

use super::builder::ExpansionBuilder;
use super::scores::{
    Scores, apply_node_transform, class_labels, output_best_class, output_binary_class,
};
use super::{Label, ensemble};
use crate::{NodeProto, TensorProto, tensor_to_proto};

/// The default encoding of an unknown text, if the node does not state one.
const DEFAULT_TEXT: &str = "_Unused";

/// Expands a node; returns `None` if it has a kernel of its own, or is unknown.
pub(super) fn expand_node(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    match body.call().op_type() {
        "ArrayFeatureExtractor" => array_feature_extractor(body),
        "Binarizer" => binarizer(body),
        "CategoryMapper" => category_mapper(body),
        "FeatureVectorizer" => feature_vectorizer(body),
        "Imputer" => imputer(body),
        "LabelEncoder" => label_encoder(body),
        "LinearClassifier" => linear_classifier(body),
        "LinearRegressor" => linear_regressor(body),
        "Normalizer" => normalizer(body),
        "OneHotEncoder" => one_hot_encoder(body),
        "SVMClassifier" => support_vector_classifier(body),
        "Scaler" => scaler(body),
        "TreeEnsembleClassifier" => ensemble::classifier(body),
        "TreeEnsembleRegressor" => ensemble::regressor(body),
        "TreeEnsemble" => ensemble::of_version_5(body),
        "ZipMap" => zip_map(body),
        _ => None,
    }
}

/// Returns an attribute that is a list of floats, unless it is empty.
fn float_list(body: &ExpansionBuilder<'_>, name: &str) -> Option<Vec<f32>> {
    let list = body.call().floats(name)?;
    (!list.is_empty()).then(|| list.to_vec())
}

fn scaler(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let mut value = body.as_floats(0)?;
    for (operator, name) in [("Sub", "offset"), ("Mul", "scale")] {
        if let Some(list) = float_list(body, name) {
            let operand = body.add_floats(&[list.len()], list)?;
            value = body.add_operator(operator, &[&value, &operand]);
        }
    }
    body.set_output(0, &value);
    Some(())
}

fn normalizer(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let value = body.as_floats(0)?;
    let operator = match body.call().string("norm").unwrap_or("MAX") {
        "MAX" => "ReduceMax",
        "L1" => "ReduceL1",
        "L2" => "ReduceL2",
        _ => return None,
    };
    let norm = body.add_reduction(operator, &value, -1, 1);
    let zero = body.add_float(0.0);
    let one = body.add_float(1.0);
    // A row of zeros must remain zero.
    let is_zero = body.add_operator("Equal", &[&norm, &zero]);
    let divisor = body.add_operator("Where", &[&is_zero, &one, &norm]);
    let scaled = body.add_operator("Div", &[&value, &divisor]);
    body.set_output(0, &scaled);
    Some(())
}

fn binarizer(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let input = body.input_name(0)?;
    let threshold = body.call().float("threshold").unwrap_or(0.0);
    let dtype = body.input_dtype(0)?;
    let bound = body.add_float(threshold);
    let bound = match dtype {
        DType::F32 => bound,
        _ => body.add_cast(&bound, dtype),
    };
    let above = body.add_operator("Greater", &[input, &bound]);
    let value = body.add_cast(&above, dtype);
    body.set_output(0, &value);
    Some(())
}

fn imputer(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let input = body.input_name(0)?;
    let (imputed, is_missing) = match float_list(body, "imputed_value_floats") {
        Some(list) => {
            let replaced = body.call().float("replaced_value_float").unwrap_or(0.0);
            let imputed = body.add_floats(&[list.len()], list)?;
            let is_missing = if replaced.is_nan() {
                body.add_operator("IsNaN", &[input])
            } else {
                let replaced = body.add_float(replaced);
                body.add_operator("Equal", &[input, &replaced])
            };
            (imputed, is_missing)
        }
        None => {
            let list = body.call().ints("imputed_value_int64s")?.to_vec();
            let imputed = body.add_ints(list);
            let replaced = body.call().int("replaced_value_int64").unwrap_or(0);
            let replaced = body.add_int(replaced);
            (imputed, body.add_operator("Equal", &[input, &replaced]))
        }
    };
    let value = body.add_operator("Where", &[&is_missing, &imputed, input]);
    body.set_output(0, &value);
    Some(())
}

fn feature_vectorizer(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let mut columns = Vec::new();
    for index in 0..body.call().input.len() {
        let column = body.as_floats(index)?;
        columns.push(body.add_reshape(&column, &[0, -1]));
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let joined = body.add(NodeProto::for_operator("Concat", &columns, "").with("axis", 1i64));
    body.set_output(0, &joined);
    Some(())
}

fn array_feature_extractor(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let (input, places) = (body.input_name(0)?, body.input_name(1)?);
    let places = body.add_reshape(places, &[-1]);
    let gather = NodeProto::for_operator("Gather", &[input, &places], "").with("axis", -1i64);
    let mut taken = body.add(gather);
    if body.rank(input) == Some(1) {
        taken = body.add_unsqueeze(&taken, 0);
    }
    if body.is_string(0) {
        body.note_text(0);
    }
    body.set_output(0, &taken);
    Some(())
}

fn one_hot_encoder(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let input = body.input_name(0)?;
    let call = body.call();
    let texts = call.strings("cats_strings").unwrap_or_default();
    let categories = match body.is_string(0) {
        true => body.text_numbers(texts),
        false => call.ints("cats_int64s")?.to_vec(),
    };
    let value = match body.input_dtype(0) {
        Some(DType::I64) => input.to_owned(),
        _ => body.add_cast(input, DType::I64),
    };
    let value = body.add_unsqueeze(&value, -1);
    let categories = body.add_ints(categories);
    let equal = body.add_operator("Equal", &[&value, &categories]);
    let encoded = body.add_cast(&equal, DType::F32);
    body.set_output(0, &encoded);
    Some(())
}

fn zip_map(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let input = body.input_name(0)?;
    let call = body.call();
    let texts = call.strings("classlabels_strings").unwrap_or_default();
    let text = |text: &Bytes| Label::Text(String::from_utf8_lossy(text).into_owned());
    let labels = match call.ints("classlabels_int64s").filter(|it| !it.is_empty()) {
        Some(labels) => labels.iter().copied().map(Label::Number).collect(),
        None => texts.iter().map(text).collect(),
    };
    let output = call.output.first()?.clone();
    body.columns().insert(output, labels);
    body.set_output(0, input);
    Some(())
}

/// Adds an encoder from keys to values, both as tensors.
fn add_encoder(
    body: &mut ExpansionBuilder<'_>,
    keys: TensorProto,
    values: TensorProto,
    default: TensorProto,
) {
    let input = body.input_name(0).unwrap_or_default();
    let node = NodeProto::for_classical_operator("LabelEncoder", &[input], "")
        .with("keys_tensor", keys)
        .with("values_tensor", values)
        .with("default_tensor", default);
    let encoded = body.add(node);
    body.set_output(0, &encoded);
}

fn scalar_proto<T: souk_memory::Element>(value: T) -> TensorProto {
    tensor_to_proto("", &Tensor::scalar(value))
}

fn floats_proto(values: &[f32]) -> Option<TensorProto> {
    let tensor = Tensor::from_vec([values.len()], values.to_vec()).ok()?;
    Some(tensor_to_proto("", &tensor))
}

fn label_encoder(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    if let Some(classes) = call.strings("classes_strings").filter(|it| !it.is_empty()) {
        return places_of_classes(body, classes);
    }
    let (keys, _) = encoder_table(body, "keys")?;
    let (values, is_text) = encoder_table(body, "values")?;
    let default = match call.tensor("default_tensor") {
        Some(tensor) => body.number_texts(tensor),
        None if is_text => {
            let text = call.string("default_string").unwrap_or(DEFAULT_TEXT);
            let text = Bytes::from(text.to_owned());
            scalar_proto(body.text_numbers(&[text])[0])
        }
        None if call.floats("values_floats").is_some() => {
            scalar_proto(call.float("default_float").unwrap_or(-0.0))
        }
        None => scalar_proto(call.int("default_int64").unwrap_or(-1)),
    };
    if is_text {
        body.note_text(0);
    }
    add_encoder(body, keys, values, default);
    Some(())
}

/// Expands the first version, which maps a text to its index among the classes, or an index to the
/// text.
fn places_of_classes(body: &mut ExpansionBuilder<'_>, classes: &[Bytes]) -> Option<()> {
    let texts = super::string_table::encode_vector("", body.text_numbers(classes));
    let places = super::string_table::encode_vector("", (0..classes.len() as i64).collect());
    if body.is_string(0) {
        let default = body.call().int("default_int64").unwrap_or(-1);
        add_encoder(body, texts, places, scalar_proto(default));
        return Some(());
    }
    let default = body.call().string("default_string").unwrap_or(DEFAULT_TEXT);
    let default = Bytes::from(default.to_owned());
    let default = scalar_proto(body.text_numbers(&[default])[0]);
    body.note_text(0);
    add_encoder(body, places, texts, default);
    Some(())
}

fn category_mapper(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let texts = body.text_numbers(call.strings("cats_strings")?);
    let texts = super::string_table::encode_vector("", texts);
    let numbers = super::string_table::encode_vector("", call.ints("cats_int64s")?.to_vec());
    if body.is_string(0) {
        let default = call.int("default_int64").unwrap_or(-1);
        add_encoder(body, texts, numbers, scalar_proto(default));
        return Some(());
    }
    let default = call.string("default_string").unwrap_or(DEFAULT_TEXT);
    let default = Bytes::from(default.to_owned());
    let default = scalar_proto(body.text_numbers(&[default])[0]);
    body.note_text(0);
    add_encoder(body, numbers, texts, default);
    Some(())
}

/// Returns the keys or values of an encoder, and whether they are texts.
fn encoder_table(body: &mut ExpansionBuilder<'_>, kind: &str) -> Option<(TensorProto, bool)> {
    let call = body.call();
    if let Some(tensor) = call.tensor(&format!("{kind}_tensor")) {
        let is_text = tensor.data_type() == crate::DataType::String as i32;
        return Some((body.number_texts(tensor), is_text));
    }
    let texts = call.strings(&format!("{kind}_strings"));
    if let Some(texts) = texts.filter(|it| !it.is_empty()) {
        let numbers = body.text_numbers(texts);
        return Some((super::string_table::encode_vector("", numbers), true));
    }
    let ints = call.ints(&format!("{kind}_int64s"));
    if let Some(ints) = ints.filter(|it| !it.is_empty()) {
        return Some((super::string_table::encode_vector("", ints.to_vec()), false));
    }
    let list = float_list(body, &format!("{kind}_floats"))?;
    Some((floats_proto(&list)?, false))
}

/// Multiplies the first input by a row of coefficients for each of `count` sums, and adds the
/// intercepts.
fn add_linear(body: &mut ExpansionBuilder<'_>, count: usize) -> Option<String> {
    let mut value = body.as_floats(0)?;
    if body.rank(body.input_name(0)?) == Some(1) {
        value = body.add_reshape(&value, &[1, -1]);
    }
    let rows = float_list(body, "coefficients")?;
    let width = rows.len().checked_div(count)?;
    let rows = body.add_floats(&[count, width], rows)?;
    let added = float_list(body, "intercepts").unwrap_or_else(|| vec![0.0; count]);
    let added = body.add_floats(&[added.len()], added)?;
    let product = NodeProto::for_operator("Gemm", &[&value, &rows, &added], "");
    Some(body.add(product.with("transB", 1i64)))
}

fn linear_regressor(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let targets = body.call().int("targets").unwrap_or(1);
    let sums = add_linear(body, usize::try_from(targets).ok()?)?;
    let scores = apply_node_transform(body, &sums, Scores::Many)?;
    body.set_output(0, &scores);
    Some(())
}

fn linear_classifier(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let classes = class_labels(body, "classlabels_ints")?;
    let count = float_list(body, "intercepts")?.len();
    let sums = add_linear(body, count)?;
    let zero = body.add_float(0.0);
    if count == 1 && classes.len() == 2 {
        let above = body.add_operator("Greater", &[&sums, &zero]);
        output_binary_class(body, &above, &classes);
        let scores = apply_node_transform(body, &sums, Scores::One)?;
        body.set_output(1, &scores);
        return Some(());
    }
    output_best_class(body, &sums, &classes);
    let scores = apply_node_transform(body, &sums, Scores::Many)?;
    body.set_output(1, &scores);
    Some(())
}

/// Expands a support vector classifier: numbers replace the texts of classes, and the transform of
/// the scores becomes separate nodes.
fn support_vector_classifier(body: &mut ExpansionBuilder<'_>) -> Option<()> {
    let call = body.call();
    let transform = call.string("post_transform").unwrap_or("NONE");
    let is_written = call.strings("classlabels_strings").is_none() && transform == "NONE";
    if is_written || transform == "PROBIT" {
        return None;
    }
    let classes = class_labels(body, "classlabels_ints")?;
    let input = body.input_name(0)?;
    let mut node = NodeProto::for_classical_operator("SVMClassifier", &[input], "")
        .with("classlabels_ints", classes);
    let kept = |name: &str| !name.starts_with("classlabels") && name != "post_transform";
    let attributes = call.attribute.iter().filter(|it| kept(it.name()));
    node.attribute.extend(attributes.cloned());
    let made = body.add_many(node, 2);
    body.set_output(0, &made[0]);
    let scores = apply_node_transform(body, &made[1], Scores::Many)?;
    body.set_output(1, &scores);
    Some(())
}
