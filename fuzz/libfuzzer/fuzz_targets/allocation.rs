//! libFuzzer's entry to the target `allocation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| surgetank_fuzz::run("allocation", data));
