//! Encodes numbers as super-blocks (ggml's K-quants) for the tests; the library only decodes them.

use souk_memory::F16;

/// Bytes of a super-block, and the numbers they stand for.
pub type SuperBlock = (Vec<u8>, Vec<f32>);

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |most, it| most.max(it.abs()))
}

/// A super-block of `q4_K`, and the numbers it stands for.
pub fn q4_k(values: &[f32]) -> SuperBlock {
    let parts = values.chunks(32).map(|part| {
        let least = part.iter().fold(0.0f32, |most, it| most.min(*it));
        let most = part.iter().fold(0.0f32, |most, it| most.max(*it));
        ((most - least) / 15.0, -least)
    });
    let parts: Vec<(f32, f32)> = parts.collect();
    let step = F16::from_f32(largest(parts.iter().map(|it| it.0)) / 63.0);
    let least = F16::from_f32(largest(parts.iter().map(|it| it.1)) / 63.0);
    let six = |value: f32, of: F16| (value / of.to_f32()).round().min(63.0);
    let (mut codes, mut meant) = (Vec::new(), Vec::new());
    let (mut scales, mut leasts) = (Vec::new(), Vec::new());
    for (part, own) in values.chunks(32).zip(&parts) {
        let (scale, lower) = (six(own.0, step), six(own.1, least));
        let (apart, below) = (step.to_f32() * scale, least.to_f32() * lower);
        let code = |it: &f32| ((it + below) / apart).round().clamp(0.0, 15.0);
        meant.extend(part.iter().map(|it| apart * code(it) - below));
        codes.extend(part.iter().map(|it| code(it) as u8));
        scales.push(scale as u8);
        leasts.push(lower as u8);
    }
    let mut bytes = [step.0.to_le_bytes(), least.0.to_le_bytes()].concat();
    for six in [&scales, &leasts] {
        bytes.extend((0..4).map(|at| six[at] | (six[at + 4] >> 4 << 6)));
    }
    bytes.extend((4..8).map(|at| (scales[at] & 15) | (leasts[at] << 4)));
    for pair in codes.chunks(64) {
        bytes.extend((0..32).map(|at| pair[at] | (pair[at + 32] << 4)));
    }
    (bytes, meant)
}

/// A super-block of `q6_K`, and the numbers it stands for.
pub fn q6_k(values: &[f32]) -> SuperBlock {
    let steps = values.chunks(16);
    let steps: Vec<f32> = steps
        .map(|part| largest(part.iter().copied()) / 31.0)
        .collect();
    let step = F16::from_f32(largest(steps.iter().copied()) / 127.0);
    let (mut codes, mut meant, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    for (part, own) in values.chunks(16).zip(&steps) {
        let scale = (own / step.to_f32()).round().min(127.0);
        let apart = step.to_f32() * scale;
        let code = |it: &f32| (it / apart).round().clamp(-32.0, 31.0);
        meant.extend(part.iter().map(|it| apart * code(it)));
        codes.extend(part.iter().map(|it| (code(it) + 32.0) as u8));
        scales.push(scale as u8);
    }
    let mut bytes = Vec::new();
    for side in codes.chunks(128) {
        bytes.extend((0..64).map(|at| (side[at] & 15) | (side[at + 64] << 4)));
    }
    for side in codes.chunks(128) {
        let high = |at: usize, layer: usize| side[at + layer * 32] >> 4 << (layer * 2);
        bytes.extend((0..32).map(|at| (0..4).map(|layer| high(at, layer)).sum::<u8>()));
    }
    bytes.extend(scales);
    bytes.extend(step.0.to_le_bytes());
    (bytes, meant)
}
