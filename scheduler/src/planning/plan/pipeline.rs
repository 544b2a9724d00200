//! Cuts a graph into a pipeline of stages, one for each device, for a stream of requests.
//!
//! A stage is a run of nodes that follow each other in the graph's topological order. The slowest
//! stage sets the pace of the stream, so the search
//! minimises that stage's time over all ways to cut the order, by dynamic programming, and over the
//! first `ORDERS_MAX` orders of the devices. It omits a device that would only delay the others.

use super::partition::Model;

/// Maximum number of device orders to try: all orders of five devices, only the first ones of more.
const ORDERS_MAX: usize = 120;

/// A pipeline of stages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pipeline {
    /// Device of each stage.
    pub devices: Vec<usize>,
    /// Stage of each node.
    pub stage_of_node: Vec<usize>,
    /// Seconds of the longest stage: the time between two answers.
    pub longest_seconds: f64,
}

impl Pipeline {
    /// Returns the pipeline that runs everything on one device.
    pub fn for_single_device(model: &Model<'_>, device: usize) -> Self {
        Self {
            devices: vec![device],
            stage_of_node: vec![0; model.node_count()],
            longest_seconds: model.range_seconds(device, 0, model.node_count()),
        }
    }

    /// Returns the best pipeline over these devices, or none if they cannot run every node.
    pub fn best_for_devices(model: &Model<'_>, devices: &[usize]) -> Option<Self> {
        let times = StageTimes::new(model);
        let mut orders = Vec::new();
        collect_orders(&mut devices.to_vec(), 0, &mut orders);
        let mut best: Option<Self> = None;
        for order in orders {
            let load = |stage: usize, from: usize, to: usize| {
                // The search takes the previous device of the order as the sender, even if that
                // device gets no stage.
                let before = order[stage.saturating_sub(1)];
                times.stage_seconds(before, order[stage], [from, to])
            };
            let (longest, ends) = cut_stages(order.len(), times.places.len() - 1, load);
            if !longest.is_finite() {
                continue;
            }
            let ends = ends.into_iter().map(|end| times.places[end]);
            let stages: Vec<_> = order.iter().copied().zip(ends).collect();
            let pipeline = build_pipeline(&stages, model.node_count()).with_times(&times);
            let is_best = |best: &Self| pipeline.longest_seconds < best.longest_seconds;
            if best.as_ref().is_none_or(is_best) {
                best = Some(pipeline);
            }
        }
        best
    }

    /// Returns the same stages with the times that the devices have in this model.
    pub fn with_model_times(&self, model: &Model<'_>) -> Self {
        self.clone().with_times(&StageTimes::new(model))
    }

    fn with_times(mut self, times: &StageTimes<'_>) -> Self {
        let (mut longest, mut from, mut before) = (0.0_f64, 0, 0);
        for (stage, &device) in self.devices.iter().enumerate() {
            let to = self.stage_of_node.partition_point(|of| *of <= stage);
            longest = longest.max(times.seconds_between(before, device, [from, to]));
            (from, before) = (to, device);
        }
        self.longest_seconds = longest;
        self
    }
}

/// Computes the times of stages on devices.
struct StageTimes<'a> {
    model: &'a Model<'a>,
    /// Indices of the nodes before which the order can be cut, and of both ends.
    places: Vec<usize>,
    /// Bytes that a cut before each node sends; none if a value there cannot be sent.
    widths: Vec<Option<u64>>,
}

impl<'a> StageTimes<'a> {
    fn new(model: &'a Model<'a>) -> Self {
        let inner = model.cut_places().into_iter();
        Self {
            places: [0]
                .into_iter()
                .chain(inner)
                .chain([model.node_count()])
                .collect(),
            widths: model.cut_widths(),
            model,
        }
    }

    fn stage_seconds(&self, before: usize, device: usize, ends: [usize; 2]) -> f64 {
        self.seconds_between(before, device, ends.map(|end| self.places[end]))
    }

    /// Returns the seconds of the nodes between two places on a device, or of the transfer to it if
    /// that is longer; infinite if the device cannot run them.
    fn seconds_between(&self, before: usize, device: usize, [from, to]: [usize; 2]) -> f64 {
        let compute = self.model.range_seconds(device, from, to);
        if from == 0 || from == to {
            return compute;
        }
        match self.widths[from] {
            Some(bytes) => {
                compute.max(self.model.links.between[before][device].transfer_seconds(bytes))
            }
            None => f64::INFINITY,
        }
    }
}

/// Builds the stages from the devices in order and their ends, without empty ones. Their times
/// are not known yet.
fn build_pipeline(stages: &[(usize, usize)], nodes: usize) -> Pipeline {
    let mut pipeline = Pipeline {
        devices: Vec::new(),
        stage_of_node: Vec::with_capacity(nodes),
        longest_seconds: f64::INFINITY,
    };
    for &(device, end) in stages {
        if end > pipeline.stage_of_node.len() {
            pipeline.stage_of_node.resize(end, pipeline.devices.len());
            pipeline.devices.push(device);
        }
    }
    assert_eq!(
        pipeline.stage_of_node.len(),
        nodes,
        "each node is in a stage"
    );
    pipeline
}

/// Cuts `places` places into `stages` stages so that the largest load is as small as possible.
/// Returns that load and the end
/// of each stage.
fn cut_stages(
    stages: usize,
    places: usize,
    load: impl Fn(usize, usize, usize) -> f64,
) -> (f64, Vec<usize>) {
    let mut least: Vec<f64> = (0..=places).map(|to| load(0, 0, to)).collect();
    let mut begins: Vec<Vec<usize>> = Vec::new();
    for stage in 1..stages {
        let mut next = vec![f64::INFINITY; places + 1];
        let mut begin = vec![0; places + 1];
        for to in 0..=places {
            for (from, &before) in least.iter().enumerate().take(to + 1) {
                let largest = before.max(load(stage, from, to));
                if largest < next[to] {
                    (next[to], begin[to]) = (largest, from);
                }
            }
        }
        least = next;
        begins.push(begin);
    }
    let mut ends = vec![places];
    for begin in begins.iter().rev() {
        let last = *ends.last().expect("the last stage ends");
        ends.push(begin[last]);
    }
    ends.reverse();
    (least[places], ends)
}

fn collect_orders(order: &mut Vec<usize>, fixed: usize, all: &mut Vec<Vec<usize>>) {
    if all.len() >= ORDERS_MAX {
        return;
    }
    if fixed == order.len() {
        all.push(order.clone());
        return;
    }
    for next in fixed..order.len() {
        order.swap(fixed, next);
        collect_orders(order, fixed + 1, all);
        order.swap(fixed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stage_is_as_short_as_any_cut_makes_it() {
        let times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
        let speed = [1.0, 2.0];
        let load = |stage: usize, from: usize, to: usize| {
            times[from..to].iter().sum::<f64>() / speed[stage]
        };
        let (longest, ends) = cut_stages(2, times.len(), load);
        let tried = (0..=times.len()).map(|at| load(0, 0, at).max(load(1, at, times.len())));
        assert_eq!(longest, tried.fold(f64::INFINITY, f64::min));
        assert_eq!(ends, [4, 8]);
    }

    #[test]
    fn devices_without_a_stage_are_left_out() {
        let pipeline = build_pipeline(&[(2, 0), (1, 3), (0, 3), (3, 5)], 5);
        assert_eq!(
            (pipeline.devices, pipeline.stage_of_node),
            (vec![1, 3], vec![0, 0, 0, 1, 1])
        );
    }
}
