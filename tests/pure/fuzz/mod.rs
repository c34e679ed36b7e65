//! Replays the corpora of the fuzz targets and tries some random mutations of them, on any toolchain.
//!
//! `FUZZ_SEED` repeats a run, `FUZZ_MUTATIONS` multiplies the mutations. libFuzzer runs longer: `make
//! nightly-fuzz`.

mod mutate;
#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "public for libFuzzer")]
pub(crate) mod targets;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use mutate::Mutator;
use targets::{TARGETS, Target};

/// The inputs of a target, in the order of their names.
fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora").join(target.name);
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{}: {} inputs", target.name, paths.len());
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// A number of the environment.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect(name))
}

#[test]
fn replays_corpora() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora");
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, TARGETS.map(|target| target.name.to_owned()));
    let mut failed = Vec::new();
    for target in TARGETS {
        let inputs = corpus(&target).into_iter();
        failed.extend(
            inputs.filter(|(_, input)| catch_unwind(|| (target.check)(input)).is_err()).map(|(path, _)| path),
        );
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn survives_mutations_of_corpora() {
    let seed = variable("FUZZ_SEED").unwrap_or_else(tidegate::clock::read_boot_nanos);
    let times = u32::try_from(variable("FUZZ_MUTATIONS").unwrap_or(1)).unwrap();
    println!("FUZZ_SEED={seed}");
    for target in TARGETS {
        let inputs: Vec<Vec<u8>> = corpus(&target).into_iter().map(|(_, input)| input).collect();
        let mut mutator = Mutator::new(seed);
        for _ in 0..target.mutations * times {
            let input = mutator.mutate(&inputs);
            if catch_unwind(|| (target.check)(&input)).is_err() {
                let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
                fs::write(&kept, &input).unwrap();
                panic!("target {} fails: FUZZ_SEED={seed}; the input is {}", target.name, kept.display());
            }
        }
    }
}
