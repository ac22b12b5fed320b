//! libFuzzer's entry to the target `answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| surgetank_fuzz::run("answer", data));
