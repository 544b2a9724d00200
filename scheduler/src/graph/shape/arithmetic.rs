//! Computes integer and float arithmetic on the contents of small tensors during shape inference,
//! with the same results as the devices' kernels.

/// The contents of a small tensor, with its extents.
pub(super) struct Operand<'a> {
    pub(super) dims: Vec<u64>,
    pub(super) ints: &'a [i64],
}

impl Operand<'_> {
    /// Returns the element at `place` after a broadcast to a tensor of `dims`.
    fn element_at(&self, place: usize, dims: &[u64]) -> Option<i64> {
        let missing = dims.len().checked_sub(self.dims.len())?;
        let mut rest = place;
        let mut index = 0;
        let mut stride = 1;
        for axis in (0..dims.len()).rev() {
            let size = usize::try_from(dims[axis]).ok()?;
            let at = rest % size;
            rest /= size;
            if axis >= missing {
                let own = usize::try_from(self.dims[axis - missing]).ok()?;
                index += if own == 1 { 0 } else { at * stride };
                stride *= own;
            }
        }
        self.ints.get(index).copied()
    }
}

fn element_count(dims: &[u64]) -> Option<usize> {
    usize::try_from(dims.iter().product::<u64>()).ok()
}

/// Broadcasts one operand to `dims`.
pub(super) fn broadcast_operand(operand: &Operand<'_>, dims: &[u64]) -> Option<Vec<i64>> {
    (0..element_count(dims)?)
        .map(|place| operand.element_at(place, dims))
        .collect()
}

/// Broadcasts two operands to `dims` and joins them.
pub(super) fn broadcast_zip(
    left: &Operand<'_>,
    right: &Operand<'_>,
    dims: &[u64],
    join: fn(i64, i64) -> Option<i64>,
) -> Option<Vec<i64>> {
    let places = 0..element_count(dims)?;
    places
        .map(|place| {
            join(
                left.element_at(place, dims)?,
                right.element_at(place, dims)?,
            )
        })
        .collect()
}

/// Computes `Where`: the second operand where the first is true, the third elsewhere.
pub(super) fn select(operands: &[Operand<'_>; 3], dims: &[u64]) -> Option<Vec<i64>> {
    let places = 0..element_count(dims)?;
    let pick = |place: usize| {
        let [condition, yes, no] = operands;
        let chosen = if condition.element_at(place, dims)? != 0 {
            yes
        } else {
            no
        };
        chosen.element_at(place, dims)
    };
    places.map(pick).collect()
}

/// Returns the function that joins two integers; the function returns `None` if the kernel's answer
/// is not certain.
pub(super) fn int_binary(name: &str) -> Option<fn(i64, i64) -> Option<i64>> {
    Some(match name {
        "Add" => i64::checked_add,
        "Sub" => i64::checked_sub,
        "Mul" => i64::checked_mul,
        "Div" => i64::checked_div,
        "Mod" => |a, b| if a >= 0 && b > 0 { Some(a % b) } else { None },
        "Max" => |a, b| Some(a.max(b)),
        "Min" => |a, b| Some(a.min(b)),
        "Equal" => |a, b| Some(i64::from(a == b)),
        "Greater" => |a, b| Some(i64::from(a > b)),
        "GreaterOrEqual" => |a, b| Some(i64::from(a >= b)),
        "Less" => |a, b| Some(i64::from(a < b)),
        "LessOrEqual" => |a, b| Some(i64::from(a <= b)),
        "And" => |a, b| Some(i64::from(a != 0 && b != 0)),
        "Or" => |a, b| Some(i64::from(a != 0 || b != 0)),
        _ => return None,
    })
}

/// Returns the function that joins two floats.
pub(super) fn float_binary(name: &str) -> Option<fn(f32, f32) -> f32> {
    Some(match name {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        _ => return None,
    })
}

/// Returns the function that rounds a float.
pub(super) fn float_unary(name: &str) -> Option<fn(f32) -> f32> {
    Some(match name {
        "Floor" => f32::floor,
        "Ceil" => f32::ceil,
        "Round" => f32::round_ties_even,
        "Sqrt" => f32::sqrt,
        _ => return None,
    })
}
