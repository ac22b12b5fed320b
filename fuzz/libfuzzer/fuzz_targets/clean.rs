//! libFuzzer's entry to the target `clean`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| surgetank_fuzz::run("clean", data));
