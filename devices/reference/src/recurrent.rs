//! Computes the recurrent operators `RNN`, `GRU` and `LSTM`, in either direction or both.

use souk_memory::Tensor;

use super::call::{Call, KernelError, Results};
use super::functions::{max_or_nan, sigmoid, softplus};
use super::value::{from_floats, to_floats};

/// An activation with its two parameters.
type Activation = fn(f64, f64, f64) -> f64;

fn find_activation(name: &str) -> Option<(Activation, f64, f64)> {
    let found: (Activation, f64, f64) = match name.to_ascii_lowercase().as_str() {
        "sigmoid" => (|x, _, _| sigmoid(x), 0.0, 0.0),
        "tanh" => (|x, _, _| x.tanh(), 0.0, 0.0),
        "relu" => (|x, _, _| max_or_nan(x, 0.0), 0.0, 0.0),
        "affine" => (|x, a, b| a * x + b, 1.0, 0.0),
        "leakyrelu" => (|x, a, _| if x < 0.0 { a * x } else { x }, 0.01, 0.0),
        "thresholdedrelu" => (|x, a, _| if x > a { x } else { 0.0 }, 1.0, 0.0),
        "scaledtanh" => (|x, a, b| a * (b * x).tanh(), 1.0, 1.0),
        "hardsigmoid" => (|x, a, b| (a * x + b).clamp(0.0, 1.0), 0.2, 0.5),
        "elu" => (|x, a, _| if x < 0.0 { a * x.exp_m1() } else { x }, 1.0, 0.0),
        "softsign" => (|x, _, _| x / (1.0 + x.abs()), 0.0, 0.0),
        "softplus" => (|x, _, _| softplus(x), 0.0, 0.0),
        _ => return None,
    };
    Some(found)
}

/// Weights and initial states of one direction.
struct Direction {
    input_weights: Vec<f64>,
    hidden_weights: Vec<f64>,
    /// Biases of the input, then of the hidden state.
    bias: Vec<f64>,
    peepholes: Vec<f64>,
    hidden: Vec<f64>,
    cell: Vec<f64>,
    activations: Vec<(Activation, f64, f64)>,
    backward: bool,
}

/// A whole layer: `gates` is 1, 3 or 4.
struct Layer {
    gates: usize,
    length: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    clip: Option<f64>,
    linear_before_reset: bool,
    lengths: Option<Vec<i64>>,
    batch_first: bool,
    values: Vec<f64>,
}

impl Layer {
    fn read(call: &Call<'_>, gates: usize) -> Result<Self, KernelError> {
        let x = call.input(0)?;
        let &[first, second, input] = x.dims() else {
            return Err(KernelError::Range(0));
        };
        let batch_first = call.is_flag_set("layout");
        let (length, batch) = if batch_first {
            (second, first)
        } else {
            (first, second)
        };
        let weights = call.input(1)?;
        let hidden = weights.dims().get(1).copied().unwrap_or(0) / gates;
        if weights.dims().get(2) != Some(&input) || hidden == 0 {
            return Err(KernelError::Shapes(
                x.dims().to_vec(),
                weights.dims().to_vec(),
            ));
        }
        Ok(Self {
            gates,
            length,
            batch,
            input,
            hidden,
            clip: call
                .node
                .float("clip")
                .map(f64::from)
                .filter(|&clip| clip > 0.0),
            linear_before_reset: call.is_flag_set("linear_before_reset"),
            lengths: call.optional_input_ints(4)?,
            batch_first,
            values: to_floats(x)?,
        })
    }

    /// Returns one sample's input at one step.
    fn input_at(&self, step: usize, sample: usize) -> &[f64] {
        let row = if self.batch_first {
            sample * self.length + step
        } else {
            step * self.batch + sample
        };
        &self.values[row * self.input..(row + 1) * self.input]
    }

    fn clip_value(&self, value: f64) -> f64 {
        self.clip.map_or(value, |clip| value.clamp(-clip, clip))
    }

    /// Returns the contributions of the input and of the hidden state to one gate's unit.
    fn gate_sums(
        &self,
        direction: &Direction,
        unit: usize,
        input: &[f64],
        hidden: &[f64],
    ) -> (f64, f64) {
        let dot = |weights: &[f64], values: &[f64]| -> f64 {
            let row = &weights[unit * values.len()..(unit + 1) * values.len()];
            row.iter().zip(values).map(|(a, b)| a * b).sum()
        };
        let units = self.gates * self.hidden;
        let from_input = dot(&direction.input_weights, input) + direction.bias[unit];
        let from_hidden = dot(&direction.hidden_weights, hidden) + direction.bias[units + unit];
        (from_input, from_hidden)
    }
}

/// Returns the part of an optional input that belongs to one direction, or zeros.
fn direction_slice(
    call: &Call<'_>,
    index: usize,
    direction: usize,
    length: usize,
) -> Result<Vec<f64>, KernelError> {
    let Some(tensor) = call.optional_input(index) else {
        return Ok(vec![0.0; length]);
    };
    let values = to_floats(tensor)?;
    let own = values.get(direction * length..(direction + 1) * length);
    own.map(<[f64]>::to_vec).ok_or(KernelError::Range(index))
}

/// Returns an initial state, converted from batch-first order if necessary.
fn initial_state(
    call: &Call<'_>,
    index: usize,
    layer: &Layer,
    directions: usize,
    direction: usize,
) -> Result<Vec<f64>, KernelError> {
    let size = layer.batch * layer.hidden;
    if !layer.batch_first || call.optional_input(index).is_none() {
        return direction_slice(call, index, direction, size);
    }
    let values = call.input_floats(index)?;
    let row = |sample: usize| (sample * directions + direction) * layer.hidden;
    let rows = (0..layer.batch).map(|sample| values.get(row(sample)..row(sample) + layer.hidden));
    let rows: Option<Vec<&[f64]>> = rows.collect();
    Ok(rows.ok_or(KernelError::Range(index))?.concat())
}

fn read_directions(
    call: &Call<'_>,
    layer: &Layer,
    defaults: &[&str],
) -> Result<Vec<Direction>, KernelError> {
    let kind = call.text_attribute("direction", "forward");
    let count = if kind == "bidirectional" { 2 } else { 1 };
    let names: Vec<String> = match call.node.attribute("activations") {
        Some(list) => list
            .strings
            .iter()
            .map(|it| String::from_utf8_lossy(it).into_owned())
            .collect(),
        None => defaults
            .iter()
            .map(ToString::to_string)
            .cycle()
            .take(count * defaults.len())
            .collect(),
    };
    let alphas = call.node.floats("activation_alpha").unwrap_or(&[]);
    let betas = call.node.floats("activation_beta").unwrap_or(&[]);
    let units = layer.gates * layer.hidden;
    let one = |direction: usize| {
        let own = names
            .iter()
            .enumerate()
            .skip(direction * defaults.len())
            .take(defaults.len());
        let activations = own.map(|(index, name)| {
            let found = find_activation(name).ok_or(KernelError::Attribute("activations"))?;
            let alpha = alphas.get(index).map_or(found.1, |&it| f64::from(it));
            let beta = betas.get(index).map_or(found.2, |&it| f64::from(it));
            Ok::<_, KernelError>((found.0, alpha, beta))
        });
        Ok(Direction {
            input_weights: direction_slice(call, 1, direction, units * layer.input)?,
            hidden_weights: direction_slice(call, 2, direction, units * layer.hidden)?,
            bias: direction_slice(call, 3, direction, 2 * units)?,
            peepholes: direction_slice(call, 7, direction, 3 * layer.hidden)?,
            hidden: initial_state(call, 5, layer, count, direction)?,
            cell: initial_state(call, 6, layer, count, direction)?,
            activations: activations.collect::<Result<_, _>>()?,
            backward: kind == "reverse" || direction == 1,
        })
    };
    (0..count).map(one).collect()
}

/// One step of one sample: computes new hidden state and cell from input, hidden state and cell.
type Step = fn(&Layer, &Direction, &[f64], &[f64], &[f64]) -> (Vec<f64>, Vec<f64>);

fn run(call: &Call<'_>, gates: usize, defaults: &[&str], step: Step, cells: bool) -> Results {
    let layer = Layer::read(call, gates)?;
    let directions = read_directions(call, &layer, defaults)?;
    let (length, batch, hidden, count) =
        (layer.length, layer.batch, layer.hidden, directions.len());
    let mut all = vec![0.0; length * count * batch * hidden];
    let mut last_hidden = vec![0.0; count * batch * hidden];
    let mut last_cell = vec![0.0; count * batch * hidden];
    // The position of a sample's state in a direction, at a step and at the end.
    let place = |at: usize, direction: usize, sample: usize| {
        let row = if layer.batch_first {
            (sample * length + at) * count + direction
        } else {
            (at * count + direction) * batch + sample
        };
        row * hidden
    };
    let last = |direction: usize, sample: usize| {
        let row = if layer.batch_first {
            sample * count + direction
        } else {
            direction * batch + sample
        };
        row * hidden
    };
    for (index, direction) in directions.iter().enumerate() {
        for sample in 0..batch {
            let own = sample * hidden..(sample + 1) * hidden;
            let (mut state, mut cell) = (
                direction.hidden[own.clone()].to_vec(),
                direction.cell[own].to_vec(),
            );
            let steps = layer
                .lengths
                .as_ref()
                .map_or(length, |list| list[sample].max(0) as usize);
            let steps = steps.min(length);
            for number in 0..steps {
                let at = if direction.backward {
                    steps - 1 - number
                } else {
                    number
                };
                (state, cell) = step(&layer, direction, layer.input_at(at, sample), &state, &cell);
                all[place(at, index, sample)..][..hidden].copy_from_slice(&state);
            }
            last_hidden[last(index, sample)..][..hidden].copy_from_slice(&state);
            last_cell[last(index, sample)..][..hidden].copy_from_slice(&cell);
        }
    }
    let dims = if layer.batch_first {
        ([batch, length, count, hidden], [batch, count, hidden])
    } else {
        ([length, count, batch, hidden], [count, batch, hidden])
    };
    let dtype = call.input(0)?.dtype();
    let mut outputs: Vec<Tensor> = vec![
        from_floats(dtype, &dims.0, all)?,
        from_floats(dtype, &dims.1, last_hidden)?,
    ];
    if cells {
        outputs.push(from_floats(dtype, &dims.1, last_cell)?);
    }
    Ok(outputs)
}

pub(super) fn run_rnn(call: &Call<'_>) -> Results {
    fn rnn_step(
        layer: &Layer,
        direction: &Direction,
        input: &[f64],
        hidden: &[f64],
        cell: &[f64],
    ) -> (Vec<f64>, Vec<f64>) {
        let (function, alpha, beta) = direction.activations[0];
        let unit = |unit: usize| {
            let (from_input, from_hidden) = layer.gate_sums(direction, unit, input, hidden);
            function(layer.clip_value(from_input + from_hidden), alpha, beta)
        };
        ((0..layer.hidden).map(unit).collect(), cell.to_vec())
    }
    run(call, 1, &["Tanh"], rnn_step, false)
}

pub(super) fn run_gru(call: &Call<'_>) -> Results {
    fn gru_step(
        layer: &Layer,
        direction: &Direction,
        input: &[f64],
        hidden: &[f64],
        cell: &[f64],
    ) -> (Vec<f64>, Vec<f64>) {
        let size = layer.hidden;
        let (gate, gate_a, gate_b) = direction.activations[0];
        let (candidate, candidate_a, candidate_b) = direction.activations[1];
        let opened = |unit: usize, hidden: &[f64]| {
            let (from_input, from_hidden) = layer.gate_sums(direction, unit, input, hidden);
            gate(layer.clip_value(from_input + from_hidden), gate_a, gate_b)
        };
        let update: Vec<f64> = (0..size).map(|unit| opened(unit, hidden)).collect();
        let reset: Vec<f64> = (0..size).map(|unit| opened(size + unit, hidden)).collect();
        let kept: Vec<f64> = reset
            .iter()
            .zip(hidden)
            .map(|(reset, hidden)| reset * hidden)
            .collect();
        let unit = |unit: usize| {
            let sum = if layer.linear_before_reset {
                let sums = layer.gate_sums(direction, 2 * size + unit, input, hidden);
                sums.0 + reset[unit] * sums.1
            } else {
                let sums = layer.gate_sums(direction, 2 * size + unit, input, &kept);
                sums.0 + sums.1
            };
            let new = candidate(layer.clip_value(sum), candidate_a, candidate_b);
            (1.0 - update[unit]) * new + update[unit] * hidden[unit]
        };
        ((0..size).map(unit).collect(), cell.to_vec())
    }
    run(call, 3, &["Sigmoid", "Tanh"], gru_step, false)
}

pub(super) fn run_lstm(call: &Call<'_>) -> Results {
    fn lstm_step(
        layer: &Layer,
        direction: &Direction,
        input: &[f64],
        hidden: &[f64],
        cell: &[f64],
    ) -> (Vec<f64>, Vec<f64>) {
        let size = layer.hidden;
        let [gate, inner, outer] = [0, 1, 2].map(|index| direction.activations[index]);
        let apply = |(function, a, b): (Activation, f64, f64), sum: f64| {
            function(layer.clip_value(sum), a, b)
        };
        let sum = |gate: usize, unit: usize| {
            let sums = layer.gate_sums(direction, gate * size + unit, input, hidden);
            sums.0 + sums.1
        };
        let peep = |gate: usize, unit: usize| direction.peepholes[gate * size + unit];
        let (mut new_hidden, mut new_cell) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for (unit, &cell) in cell.iter().enumerate() {
            let open = apply(gate, sum(0, unit) + peep(0, unit) * cell);
            let forget = apply(gate, sum(2, unit) + peep(2, unit) * cell);
            let kept = forget * cell + open * apply(inner, sum(3, unit));
            let shown = apply(gate, sum(1, unit) + peep(1, unit) * kept);
            new_hidden.push(shown * apply(outer, kept));
            new_cell.push(kept);
        }
        (new_hidden, new_cell)
    }
    run(call, 4, &["Sigmoid", "Tanh", "Tanh"], lstm_step, true)
}
