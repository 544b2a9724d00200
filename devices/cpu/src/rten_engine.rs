//! Loads and runs models on rten, a pure Rust ONNX runtime, and converts tensors to its types and
//! back. The CPU runs parts of graphs with it, and the benchmarks use its conversions.
//!
//! Weights are lent to rten where they lie: each initializer becomes external data over the bytes
//! the tensor already has, so a model in memory is not there twice.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView, ValueView};
use rten_tensor::TensorView;
use souk_memory::{DType, Shape, Tensor};
use souk_onnx as onnx;
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::{CompileError, Port, Unsupported, UnsupportedReason};
use souk_onnx::{DataLocation, ModelProto, NodeProto, StringStringEntryProto, TensorProto};
use souk_vocabulary::processor::RunError;

use super::rten_rewrite;

/// Name of this engine in errors.
pub const ENGINE: &str = "rten";
/// rten takes external data only from files whose names end so.
const EXTERNAL_SUFFIX: &str = ".data";
/// Weights below this stay in the model: lending them costs more than it saves.
const LENT_BYTES_MIN: usize = 1024;

/// A model loaded by rten.
pub(super) struct RtenModel {
    // Dropped before `lent`, whose bytes it refers to: fields drop in the order they are declared.
    model: Model,
    /// Weights that the model refers to; they must never change and never leave this value.
    _lent: Vec<Tensor>,
    threads: Arc<ThreadPool>,
    inputs: Vec<(Port, Option<NodeId>)>,
    outputs: Vec<(Port, NodeId)>,
}

impl RtenModel {
    /// Loads a model that returns `outputs`, any of its values; rten rewrites it only if `optimise`
    /// is set.
    pub fn load_with(
        graph: &Graph,
        threads: Arc<ThreadPool>,
        outputs: &[Port],
        optimise: bool,
    ) -> Result<Self, CompileError> {
        let mut options = ModelOptions::with_all_ops();
        options.enable_optimization(optimise);
        let mut proto = graph.model.clone();
        let nodes = &mut proto.graph.get_or_insert_default().node;
        *nodes = rten_rewrite::rewrite_nodes(nodes);
        let lent = lend_weights(graph, &mut proto, &mut options);
        let bytes = onnx::encode_model(&proto).to_vec();
        let model =
            catch_panic(|| options.load(bytes)).map_err(|reason| engine_refuses(&reason))?;
        let model = model.map_err(|error| load_error(graph, &error))?;
        let find = |port: &Port| {
            let id = model
                .node_id(&port.name)
                .map_err(|error| engine_refuses(&error.to_string()))?;
            Ok::<_, CompileError>((port.clone(), id))
        };
        let outputs = outputs.iter().map(find).collect::<Result<_, _>>()?;
        let inputs = graph.inputs.iter();
        let inputs = inputs
            .map(|port| (port.clone(), model.find_node(&port.name)))
            .collect();
        Ok(Self {
            model,
            _lent: lent,
            threads,
            inputs,
            outputs,
        })
    }

    /// Runs once; `inputs` must have been checked against the ports.
    pub fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let given: Result<Vec<InputValue<'_>>, RunError> = self
            .inputs
            .iter()
            .filter_map(|(port, id)| id.map(|id| InputValue::new(id, port, &inputs[&port.name])))
            .collect();
        let given = given?;
        let views = given.iter().map(InputValue::to_rten_view).collect();
        let ids: Vec<NodeId> = self.outputs.iter().map(|(_, id)| *id).collect();
        let options = RunOptions::default().with_thread_pool(Some(self.threads.clone()));
        let run = || self.model.run(views, &ids, Some(options));
        let crashed = |reason| RunError::Crashed {
            engine: ENGINE,
            reason,
        };
        let values = catch_panic(run).map_err(crashed)?;
        let values = values.map_err(|error| RunError::Engine {
            engine: ENGINE,
            reason: error.to_string(),
        })?;
        let ports = self.outputs.iter().map(|(port, _)| port);
        ports
            .zip(values)
            .map(|(port, value)| Ok((port.name.clone(), tensor_from_rten(port, value)?)))
            .collect()
    }
}

/// Puts the weights into `proto`, and lends the larger ones to rten; returns those lent.
fn lend_weights(graph: &Graph, proto: &mut ModelProto, options: &mut ModelOptions) -> Vec<Tensor> {
    let mut lent = Vec::new();
    let target = proto.graph.get_or_insert_default();
    for (index, (name, tensor)) in graph.weights.iter().enumerate() {
        let mut initializer = onnx::tensor_to_proto(name.as_str(), tensor);
        let lendable = matches!(
            tensor.dtype(),
            DType::F32 | DType::I32 | DType::I8 | DType::U8
        );
        if lendable && tensor.bytes().len() >= LENT_BYTES_MIN {
            let location = format!("{index}{EXTERNAL_SUFFIX}");
            if is_aligned(tensor) {
                options.external_data_static(&location, extend_lifetime(tensor));
                lent.push(tensor.clone());
            } else {
                options.external_data(&location, tensor.bytes().to_vec());
            }
            move_outside(&mut initializer, &location, tensor.bytes().len());
        }
        target.initializer.push(initializer);
    }
    lent
}

/// Makes an initializer refer to `length` bytes at `location`.
fn move_outside(initializer: &mut TensorProto, location: &str, length: usize) {
    initializer.raw_data = None;
    initializer.data_location = Some(DataLocation::External as i32);
    initializer.external_data = vec![
        StringStringEntryProto::new("location", location),
        StringStringEntryProto::new("offset", "0"),
        StringStringEntryProto::new("length", length.to_string()),
    ];
}

/// Whether elements of up to four bytes lie where rten can read them in place.
fn is_aligned(tensor: &Tensor) -> bool {
    tensor.bytes().as_ptr().align_offset(align_of::<f32>()) == 0
}

/// The bytes of a tensor under a lifetime that outlives the model they are lent to.
#[expect(
    unsafe_code,
    reason = "rten lends data only for 'static; the model's owner keeps it"
)]
fn extend_lifetime(tensor: &Tensor) -> &'static [u8] {
    let bytes: &[u8] = tensor.bytes();
    // SAFETY: the slice stays valid and unchanged as long as any clone of the tensor's `Bytes`
    // lives, wherever that clone is moved. `RtenModel` keeps one in `_lent`, which is declared
    // after, and so dropped after, the `Model` that is the only holder of this slice: `lend` gives
    // it to `ModelOptions`, a local of `load_with` that is dropped there (if loading fails, `lent`
    // is dropped there too, after which nothing refers to it: the options are never read again).
    // rten's outputs are owned values, so none of them carries the slice out of the model.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
}

/// An input in a type rten has.
pub struct InputValue<'a> {
    id: NodeId,
    dims: &'a [usize],
    values: InputElements<'a>,
}

enum InputElements<'a> {
    F32(std::borrow::Cow<'a, [f32]>),
    I32(std::borrow::Cow<'a, [i32]>),
    U8(std::borrow::Cow<'a, [u8]>),
    I8(std::borrow::Cow<'a, [i8]>),
}

impl<'a> InputValue<'a> {
    /// Reads an input, and converts it where rten lacks its type.
    ///
    /// # Errors
    /// Returns a [`RunError`] if the tensor has another type than the input, or an integer beyond
    /// 32 bits.
    pub fn new(id: NodeId, port: &Port, tensor: &'a Tensor) -> Result<Self, RunError> {
        let checked = "the type was matched";
        let values = match tensor.dtype() {
            DType::F32 => InputElements::F32(tensor.elements().expect(checked)),
            DType::I32 => InputElements::I32(tensor.elements().expect(checked)),
            DType::U8 => InputElements::U8(tensor.elements().expect(checked)),
            DType::I8 => InputElements::I8(tensor.elements().expect(checked)),
            DType::Bool => {
                InputElements::I32(tensor.bytes().iter().map(|&byte| i32::from(byte)).collect())
            }
            DType::I64 => InputElements::I32(
                narrow_integers(port, &tensor.elements().expect(checked))?.into(),
            ),
            found => {
                let (name, expected) = (port.name.clone(), port.dtype);
                return Err(RunError::InputDType {
                    name,
                    expected,
                    found,
                });
            }
        };
        Ok(Self {
            id,
            dims: tensor.dims(),
            values,
        })
    }

    /// Returns the input as rten takes it.
    #[must_use]
    pub fn to_rten_view(&self) -> (NodeId, ValueOrView<'_>) {
        let dims = self.dims;
        let view: ValueView<'_> = match &self.values {
            InputElements::F32(values) => TensorView::from_data(dims, &values[..]).into(),
            InputElements::I32(values) => TensorView::from_data(dims, &values[..]).into(),
            InputElements::U8(values) => TensorView::from_data(dims, &values[..]).into(),
            InputElements::I8(values) => TensorView::from_data(dims, &values[..]).into(),
        };
        (self.id, view.into())
    }
}

/// 64-bit integers in 32 bits, or the first that does not fit.
fn narrow_integers(port: &Port, values: &[i64]) -> Result<Vec<i32>, RunError> {
    let narrow = |&value: &i64| {
        let outside = |_| RunError::IntegerRange {
            name: port.name.clone(),
            value,
        };
        i32::try_from(value).map_err(outside)
    };
    values.iter().map(narrow).collect()
}

/// Converts a value of rten to the type in the model.
pub fn tensor_from_rten(port: &Port, value: Value) -> Result<Tensor, RunError> {
    let failed = |reason: String| RunError::Engine {
        engine: ENGINE,
        reason,
    };
    let made = match (value, port.dtype) {
        (Value::FloatTensor(it), DType::F32) => Tensor::from_vec(it.shape_vec(), it.into_data()),
        (Value::Int32Tensor(it), DType::I32) => Tensor::from_vec(it.shape_vec(), it.into_data()),
        (Value::Int8Tensor(it), DType::I8) => Tensor::from_vec(it.shape_vec(), it.into_data()),
        (Value::UInt8Tensor(it), DType::U8) => Tensor::from_vec(it.shape_vec(), it.into_data()),
        (Value::Int32Tensor(it), DType::I64) => {
            let dims = it.shape_vec();
            Tensor::from_vec(dims, it.into_data().into_iter().map(i64::from).collect())
        }
        (Value::Int32Tensor(it), DType::Bool) => {
            let dims = it.shape_vec();
            let bytes: Vec<u8> = it
                .into_data()
                .into_iter()
                .map(|bit| u8::from(bit != 0))
                .collect();
            let shape = Shape::new(dims).map_err(|error| failed(error.to_string()))?;
            Tensor::new(DType::Bool, shape, bytes.into())
        }
        (value, expected) => {
            let (found, name) = (value.dtype(), &port.name);
            return Err(failed(format!(
                "output {name:?} is {found:?}, not {expected}"
            )));
        }
    };
    made.map_err(|error| failed(error.to_string()))
}

/// Sizes of a tensor of rten's.
trait ShapeVec {
    fn shape_vec(&self) -> Vec<usize>;
}

impl<T> ShapeVec for rten_tensor::Tensor<T> {
    fn shape_vec(&self) -> Vec<usize> {
        use rten_tensor::Layout as _;
        self.shape().to_vec()
    }
}

/// Returns the result of `engine`, or the message of its panic.
pub(super) fn catch_panic<T>(engine: impl FnOnce() -> T) -> Result<T, String> {
    // A run only reads the model, a failed load drops it, and a failed run drops its values, so no
    // code sees half-made state.
    catch_unwind(AssertUnwindSafe(engine)).map_err(|panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default()
    })
}

fn engine_refuses(reason: &str) -> CompileError {
    CompileError::Engine {
        engine: ENGINE,
        reason: reason.to_owned(),
    }
}

/// rten's refusal to load, as one of a node where it names one.
fn load_error(graph: &Graph, error: &rten::LoadError) -> CompileError {
    let named = |node: &&NodeProto| Some(node.name()) == error.node() && !node.name().is_empty();
    match graph.nodes().iter().find(named) {
        Some(node) => {
            let reason = UnsupportedReason::Engine(error.to_string());
            CompileError::Unsupported(Unsupported::new(node, reason))
        }
        None => engine_refuses(&error.to_string()),
    }
}
