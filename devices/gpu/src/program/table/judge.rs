//! Decides for each node of a graph whether the device or the host runs it, or refuses it with the
//! reason. The compiler of GPU programs asks [`Judge`] about the nodes in order.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::sampling;
use souk_onnx::subgraph::UnsupportedReason;
use souk_reference::random;

use super::super::custom;
use super::{
    HOST, InputTypes, OPSET_MIN, Side, find_requirements, is_packed, is_quantised, takes_quantised,
};
use crate::numbers::doubles::{DoubleSupport, fits_floats, is_double, is_long};
use crate::numbers::halves::is_half;
use crate::numbers::integers::is_whole;
use crate::numbers::quarters::{is_byte, is_power_of_two};
use crate::operators::scatter::is_supported_reduction;

/// The integer nodes that the device takes over although the host could compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takeover {
    /// None: they are sizes and masks of something else.
    Nothing,
    /// Types of 32 bits or fewer; 64-bit values are sizes.
    Narrow,
    /// All that it can.
    All,
}

/// Judges the nodes of a graph in order.
pub(crate) struct Judge<'a> {
    pub takeover: Takeover,
    pub types: &'a BTreeMap<String, DType>,
    pub weights: &'a BTreeMap<String, Tensor>,
    /// Which numbers of 64 bits the device has.
    pub doubles: DoubleSupport,
    pub opset: i64,
    /// Values the host has.
    pub on_host: BTreeSet<&'a str>,
}

impl<'a> Judge<'a> {
    /// Where a node runs; its outputs are followed along.
    pub fn judge_node(&mut self, node: &'a NodeProto) -> Result<Side, UnsupportedReason> {
        if self.opset < OPSET_MIN && node.op_type() != "Not" {
            return Err(UnsupportedReason::Version(self.opset));
        }
        if custom::is_kernel(node) {
            return Ok(Side::Device);
        }
        if sampling::is_sample(node) {
            self.record_outputs(node);
            return Ok(Side::Host);
        }
        if !node.operator_domain().is_empty() {
            return Err(UnsupportedReason::Operator);
        }
        let is_taken = match self.takeover {
            Takeover::Nothing => false,
            Takeover::Narrow => self.check_node(node, DoubleSupport::default()).is_ok(),
            Takeover::All => self.check_node(node, self.doubles).is_ok(),
        };
        let side = if self.is_for_host(node) && !is_taken {
            self.record_outputs(node);
            Side::Host
        } else {
            self.check_node(node, self.doubles)?;
            Side::Device
        };
        Ok(side)
    }

    /// Records that the host has the outputs it computes itself.
    fn record_outputs(&mut self, node: &'a NodeProto) {
        let outputs = node.output.iter().map(String::as_str);
        self.on_host.extend(outputs.filter(|name| !name.is_empty()));
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.types.get(name).copied()
    }

    fn is_for_host(&self, node: &NodeProto) -> bool {
        let operator = node.op_type();
        if matches!(operator, "Shape" | "Size") {
            return true;
        }
        if !HOST.contains(&operator) {
            return false;
        }
        // Narrow integers that become floats are values, not sizes.
        let of = |name: Option<&str>| name.and_then(|name| self.dtype(name));
        let made = of(node.output.first().map(String::as_str));
        if of(node.input_name(0)).is_some_and(is_packed) && made.is_some_and(|it| it.is_float()) {
            return false;
        }
        let mut inputs = node.input.iter().filter(|name| !name.is_empty());
        inputs.all(|name| {
            let whole = self.dtype(name).is_some_and(|dtype| !dtype.is_float());
            whole && self.on_host.contains(name.as_str())
        })
    }

    /// Returns why the device lacks a node that it would run if it had more 64-bit numbers.
    pub fn unsupported_reason(&self, node: &NodeProto) -> Option<UnsupportedReason> {
        let refused = self.check_node(node, self.doubles).err()?;
        self.check_node(node, DoubleSupport::ALL)
            .ok()
            .map(|()| refused)
    }

    /// Whether a device with these numbers of 64 bits runs the node.
    fn check_node(
        &self,
        node: &NodeProto,
        doubles: DoubleSupport,
    ) -> Result<(), UnsupportedReason> {
        let declared = find_requirements(node.op_type()).ok_or(UnsupportedReason::Operator)?;
        let engine = |reason: &str| Err(UnsupportedReason::Engine(reason.to_owned()));
        for (index, name) in node.input.iter().enumerate() {
            // Of the second input of a CastLike only the type is read.
            if name.is_empty() || (index == 1 && node.op_type() == "CastLike") {
                continue;
            }
            if declared.host.contains(&index) {
                if !self.on_host.contains(name.as_str()) {
                    return engine("a shape or index is only known on the device");
                }
                continue;
            }
            let dtype = self.dtype(name).ok_or(UnsupportedReason::UnknownDType)?;
            if !self.can_accept(declared.takes, index, name, dtype, doubles) {
                let would = self.can_accept(declared.takes, index, name, dtype, DoubleSupport::ALL);
                return Err(match would {
                    true => doubles.unsupported_reason(dtype),
                    false => UnsupportedReason::DType(dtype),
                });
            }
        }
        let wanted = node.output.iter().rposition(|name| !name.is_empty());
        if wanted.is_some_and(|last| last >= declared.outputs) {
            return engine("not all of these outputs are made on this device");
        }
        let divisor = node.input_name(1).unwrap_or_default();
        let divides = matches!(node.op_type(), "Div" | "Mod");
        let is_integer = |dtype| is_whole(dtype) || is_long(dtype);
        let divisor_type = self.dtype(divisor);
        if divides && divisor_type.is_some_and(is_integer) && !self.on_host.contains(divisor) {
            return engine("a divisor of integers is only known on the device");
        }
        self.check_attributes(node, doubles)
    }

    fn can_accept(
        &self,
        takes: InputTypes,
        index: usize,
        name: &str,
        dtype: DType,
        doubles: DoubleSupport,
    ) -> bool {
        let is_float = is_float(dtype);
        let is_real = is_float || (dtype == DType::F64 && doubles.floats);
        let is_integer = is_whole(dtype) || (is_long(dtype) && doubles.integers);
        let is_number = is_real || is_integer;
        // Without 64-bit numbers, a value is exact only if the device counted or widened it.
        let moved = is_number
            || dtype == DType::Bool
            || is_quantised(dtype)
            || is_power_of_two(dtype)
            || (is_double(dtype) && !self.on_host.contains(name));
        match takes {
            InputTypes::Floats => is_float,
            InputTypes::Reals => is_real,
            InputTypes::Numbers => is_number,
            InputTypes::Comparable => is_number || dtype == DType::Bool,
            InputTypes::Whole => is_integer,
            InputTypes::Short => is_real || dtype == DType::Bool || is_narrow_whole(dtype),
            InputTypes::Bytes => is_float || is_byte(dtype),
            InputTypes::Powers if index == 0 => is_number,
            InputTypes::Powers => is_number || is_double(dtype),
            InputTypes::Cast => moved || is_double(dtype),
            InputTypes::Truths => dtype == DType::Bool,
            InputTypes::Words => moved,
            InputTypes::Choice if index == 0 => dtype == DType::Bool,
            InputTypes::Choice => is_number || dtype == DType::Bool,
            InputTypes::Quantised(operator) => takes_quantised(operator, index, dtype),
            InputTypes::Masked => is_float || (index == 3 && dtype == DType::Bool),
        }
    }

    /// Attributes that would ask for something else.
    fn check_attributes(
        &self,
        node: &NodeProto,
        doubles: DoubleSupport,
    ) -> Result<(), UnsupportedReason> {
        let refused = |name| Err(UnsupportedReason::Attribute(name));
        let is_number = |dtype| is_float(dtype) || is_whole(dtype) || doubles.has_dtype(dtype);
        let output = node.output.first().and_then(|name| self.dtype(name));
        let input = node.input_name(0).and_then(|name| self.dtype(name));
        match node.op_type() {
            "BatchNormalization" if node.int("spatial") == Some(0) => refused("spatial"),
            "BatchNormalization" if node.int("training_mode").unwrap_or(0) == 0 => {
                match node.output.iter().skip(1).all(String::is_empty) {
                    true => Ok(()),
                    false => refused("training_mode"),
                }
            }
            "Dropout" => self.check_dropout(node, doubles),
            "Scatter" | "ScatterElements" | "ScatterND" => match node.string("reduction") {
                None | Some("none") => Ok(()),
                Some(name) if !is_supported_reduction(name) => refused("reduction"),
                _ if input.is_some_and(is_number) => Ok(()),
                _ => Err(type_reason(input)),
            },
            "Pow" => self.check_power(node, input, doubles),
            "Pad" if !output.is_some_and(is_number) => Err(type_reason(output)),
            "QuantizeLinear" | "DequantizeLinear" => self.check_scales(node, output),
            "Cast" | "CastLike" => check_cast(input, output, doubles),
            _ => Ok(()),
        }
    }
}

impl Judge<'_> {
    /// Integers are raised to integers, of 64 bits and to floats where there are such of 64 bits to
    /// do it in; floats to anything.
    fn check_power(
        &self,
        node: &NodeProto,
        base: Option<DType>,
        doubles: DoubleSupport,
    ) -> Result<(), UnsupportedReason> {
        let exponent = node.input_name(1).and_then(|name| self.dtype(name));
        let (Some(base), Some(exponent)) = (base, exponent) else {
            return Err(UnsupportedReason::UnknownDType);
        };
        let needed = match exponent.is_float() {
            _ if base.is_float() => return Ok(()),
            true => DType::F64,
            false if is_double(base) || is_double(exponent) => DType::I64,
            false => return Ok(()),
        };
        match doubles.has_dtype(needed) {
            true => Ok(()),
            false => Err(doubles.unsupported_reason(needed)),
        }
    }

    /// Refuses random dropout without a seed: only with a seed do two machines drop the same
    /// elements.
    fn check_dropout(
        &self,
        node: &NodeProto,
        doubles: DoubleSupport,
    ) -> Result<(), UnsupportedReason> {
        let weight = |index| {
            node.input_name(index)
                .and_then(|name| self.weights.get(name))
        };
        let is_zero = |tensor: &Tensor| tensor.bytes().iter().all(|&byte| byte == 0);
        let is_ratio_zero = match (node.input_name(1), node.float("ratio")) {
            (Some(_), _) => weight(1).is_some_and(is_zero),
            (None, ratio) => ratio == Some(0.0),
        };
        let trains = match node.input_name(2) {
            Some(_) => !weight(2).is_some_and(is_zero),
            None => node.int("is_test") == Some(0),
        };
        if !trains || is_ratio_zero {
            return Ok(());
        }
        if node.input_name(2).is_none() || random::read_seed(node).is_none() {
            let reason = "it may drop at random, which no two machines do alike: neither a seed \
                          nor a ratio of zero nor a training mode that is off is known before the \
                          run";
            return Err(UnsupportedReason::Engine(reason.to_owned()));
        }
        let input = node.input_name(0).and_then(|name| self.dtype(name));
        match input {
            Some(dtype) if is_float(dtype) || (dtype == DType::F64 && doubles.has_dtype(dtype)) => {
                Ok(())
            }
            input => Err(type_reason(input)),
        }
    }

    /// Checks the attributes of a node that quantises or dequantises.
    fn check_scales(
        &self,
        node: &NodeProto,
        output: Option<DType>,
    ) -> Result<(), UnsupportedReason> {
        if node.int("precision").unwrap_or(0) != 0 {
            return Err(UnsupportedReason::Attribute("precision"));
        }
        let makes = match node.op_type() {
            "QuantizeLinear" => is_quantised,
            _ => is_float,
        };
        match output.is_some_and(makes) {
            true => Ok(()),
            false => Err(type_reason(output)),
        }
    }
}

/// Whether the device computes with integers of this type, all of whose values floats have.
fn is_narrow_whole(dtype: DType) -> bool {
    is_whole(dtype) && fits_floats(dtype)
}

/// Whether the device computes with floats of this type everywhere.
pub(crate) fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || is_half(dtype)
}

/// Whether the device casts one type to another. 64-bit values that the device cannot hold come
/// from the host; a 64-bit float is made of values of 32 bits.
fn check_cast(
    from: Option<DType>,
    to: Option<DType>,
    doubles: DoubleSupport,
) -> Result<(), UnsupportedReason> {
    let is_known = |dtype: DType| {
        let is_narrow = is_float(dtype) || is_quantised(dtype) || is_power_of_two(dtype);
        is_narrow || is_whole(dtype) || dtype == DType::Bool || doubles.has_dtype(dtype)
    };
    match (from, to) {
        (Some(from), Some(to)) if is_known(to) && (is_known(from) || is_double(from)) => Ok(()),
        (Some(from), Some(DType::F64)) if is_known(from) && fits_floats(from) => Ok(()),
        (_, Some(to)) if is_double(to) && !doubles.has_dtype(to) => {
            Err(doubles.unsupported_reason(to))
        }
        (from, Some(to)) if is_known(to) => Err(type_reason(from)),
        _ => Err(type_reason(to)),
    }
}

fn type_reason(dtype: Option<DType>) -> UnsupportedReason {
    dtype.map_or(UnsupportedReason::UnknownDType, UnsupportedReason::DType)
}
