//! Checks and records nodes whose kernels a buyer wrote in WGSL.
//!
//! The kernel is the node's first input. Group 0 holds the tensors from binding 0 on, as read-only
//! arrays of 32-bit words, and after them the outputs, filled with zeros, as writable ones; the
//! entry is `main`. The attribute `groups` sets the number of workgroups; without it, the kernel
//! runs with 64 threads or more for each 64 elements of the first output. naga validates it and
//! bounds arrays and loops.

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::custom::{self, Custom};
use souk_onnx::graph::Graph;
use souk_onnx::subgraph::UnsupportedReason;
use souk_reference::call::KernelError;
use wgpu::naga::{self, AddressSpace, StorageAccess};

use crate::context::Context;
use crate::driver::{Launch, Stretch};
use crate::error::GpuError;
use crate::recording::{Array, Groups, Step};

/// Upper bound on the bytes of a source: beyond any kernel written by hand, well below the size
/// that overloads a compiler.
pub(crate) const SOURCE_BYTES_MAX: usize = 256 << 10;

/// Returns whether a node's kernel is WGSL that a buyer wrote.
pub(crate) fn is_kernel(node: &NodeProto) -> bool {
    Custom::from_node(node) == Some(Custom::Wgsl)
}

/// Checks that a node can run: its kernel compiles, and its inputs and outputs are 32-bit words.
pub(crate) fn check_kernel(
    context: &Context,
    graph: &Graph,
    node: &NodeProto,
) -> Result<(), UnsupportedReason> {
    let refused = |reason: String| UnsupportedReason::Engine(reason);
    let source =
        custom::source(node, &graph.weights).map_err(|error| refused(error.to_string()))?;
    let shapes = custom::output_shapes(node).map_err(|error| refused(error.to_string()))?;
    if shapes.is_none() {
        return Err(UnsupportedReason::Attribute("output_shapes"));
    }
    let outputs = custom::output_types(node).map_err(|error| refused(error.to_string()))?;
    let inputs = node.input.iter().skip(1).map(|name| graph.dtypes.get(name));
    for dtype in inputs.chain(outputs.iter().map(Some)) {
        match dtype {
            Some(DType::F32 | DType::I32) => {}
            Some(dtype) => return Err(UnsupportedReason::DType(*dtype)),
            None => return Err(UnsupportedReason::UnknownDType),
        }
    }
    if groups_stated(node).is_err() {
        return Err(UnsupportedReason::Attribute("groups"));
    }
    let source = source_text(source).map_err(|error| refused(error.to_string()))?;
    let compiled = context.pipeline_for(source);
    compiled.map_err(|error| refused(error.to_string()))?;
    let inputs = (node.input.len() as u32).saturating_sub(1);
    match written_input(source, inputs).map_err(refused)? {
        Some(binding) => {
            let reason = format!("binding {binding} is an input, and would be written into");
            Err(refused(reason))
        }
        None => Ok(()),
    }
}

/// Returns the first of this many inputs that a kernel can write to: others can read it as well.
fn written_input(source: &str, inputs: u32) -> Result<Option<u32>, String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|error| error.to_string())?;
    let written = module.global_variables.iter().filter_map(|(_, variable)| {
        let AddressSpace::Storage { access } = variable.space else {
            return None;
        };
        let binding = variable.binding.as_ref()?.binding;
        (access.contains(StorageAccess::STORE) && binding < inputs).then_some(binding)
    });
    Ok(written.min())
}

fn source_text(source: &Tensor) -> Result<&str, GpuError> {
    let bytes = source.bytes();
    if bytes.len() > SOURCE_BYTES_MAX {
        let reason = format!(
            "it has {} bytes, {SOURCE_BYTES_MAX} are allowed",
            bytes.len()
        );
        return Err(GpuError::Kernel(reason));
    }
    std::str::from_utf8(bytes).map_err(|error| GpuError::Kernel(error.to_string()))
}

/// Returns the workgroups that the node states, if any; up to three sizes.
fn groups_stated(node: &NodeProto) -> Result<Option<[usize; 3]>, KernelError> {
    let Some(stated) = node.ints("groups") else {
        return Ok(None);
    };
    let wrong = KernelError::Attribute("groups");
    if stated.len() > 3 {
        return Err(wrong);
    }
    let mut groups = [1; 3];
    for (group, stated) in groups.iter_mut().zip(stated) {
        *group = usize::try_from(*stated).map_err(|_| wrong.clone())?;
    }
    Ok(Some(groups))
}

/// Records the kernel of a node.
pub(crate) fn record_kernel(
    step: &mut Step<'_, '_>,
    graph: &Graph,
) -> Result<Vec<Array>, GpuError> {
    let node = step.call.node;
    let wrong = |_| KernelError::Attribute("output_shapes");
    let types = custom::output_types(node).map_err(|_| KernelError::Attribute("output_types"))?;
    let mut arrays = Vec::new();
    for index in 1..node.input.len() {
        arrays.push(step.wide_array(index)?);
    }
    let given: Vec<&[usize]> = arrays.iter().map(|array| &array.dims[..]).collect();
    let shapes = custom::output_dims(node, &given).map_err(wrong)?;
    let shapes = shapes.ok_or(KernelError::Attribute("output_shapes"))?;
    let mut outputs = Vec::with_capacity(shapes.len());
    for (dims, dtype) in shapes.iter().zip(types) {
        let count = souk_reference::shape::element_count(dims)?;
        let bytes = count
            .checked_mul(4)
            .filter(|&it| it as u64 <= step.stream.context.bytes_max);
        let bytes = bytes.ok_or(KernelError::TooLarge(count as u128))?;
        // Clear the output, because a kernel must not see the data of another run.
        outputs.push(step.stream.upload_words(dtype, dims, &vec![0; bytes])?);
    }
    let groups = match groups_stated(node)? {
        Some(grid) => Groups::Grid(grid),
        None => Groups::Threads(outputs.first().map_or(0, Array::count)),
    };
    let Some(groups) = groups.workgroup_grid()? else {
        return Ok(outputs);
    };
    let source = custom::source(node, &graph.weights).map_err(|_| KernelError::Missing(0))?;
    let stretch = |array: &Array| Stretch {
        length: 4 * array.count() as u64,
        ..array.buffer.get().as_stretch()
    };
    let launch = Launch::Kernel {
        pipeline: step.stream.context.pipeline_for(source_text(source)?)?,
        arrays: arrays.iter().chain(&outputs).map(stretch).collect(),
        groups,
    };
    step.stream.record_launch(launch);
    Ok(outputs)
}
