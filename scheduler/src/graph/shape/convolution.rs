//! Infers the outputs of convolutions and poolings: extents from kernel, stride, dilation and
//! padding.

use souk_onnx::DataType;

use super::operation::{Inference, to_extent};
use super::{Dims, Fact, Operation, ShapeFault};

/// Sizes of a sliding window over the spatial axes.
pub(crate) struct Window {
    pub(crate) kernel: Vec<u64>,
    pub(crate) strides: Vec<u64>,
    dilations: Vec<u64>,
    begin: Vec<i64>,
    end: Vec<i64>,
    same: bool,
    ceil: bool,
}

impl Window {
    /// Returns the window of `operation` with a kernel of `kernel`; `None` if an attribute is
    /// malformed.
    pub(crate) fn new(operation: &Operation<'_>, kernel: Vec<u64>) -> Option<Self> {
        let axes = kernel.len();
        let list = |name: &str, default: i64| match operation.node.ints(name) {
            Some(ints) if !ints.is_empty() => ints.to_vec(),
            _ => vec![default; axes],
        };
        let positive = |name: &str| -> Option<Vec<u64>> {
            let ints = list(name, 1);
            ints.iter()
                .map(|&int| u64::try_from(int).ok().filter(|&int| int > 0))
                .collect()
        };
        let padding = operation.node.string("auto_pad").unwrap_or("NOTSET");
        let explicit = padding == "NOTSET" || padding.is_empty();
        let pads = match operation.node.ints("pads") {
            Some(pads) if explicit && !pads.is_empty() => pads.to_vec(),
            _ => vec![0; 2 * axes],
        };
        let window = Self {
            strides: positive("strides")?,
            dilations: positive("dilations")?,
            begin: pads.get(..axes)?.to_vec(),
            end: pads.get(axes..)?.to_vec(),
            same: padding.starts_with("SAME"),
            ceil: operation.int_or("ceil_mode", 0) != 0,
            kernel,
        };
        let lengths = [
            window.strides.len(),
            window.dilations.len(),
            window.end.len(),
        ];
        lengths
            .iter()
            .all(|&length| length == axes)
            .then_some(window)
    }

    /// Returns the extent of the input that one position of the window covers.
    fn reach(&self, axis: usize) -> u64 {
        let gaps = self.kernel[axis].saturating_sub(1);
        self.dilations[axis].saturating_mul(gaps).saturating_add(1)
    }

    /// Returns the extent of the output along spatial axis `axis` for an input of `size`.
    fn output_extent(&self, axis: usize, size: u64) -> Result<Option<u64>, ShapeFault> {
        let stride = self.strides[axis];
        if self.same {
            return Ok(Some(size.div_ceil(stride)));
        }
        let reach = self.reach(axis);
        let [size, reach, stride] =
            [size, reach, stride].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let padded = size
            .saturating_add(self.begin[axis])
            .saturating_add(self.end[axis]);
        let room = padded.saturating_sub(reach);
        if room < 0 {
            let extent = room.saturating_add(1);
            return Err(ShapeFault::Negative {
                axis: axis + 2,
                extent,
            });
        }
        let mut steps = if self.ceil {
            room.div_euclid(stride) + i64::from(room % stride != 0)
        } else {
            room / stride
        };
        // A window must not start in the padding after the input.
        if self.ceil && steps.saturating_mul(stride) >= size.saturating_add(self.begin[axis]) {
            steps -= 1;
        }
        to_extent(steps.saturating_add(1), axis + 2)
    }

    /// Returns the extent of the output of the transposed form.
    fn transposed_extent(
        &self,
        axis: usize,
        size: u64,
        extra: i64,
    ) -> Result<Option<u64>, ShapeFault> {
        let stride = self.strides[axis];
        if self.same {
            return Ok(Some(size.saturating_mul(stride)));
        }
        let grown = stride
            .saturating_mul(size.saturating_sub(1))
            .saturating_add(self.reach(axis));
        let grown = i64::try_from(grown).unwrap_or(i64::MAX);
        let extent = grown
            .saturating_add(extra)
            .saturating_sub(self.begin[axis])
            .saturating_sub(self.end[axis]);
        to_extent(extent, axis + 2)
    }
}

/// Returns the spatial extents of the kernel: from the attribute, or from the weights.
pub(crate) fn kernel_of(operation: &Operation<'_>, weights: usize) -> Option<Vec<u64>> {
    if let Some(kernel) = operation
        .node
        .ints("kernel_shape")
        .filter(|kernel| !kernel.is_empty())
    {
        return kernel
            .iter()
            .map(|&size| u64::try_from(size).ok())
            .collect();
    }
    operation
        .input_dims(weights)?
        .get(2..)?
        .iter()
        .copied()
        .collect()
}

/// Infers `Conv` and its quantised forms: `data` and `weights` are input indices.
pub(super) fn infer_convolution(
    operation: &Operation<'_>,
    data: usize,
    weights: usize,
) -> Inference {
    let elem = operation.result_elem();
    let input = operation.dims_of_rank(data, 2)?;
    let kernels = operation.dims_of_rank(weights, 2)?;
    let Some((input, kernels)) = input.zip(kernels) else {
        return Operation::single_output(elem, None);
    };
    let groups = u64::try_from(operation.int_or("group", 1)).unwrap_or(1);
    if let (Some(found), Some(each)) = (input[1], kernels[1])
        && found != each.saturating_mul(groups)
    {
        let expected = each.saturating_mul(groups);
        return Err(ShapeFault::Channels { expected, found });
    }
    let mut dims: Dims = vec![input[0], kernels[0]];
    dims.extend(spatial_dims(
        operation,
        &input[2..],
        kernel_of(operation, weights),
    )?);
    Operation::single_output(elem, Some(dims))
}

fn spatial_dims(
    operation: &Operation<'_>,
    sizes: &[Option<u64>],
    kernel: Option<Vec<u64>>,
) -> Result<Dims, ShapeFault> {
    let window = kernel.and_then(|kernel| Window::new(operation, kernel));
    let Some(window) = window.filter(|window| window.kernel.len() == sizes.len()) else {
        return Ok(vec![None; sizes.len()]);
    };
    let slide = |(axis, size): (usize, &Option<u64>)| match size {
        Some(size) => window.output_extent(axis, *size),
        None => Ok(None),
    };
    sizes.iter().enumerate().map(slide).collect()
}

/// Infers `ConvTranspose`.
pub(super) fn infer_conv_transpose(operation: &Operation<'_>) -> Inference {
    let input = operation.dims_of_rank(0, 2)?;
    let kernels = operation.dims_of_rank(1, 2)?;
    let elem = operation.input_elem(0);
    let Some((input, kernels)) = input.zip(kernels) else {
        return Operation::single_output(elem, None);
    };
    let groups = u64::try_from(operation.int_or("group", 1)).unwrap_or(1);
    let mut dims: Dims = vec![input[0], kernels[1].map(|each| each.saturating_mul(groups))];
    let stated = operation
        .node
        .ints("output_shape")
        .filter(|shape| !shape.is_empty());
    if let Some(stated) = stated {
        let spatial = stated.len().saturating_sub(input.len() - 2);
        dims.extend(
            stated[spatial..]
                .iter()
                .map(|&size| u64::try_from(size).ok()),
        );
        return Operation::single_output(elem, Some(dims));
    }
    let window = kernel_of(operation, 1).and_then(|kernel| Window::new(operation, kernel));
    let Some(window) = window.filter(|window| window.kernel.len() == input.len() - 2) else {
        dims.resize(input.len(), None);
        return Operation::single_output(elem, Some(dims));
    };
    let extra = operation.node.ints("output_padding").unwrap_or(&[]);
    for (axis, size) in input[2..].iter().enumerate() {
        let extra = extra.get(axis).copied().unwrap_or(0);
        dims.push(match size {
            Some(size) => window.transposed_extent(axis, *size, extra)?,
            None => None,
        });
    }
    Operation::single_output(elem, Some(dims))
}

/// Infers `MaxPool`, `AveragePool` and `LpPool`: a window without weights; `MaxPool` can return
/// indices too.
pub(super) fn infer_pool(operation: &Operation<'_>) -> Inference {
    let Some(input) = operation.dims_of_rank(0, 3)? else {
        return Operation::single_output(operation.input_elem(0), None);
    };
    let mut dims: Dims = vec![input[0], input[1]];
    dims.extend(spatial_dims(
        operation,
        &input[2..],
        kernel_of(operation, usize::MAX),
    )?);
    let mut facts = Operation::single_output(operation.input_elem(0), Some(dims.clone()))?;
    facts.push(Fact::new_tensor(Some(DataType::Int64), dims));
    Ok(facts)
}

/// Infers `GlobalAveragePool` and similar operators: spatial extents become 1.
pub(super) fn global_pool(operation: &Operation<'_>) -> Inference {
    let dims = operation.dims_of_rank(0, 2)?.map(|input| {
        let places = input.iter().enumerate();
        places
            .map(|(axis, dim)| if axis < 2 { *dim } else { Some(1) })
            .collect()
    });
    Operation::single_output(operation.input_elem(0), dims)
}

/// Infers `MaxUnpool`: the inverse window, or the extents in the third input.
pub(super) fn infer_unpool(operation: &Operation<'_>) -> Inference {
    let elem = operation.input_elem(0);
    if operation.has_input(2) {
        let dims = operation
            .input_ints(2)
            .map(|ints| ints.iter().map(|&int| u64::try_from(int).ok()).collect());
        return Operation::single_output(elem, dims);
    }
    let Some(input) = operation.dims_of_rank(0, 3)? else {
        return Operation::single_output(elem, None);
    };
    let mut dims: Dims = vec![input[0], input[1]];
    let kernel = kernel_of(operation, usize::MAX);
    match kernel.and_then(|kernel| Window::new(operation, kernel)) {
        Some(window) if window.kernel.len() == input.len() - 2 => {
            for (axis, size) in input[2..].iter().enumerate() {
                dims.push(match size {
                    Some(size) => window.transposed_extent(axis, *size, 0)?,
                    None => None,
                });
            }
        }
        _ => dims.resize(input.len(), None),
    }
    Operation::single_output(elem, Some(dims))
}

/// Infers `MaxRoiPool` and `RoiAlign`: one output for each region.
pub(super) fn regions(operation: &Operation<'_>, sizes: Option<[i64; 2]>) -> Inference {
    let channels = operation.dims_of_rank(0, 2)?.and_then(|dims| dims[1]);
    let count = operation.dims_of_rank(1, 1)?.and_then(|dims| dims[0]);
    let [height, width] = sizes.map_or([None; 2], |sizes| {
        sizes.map(|size| u64::try_from(size).ok())
    });
    Operation::single_output(
        operation.input_elem(0),
        Some(vec![count, channels, height, width]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_any_numbers_have_an_extent_or_a_fault() {
        let strides = [1, 3, 1 << 62, (1 << 62) + 1, i64::MAX.unsigned_abs()];
        let kernels = [0, 1, 4, i64::MAX.unsigned_abs(), u64::MAX];
        let pads = [0, 5, i64::MAX, -1, i64::MIN];
        for (stride, kernel) in strides
            .iter()
            .flat_map(|it| kernels.map(|kernel| (*it, kernel)))
        {
            for (begin, end) in pads.iter().flat_map(|it| pads.map(|end| (*it, end))) {
                for ceil in [false, true] {
                    let window = Window {
                        kernel: vec![kernel],
                        strides: vec![stride],
                        dilations: vec![stride],
                        begin: vec![begin],
                        end: vec![end],
                        same: false,
                        ceil,
                    };
                    for size in [0, 1, u64::MAX] {
                        let _ = window.output_extent(0, size);
                        let _ = window.transposed_extent(0, size, begin);
                    }
                }
            }
        }
        let window = Window {
            kernel: vec![3],
            strides: vec![2],
            dilations: vec![1],
            begin: vec![1],
            end: vec![1],
            same: false,
            ceil: true,
        };
        assert_eq!(window.output_extent(0, 6).unwrap(), Some(4));
        assert_eq!(window.transposed_extent(0, 6, 0).unwrap(), Some(11));
    }
}
