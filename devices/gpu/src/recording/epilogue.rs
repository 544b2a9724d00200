//! The function that a product or a convolution applies to each sum before it writes it. The
//! planner of fusions chooses it, and the kernels of products and convolutions include its WGSL.

use crate::shaders::functions::FUNCTIONS;

/// The operations on each sum before the kernel writes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Epilogue {
    pub then: Option<ElementFunction>,
}

/// A function of one element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ElementFunction {
    /// The function in WGSL, of `a` and the numbers `s`, `t` and `u`.
    pub expression: &'static str,
    pub numbers: [f32; 3],
    /// Its name, where a maker's library can compute it.
    pub known: Option<FusedFunction>,
}

/// An activation that the card maker's library can apply to the result of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FusedFunction {
    Relu,
    /// `Gelu` approximated by the hyperbolic tangent. No library has the exact one.
    GeluTanh,
}

impl Epilogue {
    /// Returns lines for a kernel before its entry, and the expression to write for the sum `sum`.
    pub fn kernel_lines(&self, sum: &str) -> (String, String) {
        let Some(then) = &self.then else {
            return (String::new(), sum.to_owned());
        };
        let [s, t, u] = then.numbers.map(f32::to_bits);
        let expression = then.expression;
        let lines = format!(
            r"{FUNCTIONS}
fn then(a: f32) -> f32 {{
  var s_bits = {s}u;
  var t_bits = {t}u;
  var u_bits = {u}u;
  let s = bitcast<f32>(s_bits);
  let t = bitcast<f32>(t_bits);
  let u = bitcast<f32>(u_bits);
  return {expression};
}}
"
        );
        (lines, format!("then({sum})"))
    }
}
