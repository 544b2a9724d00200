//! Tests that an audit convicts cheaper versions, other models and nonsense, but no honest
//! provider, and that the weights of tokens keep the bounds on which this rests.

use super::weights::upper_tail;
use super::*;

/// SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A normal error.
    fn error(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next()).cos()
    }
}

/// The noise of honest engines in these tests, in logits.
const NOISE: f64 = 0.05;

/// How a provider of these tests answers.
#[derive(Clone, Copy)]
enum Provider {
    /// Its logits differ from the reference's by an error of this size.
    Errs(f64),
    /// The same, and the text has another form from the tenth token on, so that later draws are at
    /// other places.
    Slips(f64),
    /// It draws by a rule of its own.
    OtherDraws,
    /// It says another model's tokens, far from the reference's.
    OtherModel,
    /// It says any tokens in this part of its answers, and is honest in the others.
    Nonsense { answers: f64 },
    /// It says any token in this part of all places, and is honest in the others.
    Slurs { tokens: f64 },
}

/// Logits of some tokens as of a model that is sure of some tokens and not of others.
fn draw_logits(draws: &mut Draws) -> Vec<f64> {
    let sharpness = 1.0 + 6.0 * draws.next();
    (0..12).map(|_| sharpness * draws.error()).collect()
}

fn likeliest(logits: &[f64]) -> usize {
    let order = |one: &usize, other: &usize| logits[*one].total_cmp(&logits[*other]);
    (0..logits.len()).max_by(order).expect("there are tokens")
}

/// Reads a token at temperature 0 as `souk_llm::scoring` does.
fn read_likeliest(logits: &[f64], told: usize) -> TokenReading {
    let top = likeliest(logits);
    let others = logits.iter().enumerate().filter(|(at, _)| *at != top);
    let second = others
        .map(|(_, logit)| *logit)
        .fold(f64::NEG_INFINITY, f64::max);
    let nearest = logits[top] - second;
    let mut rivals: Vec<f64> = logits.iter().map(|logit| logits[top] - logit).collect();
    rivals.sort_by(f64::total_cmp);
    rivals.remove(0);
    rivals.truncate(7);
    let rank = logits.iter().filter(|it| **it > logits[told]).count();
    let is_own = told == top;
    let reading = TokenReading {
        rank: rank as u32,
        margin: logits[top] - logits[told],
        margin_end: if is_own { nearest } else { f64::INFINITY },
        nearest: if is_own { f64::INFINITY } else { nearest },
        share: None,
        rarity: 1.0,
        rivals: if is_own { Vec::new() } else { rivals },
        noise: None,
        is_respelled: false,
        is_penalised: false,
        token: told as u32,
        drawn: top as u32,
    };
    reading.bounded()
}

fn shares(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let all: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.into_iter().map(|it| it / sum).collect()
}

fn drawn_at(logits: &[f64], point: f64) -> usize {
    let mut below = 0.0;
    let shares = shares(logits);
    let found = shares.iter().position(|share| {
        below += share;
        point < below
    });
    found.unwrap_or(logits.len() - 1)
}

fn read_seeded(logits: &[f64], told: usize, point: f64) -> TokenReading {
    let shares = shares(logits);
    let odds = |share: f64| (share / (1.0 - share).max(0.0)).ln();
    let edge = |at: usize| shares[..at].iter().sum::<f64>();
    let shift = |at: usize| (odds(point) - odds(edge(at))).abs();
    let own = drawn_at(logits, point);
    let near = [shift(own), shift(own + 1)];
    let [margin, margin_end] = match told.cmp(&own) {
        std::cmp::Ordering::Equal => [0.0, near[0].min(near[1])],
        std::cmp::Ordering::Less => [shift(told + 1), shift(told)],
        std::cmp::Ordering::Greater => [shift(told), shift(told + 1)],
    };
    let reading = TokenReading {
        rank: told.abs_diff(own) as u32,
        margin,
        margin_end,
        nearest: match told == own {
            true => near[0].max(near[1]),
            false => near[0].min(near[1]),
        },
        share: Some(shares[told]),
        rarity: shares.iter().filter(|it| **it <= shares[told]).sum(),
        rivals: Vec::new(),
        noise: None,
        is_respelled: false,
        is_penalised: false,
        token: told as u32,
        drawn: own as u32,
    };
    reading.bounded()
}

/// Gives the tokens numbers that no other position has, as if the vocabulary were large.
fn among_many(reading: TokenReading, at: u64) -> TokenReading {
    let number = |token: u32| token + 12 * at as u32;
    TokenReading {
        token: number(reading.token),
        drawn: number(reading.drawn),
        ..reading
    }
}

/// Audits answers of 40 tokens each, and returns what was found after so many tokens.
fn audit(provider: Provider, is_seeded: bool, tokens: u64, seed: u64) -> AuditTally {
    let mut draws = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let mut core = AuditCore::new(NOISE).unwrap();
    for at in 0..tokens {
        if at % 40 == 0 {
            core.begin_answer();
        }
        let logits = draw_logits(&mut draws);
        let (mut point, mut seen) = (draws.next(), logits.clone());
        let (asked, mut is_any) = (point, false);
        match provider {
            Provider::Errs(error) => seen.iter_mut().for_each(|it| *it += error * draws.error()),
            Provider::Slips(error) => {
                seen.iter_mut().for_each(|it| *it += error * draws.error());
                if at % 40 >= 10 {
                    point = draws.next();
                }
            }
            Provider::OtherDraws => point = draws.next(),
            Provider::OtherModel => seen = draw_logits(&mut draws),
            Provider::Nonsense { answers } => is_any = is_nonsense(at / 40, answers),
            Provider::Slurs { tokens } => is_any = draws.next() < tokens,
        }
        if is_any {
            seen = (0..logits.len()).map(|_| draws.next()).collect();
            point = draws.next();
        }
        let reading = match is_seeded {
            true => read_seeded(&logits, drawn_at(&seen, point), asked),
            false => read_likeliest(&logits, likeliest(&seen)),
        };
        core.push(&among_many(reading, at));
    }
    core.tally()
}

/// Returns whether an answer is one of this part that is spread evenly.
fn is_nonsense(answer: u64, part: f64) -> bool {
    let before = |answers: u64| (answers as f64 * part).floor();
    before(answer + 1) > before(answer)
}

/// Counts the audits with a verdict, among so many.
fn count(verdict: Verdict, audits: u64, of: impl Fn(u64) -> AuditTally) -> u64 {
    (0..audits)
        .filter(|seed| of(*seed).verdict == verdict)
        .count() as u64
}

#[test]
fn a_cheaper_version_is_found_and_an_honest_one_fits() {
    // The difference of two logits has the noise: each has less by the root of 2.
    let honest = NOISE / std::f64::consts::SQRT_2;
    for is_seeded in [false, true] {
        let of = |error: f64, tokens| {
            move |seed| audit(Provider::Errs(error * honest), is_seeded, tokens, seed)
        };
        let caught = count(Verdict::DoesNotFit, 100, of(10.0, 300));
        assert!(caught >= 95, "{caught} of 100, seeded: {is_seeded}");
        let fit = count(Verdict::Fits, 50, of(0.5, 1_000));
        assert!(fit >= 45, "{fit} of 50, seeded: {is_seeded}");
        // A version that errs as much as `fits` rules out is seldom called a fit.
        let wrong = count(Verdict::Fits, 100, of(FIT_FACTOR, 300));
        assert!(wrong <= 4, "{wrong} of 100, seeded: {is_seeded}");
    }
}

#[test]
fn an_honest_provider_is_not_convicted_at_the_limit_of_its_noise() {
    let honest = NOISE / std::f64::consts::SQRT_2;
    for is_seeded in [false, true] {
        let of = |seed| audit(Provider::Errs(honest), is_seeded, 400, seed);
        assert_eq!(
            count(Verdict::DoesNotFit, 500, of),
            0,
            "seeded: {is_seeded}"
        );
    }
}

#[test]
fn draws_of_another_engine_convict_nobody_and_never_fit() {
    for provider in [Provider::OtherDraws, Provider::Slips(NOISE / 2.0)] {
        let of = |seed| audit(provider, true, 400, seed);
        assert_eq!(count(Verdict::DoesNotFit, 200, of), 0);
        assert_eq!(count(Verdict::Fits, 100, of), 0);
    }
}

#[test]
fn another_model_is_found() {
    for is_seeded in [false, true] {
        let of = |seed| audit(Provider::OtherModel, is_seeded, 100, seed);
        let caught = count(Verdict::DoesNotFit, 100, of);
        // Seeded draws of another model look like those of another engine.
        assert!(is_seeded || caught == 100, "{caught}");
    }
}

#[test]
fn a_stray_token_convicts_nobody_and_a_conviction_stays() {
    let mut draws = Draws(7);
    let mut core = AuditCore::new(NOISE).unwrap();
    let far = read_likeliest(&[9.0, 0.0, -30.0], 2);
    core.begin_answer();
    core.push(&far);
    for _ in 0..500 {
        let logits = draw_logits(&mut draws);
        core.push(&read_likeliest(&logits, likeliest(&logits)));
    }
    assert_eq!(core.verdict(), Verdict::Fits);
    for at in 0..300 {
        core.push(&among_many(read_likeliest(&[1.0, 0.0, -1.0], 1), at));
    }
    assert_eq!(core.verdict(), Verdict::DoesNotFit);
    let after = core.tally().convicted_after;
    for _ in 0..300 {
        core.push(&read_likeliest(&[1.0, 0.0, -1.0], 0));
    }
    assert_eq!(
        (core.verdict(), core.tally().convicted_after),
        (Verdict::DoesNotFit, after)
    );
}

#[test]
fn nonsense_is_found_in_tens_of_tokens() {
    for is_seeded in [false, true] {
        let found = |provider, tokens| {
            count(Verdict::DoesNotFit, 100, |seed| {
                audit(provider, is_seeded, tokens, seed)
            })
        };
        let all = found(Provider::Nonsense { answers: 1.0 }, 100);
        assert_eq!(all, 100, "seeded: {is_seeded}");
        let half = found(Provider::Nonsense { answers: 0.5 }, 400);
        assert_eq!(half, 100, "seeded: {is_seeded}");
        let slurred = found(Provider::Slurs { tokens: 0.5 }, 200);
        assert!(slurred >= 95, "{slurred}, seeded: {is_seeded}");
    }
}

#[test]
fn nonsense_in_few_answers_is_found_at_last() {
    for (answers, tokens) in [(0.1, 4_000), (0.05, 12_000)] {
        let of = |seed| audit(Provider::Nonsense { answers }, false, tokens, seed);
        let caught = count(Verdict::DoesNotFit, 8, of);
        assert_eq!(caught, 8, "{answers}");
    }
}

/// Reads a token of a rank as if the reference were sure of its own draw, and had a large
/// vocabulary.
fn read_far(rank: u32) -> TokenReading {
    let rivals: Vec<f64> = (0..7).map(|at| 4.0 + f64::from(at)).collect();
    let margin = rivals.get(rank as usize - 1).copied();
    TokenReading {
        rank,
        margin: margin.unwrap_or(14.0),
        nearest: rivals[0],
        rivals,
        ..read_likeliest(&[1.0, 0.0], 1)
    }
}

#[test]
fn tokens_of_any_rank_convict_alike_but_never_in_one_answer() {
    for rank in [1, 2, 13, 14, 1_000, 150_000] {
        let mut core = AuditCore::new(NOISE).unwrap();
        for answer in 0..2 {
            core.begin_answer();
            for at in 0..20 {
                assert_ne!(core.verdict(), Verdict::DoesNotFit, "rank {rank}");
                core.push(&among_many(read_far(rank), 20 * answer + at));
                if answer == 1 && core.verdict() == Verdict::DoesNotFit {
                    break;
                }
            }
        }
        assert_eq!(core.verdict(), Verdict::DoesNotFit, "rank {rank}");
    }
}

#[test]
fn a_long_answer_of_nonsense_convicts() {
    let mut core = AuditCore::new(NOISE).unwrap();
    core.begin_answer();
    for at in 0..BLOCK_TOKENS + 20 {
        core.push(&among_many(read_far(1_000), at));
    }
    assert_eq!(core.verdict(), Verdict::DoesNotFit);
    assert!(core.tally().convicted_after > Some(BLOCK_TOKENS));
}

/// Returns the worth of a token to all bets.
fn weigh(reading: &TokenReading) -> Vec<f64> {
    let bets = CHEATS.map(|cheat| cheat.bet_on(reading, NOISE, NOISE));
    bets.iter().map(|bet| bet.of_seeds_draws).collect()
}

#[test]
fn a_token_that_is_less_likely_never_weighs_less() {
    let mut draws = Draws(11);
    for _ in 0..2_000 {
        let logits = draw_logits(&mut draws);
        let mut by_likelihood: Vec<usize> = (0..logits.len()).collect();
        by_likelihood.sort_by(|one, other| logits[*other].total_cmp(&logits[*one]));
        let weights = by_likelihood
            .iter()
            .map(|told| weigh(&read_likeliest(&logits, *told)));
        let weights: Vec<Vec<f64>> = weights.collect();
        // A tie is no bet at all, so the own draw is left out of the comparison there.
        let is_tie = logits[by_likelihood[0]] - logits[by_likelihood[1]] < TIE * NOISE;
        for pair in weights[usize::from(is_tie)..].windows(2) {
            let falls = pair[0].iter().zip(&pair[1]).any(|(one, other)| other < one);
            assert!(!falls, "{logits:?}: {weights:?}");
        }
    }
}

#[test]
fn a_bet_is_worth_one_at_most_to_any_honest_provider() {
    let honest = NOISE / std::f64::consts::SQRT_2;
    for is_seeded in [false, true] {
        let (mut sums, tokens) = (vec![[0.0; 2]; CHEATS.len()], 60_000);
        let mut draws = Draws(5);
        for _ in 0..tokens {
            let logits = draw_logits(&mut draws);
            let errs = logits.iter().map(|it| it + honest * draws.error());
            let seen: Vec<f64> = errs.collect();
            let (point, other) = (draws.next(), draws.next());
            let read = |at: f64| match is_seeded {
                true => read_seeded(&logits, drawn_at(&seen, at), point),
                false => read_likeliest(&logits, likeliest(&seen)),
            };
            let [own, others] = [read(point), read(other)];
            for (sum, cheat) in sums.iter_mut().zip(CHEATS) {
                sum[0] += cheat.bet_on(&own, NOISE, NOISE).of_seeds_draws;
                sum[1] += cheat.bet_on(&others, NOISE, NOISE).of_other_draws;
            }
        }
        for (mean, cheat) in sums.iter().zip(CHEATS) {
            let mean = mean.map(|sum| sum / f64::from(tokens));
            assert!(
                mean.iter().all(|it| *it <= 1.0),
                "{cheat:?}: {mean:?}, seeded: {is_seeded}"
            );
        }
    }
}

#[test]
fn the_weights_of_all_tokens_are_at_most_one() {
    let mut draws = Draws(3);
    for _ in 0..2_000 {
        let (logits, point) = (draw_logits(&mut draws), draws.next());
        for error in [0.02, 0.3, 3.0] {
            for is_seeded in [false, true] {
                let each = (0..logits.len()).map(|told| match is_seeded {
                    true => read_seeded(&logits, told, point),
                    false => read_likeliest(&logits, told),
                });
                let sum: f64 = each.map(|reading| weigh_version(&reading, error)).sum();
                assert!(sum <= 1.0 + 1e-6, "{sum} at {error}, seeded: {is_seeded}");
            }
        }
    }
}

#[test]
fn tails_are_those_of_the_normal_distribution() {
    for (deviations, tail) in [
        (0.0, 0.5),
        (1.0, 0.158_655),
        (2.0, 0.022_750),
        (4.0, 3.1671e-5),
    ] {
        assert!(
            (upper_tail(deviations) / tail - 1.0).abs() < 1e-4,
            "{deviations}"
        );
    }
}

/// Audits answers of ten tokens that are another than the reference's own draw by a logit.
fn audit_others(tokens: u64, change: impl Fn(TokenReading, u64) -> TokenReading) -> AuditTally {
    let mut core = AuditCore::new(NOISE).unwrap();
    for at in 0..tokens {
        if at % 10 == 0 {
            core.begin_answer();
        }
        core.push(&change(read_likeliest(&[1.0, 0.0, -1.0], 1), at));
    }
    core.tally()
}

#[test]
fn tokens_that_a_penalty_explains_convict_nobody_and_do_not_fit() {
    assert_eq!(audit_others(20, among_many).verdict, Verdict::DoesNotFit);
    let penalised = audit_others(20, |reading, at| TokenReading {
        is_penalised: true,
        ..among_many(reading, at)
    });
    assert_eq!(penalised.verdict, Verdict::NotEnough);
    assert_eq!(penalised.penalised, 20);
    assert!(penalised.evidence <= 0.0 && penalised.fit < 0.0);
}

#[test]
fn the_same_token_for_the_same_draw_counts_once() {
    let once = audit_others(1, |reading, _| reading);
    let often = audit_others(50, |reading, _| reading);
    assert!(once.evidence > 0.5, "{}", once.evidence);
    assert!(often.evidence <= once.evidence, "{}", often.evidence);
    assert_eq!(often.verdict, Verdict::NotEnough);
}

#[test]
fn a_provider_whose_answers_are_mostly_unreadable_does_not_fit() {
    let mut core = AuditCore::new(NOISE).unwrap();
    core.begin_answer();
    let mut draws = Draws(5);
    for _ in 0..1_000 {
        let logits = draw_logits(&mut draws);
        core.push(&read_likeliest(&logits, likeliest(&logits)));
    }
    assert_eq!(core.verdict(), Verdict::Fits);
    core.skip_evasive_answer();
    assert_eq!(core.verdict(), Verdict::Fits);
    core.skip_evasive_answer();
    assert_eq!(core.verdict(), Verdict::NotEnough);
    assert_eq!(core.tally().evasive_answers, 2);
}

#[test]
fn a_noise_that_is_no_number_is_refused() {
    for noise in [f64::NAN, f64::INFINITY, -0.1] {
        assert!(AuditCore::new(noise).is_err(), "{noise}");
    }
    assert_eq!(AuditCore::new(0.0).unwrap().noise(), NOISE_MIN);
}
