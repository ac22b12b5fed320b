//! libFuzzer's entry to the target `recovery`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| surgetank_fuzz::run("recovery", data));
