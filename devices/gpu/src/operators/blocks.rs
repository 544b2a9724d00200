//! Records the kernels of `DepthToSpace` and `SpaceToDepth`, which turn blocks of an image into
//! channels and back, as a transpose between two shapes.

use souk_reference::call::KernelError;

use crate::error::GpuError;
use crate::operators::layout::permute_axes;
use crate::recording::{Array, Step};

/// Records `DepthToSpace` or `SpaceToDepth` as a transpose between two shapes. The block size must
/// divide the sides of the image, or its square the channels.
pub(crate) fn rearrange_blocks(step: &mut Step<'_, '_>) -> Result<Vec<Array>, GpuError> {
    let input = step.native_array(0)?;
    let &[n, c, h, w] = &input.dims[..] else {
        return Err(KernelError::Range(0).into());
    };
    let block = step.call.int_attribute("blocksize", 1).max(1) as usize;
    let to_space = step.call.node.op_type() == "DepthToSpace";
    let fits = if to_space {
        c.is_multiple_of(block * block)
    } else {
        h.is_multiple_of(block) && w.is_multiple_of(block)
    };
    if !fits {
        return Err(KernelError::Attribute("blocksize").into());
    }
    let (shape, order, dims) = if !to_space {
        let shape = vec![n, c, h / block, block, w / block, block];
        let dims = vec![n, c * block * block, h / block, w / block];
        let order = match step.call.text_attribute("mode", "DCR") {
            "CRD" => [0, 1, 3, 5, 2, 4],
            _ => [0, 3, 5, 1, 2, 4],
        };
        (shape, order, dims)
    } else {
        let depth = c / (block * block);
        let dims = vec![n, depth, h * block, w * block];
        match step.call.text_attribute("mode", "DCR") {
            "CRD" => (vec![n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3], dims),
            _ => (vec![n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2], dims),
        }
    };
    let moved = permute_axes(step, &input.with_dims(shape), &order)?;
    Ok(vec![moved.with_dims(dims)])
}
