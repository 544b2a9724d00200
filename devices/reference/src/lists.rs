//! Computes the operators on lists of tensors (ONNX sequences), for models that create lists during
//! a run.
//!
//! A list is one tensor of its elements' type: the number of tensors, their shapes, and then their
//! elements. So loops, conditions and engines handle it like any other value, and the type of its
//! elements is known beforehand. If the length of a list is known beforehand, souk already replaces
//! the list with its tensors when it loads the model, so these kernels do not see it.

use souk_memory::{DType, Shape, Tensor};
use souk_onnx::DataType;

use super::call::{Call, KernelError, Results, resolve_axis};
use super::control::{Body, stack_tensors};
use super::layout::{concat_along, slice_along, to_sizes};
use super::shape::element_count;
use super::value::{element_bytes, to_indices};

/// The first word of a list.
const MARK: u64 = u64::from_le_bytes(*b"souklist");
/// Bytes of a number in the header of a list.
const WORD: usize = 8;
/// Elements begin at a multiple of this many bytes, which suits every type.
const ALIGNED: usize = 16;
/// A list can hold at most this many tensors.
const LENGTH_MAX: u64 = 1 << 20;
/// Such a tensor can have at most this many dimensions.
const RANK_MAX: u64 = 64;

/// Packs a list, whose tensors must all have the type `dtype`, into one tensor.
fn pack_list(dtype: DType, list: &[Tensor]) -> Result<Tensor, KernelError> {
    let width = dtype.byte_width().ok_or(KernelError::DType(dtype))?;
    let mut words = vec![MARK, list.len() as u64];
    for tensor in list {
        if tensor.dtype() != dtype {
            return Err(KernelError::DType(tensor.dtype()));
        }
        words.push(tensor.dims().len() as u64);
        words.extend(tensor.dims().iter().map(|&size| size as u64));
    }
    let mut bytes = Vec::new();
    for word in words {
        add_word(dtype, word, &mut bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNED), 0);
    for tensor in list {
        bytes.extend_from_slice(tensor.bytes());
    }
    let length = element_count(&[bytes.len() / width])?;
    Ok(Tensor::new(dtype, Shape::new([length])?, bytes.into())?)
}

/// Adds a word to the header. A boolean tensor stores each bit as a byte, because its bytes must be
/// 0 or 1.
fn add_word(dtype: DType, word: u64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::Bool => bytes.extend((0..u64::BITS).map(|bit| (word >> bit & 1) as u8)),
        _ => bytes.extend(word.to_le_bytes()),
    }
}

/// Reads the words of a list's header.
struct Words<'a> {
    is_bits: bool,
    bytes: &'a [u8],
    at: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let width = if self.is_bits { 64 } else { WORD };
        let word = self.bytes.get(self.at..self.at + width)?;
        self.at += width;
        Some(match self.is_bits {
            true => (0..)
                .zip(word)
                .map(|(bit, &byte)| u64::from(byte & 1) << bit)
                .sum(),
            false => u64::from_le_bytes(word.try_into().ok()?),
        })
    }

    fn next_below(&mut self, end: u64) -> Option<usize> {
        let word = self.next().filter(|word| *word < end)?;
        usize::try_from(word).ok()
    }
}

/// Unpacks the tensors of a list; returns `None` if the tensor is not a list.
fn unpack_list(list: &Tensor) -> Option<Vec<Tensor>> {
    let width = list.dtype().byte_width()?;
    let mut words = Words {
        is_bits: list.dtype() == DType::Bool,
        bytes: list.bytes(),
        at: 0,
    };
    if list.dims().len() != 1 || words.next()? != MARK {
        return None;
    }
    let length = words.next_below(LENGTH_MAX)?;
    let mut shapes = Vec::new();
    for _ in 0..length {
        let rank = words.next_below(RANK_MAX)?;
        let dims = (0..rank).map(|_| words.next_below(u64::MAX));
        shapes.push(dims.collect::<Option<Vec<usize>>>()?);
    }
    let mut at = words.at.next_multiple_of(ALIGNED);
    let mut tensors = Vec::with_capacity(shapes.len());
    for dims in shapes {
        let end = at.checked_add(element_count(&dims).ok()?.checked_mul(width)?)?;
        if end > list.bytes().len() {
            return None;
        }
        let bytes = list.bytes().slice(at..end);
        tensors.push(Tensor::new(list.dtype(), Shape::new(dims).ok()?, bytes).ok()?);
        at = end;
    }
    Some(tensors)
}

/// Returns an input that must be a list.
fn list_input(call: &Call<'_>, index: usize) -> Result<Vec<Tensor>, KernelError> {
    unpack_list(call.input(index)?).ok_or(KernelError::NoList(index))
}

/// Returns the index that an input states in a list of `length`, counted from either end, if it is
/// below `end`; `default` if the input is absent.
fn list_index(
    call: &Call<'_>,
    index: usize,
    length: usize,
    end: usize,
    default: usize,
) -> Result<usize, KernelError> {
    let Some(stated) = call.optional_scalar_int(index)? else {
        return Ok(default);
    };
    let place = if stated < 0 {
        stated.saturating_add(length as i64)
    } else {
        stated
    };
    let place = usize::try_from(place).ok().filter(|place| *place < end);
    place.ok_or(KernelError::Range(index))
}

pub(super) fn sequence_empty(call: &Call<'_>) -> Results {
    let code = call.int_attribute("dtype", i64::from(DataType::Float as i32));
    let code = i32::try_from(code).map_err(|_| KernelError::Attribute("dtype"))?;
    let dtype = DType::from_onnx_code(code).map_err(|_| KernelError::Attribute("dtype"))?;
    Ok(vec![pack_list(dtype, &[])?])
}

pub(super) fn sequence_construct(call: &Call<'_>) -> Results {
    let list: Result<Vec<Tensor>, _> = (0..call.inputs.len())
        .map(|index| call.input(index).cloned())
        .collect();
    Ok(vec![pack_list(call.input(0)?.dtype(), &list?)?])
}

pub(super) fn sequence_insert(call: &Call<'_>) -> Results {
    let mut list = list_input(call, 0)?;
    let new = call.input(1)?.clone();
    let at = list_index(call, 2, list.len(), list.len() + 1, list.len())?;
    // An empty list can have been declared with another type.
    let dtype = new.dtype();
    list.insert(at, new);
    Ok(vec![pack_list(dtype, &list)?])
}

pub(super) fn sequence_erase(call: &Call<'_>) -> Results {
    let mut list = list_input(call, 0)?;
    let last = list.len().checked_sub(1).ok_or(KernelError::Range(0))?;
    list.remove(list_index(call, 1, list.len(), list.len(), last)?);
    Ok(vec![pack_list(call.input(0)?.dtype(), &list)?])
}

pub(super) fn sequence_at(call: &Call<'_>) -> Results {
    let list = list_input(call, 0)?;
    call.input(1)?;
    let at = list_index(call, 1, list.len(), list.len(), 0)?;
    Ok(vec![list[at].clone()])
}

pub(super) fn sequence_length(call: &Call<'_>) -> Results {
    Ok(vec![Tensor::scalar(list_input(call, 0)?.len() as i64)])
}

pub(super) fn concat_from_sequence(call: &Call<'_>) -> Results {
    let list = list_input(call, 0)?;
    let first = list.first().ok_or(KernelError::Range(0))?;
    let stated = call
        .node
        .int("axis")
        .ok_or(KernelError::Attribute("axis"))?;
    if call.is_flag_set("new_axis") {
        let along = resolve_axis(stated, first.dims().len() + 1)?;
        return Ok(vec![stack_tensors(&list, along)?]);
    }
    let along = resolve_axis(stated, first.dims().len())?;
    Ok(vec![concat_along(&list.iter().collect::<Vec<_>>(), along)?])
}

pub(super) fn split_to_sequence(call: &Call<'_>) -> Results {
    let source = call.input(0)?;
    element_bytes(source)?;
    let along = resolve_axis(call.int_attribute("axis", 0), source.dims().len())?;
    let extent = source.dims()[along];
    let stated = call.optional_input(1);
    let lengths = match stated {
        Some(stated) if stated.dims().is_empty() => {
            let size = to_sizes(&to_indices(stated)?, 1)?[0];
            if size == 0 {
                return Err(KernelError::Range(1));
            }
            let pieces = (0..extent).step_by(size);
            pieces.map(|start| size.min(extent - start)).collect()
        }
        Some(stated) => to_sizes(&to_indices(stated)?, 1)?,
        None => vec![1; extent],
    };
    if lengths.iter().sum::<usize>() != extent {
        return Err(KernelError::Range(1));
    }
    let keeps = stated.is_some() || call.int_attribute("keepdims", 1) != 0;
    let mut start = 0;
    let mut list = Vec::with_capacity(lengths.len());
    for length in lengths {
        let part = slice_along(source, along, start, length)?;
        start += length;
        let mut dims = part.dims().to_vec();
        if !keeps {
            dims.remove(along);
        }
        list.push(part.to_shape(dims)?);
    }
    Ok(vec![pack_list(source.dtype(), &list)?])
}

/// Runs `SequenceMap`: the body once for each index of its lists.
pub(super) fn sequence_map(call: &Call<'_>) -> Results {
    let body = Body::from_attribute(call, "body")?;
    let first = list_input(call, 0)?;
    let others = (1..call.inputs.len()).map(|index| {
        let given = call.input(index)?;
        Ok((given.clone(), unpack_list(given)))
    });
    let others: Vec<(Tensor, Option<Vec<Tensor>>)> = others.collect::<Result<_, KernelError>>()?;
    let mut made: Vec<Vec<Tensor>> = vec![Vec::new(); body.graph.output.len()];
    let mut scope = call.scope.clone();
    for (at, element) in first.into_iter().enumerate() {
        let mut given = vec![element];
        for (index, (whole, list)) in others.iter().enumerate() {
            given.push(match list {
                Some(list) => list.get(at).ok_or(KernelError::Range(index + 1))?.clone(),
                None => whole.clone(),
            });
        }
        let outputs = body.run(call, &mut scope, given)?;
        made.iter_mut()
            .zip(outputs)
            .for_each(|(list, tensor)| list.push(tensor));
    }
    let dtype = |list: &[Tensor]| list.first().map_or(DType::F32, Tensor::dtype);
    made.iter()
        .map(|list| pack_list(dtype(list), list))
        .collect()
}

#[cfg(test)]
mod tests {
    use souk_onnx::NodeProto;

    use super::super::{Scope, run_nodes};
    use super::*;

    fn ints(dims: &[usize], from: i64) -> Tensor {
        let count = dims.iter().product::<usize>() as i64;
        Tensor::from_vec(dims, (from..from + count).collect::<Vec<i64>>()).unwrap()
    }

    #[test]
    fn a_list_is_one_tensor_and_comes_apart_again() {
        let truths = Tensor::from_bools(vec![2], &[true, false]).unwrap();
        let lists = [
            (DType::I64, vec![]),
            (
                DType::I64,
                vec![ints(&[], 7), ints(&[2, 3], 0), ints(&[0, 4], 0)],
            ),
            (
                DType::F32,
                vec![Tensor::from_vec([1], vec![f32::NAN]).unwrap()],
            ),
            (
                DType::U8,
                vec![Tensor::from_vec([3], vec![1u8, 2, 3]).unwrap()],
            ),
            (DType::Bool, vec![truths.clone(), truths]),
        ];
        for (dtype, list) in lists {
            let whole = pack_list(dtype, &list).unwrap();
            assert_eq!(whole.dtype(), dtype);
            let found = unpack_list(&whole).unwrap();
            let bytes = |list: &[Tensor]| -> Vec<_> {
                list.iter()
                    .map(|it| (it.dims().to_vec(), it.bytes().clone()))
                    .collect()
            };
            assert_eq!(bytes(&found), bytes(&list));
        }
    }

    #[test]
    fn a_tensor_that_is_no_list_is_refused_however_it_is_cut() {
        assert!(unpack_list(&ints(&[9], 0)).is_none());
        let whole = pack_list(DType::U8, &[Tensor::from_vec([3], vec![1u8; 3]).unwrap()]).unwrap();
        for length in 0..whole.bytes().len() {
            let cut = whole.bytes().slice(..length);
            let cut = Tensor::new(DType::U8, Shape::new([length]).unwrap(), cut).unwrap();
            assert!(unpack_list(&cut).is_none(), "{length}");
        }
        // Sizes and counts beyond what is there.
        for word in [1, 2, 3] {
            let mut bytes = whole.bytes().to_vec();
            bytes[word * WORD..(word + 1) * WORD].fill(0xff);
            let bent = Tensor::from_vec([bytes.len()], bytes).unwrap();
            assert!(unpack_list(&bent).is_none(), "word {word}");
        }
    }

    /// What the nodes make of `x`, which is 2 by 3.
    fn made(nodes: &[NodeProto], name: &str) -> Tensor {
        let mut scope = Scope::from([
            ("x".to_owned(), ints(&[2, 3], 1)),
            (
                "s".to_owned(),
                Tensor::from_vec([2], vec![1i64, 2]).unwrap(),
            ),
            ("two".to_owned(), Tensor::scalar(2i64)),
            ("last".to_owned(), Tensor::scalar(-1i64)),
        ]);
        run_nodes(nodes, &mut scope, 17).unwrap();
        scope.remove(name).unwrap()
    }

    #[test]
    fn lists_are_split_indexed_and_joined() {
        let split = |inputs: &[&str]| {
            NodeProto::for_operator("SplitToSequence", inputs, "q").with("axis", 1i64)
        };
        let at = NodeProto::for_operator("SequenceAt", &["q", "last"], "y");
        let found = made(&[split(&["x", "s"]), at.clone()], "y");
        assert_eq!(found.dims(), [2, 2]);
        assert_eq!(found.to_vec::<i64>().unwrap(), [2, 3, 5, 6]);
        let found = made(&[split(&["x", "two"]), at.clone()], "y");
        assert_eq!(found.to_vec::<i64>().unwrap(), [3, 6]);
        let dropped = split(&["x"]).with("keepdims", 0i64);
        let found = made(&[dropped.clone(), at], "y");
        assert_eq!(found.dims(), [2]);
        let joined = NodeProto::for_operator("ConcatFromSequence", &["q"], "y").with("axis", 0i64);
        let found = made(&[dropped, joined.with("new_axis", 1i64)], "y");
        assert_eq!(found.to_vec::<i64>().unwrap(), [1, 4, 2, 5, 3, 6]);
        assert_eq!(found.dims(), [3, 2]);
    }

    #[test]
    fn lists_grow_and_shrink() {
        let nodes = [
            NodeProto::for_operator("SequenceEmpty", &[], "none"),
            NodeProto::for_operator("SequenceInsert", &["none", "two"], "one"),
            NodeProto::for_operator("SequenceConstruct", &["two", "last"], "pair"),
            NodeProto::for_operator("SequenceInsert", &["pair", "two", "last"], "three"),
            NodeProto::for_operator("SequenceErase", &["three"], "two_left"),
            NodeProto::for_operator("SequenceLength", &["three"], "length"),
            NodeProto::for_operator("ConcatFromSequence", &["two_left"], "y")
                .with("axis", 0i64)
                .with("new_axis", 1i64),
        ];
        assert_eq!(made(&nodes, "length").to_vec::<i64>().unwrap(), [3]);
        assert_eq!(made(&nodes, "y").to_vec::<i64>().unwrap(), [2, 2]);
        let beyond = NodeProto::for_operator("SequenceAt", &["one", "two"], "z");
        let nodes = [&nodes[..2], &[beyond]].concat();
        let mut scope = Scope::from([("two".to_owned(), Tensor::scalar(2i64))]);
        let error = run_nodes(&nodes, &mut scope, 17).unwrap_err();
        assert!(
            error.to_string().contains("input 1 is out of range"),
            "{error}"
        );
    }
}
