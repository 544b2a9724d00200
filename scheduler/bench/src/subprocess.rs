//! A device in a process of its own.
//!
//! Its failure cannot end this process: if it crashes, or the system kills it for lack of memory,
//! this process loses the device alone, and its work moves to other devices. [`serve_parent`] is
//! the device's process and answers on its standard input and output, to which the process must
//! write nothing else; [`SubprocessDevice`] represents the device in this process.

mod frame;

use std::collections::BTreeMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::subgraph::{CompileError, Port, Subgraph, Unsupported, UnsupportedReason};
use souk_onnx::work::Work;
use souk_onnx::{GraphProto, ModelProto, NodeProto};
use souk_vocabulary::processor::{
    Energy, Engine, Estimate, Outcome, Processor, Program, RunError, check_inputs,
};
use souk_vocabulary::profile::Profile;
use thiserror::Error;

use frame::{Field, Kind, malformed_error, new_field, read_frame, write_frame};

/// Maximum number of programs that the device's process will hold for its parent, which forgets
/// dropped ones.
const PROGRAMS_MAX: usize = 4096;
/// IR version of the model that carries a single node to the device's process.
const IR_VERSION: i64 = 8;
/// The engine's name in errors.
const ENGINE: &str = "separate process";

/// The reason why a device in another process is not available.
#[derive(Debug, Error)]
pub enum SubprocessError {
    /// The process does not start, or ends before it answers.
    #[error("the device's process: {0}")]
    Process(#[from] io::Error),
    /// The process does not answer with a profile.
    #[error("the device's process does not state its device")]
    Profile,
}

/// A device in another process.
pub struct SubprocessDevice {
    profile: Profile,
    /// Number of this machine's cores that it uses.
    cores: usize,
    channel: Arc<Channel>,
}

/// The connection to the process: one request at a time, because a device runs one program at a
/// time.
struct Channel {
    ends: Mutex<ChildEnds>,
    device: String,
}

struct ChildEnds {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
}

/// Message that describes the device.
#[derive(Serialize, Deserialize)]
struct DeviceMessage {
    profile: Profile,
    cores: usize,
}

/// A program in the other process.
struct SubprocessProgram {
    channel: Arc<Channel>,
    number: u64,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// Message that describes a compiled program.
#[derive(Serialize, Deserialize)]
struct ProgramMessage {
    number: u64,
    inputs: Vec<PortMessage>,
    outputs: Vec<PortMessage>,
}

#[derive(Serialize, Deserialize)]
struct PortMessage {
    name: String,
    dtype: i32,
    dims: Option<Vec<Option<usize>>>,
}

/// Message with the costs of a run.
#[derive(Serialize, Deserialize)]
struct RunMessage {
    busy: Duration,
    energy: Option<Energy>,
    operators: u64,
    engine: Engine,
}

impl SubprocessDevice {
    /// Starts a process, which must run [`serve_parent`], and asks it for its device. Dropping the
    /// device ends the process.
    ///
    /// # Errors
    /// [`SubprocessError`] if the process does not start or does not answer with a profile.
    pub fn start(mut command: Command) -> Result<Self, SubprocessError> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (to, from) = to.zip(from).expect("both were asked for");
        let mut ends = ChildEnds {
            child,
            to: BufWriter::new(to),
            from: BufReader::new(from),
        };
        let (_, fields) = ends.send_request(Kind::Profile, &[])?;
        let told = fields.first().map(|field| serde_json::from_slice(field));
        let Some(Ok(DeviceMessage { profile, cores })) = told else {
            return Err(SubprocessError::Profile);
        };
        let channel = Arc::new(Channel {
            device: profile.name.clone(),
            ends: Mutex::new(ends),
        });
        Ok(Self {
            profile,
            cores,
            channel,
        })
    }
}

impl ChildEnds {
    fn send_request(&mut self, kind: Kind, fields: &[Field<'_>]) -> io::Result<(Kind, Vec<Bytes>)> {
        write_frame(&mut self.to, kind, fields)?;
        read_frame(&mut self.from)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for ChildEnds {
    fn drop(&mut self) {
        // The process can be in a long run that no caller waits for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Channel {
    fn lock_ends(&self) -> MutexGuard<'_, ChildEnds> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device_lost_error(&self) -> RunError {
        RunError::DeviceLost {
            device: self.device.clone(),
        }
    }
}

impl Processor for SubprocessDevice {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn check_support(&self, node: &NodeProto) -> Result<(), Unsupported> {
        let model = onnx::encode_model(&ModelProto {
            ir_version: Some(IR_VERSION),
            graph: Some(GraphProto {
                node: vec![node.clone()],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        });
        let refused = |reason| Err(Unsupported::new(node, UnsupportedReason::Engine(reason)));
        match self
            .channel
            .lock_ends()
            .send_request(Kind::Supports, &[new_field(&model)])
        {
            Ok((Kind::Done, _)) => Ok(()),
            Ok((_, fields)) => refused(error_text(&fields)),
            Err(error) => refused(error.to_string()),
        }
    }

    fn estimate(&self, work: &Work) -> Estimate {
        Estimate::for_work(work, &self.profile)
    }

    fn compile(&self, subgraph: &Subgraph) -> Result<Box<dyn Program>, CompileError> {
        let ids: Vec<String> = subgraph.weights.keys().map(ToString::to_string).collect();
        let mut fields = vec![new_field(&subgraph.model)];
        for (id, values) in ids.iter().zip(subgraph.weights.values()) {
            fields.extend([new_field(id.as_bytes()), new_field(values)]);
        }
        let refused = |reason| CompileError::Engine {
            engine: ENGINE,
            reason,
        };
        let asked = self
            .channel
            .lock_ends()
            .send_request(Kind::Compile, &fields);
        let (kind, fields) = asked.map_err(|_| CompileError::DeviceLost {
            device: self.profile.name.clone(),
        })?;
        let told = fields.first().map(|field| serde_json::from_slice(field));
        let (
            Kind::Done,
            Some(Ok(ProgramMessage {
                number,
                inputs,
                outputs,
            })),
        ) = (kind, told)
        else {
            return Err(refused(error_text(&fields)));
        };
        let ports = |told: Vec<PortMessage>| -> Result<Vec<Port>, CompileError> {
            told.into_iter().map(PortMessage::into_port).collect()
        };
        Ok(Box::new(SubprocessProgram {
            channel: self.channel.clone(),
            number,
            inputs: ports(inputs)?,
            outputs: ports(outputs)?,
        }))
    }

    fn memory_free_bytes(&self) -> u64 {
        self.profile.memory.bytes
    }

    fn utilisation(&self) -> f64 {
        0.0
    }

    fn meter_joules(&self) -> Option<f64> {
        None
    }

    fn host_cores(&self) -> usize {
        self.cores
    }
}

impl Program for SubprocessProgram {
    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    fn run(&self, inputs: &BTreeMap<String, Tensor>) -> Result<Outcome, RunError> {
        check_inputs(&self.inputs, inputs)?;
        let number = self.number.to_le_bytes();
        let heads: Vec<Vec<u8>> = inputs.values().map(Tensor::blob_header).collect();
        let mut fields = vec![new_field(&number)];
        for ((name, tensor), head) in inputs.iter().zip(&heads) {
            fields.extend([new_field(name.as_bytes()), [head, tensor.bytes()]]);
        }
        let answer = self.channel.lock_ends().send_request(Kind::Run, &fields);
        let (kind, fields) = answer.map_err(|_| self.channel.device_lost_error())?;
        match kind {
            Kind::Done => decode_outcome(&fields).ok_or_else(|| self.channel.device_lost_error()),
            Kind::Refused => Err(RunError::Operator {
                operator: "subgraph".to_owned(),
                node: String::new(),
                reason: error_text(&fields),
            }),
            _ => Err(RunError::Engine {
                engine: ENGINE,
                reason: error_text(&fields),
            }),
        }
    }
}

impl Drop for SubprocessProgram {
    fn drop(&mut self) {
        // If the process has ended, it has nothing to forget.
        let number = self.number.to_le_bytes();
        let _ = self
            .channel
            .lock_ends()
            .send_request(Kind::Forget, &[new_field(&number)]);
    }
}

impl PortMessage {
    fn from_port(port: &Port) -> Self {
        Self {
            name: port.name.clone(),
            dtype: port.dtype.onnx_code(),
            dims: port.dims.clone(),
        }
    }

    fn into_port(self) -> Result<Port, CompileError> {
        let dtype = DType::from_onnx_code(self.dtype);
        match dtype {
            Ok(dtype) => Ok(Port {
                name: self.name,
                dtype,
                dims: self.dims,
            }),
            Err(_) => Err(CompileError::Port { name: self.name }),
        }
    }
}

fn error_text(fields: &[Bytes]) -> String {
    let said = fields
        .first()
        .map(|field| String::from_utf8_lossy(field).into_owned());
    said.unwrap_or_else(|| "it did not say why".to_owned())
}

/// Decodes the tensors of a frame, a name and a blob each, without a copy of their elements.
fn decode_tensors(fields: &[Bytes]) -> Option<BTreeMap<String, Tensor>> {
    let mut tensors = BTreeMap::new();
    for pair in fields.chunks(2) {
        let [name, blob] = pair else {
            return None;
        };
        let name = String::from_utf8(name.to_vec()).ok()?;
        tensors.insert(name, Tensor::from_blob(blob).ok()?);
    }
    Some(tensors)
}

fn decode_outcome(fields: &[Bytes]) -> Option<Outcome> {
    let (took, given) = fields.split_first()?;
    let took: RunMessage = serde_json::from_slice(took).ok()?;
    Some(Outcome {
        outputs: decode_tensors(given)?,
        busy: took.busy,
        energy: took.energy,
        operators: took.operators,
        engine: took.engine,
    })
}

/// Serves the parent process: answers requests from `from` on `to` until the parent ends.
///
/// # Errors
/// The system's error at either end, or an error for a malformed frame.
pub fn serve_parent(processor: &dyn Processor, from: impl Read, to: impl Write) -> io::Result<()> {
    let (mut from, mut to) = (BufReader::new(from), BufWriter::new(to));
    let mut programs: BTreeMap<u64, Box<dyn Program>> = BTreeMap::new();
    let mut made = 0;
    while let Some((kind, fields)) = read_frame(&mut from)? {
        match kind {
            Kind::Profile => {
                let told = serde_json::to_vec(&DeviceMessage {
                    profile: processor.profile().clone(),
                    cores: processor.host_cores(),
                })?;
                write_frame(&mut to, Kind::Done, &[new_field(&told)])?;
            }
            Kind::Supports => match check_support(processor, &fields) {
                Ok(()) => write_frame(&mut to, Kind::Done, &[])?,
                Err(reason) => {
                    write_frame(&mut to, Kind::Refused, &[new_field(reason.as_bytes())])?
                }
            },
            Kind::Compile if programs.len() >= PROGRAMS_MAX => {
                write_frame(
                    &mut to,
                    Kind::Refused,
                    &[new_field(b"it holds as many programs as it may")],
                )?;
            }
            Kind::Compile => match compile_program(processor, &fields) {
                Ok(program) => {
                    made += 1;
                    let told = describe_program(&*program, made);
                    programs.insert(made, program);
                    write_frame(
                        &mut to,
                        Kind::Done,
                        &[new_field(&serde_json::to_vec(&told)?)],
                    )?;
                }
                Err(reason) => {
                    write_frame(&mut to, Kind::Refused, &[new_field(reason.as_bytes())])?
                }
            },
            Kind::Run => run(&programs, &fields, &mut to)?,
            Kind::Forget => {
                programs.remove(&decode_number(&fields)?);
                write_frame(&mut to, Kind::Done, &[])?;
            }
            Kind::Done | Kind::Refused | Kind::Failed => return Err(malformed_error()),
        }
    }
    Ok(())
}

fn decode_number(fields: &[Bytes]) -> io::Result<u64> {
    let field = fields.first().ok_or_else(malformed_error)?;
    let bytes = field[..].try_into().map_err(|_| malformed_error())?;
    Ok(u64::from_le_bytes(bytes))
}

fn check_support(processor: &dyn Processor, fields: &[Bytes]) -> Result<(), String> {
    let model = fields.first().cloned().unwrap_or_default();
    let model = onnx::decode_model(model).map_err(|error| error.to_string())?;
    let mut nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.try_for_each(|node| {
        processor
            .check_support(node)
            .map_err(|error| error.to_string())
    })
}

fn compile_program(
    processor: &dyn Processor,
    fields: &[Bytes],
) -> Result<Box<dyn Program>, String> {
    let (model, rest) = fields.split_first().ok_or("there is no model")?;
    let mut weights = BTreeMap::new();
    for pair in rest.chunks(2) {
        let [id, values] = pair else {
            return Err("a weight has no values".to_owned());
        };
        let id = String::from_utf8_lossy(id);
        let id: ContentId = id.parse().map_err(|_| format!("{id} is no content id"))?;
        weights.insert(id, values.clone());
    }
    let subgraph = Subgraph {
        model: model.clone(),
        weights,
    };
    processor
        .compile(&subgraph)
        .map_err(|error| error.to_string())
}

fn describe_program(program: &dyn Program, number: u64) -> ProgramMessage {
    let ports = |ports: &[Port]| ports.iter().map(PortMessage::from_port).collect();
    ProgramMessage {
        number,
        inputs: ports(program.inputs()),
        outputs: ports(program.outputs()),
    }
}

fn run(
    programs: &BTreeMap<u64, Box<dyn Program>>,
    fields: &[Bytes],
    to: &mut impl Write,
) -> io::Result<()> {
    let program = programs
        .get(&decode_number(fields)?)
        .ok_or_else(malformed_error)?;
    let inputs = decode_tensors(&fields[1..]).ok_or_else(malformed_error)?;
    let outcome = match program.run(&inputs) {
        Ok(outcome) => outcome,
        Err(error) => {
            let kind = match error {
                RunError::Operator { .. } | RunError::IntegerRange { .. } => Kind::Refused,
                _ => Kind::Failed,
            };
            return write_frame(to, kind, &[new_field(error.to_string().as_bytes())]);
        }
    };
    let took = serde_json::to_vec(&RunMessage {
        busy: outcome.busy,
        energy: outcome.energy,
        operators: outcome.operators,
        engine: outcome.engine,
    })?;
    let heads: Vec<Vec<u8>> = outcome.outputs.values().map(Tensor::blob_header).collect();
    let mut answer = vec![new_field(&took)];
    for ((name, tensor), head) in outcome.outputs.iter().zip(&heads) {
        answer.extend([new_field(name.as_bytes()), [head, tensor.bytes()]]);
    }
    write_frame(to, Kind::Done, &answer)
}
