//! Bounds the outputs that a buyer fetches, so that a provider cannot fill its memory: the model's
//! shapes say how many bytes each output has, before any byte of it comes.

use std::collections::BTreeMap;

use souk_memory::{Shape, Tensor};
use souk_scheduler::graph::{Graph, Value};

/// The most bytes of an output whose shape only its run can show: an eighth of the buyer's memory.
const OPEN_BYTES_MAX: u64 = 1 << 30;

/// A bound is no lower: so few bytes harm no buyer.
const BYTES_MIN: u64 = 1 << 20;

/// The most bytes of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputBound {
    /// The most bytes of its blob.
    pub(super) bytes_max: u64,
    /// Whether the bound follows from its shape: a longer one is wrong.
    pub(super) is_by_shape: bool,
}

/// The shapes of a job's values.
pub(super) struct OutputBounds {
    /// The bytes of each value whose shape follows from the inputs. The shape that a model declares
    /// can be wrong.
    bytes_of: BTreeMap<String, u64>,
    /// The inputs with which the shapes were found.
    planned: BTreeMap<String, Shape>,
    /// Whether all requests so far have these shapes.
    is_as_planned: bool,
}

impl OutputBounds {
    /// Finds the shapes of the values of a graph that was imported with these inputs. The values of
    /// a model with states grow from request to request.
    pub(super) fn from_graph(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> OutputBounds {
        let made = graph.values().iter();
        let made = made.filter(|value| value.producer().is_some() && value.is_inferred);
        let bytes_of = made.filter_map(|value| Some((value.name.clone(), blob_bytes(value)?)));
        let planned = inputs.iter();
        OutputBounds {
            bytes_of: bytes_of.collect(),
            planned: planned
                .map(|(name, tensor)| (name.clone(), tensor.shape().clone()))
                .collect(),
            is_as_planned: graph.state_values().is_empty(),
        }
    }

    /// Notes the inputs of a request: from the first one of another shape on, outputs can be longer
    /// than planned.
    pub(super) fn note_request(&mut self, inputs: &BTreeMap<String, Tensor>) {
        let mut inputs = inputs.iter();
        let is_same =
            |(name, tensor): (&String, &Tensor)| self.planned.get(name) == Some(tensor.shape());
        self.is_as_planned &= inputs.all(is_same);
    }

    /// Returns the bound of a value.
    pub(super) fn bound_of(&self, name: &str) -> OutputBound {
        let planned = self.bytes_of.get(name).copied();
        let is_by_shape = planned.is_some() && self.is_as_planned;
        let least = if is_by_shape {
            BYTES_MIN
        } else {
            OPEN_BYTES_MAX
        };
        OutputBound {
            bytes_max: planned.unwrap_or_default().max(least),
            is_by_shape,
        }
    }
}

/// Returns the bytes of a value's blob, if its element type and shape are known.
fn blob_bytes(value: &Value) -> Option<u64> {
    let dims = value.dims()?.into_iter().map(usize::try_from);
    let shape = Shape::new(dims.collect::<Result<Vec<_>, _>>().ok()?).ok()?;
    Some(Tensor::blob_length_of(value.dtype()?, &shape) as u64)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use souk_memory::{DType, npy};
    use souk_scheduler::graph::Bindings;

    use super::*;

    const MODEL: &[u8] = include_bytes!("../../../testnet/models/digits/digits.onnx");
    const IMAGES: &[u8] = include_bytes!("../../../testnet/models/digits/images.npy");

    fn images(count: usize) -> BTreeMap<String, Tensor> {
        let images = npy::read(&Bytes::from_static(IMAGES)).unwrap();
        let dims = [&[count], &images.dims()[1..]].concat();
        let elements: usize = dims.iter().product();
        let zeros = Tensor::from_vec(dims, vec![0.0_f32; elements]).unwrap();
        [("images".to_owned(), zeros)].into()
    }

    fn bounds(count: usize) -> (OutputBounds, String, Vec<usize>) {
        let inputs = images(count);
        let bindings = Bindings::new().with_input("images", DType::F32, inputs["images"].dims());
        let graph = Graph::import(Bytes::from_static(MODEL), &bindings).unwrap();
        let output = graph.value(graph.outputs()[0]);
        let dims = output.dims().unwrap().into_iter().map(|dim| dim as usize);
        let (name, dims) = (output.name.clone(), dims.collect());
        (OutputBounds::from_graph(&graph, &inputs), name, dims)
    }

    #[test]
    fn an_output_has_as_many_bytes_as_its_shape_takes() {
        // So many that the output is longer than the least bound.
        let (mut bounds, name, dims) = bounds(50_000);
        let elements: usize = dims.iter().product();
        let right = Tensor::from_vec(dims, vec![0.0_f32; elements]).unwrap();
        bounds.note_request(&images(50_000));
        let bound = OutputBound {
            bytes_max: right.to_blob().len() as u64,
            is_by_shape: true,
        };
        assert!(bound.bytes_max > BYTES_MIN);
        assert_eq!(bounds.bound_of(&name), bound);
        assert!(!bounds.bound_of("no value").is_by_shape);
        // A request of another shape has other outputs.
        bounds.note_request(&images(3));
        let open = OutputBound {
            bytes_max: OPEN_BYTES_MAX,
            is_by_shape: false,
        };
        assert_eq!(bounds.bound_of(&name), open);
    }

    #[test]
    fn a_short_output_can_be_longer_than_the_model_says() {
        let (bounds, name, _) = bounds(2);
        assert_eq!(bounds.bound_of(&name).bytes_max, BYTES_MIN);
    }
}
